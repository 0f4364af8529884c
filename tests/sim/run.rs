//! Carries out a plan and checks what came of it.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use quorumlock::{
    NodeState, Redlock,
    sim::{BrokenAssumption, LinkFaults, SimClient, SimCluster, history::double_holds},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    life::Life,
    plan::{Fault, Plan, TOGETHER},
    seen::{RestsOn, Seen, Violation, disorder},
};

/// What came of a schedule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// What must never happen.
    pub(crate) violations: Vec<String>,
    /// What may happen, since an assumption had been broken before.
    pub(crate) expected: Vec<String>,
    pub(crate) broken: Vec<BrokenAssumption>,
    pub(crate) acquired: usize,
    /// How many fencing tokens were issued.
    pub(crate) tokens: usize,
    pub(crate) operations: u64,
    pub(crate) trace: String,
}

/// After the last fault, how long a healthy cluster may take to be rid of what nobody holds.
const CLEAN_WITHIN: Duration = Duration::from_secs(1);
/// How long it can take until it is seen that a node has forgotten which nobody asks for anything.
const MOST_LOOKS_APART: Duration = Duration::from_secs(6);
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
        if plan.seed >= TOGETHER {
            cluster.send_together(8);
        }
        // Mostly steps that end at once or soon: where the numbers stay small, 64 would hide what is lost.
        cluster.count_in_steps(match plan.seed % 4 {
            0 | 1 => 1,
            2 => 3,
            _ => 64,
        });
        if with_trace {
            cluster.start_trace();
        }
        (0..plan.masters).for_each(|node| cluster.set_persistence(node, plan.persistence));
        let clients = plan.clients.iter().map(|client| cluster.client_with_clock(client.ppm));
        let clients: Vec<SimClient> = clients.collect();
        for (client, plan) in clients.iter().zip(&plan.clients) {
            (0..cluster.len()).for_each(|node| client.set_link(node, plan.healthy_link()));
        }
        let killed = vec![None; clients.len()];
        Self { plan, cluster, clients, killed, seen: Seen::default() }
    }

    async fn carry_out(mut self) -> Report {
        if self.plan.is_founded {
            self.found().await;
        }
        let mut lives = Vec::new();
        for (number, (client, plan)) in self.clients.iter().zip(&self.plan.clients).enumerate() {
            let life = Life {
                number,
                plan: plan.clone(),
                cluster: self.cluster.clone(),
                client: client.clone(),
                seen: self.seen.clone(),
                masters: self.plan.masters,
                max_ttl: Duration::from_millis(self.plan.max_ttl_ms),
                fence_idle: Duration::from_millis(self.plan.fence_idle_ms),
            };
            let client = client.clone();
            lives.push(tokio::spawn(async move { client.run(life.live()).await }));
        }
        let start = Instant::now();
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

    /// The fleet is used for the first time, by a client that then goes away.
    async fn found(&self) {
        let builder = Redlock::builder().new_fleet().sim(&self.cluster);
        let max_ttl = Duration::from_millis(self.plan.max_ttl_ms);
        let founder = builder.ttl(max_ttl).max_ttl(max_ttl).connect().await.expect("a new fleet");
        founder.shutdown().await;
        // What was just written is on the disk.
        sleep(Duration::from_secs(2)).await;
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
            Fault::Pause(client) => self.seen.pause(*client, &self.clients[*client]),
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
                if status.owed_releases > 0 {
                    self.violation(format!("not recovered: {status:?}"));
                }
            }
        }
        let undone = self.seen.log(|log| log.left_undone);
        if self.killed.iter().all(Option::is_none) && !undone {
            // An acquire that the network doubles can be refused, and granted after that: nobody knows.
            let told_of_all = (0..self.plan.masters).filter(|node| !self.plan.doubles(*node));
            told_of_all.for_each(|node| {
                self.check_empty(node, "a second after the end", RestsOn::Memory(node));
            });
        }
        sleep(MOST_LOOKS_APART + Duration::from_millis(self.plan.max_ttl_ms) * 2).await;
        for status in living.iter().flat_map(Redlock::nodes) {
            if status.state != NodeState::Voting {
                self.violation(format!("not admitted again: {status:?}"));
            }
        }
        for node in 0..self.plan.masters {
            self.check_empty(node, "after the longest ttl", RestsOn::Clock(node));
        }
    }

    fn check_empty(&self, node: usize, when: &str, rests_on: RestsOn) {
        let mut keys = self.cluster.keys(node);
        keys.retain(|key, _| key.contains(":lock:"));
        if !keys.is_empty() {
            let what = format!("residue on n{node} {when}: {keys:?}");
            self.seen.violation(&self.cluster, rests_on, what);
        }
    }

    /// Everything is healthy and nobody contends: one attempt is enough.
    async fn check_progress(&self, living: &[Redlock]) {
        for redlock in living {
            match redlock.try_acquire_fenced("progress").await {
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
        let tokens = self.seen.log(|log| std::mem::take(&mut log.tokens));
        report.tokens = tokens.len();
        found.extend(disorder(&tokens).into_iter().map(|(first, second)| Violation {
            at: second.returned,
            what: format!("tokens out of order: {first:?} and {second:?}"),
            rests_on: RestsOn::NoForgetting,
        }));
        for Violation { at, what, rests_on } in found {
            let mut before = broken.iter().filter(|b| b.at <= at);
            let excused = if matches!(rests_on, RestsOn::NoForgetting) {
                let forgetful = before.clone().filter(|b| b.what != "a clock jumped");
                let forgetful: BTreeSet<usize> = forgetful.map(|b| b.node).collect();
                let in_time = before.any(|b| b.what != "a node forgot");
                // With so many there is no majority that remembers.
                let too_many = forgetful.len() > (self.plan.masters - 1) / 2;
                too_many || (!forgetful.is_empty() && in_time)
            } else {
                before.any(|b| rests_on.is_broken_by(b))
            };
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
