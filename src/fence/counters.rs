//! What a node counts for one resource, and what each script does to it. Pure.
//!
//! The scripts of the servers have this meaning; the simulated master and the model run it.
//!
//! | key | ttl | is |
//! |---|---|---|
//! | lock | that of the lock | whose lock it is |
//! | fence | an idle ttl | the resource's counter; missing: as good as `max` |
//! | max | none | the largest number of any resource on this node |
//! | the floor, in the marker | none | what the node was admitted with: it grants only above it |
//!
//! Invariants:
//!
//! 1. `max` is at least `fence` and `floor`, and never falls as long as the node forgets nothing.
//! 2. All is checked first: a step that fails has written nothing. A release checks no number.

use crate::fencing_token::FencingToken;

/// The largest number: Lua calculates with doubles, which are exact up to here.
const LIMIT: u64 = FencingToken::MAX.get();

/// A number is at the limit, or beyond it; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtLimit;

/// The state of one resource on one node. `Owner` is what tells one attempt from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Counters<Owner> {
    pub(crate) lock: Option<Owner>,
    pub(crate) fence: Option<u64>,
    pub(crate) max: u64,
    pub(crate) floor: u64,
}

impl<Owner: PartialEq> Counters<Owner> {
    /// The counter of the resource. One that is missing may have been anything up to `max`.
    pub(crate) fn counter(&self) -> u64 {
        self.fence.unwrap_or(self.max)
    }

    /// Grants the lock with a number larger than all before. `None`: the lock is taken.
    pub(crate) fn acquire(&mut self, owner: Owner) -> Result<Option<FencingToken>, AtLimit> {
        let last = self.counter().max(self.floor);
        if last.max(self.max) >= LIMIT {
            return Err(AtLimit);
        }
        if self.lock.is_some() {
            return Ok(None);
        }
        let number = last.saturating_add(1);
        self.set_fence(number);
        self.lock = Some(owner);
        Ok(Some(FencingToken::new(number)))
    }

    /// Raises the counter to a token that another node granted. Whether the node vouches for it:
    /// the lock is still the owner's, and nothing larger was granted.
    pub(crate) fn raise(&mut self, owner: &Owner, token: FencingToken) -> Result<bool, AtLimit> {
        self.check(token)?;
        let is_ours = self.lock.as_ref() == Some(owner);
        if !is_ours || self.counter() > token.get() {
            return Ok(false);
        }
        self.set_fence(token.get());
        Ok(true)
    }

    /// Sets a held lock again on a node that lost it, with its token. Whether the lock was missing.
    pub(crate) fn refill(&mut self, owner: Owner, token: FencingToken) -> Result<bool, AtLimit> {
        self.check(token)?;
        if self.lock.is_some() {
            return Ok(false);
        }
        self.set_fence(self.counter().max(token.get()));
        self.lock = Some(owner);
        Ok(true)
    }

    fn set_fence(&mut self, number: u64) {
        self.fence = Some(number);
        self.max = self.max.max(number);
    }

    fn check(&self, token: FencingToken) -> Result<(), AtLimit> {
        let largest = self.counter().max(self.max).max(token.get());
        if largest > LIMIT { Err(AtLimit) } else { Ok(()) }
    }
}

/// The steps that the simulated master takes by itself, and the model by these.
#[cfg(test)]
impl<Owner: PartialEq> Counters<Owner> {
    /// Deletes the lock if it is the owner's, whatever the numbers are. Whether it was.
    pub(crate) fn release(&mut self, owner: &Owner) -> bool {
        let is_ours = self.lock.as_ref() == Some(owner);
        if is_ours {
            self.lock_vanishes();
        }
        is_ours
    }

    /// The lock's ttl ended, by whatever clock, or it was deleted.
    pub(crate) fn lock_vanishes(&mut self) {
        self.lock = None;
    }

    /// The counter's idle ttl ended, or it was evicted.
    pub(crate) fn counter_vanishes(&mut self) {
        self.fence = None;
    }

    /// The node votes again, above `floor`.
    ///
    /// `max` rises as well: another node that is admitted later reads it, and must learn from it
    /// what this one learned.
    pub(crate) fn admit(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        self.max = self.max.max(self.floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Node = Counters<char>;

    const T: fn(u64) -> FencingToken = FencingToken::new;

    #[test]
    fn a_grant_counts_above_the_counter_and_the_floor() {
        let mut node = Node::default();
        assert_eq!(node.acquire('a'), Ok(Some(T(1))));
        assert_eq!(node, Node { lock: Some('a'), fence: Some(1), max: 1, floor: 0 });
        let mut node = Node { lock: None, fence: Some(3), max: 9, floor: 0 };
        assert_eq!(node.acquire('a'), Ok(Some(T(4))));
        assert_eq!(node.max, 9);
        let mut node = Node { lock: None, fence: Some(3), max: 9, floor: 7 };
        assert_eq!(node.acquire('a'), Ok(Some(T(8))));
    }

    #[test]
    fn a_missing_counter_is_as_good_as_the_max_in_every_step() {
        let missing = Node { lock: None, fence: None, max: 9, floor: 0 };
        let mut node = missing;
        assert_eq!(node.acquire('a'), Ok(Some(T(10))));
        assert_eq!(node.max, 10);
        let mut node = Node { lock: Some('a'), ..missing };
        assert_eq!(node.raise(&'a', T(8)), Ok(false));
        assert_eq!(node.raise(&'a', T(9)), Ok(true));
        let mut node = missing;
        assert_eq!(node.refill('a', T(4)), Ok(true));
        assert_eq!(node.fence, Some(9));
    }

    #[test]
    fn a_lock_that_is_taken_is_left_alone() {
        let mut node = Node { lock: Some('a'), fence: Some(3), max: 3, floor: 0 };
        let before = node;
        assert_eq!(node.acquire('b'), Ok(None));
        assert_eq!(node.acquire('a'), Ok(None));
        assert_eq!(node.refill('b', T(9)), Ok(false));
        assert_eq!(node.raise(&'b', T(9)), Ok(false));
        assert!(!node.release(&'b'));
        assert_eq!(node, before);
        assert!(node.release(&'a'));
        assert_eq!(node, Node { lock: None, ..before });
    }

    #[test]
    fn a_counter_is_raised_and_never_lowered() {
        let mut node = Node { lock: Some('a'), fence: Some(3), max: 3, floor: 0 };
        assert_eq!(node.raise(&'a', T(2)), Ok(false));
        assert_eq!(node.raise(&'a', T(3)), Ok(true));
        assert_eq!(node.raise(&'a', T(5)), Ok(true));
        assert_eq!((node.fence, node.max), (Some(5), 5));
        node.lock_vanishes();
        assert_eq!(node.raise(&'a', T(6)), Ok(false));
        assert_eq!(node.refill('a', T(8)), Ok(true));
        assert_eq!((node.fence, node.max), (Some(8), 8));
    }

    #[test]
    fn what_a_node_learned_at_its_admission_is_passed_on() {
        let mut node = Node { lock: None, fence: Some(2), max: 4, floor: 0 };
        node.admit(7);
        assert_eq!((node.floor, node.max), (7, 7));
        assert_eq!(node.acquire('a'), Ok(Some(T(8))));
        node.admit(5);
        assert_eq!((node.floor, node.max), (7, 8));
    }

    #[test]
    fn at_the_limit_nothing_is_written_and_a_release_still_works() {
        let below = Node { lock: None, fence: Some(LIMIT - 1), max: LIMIT - 1, floor: 0 };
        let mut node = below;
        assert_eq!(node.acquire('a'), Ok(Some(T(LIMIT))));
        assert!(node.release(&'a'));

        let full = |node: Node| {
            let mut after = node;
            assert_eq!(after.acquire('b'), Err(AtLimit));
            assert_eq!(after, node);
        };
        full(node);
        full(Node { fence: Some(1), ..node });
        full(Node { lock: None, fence: Some(1), max: 1, floor: LIMIT });
        full(Node { lock: None, fence: None, max: LIMIT, floor: 0 });
        full(Node { lock: None, fence: Some(LIMIT), max: 1, floor: 0 });

        let mut node = Node { lock: Some('a'), ..below };
        assert_eq!(node.raise(&'a', T(LIMIT + 1)), Err(AtLimit));
        assert_eq!(node, Node { lock: Some('a'), ..below });
        assert_eq!(node.raise(&'a', T(LIMIT)), Ok(true));
        node.lock_vanishes();
        assert_eq!(node.refill('b', T(LIMIT + 1)), Err(AtLimit));
        assert_eq!(node.refill('b', T(LIMIT)), Ok(true));
    }
}
