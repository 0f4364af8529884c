//! The lanes to the nodes: bounds, connections, scripts, and their end.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use futures::future::join_all;
use quorumlock::{
    AcquireError, Drained, LockGuard, NodeOutcome, NodeState, Redlock, node::NodeFailure,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    Fleet, Proxy, Server,
    aftermath::{all_vote, key, no_keys, nothing_is_left, places},
    eventually,
    futures::give_up_after,
};

const SOON: Duration = Duration::from_secs(2);
/// So long that it does not end by itself what is tested here.
const NODE_TIMEOUT: Duration = Duration::from_secs(4);

async fn patient(fleet: &Fleet) -> Redlock {
    Redlock::builder()
        .new_fleet()
        .nodes(fleet.urls())
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap()
}

/// Acquires that many locks at once.
async fn acquire_all(redlock: &Redlock, count: usize) -> Vec<LockGuard> {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let redlock = redlock.clone();
        tasks.spawn(async move { redlock.try_acquire(&format!("r{number}")).await.unwrap() });
    }
    tasks.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_to_a_frozen_node_is_bounded_and_the_next_is_told_at_once() {
    let fleet = Fleet::start(3);
    let bounded = Redlock::builder().new_fleet().nodes(fleet.urls()).max_in_flight(4);
    let node_timeout = Duration::from_millis(1_500);
    let redlock = bounded.node_timeout(node_timeout).connect().await.unwrap();
    fleet.iter().for_each(Server::freeze);

    let mut tasks = JoinSet::new();
    for number in 0..4 {
        let redlock = redlock.clone();
        tasks.spawn(async move { redlock.try_acquire(&format!("r{number}")).await });
    }
    eventually("four votes to be in flight to each node", SOON, || {
        redlock.nodes().iter().all(|node| node.in_flight == 4 && node.max_in_flight == 4)
    });
    let started = Instant::now();
    let error = redlock.try_acquire("one too many").await.unwrap_err();
    let took = started.elapsed();
    assert!(took.saturating_mul(4) < node_timeout, "{took:?}: {error}");
    let overloaded = NodeOutcome::Failed(NodeFailure::Overloaded { in_flight: 4 });
    assert!(error.is_no_quorum(), "{error}");
    assert!(places(error.nodes().unwrap(), |outcome| *outcome == overloaded).len() >= 2, "{error}");

    for attempt in tasks.join_all().await {
        assert!(attempt.unwrap_err().is_no_quorum());
    }
    fleet.iter().for_each(Server::thaw);
    eventually("all nodes to vote again", SOON, || all_vote(&redlock));
    nothing_is_left(&redlock, &fleet, SOON);
    for server in &fleet {
        assert_eq!(server.grants(), 4, "the fifth was never sent");
    }
    redlock.try_acquire("r").await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bound_holds_back_releases_but_loses_none() {
    let fleet = Fleet::start(3);
    let bounded = Redlock::builder().new_fleet().nodes(fleet.urls()).max_in_flight(4);
    let redlock = bounded.node_timeout(NODE_TIMEOUT).connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..40 {
        guards.push(redlock.acquire(&format!("r{number}")).await.unwrap());
    }
    drop(guards);
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 24.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_locks_share_one_connection_per_node() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let connections =
        || fleet.iter().map(|n| (n.clients(), n.total_connections())).collect::<Vec<_>>();
    let before = connections();
    assert!(before.iter().all(|(clients, _)| *clients == 1), "{before:?}");
    for half in [1, 0] {
        for _ in 0..2 {
            let guards = acquire_all(&redlock, 500).await;
            assert_eq!(guards.len(), 500);
            if half == 0 {
                drop(guards);
            } else {
                let released = join_all(guards.into_iter().map(LockGuard::release)).await;
                released.into_iter().for_each(Result::unwrap);
            }
            nothing_is_left(&redlock, &fleet, SOON);
            assert_eq!(connections(), before);
        }
    }
    assert!(fleet.iter().all(|server| server.grants() == 2_000));
}

// Between two of the commands that set a connection up is the worst moment: nothing is on the way of
// which the loss would be noticed. Many clients in different phases meet it sooner or later.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_at_any_point_of_its_setup_is_soon_made_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let connects = join_all(
        (0..48).map(|_| Redlock::builder().single_node(proxy.url()).new_fleet().connect()),
    )
    .await;
    let redlocks: Vec<Redlock> = connects.into_iter().map(Result::unwrap).collect();
    for phase in 0..10 {
        let connections = proxy.connections();
        proxy.cut_once();
        let offset = Duration::from_micros(250).saturating_mul(phase);
        eventually("the first to reconnect", SOON, || proxy.connections() > connections);
        sleep(offset).await;
        proxy.cut_once();
        eventually("all to vote", SOON, || {
            proxy.open() == redlocks.len() && redlocks.iter().all(all_vote)
        });
    }
}

fn flush_scripts(fleet: &Fleet) {
    for server in fleet {
        server.command(&["SCRIPT", "FLUSH"]).into_text();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_works_on_every_node_after_its_scripts_were_flushed() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    flush_scripts(&fleet);
    let mut guard = redlock.try_acquire("r").await.unwrap();
    eventually("all nodes to grant", SOON, || guard.nodes().done() == 3);

    flush_scripts(&fleet);
    guard.extend(Duration::from_secs(50)).await.unwrap();
    let is_extended = |server: &Server| server.pttl(&key("r")) > 30_000;
    eventually("all nodes to extend", SOON, || fleet.iter().all(is_extended));

    flush_scripts(&fleet);
    guard.release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
    for server in &fleet {
        // Two markers of a new fleet, one of a new admission.
        assert_eq!(server.calls("eval"), 3 + 2, "the text was sent for each operation");
    }
}

// An acquire that is sent again with its text, because the node had forgotten the script, must not
// run after the release of a caller that has gone meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_acquire_is_not_sent_again_behind_its_release() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                flush_scripts(&fleet);
            }
        });
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for round in 0..400 {
                    let resource = format!("r{round}");
                    let polls = 1 + round % 3;
                    drop(give_up_after(polls, redlock.try_acquire(&resource)).await);
                }
            });
        });
        done.store(true, Ordering::Relaxed);
    });
    nothing_is_left(&redlock, &fleet, SOON);
    assert!(fleet.iter().any(|server| server.calls("eval") > 0), "scripts were forgotten in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_ends_what_is_owed_and_every_connection() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    drop(acquire_all(&redlock, 50).await);
    assert_eq!(redlock.shutdown().await, Drained::default());
    assert!(no_keys(&fleet), "what was owed is done when shutdown returns");
    for server in &fleet {
        eventually("its connections to end", SOON, || server.clients() == 0);
    }

    let again = timeout(SOON, redlock.shutdown()).await.unwrap();
    assert_eq!(again, Drained::default());
    assert_eq!(redlock.try_acquire("r").await.unwrap_err(), AcquireError::ShutDown);
    assert_eq!(redlock.acquire("r").await.unwrap_err(), AcquireError::ShutDown);
    assert!(redlock.nodes().iter().all(|node| node.state == NodeState::ShutDown));
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_with_a_frozen_node_is_bounded_and_says_what_is_left() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let guard = redlock.acquire("r").await.unwrap();
    eventually("all nodes to grant", SOON, || guard.nodes().done() == 3);
    fleet[1].freeze();
    drop(guard);

    let limit = Duration::from_secs(4);
    let drained = timeout(limit, redlock.shutdown()).await.unwrap();
    let left: Vec<_> = drained.unanswered.iter().map(|(n, left)| (n.to_string(), *left)).collect();
    assert_eq!(left, [(fleet[1].addr(), 1)]);
    assert!(no_keys([&fleet[0], &fleet[2]]));
    fleet[1].thaw();
    eventually("the connection to the frozen node to end", SOON, || fleet[1].clients() == 0);
}

// The call says that it goes on in the background: a dropped shutdown still ends everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_that_is_dropped_goes_on() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    drop(acquire_all(&redlock, 50).await);
    assert!(give_up_after(1, redlock.shutdown()).await.is_none());
    eventually("all connections to end", SOON, || fleet.iter().all(|n| n.clients() == 0));
    assert!(no_keys(&fleet));
    assert_eq!(redlock.try_acquire("r").await.unwrap_err(), AcquireError::ShutDown);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connections_end_with_the_last_handle_and_the_last_guard() {
    let fleet = Fleet::start(3);
    let redlock = patient(&fleet).await;
    let clone = redlock.clone();
    let (released, dropped) =
        (redlock.acquire("a").await.unwrap(), redlock.acquire("b").await.unwrap());
    drop(redlock);
    clone.acquire("c").await.unwrap().release().await.unwrap();
    drop(clone);

    released.release().await.unwrap();
    assert!(fleet.iter().all(|server| server.clients() == 1), "a guard still needs them");
    drop(dropped);
    eventually("all connections to end", SOON, || fleet.iter().all(|n| n.clients() == 0));
    assert!(no_keys(&fleet), "the last release came first");
}
