//! What went wrong, with one outcome per node. One enum per operation.

use std::{fmt, time::Duration};

use crate::{
    node::{Answer, NodeFailure, NodeName, Outcome, redis::ConfigError},
    options::OptionsError,
};

/// What came of one operation on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// Not known yet: the quorum was decided without it, or nobody waits for it.
    Pending,
    /// The node answered.
    Answered(Answer),
    /// The node gave no usable answer. Neither a grant nor a refusal.
    Failed(NodeFailure),
}

impl From<Outcome> for NodeOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(answer) => Self::Answered(answer),
            Err(failure) => Self::Failed(failure),
        }
    }
}

impl fmt::Display for NodeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => f.write_str("not waited for"),
            Self::Answered(Answer::Done) => f.write_str("granted"),
            Self::Answered(Answer::PassedOn) => f.write_str("released, and called the next"),
            Self::Answered(Answer::Counted(number)) => write!(f, "granted with {number}"),
            Self::Answered(Answer::Missing) => f.write_str("no such key"),
            Self::Answered(Answer::Taken { remaining: Some(remaining) }) => {
                write!(f, "held by another owner for {remaining:?} more")
            }
            Self::Answered(Answer::Taken { remaining: None }) => {
                f.write_str("held by a key without ttl, which only a person can remove")
            }
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

/// What came of one operation on one node, and which node it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node: `host:port`.
    pub node: NodeName,
    /// What came of it.
    pub outcome: NodeOutcome,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.outcome)
    }
}

/// One outcome per node, in the order in which the nodes were configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReports(pub(crate) Vec<NodeReport>);

impl NodeReports {
    /// The reports, one per node.
    #[must_use]
    pub fn as_slice(&self) -> &[NodeReport] {
        &self.0
    }

    /// The reports, one per node.
    pub fn iter(&self) -> std::slice::Iter<'_, NodeReport> {
        self.0.iter()
    }

    fn count(&self, of: impl Fn(&NodeOutcome) -> bool) -> usize {
        self.0.iter().filter(|report| of(&report.outcome)).count()
    }

    /// How many nodes granted, or did as asked.
    #[must_use]
    pub fn done(&self) -> usize {
        self.count(|outcome| {
            matches!(
                outcome,
                NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn)
            )
        })
    }

    /// How many nodes gave no usable answer.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, NodeOutcome::Failed(_)))
    }
}

impl<'a> IntoIterator for &'a NodeReports {
    type Item = &'a NodeReport;
    type IntoIter = std::slice::Iter<'a, NodeReport>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for NodeReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, report) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            report.fmt(f)?;
        }
        Ok(())
    }
}

/// The last attempt of an acquisition that failed, and how long the acquisition had taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// How many nodes have to grant.
    pub quorum: usize,
    /// What each node said in the last attempt.
    pub nodes: NodeReports,
    /// How many attempts there were.
    pub attempts: u32,
    /// How long the acquisition took, from the call to the end of the last attempt.
    pub waited: Duration,
}

impl fmt::Display for FailedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} nodes granted, {} needed (attempts: {}, waited: {:.1?}) [{}]",
            self.nodes.done(),
            self.nodes.0.len(),
            self.quorum,
            self.attempts,
            self.waited,
            self.nodes
        )
    }
}

/// Why a lock was not acquired. Whatever the variant, the caller holds nothing, and what was set on
/// any node is being removed in the background.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another owner holds it, or several contenders split the nodes between them. Retrying is
    /// sensible.
    #[error("held by another owner: {0}")]
    Contended(FailedAttempt),
    /// Too few nodes answered. Retrying will not help until nodes come back.
    #[error("too few nodes answered: {0}")]
    NoQuorum(FailedAttempt),
    /// A quorum granted, but so late that nothing of the ttl was left.
    #[error(
        "validity used up: {elapsed:?} elapsed of ttl {ttl:?} with {drift:?} of drift: {attempt}"
    )]
    ValidityUsedUp {
        /// The ttl asked for.
        ttl: Duration,
        /// The time from before the first request to the decision.
        elapsed: Duration,
        /// What was allowed for clock drift.
        drift: Duration,
        /// What each node said.
        attempt: FailedAttempt,
    },
    /// The call cannot work as made. Nothing was sent; retrying is pointless.
    #[error("invalid options")]
    Options(#[from] OptionsError),
    /// The [`Redlock`](crate::Redlock) was shut down. Should that have happened in the middle of the
    /// round, what it set goes with its ttl.
    #[error("the Redlock was shut down")]
    ShutDown,
}

impl AcquireError {
    /// Whether somebody else has the lock.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended(_))
    }

    /// Whether too few nodes answered.
    #[must_use]
    pub fn is_no_quorum(&self) -> bool {
        matches!(self, Self::NoQuorum(_))
    }

    /// Whether another call with the same arguments could succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Contended(_) | Self::NoQuorum(_) | Self::ValidityUsedUp { .. } => true,
            Self::Options(_) | Self::ShutDown => false,
        }
    }

    /// What each node said, where nodes were asked.
    #[must_use]
    pub fn nodes(&self) -> Option<&NodeReports> {
        self.attempt().map(|attempt| &attempt.nodes)
    }

    /// The last attempt, where there was one.
    #[must_use]
    pub fn attempt(&self) -> Option<&FailedAttempt> {
        match self {
            Self::Contended(attempt)
            | Self::NoQuorum(attempt)
            | Self::ValidityUsedUp { attempt, .. } => Some(attempt),
            Self::Options(_) | Self::ShutDown => None,
        }
    }

    pub(crate) fn attempt_mut(&mut self) -> Option<&mut FailedAttempt> {
        match self {
            Self::Contended(attempt)
            | Self::NoQuorum(attempt)
            | Self::ValidityUsedUp { attempt, .. } => Some(attempt),
            Self::Options(_) | Self::ShutDown => None,
        }
    }
}

/// Why a lock was not extended. The guard keeps the validity that it had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is gone: its validity had ended, or a majority of the nodes no longer has our key.
    /// Somebody else may hold it. It cannot come back.
    #[error("the lock is lost{}", DisplayNodes(.nodes))]
    Lost {
        /// What each node said; `None` when the validity had ended and no node was asked.
        nodes: Option<NodeReports>,
    },
    /// Too few nodes answered. The lock is held until its validity ends; trying again may help.
    #[error("too few nodes answered, the lock is held for {remaining:?} more: {nodes}")]
    Inconclusive {
        /// What is left of the validity.
        remaining: Duration,
        /// What each node said.
        nodes: NodeReports,
    },
    /// The ttl cannot work. Nothing was sent.
    #[error("invalid options")]
    Options(#[from] OptionsError),
}

impl ExtendError {
    /// Whether the lock is gone for good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// What each node said, where nodes were asked.
    #[must_use]
    pub fn nodes(&self) -> Option<&NodeReports> {
        match self {
            Self::Lost { nodes } => nodes.as_ref(),
            Self::Inconclusive { nodes, .. } => Some(nodes),
            Self::Options(_) => None,
        }
    }
}

struct DisplayNodes<'a>(&'a Option<NodeReports>);

impl fmt::Display for DisplayNodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |nodes| write!(f, ": {nodes}"))
    }
}

/// What a release could not confirm. Whatever the variant, there is nothing left to do: every node
/// is told in the background until it has answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// A majority of the nodes no longer had our key: it had expired, was deleted, or is somebody
    /// else's ([`Answer::Missing`] and [`Answer::Taken`] tell which). Someone may have run beside us.
    #[error("the lock was lost before its release: {nodes}")]
    Lost {
        /// What each node said.
        nodes: NodeReports,
    },
    /// Too few nodes answered to say. The nodes that did not are told again when they come back;
    /// until then the key may keep others out, at most for its ttl from when it was set.
    #[error("release not confirmed: {nodes}")]
    Unconfirmed {
        /// What each node said.
        nodes: NodeReports,
    },
}

impl ReleaseError {
    /// Whether the lock was gone before its release.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// What each node said.
    #[must_use]
    pub fn nodes(&self) -> &NodeReports {
        match self {
            Self::Lost { nodes } | Self::Unconfirmed { nodes } => nodes,
        }
    }
}

/// Why work under a lock was not done, or cannot be vouched for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WithLockError<T> {
    /// The lock was not acquired: the body never ran.
    #[error("the lock was not acquired")]
    Acquire(#[source] AcquireError),
    /// The lock was lost while the body ran, and the body was dropped.
    #[error("the lock was lost, and the work under it was stopped")]
    Lost,
    /// The body ran to its end, but the release says that the lock had been lost, or cannot say.
    #[error("the work under the lock was done, but the lock cannot be vouched for")]
    Release {
        /// What the body returned.
        value: T,
        /// What the release said.
        #[source]
        error: ReleaseError,
    },
}

impl<T> WithLockError<T> {
    /// Whether the lock was lost, while the body ran or before the release.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Acquire(_) => false,
            Self::Lost => true,
            Self::Release { error, .. } => error.is_lost(),
        }
    }
}

/// Why no [`Redlock`](crate::Redlock) was made. No connection and no task is left behind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There are no nodes.
    #[error("no nodes given")]
    NoNodes,
    /// One node is no quorum over independent nodes; say so if it is what you want.
    #[error(
        "one node tolerates no failure: use Redlock::single_node for that, or give three or five"
    )]
    OneNode,
    /// The same server is listed twice: it has one vote, or with two databases it would have two.
    #[error("{node} is listed twice")]
    Duplicate {
        /// The server.
        node: NodeName,
    },
    /// The name of a node has a comma or a control character in it.
    #[error("the name of a node must have no comma and no control character: {node}")]
    Name {
        /// The name.
        node: NodeName,
    },
    /// A node's URL or configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The options cannot work.
    #[error("invalid options")]
    Options(#[from] OptionsError),
    /// A server answered, and cannot serve as a node: wrong password, not a Redis or Valkey server.
    #[error("{node} cannot be a node: {reason}")]
    Unfit {
        /// The server.
        node: NodeName,
        /// Why not.
        reason: String,
    },
    /// Too few nodes could be reached in time.
    #[error("only {connected} of {quorum} required nodes connected within {waited:?}: {nodes}")]
    NoQuorum {
        /// How many were connected.
        connected: usize,
        /// How many are needed.
        quorum: usize,
        /// How long it was waited for.
        waited: Duration,
        /// What is known of each node that was not connected.
        nodes: NodeReports,
    },
    /// There is no tokio runtime to run on.
    #[error("must be called inside a tokio runtime")]
    NoRuntime,
}
