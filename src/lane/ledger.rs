//! The releases that a node has not answered. Pure book-keeping; the worker does what it says.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::ReplyTo;
use crate::{
    node::{Called, NodeFailure, Outcome},
    owner_id::OwnerId,
    resource::Key,
};

/// One release, as it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) key: Key,
    pub(crate) owner: OwnerId,
    pub(crate) calls: Called,
    /// What the owner takes for a strangely long time.
    pub(crate) timeout: Duration,
}

/// One release that is owed.
#[derive(Debug)]
struct Owed {
    release: Release,
    reply_to: Option<ReplyTo>,
    on_the_wire: bool,
    /// Owed since before the node came back: votes wait for it.
    missed: bool,
}

/// Every release that is owed to one node.
///
/// An entry leaves when the node answered it and not before: not at the ttl's end, because an acquire
/// that sat in a frozen server's buffer runs later and its ttl counts from then.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: BTreeMap<OwnerId, Owed>,
    to_send: VecDeque<OwnerId>,
    missed: usize,
    count: Arc<AtomicUsize>,
}

impl Ledger {
    pub(super) fn new(count: Arc<AtomicUsize>) -> Self {
        Self { entries: BTreeMap::new(), to_send: VecDeque::new(), missed: 0, count }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the node answered everything that it had missed.
    pub(super) fn caught_up(&self) -> bool {
        self.missed == 0
    }

    /// A new release is owed. One per owner: a second one takes the first one's place.
    pub(super) fn owe(&mut self, release: Release, reply_to: Option<ReplyTo>) {
        let owner = release.owner;
        if let Some(entry) = self.entries.get_mut(&owner) {
            if reply_to.is_some() {
                entry.reply_to = reply_to;
            }
            return;
        }
        let owed = Owed { release, reply_to, on_the_wire: false, missed: false };
        self.entries.insert(owner, owed);
        self.to_send.push_back(owner);
        self.count.store(self.entries.len(), Ordering::Relaxed);
    }

    /// The next release to send, which then is on the wire.
    pub(super) fn next(&mut self) -> Option<OwnerId> {
        while let Some(owner) = self.to_send.pop_front() {
            if let Some(entry) = self.entries.get_mut(&owner) {
                entry.on_the_wire = true;
                return Some(owner);
            }
        }
        None
    }

    /// What is owed for an owner.
    pub(super) fn get(&self, owner: OwnerId) -> Option<&Release> {
        self.entries.get(&owner).map(|entry| &entry.release)
    }

    /// The node answered: nothing is owed to it any more for this owner.
    pub(super) fn settle(&mut self, owner: OwnerId, outcome: Outcome) {
        if let Some(entry) = self.entries.remove(&owner) {
            self.missed = self.missed.saturating_sub(usize::from(entry.missed));
            self.count.store(self.entries.len(), Ordering::Relaxed);
            if let Some(reply_to) = entry.reply_to {
                reply_to.send(outcome);
            }
        }
    }

    /// The node did not answer, or cannot be asked now. Whoever waits is told; it stays owed.
    pub(super) fn unanswered(&mut self, owner: OwnerId, failure: NodeFailure) {
        if let Some(entry) = self.entries.get_mut(&owner) {
            entry.on_the_wire = false;
            if let Some(reply_to) = entry.reply_to.take() {
                reply_to.send(Err(failure));
            }
        }
    }

    /// The node answered, but will not now: votes wait until it does.
    pub(super) fn rejected(&mut self, owner: OwnerId, failure: NodeFailure) {
        self.unanswered(owner, failure);
        if let Some(entry) = self.entries.get_mut(&owner) {
            self.missed = self.missed.saturating_add(usize::from(!entry.missed));
            entry.missed = true;
        }
    }

    /// Everything that is not on the wire is to be sent.
    pub(super) fn send_again(&mut self) {
        self.to_send = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.on_the_wire)
            .map(|(owner, _)| *owner)
            .collect();
    }

    /// The node is back: everything owed is to be sent and answered before it may vote.
    pub(super) fn node_is_back(&mut self) {
        for entry in self.entries.values_mut() {
            entry.missed = true;
        }
        self.missed = self.entries.len();
        self.send_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(owner: OwnerId) -> Release {
        Release { key: Key::new("k"), owner, calls: Called::Next, timeout: Duration::ZERO }
    }
    use crate::node::Answer;

    fn ledger(owners: &[OwnerId]) -> Ledger {
        let mut ledger = Ledger::new(Arc::default());
        for owner in owners {
            ledger.owe(release(*owner), None);
        }
        ledger
    }

    fn sent(ledger: &mut Ledger) -> Vec<OwnerId> {
        std::iter::from_fn(|| ledger.next()).collect()
    }

    #[test]
    fn releases_are_sent_once_and_in_order_while_the_node_answers() {
        let owners = [OwnerId::random(), OwnerId::random(), OwnerId::random()];
        let mut ledger = ledger(&owners);
        assert_eq!(sent(&mut ledger), owners);
        assert_eq!(sent(&mut ledger), []);
        assert!(ledger.caught_up());
    }

    #[test]
    fn an_entry_stays_until_the_node_answered_it() {
        let owner = OwnerId::random();
        let mut ledger = ledger(&[owner]);
        for _ in 0..3 {
            assert_eq!(sent(&mut ledger), [owner]);
            ledger.unanswered(owner, NodeFailure::Unresponsive);
            assert_eq!(ledger.len(), 1);
            ledger.node_is_back();
            assert!(!ledger.caught_up());
        }
        ledger.settle(owner, Ok(Answer::Missing));
        assert_eq!(ledger.len(), 0);
        assert!(ledger.caught_up());
    }

    #[test]
    fn a_node_has_caught_up_when_all_that_it_missed_is_answered() {
        let owners = [OwnerId::random(), OwnerId::random()];
        let mut ledger = ledger(&owners);
        ledger.node_is_back();
        ledger.owe(release(OwnerId::random()), None);
        ledger.settle(owners[0], Ok(Answer::Done));
        assert!(!ledger.caught_up());
        ledger.settle(owners[1], Ok(Answer::Missing));
        assert!(ledger.caught_up(), "what became owed later does not hold up votes");
    }

    #[test]
    fn a_node_that_rejects_a_release_has_not_caught_up() {
        let owner = OwnerId::random();
        let mut ledger = ledger(&[owner]);
        let busy = NodeFailure::Rejected { message: "BUSY".into() };
        for _ in 0..2 {
            ledger.rejected(owner, busy.clone());
            assert!(!ledger.caught_up());
        }
        ledger.settle(owner, Ok(Answer::Done));
        assert!(ledger.caught_up());
    }

    #[test]
    fn what_is_on_the_wire_is_not_sent_twice() {
        let owners = [OwnerId::random(), OwnerId::random()];
        let mut ledger = ledger(&owners);
        let first = ledger.next().unwrap();
        ledger.send_again();
        assert_eq!(
            sent(&mut ledger),
            owners.iter().copied().filter(|o| *o != first).collect::<Vec<_>>()
        );
    }
}
