//! What every [`Node`] has to do, real or simulated: one function per behaviour.
//!
//! [`conformance_tests!`](conformance_tests) turns all of them into tests of one kind of node. All
//! waiting is by tokio's timers, so a simulated node may run on a paused clock.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use super::admit::Admitted;
use futures::future::maybe_done;
use quorumlock::{
    FencingToken, Key, OwnerId, Seat,
    node::{
        Answer, Ballot, Fence, FleetKeys, Heard, Link, LinkId, Listener, MarkState, Marker, Node,
        NodeFailure, NodeName, Operation, Outcome, SendAs, Server,
    },
};

/// One node, and what may happen to it from outside.
pub trait World {
    /// The kind of node.
    type Node: Node;

    /// The node that the library sees.
    fn node(&self) -> &Self::Node;

    /// The value of a key, if there is one.
    fn get(&self, key: &str) -> Option<String>;
    /// What is left of a key's ttl in milliseconds; -1 if it has none, -2 if there is no key.
    fn pttl(&self, key: &str) -> i64;
    /// Sets a key behind the library's back, for `ttl` or for good.
    fn set(&self, key: &str, value: &str, ttl: Option<Duration>);
    /// Makes a key something else than a string, without a ttl.
    fn set_list(&self, key: &str);
    /// Deletes a key behind the library's back.
    fn delete(&self, key: &str);
    /// Lets the server forget all scripts.
    fn flush_scripts(&self);

    /// The client ids of all connections that the server has open to the library.
    fn clients(&self) -> Vec<i64>;
    /// The server closes one connection.
    fn kill_client(&self, client_id: i64);
    /// The server stops in its tracks: connections stay, nothing is answered.
    fn freeze(&self);
    /// The server goes on, with what came in meanwhile first.
    fn thaw(&self);
    /// The server's process is gone.
    fn crash(&self);
}

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(5);
/// A ttl that does not end during a test.
const LONG: Duration = Duration::from_secs(30);
const LONGER: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(60);
const KEY: &str = "lock:a";
const SEAT: Seat = Seat::new(7);
const SOMEONE: &str = "someone else";
const MARKER: &str = "test:marker";

/// One test for each behaviour: `conformance_tests!(tokio::test, MyWorld::start())`.
macro_rules! conformance_tests {
    ($test:meta, $world:expr) => {
        $crate::support::conformance::conformance_tests! { @each $test, $world;
            a_free_key_is_granted_with_owner_and_ttl
            a_held_key_is_refused_and_left_alone
            a_key_is_never_granted_twice_not_even_to_its_owner
            a_key_without_ttl_is_taken_for_good
            a_key_of_another_type_is_neither_granted_nor_touched
            an_expired_key_is_free
            extending_ones_own_key_prolongs_it
            extending_never_shortens
            extending_a_key_that_lost_its_ttl_gives_it_none
            extending_a_missing_key_does_not_create_it
            extending_anothers_key_is_refused
            releasing_ones_own_key_deletes_it
            releasing_a_missing_key_says_so
            releasing_anothers_key_leaves_it
            forgotten_scripts_execute_nothing_and_are_learnt_by_text
            a_script_that_is_learnt_by_text_is_the_only_one
            nothing_is_granted_but_by_an_admission
            a_node_that_lost_its_marker_grants_nothing_more
            a_node_that_lost_its_scripts_grants_nothing_more
            an_admission_that_was_replaced_grants_nothing_more
            what_is_still_ours_lives_on_without_an_admission
            a_marker_is_written_only_instead_of_the_one_that_was_seen
            a_marker_is_written_only_for_the_process_that_was_seen
            a_look_tells_what_kind_of_server_it_is
            each_fenced_grant_has_a_larger_number
            a_counter_that_went_goes_on_above_the_largest_number
            a_resource_s_own_counter_is_below_the_largest_of_all
            the_largest_number_is_written_ahead_to_the_end_of_a_step
            a_counter_is_raised_for_the_owner_only_and_never_lowered
            what_goes_together_is_done_in_order_and_each_for_itself
            what_goes_together_needs_the_admission_for_votes_only
            a_refill_brings_the_token_along_and_overwrites_nothing
            numbers_are_exact_up_to_the_limit_and_end_there
            a_counter_that_is_no_number_grants_nothing
            a_floor_comes_with_the_marker_and_is_learnt_by_others
            a_counter_goes_on_from_the_floor_and_not_from_below
            no_fenced_vote_is_given_but_by_an_admission
            a_ping_is_answered
            operations_run_in_the_order_in_which_they_were_first_polled
            an_operation_that_timed_out_may_still_run
            a_link_that_the_server_closed_ends
            a_link_to_a_crashed_server_ends
            what_is_sent_on_a_dead_link_ends_in_time_and_is_not_answered
            connecting_closes_the_stale_links_to_the_same_process
            connecting_leaves_the_links_of_other_processes_alone
            a_dead_server_is_unreachable
            a_closed_link_leaves_no_client
            a_dropped_link_leaves_no_client
            a_node_says_whether_others_wait
            a_listener_hears_whose_release_it_was_and_who_shares_its_seat
            a_release_calls_the_next_in_the_ring_and_one_to_stand_in
            a_listener_does_not_hear_what_was_released_before
            a_listener_does_not_hear_releases_that_release_nothing
            a_listener_does_not_hear_of_other_keys
            a_listener_hears_nothing_more_after_unwatching
            a_listener_hears_of_every_key_that_it_watches
            watching_at_a_frozen_server_fails_in_time
            a_listener_whose_connection_was_killed_ends
            a_listener_at_a_crashed_server_ends
            a_dropped_listener_leaves_no_client
        }
    };
    (@each $test:meta, $world:expr; $($behaviour:ident)*) => {
        $(
            #[$test]
            async fn $behaviour() {
                $crate::support::conformance::$behaviour(&$world).await;
            }
        )*
    };
}
pub(crate) use conformance_tests;

type LinkOf<W> = <<W as World>::Node as Node>::Link;

async fn connect<W: World>(world: &W) -> Admitted<LinkOf<W>> {
    connect_after(world, &[]).await
}

async fn connect_after<W: World>(world: &W, stale: &[LinkId]) -> Admitted<LinkOf<W>> {
    Admitted::admit(world.node().connect(stale).await.expect("a connection")).await
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("a short span")
}

fn acquire(owner: OwnerId, ttl: Duration) -> Operation {
    Operation::Acquire { key: Key::new(KEY), owner, ttl_ms: ms(ttl) }
}

fn extend(owner: OwnerId, ttl: Duration) -> Operation {
    Operation::Extend { key: Key::new(KEY), owner, ttl_ms: ms(ttl) }
}

fn release(owner: OwnerId) -> Operation {
    Operation::Release { key: Key::new(KEY), owner, calls: 2 }
}

fn ping() -> Operation {
    Operation::Ping { nonce: u64::MAX }
}

async fn ask(link: &Admitted<impl Link>, operation: Operation) -> Outcome {
    link.call(&operation, SendAs::Digest, SOON).await
}

/// Waits until `holds`, by tokio's timers. `what` completes the sentence "waited in vain for ...".
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("waited in vain for {what}"));
}

async fn closes(link: &mut Admitted<impl Link>) {
    let closed = tokio::time::timeout(SOON, link.closed()).await;
    assert!(closed.is_ok(), "waited in vain for the end of the link");
}

/// What is left of the key's ttl has to be near `ttl`, from below.
#[track_caller]
fn assert_lives_for(world: &impl World, ttl: Duration) {
    let (left, ttl) = (world.pttl(KEY), i64::try_from(ttl.as_millis()).expect("a short span"));
    assert!(left > ttl / 2 && left <= ttl, "{left} ms left of {ttl} ms");
}

#[track_caller]
fn assert_taken_for_at_most(outcome: &Outcome, ttl: Duration) {
    let Ok(Answer::Taken { remaining: Some(remaining) }) = outcome else {
        panic!("not taken for a time: {outcome:?}");
    };
    assert!(
        remaining.saturating_mul(2) > ttl && *remaining <= ttl,
        "{remaining:?} left of {ttl:?}"
    );
}

#[track_caller]
fn assert_wrong_type(outcome: &Outcome) {
    let is_wrong_type = matches!(
        outcome,
        Err(NodeFailure::Rejected { message }) if message.starts_with("WRONGTYPE")
    );
    assert!(is_wrong_type, "{outcome:?}");
}

pub async fn a_free_key_is_granted_with_owner_and_ttl(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
    assert_eq!(world.get(KEY), Some(owner.to_string()));
    assert_lives_for(world, LONG);
}

pub async fn a_held_key_is_refused_and_left_alone(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    let refused = ask(&link, acquire(OwnerId::random(), LONGER)).await;
    assert_taken_for_at_most(&refused, LONG);
    assert_eq!(world.get(KEY), Some(owner.to_string()));
    assert_lives_for(world, LONG);
}

pub async fn a_key_is_never_granted_twice_not_even_to_its_owner(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_taken_for_at_most(&ask(&link, acquire(owner, LONGER)).await, LONG);
    assert_lives_for(world, LONG);
}

pub async fn a_key_without_ttl_is_taken_for_good(world: &impl World) {
    world.set(KEY, SOMEONE, None);
    let (link, owner) = (connect(world).await, OwnerId::random());
    let for_good = Ok(Answer::Taken { remaining: None });
    assert_eq!(ask(&link, acquire(owner, LONG)).await, for_good);
    assert_eq!(ask(&link, extend(owner, LONG)).await, for_good);
    assert_eq!(ask(&link, release(owner)).await, for_good);
    assert_eq!(world.get(KEY).as_deref(), Some(SOMEONE));
    assert_eq!(world.pttl(KEY), -1);
}

pub async fn a_key_of_another_type_is_neither_granted_nor_touched(world: &impl World) {
    world.set_list(KEY);
    let (link, owner) = (connect(world).await, OwnerId::random());
    let acquired = ask(&link, acquire(owner, LONG)).await;
    assert_eq!(acquired, Ok(Answer::Taken { remaining: None }));
    assert_wrong_type(&ask(&link, extend(owner, LONG)).await);
    assert_wrong_type(&ask(&link, release(owner)).await);
    assert_eq!(world.pttl(KEY), -1, "the list is as it was");
}

pub async fn an_expired_key_is_free(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, SHORT)).await.expect("granted");
    eventually("the expiry", || world.pttl(KEY) == -2).await;
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Missing));
    assert_eq!(ask(&link, acquire(OwnerId::random(), LONG)).await, Ok(Answer::Done));
    assert_taken_for_at_most(&ask(&link, release(owner)).await, LONG);
}

pub async fn extending_ones_own_key_prolongs_it(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_eq!(ask(&link, extend(owner, LONGER)).await, Ok(Answer::Done));
    assert_lives_for(world, LONGER);
    assert_eq!(world.get(KEY), Some(owner.to_string()));
}

pub async fn extending_never_shortens(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_eq!(ask(&link, extend(owner, Duration::from_secs(1))).await, Ok(Answer::Done));
    assert_lives_for(world, LONG);
}

pub async fn extending_a_key_that_lost_its_ttl_gives_it_none(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.set(KEY, &owner.to_string(), None);
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Done));
    assert_eq!(world.pttl(KEY), -1);
}

pub async fn extending_a_missing_key_does_not_create_it(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    world.delete(KEY);
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Missing));
    assert_eq!(world.get(KEY), None);
}

pub async fn extending_anothers_key_is_refused(world: &impl World) {
    world.set(KEY, SOMEONE, Some(LONG));
    let link = connect(world).await;
    assert_taken_for_at_most(&ask(&link, extend(OwnerId::random(), LONGER)).await, LONG);
    assert_lives_for(world, LONG);
}

pub async fn releasing_ones_own_key_deletes_it(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
    assert_eq!(world.get(KEY), None);
}

pub async fn releasing_a_missing_key_says_so(world: &impl World) {
    let link = connect(world).await;
    assert_eq!(ask(&link, release(OwnerId::random())).await, Ok(Answer::Missing));
}

pub async fn releasing_anothers_key_leaves_it(world: &impl World) {
    world.set(KEY, SOMEONE, Some(LONG));
    let link = connect(world).await;
    assert_taken_for_at_most(&ask(&link, release(OwnerId::random())).await, LONG);
    assert_eq!(world.get(KEY).as_deref(), Some(SOMEONE));
    assert_lives_for(world, LONG);
}

pub async fn forgotten_scripts_execute_nothing_and_are_learnt_by_text(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
    let steps = [extend(owner, LONGER), release(owner)];
    for step in steps {
        world.flush_scripts();
        let before = (world.get(KEY), world.pttl(KEY) > ms_i64(LONG));
        assert_eq!(ask(&link, step.clone()).await, Err(NodeFailure::NoScript), "{step:?}");
        assert_eq!((world.get(KEY), world.pttl(KEY) > ms_i64(LONG)), before, "{step:?}");
        assert_eq!(link.call(&step, SendAs::Text, SOON).await, Ok(Answer::Done), "{step:?}");
        // Known again: a verdict on the key as it is now, and not NoScript.
        assert!(ask(&link, step.clone()).await.is_ok(), "{step:?}");
    }
    assert_eq!(world.get(KEY), None);
}

pub async fn a_script_that_is_learnt_by_text_is_the_only_one(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.flush_scripts();
    let extended = link.call(&extend(owner, LONG), SendAs::Text, SOON).await;
    assert_eq!(extended, Ok(Answer::Missing));
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Missing));
    assert_eq!(ask(&link, release(owner)).await, Err(NodeFailure::NoScript));
}

fn assert_not_admitted(outcome: &Outcome) {
    assert!(matches!(outcome, Err(NodeFailure::NotAdmitted { .. })), "{outcome:?}");
}

pub async fn nothing_is_granted_but_by_an_admission(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    for send_as in [SendAs::Digest, SendAs::Text] {
        assert_not_admitted(&link.link.call(&acquire(owner, LONG), send_as, SOON).await);
    }
    assert_eq!(world.get(KEY), None);
}

pub async fn a_node_that_lost_its_marker_grants_nothing_more(world: &impl World) {
    let (mut link, owner) = (connect(world).await, OwnerId::random());
    world.delete(MARKER);
    assert_not_admitted(&ask(&link, acquire(owner, LONG)).await);
    world.set(MARKER, SOMEONE, None);
    assert_not_admitted(&ask(&link, acquire(owner, LONG)).await);
    world.delete(MARKER);
    assert_eq!(world.get(KEY), None);
    link.admit_again().await;
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
}

pub async fn a_node_that_lost_its_scripts_grants_nothing_more(world: &impl World) {
    let (mut link, owner) = (connect(world).await, OwnerId::random());
    let admission = world.get(MARKER);
    world.flush_scripts();
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Err(NodeFailure::NoScript));
    assert_eq!(world.get(KEY), None);
    link.admit_again().await;
    assert_ne!(world.get(MARKER), admission, "each admission has a marker of its own");
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
}

pub async fn an_admission_that_was_replaced_grants_nothing_more(world: &impl World) {
    let (old, mut new) = (connect(world).await, connect(world).await);
    world.delete(MARKER);
    new.admit_again().await;
    // Its script is still known.
    assert_not_admitted(&ask(&old, acquire(OwnerId::random(), LONG)).await);
    assert_eq!(ask(&new, acquire(OwnerId::random(), LONG)).await, Ok(Answer::Done));
}

pub async fn what_is_still_ours_lives_on_without_an_admission(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
    world.delete(MARKER);
    assert_eq!(ask(&link, extend(owner, LONGER)).await, Ok(Answer::Done));
    assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
}

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
        let granted = link.call(&asked, SendAs::Ballot(ballot), SOON).await;
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

/// A marker to write on the process with this id.
fn marker(run_id: &str, state: MarkState) -> Marker {
    Marker {
        id: OwnerId::random().to_string(),
        state,
        run_id: run_id.to_owned(),
        node: NodeName::new("n"),
        members: "n".to_owned(),
        max_ttl_ms: 60_000,
        floor: 0,
    }
}

pub async fn a_marker_is_written_only_instead_of_the_one_that_was_seen(world: &impl World) {
    let link = world.node().connect(&[]).await.expect("a connection");
    let at = FleetKeys::with_prefix("test:");
    let facts = link.look(&at, false, SOON).await.expect("an answer");
    assert_eq!(facts.marker, None);
    let first = marker(&facts.run_id, MarkState::Waiting);
    let seen = Some("another".to_owned());
    assert_eq!(link.mark(&at, seen, first.clone(), SOON).await, Ok(false));
    assert_eq!(link.mark(&at, None, first.clone(), SOON).await, Ok(true));
    assert_eq!(world.get(MARKER), Some(first.to_string()));
    let second = marker(&facts.run_id, MarkState::Waiting);
    assert_eq!(link.mark(&at, None, second.clone(), SOON).await, Ok(false));
    assert_eq!(link.mark(&at, Some(first.to_string()), second.clone(), SOON).await, Ok(true));
    let facts = link.look(&at, false, SOON).await.expect("an answer");
    assert_eq!(facts.marker, Some(second.to_string()));
    assert_eq!(world.pttl(MARKER), -1, "a marker does not expire");
}

pub async fn a_marker_is_written_only_for_the_process_that_was_seen(world: &impl World) {
    let link = world.node().connect(&[]).await.expect("a connection");
    let at = FleetKeys::with_prefix("test:");
    let other = marker("another", MarkState::Admitted);
    assert_eq!(link.mark(&at, None, other, SOON).await, Ok(false));
    assert_eq!(world.get(MARKER), None);
}

pub async fn a_look_tells_what_kind_of_server_it_is(world: &impl World) {
    let link = world.node().connect(&[]).await.expect("a connection");
    for durability in [false, true] {
        let facts =
            link.look(&FleetKeys::with_prefix("test:"), durability, SOON).await.expect("an answer");
        assert_eq!(facts.run_id, link.id().run_id);
        assert!(
            matches!(facts.server, Server::Redis(7.., _) | Server::Valkey(7.., _)),
            "{facts:?}"
        );
        assert!(facts.is_master && !facts.is_cluster && !facts.is_loading && !facts.is_durable);
        assert_eq!((facts.eviction.as_deref(), facts.replicas), (Some("noeviction"), 0));
    }
}

fn ms_i64(span: Duration) -> i64 {
    i64::try_from(ms(span)).expect("a short span")
}

pub async fn a_ping_is_answered(world: &impl World) {
    let link = connect(world).await;
    assert_eq!(ask(&link, ping()).await, Ok(Answer::Done));
    assert_eq!(link.call(&ping(), SendAs::Text, SOON).await, Ok(Answer::Done));
}

/// Each acquire is granted only if the release before it has run, and each release does something
/// only if its acquire has.
pub async fn operations_run_in_the_order_in_which_they_were_first_polled(world: &impl World) {
    let link = connect(world).await;
    let operations = (0..50).flat_map(|_| {
        let owner = OwnerId::random();
        [acquire(owner, LONG), release(owner)]
    });
    // Made in the opposite order: making a call sends nothing.
    let operations: Vec<Operation> = operations.collect();
    let calls = operations
        .iter()
        .rev()
        .map(|operation| Box::pin(maybe_done(link.call(operation, SendAs::Digest, SOON))));
    let mut calls: Vec<_> = calls.collect();
    calls.reverse();
    poll_fn(|context| {
        let ready = calls.iter_mut().map(|call| call.as_mut().poll(context).is_ready());
        // All are polled in any case.
        let pending = ready.filter(|is_ready| !is_ready).count();
        if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let outcomes = calls.iter_mut().map(|call| call.as_mut().take_output().expect("done"));
    let outcomes: Vec<Outcome> = outcomes.collect();
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(Answer::Done)), "{outcomes:?}");
    assert_eq!(world.get(KEY), None);
}

pub async fn an_operation_that_timed_out_may_still_run(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.freeze();
    let outcome = link.call(&acquire(owner, LONG), SendAs::Digest, SHORT).await;
    assert_eq!(outcome, Err(NodeFailure::Timeout { after: SHORT }));
    world.thaw();
    // Behind it on the same link: its answer proves that the acquire has run.
    assert_eq!(ask(&link, ping()).await, Ok(Answer::Done));
    assert_eq!(world.get(KEY), Some(owner.to_string()));
    assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
}

pub async fn a_link_that_the_server_closed_ends(world: &impl World) {
    let mut link = connect(world).await;
    {
        let mut closed = pin!(link.closed());
        let early = tokio::time::timeout(SHORT, closed.as_mut()).await;
        assert!(early.is_err(), "ended while the connection was fine: {early:?}");
    }
    world.kill_client(client_id(&link));
    closes(&mut link).await;
}

pub async fn a_link_to_a_crashed_server_ends(world: &impl World) {
    let mut link = connect(world).await;
    world.crash();
    closes(&mut link).await;
}

pub async fn what_is_sent_on_a_dead_link_ends_in_time_and_is_not_answered(world: &impl World) {
    let mut link = connect(world).await;
    world.kill_client(client_id(&link));
    closes(&mut link).await;
    let call = link.call(&acquire(OwnerId::random(), LONG), SendAs::Digest, SHORT);
    let outcome = tokio::time::timeout(SOON, call).await.expect("an end of the call");
    let is_unknown =
        matches!(outcome, Err(NodeFailure::Disconnected { .. } | NodeFailure::Timeout { .. }));
    assert!(is_unknown, "{outcome:?}");
    assert_eq!(world.get(KEY), None);
}

#[track_caller]
fn client_id(link: &Admitted<impl Link>) -> i64 {
    link.id().client_id.expect("the server tells the client's id")
}

pub async fn connecting_closes_the_stale_links_to_the_same_process(world: &impl World) {
    let mut stale = [connect(world).await, connect(world).await];
    let bystander = connect(world).await;
    let ids = stale.each_ref().map(|link| link.id().clone());
    let link = connect_after(world, &ids).await;
    assert_eq!(link.id().run_id, bystander.id().run_id, "the same process");
    // It is done before the new link is handed out, so that nothing can run behind it.
    let mut expected = vec![client_id(&bystander), client_id(&link)];
    expected.sort_unstable();
    let mut clients = world.clients();
    clients.sort_unstable();
    assert_eq!(clients, expected);
    for link in &mut stale {
        closes(link).await;
    }
    assert_eq!(ask(&bystander, ping()).await, Ok(Answer::Done));
}

pub async fn connecting_leaves_the_links_of_other_processes_alone(world: &impl World) {
    let bystander = connect(world).await;
    let id = LinkId { run_id: "another process".to_owned(), ..bystander.id().clone() };
    let gone = LinkId { client_id: Some(i64::MAX), ..bystander.id().clone() };
    let unknown = LinkId { client_id: None, ..bystander.id().clone() };
    let link = connect_after(world, &[id, gone, unknown]).await;
    assert_eq!(ask(&bystander, ping()).await, Ok(Answer::Done));
    assert_eq!(ask(&link, ping()).await, Ok(Answer::Done));
}

pub async fn a_dead_server_is_unreachable(world: &impl World) {
    world.crash();
    let connected = tokio::time::timeout(SOON, world.node().connect(&[])).await;
    let failure = connected.expect("bounded by the node itself").err().expect("no link");
    assert!(matches!(failure, NodeFailure::Unreachable { .. }), "{failure:?}");
}

pub async fn a_closed_link_leaves_no_client(world: &impl World) {
    let link = connect(world).await;
    assert_eq!(world.clients(), [client_id(&link)]);
    link.link.close().await;
    eventually("the client's end", || world.clients().is_empty()).await;
}

pub async fn a_dropped_link_leaves_no_client(world: &impl World) {
    drop(connect(world).await);
    eventually("the client's end", || world.clients().is_empty()).await;
}

type ListenerOf<W> = <<W as World>::Node as Node>::Listener;

async fn listen<W: World>(world: &W) -> ListenerOf<W> {
    listen_on(world, SEAT).await
}

async fn listen_on<W: World>(world: &W, seat: Seat) -> ListenerOf<W> {
    let mut listener = world.node().listen().await.expect("a connection");
    listener.watch(&Key::new(KEY), seat).await.expect("watched");
    listener
}

async fn hears(listener: &mut impl Listener) -> Heard {
    let heard = tokio::time::timeout(SOON, listener.heard()).await;
    heard.expect("waited in vain for a release").expect("connected")
}

async fn hears_nothing(listener: &mut impl Listener) {
    let heard = tokio::time::timeout(SHORT, listener.heard()).await;
    assert!(heard.is_err(), "{heard:?}");
}

async fn ends(listener: &mut impl Listener) {
    let heard = tokio::time::timeout(SOON, listener.heard()).await;
    let heard = heard.expect("waited in vain for the end of the listener");
    assert!(heard.is_err(), "{heard:?}");
}

/// Acquires and releases a key. Whose it was.
async fn come_and_go(link: &Admitted<impl Link>, key: &str) -> OwnerId {
    come_and_go_from(link, key, OwnerId::random().seat()).await
}

/// The same, of an owner on this seat.
async fn come_and_go_from(link: &Admitted<impl Link>, key: &str, seat: Seat) -> OwnerId {
    let (key, owner) = (Key::new(key), OwnerId::random().on_seat(seat));
    let acquire = Operation::Acquire { key: key.clone(), owner, ttl_ms: ms(LONG) };
    assert_eq!(ask(link, acquire).await, Ok(Answer::Done));
    assert_eq!(ask(link, Operation::Release { key, owner, calls: 2 }).await, Ok(Answer::Done));
    owner
}

pub async fn a_node_says_whether_others_wait(world: &impl World) {
    let link = connect(world).await;
    let others = async |besides| {
        let waiters = Operation::Waiters { key: Key::new(KEY), besides };
        ask(&link, waiters).await.expect("answered") != Answer::Missing
    };
    assert!(!others(0).await, "nobody waits");
    let mut first = listen(world).await;
    assert!(others(0).await && !others(1).await);
    let _second = listen_on(world, Seat::new(900)).await;
    let mut of_another_key = listen_on(world, SEAT).await;
    of_another_key.unwatch(&Key::new(KEY), SEAT).await.expect("unwatched");
    of_another_key.watch(&Key::new("lock:b"), SEAT).await.expect("watched");
    assert!(others(1).await && !others(2).await);
    first.unwatch(&Key::new(KEY), SEAT).await.expect("unwatched");
    assert!(others(0).await && !others(1).await);
}

pub async fn a_listener_hears_whose_release_it_was_and_who_shares_its_seat(world: &impl World) {
    let heard = |owner, sharing| Heard { key: Key::new(KEY), owner, rank: 0, sharing };
    let (link, mut first) = (connect(world).await, listen(world).await);
    let owner = come_and_go(&link, KEY).await;
    assert_eq!(hears(&mut first).await, heard(owner, 1));

    let mut second = listen(world).await;
    let owner = come_and_go(&link, KEY).await;
    for listener in [&mut first, &mut second] {
        assert_eq!(hears(listener).await, heard(owner, 2));
        hears_nothing(listener).await;
    }
}

pub async fn a_release_calls_the_next_in_the_ring_and_one_to_stand_in(world: &impl World) {
    let link = connect(world).await;
    // Two of one ten.
    let seats = [3, 500, 505].map(Seat::new);
    let mut listeners = Vec::new();
    for seat in seats {
        listeners.push(listen_on(world, seat).await);
    }
    // Of owners on seats before, behind and between them, in their tens and hundreds and in others, and on
    // their own.
    let owners = [0, 3, 4, 9, 10, 99, 100, 499, 500, 501, 504, 505, 506, 510, 599, 600, 999];
    for own in owners {
        let owner = come_and_go_from(&link, KEY, Seat::new(own)).await;
        // Who sits at the owner's own seat is the last.
        let first = seats.iter().position(|seat| seat.number() > own).unwrap_or(0);
        let heard = |rank| Heard { key: Key::new(KEY), owner, rank, sharing: 1 };
        listeners.rotate_left(first);
        let [next, stands_in, other] = &mut listeners[..] else { panic!("three listen") };
        assert_eq!(hears(next).await, heard(0), "{owner:?}");
        assert_eq!(hears(stands_in).await, heard(1), "{owner:?}");
        hears_nothing(other).await;
        listeners.rotate_right(first);
    }
}

pub async fn a_listener_does_not_hear_what_was_released_before(world: &impl World) {
    let link = connect(world).await;
    come_and_go(&link, KEY).await;
    hears_nothing(&mut listen(world).await).await;
}

pub async fn a_listener_does_not_hear_releases_that_release_nothing(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    assert_eq!(ask(&link, release(OwnerId::random())).await, Ok(Answer::Missing));
    world.set(KEY, SOMEONE, Some(LONG));
    assert_taken_for_at_most(&ask(&link, release(OwnerId::random())).await, LONG);
    hears_nothing(&mut listener).await;
}

pub async fn a_listener_does_not_hear_of_other_keys(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    come_and_go(&link, "lock:b").await;
    hears_nothing(&mut listener).await;
}

pub async fn a_listener_hears_nothing_more_after_unwatching(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    listener.unwatch(&Key::new(KEY), SEAT).await.expect("unwatched");
    come_and_go(&link, KEY).await;
    hears_nothing(&mut listener).await;
    listener.watch(&Key::new(KEY), SEAT).await.expect("watched again");
    come_and_go(&link, KEY).await;
    hears(&mut listener).await;
}

pub async fn a_listener_hears_of_every_key_that_it_watches(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    listener.watch(&Key::new("lock:b"), SEAT).await.expect("watched");
    for key in [KEY, "lock:b", KEY] {
        come_and_go(&link, key).await;
        assert_eq!(hears(&mut listener).await.key, Key::new(key));
    }
}

pub async fn watching_at_a_frozen_server_fails_in_time(world: &impl World) {
    let mut listener = listen(world).await;
    world.freeze();
    let watched = tokio::time::timeout(SOON, listener.watch(&Key::new("lock:b"), SEAT)).await;
    let watched = watched.expect("bounded by the listener itself");
    assert!(watched.is_err(), "nobody can have said so");
    world.thaw();
}

pub async fn a_listener_whose_connection_was_killed_ends(world: &impl World) {
    let mut listener = listen(world).await;
    let clients = world.clients();
    let [client] = clients[..] else { panic!("not only the listener's: {clients:?}") };
    world.kill_client(client);
    ends(&mut listener).await;
}

pub async fn a_listener_at_a_crashed_server_ends(world: &impl World) {
    let mut listener = listen(world).await;
    world.crash();
    ends(&mut listener).await;
}

pub async fn a_dropped_listener_leaves_no_client(world: &impl World) {
    drop(listen(world).await);
    eventually("the client's end", || world.clients().is_empty()).await;
}
