//! What waits for an answer, by numbers that count up.

use std::collections::VecDeque;

/// Answers come in about the order in which they were asked for, so what is answered is mostly in front.
#[derive(Debug)]
pub(super) struct Unanswered<T> {
    /// The number of the first.
    first: u64,
    waiting: VecDeque<Option<T>>,
    count: usize,
}

impl<T> Default for Unanswered<T> {
    fn default() -> Self {
        Self { first: 1, waiting: VecDeque::new(), count: 0 }
    }
}

impl<T> Unanswered<T> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The number that the next one gets.
    pub(super) fn next_number(&self) -> u64 {
        self.first.saturating_add(u64::try_from(self.waiting.len()).unwrap_or(u64::MAX))
    }

    pub(super) fn put(&mut self, one: T) -> u64 {
        let number = self.next_number();
        self.waiting.push_back(Some(one));
        self.count = self.count.saturating_add(1);
        number
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let slot = self.place(number).and_then(|place| self.waiting.get(place));
        slot.is_some_and(Option::is_some)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let one = self.waiting.get_mut(place)?.take()?;
        self.count = self.count.saturating_sub(1);
        self.forget_front();
        Some(one)
    }

    /// Takes out those of which this is true, in order.
    pub(super) fn remove_if(&mut self, is_wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let is_wanted = |one: &mut T| is_wanted(one);
        let removed: Vec<T> =
            self.waiting.iter_mut().filter_map(|slot| slot.take_if(is_wanted)).collect();
        self.count = self.count.saturating_sub(removed.len());
        self.forget_front();
        removed
    }

    fn forget_front(&mut self) {
        while self.waiting.front().is_some_and(Option::is_none) {
            self.waiting.pop_front();
            self.first = self.first.saturating_add(1);
        }
    }

    /// Those with smaller numbers.
    pub(super) fn before(&mut self, number: u64) -> impl Iterator<Item = &mut T> {
        let count = self.place(number).unwrap_or(0);
        self.waiting.iter_mut().take(count).flatten()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().flatten()
    }

    /// Takes out all. The numbers go on.
    pub(super) fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.first = self.next_number();
        self.count = 0;
        std::mem::take(&mut self.waiting).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_of_which_no_number_is_used_twice(steps in prop::collection::vec(0..100_u64, 1..200)) {
            let (mut unanswered, mut expected) = (Unanswered::default(), BTreeMap::new());
            for step in steps {
                match step {
                    0..50 => {
                        let number = unanswered.put(step);
                        prop_assert!(expected.last_key_value().is_none_or(|(last, _)| *last < number));
                        prop_assert_eq!(expected.insert(number, step), None);
                    }
                    // About as many numbers as there are.
                    50..97 => {
                        let number = unanswered.next_number().saturating_sub(step % 20);
                        let before = expected.range(..number).map(|(_, one)| *one);
                        prop_assert!(unanswered.before(number).map(|one| *one).eq(before));
                        prop_assert_eq!(unanswered.contains(number), expected.contains_key(&number));
                        prop_assert_eq!(unanswered.remove(number), expected.remove(&number));
                    }
                    97..99 => {
                        let is_wanted = |one: &u64| one % 3 == step % 3;
                        let all = std::mem::take(&mut expected).into_iter();
                        let (wanted, rest) = all.partition::<BTreeMap<_, _>, _>(|(_, one)| is_wanted(one));
                        expected = rest;
                        let removed = unanswered.remove_if(is_wanted);
                        prop_assert_eq!(removed, wanted.into_values().collect::<Vec<_>>());
                    }
                    _ => {
                        let next = unanswered.next_number();
                        let taken: Vec<u64> = unanswered.take().collect();
                        prop_assert_eq!(taken, std::mem::take(&mut expected).into_values().collect::<Vec<_>>());
                        prop_assert_eq!(unanswered.next_number(), next);
                    }
                }
                prop_assert_eq!(unanswered.len(), expected.len());
                prop_assert!(unanswered.iter().eq(expected.values()));
            }
        }
    }
}
