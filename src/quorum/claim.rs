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
    fencing_token::FencingToken,
    lane::{Release, ReplyTo},
    node::{Answer, Called, Fence, NodeFailure, Operation},
    options::Terms,
    owner_id::OwnerId,
    resource::Key,
};

#[derive(Debug)]
pub(crate) struct Claim {
    quorum: Arc<Quorum>,
    key: Key,
    /// Where its counter is, if it is to have a fencing token.
    pub(super) fence: Option<Fence>,
    /// Once it has one.
    token: Option<FencingToken>,
    owner: OwnerId,
    node_timeout: Duration,
    /// The round that acquires. It says on which nodes there may be a key of this owner.
    pub(super) acquiring: Round,
    /// Places where our key was set again since.
    refilled: Vec<usize>,
    released: bool,
}

impl Claim {
    /// A claim on `key` with an owner id of its own, of which no node knows yet.
    pub(super) fn new(quorum: &Arc<Quorum>, key: Key, fence: Option<Fence>, terms: Terms) -> Self {
        let owner = OwnerId::from_entropy(&quorum.entropy, quorum.seat.get());
        let not_asked = vec![NodeOutcome::Failed(NodeFailure::NotAsked); quorum.lanes.len()];
        Self {
            quorum: Arc::clone(quorum),
            key,
            fence,
            token: None,
            owner,
            node_timeout: terms.node_timeout,
            acquiring: Round::start(not_asked, |_| ()),
            refilled: Vec::new(),
            released: false,
        }
    }

    /// Asks the nodes of these places for the key.
    pub(super) fn ask(&mut self, places: impl Iterator<Item = usize>, ttl_ms: u64) {
        for place in places {
            if let Some(lane) = self.quorum.lanes.get(place) {
                let (key, owner) = (self.key.clone(), self.owner);
                let operation = match self.fence.clone() {
                    Some(fence) => Operation::AcquireFenced { key, fence, owner, ttl_ms },
                    None => Operation::Acquire { key, owner, ttl_ms },
                };
                let reply_to = self.acquiring.expect_from(place);
                lane.vote(operation, self.node_timeout, reply_to);
            }
        }
    }

    pub(crate) fn quorum(&self) -> &Quorum {
        &self.quorum
    }

    /// The time by the clock that judges this claim's validity.
    pub(crate) fn now(&self) -> Moment {
        self.quorum.clock.now()
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    /// What each node said to the acquire, by now.
    pub(crate) fn reports(&mut self) -> NodeReports {
        self.quorum.reports(self.acquiring.outcomes())
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.token
    }

    pub(super) fn set_token(&mut self, token: FencingToken) {
        self.token = Some(token);
    }

    /// Asks one node to raise its counter to the token.
    pub(super) fn raise(&self, token: FencingToken, reply_to: ReplyTo) {
        if let (Some(lane), Some(fence)) = (self.quorum.lanes.get(reply_to.place), &self.fence) {
            let (key, fence, owner) = (self.key.clone(), fence.clone(), self.owner);
            lane.vote(Operation::Raise { key, fence, owner, token }, self.node_timeout, reply_to);
        }
    }

    /// Asks every node that may have our key to let it live on.
    pub(crate) fn extend(&mut self, ttl_ms: u64, node_timeout: Duration) -> Round {
        let known = self.open_places();
        Round::start(known, |reply_to| self.ask_to_extend(ttl_ms, node_timeout, reply_to))
    }

    /// Asks one node to let our key live on.
    pub(crate) fn ask_to_extend(&self, ttl_ms: u64, node_timeout: Duration, reply_to: ReplyTo) {
        if let Some(lane) = self.quorum.lanes.get(reply_to.place) {
            let (key, owner) = (self.key.clone(), self.owner);
            lane.vote(Operation::Extend { key, owner, ttl_ms }, node_timeout, reply_to);
        }
    }

    /// Sets our key again on a node that lost it, unless another has it there.
    pub(crate) fn refill(&mut self, ttl_ms: u64, node_timeout: Duration, reply_to: ReplyTo) {
        if let Some(lane) = self.quorum.lanes.get(reply_to.place) {
            if !self.refilled.contains(&reply_to.place) {
                self.refilled.push(reply_to.place);
            }
            let (key, owner) = (self.key.clone(), self.owner);
            let operation = match (self.fence.clone(), self.token) {
                (Some(fence), Some(token)) => {
                    Operation::RefillFenced { key, fence, owner, ttl_ms, token }
                }
                _ => Operation::Acquire { key, owner, ttl_ms },
            };
            lane.vote(operation, node_timeout, reply_to);
        }
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released
    }

    /// Owes the release to every node that may have our key; hears of the answers. Once is enough.
    pub(crate) fn release(&mut self) -> Round {
        self.released = true;
        let places = self.open_places();
        // Nobody waits for what no majority can have granted.
        let is_open = |(_, outcome): &(usize, &NodeOutcome)| **outcome == NodeOutcome::Pending;
        let open: Vec<usize> =
            places.iter().enumerate().filter(is_open).map(|(place, _)| place).collect();
        let is_awaited = open.len() >= self.quorum.size();
        // One node searches the ring in any case: it calls who stands in for the next, and tells the next who
        // that is.
        let second = open.get(self.owner.one_of(open.len())).copied();
        let known = if is_awaited { self.quorum.successors.call(&self.key) } else { None };
        Round::start(places, |reply_to| {
            if let Some(lane) = self.quorum.lanes.get(reply_to.place) {
                let (key, owner, timeout) = (self.key.clone(), self.owner, self.node_timeout);
                let calls = match known {
                    _ if !is_awaited => Called::Nobody,
                    _ if Some(reply_to.place) == second => Called::NextAndStandIn,
                    Some(seat) => Called::Known(seat),
                    None => Called::Next,
                };
                lane.release(Release { key, owner, calls, timeout }, Some(reply_to));
            }
        })
    }

    /// The outcomes of a round to come: pending where there may be a key of ours, known elsewhere.
    fn open_places(&mut self) -> Vec<NodeOutcome> {
        let outcomes = self.acquiring.outcomes().iter().enumerate();
        let refilled = &self.refilled;
        let is_open = |place, outcome| refilled.contains(&place) || may_hold(outcome);
        outcomes
            .map(|(place, o)| if is_open(place, o) { NodeOutcome::Pending } else { o.clone() })
            .collect()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.released {
            drop(self.release());
        }
    }
}

/// Whether a node may have a key of ours, or come to have one, after this answer to the acquire.
///
/// Not after a refusal, and not where the acquire was certainly never sent; everything else is told
/// to release, the silent and the failing nodes above all.
fn may_hold(outcome: &NodeOutcome) -> bool {
    match outcome {
        NodeOutcome::Pending
        | NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn) => true,
        NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => false,
        NodeOutcome::Failed(failure) => failure.may_have_run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
