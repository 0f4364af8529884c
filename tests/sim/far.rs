//! Masters that are far away, as those in other regions are.

use std::time::Duration;

use quorumlock::{
    LockOptions, Redlock,
    sim::{LinkFaults, SimCluster},
};
use tokio::time::{Instant, sleep};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A process from which a message to each node takes so long, one way.
async fn process(cluster: &SimCluster, one_way: u64) -> Redlock {
    let client = cluster.client();
    (0..cluster.len())
        .for_each(|node| client.set_link(node, LinkFaults::latency(one_way, one_way)));
    Redlock::builder().new_fleet().sim_client(&client).connect().await.unwrap()
}

// The probe that follows has not been answered either by then.
#[tokio::test(start_paused = true)]
async fn one_short_timeout_does_not_keep_the_others_from_a_far_node() {
    let cluster = SimCluster::new(5);
    let redlock = process(&cluster, 75).await;
    for round in 0..50 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        // A tenth of it is the node timeout.
        let short = redlock.acquire_with(&a, LockOptions::new().ttl(MS(200)).wait_timeout(MS(20)));
        let (short, long) = tokio::join!(short, redlock.try_acquire(&b));
        assert!(short.is_err(), "a node answered sooner than it can");
        long.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_many_locks_far_away_is_woken_by_each_release() {
    let cluster = SimCluster::new(5);
    let (near, far) = (process(&cluster, 1).await, process(&cluster, 50).await);
    let names: Vec<String> = (0..300).map(|number| format!("r{number}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(near.acquire(name).await.unwrap());
    }
    let started = Instant::now();
    let waiting: Vec<_> = names
        .into_iter()
        .map(|name| {
            let far = far.clone();
            tokio::spawn(async move { (far.acquire(&name).await.unwrap(), started.elapsed()) })
        })
        .collect();
    // A vote, a connection, and five round trips for so many keys: done before the first of the last are released.
    sleep(MS(700)).await;
    for guard in held {
        guard.release().await.unwrap();
    }
    for task in waiting {
        let (_guard, took) = task.await.unwrap();
        // The releases, the way of the last announcement, and a vote.
        assert!(took < MS(700 + 600 + 50 + 100 + 20), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_heard_while_it_is_asked_to_hear_of_others() {
    let cluster = SimCluster::new(5);
    let (near, far) = (process(&cluster, 1).await, process(&cluster, 50).await);
    let held = near.acquire("a").await.unwrap();
    let _held = near.acquire("b").await.unwrap();
    let wait_for = |name| {
        let far = far.clone();
        tokio::spawn(async move { (far.acquire(name).await.unwrap(), Instant::now()) })
    };
    let waiting = wait_for("a");
    sleep(MS(500)).await;
    let also = wait_for("b");
    // A vote that says that it is held; the subscription is on its way when the announcement comes.
    sleep(MS(51)).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let (_guard, got_in) = waiting.await.unwrap();
    assert_eq!(got_in - released, MS(1 + 50 + 100));
    also.abort();
}
