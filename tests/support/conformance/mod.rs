//! What every [`Node`] has to do, real or simulated: one function per behaviour.
//!
//! [`conformance_tests!`](conformance_tests) turns all of them into tests of one kind of node. All
//! waiting is by tokio's timers, so a simulated node may run on a paused clock.

mod admission;
mod counting;
mod keys;
mod links;
mod listening;

use std::time::Duration;

use quorumlock::{
    Key, OwnerId, Seat,
    node::{
        Answer, Called, Link, LinkId, MarkState, Marker, Node, NodeFailure, NodeName, Operation,
        Outcome, SendAs,
    },
};

use super::admit::Admitted;

pub use self::{admission::*, counting::*, keys::*, links::*, listening::*};

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
            sixty_four_go_together_also_if_all_are_of_different_kinds
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
            a_release_calls_whom_it_is_told_to_and_the_next_if_nobody_is_there
            who_stands_in_is_not_named_where_several_share_that_seat
            all_who_share_a_seat_that_is_called_hear_that_they_do
            a_release_that_calls_nobody_is_not_heard
            a_release_says_whether_somebody_was_called
            a_listener_does_not_hear_what_was_released_before
            a_listener_does_not_hear_releases_that_release_nothing
            a_listener_does_not_hear_of_other_keys
            a_listener_hears_nothing_more_after_unwatching
            a_listener_hears_of_every_key_that_it_watches
            a_listener_changes_many_keys_at_once
            a_listener_that_moves_is_called_on_its_new_seat_alone
            a_listener_hears_of_all_that_are_released_together
            of_what_is_released_together_each_calls_those_who_wait_for_it
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

fn ms_i64(span: Duration) -> i64 {
    i64::try_from(ms(span)).expect("a short span")
}

fn acquire(owner: OwnerId, ttl: Duration) -> Operation {
    Operation::Acquire { key: Key::new(KEY), owner, ttl_ms: ms(ttl) }
}

fn extend(owner: OwnerId, ttl: Duration) -> Operation {
    Operation::Extend { key: Key::new(KEY), owner, ttl_ms: ms(ttl) }
}

fn release(owner: OwnerId) -> Operation {
    Operation::Release { key: Key::new(KEY), owner, calls: Called::NextAndStandIn }
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

fn assert_not_admitted(outcome: &Outcome) {
    assert!(matches!(outcome, Err(NodeFailure::NotAdmitted { .. })), "{outcome:?}");
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
