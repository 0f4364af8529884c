//! What was sent to the node and is not answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{Permit, ReplyTo};
use crate::{
    clock::due_after,
    node::{Link, Operation, Outcome, SendAs},
    owner_id::OwnerId,
};

/// A node that is silent for longer than this seems frozen. Not less, so that one caller's short
/// timeout does not keep the others from a healthy node that is farther away.
pub(super) const SILENCE: Duration = Duration::from_millis(100);

/// Something sent to the node and not answered.
pub(super) enum Call {
    Vote(Vote),
    Release { owner: OwnerId, sent_as: SendAs },
    Probe,
}

pub(super) struct Vote {
    pub(super) operation: Operation,
    pub(super) sent_as: SendAs,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
    pub(super) reply_to: ReplyTo,
    pub(super) permit: Permit,
    /// Its owner's release was put into the queue meanwhile: sent again, it would run after that.
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
            Self::Probe => SendAs::Digest,
        }
    }
}

/// How long a call may take.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Then its answer is not waited for any more.
    pub(super) timeout: Duration,
    /// Then it is still waited for, but the node is suspected.
    pub(super) strange_after: Option<Duration>,
}

/// All calls of one lane. Those of a lost connection have to be taken out before the next is used.
#[derive(Default)]
pub(super) struct Calls {
    unanswered: BTreeMap<u64, Call>,
    answers: FuturesUnordered<BoxFuture<'static, (u64, Outcome)>>,
    last: u64,
    /// When each has taken so long that it is strange.
    overdue: BTreeSet<(Instant, u64)>,
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.unanswered.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Sends a call.
    ///
    /// The futures are polled in the order in which they were pushed, and each is put on the wire by
    /// its first poll: so the calls of one link run in the order in which they were sent.
    pub(super) fn send<L: Link>(
        &mut self,
        link: &L,
        call: Call,
        operation: &Operation,
        limits: Limits,
    ) {
        self.last = self.last.wrapping_add(1);
        let id = self.last;
        if let Some(strange_after) = limits.strange_after {
            self.overdue.insert((due_after(strange_after), id));
        }
        let answer = link.call(operation, call.sent_as(), limits.timeout);
        self.unanswered.insert(id, call);
        // Not an async block: it would have room for the future twice, before and while it is awaited.
        self.answers.push(answer.map(move |outcome| (id, outcome)).boxed());
    }

    /// A number that no call of this lane has had before: what a probe sends to get it back.
    pub(super) fn nonce(&self) -> u64 {
        self.last.wrapping_add(1)
    }

    /// Waits for the next answer; for ever while there is nothing to wait for. Cancel safe.
    pub(super) async fn answered(&mut self) -> (Call, Outcome) {
        loop {
            match self.answers.next().await {
                Some((id, outcome)) => {
                    if let Some(call) = self.unanswered.remove(&id) {
                        return (call, outcome);
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// When the first call will have been unanswered for strangely long.
    pub(super) fn overdue_at(&mut self) -> Option<Instant> {
        while self.overdue.first().is_some_and(|(_, id)| !self.unanswered.contains_key(id)) {
            self.overdue.pop_first();
        }
        self.overdue.first().map(|(due, _)| *due)
    }

    pub(super) fn is_probing(&self) -> bool {
        self.unanswered.values().any(|call| matches!(call, Call::Probe))
    }

    /// From now on the votes of this owner are not to be sent again.
    pub(super) fn disown(&mut self, released: OwnerId) {
        for call in self.unanswered.values_mut() {
            if let Call::Vote(vote) = call {
                vote.disowned |= vote.operation.owner() == Some(released);
            }
        }
    }

    /// Takes out all calls: their connection is gone, and no answer will come.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Call> + use<> {
        self.answers = FuturesUnordered::new();
        self.overdue.clear();
        mem::take(&mut self.unanswered).into_values()
    }
}
