//! Fencing tokens from real servers: they grow, whatever happens to the counters.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    env, process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use quorumlock::{
    FencedGuard, FencingToken, LockOptions, NodeState, Redlock, RedlockBuilder,
    fenced::memory::Resources, node::Marker,
};
use tokio::{runtime::Runtime, task::JoinSet, time::sleep};

use crate::support::{
    Conn, Fleet, Reply, Server, Twin,
    aftermath::{all_vote, is_idle, key, node},
    eventually,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(10);
const MAX: &str = "quorumlock:max";
const KEEPS_ALL: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn fence(resource: &str) -> String {
    format!("quorumlock:fence:{resource}")
}

fn builder() -> RedlockBuilder {
    Redlock::builder().new_fleet().node_timeout(Duration::from_millis(400))
}

/// Connects, and waits until all nodes vote.
async fn connect(builder: RedlockBuilder, fleet: &Fleet) -> Redlock {
    let builder = match fleet.urls().as_slice() {
        [url] => builder.single_node(url),
        urls => builder.nodes(urls),
    };
    let redlock = builder.connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&redlock));
    redlock
}

fn is_ours_on(server: &Server, guard: &FencedGuard) -> bool {
    server.get(&key(guard.resource())) == Some(guard.owner_id().to_string())
}

/// The lock's keys, without those of the counters.
fn locks(server: &Server) -> Vec<String> {
    let is_lock = |key: &String| key.starts_with("quorumlock:lock:");
    server.keys().into_iter().filter(is_lock).collect()
}

fn number(server: &Server, key: &str) -> Option<u64> {
    server.get(key).map(|text| text.parse().expect("a number"))
}

/// Acquires, releases, and returns the token and whether it took a second round.
async fn pair(redlock: &Redlock) -> (FencingToken, bool) {
    let guard = redlock.try_acquire_fenced("r").await.unwrap();
    let seen = (guard.token(), guard.was_raised());
    guard.release().await.unwrap();
    seen
}

/// Waits until all nodes have executed what they were sent.
#[track_caller]
fn settled(redlock: &Redlock) {
    eventually("all nodes to have answered", SOON, || all_vote(redlock) && is_idle(redlock));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_from_one_holder_to_the_next_in_one_round() {
    for nodes in [1, 3, 5] {
        let fleet = Fleet::start(nodes);
        let clients = [connect(builder(), &fleet).await, connect(builder(), &fleet).await];
        let mut last = FencingToken::new(0);
        for turn in 0..40 {
            // Before another client comes, the minority has to be done with this one.
            eventually("an idle fleet", SOON, || {
                let is_free = |server: &Server| locks(server).is_empty();
                clients.iter().all(is_idle) && fleet.iter().all(is_free)
            });
            let (token, was_raised) = pair(&clients[turn % 2]).await;
            assert!(token > last, "{nodes} nodes: {token} after {last}");
            assert!(!was_raised, "{nodes} nodes: the counters agree at {token}");
            last = token;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_is_to_stay_for_ever_is_no_error() {
    let fleet = Fleet::start(1);
    let redlock = connect(builder().fence_idle_ttl(Duration::MAX), &fleet).await;
    assert_eq!(pair(&redlock).await.0, FencingToken::new(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_grows_also_when_the_counters_do_not_agree() {
    let fleet = Fleet::start(5);
    let redlock = connect(builder().node_timeout(Duration::from_secs(1)), &fleet).await;
    let (mut last, mut raised) = (FencingToken::new(0), 0);
    // Each minority sleeps for a while, so that each majority has nodes that missed some.
    for frozen in [[3, 4], [0, 1], [1, 2], [0, 4], [2, 3], [0, 2]] {
        for place in frozen {
            fleet[place].freeze();
        }
        // What was sent to them before would be executed when they go on.
        let (token, was_raised) = pair(&redlock).await;
        assert!(token > last, "{token} after {last}, {frozen:?} frozen");
        (last, raised) = (token, raised + u32::from(was_raised));
        eventually("both to be seen as frozen", SOON, || {
            frozen.iter().all(|place| node(&redlock, *place).state == NodeState::Unresponsive)
        });
        for _ in 0..10 {
            let (token, was_raised) = pair(&redlock).await;
            assert!(token > last, "{token} after {last}, {frozen:?} frozen");
            assert!(!was_raised, "once raised they agree");
            last = token;
        }
        for place in frozen {
            fleet[place].thaw();
        }
        settled(&redlock);
    }
    assert!(raised >= 3, "a second round was needed {raised} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_is_gone_lets_no_token_go_back() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), &fleet).await;
    let mut last = FencingToken::new(0);
    for turn in 0..20_usize {
        // Another resource is far ahead at times: a missing counter may have been that far.
        if turn % 5 == 0 {
            redlock.try_acquire_fenced("other").await.unwrap().release().await.unwrap();
        }
        settled(&redlock);
        let places: &[usize] = [&[0, 1, 2][..], &[0], &[1, 2], &[]][turn % 4];
        for place in places {
            fleet[*place].del(&fence("r"));
        }
        let (token, _) = pair(&redlock).await;
        assert!(token > last, "{token} after {last}, deleted on {places:?}");
        last = token;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_counter_goes_and_its_tokens_do_not_go_back() {
    let fleet = Fleet::start(3);
    let idle = Duration::from_millis(300);
    let redlock = connect(builder().fence_idle_ttl(idle), &fleet).await;
    let mut last = FencingToken::new(0);
    for _ in 0..3 {
        let guard = redlock.try_acquire_fenced("r").await.unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        eventually("all nodes to have granted", SOON, || {
            fleet.iter().all(|server| is_ours_on(server, &guard))
        });
        guard.release().await.unwrap();
        eventually("the counter to go", SOON, || {
            fleet.iter().all(|server| !server.exists(&fence("r")))
        });
        assert!(fleet.iter().all(|server| server.pttl(MAX) == -1), "the largest number stays");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refill_brings_the_token_along() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), &fleet).await;
    for _ in 0..7 {
        pair(&redlock).await;
    }
    let options = LockOptions::new().renew_every(Duration::from_millis(200));
    let guard = redlock.acquire_fenced_with("r", options).await.unwrap();
    eventually("all nodes", SOON, || fleet.iter().all(|server| is_ours_on(server, &guard)));
    let token = guard.token().get();
    // Its largest number as well: what is there afterwards was brought.
    assert_eq!(fleet[0].command(&["DEL", &key("r"), &fence("r"), MAX]), Reply::Int(3));
    eventually("the key to be back", SOON, || is_ours_on(&fleet[0], &guard));
    assert_eq!(number(&fleet[0], &fence("r")), Some(token));
    assert!(number(&fleet[0], MAX) >= Some(token));
    guard.release().await.unwrap();
    settled(&redlock);
    // It vouches for the next without being asked to raise.
    let (next, was_raised) = pair(&redlock).await;
    assert!(next.get() > token && !was_raised);
}

#[tokio::test(flavor = "multi_thread")]
async fn fenced_and_unfenced_holders_exclude_each_other() {
    let fleet = Fleet::start(3);
    let (a, b) = (connect(builder(), &fleet).await, connect(builder(), &fleet).await);
    let guard = a.try_acquire_fenced("r").await.unwrap();
    let first = guard.token();
    assert!(b.try_acquire("r").await.unwrap_err().is_contended());
    assert!(b.try_acquire_fenced("r").await.unwrap_err().is_contended());
    guard.release().await.unwrap();
    let guard = b.try_acquire("r").await.unwrap();
    assert!(a.try_acquire_fenced("r").await.unwrap_err().is_contended());
    guard.release().await.unwrap();
    let guard = b.try_acquire_fenced("r").await.unwrap();
    assert!(guard.token() > first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_with_a_token_is_renewed_extended_and_lost_as_any_other() {
    let fleet = Fleet::start(3);
    let ttl = Duration::from_millis(900);
    let redlock = connect(builder().ttl(ttl), &fleet).await;
    let mut guard = redlock.acquire_fenced("r").await.unwrap();
    let token = guard.token();
    sleep(ttl * 2).await;
    assert!(!guard.is_lost());
    guard.extend(ttl * 2).await.unwrap();
    assert_eq!(guard.token(), token);
    fleet.iter().for_each(|server| server.del(&key("r")));
    tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    assert!(guard.release().await.unwrap_err().is_lost());
    assert!(pair(&redlock).await.0 > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_memory_is_told_of_and_leaves_no_key_and_releases_go_on() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), &fleet).await;
    let held = redlock.try_acquire_fenced("held").await.unwrap();
    let plain = redlock.try_acquire("plain").await.unwrap();
    let token = pair(&redlock).await.0;
    settled(&redlock);
    // One that goes on, one whose next number is the first of a step, and one that is new.
    for (resource, text) in [("r", "70"), ("s", "64")] {
        fleet.iter().for_each(|server| server.set_raw(&fence(resource), text, None));
    }
    let numbers = || {
        let keys = ["r", "s", "t"].map(fence).into_iter().chain([MAX.to_owned()]);
        let keys: Vec<String> = keys.collect();
        let of = |server: &Server| keys.iter().map(|key| number(server, key)).collect::<Vec<_>>();
        fleet.iter().map(of).collect::<Vec<_>>()
    };
    let before = numbers();
    let filling = "x".repeat(100_000);
    for server in &fleet {
        server.command(&["CONFIG", "SET", "maxmemory", "20mb"]);
        let mut keys = 0..1_000;
        let mut fill = || server.command(&["SET", &format!("full:{:?}", keys.next()), &filling]);
        eventually(
            "full memory",
            SOON,
            || matches!(fill(), Reply::Error(error) if error.starts_with("OOM")),
        );
        // What is free for a moment, such as a buffer that is no longer needed, does not count.
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    }
    let plain_error = redlock.try_acquire("r").await.unwrap_err();
    assert!(plain_error.is_no_quorum() && plain_error.to_string().contains("OOM"), "{plain_error}");
    for resource in ["r", "s", "t"] {
        let error = redlock.try_acquire_fenced(resource).await.unwrap_err();
        assert!(error.is_no_quorum() && error.to_string().contains("OOM"), "{error}");
    }
    assert_eq!(numbers(), before);
    held.release().await.unwrap();
    plain.release().await.unwrap();
    settled(&redlock);
    eventually("no lock", SOON, || fleet.iter().all(|server| locks(server).is_empty()));
    for server in &fleet {
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    assert!(pair(&redlock).await.0 > token);
}

// Nodes that forgot.

/// Restarts two nodes, one after the other, that keep nothing or an old copy of their data; then the
/// third dies. The tokens of the two are larger than all that it knew alone.
async fn grows_after_losses(keeps_old_copy: bool) {
    let fleet = Fleet::start(3);
    let ttl = Duration::from_secs(1);
    let redlock = connect(builder().ttl(ttl).max_ttl(ttl), &fleet).await;
    let mut last = FencingToken::new(0);
    for place in [1, 2] {
        // More than the largest number is written ahead of.
        for turn in 0..75 {
            if turn == 5 && keeps_old_copy {
                settled(&redlock);
                assert_eq!(fleet[place].command(&["SAVE"]), Reply::Text("OK".to_owned()));
            }
            last = pair(&redlock).await.0.max(last);
        }
        settled(&redlock);
        fleet[place].restart();
        let kept = number(&fleet[place], MAX);
        assert!(kept < Some(last.get()) && kept.is_some() == keeps_old_copy, "{kept:?}");
        eventually("its wait", SOON, || {
            matches!(node(&redlock, place).state, NodeState::Quarantined { .. })
        });
        eventually("its vote", SOON, || all_vote(&redlock));
        let marker = fleet[place].get("quorumlock:marker").and_then(|text| Marker::parse(&text));
        let learned = marker.expect("an admitted node's").floor;
        assert!(learned >= last.get(), "{learned} below {last}");
    }
    fleet[0].kill();
    let (token, _) = pair(&redlock).await;
    assert!(token > last, "{token} after {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_lost_their_counters_learn_from_the_others_before_they_vote() {
    grows_after_losses(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_whose_counters_are_old_copies_learn_from_the_others_before_they_vote() {
    grows_after_losses(true).await;
}

// There are no others to learn from.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_one_node_that_lost_its_disk_start_again_and_are_refused_until_they_catch_up() {
    let fleet = Fleet::start(1);
    let ttl = Duration::from_millis(500);
    let redlock = connect(builder().ttl(ttl).max_ttl(ttl), &fleet).await;
    let resource = Resources::<u64>::new();
    let write = |token| resource.write("r", token, |writes| *writes += 1);
    for _ in 0..5 {
        write(pair(&redlock).await.0).unwrap();
    }
    fleet[0].restart();
    eventually("its wait", SOON, || !all_vote(&redlock));
    eventually("its vote", SOON, || all_vote(&redlock));
    for number in 1..5 {
        let token = pair(&redlock).await.0;
        assert_eq!(token, FencingToken::new(number));
        assert_eq!(write(token).unwrap_err().newest, FencingToken::new(5));
    }
    write(pair(&redlock).await.0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_is_no_number_is_named_and_leaves_no_lock() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), &fleet).await;
    for (value, place) in [("x", 0), ("9007199254740991", 1)] {
        fleet[place].set_raw(&fence("r"), value, None);
    }
    let error = redlock.try_acquire_fenced("r").await.unwrap_err();
    assert!(error.is_no_quorum() && error.to_string().contains(&fence("r")), "{error}");
    settled(&redlock);
    eventually("no lock", SOON, || fleet.iter().all(|server| locks(server).is_empty()));
    // A minority of such counters does no harm.
    fleet[0].del(&fence("r"));
    pair(&redlock).await;
    redlock.try_acquire("r").await.unwrap().release().await.unwrap();
}

// What was granted before an acquisition began is smaller than what it is granted.

/// What all holders know of each other.
#[derive(Default)]
struct Seen {
    /// The largest token of an acquisition that has returned.
    newest: AtomicU64,
    tokens: Mutex<BTreeSet<u64>>,
    /// What is written under the lock.
    ledger: Resources<Vec<u64>>,
    acquired: AtomicU64,
    raised: AtomicU64,
    stale: AtomicU64,
    is_over: AtomicBool,
}

async fn contend(redlock: Redlock, seen: Arc<Seen>) {
    while !seen.is_over.load(Ordering::SeqCst) {
        let before = seen.newest.load(Ordering::SeqCst);
        let Ok(guard) = redlock.acquire_fenced("r").await else { continue };
        let token = guard.token();
        assert!(token.get() > before, "{token}, and {before} was there when it began");
        seen.newest.fetch_max(token.get(), Ordering::SeqCst);
        assert!(seen.tokens.lock().unwrap().insert(token.get()), "{token} was granted twice");
        seen.acquired.fetch_add(1, Ordering::SeqCst);
        seen.raised.fetch_add(u64::from(guard.was_raised()), Ordering::SeqCst);
        match seen.ledger.write("r", token, |written| written.push(token.get())) {
            Ok(()) => {}
            Err(stale) => {
                assert!(guard.is_lost(), "{stale}, and its holder still had the lock");
                seen.stale.fetch_add(1, Ordering::SeqCst);
            }
        }
        // One in eight is left to its end instead.
        if token.get() % 8 == 0 {
            drop(guard);
        } else {
            guard.release().await.ok();
        }
    }
}

/// Freezes and kills one node after another, and at times two, none of which forgets anything. Until a
/// round for which it is over.
fn trouble(fleet: &Fleet, mut is_over: impl FnMut(usize) -> bool) {
    for round in 0_usize.. {
        if is_over(round) {
            return;
        }
        let (one, other) =
            (round.rem_euclid(fleet.len()), round.saturating_add(1).rem_euclid(fleet.len()));
        match round % 5 {
            0 | 2 => fleet[one].freeze(),
            1 | 3 => fleet[one].restart(),
            _ => [one, other].iter().for_each(|place| fleet[*place].freeze()),
        }
        thread::sleep(Duration::from_millis(150));
        fleet.iter().for_each(Server::thaw);
        thread::sleep(Duration::from_millis(100));
    }
}

/// How much trouble there is: about ten seconds.
const ROUNDS: usize = 40;

fn trusting() -> RedlockBuilder {
    let ttl = Duration::from_secs(1);
    let builder = Redlock::builder().new_fleet().ttl(ttl).max_ttl(ttl);
    builder.node_timeout(Duration::from_millis(100)).trust_durability()
}

async fn contended(nodes: usize) {
    let fleet = Arc::new(Fleet::with_args(nodes, &KEEPS_ALL));
    let (seen, mut holders) = (Arc::new(Seen::default()), JoinSet::new());
    let mut clients = Vec::new();
    for _ in 0..8 {
        let redlock = connect(trusting(), &fleet).await;
        clients.push(redlock.clone());
        holders.spawn(contend(redlock, Arc::clone(&seen)));
    }
    let in_trouble = Arc::clone(&fleet);
    tokio::task::spawn_blocking(move || trouble(&in_trouble, |round| round == ROUNDS))
        .await
        .unwrap();
    seen.is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = holders.join_next().await {
        ended.unwrap();
    }
    let written = seen.ledger.get("r").unwrap();
    assert!(written.is_sorted_by(|one, next| one < next), "{written:?}");
    let [acquired, raised, stale] =
        [&seen.acquired, &seen.raised, &seen.stale].map(|count| count.load(Ordering::SeqCst));
    assert!(acquired > 100 && raised > 0, "{acquired} acquired, {raised} raised, {stale} stale");
    eventually("all to vote for all", SOON, || {
        clients
            .iter()
            .all(|redlock| (0..nodes).all(|place| node(redlock, place).state == NodeState::Voting))
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_contenders_each_has_a_larger_token_while_nodes_freeze_and_die() {
    contended(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_contenders_each_has_a_larger_token_while_five_nodes_freeze_and_die() {
    contended(5).await;
}

/// Where a contender finds the log, and the nodes.
const URLS: &str = "QUORUMLOCK_TEST_CONTENDER_URLS";

/// Not a test: what each process does that contends in the next test.
#[test]
fn the_contender_in_a_process_of_its_own() {
    let Ok(urls) = env::var(URLS) else { return };
    let mut urls = urls.split(',');
    let mut log = Conn::open(urls.next().unwrap(), SOON).unwrap();
    let mut note = |what: String| {
        log.command(&["RPUSH", "log", &what]).unwrap();
        if !what.ends_with("begins") {
            log.command(&["RPUSH", "tokens", &what]).unwrap();
        }
    };
    let contend = async {
        let redlock = trusting().nodes(urls).connect().await.unwrap();
        loop {
            note(format!("{} begins", process::id()));
            let Ok(guard) = redlock.acquire_fenced("r").await else { continue };
            note(format!("{} {}", process::id(), guard.token()));
            guard.release().await.ok();
        }
    };
    Runtime::new().unwrap().block_on(contend);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_processes_that_contend_each_has_a_larger_token_while_nodes_freeze_and_die() {
    let (fleet, log) = (Fleet::with_args(3, &KEEPS_ALL), Server::start());
    let urls = format!("{},{}", log.addr(), fleet.urls().join(","));
    let entry = "fencing::the_contender_in_a_process_of_its_own";
    let start = || Twin::start(entry, (URLS, &urls));
    let mut twins: VecDeque<Twin> = (0..8).map(|_| start()).collect();
    let held = || log.command(&["LLEN", "tokens"]).into_int();
    eventually("the first of them", SOON, || held() > 50);
    // `CONTENDED=100000` goes on until so many have had the lock.
    let enough = env::var("CONTENDED").map_or(200, |count| count.parse().expect("a number"));
    let mut stopped = None;
    trouble(&fleet, |round| {
        if round >= ROUNDS && held() >= enough {
            return true;
        }
        match round % 12 {
            // Killed, wherever it is, and another one in its place.
            3 | 9 => {
                twins.pop_front();
                twins.push_back(start());
            }
            // Stopped for longer than its lock lives.
            1 => {
                stopped = twins.pop_front();
                stopped.iter().for_each(Twin::freeze);
            }
            8 => {
                if let Some(twin) = stopped.take() {
                    twin.thaw();
                    twins.push_back(twin);
                }
            }
            _ => {}
        }
        false
    });
    drop(twins);

    // One server has put into an order what happened: whoever begins after another has its token gets a
    // larger one.
    let (mut newest, mut began) = (0, BTreeMap::new());
    let mut tokens = BTreeSet::new();
    for entry in log.command(&["LRANGE", "log", "0", "-1"]).into_array() {
        let entry = entry.into_text().unwrap();
        let (who, what) = entry.split_once(' ').unwrap();
        if what == "begins" {
            began.insert(who.to_owned(), newest);
        } else {
            let token: u64 = what.parse().unwrap();
            assert!(token > began[who], "{entry}, and {} was there before", began[who]);
            assert!(tokens.insert(token), "{entry} again");
            newest = newest.max(token);
        }
    }
    let enough = usize::try_from(enough).expect("a count");
    assert!(began.len() > 8 && tokens.len() >= enough, "{} of {began:?}", tokens.len());
}
