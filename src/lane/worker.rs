//! The task behind a lane: a state machine over the connection, the queue and the answers.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until},
};

use super::{NodeState, Permit, ReplyTo, Request, ledger::Ledger};
use crate::{
    backoff::Backoff,
    clock::due_after,
    entropy::Entropy,
    node::{Link, LinkId, Node, NodeFailure, Operation, Outcome, SendAs},
    owner_id::OwnerId,
};

/// How long a silent connection is kept before it is given up for a new one.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a silent connection is asked for a sign of life. More than once, because a reply that got
/// lost on the way shows only when the next one comes.
const PROBE: Duration = Duration::from_millis(250);
/// How long after a passing error (loading, busy) a release is tried again.
const RETRY_RELEASE: Duration = Duration::from_millis(500);
/// How long a lane lives on for what it owes, once nobody can use it any more.
const DRAIN: Duration = Duration::from_secs(2);
/// Between attempts to connect. Short: a node that is back has keys to be rid of.
const RECONNECT: Backoff =
    Backoff { first: Duration::from_millis(50), cap: Duration::from_millis(400) };

/// The connection, or the attempt to have one.
enum Connection<L> {
    Trying { attempt: BoxFuture<'static, Result<L, NodeFailure>>, cause: NodeFailure },
    Open { link: L, frozen: Option<Frozen> },
}

/// Since a command was not answered in time.
struct Frozen {
    probe_again: Instant,
}

/// Something sent to the node and not answered.
enum Call {
    Vote(Vote),
    Release { owner: OwnerId },
    Probe,
}

struct Vote {
    operation: Operation,
    timeout: Duration,
    reply_to: ReplyTo,
    permit: Permit,
    /// Its owner's release was put into the queue meanwhile: sent again, it would run after that.
    disowned: bool,
}

enum Event<L> {
    Answered(u64, Outcome),
    Connected(Result<L, NodeFailure>),
    Closed(String),
    Requested(Option<Request>),
    RetryReleases,
    ProbeAgain,
    Deadline,
}

struct Ending {
    deadline: Instant,
    undelivered: Vec<oneshot::Sender<usize>>,
}

pub(super) struct Worker<N: Node> {
    node: Arc<N>,
    queue: mpsc::UnboundedReceiver<Request>,
    queue_open: bool,
    max_in_flight: usize,
    state: watch::Sender<NodeState>,
    ledger: Ledger,
    connection: Connection<N::Link>,
    /// Links that were lost: the next one has what is left of them closed unread.
    stale: Vec<LinkId>,
    failures: u32,
    calls: BTreeMap<u64, Call>,
    answers: FuturesUnordered<BoxFuture<'static, (u64, Outcome)>>,
    last_call: u64,
    retry_releases: Option<Instant>,
    ending: Option<Ending>,
    entropy: Entropy,
}

impl<N: Node> Worker<N> {
    pub(super) fn new(
        node: N,
        queue: mpsc::UnboundedReceiver<Request>,
        max_in_flight: usize,
        state: watch::Sender<NodeState>,
        owed: Arc<std::sync::atomic::AtomicUsize>,
        entropy: Entropy,
    ) -> Self {
        let node = Arc::new(node);
        let cause = NodeFailure::Unreachable { cause: "not connected yet".to_owned() };
        let attempt = attempt(Arc::clone(&node), Vec::new(), Duration::ZERO);
        Self {
            node,
            queue,
            queue_open: true,
            max_in_flight,
            state,
            ledger: Ledger::new(owed),
            connection: Connection::Trying { attempt, cause },
            stale: Vec::new(),
            failures: 0,
            calls: BTreeMap::new(),
            answers: FuturesUnordered::new(),
            last_call: 0,
            retry_releases: None,
            ending: None,
            entropy,
        }
    }

    pub(super) async fn run(mut self) {
        while !self.finished() {
            match self.next_event().await {
                Event::Answered(id, outcome) => self.answered(id, outcome),
                Event::Connected(Ok(link)) => self.connected(link),
                Event::Connected(Err(failure)) => self.not_connected(failure),
                Event::Closed(cause) => self.lose_link(&cause),
                Event::Requested(Some(request)) => self.requested(request),
                Event::Requested(None) => {
                    self.queue_open = false;
                    self.begin_ending();
                }
                Event::RetryReleases => {
                    self.retry_releases = None;
                    self.ledger.send_again();
                    self.send_releases();
                }
                Event::ProbeAgain => self.probe(),
                Event::Deadline => break,
            }
        }
        self.end().await;
    }

    async fn next_event(&mut self) -> Event<N::Link> {
        let retry_releases = self.retry_releases;
        let deadline = self.ending.as_ref().map(|ending| ending.deadline);
        let probe_again = match &self.connection {
            Connection::Open { frozen, .. } => frozen.as_ref().map(|frozen| frozen.probe_again),
            Connection::Trying { .. } => None,
        };
        tokio::select! {
            // In this order a run is the same each time, and answers make room for requests.
            biased;
            Some((id, outcome)) = self.answers.next() => Event::Answered(id, outcome),
            event = connection_event(&mut self.connection) => event,
            request = self.queue.recv(), if self.queue_open => Event::Requested(request),
            () = at(retry_releases) => Event::RetryReleases,
            () = at(probe_again) => Event::ProbeAgain,
            () = at(deadline) => Event::Deadline,
        }
    }

    fn finished(&self) -> bool {
        self.ending.is_some() && !self.queue_open && self.calls.is_empty() && self.ledger.len() == 0
    }

    fn begin_ending(&mut self) -> &mut Ending {
        // What is queued is still served; nothing new comes in.
        self.queue.close();
        self.ending
            .get_or_insert_with(|| Ending { deadline: due_after(DRAIN), undelivered: Vec::new() })
    }

    async fn end(mut self) {
        let undelivered = self.ledger.len();
        if undelivered > 0 {
            tracing::warn!(node = %self.node.name(), undelivered, "ended before the node answered");
        }
        self.answer_all_calls(&NodeFailure::Disconnected { cause: "shut down".to_owned() });
        if let Connection::Open { link, .. } = self.connection {
            link.close().await;
        }
        self.state.send_replace(NodeState::ShutDown);
        for waiting in self.ending.into_iter().flat_map(|ending| ending.undelivered) {
            // Whoever asked may be gone.
            waiting.send(undelivered).ok();
        }
    }

    // Requests.

    fn requested(&mut self, request: Request) {
        match request {
            Request::Vote { operation, timeout, reply_to, permit } => {
                if let Some(why_not) = self.why_no_votes() {
                    reply_to.send(Err(why_not));
                } else {
                    let vote = Vote { operation, timeout, reply_to, permit, disowned: false };
                    self.send(Call::Vote(vote), SendAs::Digest);
                }
            }
            Request::Release { key, owner, timeout, reply_to } => {
                self.disown(owner);
                self.ledger.owe(owner, key, timeout, reply_to);
                self.send_releases();
                if self.ledger.is_unsent(owner) {
                    let overloaded = NodeFailure::Overloaded { in_flight: self.max_in_flight };
                    let why_not = self.why_no_votes().unwrap_or(overloaded);
                    self.ledger.unanswered(owner, why_not);
                }
            }
            Request::ShutDown { undelivered } => {
                self.begin_ending().undelivered.push(undelivered);
            }
        }
    }

    /// Why a vote cannot be sent now; `None` if it can.
    fn why_no_votes(&self) -> Option<NodeFailure> {
        if self.ending.is_some() {
            return Some(NodeFailure::ShutDown);
        }
        match &self.connection {
            Connection::Trying { cause, .. } => Some(cause.clone()),
            Connection::Open { frozen: Some(_), .. } => Some(NodeFailure::Unresponsive),
            Connection::Open { frozen: None, .. } => {
                (!self.ledger.caught_up()).then(|| NodeFailure::Unreachable {
                    cause: "back, but has not yet answered the releases that it missed".to_owned(),
                })
            }
        }
    }

    /// Sends the releases that are due, as far as the connection and the bound allow.
    fn send_releases(&mut self) {
        while matches!(self.connection, Connection::Open { frozen: None, .. })
            && self.calls.len() < self.max_in_flight
        {
            let Some((owner, ..)) = self.ledger.next() else {
                break;
            };
            self.send(Call::Release { owner }, SendAs::Digest);
        }
    }

    fn send(&mut self, call: Call, send_as: SendAs) {
        let Connection::Open { link, .. } = &self.connection else {
            return;
        };
        let (operation, timeout) = match &call {
            Call::Vote(vote) => (vote.operation.clone(), vote.timeout),
            Call::Release { owner } => {
                let Some((key, timeout)) = self.ledger.again(*owner) else {
                    return;
                };
                (Operation::Release { key, owner: *owner }, timeout)
            }
            Call::Probe => (Operation::Ping { nonce: self.last_call }, PATIENCE),
        };
        let answer = link.call(&operation, send_as, timeout);
        self.last_call = self.last_call.wrapping_add(1);
        let id = self.last_call;
        self.calls.insert(id, call);
        self.answers.push(Box::pin(async move { (id, answer.await) }));
    }

    // Answers.

    fn answered(&mut self, id: u64, outcome: Outcome) {
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let timed_out = matches!(outcome, Err(NodeFailure::Timeout { .. }));
        let lost = match &outcome {
            Err(NodeFailure::Disconnected { cause }) => Some(cause.clone()),
            _ => None,
        };
        match call {
            Call::Vote(vote) if outcome == Err(NodeFailure::NoScript) && !vote.disowned => {
                self.send(Call::Vote(vote), SendAs::Text);
            }
            Call::Vote(Vote { reply_to, permit, .. }) => {
                // The place is free before anyone can act on the outcome.
                drop(permit);
                reply_to.send(outcome);
            }
            Call::Release { owner } => self.release_answered(owner, outcome),
            Call::Probe if lost.is_some() => {}
            Call::Probe if timed_out => self.lose_link("no answer for too long"),
            // An answer in step: all that was sent before has been executed.
            Call::Probe => self.back_from_frozen(),
        }
        if let Some(cause) = lost {
            self.lose_link(&cause);
        } else if timed_out {
            self.suspect();
        }
        self.send_releases();
    }

    fn disown(&mut self, released: OwnerId) {
        for call in self.calls.values_mut() {
            if let Call::Vote(vote) = call {
                vote.disowned |= vote.operation.owner() == Some(released);
            }
        }
    }

    fn release_answered(&mut self, owner: OwnerId, outcome: Outcome) {
        match outcome {
            Err(NodeFailure::NoScript) => self.send(Call::Release { owner }, SendAs::Text),
            Err(failure) if !failure.is_final_rejection() => {
                if matches!(failure, NodeFailure::Rejected { .. }) {
                    self.retry_releases.get_or_insert_with(|| due_after(RETRY_RELEASE));
                }
                self.ledger.unanswered(owner, failure);
            }
            outcome => {
                self.ledger.settle(owner, outcome);
                self.show_state();
            }
        }
    }

    // The connection.

    fn connected(&mut self, link: N::Link) {
        self.connection = Connection::Open { link, frozen: None };
        self.stale.clear();
        self.failures = 0;
        self.back();
    }

    fn back_from_frozen(&mut self) {
        if let Connection::Open { frozen, .. } = &mut self.connection {
            // With several probes on the way, the first answer is the one that counts.
            if frozen.take().is_some() {
                self.back();
            }
        }
    }

    fn back(&mut self) {
        self.ledger.node_is_back();
        self.show_state();
        self.send_releases();
    }

    /// A command was not answered in time. Nothing more is sent until a probe behind it was answered.
    fn suspect(&mut self) {
        if matches!(self.connection, Connection::Open { frozen: None, .. }) {
            self.probe();
            self.show_state();
        }
    }

    fn probe(&mut self) {
        if let Connection::Open { frozen, .. } = &mut self.connection {
            *frozen = Some(Frozen { probe_again: due_after(PROBE) });
            self.send(Call::Probe, SendAs::Digest);
        }
    }

    fn lose_link(&mut self, cause: &str) {
        let Connection::Open { link, .. } = &self.connection else {
            return;
        };
        self.stale.push(link.id().clone());
        let lost = NodeFailure::Disconnected { cause: cause.to_owned() };
        self.answer_all_calls(&lost);
        self.not_connected(NodeFailure::Unreachable { cause: cause.to_owned() });
    }

    /// Answers what is in flight: nobody else will.
    fn answer_all_calls(&mut self, failure: &NodeFailure) {
        self.answers = FuturesUnordered::new();
        for call in mem::take(&mut self.calls).into_values() {
            match call {
                Call::Vote(vote) => vote.reply_to.send(Err(failure.clone())),
                Call::Release { owner } => self.ledger.unanswered(owner, failure.clone()),
                Call::Probe => {}
            }
        }
    }

    fn not_connected(&mut self, cause: NodeFailure) {
        self.failures = self.failures.saturating_add(1);
        let delay = RECONNECT.random_delay(self.failures, &self.entropy);
        let attempt = attempt(Arc::clone(&self.node), self.stale.clone(), delay);
        self.connection = Connection::Trying { attempt, cause };
        self.show_state();
    }

    fn show_state(&self) {
        let state = match &self.connection {
            Connection::Trying { cause, .. } => NodeState::Unreachable { cause: cause.clone() },
            Connection::Open { frozen: Some(_), .. } => NodeState::Unresponsive,
            Connection::Open { .. } if !self.ledger.caught_up() => NodeState::CatchingUp,
            Connection::Open { .. } => NodeState::Voting,
        };
        let node = self.node.name();
        self.state.send_if_modified(|shown| {
            let changed = *shown != state;
            if changed {
                tracing::info!(%node, from = ?shown, to = ?state, "node changed state");
                *shown = state;
            }
            changed
        });
    }
}

fn attempt<N: Node>(
    node: Arc<N>,
    stale: Vec<LinkId>,
    delay: Duration,
) -> BoxFuture<'static, Result<N::Link, NodeFailure>> {
    Box::pin(async move {
        sleep(delay).await;
        node.connect(&stale).await
    })
}

async fn connection_event<L: Link>(connection: &mut Connection<L>) -> Event<L> {
    match connection {
        Connection::Trying { attempt, .. } => Event::Connected(attempt.await),
        Connection::Open { link, .. } => Event::Closed(link.closed().await),
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
