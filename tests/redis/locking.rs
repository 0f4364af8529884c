//! What a lock promises while all nodes are well: exclusion, validity, extension, release, waiting.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use quorumlock::{
    AcquireError, ExtendError, LockGuard, LockOptions, NodeOutcome, NodeReports, Redlock,
    RedlockBuilder, ReleaseError, node::Answer,
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::support::{
    Fleet, Server,
    aftermath::{all_vote, key},
    eventually,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(5);
/// Bounds the wait for what is expected not to happen.
const A_WHILE: Duration = Duration::from_millis(100);
/// The builder's default.
const TTL: Duration = Duration::from_secs(10);
/// A ttl whose end a test can wait for.
const SHORT_TTL: Duration = Duration::from_millis(500);
/// What the drift leaves of [`SHORT_TTL`].
const SHORT_VALIDITY: Duration = Duration::from_millis(493);
const LONG: Duration = Duration::from_secs(60);

/// Generous to a busy machine, and still below every ttl of these tests that matters.
fn builder() -> RedlockBuilder {
    Redlock::builder().new_fleet().node_timeout(Duration::from_millis(400))
}

async fn connect(fleet: &Fleet) -> Redlock {
    connect_as(builder(), fleet).await
}

/// Connects, and waits for the last node as well.
async fn connect_as(builder: RedlockBuilder, fleet: &Fleet) -> Redlock {
    let redlock = builder.nodes(fleet.urls()).connect().await.unwrap();
    eventually("all nodes", SOON, || all_vote(&redlock));
    redlock
}

fn short() -> LockOptions {
    LockOptions::new().ttl(SHORT_TTL).without_renewal()
}

/// Lets somebody else hold the resource on a node.
#[track_caller]
fn occupy(server: &Server, resource: &str, ttl: Option<Duration>) {
    server.set_raw(&key(resource), "someone else", ttl);
}

#[track_caller]
fn occupy_all(fleet: &Fleet, resource: &str, ttl: Duration) {
    fleet.iter().for_each(|server| occupy(server, resource, Some(ttl)));
}

/// How often each node was asked to run a script.
fn script_calls(fleet: &Fleet) -> Vec<u64> {
    let calls = |server: &Server| ["evalsha", "eval"].map(|command| server.calls(command));
    fleet.iter().map(|server| calls(server).iter().sum()).collect()
}

fn since(before: &[u64], now: &[u64]) -> Vec<u64> {
    now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect()
}

fn calls_since(fleet: &Fleet, before: &[u64]) -> Vec<u64> {
    since(before, &script_calls(fleet))
}

/// The last release may still be under way to a minority.
#[track_caller]
fn assert_no_keys(fleet: &Fleet) {
    eventually("the last key", SOON, || fleet.iter().all(|server| server.keys().is_empty()));
}

#[track_caller]
fn assert_on_all(fleet: &Fleet, what: &str, holds: impl Fn(&Server) -> bool) {
    eventually(what, SOON, || fleet.iter().all(&holds));
}

#[track_caller]
fn lost(released: Result<(), ReleaseError>) -> NodeReports {
    match released {
        Err(ReleaseError::Lost { nodes }) => nodes,
        other => panic!("not lost: {other:?}"),
    }
}

/// The outcomes that decided a round; the others may not have been waited for.
fn decisive(nodes: &NodeReports) -> Vec<NodeOutcome> {
    let outcomes = nodes.iter().map(|report| report.outcome.clone());
    outcomes.filter(|outcome| *outcome != NodeOutcome::Pending).collect()
}

fn is_taken(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Answered(Answer::Taken { .. }))
}

const MISSING: NodeOutcome = NodeOutcome::Answered(Answer::Missing);
const DONE: NodeOutcome = NodeOutcome::Answered(Answer::Done);

// Exclusion.

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_exclude_each_other_until_one_releases() {
    let fleet = Fleet::start(3);
    let (a, b) = (connect(&fleet).await, connect(&fleet).await);
    let guard = a.try_acquire("a").await.unwrap();
    assert!(b.try_acquire("a").await.unwrap_err().is_contended());
    assert!(a.try_acquire("a").await.unwrap_err().is_contended());
    drop(b.try_acquire("another").await.unwrap());
    guard.release().await.unwrap();
    b.try_acquire("a").await.unwrap().release().await.unwrap();
    assert_no_keys(&fleet);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_contenders_one_at_a_time_is_in_and_all_get_in() {
    let fleet = Fleet::start(3);
    let clients = [connect(&fleet).await, connect(&fleet).await];
    let (inside, entered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for redlock in clients.iter().cycle().take(20) {
        let redlock = redlock.clone();
        let (inside, entered) = (Arc::clone(&inside), Arc::clone(&entered));
        tasks.spawn(async move {
            let guard = redlock.acquire("a").await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            entered.fetch_add(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(entered.load(Ordering::SeqCst), 20);
    assert_no_keys(&fleet);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_lets_another_in() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    drop(redlock.try_acquire("a").await.unwrap());
    assert_no_keys(&fleet);
    redlock.try_acquire("a").await.unwrap().release().await.unwrap();
}

// Keys.

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_named_after_the_resource_and_holds_the_owner_id() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    let guard = redlock.acquire("orders:42").await.unwrap();
    assert_eq!(guard.resource(), "orders:42");
    let owner = guard.owner_id().to_string();
    assert_on_all(&fleet, "the key", |s| s.keys() == ["quorumlock:lock:orders:42"]);
    for server in &fleet {
        assert_eq!(server.get(&key("orders:42")), Some(owner.clone()));
        let ttl = server.pttl(&key("orders:42"));
        assert!(ttl > 5_000 && ttl <= 10_000, "{ttl} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_does_not_show_its_owner_id() {
    let fleet = Fleet::start(3);
    let guard = connect(&fleet).await.acquire("a").await.unwrap();
    let owner = guard.owner_id().to_string();
    let (_, secret) = owner.split_at(owner.len() / 2);
    for shown in [format!("{guard:?}"), format!("{guard:#?}")] {
        assert!(!shown.contains(secret), "{shown} shows half of {owner} or more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn different_prefixes_do_not_disturb_each_other() {
    let fleet = Fleet::start(3);
    let a = connect_as(builder().key_prefix("shop:"), &fleet).await;
    let b = connect_as(builder().key_prefix("bank:"), &fleet).await;
    let of_a = a.try_acquire("a").await.unwrap();
    let of_b = b.try_acquire("a").await.unwrap();
    assert_on_all(&fleet, "both keys", |s| s.keys() == ["bank:lock:a", "shop:lock:a"]);
    of_a.release().await.unwrap();
    assert_on_all(&fleet, "one key", |s| s.keys() == ["bank:lock:a"]);
    of_b.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_in_the_url_is_where_the_keys_are() {
    let server = Server::start();
    let redlock = Redlock::builder()
        .single_node(format!("{}/3", server.url()))
        .new_fleet()
        .connect()
        .await
        .unwrap();
    let guard = redlock.acquire("a").await.unwrap();
    let keyspace = server.info("keyspace");
    assert_eq!(keyspace.keys().collect::<Vec<_>>(), ["db3"]);
    guard.release().await.unwrap();
    assert_eq!(server.info("keyspace").keys().collect::<Vec<_>>(), ["db3"], "where the marker is");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_says_which_nodes_granted() {
    let fleet = Fleet::start(3);
    occupy(&fleet[1], "a", Some(LONG));
    let guard = connect(&fleet).await.acquire("a").await.unwrap();
    eventually("all answers", SOON, || decisive(&guard.nodes()).len() == 3);
    let nodes = guard.nodes();
    assert_eq!(nodes.done(), 2);
    assert_eq!(nodes.failed(), 0);
    for (place, report) in nodes.iter().enumerate() {
        assert_eq!(report.node.as_str(), fleet[place].addr());
        assert_eq!(is_taken(&report.outcome), place == 1, "{report}");
    }
}

// Validity and extension.

#[tokio::test(flavor = "multi_thread")]
async fn what_remains_is_at_most_ttl_less_drift_and_shrinks() {
    let fleet = Fleet::start(3);
    let guard = connect(&fleet).await.acquire("a").await.unwrap();
    let first = guard.remaining();
    assert!(first <= Duration::from_millis(9_898) && first > TTL / 2, "{first:?}");
    eventually("time to pass", SOON, || guard.remaining() + A_WHILE <= first);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_prolongs_validity_and_keys() {
    let fleet = Fleet::start(3);
    let mut guard = connect(&fleet).await.acquire("a").await.unwrap();
    guard.extend(TTL * 3).await.unwrap();
    assert!(guard.remaining() > TTL * 2, "{:?}", guard.remaining());
    assert!(guard.remaining() <= Duration::from_millis(29_698), "{:?}", guard.remaining());
    assert_on_all(&fleet, "longer ttls", |s| s.pttl(&key("a")) > 20_000);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_with_a_shorter_ttl_changes_nothing() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    let mut guard = redlock.acquire("a").await.unwrap();
    let before = script_calls(&fleet);
    guard.extend(Duration::from_secs(1)).await.unwrap();
    assert!(guard.remaining() > TTL / 2, "{:?}", guard.remaining());
    eventually("all nodes", SOON, || calls_since(&fleet, &before).iter().all(|calls| *calls > 0));
    assert!(fleet.iter().all(|server| server.pttl(&key("a")) > 5_000));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_finds_out_that_the_lock_is_gone() {
    let fleet = Fleet::start(3);
    let mut guard = connect(&fleet).await.acquire("a").await.unwrap();
    assert_on_all(&fleet, "the key", |s| s.exists(&key("a")));
    fleet[0].del(&key("a"));
    occupy(&fleet[1], "a", Some(LONG));
    let error = guard.extend(TTL).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(decisive(error.nodes().unwrap()).contains(&MISSING), "{error}");
    assert_eq!(guard.remaining(), Duration::ZERO, "lost is for ever");
    let again = guard.extend(TTL).await.unwrap_err();
    assert!(matches!(again, ExtendError::Lost { nodes: None }), "{again:?}");
    assert_eq!(fleet[0].get(&key("a")), None, "nothing is re-created");
}

// Field case 9: what had been lost came back to life.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_end_of_validity_the_lock_is_lost_for_ever_whatever_the_nodes_have() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    let mut guard = redlock.acquire_with("a", short()).await.unwrap();
    assert_on_all(&fleet, "the key", |s| {
        s.command(&["PEXPIRE", &key("a"), "60000"]).into_int() == 1
    });
    let before = script_calls(&fleet);
    eventually("the end of validity", SOON, || guard.remaining().is_zero());
    for _ in 0..2 {
        let error = guard.extend(TTL).await.unwrap_err();
        assert!(matches!(error, ExtendError::Lost { nodes: None }), "{error:?}");
        assert_eq!(guard.remaining(), Duration::ZERO);
    }
    // Whose lock is lost takes its keys away at once, so that others need not wait for them.
    assert_no_keys(&fleet);
    lost(guard.release().await);
    redlock.shutdown().await;
    assert_eq!(calls_since(&fleet, &before), [1, 1, 1], "the release, and no extension");
}

// Release.

// Field cases 2 and 48: releasing an expired lock failed, or was retried for ever.
#[tokio::test(flavor = "multi_thread")]
async fn releasing_an_expired_lock_is_lost_after_one_command_per_node() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    let guard = redlock.acquire_with("a", short()).await.unwrap();
    assert_on_all(&fleet, "the key", |s| s.calls("set") > 0);
    let before = script_calls(&fleet);
    assert_no_keys(&fleet);
    let called = Instant::now();
    let nodes = lost(guard.release().await);
    assert!(called.elapsed() < Duration::from_secs(1), "{:?}", called.elapsed());
    assert!(nodes.failed() == 0, "{nodes}");
    redlock.shutdown().await;
    assert_eq!(calls_since(&fleet, &before), [1, 1, 1]);
}

/// Acquires, changes each node behind the lock's back, and releases.
async fn release_after(change: impl Fn(&Server)) -> (Fleet, Result<(), ReleaseError>) {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    let guard = redlock.acquire("a").await.unwrap();
    assert_on_all(&fleet, "the key", |s| s.exists(&key("a")));
    fleet.iter().for_each(&change);
    let released = guard.release().await;
    redlock.shutdown().await;
    (fleet, released)
}

// Field case 8: one answer for never held, expired and held by another.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_deleted_keys_is_lost_and_says_that_they_are_missing() {
    let (_fleet, released) = release_after(|server| server.del(&key("a"))).await;
    let nodes = lost(released);
    assert!(decisive(&nodes).len() >= 2, "{nodes}");
    assert!(decisive(&nodes).iter().all(|outcome| *outcome == MISSING), "{nodes}");
}

// Field case 8.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_what_another_has_by_now_is_lost_and_leaves_it_alone() {
    let (fleet, released) = release_after(|server| occupy(server, "a", Some(LONG))).await;
    let nodes = lost(released);
    assert!(decisive(&nodes).len() >= 2, "{nodes}");
    for outcome in decisive(&nodes) {
        let NodeOutcome::Answered(Answer::Taken { remaining: Some(remaining) }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(remaining > LONG / 2 && remaining <= LONG, "{remaining:?}");
    }
    assert!(fleet.iter().all(|s| s.get(&key("a")).as_deref() == Some("someone else")));
}

// Field case 8.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_never_granted_is_reported_as_it_answered() {
    let fleet = Fleet::start(3);
    occupy(&fleet[2], "a", Some(LONG));
    let redlock = connect(&fleet).await;
    let guard = redlock.acquire("a").await.unwrap();
    eventually("all answers", SOON, || decisive(&guard.nodes()).len() == 3);
    fleet[0].del(&key("a"));
    fleet[1].del(&key("a"));
    let nodes = lost(guard.release().await);
    for (place, report) in nodes.iter().enumerate() {
        match place {
            2 => assert!(is_taken(&report.outcome), "{nodes}"),
            _ => assert!([MISSING, NodeOutcome::Pending].contains(&report.outcome), "{nodes}"),
        }
    }
    assert!(nodes.iter().any(|report| report.outcome == MISSING), "{nodes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_lost_on_a_minority_is_released_as_usual() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    let guard = redlock.acquire("a").await.unwrap();
    assert_on_all(&fleet, "the key", |s| s.exists(&key("a")));
    fleet[1].del(&key("a"));
    guard.release().await.unwrap();
    assert_no_keys(&fleet);
}

// Field case 6: a lock could be released only where it was acquired.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_can_be_released_by_another_task() {
    let fleet = Fleet::start(3);
    let guard = connect(&fleet).await.acquire("a").await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(guard.release());
    tasks.join_next().await.unwrap().unwrap().unwrap();
    assert_no_keys(&fleet);
}

// Attempts and waiting.

// Field case 7: validity counted from the first attempt.
#[tokio::test(flavor = "multi_thread")]
async fn validity_counts_from_the_attempt_that_succeeded() {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    occupy_all(&fleet, "a", SHORT_TTL * 12 / 10);
    let called = Instant::now();
    let guard = redlock.acquire_with("a", short()).await.unwrap();
    let (remaining, waited) = (guard.remaining(), called.elapsed());
    assert!(waited > SHORT_TTL, "waited {waited:?}");
    assert!(remaining <= SHORT_VALIDITY, "{remaining:?}");
    assert!(remaining > SHORT_TTL / 2, "{remaining:?} after waiting {waited:?}");
}

// Field case 40: the deadline's error hid the reason, and wait and ttl were tied.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_waits_beyond_the_ttl_and_says_who_was_in_the_way() {
    let fleet = Fleet::start(3);
    let redlock = connect_as(builder().node_timeout(Duration::from_millis(90)), &fleet).await;
    occupy_all(&fleet, "a", LONG);
    let wait = Duration::from_millis(500);
    let options = LockOptions::new().ttl(Duration::from_millis(100)).wait_timeout(wait);
    let error = redlock.acquire_with("a", options).await.unwrap_err();
    let AcquireError::Contended(attempt) = &error else { panic!("{error:?}") };
    assert!(attempt.attempts > 1, "{error}");
    assert!(attempt.waited >= wait && attempt.waited < wait * 3, "{error}");
    assert_eq!(attempt.quorum, 2);
    assert!(decisive(&attempt.nodes).iter().all(is_taken), "{error}");
    assert!(error.to_string().contains("held by another owner"), "{error}");
}

/// How often each node was asked, in one acquisition that does not wait.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    to_acquire: Vec<u64>,
    in_all: Vec<u64>,
}

/// Once the nodes are admitted, only scripts that acquire set anything, or try to.
fn acquire_calls(fleet: &Fleet) -> Vec<u64> {
    fleet.iter().map(|server| server.calls("set")).collect()
}

/// Acquires once, without waiting, where the nodes at the places `held` are another's; and releases.
async fn asked_once(
    held: &[usize],
    acquire: impl AsyncFn(&Redlock) -> Result<LockGuard, AcquireError>,
) -> Asked {
    let fleet = Fleet::start(3);
    let redlock = connect(&fleet).await;
    for place in held {
        occupy(&fleet[*place], "a", Some(LONG));
    }
    let (calls, acquires) = (script_calls(&fleet), acquire_calls(&fleet));
    match acquire(&redlock).await {
        Ok(guard) => guard.release().await.unwrap(),
        Err(error) => {
            let AcquireError::Contended(attempt) = &error else { panic!("{error:?}") };
            assert_eq!(attempt.attempts, 1, "{error}");
        }
    }
    // Nothing is under way any more afterwards.
    redlock.shutdown().await;
    for (place, server) in fleet.iter().enumerate() {
        let value = server.get(&key("a"));
        assert_eq!(value.is_some(), held.contains(&place), "{value:?} on node {place}");
    }
    Asked {
        to_acquire: since(&acquires, &acquire_calls(&fleet)),
        in_all: since(&calls, &script_calls(&fleet)),
    }
}

async fn try_acquire(redlock: &Redlock) -> Result<LockGuard, AcquireError> {
    redlock.try_acquire("a").await
}

async fn acquire_without_waiting(redlock: &Redlock) -> Result<LockGuard, AcquireError> {
    redlock.acquire_with("a", LockOptions::new().wait_timeout(Duration::ZERO)).await
}

// Field case 41: there was no way not to wait.
#[tokio::test(flavor = "multi_thread")]
async fn try_acquire_asks_each_node_once() {
    let held_by_another = asked_once(&[0, 1, 2], try_acquire).await;
    assert_eq!(held_by_another.to_acquire, [1, 1, 1]);
    let granted = asked_once(&[], try_acquire).await;
    assert_eq!(granted, Asked { to_acquire: vec![1, 1, 1], in_all: vec![2, 2, 2] });
}

// Field cases 20 and 41.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_attempt_is_undone_where_it_was_granted() {
    let refused = asked_once(&[1, 2], try_acquire).await;
    assert_eq!(refused, Asked { to_acquire: vec![1, 1, 1], in_all: vec![2, 1, 1] });
}

// Field case 41.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_no_time_is_one_attempt() {
    let held_by_another = asked_once(&[0, 1, 2], acquire_without_waiting).await;
    assert_eq!(held_by_another.to_acquire, [1, 1, 1]);
    let refused = asked_once(&[1, 2], acquire_without_waiting).await;
    assert_eq!(refused, Asked { to_acquire: vec![1, 1, 1], in_all: vec![2, 1, 1] });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_in_when_the_holder_releases() {
    let fleet = Fleet::start(3);
    let (a, b) = (connect(&fleet).await, connect(&fleet).await);
    let guard = a.acquire("a").await.unwrap();
    let mut waiter = pin!(b.acquire("a"));
    assert!(timeout(A_WHILE, waiter.as_mut()).await.is_err(), "it is held");
    guard.release().await.unwrap();
    let guard = timeout(SOON, waiter).await.expect("an answer").unwrap();
    assert!(guard.remaining() > TTL / 2, "{:?}", guard.remaining());
    guard.release().await.unwrap();
    assert_no_keys(&fleet);
}

// One node.

#[tokio::test(flavor = "multi_thread")]
async fn one_node_locks_by_the_same_rules() {
    let server = Server::start();
    let redlock = builder().single_node(server.url()).connect().await.unwrap();
    let mut guard = redlock.acquire("a").await.unwrap();
    assert!(redlock.try_acquire("a").await.unwrap_err().is_contended());
    guard.extend(TTL * 2).await.unwrap();
    assert!(guard.remaining() > TTL);
    guard.release().await.unwrap();
    assert!(server.keys().is_empty());
    let guard = redlock.acquire("a").await.unwrap();
    server.del(&key("a"));
    assert_eq!(decisive(&lost(guard.release().await)), [MISSING]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_that_dies_is_an_outage() {
    let server = Server::start();
    let redlock = builder().single_node(server.url()).connect().await.unwrap();
    let mut guard = redlock.acquire("a").await.unwrap();
    assert_eq!(decisive(&guard.nodes()), [DONE]);
    server.kill();
    let called = Instant::now();
    let error = redlock.try_acquire("b").await.unwrap_err();
    assert!(error.is_no_quorum(), "{error}");
    let inconclusive = guard.extend(TTL).await.unwrap_err();
    assert!(matches!(inconclusive, ExtendError::Inconclusive { .. }), "{inconclusive:?}");
    assert!(guard.remaining() > TTL / 2, "held until the end of its validity");
    let unconfirmed = guard.release().await.unwrap_err();
    assert!(matches!(unconfirmed, ReleaseError::Unconfirmed { .. }), "{unconfirmed:?}");
    assert!(called.elapsed() < Duration::from_secs(2), "{:?}", called.elapsed());
}
