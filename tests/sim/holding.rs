//! What becomes of a lock while it is held, to the millisecond.
//!
//! Messages take 1 ms one way, unless a test says otherwise. All locks are asked for 100 ms after the
//! world began, so that a renewal is due at 1,100 ms.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::select_all;
use quorumlock::{
    ExtendError, LockGuard, LockOptions, Redlock, RedlockBuilder, WithLockError,
    sim::{LinkFaults, Persistence, SimClient, SimCluster},
};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use crate::{
    behaviours::{holders, owner_on, pass, spread, timed, until},
    support::futures::give_up_after,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const ROUND_TRIP: Duration = Duration::from_millis(2);
const NODE_TIMEOUT: Duration = Duration::from_millis(200);
const TTL: Duration = Duration::from_secs(3);
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// What the drift leaves of the ttl.
const VALIDITY: Duration = Duration::from_millis(2_968);
/// When the locks are asked for.
const ASKED: Duration = Duration::from_millis(100);
/// When the first renewal is due.
const FIRST_RENEWAL: Duration = Duration::from_millis(1_100);
const KEY: &str = "quorumlock:lock:r";

fn builder(client: &SimClient) -> RedlockBuilder {
    Redlock::builder().new_fleet().sim_client(client).ttl(TTL).node_timeout(NODE_TIMEOUT)
}

/// A lock on "r", asked for 100 ms after the world began.
async fn hold_by(
    cluster: &SimCluster,
    builder: RedlockBuilder,
    options: LockOptions,
) -> (Redlock, LockGuard) {
    let redlock = builder.connect().await.unwrap();
    at(cluster, ASKED).await;
    let guard = redlock.acquire_with("r", options).await.unwrap();
    (redlock, guard)
}

async fn hold(cluster: &SimCluster) -> (SimClient, Redlock, LockGuard) {
    let client = cluster.client();
    let (redlock, guard) = hold_by(cluster, builder(&client), LockOptions::new()).await;
    assert_eq!(guard.remaining(), VALIDITY - ROUND_TRIP);
    (client, redlock, guard)
}

/// Waits until so long after the world began. What is due then has not happened yet.
async fn at(cluster: &SimCluster, moment: Duration) {
    sleep(moment.checked_sub(cluster.now()).expect("it is still to come")).await;
}

/// When the client sent such operations to the node, in milliseconds.
fn sent(trace: &str, client: usize, node: usize, operation: &str) -> Vec<u64> {
    let (way, operation) = (format!("c{client} → n{node} "), format!(" {operation} {{"));
    let lines = trace.lines().filter(|line| line.contains(&way) && line.contains(&operation));
    lines.map(milliseconds).collect()
}

fn milliseconds(line: &str) -> u64 {
    let (seconds, _) = line.trim_start_matches('[').split_once(']').expect("a time");
    let (whole, thousandths) = seconds.trim().split_once('.').expect("a fraction");
    whole.parse::<u64>().unwrap() * 1_000 + thousandths.parse::<u64>().unwrap()
}

fn partition(client: &SimClient, node: usize) {
    client.set_link(node, LinkFaults::partitioned());
}

fn heal(client: &SimClient, node: usize) {
    client.set_link(node, LinkFaults::default());
}

fn has_token(guard: &LockGuard) -> bool {
    guard.lost_token().is_cancelled()
}

/// Whether `lost` is pending now.
async fn is_not_lost(guard: &LockGuard) -> bool {
    !guard.is_lost() && !has_token(guard) && give_up_after(1, guard.lost()).await.is_none()
}

// Renewals.

#[tokio::test(start_paused = true)]
async fn a_held_lock_is_renewed_every_third_of_its_ttl_with_one_operation_per_node() {
    let cluster = SimCluster::new(3);
    let (_, _redlock, guard) = hold(&cluster).await;
    cluster.start_trace();
    let before = cluster.operations();
    pass(MS(10_000)).await;
    let trace = cluster.take_trace();
    let expected: Vec<u64> = (1..=10).map(|n| 100 + n * 1_000).collect();
    for node in 0..3 {
        assert_eq!(sent(&trace, 0, node, "Extend"), expected);
    }
    assert_eq!(cluster.operations() - before, 30);
    assert_eq!(guard.remaining(), VALIDITY - ROUND_TRIP, "counted from the last renewal");
    assert!((0..3).all(|node| cluster.pttl(node, KEY) == 2_999));
    assert!(is_not_lost(&guard).await);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_when_its_options_or_its_builder_say_and_not_if_they_say_never() {
    let (options, every) = (LockOptions::new(), MS(400));
    let count = async |change: fn(RedlockBuilder) -> RedlockBuilder, options: LockOptions| {
        let cluster = SimCluster::new(3);
        let builder = change(builder(&cluster.client()));
        let (_redlock, guard) = hold_by(&cluster, builder, options).await;
        let before = cluster.operations();
        pass(MS(2_100)).await;
        assert!(is_not_lost(&guard).await);
        (cluster.operations() - before) / 3
    };
    assert_eq!(count(|b| b, options).await, 2);
    assert_eq!(count(|b| b, options.renew_every(every)).await, 5);
    assert_eq!(count(|b| b, options.without_renewal()).await, 0);
    assert_eq!(count(|b| b.renew_every(MS(400)), options).await, 5);
    assert_eq!(count(RedlockBuilder::without_renewal, options).await, 0);
    assert_eq!(count(RedlockBuilder::without_renewal, options.renew_every(every)).await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_renewed_is_lost_at_the_end_of_its_validity() {
    let cluster = SimCluster::new(3);
    let options = LockOptions::new().without_renewal();
    let (_redlock, guard) = hold_by(&cluster, builder(&cluster.client()), options).await;
    let ((), took) = timed(guard.lost()).await;
    assert_eq!(took, VALIDITY - ROUND_TRIP);
    pass(Duration::ZERO).await;
    assert!(guard.is_lost() && has_token(&guard));
    assert_eq!(holders(&cluster), [0, 1, 2], "the release is on its way");
    pass(MS(1)).await;
    assert_eq!(holders(&cluster), [0; 0], "and comes 31 ms before the keys would have gone");
}

// Field case 10: a stuck holder renewed for ever.
#[tokio::test(start_paused = true)]
async fn renewals_end_with_the_longest_hold_and_so_does_the_lock() {
    let cluster = SimCluster::new(3);
    let options = LockOptions::new().max_hold(TTL * 3);
    let client = cluster.client();
    let (_redlock, guard) = hold_by(&cluster, builder(&client), options).await;
    cluster.start_trace();
    let ((), took) = timed(guard.lost()).await;
    assert_eq!(took, TTL * 3 - ROUND_TRIP);
    pass(MS(1)).await;
    assert!(has_token(&guard));
    assert_eq!(holders(&cluster), [0; 0]);
    pass(TTL).await;
    // That of 7,100 ms gave it validity until 9,100 ms, which is the end.
    let expected: Vec<u64> = (1..=7).map(|n| 100 + n * 1_000).collect();
    assert_eq!(sent(&cluster.take_trace(), 0, 0, "Extend"), expected);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_shorter_than_the_validity_cuts_it_down_and_no_extension_lengthens_it() {
    let cluster = SimCluster::new(3);
    let options = LockOptions::new().max_hold(MS(500));
    let (_redlock, mut guard) = hold_by(&cluster, builder(&cluster.client()), options).await;
    assert_eq!(guard.remaining(), MS(500) - ROUND_TRIP);
    guard.extend(TTL * 2).await.unwrap();
    assert_eq!(guard.remaining(), MS(500) - ROUND_TRIP * 2);
    let ((), took) = timed(guard.lost()).await;
    assert_eq!(took, MS(500) - ROUND_TRIP * 2);
}

#[tokio::test(start_paused = true)]
async fn a_longer_extension_stands_and_renewals_wait_until_they_can_add_to_it() {
    let cluster = SimCluster::new(3);
    let (_, _redlock, mut guard) = hold(&cluster).await;
    guard.extend(TTL * 4).await.unwrap();
    let long = guard.remaining();
    assert_eq!(long, MS(12_000 - 122) - ROUND_TRIP);
    cluster.start_trace();
    for _ in 0..100 {
        pass(MS(90)).await;
        assert!((0..3).all(|node| cluster.pttl(node, KEY) >= 2_900));
    }
    assert_eq!(guard.remaining(), long - MS(9_000));
    assert_eq!(sent(&cluster.take_trace(), 0, 0, "Extend"), [0; 0]);
    pass(TTL).await;
    assert!(is_not_lost(&guard).await, "then they go on");
}

// Loss.

// Field case 4: no way to know that the lock is gone.
#[tokio::test(start_paused = true)]
async fn with_a_majority_frozen_the_lock_is_lost_at_the_end_of_its_validity_by_its_own_clock() {
    for ppm in [0, 5_000, -5_000] {
        let cluster = SimCluster::new(3);
        let client = cluster.client_with_clock(ppm);
        let (_redlock, guard) = hold_by(&cluster, builder(&client), LockOptions::new()).await;
        cluster.freeze(0);
        cluster.freeze(1);
        let left = client.true_span(guard.remaining());
        let ((), took) = timed(guard.lost()).await;
        assert!(took >= left && took < left + ROUND_TRIP, "{took:?} of {left:?} at {ppm} ppm");
        if ppm == 0 {
            assert_eq!((took, left), (VALIDITY - ROUND_TRIP, VALIDITY - ROUND_TRIP));
        }
        pass(MS(1)).await;
        assert!(guard.is_lost() && has_token(&guard));
        assert_eq!(holders(&cluster), [0, 1], "n2 is told at once");
        cluster.thaw(0);
        cluster.thaw(1);
        until("the others to be told", || holders(&cluster) == [0; 0]).await;
        pass(TTL).await;
        assert_eq!(holders(&cluster), [0; 0], "nothing is renewed or set again");
    }
}

// Field case 4.
#[tokio::test(start_paused = true)]
async fn keys_that_are_gone_on_a_majority_are_a_loss_at_the_answers_to_the_next_renewal() {
    for another in [None, Some("another")] {
        let cluster = SimCluster::new(3);
        let (_, redlock, guard) = hold(&cluster).await;
        for node in [0, 1] {
            cluster.delete_key(node, KEY);
            if another.is_some() {
                cluster.set_key(node, KEY, another, None);
            }
        }
        let ((), took) = timed(guard.lost()).await;
        assert_eq!(cluster.now(), FIRST_RENEWAL + ROUND_TRIP, "after {took:?}");
        assert!(guard.is_lost() && has_token(&guard));
        assert_eq!(guard.at_risk().await, Duration::ZERO);
        pass(MS(10)).await;
        assert_eq!(owner_on(&cluster, 2), Some(guard.owner_id().to_string()), "not given back");
        assert!(guard.release().await.unwrap_err().is_lost());
        let left = if another.is_some() { vec![0, 1] } else { vec![] };
        assert_eq!(holders(&cluster), left, "nothing of ours");
        assert_eq!(owner_on(&cluster, 0).as_deref(), another);
        assert!(redlock.nodes().iter().all(|node| node.owed_releases == 0));
    }
}

/// A lock that is lost since one of the three nodes that granted it was flushed: two were away then. When
/// it was told of the loss.
async fn lost_by_a_flush(cluster: &SimCluster) -> (Redlock, LockGuard, Redlock) {
    let other = builder(&cluster.client()).connect().await.unwrap();
    let redlock = builder(&cluster.client()).connect().await.unwrap();
    (0..2).for_each(|node| cluster.freeze(node));
    at(cluster, ASKED).await;
    let guard = redlock.acquire("r").await.unwrap();
    // What they were asked for before is not executed any more.
    pass(MS(600)).await;
    for node in 0..2 {
        cluster.thaw(node);
        cluster.delete_key(node, KEY);
    }
    cluster.flush_all(2);
    assert!(timeout(RENEW_EVERY, guard.lost()).await.is_ok(), "three of five say no");
    (redlock, guard, other)
}

// Found by the chaos suite: whoever had looked just before could rely on the lock no longer, since the
// loss gave it to the next at once.
#[tokio::test(start_paused = true)]
async fn nobody_else_is_let_in_after_a_loss_before_the_end_of_what_the_holder_was_told() {
    let cluster = SimCluster::new(5);
    let (redlock, guard, other) = lost_by_a_flush(&cluster).await;
    let end = ASKED + VALIDITY;
    assert!(cluster.now() < end - MS(500), "long before the end: {:?}", cluster.now());
    while cluster.now() < end - MS(50) {
        other.try_acquire("r").await.expect_err("the holder may still believe what it was told");
        pass(MS(20)).await;
    }
    assert!(guard.is_lost() && has_token(&guard));
    // At the end what is left is given back, though nobody gave the guard back.
    at(&cluster, end + ROUND_TRIP).await;
    assert_eq!(holders(&cluster), [0; 0]);
    other.try_acquire("r").await.unwrap().release().await.unwrap();
    assert!(guard.release().await.unwrap_err().is_lost());
    assert!(redlock.nodes().iter().all(|node| node.owed_releases == 0));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_before_its_end_is_free_once_its_holder_gives_it_back() {
    for released in [true, false] {
        let cluster = SimCluster::new(5);
        let (_redlock, guard, other) = lost_by_a_flush(&cluster).await;
        if released {
            assert!(guard.release().await.unwrap_err().is_lost());
        } else {
            drop(guard);
        }
        pass(ROUND_TRIP).await;
        assert_eq!(holders(&cluster), [0; 0]);
        other.try_acquire("r").await.unwrap().release().await.unwrap();
    }
}

// Field case 9: after a pause the renewal re-created the key.
#[tokio::test(start_paused = true)]
async fn a_client_that_was_paused_for_too_long_has_lost_and_sets_nothing_again() {
    // Before the renewal, while it is on its way there, and while its answers are on their way back.
    for paused_ms in [500, 1_099, 1_100, 1_101, 1_102, 1_103] {
        for yields in 0..3 {
            let cluster = SimCluster::new(3);
            let (client, _redlock, guard) = hold(&cluster).await;
            at(&cluster, MS(paused_ms)).await;
            for _ in 0..yields {
                yield_now().await;
            }
            client.pause();
            pass(TTL + TTL).await;
            assert_eq!(holders(&cluster), [0; 0], "expired");
            let other = builder(&cluster.client()).connect().await.unwrap();
            other.try_acquire("r").await.unwrap().release().await.unwrap();
            assert!(guard.is_lost() && !has_token(&guard), "nobody was there to tell of it");

            cluster.start_trace();
            client.resume();
            pass(Duration::ZERO).await;
            assert!(has_token(&guard), "paused at {paused_ms} ms");
            pass(TTL).await;
            assert_eq!(holders(&cluster), [0; 0]);
            let trace = cluster.take_trace();
            for node in 0..3 {
                for operation in ["Extend", "Acquire"] {
                    assert_eq!(sent(&trace, 0, node, operation), [0; 0], "{trace}");
                }
            }
            assert!(guard.release().await.unwrap_err().is_lost());
        }
    }
}

// The same where the renewal becomes a refill: what was not sent before the pause is not sent after it.
#[tokio::test(start_paused = true)]
async fn a_client_that_was_paused_in_a_refill_sets_nothing_again_when_it_goes_on() {
    for yields in 0..8 {
        let cluster = SimCluster::new(3);
        let (client, _redlock, guard) = hold(&cluster).await;
        cluster.delete_key(0, KEY);
        at(&cluster, FIRST_RENEWAL + ROUND_TRIP).await;
        for _ in 0..yields {
            yield_now().await;
        }
        client.pause();
        pass(TTL * 3).await;
        assert_eq!(holders(&cluster), [0; 0], "expired");
        cluster.start_trace();
        client.resume();
        pass(TTL).await;
        let trace = cluster.take_trace();
        assert!(has_token(&guard));
        assert_eq!(holders(&cluster), [0; 0], "after {yields} yields");
        assert_eq!(sent(&trace, 0, 0, "Acquire"), [0; 0], "after {yields} yields: {trace}");
    }
}

// Field case 39: declared lost on one failed poll.
#[tokio::test(start_paused = true)]
async fn one_renewal_that_fails_is_a_risk_and_no_loss() {
    let cluster = SimCluster::new(3);
    let (client, _redlock, guard) = hold(&cluster).await;
    assert!(give_up_after(1, guard.at_risk()).await.is_none());
    at(&cluster, MS(1_050)).await;
    partition(&client, 0);
    partition(&client, 1);

    let (left, took) = timed(guard.at_risk()).await;
    assert_eq!(took, MS(50) + NODE_TIMEOUT);
    assert_eq!(left, ASKED + VALIDITY - FIRST_RENEWAL - NODE_TIMEOUT);
    assert_eq!(guard.at_risk().await, left, "at once, as long as it is so");
    assert!(is_not_lost(&guard).await);

    heal(&client, 0);
    heal(&client, 1);
    pass(RENEW_EVERY).await;
    assert!(is_not_lost(&guard).await);
    assert!(guard.remaining() > VALIDITY - RENEW_EVERY - MS(50), "{:?}", guard.remaining());
    assert!(give_up_after(1, guard.at_risk()).await.is_none(), "it is over");
    pass(TTL * 5).await;
    assert!(is_not_lost(&guard).await);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_sooner_and_sooner_until_the_end() {
    let cluster = SimCluster::new(3);
    let (client, _redlock, guard) = hold(&cluster).await;
    partition(&client, 0);
    partition(&client, 1);
    cluster.start_trace();
    guard.lost().await;
    let tries = sent(&cluster.take_trace(), 0, 2, "Extend");
    assert_eq!(tries.first(), Some(&1_100));
    let gaps: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The first had to wait for its node timeout. 1,768 ms are left, and a quarter of it goes by.
    assert_eq!(gaps.first(), Some(&(200 + 442)));
    assert!(gaps.windows(2).all(|pair| pair[1] <= pair[0]), "{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap >= 20), "{gaps:?}");
    assert!(gaps.last().is_some_and(|gap| *gap <= 22), "{gaps:?}");
    assert!(tries.len() < 30, "{tries:?}");
    let end = tries.last().expect("it was tried");
    assert!((3_028..3_068).contains(end), "up to the end, and not beyond it: {end}");
}

// Field case 3: renewal stopped after one timeout or reconnect.
#[tokio::test(start_paused = true)]
async fn a_reconnect_in_the_middle_of_a_renewal_is_made_up_for() {
    for ms in 1_099..1_104 {
        let cluster = SimCluster::new(3);
        let (client, _redlock, guard) = hold(&cluster).await;
        at(&cluster, MS(ms)).await;
        (0..3).for_each(|node| client.reset_link(node));
        pass(TTL * 2).await;
        assert!(is_not_lost(&guard).await, "reset at {ms} ms");
        assert!(guard.remaining() > VALIDITY - RENEW_EVERY - MS(10));
        assert_eq!(holders(&cluster), [0, 1, 2]);
    }
}

// An answer belongs to the renewal that asked for it: its key lives from then and not from later.
#[tokio::test(start_paused = true)]
async fn an_answer_to_an_earlier_renewal_does_not_count_for_a_later_one() {
    let cluster = SimCluster::new(3);
    cluster.set_persistence(1, Persistence::Always);
    let client = cluster.client();
    // A renewal may still wait for a slow node when the next one is due.
    let builder = builder(&client).node_timeout(MS(400));
    let options = LockOptions::new().ttl(MS(1_000)).renew_every(MS(300));
    let (_redlock, guard) = hold_by(&cluster, builder, options).await;

    // The renewal of 400 ms is executed by all; n2's answer is late.
    at(&cluster, MS(350)).await;
    let mut late = LinkFaults::default();
    late.block_replies = true;
    client.set_link(2, late);
    at(&cluster, MS(650)).await;
    assert_eq!(guard.remaining(), MS(400 + 988 - 650));

    // The renewal of 700 ms reaches n0 alone, and n2's late answer arrives.
    cluster.crash(1);
    let mut one_way = LinkFaults::default();
    one_way.block_requests = true;
    let mut both = one_way;
    both.block_replies = true;
    client.set_link(2, both);
    at(&cluster, MS(701)).await;
    client.set_link(2, one_way);
    at(&cluster, MS(710)).await;
    (0..3).for_each(|node| partition(&client, node));
    cluster.restart(1);
    pass(Duration::ZERO).await;
    assert!(guard.remaining() <= MS(400 + 988 - 710), "one of three: {:?}", guard.remaining());

    // On n1 and n2 the key lives until 1,401 ms.
    at(&cluster, MS(1_420)).await;
    let other = self::builder(&cluster.client()).connect().await.unwrap();
    let second = other.try_acquire("r").await;
    assert!(guard.is_lost() || second.is_err(), "two hold it");
    assert!(cluster.broken_assumptions().is_empty());
}

// The same from the other side: that an earlier renewal was not answered says nothing of a later one.
#[tokio::test(start_paused = true)]
async fn a_timeout_of_an_earlier_renewal_is_no_failure_of_a_later_one() {
    let cluster = SimCluster::new(5);
    let client = cluster.client();
    let builder = builder(&client).node_timeout(MS(400));
    let options = LockOptions::new().ttl(MS(1_000)).renew_every(MS(300));
    let (_redlock, guard) = hold_by(&cluster, builder, options).await;
    // The renewal of 400 ms gets its majority. What was sent to n3 and n4 takes until 900 ms, and is
    // waited for until 800 ms.
    at(&cluster, MS(350)).await;
    (3..5).for_each(|node| client.set_link(node, LinkFaults::latency(500, 500)));
    // That of 700 ms needs n3 or n4, which answer at 901 ms.
    at(&cluster, MS(650)).await;
    cluster.crash(2);
    (3..5).for_each(|node| heal(&client, node));
    at(&cluster, MS(790)).await;
    assert_eq!(guard.remaining(), MS(400 + 988 - 790));
    pass(MS(120)).await;
    assert!(give_up_after(1, guard.at_risk()).await.is_none(), "four of five said yes in time");
    assert_eq!(guard.remaining(), MS(700 + 988 - 910));
}

// Refill.

// Field case 13: a restarted node never got the key back.
#[tokio::test(start_paused = true)]
async fn a_node_without_the_key_gets_it_back_with_the_next_renewal_and_another_s_key_stays() {
    let cluster = SimCluster::new(5);
    let (_, _redlock, guard) = hold(&cluster).await;
    cluster.delete_key(0, KEY);
    cluster.delete_key(1, KEY);
    cluster.set_key(1, KEY, Some("another"), Some(TTL * 3));
    at(&cluster, FIRST_RENEWAL + ROUND_TRIP).await;
    pass(Duration::ZERO).await;
    assert_eq!(owner_on(&cluster, 0), None, "the refill is on its way");
    pass(MS(1)).await;
    assert_eq!(owner_on(&cluster, 0), Some(guard.owner_id().to_string()));
    assert_eq!(cluster.pttl(0, KEY), 3_000);
    pass(TTL).await;
    assert_eq!(owner_on(&cluster, 1).as_deref(), Some("another"));
    assert!(cluster.pttl(1, KEY) < 5_000, "nor is it prolonged");
    guard.release().await.unwrap();
    pass(MS(1)).await;
    assert_eq!(holders(&cluster), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_refilled_node_counts_from_the_next_renewal_on() {
    let cluster = SimCluster::new(3);
    let (_, _redlock, guard) = hold(&cluster).await;
    cluster.delete_key(0, KEY);
    cluster.freeze(1);
    let (left, took) = timed(guard.at_risk()).await;
    assert_eq!(took, RENEW_EVERY - ROUND_TRIP + NODE_TIMEOUT, "only n2 had it");
    assert_eq!(owner_on(&cluster, 0), Some(guard.owner_id().to_string()), "n0 has it by now");
    assert_eq!(left, ASKED + VALIDITY - cluster.now(), "and was not counted");
    pass(left / 4 + ROUND_TRIP).await;
    assert_eq!(guard.remaining(), VALIDITY - ROUND_TRIP, "with n0 and n2");
    assert!(give_up_after(1, guard.at_risk()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_when_the_lock_was_acquired_is_filled_and_released() {
    let cluster = SimCluster::new(3);
    let redlock = builder(&cluster.client()).connect().await.unwrap();
    cluster.freeze(2);
    at(&cluster, ASKED).await;
    let guard = redlock.acquire("r").await.unwrap();
    cluster.delete_key(2, KEY);
    cluster.thaw(2);
    at(&cluster, FIRST_RENEWAL + ROUND_TRIP * 2).await;
    assert_eq!(owner_on(&cluster, 2), Some(guard.owner_id().to_string()));
    guard.release().await.unwrap();
    pass(MS(1)).await;
    assert_eq!(holders(&cluster), [0; 0]);
}

// Renewal and release.

#[derive(Clone, Copy, Debug)]
enum End {
    Drop,
    Release,
    AbandonedRelease,
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    /// The renewal becomes a refill.
    KeyGone,
    /// What is sent for the renewal is sent twice.
    ScriptsGone,
}

/// Ends a lock at some point of its first renewal.
async fn ended_at(ms: u64, yields: usize, end: End, trouble: Trouble) {
    let cluster = SimCluster::new(3);
    let (client, redlock, guard) = hold(&cluster).await;
    spread(&client, 3);
    at(&cluster, MS(1_050)).await;
    match trouble {
        Trouble::None => {}
        Trouble::KeyGone => cluster.delete_key(0, KEY),
        Trouble::ScriptsGone => (0..3).for_each(|node| cluster.flush_scripts(node)),
    }
    at(&cluster, FIRST_RENEWAL + MS(ms)).await;
    for _ in 0..yields {
        yield_now().await;
    }
    match end {
        End::Drop => drop(guard),
        End::Release => guard.release().await.unwrap(),
        End::AbandonedRelease => assert!(give_up_after(1, guard.release()).await.is_none()),
    }
    let when = format!("{end:?} {ms} ms and {yields} yields after, {trouble:?}");
    // The farthest node is 3 ms away; what was sent by digest and comes back takes three ways.
    pass(MS(9)).await;
    assert_eq!(holders(&cluster), [0; 0], "{when}");
    pass(TTL).await;
    assert_eq!(holders(&cluster), [0; 0], "{when}");
    let is_idle = redlock.nodes().iter().all(|n| n.owed_releases == 0 && n.in_flight == 0);
    assert!(is_idle, "{when}");
}

// Field case 19: a renewal raced the release, and the key came back.
#[tokio::test(start_paused = true)]
async fn a_release_at_any_point_of_a_renewal_leaves_no_key() {
    for trouble in [Trouble::None, Trouble::KeyGone, Trouble::ScriptsGone] {
        for end in [End::Drop, End::Release, End::AbandonedRelease] {
            for ms in 0..12 {
                for yields in 0..5 {
                    ended_at(ms, yields, end, trouble).await;
                }
            }
        }
    }
}

/// A renewal waits in the buffer of a frozen n0 while the lock changes hands.
async fn handed_over_while_frozen(seed: u64, released_after: Duration, refill: bool) {
    let cluster = SimCluster::with_seed(3, seed);
    let (_, _redlock, first) = hold(&cluster).await;
    let other = builder(&cluster.client()).connect().await.unwrap();
    if refill {
        // n0's answer is that there is no key; the refill finds it frozen.
        cluster.delete_key(0, KEY);
        at(&cluster, FIRST_RENEWAL + ROUND_TRIP).await;
    } else {
        at(&cluster, FIRST_RENEWAL - MS(50)).await;
    }
    cluster.freeze(0);
    let frozen = cluster.now();
    at(&cluster, FIRST_RENEWAL + MS(10) + released_after).await;
    first.release().await.unwrap();
    let second = other.try_acquire("r").await.unwrap();
    let owner = Some(second.owner_id().to_string());
    pass(MS(300)).await;
    let when = format!("seed {seed}, frozen at {frozen:?}, released {released_after:?} later");
    assert_eq!([1, 2].map(|node| owner_on(&cluster, node)), [owner.clone(), owner.clone()]);

    cluster.thaw(0);
    for _ in 0..100 {
        pass(MS(1)).await;
        assert_eq!(owner_on(&cluster, 1), owner, "{when}");
        assert_eq!(owner_on(&cluster, 2), owner, "{when}");
    }
    let on_n0 = owner_on(&cluster, 0);
    assert!(on_n0.is_none() || on_n0 == owner, "{when}: nothing of the first holder is left");
    pass(RENEW_EVERY * 2).await;
    assert_eq!(owner_on(&cluster, 0), owner, "{when}");
    assert!(is_not_lost(&second).await, "{when}");
    second.release().await.unwrap();
    pass(MS(1)).await;
    assert_eq!(holders(&cluster), [0; 0], "{when}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_runs_after_the_lock_changed_hands_does_not_touch_the_new_holder_s_keys() {
    for seed in 0..20 {
        // Before and after n0 is seen to be silent, and after its connection is given up.
        for released_after in [Duration::ZERO, MS(600), MS(2_600)] {
            for refill in [false, true] {
                handed_over_while_frozen(seed, released_after, refill).await;
            }
        }
    }
}

// `with_lock` and the end of it all.

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn the_work_under_a_lock_ends_at_the_moment_of_its_loss() {
    let cluster = SimCluster::new(3);
    let redlock = builder(&cluster.client()).connect().await.unwrap();
    at(&cluster, ASKED).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Dropped(Arc::clone(&dropped));
    let work = redlock.with_lock("r", LockOptions::new(), async |guard| {
        let _flag = flag;
        cluster.freeze(0);
        cluster.freeze(1);
        assert_eq!(guard.remaining(), VALIDITY - ROUND_TRIP);
        std::future::pending::<()>().await;
    });
    let (result, took) = timed(work).await;
    assert_eq!(result, Err(WithLockError::Lost));
    assert!(dropped.load(Ordering::Relaxed));
    // Field case 48: the frozen nodes are known to be so, and not waited for.
    assert!(took >= VALIDITY && took <= VALIDITY + NODE_TIMEOUT, "{took:?}");
    pass(MS(1)).await;
    assert_eq!(holders(&cluster), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn work_that_is_ready_only_after_the_loss_does_not_count() {
    let cluster = SimCluster::new(3);
    let client = cluster.client();
    let redlock = builder(&client).connect().await.unwrap();
    let work = client.run(redlock.with_lock("r", LockOptions::new(), async |_| {
        client.pause();
        sleep(MS(10)).await;
    }));
    let resume = async {
        sleep(TTL * 2).await;
        client.resume();
    };
    let (result, ()) = tokio::join!(work, resume);
    assert!(result.unwrap().is_err_and(|error| error.is_lost()));
    pass(MS(10)).await;
    assert_eq!(holders(&cluster), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_takes_back_what_is_held_and_says_so() {
    let cluster = SimCluster::new(3);
    let (_, redlock, mut guard) = hold(&cluster).await;
    let other = redlock.acquire_with("s", LockOptions::new().without_renewal()).await.unwrap();
    let (drained, took) = timed(redlock.shutdown()).await;
    assert_eq!((drained.unanswered.len(), took), (0, ROUND_TRIP));
    assert_eq!(holders(&cluster), [0; 0]);
    for guard in [&guard, &other] {
        assert!(guard.is_lost() && has_token(guard));
        assert!(timeout(Duration::ZERO, guard.lost()).await.is_ok());
    }
    assert!(matches!(guard.extend(TTL).await, Err(ExtendError::Lost { nodes: None })));
    assert!(guard.release().await.unwrap_err().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_locks_are_renewed_together_and_not_one_by_one() {
    let cluster = SimCluster::new(3);
    let redlock = builder(&cluster.client()).connect().await.unwrap();
    let mut guards = Vec::new();
    for lock in 0..1_000 {
        guards.push(redlock.acquire(&format!("r{lock}")).await.unwrap());
    }
    let started = Instant::now();
    cluster.start_trace();
    let before = cluster.operations();
    pass(RENEW_EVERY * 3).await;
    let renewed = cluster.operations() - before;
    assert!((9_000..=12_000).contains(&renewed), "{renewed} in {:?}", started.elapsed());
    let mut moments = sent(&cluster.take_trace(), 0, 0, "Extend");
    moments.dedup();
    assert!(moments.len() <= 3 * 101, "{} times", moments.len());
    for guard in &guards {
        assert!(!guard.is_lost() && !has_token(guard));
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_are_due_together_wait_for_each_other_and_none_fails_for_want_of_room() {
    let cluster = SimCluster::new(5);
    let client = cluster.client();
    let redlock = builder(&client).max_in_flight(8).connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..40 {
        guards.push(redlock.acquire(&format!("r{number}")).await.unwrap());
    }
    // Now more are due while one is under way than may be.
    (0..5).for_each(|node| client.set_link(node, LinkFaults::latency(20, 20)));
    let risks = select_all(guards.iter().map(|guard| Box::pin(guard.at_risk())));
    assert!(timeout(TTL * 4, risks).await.is_err(), "a renewal failed");
    assert!(guards.iter().all(|guard| guard.remaining() > TTL / 3 && !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn one_slow_node_does_not_hold_up_the_renewals_of_the_others() {
    let cluster = SimCluster::new(3);
    let client = cluster.client();
    let redlock = builder(&client).max_in_flight(8).connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..200 {
        guards.push(redlock.acquire(&format!("r{number}")).await.unwrap());
    }
    // Four at a time would be 26 a second, and 200 are wanted.
    client.set_link(2, LinkFaults::latency(75, 75));
    let risks = select_all(guards.iter().map(|guard| Box::pin(guard.at_risk())));
    assert!(timeout(TTL * 4, risks).await.is_err(), "a renewal failed");
    assert!(guards.iter().all(|guard| guard.remaining() > TTL / 3 && !guard.is_lost()));
}
