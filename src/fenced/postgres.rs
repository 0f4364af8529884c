//! Resources in PostgreSQL: a token is checked inside the transaction that writes.
//!
//! ```no_run
//! use quorumlock::{
//!     FencingToken,
//!     fenced::postgres::{CheckError, check, tokio_postgres::Client},
//! };
//!
//! async fn pay(client: &mut Client, token: FencingToken) -> Result<(), CheckError> {
//!     let transaction = client.transaction().await?;
//!     // First, before anything is read: what is read from here on is not changed by older holders.
//!     check(&transaction, "account:7", token).await?;
//!     transaction.execute("UPDATE accounts SET balance = balance - 100 WHERE id = 7", &[]).await?;
//!     transaction.commit().await?;
//!     Ok(())
//! }
//! ```
//!
//! The fences are rows of the table that [`MIGRATION`] creates. [`check`] leaves the resource's row
//! locked until the transaction ends, and this is what orders the writers: another one waits in its
//! own check, and then sees what was committed.
//!
//! `docs/fencing.md` has the SQL for other clients, such as sqlx, and the recipe for a fence that is a
//! column of the table that is written.

pub use tokio_postgres;

use tokio_postgres::{Transaction, error::SqlState, types::Type};

use super::StaleToken;
use crate::fencing_token::FencingToken;

/// Creates the table of the fences. Run it once, with the other migrations of the database.
pub const MIGRATION: &str = "\
CREATE TABLE IF NOT EXISTS quorumlock_fence (
    resource text COLLATE \"C\" PRIMARY KEY,
    fence bigint NOT NULL CHECK (fence BETWEEN 0 AND 9007199254740991)
);
";

/// The statement of [`check`], for clients other than tokio-postgres: `$1` is the resource as `text`,
/// `$2` the token as `bigint`. It returns one row with the largest token seen, this one included. Unless
/// that is `$2`, the token is stale and the transaction must be rolled back.
pub const CHECK: &str = "\
INSERT INTO quorumlock_fence AS known (resource, fence) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET fence = GREATEST(known.fence, EXCLUDED.fence)
RETURNING fence;
";

/// Refuses a stale token, and otherwise keeps older ones out until the transaction ends, and for good
/// if it commits.
///
/// One round trip. Call it first in the transaction, before what is read for the writes, and write in
/// the same transaction: not in another one, and not outside of a savepoint in which it was called.
/// On any error roll the transaction back.
///
/// It waits, without a bound of its own, while another transaction that has checked the same resource
/// is open; PostgreSQL's `lock_timeout` bounds that. If that one commits a larger token, this one is
/// refused; if it rolls back, it was never there.
///
/// Works at every isolation level. At `REPEATABLE READ` and `SERIALIZABLE`, a resource that another
/// transaction has checked and committed since this one began is an error that
/// [`is_retryable`](CheckError::is_retryable), whatever the tokens are.
///
/// # Errors
///
/// [`CheckError::Stale`] if a larger token was committed, or checked in this transaction.
/// [`CheckError::Database`] if the statement failed, [`CheckError::NotRecorded`] if it had no effect,
/// [`CheckError::TooLarge`] for a number that is no token. Never taken for a yes.
///
/// # Cancel safety
///
/// When the future is dropped, the token may or may not have been checked: roll the transaction back.
pub async fn check(
    transaction: &Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), CheckError> {
    let presented = i64::try_from(token.get()).ok().filter(|_| token <= FencingToken::MAX);
    let presented = presented.ok_or(CheckError::TooLarge { presented: token })?;
    let rows = transaction
        .query_typed(CHECK, &[(&resource, Type::TEXT), (&presented, Type::INT8)])
        .await?;
    let row = rows.first().ok_or(CheckError::NotRecorded)?;
    let newest: i64 = row.try_get(0)?;
    // Only what is recorded as the newest is a yes.
    if newest == presented {
        return Ok(());
    }
    let newest = FencingToken::new(newest.unsigned_abs());
    Err(StaleToken { presented: token, newest }.into())
}

/// Why a check did not say yes. Whatever the variant, roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A larger token was here before.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// The number is above [`FencingToken::MAX`], so that it is no token of a lock. It was not sent:
    /// once recorded, it would keep all tokens out for good.
    #[error("{presented} is too large for a fencing token")]
    TooLarge {
        /// What was to be checked.
        presented: FencingToken,
    },
    /// The statement returned no row: a trigger or a rule of the table kept it from having an effect.
    #[error("the fencing token was not recorded: does the table have a trigger or a rule?")]
    NotRecorded,
    /// The statement failed.
    #[error("the fencing token could not be checked")]
    Database(#[from] tokio_postgres::Error),
}

impl CheckError {
    /// Whether the token is stale: another holds the lock or has held it since.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale(_))
    }

    /// Whether the same transaction, begun anew, may go through: it met another one in a way that
    /// PostgreSQL does not allow (serialization failure, deadlock).
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        let Self::Database(error) = self else { return false };
        let state = error.code();
        [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED]
            .iter()
            .any(|retryable| state == Some(retryable))
    }
}
