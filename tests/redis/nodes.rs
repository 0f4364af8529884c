//! What is shown of the nodes, and told of them.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use quorumlock::{NodeState, NodeStatus, Redlock, RedlockBuilder};
use tokio::time::{Instant, timeout};
use tracing::{Metadata, Subscriber, field, span};

use crate::support::{
    Fleet, Reply, Server,
    aftermath::{all_vote, node},
    eventually,
    futures::eventually_async,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(10);
const MAX_TTL: Duration = Duration::from_secs(1);
/// With the drift over it.
const WAIT: Duration = Duration::from_millis(1_012);

/// With time to answer, also on a machine that is busy.
fn builder() -> RedlockBuilder {
    Redlock::builder().new_fleet().node_timeout(Duration::from_secs(2))
}

#[track_caller]
fn ok(reply: &Reply) {
    assert_eq!(*reply, Reply::Text("OK".to_owned()));
}

/// Whether it is in quarantine for a reason that has these words in it.
fn waits_because(redlock: &Redlock, place: usize, words: &str) -> bool {
    let state = node(redlock, place).state;
    matches!(state, NodeState::Quarantined { until: None, why } if why.contains(words))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_and_comes_back_empty_is_told_of_step_by_step() {
    let fleet = Fleet::start(3);
    let builder = Redlock::builder().new_fleet().ttl(MAX_TTL).max_ttl(MAX_TTL);
    let redlock = builder.nodes(fleet.urls()).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&redlock));
    let mut events = redlock.node_events();
    for server in &fleet {
        let status = events.next().await.unwrap();
        assert_eq!((status.node.to_string(), status.state), (server.addr(), NodeState::Voting));
    }
    let mut next = async || timeout(SOON, events.next()).await.expect("an event").expect("no end");
    let killed = Instant::now();
    fleet[1].kill();
    let down: NodeStatus = next().await;
    assert_eq!(down.node.to_string(), fleet[1].addr());
    assert!(matches!(down.state, NodeState::Unreachable { .. }), "{down:?}");
    assert!(down.since >= killed && down.since <= Instant::now(), "{down:?}");
    let shown = node(&redlock, 1);
    assert!(matches!(shown.state, NodeState::Unreachable { .. }));
    assert_eq!(shown.since, down.since);

    fleet[1].restart();
    let back = Instant::now();
    let mut wait = None;
    loop {
        let status = next().await;
        assert_eq!(status.node.to_string(), fleet[1].addr(), "{status:?}");
        if let NodeState::Quarantined { until: Some(until), .. } = status.state {
            wait.get_or_insert((status.since, until));
        } else if status.state == NodeState::Voting {
            let (since, until) = wait.expect("it waits before");
            assert!(until >= killed + WAIT && until <= back + SOON);
            assert!(since <= until && status.since >= killed + WAIT, "{status:?}");
            break;
        }
    }
    redlock.shutdown().await;
    let mut ends = 0;
    while let Some(status) = timeout(SOON, events.next()).await.expect("an end") {
        ends += usize::from(status.state == NodeState::ShutDown);
    }
    assert_eq!(ends, 3, "each says so once");
}

// Replicas.

/// Counts the warnings about replicas.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text<'a>(&'a mut String);

impl field::Visit for Text<'_> {
    fn record_debug(&mut self, field: &field::Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN && metadata.target().starts_with("quorumlock")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        self.0.lock().unwrap().push(text);
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Waits until so many are shown for each node, and all vote.
async fn shows_replicas(redlock: &Redlock, fleet: &Fleet, expected: [u32; 3]) {
    let shown = || redlock.nodes().iter().map(|node| node.replicas).collect::<Vec<_>>();
    let called = Instant::now();
    while shown() != expected {
        assert!(called.elapsed() < SOON, "{:?}", shown());
        // A node that has forgotten its scripts is looked at, which else it is every 5 s.
        fleet.iter().for_each(|server| ok(&server.command(&["SCRIPT", "FLUSH"])));
        drop(redlock.try_acquire("r").await);
    }
    eventually_async("all nodes to vote", SOON, || all_vote(redlock)).await;
}

// On one thread, so that all that is logged is logged here.
#[tokio::test]
async fn attached_replicas_are_shown_and_warned_of_once() {
    let warnings = Warnings::default();
    let _log = tracing::subscriber::set_default(warnings.clone());
    let (fleet, replica) = (Fleet::start(3), Server::start());
    let redlock = builder().nodes(fleet.urls()).connect().await.unwrap();
    eventually_async("all nodes to vote", SOON, || all_vote(&redlock)).await;
    shows_replicas(&redlock, &fleet, [0, 0, 0]).await;
    let mut events = redlock.node_events();
    let port = fleet[1].port().to_string();
    // More than once, and it is warned of once.
    for _ in 0..2 {
        ok(&replica.command(&["REPLICAOF", "127.0.0.1", &port]));
        shows_replicas(&redlock, &fleet, [0, 1, 0]).await;
        let is_told = async { while events.next().await.unwrap().replicas != 1 {} };
        timeout(SOON, is_told).await.expect("it is told of");
        ok(&replica.command(&["REPLICAOF", "NO", "ONE"]));
        shows_replicas(&redlock, &fleet, [0, 0, 0]).await;
    }
    let warned = warnings.0.lock().unwrap().clone();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("replicas=1") && warned[0].contains(&fleet[1].addr()), "{warned:?}");
}

// Nodes that cannot be looked at or written to.

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_memory_is_full_cannot_be_admitted_and_says_so() {
    let server = Server::start();
    ok(&server.command(&["CONFIG", "SET", "maxmemory", "1"]));
    let redlock = builder().single_node(server.url()).connect().await.unwrap();
    let is_told = || waits_because(&redlock, 0, "cannot be written to: the node answered: OOM");
    eventually("the reason", SOON, is_told);
    let error = redlock.try_acquire("r").await.unwrap_err().to_string();
    assert!(error.contains("cannot be written to: the node answered: OOM"), "{error}");
    ok(&server.command(&["CONFIG", "SET", "maxmemory", "0"]));
    eventually("its vote", SOON, || all_vote(&redlock));
    redlock.acquire("r").await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_busy_with_a_script_cannot_be_looked_at_and_says_so() {
    let server = Server::with_args(&["--busy-reply-threshold", "50"]);
    let redlock = builder().single_node(server.url()).connect().await.unwrap();
    eventually("its vote", SOON, || all_vote(&redlock));
    let _busy = server.send(&["EVAL", "while true do end", "0"]);
    // It looks every 5 s.
    let is_told = || waits_because(&redlock, 0, "cannot be looked at: the node answered: BUSY");
    eventually("the reason", SOON, is_told);
    eventually("an end", SOON, || {
        server.command(&["SCRIPT", "KILL"]) == Reply::Text("OK".to_owned())
    });
    eventually("its vote", SOON, || all_vote(&redlock));
    redlock.acquire("r").await.unwrap().release().await.unwrap();
}
