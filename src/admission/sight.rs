//! What a client has seen of its nodes.

use crate::{
    clock::Moment,
    node::{Facts, Marker},
};

/// What a client has seen of one node.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) facts: Facts,
    /// The marker among the facts; `None` also if what is there is none.
    pub(crate) marker: Option<Marker>,
    /// When this process was first seen with this marker.
    pub(crate) since: Moment,
    /// When the look was asked for that these facts come from.
    pub(crate) asked_at: Moment,
    /// Whether it can be asked now.
    pub(crate) is_reachable: bool,
    /// Whether it has said that it does not know the script of this marker.
    pub(crate) forgot_script: bool,
}

impl Seen {
    /// At least the largest number that the node has granted or learned.
    ///
    /// A look reads the max before the marker. A node that forgot, and was admitted in between, had
    /// nothing yet when the one was read, and the other says what it learned.
    pub(super) fn largest(&self) -> Option<u64> {
        let floor = self.marker.as_ref().map_or(0, |marker| marker.floor);
        self.facts.max.map(|max| max.max(floor))
    }
}

/// What is known of all nodes, by place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    pub(crate) nodes: Vec<Option<Seen>>,
    /// Nodes to which an attempt to connect has failed.
    pub(crate) unreachable: Vec<bool>,
    /// The markers with which the nodes of a new fleet wait for each other, once that is settled.
    pub(crate) founded: Option<Vec<Option<String>>>,
    /// Where a marker of this fleet has been seen.
    pub(crate) had_own: Vec<bool>,
    /// Since when a quorum of a new fleet is there.
    pub(crate) founding_since: Option<Moment>,
    /// Nodes that were not looked at since have to be looked at.
    pub(crate) look_after: Option<Moment>,
    /// A node of this fleet has been admitted before: it is not new.
    pub(crate) is_old: bool,
}

impl Sight {
    /// At least the largest number that any node has granted or learned.
    pub(super) fn largest(&self) -> u64 {
        self.nodes.iter().flatten().filter_map(Seen::largest).max().unwrap_or(0)
    }

    pub(super) fn largest_of(&self, place: usize) -> u64 {
        let seen = self.nodes.get(place).and_then(Option::as_ref);
        seen.and_then(Seen::largest).unwrap_or(0)
    }
}
