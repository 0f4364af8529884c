//! What an owner may have on the nodes, and the promise to take it away again.
//!
//! A claim exists from before the first acquire is sent until its release is owed. Wherever it is
//! dropped, in the middle of a round, by a caller's timeout, with the guard, outside a runtime, the
//! lanes are told to release, and each sees to it that its node hears of it.

use std::{sync::Arc, time::Duration};

use super::{Quorum, round::Round};
use crate::{
    clock::Moment,
    error::{NodeOutcome, NodeReports},
    node::{Answer, Operation},
    owner_id::OwnerId,
    resource::Key,
};

#[derive(Debug)]
pub(crate) struct Claim {
    pub(super) quorum: Arc<Quorum>,
    key: Key,
    owner: OwnerId,
    node_timeout: Duration,
    /// The round that acquires. It says on which nodes there may be a key of this owner.
    pub(super) acquiring: Round,
    released: bool,
}

impl Claim {
    /// Asks all nodes for `key`, with an owner id of its own.
    pub(super) fn stake(
        quorum: &Arc<Quorum>,
        key: Key,
        ttl_ms: u64,
        node_timeout: Duration,
    ) -> Self {
        let owner = OwnerId::from_entropy(&quorum.entropy);
        let unknown = vec![NodeOutcome::Pending; quorum.lanes.len()];
        let acquiring = Round::start(unknown, |reply_to| {
            if let Some(lane) = quorum.lanes.get(reply_to.place) {
                let acquire = Operation::Acquire { key: key.clone(), owner, ttl_ms };
                lane.vote(acquire, node_timeout, reply_to);
            }
        });
        Self { quorum: Arc::clone(quorum), key, owner, node_timeout, acquiring, released: false }
    }

    /// The time by the clock that judges this claim's validity.
    pub(crate) fn now(&self) -> Moment {
        self.quorum.clock.now()
    }

    pub(super) fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    /// What each node said to the acquire, by now.
    pub(crate) fn reports(&mut self) -> NodeReports {
        self.quorum.reports(self.acquiring.outcomes())
    }

    /// Asks every node that may have our key to let it live on.
    pub(super) fn extend(&mut self, ttl_ms: u64, node_timeout: Duration) -> Round {
        let (key, owner) = (&self.key, self.owner);
        Round::start(open_places(&mut self.acquiring), |reply_to| {
            if let Some(lane) = self.quorum.lanes.get(reply_to.place) {
                let extend = Operation::Extend { key: key.clone(), owner, ttl_ms };
                lane.vote(extend, node_timeout, reply_to);
            }
        })
    }

    /// Owes the release to every node that may have our key, and hears of the answers.
    pub(super) fn release(mut self) -> (Arc<Quorum>, Round) {
        self.released = true;
        let round = Round::start(open_places(&mut self.acquiring), |reply_to| {
            if let Some(lane) = self.quorum.lanes.get(reply_to.place) {
                lane.release(self.key.clone(), self.owner, self.node_timeout, Some(reply_to));
            }
        });
        (Arc::clone(&self.quorum), round)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        for (lane, outcome) in self.quorum.lanes.iter().zip(self.acquiring.outcomes()) {
            if may_hold(outcome) {
                lane.release(self.key.clone(), self.owner, self.node_timeout, None);
            }
        }
    }
}

/// The outcomes of a round to come: pending where there may be a key of ours, known elsewhere.
fn open_places(acquiring: &mut Round) -> Vec<NodeOutcome> {
    let outcomes = acquiring.outcomes().iter();
    outcomes.map(|o| if may_hold(o) { NodeOutcome::Pending } else { o.clone() }).collect()
}

/// Whether a node may have a key of ours, or come to have one, after this answer to the acquire.
///
/// Not after a refusal, and not where the acquire was certainly never sent; everything else is told
/// to release, the silent and the failing nodes above all.
fn may_hold(outcome: &NodeOutcome) -> bool {
    match outcome {
        NodeOutcome::Pending | NodeOutcome::Answered(Answer::Done) => true,
        NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => false,
        NodeOutcome::Failed(failure) => failure.may_have_run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeFailure;

    #[test]
    fn only_certainty_spares_a_node_the_release() {
        let taken = Answer::Taken { remaining: None };
        assert!(may_hold(&NodeOutcome::Pending));
        assert!(may_hold(&NodeOutcome::Answered(Answer::Done)));
        assert!(may_hold(&NodeOutcome::Failed(NodeFailure::Timeout { after: Duration::ZERO })));
        assert!(!may_hold(&NodeOutcome::Answered(taken)));
        assert!(!may_hold(&NodeOutcome::Failed(NodeFailure::Unresponsive)));
    }
}
