//! How a node is, as users see it: at one moment, and from one moment to the next.

use std::{
    collections::VecDeque,
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{FutureExt, future::select_all};
use tokio::{sync::watch, time::Instant};

use crate::node::{NodeFailure, NodeName, Operation};

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
        /// The end of its wait; `None` when it waits for other nodes, or for an end to what keeps the
        /// node from being looked at or written to.
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
    pub(super) fn why_not(&self, operation: &Operation) -> Option<NodeFailure> {
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
    /// Since when it is in a state of this kind. Another reason or another cause does not begin it anew:
    /// a node that is [`Unreachable`](NodeState::Unreachable) for one cause after the other is so since
    /// its connection ended. Read from tokio's clock, which stands still while the machine is suspended.
    pub since: Instant,
    /// How many replicas were attached to it when it was last looked at, which is every 5 s at the
    /// latest while it is connected; 0 before the first look. None should be one that may be promoted:
    /// it lacks the last locks.
    pub replicas: u32,
    /// Votes queued for it or sent to it and not answered.
    pub in_flight: usize,
    /// The bound on `in_flight`; above it a vote is *unknown: overloaded* at once.
    pub max_in_flight: usize,
    /// Releases that it has not answered yet.
    pub owed_releases: usize,
}

/// What a lane shows of its node, at one moment.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) state: NodeState,
    pub(super) since: Instant,
    pub(super) replicas: u32,
}

impl Shown {
    pub(super) fn new() -> Self {
        Self { state: NodeState::Connecting, since: Instant::now(), replicas: 0 }
    }

    /// What comes after this; `None` if it is the same.
    pub(super) fn then(&self, state: &NodeState, replicas: u32) -> Option<Self> {
        if self.state == *state && self.replicas == replicas {
            return None;
        }
        let is_same_kind = mem::discriminant(&self.state) == mem::discriminant(state);
        let since = if is_same_kind { self.since } else { Instant::now() };
        Some(Self { state: state.clone(), since, replicas })
    }
}

/// Where a lane can be looked at. It goes on without anybody who looks, and ends all the same.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(super) name: NodeName,
    pub(super) in_flight: Arc<AtomicUsize>,
    pub(super) max_in_flight: usize,
    pub(super) owed: Arc<AtomicUsize>,
    pub(super) shown: watch::Receiver<Shown>,
}

impl View {
    pub(crate) fn status(&self) -> NodeStatus {
        let shown = self.shown.borrow().clone();
        self.status_with(shown)
    }

    /// The status, which then counts as seen.
    fn next_status(&mut self) -> NodeStatus {
        let shown = self.shown.borrow_and_update().clone();
        self.status_with(shown)
    }

    fn status_with(&self, shown: Shown) -> NodeStatus {
        let Shown { state, since, replicas } = shown;
        NodeStatus {
            node: self.name.clone(),
            state,
            since,
            replicas,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            max_in_flight: self.max_in_flight,
            owed_releases: self.owed.load(Ordering::Relaxed),
        }
    }
}

/// The states of the nodes, one after the other as they change. By
/// [`Redlock::node_events`](crate::Redlock::node_events).
///
/// It keeps no history, only what it has last told of each node: so it takes no memory while nobody
/// reads, and whoever reads slowly misses what came in between and never what came last.
/// It does not keep a [`Redlock`](crate::Redlock) connected.
#[derive(Debug)]
#[must_use = "it tells only who asks for the next"]
pub struct NodeEvents {
    /// Those that may still change; first the one of which nothing was told for the longest time, so
    /// that one which changes all the time does not hide the others.
    views: VecDeque<View>,
}

impl NodeEvents {
    pub(crate) fn new<'a>(views: impl Iterator<Item = &'a View>) -> Self {
        let mut views: VecDeque<View> = views.cloned().collect();
        for view in &mut views {
            view.shown.mark_changed();
        }
        Self { views }
    }

    /// The next node of which something has changed, as it is now: its state, the reason or the cause
    /// of it, or how many replicas are attached. In the beginning each node once, as it is.
    ///
    /// `None` after the end of the `Redlock`: it was [shut down](crate::Redlock::shutdown), or it and all
    /// its guards are gone. The last that is told of each node is then
    /// [`ShutDown`](NodeState::ShutDown), unless its tokio runtime ended before.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was not returned is told by the next call.
    pub async fn next(&mut self) -> Option<NodeStatus> {
        while !self.views.is_empty() {
            let changes = self.views.iter_mut().map(|view| view.shown.changed().boxed());
            // In their order: of several that have changed it is the first.
            let (change, place, _) = select_all(changes).await;
            let mut view = self.views.remove(place)?;
            // One that has ended says so only after its last change was told.
            if change.is_ok() {
                let status = view.next_status();
                self.views.push_back(view);
                return Some(status);
            }
        }
        None
    }
}
