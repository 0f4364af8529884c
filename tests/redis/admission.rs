//! Which nodes may vote: those that remember what they granted, and no others.

use std::time::Duration;

use quorumlock::{
    AcquireError, ConnectError, LockGuard, LockOptions, NodeOutcome, NodeState, OwnerId, Redlock,
    RedlockBuilder,
    node::{Answer, MarkState, Marker, NodeFailure, NodeName},
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Fleet, Proxy, Reply, Server,
    aftermath::{all_vote, key, node, places, proxies},
    eventually,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(10);
/// The longest ttl of most of these fleets, for which a node waits that may have forgotten.
const MAX_TTL: Duration = Duration::from_secs(1);
/// With the drift over it.
const WAIT: Duration = Duration::from_millis(1_012);
/// A longest ttl that no test waits for: what votes within [`SOON`] did not wait.
const LONG: Duration = Duration::from_secs(60);
const KEEPS_ALL: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
const KEEPS_MOST: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "everysec"];
const MARKER: &str = "quorumlock:marker";

fn builder(max_ttl: Duration) -> RedlockBuilder {
    Redlock::builder().ttl(MAX_TTL).max_ttl(max_ttl).node_timeout(Duration::from_millis(300))
}

fn new_fleet(max_ttl: Duration) -> RedlockBuilder {
    builder(max_ttl).new_fleet()
}

/// Connects, and waits until all nodes vote.
async fn connect(builder: RedlockBuilder, fleet: &Fleet) -> Redlock {
    let redlock = builder.nodes(fleet.urls()).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&redlock));
    redlock
}

fn is_quarantined(redlock: &Redlock, place: usize) -> bool {
    matches!(node(redlock, place).state, NodeState::Quarantined { .. })
}

fn votes(redlock: &Redlock, place: usize) -> bool {
    node(redlock, place).state == NodeState::Voting
}

fn is_not_admitted(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Failed(NodeFailure::NotAdmitted { .. }))
}

fn is_granted(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Answered(Answer::Done))
}

/// The places of the nodes that were not asked because they may not vote.
#[track_caller]
fn not_admitted(error: &AcquireError) -> Vec<usize> {
    places(&error.attempt().expect("an attempt").nodes, is_not_admitted)
}

async fn works(redlock: &Redlock) {
    redlock.try_acquire("works").await.unwrap().release().await.unwrap();
}

fn is_ours_on(server: &Server, guard: &LockGuard) -> bool {
    server.get(&key(guard.resource())) == Some(guard.owner_id().to_string())
}

/// Lets somebody else hold the resource on a node.
#[track_caller]
fn occupy(server: &Server, resource: &str) {
    server.set_raw(&key(resource), "someone else", Some(LONG));
}

#[track_caller]
fn ok(reply: &Reply) {
    assert_eq!(*reply, Reply::Text("OK".to_owned()));
}

#[track_caller]
fn assert_unfit(connected: Result<Redlock, ConnectError>, server: &Server, reason: &str) {
    let error = connected.expect_err("a refusal");
    let ConnectError::Unfit { node, reason: given } = error else { panic!("{error:?}") };
    assert!(node.as_str().ends_with(&server.port().to_string()), "{node}: {given}");
    assert!(given.contains(reason), "{given:?} should say {reason:?}");
}

// Exclusion.

/// A holds on n0, n1 and n2. n2 is killed and comes back empty, and B asks until it is granted.
/// Whether A still held then, and which nodes were not admitted while it did.
async fn textbook(builder: impl Fn() -> RedlockBuilder) -> (bool, Vec<usize>) {
    let fleet = Fleet::start(5);
    let (a, b) = (connect(builder(), &fleet).await, connect(builder(), &fleet).await);
    for place in [3, 4] {
        occupy(&fleet[place], "r");
    }
    let options = LockOptions::new().wait_timeout(Duration::ZERO).without_renewal();
    let held = a.acquire_with("r", options).await.unwrap();
    assert!([0, 1, 2].iter().all(|place| is_ours_on(&fleet[*place], &held)));
    for place in [3, 4] {
        fleet[place].del(&key("r"));
    }

    fleet[2].restart();
    let mut refused = Vec::new();
    loop {
        match b.try_acquire("r").await {
            Ok(_granted) => return (!held.is_lost(), refused),
            Err(error) => {
                let nodes = &error.attempt().unwrap().nodes;
                if places(nodes, is_granted) == [3, 4] && !held.is_lost() {
                    refused.extend(not_admitted(&error));
                }
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_crashed_and_came_back_empty_gives_no_lock_away_twice() {
    let ttl = Duration::from_secs(4);
    let protected = move || new_fleet(ttl).ttl(ttl);
    let unprotected = move || protected().without_quarantine();
    let (protected, unprotected) =
        (tokio::spawn(textbook(protected)), tokio::spawn(textbook(unprotected)));
    let ((is_twice, refused), unprotected) = (protected.await.unwrap(), unprotected.await.unwrap());
    assert!(!is_twice, "granted while it was held");
    assert!(refused.contains(&2), "it was refused because n2 had no vote: {refused:?}");
    assert!(unprotected.0, "without the protection it is granted twice");
}

/// A holds on n0, n1 and n2, and cannot reach the others. n2 is killed and comes back empty.
/// Whether A gets its key back there and holds on.
async fn refill(builder: RedlockBuilder) -> bool {
    let fleet = Fleet::start(5);
    let proxies: [Proxy; 5] = proxies(&fleet);
    let names = ["n0", "n1", "n2", "n3", "n4"];
    let nodes = names.into_iter().zip(proxies.iter().map(Proxy::url));
    let a = builder.named_nodes(nodes).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&a));
    for place in [3, 4] {
        proxies[place].cut();
    }
    let held = a.acquire("r").await.unwrap();
    eventually("n0, n1 and n2", SOON, || {
        [0, 1, 2].iter().all(|place| is_ours_on(&fleet[*place], &held))
    });

    fleet[2].restart();
    let started = Instant::now();
    while !held.is_lost() {
        let is_back = fleet[2].exists(&key("r"));
        if is_back && started.elapsed() > MAX_TTL.saturating_mul(3) {
            return true;
        }
        // It may have been lost between the two looks, and n2 may vote after that.
        assert!(!is_back || a.nodes()[2].state == NodeState::Voting);
        sleep(Duration::from_millis(5)).await;
    }
    assert!(!fleet[2].exists(&key("r")), "its key was not put back");
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_puts_no_key_back_on_a_node_that_has_forgotten_it_and_does_not_count_it() {
    let protected = tokio::spawn(refill(new_fleet(MAX_TTL)));
    let unprotected = tokio::spawn(refill(new_fleet(MAX_TTL).without_quarantine()));
    let (protected, unprotected) = (protected.await.unwrap(), unprotected.await.unwrap());
    assert!(!protected, "held by a node that had forgotten it");
    assert!(unprotected, "without the protection it is");
}

/// A holds on all three. Two are killed and come back empty while the third does not answer, and a
/// client that has just started asks until it is granted. Whether A still held then.
async fn majority_is_lost(later: RedlockBuilder) -> bool {
    let fleet = Fleet::start(3);
    let ttl = Duration::from_secs(8);
    let a = connect(new_fleet(ttl).ttl(ttl), &fleet).await;
    let options = LockOptions::new().without_renewal();
    let held = a.acquire_with("r", options).await.unwrap();
    eventually("all nodes", SOON, || fleet.iter().all(|server| is_ours_on(server, &held)));
    fleet[2].freeze();
    [&fleet[0], &fleet[1]].into_iter().for_each(Server::restart);
    let b = later.ttl(ttl).max_ttl(ttl).nodes(fleet.urls()).connect().await.unwrap();
    while !held.is_lost() {
        if b.try_acquire("r").await.is_ok() {
            return !held.is_lost();
        }
        sleep(Duration::from_millis(50)).await;
    }
    false
}

// `new_fleet` says that nothing can be held. It has its price where that is not true.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_forgot_gives_no_lock_away_unless_a_client_says_that_it_is_new() {
    let protected = tokio::spawn(majority_is_lost(builder(MAX_TTL)));
    let unprotected = tokio::spawn(majority_is_lost(new_fleet(MAX_TTL)));
    assert!(!protected.await.unwrap(), "granted while it was held");
    assert!(unprotected.await.unwrap(), "that is its price");
}

// What a node forgets, and for how long it waits.

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_empty_votes_after_the_longest_ttl_and_not_before() {
    let fleet = Fleet::start(3);
    let redlock = connect(new_fleet(MAX_TTL), &fleet).await;
    fleet[1].kill();
    let down = Instant::now();
    fleet[1].restart();
    eventually("its wait", SOON, || is_quarantined(&redlock, 1));
    while !votes(&redlock, 1) {
        // Read first: it may begin to vote between the two.
        let granted = fleet[1].exists(&key("r"));
        assert!(!granted || down.elapsed() >= WAIT, "it voted after {:?}", down.elapsed());
        let guard = redlock.try_acquire("r").await.unwrap();
        assert!(down.elapsed() >= WAIT || places(&guard.nodes(), is_not_admitted) == [1]);
        guard.release().await.unwrap();
        assert!(down.elapsed() < SOON);
    }
    assert!(down.elapsed() >= WAIT, "{:?}", down.elapsed());
    let guard = redlock.try_acquire("r").await.unwrap();
    eventually("n1 to hold it, too", SOON, || is_ours_on(&fleet[1], &guard));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_kept_its_data_waits_unless_it_is_trusted_to_keep_all() {
    let fleet = Fleet::with_args(3, &KEEPS_ALL);
    let redlock = connect(new_fleet(MAX_TTL), &fleet).await;
    fleet[1].kill();
    let down = Instant::now();
    fleet[1].restart();
    assert!(fleet[1].exists(MARKER), "it kept its data");
    eventually("its wait", SOON, || is_quarantined(&redlock, 1));
    eventually("its vote", SOON, || votes(&redlock, 1));
    assert!(down.elapsed() >= WAIT, "{:?}", down.elapsed());
    works(&redlock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_trusted_to_keep_all_votes_at_once_and_remembers() {
    let fleet = Fleet::with_args(3, &KEEPS_ALL);
    let trusting = || new_fleet(LONG).ttl(LONG).trust_durability();
    let (a, b) = (connect(trusting(), &fleet).await, connect(trusting(), &fleet).await);
    let held = a.try_acquire("r").await.unwrap();
    eventually("all nodes", SOON, || fleet.iter().all(|server| is_ours_on(server, &held)));
    fleet.iter().for_each(Server::restart);
    eventually("all to vote for both", SOON, || all_vote(&a) && all_vote(&b));
    assert!(fleet.iter().all(|server| is_ours_on(server, &held)));
    let error = b.try_acquire("r").await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    held.release().await.unwrap();
    works(&b).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_syncs_every_second_or_not_at_all_is_not_trusted() {
    for args in [&KEEPS_MOST[..], &[]] {
        let fleet = Fleet::with_args(3, args);
        let redlock = connect(new_fleet(MAX_TTL).trust_durability(), &fleet).await;
        fleet[1].kill();
        let down = Instant::now();
        fleet[1].restart();
        eventually("its wait", SOON, || is_quarantined(&redlock, 1));
        eventually("its vote", SOON, || votes(&redlock, 1));
        assert!(down.elapsed() >= WAIT, "{args:?}: {:?}", down.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_renewed_and_released_also_by_nodes_that_kept_its_key_and_may_not_vote() {
    let fleet = Fleet::with_args(3, &KEEPS_ALL);
    let ttl = Duration::from_secs(3);
    let redlock = connect(new_fleet(LONG).ttl(ttl), &fleet).await;
    let held = redlock.try_acquire("r").await.unwrap();
    eventually("all nodes", SOON, || fleet.iter().all(|server| is_ours_on(server, &held)));
    for place in [0, 1] {
        fleet[place].restart();
        eventually("its wait", SOON, || is_quarantined(&redlock, place));
    }
    let renewals = || [0, 1].map(|place| fleet[place].calls("pexpire"));
    eventually("renewals on both", SOON, || renewals().iter().all(|count| *count >= 3));
    assert!(!held.is_lost() && held.remaining() > ttl.div_f64(2.0), "{:?}", held.remaining());
    held.release().await.unwrap();
    eventually("no key", SOON, || fleet.iter().all(|server| server.keys().is_empty()));
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert_eq!(not_admitted(&error), [0, 1], "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_were_flushed_do_not_vote_before_they_have_waited() {
    let fleet = Fleet::start(3);
    let ttl = Duration::from_secs(2);
    let builder = || new_fleet(ttl).ttl(ttl);
    let (a, b) = (connect(builder(), &fleet).await, connect(builder(), &fleet).await);
    let held = a.acquire_with("r", LockOptions::new().without_renewal()).await.unwrap();
    eventually("all nodes", SOON, || fleet.iter().all(|server| is_ours_on(server, &held)));
    let flushed = Instant::now();
    for place in [0, 1] {
        ok(&fleet[place].command(&["FLUSHALL"]));
    }
    let error = b.try_acquire("r").await.unwrap_err();
    // Two answers decide: one of them at least is that of a node without a vote.
    let refused = not_admitted(&error);
    assert!(!refused.is_empty() && !refused.contains(&2), "{error}");
    assert_eq!(error.attempt().unwrap().nodes.done(), 0, "{error}");
    let second = b.acquire("r").await.unwrap();
    assert!(held.is_lost() && flushed.elapsed() >= ttl, "{:?}", flushed.elapsed());
    second.release().await.unwrap();
    eventually("all to vote again", SOON, || all_vote(&a) && all_vote(&b));
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_were_flushed_cost_no_acquisition() {
    let fleet = Fleet::start(3);
    let redlock = connect(new_fleet(LONG), &fleet).await;
    let held = redlock.try_acquire("held").await.unwrap();
    for _ in 0..10 {
        fleet.iter().for_each(|server| ok(&server.command(&["SCRIPT", "FLUSH"])));
        works(&redlock).await;
        fleet.iter().for_each(|server| ok(&server.command(&["SCRIPT", "FLUSH"])));
        redlock.try_acquire_fenced("f").await.unwrap().release().await.unwrap();
        assert!(redlock.try_acquire("held").await.unwrap_err().is_contended());
    }
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_were_flushed_cost_no_acquisition_of_several_clients() {
    let fleet = Fleet::start(3);
    let (a, b) = (connect(new_fleet(LONG), &fleet).await, connect(new_fleet(LONG), &fleet).await);
    let held = a.try_acquire("held").await.unwrap();
    for round in 0..10 {
        fleet.iter().for_each(|server| ok(&server.command(&["SCRIPT", "FLUSH"])));
        let clients = if round % 2 == 0 { [&a, &b] } else { [&b, &a] };
        for redlock in clients {
            works(redlock).await;
            redlock.try_acquire_fenced("f").await.unwrap().release().await.unwrap();
        }
        let error = b.try_acquire("held").await.unwrap_err();
        assert!(error.is_contended(), "round {round}: {error}");
    }
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_a_replica_between_two_commands_does_not_vote() {
    let (fleet, stranger) = (Fleet::start(3), Server::start());
    // Another's data: those of another node, and those of a server that knows of no fleet.
    for other in [&fleet[1], &stranger] {
        let redlock = connect(new_fleet(MAX_TTL), &fleet).await;
        let (connections, port) = (fleet[2].total_connections(), other.port().to_string());
        ok(&fleet[2].command(&["REPLICAOF", "127.0.0.1", &port]));
        let is_up = || fleet[2].info("replication").get("master_link_status").cloned();
        eventually("a copy of its data", SOON, || is_up().as_deref() == Some("up"));
        ok(&fleet[2].command(&["REPLICAOF", "NO", "ONE"]));
        // Its client may have looked meanwhile, which it does every 5 s, or not.
        let guard = redlock.try_acquire("r").await.unwrap();
        eventually("its vote", SOON, || {
            guard.nodes().iter().all(|report| report.outcome != NodeOutcome::Pending)
        });
        assert_eq!(places(&guard.nodes(), is_not_admitted), [2], "{}", guard.nodes());
        assert!(!fleet[2].exists(&key("r")));
        assert_eq!(fleet[2].total_connections(), connections, "over the same connection");
        guard.release().await.unwrap();
        eventually("its wait", SOON, || is_quarantined(&redlock, 2));
        eventually("its vote", SOON, || votes(&redlock, 2));
        redlock.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_server_takes_the_place_of_a_dead_one_without_downtime() {
    let fleet = Fleet::start(3);
    let redlock = connect(new_fleet(MAX_TTL), &fleet).await;
    fleet[0].kill();
    for _ in 0..50 {
        works(&redlock).await;
    }
    fleet[0].restart();
    let back = Instant::now();
    while !votes(&redlock, 0) || back.elapsed() < WAIT {
        works(&redlock).await;
        assert!(back.elapsed() < SOON, "{:?}", redlock.nodes());
    }
    // Now another may die.
    fleet[1].kill();
    works(&redlock).await;
}

// Servers that cannot be nodes.

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused() {
    let fleet = Fleet::start(3);
    let port = fleet[0].port().to_string();
    ok(&fleet[2].command(&["REPLICAOF", "127.0.0.1", &port]));
    let connected = new_fleet(MAX_TTL).nodes(fleet.urls()).connect().await;
    assert_unfit(connected, &fleet[2], "replica");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_under_two_names_is_refused() {
    let fleet = Fleet::start(2);
    let alias = format!("redis://localhost:{}", fleet[0].port());
    let urls = [fleet[0].url(), fleet[1].url(), alias];
    let connected = new_fleet(MAX_TTL).nodes(urls).connect().await;
    let same = format!("the same server as 127.0.0.1:{}", fleet[0].port());
    assert_unfit(connected, &fleet[0], &same);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_refused() {
    let (fleet, cluster) = (Fleet::start(2), Server::with_args(&["--cluster-enabled", "yes"]));
    let urls = [fleet[0].url(), fleet[1].url(), cluster.url()];
    let connected = new_fleet(MAX_TTL).nodes(urls).connect().await;
    assert_unfit(connected, &cluster, "cluster");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_evict_is_refused_unless_that_is_allowed() {
    let fleet = Fleet::start(3);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        ok(&fleet[1].command(&["CONFIG", "SET", "maxmemory-policy", policy]));
        let connected = new_fleet(MAX_TTL).nodes(fleet.urls()).connect().await;
        assert_unfit(connected, &fleet[1], policy);
    }
    works(&connect(new_fleet(MAX_TTL).allow_eviction(), &fleet).await).await;
}

// Fleets.

#[tokio::test(flavor = "multi_thread")]
async fn fleets_with_different_prefixes_share_servers_and_nothing_else() {
    let fleet = Fleet::start(5);
    let urls = fleet.urls();
    let shop = new_fleet(LONG).key_prefix("shop:").nodes(&urls[..3]).connect().await.unwrap();
    let bank = new_fleet(MAX_TTL).key_prefix("bank:").nodes(&urls[2..]).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&shop) && all_vote(&bank));
    let of_shop = shop.try_acquire("r").await.unwrap();
    let of_bank = bank.try_acquire("r").await.unwrap();
    // A marker is the fleet's own.
    fleet[2].del("bank:marker");
    of_bank.release().await.unwrap();
    let guard = bank.try_acquire("r").await.unwrap();
    eventually("its wait", SOON, || is_quarantined(&bank, 0));
    assert!(all_vote(&shop));
    guard.release().await.unwrap();
    of_shop.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_list_of_nodes_is_refused_until_it_says_that_it_is_a_new_fleet() {
    let fleet = Fleet::start(4);
    let urls = fleet.urls();
    let (old, new) = ([&urls[0], &urls[1], &urls[2]], [&urls[0], &urls[1], &urls[3]]);
    let founder = new_fleet(MAX_TTL).nodes(old).connect().await.unwrap();
    let first = builder(MAX_TTL).nodes(old).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&founder) && all_vote(&first));
    founder.shutdown().await;
    let error = builder(MAX_TTL).nodes(new).connect().await.unwrap_err();
    assert!(error.to_string().contains("a fleet of other nodes"), "{error}");
    for server in [&fleet[0], &fleet[1], &fleet[2]] {
        assert!(error.to_string().contains(&server.addr()), "it names them: {error}");
    }
    works(&first).await;

    let second = new_fleet(MAX_TTL).nodes(new).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&second));
    works(&second).await;
    let error = first.try_acquire("r").await.unwrap_err();
    assert_eq!(not_admitted(&error), [0, 1], "{error}");
    eventually("the first to be refused", SOON, || {
        [0, 1].iter().all(|place| matches!(node(&first, *place).state, NodeState::Refused { .. }))
    });
    let error = first.try_acquire("r").await.unwrap_err();
    assert!(error.to_string().contains("a fleet of other nodes"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_lists_of_nodes_that_both_say_that_they_are_new_one_works_in_the_end() {
    let fleet = Fleet::start(4);
    let urls = fleet.urls();
    let (old, new) = ([&urls[0], &urls[1], &urls[2]], [&urls[0], &urls[1], &urls[3]]);
    let first = new_fleet(MAX_TTL).nodes(old).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&first));
    let second = new_fleet(MAX_TTL).nodes(new).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&second));
    // A moment after it took over, and for good.
    for moment in 0..50 {
        let granted = [first.try_acquire("r").await, second.try_acquire("r").await];
        let works = granted.iter().filter(|granted| granted.is_ok()).count();
        assert!(works == 1 || moment < 10, "{works} at {moment}: {granted:?}");
        drop(granted);
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_larger_max_ttl_is_refused_and_one_with_a_smaller_is_not() {
    let fleet = Fleet::start(3);
    works(&connect(new_fleet(Duration::from_secs(20)), &fleet).await).await;
    for builder in [builder(LONG), new_fleet(LONG)] {
        let error = builder.nodes(fleet.urls()).connect().await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("max_ttl is 20s, and 60s is asked for"), "{text}");
    }
    works(&connect(builder(MAX_TTL), &fleet).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_nobody_knows_of_waits_and_says_until_when() {
    let fleet = Fleet::start(3);
    let called = Instant::now();
    let redlock = builder(MAX_TTL).nodes(fleet.urls()).connect().await.unwrap();
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert!(called.elapsed() < WAIT, "too busy a machine: {:?}", called.elapsed());
    assert!(error.is_no_quorum() && not_admitted(&error) == [0, 1, 2], "{error}");
    let text = error.to_string();
    assert!(text.contains("in quarantine for another ") && text.contains("new_fleet()"), "{text}");
    for status in redlock.nodes() {
        let NodeState::Quarantined { until: Some(until), .. } = status.state else {
            panic!("{status:?}");
        };
        let wait = until.saturating_duration_since(called);
        assert!(wait >= WAIT && wait < WAIT + SOON, "{wait:?}");
    }
    let guard = timeout(SOON, redlock.acquire("r")).await.unwrap().unwrap();
    assert!(called.elapsed() >= WAIT, "{:?}", called.elapsed());
    guard.release().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&redlock));
    // From then on it is known.
    let started = Instant::now();
    works(&connect(builder(MAX_TTL), &fleet).await).await;
    assert!(started.elapsed() < WAIT, "{:?}", started.elapsed());
}

// A node that is flushed in the middle of a look must not pass on that it granted nothing.
#[tokio::test]
async fn a_look_reads_the_marker_after_what_the_marker_vouches_for() {
    let server = Server::with_args(&["--slowlog-log-slower-than", "0"]);
    let builder = new_fleet(MAX_TTL).single_node(server.url());
    let _redlock = builder.connect().await.unwrap();
    let log = server.command(&["SLOWLOG", "GET", "-1"]).into_array();
    // The latest comes first. Each has a number, a time, a span and then the command.
    let commands = log.into_iter().rev().map(|entry| entry.into_array().remove(3).into_array());
    let got: Vec<String> = commands
        .map(|command| command.into_iter().filter_map(Reply::into_text).collect::<Vec<_>>())
        .filter(|command| command.first().is_some_and(|name| name == "GET"))
        .map(|command| command[1].clone())
        .collect();
    // The first look comes before any script, which may get them as well.
    assert_eq!(
        got.get(..2),
        Some(&["quorumlock:max".to_owned(), MARKER.to_owned()][..]),
        "{got:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_floor_survives_flushed_scripts() {
    let fleet = Fleet::start(3);
    let redlock = connect(new_fleet(MAX_TTL), &fleet).await;
    let marker = || fleet[0].get(MARKER).and_then(|text| Marker::parse(&text)).expect("a marker");
    let before = marker();
    fleet[0].set_raw(MARKER, &Marker { floor: 40, ..before.clone() }.to_string(), None);
    assert_eq!(fleet[0].command(&["SCRIPT", "FLUSH"]), Reply::Text("OK".to_owned()));
    redlock.try_acquire_fenced("r").await.unwrap().release().await.unwrap();
    eventually("another admission", SOON, || marker().id != before.id);
    assert_eq!(marker().floor, 40);
    eventually("all nodes to vote", SOON, || all_vote(&redlock));
}

/// Writes the marker that a client of the fleet would have written on this node.
#[track_caller]
fn mark(fleet: &Fleet, place: usize, state: MarkState) {
    let mut members: Vec<String> = fleet.iter().map(Server::addr).collect();
    members.sort();
    let marker = Marker {
        id: OwnerId::random().to_string(),
        state,
        run_id: fleet[place].run_id(),
        node: NodeName::new(&fleet[place].addr()),
        members: members.join(","),
        max_ttl_ms: 1_000,
        floor: 0,
    };
    fleet[place].set_raw(MARKER, &marker.to_string(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_dies_while_it_forms_a_fleet_leaves_one_that_is_formed_after_the_wait() {
    for state in [MarkState::Waiting, MarkState::Admitted] {
        for is_new in [false, true] {
            let fleet = Fleet::start(3);
            mark(&fleet, 1, state);
            let start = || if is_new { new_fleet(MAX_TTL) } else { builder(MAX_TTL) };
            let called = Instant::now();
            let nodes = fleet.urls();
            let (a, b) =
                tokio::join!(start().nodes(&nodes).connect(), start().nodes(&nodes).connect());
            let (a, b) = (a.unwrap(), b.unwrap());
            eventually("all to vote for both", SOON, || all_vote(&a) && all_vote(&b));
            let waited = called.elapsed() >= WAIT;
            let is_known = state == MarkState::Admitted;
            assert_eq!(waited, is_known || !is_new, "{state:?} {is_new}: {:?}", called.elapsed());
            let guard = a.try_acquire("r").await.unwrap();
            assert!(b.try_acquire("r").await.unwrap_err().is_contended());
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_before_the_wait_is_over_does_not_shorten_it_for_the_next() {
    let fleet = Fleet::start(3);
    let first = builder(MAX_TTL).nodes(fleet.urls()).connect().await.unwrap();
    first.shutdown().await;
    assert!(fleet.iter().all(|server| server.exists(MARKER)));
    sleep(MAX_TTL / 2).await;
    let called = Instant::now();
    let second = builder(MAX_TTL).nodes(fleet.urls()).connect().await.unwrap();
    second.acquire("r").await.unwrap().release().await.unwrap();
    assert!(called.elapsed() >= WAIT, "{:?}", called.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_form_a_fleet_at_once_all_get_the_votes_of_all_nodes() {
    let fleet = Fleet::start(5);
    let urls = fleet.urls();
    for round in 0..20 {
        let start = || new_fleet(LONG).key_prefix(format!("f{round}:")).nodes(&urls).connect();
        let (a, b, c) = tokio::join!(start(), start(), start());
        let clients = [a.unwrap(), b.unwrap(), c.unwrap()];
        let all = || clients.iter().all(all_vote);
        let started = Instant::now();
        while !all() {
            assert!(started.elapsed() < SOON, "round {round}: {clients:#?}");
            sleep(Duration::from_millis(5)).await;
        }
        let guard = clients[0].try_acquire("r").await.unwrap();
        assert!(clients[1].try_acquire("r").await.unwrap_err().is_contended());
        guard.release().await.unwrap();
        for client in clients {
            works(&client).await;
            client.shutdown().await;
        }
    }
}

// Rights.

#[tokio::test(flavor = "multi_thread")]
async fn where_durability_may_not_be_asked_for_it_is_not_trusted() {
    let user = ["--user", "app", "on", ">pw", "~*", "&*", "+@all", "-config"];
    let args: Vec<&str> = KEEPS_ALL.into_iter().chain(user).collect();
    let fleet = Fleet::with_args(3, &args);
    let urls = fleet.iter().map(|server| format!("redis://app:pw@{}", server.addr()));
    let redlock = new_fleet(MAX_TTL).trust_durability().nodes(urls).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&redlock));
    works(&redlock).await;
    fleet[1].kill();
    let down = Instant::now();
    fleet[1].restart();
    eventually("its wait", SOON, || is_quarantined(&redlock, 1));
    eventually("its vote", SOON, || votes(&redlock, 1));
    assert!(down.elapsed() >= WAIT, "{:?}", down.elapsed());
    works(&redlock).await;
}
