//! Carries out a plan and checks what came of it.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use quorumlock::{
    LockGuard, LockOptions, NodeState, Redlock,
    sim::{
        BrokenAssumption, LinkFaults, SimClient, SimCluster,
        history::{Hold, double_holds},
    },
};
use tokio::time::{sleep, sleep_until, timeout};

use crate::plan::{ClientPlan, End, Fault, MAX_TTL, Operation, Plan};

/// What came of a schedule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// What must never happen.
    pub(crate) violations: Vec<String>,
    /// What may happen, since an assumption had been broken before.
    pub(crate) expected: Vec<String>,
    pub(crate) broken: Vec<BrokenAssumption>,
    pub(crate) acquired: usize,
    pub(crate) operations: u64,
    pub(crate) trace: String,
}

/// What the clients saw.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    holds: Vec<Hold>,
    violations: Vec<Violation>,
}

struct Violation {
    at: Duration,
    what: String,
    rests_on: RestsOn,
}

/// Which assumptions a promise rests on.
#[derive(Clone, Copy)]
enum RestsOn {
    /// None at all: no hang, no panic, progress.
    Nothing,
    /// That no node forgets and no clock jumps: who holds what.
    AllAssumptions,
    /// That this node did not forget a release that it had answered, as `everysec` can.
    Memory(usize),
    /// That this node's clock was not set back: how long the ttl of a dead client's key is.
    Clock(usize),
}

impl RestsOn {
    fn is_broken_by(self, broken: &BrokenAssumption) -> bool {
        match self {
            Self::Nothing => false,
            Self::AllAssumptions => true,
            Self::Memory(node) => broken.node == node && broken.what == "a node forgot",
            Self::Clock(node) => broken.node == node && broken.what == "a clock jumped",
        }
    }
}

impl Seen {
    fn violation(&self, cluster: &SimCluster, rests_on: RestsOn, what: String) {
        cluster.note(|| format!("VIOLATION {what}"));
        let at = cluster.now();
        self.log(|log| log.violations.push(Violation { at, what, rests_on }));
    }

    fn log<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }
}

/// After the last fault, how long a healthy cluster may take to be rid of what nobody holds.
const CLEAN_WITHIN: Duration = Duration::from_secs(1);
/// No operation takes longer than this, whatever is wrong.
const NEVER_LONGER: Duration = Duration::from_secs(60);

pub(crate) fn run(plan: &Plan, with_trace: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async { Schedule::new(plan, with_trace).carry_out().await })
}

struct Schedule<'a> {
    plan: &'a Plan,
    cluster: SimCluster,
    clients: Vec<SimClient>,
    killed: Vec<Option<Duration>>,
    seen: Seen,
}

impl<'a> Schedule<'a> {
    fn new(plan: &'a Plan, with_trace: bool) -> Self {
        let cluster = SimCluster::with_seed(plan.masters, plan.seed);
        if with_trace {
            cluster.start_trace();
        }
        (0..plan.masters).for_each(|node| cluster.set_persistence(node, plan.persistence));
        let clients = plan.clients.iter().map(|client| cluster.client_with_clock(client.ppm));
        let clients: Vec<SimClient> = clients.collect();
        let killed = vec![None; clients.len()];
        Self { plan, cluster, clients, killed, seen: Seen::default() }
    }

    async fn carry_out(mut self) -> Report {
        let mut lives = Vec::new();
        for (number, (client, plan)) in self.clients.iter().zip(&self.plan.clients).enumerate() {
            let life = Life {
                number,
                plan: plan.clone(),
                cluster: self.cluster.clone(),
                client: client.clone(),
                seen: self.seen.clone(),
                masters: self.plan.masters,
            };
            let client = client.clone();
            lives.push(tokio::spawn(async move { client.run(life.live()).await }));
        }
        let start = tokio::time::Instant::now();
        for (at, fault) in &self.plan.faults {
            sleep_until(start + Duration::from_millis(*at)).await;
            self.apply(fault);
        }
        self.heal();
        let mut redlocks = Vec::new();
        for (number, life) in lives.into_iter().enumerate() {
            match timeout(NEVER_LONGER, life).await {
                Ok(ended) => {
                    redlocks.extend(ended.expect("no panic").flatten().map(|r| (number, r)));
                }
                Err(_) => self.violation(format!("c{number} hangs")),
            }
        }
        // What is left of a dead process does nothing any more.
        let redlocks: Vec<Redlock> = redlocks
            .into_iter()
            .filter(|(client, _)| self.killed[*client].is_none())
            .map(|(_, r)| r)
            .collect();
        self.check_residue(&redlocks).await;
        self.check_progress(&redlocks).await;
        self.report()
    }

    fn apply(&mut self, fault: &Fault) {
        let cluster = &self.cluster;
        match fault {
            Fault::Freeze(node) => cluster.freeze(*node),
            Fault::Thaw(node) => cluster.thaw(*node),
            Fault::Crash(node) => cluster.crash(*node),
            Fault::Restart(node) => cluster.restart(*node),
            Fault::Link { client, node, faults } => self.clients[*client].set_link(*node, *faults),
            Fault::Reset { client, node } => self.clients[*client].reset_link(*node),
            Fault::Pause(client) => self.clients[*client].pause(),
            Fault::Resume(client) => self.clients[*client].resume(),
            Fault::Kill(client) => {
                self.clients[*client].kill();
                self.killed[*client].get_or_insert(cluster.now());
            }
            Fault::FlushScripts(node) => cluster.flush_scripts(*node),
            Fault::ClockRate { node, ppm } => cluster.set_clock_rate(*node, *ppm),
            Fault::ClockJump { node, ms } => cluster.jump_clock(*node, *ms),
            Fault::FlushAll(node) => cluster.flush_all(*node),
            Fault::DeleteKeys(node) => {
                for key in cluster.keys(*node).into_keys() {
                    cluster.delete_key(*node, &key);
                }
            }
        }
    }

    /// The end of all faults.
    fn heal(&self) {
        self.cluster.note(|| "everything is healed".to_owned());
        for node in 0..self.plan.masters {
            self.cluster.thaw(node);
            self.cluster.restart(node);
            for client in &self.clients {
                client.set_link(node, LinkFaults::default());
            }
        }
        self.clients.iter().for_each(SimClient::resume);
    }

    /// Nobody holds anything any more: within a second nothing is left of those who live, and within
    /// the ttl nothing of those who died.
    async fn check_residue(&self, living: &[Redlock]) {
        sleep(CLEAN_WITHIN).await;
        for redlock in living {
            for status in redlock.nodes() {
                if status.owed_releases > 0 || status.state != NodeState::Voting {
                    self.violation(format!("not recovered: {status:?}"));
                }
            }
        }
        if self.killed.iter().all(Option::is_none) {
            self.check_empty("a second after the end", RestsOn::Memory);
        }
        sleep(MAX_TTL * 2).await;
        self.check_empty("after the longest ttl", RestsOn::Clock);
    }

    fn check_empty(&self, when: &str, rests_on: fn(usize) -> RestsOn) {
        for node in 0..self.plan.masters {
            let keys = self.cluster.keys(node);
            if !keys.is_empty() {
                self.seen.violation(
                    &self.cluster,
                    rests_on(node),
                    format!("residue on n{node} {when}: {keys:?}"),
                );
            }
        }
    }

    /// Everything is healthy and nobody contends: one attempt is enough.
    async fn check_progress(&self, living: &[Redlock]) {
        for redlock in living {
            match redlock.try_acquire("progress").await {
                Ok(guard) => {
                    if let Err(error) = guard.release().await {
                        self.violation(format!("no progress in release: {error}"));
                    }
                }
                Err(error) => self.violation(format!("no progress: {error}")),
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn violation(&self, what: String) {
        self.seen.violation(&self.cluster, RestsOn::Nothing, what);
    }

    fn report(self) -> Report {
        let broken = self.cluster.broken_assumptions();
        let mut report = Report { operations: self.cluster.operations(), ..Report::default() };
        let mut holds = self.seen.log(|log| std::mem::take(&mut log.holds));
        report.acquired = holds.len();
        for hold in &mut holds {
            if let Some(death) = self.killed[hold.client] {
                hold.until = hold.until.min(death);
            }
        }
        let mut found = self.seen.log(|log| std::mem::take(&mut log.violations));
        found.extend(double_holds(&holds).into_iter().map(|double| Violation {
            at: double.second.from,
            what: format!("two holders: {:?} and {:?}", double.first, double.second),
            rests_on: RestsOn::AllAssumptions,
        }));
        for Violation { at, what, rests_on } in found {
            let excused = broken.iter().any(|b| b.at <= at && rests_on.is_broken_by(b));
            let list = if excused { &mut report.expected } else { &mut report.violations };
            list.push(what);
        }
        report.trace = self.cluster.take_trace();
        for violation in &report.violations {
            writeln!(report.trace, "VIOLATION {violation}").unwrap();
        }
        report.broken = broken;
        report
    }
}

/// The life of one client process.
struct Life {
    number: usize,
    plan: ClientPlan,
    cluster: SimCluster,
    client: SimClient,
    seen: Seen,
    masters: usize,
}

impl Life {
    async fn live(self) -> Option<Redlock> {
        let redlock = Redlock::builder()
            .sim_client(&self.client)
            .node_timeout(Duration::from_millis(self.plan.node_timeout_ms))
            .connect()
            .await
            .ok()?;
        for operation in &self.plan.operations {
            sleep(Duration::from_millis(operation.pause_ms)).await;
            self.operate(&redlock, operation).await;
        }
        Some(redlock)
    }

    async fn operate(&self, redlock: &Redlock, operation: &Operation) {
        let resource = format!("r{}", operation.resource);
        let options = LockOptions::new()
            .ttl(Duration::from_millis(operation.ttl_ms))
            .wait_timeout(Duration::from_millis(operation.wait_ms));
        let options = if operation.renewed { options } else { options.without_renewal() };
        let max_hold = operation.max_hold_ms.map(Duration::from_millis);
        let options = max_hold.map_or(options, |max_hold| options.max_hold(max_hold));
        let acquiring = redlock.acquire_with(&resource, options);
        let acquired = match operation.patience_ms {
            Some(ms) => timeout(Duration::from_millis(ms), acquiring).await.ok(),
            None => Some(acquiring.await),
        };
        let Some(Ok(mut guard)) = acquired else { return };
        let hold = self.granted(&guard);
        self.hold(&guard, hold, operation.hold_ms).await;
        if operation.extend {
            let extended = guard.extend(MAX_TTL).await;
            // A validity that had ended is not brought back by looking at it now.
            if !guard.remaining().is_zero() {
                let until = self.believes_until(&guard);
                self.seen.log(|log| log.holds[hold].until = until);
            }
            if extended.is_ok() {
                self.check_majority(&guard, "extended");
            }
            self.hold(&guard, hold, operation.hold_ms).await;
        }
        let now = self.cluster.now();
        self.seen.log(|log| log.holds[hold].until = log.holds[hold].until.min(now));
        match operation.end {
            End::Release => {
                let valid_until = self.believes_until(&guard);
                let lost = guard.release().await.is_err_and(|error| error.is_lost());
                if lost && self.cluster.now() < valid_until {
                    self.violation(format!("c{} lost a valid lock", self.number));
                }
            }
            End::Drop => drop(guard),
            End::AbandonedRelease(ms) => {
                timeout(Duration::from_millis(ms), guard.release()).await.ok();
            }
        }
    }

    /// Holds the lock for a time, and looks at it every now and then as its holder would.
    async fn hold(&self, guard: &LockGuard, hold: usize, ms: u64) {
        let end = tokio::time::Instant::now() + Duration::from_millis(ms);
        while tokio::time::Instant::now() < end && !guard.is_lost() {
            let until = self.believes_until(guard);
            self.seen.log(|log| log.holds[hold].until = until);
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            timeout(left.min(Duration::from_millis(25)), guard.lost()).await.ok();
        }
        if guard.is_lost() {
            // Whoever only listens is told as well, as soon as the watchdog has had its turn.
            sleep(Duration::from_millis(2)).await;
            if !guard.lost_token().is_cancelled() {
                self.violation(format!("c{} was not told of a loss", self.number));
            }
            if !guard.is_lost() {
                self.violation(format!("c{} has a lost lock back", self.number));
            }
        }
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
        let key = format!("quorumlock:lock:{}", guard.resource());
        let owner = guard.owner_id().to_string();
        let ours = |node: &usize| self.cluster.keys(*node).get(&key) == Some(&owner);
        let held = (0..self.masters).filter(ours).count();
        if held * 2 <= self.masters {
            let (number, masters) = (self.number, self.masters);
            self.violation(format!("c{number} {when} with {held} of {masters}"));
        }
    }

    fn violation(&self, what: String) {
        self.seen.violation(&self.cluster, RestsOn::AllAssumptions, what);
    }
}
