//! What was sent to the node and is not answered.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{
    Permit, ReplyTo,
    outbox::{Outbox, Parcel, Queued},
    unanswered::Unanswered,
};
use crate::{
    node::{Ballot, Link, NodeFailure, Operation, Outcome, SendAs},
    owner_id::OwnerId,
};

/// So many calls on the way to a node come from more than one who asks, and more will follow.
const MANY: usize = 4;

/// Something sent to the node and not answered.
pub(super) enum Call {
    Vote(Vote),
    Release { owner: OwnerId, sent_as: SendAs, limits: Limits },
    Probe { limits: Limits },
}

/// How long something may take that is not a vote.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Then it is still waited for, but the node is suspected.
    pub(super) strange_from: Instant,
    /// Then its answer is not waited for any more.
    pub(super) until: Instant,
}

pub(super) struct Vote {
    pub(super) operation: Operation,
    pub(super) sent_as: SendAs,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
    pub(super) reply_to: ReplyTo,
    pub(super) permit: Permit,
    /// Its owner's release was answered before it: sent again, it would run after that.
    pub(super) disowned: bool,
}

impl Vote {
    /// The place is free before anyone can act on the outcome.
    pub(super) fn answer(self, outcome: Outcome) {
        drop(self.permit);
        self.reply_to.send(outcome);
    }
}

impl Call {
    fn sent_as(&self) -> SendAs {
        match self {
            Self::Vote(Vote { sent_as, .. }) | Self::Release { sent_as, .. } => sent_as.clone(),
            Self::Probe { .. } => SendAs::Digest,
        }
    }

    fn until(&self) -> Instant {
        match self {
            Self::Vote(vote) => vote.deadline,
            Self::Release { limits, .. } | Self::Probe { limits } => limits.until,
        }
    }

    fn strange_from(&self) -> Option<Instant> {
        match self {
            Self::Vote(_) => None,
            Self::Release { limits, .. } | Self::Probe { limits } => Some(limits.strange_from),
        }
    }
}

/// What came of one command.
enum Came {
    Alone(u64, Outcome),
    Together(Vec<u64>, Result<Vec<Outcome>, NodeFailure>),
}

/// What came of one call.
pub(super) enum CallEnd {
    Outcome(Outcome),
    /// The node did nothing of all that it was asked together with, maybe for one of the others: it is to
    /// be asked again.
    RefusedTogether,
}

/// All calls of one lane. Those of a lost connection have to be taken out before the next is used.
#[derive(Default)]
pub(super) struct Calls {
    unanswered: Unanswered<Call>,
    outbox: Outbox,
    answers: FuturesUnordered<BoxFuture<'static, Came>>,
    /// What came and has not been read.
    came: VecDeque<(u64, CallEnd)>,
    /// No call has taken strangely long before this. It is mostly too early, as most calls are answered long
    /// before: when it has come, all are looked through, which costs less than to keep them in this order.
    overdue: Option<Instant>,
    /// No call ends before this, in the same way.
    ends: Option<Instant>,
    /// Something was refused that went together. From then on each goes alone.
    each_alone: bool,
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.unanswered.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unanswered.len() == 0
    }

    /// Puts a call where [`flush`](Self::flush) finds it.
    pub(super) fn send(&mut self, call: Call, operation: Operation) {
        let sent_as = call.sent_as();
        self.overdue = earliest([self.overdue, call.strange_from()]);
        self.ends = earliest([self.ends, Some(call.until())]);
        let id = self.unanswered.put(call);
        self.outbox.put(Queued { id, operation, sent_as });
    }

    /// Whether there is something to send while so much else is on the way that more is to be expected.
    pub(super) fn has_company(&self) -> bool {
        let sent = self.unanswered.len().saturating_sub(self.outbox.len());
        self.outbox.len() > 0 && sent >= MANY
    }

    /// Sends what was put here.
    ///
    /// The futures are polled in the order in which they were pushed, and each is put on the wire by
    /// its first poll: so the calls of one link run in the order in which they were sent.
    pub(super) fn flush<L: Link>(&mut self, link: &L, ballot: Option<&Arc<Ballot>>) {
        let most = if self.each_alone { 1 } else { link.most_together() };
        while let Some(parcel) = self.outbox.take(most, ballot) {
            match parcel {
                Parcel::Together(parcel, ballot) => self.send_together(link, parcel, ballot),
                Parcel::Alone(Queued { id, operation, sent_as }) => {
                    let answer = link.call(&operation, sent_as);
                    // Not an async block: it would have room for the future twice, before and while it is
                    // awaited.
                    self.answers.push(answer.map(move |outcome| Came::Alone(id, outcome)).boxed());
                }
            }
        }
    }

    fn send_together<L: Link>(&mut self, link: &L, parcel: Vec<Queued>, ballot: &Arc<Ballot>) {
        let (ids, operations) =
            parcel.into_iter().map(|queued| (queued.id, queued.operation)).unzip();
        let answers = link.call_together(operations, ballot);
        self.answers.push(answers.map(move |outcomes| Came::Together(ids, outcomes)).boxed());
    }

    /// A number that no call of this lane has had before: what a probe sends to get it back.
    pub(super) fn nonce(&self) -> u64 {
        self.unanswered.next_number()
    }

    /// Waits for the next answer; for ever while there is nothing to wait for. Cancel safe.
    pub(super) async fn answered(&mut self) -> (Call, CallEnd) {
        loop {
            while let Some((id, end)) = self.came.pop_front() {
                if let Some(call) = self.unanswered.remove(id) {
                    self.disown_before(id, &call);
                    return (call, end);
                }
            }
            match self.answers.next().await {
                Some(Came::Alone(id, outcome)) => {
                    self.came.push_back((id, CallEnd::Outcome(outcome)));
                }
                Some(Came::Together(ids, Ok(outcomes))) => {
                    self.came
                        .extend(ids.into_iter().zip(outcomes.into_iter().map(CallEnd::Outcome)));
                }
                Some(Came::Together(ids, Err(failure))) => {
                    // Before it did anything, the server looked at the keys of all.
                    let is_for_a_key = failure.is_forbidden_key();
                    self.each_alone |= is_for_a_key;
                    let said = || {
                        if is_for_a_key {
                            CallEnd::RefusedTogether
                        } else {
                            CallEnd::Outcome(Err(failure.clone()))
                        }
                    };
                    self.came.extend(ids.into_iter().map(|id| (id, said())));
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Answers are mostly read in the order in which they came. Where a release is not, the votes of its
    /// owner are marked that were sent before it and are not answered yet.
    fn disown_before(&mut self, id: u64, call: &Call) {
        let Call::Release { owner, .. } = call else { return };
        for earlier in self.unanswered.before(id) {
            if let Call::Vote(vote) = earlier {
                vote.disowned |= vote.operation.owner() == Some(*owner);
            }
        }
    }

    /// Whether there are answers to be read before anything is sent: what came of calls that have ended
    /// meanwhile is none.
    pub(super) fn has_answers(&self) -> bool {
        self.came.iter().any(|(id, _)| self.unanswered.contains(*id))
    }

    /// When to see whether a call is overdue.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.overdue
    }

    /// Whether a call has been unanswered for strangely long by now.
    pub(super) fn is_overdue(&mut self, now: Instant) -> bool {
        self.overdue = earliest(self.unanswered.iter().map(Call::strange_from));
        self.overdue.is_some_and(|overdue| overdue <= now)
    }

    /// When to see which calls have had their time.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.ends
    }

    /// Takes out the calls that have had their time by now.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Call> {
        let ended = self.unanswered.remove_if(|call| call.until() <= now);
        self.ends = earliest(self.unanswered.iter().map(|call| Some(call.until())));
        ended
    }

    pub(super) fn is_probing(&self) -> bool {
        self.unanswered.iter().any(|call| matches!(call, Call::Probe { .. }))
    }

    /// Takes out all calls: their connection is gone, and no answer will come.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Call> + use<> {
        self.outbox.clear();
        self.came.clear();
        self.answers = FuturesUnordered::new();
        (self.overdue, self.ends) = (None, None);
        self.each_alone = false;
        self.unanswered.take()
    }
}

fn earliest(times: impl IntoIterator<Item = Option<Instant>>) -> Option<Instant> {
    times.into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
