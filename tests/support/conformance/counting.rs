//! Grants with a number, and what goes together in one command.

use std::sync::Arc;

use quorumlock::{
    FencingToken, Key, OwnerId,
    node::{
        Answer, Ballot, Fence, FleetKeys, Link, MarkState, Marker, Node, NodeFailure, Operation,
        Outcome, SendAs,
    },
};

use super::{
    KEY, LONG, LONGER, MARKER, SOON, World, acquire, ask, assert_lives_for, assert_not_admitted,
    assert_taken_for_at_most, connect, extend, marker, ms, ms_i64, release,
};
use crate::support::admit::{Admitted, within};

const FENCE: &str = "fence:a";
const MAX: &str = "test:max";

fn fence() -> Fence {
    Fence { key: Key::new(FENCE), idle_ms: ms(LONGER) }
}

fn acquire_fenced(owner: OwnerId) -> Operation {
    Operation::AcquireFenced { key: Key::new(KEY), fence: fence(), owner, ttl_ms: ms(LONG) }
}

fn raise(owner: OwnerId, token: u64) -> Operation {
    let (key, token) = (Key::new(KEY), FencingToken::new(token));
    Operation::Raise { key, fence: fence(), owner, token }
}

fn refill(owner: OwnerId, token: u64) -> Operation {
    let (key, token) = (Key::new(KEY), FencingToken::new(token));
    Operation::RefillFenced { key, fence: fence(), owner, ttl_ms: ms(LONG), token }
}

#[expect(clippy::unnecessary_wraps, reason = "to be compared with what a node said")]
fn counted(number: u64) -> Outcome {
    Ok(Answer::Counted(FencingToken::new(number)))
}

/// The counter of the resource, and the largest of the node.
fn numbers(world: &impl World) -> [Option<String>; 2] {
    [FENCE, MAX].map(|key| world.get(key))
}

#[track_caller]
fn assert_numbers(world: &impl World, expected: [Option<u64>; 2]) {
    assert_eq!(numbers(world), expected.map(|number| number.map(|n| n.to_string())));
}

pub async fn each_fenced_grant_has_a_larger_number(world: &impl World) {
    let link = connect(world).await;
    for number in 1..=3 {
        let owner = OwnerId::random();
        assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(number));
        assert_eq!(world.get(KEY), Some(owner.to_string()));
        assert_lives_for(world, LONG);
        assert_numbers(world, [Some(number), Some(64)]);
        let idle = world.pttl(FENCE);
        assert!(idle > ms_i64(LONG) && idle <= ms_i64(LONGER), "{idle}");
        assert_eq!(world.pttl(MAX), -1, "the largest number does not expire");
        assert_taken_for_at_most(&ask(&link, acquire_fenced(OwnerId::random())).await, LONG);
        assert_numbers(world, [Some(number), Some(64)]);
        assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
    }
}

pub async fn a_counter_that_went_goes_on_above_the_largest_number(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.set(MAX, "40", None);
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(41));
    world.delete(KEY);
    world.delete(FENCE);
    world.set(MAX, "70", None);
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(71));
    assert_numbers(world, [Some(71), Some(128)]);
}

pub async fn a_resource_s_own_counter_is_below_the_largest_of_all(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.set(MAX, "40", None);
    world.set(FENCE, "7", None);
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(8));
    assert_numbers(world, [Some(8), Some(40)]);
}

pub async fn the_largest_number_is_written_ahead_to_the_end_of_a_step(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.set(MAX, "64", None);
    world.set(FENCE, "62", Some(LONG));
    for (number, largest, renews_ttl) in [(63, 64, false), (64, 64, false), (65, 128, true)] {
        assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(number));
        assert_numbers(world, [Some(number), Some(largest)]);
        assert_eq!(world.pttl(FENCE) > ms_i64(LONG), renews_ttl, "{number}");
        world.delete(KEY);
    }
    // However far it stands in the step.
    world.set(FENCE, "69", None);
    world.set(MAX, "70", None);
    assert_eq!(ask(&link, refill(owner, 69)).await, Ok(Answer::Done));
    assert_numbers(world, [Some(69), Some(128)]);
    world.set(MAX, "70", None);
    assert_eq!(ask(&link, raise(owner, 70)).await, Ok(Answer::Done));
    assert_numbers(world, [Some(70), Some(128)]);
}

pub async fn a_counter_is_raised_for_the_owner_only_and_never_lowered(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, raise(owner, 5)).await, Ok(Answer::Missing), "nobody has the lock");
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(1));
    assert_eq!(ask(&link, raise(OwnerId::random(), 5)).await, Ok(Answer::Missing));
    assert_numbers(world, [Some(1), Some(64)]);
    assert_eq!(ask(&link, raise(owner, 105)).await, Ok(Answer::Done));
    assert_numbers(world, [Some(105), Some(128)]);
    assert_eq!(ask(&link, raise(owner, 105)).await, Ok(Answer::Done), "it stands there");
    assert_eq!(ask(&link, raise(owner, 104)).await, Ok(Answer::Missing));
    assert_numbers(world, [Some(105), Some(128)]);
    world.delete(FENCE);
    assert_eq!(ask(&link, raise(owner, 127)).await, Ok(Answer::Missing), "as good as the largest");
    assert_numbers(world, [None, Some(128)]);
}

pub async fn a_refill_brings_the_token_along_and_overwrites_nothing(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, refill(owner, 9)).await, Ok(Answer::Done));
    assert_eq!(world.get(KEY), Some(owner.to_string()));
    assert_numbers(world, [Some(9), Some(64)]);
    assert_taken_for_at_most(&ask(&link, refill(OwnerId::random(), 100)).await, LONG);
    assert_numbers(world, [Some(9), Some(64)]);
    world.delete(KEY);
    assert_eq!(ask(&link, refill(owner, 3)).await, Ok(Answer::Done));
    assert_numbers(world, [Some(9), Some(64)]);
}

pub async fn numbers_are_exact_up_to_the_limit_and_end_there(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    let limit = FencingToken::MAX.get();
    world.set(MAX, &limit.saturating_sub(1).to_string(), None);
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(limit));
    assert_eq!(ask(&link, raise(owner, limit)).await, Ok(Answer::Done));
    assert_numbers(world, [Some(limit), Some(limit)]);
    assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
    let refused = ask(&link, acquire_fenced(owner)).await;
    assert!(matches!(refused, Err(NodeFailure::Rejected { .. })), "{refused:?}");
    assert_eq!(world.get(KEY), None);
    assert_numbers(world, [Some(limit), Some(limit)]);
    world.delete(FENCE);
    let refused = ask(&link, acquire_fenced(owner)).await;
    assert!(matches!(refused, Err(NodeFailure::Rejected { .. })), "{refused:?}");
    assert_eq!(world.get(KEY), None);
    assert_numbers(world, [None, Some(limit)]);
    // One that is not as far goes on.
    world.set(FENCE, "7", None);
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(8));
}

pub async fn a_counter_that_is_no_number_grants_nothing(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    for at in [FENCE, MAX] {
        for garbage in ["", "x", "1x", "-1", "1.5", "9007199254740992", "inf", "nan"] {
            world.set(at, garbage, None);
            let refused = ask(&link, acquire_fenced(owner)).await;
            assert!(matches!(refused, Err(NodeFailure::Rejected { .. })), "{garbage}: {refused:?}");
            assert_eq!(world.get(KEY), None);
            let kept = [FENCE, MAX].map(|key| (key == at).then(|| garbage.to_owned()));
            assert_eq!(numbers(world), kept);
        }
        world.delete(at);
        world.set_list(at);
        let refused = ask(&link, acquire_fenced(owner)).await;
        assert!(matches!(refused, Err(NodeFailure::Rejected { .. })), "{refused:?}");
        assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Missing), "a release still works");
        world.delete(at);
    }
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(1));
}

pub async fn a_floor_comes_with_the_marker_and_is_learnt_by_others(world: &impl World) {
    let link = world.node().connect(&[]).await.expect("a connection");
    let at = FleetKeys::with_prefix("test:");
    let facts = link.look(&at, false, SOON).await.expect("an answer");
    assert_eq!(facts.max, Some(0));
    world.set(MAX, "x", None);
    assert_eq!(link.look(&at, false, SOON).await.expect("an answer").max, None);
    world.delete(MAX);
    let above = |floor| Marker { floor, ..marker(&facts.run_id, MarkState::Admitted) };
    let (high, low) = (above(30), above(20));
    assert_eq!(link.mark(&at, None, high.clone(), SOON).await, Ok(true));
    assert_numbers(world, [None, Some(64)]);
    // The largest number never falls.
    let seen = Some(high.to_string());
    assert_eq!(link.mark(&at, seen, low.clone(), SOON).await, Ok(true));
    assert_numbers(world, [None, Some(64)]);
    assert_eq!(link.look(&at, false, SOON).await.expect("an answer").max, Some(64));
    // A counter that is older is passed over.
    world.set(FENCE, "4", None);
    let seen = Some(low.to_string());
    assert_eq!(link.mark(&at, seen, above(30), SOON).await, Ok(true));
    let link = Admitted::admit(link).await;
    assert_eq!(ask(&link, acquire_fenced(OwnerId::random())).await, counted(31));
    assert_numbers(world, [Some(31), Some(64)]);
}

pub async fn a_counter_goes_on_from_the_floor_and_not_from_below(world: &impl World) {
    let link = connect(world).await.link;
    let at = FleetKeys::with_prefix("test:");
    for (counter, floor, number) in
        [(69, 68, 70), (70, 70, 71), (69, 70, 71), (63, 64, 65), (64, 64, 65), (0, 7, 8)]
    {
        let facts = link.look(&at, false, SOON).await.expect("an answer");
        // As the node before wrote it, which did not write ahead.
        world.set(MAX, "70", None);
        world.set(FENCE, &counter.to_string(), None);
        let marker = Marker { floor, ..marker(&facts.run_id, MarkState::Admitted) };
        let (id, members) = (marker.id.clone(), marker.members.clone());
        assert_eq!(link.mark(&at, facts.marker, marker, SOON).await, Ok(true));
        assert_numbers(world, [Some(counter), Some(128)]);
        let ballot = Arc::new(Ballot::new(at.clone(), &id, &members, floor));
        let asked = acquire_fenced(OwnerId::random());
        let granted = within(SOON, link.call(&asked, SendAs::Ballot(ballot))).await;
        assert_eq!(granted, counted(number), "{counter} at {floor}");
        world.delete(KEY);
    }
}

pub async fn no_fenced_vote_is_given_but_by_an_admission(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire_fenced(owner)).await, counted(1));
    world.delete(MARKER);
    for vote in [acquire_fenced(owner), raise(owner, 3), refill(owner, 3)] {
        assert_not_admitted(&ask(&link, vote).await);
    }
    assert_numbers(world, [Some(1), Some(64)]);
}

pub async fn what_goes_together_is_done_in_order_and_each_for_itself(world: &impl World) {
    let (link, [a, b]) = (connect(world).await, [(); 2].map(|()| OwnerId::random()));
    let all = vec![
        acquire_fenced(a),
        acquire(b, LONG),
        raise(a, 5),
        extend(b, LONG),
        release(a),
        extend(a, LONG),
        acquire_fenced(b),
    ];
    let outcomes = link.call_together(all, &link.ballot(), SOON).await.expect("an answer");
    assert_taken_for_at_most(&outcomes[1], LONG);
    assert_taken_for_at_most(&outcomes[3], LONG);
    let others = [0, 2, 4, 5, 6].map(|place| outcomes[place].clone());
    let done = || Ok(Answer::Done);
    assert_eq!(others, [counted(1), done(), done(), Ok(Answer::Missing), counted(6)]);
    assert_eq!(world.get(KEY), Some(b.to_string()));
    assert_numbers(world, [Some(6), Some(64)]);
    // What fails keeps nothing else from being done.
    world.set(FENCE, "x", None);
    let all = vec![release(b), acquire_fenced(a), acquire(a, LONG)];
    let outcomes = link.call_together(all, &link.ballot(), SOON).await.expect("an answer");
    assert!(matches!(outcomes[1], Err(NodeFailure::Rejected { .. })), "{outcomes:?}");
    assert_eq!([&outcomes[0], &outcomes[2]], [&done(), &done()]);
}

pub async fn sixty_four_go_together_also_if_all_are_of_different_kinds(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    let raises = (2..65).map(|token| raise(owner, token));
    let all = std::iter::once(acquire_fenced(owner)).chain(raises).collect();
    let outcomes = link.call_together(all, &link.ballot(), SOON).await.expect("an answer");
    assert_eq!(outcomes[0], counted(1));
    assert_eq!(outcomes[1..], vec![Ok(Answer::Done); 63]);
    assert_numbers(world, [Some(64), Some(64)]);
}

pub async fn what_goes_together_needs_the_admission_for_votes_only(world: &impl World) {
    let (mut link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
    world.delete(MARKER);
    let all = || vec![extend(owner, LONGER), acquire(owner, LONG), release(owner)];
    let outcomes = link.call_together(all(), &link.ballot(), SOON).await.expect("an answer");
    assert_not_admitted(&outcomes[1]);
    assert_eq!([&outcomes[0], &outcomes[2]], [&Ok(Answer::Done), &Ok(Answer::Done)]);
    assert_eq!(world.get(KEY), None);
    world.flush_scripts();
    let outcomes = link.call_together(all(), &link.ballot(), SOON).await;
    assert_eq!(outcomes, Err(NodeFailure::NoScript));
    link.admit_again().await;
    let all = vec![acquire(owner, LONG), extend(owner, LONGER)];
    let outcomes = link.call_together(all, &link.ballot(), SOON).await;
    assert_eq!(outcomes, Ok(vec![Ok(Answer::Done), Ok(Answer::Done)]));
}
