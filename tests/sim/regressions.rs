//! The seed of every bug that a schedule has found.

use crate::{plan::Plan, volume::check};

/// Seed, and what was wrong.
const FOUND: &[(u64, &str)] = &[(
    12_426,
    "a lock that was lost by nodes that forgot was given to the next before the end of the validity that \
     its holder had been told",
)];

#[test]
fn what_was_mended_stays_mended() {
    for (seed, what) in FOUND {
        println!("{seed}: {what}");
        check(&Plan::of_seed(*seed));
    }
}
