//! What one client does, and what it checks of every call.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use quorumlock::{
    AcquireError, FencedGuard, LockGuard, LockOptions, Redlock, ReleaseError,
    sim::{SimClient, SimCluster, history::Hold},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    plan::{ClientPlan, End, Operation},
    seen::{Issued, RestsOn, Seen},
};

/// How much longer than promised a call may take: timers go by milliseconds, clocks at rates of their
/// own.
const A_LITTLE: Duration = Duration::from_millis(5);
/// What rounding makes of one moment on two clocks.
const ONE_MOMENT: Duration = Duration::from_micros(1);
/// How long a newcomer lets others go first.
const IN_LINE: Duration = Duration::from_millis(10);
/// How long a shutdown waits for the nodes.
const DRAIN: Duration = Duration::from_secs(2);

/// The life of one client process.
pub(crate) struct Life {
    pub(crate) number: usize,
    pub(crate) plan: ClientPlan,
    pub(crate) cluster: SimCluster,
    pub(crate) client: SimClient,
    pub(crate) seen: Seen,
    pub(crate) masters: usize,
    pub(crate) max_ttl: Duration,
    pub(crate) fence_idle: Duration,
}

impl Life {
    /// Its `Redlock`, unless it has shut that down.
    pub(crate) async fn live(self) -> Option<Redlock> {
        let redlock = Redlock::builder()
            .sim_client(&self.client)
            .max_ttl(self.max_ttl)
            .ttl(self.max_ttl)
            .fence_idle_ttl(self.fence_idle)
            .connect_timeout(Duration::from_millis(self.plan.connect_timeout_ms))
            .node_timeout(Duration::from_millis(self.plan.node_timeout_ms))
            .connect()
            .await
            .ok()?;
        for operation in &self.plan.operations {
            sleep(Duration::from_millis(operation.pause_ms)).await;
            self.operate(&redlock, operation).await;
        }
        if !self.plan.shuts_down {
            return Some(redlock);
        }
        let began = self.cluster.now();
        let drained = self.within(DRAIN, "a shutdown", redlock.shutdown()).await;
        if !drained.unanswered.is_empty() {
            self.seen.log(|log| log.left_undone = true);
            if self.cluster.now() < began + DRAIN {
                self.broken_promise(format!("c{} was shut down too early", self.number));
            }
        }
        None
    }

    async fn operate(&self, redlock: &Redlock, operation: &Operation) {
        let stall = self.stall(operation, false);
        if let Some(guard) = self.acquire(redlock, operation).await {
            self.hold_and_give_back(guard, operation).await;
        }
        over(stall).await;
    }

    async fn acquire(&self, redlock: &Redlock, operation: &Operation) -> Option<Held> {
        let resource = format!("r{}", operation.resource);
        let wait = Duration::from_millis(operation.wait_ms);
        let options =
            LockOptions::new().ttl(Duration::from_millis(operation.ttl_ms)).wait_timeout(wait);
        let options = if operation.renewed { options } else { options.without_renewal() };
        let max_hold = operation.max_hold_ms.map(Duration::from_millis);
        let options = max_hold.map_or(options, |max_hold| options.max_hold(max_hold));
        let began = self.cluster.now();
        let acquiring = async {
            if !operation.fenced {
                return redlock.acquire_with(&resource, options).await.map(Held::Plain);
            }
            let guard = redlock.acquire_fenced_with(&resource, options).await?;
            let issued = Issued {
                resource: resource.clone(),
                token: guard.token(),
                began,
                returned: self.cluster.now(),
            };
            self.cluster.note(|| format!("c{} has token {}", self.number, guard.token()));
            self.seen.log(|log| log.tokens.push(issued));
            Ok::<_, AcquireError>(Held::Fenced(guard))
        };
        // Where somebody was in the way, one node is asked first and then the others; a token may have to
        // be confirmed.
        let limit = wait + 3 * self.node_timeout() + IN_LINE;
        let acquiring = self.within(limit, "an acquisition", acquiring);
        match operation.patience_ms {
            Some(ms) => timeout(Duration::from_millis(ms), acquiring).await.ok()?.ok(),
            None => acquiring.await.ok(),
        }
    }

    async fn hold_and_give_back(&self, mut guard: Held, operation: &Operation) {
        let hold = self.granted(&guard);
        self.hold(&guard, hold, operation, operation.hold_ms).await;
        if let Some(extension) = operation.extend {
            let stall = self.stall(operation, true);
            let ttl = Duration::from_millis(extension.ttl_ms);
            self.extend(&mut guard, operation.renewed, ttl).await;
            // A validity that had ended is not brought back by looking at it now.
            if guard.remaining().is_zero() {
                self.believes_no_more(hold);
            } else {
                let until = self.believes_until(&guard);
                self.seen.log(|log| log.holds[hold].until = until);
            }
            self.hold(&guard, hold, operation, extension.hold_ms).await;
            over(stall).await;
        }
        let now = self.cluster.now();
        self.seen.log(|log| log.holds[hold].until = log.holds[hold].until.min(now));
        match operation.end {
            End::Release => self.release(guard).await,
            End::Drop => drop(guard),
            End::AbandonedRelease(ms) => {
                timeout(Duration::from_millis(ms), guard.release()).await.ok();
            }
        }
    }

    /// It was told now that the lock is lost, if it did not know before.
    fn believes_no_more(&self, hold: usize) {
        let now = self.cluster.now();
        self.seen.log(|log| log.holds[hold].until = log.holds[hold].until.min(now));
    }

    /// Has the process stand still in the round that begins now, if that is planned.
    fn stall(&self, operation: &Operation, in_extension: bool) -> Option<JoinHandle<()>> {
        let stall = operation.stall.filter(|stall| stall.in_extension == in_extension)?;
        let (number, client, seen) = (self.number, self.client.clone(), self.seen.clone());
        // Not a task of the process: it has to go on meanwhile.
        Some(tokio::spawn(async move {
            sleep(Duration::from_millis(stall.after_ms)).await;
            seen.pause(number, &client);
            sleep(Duration::from_millis(stall.for_ms)).await;
            client.resume();
        }))
    }

    /// Holds for so long, and looks at it every now and then as its holder would.
    async fn hold(&self, guard: &LockGuard, hold: usize, operation: &Operation, ms: u64) {
        let end = Instant::now() + Duration::from_millis(ms);
        if !operation.renewed {
            self.look_at_the_last_moment(guard, ms).await;
        }
        if operation.relies && !guard.is_lost() {
            let valid = self.client.true_span(guard.remaining());
            self.seen.log(|log| log.holds[hold].until = self.cluster.now() + valid);
            // It works for as long as it was told that it may, and does not look meanwhile.
            sleep_until(end.min(Instant::now() + valid)).await;
        }
        while Instant::now() < end && !guard.is_lost() {
            let until = self.believes_until(guard);
            self.seen.log(|log| log.holds[hold].until = until);
            let left = end.saturating_duration_since(Instant::now());
            timeout(left.min(Duration::from_millis(25)), guard.lost()).await.ok();
        }
        if guard.is_lost() {
            self.believes_no_more(hold);
            // Whoever only listens is told as well, as soon as the watchdog has had its turn.
            sleep(Duration::from_millis(2)).await;
            if !guard.lost_token().is_cancelled() {
                self.broken_promise(format!("c{} was not told of a loss", self.number));
            }
            if !guard.is_lost() {
                self.broken_promise(format!("c{} has a lost lock back", self.number));
            }
        }
        sleep_until(end).await;
    }

    /// At the last moment at which the lock is valid it shows if validity is too long.
    async fn look_at_the_last_moment(&self, guard: &LockGuard, ms: u64) {
        let valid = self.believes_until(guard).saturating_sub(self.cluster.now());
        // To the millisecond before: timers are no finer.
        sleep(Duration::from_millis(u64::try_from(valid.as_millis()).unwrap_or(ms).min(ms))).await;
        if !guard.remaining().is_zero() {
            self.check_majority(guard, "held");
        }
    }

    async fn extend(&self, guard: &mut LockGuard, renewed: bool, ttl: Duration) {
        let before = self.believes_until(guard);
        let extended = self.within(self.node_timeout(), "an extension", guard.extend(ttl)).await;
        let (number, now, until) = (self.number, self.cluster.now(), self.believes_until(guard));
        match extended {
            Ok(()) => {
                self.check_majority(guard, "extended");
                // A renewal may have come in between.
                if now > before + ONE_MOMENT && !renewed {
                    self.broken_promise(format!("c{number} extended what had ended"));
                }
                if until + ONE_MOMENT < before {
                    self.broken_promise(format!("c{number} extended to less than before"));
                }
            }
            Err(error) => {
                if error.is_lost() && !guard.remaining().is_zero() {
                    self.broken_promise(format!("c{number} lost what is still valid"));
                }
            }
        }
    }

    async fn release(&self, guard: Held) {
        let valid_until = self.believes_until(&guard);
        let (number, key) = (self.number, KeyOf::guard(&guard));
        let was_gone = self.held(&key) == 0;
        match self.within(self.node_timeout(), "a release", guard.release()).await {
            Ok(()) => {
                if was_gone {
                    self.violation(format!("c{number} released what it did not have"));
                }
                let held = self.held(&key);
                if held * 2 >= self.masters {
                    let masters = self.masters;
                    self.violation(format!("c{number} released, but has {held} of {masters}"));
                }
            }
            Err(error) => {
                if error.is_lost() && self.cluster.now() < valid_until {
                    self.violation(format!("c{number} lost a valid lock"));
                }
            }
        }
    }

    fn node_timeout(&self) -> Duration {
        Duration::from_millis(self.plan.node_timeout_ms)
    }

    /// No call takes longer than promised, whatever is wrong with the nodes. Only a process that stood
    /// still meanwhile has an excuse.
    async fn within<T>(&self, limit: Duration, what: &str, call: impl Future<Output = T>) -> T {
        let pauses = || self.seen.log(|log| log.pauses.get(&self.number).copied());
        let (started, pauses_before) = (self.cluster.now(), pauses());
        let result = call.await;
        let took = self.cluster.now() - started;
        if took > limit + A_LITTLE && pauses() == pauses_before {
            self.broken_promise(format!("c{}: {what} took {took:?}, not {limit:?}", self.number));
        }
        result
    }

    fn believes_until(&self, guard: &LockGuard) -> Duration {
        self.cluster.now() + self.client.true_span(guard.remaining())
    }

    fn granted(&self, guard: &LockGuard) -> usize {
        self.check_majority(guard, "granted");
        let hold = Hold {
            client: self.number,
            resource: guard.resource().to_owned(),
            from: self.cluster.now(),
            until: self.believes_until(guard),
        };
        self.cluster.note(|| format!("c{} holds {}", self.number, guard.resource()));
        self.seen.log(|log| {
            log.holds.push(hold);
            log.holds.len() - 1
        })
    }

    /// Whoever believes that it holds has its key on a majority of the masters at that moment.
    fn check_majority(&self, guard: &LockGuard, when: &str) {
        if guard.remaining().is_zero() {
            return self.violation(format!("{when} without validity"));
        }
        let held = self.held(&KeyOf::guard(guard));
        if held * 2 <= self.masters {
            let (number, masters) = (self.number, self.masters);
            self.violation(format!("c{number} {when} with {held} of {masters}"));
        }
    }

    /// How many masters have the key.
    fn held(&self, KeyOf { key, owner }: &KeyOf) -> usize {
        let has = |node: &usize| self.cluster.keys(*node).get(key) == Some(owner);
        (0..self.masters).filter(has).count()
    }

    fn violation(&self, what: String) {
        self.seen.violation(&self.cluster, RestsOn::Keys, what);
    }

    fn broken_promise(&self, what: String) {
        self.seen.violation(&self.cluster, RestsOn::Nothing, what);
    }
}

/// A lock with or without a fencing token.
enum Held {
    Plain(LockGuard),
    Fenced(FencedGuard),
}

impl Held {
    async fn release(self) -> Result<(), ReleaseError> {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Fenced(guard) => guard.release().await,
        }
    }
}

impl Deref for Held {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Self::Plain(guard) => guard,
            Self::Fenced(guard) => guard,
        }
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut LockGuard {
        match self {
            Self::Plain(guard) => guard,
            Self::Fenced(guard) => guard,
        }
    }
}

async fn over(stall: Option<JoinHandle<()>>) {
    if let Some(stall) = stall {
        stall.await.expect("no panic");
    }
}

/// A key on the masters, and whose it is.
struct KeyOf {
    key: String,
    owner: String,
}

impl KeyOf {
    fn guard(guard: &LockGuard) -> Self {
        let key = format!("quorumlock:lock:{}", guard.resource());
        Self { key, owner: guard.owner_id().to_string() }
    }
}
