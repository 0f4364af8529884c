//! The schedules of `docs/kleppmann` that have to be seen on real servers, by the names of its chapters.
//! What each needs from the world is there: processes that are stopped, clocks that jump, packets that
//! are late. `docs/kleppmann` says where the other chapters' runs are.

use std::{env, time::Duration};

use quorumlock::{
    FencingToken, LockOptions, Redlock, RedlockBuilder,
    fenced::redis::{Fence, WriteError},
    fred::{clients::Client, interfaces::ClientLike as _, types::config::Config},
};
use tokio::{runtime::Runtime, time::sleep};

use crate::support::{
    Conn, Fleet, Proxy, Reply, Server, Twin,
    aftermath::{all_vote, key, no_keys},
    eventually,
    twin::say,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(20);
const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];
/// Tells a process of its own that it may go on.
const GO: &str = "go";

/// No node times out because the machine is busy.
fn builder() -> RedlockBuilder {
    Redlock::builder().new_fleet().ttl(Duration::from_secs(20)).node_timeout(Duration::from_secs(5))
}

/// Connects to nodes by their names, and waits until all vote.
async fn connect(builder: RedlockBuilder, urls: &[String]) -> Redlock {
    let redlock = builder.named_nodes(NAMES.iter().zip(urls)).connect().await.unwrap();
    eventually("all nodes to vote", SOON, || all_vote(&redlock));
    redlock
}

/// Two clients, each of which does not reach the nodes at these places.
async fn divided(servers: &[&Server], away: [&[usize]; 2]) -> ([Redlock; 2], [Vec<Proxy>; 2]) {
    let through = || servers.iter().map(|server| Proxy::start(server.port())).collect::<Vec<_>>();
    let proxies = [through(), through()];
    let urls = |proxies: &[Proxy]| proxies.iter().map(Proxy::url).collect::<Vec<_>>();
    let one = connect(builder(), &urls(&proxies[0])).await;
    let two = connect(builder(), &urls(&proxies[1])).await;
    for (proxies, away) in proxies.iter().zip(away) {
        for place in away {
            proxies[*place].cut();
        }
    }
    ([one, two], proxies)
}

/// What is written to under the lock: one key that takes every write, and one behind a fence.
struct Store {
    client: Client,
    fence: Fence,
}

impl Store {
    async fn connect(url: &str) -> Self {
        let client = Client::new(Config::from_url(url).unwrap(), None, None, None);
        client.init().await.unwrap();
        Self { client, fence: Fence::of("fenced") }
    }

    /// Whether the write behind the fence was refused as stale.
    async fn is_refused(&self, value: &str, token: FencingToken) -> bool {
        match self.fence.set(&self.client, "fenced", value, token).await {
            Ok(()) => false,
            Err(WriteError::Stale(_)) => true,
            Err(error) => panic!("{error}"),
        }
    }
}

fn set_plain(conn: &mut Conn, value: &str) {
    assert_eq!(conn.command(&["SET", "plain", value]).unwrap(), Reply::Text("OK".to_owned()));
}

#[track_caller]
fn assert_overwritten_but_for_the_fence(store: &Server) {
    assert_eq!(store.get("plain").as_deref(), Some("1"), "the late write was taken");
    assert_eq!(store.get("fenced").as_deref(), Some("2"), "the late write was refused");
}

// 2. The paused holder.

const HOLDER: &str = "QUORUMLOCK_TEST_PAUSED_HOLDER";
/// A node timeout that fits into its ttl of a second.
const MOMENT: Duration = Duration::from_millis(900);

/// Not a test: the process that the next test stops between its check and its write.
#[test]
fn the_holder_in_a_process_of_its_own() {
    let Ok(urls) = env::var(HOLDER) else { return };
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let (store, nodes) = urls.split_first().unwrap();
    let hold = async {
        let mut plain = Conn::open(store.trim_start_matches("redis://"), SOON).unwrap();
        let store = Store::connect(store).await;
        let redlock =
            connect(builder().ttl(Duration::from_secs(1)).node_timeout(MOMENT), nodes).await;
        let guard = redlock.acquire_fenced("r").await.unwrap();
        assert!(!guard.remaining().is_zero(), "the check");
        say("checked");
        while plain.command(&["EXISTS", GO]).unwrap().into_int() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        set_plain(&mut plain, "1");
        say(&format!("refused: {}", store.is_refused("1", guard.token()).await));
    };
    Runtime::new().unwrap().block_on(hold);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_stopped_overwrites_a_plain_value_and_not_a_fenced_one() {
    let (fleet, server) = (Fleet::start(5), Server::start());
    let entry = "kleppmann::the_holder_in_a_process_of_its_own";
    let urls = format!("{},{}", server.url(), fleet.urls().join(","));
    let holder = Twin::start(entry, (HOLDER, &urls));
    holder.says("checked", SOON);
    let two = connect(builder(), &fleet.urls()).await;
    two.try_acquire_fenced("r").await.expect_err("1 holds");

    holder.freeze();
    let second = two.acquire_fenced("r").await.unwrap();
    let store = Store::connect(&server.url()).await;
    let mut plain = Conn::open(&server.addr(), SOON).unwrap();
    set_plain(&mut plain, "2");
    assert!(!store.is_refused("2", second.token()).await);
    server.set_raw(GO, "", None);
    assert!(holder.is_silent());

    holder.thaw();
    assert_eq!(holder.says("refused:", SOON), "true");
    assert_overwritten_but_for_the_fence(&server);
    assert!(!second.is_lost());
}

// 3. Counters.

#[tokio::test(flavor = "multi_thread")]
async fn counters_at_10_5_5_go_back_by_themselves_and_do_not_with_the_raise() {
    let fleet = Fleet::start(3);
    for (server, counter) in fleet.iter().zip(["10", "5", "5"]) {
        server.set_raw("counter", counter, None);
        server.set_raw("quorumlock:fence:r", counter, None);
    }
    let grants = |places: [usize; 2]| {
        places.map(|place| fleet[place].command(&["INCR", "counter"]).into_int()).into_iter().max()
    };
    assert_eq!((grants([0, 1]), grants([1, 2])), (Some(11), Some(7)));

    let servers: Vec<&Server> = fleet.iter().collect();
    let ([one, two], _proxies) = divided(&servers, [&[2], &[0]]).await;
    // 11, and then 12, unless a busy machine makes one try twice.
    let first = one.acquire_fenced("r").await.unwrap();
    let newest = first.token();
    assert!(newest.get() >= 11, "{newest}");
    first.release().await.unwrap();
    let second = two.acquire_fenced("r").await.unwrap();
    assert!(second.token() > newest, "{} after {newest}", second.token());
}

// 4. A clock that jumps.

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_gives_the_lock_to_a_second_holder_with_a_larger_token() {
    let (others, c, server) = (Fleet::start(4), Server::with_clock(), Server::start());
    let servers = [&others[0], &others[1], &c, &others[2], &others[3]];
    let ([one, two], _proxies) = divided(&servers, [&[3, 4], &[0, 1]]).await;
    // A renewal would set the key again at C.
    let options = LockOptions::new().without_renewal();
    let first = one.acquire_fenced_with("r", options).await.unwrap();
    eventually("C to have granted", SOON, || c.exists(&key("r")));
    two.try_acquire_fenced("r").await.expect_err("C has given its vote");
    let is_free = |server: &&Server| !server.exists(&key("r"));
    eventually("D and E to be free again", SOON, || servers[3..].iter().all(is_free));

    c.jump(20_000);
    let second = two.acquire_fenced("r").await.unwrap();
    assert!(!first.remaining().is_zero() && !second.remaining().is_zero(), "both hold");
    assert!(second.token() > first.token());
    let store = Store::connect(&server.url()).await;
    assert!(!store.is_refused("2", second.token()).await);
    assert!(store.is_refused("1", first.token()).await);
}

// 6. A pause in the middle of acquiring.

const ACQUIRER: &str = "QUORUMLOCK_TEST_PAUSED_IN_ACQUIRING";
/// How long requests to the nodes, and answers, are under way.
const ONE_WAY: Duration = Duration::from_millis(700);
/// Both ways are shorter than the node timeout, and this is shorter than the ttl.
const TTL: Duration = Duration::from_secs(3);

/// Not a test: the process that the next test stops while the grants are under way to it.
#[test]
fn the_acquirer_in_a_process_of_its_own() {
    let Ok(urls) = env::var(ACQUIRER) else { return };
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let (store, nodes) = urls.split_first().unwrap();
    let acquire = async {
        let mut conn = Conn::open(store, SOON).unwrap();
        let builder = builder().ttl(TTL).node_timeout(Duration::from_millis(2_800));
        let redlock = connect(builder, nodes).await;
        say("connected");
        while conn.command(&["EXISTS", GO]).unwrap().into_int() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        match redlock.try_acquire("r").await {
            Ok(guard) => say(&format!("holds for {:?}", guard.remaining())),
            Err(error) => say(&format!("refused: {error}")),
        }
        std::future::pending::<()>().await;
    };
    Runtime::new().unwrap().block_on(acquire);
}

/// Has a process acquire over a slow network; nodes, and the process when they have granted.
fn acquiring(fleet: &Fleet, server: &Server) -> (Twin, Vec<Proxy>) {
    let proxies: Vec<Proxy> = fleet.iter().map(|node| Proxy::start(node.port())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let urls = format!("{},{}", server.addr(), urls.join(","));
    let twin = Twin::start("kleppmann::the_acquirer_in_a_process_of_its_own", (ACQUIRER, &urls));
    twin.says("connected", SOON);
    for proxy in &proxies {
        proxy.delay(ONE_WAY);
    }
    server.set_raw(GO, "", None);
    let granted = || fleet.iter().all(|node| node.exists(&key("r")));
    eventually("all nodes to have granted", SOON, granted);
    (twin, proxies)
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_that_wait_in_the_sockets_of_a_stopped_process_are_not_taken_for_a_lock() {
    // Without the pause it is a lock.
    let (fleet, server) = (Fleet::start(3), Server::start());
    let (twin, proxies) = acquiring(&fleet, &server);
    twin.says("holds for", SOON);
    drop((twin, proxies));

    // It has to be stopped before the answers are there, which a busy machine may miss.
    for _ in 0..5 {
        let (fleet, server) = (Fleet::start(3), Server::start());
        let (twin, _proxies) = acquiring(&fleet, &server);
        twin.freeze();
        if !twin.is_silent() {
            continue;
        }
        eventually("the keys to expire", SOON, || no_keys(&fleet));
        let two = connect(builder(), &fleet.urls()).await;
        let second = two.acquire("r").await.unwrap();
        twin.thaw();
        let why = twin.says("refused:", SOON);
        assert!(why.starts_with("too few nodes") || why.starts_with("validity used up"), "{why}");
        assert!(!second.is_lost());
        second.release().await.unwrap();
        return;
    }
    panic!("it was always stopped too late");
}

// 7. Late packets.

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_late_after_an_orderly_release_overwrites_a_plain_value_and_not_a_fenced_one()
 {
    let (fleet, server) = (Fleet::start(3), Server::start());
    let network = Proxy::start(server.port());
    let (one, two) =
        (connect(builder(), &fleet.urls()).await, connect(builder(), &fleet.urls()).await);
    let (slow, store) = (Store::connect(&network.url()).await, Store::connect(&server.url()).await);
    let mut slow_plain = Conn::open(&network.addr(), SOON).unwrap();

    let first = one.acquire_fenced("r").await.unwrap();
    assert!(!first.remaining().is_zero(), "the check");
    network.hold_requests();
    slow_plain.send(&["SET", "plain", "1"]).unwrap();
    eventually("the plain write to be under way", SOON, || network.held_bytes() > 0);
    let (token, held) = (first.token(), network.held_bytes());
    let late = tokio::spawn(async move { slow.is_refused("1", token).await });
    eventually("the other one, too", SOON, || network.held_bytes() > held);
    first.release().await.unwrap();

    let second = two.acquire_fenced("r").await.unwrap();
    set_plain(&mut Conn::open(&server.addr(), SOON).unwrap(), "2");
    assert!(!store.is_refused("2", second.token()).await);
    second.release().await.unwrap();

    network.pass();
    assert!(late.await.unwrap());
    assert_eq!(slow_plain.receive().unwrap(), Reply::Text("OK".to_owned()));
    assert_overwritten_but_for_the_fence(&server);
}
