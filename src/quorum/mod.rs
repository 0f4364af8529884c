//! The rounds: one operation on all nodes, decided by a majority.
//!
//! Whatever a round comes to, what it may have set on a node is released again, by the lanes and not
//! by the caller: see [`claim`].

pub(crate) mod tally;
pub(crate) mod round;
pub(crate) mod claim;
mod confirm;
pub(crate) mod acquire;

use std::sync::Arc;

use crate::{
    clock::Clock,
    contended::Contended,
    entropy::Entropy,
    error::{NodeOutcome, NodeReport, NodeReports},
    lane::Lane,
    own_seat::OwnSeat,
    successors::Successors,
};

/// The nodes of a `Redlock` and the clock by which it judges.
#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    /// Where this process waits.
    pub(crate) seat: Arc<OwnSeat>,
    pub(crate) successors: Arc<Successors>,
    /// Which locks others want as well.
    pub(crate) contended: Arc<Contended>,
}

impl Quorum {
    /// How many nodes have to grant.
    pub(crate) fn size(&self) -> usize {
        tally::quorum(self.lanes.len())
    }

    /// The first node that is asked for its vote, in the order that all clients share.
    pub(crate) fn first_voting(&self) -> usize {
        self.lanes.iter().position(Lane::is_voting).unwrap_or(0)
    }

    /// The node that is so many places behind `first` among those that are asked for their vote.
    pub(crate) fn voting_after(&self, first: usize, places: usize) -> usize {
        let voting = self.lanes.iter().enumerate().filter(|(_, lane)| lane.is_voting());
        let voting: Vec<usize> = voting.map(|(place, _)| place).collect();
        let place = places.checked_rem(voting.len()).and_then(|place| voting.get(place));
        place.copied().unwrap_or(first)
    }

    pub(crate) fn reports(&self, outcomes: &[NodeOutcome]) -> NodeReports {
        let reports = self.lanes.iter().zip(outcomes).map(|(lane, outcome)| NodeReport {
            node: lane.name().clone(),
            outcome: outcome.clone(),
        });
        NodeReports(reports.collect())
    }
}
