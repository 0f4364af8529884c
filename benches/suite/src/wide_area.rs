//! Masters in several regions, simulated: how long an acquisition takes, and what is left of the ttl.
//!
//! The library is the one that runs in production; the network and time are simulated, so that
//! thousands of clients need no machine of their own and a run is a function of its seed.

use std::time::Duration;

use quorumlock::{
    LockOptions, Redlock,
    sim::{LinkFaults, SimClient, SimCluster},
};
use tokio::time::Instant;

use crate::{
    book::{Book, Metric, OURS, quantile},
    plan::Plan,
    renewals::grouped,
};

pub const NAME: &str = "wide area";

pub const P50: Metric = Metric::new("acquire p50", "ms");
pub const P99: Metric = Metric::new("acquire p99", "ms");
pub const GRANTED: Metric = Metric::new("granted at the first attempt", "%");
pub const VALIDITY: Metric = Metric::new("least validity left of 10 s", "ms");
pub const WAIT_P50: Metric = Metric::new("wait p50", "ms");
pub const WAIT_P99: Metric = Metric::new("wait p99", "ms");

const TTL: Duration = Duration::from_secs(10);
/// How long a lock is held that others wait for.
const HOLD: Duration = Duration::from_millis(20);
/// How many clients want each lock.
const FOR_EACH_LOCK: usize = 10;

/// Where the latencies are from.
pub const SOURCE: &str = "Microsoft, [Azure network round-trip latency statistics]\
    (https://learn.microsoft.com/azure/networking/azure-network-latency), the 95th percentiles of the 30 \
    days to 30 July 2026";

/// Regions with a master and clients in each, and the round trips between them in milliseconds.
pub struct Map {
    pub name: &'static str,
    pub regions: &'static [&'static str],
    /// For each region those to the regions before it.
    pub round_trips: &'static [&'static [u64]],
}

pub const MAPS: [Map; 3] = [
    Map {
        name: "3 regions in Europe",
        regions: &["West Europe", "North Europe", "France Central"],
        round_trips: &[&[], &[19], &[15, 22]],
    },
    Map {
        name: "3 regions on two continents",
        regions: &["East US", "West US", "West Europe"],
        round_trips: &[&[], &[74], &[91, 153]],
    },
    Map {
        name: "5 regions on four continents",
        regions: &["East US", "West US", "West Europe", "Southeast Asia", "Brazil South"],
        round_trips: &[&[], &[74], &[91, 153], &[229, 171, 181], &[121, 170, 189, 337]],
    },
];

/// The node timeouts that are tried, in milliseconds.
pub const NODE_TIMEOUTS: [u64; 6] = [20, 50, 100, 200, 400, 800];
pub const CLIENTS: [usize; 5] = [1, 10, 100, 1_000, 10_000];

impl Map {
    fn round_trip(&self, a: usize, b: usize) -> u64 {
        match a.max(b) {
            far if a == b => self.round_trips[far].len().min(1) as u64,
            far => self.round_trips[far][a.min(b)],
        }
    }

    /// A client in this region, with its own way to each master.
    fn client(&self, cluster: &SimCluster, region: usize) -> SimClient {
        let client = cluster.client();
        for master in 0..self.regions.len() {
            let one_way = self.round_trip(region, master).div_ceil(2);
            // A 95th percentile is about the most there is.
            client.set_link(master, LinkFaults::latency(one_way * 9 / 10, one_way));
        }
        client
    }
}

pub fn timeout_setting(map: &Map, region: &str, node_timeout: u64) -> String {
    format!("{}, node timeout {node_timeout} ms, client in {region}", map.name)
}

pub fn clients_setting(map: &Map, clients: usize) -> String {
    format!("{}, {} client{}", map.name, grouped(clients), if clients == 1 { "" } else { "s" })
}

pub fn run(plan: Plan, book: &mut Book) {
    for map in plan.settings(&MAPS) {
        for node_timeout in NODE_TIMEOUTS {
            for seed in 0..plan.pick(2, 1) {
                let attempts = plan.pick(100, 50);
                in_virtual_time(of_timeout(book, map, node_timeout, seed, attempts));
            }
        }
        for clients in plan.settings(&CLIENTS).iter().copied() {
            for seed in 0..plan.pick(2, 1) {
                in_virtual_time(of_clients(book, map, clients, seed, plan.pick(2, 1)));
            }
        }
    }
}

fn in_virtual_time(run: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(run);
}

async fn connect(client: &SimClient, node_timeout: Option<u64>) -> Redlock {
    let builder = Redlock::builder().sim_client(client).new_fleet().ttl(TTL);
    let builder = match node_timeout {
        Some(ms) => builder.node_timeout(Duration::from_millis(ms)),
        None => builder,
    };
    builder.connect().await.expect("connected")
}

/// Single attempts from each region, on locks that nobody else wants.
async fn of_timeout(book: &mut Book, map: &Map, node_timeout: u64, seed: u64, attempts: usize) {
    let cluster = SimCluster::with_seed(map.regions.len(), seed);
    for (region, name) in map.regions.iter().enumerate() {
        let client = map.client(&cluster, region);
        let redlock = connect(&client, Some(node_timeout)).await;
        let (mut took, mut left) = (Vec::new(), Vec::new());
        for _ in 0..attempts {
            let started = Instant::now();
            if let Ok(guard) = redlock.try_acquire(&format!("lock-{region}")).await {
                took.push(started.elapsed());
                left.push(guard.remaining());
                guard.release().await.ok();
            }
            // Nodes that were too slow are looked at again, and what is owed to them is settled.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        took.sort_unstable();
        let setting = timeout_setting(map, name, node_timeout);
        let mut add = |metric, sample| book.add(NAME, &setting, metric, OURS, sample);
        add(GRANTED, took.len() as f64 / attempts as f64 * 100.0);
        if let Some(least) = left.iter().min() {
            add(P50, at(&took, 0.5));
            add(P99, at(&took, 0.99));
            add(VALIDITY, ms(*least));
        }
        redlock.shutdown().await;
    }
}

/// Clients in all regions, ten of which want the same lock, with the default node timeout.
async fn of_clients(book: &mut Book, map: &Map, clients: usize, seed: u64, turns: usize) {
    let cluster = SimCluster::with_seed(map.regions.len(), seed);
    let mut redlocks = Vec::new();
    for region in 0..map.regions.len() {
        redlocks.push(connect(&map.client(&cluster, region), None).await);
    }
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            // By tens, so that each lock is wanted in all regions.
            let redlock = redlocks[client % redlocks.len()].clone();
            tokio::spawn(turns_of(redlock, format!("lock-{}", client / FOR_EACH_LOCK), turns))
        })
        .collect();
    let (mut took, mut least) = (Vec::new(), Duration::MAX);
    for task in tasks {
        let (waits, left) = task.await.expect("a task that ends");
        took.extend(waits);
        least = least.min(left);
    }
    took.sort_unstable();
    let setting = clients_setting(map, clients);
    let mut add = |metric, sample| book.add(NAME, &setting, metric, OURS, sample);
    add(WAIT_P50, at(&took, 0.5));
    add(WAIT_P99, at(&took, 0.99));
    add(VALIDITY, ms(least));
}

/// How long each turn was waited for, and the least validity that was left then.
async fn turns_of(redlock: Redlock, lock: String, turns: usize) -> (Vec<Duration>, Duration) {
    let (mut waits, mut least) = (Vec::new(), Duration::MAX);
    for _ in 0..turns {
        let started = Instant::now();
        let options = LockOptions::new().wait_timeout(Duration::from_secs(600));
        let guard = redlock.acquire_with(&lock, options).await.expect("its turn");
        waits.push(started.elapsed());
        least = least.min(guard.remaining());
        tokio::time::sleep(HOLD).await;
        guard.release().await.ok();
    }
    (waits, least)
}

fn at(sorted: &[Duration], share: f64) -> f64 {
    quantile(sorted, share).map_or(f64::NAN, ms)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
