//! Futures and guards that are dropped at any point, inside and outside runtimes.

use std::{pin::pin, thread, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use quorumlock::{AcquireError, Redlock, RedlockBuilder, ReleaseError};
use tokio::{
    runtime::{Handle, Runtime},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::support::{
    Fleet, Proxy, Server,
    aftermath::{is_idle, key, no_keys, node, nothing_is_left, proxies},
    eventually,
    futures::{eventually_async, give_up_after},
};

/// How soon after a cancellation nothing may be left: 200 ms, and a lot for a busy machine.
const SOON: Duration = Duration::from_secs(2);
/// So long that nothing here waits for it unless it blocks.
const NODE_TIMEOUT: Duration = Duration::from_secs(4);

fn through(proxies: &[Proxy]) -> RedlockBuilder {
    Redlock::builder().new_fleet().nodes(proxies.iter().map(Proxy::url)).node_timeout(NODE_TIMEOUT)
}

async fn patient(fleet: &Fleet) -> Redlock {
    Redlock::builder()
        .new_fleet()
        .nodes(fleet.urls())
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap()
}

/// Runs all at once, each polled only when it is woken itself, and gives the results in order.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F::Output: Ord,
{
    let mut outputs: Vec<_> = futures.collect::<FuturesUnordered<_>>().collect().await;
    outputs.sort();
    outputs
}

/// Answers come in one by one, so that a future is polled for each.
fn spread(proxies: &[Proxy]) {
    for (proxy, delay) in proxies.iter().zip([2, 10, 18, 26, 34]) {
        proxy.delay(Duration::from_millis(delay));
    }
}

// Field cases 15 and 41.
#[tokio::test(flavor = "multi_thread")]
async fn acquiring_that_is_dropped_at_any_await_point_leaves_nothing() {
    let fleet = Fleet::start(5);
    let proxies: [Proxy; 5] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    spread(&proxies);

    let attempts = (0..8).map(|polls| {
        let redlock = &redlock;
        async move {
            (polls, give_up_after(polls, redlock.acquire(&format!("r{polls}"))).await.is_some())
        }
    });
    let finished = all(attempts).await;
    assert_eq!(finished.first(), Some(&(0, false)), "the first was never polled");
    assert_eq!(finished.get(1), Some(&(1, false)), "nobody answered before the first poll");
    assert_eq!(finished.last(), Some(&(7, true)), "the last got its lock, and dropped it");
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field cases 15 and 41: between two attempts, and in the second, and so on.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_held_lock_that_is_dropped_at_any_await_point_leaves_nothing() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    spread(&proxies);
    let resources: Vec<String> = (0..=20).map(|polls| format!("r{polls:02}")).collect();
    let planted: Vec<String> = resources.iter().map(|resource| key(resource)).collect();
    for planted in &planted {
        fleet[1].set_raw(planted, "other", None);
        fleet[2].set_raw(planted, "other", None);
    }

    let attempts = resources.iter().enumerate().map(|(polls, resource)| {
        let redlock = &redlock;
        async move { give_up_after(polls, redlock.acquire(resource)).await.is_none() }
    });
    let given_up = timeout(Duration::from_secs(20), all(attempts)).await.unwrap();
    assert_eq!(given_up, [true; 21], "two of three are another's");
    eventually("n0 to be rid of all", SOON, || is_idle(&redlock) && no_keys([&fleet[0]]));
    // One for each that was polled, and more: how many depends on what a poll finds.
    assert!(fleet[0].grants() > 21, "n0 granted again and again, or this tests nothing");
    for server in [&fleet[1], &fleet[2]] {
        assert_eq!(server.keys(), planted, "what is another's stays");
    }
}

// Field cases 15 and 41.
#[tokio::test(flavor = "multi_thread")]
async fn a_callers_own_timeout_leaves_nothing() {
    let fleet = Fleet::start(5);
    let proxies: [Proxy; 5] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    spread(&proxies);

    let attempts = (0..60).map(|ms| {
        let redlock = &redlock;
        async move {
            let limit = Duration::from_millis(ms);
            let guard = timeout(limit, redlock.acquire(&format!("r{ms}"))).await;
            (ms, guard.map(|acquired| drop(acquired.unwrap())).is_err())
        }
    });
    let timed_out = all(attempts).await;
    assert_eq!(timed_out.first(), Some(&(0, true)), "no node answers at once");
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_dropped_after_its_first_poll_is_done_all_the_same() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    for polls in 0..4 {
        let guard = redlock.acquire("r").await.unwrap();
        spread(&proxies);
        let answer = give_up_after(polls, guard.release()).await;
        assert!(polls > 1 || answer.is_none(), "nobody can have answered yet");
        proxies.iter().for_each(Proxy::pass);
        nothing_is_left(&redlock, &fleet, SOON);
    }
}

// Field case 18: a cancelled acquisition went on being renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_cancelled_half_way_is_released_once_and_never_extended() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    proxies[1].hold();
    proxies[2].hold();
    {
        let mut acquiring = pin!(redlock.acquire("r"));
        assert!(give_up_after(1, acquiring.as_mut()).await.is_none());
        eventually("n0 to grant", SOON, || fleet[0].get(&key("r")).is_some());
    }
    eventually("n0 to be rid of it", SOON, || no_keys([&fleet[0]]));
    proxies.iter().for_each(Proxy::pass);
    nothing_is_left(&redlock, &fleet, SOON);

    let scripts = || fleet.iter().map(|server| server.operations()).collect::<Vec<_>>();
    assert_eq!(scripts(), [2, 2, 2], "one acquire and one release on each");
    // Another lock comes and goes; nothing else of the cancelled one does.
    redlock.acquire("another").await.unwrap().release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
    assert_eq!(scripts(), [4, 4, 4]);
    assert!(fleet.iter().all(|server| server.calls("pexpire") == 0), "nothing was extended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_extension_leaves_the_guard_as_it_was() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = through(&proxies).connect().await.unwrap();
    let mut guard = redlock.acquire("r").await.unwrap();
    let before = guard.remaining();
    proxies.iter().for_each(Proxy::hold);
    assert!(give_up_after(1, guard.extend(Duration::from_secs(50))).await.is_none());
    assert!(guard.remaining() <= before, "what was not confirmed is not relied on");

    proxies.iter().for_each(Proxy::pass);
    guard.extend(Duration::from_secs(50)).await.unwrap();
    assert!(guard.remaining() > before);
    guard.release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 25. All nodes are frozen: a drop that waited for any of them would take 4 s.
#[tokio::test]
async fn dropping_a_guard_on_a_current_thread_runtime_returns_at_once() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let guard = redlock.acquire("r").await.unwrap();
    fleet.iter().for_each(Server::freeze);
    let started = Instant::now();
    drop(guard);
    assert!(started.elapsed().saturating_mul(8) < NODE_TIMEOUT, "{:?}", started.elapsed());
    fleet.iter().for_each(Server::thaw);
    let clean = || is_idle(&redlock) && no_keys(&fleet);
    eventually_async("the key to go", SOON, clean).await;
}

// Field case 25.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_dropped_outside_any_runtime_is_released() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let guard = redlock.acquire("r").await.unwrap();
    eventually("all nodes to hold it", SOON, || is_held(&fleet));
    let outside = thread::spawn(move || {
        assert!(Handle::try_current().is_err());
        drop(guard);
    });
    outside.join().unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
}

fn is_held(fleet: &Fleet) -> bool {
    fleet.iter().all(|server| server.exists(&key("r")))
}

// Field case 25: an acquire future is a guard as well, and may be polled where there is no runtime.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquiring_future_dropped_outside_any_runtime_is_released() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let mut acquiring = Box::pin({
        let redlock = redlock.clone();
        async move { redlock.try_acquire("r").await.map(drop) }
    });
    fleet.iter().for_each(Server::freeze);
    assert!(give_up_after(1, acquiring.as_mut()).await.is_none());
    thread::spawn(move || drop(acquiring)).join().unwrap();
    fleet.iter().for_each(Server::thaw);
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 25: after the runtime of the connections nothing can be sent, and nothing may hang.
#[test]
fn what_outlives_its_runtime_neither_panics_nor_hangs() {
    let fleet = Fleet::start(3);
    let first = Runtime::new().unwrap();
    let redlock = first.block_on(patient(&fleet));
    let [dropped, released, mut extended] =
        ["a", "b", "c"].map(|resource| first.block_on(redlock.acquire(resource)).unwrap());
    drop(first);
    drop(dropped);

    let second = Runtime::new().unwrap();
    second.block_on(async {
        let all = async {
            let error = released.release().await.unwrap_err();
            assert!(matches!(error, ReleaseError::Unconfirmed { .. }), "{error}");
            let error = extended.extend(Duration::from_secs(20)).await.unwrap_err();
            assert!(!error.is_lost(), "{error}");
            let error = redlock.acquire("d").await.unwrap_err();
            assert_eq!(error, AcquireError::ShutDown);
            redlock.shutdown().await
        };
        timeout(SOON, all).await.unwrap();
    });
    drop(redlock);
    drop(second);
    drop(extended);
}

// Field case 6: ownership lay with the thread that acquired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_released_by_another_task_than_acquired_it() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("r").await.unwrap() }
    });
    let guard = tasks.join_next().await.unwrap().unwrap();
    eventually("all nodes to hold it", SOON, || is_held(&fleet));
    let mut tasks = JoinSet::new();
    tasks.spawn(guard.release());
    tasks.join_next().await.unwrap().unwrap().unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
    assert_eq!(node(&redlock, 0).owed_releases, 0);
}
