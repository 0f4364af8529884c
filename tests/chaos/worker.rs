//! A client process: tasks that take locks, hold them, write to a resource, and note what they see.

use std::{
    env,
    fs::File,
    io::{self, Write},
    process::{self, ExitCode},
    sync::Arc,
    thread,
    time::Duration,
};

use quorumlock::{AcquireError, FencedGuard, LockGuard, LockOptions, NodeState, Redlock};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::{
    clock::now,
    event::{Event, TTL_MAX, What},
};

/// In the environment of the client processes that are the first of the fleet.
pub(crate) const NEW_FLEET: &str = "CHAOS_NEW_FLEET";

/// Tasks of one process, which share a `Redlock`.
const TASKS: usize = 3;
/// What they lock and write to.
pub(crate) const RESOURCES: usize = 5;
/// One of them is mostly held for long, and renewed, while others look in: what happens to a holder whose
/// keys are gone shows there.
const CAMP: usize = RESOURCES - 1;
/// When all is well, how long an acquisition may wait, whatever had happened before.
///
/// A key of a client that died lives for its ttl, longer by what the clock was set back meanwhile, and
/// is waited for a quarter longer than is left of it; an unheard release costs 2.5 s; and all clients
/// want all locks.
pub(crate) const PROGRESS_WITHIN: Duration = Duration::from_secs(15);
/// How soon the nodes have to vote again, and to be rid of what they were owed.
const RECOVERED_WITHIN: Duration = Duration::from_secs(15);
/// How much longer than promised a call may take on a busy machine.
const A_LITTLE: Duration = Duration::from_secs(3);
/// What locks begin with that only one task takes; its client's number follows.
pub(crate) const OWN: &str = "own-";
const OWN_TTL: Duration = Duration::from_secs(5);
/// Between two looks of a holder.
const LOOK: Duration = Duration::from_millis(25);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Go,
    /// End what was begun, take each lock once more, and rest.
    Rest(u64),
    End,
}

struct Life {
    client: u64,
    redlock: Redlock,
    log: File,
    resource: String,
    phase: watch::Receiver<Phase>,
    resting: mpsc::UnboundedSender<u64>,
}

struct Task {
    life: Arc<Life>,
    number: usize,
    rng: StdRng,
    phase: watch::Receiver<Phase>,
    connection: Option<BufReader<TcpStream>>,
}

pub(crate) fn main(client: &str, seed: &str, urls: &str, resource: &str, log: &str) -> ExitCode {
    let client: u64 = client.parse().unwrap();
    let seed =
        seed.parse::<u64>().unwrap().wrapping_mul(1_000_003).wrapping_add(client * TASKS as u64);
    let log = File::options().create(true).append(true).open(log).unwrap();
    let (set_phase, phase) = watch::channel(Phase::Go);
    thread::spawn(move || obey(&set_phase));
    // Two threads: what goes wrong only between two of them is to be seen.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let urls: Vec<&str> = urls.split(',').collect();
        let redlock = loop {
            // Each client reaches the masters by addresses of its own, but they are the same.
            let nodes = urls.iter().enumerate().map(|(place, url)| (format!("n{place}"), url));
            let builder = Redlock::builder().named_nodes(nodes).max_ttl(OWN_TTL).ttl(OWN_TTL);
            let is_first = env::var_os(NEW_FLEET).is_some();
            let builder = if is_first { builder.new_fleet() } else { builder };
            match builder.connect().await {
                Ok(redlock) => break redlock,
                // Masters that are down; they come back.
                Err(error) => eprintln!("(connecting) {error}"),
            }
        };
        let (resting, rests) = mpsc::unbounded_channel();
        let resource = resource.to_owned();
        let life = Arc::new(Life { client, redlock, log, resource, phase, resting });
        life.live(seed, rests).await;
    });
    ExitCode::SUCCESS
}

/// Reads commands from the nemesis. Without it there is nothing to live for.
fn obey(phase: &watch::Sender<Phase>) {
    for line in io::stdin().lines().map_while(Result::ok) {
        let next = match line.split_once(' ') {
            Some(("rest", round)) => Phase::Rest(round.parse().unwrap()),
            _ if line == "go" => Phase::Go,
            _ => Phase::End,
        };
        phase.send_replace(next);
    }
    process::exit(0);
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

impl Life {
    async fn live(self: Arc<Self>, seed: u64, mut rests: mpsc::UnboundedReceiver<u64>) {
        let mut tasks = Vec::new();
        for number in 0..TASKS {
            let task = Task {
                life: Arc::clone(&self),
                number,
                rng: StdRng::seed_from_u64(seed + number as u64),
                phase: self.phase.clone(),
                connection: None,
            };
            tasks.push(tokio::spawn(task.run()));
        }
        let mut phase = self.phase.clone();
        let mut resting = 0;
        while *phase.borrow_and_update() != Phase::End {
            tokio::select! {
                Some(round) = rests.recv() => {
                    resting += 1;
                    if resting == TASKS {
                        resting = 0;
                        self.check_recovered().await;
                        say(&format!("rests {round}"));
                    }
                }
                changed = phase.changed() => changed.unwrap(),
            }
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
        let drained = self.redlock.shutdown().await;
        if !drained.unanswered.is_empty() {
            self.violation(&format!("a shutdown left something undone: {drained:?}"));
        }
        say("ended");
    }

    /// All is well by now: every node votes, and none is owed anything.
    async fn check_recovered(&self) {
        let started = now();
        loop {
            let nodes = self.redlock.nodes();
            let is_well = nodes.iter().all(|node| {
                node.state == NodeState::Voting && node.owed_releases == 0 && node.in_flight == 0
            });
            if is_well {
                return;
            }
            if now() - started > RECOVERED_WITHIN {
                return self.violation(&format!("not recovered: {nodes:?}"));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn note(&self, task: usize, at: Duration, what: What) {
        let line = format!("{}\n", Event { at, task, what });
        // In one piece: nothing of it is kept back when the process is killed.
        (&self.log).write_all(line.as_bytes()).expect("the log");
    }

    fn violation(&self, what: &str) {
        self.note(TASKS, now(), What::Violation(format!("client {}: {what}", self.client)));
    }
}

/// How a lock is taken and given back.
#[derive(Debug)]
struct Operation {
    resource: usize,
    ttl: Duration,
    wait: Duration,
    is_renewed: bool,
    /// The caller gives up after so long.
    patience: Option<Duration>,
    hold: Duration,
    extends: bool,
    end: End,
    is_last: bool,
}

#[derive(Debug)]
enum End {
    Release,
    Drop,
    /// It is not waited for the answer.
    AbandonedRelease(Duration),
}

impl Operation {
    /// What a task does next. The last of each client is the one that stays for long.
    fn next(rng: &mut StdRng, task: usize) -> Self {
        let operation = Self::random(rng);
        let ms = Duration::from_millis;
        if task == TASKS - 1 && rng.random_ratio(2, 3) {
            let ttl = ms(rng.random_range(1_000..=2_000));
            let hold = ms(rng.random_range(1_500..=4_000));
            let wait = ms(rng.random_range(1_000..=10_000));
            let patience = None;
            Self { resource: CAMP, ttl, wait, is_renewed: true, patience, hold, ..operation }
        } else if rng.random_ratio(1, 3) {
            let hold = ms(rng.random_range(20..=300));
            Self { resource: CAMP, wait: Duration::ZERO, hold, ..operation }
        } else {
            operation
        }
    }

    fn random(rng: &mut StdRng) -> Self {
        let ttl_ms = if rng.random_ratio(1, 4) {
            TTL_MAX.as_secs() * 1_000
        } else {
            rng.random_range(400..=2_000)
        };
        let hold_ms = match rng.random_range(0..40) {
            0..28 => rng.random_range(0..=10),
            28..37 => rng.random_range(10..=150),
            _ => rng.random_range(ttl_ms / 2..=ttl_ms * 3 / 2),
        };
        let ms = Duration::from_millis;
        Self {
            resource: rng.random_range(0..CAMP),
            ttl: ms(ttl_ms),
            wait: ms(match rng.random_range(0..10) {
                0..4 => 0,
                4..8 => rng.random_range(200..=2_000),
                _ => rng.random_range(2_000..=10_000),
            }),
            is_renewed: rng.random_ratio(3, 4),
            patience: rng.random_ratio(1, 6).then(|| ms(rng.random_range(0..=150))),
            hold: ms(hold_ms),
            extends: rng.random_ratio(1, 6),
            end: match rng.random_range(0..10) {
                0 | 1 => End::Drop,
                2 => End::AbandonedRelease(ms(rng.random_range(0..=5))),
                _ => End::Release,
            },
            is_last: false,
        }
    }

    /// When all is well: this lock, once more.
    fn last(resource: usize) -> Self {
        Self {
            resource,
            ttl: TTL_MAX,
            wait: PROGRESS_WITHIN,
            is_renewed: true,
            patience: None,
            hold: Duration::from_millis(2),
            extends: false,
            end: End::Release,
            is_last: true,
        }
    }

    fn options(&self) -> LockOptions {
        let options = LockOptions::new().ttl(self.ttl).wait_timeout(self.wait);
        if self.is_renewed { options } else { options.without_renewal() }
    }

    /// The default of the library.
    fn node_timeout(&self) -> Duration {
        (self.ttl / 10).min(Duration::from_millis(200))
    }
}

impl Task {
    async fn run(mut self) {
        let mut rested = 0;
        loop {
            let phase = *self.phase.borrow_and_update();
            match phase {
                Phase::Go => {
                    if self.rng.random_ratio(1, 4) {
                        self.litter().await;
                    } else {
                        let operation = Operation::next(&mut self.rng, self.number);
                        self.operate(&operation).await;
                    }
                    let pause = self.rng.random_range(0..=20);
                    sleep(Duration::from_millis(pause)).await;
                }
                Phase::Rest(round) if round > rested => {
                    // Each begins elsewhere, so that not all want the same.
                    for place in 0..RESOURCES {
                        self.operate(&Operation::last((place + self.number) % RESOURCES)).await;
                    }
                    rested = round;
                    self.life.resting.send(round).expect("somebody counts");
                }
                Phase::Rest(_) => self.phase.changed().await.expect("the process goes on"),
                Phase::End => return,
            }
        }
    }

    fn note(&self, what: What) {
        self.life.note(self.number, now(), what);
    }

    fn violation(&self, what: &str) {
        self.note(What::Violation(format!("client {}: {what}", self.life.client)));
    }

    async fn operate(&mut self, operation: &Operation) {
        let Some(mut guard) = self.acquire(operation).await else { return };
        let at = now();
        // Read after the clock: so the end is rather too early than too late.
        let until = at + guard.remaining();
        let drift = operation.ttl / 100 + Duration::from_millis(2);
        let began = until.saturating_sub(operation.ttl.saturating_sub(drift));
        let Operation { resource, .. } = *operation;
        // The resource and the judge ask for it.
        let token = Some(guard.token().get());
        self.life.note(self.number, at, What::Granted { resource, began, until, token });
        let version = self.ask(&format!("read {resource}")).await;
        if self.hold(&guard, operation.hold / 2).await && operation.extends {
            let extending = guard.extend(operation.ttl);
            let limit = operation.node_timeout();
            if let Err(error) = self.within(limit, extending).await {
                if error.is_lost() && !guard.remaining().is_zero() {
                    self.violation(&format!("lost what is still valid: {error}"));
                }
            }
        }
        if self.hold(&guard, operation.hold / 2).await {
            if let Some(version) = version {
                // It puts together what it is to write, and does not look again.
                let preparing = self.rng.random_range(0..=30);
                sleep(Duration::from_millis(preparing)).await;
                self.write(operation, &version, token).await;
            }
        }
        self.give_back(guard, operation).await;
    }

    /// Takes a lock that nobody else wants, in ways that leave the library something to clear up. Its
    /// keys would live for long; by its name they are seen to be of a client that lives, or not.
    async fn litter(&mut self) {
        let name = format!("{OWN}{}-{}", self.life.client, self.number);
        let ms = |ms| Duration::from_millis(ms);
        let wait = ms(if self.rng.random_ratio(1, 2) { 0 } else { 300 });
        let patience = ms(self.rng.random_range(0..=60));
        let ending = self.rng.random_range(0..3);
        let life = Arc::clone(&self.life);
        let options = LockOptions::new().ttl(OWN_TTL).wait_timeout(wait);
        let acquiring = life.redlock.acquire_with(&name, options);
        let acquired = if self.rng.random_ratio(1, 3) {
            timeout(patience, acquiring).await.ok().and_then(Result::ok)
        } else {
            acquiring.await.ok()
        };
        if let Some(guard) = acquired {
            match ending {
                0 => drop(guard),
                1 => drop(timeout(patience / 20, guard.release()).await),
                _ => drop(guard.release().await),
            }
        }
        self.note(What::Littered);
    }

    async fn acquire(&mut self, operation: &Operation) -> Option<FencedGuard> {
        let resource = operation.resource;
        self.note(What::Try { resource, is_last: operation.is_last });
        let name = format!("r{resource}");
        let life = Arc::clone(&self.life);
        let acquiring = life.redlock.acquire_fenced_with(&name, operation.options());
        // Where somebody was in the way, one node is asked first and then the others.
        let limit = operation.wait + 2 * operation.node_timeout();
        let acquiring = self.within(limit, acquiring);
        let acquired = match operation.patience {
            Some(patience) => timeout(patience, acquiring).await.ok(),
            None => Some(acquiring.await),
        };
        match acquired {
            None => self.note(What::GaveUp),
            Some(Ok(guard)) => return Some(guard),
            Some(Err(error)) => {
                self.note(What::Refused { is_contended: error.is_contended() });
                let is_bug = matches!(error, AcquireError::Options(_) | AcquireError::ShutDown);
                if is_bug || operation.is_last {
                    self.violation(&format!("no progress on {name}: {error}"));
                }
            }
        }
        None
    }

    /// Holds for so long, and looks every now and then. Whether the lock is valid at the end.
    async fn hold(&mut self, guard: &LockGuard, span: Duration) -> bool {
        let end = now() + span;
        loop {
            let at = now();
            let remaining = guard.remaining();
            if remaining.is_zero() {
                self.life.note(self.number, at, What::Lost);
                return self.check_lost(guard).await;
            }
            self.life.note(self.number, at, What::Valid { until: at + remaining });
            let left = end.saturating_sub(now());
            // When all is to come to rest, nobody holds on.
            if left.is_zero() || !matches!(*self.phase.borrow(), Phase::Go) {
                return true;
            }
            timeout(left.min(LOOK), guard.lost()).await.ok();
        }
    }

    /// Lost is for ever, and whoever only listens is told.
    async fn check_lost(&self, guard: &LockGuard) -> bool {
        let told = timeout(A_LITTLE, guard.lost_token().cancelled()).await;
        if told.is_err() {
            self.violation("not told of a loss");
        }
        sleep(Duration::from_millis(2)).await;
        if !guard.remaining().is_zero() || !guard.is_lost() {
            self.violation("has a lost lock back");
        }
        false
    }

    /// What a careful holder does: it looks, and then writes. In between any time may pass.
    async fn write(&mut self, operation: &Operation, version: &str, token: Option<u64>) {
        let token = token.map_or("-".to_owned(), |token| token.to_string());
        let Operation { resource, .. } = operation;
        let Some(answer) = self.ask(&format!("write {resource} {version} {token}")).await else {
            return;
        };
        let (harmed, fenced) = answer.split_once(' ').expect("two answers");
        self.note(What::Wrote { harmed: harmed == "true" });
        if fenced == "true" {
            self.note(What::Fenced);
        }
    }

    async fn give_back(&mut self, guard: FencedGuard, operation: &Operation) {
        self.note(What::Releasing);
        let limit = operation.node_timeout();
        let confirmed = match operation.end {
            End::Drop => {
                drop(guard);
                false
            }
            End::AbandonedRelease(patience) => {
                matches!(timeout(patience, guard.release()).await, Ok(Ok(())))
            }
            End::Release => {
                let released = self.within(limit, guard.release()).await;
                if let (true, Err(error)) = (operation.is_last, &released) {
                    if error.is_lost() {
                        self.violation(&format!("lost while all is well: {error}"));
                    }
                }
                released.is_ok()
            }
        };
        self.note(if confirmed { What::Confirmed } else { What::Unconfirmed });
    }

    /// Notes a call that takes longer than promised. A process that stood still has an excuse, of which
    /// it does not know.
    async fn within<T>(&self, limit: Duration, call: impl Future<Output = T>) -> T {
        let from = now();
        let result = call.await;
        if now() > from + limit + A_LITTLE {
            self.note(What::Slow { from, limit: limit + A_LITTLE });
        }
        result
    }

    /// A line to the resource, and its answer; `None` if it does not come.
    async fn ask(&mut self, line: &str) -> Option<String> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(&self.life.resource).await.ok()?;
            stream.set_nodelay(true).ok()?;
            self.connection = Some(BufReader::new(stream));
        }
        let connection = self.connection.as_mut()?;
        let mut answer = String::new();
        connection.write_all(format!("{line}\n").as_bytes()).await.ok()?;
        connection.read_line(&mut answer).await.ok()?;
        Some(answer.trim_end().to_owned())
    }
}
