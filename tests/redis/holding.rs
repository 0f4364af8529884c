//! What becomes of a lock while it is held: renewals, refills, its loss, and its end.

use std::{
    env,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use quorumlock::{
    ExtendError, LockGuard, LockOptions, NodeState, Redlock, RedlockBuilder, ReleaseError,
};
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    Fleet, Proxy, Server, Twin,
    aftermath::{
        all_vote, is_failure, is_idle, key, no_keys, node, nothing_is_left, places, proxies,
    },
    eventually,
    futures::give_up_after,
    twin::say,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(5);
const NODE_TIMEOUT: Duration = Duration::from_millis(200);
/// What "about a node timeout" may come to on a busy machine.
const ABOUT_A_NODE_TIMEOUT: Duration = Duration::from_millis(800);
/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_millis(400);
/// A ttl whose end a test can wait for, with a third of it between renewals.
const TTL: Duration = Duration::from_millis(1_500);
const RENEW_EVERY: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(60);

fn builder() -> RedlockBuilder {
    Redlock::builder().new_fleet().ttl(TTL).node_timeout(NODE_TIMEOUT)
}

/// Connects, and waits for the last node as well.
async fn connect(builder: RedlockBuilder, urls: Vec<String>) -> Redlock {
    let redlock = builder.nodes(urls).connect().await.unwrap();
    eventually("all nodes", SOON, || all_vote(&redlock));
    redlock
}

/// Acquires, and waits until all nodes have granted.
async fn acquire(redlock: &Redlock, fleet: &Fleet, options: LockOptions) -> LockGuard {
    let guard = redlock.acquire_with("r", options).await.unwrap();
    eventually("all nodes to have the key", SOON, || on_all(fleet, &guard));
    guard
}

fn owner_on(server: &Server) -> Option<String> {
    server.get(&key("r"))
}

fn on_all(fleet: &Fleet, guard: &LockGuard) -> bool {
    let owner = guard.owner_id().to_string();
    fleet.iter().all(|server| owner_on(server).as_ref() == Some(&owner))
}

/// How often a node renewed a key that was ours.
fn renewals(server: &Server) -> u64 {
    server.calls("pexpire")
}

fn script_calls(fleet: &Fleet) -> Vec<u64> {
    let calls = |server: &Server| ["evalsha", "eval"].map(|command| server.calls(command));
    fleet.iter().map(|server| calls(server).iter().sum()).collect()
}

/// Whether `lost` is pending now.
async fn is_not_lost(guard: &LockGuard) -> bool {
    let pending = give_up_after(1, guard.lost()).await.is_none();
    pending && !guard.is_lost() && !guard.lost_token().is_cancelled()
}

/// That whoever listens for the loss hears of it, each in his way.
async fn assert_lost(guard: &LockGuard) {
    timeout(SOON, guard.lost()).await.expect("lost resolves");
    timeout(SOON, guard.lost_token().cancelled()).await.expect("the token is cancelled");
    timeout(SOON, guard.at_risk()).await.expect("the risk is over");
    assert!(guard.is_lost() && guard.remaining().is_zero());
}

// Renewals.

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_five_ttls_is_never_lost() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    let end = Instant::now() + TTL * 5;
    while Instant::now() < end {
        assert!(is_not_lost(&guard).await);
        assert!(guard.remaining() > Duration::ZERO);
        assert!(fleet.iter().all(|server| server.exists(&key("r"))));
        sleep(Duration::from_millis(20)).await;
    }
    assert!(on_all(&fleet, &guard), "and it is still the same one");
    for server in &fleet {
        let renewals = renewals(server);
        assert!((10..=17).contains(&renewals), "{renewals} renewals in 15 thirds of the ttl");
    }
    guard.release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_renewal_was_opted_out_of_is_lost_at_the_end_of_its_validity() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new().without_renewal()).await;
    let (left, started) = (guard.remaining(), Instant::now());
    assert_lost(&guard).await;
    let took = started.elapsed();
    assert!(took + Duration::from_millis(1) >= left && took < left + SLACK, "{took:?} of {left:?}");
    assert!(fleet.iter().all(|server| renewals(server) == 0));
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 10: a stuck holder renewed for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_held_for_longer_than_its_longest_hold() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let started = Instant::now();
    let options = LockOptions::new().max_hold(TTL * 3);
    let guard = acquire(&redlock, &fleet, options).await;
    assert!(timeout(TTL * 2, guard.lost()).await.is_err(), "it is renewed until then");
    assert_lost(&guard).await;
    let took = started.elapsed();
    assert!(took >= TTL * 3 && took < TTL * 3 + SLACK, "{took:?}");
    nothing_is_left(&redlock, &fleet, SOON);

    let renewed: Vec<u64> = fleet.iter().map(renewals).collect();
    assert!(renewed.iter().all(|renewed| (4..=9).contains(renewed)), "{renewed:?}");
    sleep(TTL).await;
    assert!(fleet.iter().map(renewals).eq(renewed), "renewals have stopped");
    assert!(no_keys(&fleet));
    assert!(guard.release().await.unwrap_err().is_lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_is_shorter_and_whose_answers_get_lost_shortens_nothing() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 3] = proxies(&fleet);
    let redlock = connect(builder(), proxies.iter().map(Proxy::url).collect()).await;
    let mut guard = acquire(&redlock, &fleet, LockOptions::new().ttl(LONG)).await;
    let asked = || fleet.iter().map(renewals).sum::<u64>();
    assert_eq!(asked(), 0);
    proxies.iter().for_each(Proxy::drop_replies);
    let error = guard.extend(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, ExtendError::Inconclusive { .. }), "{error}");
    assert_eq!(asked(), 3, "all nodes have executed it");
    assert!(fleet.iter().all(|server| server.pttl(&key("r")) > 50_000));
    assert!(guard.remaining() > LONG / 2);
    proxies.iter().for_each(Proxy::pass);
    assert!(is_not_lost(&guard).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_after_a_longer_extension_shorten_nothing() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let options = LockOptions::new().renew_every(Duration::from_millis(50));
    let mut guard = acquire(&redlock, &fleet, options).await;
    eventually("renewals", SOON, || fleet.iter().all(|server| renewals(server) > 2));
    guard.extend(LONG).await.unwrap();
    let until = Instant::now() + TTL;
    while Instant::now() < until {
        assert!(guard.remaining() > LONG / 2);
        assert!(fleet.iter().filter(|server| server.pttl(&key("r")) > 50_000).count() >= 2);
        sleep(Duration::from_millis(10)).await;
    }
    assert!(fleet.iter().all(|server| server.pttl(&key("r")) > 50_000));
    guard.release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_locks_are_held_over_one_connection_per_node() {
    let fleet = Fleet::start(3);
    // 750 renewals a second and node, in a debug build beside other tests.
    let ttl = Duration::from_secs(2);
    let redlock = connect(builder().ttl(ttl), fleet.urls()).await;
    let mut guards = Vec::new();
    for lock in 0..500 {
        guards.push(redlock.acquire(&format!("r{lock}")).await.unwrap());
    }
    let before: Vec<u64> = fleet.iter().map(renewals).collect();
    let end = Instant::now() + ttl * 3;
    while Instant::now() < end {
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        assert_eq!(lost, 0, "lost while {:?}", redlock.nodes());
        assert!(fleet.iter().all(|server| server.clients() == 1));
        sleep(Duration::from_millis(50)).await;
    }
    assert!(guards.iter().all(|guard| !guard.lost_token().is_cancelled()));
    for (server, before) in fleet.iter().zip(before) {
        let renewals = renewals(server) - before;
        assert!((500 * 7..=500 * 12).contains(&renewals), "{renewals} of 500 locks in 9 thirds");
    }
    drop(guards);
    nothing_is_left(&redlock, &fleet, SOON);
}

// Trouble, and what is made of it.

// Field case 3: renewal stopped after one timeout or reconnect.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_whose_answers_get_lost_are_tried_again_until_they_come() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 2] = proxies(&fleet);
    let urls = vec![proxies[0].url(), proxies[1].url(), fleet[2].url()];
    let ttl = Duration::from_secs(6);
    let redlock = connect(builder().ttl(ttl), urls).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    proxies.iter().for_each(Proxy::drop_replies);
    eventually("two renewals", SOON, || renewals(&fleet[2]) >= 2);
    assert!(timeout(Duration::ZERO, guard.at_risk()).await.is_ok(), "the first has failed");
    assert!(is_not_lost(&guard).await);
    let before = guard.remaining();

    proxies.iter().for_each(Proxy::pass);
    eventually("a renewal", SOON, || guard.remaining() > before.max(ttl / 2));
    assert!(timeout(SOON / 5, guard.at_risk()).await.is_err(), "the risk is over");
    assert!(is_not_lost(&guard).await);
    guard.release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 3.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_whose_answers_get_lost_for_good_are_a_loss_at_the_deadline() {
    let fleet = Fleet::start(3);
    let proxies: [Proxy; 2] = proxies(&fleet);
    let urls = vec![proxies[0].url(), proxies[1].url(), fleet[2].url()];
    let redlock = connect(builder(), urls).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    proxies.iter().for_each(Proxy::drop_replies);
    let (left, started) = (guard.remaining(), Instant::now());
    assert_lost(&guard).await;
    let took = started.elapsed();
    // Answers that had passed by then may have made it longer by one renewal.
    assert!(took + Duration::from_millis(1) >= left, "{took:?} of {left:?}");
    assert!(took < left + RENEW_EVERY + SLACK, "{took:?} of {left:?}");
    proxies.iter().for_each(Proxy::pass);
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 4: no way to know that the lock is gone.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_deleted_on_a_majority_are_a_loss_within_one_renewal() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    let listener = guard.lost_token();
    fleet[0].del(&key("r"));
    fleet[1].del(&key("r"));
    let deleted = Instant::now();
    timeout(SOON, listener.cancelled()).await.expect("it is pushed");
    let took = deleted.elapsed();
    assert!(took < RENEW_EVERY + SLACK, "{took:?}");
    assert_lost(&guard).await;
    eventually("no key of ours", SOON, || no_keys(&fleet));
    sleep(RENEW_EVERY).await;
    assert!(no_keys(&fleet), "nothing is set again");
    assert!(guard.release().await.unwrap_err().is_lost());
}

// Field case 4.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_majority_frozen_the_lock_is_lost_at_its_own_deadline_and_not_before() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    fleet[0].freeze();
    fleet[1].freeze();
    let (left, started) = (guard.remaining(), Instant::now());
    assert!(left + RENEW_EVERY + SLACK > TTL, "{left:?}");
    let risk = guard.at_risk().await;
    assert!(risk > Duration::ZERO && !guard.is_lost(), "told of before");
    assert_lost(&guard).await;
    let took = started.elapsed();
    assert!(took + Duration::from_millis(1) >= left, "{took:?} of {left:?}");
    assert!(took < left + RENEW_EVERY + SLACK, "{took:?} of {left:?}");
    // The keys are still there, so nobody else has it when its holder is told.
    fleet[0].thaw();
    fleet[1].thaw();
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 39: declared lost on one failed poll.
#[tokio::test(flavor = "multi_thread")]
async fn one_renewal_of_many_that_fails_is_told_of_and_is_no_loss() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder().ttl(TTL * 2), fleet.urls()).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    eventually("a renewal", SOON, || renewals(&fleet[2]) > 0);
    assert!(give_up_after(1, guard.at_risk()).await.is_none());
    fleet[0].freeze();
    fleet[1].freeze();
    let left = timeout(SOON, guard.at_risk()).await.expect("a warning");
    assert!(left > TTL / 2 && left < TTL * 2, "{left:?}");
    assert!(is_not_lost(&guard).await);
    fleet[0].thaw();
    fleet[1].thaw();
    eventually("a renewal that succeeds", SOON, || guard.remaining() > left);
    assert!(give_up_after(1, guard.at_risk()).await.is_none(), "the risk is over");
    assert!(timeout(TTL * 2, guard.lost()).await.is_err());
    guard.release().await.unwrap();
    nothing_is_left(&redlock, &fleet, SOON);
}

// Field case 13: a restarted node never got the key back.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_the_key_has_it_back_after_the_next_renewal_unless_another_has_it() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    fleet[0].command(&["DEL", &key("r")]);
    let flushed = Instant::now();
    eventually("the key to be back", SOON, || on_all(&fleet, &guard));
    assert!(flushed.elapsed() < RENEW_EVERY + SLACK, "{:?}", flushed.elapsed());
    let pttl = fleet[0].pttl(&key("r"));
    assert!(pttl > 0 && pttl <= 1_500, "{pttl} ms");

    fleet[0].set_raw(&key("r"), "someone else", Some(LONG));
    let before = renewals(&fleet[1]);
    eventually("three renewals", SOON, || renewals(&fleet[1]) >= before + 3);
    assert_eq!(owner_on(&fleet[0]).as_deref(), Some("someone else"));
    assert!(fleet[0].pttl(&key("r")) <= 60_000 && fleet[0].pttl(&key("r")) > 50_000);
    assert!(is_not_lost(&guard).await, "two of three have it");
    guard.release().await.unwrap();
    eventually("no key of ours", SOON, || no_keys([&fleet[1], &fleet[2]]));
    assert_eq!(owner_on(&fleet[0]).as_deref(), Some("someone else"));
}

/// Where a twin finds the nodes.
const URLS: &str = "QUORUMLOCK_TEST_HOLDER_URLS";

/// Not a test: what the process does that the next test stops.
#[test]
fn the_holder_in_a_process_of_its_own() {
    let Ok(urls) = env::var(URLS) else { return };
    let hold = async {
        let urls = urls.split(',').map(str::to_owned).collect();
        let redlock = connect(builder(), urls).await;
        let guard = redlock.acquire("r").await.unwrap();
        say(&format!("holds as {}", guard.owner_id()));
        let token = guard.lost_token();
        tokio::join!(guard.lost(), token.cancelled());
        say(&format!("lost, {:?} remain", guard.remaining()));
        let released = guard.release().await;
        say(&format!("released: {}", released.is_err_and(|error| error.is_lost())));
        std::future::pending::<()>().await;
    };
    Runtime::new().unwrap().block_on(hold);
}

// Field case 9: after a pause the renewal re-created the key, and there were two holders.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_process_was_stopped_has_lost_when_it_goes_on_and_sets_nothing_again() {
    let fleet = Fleet::start(3);
    let entry = "holding::the_holder_in_a_process_of_its_own";
    let twin = Twin::start(entry, (URLS, &fleet.urls().join(",")));
    let owner = twin.says("holds as", SOON * 4);
    eventually("renewals", SOON, || fleet.iter().all(|server| renewals(server) >= 2));
    assert!(fleet.iter().all(|server| owner_on(server).as_ref() == Some(&owner)));
    twin.freeze();
    eventually("its keys to expire", SOON, || no_keys(&fleet));

    let other = connect(builder(), fleet.urls()).await;
    other.try_acquire("r").await.unwrap().release().await.unwrap();
    nothing_is_left(&other, &fleet, SOON);
    let set = || fleet.iter().map(|server| server.calls("set")).collect::<Vec<_>>();
    let before = set();
    assert!(twin.is_silent());

    let thawed = twin.thaw();
    assert_eq!(twin.says("lost,", SOON), "0ns remain");
    assert!(thawed.elapsed() < SLACK, "{:?}", thawed.elapsed());
    assert_eq!(twin.says("released:", SOON), "true");
    // Another may have it at once, and keeps it.
    let second = other.try_acquire("r").await.unwrap();
    let until = Instant::now() + TTL;
    while Instant::now() < until {
        let ours = second.owner_id().to_string();
        assert!(
            fleet.iter().filter(|server| owner_on(server).as_ref() == Some(&ours)).count() >= 2
        );
        sleep(Duration::from_millis(5)).await;
    }
    assert!(is_not_lost(&second).await);
    second.release().await.unwrap();
    nothing_is_left(&other, &fleet, SOON);
    let sets = set().iter().zip(&before).map(|(now, before)| now - before).collect::<Vec<_>>();
    assert!(sets.iter().all(|sets| *sets <= 1), "those of the second lock: {sets:?}");
}

// The end.

/// Ends a lock that is renewed all the time, in one of several ways.
async fn end(guard: LockGuard, way: usize) {
    match way % 3 {
        0 => guard.release().await.unwrap(),
        // Two nodes may have answered before the first poll is over.
        1 => give_up_after(1, guard.release()).await.unwrap_or(Ok(())).unwrap(),
        _ => drop(guard),
    }
}

// Field case 19: a renewal raced the release, and the key came back.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_the_middle_of_a_renewal_leaves_no_key() {
    let fleet = Fleet::start(3);
    // What is left behind stays for a minute, and renewals never rest.
    let options = LockOptions::new().ttl(LONG).renew_every(Duration::from_millis(1));
    let redlock = connect(builder(), fleet.urls()).await;
    for round in 0..100 {
        let guard = redlock.acquire_with("r", options).await.unwrap();
        if round % 2 == 1 {
            // So that renewals become refills.
            fleet[round % 3].del(&key("r"));
        }
        sleep(Duration::from_micros(137) * u32::try_from(round).unwrap()).await;
        end(guard, round).await;
        eventually("no key", SOON, || no_keys(&fleet));
    }
    assert!(fleet.iter().all(|server| renewals(server) > 100), "there were renewals");
    nothing_is_left(&redlock, &fleet, SOON);
    sleep(SLACK).await;
    assert!(no_keys(&fleet), "and none came back");
}

// Field cases 2 and 48, of a lock that is renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_known_to_be_lost_is_released_once() {
    let fleet = Fleet::start(3);
    let redlock = connect(builder(), fleet.urls()).await;
    let guard = acquire(&redlock, &fleet, LockOptions::new()).await;
    fleet.iter().for_each(|server| server.del(&key("r")));
    assert_lost(&guard).await;
    eventually("all answers", SOON, || is_idle(&redlock));
    let before = script_calls(&fleet);
    let called = Instant::now();
    assert!(guard.release().await.unwrap_err().is_lost());
    assert!(called.elapsed() < NODE_TIMEOUT, "{:?}", called.elapsed());
    sleep(TTL).await;
    let once: Vec<u64> = before.iter().map(|calls| calls + 1).collect();
    assert_eq!(script_calls(&fleet), once, "the release, and then nothing any more");
    assert!(no_keys(&fleet));
}

// Field case 36, of a lock that is renewed all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_between_renewals_with_most_nodes_frozen_is_bounded_and_made_up_for() {
    let fleet = Fleet::start(5);
    let redlock = connect(builder(), fleet.urls()).await;
    let options = LockOptions::new().ttl(LONG).renew_every(Duration::from_millis(5));
    let guard = acquire(&redlock, &fleet, options).await;
    eventually("renewals", SOON, || fleet.iter().all(|server| renewals(server) > 3));
    for place in [0, 1, 2] {
        fleet[place].freeze();
    }
    sleep(Duration::from_millis(20)).await;
    let started = Instant::now();
    let error = guard.release().await.unwrap_err();
    assert!(started.elapsed() < ABOUT_A_NODE_TIMEOUT, "{:?}", started.elapsed());
    assert!(matches!(error, ReleaseError::Unconfirmed { .. }), "{error}");
    assert_eq!(places(error.nodes(), is_failure), [0, 1, 2]);
    assert!([0, 1, 2].iter().all(|place| node(&redlock, *place).owed_releases == 1));

    for place in [0, 1, 2] {
        fleet[place].thaw();
    }
    nothing_is_left(&redlock, &fleet, SOON);
    sleep(SLACK).await;
    assert!(no_keys(&fleet), "no renewal comes after it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_fires_the_loss_of_all_that_is_held_and_leaves_no_key() {
    let fleet = Fleet::start(3);
    for round in 0..20 {
        let redlock = connect(builder().ttl(LONG), fleet.urls()).await;
        let mut guards = Vec::new();
        for lock in 0..50 {
            guards.push(redlock.acquire(&format!("r{lock}")).await.unwrap());
        }
        let drained = timeout(SOON, redlock.shutdown()).await.unwrap();
        assert!(drained.unanswered.is_empty(), "{drained:?}");
        for guard in &guards {
            assert_lost(guard).await;
        }
        let left: Vec<usize> = fleet.iter().map(|server| server.keys().len()).collect();
        assert_eq!(left, [0, 0, 0], "keys that are left, round {round}");
        assert!(redlock.nodes().iter().all(|node| node.state == NodeState::ShutDown));
        for guard in guards {
            assert!(guard.release().await.unwrap_err().is_lost());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_take_turns_for_longer_than_a_ttl_each_and_one_at_a_time_is_in() {
    static INSIDE: AtomicUsize = AtomicUsize::new(0);
    let fleet = Fleet::start(3);
    let ttl = Duration::from_secs(1);
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let redlock = connect(builder().ttl(ttl), fleet.urls()).await;
        tasks.spawn(async move {
            let guard = redlock.acquire("r").await.unwrap();
            assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
            sleep(ttl * 2).await;
            assert!(!guard.is_lost());
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            // A busy machine may leave it unconfirmed.
            assert!(!guard.release().await.is_err_and(|error| error.is_lost()));
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    eventually("no key", SOON, || no_keys(&fleet));
}
