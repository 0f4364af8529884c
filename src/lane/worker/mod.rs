//! The task behind a lane: a state machine over the connection, the queue and the answers.

mod link;
mod votes;

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use super::{
    Common, NodeState, Request,
    calls::{Call, CallEnd, Calls, Limits, Vote},
    candidacy::{Candidacy, Standing, Step},
    connection::{Change, Connection},
    ledger::Ledger,
    status::Shown,
};
use crate::{
    alarm::Alarm,
    backoff::Backoff,
    clock::due_after,
    node::{Answer, Link, LinkId, Node, NodeFailure, Operation, Outcome, SendAs},
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

enum Event<L> {
    Answered(Call, CallEnd),
    Connection(Change<L>),
    Requested(Option<Request>),
    Candidacy(Step),
    Due(Due),
}

/// What there is to do at some time.
#[derive(Clone, Copy)]
enum Due {
    RetryReleases,
    ProbeAgain,
    Overdue,
    CallEnds,
    LookAgain,
    HeldBackTooLong,
    End,
}

struct Ending {
    deadline: Instant,
    undelivered: Vec<oneshot::Sender<usize>>,
}

pub(super) struct Worker<N: Node> {
    node: Arc<N>,
    queue: mpsc::UnboundedReceiver<Request>,
    queue_open: bool,
    common: Common,
    show: watch::Sender<Shown>,
    ledger: Ledger,
    connection: Connection<N::Link>,
    /// Links that were lost: the next one has what is left of them closed unread.
    stale: Vec<LinkId>,
    /// Connections that failed or were lost since the node last answered.
    failures: u32,
    calls: Calls,
    candidacy: Candidacy,
    /// Votes that wait for the end of a look.
    held_back: Vec<Vote>,
    retry_releases: Option<Instant>,
    alarm: Alarm,
    warned_of_replicas: bool,
    ending: Option<Ending>,
}

impl<N: Node> Worker<N> {
    pub(super) fn new(
        node: Arc<N>,
        queue: mpsc::UnboundedReceiver<Request>,
        common: Common,
        show: watch::Sender<Shown>,
        owed: Arc<AtomicUsize>,
        candidacy: Candidacy,
    ) -> Self {
        let cause = NodeFailure::Unreachable { cause: "not connected yet".to_owned() };
        Self {
            connection: Connection::attempt(&node, Vec::new(), Duration::ZERO, cause),
            node,
            queue,
            queue_open: true,
            common,
            show,
            ledger: Ledger::new(owed),
            stale: Vec::new(),
            failures: 0,
            calls: Calls::default(),
            candidacy,
            held_back: Vec::new(),
            retry_releases: None,
            alarm: Alarm::default(),
            warned_of_replicas: false,
            ending: None,
        }
    }

    pub(super) async fn run(mut self) {
        while !self.finished() {
            match self.next_event().await {
                Event::Answered(call, CallEnd::Outcome(outcome)) => self.answered(call, outcome),
                Event::Answered(call, CallEnd::RefusedTogether) => self.ask_again(call),
                Event::Connection(Change::Connected(Ok(link))) => self.connected(link),
                Event::Connection(Change::Connected(Err(failure))) => self.not_connected(failure),
                Event::Connection(Change::Closed(cause)) => self.lose_link(&cause),
                Event::Requested(Some(request)) => {
                    self.requested(request);
                    self.requested_by_now();
                }
                Event::Requested(None) => {
                    self.queue_open = false;
                    self.begin_ending();
                }
                Event::Candidacy(step) => self.proceed(step),
                Event::Due(Due::RetryReleases) => {
                    self.retry_releases = None;
                    self.ledger.send_again();
                    self.send_releases();
                }
                Event::Due(Due::ProbeAgain) => self.probe_again(),
                Event::Due(Due::Overdue) => self.suspect_if_overdue(),
                Event::Due(Due::CallEnds) => self.end_calls(),
                Event::Due(Due::LookAgain) => self.look(),
                Event::Due(Due::HeldBackTooLong) => self.end_held_back(),
                Event::Due(Due::End) => break,
            }
        }
        self.end().await;
    }

    async fn next_event(&mut self) -> Event<N::Link> {
        self.flush().await;
        let next = self.next_due();
        tokio::select! {
            // In this order a run is the same each time, answers make room for requests, and who asks again
            // when a node's time is up finds that it was silent.
            biased;
            (call, end) = self.calls.answered() => Event::Answered(call, end),
            change = self.connection.changed() => Event::Connection(change),
            due = self.alarm.until(next) => Event::Due(due),
            request = self.queue.recv(), if self.queue_open => Event::Requested(request),
            step = self.candidacy.next() => Event::Candidacy(step),
        }
    }

    /// Sends what is to be sent, once all answers have been read that are there.
    async fn flush(&mut self) {
        if self.calls.has_answers() {
            return;
        }
        if self.most_together() > 1 && self.calls.has_company() {
            // The node is busy with what was sent before. Who can run now may ask for something first.
            tokio::task::yield_now().await;
            self.requested_by_now();
        }
        if let Connection::Open { link, .. } = &self.connection {
            self.calls.flush(link, self.candidacy.ballot());
        }
    }

    /// What there is to do first, and when.
    fn next_due(&mut self) -> Option<(Instant, Due)> {
        let probe_again = self.connection.probe_again_at();
        // Of a node that is known to be silent nothing is overdue.
        let overdue = self.calls.overdue_at().filter(|_| probe_again.is_none());
        let is_open = matches!(self.connection, Connection::Open { .. });
        let all = [
            (self.retry_releases, Due::RetryReleases),
            (probe_again, Due::ProbeAgain),
            (overdue, Due::Overdue),
            (self.calls.ends_at(), Due::CallEnds),
            (self.candidacy.look_again_at().filter(|_| is_open), Due::LookAgain),
            (self.held_back_until(), Due::HeldBackTooLong),
            (self.ending.as_ref().map(|ending| ending.deadline), Due::End),
        ];
        // Done at each turn: not by adapters, which take twice as long.
        let mut next: Option<(Instant, Due)> = None;
        for (at, due) in all {
            if let Some(at) = at {
                next = next.filter(|(first, _)| *first <= at).or(Some((at, due)));
            }
        }
        next
    }

    fn finished(&self) -> bool {
        let answered = self.calls.is_empty() && self.held_back.is_empty();
        let idle = answered && self.ledger.len() == 0;
        self.ending.is_some() && !self.queue_open && idle
    }

    fn begin_ending(&mut self) -> &mut Ending {
        // What is queued is still served; nothing new comes in.
        self.queue.close();
        self.ending
            .get_or_insert_with(|| Ending { deadline: due_after(DRAIN), undelivered: Vec::new() })
    }

    async fn end(mut self) {
        // The process may have stood still: what it has not read yet gets the same answers.
        while let Ok(request) = self.queue.try_recv() {
            self.requested(request);
        }
        let undelivered = self.ledger.len();
        if undelivered > 0 {
            tracing::warn!(node = %self.node.name(), undelivered, "ended before the node answered");
        }
        self.answer_all_calls(&NodeFailure::Disconnected { cause: "shut down".to_owned() });
        if let Connection::Open { link, .. } = self.connection {
            link.close().await;
        }
        let shown = self.show.borrow().then(&NodeState::ShutDown, self.candidacy.replicas());
        shown.map(|shown| self.show.send_replace(shown));
        for waiting in self.ending.into_iter().flat_map(|ending| ending.undelivered) {
            // Whoever asked may be gone.
            waiting.send(undelivered).ok();
        }
    }

    // Requests.

    fn most_together(&self) -> usize {
        match &self.connection {
            Connection::Open { link, .. } => link.most_together(),
            Connection::Trying { .. } => 1,
        }
    }

    /// What has come by now, as far as it may go together.
    fn requested_by_now(&mut self) {
        for _ in 1..self.most_together() {
            let Ok(request) = self.queue.try_recv() else { return };
            self.requested(request);
        }
    }

    fn requested(&mut self, request: Request) {
        match request {
            Request::Vote { operation, timeout, deadline, reply_to, permit } => {
                let sent_as = SendAs::Digest;
                let disowned = false;
                self.vote(Vote {
                    operation,
                    sent_as,
                    timeout,
                    deadline,
                    reply_to,
                    permit,
                    disowned,
                });
            }
            Request::Release { release, reply_to } => {
                let owner = release.owner;
                self.forget_held_back(owner);
                self.ledger.owe(release, reply_to);
                self.send_releases();
                if let Some(why_not) = self.connection.why_not() {
                    self.ledger.unanswered(owner, why_not);
                }
            }
            Request::ShutDown { undelivered } => {
                self.begin_ending().undelivered.push(undelivered);
            }
        }
    }

    /// Sends the releases that are due, as far as the connection and the bound allow.
    fn send_releases(&mut self) {
        while self.connection.why_not().is_none() && self.calls.len() < self.common.max_in_flight {
            let Some(owner) = self.ledger.next() else { break };
            self.send_release(owner, SendAs::Digest);
        }
    }

    fn send_vote(&mut self, vote: Vote) {
        let operation = vote.operation.clone();
        self.send(Call::Vote(vote), operation);
    }

    fn send_release(&mut self, owner: OwnerId, sent_as: SendAs) {
        let Some(release) = self.ledger.get(owner) else { return };
        let limits = limits(release.timeout.max(self.common.silence));
        let (key, calls) = (release.key.clone(), release.calls);
        let operation = Operation::Release { key, owner, calls };
        self.send(Call::Release { owner, sent_as, limits }, operation);
    }

    fn send_probe(&mut self) {
        let limits = limits(self.common.silence);
        let operation = Operation::Ping { nonce: self.calls.nonce() };
        self.send(Call::Probe { limits }, operation);
    }

    fn send(&mut self, call: Call, operation: Operation) {
        if matches!(self.connection, Connection::Open { .. }) {
            self.calls.send(call, operation);
        }
    }

    // Answers.

    fn answered(&mut self, call: Call, outcome: Outcome) {
        match &outcome {
            Ok(_) => self.failures = 0,
            Err(NodeFailure::Disconnected { cause }) => self.lose_link(&cause.clone()),
            Err(_) => {}
        }
        let timed_out = matches!(outcome, Err(NodeFailure::Timeout { .. }));
        match call {
            Call::Vote(vote) => self.vote_answered(vote, outcome),
            Call::Release { owner, sent_as, .. } => {
                self.release_answered(owner, &sent_as, outcome);
                if timed_out {
                    self.lose_link("no answer for too long");
                }
            }
            Call::Probe { .. } if timed_out => self.lose_link("no answer for too long"),
            // An answer in step: all that was sent before has been executed.
            Call::Probe { .. } => self.back_from_silence(),
        }
        self.send_releases();
    }

    /// It certainly did nothing yet.
    fn ask_again(&mut self, call: Call) {
        match call {
            // It would run after its release.
            Call::Vote(vote) if self.is_released(&vote) => vote.answer(Err(NodeFailure::NoScript)),
            Call::Vote(vote) => self.vote(vote),
            Call::Release { owner, sent_as, .. } => self.send_release(owner, sent_as),
            Call::Probe { .. } => self.send_probe(),
        }
    }

    /// Ends the calls that have had their time. What still comes of them is not heard.
    fn end_calls(&mut self) {
        for call in self.calls.end(Instant::now()) {
            self.answered(call, Err(NodeFailure::Timeout { after: PATIENCE }));
        }
    }

    fn release_answered(&mut self, owner: OwnerId, sent_as: &SendAs, outcome: Outcome) {
        match outcome {
            Err(NodeFailure::NoScript) if *sent_as == SendAs::Digest => {
                self.send_release(owner, SendAs::Text);
            }
            Err(failure @ (NodeFailure::Rejected { .. } | NodeFailure::NoScript))
                if !failure.is_about_the_key() =>
            {
                self.retry_releases.get_or_insert_with(|| due_after(RETRY_RELEASE));
                self.ledger.rejected(owner, failure);
            }
            Err(failure) if !failure.is_about_the_key() => self.ledger.unanswered(owner, failure),
            outcome => {
                if let (Ok(Answer::PassedOn), Some(release)) = (&outcome, self.ledger.get(owner)) {
                    // Whoever comes back is not to be faster than the one who was called.
                    self.common.contended.note(&release.key);
                }
                self.ledger.settle(owner, outcome);
            }
        }
        self.show_state();
    }

    /// Answers what is in flight: nobody else will.
    fn answer_all_calls(&mut self, failure: &NodeFailure) {
        for vote in std::mem::take(&mut self.held_back) {
            vote.answer(Err(failure.clone()));
        }
        for call in self.calls.take() {
            match call {
                Call::Vote(vote) => vote.answer(Err(failure.clone())),
                Call::Release { owner, .. } => self.ledger.unanswered(owner, failure.clone()),
                Call::Probe { .. } => {}
            }
        }
    }

    fn state(&self) -> NodeState {
        match &self.connection {
            Connection::Trying { cause, .. } => NodeState::Unreachable { cause: cause.clone() },
            Connection::Open { probe_again: Some(_), .. } => NodeState::Unresponsive,
            Connection::Open { .. } => match self.candidacy.standing() {
                // First: where a right is missing for both, it says which.
                Standing::Refused { why } => NodeState::Refused { why: why.clone() },
                _ if !self.ledger.caught_up() => NodeState::CatchingUp,
                Standing::Unknown => NodeState::Joining,
                Standing::Voting => NodeState::Voting,
                Standing::Quarantined { until, why } => {
                    NodeState::Quarantined { until: *until, why: why.clone() }
                }
            },
        }
    }

    fn show_state(&self) {
        let state = self.state();
        let next = self.show.borrow().then(&state, self.candidacy.replicas());
        let Some(next) = next else { return };
        let before = self.show.send_replace(next);
        if before.state != state {
            let (from, to) = (before.state, state);
            tracing::info!(node = %self.node.name(), %from, %to, "node changed state");
        }
    }
}

/// Those of what waits for as long as the connection is trusted: a late answer is one.
fn limits(strange_after: Duration) -> Limits {
    Limits { strange_from: due_after(strange_after), until: due_after(PATIENCE) }
}

#[cfg(test)]
mod tests;
