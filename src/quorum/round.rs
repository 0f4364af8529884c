//! One operation on several nodes at once, and their outcomes as they come in.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Quorum, tally::Tally};
use crate::{
    error::NodeOutcome,
    lane::{Inbox, Reply, ReplyTo},
    node::{NodeFailure, Operation},
};

/// The outcomes of one round so far. Those that come in after the decision are taken as well.
#[derive(Debug)]
pub(crate) struct Round {
    outcomes: Box<[NodeOutcome]>,
    inbox: Arc<Inbox>,
}

impl Round {
    /// Starts a round. What is known beforehand stands; `send` is called for each node of which the
    /// outcome is [`NodeOutcome::Pending`], with where it goes.
    pub(super) fn start(known: Vec<NodeOutcome>, mut send: impl FnMut(ReplyTo)) -> Self {
        let inbox = Arc::default();
        for (place, outcome) in known.iter().enumerate() {
            if *outcome == NodeOutcome::Pending {
                send(ReplyTo { round: 0, place, to: Arc::clone(&inbox) });
            }
        }
        Self { outcomes: known.into(), inbox }
    }

    /// What one node says to a question that is no vote, or that it did not answer within `limit`. Cancel
    /// safe.
    pub(crate) async fn ask_one(
        quorum: &Quorum,
        place: usize,
        question: Operation,
        limit: Duration,
    ) -> NodeOutcome {
        let not_asked = vec![NodeOutcome::Failed(NodeFailure::NotAsked); quorum.lanes.len()];
        let mut round = Self::start(not_asked, |_| ());
        if let Some(lane) = quorum.lanes.get(place) {
            lane.vote(question, limit, round.expect_from(place));
        }
        round.outcome_of(place, limit).await
    }

    /// One more node is asked: where its outcome goes.
    pub(super) fn expect_from(&mut self, place: usize) -> ReplyTo {
        if let Some(outcome) = self.outcomes.get_mut(place) {
            *outcome = NodeOutcome::Pending;
        }
        ReplyTo { round: 0, place, to: Arc::clone(&self.inbox) }
    }

    /// Waits for the next answers. Cancel safe.
    pub(super) async fn next(&mut self) {
        let replies = self.inbox.wait().await;
        self.note(replies);
    }

    /// What one node says, or that it did not within `limit`. Cancel safe.
    pub(super) async fn outcome_of(&mut self, place: usize, limit: Duration) -> NodeOutcome {
        let pending = |round: &Self| round.outcomes.get(place) == Some(&NodeOutcome::Pending);
        let answered = async {
            while pending(self) {
                self.next().await;
            }
        };
        drop(timeout(limit, answered).await);
        self.outcomes.get(place).cloned().unwrap_or(NodeOutcome::Pending)
    }

    /// Waits until `decide` gives a verdict, at most for `limit`; `None` if there is none. Cancel safe.
    ///
    /// The lanes answer in time by themselves. The limit is for those that cannot: too busy, or on a
    /// runtime that nobody drives.
    pub(crate) async fn decided<V>(
        &mut self,
        limit: Duration,
        decide: impl Fn(Tally) -> Option<V>,
    ) -> Option<V> {
        if let Ok(verdict) = timeout(limit, self.verdict(&decide)).await {
            return verdict;
        }
        self.give_up(&NodeFailure::Timeout { after: limit });
        decide(Tally::of(&self.outcomes))
    }

    async fn verdict<V>(&mut self, decide: impl Fn(Tally) -> Option<V>) -> Option<V> {
        loop {
            if let Some(verdict) = decide(Tally::of(&self.outcomes)) {
                return Some(verdict);
            }
            if !self.outcomes.contains(&NodeOutcome::Pending) {
                return None;
            }
            self.next().await;
        }
    }

    /// The outcomes by now.
    pub(crate) fn outcomes(&mut self) -> &[NodeOutcome] {
        let replies = self.inbox.take();
        self.note(replies);
        &self.outcomes
    }

    fn note(&mut self, replies: Vec<Reply>) {
        for reply in replies {
            if let Some(slot) = self.outcomes.get_mut(reply.place) {
                *slot = reply.outcome.into();
            }
        }
    }

    fn give_up(&mut self, failure: &NodeFailure) {
        let pending = self.outcomes.iter_mut().filter(|o| **o == NodeOutcome::Pending);
        pending.for_each(|outcome| *outcome = NodeOutcome::Failed(failure.clone()));
    }
}
