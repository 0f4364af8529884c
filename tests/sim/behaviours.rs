//! Field cases in virtual time: what each costs, to the millisecond.
//!
//! Messages take 1 ms one way, unless a test says otherwise.

use std::{ops::Range, thread, time::Duration};

use quorumlock::{
    AcquireError, ExtendError, LockOptions, NodeOutcome, NodeReports, NodeState, Redlock,
    RedlockBuilder, ReleaseError,
    node::NodeFailure,
    sim::{LinkFaults, Persistence, SimClient, SimCluster},
};
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, sleep},
};

use crate::support::futures::give_up_after;

const MS: fn(u64) -> Duration = Duration::from_millis;
const ONE_WAY: Duration = Duration::from_millis(1);
const ROUND_TRIP: Duration = Duration::from_millis(2);
const NODE_TIMEOUT: Duration = Duration::from_millis(200);
/// The key of the resource "r".
const KEY: &str = "quorumlock:lock:r";
const ANOTHER: Option<&str> = Some("another");

fn builder(client: &SimClient) -> RedlockBuilder {
    Redlock::builder().new_fleet().sim_client(client).node_timeout(NODE_TIMEOUT)
}

async fn connect(cluster: &SimCluster) -> Redlock {
    builder(&cluster.client()).connect().await.unwrap()
}

/// What comes of a future, and how much time it takes.
pub(crate) async fn timed<F: Future>(future: F) -> (F::Output, Duration) {
    let started = Instant::now();
    (future.await, started.elapsed())
}

/// Lets time go by, and all that is due by its end happen.
pub(crate) async fn pass(span: Duration) {
    sleep(span).await;
    // The network delivers at most once in a moment, and whoever hears of it comes after that.
    for _ in 0..10 {
        yield_now().await;
    }
}

/// How much time goes by until `holds`.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    pass(Duration::ZERO).await;
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(5), "waited in vain for {what}");
        pass(MS(1)).await;
    }
    started.elapsed()
}

/// How much time goes by until no node has a key.
pub(crate) async fn until_clean(cluster: &SimCluster) -> Duration {
    until("no key", || holders(cluster) == [0; 0]).await
}

/// The nodes that have a key.
pub(crate) fn holders(cluster: &SimCluster) -> Vec<usize> {
    let has_lock = |node: &usize| cluster.keys(*node).keys().any(|key| key.contains(":lock:"));
    (0..cluster.len()).filter(has_lock).collect()
}

pub(crate) fn owner_on(cluster: &SimCluster, node: usize) -> Option<String> {
    cluster.keys(node).remove(KEY)
}

/// The nodes that gave this failure.
fn failed(nodes: &NodeReports, failure: &NodeFailure) -> Vec<usize> {
    let failed = NodeOutcome::Failed(failure.clone());
    (0..).zip(nodes).filter(|(_, report)| report.outcome == failed).map(|(node, _)| node).collect()
}

fn timed_out(nodes: &NodeReports) -> Vec<usize> {
    failed(nodes, &NodeFailure::Timeout { after: NODE_TIMEOUT })
}

/// Whether these nodes are known not to answer.
fn is_silent(redlock: &Redlock, nodes: Range<usize>) -> bool {
    redlock.nodes()[nodes].iter().all(|node| node.state == NodeState::Unresponsive)
}

#[track_caller]
fn no_quorum(error: &AcquireError) -> &NodeReports {
    assert!(error.is_no_quorum(), "{error}");
    error.nodes().unwrap()
}

/// How long acquiring and releasing take, ten times.
async fn ten_pairs(redlock: &Redlock) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..10 {
        let pair = async { redlock.try_acquire("r").await.unwrap().release().await.unwrap() };
        took.push(timed(pair).await.1);
    }
    took
}

// Field case 7: validity was counted from the first attempt.
#[tokio::test(start_paused = true)]
async fn validity_is_counted_from_the_attempt_that_succeeded() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let (ttl, drift) = (Duration::from_secs(1), MS(12));
    let held_for = MS(1_200);
    (0..3).for_each(|node| cluster.set_key(node, KEY, ANOTHER, Some(held_for)));

    let options = LockOptions::new().ttl(ttl).wait_timeout(Duration::from_secs(10));
    let (guard, took) = timed(redlock.acquire_with("r", options)).await;
    assert!(took > held_for && took < held_for + MS(300) + ROUND_TRIP, "{took:?}");
    // One node is asked first, where somebody has been in the way, and then the others.
    assert_eq!(guard.unwrap().remaining() + 2 * ROUND_TRIP + drift, ttl);
}

// Field case 11: one dead node slowed every lock and unlock.
#[tokio::test(start_paused = true)]
async fn one_frozen_node_of_five_costs_exactly_nothing() {
    let cluster = SimCluster::new(5);
    let redlock = connect(&cluster).await;
    let healthy = ten_pairs(&redlock).await;
    cluster.freeze(3);
    assert_eq!(ten_pairs(&redlock).await, healthy, "when it is not yet known");
    until("n3 to be known as frozen", || is_silent(&redlock, 3..4)).await;
    assert_eq!(ten_pairs(&redlock).await, healthy, "when it is known");
    assert_eq!(healthy, [ROUND_TRIP * 2; 10]);
}

// Field cases 11 and 14.
#[tokio::test(start_paused = true)]
async fn three_frozen_nodes_of_five_cost_one_node_timeout_once() {
    let cluster = SimCluster::new(5);
    let redlock = connect(&cluster).await;
    (0..3).for_each(|node| cluster.freeze(node));

    let (error, took) = timed(redlock.try_acquire("r")).await;
    assert_eq!(timed_out(no_quorum(&error.unwrap_err())), [0, 1, 2]);
    assert_eq!(took, NODE_TIMEOUT);
    let (error, took) = timed(redlock.try_acquire("another")).await;
    let error = error.unwrap_err();
    assert_eq!(failed(no_quorum(&error), &NodeFailure::Unresponsive), [0, 1, 2]);
    assert_eq!(took, Duration::ZERO);

    assert_eq!(until_clean(&cluster).await, ONE_WAY, "n3 and n4 are told at once");
    (0..3).for_each(|node| cluster.thaw(node));
    assert_eq!(holders(&cluster), [0, 1, 2], "they execute what was in their buffers");
    assert_eq!(until_clean(&cluster).await, ROUND_TRIP);
}

// Field case 14. With a short timeout the release is sent behind the acquire, and nothing shows.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_executed_after_its_timeout_is_taken_back_within_a_round_trip() {
    for (node_timeout, ghost) in [(MS(50), Duration::ZERO), (NODE_TIMEOUT, ROUND_TRIP)] {
        let cluster = SimCluster::new(3);
        let redlock =
            builder(&cluster.client()).node_timeout(node_timeout).connect().await.unwrap();
        cluster.freeze(0);
        cluster.freeze(1);
        let (error, took) = timed(redlock.try_acquire("r")).await;
        no_quorum(&error.unwrap_err());
        assert_eq!(took, node_timeout);

        pass(MS(20)).await;
        assert_eq!(holders(&cluster), [0; 0], "n2 is told at once");
        cluster.thaw(0);
        cluster.thaw(1);
        assert_eq!(until_clean(&cluster).await, ghost);
    }
}

// Field case 14: a connection takes what was sent on it with it.
#[tokio::test(start_paused = true)]
async fn a_release_that_died_with_its_connection_is_sent_again_on_the_next() {
    let cluster = SimCluster::new(3);
    cluster.set_persistence(0, Persistence::Always);
    let redlock = connect(&cluster).await;
    let guard = redlock.acquire("r").await.unwrap();
    cluster.freeze(0);
    let (released, took) = timed(guard.release()).await;
    assert_eq!((released, took), (Ok(()), ROUND_TRIP), "two of three confirm");

    cluster.crash(0);
    cluster.restart(0);
    assert_eq!(holders(&cluster), [0], "it lost what was in its buffers, and not its key");
    // It is connected to again after at most 75 ms; greeting and release take three ways.
    let gone = until_clean(&cluster).await;
    assert!(gone <= ONE_WAY + MS(75) + ONE_WAY * 3, "{gone:?}");
}

/// A client to which the nodes answer one after another, so that each answer is a poll of its own.
pub(crate) fn spread(client: &SimClient, nodes: usize) {
    for (node, ms) in (0..nodes).zip(1..) {
        client.set_link(node, LinkFaults::latency(ms, ms));
    }
}

/// Drops an attempt after so many polls. Whether it had its lock by then.
async fn acquired_within(polls: usize) -> bool {
    let cluster = SimCluster::new(5);
    let client = cluster.client();
    let redlock = builder(&client).connect().await.unwrap();
    spread(&client, 5);
    let guard = give_up_after(polls, redlock.acquire("r")).await;
    let acquired = guard.is_some();
    drop(guard);

    // What is on its way to the farthest node takes 5 ms, and the release is right behind it.
    pass(MS(5)).await;
    assert_eq!(holders(&cluster), [0; 0], "after {polls} polls");
    pass(MS(5)).await;
    assert!(redlock.nodes().iter().all(|n| n.owed_releases == 0), "after {polls} polls");
    let again = redlock.try_acquire("r").await;
    assert!(again.is_ok(), "after {polls} polls: {again:?}");
    acquired
}

// Field cases 15, 25 and 41: a cancelled request left the lock behind.
#[tokio::test(start_paused = true)]
async fn acquiring_that_is_dropped_at_any_poll_leaves_nothing() {
    let mut acquired = Vec::new();
    for polls in 0..6 {
        acquired.push(acquired_within(polls).await);
    }
    // The first poll asks, each of the next three reads an answer.
    assert_eq!(acquired, [false, false, false, false, true, true]);
}

// Field case 41: a pending acquire could not be cancelled.
#[tokio::test(start_paused = true)]
async fn waiting_that_is_dropped_at_any_poll_leaves_nothing() {
    for polls in 0..40 {
        let cluster = SimCluster::with_seed(3, 7);
        let client = cluster.client();
        let redlock = builder(&client).connect().await.unwrap();
        spread(&client, 3);
        cluster.set_key(1, KEY, ANOTHER, None);
        cluster.set_key(2, KEY, ANOTHER, None);
        let guard = give_up_after(polls, redlock.acquire("r")).await;
        assert!(guard.is_none(), "two of three are another's");
        pass(ONE_WAY).await;
        assert_eq!(holders(&cluster), [1, 2], "after {polls} polls");
        assert_eq!(owner_on(&cluster, 1).as_deref(), ANOTHER, "what is another's stays");
    }
}

// Field case 41: there was no way to try once.
#[tokio::test(start_paused = true)]
async fn trying_once_takes_one_round_trip_and_asks_each_node_once() {
    let cluster = SimCluster::new(5);
    let (holder, redlock) = (connect(&cluster).await, connect(&cluster).await);
    let _guard = holder.acquire("r").await.unwrap();
    let before = cluster.operations();
    let (error, took) = timed(redlock.try_acquire("r")).await;
    let error = error.unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert_eq!((took, error.attempt().unwrap().attempts), (ROUND_TRIP, 1));
    pass(Duration::from_secs(1)).await;
    assert_eq!(cluster.operations() - before, 5);
}

// Field case 12: one node's error aborted everything and left keys.
#[tokio::test(start_paused = true)]
async fn an_error_of_one_node_is_one_vote_less_and_no_more() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    cluster.crash(2);
    let (guard, took) = timed(redlock.try_acquire("r")).await;
    assert_eq!(took, ROUND_TRIP);
    guard.unwrap().release().await.unwrap();

    cluster.crash(1);
    let (error, took) = timed(redlock.try_acquire("r")).await;
    assert_eq!(no_quorum(&error.unwrap_err()).failed(), 2);
    assert!(took <= ROUND_TRIP, "{took:?}");
    assert!(until_clean(&cluster).await <= ROUND_TRIP);
}

// Field case 20: only the nodes that said yes were unwound.
#[tokio::test(start_paused = true)]
async fn a_node_whose_yes_got_lost_is_released_as_well() {
    let cluster = SimCluster::new(3);
    let client = cluster.client();
    let redlock = builder(&client).connect().await.unwrap();
    let mut loses_replies = LinkFaults::default();
    loses_replies.lose_reply = 100;
    client.set_link(1, loses_replies);
    cluster.crash(2);

    let (error, took) = timed(redlock.try_acquire("r")).await;
    assert_eq!(timed_out(no_quorum(&error.unwrap_err())), [1]);
    assert_eq!(took, NODE_TIMEOUT);
    assert_eq!(holders(&cluster), [0, 1], "n1 had granted");
    client.set_link(1, LinkFaults::default());
    // The answers are out of step by the lost one, which shows at the second probe, 250 ms later. The
    // next connection is made after at most 75 ms; greeting and release take three ways.
    let gone = until_clean(&cluster).await;
    assert!(gone <= MS(250) + ROUND_TRIP + MS(75) + ONE_WAY * 3, "{gone:?}");
}

// Field case 25: dropping a guard blocked the runtime.
#[tokio::test(start_paused = true)]
async fn dropping_a_guard_takes_no_time_even_if_no_node_answers() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let guard = redlock.acquire("r").await.unwrap();
    (0..3).for_each(|node| cluster.freeze(node));
    let started = Instant::now();
    drop(guard);
    assert_eq!(started.elapsed(), Duration::ZERO);

    pass(MS(50)).await;
    assert_eq!(holders(&cluster), [0, 1, 2]);
    (0..3).for_each(|node| cluster.thaw(node));
    assert_eq!(until_clean(&cluster).await, Duration::ZERO, "the release was in their buffers");
}

// Field case 25: dropping a guard outside a runtime panicked.
#[tokio::test(start_paused = true)]
async fn a_guard_dropped_outside_any_runtime_is_released_one_way_later() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let guard = redlock.acquire("r").await.unwrap();
    let outside = thread::spawn(move || {
        assert!(Handle::try_current().is_err());
        drop(guard);
    });
    outside.join().unwrap();
    assert_eq!(holders(&cluster), [0, 1, 2]);
    assert_eq!(until_clean(&cluster).await, ONE_WAY);
}

// Field case 28: a tie never resolved.
#[tokio::test(start_paused = true)]
async fn a_split_of_four_is_contention_after_one_round_trip() {
    let cluster = SimCluster::new(4);
    let redlock = connect(&cluster).await;
    cluster.set_key(1, KEY, ANOTHER, None);
    cluster.set_key(3, KEY, ANOTHER, None);
    let (error, took) = timed(redlock.try_acquire("r")).await;
    let error = error.unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert_eq!((took, error.attempt().unwrap().quorum), (ROUND_TRIP, 3));
    let split = until("our half to be given back", || holders(&cluster) == [1, 3]).await;
    assert_eq!(split, ONE_WAY);
}

// Field case 28.
#[tokio::test(start_paused = true)]
async fn one_silent_node_of_two_costs_one_node_timeout_once() {
    let cluster = SimCluster::new(2);
    let redlock = connect(&cluster).await;
    cluster.freeze(0);
    for (attempt, expected) in [NODE_TIMEOUT, Duration::ZERO].into_iter().enumerate() {
        let (error, took) = timed(redlock.try_acquire("r")).await;
        assert_eq!(no_quorum(&error.unwrap_err()).failed(), 1);
        assert_eq!(took, expected, "attempt {attempt}");
    }
}

// Field case 28.
#[tokio::test(start_paused = true)]
async fn one_dead_node_of_two_is_an_outage_within_one_way() {
    let cluster = SimCluster::new(2);
    let redlock = connect(&cluster).await;
    cluster.crash(1);
    for (attempt, expected) in [ONE_WAY, Duration::ZERO].into_iter().enumerate() {
        let (error, took) = timed(redlock.try_acquire("r")).await;
        assert_eq!(no_quorum(&error.unwrap_err()).failed(), 1);
        assert_eq!(took, expected, "attempt {attempt}");
        assert!(until_clean(&cluster).await <= ROUND_TRIP);
    }
}

// Field case 29: own partial keys blocked own retries.
#[tokio::test(start_paused = true)]
async fn own_partial_keys_do_not_stand_in_the_way_of_the_next_attempt() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    cluster.set_key(1, KEY, ANOTHER, None);
    cluster.set_key(2, KEY, ANOTHER, None);
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    let first = owner_on(&cluster, 0);
    assert!(first.is_some(), "n0 had granted, and has not yet heard of the release");

    cluster.delete_key(1, KEY);
    cluster.crash(2);
    let (guard, took) = timed(redlock.try_acquire("r")).await;
    let owner = Some(guard.as_ref().unwrap().owner_id().to_string());
    assert_eq!(took, ROUND_TRIP);
    assert_eq!([owner_on(&cluster, 0), owner_on(&cluster, 1)], [owner.clone(), owner.clone()]);
    assert_ne!(owner, first, "each attempt has an id of its own");
}

// Field case 30: the quorum shrank to the servers that the client could see.
#[tokio::test(start_paused = true)]
async fn a_quorum_is_three_of_five_configured_nodes_whichever_can_be_reached() {
    let cluster = SimCluster::new(5);
    let client = cluster.client();
    let redlock = builder(&client).connect().await.unwrap();
    client.set_link(0, LinkFaults::partitioned());
    client.set_link(1, LinkFaults::partitioned());
    let (guard, took) = timed(redlock.try_acquire("r")).await;
    let mut guard = guard.unwrap();
    assert_eq!(took, ROUND_TRIP);
    let (extended, took) = timed(guard.extend(Duration::from_secs(20))).await;
    assert_eq!((extended, took), (Ok(()), ROUND_TRIP));

    client.set_link(2, LinkFaults::partitioned());
    let before = guard.remaining();
    let (error, took) = timed(guard.extend(Duration::from_secs(30))).await;
    let Err(ExtendError::Inconclusive { remaining, nodes }) = error else {
        panic!("two of five decided: {error:?}");
    };
    assert_eq!((took, nodes.failed()), (NODE_TIMEOUT, 3));
    assert_eq!(remaining, guard.remaining(), "what was not confirmed is not relied on");
    assert_eq!(remaining + took, before);

    let (error, took) = timed(redlock.try_acquire("another")).await;
    assert_eq!(no_quorum(&error.unwrap_err()).failed(), 3);
    assert_eq!(took, Duration::ZERO);
}

// Field case 36: a release waited on frozen nodes and threw.
#[tokio::test(start_paused = true)]
async fn a_release_with_most_nodes_frozen_ends_in_time_and_is_made_up_for() {
    let cluster = SimCluster::new(5);
    let redlock = connect(&cluster).await;
    let (guard, other) = (redlock.acquire("r").await.unwrap(), redlock.acquire("s").await.unwrap());
    (0..3).for_each(|node| cluster.freeze(node));

    let (error, took) = timed(guard.release()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ReleaseError::Unconfirmed { .. }), "{error}");
    assert_eq!(timed_out(error.nodes()), [0, 1, 2]);
    assert_eq!(took, NODE_TIMEOUT);
    until("the frozen to be known", || is_silent(&redlock, 0..3)).await;
    let (error, took) = timed(other.release()).await;
    assert!(matches!(error, Err(ReleaseError::Unconfirmed { .. })), "{error:?}");
    assert_eq!(took, Duration::ZERO, "three are known not to answer");
    assert!(redlock.nodes()[..3].iter().all(|node| node.owed_releases == 2));

    pass(MS(20)).await;
    (0..3).for_each(|node| cluster.thaw(node));
    assert_eq!(until_clean(&cluster).await, ROUND_TRIP);
}
