//! The seed of every bug that a schedule has found.

use crate::{plan::Plan, volume::check};

/// Seed, and what was wrong.
const FOUND: &[(u64, &str)] = &[
    (
        12_426,
        "a lock that was lost by nodes that forgot was given to the next before the end of the validity \
         that its holder had been told",
    ),
    (
        1_641_776,
        "a node that had answered looks and nothing else was as slow to be connected again as one that \
         had not answered at all, so that its key was not given back in time",
    ),
];

#[test]
fn what_was_mended_stays_mended() {
    for (seed, what) in FOUND {
        println!("{seed}: {what}");
        check(&Plan::of_seed(*seed));
    }
}
