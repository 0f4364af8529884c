//! What is asked of one node, and what it says.

use std::time::Duration;

use crate::{
    fencing_token::FencingToken,
    owner_id::{OwnerId, Seat},
    resource::Key,
};

/// One thing to do on one node, in one step: a script, except for `Waiters` and `Ping`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Set the key if there is none.
    Acquire {
        /// The lock's key.
        key: Key,
        /// Whose it becomes.
        owner: OwnerId,
        /// How long the key lives, in whole milliseconds.
        ttl_ms: u64,
    },
    /// Set the key if there is none, and count.
    AcquireFenced {
        /// The lock's key.
        key: Key,
        /// The resource's counter.
        fence: Fence,
        /// Whose it becomes.
        owner: OwnerId,
        /// How long the key lives, in whole milliseconds.
        ttl_ms: u64,
    },
    /// Raise the counter to the token if the key is still the owner's and the counter is not above it.
    Raise {
        /// The lock's key.
        key: Key,
        /// The resource's counter.
        fence: Fence,
        /// Whose it has to be.
        owner: OwnerId,
        /// What another node granted.
        token: FencingToken,
    },
    /// Set the key again if there is none, with the token that goes with it.
    RefillFenced {
        /// The lock's key.
        key: Key,
        /// The resource's counter.
        fence: Fence,
        /// Whose it becomes.
        owner: OwnerId,
        /// How long the key lives, in whole milliseconds.
        ttl_ms: u64,
        /// The token of the lock.
        token: FencingToken,
    },
    /// Let the key live for at least this long if it is still the owner's. Never shortens.
    Extend {
        /// The lock's key.
        key: Key,
        /// Whose it has to be.
        owner: OwnerId,
        /// How long the key is to live, in whole milliseconds.
        ttl_ms: u64,
    },
    /// Delete the key if it is still the owner's, and call those who wait for it.
    Release {
        /// The lock's key.
        key: Key,
        /// Whose it has to be.
        owner: OwnerId,
        /// Who.
        calls: Called,
    },
    /// Say whether more connections than these wait for releases of the key: `Taken` if so, and `Missing`
    /// if not. Changes nothing.
    Waiters {
        /// The lock's key.
        key: Key,
        /// How many are known to whoever asks.
        besides: u32,
    },
    /// Nothing. Its answer proves that everything written before it on the same link was executed,
    /// and that answers are still in step with questions.
    Ping {
        /// Comes back in the answer.
        nonce: u64,
    },
}

impl Operation {
    /// Whose key it is about.
    #[must_use]
    pub const fn owner(&self) -> Option<OwnerId> {
        match self {
            Self::Acquire { owner, .. }
            | Self::AcquireFenced { owner, .. }
            | Self::Raise { owner, .. }
            | Self::RefillFenced { owner, .. }
            | Self::Extend { owner, .. }
            | Self::Release { owner, .. } => Some(*owner),
            Self::Waiters { .. } | Self::Ping { .. } => None,
        }
    }

    /// Whether it is a vote of a node, which only an admitted one may give.
    #[must_use]
    pub const fn is_grant(&self) -> bool {
        match self {
            Self::Acquire { .. }
            | Self::AcquireFenced { .. }
            | Self::Raise { .. }
            | Self::RefillFenced { .. } => true,
            Self::Extend { .. }
            | Self::Release { .. }
            | Self::Waiters { .. }
            | Self::Ping { .. } => false,
        }
    }
}

/// Whom a release calls of those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Nobody.
    Nobody,
    /// The next behind the owner's seat.
    Next,
    /// Whoever waits on this seat, on which somebody waited alone; if nobody does, the next.
    Known(Seat),
    /// The next, and the one behind that, who stands in for it. The next hears who that is.
    NextAndStandIn,
}

/// Where a resource's counter is on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Its key.
    pub key: Key,
    /// For how many milliseconds it stays, from the beginning of a step of its numbers on.
    pub idle_ms: u64,
}

/// What a node said: a fact, established in one atomic step on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// It did as asked: the key is set, was still ours and lives on, or was ours and is deleted.
    Done,
    /// The key was ours and is deleted, and somebody else who waited for it was called.
    PassedOn,
    /// The key is set, with this number: larger than all that the node granted before.
    Counted(FencingToken),
    /// There is no such key (to extend or to release), or the node cannot vouch for the token.
    Missing,
    /// The key is somebody else's.
    Taken {
        /// How long the key still lives by the node's clock. `None`: it has no ttl, so it was not
        /// set by this library and only a person can remove it.
        remaining: Option<Duration>,
    },
}
