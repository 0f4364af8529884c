//! The votes of a lane, and what the node's admission has to do with them.

use std::sync::Arc;

use tokio::time::Instant;

use super::{PATIENCE, Worker};
use crate::{
    lane::{
        NodeState,
        calls::Vote,
        candidacy::{Standing, Step},
        connection::Connection,
    },
    node::{Node, NodeFailure, Outcome, SendAs},
    owner_id::OwnerId,
};

impl<N: Node> Worker<N> {
    pub(super) fn vote(&mut self, mut vote: Vote) {
        let state = if self.ending.is_some() { NodeState::ShutDown } else { self.state() };
        let catches_up = || NodeState::CatchingUp.why_not(&vote.operation);
        let catches_up = || (!self.ledger.caught_up()).then(catches_up).flatten();
        if let Some(why_not) = state.why_not(&vote.operation).or_else(catches_up) {
            vote.answer(Err(why_not));
        } else if Instant::now() >= vote.deadline {
            // Whoever asked has given up, maybe long ago: the process may have stood still.
            let after = vote.timeout;
            vote.answer(Err(NodeFailure::Timeout { after }));
        } else if vote.operation.is_grant() {
            match self.candidacy.ballot() {
                Some(ballot) => {
                    vote.sent_as = SendAs::Ballot(Arc::clone(ballot));
                    self.send_vote(vote);
                }
                // The node is just being looked at.
                None => self.held_back.push(vote),
            }
        } else {
            self.send_vote(vote);
        }
    }

    pub(super) fn vote_answered(&mut self, mut vote: Vote, mut outcome: Outcome) {
        if let SendAs::Ballot(ballot) = vote.sent_as.clone() {
            if let Connection::Open { link, .. } = &self.connection {
                let forgot_script = outcome == Err(NodeFailure::NoScript);
                if forgot_script || matches!(outcome, Err(NodeFailure::NotAdmitted { .. })) {
                    self.candidacy.not_admitted(link, PATIENCE, &ballot, forgot_script);
                    // It certainly executed nothing. It may have forgotten no more than its scripts, or
                    // have been admitted again by another client.
                    if !self.is_released(&vote) {
                        return self.vote(vote);
                    }
                } else if matches!(outcome, Err(NodeFailure::Rejected { .. })) {
                    // Such as that it is a replica now.
                    self.candidacy.look(link, PATIENCE);
                }
            }
        }
        if outcome == Err(NodeFailure::NoScript)
            && vote.sent_as == SendAs::Digest
            && !self.is_released(&vote)
        {
            vote.sent_as = SendAs::Text;
            return self.send_vote(vote);
        }
        if let Err(NodeFailure::Timeout { after }) = &mut outcome {
            // What was asked for, not what was left of it at the last sending.
            *after = vote.timeout;
            if vote.timeout >= self.common.silence {
                self.suspect();
            } else {
                self.probe_quietly();
            }
        }
        vote.answer(outcome);
        self.show_state();
    }

    /// Whether its owner's release was put into the queue after it: sent again, it would run after that.
    pub(super) fn is_released(&self, vote: &Vote) -> bool {
        let is_owed = |owner| self.ledger.get(owner).is_some();
        vote.disowned || vote.operation.owner().is_some_and(is_owed)
    }

    /// Looks at the node, if it is there.
    pub(super) fn look(&mut self) {
        if let Connection::Open { link, .. } = &self.connection {
            self.candidacy.look(link, PATIENCE);
        }
    }

    /// The next step on the way to the node's vote.
    pub(super) fn proceed(&mut self, step: Step) {
        let Connection::Open { link, .. } = &self.connection else { return };
        match step {
            Step::Looked(Err(NodeFailure::Timeout { .. }))
            | Step::Marked(Err(NodeFailure::Timeout { .. })) => {
                return self.lose_link("no answer for too long");
            }
            Step::Looked(Err(NodeFailure::Disconnected { cause }))
            | Step::Marked(Err(NodeFailure::Disconnected { cause })) => {
                return self.lose_link(&cause);
            }
            Step::Looked(Err(failure)) => self.candidacy.rejected("looked at", &failure),
            Step::Marked(Err(failure)) => self.candidacy.rejected("written to", &failure),
            Step::Looked(Ok(facts)) => {
                self.failures = 0;
                self.candidacy.looked(facts);
                self.candidacy.proceed(link, PATIENCE);
            }
            Step::News => self.candidacy.heard_news(link, PATIENCE),
            Step::Marked(Ok(true)) => {
                self.candidacy.marked();
                self.candidacy.proceed(link, PATIENCE);
            }
            // If it was not written, somebody else was faster.
            Step::Marked(Ok(false)) => self.candidacy.look(link, PATIENCE),
        }
        self.warn_of_replicas();
        self.show_state();
        let is_settled =
            self.candidacy.ballot().is_some() || *self.candidacy.standing() != Standing::Voting;
        if is_settled {
            for vote in std::mem::take(&mut self.held_back) {
                self.vote(vote);
            }
        }
    }

    /// Says once that a node has replicas. They do no harm until somebody promotes one.
    fn warn_of_replicas(&mut self) {
        let replicas = self.candidacy.replicas();
        if replicas > 0 && !self.warned_of_replicas {
            self.warned_of_replicas = true;
            tracing::warn!(
                node = %self.node.name(),
                replicas,
                "has replicas: one that is promoted lacks the last locks"
            );
        }
    }

    /// When the first vote that is held back has to be answered.
    pub(super) fn held_back_until(&self) -> Option<Instant> {
        self.held_back.iter().map(|vote| vote.deadline).min()
    }

    /// Answers the votes that have been held back for as long as they may be.
    pub(super) fn end_held_back(&mut self) {
        let now = Instant::now();
        let held_back = std::mem::take(&mut self.held_back).into_iter();
        let (over, rest) = held_back.partition::<Vec<_>, _>(|vote| vote.deadline <= now);
        self.held_back = rest;
        for vote in over {
            let after = vote.timeout;
            vote.answer(Err(NodeFailure::Timeout { after }));
        }
    }

    /// What is held back of this owner is not wanted any more: its release has been put into the queue.
    pub(super) fn forget_held_back(&mut self, owner: OwnerId) {
        let held_back = std::mem::take(&mut self.held_back).into_iter();
        let is_of = |vote: &Vote| vote.operation.owner() == Some(owner);
        let (of_owner, rest) = held_back.partition::<Vec<_>, _>(is_of);
        self.held_back = rest;
        for vote in of_owner {
            vote.answer(Err(NodeFailure::NoScript));
        }
    }
}
