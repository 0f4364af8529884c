//! Fencing tokens on independent masters: what the client decides. Pure.
//!
//! Each node counts for itself ([`counters`]). Once a quorum granted, the attempt takes the largest
//! of their numbers as its token and asks the nodes that stand below to raise their counters to it.
//! The lock is held with that token when a quorum *vouches* for it. A node vouches for the number
//! that it granted, and after a raise for the number that it raised to.
//!
//! Invariants:
//!
//! 1. When an attempt holds a lock with a token, a quorum had counters of at least that token while
//!    the lock on them was this attempt's.
//! 2. A node grants nothing that is not larger than all that it ever granted or was raised to. So
//!    every later attempt meets a node of that quorum, and its largest number is larger.
//! 3. A node that may have forgotten votes only above what a blocking set of others remembers.
//!
//! No clock is used but for 3. `docs/fencing-model.md` has the argument and the search through the
//! model, which calls the functions of this module.

#[cfg(any(test, feature = "sim"))]
pub(crate) mod counters;
#[cfg(test)]
mod model;

use crate::{
    fencing_token::FencingToken,
    majority::{blocking, quorum},
};

/// The token of an attempt: the largest number among the grants at hand, once they are a quorum.
///
/// `grants` has an entry for each configured node: what it granted, if its grant is at hand.
pub(crate) fn token(grants: &[Option<FencingToken>]) -> Option<FencingToken> {
    let at_hand = grants.iter().flatten();
    if at_hand.clone().count() < quorum(grants.len()) {
        return None;
    }
    at_hand.max().copied()
}

/// The places of the nodes that granted a smaller number: they have to be asked to raise it.
///
/// A node that has not granted is not asked: its lock is not known to be ours. One that granted a
/// larger number, because its grant came after the token was taken, cannot vouch for the token.
pub(crate) fn to_raise(vouched: &[Option<FencingToken>], token: FencingToken) -> Vec<usize> {
    let below = |vouched: &Option<FencingToken>| vouched.is_some_and(|number| number < token);
    vouched.iter().enumerate().filter(|(_, of)| below(of)).map(|(place, _)| place).collect()
}

/// Whether a quorum vouches for the token.
///
/// `vouched` has an entry for each configured node: what it granted, or the token once it said that
/// it raised its counter to it.
pub(crate) fn is_confirmed(vouched: &[Option<FencingToken>], token: FencingToken) -> bool {
    let confirmed = vouched.iter().filter(|number| **number == Some(token)).count();
    confirmed >= quorum(vouched.len())
}

/// The floor of a node that is admitted again and may have forgotten: it grants only above it.
///
/// `own` is the largest number that the node itself still knows of. `others` has an entry for each
/// other configured node: its largest number ([`counters::Counters::max`]), if it is admitted and
/// was read *after* the wait. `None`: too few of them to know.
///
/// A token that is held was confirmed by a quorum. To be sure to meet one of these nodes, without
/// counting on the one that forgot, it takes as many others as are a blocking set of *all* nodes:
/// of 3 both others, of 5 three of the four. One node alone has no others: all that there is to
/// know is on its disk.
pub(crate) fn floor(own: u64, others: &[Option<u64>]) -> Option<u64> {
    let read = others.iter().flatten();
    let enough =
        others.is_empty() || read.clone().count() >= blocking(others.len().saturating_add(1));
    enough.then(|| read.copied().fold(own, u64::max))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(numbers: &[u64]) -> Vec<Option<FencingToken>> {
        // 0 stands for a node of which nothing is at hand.
        numbers.iter().map(|n| (*n > 0).then_some(FencingToken::new(*n))).collect()
    }

    #[track_caller]
    fn check_token(grants: &[u64], expected: Option<u64>) {
        assert_eq!(token(&numbers(grants)), expected.map(FencingToken::new), "{grants:?}");
    }

    #[test]
    fn the_token_is_the_largest_number_of_a_quorum() {
        check_token(&[7, 0, 0], None);
        check_token(&[7, 7, 0], Some(7));
        check_token(&[0, 3, 9], Some(9));
        check_token(&[9, 3, 3], Some(9));
        check_token(&[1, 1, 0, 0], None);
        check_token(&[1, 2, 1, 0], Some(2));
        check_token(&[4], Some(4));
        check_token(&[0], None);
    }

    #[test]
    fn nodes_that_granted_less_are_asked_to_raise_and_no_others() {
        let asked = |vouched: &[u64], token| to_raise(&numbers(vouched), FencingToken::new(token));
        assert_eq!(asked(&[7, 7, 7], 7), [0_usize; 0]);
        assert_eq!(asked(&[7, 0, 6], 7), [2]);
        assert_eq!(asked(&[1, 8, 6], 7), [0, 2]);
    }

    #[test]
    fn a_token_is_confirmed_by_a_quorum_that_vouches_for_exactly_it() {
        let confirmed =
            |vouched: &[u64], token| is_confirmed(&numbers(vouched), FencingToken::new(token));
        assert!(confirmed(&[7, 7, 0], 7));
        assert!(!confirmed(&[7, 6, 0], 7));
        assert!(!confirmed(&[7, 8, 8], 7));
        assert!(!confirmed(&[7, 7, 0, 0], 7));
        assert!(confirmed(&[1], 1));
    }

    #[test]
    fn a_floor_needs_a_strict_majority_of_the_other_nodes() {
        assert_eq!(floor(0, &[Some(5), Some(3)]), Some(5));
        assert_eq!(floor(9, &[Some(5), Some(3)]), Some(9));
        assert_eq!(floor(9, &[Some(5), None]), None);
        assert_eq!(floor(0, &[Some(1), Some(2), Some(3), None]), Some(3));
        assert_eq!(floor(0, &[Some(1), Some(2), None, None]), None);
        assert_eq!(floor(0, &[Some(4), Some(2), None]), Some(4));
        assert_eq!(floor(0, &[Some(4), None, None]), None);
        assert_eq!(floor(0, &[Some(4)]), Some(4));
        assert_eq!(floor(0, &[None]), None);
        assert_eq!(floor(6, &[]), Some(6));
    }

    fn any_nodes() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(0_u64..6, 1..=9)
    }

    fn any_quorum_and_set() -> impl Strategy<Value = (Vec<usize>, Vec<bool>)> {
        (1_usize..=9).prop_flat_map(|nodes| {
            let places: Vec<usize> = (0..nodes).collect();
            let had = proptest::sample::subsequence(places, quorum(nodes));
            (had, proptest::collection::vec(any::<bool>(), nodes))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        // What follows from the three functions, and what the rest rests on.
        #[test]
        fn whoever_raises_as_asked_makes_a_token_that_every_quorum_meets(grants in any_nodes()) {
            let mut vouched = numbers(&grants);
            if let Some(token) = token(&vouched) {
                for place in to_raise(&vouched, token) {
                    prop_assert!(vouched[place].is_some());
                    vouched[place] = Some(token);
                }
                prop_assert!(is_confirmed(&vouched, token));
                prop_assert_eq!(to_raise(&vouched, token), Vec::<usize>::new());
            }
        }

        // A quorum had `token`. The first node forgot, and others are read.
        #[test]
        fn a_floor_is_at_least_every_confirmed_token((had, read) in any_quorum_and_set()) {
            let max = |n: &usize| if had.contains(n) { 5 } else { 0 };
            let others: Vec<_> = (1..read.len()).map(|n| read[n].then(|| max(&n))).collect();
            prop_assert!(floor(0, &others).is_none_or(|floor| floor == 5 || read.len() == 1));
        }
    }
}
