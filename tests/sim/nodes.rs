//! What is shown of the nodes, and when, in virtual time.

use std::time::Duration;

use futures::{FutureExt, future::join_all};
use quorumlock::{
    NodeEvents, NodeState, NodeStatus, Redlock, RedlockBuilder,
    sim::{LinkFaults, SimCluster},
};
use tokio::time::{Instant, sleep, timeout};

use crate::behaviours::{pass, until};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// For so long a node waits that may have forgotten, with the drift over it.
const WAIT: Duration = Duration::from_millis(1_012);
/// Longer than a client takes to connect again, and shorter than anything waits.
const A_MOMENT: Duration = Duration::from_millis(600);

fn builder(cluster: &SimCluster) -> RedlockBuilder {
    let max_ttl = Duration::from_secs(1);
    Redlock::builder().ttl(max_ttl).max_ttl(max_ttl).new_fleet().sim_client(&cluster.client())
}

/// Connects, and waits until all nodes vote.
async fn connect(cluster: &SimCluster) -> Redlock {
    let redlock = builder(cluster).connect().await.unwrap();
    until("all votes", || redlock.nodes().iter().all(|node| node.state == NodeState::Voting)).await;
    redlock
}

fn node(redlock: &Redlock, place: usize) -> NodeStatus {
    redlock.nodes().swap_remove(place)
}

/// A word for the state.
fn word(status: &NodeStatus) -> &'static str {
    match status.state {
        NodeState::Connecting => "connecting",
        NodeState::Joining => "joining",
        NodeState::Voting => "voting",
        NodeState::CatchingUp => "catching up",
        NodeState::Quarantined { .. } => "quarantined",
        NodeState::Refused { .. } => "refused",
        NodeState::Unresponsive => "unresponsive",
        NodeState::Unreachable { .. } => "unreachable",
        NodeState::ShutDown => "shut down",
        _ => "something else",
    }
}

/// What is told without waiting.
fn told(events: &mut NodeEvents) -> Vec<NodeStatus> {
    let mut told = Vec::new();
    while let Some(Some(status)) = events.next().now_or_never() {
        told.push(status);
        assert!(told.len() < 100, "no end: {told:?}");
    }
    told
}

/// Which node it is told of, and what.
fn words(told: &[NodeStatus]) -> Vec<(&str, &'static str)> {
    told.iter().map(|status| (status.node.as_str(), word(status))).collect()
}

// Since when.

#[tokio::test(start_paused = true)]
async fn a_node_is_in_its_state_since_it_came_into_it() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let began = node(&redlock, 1).since;
    assert!(began <= Instant::now());
    pass(MS(5_000)).await;
    assert_eq!(node(&redlock, 1).since, began, "it has voted all the time");

    let crashed = Instant::now();
    cluster.crash(1);
    pass(A_MOMENT).await;
    let status = node(&redlock, 1);
    assert_eq!(word(&status), "unreachable");
    let after = status.since.duration_since(crashed);
    assert!(after <= MS(10), "{after:?}");
    // Attempts to connect fail for more than one reason, and that begins nothing anew.
    pass(MS(5_000)).await;
    assert_eq!((word(&node(&redlock, 1)), node(&redlock, 1).since), ("unreachable", status.since));

    cluster.restart(1);
    until("its wait", || word(&node(&redlock, 1)) == "quarantined").await;
    let waits = node(&redlock, 1);
    assert!(waits.since >= crashed + A_MOMENT + MS(5_000));
    let NodeState::Quarantined { until: Some(end), .. } = waits.state else { panic!("{waits:?}") };
    let wait = end.duration_since(waits.since);
    assert!(wait <= WAIT && wait + MS(10) > WAIT, "{wait:?}");
    pass(WAIT + MS(300)).await;
    let votes = node(&redlock, 1);
    assert_eq!(word(&votes), "voting");
    assert!(votes.since >= end && votes.since <= end + MS(300), "{votes:?}");
    assert!(node(&redlock, 0).since < crashed, "the others are as they were");
}

#[tokio::test(start_paused = true)]
async fn another_reason_for_the_same_state_does_not_begin_it_anew() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    for place in [0, 1] {
        cluster.crash(place);
    }
    cluster.restart(0);
    let reason = || {
        let state = node(&redlock, 0).state;
        if let NodeState::Quarantined { until, .. } = state { Some(until.is_some()) } else { None }
    };
    until("its wait", || reason() == Some(true)).await;
    let mut events = redlock.node_events();
    told(&mut events);
    let began = node(&redlock, 0).since;
    until("a wait for others", || reason() == Some(false)).await;
    pass(A_MOMENT).await;
    let status = node(&redlock, 0);
    assert_eq!((word(&status), status.since), ("quarantined", began));
    let told = told(&mut events);
    assert!(told.iter().any(|told| told.state == status.state), "it is told of: {told:?}");
}

// Events.

#[tokio::test(start_paused = true)]
async fn events_begin_with_each_node_as_it_is_and_go_on_with_what_changes() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let mut events = redlock.node_events();
    let all_vote = [("n0", "voting"), ("n1", "voting"), ("n2", "voting")];
    assert_eq!(words(&told(&mut events)), all_vote);
    pass(MS(20_000)).await;
    assert_eq!(words(&told(&mut events)), [], "nothing has changed");

    cluster.crash(1);
    let status = timeout(A_MOMENT, events.next()).await.unwrap().unwrap();
    assert_eq!(words(std::slice::from_ref(&status)), [("n1", "unreachable")]);
    assert_eq!(status.since, node(&redlock, 1).since);
    cluster.restart(1);
    let mut seen = Vec::new();
    while seen.last() != Some(&"voting") {
        let status = timeout(MS(5_000), events.next()).await.unwrap().unwrap();
        assert_eq!(status.node.as_str(), "n1");
        if seen.last() != Some(&word(&status)) {
            seen.push(word(&status));
        }
    }
    let wait = seen.iter().position(|word| *word == "quarantined");
    assert!(wait.is_some(), "one who reads at once misses nothing: {seen:?}");
    // Everyone is told, also who comes later.
    let mut other = redlock.node_events();
    assert_eq!(words(&told(&mut other)), all_vote);
}

#[tokio::test(start_paused = true)]
async fn events_tell_also_of_a_node_of_which_nothing_is_known() {
    let cluster = SimCluster::new(3);
    cluster.freeze(2);
    let redlock = builder(&cluster).connect().await.unwrap();
    let mut events = redlock.node_events();
    let told = told(&mut events);
    assert_eq!(words(&told)[2], ("n2", "connecting"));
    assert!(told[2].since.elapsed() >= MS(200), "since it was begun");
    cluster.thaw(2);
    let next = timeout(MS(5_000), events.next()).await.unwrap().unwrap();
    assert_eq!(next.node.as_str(), "n2");
}

#[tokio::test(start_paused = true)]
async fn who_reads_slowly_misses_what_was_between_and_never_what_came_last() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let mut events = redlock.node_events();
    told(&mut events);
    for place in [2, 1, 2] {
        cluster.crash(place);
        pass(A_MOMENT).await;
        cluster.restart(place);
        pass(A_MOMENT + WAIT).await;
    }
    cluster.freeze(1);
    drop(redlock.try_acquire("r").await);
    until("silence", || word(&node(&redlock, 1)) == "unresponsive").await;
    let mut told = told(&mut events);
    told.sort_by(|a, b| a.node.cmp(&b.node));
    assert_eq!(words(&told), [("n1", "unresponsive"), ("n2", "voting")]);
    for (told, place) in told.iter().zip([1, 2]) {
        assert_eq!(told.since, node(&redlock, place).since);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_changes_all_the_time_does_not_hide_the_others() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    for (flaps, fails) in [(0, 2), (2, 0)] {
        let mut events = redlock.node_events();
        told(&mut events);
        cluster.crash(fails);
        let mut seen = Vec::new();
        for _ in 0..3 {
            cluster.crash(flaps);
            pass(A_MOMENT).await;
            cluster.restart(flaps);
            pass(A_MOMENT).await;
            seen.push(events.next().await.unwrap());
        }
        let name = format!("n{fails}");
        let first = seen.iter().position(|status| status.node.as_str() == name);
        assert!(first.is_some_and(|first| first < 2), "{flaps}: {:?}", words(&seen));
        cluster.restart(fails);
        until("all votes", || redlock.nodes().iter().all(|n| n.state == NodeState::Voting)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_not_returned_is_told_by_the_next_call() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let mut events = redlock.node_events();
    drop(events.next());
    assert_eq!(told(&mut events).len(), 3);
    for _ in 0..100 {
        assert!(timeout(MS(1), events.next()).await.is_err(), "nothing has changed");
    }
    cluster.crash(0);
    pass(A_MOMENT).await;
    drop(events.next());
    assert_eq!(words(&told(&mut events)), [("n0", "unreachable")]);
}

#[tokio::test(start_paused = true)]
async fn events_end_when_the_client_is_shut_down() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let mut events = redlock.node_events();
    told(&mut events);
    redlock.shutdown().await;
    let mut last = Vec::new();
    while let Some(status) = timeout(A_MOMENT, events.next()).await.unwrap() {
        last.push(status);
    }
    let all = [("n0", "shut down"), ("n1", "shut down"), ("n2", "shut down")];
    assert_eq!(words(&last), all);
    assert!(events.next().await.is_none(), "and stay so");
    let mut late = redlock.node_events();
    assert_eq!(words(&told(&mut late)), all);
    assert!(late.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn who_reads_events_keeps_nothing_connected() {
    let cluster = SimCluster::new(3);
    let redlock = connect(&cluster).await;
    let mut events = redlock.node_events();
    told(&mut events);
    drop(redlock);
    let mut last = Vec::new();
    while let Some(status) = timeout(MS(5_000), events.next()).await.unwrap() {
        last.push(status);
    }
    assert_eq!(words(&last), [("n0", "shut down"), ("n1", "shut down"), ("n2", "shut down")]);
}

#[tokio::test(start_paused = true)]
async fn clients_that_found_a_fleet_together_all_see_soon_that_it_votes() {
    for seed in 0..100 {
        let cluster = SimCluster::with_seed(5, seed);
        let started = Instant::now();
        let clients = (0..5).map(|number| {
            let client = cluster.client();
            (0..5).for_each(|node| client.set_link(node, LinkFaults::latency(1, 6)));
            async move {
                // Some come when others have just begun.
                sleep(Duration::from_millis(number * 5)).await;
                let redlock = Redlock::builder().new_fleet().sim_client(&client).connect().await;
                let redlock = redlock.expect("masters");
                let guard = redlock.acquire(&format!("r{number}")).await;
                (redlock, guard.expect("a lock of its own"))
            }
        });
        join_all(clients).await;
        assert!(
            started.elapsed() < Duration::from_millis(250),
            "seed {seed}: {:?}",
            started.elapsed()
        );
    }
}
