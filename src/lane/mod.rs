//! One task per node, which alone talks to it.
//!
//! Rounds come and go, and futures are dropped at any point; what is owed to a node outlives them.
//! So each node has a lane: a queue with one worker that keeps the connection, the calls in flight
//! and the releases that the node has not answered. A round only puts requests into the queue, which
//! never waits, works outside a runtime, and cannot be half done.
//!
//! Invariants:
//!
//! 1. A release goes out after every acquire of the same owner that was put into the queue before.
//! 2. A release stays owed until the node has answered it, over any number of connections.
//! 3. No vote is sent on a connection before the node has answered every release that was owed when
//!    the connection was made or came back to life, or that it rejected. This bounds what can pile up
//!    on a node that flaps.
//! 4. A vote is answered exactly once and in time, also when its connection is lost, and at once by a
//!    node that is known not to answer.
//! 5. At most `max_in_flight` votes are in the queue and on the wire together.

mod ledger;
mod calls;
mod candidacy;
mod connection;
mod worker;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    board::Board,
    clock::due_after,
    entropy::Entropy,
    node::{Node, NodeFailure, NodeName, Operation, Outcome},
    tasks::Spawner,
};

pub(crate) use self::ledger::Release;

/// Whether a node is asked for its vote, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// No attempt to connect has ended yet.
    Connecting,
    /// Connected, and looked at to see whether it may vote. Not asked yet.
    Joining,
    /// Connected and answering: it is asked.
    Voting,
    /// Connected, but first the releases that it missed have to be answered. Not asked.
    CatchingUp,
    /// Connected, but it may have forgotten what it granted: it is not asked for a vote until nothing
    /// that it can have forgotten is held any more.
    Quarantined {
        /// The end of its wait; `None` when it waits for other nodes.
        until: Option<Instant>,
        /// Why it has to wait.
        why: String,
    },
    /// Connected, but it cannot be a node. Not asked for a vote; it is looked at again and again.
    Refused {
        /// Why not.
        why: String,
    },
    /// A command was not answered in time: the node seems frozen. Not asked until it answers.
    Unresponsive,
    /// There is no connection; attempts go on. Not asked.
    Unreachable {
        /// What the last attempt or the last connection ended with.
        cause: NodeFailure,
    },
    /// The `Redlock` was shut down.
    ShutDown,
}

impl NodeState {
    /// Why a node in this state is not asked for this; `None` if it is.
    ///
    /// A grant needs a node that has been admitted; that a key is still ours every node can say.
    fn why_not(&self, operation: &Operation) -> Option<NodeFailure> {
        let unreachable = |cause: &str| NodeFailure::Unreachable { cause: cause.to_owned() };
        let is_grant = operation.is_grant();
        match self {
            Self::Voting => None,
            Self::Joining | Self::Quarantined { .. } | Self::Refused { .. } if !is_grant => None,
            Self::Quarantined { .. } | Self::Refused { .. } => {
                Some(NodeFailure::NotAdmitted { why: self.to_string() })
            }
            Self::Connecting => Some(unreachable("not connected yet")),
            Self::Joining => {
                Some(NodeFailure::NotAdmitted { why: "connected, and being looked at".to_owned() })
            }
            Self::CatchingUp => {
                Some(unreachable("back, but has not yet answered the releases that it missed"))
            }
            Self::Unresponsive => Some(NodeFailure::Unresponsive),
            Self::Unreachable { cause } => Some(cause.clone()),
            Self::ShutDown => Some(NodeFailure::ShutDown),
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting => f.write_str("connecting"),
            Self::Joining => f.write_str("joining"),
            Self::Voting => f.write_str("voting"),
            Self::CatchingUp => f.write_str("answering the releases that it missed"),
            Self::Quarantined { until: Some(until), why } => {
                let left = until.saturating_duration_since(Instant::now());
                write!(f, "in quarantine for another {:.1} s: {why}", left.as_secs_f64())
            }
            Self::Quarantined { until: None, why } => write!(f, "in quarantine: {why}"),
            Self::Refused { why } => write!(f, "refused: {why}"),
            Self::Unresponsive => f.write_str("not responding"),
            Self::Unreachable { cause } => cause.fmt(f),
            Self::ShutDown => f.write_str("shut down"),
        }
    }
}

/// What is known of one node, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node: `host:port`.
    pub node: NodeName,
    /// Whether it is asked for its vote.
    pub state: NodeState,
    /// Votes queued for it or sent to it and not answered.
    pub in_flight: usize,
    /// The bound on `in_flight`; above it a vote is *unknown: overloaded* at once.
    pub max_in_flight: usize,
    /// Releases that it has not answered yet.
    pub owed_releases: usize,
}

/// Where the outcome of a call goes: to the place of this node in a round.
#[derive(Debug)]
pub(crate) struct ReplyTo {
    pub(crate) round: u64,
    pub(crate) place: usize,
    pub(crate) to: mpsc::UnboundedSender<Reply>,
}

/// The outcome of a call, with where it belongs.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) round: u64,
    pub(crate) place: usize,
    pub(crate) outcome: Outcome,
}

impl ReplyTo {
    /// The round may be over; then nobody wants to know.
    fn send(self, outcome: Outcome) {
        let Self { round, place, to } = self;
        drop(to.send(Reply { round, place, outcome }));
    }
}

/// Counts one vote against the bound for as long as it exists.
#[derive(Debug)]
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(in_flight: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let permit = Self(Arc::clone(in_flight));
        (in_flight.fetch_add(1, Ordering::Relaxed) < max).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Request {
    Vote {
        operation: Operation,
        timeout: Duration,
        deadline: Instant,
        reply_to: ReplyTo,
        permit: Permit,
    },
    Release {
        release: Release,
        reply_to: Option<ReplyTo>,
    },
    ShutDown {
        undelivered: oneshot::Sender<usize>,
    },
}

/// The handle of a node's lane. The worker ends after the last handle and what it owes.
#[derive(Debug)]
pub(crate) struct Lane {
    name: NodeName,
    requests: mpsc::UnboundedSender<Request>,
    in_flight: Arc<AtomicUsize>,
    max_in_flight: usize,
    owed: Arc<AtomicUsize>,
    state: watch::Receiver<NodeState>,
}

impl Lane {
    /// Starts the lane of `node`. The task ends by itself; see [`Lane`].
    pub(crate) fn start<N: Node>(
        node: Arc<N>,
        max_in_flight: usize,
        board: &Arc<Board>,
        place: usize,
        spawner: &Spawner,
        entropy: &Entropy,
    ) -> (Self, JoinHandle<()>) {
        let (requests, queue) = mpsc::unbounded_channel();
        let (state_tx, state) = watch::channel(NodeState::Connecting);
        let owed = Arc::new(AtomicUsize::new(0));
        let lane = Self {
            name: node.name().clone(),
            requests,
            in_flight: Arc::new(AtomicUsize::new(0)),
            max_in_flight,
            owed: Arc::clone(&owed),
            state,
        };
        let candidacy = candidacy::Candidacy::new(Arc::clone(board), place);
        let worker = worker::Worker::new(
            node,
            queue,
            max_in_flight,
            state_tx,
            owed,
            candidacy,
            entropy.clone(),
        );
        let task = spawner.spawn(worker.run());
        (lane, task)
    }

    pub(crate) fn name(&self) -> &NodeName {
        &self.name
    }

    /// Puts a vote into the queue. It is answered in any case, at once if it cannot be sent.
    ///
    /// A node that is known not to answer is not even queued for: a round that is dropped at once then
    /// knows already that it has nothing to take back there.
    pub(crate) fn vote(&self, operation: Operation, timeout: Duration, reply_to: ReplyTo) {
        if let Some(why_not) = self.state.borrow().why_not(&operation) {
            reply_to.send(Err(why_not));
            return;
        }
        let Some(permit) = Permit::take(&self.in_flight, self.max_in_flight) else {
            reply_to.send(Err(NodeFailure::Overloaded { in_flight: self.max_in_flight }));
            return;
        };
        let deadline = due_after(timeout);
        self.put(Request::Vote { operation, timeout, deadline, reply_to, permit });
    }

    /// Owes a release to the node. Never waits, never fails: after a shutdown the ttl does it.
    ///
    /// Whoever waits is told at once where the node cannot be asked now, and otherwise hears of its
    /// answer, when that comes: waiting has to be bounded by the round.
    pub(crate) fn release(&self, release: Release, reply_to: Option<ReplyTo>) {
        self.put(Request::Release { release, reply_to });
    }

    /// Ends the lane after what it owes, or after a bound. The number of releases that the node has
    /// not answered by then.
    pub(crate) async fn shut_down(&self) -> usize {
        let (undelivered, answer) = oneshot::channel();
        self.put(Request::ShutDown { undelivered });
        answer.await.unwrap_or_else(|_| self.owed.load(Ordering::Relaxed))
    }

    fn put(&self, request: Request) {
        let Err(mpsc::error::SendError(request)) = self.requests.send(request) else { return };
        match request {
            Request::Vote { reply_to, .. } | Request::Release { reply_to: Some(reply_to), .. } => {
                reply_to.send(Err(NodeFailure::ShutDown));
            }
            Request::Release { reply_to: None, .. } | Request::ShutDown { .. } => {}
        }
    }

    pub(crate) fn is_voting(&self) -> bool {
        *self.state.borrow() == NodeState::Voting
    }

    pub(crate) fn state(&self) -> watch::Receiver<NodeState> {
        self.state.clone()
    }

    pub(crate) fn status(&self) -> NodeStatus {
        NodeStatus {
            node: self.name.clone(),
            state: self.state.borrow().clone(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            max_in_flight: self.max_in_flight,
            owed_releases: self.owed.load(Ordering::Relaxed),
        }
    }
}
