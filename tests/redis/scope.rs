//! What `with_lock` makes of its body: its value, its loss, its panic, its cancellation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use quorumlock::{AcquireError, LockGuard, LockOptions, Redlock, ReleaseError, WithLockError};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    Fleet, Proxy, Server,
    aftermath::{all_vote, is_idle, key, no_keys, nothing_is_left, proxies},
    eventually,
    futures::give_up_after,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(5);
const NODE_TIMEOUT: Duration = Duration::from_millis(200);
/// What "about a node timeout" may come to on a busy machine.
const ABOUT_A_NODE_TIMEOUT: Duration = Duration::from_millis(800);
const TTL: Duration = Duration::from_millis(1_500);
const LONG: Duration = Duration::from_secs(60);

async fn connect(urls: Vec<String>) -> Redlock {
    let builder = Redlock::builder().new_fleet().ttl(TTL).node_timeout(NODE_TIMEOUT);
    let redlock = builder.nodes(urls).connect().await.unwrap();
    eventually("all nodes", SOON, || all_vote(&redlock));
    redlock
}

fn renewals(server: &Server) -> u64 {
    server.calls("pexpire")
}

fn options() -> LockOptions {
    LockOptions::new()
}

/// What is left behind stays for a minute.
fn long() -> LockOptions {
    options().ttl(LONG).renew_every(Duration::from_millis(5))
}

/// Sets its flag when it is dropped.
#[derive(Clone, Default)]
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

struct SetOnDrop(Flag);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_body_returns_is_returned_and_the_lock_is_free_again() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let other = connect(fleet.urls()).await;
    let value = redlock
        .with_lock("r", options(), async |guard| {
            assert_eq!(guard.resource(), "r");
            assert!(other.try_acquire("r").await.unwrap_err().is_contended());
            guard.extend(TTL * 2).await.unwrap();
            guard.remaining() > TTL
        })
        .await;
    assert_eq!(value, Ok(true));
    other.try_acquire("r").await.unwrap().release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_body_is_its_value() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let body = async |_: &mut LockGuard| Err::<(), _>("no paper");
    assert_eq!(redlock.with_lock("r", options(), body).await, Ok(Err("no paper")));
    nothing_is_left(&redlock, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_does_not_run_without_the_lock() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    fleet.iter().for_each(|server| server.set_raw(&key("r"), "someone else", None));
    let options = options().wait_timeout(Duration::ZERO);
    let result = redlock.with_lock("r", options, async |_| panic!("it runs")).await;
    let Err(error @ WithLockError::Acquire(AcquireError::Contended(_))) = result else {
        panic!("{result:?}")
    };
    assert!(!error.is_lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_work_is_many_times_as_long_as_the_ttl() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let work = async |_: &mut LockGuard| sleep(TTL * 3).await;
    assert_eq!(redlock.with_lock("r", options(), work).await, Ok(()));
    nothing_is_left(&redlock, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_is_dropped_when_the_lock_is_lost() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let flag = Flag::default();
    let started = Instant::now();
    let set_on_drop = SetOnDrop(flag.clone());
    let result = redlock
        .with_lock("r", options(), async |_| {
            let _set_on_drop = set_on_drop;
            eventually("the key", SOON, || fleet.iter().all(|s| s.exists(&key("r"))));
            fleet[0].del(&key("r"));
            fleet[1].del(&key("r"));
            std::future::pending::<()>().await;
        })
        .await;
    assert!(flag.is_set());
    assert!(result.as_ref().is_err_and(WithLockError::is_lost), "{result:?}");
    assert_eq!(result, Err(WithLockError::Lost));
    assert!(started.elapsed() < TTL, "{:?}", started.elapsed());
    nothing_is_left(&redlock, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_uses_its_guard_can_be_spawned() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let (name, mut tasks) = ("r".to_owned(), JoinSet::new());
    tasks.spawn(async move {
        let work = async |guard: &mut LockGuard| {
            sleep(TTL).await;
            guard.extend(TTL * 2).await.unwrap();
            assert_eq!(guard.resource(), name);
            name.len()
        };
        redlock.with_lock("r", options(), work).await
    });
    assert_eq!(tasks.join_next().await.unwrap().unwrap(), Ok(1));
}

// Field case 48: after a loss the release was tried for seconds.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_loss_frozen_nodes_cost_a_node_timeout_at_most() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let mut ends = None;
    let result = redlock
        .with_lock("r", options(), async |guard| {
            fleet[0].freeze();
            fleet[1].freeze();
            // One that was answered before the freeze may lengthen it.
            sleep(NODE_TIMEOUT).await;
            ends = Some(Instant::now() + guard.remaining());
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(result, Err(WithLockError::Lost));
    let late = Instant::now().saturating_duration_since(ends.unwrap());
    assert!(late < ABOUT_A_NODE_TIMEOUT, "{late:?}");
    fleet[0].thaw();
    fleet[1].thaw();
    nothing_is_left(&redlock, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_the_body_releases() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let redlock = redlock.clone();
        async move {
            let work = async |_: &mut LockGuard| panic!("as it is meant to");
            drop(redlock.with_lock::<(), _>("r", long(), work).await);
        }
    });
    let ended = tasks.join_next().await.unwrap();
    assert!(ended.unwrap_err().is_panic());
    nothing_is_left(&redlock, &fleet, SOON);
    redlock.try_acquire("r").await.unwrap().release().await.unwrap();
}

// Field case 15: a cancelled request left the lock behind.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_cancelled_at_any_point_leaves_no_key_and_no_renewal() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = connect(proxies.iter().map(Proxy::url).collect()).await;
    for (proxy, delay) in proxies.iter().zip([1, 4, 7]) {
        proxy.delay(Duration::from_millis(delay));
    }
    let mut ran = 0;
    for polls in 0..30 {
        let flag = Flag::default();
        let set_on_drop = SetOnDrop(flag.clone());
        let work = redlock.with_lock("r", long(), async |_| {
            let _set_on_drop = set_on_drop;
            for _ in 0..20 {
                sleep(Duration::from_millis(2)).await;
            }
        });
        ran += usize::from(give_up_after(polls, work).await.is_some());
        assert!(flag.is_set(), "the body is dropped, run or not");
        eventually("no key", SOON, || is_idle(&redlock) && no_keys(&fleet));
    }
    assert!(ran > 0 && ran < 30, "{ran} came to their end");
    sleep(NODE_TIMEOUT).await;
    assert!(no_keys(&fleet), "none comes back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_s_timeout_drops_the_work_and_releases() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let flag = Flag::default();
    let set_on_drop = SetOnDrop(flag.clone());
    let work = redlock.with_lock("r", long(), async |_| {
        let _set_on_drop = set_on_drop;
        std::future::pending::<()>().await;
    });
    assert!(timeout(NODE_TIMEOUT, work).await.is_err());
    assert!(flag.is_set());
    assert!(fleet.iter().any(|server| renewals(server) > 0), "it ran, and was renewed");
    nothing_is_left(&redlock, &fleet, SOON);
    redlock.try_acquire("r").await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_fails_carries_the_value() {
    let fleet = Fleet::start(3);
    let redlock = connect(fleet.urls()).await;
    let result = redlock
        .with_lock("r", long().without_renewal(), async |_| {
            eventually("the key", SOON, || fleet.iter().all(|s| s.exists(&key("r"))));
            fleet.iter().for_each(|server| server.del(&key("r")));
            7
        })
        .await;
    let Err(error @ WithLockError::Release { value: 7, .. }) = result else { panic!("{result:?}") };
    assert!(error.is_lost(), "nobody had noticed before the release: {error}");

    let result = redlock
        .with_lock("s", long().without_renewal(), async |_| {
            fleet[0].freeze();
            fleet[1].freeze();
            "done"
        })
        .await;
    let Err(WithLockError::Release { value: "done", error }) = result else { panic!("{result:?}") };
    assert!(matches!(error, ReleaseError::Unconfirmed { .. }), "{error}");
    fleet[0].thaw();
    fleet[1].thaw();
    nothing_is_left(&redlock, &fleet, SOON);
}
