//! A real PostgreSQL, started by each test, and transactions that race in it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "a failing test may panic"
)]

/// What does not need a Redis server.
#[path = "../support"]
#[allow(dead_code, unreachable_pub, unnameable_types, reason = "as in `support/mod.rs`")]
mod support {
    mod process;
    pub mod postgres;
}

mod checks;
mod races;
mod docs;
mod recipes;

use quorumlock::{
    FencingToken,
    fenced::postgres::tokio_postgres::{Client, IsolationLevel, Transaction},
};

/// Every level that PostgreSQL tells apart.
const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

const fn token(number: u64) -> FencingToken {
    FencingToken::new(number)
}

async fn begin(client: &mut Client, level: IsolationLevel) -> Transaction<'_> {
    client.build_transaction().isolation_level(level).start().await.unwrap()
}

/// Whether transactions of this level see what others committed since they began.
fn sees_commits(level: IsolationLevel) -> bool {
    matches!(level, IsolationLevel::ReadCommitted)
}
