//! Many schedules, and what to do about one that fails.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use proptest::{prelude::*, sample::subsequence};

use crate::{
    plan::{Plan, TOGETHER},
    run::{Report, run},
};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Fails with the trace of the smallest schedule that still shows the violation.
#[track_caller]
pub(crate) fn check(plan: &Plan) -> Report {
    let report = run(plan, false);
    if !report.violations.is_empty() {
        let plan = smallest(plan);
        let report = run(&plan, true);
        panic!(
            "seed {} violates {:#?}\nin {plan:#?}\n{}\nreplay with SEED={}",
            plan.seed, report.violations, report.trace, plan.seed
        );
    }
    report
}

/// Leaves out faults and operations, one after another, as long as the schedule still fails.
fn smallest(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    loop {
        let (faults, operations) = (plan.faults.len(), plan.operations());
        let all = |n: usize| (0..n).collect::<Vec<_>>();
        let without = |n: usize, place: usize| (0..n).filter(|i| *i != place).collect::<Vec<_>>();
        let smaller = (0..faults)
            .map(|place| plan.only(&without(faults, place), &all(operations)))
            .chain(
                (0..operations).map(|place| plan.only(&all(faults), &without(operations, place))),
            )
            .find(|smaller| !run(smaller, false).violations.is_empty());
        match smaller {
            Some(smaller) => plan = smaller,
            None => return plan,
        }
    }
}

/// Checks so many schedules, from this seed on.
fn check_all(from: u64, runs: u64) {
    let started = Instant::now();
    let next = AtomicU64::new(from);
    let [acquired, tokens, expected, operations] = [const { AtomicU64::new(0) }; 4];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + runs {
                        break;
                    }
                    let report = check(&Plan::of_seed(seed));
                    acquired.fetch_add(report.acquired as u64, Ordering::Relaxed);
                    tokens.fetch_add(report.tokens as u64, Ordering::Relaxed);
                    expected.fetch_add(report.expected.len() as u64, Ordering::Relaxed);
                    operations.fetch_add(report.operations, Ordering::Relaxed);
                }
            });
        }
    });
    let took = started.elapsed();
    let (acquired, expected) = (acquired.into_inner(), expected.into_inner());
    println!(
        "{runs} schedules from seed {from} in {took:.1?} ({:.0} a second): {acquired} locks, {} \
         of them with tokens, {} operations on masters, {expected} violations that broken assumptions explain",
        runs as f64 / took.as_secs_f64(),
        tokens.into_inner(),
        operations.into_inner(),
    );
    // Otherwise the schedules would not be about locks, or the checker would not see anything.
    assert!(acquired > runs, "too few locks: {acquired}");
    assert!(runs < 1_000 || expected > 0, "broken assumptions showed no violation");
}

fn from_and_runs() -> (u64, u64) {
    let runs = if cfg!(debug_assertions) { 500 } else { 20_000 };
    (number("FROM").unwrap_or(0), number("RUNS").unwrap_or(runs))
}

// 20,000 of them in CI; `RUNS=` for more.
#[test]
fn no_schedule_breaks_a_promise() {
    let (from, runs) = from_and_runs();
    check_all(from, runs);
}

// A quarter as many.
#[test]
fn no_schedule_breaks_a_promise_where_operations_go_together() {
    let (from, runs) = from_and_runs();
    check_all(TOGETHER + from, runs / 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 100 } else { 2_000 }))]

    // Parts of schedules: proptest shrinks a failure to the faults and operations that it needs.
    #[test]
    fn no_part_of_a_schedule_breaks_a_promise(
        (seed, faults, operations) in any::<u64>().prop_flat_map(|seed| {
            let plan = Plan::of_seed(seed);
            let all = |n: usize| (0..n).collect::<Vec<_>>();
            (
                Just(seed),
                subsequence(all(plan.faults.len()), 0..=plan.faults.len()),
                subsequence(all(plan.operations()), 0..=plan.operations()),
            )
        }),
    ) {
        let plan = Plan::of_seed(seed).only(&faults, &operations);
        let report = run(&plan, false);
        prop_assert!(report.violations.is_empty(), "{:?} in {plan:?}", report.violations);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..50 {
        let plan = Plan::of_seed(seed);
        let (first, second) = (run(&plan, true), run(&plan, true));
        assert!(first.trace.lines().count() > 50, "nothing happened in seed {seed}");
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
}

/// Replays `SEED` with its trace; without it, seed 0.
#[test]
fn replay() {
    let seed = number("SEED").unwrap_or(0);
    let plan = Plan::of_seed(seed);
    println!("{plan:#?}");
    let report = run(&plan, true);
    println!("{}", report.trace);
    println!("expected, since {:?}: {:#?}", report.broken, report.expected);
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
}
