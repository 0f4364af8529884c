//! Those who wait for a lock: in which order, how soon, at what cost, and what they leave.
#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "these tasks end with the test's runtime, and a failing test may panic"
)]

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use quorumlock::{AcquireError, LockGuard, LockOptions, Redlock};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    Fleet, Reply, Server,
    aftermath::{is_idle, key, no_keys, nothing_is_left},
    futures::eventually_async,
};

/// After 2.5 s a waiter looks by itself; the rest is for a busy machine.
const CAP: Duration = Duration::from_secs(3);
/// A few round trips, and a lot for a busy machine.
const WOKEN: Duration = Duration::from_millis(250);
const SOON: Duration = Duration::from_secs(3);
/// So long that nothing is renewed during a test.
const LONG: Duration = Duration::from_secs(60);

async fn connect(fleet: &Fleet) -> Redlock {
    Redlock::builder().new_fleet().nodes(fleet.urls()).connect().await.unwrap()
}

async fn hold(redlock: &Redlock) -> LockGuard {
    redlock.acquire_with("r", LockOptions::new().ttl(LONG)).await.unwrap()
}

/// Waits in a task of its own. When it got in.
fn wait(redlock: &Redlock) -> JoinHandle<(LockGuard, Instant)> {
    let redlock = redlock.clone();
    tokio::spawn(async move {
        let guard = redlock.acquire_with("r", LockOptions::new().ttl(LONG)).await.unwrap();
        (guard, Instant::now())
    })
}

/// Waits in a queue with others, and releases as soon as it got in.
fn pass_on(redlock: &Redlock, number: usize, got_in: &Arc<Mutex<Vec<usize>>>) -> JoinHandle<()> {
    let (redlock, got_in) = (redlock.clone(), Arc::clone(got_in));
    tokio::spawn(async move {
        let guard = redlock.acquire("r").await.unwrap();
        got_in.lock().unwrap().push(number);
        guard.release().await.unwrap();
    })
}

/// How many connections listen for the lock, on each node.
fn listening(fleet: &Fleet) -> Vec<i64> {
    let channel = format!("{}/---", key("r"));
    let count = |reply: Reply| reply.into_array().into_iter().nth(1).map(Reply::into_int);
    let counts = fleet.iter().map(|server| count(server.command(&["PUBSUB", "NUMSUB", &channel])));
    counts.map(|count| count.expect("a count for the channel")).collect()
}

async fn all_listen(fleet: &Fleet, count: i64) {
    let what = format!("{count} connections to listen on each node");
    eventually_async(&what, SOON, || listening(fleet).iter().all(|n| *n == count)).await;
    // What they look at because of it.
    sleep(Duration::from_millis(50)).await;
}

/// What clients have sent to all nodes; scripts and the looks of tests do not send these.
fn sent(fleet: &Fleet) -> u64 {
    let commands = ["eval", "subscribe", "unsubscribe", "script", "hello", "auth"];
    let of_one = |server| commands.map(|command| Server::calls(server, command));
    fleet.iter().flat_map(of_one).sum::<u64>().saturating_add(scripts(fleet))
}

fn scripts(fleet: &Fleet) -> u64 {
    fleet.iter().map(|server| server.operations()).sum()
}

fn pubsub_clients(fleet: &Fleet) -> usize {
    let list = |server: &Server| {
        server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).into_text().unwrap_or_default()
    };
    fleet.iter().map(|server| list(server).lines().count()).sum()
}

// To search the ring takes longer than all else that a release does, and the next one waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_ring_that_turns_one_node_searches_for_the_next() {
    let fleet = Fleet::start(3);
    let mut turns = Vec::new();
    for _ in 0..3 {
        let redlock = connect(&fleet).await;
        turns.push(async move {
            for _ in 0..20 {
                let guard = redlock.acquire("r").await.unwrap();
                sleep(Duration::from_millis(5)).await;
                guard.release().await.unwrap();
            }
        });
    }
    let searched = || fleet.iter().map(|server| server.calls("pubsub")).sum::<u64>();
    let before = searched();
    futures::future::join_all(turns).await;
    // A search asks five times at least, and for two seats at most twelve times; the other two nodes once.
    let asked = searched() - before;
    assert!((60 * 4..60 * 15).contains(&asked), "{asked} questions in 60 turns");
}

// Field case 26: a lost wake-up let the waiter sleep for its whole wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_in_within_the_cap_after_the_key_was_deleted_by_hand() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    all_listen(&fleet, 1).await;
    let deleted = Instant::now();
    fleet.iter().for_each(|server| server.del(&key("r")));
    let (_guard, got_in) = timeout(CAP, waiting).await.unwrap().unwrap();
    assert!(got_in - deleted < CAP, "{:?}", got_in - deleted);
    assert!(held.release().await.unwrap_err().is_lost());
}

// Field case 26.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_in_within_the_cap_when_its_ears_are_cut_off_at_the_release() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    all_listen(&fleet, 1).await;
    for server in &fleet {
        let killed = server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).into_int();
        assert_eq!(killed, 1, "one listens");
    }
    let released = Instant::now();
    held.release().await.unwrap();
    let (guard, got_in) = timeout(CAP, waiting).await.unwrap().unwrap();
    assert!(got_in - released < CAP, "{:?}", got_in - released);
    guard.release().await.unwrap();
    nothing_is_left(&waiter, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn ears_that_were_cut_off_hear_again() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    all_listen(&fleet, 1).await;
    for server in &fleet {
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).into_int();
    }
    all_listen(&fleet, 1).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let (_guard, got_in) = timeout(CAP, waiting).await.unwrap().unwrap();
    assert!(got_in - released < WOKEN, "{:?}", got_in - released);
}

// Field case 27: a waiter kept a core and the servers busy.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_five_seconds_costs_a_few_commands_and_ends_with_the_release() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let held = hold(&holder).await;
    let before = sent(&fleet);
    let waiting = wait(&waiter);
    sleep(Duration::from_secs(5)).await;
    let while_waiting = sent(&fleet) - before;
    assert!(while_waiting < 20, "{while_waiting} commands");

    let released = Instant::now();
    held.release().await.unwrap();
    let (_guard, got_in) = timeout(CAP, waiting).await.unwrap().unwrap();
    assert!(got_in - released < WOKEN, "{:?}", got_in - released);
}

// Field case 43: those who waited for the same lock tried in step, and storms followed.
#[tokio::test]
async fn a_hundred_who_wait_in_one_process_get_in_by_arrival_at_the_cost_of_one_each() {
    const ALONE: u64 = 10;
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let before = scripts(&fleet);
    for _ in 0..ALONE {
        let held = hold(&holder).await;
        let waiting = wait(&waiter);
        all_listen(&fleet, 1).await;
        held.release().await.unwrap();
        waiting.await.unwrap().0.release().await.unwrap();
    }
    let alone = (scripts(&fleet) - before) / ALONE;

    let held = hold(&holder).await;
    let got_in = Arc::default();
    let waiting: Vec<_> = (0..100).map(|number| pass_on(&waiter, number, &got_in)).collect();
    all_listen(&fleet, 1).await;
    let before = scripts(&fleet);
    held.release().await.unwrap();
    for task in waiting {
        timeout(CAP, task).await.unwrap().unwrap();
    }
    let each = (scripts(&fleet) - before) / 100;
    assert_eq!(*got_in.lock().unwrap(), (0..100).collect::<Vec<_>>());
    assert!(each * 2 <= alone * 3, "{each} commands for each of many, {alone} for one alone");
}

#[tokio::test]
async fn the_turn_of_one_who_gives_up_passes_on() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let held = hold(&holder).await;
    let got_in = Arc::default();
    let waiting: Vec<_> = (0..5).map(|number| pass_on(&waiter, number, &got_in)).collect();
    all_listen(&fleet, 1).await;
    // The one whose turn it is, and one in the middle.
    waiting[0].abort();
    waiting[2].abort();
    sleep(Duration::from_millis(50)).await;
    let released = Instant::now();
    held.release().await.unwrap();
    for task in waiting {
        drop(timeout(CAP, task).await.unwrap());
    }
    assert!(released.elapsed() < WOKEN * 3, "{:?}", released.elapsed());
    assert_eq!(*got_in.lock().unwrap(), [1, 3, 4]);
    let clean = || is_idle(&waiter) && no_keys(&fleet);
    eventually_async("nothing to be left", SOON, clean).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_in_the_queue_ends_in_time_with_the_reason() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let _held = hold(&holder).await;
    let first = wait(&waiter);
    all_listen(&fleet, 1).await;
    let patience = Duration::from_millis(300);
    let started = Instant::now();
    let options = LockOptions::new().wait_timeout(patience);
    let error = waiter.acquire_with("r", options).await.unwrap_err();
    let took = started.elapsed();
    assert!(error.is_contended(), "{error}");
    assert!(error.nodes().unwrap().iter().count() == 3, "{error}");
    assert!(took >= patience && took < patience + WOKEN * 2, "{took:?}");
    assert!(!first.is_finished());
    first.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_contend_get_a_fair_share_each() {
    let fleet = Fleet::start(3);
    let redlocks = [connect(&fleet).await, connect(&fleet).await];
    let end = Instant::now() + Duration::from_secs(2);
    let contend = |redlock: Redlock| {
        tokio::spawn(async move {
            let mut held = 0_u32;
            while Instant::now() < end {
                let guard = redlock.acquire("r").await.unwrap();
                held += 1;
                guard.release().await.unwrap();
            }
            held
        })
    };
    let [first, second] = redlocks.map(contend);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let all = first + second;
    assert!(all > 20, "{first} and {second}");
    assert!(first.min(second) * 4 >= all, "{first} and {second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_announced_only_to_those_who_listen() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let announced = || fleet.iter().map(|server| server.calls("publish")).sum::<u64>();
    for _ in 0..10 {
        hold(&holder).await.release().await.unwrap();
    }
    nothing_is_left(&holder, &fleet, SOON);
    assert_eq!(announced(), 0);
    assert_eq!(pubsub_clients(&fleet), 0);

    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    all_listen(&fleet, 1).await;
    // On a busy machine one may have been asked too late to have it.
    let on = fleet.iter().filter(|server| server.get(&key("r")).is_some()).count();
    assert!(on >= 2, "{on}");
    held.release().await.unwrap();
    let _guard = waiting.await.unwrap();
    let once = u64::try_from(on).unwrap();
    eventually_async("one announcement on each", SOON, || announced() == once).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens_any_more_after_the_last_waiter() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    all_listen(&fleet, 1).await;
    held.release().await.unwrap();
    let _guard = waiting.await.unwrap();
    eventually_async("the ends of the subscriptions", SOON, || {
        listening(&fleet) == [0; 3] && pubsub_clients(&fleet) == 0
    })
    .await;
}

/// Connects as a user with these rights.
async fn with_rights(fleet: &Fleet, rights: &str) -> Redlock {
    let user = ["ACL", "SETUSER", "locks", "on", ">pw", "~quorumlock:*", "resetchannels"];
    let user: Vec<&str> = user.into_iter().chain(rights.split_whitespace()).collect();
    let urls = fleet.iter().map(|server| {
        assert_eq!(server.command(&user).into_text().as_deref(), Some("OK"));
        format!("redis://locks:pw@{}", server.addr())
    });
    Redlock::builder().new_fleet().nodes(urls).connect().await.unwrap()
}

// The rights that `docs/operations.md` names.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_no_more_rights_than_needed_is_woken_by_a_release() {
    const RIGHTS: &str = "&quorumlock:* -@all +evalsha +eval +script|load +ping +info +client|id \
        +client|kill +exists +pttl +get +set +pexpire +del +incr +subscribe +unsubscribe +pubsub|numsub \
        +publish";
    let fleet = Fleet::start(3);
    let (holder, waiter) = (with_rights(&fleet, RIGHTS).await, with_rights(&fleet, RIGHTS).await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    all_listen(&fleet, 1).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let (_guard, got_in) = timeout(CAP, waiting).await.unwrap().unwrap();
    assert!(got_in - released < WOKEN, "{:?}", got_in - released);
}

// All who wait are called, and each loses to one of them. That is not for their seats.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_ask_who_waits_nobody_leaves_his_seat() {
    const RIGHTS: &str = "&quorumlock:* +@all -pubsub";
    let fleet = Fleet::start(3);
    let holder = with_rights(&fleet, RIGHTS).await;
    let waiters = [with_rights(&fleet, RIGHTS).await, with_rights(&fleet, RIGHTS).await];
    let seats = || {
        let pattern = format!("{}/[0-9][0-9][0-9]", key("r"));
        let reply = fleet[0].command(&["PUBSUB", "CHANNELS", &pattern]);
        let Reply::Array(seats) = reply else { panic!("{reply:?}") };
        seats.into_iter().filter_map(Reply::into_text).collect::<BTreeSet<_>>()
    };
    let held = hold(&holder).await;
    let waiting: Vec<_> = waiters.iter().map(wait).collect();
    all_listen(&fleet, 2).await;
    let before = seats();
    assert_eq!(before.len(), 2);
    held.release().await.unwrap();
    let (first, _, waiting) = futures::future::select_all(waiting).await;
    let _first = first.unwrap();
    // For as long as it would take to move.
    sleep(Duration::from_millis(300)).await;
    assert!(seats().is_subset(&before), "{:?} of {before:?}", seats());
    waiting[0].abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_channels_a_release_works_and_a_waiter_gets_in_within_the_cap() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (with_rights(&fleet, "+@all").await, with_rights(&fleet, "+@all").await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    sleep(Duration::from_millis(300)).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let (guard, got_in) = timeout(CAP, waiting).await.unwrap().unwrap();
    assert!(got_in - released < CAP, "{:?}", got_in - released);
    guard.release().await.unwrap();
    nothing_is_left(&waiter, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn ears_that_can_never_hear_are_given_up_after_the_last_waiter() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, with_rights(&fleet, "+@all").await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    sleep(Duration::from_millis(300)).await;
    held.release().await.unwrap();
    let _guard = timeout(CAP, waiting).await.unwrap().unwrap();
    let connections = || fleet.iter().map(|server| server.total_connections()).collect::<Vec<_>>();
    sleep(SOON).await;
    let before = connections();
    assert!(before.iter().all(|count| *count > 3), "the ears never tried again: {before:?}");
    sleep(SOON).await;
    assert_eq!(connections(), before, "nobody waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_ends_those_who_wait_and_leaves_no_client() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let held = hold(&holder).await;
    let wait = |redlock: Redlock| tokio::spawn(async move { redlock.acquire("r").await });
    let waiting: Vec<_> = (0..3).map(|_| wait(waiter.clone())).collect();
    all_listen(&fleet, 1).await;
    let started = Instant::now();
    waiter.shutdown().await;
    for task in waiting {
        let error = timeout(CAP, task).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error, AcquireError::ShutDown);
    }
    assert!(started.elapsed() < WOKEN, "{:?}", started.elapsed());
    let holders_only = || fleet.iter().all(|server| server.clients() == 1);
    eventually_async("the holder's connections only", SOON, holders_only).await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_does_not_wait_for_an_ear_at_a_frozen_node() {
    let fleet = Fleet::start(3);
    let (holder, waiter) = (connect(&fleet).await, connect(&fleet).await);
    let _held = [hold(&holder).await, holder.acquire("another").await.unwrap()];
    let _first = wait(&waiter);
    all_listen(&fleet, 1).await;
    fleet[0].freeze();
    let _second = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.acquire("another").await.map(drop) }
    });
    // It has been refused, and listens now.
    sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    waiter.shutdown().await;
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    fleet[0].thaw();
}
