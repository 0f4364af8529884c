//! One operation on several nodes at once, and their outcomes as they come in.

use tokio::sync::mpsc;

use super::tally::Tally;
use crate::{
    error::NodeOutcome,
    lane::ReplyTo,
    node::{NodeFailure, Outcome},
};

/// The outcomes of one round so far. Those that come in after the decision are taken as well.
#[derive(Debug)]
pub(crate) struct Round {
    outcomes: Vec<NodeOutcome>,
    answers: mpsc::UnboundedReceiver<(usize, Outcome)>,
}

impl Round {
    /// Starts a round. What is known beforehand stands; `send` is called for each node of which the
    /// outcome is [`NodeOutcome::Pending`], with where it goes.
    pub(super) fn start(known: Vec<NodeOutcome>, mut send: impl FnMut(ReplyTo)) -> Self {
        let (round, answers) = mpsc::unbounded_channel();
        for (place, outcome) in known.iter().enumerate() {
            if *outcome == NodeOutcome::Pending {
                send(ReplyTo { place, round: round.clone() });
            }
        }
        Self { outcomes: known, answers }
    }

    /// Waits until `decide` gives a verdict; `None` if all outcomes give none. Cancel safe.
    pub(super) async fn decided<V>(&mut self, decide: impl Fn(Tally) -> Option<V>) -> Option<V> {
        loop {
            if let Some(verdict) = decide(Tally::of(&self.outcomes)) {
                return Some(verdict);
            }
            if !self.outcomes.contains(&NodeOutcome::Pending) {
                return None;
            }
            match self.answers.recv().await {
                Some((place, outcome)) => self.note(place, outcome),
                None => self.give_up(),
            }
        }
    }

    /// The outcomes by now.
    pub(crate) fn outcomes(&mut self) -> &[NodeOutcome] {
        while let Ok((place, outcome)) = self.answers.try_recv() {
            self.note(place, outcome);
        }
        &self.outcomes
    }

    fn note(&mut self, place: usize, outcome: Outcome) {
        if let Some(slot) = self.outcomes.get_mut(place) {
            *slot = outcome.into();
        }
    }

    /// Lanes that ended without an answer (their runtime is gone) will give none.
    fn give_up(&mut self) {
        let pending = self.outcomes.iter_mut().filter(|o| **o == NodeOutcome::Pending);
        pending.for_each(|outcome| *outcome = NodeOutcome::Failed(NodeFailure::ShutDown));
    }
}
