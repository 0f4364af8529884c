//! Masters in virtual time: the real library against simulated servers.
//!
//! Everything above the [`Node`](crate::node::Node) port is the code that runs in production. Below
//! it, a [`SimCluster`] stands for the servers and the network. Time is tokio's: under a paused clock
//! (`#[tokio::test(start_paused = true)]`) hours pass in milliseconds, and a run is a function of its
//! seed. Without a paused clock it is a stand-in for servers in real time.
//!
//! Use it to test *your* code when a lock is refused, lost or slow:
//!
//! ```
//! use quorumlock::{LockOptions, Redlock, sim::SimCluster};
//! use std::time::Duration;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
//! let cluster = SimCluster::new(5);
//! let process = cluster.client();
//! let redlock = Redlock::builder().sim_client(&process).new_fleet().connect().await?;
//! let guard = redlock.acquire("nightly-report").await?;
//!
//! // The holder's process stands still for longer than its ttl, and another takes over.
//! process.pause();
//! let other = Redlock::builder().sim(&cluster).new_fleet().connect().await?;
//! let options = LockOptions::new().wait_timeout(Duration::from_secs(15));
//! let _second = other.acquire_with("nightly-report", options).await?;
//! process.resume();
//! assert_eq!(guard.remaining(), Duration::ZERO);
//! assert!(guard.release().await.is_err_and(|error| error.is_lost()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is simulated and what is not
//!
//! Each master executes the library's operations with the meaning of their scripts (checked against a
//! real server), has a wall clock of its own that can drift and jump, expires keys by it, and loses on
//! a crash what its persistence allows. Each connection is as good as TCP: ordered, with both sides
//! told of its end. Messages take times drawn at random, can be swallowed, doubled or held up, and
//! replies can be lost after their request was executed. Not simulated: memory limits, TLS,
//! authentication, and the Redis protocol itself.

mod faults;
mod master;
mod counting;
mod node;
mod wire;
mod world;
mod server;
mod control;
pub mod history;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{SeedableRng, rngs::StdRng};
use tokio::{runtime::Handle, time::Instant};

pub use faults::LinkFaults;
pub use master::Persistence;
pub use node::{SimLink, SimListener, SimNode};
pub use world::BrokenAssumption;

use crate::{
    clock::{Clock, SimClock},
    entropy::Entropy,
    gate::Gate,
    node::NodeName,
    tasks::{Environment, Spawner},
};
use world::World;

/// Simulated masters and the network to them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SimCluster {
    world: World,
    origin: Instant,
}

impl SimCluster {
    /// A cluster of `nodes` healthy masters, with an arbitrary fixed seed.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with time enabled.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self::with_seed(nodes, 0)
    }

    /// A cluster of `nodes` healthy masters, in which everything that is left to chance follows from
    /// `seed`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with time enabled.
    #[must_use]
    pub fn with_seed(nodes: usize, seed: u64) -> Self {
        let origin = Instant::now();
        let names = (0..nodes).map(|node| format!("n{node}")).collect();
        let world = World::new(names, seed, origin);
        // Its end is not waited for: it ends when nobody knows the cluster any more.
        drop(Spawner::new(Handle::current()).spawn(world.driver()));
        Self { world, origin }
    }

    /// How many masters there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.world.with(|state| state.nodes().len())
    }

    /// Whether there are no masters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True time since the cluster was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.world.with(|state| state.now())
    }

    /// A new client process, whose clock keeps true time.
    #[must_use]
    pub fn client(&self) -> SimClient {
        self.client_with_clock(0)
    }

    /// A new client process, whose clock runs `ppm` millionths faster than true time.
    #[must_use]
    pub fn client_with_clock(&self, ppm: i32) -> SimClient {
        let (id, seed) = self.world.with(world::State::new_client);
        SimClient {
            id,
            ppm,
            world: self.world.clone(),
            origin: self.origin,
            gate: Gate::default(),
            entropy: Entropy::Seeded(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))),
        }
    }

    /// The master stops reading and answering, as with `SIGSTOP`; what is sent to it waits.
    pub fn freeze(&self, node: usize) {
        self.world.with(|state| state.freeze(node));
    }

    /// The master goes on, and executes what has come meanwhile.
    pub fn thaw(&self, node: usize) {
        self.world.with(|state| state.thaw(node));
    }

    /// The master's process ends at once.
    pub fn crash(&self, node: usize) {
        self.world.with(|state| state.crash(node));
    }

    /// The master's process is started again, with what its persistence kept.
    pub fn restart(&self, node: usize) {
        self.world.with(|state| state.restart(node));
    }

    /// What the master finds again after a crash. Defaults to nothing.
    pub fn set_persistence(&self, node: usize, persistence: Persistence) {
        self.world
            .with(|state| state.master(node, |master, _| master.set_persistence(persistence)));
    }

    /// The master's wall clock jumps by so many milliseconds, forwards or back.
    pub fn jump_clock(&self, node: usize, ms: i64) {
        self.world.with(|state| {
            state.master(node, |master, now| master.jump_clock(ms, now));
            state.assumption_broken(node, "a clock jumped");
        });
    }

    /// The master's wall clock runs `ppm` millionths faster than true time from now on.
    ///
    /// Not counted among the [broken assumptions](Self::broken_assumptions): whether it breaks one
    /// depends on what the clients allow for ([`ClockDrift`](crate::ClockDrift)).
    pub fn set_clock_rate(&self, node: usize, ppm: i32) {
        self.world.with(|state| state.master(node, |master, now| master.set_clock_rate(ppm, now)));
    }

    /// `SCRIPT FLUSH` on the master.
    pub fn flush_scripts(&self, node: usize) {
        self.world.with(|state| state.master(node, |master, _| master.flush_scripts()));
    }

    /// `FLUSHALL` on the master.
    pub fn flush_all(&self, node: usize) {
        self.world.with(|state| {
            if state.master(node, master::Master::flush_all) == Some(true) {
                state.assumption_broken(node, "a node forgot");
            }
        });
    }

    /// Whether the master lets clients use `CLIENT KILL`. Defaults to `true`.
    pub fn allow_client_kill(&self, node: usize, allowed: bool) {
        self.world.with(|state| state.allow_kill(node, allowed));
    }

    /// Sets a key from outside. Without a `value` it becomes something other than a string.
    pub fn set_key(&self, node: usize, key: &str, value: Option<&str>, ttl: Option<Duration>) {
        let ttl_ms = ttl.map(crate::options::millis);
        self.world.with(|state| {
            let overwritten = state.master(node, |master, now| {
                let existed = master.delete(key, now);
                master.set(key, value, ttl_ms, now);
                existed
            });
            if overwritten == Some(true) {
                state.assumption_broken(node, "a key was overwritten");
            }
        });
    }

    /// Deletes a key from outside.
    pub fn delete_key(&self, node: usize, key: &str) {
        self.world.with(|state| {
            if state.master(node, |master, now| master.delete(key, now)) == Some(true) {
                state.assumption_broken(node, "a key was deleted");
            }
        });
    }

    /// The master's live keys with their values, as seen from outside, whether it answers or not.
    #[must_use]
    pub fn keys(&self, node: usize) -> BTreeMap<String, String> {
        self.world
            .with(|state| state.master(node, |master, now| master.keys(now)))
            .unwrap_or_default()
    }

    /// As `PTTL` on the master: milliseconds, -1 without a ttl, -2 without the key.
    #[must_use]
    pub fn pttl(&self, node: usize, key: &str) -> i64 {
        self.world
            .with(|state| state.master(node, |master, now| master.pttl(key, now)))
            .unwrap_or(-2)
    }

    /// Whether the master's process runs.
    #[must_use]
    pub fn is_up(&self, node: usize) -> bool {
        self.world.with(|state| state.is_up(node))
    }

    /// Whether the master stands still.
    #[must_use]
    pub fn is_frozen(&self, node: usize) -> bool {
        self.world.with(|state| state.is_frozen(node))
    }

    /// The assumptions of the lock's safety that faults have broken so far.
    #[must_use]
    pub fn broken_assumptions(&self) -> Vec<BrokenAssumption> {
        self.world.with(|state| state.broken().to_vec())
    }

    /// On connections that are made from now on, up to so many operations that are asked for at the same time
    /// go in one command, as they do to real masters. At first each goes by itself.
    pub fn send_together(&self, most: usize) {
        self.world.with(|state| state.most_together = most.max(1));
    }

    /// In steps of how many numbers the masters write ahead how far they have counted; 64 as real masters do, at
    /// first. With smaller steps, faults of the counting show sooner. To be called before anything is locked.
    pub fn count_in_steps(&self, step: u64) {
        for node in 0..self.len() {
            self.world.with(|state| state.master(node, |master, _| master.step = step.max(1)));
        }
    }

    /// How many operations all masters have executed.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.world.with(|state| state.operations())
    }

    /// From now on everything that happens is written down.
    pub fn start_trace(&self) {
        self.world.with(world::State::start_trace);
    }

    /// What has happened since the trace was started, one line each, with true time in seconds.
    #[must_use]
    pub fn take_trace(&self) -> String {
        self.world.with(world::State::take_trace)
    }

    /// Writes a line of one's own into the trace.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.world.with(|state| state.note(|_| line()));
    }
}

/// A client process in the simulation: a [`Redlock`](crate::Redlock)'s tasks and what runs beside them.
#[derive(Clone, Debug)]
pub struct SimClient {
    id: usize,
    ppm: i32,
    world: World,
    origin: Instant,
    gate: Gate,
    entropy: Entropy,
}

impl SimClient {
    /// The process stands still while time goes on, as with `SIGSTOP`: the tasks of its `Redlock`s and
    /// all that was started by [`run`](Self::run).
    pub fn pause(&self) {
        self.world.with(|state| state.note(|_| format!("c{} pauses", self.id)));
        self.gate.close();
    }

    /// The process goes on.
    pub fn resume(&self) {
        self.world.with(|state| state.note(|_| format!("c{} resumes", self.id)));
        self.gate.open();
    }

    /// The process ends at once, as with `SIGKILL`: no guard is released.
    pub fn kill(&self) {
        self.world.with(|state| state.note(|_| format!("c{} dies", self.id)));
        self.gate.kill();
    }

    /// Runs a task as a part of this process. `None`: the process was killed before it ended.
    pub async fn run<F: Future>(&self, task: F) -> Option<F::Output> {
        self.gate.guard(task).await
    }

    /// Changes the network between this client and one master, from now on.
    pub fn set_link(&self, node: usize, faults: LinkFaults) {
        self.world.with(|state| state.set_faults(self.id, node, faults));
    }

    /// Breaks the connections to one master. What was sent before still arrives there.
    pub fn reset_link(&self, node: usize) {
        self.world.with(|state| state.reset_link(self.id, node));
    }

    /// How much true time goes by while this process' clock shows `span`.
    #[must_use]
    pub fn true_span(&self, span: Duration) -> Duration {
        let parts = u128::from(1_000_000_u32.saturating_add_signed(self.ppm)).max(1);
        let nanos = span.as_nanos().saturating_mul(1_000_000).div_ceil(parts);
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// The masters as this client reaches them.
    #[must_use]
    pub fn nodes(&self, connect_timeout: Duration) -> Vec<SimNode> {
        let names = self.world.with(|state| state.nodes());
        let nodes = names.iter().enumerate().map(|(node, name)| SimNode {
            name: NodeName::new(name),
            world: self.world.clone(),
            client: self.id,
            node,
            connect_timeout,
        });
        nodes.collect()
    }

    pub(crate) fn environment(&self, runtime: Handle) -> Environment {
        Environment {
            spawner: Spawner::gated(runtime, self.gate.clone()),
            clock: Clock::Simulated(SimClock::new(self.origin, self.ppm)),
            entropy: self.entropy.clone(),
        }
    }
}
