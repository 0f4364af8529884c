//! What an attempt or a release leaves on nodes that did not answer is taken away when they do.
//!
//! The servers' own counts of SET and DEL tell a key that was released from one that expired or was
//! never set.

use std::time::Duration;

use quorumlock::{
    AcquireError, LockOptions, NodeOutcome, NodeState, Redlock, RedlockBuilder, ReleaseError,
    node::NodeFailure,
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Fleet, Proxy, Server,
    aftermath::{
        all_vote, is_failure, is_idle, key, no_keys, node, nothing_is_left, places, proxies,
    },
    eventually,
    futures::{eventually_async, give_up_after},
};

/// How soon after a thaw nothing may be left.
const AFTER_THAW: Duration = Duration::from_secs(1);
/// The same after a reconnect, before which there may be a pause of 600 ms.
const AFTER_RECONNECT: Duration = Duration::from_secs(3);
/// How long a lane waits for a silent connection, and more.
const BEYOND_PATIENCE: Duration = Duration::from_secs(5);

fn through(proxies: &[Proxy]) -> RedlockBuilder {
    Redlock::builder().new_fleet().trust_durability().nodes(proxies.iter().map(Proxy::url))
}

/// Fails to acquire because the nodes at these places do not answer.
#[track_caller]
fn silent(error: &AcquireError, expected: &[usize]) {
    assert!(error.is_no_quorum(), "{error}");
    assert_eq!(places(error.nodes().unwrap(), is_failure), expected, "{error}");
}

/// Fails to acquire because connections were lost with the acquire on the way.
#[track_caller]
fn silent_by_loss(error: &AcquireError) {
    assert!(error.is_no_quorum(), "{error}");
    let lost = places(error.nodes().unwrap(), |outcome| {
        matches!(outcome, NodeOutcome::Failed(NodeFailure::Disconnected { .. }))
    });
    assert!(lost.len() >= 2, "{error}");
}

/// Fails to acquire because so many nodes did not answer that no quorum was possible.
#[track_caller]
fn silent_at_quorum(error: &AcquireError) {
    assert!(error.is_no_quorum(), "{error}");
    assert!(error.nodes().unwrap().failed() >= 2, "{error}");
}

/// Waits until it is known of these nodes that they are out: until then they seem to vote.
#[track_caller]
fn wait_until_out(redlock: &Redlock, places: &[usize]) {
    eventually("the nodes to be seen as out", AFTER_THAW, || {
        places.iter().all(|place| node(redlock, *place).state != NodeState::Voting)
    });
}

/// Waits until all nodes vote, and sees to it that none has any key then: voting starts only after
/// everything that was missed is done.
#[track_caller]
fn all_are_back_and_clean(redlock: &Redlock, fleet: &Fleet, limit: Duration) {
    eventually("all nodes to vote", limit, || all_vote(redlock));
    assert!(no_keys(fleet), "a node votes before it has caught up");
    assert!(is_idle(redlock), "{redlock:?}");
}

/// Each of the servers executed our acquire, and then a release that found the key.
#[track_caller]
fn set_and_released(servers: &[&Server]) {
    for server in servers {
        let counts = (server.grants(), server.calls("del"));
        assert_eq!(counts, (1, 1), "SET and DEL on {}", server.addr());
    }
}

/// Loses the connections of proxies that dropped bytes: after a gap in the stream nothing on them
/// means anything, and no real network makes one.
fn heal(redlock: &Redlock, proxies: &[Proxy], places: &[usize]) {
    let proxies = || places.iter().map(|place| proxies.get(*place).unwrap());
    proxies().for_each(Proxy::cut);
    wait_until_out(redlock, places);
    proxies().for_each(Proxy::pass);
}

// Field case 14.
#[tokio::test(flavor = "multi_thread")]
async fn a_thawed_majority_keeps_no_key_of_an_attempt_that_timed_out() {
    let fleet = Fleet::start(5);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    for place in [0, 1, 2] {
        fleet[place].freeze();
    }
    silent(&redlock.try_acquire("r").await.unwrap_err(), &[0, 1, 2]);
    wait_until_out(&redlock, &[0, 1, 2]);
    for place in [0, 1, 2] {
        fleet[place].thaw();
    }
    all_are_back_and_clean(&redlock, &fleet, AFTER_THAW);
    set_and_released(&fleet.iter().collect::<Vec<_>>());
}

// Field case 14, with a crash and a disk in between.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_survive_a_crash_on_disk_are_released_after_the_restart() {
    let fleet = Fleet::with_args(3, &["--appendonly", "yes", "--appendfsync", "always"]);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = grants_lost_with_the_connection(&fleet, &proxies).await;
    for server in &fleet {
        server.restart();
        assert!(server.exists(&key("r")), "the key survives, or this tests nothing");
    }
    proxies.iter().for_each(Proxy::pass);
    all_are_back_and_clean(&redlock, &fleet, AFTER_RECONNECT);
    assert!(fleet.iter().all(|server| server.calls("del") == 1), "released, not expired");
}

// Field case 20. n0 grants, n1 grants and is not heard, n2 is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_grant_was_not_heard_is_released_like_the_others() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    fleet[2].kill();
    proxies[1].drop_replies();
    silent(&redlock.try_acquire("r").await.unwrap_err(), &[1, 2]);
    eventually("n1 to grant", AFTER_THAW, || fleet[1].grants() == 1);
    eventually("n0 to be rid of it", AFTER_THAW, || no_keys([&fleet[0]]));

    heal(&redlock, &proxies, &[1]);
    eventually("n1 to be rid of it", AFTER_RECONNECT, || no_keys([&fleet[1]]));
    set_and_released(&[&fleet[0], &fleet[1]]);
}

/// Fails to acquire because all connections are cut after the nodes granted and before they are
/// heard. The proxies are still cut then, so that nothing can be released yet.
async fn grants_lost_with_the_connection(fleet: &Fleet, proxies: &[Proxy]) -> Redlock {
    let patient = through(proxies).node_timeout(Duration::from_secs(5));
    let redlock = patient.connect().await.unwrap();
    proxies.iter().for_each(Proxy::drop_replies);
    let cut = async {
        while !fleet.iter().all(|server| server.exists(&key("r"))) {
            sleep(Duration::from_millis(1)).await;
        }
        proxies.iter().for_each(Proxy::cut);
    };
    let both = async { tokio::join!(redlock.try_acquire("r"), cut) };
    let (attempt, ()) = timeout(Duration::from_secs(5), both).await.unwrap();
    silent_by_loss(&attempt.unwrap_err());
    wait_until_out(&redlock, &[0, 1, 2]);
    assert!(fleet.iter().all(|server| server.exists(&key("r"))), "nobody could release yet");
    redlock
}

// Field case 14. The connections are lost between the execution and the answer. The way back is slow,
// so that it would show if a node voted before its releases are answered.
#[tokio::test(flavor = "multi_thread")]
async fn grants_that_were_lost_with_the_connection_are_released_on_the_next() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = grants_lost_with_the_connection(&fleet, &proxies).await;
    for proxy in &proxies {
        proxy.delay(Duration::from_millis(20));
    }
    all_are_back_and_clean(&redlock, &fleet, AFTER_RECONNECT);
    set_and_released(&fleet.iter().collect::<Vec<_>>());
}

// Field case 14. The acquires are still on their way when the client is back on new connections and
// has released there; they reach the servers afterwards, on connections that have to be dead by then.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_arrives_after_its_release_is_never_executed() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    proxies.iter().for_each(Proxy::hold_requests);
    silent_at_quorum(&redlock.try_acquire("r").await.unwrap_err());
    assert!(proxies.iter().all(|proxy| proxy.held_bytes() > 0), "the acquires are on their way");

    proxies.iter().for_each(Proxy::orphan);
    wait_until_out(&redlock, &[0, 1, 2]);
    proxies.iter().for_each(Proxy::pass);
    all_are_back_and_clean(&redlock, &fleet, AFTER_RECONNECT);

    proxies.iter().for_each(Proxy::release_orphans);
    eventually("what was on its way to arrive", AFTER_THAW, || {
        proxies.iter().all(|proxy| proxy.orphans() == 0 && proxy.held_bytes() == 0)
    });
    // A server that had the bytes executes them before it answers what came later.
    for _ in 0..20 {
        assert!(no_keys(&fleet), "an acquire ran after its release");
    }
    for server in &fleet {
        assert_eq!(server.grants(), 0, "nothing was set, ever");
        assert!(server.calls("client|kill") > 0, "the old connection was closed first");
    }
}

// Field case 14. A command in a frozen server's buffer runs after the thaw and its ttl counts from
// then: what is owed must not be forgotten at the ttl's end.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_runs_long_after_its_ttl_is_released_all_the_same() {
    let fleet = Fleet::start(3);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    fleet[0].freeze();
    fleet[1].freeze();
    let ttl = Duration::from_millis(400);
    let options = LockOptions::new().ttl(ttl).wait_timeout(Duration::ZERO);
    let error = redlock.acquire_with("r", options).await.unwrap_err();
    silent_at_quorum(&error);
    wait_until_out(&redlock, &[0, 1]);
    sleep(ttl.saturating_mul(3)).await;

    fleet[0].thaw();
    fleet[1].thaw();
    all_are_back_and_clean(&redlock, &fleet, AFTER_THAW);
    set_and_released(&[&fleet[0], &fleet[1]]);
}

// Field case 14. Nobody waits for ever on one connection; the next one finds everything in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_frozen_for_so_long_that_its_connection_is_given_up_comes_back_clean() {
    let fleet = Fleet::start(3);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    fleet[0].freeze();
    fleet[1].freeze();
    silent_at_quorum(&redlock.try_acquire("r").await.unwrap_err());
    eventually("both connections to be given up", BEYOND_PATIENCE, || {
        [0, 1].iter().all(|n| matches!(node(&redlock, *n).state, NodeState::Unreachable { .. }))
    });
    fleet[0].thaw();
    fleet[1].thaw();
    all_are_back_and_clean(&redlock, &fleet, AFTER_THAW);
    for server in [&fleet[0], &fleet[1]] {
        assert_eq!(server.grants(), server.calls("del"), "what was set was released");
        assert!(server.calls("client|kill") > 0, "the old connection was closed first");
    }
    redlock.try_acquire("r").await.unwrap().release().await.unwrap();
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_of_a_granted_lock_is_released_with_the_guard() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let patient = through(&proxies).node_timeout(Duration::from_secs(3));
    let redlock = patient.connect().await.unwrap();
    proxies[2].hold();
    let guard = redlock.try_acquire("r").await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(fleet[2].grants(), 0, "n2 is late, or this tests nothing");
    proxies[2].pass();
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
    set_and_released(&fleet.iter().collect::<Vec<_>>());
}

// As above, with a guard that is dropped, and a minority that grants while the lock is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_that_grants_while_the_lock_is_held_is_released_with_the_guard() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let patient = through(&proxies).node_timeout(Duration::from_secs(3));
    let redlock = patient.connect().await.unwrap();
    proxies[0].hold();
    let guard = redlock.try_acquire("r").await.unwrap();
    assert_eq!(guard.nodes().done(), 2);
    proxies[0].pass();
    eventually("n0 to grant, too", AFTER_THAW, || guard.nodes().done() == 3);
    drop(guard);
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
    set_and_released(&fleet.iter().collect::<Vec<_>>());
}

/// Releases while a majority loses what `lose` says, and heals it.
async fn release_during(lose: fn(&Proxy)) {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    let guard = redlock.acquire("r").await.unwrap();
    eventually("all nodes to grant", AFTER_THAW, || guard.nodes().done() == 3);

    proxies[..2].iter().for_each(lose);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unconfirmed { .. }), "{error}");
    assert_eq!(places(error.nodes(), is_failure), [0, 1]);
    assert!([0, 1].iter().all(|place| node(&redlock, *place).owed_releases == 1), "{redlock:?}");

    heal(&redlock, &proxies, &[0, 1]);
    all_are_back_and_clean(&redlock, &fleet, AFTER_RECONNECT);
    set_and_released(&fleet.iter().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_is_owed_until_it_is_answered() {
    release_during(Proxy::drop_replies).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_lost_is_sent_again() {
    release_during(Proxy::drop_requests).await;
}

// Else the books would grow for as long as a node is down.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_owed_to_a_node_that_was_never_asked() {
    let fleet = Fleet::start(3);
    fleet[2].kill();
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    for pair in 0..200 {
        let guard = redlock.try_acquire(&format!("r{pair}")).await.unwrap();
        if pair % 2 == 0 {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
    }
    nothing_is_left(&redlock, &fleet, AFTER_THAW);
}

// The same where the caller has gone before the lane could say that it did not ask: on this runtime
// no lane runs between the first poll and the drop.
#[tokio::test]
async fn nothing_is_owed_to_a_node_that_was_never_asked_by_a_caller_that_has_gone() {
    let fleet = Fleet::start(3);
    fleet[2].kill();
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    for number in 0..50 {
        let resource = format!("r{number}");
        assert!(give_up_after(1, redlock.try_acquire(&resource)).await.is_none());
    }
    let clean = || is_idle(&redlock) && no_keys(&fleet);
    eventually_async("nothing to be owed to anyone", AFTER_THAW, clean).await;
    assert_eq!(fleet[0].grants(), 50, "the others were asked");
}

// A node that comes and goes while locks are taken: whatever it executed and when, nothing stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_keeps_losing_its_connection_keeps_no_key() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    let until = Instant::now() + Duration::from_millis(1_500);
    let lock = async {
        let mut locks = 0_u32;
        while Instant::now() < until {
            let guard = redlock.acquire(&format!("r{}", locks % 7)).await.unwrap();
            if locks % 2 == 0 {
                guard.release().await.unwrap();
            }
            locks = locks.saturating_add(1);
        }
        locks
    };
    let flap = async {
        while Instant::now() < until {
            sleep(Duration::from_millis(40)).await;
            proxies[1].cut_once();
        }
    };
    let both = async { tokio::join!(lock, flap) };
    let (locks, ()) = timeout(Duration::from_secs(10), both).await.unwrap();
    assert!(locks > 20, "{locks} locks");
    eventually("all nodes to vote", AFTER_RECONNECT, || all_vote(&redlock));
    nothing_is_left(&redlock, &fleet, AFTER_RECONNECT);
}
