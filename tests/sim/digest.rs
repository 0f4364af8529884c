//! What the first schedules did, in one line: for comparing one build with another.

use crate::{plan::Plan, run::run};

const SEEDS: u64 = 20;

/// FNV-1a over all lines of the traces.
fn digest() -> u64 {
    let traces = (0..SEEDS).map(|seed| run(&Plan::of_seed(seed), true).trace);
    traces.fold(0xcbf2_9ce4_8422_2325, |digest, trace| {
        trace.bytes().fold(digest, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    })
}

// A seed that fails in a release build has to be replayable in a debug build. `.ci/run` compares the
// line that this prints in either.
#[test]
fn the_same_seeds_give_the_same_digest() {
    let digest = (digest(), digest());
    assert_eq!(digest.0, digest.1);
    // On a line of its own, whatever the test runner has printed before.
    println!("\ndigest of seeds 0..{SEEDS}: {:016x}", digest.0);
}
