//! Distributed locks on Redis and Valkey that never hang, leave no key behind, and say when they are
//! lost.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorumlock::{LockOptions, Redlock};
//!
//! let redlock =
//!     Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]).await?;
//!
//! let guard = redlock.acquire("orders:42").await?; // renewed in the background from here on
//! // … what only one may do, given up when guard.lost() resolves …
//! guard.release().await?;
//!
//! // The same, with the work stopped when the lock is lost:
//! redlock.with_lock("orders:42", LockOptions::new(), async |_guard| { /* … */ }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A lock is held when a majority of independent masters granted it ([Redlock]). So it survives the
//! failure of a minority of them, and a node that is slow, frozen or dead costs nothing but its vote.
//!
//! # The picture
//!
//! ```text
//!  you ── acquire("orders:42") ──► Redlock ──► LockGuard ── lost(), remaining(), release()
//!                                     │            │
//!                                     │         watchdog: renews what is held, tells of its loss
//!                                     │            │
//!                                    quorum: rounds, votes, validity
//!                                     │    │    │
//!                                   lane  lane  lane     one per node: order, in flight, owed releases
//!                                     │    │    │
//!                                   node  node  node     one connection after another
//! ```
//!
//! # The nouns
//!
//! - [`Redlock`]: a fixed set of nodes, and what is locked on them.
//! - **node**: one independent Redis or Valkey master. [`Redlock::nodes`] shows how they are,
//!   and [`Redlock::node_events`] when that changes.
//! - **resource**: what is locked, by name.
//! - **quorum**: ⌊N/2⌋ + 1 of the *configured* nodes.
//! - **ttl**: how long a node keeps the lock's key. **validity**: what is left of it after the time
//!   that the round took and the clocks' drift: what a holder may rely on.
//! - [`LockGuard`]: a held lock.
//! - **owner id**: the random value of one attempt, by which a node knows whose a key is.
//!
//! # What it does not do
//!
//! - It does not stop a holder that is paused beyond its validity from waking up and going on. No lock
//!   service can; what is written under a lock has to be able to refuse a late writer, as the resources
//!   in [`fenced`] do.
//! - It does not notice every master that forgot: one that restarted or was flushed does not vote until
//!   nothing that it forgot is held any more, but one that was set back to an older state within one
//!   process cannot be told.
//! - It does not work on Redis Cluster or behind Sentinel: nodes have to be independent.
//!
//! What is promised, on which assumptions, stands in `docs/guarantees.md`. The objections to locks of this
//! kind, each as a run that anyone can repeat, are in `kleppmann`, with the feature `sim`.
//!
//! # Features
//!
//! - `sim`: simulated masters in virtual time, for tests. See `sim`; and `kleppmann`, which runs on them.
//! - `rustls`: `rediss://` and `valkeys://` URLs.
//! - `postgres`: `fenced::postgres`, which refuses stale fencing tokens in PostgreSQL transactions.
//! - `serde`: [`FencingToken`] as a plain number.
//!
//! [Redlock]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a failing test may panic"
    )
)]

// Bottom-up: a module uses only modules declared above it. `tests/it/layering.rs` checks that.
mod entropy;
#[cfg(feature = "sim")]
mod gate;
mod clock;
mod alarm;
mod tasks;
mod validity;
mod backoff;
mod options;
mod majority;
mod resource;
mod owner_id;
mod fencing_token;
mod fence;
pub mod fenced;
pub mod node;
#[cfg(feature = "sim")]
pub mod sim;
mod error;
mod admission;
mod board;
mod contended;
mod own_seat;
mod successors;
mod lane;
mod quorum;
mod wait;
mod loss;
mod lease;
mod watchdog;
mod guard;
mod fenced_guard;
mod redlock;
mod scope;
mod connect;
mod builder;
#[cfg(feature = "sim")]
#[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
pub mod kleppmann;

pub use fred;

pub use builder::RedlockBuilder;
pub use error::{
    AcquireError, ConnectError, ExtendError, FailedAttempt, NodeOutcome, NodeReport, NodeReports,
    ReleaseError, WithLockError,
};
pub use fenced_guard::FencedGuard;
pub use fencing_token::FencingToken;
pub use guard::LockGuard;
pub use lane::{NodeEvents, NodeState, NodeStatus};
pub use options::{LockOptions, OptionsError};
pub use owner_id::{OwnerId, Seat};
pub use redlock::{Drained, Redlock};
pub use resource::Key;
pub use validity::ClockDrift;
