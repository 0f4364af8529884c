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
//!
//! What is asked for at the same time goes to the node as one command. That changes neither the order nor
//! what each operation does, and a call ends in its own time ([`outbox`], [`calls`]).

mod inbox;
mod ledger;
mod outbox;
mod unanswered;
mod calls;
mod candidacy;
mod connection;
mod status;
mod worker;

use std::{
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

use self::status::Shown;

use crate::{
    board::Board,
    clock::due_after,
    contended::Contended,
    entropy::Entropy,
    node::{Node, NodeFailure, NodeName, Operation},
    tasks::Spawner,
};

pub use self::status::{NodeEvents, NodeState, NodeStatus};
pub(crate) use self::{
    inbox::{Inbox, Reply, ReplyTo},
    ledger::Release,
    status::View,
};

/// Whatever the node timeout is: a silence that is shorter than the first says nothing about a node, and one
/// that is longer than the second that it seems frozen.
const SILENT_AT_LEAST: Duration = Duration::from_millis(100);
const SILENT_AT_MOST: Duration = Duration::from_secs(1);

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

/// What the lanes of one `Redlock` have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    /// How many votes may be on their way to a node.
    max_in_flight: usize,
    /// A node that is silent for longer than this seems frozen.
    silence: Duration,
    /// Where it is noted that a release called somebody who waits.
    contended: Arc<Contended>,
    entropy: Entropy,
}

impl Common {
    /// A node may be silent for as long as its users mostly wait for it: the short timeout of one caller does
    /// not keep the others from a healthy node that is far away.
    pub(crate) fn new(
        max_in_flight: usize,
        node_timeout: Duration,
        contended: &Arc<Contended>,
        entropy: &Entropy,
    ) -> Self {
        let silence = node_timeout.clamp(SILENT_AT_LEAST, SILENT_AT_MOST);
        let (contended, entropy) = (Arc::clone(contended), entropy.clone());
        Self { max_in_flight, silence, contended, entropy }
    }
}

/// The handle of a node's lane. The worker ends after the last handle and what it owes.
#[derive(Debug)]
pub(crate) struct Lane {
    requests: mpsc::UnboundedSender<Request>,
    view: View,
}

impl Lane {
    /// Starts the lane of `node`. The task ends by itself; see [`Lane`].
    pub(crate) fn start<N: Node>(
        node: Arc<N>,
        common: &Common,
        board: &Arc<Board>,
        place: usize,
        spawner: &Spawner,
    ) -> (Self, JoinHandle<()>) {
        let (requests, queue) = mpsc::unbounded_channel();
        let (show, shown) = watch::channel(Shown::new());
        let owed = Arc::new(AtomicUsize::new(0));
        let view = View {
            name: node.name().clone(),
            in_flight: Arc::new(AtomicUsize::new(0)),
            max_in_flight: common.max_in_flight,
            owed: Arc::clone(&owed),
            shown,
        };
        let candidacy = candidacy::Candidacy::new(Arc::clone(board), place);
        let worker = worker::Worker::new(node, queue, common.clone(), show, owed, candidacy);
        let task = spawner.spawn(worker.run());
        (Self { requests, view }, task)
    }

    pub(crate) fn name(&self) -> &NodeName {
        &self.view.name
    }

    /// Puts a vote into the queue. It is answered in any case, at once if it cannot be sent.
    ///
    /// A node that is known not to answer is not even queued for: a round that is dropped at once then
    /// knows already that it has nothing to take back there.
    pub(crate) fn vote(&self, operation: Operation, timeout: Duration, reply_to: ReplyTo) {
        let View { in_flight, max_in_flight, shown, .. } = &self.view;
        if let Some(why_not) = shown.borrow().state.why_not(&operation) {
            reply_to.send(Err(why_not));
            return;
        }
        let Some(permit) = Permit::take(in_flight, *max_in_flight) else {
            reply_to.send(Err(NodeFailure::Overloaded { in_flight: *max_in_flight }));
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
        answer.await.unwrap_or_else(|_| self.view.owed.load(Ordering::Relaxed))
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
        self.view.shown.borrow().state == NodeState::Voting
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }
}
