//! A simulated master gives the answers of a real one, in whatever order it is asked what.
//!
//! The simulated one is no time away and its clock stands still, but for what a sequence waits. So
//! what it says is left of a ttl is, within the time that either has spent, what the real one says.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a failing test may panic"
)]

use std::{cell::RefCell, collections::BTreeMap, sync::Arc, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestError, TestRunner},
};
use quorumlock::{
    FencingToken, Key, OwnerId, Seat,
    node::{Answer, Called, Fence, Node, NodeFailure, Operation, Outcome, SendAs},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

use crate::{
    conformance::RealWorld,
    support::{
        admit::Admitted,
        conformance::{World, eventually},
        sim_world::SimWorld,
    },
};

const SEQUENCES: u32 = 500;
const STEPS: usize = 30;
const LIMIT: Duration = Duration::from_secs(5);
const KEYS: [&str; 2] = ["lock:a", "lock:b"];
const MAX: &str = "test:max";
/// What is counted: for each of the locks, and for the node.
const NUMBERS: [&str; 3] = ["fence:a", "fence:b", MAX];
/// Around the ends of steps, and of all numbers; and what is none.
const TEXTS: [&str; 19] = [
    "0",
    "1",
    "2",
    "62",
    "63",
    "64",
    "65",
    "70",
    "127",
    "128",
    "129",
    "700",
    "9007199254740925",
    "9007199254740927",
    "9007199254740928",
    "9007199254740990",
    "9007199254740991",
    "9007199254740992",
    "-1",
];
const OWNERS: usize = 3;
/// So far apart that the time which a sequence takes changes no order.
const TTLS_MS: [u64; 3] = [20_000, 40_000, 60_000];

#[derive(Clone, Debug)]
enum Step {
    Ask(Question, SendAs),
    /// Somebody sets a key: to what an owner would, or to something else.
    Set(&'static str, Option<usize>, Option<Duration>),
    SetList(&'static str),
    /// Somebody sets a counter.
    SetNumber(&'static str, &'static str, Option<Duration>),
    /// Somebody sets a key, and its ttl goes by.
    Lapse(&'static str),
    Delete(&'static str),
    FlushScripts,
    /// The node is admitted again if it has forgotten that it was.
    Admit,
}

#[derive(Clone, Copy, Debug)]
enum Question {
    Acquire { key: &'static str, owner: usize, ttl_ms: u64 },
    Extend { key: &'static str, owner: usize, ttl_ms: u64 },
    Release { key: &'static str, owner: usize },
    AcquireFenced { lock: usize, owner: usize },
    Raise { lock: usize, owner: usize, token: u64 },
    RefillFenced { lock: usize, owner: usize, token: u64 },
    Ping,
}

fn any_question() -> impl Strategy<Value = Question> {
    let (key, owner) = (|| prop::sample::select(&KEYS[..]), || 0..OWNERS);
    let ttl = || prop::sample::select(&TTLS_MS[..]);
    // Shrinking tries what comes first.
    prop_oneof![
        1 => Just(Question::Ping),
        4 => (key(), owner(), ttl())
            .prop_map(|(key, owner, ttl_ms)| Question::Acquire { key, owner, ttl_ms }),
        4 => (key(), owner(), ttl())
            .prop_map(|(key, owner, ttl_ms)| Question::Extend { key, owner, ttl_ms }),
        3 => (key(), owner()).prop_map(|(key, owner)| Question::Release { key, owner }),
        14 => (0..KEYS.len(), owner())
            .prop_map(|(lock, owner)| Question::AcquireFenced { lock, owner }),
        2 => (0..KEYS.len(), owner(), any_token())
            .prop_map(|(lock, owner, token)| Question::Raise { lock, owner, token }),
        2 => (0..KEYS.len(), owner(), any_token())
            .prop_map(|(lock, owner, token)| Question::RefillFenced { lock, owner, token }),
    ]
}

fn any_token() -> impl Strategy<Value = u64> {
    prop_oneof![1..130_u64, Just(FencingToken::MAX.get())]
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = || prop::sample::select(&KEYS[..]);
    let send_as = prop_oneof![2 => Just(SendAs::Digest), 1 => Just(SendAs::Text)];
    let ttl = || prop::sample::select(&TTLS_MS[..]).prop_map(Duration::from_millis);
    let number = || prop::sample::select(&NUMBERS[..]);
    let keys = || prop_oneof![key(), number()];
    prop_oneof![
        60 => (any_question(), send_as).prop_map(|(question, send_as)| match question {
            // They go by their admission only.
            Question::Acquire { .. }
            | Question::AcquireFenced { .. }
            | Question::Raise { .. }
            | Question::RefillFenced { .. } => Step::Ask(question, SendAs::Digest),
            Question::Extend { .. } | Question::Release { .. } | Question::Ping => {
                Step::Ask(question, send_as)
            }
        }),
        12 => (key(), prop::option::of(0..OWNERS), prop::option::of(ttl()))
            .prop_map(|(key, owner, ttl)| Step::Set(key, owner, ttl)),
        16 => (number(), prop::sample::select(&TEXTS[..]), prop::option::of(ttl()))
            .prop_map(|(key, text, ttl)| Step::SetNumber(key, text, ttl.filter(|_| key != MAX))),
        4 => keys().prop_map(Step::SetList),
        2 => keys().prop_map(Step::Lapse),
        6 => keys().prop_map(Step::Delete),
        3 => Just(Step::FlushScripts),
        8 => Just(Step::Admit),
    ]
}

/// One kind of master, and a link to it.
struct Side<W: World> {
    // Dropped first: with the link still open, as it has to find it.
    world: W,
    link: Admitted<<W::Node as Node>::Link>,
    runtime: Arc<Runtime>,
}

/// What one master said to one sequence.
#[derive(Debug)]
struct Said {
    /// To each question, and at the end to one about each key.
    outcomes: Vec<Outcome>,
    keys: Vec<Found>,
    took: Duration,
}

/// A key at the end.
#[derive(Debug)]
struct Found {
    /// If it is a string.
    value: Option<String>,
    pttl: i64,
}

impl<W: World> Side<W> {
    fn new(mut runtime: Builder, world: impl FnOnce() -> W) -> Self {
        let runtime = runtime.enable_all().build().expect("a runtime");
        let (world, link) = runtime.block_on(async {
            let world = world();
            let link = world.node().connect(&[]).await.expect("a connection");
            let link = Admitted::admit(link).await;
            (world, link)
        });
        Self { world, link, runtime: Arc::new(runtime) }
    }

    fn run(&mut self, steps: &[Step], owners: &[OwnerId], now: impl Fn(&W) -> Duration) -> Said {
        let started = now(&self.world);
        let runtime = Arc::clone(&self.runtime);
        let (outcomes, keys) = runtime.block_on(self.play(steps, owners));
        Said { outcomes, keys, took: now(&self.world).saturating_sub(started) }
    }

    async fn play(&mut self, steps: &[Step], owners: &[OwnerId]) -> (Vec<Outcome>, Vec<Found>) {
        let world = &self.world;
        let (mut outcomes, mut keys) = (Vec::new(), Vec::new());
        for key in KEYS.iter().chain(&NUMBERS) {
            world.delete(key);
        }
        world.flush_scripts();
        self.link.admit_again().await;
        for step in steps {
            match step {
                Step::Ask(question, send_as) => {
                    let operation = question.operation(owners);
                    outcomes.push(self.link.call(&operation, send_as.clone(), LIMIT).await);
                }
                Step::Set(key, owner, ttl) => {
                    let value = owner.map_or_else(|| "another".into(), |o| owners[o].to_string());
                    world.set(key, &value, *ttl);
                }
                Step::SetNumber(key, text, ttl) => {
                    world.delete(key);
                    world.set(key, text, *ttl);
                }
                Step::SetList(key) => {
                    world.delete(key);
                    world.set_list(key);
                }
                Step::Lapse(key) => {
                    world.set(key, "another", Some(Duration::from_millis(1)));
                    eventually("the end of the ttl", || world.pttl(key) == -2).await;
                }
                Step::Delete(key) => world.delete(key),
                Step::FlushScripts => world.flush_scripts(),
                Step::Admit => {
                    // Nobody admits a node whose largest number is none.
                    world.delete(MAX);
                    self.link.admit_again().await;
                }
            }
        }
        let nobody = OwnerId::random();
        for name in KEYS.into_iter().chain(NUMBERS) {
            let look =
                Operation::Release { key: Key::new(name), owner: nobody, calls: Called::Next };
            let outcome = self.link.call(&look, SendAs::Text, LIMIT).await;
            let value = if outcome.is_ok() { world.get(name) } else { None };
            outcomes.push(outcome);
            keys.push(Found { value, pttl: world.pttl(name) });
        }
        (outcomes, keys)
    }
}

impl Question {
    fn operation(self, owners: &[OwnerId]) -> Operation {
        match self {
            Self::Acquire { key, owner, ttl_ms } => {
                Operation::Acquire { key: Key::new(key), owner: owners[owner], ttl_ms }
            }
            Self::Extend { key, owner, ttl_ms } => {
                Operation::Extend { key: Key::new(key), owner: owners[owner], ttl_ms }
            }
            Self::Release { key, owner } => Operation::Release {
                key: Key::new(key),
                owner: owners[owner],
                calls: [Called::NextAndStandIn, Called::Known(Seat::new(7))][owner % 2],
            },
            Self::AcquireFenced { lock, owner } => {
                let (key, fence, owner) = (Key::new(KEYS[lock]), fence(lock), owners[owner]);
                Operation::AcquireFenced { key, fence, owner, ttl_ms: TTLS_MS[0] }
            }
            Self::Raise { lock, owner, token } => {
                let (key, fence, owner) = (Key::new(KEYS[lock]), fence(lock), owners[owner]);
                Operation::Raise { key, fence, owner, token: FencingToken::new(token) }
            }
            Self::RefillFenced { lock, owner, token } => {
                let (key, fence, owner) = (Key::new(KEYS[lock]), fence(lock), owners[owner]);
                let token = FencingToken::new(token);
                Operation::RefillFenced { key, fence, owner, ttl_ms: TTLS_MS[0], token }
            }
            Self::Ping => Operation::Ping { nonce: 7 },
        }
    }
}

fn fence(lock: usize) -> Fence {
    Fence { key: Key::new(NUMBERS[lock]), idle_ms: TTLS_MS[2] }
}

/// Each sequence begins with scripts that are known, as they are to every new link.
fn learn() -> [Step; 2] {
    let (key, owner, ttl_ms) = (KEYS[0], 0, TTLS_MS[0]);
    let questions = [Question::Extend { key, owner, ttl_ms }, Question::Release { key, owner }];
    questions.map(|question| Step::Ask(question, SendAs::Text))
}

/// What the two sides said, and how far apart time has brought them.
struct Comparison<'a> {
    real: &'a Said,
    simulated: &'a Said,
}

impl Comparison<'_> {
    fn first_difference(&self) -> Option<String> {
        let (real, simulated) = (self.real, self.simulated);
        assert_eq!(real.outcomes.len(), simulated.outcomes.len(), "both were asked the same");
        let outcomes = real.outcomes.iter().zip(&simulated.outcomes).enumerate();
        let names = KEYS.iter().chain(&NUMBERS);
        let keys = names.zip(real.keys.iter().zip(&simulated.keys));
        let mut different = outcomes
            .filter(|(_, (real, simulated))| !self.is_same_outcome(real, simulated))
            .map(|(n, (real, simulated))| format!("answer {n}: {real:?} and {simulated:?}"))
            .chain(
                keys.filter(|(_, (real, simulated))| !self.is_same_key(real, simulated))
                    .map(|(key, (real, simulated))| format!("{key}: {real:?} and {simulated:?}")),
            );
        different.next()
    }

    fn is_same_outcome(&self, real: &Outcome, simulated: &Outcome) -> bool {
        let ms = |remaining: Duration| i64::try_from(remaining.as_millis()).expect("a short span");
        match (real, simulated) {
            (
                Ok(Answer::Taken { remaining: Some(real) }),
                Ok(Answer::Taken { remaining: Some(simulated) }),
            ) => self.is_same_pttl(ms(*real), ms(*simulated)),
            // The real one adds which script and which line it was.
            (
                Err(NodeFailure::Rejected { message: real }),
                Err(NodeFailure::Rejected { message: simulated }),
            ) => real.starts_with(simulated.as_str()),
            (real, simulated) => real == simulated,
        }
    }

    fn is_same_key(&self, real: &Found, simulated: &Found) -> bool {
        real.value == simulated.value && self.is_same_pttl(real.pttl, simulated.pttl)
    }

    fn is_same_pttl(&self, real: i64, simulated: i64) -> bool {
        // No ttl, no key.
        if real < 0 || simulated < 0 {
            return real == simulated;
        }
        // Both count down from the same figure, the real one in milliseconds that begin anywhere.
        let ms = |took: Duration| i64::try_from(took.as_millis()).expect("a short sequence");
        let least = simulated - ms(self.real.took) - 2;
        let most = simulated + ms(self.simulated.took);
        (least..=most).contains(&real)
    }
}

fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Ok(Answer::Done) => "done",
        Ok(Answer::Missing) => "missing",
        Ok(Answer::Taken { remaining: Some(_) }) => "taken for a time",
        Ok(Answer::Taken { remaining: None }) => "taken for good",
        Ok(Answer::Counted(_)) => "counted",
        Err(NodeFailure::NoScript) => "script unknown",
        Err(NodeFailure::NotAdmitted { .. }) => "not admitted",
        Err(NodeFailure::Rejected { message }) if message.contains("WRONGTYPE") => "wrong type",
        Err(NodeFailure::Rejected { message }) if message.contains("beyond") => "at the limit",
        Err(NodeFailure::Rejected { .. }) => "no number",
        other => panic!("neither a verdict nor a refusal: {other:?}"),
    }
}

#[test]
fn a_simulated_master_gives_the_answers_of_a_real_one() {
    let real = RefCell::new(Side::new(Builder::new_current_thread(), RealWorld::start));
    let mut paused = Builder::new_current_thread();
    paused.start_paused(true);
    let simulated = RefCell::new(Side::new(paused, || SimWorld::start().without_latency()));
    let origin = Instant::now();
    let kinds = RefCell::new(BTreeMap::<&str, usize>::new());

    let config =
        ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(SEQUENCES) };
    let sequences = prop::collection::vec(any_step(), STEPS);
    let tested = TestRunner::new(config).run(&sequences, |steps| {
        let steps: Vec<Step> = learn().into_iter().chain(steps).collect();
        let owners: Vec<OwnerId> = (0..OWNERS).map(|_| OwnerId::random()).collect();
        let real = real.borrow_mut().run(&steps, &owners, |_| origin.elapsed());
        let simulated = simulated.borrow_mut().run(&steps, &owners, SimWorld::now);
        let comparison = Comparison { real: &real, simulated: &simulated };
        if let Some(difference) = comparison.first_difference() {
            return Err(TestCaseError::fail(format!("real and simulated differ in {difference}")));
        }
        for outcome in &real.outcomes {
            *kinds.borrow_mut().entry(kind(outcome)).or_default() += 1;
        }
        Ok(())
    });
    match tested {
        Ok(()) => {}
        Err(TestError::Fail(reason, steps)) => {
            let steps = steps.iter().filter(|step| !matches!(step, Step::Ask(Question::Ping, _)));
            let steps: Vec<String> = steps.map(|step| format!("\n  {step:?}")).collect();
            panic!("{reason}, after all scripts were sent:{}", steps.concat());
        }
        Err(aborted) => panic!("{aborted}"),
    }
    let kinds = kinds.into_inner();
    assert!(kinds.len() == 9 && kinds.values().all(|n| *n >= 10), "one-sided: {kinds:?}");
}
