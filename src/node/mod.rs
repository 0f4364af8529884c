//! What one master can do, and the ways in which it can fail to.
//!
//! [`Node`] is the port between the protocol and a server. It hands out one [`Link`] after another:
//! a link is one connection, and a value, so that "before the reconnect" and "after" cannot be
//! confused. Everything above is written against this port and does not know what is behind it.

pub mod script;
mod facts;
mod marker;
mod operation;
pub mod redis;

use std::{fmt, future::Future, sync::Arc, time::Duration};

pub use self::{
    facts::{Facts, Server},
    marker::{Ballot, FleetKeys, MarkState, Marker},
    operation::{Answer, Called, Fence, Operation},
};

use crate::{
    owner_id::{OwnerId, Seat},
    resource::Key,
};

/// A node's name: `host:port`, without credentials.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// A name, as configured.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a node gave no usable answer. Whatever the variant, it is neither a grant nor a refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeFailure {
    /// Sent, but not answered in time. It may still be executed.
    #[error("no answer within {after:?}")]
    Timeout {
        /// How long it was waited for.
        after: Duration,
    },
    /// Sent, but the connection was lost before the answer. It may have been executed.
    #[error("connection lost before the answer: {cause}")]
    Disconnected {
        /// What the connection ended with.
        cause: String,
    },
    /// Not sent: there is no connection.
    #[error("not connected: {cause}")]
    Unreachable {
        /// Why there is none.
        cause: String,
    },
    /// Not sent: an earlier command is still without an answer, the node seems frozen.
    #[error("not responding, not asked")]
    Unresponsive,
    /// Not sent: the bound on what may be in flight to one node was reached.
    #[error("overloaded: {in_flight} commands in flight")]
    Overloaded {
        /// The bound.
        in_flight: usize,
    },
    /// Not sent: another node, which was asked first, had refused already.
    #[error("not asked")]
    NotAsked,
    /// Connected, but not admitted: it may have forgotten what it granted, or cannot serve as a node.
    /// Not sent, or answered by the node itself, which then executed nothing.
    #[error("not admitted: {why}")]
    NotAdmitted {
        /// Why not, and for how long.
        why: String,
    },
    /// Not sent: the `Redlock` was shut down.
    #[error("shut down")]
    ShutDown,
    /// The node does not know the script, so it certainly executed nothing.
    #[error("script not loaded on the node")]
    NoScript,
    /// The node answered with an error.
    #[error("the node answered: {message}")]
    Rejected {
        /// The server's own words.
        message: String,
    },
    /// The server cannot serve as a node and trying again will not change that: wrong password, not
    /// a Redis or Valkey server.
    #[error("{reason}")]
    Unfit {
        /// Why not.
        reason: String,
    },
}

impl NodeFailure {
    /// Whether the operation may have been executed, now or later: only `false` is a certainty.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Disconnected { .. } => true,
            Self::Rejected { .. } => !self.is_forbidden_key(),
            Self::Unreachable { .. }
            | Self::Unresponsive
            | Self::Overloaded { .. }
            | Self::NotAsked
            | Self::NotAdmitted { .. }
            | Self::ShutDown
            | Self::NoScript
            | Self::Unfit { .. } => false,
        }
    }

    /// Whether the rejection says that the key cannot be a lock of ours, so that there is nothing to release:
    /// it is of another type, or may not be touched. Any other may pass: a server that is busy or loading, a
    /// command that is forbidden.
    pub(crate) fn is_about_the_key(&self) -> bool {
        self.is_rejection("WRONGTYPE") || self.is_forbidden_key()
    }

    /// Whether the rejection says that one of the keys may not be touched. Servers look at that before they
    /// run a command.
    pub(crate) fn is_forbidden_key(&self) -> bool {
        self.is_rejection("NOPERM No permissions to access a key")
            // Before 7.2.
            || self.is_rejection("NOPERM this user has no permissions to access one of the keys")
    }

    fn is_rejection(&self, beginning: &str) -> bool {
        match self {
            Self::Rejected { message } => message.starts_with(beginning),
            Self::Timeout { .. }
            | Self::Disconnected { .. }
            | Self::Unreachable { .. }
            | Self::Unresponsive
            | Self::Overloaded { .. }
            | Self::NotAsked
            | Self::NotAdmitted { .. }
            | Self::ShutDown
            | Self::NoScript
            | Self::Unfit { .. } => false,
        }
    }
}

/// An answer or the reason why there is none.
pub type Outcome = Result<Answer, NodeFailure>;

/// Which process a link leads to, and what that process calls the link.
///
/// Kept after the link is gone: what was written to it may still sit in the server's buffers, and
/// only with its id can the next link have it closed unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkId {
    /// The server process' `run_id`, a new one at each start.
    pub run_id: String,
    /// `CLIENT ID`; `None` when the server does not tell.
    pub client_id: Option<i64>,
}

/// How a script is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendAs {
    /// By the digest of the script that this admission loaded, and by nothing else: so an acquire is sent.
    /// A server that has forgotten it, or its marker, is not admitted.
    Ballot(Arc<Ballot>),
    /// By its SHA-1 digest (`EVALSHA`), which fails with [`NodeFailure::NoScript`] where the server
    /// has forgotten it.
    Digest,
    /// By its text (`EVAL`), which the server remembers.
    Text,
}

/// One master. Hands out connections to it.
///
/// This trait is sealed: its contract is what the conformance suite checks, and it grows with the
/// protocol. It is public so that the suite can be read and run, not to be implemented elsewhere.
pub trait Node: sealed::Sealed + Send + Sync + 'static {
    /// A connection to this node.
    type Link: Link;
    /// A connection to this node that hears of releases.
    type Listener: Listener;

    /// The node's name.
    fn name(&self) -> &NodeName;

    /// Connects, has what remains of the `stale` links to the same process closed unread, and makes
    /// the scripts known. Bounded in time by the node itself.
    ///
    /// # Errors
    ///
    /// [`NodeFailure::Unreachable`] where another try may help, [`NodeFailure::Unfit`] where not.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes the half-made connection.
    fn connect(
        &self,
        stale: &[LinkId],
    ) -> impl Future<Output = Result<Self::Link, NodeFailure>> + Send;

    /// Connects to hear of releases. Bounded in time by the node itself.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes the half-made connection.
    fn listen(&self) -> impl Future<Output = Result<Self::Listener, NodeFailure>> + Send;
}

/// A connection to one master that hears of releases: of those that it was there for, and no others.
pub trait Listener: sealed::Sealed + Send + 'static {
    /// Listens for releases where it is told to, from the end of the future on; who moves from one seat to
    /// another hears all the time, on one of them or on both. One call at a time; who drops its future does not
    /// know what it hears.
    ///
    /// # Errors
    ///
    /// [`NodeFailure`]: this listener is of no more use.
    fn move_to(
        &self,
        moves: Vec<Move>,
    ) -> impl Future<Output = Result<(), NodeFailure>> + Send + 'static;

    /// Waits for the next release. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`NodeFailure`]: the connection has ended.
    fn heard(&mut self) -> impl Future<Output = Result<Heard, NodeFailure>> + Send;
}

/// From which seat to which somebody moves who listens for releases of a key; `None` is nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// What is listened for.
    pub key: Key,
    /// Where it was.
    pub from: Option<Seat>,
    /// Where it is to be.
    pub to: Option<Seat>,
}

/// A release, as those hear of it who wait and are next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What was released.
    pub key: Key,
    /// Whose it was.
    pub owner: OwnerId,
    /// How many seats are called before this one: none, or one, which stands in if that one does not
    /// come.
    pub rank: u32,
    /// How many connections sit on this seat; 0 if the server does not say.
    pub sharing: u32,
    /// The seat that is called to stand in for this one, if one was looked for and one connection alone sits
    /// there.
    pub behind: Option<Seat>,
}

/// One connection to one master. Operations run in the order in which they were first polled.
pub trait Link: sealed::Sealed + Send + Sync + 'static {
    /// Which connection this is.
    fn id(&self) -> &LinkId;

    /// Sends one operation and waits for its answer, for as long as that takes: whoever calls sets the bound, and
    /// hears of the end of the connection by [`closed`](Self::closed) only.
    ///
    /// # Errors
    ///
    /// [`Disconnected`](NodeFailure::Disconnected), after which the operation may still be executed;
    /// [`NoScript`](NodeFailure::NoScript) and [`Rejected`](NodeFailure::Rejected), which the server said.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the operation back: it may be executed all the same.
    fn call(
        &self,
        operation: &Operation,
        send_as: SendAs,
    ) -> impl Future<Output = Outcome> + Send + 'static;

    /// How many operations may go together.
    fn most_together(&self) -> usize;

    /// Sends operations in one command, which are executed in this order and in one step: no more than
    /// [`most_together`](Self::most_together) of those that have an owner, grants among them by this admission.
    /// Their outcomes, in the same order.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call), for all of them.
    ///
    /// # Cancel safety
    ///
    /// As for [`call`](Self::call).
    fn call_together(
        &self,
        operations: Vec<Operation>,
        ballot: &Arc<Ballot>,
    ) -> impl Future<Output = Result<Vec<Outcome>, NodeFailure>> + Send + 'static;

    /// Looks at what decides whether the node may vote. `durability`: whether to ask how it is kept on
    /// the disk, for which some servers want a right of its own. Each answer is waited for, for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call), and [`Timeout`](NodeFailure::Timeout).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    fn look(
        &self,
        keys: &FleetKeys,
        durability: bool,
        timeout: Duration,
    ) -> impl Future<Output = Result<Facts, NodeFailure>> + Send + 'static;

    /// Writes a marker instead of the one that was seen, on the process that was seen. Before one that
    /// admits, the scripts are loaded that have its id in their texts; with it, the largest number rises
    /// to its floor, and to the end of its step.
    ///
    /// Whether it was written; if not, the node is no longer what it was. Each answer is waited for, for at most
    /// `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call), and [`Timeout`](NodeFailure::Timeout), after which it may still be written.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take it back.
    fn mark(
        &self,
        keys: &FleetKeys,
        seen: Option<String>,
        marker: Marker,
        timeout: Duration,
    ) -> impl Future<Output = Result<bool, NodeFailure>> + Send + 'static;

    /// Resolves when the connection has ended, with the cause. Cancel safe.
    fn closed(&mut self) -> impl Future<Output = String> + Send;

    /// Ends the connection and waits until nothing of it is left on this side.
    fn close(self) -> impl Future<Output = ()> + Send;
}

pub(crate) mod sealed {
    /// Keeps [`Node`](super::Node) and [`Link`](super::Link) ours.
    #[expect(unnameable_types, reason = "that is what seals the traits")]
    pub trait Sealed {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_certainly_not_sent_is_certain() {
        let sent = [
            NodeFailure::Timeout { after: Duration::ZERO },
            NodeFailure::Disconnected { cause: String::new() },
            NodeFailure::Rejected { message: "OOM command not allowed".into() },
        ];
        let unsent = [
            NodeFailure::Unreachable { cause: String::new() },
            NodeFailure::Unresponsive,
            NodeFailure::Overloaded { in_flight: 1 },
            NodeFailure::ShutDown,
            NodeFailure::NoScript,
            NodeFailure::Unfit { reason: String::new() },
        ];
        assert!(sent.iter().all(NodeFailure::may_have_run));
        assert!(!unsent.iter().any(NodeFailure::may_have_run));
    }

    #[test]
    fn only_a_key_that_cannot_be_ours_ends_a_release_by_an_error() {
        let rejected = |message: &str| NodeFailure::Rejected { message: message.into() };
        let forbidden = [
            "NOPERM No permissions to access a key",
            "NOPERM this user has no permissions to access one of the keys used as arguments",
        ];
        for of_key in ["WRONGTYPE Operation against a key"].iter().chain(&forbidden) {
            assert!(rejected(of_key).is_about_the_key(), "{of_key}");
        }
        let passing = ["BUSY Redis is busy", "LOADING", "MISCONF Errors writing", "NOPERM", "ERR"];
        let others = [
            "NOPERM User access-key-7 has no permissions to run the 'del' command",
            "NOPERM ACL failure in script: No permissions to access a key",
        ];
        for passing in passing.iter().chain(&others) {
            assert!(!rejected(passing).is_about_the_key(), "{passing}");
            assert!(rejected(passing).may_have_run(), "{passing}");
        }
        assert!(forbidden.iter().all(|message| !rejected(message).may_have_run()));
    }
}
