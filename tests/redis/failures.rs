//! What a failure is called, which nodes it names, and what it costs.

use std::{pin::pin, time::Duration};

use quorumlock::{
    AcquireError, ClockDrift, ConnectError, ExtendError, FailedAttempt, LockOptions, NodeOutcome,
    NodeState, OptionsError, Redlock, RedlockBuilder, ReleaseError,
    node::{Answer, NodeFailure},
};
use tokio::time::{Instant, sleep_until};

use crate::support::{
    Fleet, Proxy, Server,
    aftermath::{
        all_vote, is_failure, is_idle, key, no_keys, node, nothing_is_left, places, proxies,
    },
    eventually,
    futures::give_up_after,
};

const NODE_TIMEOUT: Duration = Duration::from_millis(200);
/// What "about a node timeout" may come to on a busy machine.
const ABOUT_A_NODE_TIMEOUT: Duration = Duration::from_millis(800);
/// How soon after a thaw nothing may be left.
const AFTER_THAW: Duration = Duration::from_secs(1);
/// The same after a reconnect, before which there may be a pause of 600 ms.
const AFTER_RECONNECT: Duration = Duration::from_secs(3);

async fn connect(fleet: &Fleet) -> Redlock {
    builder(fleet).connect().await.unwrap()
}

fn builder(fleet: &Fleet) -> RedlockBuilder {
    Redlock::builder().new_fleet().nodes(fleet.urls()).node_timeout(NODE_TIMEOUT)
}

#[track_caller]
fn contended(error: &AcquireError) -> &FailedAttempt {
    let AcquireError::Contended(attempt) = error else { panic!("not contention: {error}") };
    attempt
}

#[track_caller]
fn no_quorum(error: &AcquireError) -> &FailedAttempt {
    let AcquireError::NoQuorum(attempt) = error else { panic!("not an outage: {error}") };
    attempt
}

#[track_caller]
fn unconfirmed(error: &ReleaseError) {
    assert!(matches!(error, ReleaseError::Unconfirmed { .. }), "{error}");
}

fn is_taken(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Answered(Answer::Taken { remaining: Some(_) }))
}

fn is_timeout(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Failed(NodeFailure::Timeout { after }) if *after <= NODE_TIMEOUT)
}

// Field cases 1 and 35.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_another_holds_is_contention() {
    let fleet = Fleet::start(5);
    let (holder, contender) = (connect(&fleet).await, connect(&fleet).await);
    let guard = holder.acquire("r").await.unwrap();
    let held = || fleet.iter().all(|server| server.exists(&key("r")));
    eventually("all nodes to hold it", AFTER_THAW, held);

    let error = contender.try_acquire("r").await.unwrap_err();
    let attempt = contended(&error);
    assert_eq!((attempt.quorum, attempt.attempts), (3, 1));
    assert!(places(&attempt.nodes, is_taken).len() >= 3, "{error}");
    assert_eq!(attempt.nodes.failed(), 0);

    guard.release().await.unwrap();
    contender.try_acquire("r").await.unwrap().release().await.unwrap();
}

// Field cases 1 and 35.
#[tokio::test(flavor = "multi_thread")]
async fn dead_nodes_are_an_outage_and_are_named() {
    let fleet = Fleet::start(5);
    let redlock = connect(&fleet).await;
    for place in [0, 2, 4] {
        fleet[place].kill();
    }

    let error = redlock.try_acquire("r").await.unwrap_err();
    let attempt = no_quorum(&error);
    assert_eq!(places(&attempt.nodes, is_failure), [0, 2, 4]);
    for place in [0, 2, 4] {
        let report = attempt.nodes.as_slice().get(place).unwrap();
        assert_eq!(report.node.as_str(), fleet[place].addr());
        let (line, addr) = (report.to_string(), fleet[place].addr());
        assert!(error.to_string().contains(&line) && line.contains(&addr), "{error}");
    }
    eventually("n1 and n3 to be rid of it", AFTER_THAW, || no_keys(&fleet));
}

// Field cases 1 and 35.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_nodes_are_an_outage_and_exactly_they_timed_out() {
    let fleet = Fleet::start(5);
    let redlock = connect(&fleet).await;
    for place in [1, 2, 3] {
        fleet[place].freeze();
    }

    let started = Instant::now();
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert!(started.elapsed() < ABOUT_A_NODE_TIMEOUT, "{:?}", started.elapsed());
    let attempt = no_quorum(&error);
    assert_eq!(places(&attempt.nodes, is_timeout), [1, 2, 3], "{error}");
    assert_eq!(places(&attempt.nodes, is_failure), [1, 2, 3], "{error}");
}

// Field case 1. The grants come in time; it is the caller that does not run for too long.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_seen_too_late_has_its_validity_used_up() {
    let fleet = Fleet::start(3);
    let (ttl, drift) = (Duration::from_secs(1), Duration::from_millis(500));
    let redlock = builder(&fleet)
        .ttl(ttl)
        .clock_drift(ClockDrift::new(0, drift))
        .node_timeout(Duration::from_millis(450))
        .connect()
        .await
        .unwrap();

    let mut acquiring = pin!(redlock.try_acquire("r"));
    let used_up = Instant::now() + Duration::from_millis(520);
    assert!(give_up_after(1, acquiring.as_mut()).await.is_none());
    sleep_until(used_up).await;

    let error = acquiring.await.unwrap_err();
    let AcquireError::ValidityUsedUp { ttl: asked, elapsed, drift: allowed, attempt } = error
    else {
        panic!("not a used up validity: {error}");
    };
    assert_eq!((asked, allowed), (ttl, drift));
    assert!(elapsed >= drift && elapsed < Duration::from_secs(5), "{elapsed:?}");
    assert!(attempt.nodes.done() >= 2, "{attempt}");
    eventually("the grants to be given back", AFTER_THAW, || is_idle(&redlock) && no_keys(&fleet));
    let released = fleet.iter().filter(|server| server.calls("del") == 1).count();
    assert!(released >= 2, "the keys are released, they do not just expire");
}

// Field case 1.
#[tokio::test(flavor = "multi_thread")]
async fn options_that_cannot_work_are_refused_before_anything_is_sent() {
    let fleet = Fleet::start(3);
    let redlock = builder(&fleet).max_ttl(Duration::from_secs(20)).connect().await.unwrap();
    let with = |ttl| LockOptions::new().ttl(ttl);

    let error = redlock.acquire_with("r", with(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Options(OptionsError::TtlTooShort { .. })), "{error:?}");
    let error = redlock.acquire_with("r", with(Duration::from_secs(21))).await.unwrap_err();
    assert!(matches!(error, AcquireError::Options(OptionsError::TtlTooLong { .. })), "{error:?}");
    let error = redlock.acquire("").await.unwrap_err();
    assert_eq!(error, AcquireError::Options(OptionsError::ResourceEmpty));

    assert!(!error.is_retryable() && error.nodes().is_none());
    assert!(fleet.iter().all(|server| server.operations() == 0));
}

// Field case 1.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_make_no_quorum_are_refused_before_anything_is_sent() {
    let server = Server::start();
    let connects = async |urls: &[String]| Redlock::connect(urls).await.map(drop).unwrap_err();

    assert_eq!(connects(&[]).await, ConnectError::NoNodes);
    assert_eq!(connects(&[server.url()]).await, ConnectError::OneNode);
    let twice = connects(&[server.url(), server.url(), server.url()]).await;
    assert!(
        matches!(&twice, ConnectError::Duplicate { node } if node.as_str() == server.addr()),
        "{twice}"
    );
    let no_url = connects(&[server.url(), "http://a".to_owned(), server.url()]).await;
    assert!(matches!(no_url, ConnectError::Config(_)), "{no_url}");
    assert_eq!(server.total_connections(), 0);
}

// Field case 12.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_one_node_is_one_vote_less_and_no_more() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    fleet[2].kill();
    let guard = redlock.try_acquire("a").await.unwrap();
    guard.release().await.unwrap();

    fleet[1].kill();
    let error = redlock.try_acquire("b").await.unwrap_err();
    assert_eq!(places(&no_quorum(&error).nodes, is_failure), [1, 2]);
    eventually("n0 to grant both times", AFTER_THAW, || fleet[0].grants() == 2);
    eventually("n0 to have no key", AFTER_THAW, || no_keys([&fleet[0]]));
}

// Field case 28. With a node timeout of 5 s an answer in less was not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn even_numbers_of_nodes_are_decided_as_soon_as_they_can_be() {
    let patient = Duration::from_secs(5);
    let (two, four) = (Fleet::start(2), Fleet::start(4));

    let redlock = builder(&two).node_timeout(patient).connect().await.unwrap();
    two[1].kill();
    let started = Instant::now();
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert_eq!(places(&no_quorum(&error).nodes, is_failure), [1]);
    assert!(started.elapsed() < patient, "{:?}", started.elapsed());
    eventually("n0 to have no key", AFTER_THAW, || no_keys(&two));

    let redlock = builder(&four).node_timeout(patient).connect().await.unwrap();
    for place in [1, 3] {
        four[place].set_raw(&key("r"), "other", None);
    }
    let started = Instant::now();
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert_eq!(contended(&error).quorum, 3);
    assert!(started.elapsed() < patient, "{:?}", started.elapsed());
    eventually("our half to be given back", AFTER_THAW, || no_keys([&four[0], &four[2]]));
    assert_eq!(four[1].get(&key("r")).as_deref(), Some("other"));
    assert_eq!(four[3].get(&key("r")).as_deref(), Some("other"));
}

// Field case 28.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_of_two_costs_one_node_timeout() {
    let fleet = Fleet::start(2);
    let redlock = connect(&fleet).await;
    fleet[0].freeze();
    let started = Instant::now();
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert!(started.elapsed() < ABOUT_A_NODE_TIMEOUT, "{:?}", started.elapsed());
    assert_eq!(places(&no_quorum(&error).nodes, is_timeout), [0]);
}

// Field case 29. The second attempt follows at once: the first one's key on n0 must be gone by then.
#[tokio::test(flavor = "multi_thread")]
async fn own_partial_keys_do_not_stand_in_the_way_of_the_next_attempt() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    for place in [1, 2] {
        fleet[place].set_raw(&key("r"), "other", None);
    }
    let error = redlock.try_acquire("r").await.unwrap_err();
    contended(&error);

    fleet[1].del(&key("r"));
    fleet[2].kill();
    let guard = redlock.try_acquire("r").await.unwrap();
    let owner = guard.owner_id().to_string();
    assert_eq!(fleet[0].get(&key("r")), Some(owner.clone()));
    assert_eq!(fleet[1].get(&key("r")), Some(owner));
    guard.release().await.unwrap();
}

// Field case 30.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_down_do_not_lower_the_quorum() {
    let fleet = Fleet::start(5);
    let redlock = connect(&fleet).await;
    fleet[0].kill();
    fleet[1].kill();
    let mut guard = redlock.try_acquire("r").await.unwrap();
    guard.extend(Duration::from_secs(10)).await.unwrap();

    fleet[2].kill();
    let before = guard.remaining();
    let error = guard.extend(Duration::from_secs(30)).await.unwrap_err();
    let ExtendError::Inconclusive { remaining, nodes } = error else {
        panic!("two of five decided: {error}");
    };
    assert_eq!(places(&nodes, is_failure), [0, 1, 2]);
    assert!(!remaining.is_zero());
    assert!(!guard.remaining().is_zero() && guard.remaining() <= before);

    let error = redlock.try_acquire("another").await.unwrap_err();
    assert_eq!(no_quorum(&error).quorum, 3);
    unconfirmed(&guard.release().await.unwrap_err());
    eventually("n3 and n4 to have no key", AFTER_THAW, || no_keys(&fleet));
}

// Field case 36.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_with_most_nodes_frozen_is_bounded_and_made_up_for() {
    let fleet = Fleet::start(5);
    let redlock = connect(&fleet).await;
    let guard = redlock.acquire("r").await.unwrap();
    eventually("all nodes to hold it", AFTER_THAW, || {
        is_idle(&redlock) && fleet.iter().all(|server| server.exists(&key("r")))
    });
    for place in [0, 1, 2] {
        fleet[place].freeze();
    }

    let started = Instant::now();
    let error = guard.release().await.unwrap_err();
    assert!(started.elapsed() < ABOUT_A_NODE_TIMEOUT, "{:?}", started.elapsed());
    assert_eq!(places(error.nodes(), is_timeout), [0, 1, 2]);
    unconfirmed(&error);
    assert!([0, 1, 2].iter().all(|place| node(&redlock, *place).owed_releases == 1));

    for place in [0, 1, 2] {
        fleet[place].thaw();
    }
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
}

// Field case 64.
#[tokio::test(flavor = "multi_thread")]
async fn acquiring_with_all_nodes_down_ends_at_its_deadline_and_connects_seldom() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = Redlock::builder()
        .nodes(proxies.iter().map(Proxy::url))
        .new_fleet()
        .connect()
        .await
        .unwrap();
    proxies.iter().for_each(Proxy::cut);
    fleet.iter().for_each(Server::kill);
    let connections = || proxies.iter().map(Proxy::connections).sum::<u64>();
    let before = connections();

    let wait = Duration::from_secs(2);
    let started = Instant::now();
    let options = LockOptions::new().wait_timeout(wait);
    let error = redlock.acquire_with("r", options).await.unwrap_err();
    let took = started.elapsed();
    assert!(took >= wait && took < Duration::from_secs(4), "{took:?}");
    let attempt = no_quorum(&error);
    assert!(attempt.nodes.failed() >= 2, "{error}");
    assert!(attempt.attempts > 1 && attempt.attempts < 200, "{} attempts", attempt.attempts);
    let connects = connections().saturating_sub(before);
    assert!((3..200).contains(&connects), "{connects} connects");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_costs_its_timeout_once_and_votes_again_when_it_is_back() {
    let fleet = Fleet::start(3);
    let timeout = Duration::from_millis(500);
    let redlock = builder(&fleet).node_timeout(timeout).connect().await.unwrap();
    fleet[0].freeze();
    fleet[1].freeze();
    let started = Instant::now();
    let error = redlock.try_acquire("a").await.unwrap_err();
    assert!(started.elapsed() >= timeout, "{:?}: {error}", started.elapsed());
    let seen = || [0, 1].iter().all(|n| node(&redlock, *n).state == NodeState::Unresponsive);
    eventually("both to be seen as frozen", AFTER_THAW, seen);

    let started = Instant::now();
    let error = redlock.try_acquire("b").await.unwrap_err();
    let took = started.elapsed();
    assert!(took.saturating_mul(4) < timeout, "{took:?}: {error}");
    let is_unresponsive =
        |outcome: &NodeOutcome| *outcome == NodeOutcome::Failed(NodeFailure::Unresponsive);
    assert_eq!(places(&no_quorum(&error).nodes, is_unresponsive), [0, 1]);

    fleet[0].thaw();
    fleet[1].thaw();
    eventually("both to vote again", AFTER_THAW, || all_vote(&redlock));
    assert!(no_keys([&fleet[0], &fleet[1]]), "a node that votes has caught up");
    redlock.try_acquire("b").await.unwrap().release().await.unwrap();
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
}

/// How long acquiring and releasing take, sorted.
async fn pairs(redlock: &Redlock) -> Vec<Duration> {
    let mut took = Vec::new();
    for pair in 0..50 {
        let started = Instant::now();
        let guard = redlock.try_acquire(&format!("r{pair}")).await.unwrap();
        guard.release().await.unwrap();
        took.push(started.elapsed());
    }
    took.sort();
    took
}

// Field case 11. The node timeout is far above what a pair may take: none may wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn one_frozen_node_of_five_slows_nothing_down() {
    let fleet = Fleet::start(5);
    let timeout = Duration::from_secs(2);
    let redlock = builder(&fleet).node_timeout(timeout).connect().await.unwrap();
    let healthy = pairs(&redlock).await;
    fleet[3].freeze();
    let frozen = pairs(&redlock).await;

    let median = |took: &[Duration]| *took.get(25).unwrap();
    let bound = median(&healthy).saturating_mul(20).saturating_add(Duration::from_millis(5));
    assert!(median(&frozen) < bound, "{:?}, healthy {:?}", median(&frozen), median(&healthy));
    assert!(*frozen.last().unwrap() < timeout, "{:?}", frozen.last());
    fleet[3].thaw();
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_down_at_the_start_is_picked_up_when_it_comes() {
    let fleet = Fleet::start(3);
    fleet[2].kill();
    // It is not one of those that are new together, so it waits for as long as a lock may live.
    let ttl = Duration::from_millis(500);
    let redlock = builder(&fleet).ttl(ttl).max_ttl(ttl).connect().await.unwrap();
    assert!(matches!(node(&redlock, 2).state, NodeState::Unreachable { .. }));
    redlock.try_acquire("r").await.unwrap().release().await.unwrap();

    fleet[2].restart();
    eventually("n2 to vote", AFTER_RECONNECT, || all_vote(&redlock));
    let guard = redlock.try_acquire("r").await.unwrap();
    eventually("n2 to hold it, too", AFTER_THAW, || fleet[2].exists(&key("r")));
    guard.release().await.unwrap();
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_to_a_minority_fails_in_time_and_leaves_no_connection() {
    let fleet = Fleet::start(3);
    fleet[0].kill();
    fleet[1].freeze();
    let limit = Duration::from_millis(400);
    let started = Instant::now();
    let error = builder(&fleet).connect_timeout(limit).connect().await.unwrap_err();
    let ConnectError::NoQuorum { connected, quorum, waited, nodes } = error else {
        panic!("not an outage: {error}");
    };
    assert_eq!((connected, quorum, waited), (1, 2, limit));
    let named: Vec<_> = nodes.iter().map(|report| report.node.to_string()).collect();
    assert_eq!(named, [fleet[0].addr(), fleet[1].addr()]);
    let took = started.elapsed();
    assert!(took >= limit && took < limit.saturating_mul(4), "{took:?}");
    eventually("the connection to n2 to end", AFTER_THAW, || fleet[2].clients() == 0);
}
