//! Operations that go to a node in one command.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::join_all;
use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestRunner},
};
use quorumlock::{
    AcquireError, FencingToken, Key, LockGuard, NodeState, OwnerId, Redlock, Seat,
    node::{
        Answer, Called, Fence, Listener, Move, Node, NodeFailure, Operation, Outcome, SendAs,
        redis::{RedisLink, RedisNode},
    },
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};

use crate::{
    rights::{as_user, user_url},
    support::{Fleet, Server, admit::Admitted, futures::eventually_async},
};

const LIMIT: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);
const KEYS: usize = 3;
const OWNERS: usize = 3;
const SEQUENCES: u32 = 150;
const LONG_MS: u64 = 100_000;

#[derive(Clone, Copy, Debug)]
enum Ask {
    Acquire,
    AcquireFenced,
    Raise { token: u64 },
    RefillFenced { token: u64 },
    Extend,
    Release,
}

/// What is on the servers before.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// The key of a lock is no string.
    List(usize),
    /// It has no ttl, and is nobody's.
    Foreign(usize),
    /// The counter is none.
    Nonsense(usize),
    /// It is as high as it may be.
    Full(usize),
    /// The marker is gone, and with it the admission.
    NoMarker,
    /// The marker is no string.
    NonsenseMarker,
}

fn any_ask() -> impl Strategy<Value = (Ask, usize, usize)> {
    let ask = prop_oneof![
        3 => Just(Ask::Acquire),
        3 => Just(Ask::AcquireFenced),
        1 => (1..20_u64).prop_map(|token| Ask::Raise { token }),
        1 => (1..20_u64).prop_map(|token| Ask::RefillFenced { token }),
        2 => Just(Ask::Extend),
        3 => Just(Ask::Release),
    ];
    (ask, 0..KEYS, 0..OWNERS)
}

fn any_before() -> impl Strategy<Value = Before> {
    prop_oneof![
        4 => (0..KEYS).prop_map(Before::List),
        4 => (0..KEYS).prop_map(Before::Foreign),
        4 => (0..KEYS).prop_map(Before::Nonsense),
        4 => (0..KEYS).prop_map(Before::Full),
        1 => Just(Before::NoMarker),
        1 => Just(Before::NonsenseMarker),
    ]
}

fn lock(key: usize) -> String {
    format!("lock:{key}")
}

fn counter(key: usize) -> String {
    format!("counter:{key}")
}

fn operation(asked: (Ask, usize, usize), owners: &[OwnerId]) -> Operation {
    let (ask, key, owner) = asked;
    let fence = Fence { key: Key::new(&counter(key)), idle_ms: 2 * LONG_MS };
    let (key, owner, ttl_ms) = (Key::new(&lock(key)), owners[owner], LONG_MS);
    match ask {
        Ask::Acquire => Operation::Acquire { key, owner, ttl_ms },
        Ask::AcquireFenced => Operation::AcquireFenced { key, fence, owner, ttl_ms },
        Ask::Raise { token } => {
            Operation::Raise { key, fence, owner, token: FencingToken::new(token) }
        }
        Ask::RefillFenced { token } => {
            let token = FencingToken::new(token);
            Operation::RefillFenced { key, fence, owner, ttl_ms, token }
        }
        Ask::Extend => Operation::Extend { key, owner, ttl_ms: 2 * LONG_MS },
        Ask::Release => Operation::Release { key, owner, calls: Called::Known(Seat::new(7)) },
    }
}

struct Side {
    server: Server,
    link: Admitted<RedisLink>,
}

impl Side {
    async fn start() -> Self {
        let server = Server::start();
        let node = RedisNode::from_url(&server.url(), LIMIT).expect("a good URL");
        let link = Admitted::admit(node.connect(&[]).await.expect("a connection")).await;
        Self { server, link }
    }

    async fn prepare(&mut self, before: &[Before]) {
        self.server.command(&["FLUSHALL"]);
        self.link.admit_again().await;
        for before in before {
            match *before {
                Before::List(key) => {
                    self.server.del(&lock(key));
                    self.server.command(&["LPUSH", &lock(key), "x"]);
                }
                Before::Foreign(key) => self.server.set_raw(&lock(key), "x", None),
                Before::Nonsense(key) => self.server.set_raw(&counter(key), "x", None),
                Before::Full(key) => {
                    self.server.set_raw(&counter(key), "9007199254740991", None);
                }
                Before::NoMarker => self.server.del("test:marker"),
                Before::NonsenseMarker => {
                    self.server.del("test:marker");
                    self.server.command(&["LPUSH", "test:marker", "x"]);
                }
            }
        }
    }

    /// What is left.
    fn found(&self) -> Vec<String> {
        let keys = (0..KEYS).flat_map(|key| [lock(key), counter(key)]);
        keys.chain(["test:max".to_owned()]).map(|key| self.found_at(&key)).collect()
    }

    /// With its ttl in tens of seconds.
    fn found_at(&self, key: &str) -> String {
        let (value, left) = (self.server.command(&["GET", key]), self.server.pttl(key));
        format!(
            "{key} {value:?} {}",
            if left < 0 { left } else { left.saturating_add(5_000).div_euclid(10_000) }
        )
    }
}

/// What each says, without what the server adds of which script and line it was.
fn told(outcome: &Outcome) -> String {
    match outcome {
        Ok(Answer::Taken { remaining: Some(_) }) => "taken for a time".to_owned(),
        Err(NodeFailure::Rejected { message }) => {
            message.split(" script: ").next().unwrap_or_default().trim_end_matches('.').to_owned()
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn what_goes_together_is_done_as_if_each_had_gone_alone() {
    let runtime: Runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let sides = runtime.block_on(async { [Side::start().await, Side::start().await] });
    let sides = RefCell::new(sides);
    let kinds = RefCell::new(BTreeMap::<String, usize>::new());
    let config =
        ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(SEQUENCES) };
    let sequences =
        (prop::collection::vec(any_before(), 0..3), prop::collection::vec(any_ask(), 2..40));
    let tested = TestRunner::new(config).run(&sequences, |(before, asked)| {
        let owners: Vec<OwnerId> = (0..OWNERS).map(|_| OwnerId::random()).collect();
        let operations: Vec<Operation> =
            asked.iter().map(|asked| operation(*asked, &owners)).collect();
        let [alone, together] = &mut *sides.borrow_mut();
        let (said_alone, said_together) = runtime.block_on(async {
            alone.prepare(&before).await;
            together.prepare(&before).await;
            let mut said_alone = Vec::new();
            for operation in &operations {
                said_alone.push(alone.link.call(operation, SendAs::Digest, LIMIT).await);
            }
            let ballot = together.link.ballot();
            let said = together.link.call_together(operations, &ballot, LIMIT).await;
            (said_alone, said.expect("an answer"))
        });
        let said_alone: Vec<String> = said_alone.iter().map(told).collect();
        let said_together: Vec<String> = said_together.iter().map(told).collect();
        prop_assert_eq!(&said_alone, &said_together);
        prop_assert_eq!(alone.found(), together.found());
        for said in said_alone {
            *kinds.borrow_mut().entry(said).or_default() += 1;
        }
        Ok::<(), TestCaseError>(())
    });
    tested.unwrap_or_else(|failed| panic!("{failed}"));
    let kinds = kinds.into_inner();
    let has = |part: &str| kinds.keys().any(|kind| kind.contains(part));
    let all = ["Done", "Missing", "taken for a time", "Taken { remaining: None }", "Counted"];
    let failures = ["WRONGTYPE", "is not a number", "cannot go beyond", "NotAdmitted"];
    assert!(all.iter().chain(&failures).all(|kind| has(kind)), "one-sided: {kinds:?}");
}

#[tokio::test]
async fn what_is_asked_at_the_same_time_goes_in_few_commands_and_each_gets_its_own_answer() {
    const LOCKS: usize = 100;
    let fleet = Fleet::start(3);
    let redlock =
        Redlock::builder().new_fleet().nodes(fleet.urls()).connect().await.expect("a quorum");
    let sent = || fleet.iter().map(|server| server.calls("evalsha")).sum::<u64>();
    let before = sent();
    let name = |number: usize| format!("r{number}");
    // Every third is another's.
    for server in &fleet {
        (0..LOCKS).step_by(3).for_each(|number| {
            server.set_raw(&format!("quorumlock:lock:{}", name(number)), "x", None);
        });
    }
    let names: Vec<String> = (0..LOCKS).map(name).collect();
    let acquired = join_all(names.iter().map(|name| redlock.try_acquire(name))).await;
    let mut held = Vec::new();
    for (number, acquired) in acquired.into_iter().enumerate() {
        match acquired {
            Ok(guard) if number % 3 != 0 => held.push(guard),
            Err(AcquireError::Contended(_)) if number % 3 == 0 => {}
            other => panic!("{number}: {other:?}"),
        }
    }
    assert!(sent() - before <= 3 * 10, "{} commands for {LOCKS} locks", sent() - before);
    let before = sent();
    join_all(held.into_iter().map(|guard| async { guard.release().await.expect("released") }))
        .await;
    assert!(sent() - before <= 3 * 10, "{} commands for the releases", sent() - before);
    assert!(fleet.iter().all(|server| !server.exists("quorumlock:lock:r1")));
}

/// The rights of a client that may touch locks of its own only.
const OWN_ONLY: [&str; 4] =
    ["resetkeys", "~quorumlock:marker", "~quorumlock:max", "~quorumlock:lock:mine*"];

// A server looks at the keys of a whole command before it does anything of it.
#[tokio::test]
async fn what_one_may_not_touch_costs_the_others_nothing_that_are_asked_at_the_same_time() {
    let fleet = Fleet::start(3);
    let rights: Vec<String> =
        fleet.iter().map(|server| user_url(server, "some", &OWN_ONLY)).collect();
    let redlock = Redlock::builder().new_fleet().nodes(rights).node_timeout(2 * SECOND);
    let redlock = redlock.connect().await.expect("a quorum");
    let names: Vec<String> = (0..10)
        .map(|number| format!("{}{number}", if number % 5 == 2 { "yours" } else { "mine" }))
        .collect();
    for round in 0..3 {
        let acquired = join_all(names.iter().map(|name| redlock.try_acquire(name))).await;
        for (name, acquired) in names.iter().zip(acquired) {
            match acquired {
                Ok(guard) => {
                    assert!(name.starts_with("mine"), "{name}");
                    guard.release().await.expect("released");
                }
                Err(error) => {
                    assert!(name.starts_with("yours"), "{name} in round {round}: {error}");
                    assert!(error.to_string().contains("NOPERM"), "{error}");
                }
            }
        }
    }
    // Nothing is owed for what cannot have been set, and no node is kept from voting by it.
    eventually_async("no release that is owed", SECOND, || {
        redlock.nodes().iter().all(|node| node.owed_releases == 0)
    })
    .await;
    assert!(redlock.nodes().iter().all(|node| node.state == NodeState::Voting));
}

#[tokio::test]
async fn what_was_refused_together_is_not_asked_again_behind_its_release() {
    let server = Server::start();
    let redlock = as_user(&server, "some", &OWN_ONLY).connect().await.expect("its vote");
    server.freeze();
    let [mut mine, mut yours] = ["mine", "yours"].map(|name| Box::pin(redlock.try_acquire(name)));
    assert!(futures::poll!(&mut mine).is_pending() && futures::poll!(&mut yours).is_pending());
    sleep(Duration::from_millis(20)).await;
    drop(mine);
    sleep(Duration::from_millis(20)).await;
    server.thaw();
    let error = yours.await.expect_err("not allowed").to_string();
    assert!(error.contains("NOPERM"), "{error}");
    // What was sent before this has been done when it is answered.
    redlock.try_acquire("mine-too").await.expect("a lock").release().await.expect("released");
    assert!(!server.exists("quorumlock:lock:mine"));
}

#[tokio::test]
async fn what_goes_together_to_a_server_that_forgot_the_scripts_is_done_all_the_same() {
    const LOCKS: usize = 20;
    let server = Server::start();
    let redlock = Redlock::builder().new_fleet().single_node(server.url()).node_timeout(2 * SECOND);
    let redlock = redlock.connect().await.expect("its vote");
    let names: Vec<String> = (0..LOCKS).map(|number| format!("r{number}")).collect();
    let acquired = join_all(names.iter().map(|name| redlock.try_acquire(name))).await;
    let mut held: Vec<_> = acquired.into_iter().map(|guard| guard.expect("a lock")).collect();
    server.command(&["SCRIPT", "FLUSH"]);
    let extended = join_all(held.iter_mut().map(|guard| guard.extend(30 * SECOND))).await;
    assert!(extended.iter().all(Result::is_ok), "{extended:?}");
    server.command(&["SCRIPT", "FLUSH"]);
    let released = join_all(held.into_iter().map(LockGuard::release)).await;
    assert!(released.iter().all(Result::is_ok), "{released:?}");
    assert_eq!(server.keys(), ["quorumlock:max"; 0]);
}

#[tokio::test]
async fn a_release_that_may_not_touch_its_key_any_more_keeps_the_node_from_nothing_else() {
    let server = Server::start();
    let redlock = as_user(&server, "some", &OWN_ONLY).connect().await.expect("its vote");
    let guard = redlock.try_acquire("mine").await.expect("a lock");
    let others = ["resetkeys", "~quorumlock:marker", "~quorumlock:max", "~quorumlock:lock:other"];
    user_url(&server, "some", &others);
    let error = guard.release().await.expect_err("not allowed").to_string();
    assert!(error.contains("NOPERM"), "{error}");
    redlock.try_acquire("other").await.expect("a lock").release().await.expect("released");
    assert!(redlock.nodes().iter().all(|node| node.owed_releases == 0));
}

// A proxy may take a reply for one on another connection: it is found out only if no two count alike.
#[tokio::test]
async fn no_two_connections_number_their_commands_alike() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    let node = RedisNode::from_url(&server.url(), LIMIT).expect("a good URL");
    let mut numbers = BTreeSet::new();
    for _ in 0..3 {
        let link = Admitted::admit(node.connect(&[]).await.expect("a connection")).await;
        server.command(&["SLOWLOG", "RESET"]);
        let owner = OwnerId::random();
        let extend = |key: &str| Operation::Extend { key: Key::new(key), owner, ttl_ms: LONG_MS };
        let all = vec![extend("a"), extend("b")];
        link.call_together(all, &link.ballot(), LIMIT).await.expect("an answer");
        let said = format!("{:?}", server.command(&["SLOWLOG", "GET", "1"]));
        let (_, arguments) = said.rsplit_once("\"b\"").expect("the last key");
        numbers.insert(arguments.split('"').nth(1).expect("the number").to_owned());
    }
    assert_eq!(numbers.len(), 3, "{numbers:?}");
    assert!(numbers.iter().all(|number| number.parse::<u64>().is_ok()), "{numbers:?}");
}

#[tokio::test]
async fn without_the_right_to_ask_who_waits_what_is_released_together_calls_all() {
    let server = Server::start();
    let url = user_url(&server, "some", &["allkeys", "allchannels", "+@all", "-pubsub"]);
    let node = RedisNode::from_url(&url, LIMIT).expect("a good URL");
    let link = Admitted::admit(node.connect(&[]).await.expect("a connection")).await;
    let mut listener = node.listen().await.expect("a connection");
    let keys = [0, 1].map(|key| Key::new(&lock(key)));
    let to = |key: &Key| Move { key: key.clone(), from: None, to: Some(Seat::new(7)) };
    listener.move_to(keys.iter().map(to).collect()).await.expect("watched");
    let owner = OwnerId::random();
    let acquire = |key: &Key| {
        let key = key.clone();
        Operation::Acquire { key, owner, ttl_ms: LONG_MS }
    };
    let release = |key: &Key| {
        let key = key.clone();
        Operation::Release { key, owner, calls: Called::Next }
    };
    for all in [keys.iter().map(acquire).collect(), keys.iter().map(release).collect()] {
        let outcomes = link.call_together(all, &link.ballot(), LIMIT).await;
        assert_eq!(outcomes, Ok(vec![Ok(Answer::Done); 2]));
    }
    for key in keys {
        let heard = timeout(LIMIT, listener.heard()).await.expect("called").expect("connected");
        assert_eq!((heard.key, heard.owner, heard.sharing), (key, owner, 0));
    }
}
