//! The searches. Each broken variant is found, and the protocol as it is holds.
//!
//! A release build searches further: `.ci/run` does. `cargo test --release --lib fence::model --
//! --nocapture` prints how many states there were, and the counterexamples.

#![allow(clippy::print_stdout, reason = "the states are counted to be read")]

use stateright::{Checker, HasDiscoveries, Model};

use super::{
    AtLimit, Back, Counters, Crash, Disk, PRODUCTION, Protocol, Variant, steps::Search,
    words::story,
};
use crate::{fencing_token::FencingToken, majority::quorum};

/// Whether the build is fast enough for three attempts.
const FAR: bool = !cfg!(debug_assertions);

/// Searches until a property fails, or to the end. The story of the failure, if there is one.
fn search<const N: usize, const K: usize>(
    variant: Variant,
    counters: u64,
    alike: bool,
    is_to_hold: bool,
) -> Vec<String> {
    let search =
        Search::<N, K> { variant, counters, nodes_are_alike: alike, has_to_be_ahead: is_to_hold };
    let checker = search.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let failed =
        ["unique", "order", "ahead"].iter().find_map(|name| Some((name, checker.discovery(name)?)));
    let verdict = failed.as_ref().map_or("holds", |(name, _)| name);
    let states = checker.unique_state_count();
    println!("{verdict:8} N={N} K={K} 0..={counters} {states:9} states  {}", variant.name);
    let Some((_, path)) = failed else {
        assert!(checker.discovery("all acquire").is_some(), "{}: nobody acquires", variant.name);
        return Vec::new();
    };
    story(path)
}

#[track_caller]
fn holds<const N: usize, const K: usize>(variant: Variant, counters: u64) {
    let story = search::<N, K>(variant, counters, true, true);
    assert!(story.is_empty(), "{}:\n{}", variant.name, story.join("\n"));
}

#[track_caller]
fn breaks<const N: usize, const K: usize>(variant: Variant, counters: u64) {
    // With the nodes in their places the story is easier to follow, if there is time for it.
    let story = search::<N, K>(variant, counters, !FAR || K > 2, false);
    assert!(!story.is_empty(), "{}: not found", variant.name);
    println!("    {}", story.join("\n    "));
}

/// With as many attempts as there is time for.
#[track_caller]
fn holds_as_far_as_there_is_time(variant: Variant, counters: u64) {
    if FAR { holds::<3, 3>(variant, counters) } else { holds::<3, 2>(variant, counters) }
}

/// A raise that does not ask whether something larger was granted.
const RAISE_UNCHECKED: Protocol = Protocol {
    raise: |node, (owner, token)| {
        let is_ours = node.lock == Some(owner);
        if is_ours {
            node.fence = Some(node.counter().max(token.get()));
            node.max = node.max.max(token.get());
        }
        Ok(is_ours)
    },
    ..PRODUCTION
};

/// The step with a missing counter read as 0.
fn missing_is_0<A>(node: &mut super::Node, step: impl FnOnce(&mut super::Node) -> A) -> A {
    node.fence = node.fence.or(Some(0));
    step(node)
}

#[test]
fn tokens_hold_when_messages_and_locks_come_and_go_as_they_like() {
    holds_as_far_as_there_is_time(Variant::production("Hn"), 1);
}

#[test]
fn tokens_hold_on_two_on_four_and_on_five_nodes() {
    holds::<2, 3>(Variant::production("Hn"), 1);
    holds::<4, 2>(Variant::production("Hn"), 1);
    if FAR {
        holds::<5, 2>(Variant::production("Hn"), 1);
    }
}

#[test]
fn tokens_hold_when_an_acquire_is_sent_twice() {
    let variant = Variant { resent: true, ..Variant::production("Hd acquire sent twice") };
    holds::<3, 2>(variant, u64::from(FAR));
}

#[test]
fn with_a_checked_raise_any_number_at_hand_would_do_as_a_token() {
    let tokens = |grants: &[_]| any_number(grants);
    holds::<3, 2>(Variant::with("Ha any number as token", Protocol { tokens, ..PRODUCTION }), 1);
}

#[test]
fn tokens_hold_when_idle_counters_vanish_and_holders_refill() {
    let refills = Variant { refills: true, faults: 2, ..Variant::production("") };
    let vanish = Variant { name: "X3f vanishing counters", counters_vanish: true, ..refills };
    let others = Variant { name: "X3f and other resources", other_resources: true, ..vanish };
    holds::<3, 2>(vanish, u64::from(FAR));
    holds::<3, 2>(others, 0);
}

// Real steps are longer; one of two numbers has all that a step has: an end, and a number before it.
#[test]
fn tokens_hold_when_the_max_is_written_ahead() {
    let ahead = |variant| Variant { step: 2, ..variant };
    holds_as_far_as_there_is_time(ahead(Variant::production("Hn max written ahead")), 1);
    let vanish = Variant {
        refills: true,
        counters_vanish: true,
        faults: 2,
        ..ahead(Variant::production("X3f max written ahead"))
    };
    holds::<3, 2>(vanish, u64::from(FAR));
    let f8 = |disk| Variant::crash("F8 max written ahead", disk, Back::WaitsThenReads);
    holds::<3, 2>(ahead(f8(Disk::Empty)), 1);
    holds::<3, 2>(ahead(f8(Disk::Stale)), u64::from(FAR));
    if FAR {
        let both = Variant { counters_vanish: true, faults: 2, ..f8(Disk::Stale) };
        holds::<3, 2>(ahead(Variant { name: "F8, X3f max written ahead", ..both }), 0);
    }
}

#[test]
fn a_grant_that_passes_over_the_max_needs_it_to_be_ahead() {
    // The number and not the end of its step.
    fn acquire(node: &mut super::Node, owner: u8) -> Result<Option<FencingToken>, AtLimit> {
        let (goes_on, max) = (node.goes_on(), node.max);
        let granted = node.acquire(owner);
        if !goes_on {
            node.max = max.max(node.counter());
        }
        granted
    }
    let variant = Variant::with("S1 max not ahead", Protocol { acquire, ..PRODUCTION });
    breaks::<3, 3>(Variant { step: 2, counters_vanish: true, faults: 1, ..variant }, 0);
}

#[test]
fn tokens_hold_when_durable_nodes_crash() {
    let variant =
        Variant { faults: 2, ..Variant::crash("F5 durable crash", Disk::Durable, Back::AtOnce) };
    holds::<3, 2>(variant, 1);
}

#[test]
fn tokens_hold_when_nodes_forget_and_wait_and_then_read_the_others() {
    let f8 = |disk| Variant::crash("F8 waits, then reads", disk, Back::WaitsThenReads);
    holds::<3, 2>(f8(Disk::Stale), u64::from(FAR));
    holds::<2, 2>(f8(Disk::Empty), 1);
    if FAR {
        holds::<3, 3>(f8(Disk::Empty), 0);
        holds::<3, 2>(Variant { faults: 2, ..f8(Disk::EmptyOrStale) }, 0);
        holds::<4, 2>(Variant { faults: 2, ..f8(Disk::Empty) }, 0);
    }
}

fn any_number(grants: &[Option<FencingToken>]) -> Vec<FencingToken> {
    let enough = grants.iter().flatten().count() >= quorum(grants.len());
    grants.iter().flatten().copied().filter(|_| enough).collect()
}

#[test]
fn v0_no_raise() {
    let protocol = Protocol {
        to_raise: |_, _| Vec::new(),
        is_confirmed: |vouched, _| vouched.iter().flatten().count() >= quorum(vouched.len()),
        ..PRODUCTION
    };
    breaks::<3, 2>(Variant::with("V0 no raise", protocol), 1);
}

#[test]
fn v1m_a_token_that_is_not_the_largest() {
    let protocol = Protocol {
        tokens: any_number,
        to_raise: |vouched, token| {
            let other = |of: &Option<_>| of.is_some_and(|number| number != token);
            (0..vouched.len()).filter(|place| other(&vouched[*place])).collect()
        },
        ..RAISE_UNCHECKED
    };
    let variant = Variant::with("V1m any number as token, raise unchecked", protocol);
    breaks::<3, 2>(Variant { asks_first_quorum_only: true, ..variant }, 1);
}

#[test]
fn v1n_an_unchecked_raise_holds_for_the_largest_of_the_first_quorum() {
    let variant = Variant::with("V1n raise unchecked, first quorum only", RAISE_UNCHECKED);
    holds_as_far_as_there_is_time(Variant { asks_first_quorum_only: true, ..variant }, 1);
}

#[test]
fn v2_an_unchecked_raise_of_grants_that_came_late() {
    breaks::<3, 2>(Variant::with("V2 raise unchecked", RAISE_UNCHECKED), 1);
}

#[test]
fn v3_a_raise_for_whoever_asks() {
    let protocol = Protocol {
        raise: |node, (_, token)| {
            let is_larger = node.counter() <= token.get();
            if is_larger {
                node.fence = Some(token.get());
                node.max = node.max.max(token.get());
            }
            Ok(is_larger)
        },
        ..PRODUCTION
    };
    breaks::<3, 2>(Variant::with("V3 raise without ownership", protocol), 1);
}

#[test]
fn v1a_lock_and_counter_not_in_one_script() {
    breaks::<3, 2>(Variant { torn: true, ..Variant::production("V1a torn acquire") }, 1);
}

#[test]
fn v1d_an_acquire_sent_twice_and_an_unchecked_raise() {
    let variant = Variant::with("V1d acquire sent twice, raise unchecked", RAISE_UNCHECKED);
    breaks::<3, 2>(Variant { asks_first_quorum_only: true, resent: true, ..variant }, 1);
}

#[test]
fn f2_a_counter_that_vanishes_without_a_max() {
    let protocol =
        Protocol { acquire: |node, k| missing_is_0(node, |node| node.acquire(k)), ..PRODUCTION };
    let variant = Variant::with("F2 missing read as 0 in acquire", protocol);
    breaks::<3, 2>(Variant { counters_vanish: true, faults: 1, ..variant }, 1);
}

#[test]
fn x3_a_missing_counter_read_as_0_in_raise_or_refill() {
    let raise = |node: &mut _, (owner, token)| {
        missing_is_0(node, |node: &mut super::Node| node.raise(&owner, token))
    };
    let refill = |node: &mut _, (owner, token)| {
        missing_is_0(node, |node: &mut super::Node| node.refill(owner, token))
    };
    let vanishing = |name, protocol, refills| Variant {
        counters_vanish: true,
        refills,
        faults: 1,
        ..Variant::with(name, protocol)
    };
    let in_raise = Protocol { raise, ..PRODUCTION };
    breaks::<3, 2>(vanishing("X3r missing read as 0 in raise", in_raise, false), 1);
    let in_refill = Protocol { refill, ..PRODUCTION };
    if FAR {
        breaks::<3, 3>(vanishing("X4 missing read as 0 in refill", in_refill, true), 0);
    }
}

#[test]
fn f1_f3_a_node_that_forgets_and_votes_at_once() {
    breaks::<3, 2>(Variant::crash("F1 empty, votes at once", Disk::Empty, Back::AtOnce), 1);
    breaks::<3, 2>(Variant::crash("F3 stale, votes at once", Disk::Stale, Back::AtOnce), 1);
}

#[test]
fn f6_x2_a_node_that_forgets_and_only_waits() {
    breaks::<3, 2>(Variant::crash("F6 empty, waits", Disk::Empty, Back::Waits), 1);
    breaks::<3, 2>(Variant::crash("X2 stale, waits", Disk::Stale, Back::Waits), 1);
}

#[test]
fn f7_a_node_that_forgets_and_reads_without_waiting() {
    breaks::<3, 2>(Variant::crash("F7 empty, reads", Disk::Empty, Back::Reads), 1);
}

#[test]
fn x1_a_node_that_reads_before_it_waits() {
    let back = Back::ReadsThenWaits;
    breaks::<3, 2>(Variant::crash("X1 empty, reads, then waits", Disk::Empty, back), 1);
}

#[test]
fn f9_a_node_that_reads_too_few_others() {
    let one_is_enough = Protocol {
        floor: |own, others| others.iter().flatten().max().map(|max| own.max(*max)),
        ..PRODUCTION
    };
    let crash = Some(Crash { disk: Disk::Empty, back: Back::WaitsThenReads });
    let variant = Variant { crash, faults: 1, ..Variant::with("F9 reads too few", one_is_enough) };
    breaks::<3, 2>(variant, 1);
    // Of 4 nodes two quorums share two, so one that forgot does no harm yet.
    holds::<4, 2>(variant, 0);
    if FAR {
        breaks::<4, 2>(Variant { faults: 2, ..variant }, 0);
    }
}

#[test]
fn a_floor_that_is_not_passed_on() {
    let protocol =
        Protocol { admit: |node: &mut Counters<u8>, floor| node.floor = floor, ..PRODUCTION };
    let crash = Some(Crash { disk: Disk::Empty, back: Back::WaitsThenReads });
    let variant = Variant { crash, faults: 2, ..Variant::with("F10 floor not in max", protocol) };
    breaks::<3, 2>(variant, 1);
}
