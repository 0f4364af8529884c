//! What is to be sent next, and what of it goes together.
//!
//! A command of its own for each operation costs the client more than the operation costs the server. So
//! what is asked of a node at the same time goes as one. Nothing waits for that: what is alone when the lane
//! has nothing else to do goes alone.

use std::{collections::VecDeque, sync::Arc};

use crate::node::{Ballot, Operation, SendAs};

/// One operation that is to be sent.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) id: u64,
    pub(super) operation: Operation,
    pub(super) sent_as: SendAs,
}

impl Queued {
    /// Whether it may go with others, under the admission by which the node votes now.
    fn may_join(&self, ballot: &Arc<Ballot>) -> bool {
        self.operation.owner().is_some()
            && match &self.sent_as {
                SendAs::Digest => true,
                SendAs::Ballot(own) => Arc::ptr_eq(own, ballot),
                SendAs::Text => false,
            }
    }
}

/// What goes as one command.
#[derive(Debug)]
pub(super) enum Parcel<'a> {
    Alone(Queued),
    /// Several, under this admission.
    Together(Vec<Queued>, &'a Arc<Ballot>),
}

/// What is to be sent, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<Queued>);

impl Outbox {
    pub(super) fn put(&mut self, queued: Queued) {
        self.0.push_back(queued);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes what is to be sent next: one, or at most so many that go together.
    pub(super) fn take<'a>(
        &mut self,
        most: usize,
        ballot: Option<&'a Arc<Ballot>>,
    ) -> Option<Parcel<'a>> {
        let most = most.min(self.0.len());
        if let Some(ballot) = ballot.filter(|_| most > 1) {
            let together = self.0.iter().take(most).take_while(|queued| queued.may_join(ballot));
            let together = together.count();
            if together > 1 {
                return Some(Parcel::Together(self.0.drain(..together).collect(), ballot));
            }
        }
        self.0.pop_front().map(Parcel::Alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        node::{Called, FleetKeys},
        owner_id::OwnerId,
        resource::Key,
    };

    fn ballot() -> Arc<Ballot> {
        Arc::new(Ballot::new(FleetKeys::with_prefix(""), "m", "n", 0))
    }

    fn take_all(
        queued: Vec<(Operation, SendAs)>,
        most: usize,
        ballot: Option<&Arc<Ballot>>,
    ) -> Vec<Vec<u64>> {
        let mut outbox = Outbox::default();
        for (id, (operation, sent_as)) in (0..).zip(queued) {
            outbox.put(Queued { id, operation, sent_as });
        }
        std::iter::from_fn(|| {
            let parcel = match outbox.take(most, ballot)? {
                Parcel::Alone(queued) => vec![queued],
                Parcel::Together(parcel, _) => parcel,
            };
            Some(parcel.iter().map(|queued| queued.id).collect())
        })
        .collect()
    }

    fn acquire(ballot: &Arc<Ballot>) -> (Operation, SendAs) {
        let (key, owner) = (Key::new("k"), OwnerId::random());
        (Operation::Acquire { key, owner, ttl_ms: 1 }, SendAs::Ballot(Arc::clone(ballot)))
    }

    fn release(sent_as: SendAs) -> (Operation, SendAs) {
        let (key, owner) = (Key::new("k"), OwnerId::random());
        (Operation::Release { key, owner, calls: Called::Next }, sent_as)
    }

    #[test]
    fn what_is_asked_at_the_same_time_goes_together_in_order() {
        let ballot = ballot();
        let all = || vec![acquire(&ballot), release(SendAs::Digest), acquire(&ballot)];
        assert_eq!(take_all(all(), 8, Some(&ballot)), [vec![0, 1, 2]]);
        assert_eq!(take_all(all(), 2, Some(&ballot)), [vec![0, 1], vec![2]]);
        assert_eq!(take_all(all(), 1, Some(&ballot)), [[0], [1], [2]]);
    }

    #[test]
    fn without_the_admission_by_which_it_was_asked_each_goes_alone() {
        let (ballot, other) = (ballot(), ballot());
        let all = || vec![release(SendAs::Digest), acquire(&other), release(SendAs::Digest)];
        assert_eq!(take_all(all(), 8, Some(&ballot)), [[0], [1], [2]]);
        assert_eq!(take_all(all(), 8, None), [[0], [1], [2]]);
    }

    #[test]
    fn what_is_no_operation_on_an_owners_key_or_is_sent_as_text_goes_alone() {
        let ballot = ballot();
        let ping = (Operation::Ping { nonce: 7 }, SendAs::Digest);
        let all = vec![
            acquire(&ballot),
            release(SendAs::Digest),
            ping,
            release(SendAs::Digest),
            release(SendAs::Text),
            release(SendAs::Digest),
            release(SendAs::Digest),
        ];
        let parcels: [&[u64]; 5] = [&[0, 1], &[2], &[3], &[4], &[5, 6]];
        assert_eq!(take_all(all, 8, Some(&ballot)), parcels);
    }
}
