//! The rounds: one operation on all nodes, decided by a majority.
//!
//! Whatever a round comes to, what it may have set on a node is released again, by the lanes and not
//! by the caller: see [`claim`].

pub(crate) mod tally;
pub(crate) mod round;
pub(crate) mod claim;
pub(crate) mod acquire;

use crate::{
    clock::Clock,
    entropy::Entropy,
    error::{NodeOutcome, NodeReport, NodeReports},
    lane::Lane,
};

/// The nodes of a `Redlock` and the clock by which it judges.
#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
}

impl Quorum {
    /// How many nodes have to grant.
    pub(crate) fn size(&self) -> usize {
        tally::quorum(self.lanes.len())
    }

    pub(crate) fn reports(&self, outcomes: &[NodeOutcome]) -> NodeReports {
        let reports = self.lanes.iter().zip(outcomes).map(|(lane, outcome)| NodeReport {
            node: lane.name().clone(),
            outcome: outcome.clone(),
        });
        NodeReports(reports.collect())
    }
}
