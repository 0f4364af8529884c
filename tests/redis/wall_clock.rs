//! Servers of which the wall clock is set while a node waits for its vote.

use std::time::Duration;

use quorumlock::{NodeState, Redlock, RedlockBuilder};
use tokio::time::{Instant, sleep};

use crate::support::{
    Fleet, Server,
    aftermath::{all_vote, key, node},
    futures::eventually_async,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(10);
/// For so long a node waits that may have forgotten,
const MAX_TTL: Duration = Duration::from_secs(2);
/// with the drift over it.
const WAIT: Duration = Duration::from_millis(2_022);
/// Bounds the wait, whatever else the machine does.
const LONGEST: Duration = Duration::from_secs(12);
const HOUR_MS: i64 = 3_600_000;
/// Until the servers say so, and until the next look.
const A_MOMENT: Duration = Duration::from_millis(500);

fn builder() -> RedlockBuilder {
    Redlock::builder().ttl(MAX_TTL).max_ttl(MAX_TTL).node_timeout(Duration::from_millis(500))
}

/// When the wait of a node ends that waits.
fn until(redlock: &Redlock, place: usize) -> Option<Instant> {
    if let NodeState::Quarantined { until, .. } = node(redlock, place).state { until } else { None }
}

/// What a server takes for the time since its start, in seconds.
fn uptime(server: &Server) -> i64 {
    server.info("server")["uptime_in_seconds"].parse().expect("a number")
}

/// Sets the clock of a server, and sees to it that the server believes it.
async fn set_clock(server: &Server, ms: i64) {
    let before = uptime(server);
    server.jump(ms);
    // More than an hour before or after, less what has gone by.
    let is_told = || uptime(server).abs_diff(before) > 3_540;
    eventually_async("an uptime that is wrong by an hour", SOON, is_told).await;
}

/// A node comes back empty, and its clock is set while it waits.
async fn one_restarts(jump: i64) {
    let fleet = Fleet::with_clocks(3);
    let redlock = builder().new_fleet().nodes(fleet.urls()).connect().await.unwrap();
    eventually_async("all nodes to vote", SOON, || all_vote(&redlock)).await;
    fleet[1].kill();
    let down = Instant::now();
    fleet[1].restart();
    eventually_async("its wait", SOON, || until(&redlock, 1).is_some()).await;
    let before = until(&redlock, 1).expect("it waits");
    set_clock(&fleet[1], jump).await;
    sleep(A_MOMENT).await;
    if let Some(after) = until(&redlock, 1) {
        assert_eq!(after, before, "{jump}: its wait has changed");
    } else {
        assert!(down.elapsed() >= WAIT, "{jump}: it ended after {:?}", down.elapsed());
    }
    while node(&redlock, 1).state != NodeState::Voting {
        // Read first: it may begin to vote between the two.
        let granted = fleet[1].exists(&key("r"));
        assert!(!granted || down.elapsed() >= WAIT, "{jump}: it voted at {:?}", down.elapsed());
        drop(redlock.acquire("r").await.unwrap());
        assert!(down.elapsed() < LONGEST, "{jump}: {:?}", redlock.nodes());
    }
    assert!(down.elapsed() >= WAIT, "{jump}: {:?}", down.elapsed());
}

/// A fleet that nobody remembers, of which all clocks are set while a client waits for its first lock.
async fn nobody_remembers(jump: i64) {
    let fleet = Fleet::with_clocks(3);
    let called = Instant::now();
    let redlock = builder().nodes(fleet.urls()).connect().await.unwrap();
    let waits = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("r").await.map(|guard| (guard, Instant::now())) }
    });
    for server in &fleet {
        set_clock(server, jump).await;
    }
    let (guard, acquired) = waits.await.unwrap().unwrap();
    let waited = acquired.saturating_duration_since(called);
    assert!(waited >= WAIT && waited < LONGEST, "{jump}: {waited:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_is_set_changes_nothing_about_the_wait_of_a_node() {
    let [forward, back] = [HOUR_MS, -HOUR_MS].map(|jump| tokio::spawn(one_restarts(jump)));
    forward.await.unwrap();
    back.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wall_clocks_that_are_set_change_nothing_about_the_wait_for_a_first_lock() {
    let [forward, back] = [HOUR_MS, -HOUR_MS].map(|jump| tokio::spawn(nobody_remembers(jump)));
    forward.await.unwrap();
    back.await.unwrap();
}
