//! What a node counts for one resource, and what each script does to it. Pure.
//!
//! The scripts of the servers have this meaning; the simulated master and the model run it.
//!
//! | key | ttl | is |
//! |---|---|---|
//! | lock | that of the lock | whose lock it is |
//! | fence | an idle ttl | the resource's counter; missing: as good as `max` |
//! | max | none | at least the largest number of any resource on this node |
//! | the floor, in the marker | none | what the node was admitted with: it grants only above it |
//!
//! Invariants:
//!
//! 1. `max` is at least `floor`, and never falls as long as the node forgets nothing.
//! 2. `max` is at least the end of the step in which a counter stands: it is written ahead, so that a
//!    grant within a step need not look at it. To those who come later that is the same as if another
//!    resource had been granted the numbers up to there.
//! 3. What fails leaves nothing behind. A release checks no number.

use crate::fencing_token::FencingToken;

/// The largest number: Lua calculates with doubles, which are exact up to here.
const LIMIT: u64 = FencingToken::MAX.get();
/// In steps of how many numbers the scripts write `max` ahead.
pub(crate) const STEP: u64 = 64;

/// The end of the step in which this number is.
pub(crate) fn ahead(number: u64, step: u64) -> u64 {
    number.next_multiple_of(step).min(LIMIT)
}

/// A number is at the limit, or beyond it; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtLimit;

/// The state of one resource on one node. `Owner` is what tells one attempt from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Counters<Owner> {
    pub(crate) lock: Option<Owner>,
    pub(crate) fence: Option<u64>,
    pub(crate) max: u64,
    pub(crate) floor: u64,
    /// [`STEP`], or a smaller one, with which faults show sooner. Not 0.
    pub(crate) step: u64,
}

impl<Owner: PartialEq> Counters<Owner> {
    /// The counter of the resource. One that is missing may have been anything up to `max`.
    pub(crate) fn counter(&self) -> u64 {
        self.fence.unwrap_or(self.max)
    }

    /// Whether the next grant is the next number and no more: `max` was written ahead of it, and the
    /// counter's ttl is not renewed.
    pub(crate) fn goes_on(&self) -> bool {
        let in_step = |fence: &u64| fence.checked_rem(self.step) != Some(0);
        self.fence.filter(in_step).is_some_and(|fence| (self.floor..LIMIT).contains(&fence))
    }

    /// Grants the lock with a number larger than all before. `None`: the lock is taken.
    pub(crate) fn acquire(&mut self, owner: Owner) -> Result<Option<FencingToken>, AtLimit> {
        if self.lock.is_some() {
            return Ok(None);
        }
        let last = self.counter().max(self.floor);
        if last >= LIMIT {
            return Err(AtLimit);
        }
        let number = last.saturating_add(1);
        if self.goes_on() {
            self.fence = Some(number);
        } else {
            self.set_fence(number);
        }
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
        self.max = self.max.max(ahead(number, self.step));
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
    /// what this one learned. To the end of its step, so that counters which are below it may go on.
    pub(crate) fn admit(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        self.max = ahead(self.max.max(self.floor), self.step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Node = Counters<char>;

    const T: fn(u64) -> FencingToken = FencingToken::new;

    /// One that writes `max` not ahead.
    fn node(lock: Option<char>, fence: Option<u64>, max: u64, floor: u64) -> Node {
        Node { lock, fence, max, floor, step: 1 }
    }

    #[test]
    fn a_grant_counts_above_the_counter_and_the_floor() {
        let mut fresh = node(None, None, 0, 0);
        assert_eq!(fresh.acquire('a'), Ok(Some(T(1))));
        assert_eq!(fresh, node(Some('a'), Some(1), 1, 0));
        let mut behind = node(None, Some(3), 9, 0);
        assert_eq!(behind.acquire('a'), Ok(Some(T(4))));
        assert_eq!(behind.max, 9);
        let mut below = node(None, Some(3), 9, 7);
        assert_eq!(below.acquire('a'), Ok(Some(T(8))));
    }

    #[test]
    fn a_missing_counter_is_as_good_as_the_max_in_every_step() {
        let missing = node(None, None, 9, 0);
        let mut after = missing;
        assert_eq!(after.acquire('a'), Ok(Some(T(10))));
        assert_eq!(after.max, 10);
        let mut after = Node { lock: Some('a'), ..missing };
        assert_eq!(after.raise(&'a', T(8)), Ok(false));
        assert_eq!(after.raise(&'a', T(9)), Ok(true));
        let mut after = missing;
        assert_eq!(after.refill('a', T(4)), Ok(true));
        assert_eq!(after.fence, Some(9));
    }

    #[test]
    fn a_lock_that_is_taken_is_left_alone() {
        let before = node(Some('a'), Some(3), 3, 0);
        let mut after = before;
        assert_eq!(after.acquire('b'), Ok(None));
        assert_eq!(after.acquire('a'), Ok(None));
        assert_eq!(after.refill('b', T(9)), Ok(false));
        assert_eq!(after.raise(&'b', T(9)), Ok(false));
        assert!(!after.release(&'b'));
        assert_eq!(after, before);
        assert!(after.release(&'a'));
        assert_eq!(after, Node { lock: None, ..before });
    }

    #[test]
    fn a_counter_is_raised_and_never_lowered() {
        let mut node = node(Some('a'), Some(3), 3, 0);
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
        let mut node = node(None, Some(2), 4, 0);
        node.admit(7);
        assert_eq!((node.floor, node.max), (7, 7));
        assert_eq!(node.acquire('a'), Ok(Some(T(8))));
        node.admit(5);
        assert_eq!((node.floor, node.max), (7, 8));
    }

    #[test]
    fn the_max_is_written_ahead_to_the_end_of_the_step() {
        let mut node = Node { step: 4, ..node(None, None, 0, 0) };
        let mut seen = Vec::new();
        for _ in 0..9 {
            node.acquire('a').unwrap();
            node.lock_vanishes();
            seen.push((node.counter(), node.max));
        }
        let first = [1, 2, 3, 4].map(|number| (number, 4));
        let second = [5, 6, 7, 8].map(|number| (number, 8));
        assert_eq!(seen, [&first[..], &second, &[(9, 12)]].concat());
        // A resource that is new on several nodes begins with the same number on all whose max is in
        // the same step, and where it is raised the steps become the same.
        let mut other = Node { fence: None, ..node };
        assert_eq!(other.acquire('b'), Ok(Some(T(13))));
        assert_eq!(other.max, 16);
        let mut late = Node { lock: Some('b'), fence: Some(5), max: 8, ..other };
        assert_eq!(late.raise(&'b', T(13)), Ok(true));
        assert_eq!(late.max, 16);
    }

    #[test]
    fn the_max_is_ahead_of_a_counter_also_when_it_stood_in_the_same_step_before() {
        let within = Node { step: 4, ..node(Some('a'), Some(5), 6, 0) };
        let mut raised = within;
        assert_eq!(raised.raise(&'a', T(6)), Ok(true));
        assert_eq!(raised.max, 8);
        let mut refilled = Node { lock: None, ..within };
        assert_eq!(refilled.refill('b', T(6)), Ok(true));
        assert_eq!(refilled.max, 8);
        let mut admitted = Node { lock: None, ..within };
        admitted.admit(0);
        assert_eq!((admitted.floor, admitted.max), (0, 8));
        admitted.admit(9);
        assert_eq!((admitted.floor, admitted.max), (9, 12));
    }

    #[test]
    fn a_counter_goes_on_from_the_floor_and_not_from_below() {
        let at = |fence, floor| Node { step: 4, ..node(None, Some(fence), 12, floor) };
        for (counter, floor, goes_on, number) in
            [(6, 5, true, 7), (6, 6, true, 7), (6, 7, false, 8), (7, 8, false, 9), (8, 8, false, 9)]
        {
            let mut node = at(counter, floor);
            assert_eq!(node.goes_on(), goes_on, "{counter} at {floor}");
            assert_eq!(node.acquire('a'), Ok(Some(T(number))), "{counter} at {floor}");
        }
        assert!(!Node { step: 4, ..node(None, None, 12, 0) }.goes_on());
        assert!(!Node { step: 4, ..node(None, Some(LIMIT), LIMIT, 0) }.goes_on());
    }

    #[test]
    fn at_the_limit_nothing_is_written_and_a_release_still_works() {
        let below = node(None, Some(LIMIT - 1), LIMIT - 1, 0);
        let mut full = below;
        assert_eq!(full.acquire('a'), Ok(Some(T(LIMIT))));
        assert!(full.release(&'a'));

        let is_full = |before: Node| {
            let mut after = before;
            assert_eq!(after.acquire('b'), Err(AtLimit));
            assert_eq!(after, before);
        };
        is_full(full);
        is_full(node(None, Some(1), 1, LIMIT));
        is_full(node(None, None, LIMIT, 0));
        is_full(node(None, Some(LIMIT), 1, 0));
        // What others have counted does not end a resource that is not as far.
        assert_eq!(node(None, Some(1), LIMIT, 0).acquire('b'), Ok(Some(T(2))));

        let mut held = Node { lock: Some('a'), ..below };
        assert_eq!(held.raise(&'a', T(LIMIT + 1)), Err(AtLimit));
        assert_eq!(held, Node { lock: Some('a'), ..below });
        assert_eq!(held.raise(&'a', T(LIMIT)), Ok(true));
        held.lock_vanishes();
        assert_eq!(held.refill('b', T(LIMIT + 1)), Err(AtLimit));
        assert_eq!(held.refill('b', T(LIMIT)), Ok(true));
        assert_eq!(ahead(LIMIT - 2, STEP), LIMIT);
        assert_eq!(ahead(LIMIT, STEP), LIMIT);
    }
}
