//! What the judge finds and what it lets pass, before it is believed. Takes no time.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    assumptions::Persistence,
    client::Seen,
    event::Event,
    fault::{Action, Done, Target},
    judge::{Verdict, judge},
    plan::{Terms, rounds},
};

/// Panics if the judge is blind, or the plan is not what it should be.
pub(crate) fn all() {
    two_holders_are_found();
    a_clock_that_jumped_excuses_two_holders_until_the_next_renewal();
    what_a_master_forgot_excuses_nobody();
    whoever_has_its_release_confirmed_was_alone();
    a_death_ends_a_hold();
    a_pause_excuses_a_slow_call();
    a_wait_while_all_is_well_is_found();
    tokens_out_of_order_are_found();
    a_plan_follows_from_its_seed_and_has_all_kinds();
}

/// What a client wrote, in milliseconds: `at what`, by one task.
fn seen(client: usize, lines: &[&str]) -> Seen {
    let event = |line: &&str| -> Event {
        let ms = |word: &str| {
            word.strip_suffix("ms").map_or(word.to_owned(), |ms| format!("{ms}000000"))
        };
        let mut words = line.split(' ').map(ms);
        let at = words.next().unwrap();
        let rest: Vec<String> = words.collect();
        format!("{at} 0 {}", rest.join(" ")).parse().unwrap()
    };
    Seen { client, events: lines.iter().map(event).collect(), death: None }
}

fn done(target: Target, action: Action, at_ms: u64) -> Done {
    let at = Duration::from_millis(at_ms);
    Done { kind: None, target, action, from: at, until: at }
}

fn judged(seen: &[Seen], done: &[Done]) -> Verdict {
    judge(seen, done, Persistence::Durable, Duration::from_secs(3_600))
}

#[track_caller]
fn check(seen: &[Seen], done: &[Done], violations: usize, excused: usize) {
    let verdict = judged(seen, done);
    let found = (verdict.violations.len(), verdict.excused.len());
    assert_eq!(found, (violations, excused), "{verdict:#?}");
}

const FIRST: [&str; 4] =
    ["90ms try 0 false", "100ms granted 0 90ms 590ms -", "300ms valid 750ms", "500ms releasing"];
const SECOND: [&str; 3] = ["340ms try 0 false", "350ms granted 0 340ms 840ms -", "400ms releasing"];

fn two_holders_are_found() {
    check(&[seen(0, &FIRST), seen(1, &SECOND)], &[], 1, 0);
    let other = SECOND.map(|line| line.replace(" 0 ", " 1 "));
    check(&[seen(0, &FIRST), seen(1, &other.each_ref().map(String::as_str))], &[], 0, 0);
    let later = ["500ms try 0 false", "501ms granted 0 500ms 900ms -", "600ms releasing"];
    check(&[seen(0, &FIRST), seen(1, &later)], &[], 0, 0);
}

/// The first one was told at 300 ms of a round that began at 250 ms.
fn a_clock_that_jumped_excuses_two_holders_until_the_next_renewal() {
    let both = [seen(0, &FIRST), seen(1, &SECOND)];
    let jump = |at, ms| [done(Target::Clock(2), Action::Jump(ms), at)];
    check(&both, &jump(260, 1_000), 0, 1);
    check(&both, &jump(345, 1_000), 0, 1);
    check(&both, &jump(240, 1_000), 1, 0);
    check(&both, &jump(360, 1_000), 1, 0);
    check(&both, &jump(260, -1_000), 1, 0);
}

fn what_a_master_forgot_excuses_nobody() {
    let both = [seen(0, &FIRST), seen(1, &SECOND)];
    for action in [Action::Wipe, Action::Flush, Action::Kill] {
        check(&both, &[done(Target::Master(2), action, 260)], 1, 0);
    }
}

fn whoever_has_its_release_confirmed_was_alone() {
    let first: Vec<&str> = FIRST.into_iter().chain(["510ms confirmed"]).collect();
    let jumped = [done(Target::Clock(2), Action::Jump(1_000), 260)];
    check(&[seen(0, &first), seen(1, &SECOND)], &jumped, 0, 2);
    // Two violations: two holders, and a confirmation that is not true.
    check(&[seen(0, &first), seen(1, &SECOND)], &[], 2, 0);
    // Its attempt began before: it was there first.
    let earlier = ["80ms try 0 false", "350ms granted 0 80ms 840ms -", "400ms releasing"];
    check(&[seen(0, &first), seen(1, &earlier)], &jumped, 0, 1);
}

fn a_death_ends_a_hold() {
    let mut first = seen(0, &FIRST[..3]);
    check(&[seen(0, &FIRST[..3]), seen(1, &SECOND)], &[], 1, 0);
    first.death = Some(Duration::from_millis(340));
    check(&[first, seen(1, &SECOND)], &[], 0, 0);
}

fn a_pause_excuses_a_slow_call() {
    let slow = [seen(101, &["900ms slow 100ms 500ms"])];
    check(&slow, &[], 1, 0);
    let pause = |slot, until| {
        let client = Target::Client(slot);
        [done(client, Action::PauseClient, 50), done(client, Action::ResumeClient, until)]
    };
    check(&slow, &pause(1, 500), 0, 0);
    check(&slow, &pause(1, 300), 1, 0);
    check(&slow, &pause(2, 500), 1, 0);
}

fn a_wait_while_all_is_well_is_found() {
    let lines = ["1000ms try 0 false", "20000ms refused true"];
    let judged_at =
        |well| judge(&[seen(0, &lines)], &[], Persistence::Durable, well).violations.len();
    assert_eq!(judged_at(Duration::from_secs(2)), 1);
    assert_eq!(judged_at(Duration::from_secs(10)), 0);
}

fn tokens_out_of_order_are_found() {
    let holds = |first, second| {
        let hold = |at: u64, token: u64| {
            let (told, end) = (at + 1, at + 2);
            let granted = format!("{told}ms granted 0 {at}ms {end}ms {token}");
            seen(0, &[&format!("{at}ms try 0 false"), &granted, &format!("{end}ms releasing")])
        };
        [hold(10, first), hold(20, second)]
    };
    check(&holds(1, 2), &[], 0, 0);
    check(&holds(2, 1), &[], 1, 0);
    check(&holds(2, 2), &[], 1, 0);
    // A majority has to have forgotten.
    let wiped =
        |n: usize| (0..n).map(|m| done(Target::Master(m), Action::Wipe, 5)).collect::<Vec<_>>();
    check(&holds(2, 1), &wiped(2), 1, 0);
    check(&holds(2, 1), &wiped(3), 0, 1);
}

fn a_plan_follows_from_its_seed_and_has_all_kinds() {
    let terms = Terms { has_clocks: true };
    for seed in 0..20 {
        let plan = rounds(seed, 120, terms);
        assert_eq!(format!("{plan:?}"), format!("{:?}", rounds(seed, 120, terms)));
        let steps = plan.iter().flat_map(|round| round.tracks.values()).flatten();
        let kinds: BTreeSet<_> = steps.filter_map(|step| step.kind).collect();
        assert_eq!(kinds.len(), terms.kinds().len(), "seed {seed} has only {kinds:?}");
    }
}
