//! Two clients, the masters A to E or one alone, and a store that both write to.

use std::{ops::Deref, time::Duration};

use quorumlock::{
    FencedGuard, FencingToken, LockGuard, LockOptions, Redlock,
    fenced::memory::Resources,
    sim::{LinkFaults, Persistence, SimClient, SimCluster},
};

use crate::behaviours::pass;

/// How the locks are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) is_single: bool,
    pub(super) is_fenced: bool,
    pub(super) masters: Masters,
}

/// What the masters keep, and what becomes of one that restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Masters {
    pub(super) disk: Disk,
    pub(super) admission: Admission,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// Nothing is kept.
    Volatile,
    /// All that was acknowledged is kept: `appendfsync always`.
    Durable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It waits for the longest ttl: the default.
    On,
    /// `trust_durability`: it votes at once if it keeps all.
    Trusting,
    /// `without_quarantine`: it votes at once.
    Off,
}

/// The first client, and the second.
pub(super) const ONE: usize = 0;
pub(super) const TWO: usize = 1;
/// The ttl of all locks, which is the default.
pub(super) const TTL: Duration = Duration::from_secs(10);
/// How long a lock that nobody holds may be out of reach before it counts as unavailable.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it is tried for after that, to see what comes then: longer than a master waits.
const LONG: Duration = Duration::from_secs(65);

/// What was observed in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is observed by itself")]
pub(super) struct Seen {
    /// Two guards had `remaining() > 0` at one instant.
    pub(super) two_holders: bool,
    /// The store took a write of an earlier holder after one of a later holder.
    pub(super) late_write: bool,
    /// The store refused such a write.
    pub(super) late_refused: bool,
    /// The store refused a write of the latest holder.
    pub(super) holder_refused: bool,
    /// A later holder had a token that is not larger.
    pub(super) tokens_back: bool,
    /// Nobody held the lock, and who asked for it did not get it in time.
    pub(super) unavailable: bool,
}

#[derive(Debug)]
enum Guard {
    Plain(LockGuard),
    Fenced(FencedGuard),
}

impl Deref for Guard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Self::Plain(guard) => guard,
            Self::Fenced(guard) => guard,
        }
    }
}

/// One that was granted the lock, by its place in the order of the grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder(usize);

pub(super) struct Scene {
    mode: Mode,
    pub(super) cluster: SimCluster,
    pub(super) clients: [SimClient; 2],
    locks: [Redlock; 2],
    /// In the order of the grants; none after the release.
    guards: Vec<Option<Guard>>,
    tokens: Vec<FencingToken>,
    /// Keeps the writers in order, of those that have tokens.
    fenced: Resources<Vec<usize>>,
    /// Takes what comes.
    unfenced: Vec<usize>,
    seen: Seen,
}

impl Scene {
    pub(super) async fn new(mode: Mode, slow_clock_ppm: i32) -> Self {
        let cluster = SimCluster::new(if mode.is_single { 1 } else { 5 });
        for node in 0..cluster.len() {
            cluster.set_persistence(
                node,
                match mode.masters.disk {
                    Disk::Volatile => Persistence::None,
                    Disk::Durable => Persistence::Always,
                },
            );
        }
        let clients = [cluster.client_with_clock(slow_clock_ppm), cluster.client()];
        let builder = |client| {
            let builder = Redlock::builder().sim_client(client).ttl(TTL);
            match mode.masters.admission {
                Admission::On => builder,
                Admission::Trusting => builder.trust_durability(),
                Admission::Off => builder.without_quarantine(),
            }
        };
        let one = builder(&clients[ONE]).new_fleet().connect().await.unwrap();
        let two = builder(&clients[TWO]).connect().await.unwrap();
        let (guards, tokens, unfenced) = (Vec::new(), Vec::new(), Vec::new());
        let (locks, fenced, seen) = ([one, two], Resources::new(), Seen::default());
        Self { mode, cluster, clients, locks, guards, tokens, fenced, unfenced, seen }
    }

    /// C; or the one that there is.
    pub(super) fn c(&self) -> usize {
        if self.mode.is_single { 0 } else { 2 }
    }

    /// 1 reaches A, B and C only, and 2 reaches C, D and E only.
    pub(super) async fn divide(&self) {
        if !self.mode.is_single {
            for (client, nodes) in [(ONE, [3, 4]), (TWO, [0, 1])] {
                for node in nodes {
                    self.clients[client].set_link(node, LinkFaults::partitioned());
                }
            }
        }
        pass(Duration::from_secs(1)).await;
    }

    /// Both reach all.
    async fn unite(&self) {
        for client in &self.clients {
            (0..self.cluster.len()).for_each(|node| client.set_link(node, LinkFaults::default()));
        }
        pass(Duration::from_secs(1)).await;
    }

    /// A client asks for the lock, for so long. Who it is if it is granted.
    pub(super) async fn acquire(&mut self, client: usize, options: LockOptions) -> Option<Holder> {
        let asked = ask(self.locks[client].clone(), self.mode.is_fenced, options);
        let guard = self.clients[client].run(asked).await.expect("it lives");
        guard.map(|guard| self.granted(guard))
    }

    /// As [`acquire`](Self::acquire), but the client is stopped when all that it reaches have granted
    /// and none of the answers was read, and goes on when `meanwhile` has ended.
    pub(super) async fn acquire_asleep(
        &mut self,
        client: usize,
        meanwhile: impl AsyncFnOnce(&mut Self),
    ) -> Option<Holder> {
        let process = self.clients[client].clone();
        let asked = ask(self.locks[client].clone(), self.mode.is_fenced, once());
        let asleep = process.clone();
        let asking = tokio::spawn(async move { asleep.run(asked).await });
        pass(Duration::from_millis(1)).await;
        let has_granted = |node| self.cluster.keys(node).contains_key("quorumlock:lock:r");
        assert!((0..self.cluster.len()).all(has_granted) && !asking.is_finished());
        process.pause();
        meanwhile(self).await;
        process.resume();
        let guard = asking.await.unwrap().expect("it lives");
        guard.map(|guard| self.granted(guard))
    }

    fn granted(&mut self, guard: Guard) -> Holder {
        if let Guard::Fenced(guard) = &guard {
            // Each asks after the one before it was granted.
            self.seen.tokens_back |= self.tokens.last().is_some_and(|last| guard.token() <= *last);
            self.tokens.push(guard.token());
        }
        self.guards.push(Some(guard));
        self.look();
        Holder(self.guards.len() - 1)
    }

    /// Whether two believe now that they hold the lock.
    fn look(&mut self) {
        let holds = |guard: &&Guard| !guard.remaining().is_zero();
        self.seen.two_holders |= self.guards.iter().flatten().filter(holds).count() > 1;
    }

    /// What is left, for the holder itself; nothing after its release.
    pub(super) fn remaining(&self, holder: Holder) -> Duration {
        self.guards[holder.0].as_ref().map_or(Duration::ZERO, |guard| guard.remaining())
    }

    /// A write of a holder arrives at the store.
    pub(super) fn write(&mut self, Holder(holder): Holder) {
        let taken = if self.mode.is_fenced {
            let writers = |writers: &mut Vec<usize>| writers.push(holder);
            self.fenced.write("r", self.tokens[holder], writers).is_ok()
        } else {
            self.unfenced.push(holder);
            true
        };
        let writers = if self.mode.is_fenced { self.fenced.get("r") } else { None };
        let writers = writers.unwrap_or_else(|| self.unfenced.clone());
        self.seen.late_write |= !writers.is_sorted();
        self.seen.late_refused |= !taken && writers.iter().any(|writer| *writer > holder);
        self.seen.holder_refused |= !taken && holder + 1 == self.guards.len();
    }

    pub(super) async fn release(&mut self, Holder(holder): Holder) {
        match self.guards[holder].take() {
            Some(Guard::Plain(guard)) => drop(guard.release().await),
            Some(Guard::Fenced(guard)) => drop(guard.release().await),
            None => {}
        }
    }

    /// 2 asks, with these options, while 1 holds. If it gets in it writes, and then 1 does if it believes that it holds.
    /// Otherwise 1 writes and releases.
    pub(super) async fn contest(&mut self, first: Holder, options: LockOptions) {
        match self.acquire(TWO, options).await {
            Some(second) => {
                self.write(second);
                if !self.remaining(first).is_zero() {
                    self.write(first);
                }
                self.release(second).await;
            }
            None => self.write(first),
        }
        self.release(first).await;
    }

    /// The network is well and nobody holds the lock: 2 asks for it, and writes.
    pub(super) async fn end(mut self) -> Seen {
        self.unite().await;
        for holder in 0..self.guards.len() {
            self.release(Holder(holder)).await;
        }
        for wait in [PATIENCE, LONG] {
            if let Some(last) = self.acquire(TWO, LockOptions::new().wait_timeout(wait)).await {
                self.write(last);
                self.release(last).await;
                break;
            }
            self.seen.unavailable = true;
        }
        self.seen
    }
}

/// One attempt.
pub(super) fn once() -> LockOptions {
    LockOptions::new().wait_timeout(Duration::ZERO)
}

/// Attempts for a second, as long as it takes to be connected again.
pub(super) fn soon() -> LockOptions {
    LockOptions::new().wait_timeout(Duration::from_secs(1))
}

async fn ask(lock: Redlock, is_fenced: bool, options: LockOptions) -> Option<Guard> {
    if is_fenced {
        lock.acquire_fenced_with("r", options).await.ok().map(Guard::Fenced)
    } else {
        lock.acquire_with("r", options).await.ok().map(Guard::Plain)
    }
}
