//! A connected node on its way to its vote: looked at, made to wait, admitted.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    admission::Verdict,
    board::{Bell, Board},
    clock::{Moment, due_after},
    node::{Ballot, Facts, Link, MarkState, Marker, NodeFailure},
};

/// How often a node is looked at that has no vote.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How soon a node is looked at again that begins to wait: another client may just be admitting it, as when
/// several found a fleet together. Then it takes a quarter longer each time.
const LOOK_SOON: Duration = Duration::from_millis(20);
/// How often a node is looked at that has been waiting for long.
const LOOK_WHILE_WAITING: Duration = Duration::from_secs(1);
/// How often a node is looked at that votes. Each vote shows by itself whether it may; this is for a fleet
/// that nobody asks for a while, whose wait should begin when it forgets and not when it is asked.
const LOOK_WHILE_VOTING: Duration = Duration::from_secs(5);

/// Where a connected node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has not been looked at, or what was seen is not settled.
    Unknown,
    Voting,
    /// It waits. `None`: until others are there.
    Quarantined {
        until: Option<Instant>,
        why: String,
    },
    Refused {
        why: String,
    },
}

/// What has happened to a candidate.
#[derive(Debug)]
pub(super) enum Step {
    Looked(Result<Facts, NodeFailure>),
    Marked(Result<bool, NodeFailure>),
    /// Something has changed for the others.
    News,
}

/// A node's wait, as it was first seen.
#[derive(Clone, Copy)]
struct Wait {
    until: Moment,
    /// When a timer shows that.
    due: Instant,
    seen: Instant,
}

pub(super) struct Candidacy {
    board: Arc<Board>,
    place: usize,
    news: Arc<Bell>,
    /// The id of a marker of which the node does not know the script.
    forgot_script: Option<String>,
    /// The marker that is on its way.
    writing: Option<Marker>,
    step: Option<BoxFuture<'static, Step>>,
    /// When the last look was asked for.
    asked_at: Moment,
    again: Option<Instant>,
    ballot: Option<Arc<Ballot>>,
    standing: Standing,
    waits: Option<Wait>,
    /// How many replicas were attached at the last look.
    replicas: u32,
}

impl Candidacy {
    pub(super) fn new(board: Arc<Board>, place: usize) -> Self {
        let (news, asked_at) = (board.news(place), board.now());
        Self {
            board,
            place,
            news,
            forgot_script: None,
            writing: None,
            step: None,
            asked_at,
            again: None,
            ballot: None,
            standing: Standing::Unknown,
            waits: None,
            replicas: 0,
        }
    }

    /// What votes are asked with; `None` while it may not vote.
    pub(super) fn ballot(&self) -> Option<&Arc<Ballot>> {
        self.ballot.as_ref()
    }

    pub(super) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// When it is to be looked at again.
    pub(super) fn look_again_at(&self) -> Option<Instant> {
        self.again
    }

    pub(super) fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Waits for the next step; for ever while there is none to come. Cancel safe.
    pub(super) async fn next(&mut self) -> Step {
        poll_fn(|context| match &mut self.step {
            Some(step) => {
                let ended = ready!(step.as_mut().poll(context));
                self.step = None;
                Poll::Ready(ended)
            }
            None => self.news.poll_rang(context).map(|()| Step::News),
        })
        .await
    }

    /// There is no connection any more.
    pub(super) fn disconnected(&mut self) {
        self.step = None;
        self.again = None;
        self.ballot = None;
        self.standing = Standing::Unknown;
        self.board.cannot_reach(self.place);
    }

    /// Looks at the node, unless it is being looked at or written to.
    pub(super) fn look<L: Link>(&mut self, link: &L, limit: Duration) {
        self.again = None;
        if self.step.is_none() {
            self.asked_at = self.board.now();
            let look = link.look(self.board.keys(), self.board.wants_durability(), limit);
            self.step = Some(Box::pin(async move { Step::Looked(look.await) }));
        }
    }

    /// The node said that it knows of no admission. Votes wait until it has been looked at.
    ///
    /// `voted_with`: what the vote was asked with, maybe another admission's than the latest.
    pub(super) fn not_admitted<L: Link>(
        &mut self,
        link: &L,
        limit: Duration,
        voted_with: &Arc<Ballot>,
        forgot_script: bool,
    ) {
        if self.ballot.as_ref() == Some(voted_with) {
            self.ballot = None;
            self.forgot_script = forgot_script.then(|| voted_with.mark.clone());
            self.look(link, limit);
        }
    }

    pub(super) fn looked(&mut self, facts: Facts) {
        // Another client may have had it admitted anew meanwhile.
        let forgot_script = self.forgot_script.take().is_some_and(|mark| {
            facts.marker.as_ref().is_some_and(|marker| marker.starts_with(&mark))
        });
        self.replicas = facts.replicas;
        self.board.note(self.place, facts, self.asked_at, forgot_script);
    }

    /// The marker has been written, and nothing else has changed since the look.
    pub(super) fn marked(&mut self) {
        if let Some(marker) = self.writing.take() {
            self.board.note_marker(self.place, &marker);
        }
    }

    /// The node answered with an error when it was `what`: a right is missing, it is busy, or full.
    pub(super) fn rejected(&mut self, what: &str, failure: &NodeFailure) {
        self.ballot = None;
        let why = format!("it cannot be {what}: {failure}");
        // A right that is missing, or a key that is not ours, waits for a person; what is busy or full may
        // pass.
        let is_for_good = matches!(failure, NodeFailure::Rejected { message }
            if ["NOPERM", "WRONGTYPE", "ERR"].iter().any(|code| message.starts_with(code)));
        self.standing = if is_for_good {
            Standing::Refused { why }
        } else {
            Standing::Quarantined { until: None, why }
        };
        self.again = Some(due_after(LOOK_AGAIN));
    }

    /// Something has changed for the others, or one of them needs to know of this node.
    pub(super) fn heard_news<L: Link>(&mut self, link: &L, limit: Duration) {
        if self.board.wants_look(self.place) {
            self.look(link, limit);
        } else if self.ballot.is_none() {
            self.proceed(link, limit);
        }
    }

    /// Does what is to be done next, by what is known of all nodes.
    pub(super) fn proceed<L: Link>(&mut self, link: &L, limit: Duration) {
        if self.step.is_some() {
            return;
        }
        let before = self.ballot.take();
        match self.board.verdict(self.place) {
            Verdict::Vote { mark, floor } => {
                let same = before.filter(|ballot| ballot.mark == mark && ballot.floor == floor);
                let anew = || Arc::new(self.board.ballot(&mark, floor));
                self.ballot = Some(same.unwrap_or_else(anew));
                self.standing = Standing::Voting;
                self.again = Some(due_after(LOOK_WHILE_VOTING));
            }
            Verdict::Unknown => {
                self.standing = Standing::Unknown;
                self.again = Some(due_after(LOOK_AGAIN));
            }
            Verdict::Refused(refusal) => {
                self.standing = Standing::Refused { why: refusal.to_string() };
                self.again = Some(due_after(LOOK_AGAIN));
            }
            Verdict::Wait { until, why } => {
                let left = until.since(self.board.now());
                // Looked at again and again: it may be another client that admits it.
                let known = self.waits.filter(|wait| wait.until == until);
                let begins = || Wait { until, due: due_after(left), seen: Instant::now() };
                let Wait { due, seen, .. } = *self.waits.insert(known.unwrap_or_else(begins));
                let again = seen.elapsed().div_f64(4.0).clamp(LOOK_SOON, LOOK_WHILE_WAITING);
                let at = due_after(again.min(left));
                // Whatever happens to other nodes does not put off what is due at this one.
                self.again = Some(self.again.map_or(at, |before| before.min(at)));
                self.standing = Standing::Quarantined { until: Some(due), why: why.to_string() };
            }
            Verdict::WaitForOthers { why } => {
                self.standing = Standing::Quarantined {
                    until: None,
                    why: format!("{why}; it needs a majority of the other nodes, or all, to begin"),
                };
                self.again = Some(due_after(LOOK_AGAIN));
            }
            Verdict::Mark => self.mark(link, MarkState::Waiting, None, limit),
            Verdict::LookAtOthers { .. } => self.again = Some(due_after(LOOK_AGAIN)),
            Verdict::Admit { floor } => self.mark(link, MarkState::Admitted, floor, limit),
        }
    }

    fn mark<L: Link>(&mut self, link: &L, state: MarkState, floor: Option<u64>, limit: Duration) {
        let Some((seen, marker)) = self.board.new_marker(self.place, state, floor) else { return };
        self.writing = Some(marker.clone());
        let written = link.mark(self.board.keys(), seen, marker, limit);
        self.step = Some(Box::pin(async move { Step::Marked(written.await) }));
    }
}
