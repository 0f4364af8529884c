//! The seed of every bug that a schedule has found.

use crate::{plan::Plan, volume::check};

/// Seed, and what was wrong.
const FOUND: &[(u64, &str)] = &[];

#[test]
fn what_was_mended_stays_mended() {
    for (seed, what) in FOUND {
        println!("{seed}: {what}");
        check(&Plan::of_seed(*seed));
    }
}
