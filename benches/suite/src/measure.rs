//! Pairs of acquire and release, one after another, for a while.

use std::time::{Duration, Instant};

use crate::{
    book::{Book, Metric, quantile},
    cpu,
    locker::{Failure, Kind, Locker},
};

/// How long one pair may take. What takes longer is given up and counted.
pub const LIMIT: Duration = Duration::from_secs(3);

pub const P50: Metric = Metric::new("p50", "µs");
pub const ACQUIRE: Metric = Metric::new("acquire p50", "µs");
pub const P99: Metric = Metric::new("p99", "µs");
pub const PAIRS: Metric = Metric::new("pairs a second", "");
pub const CLIENT_CPU: Metric = Metric::new("client CPU for a pair", "µs");
pub const SERVER_CPU: Metric = Metric::new("server CPU for a pair", "µs");
pub const FAILED: Metric = Metric::new("failed or given up", "%");

/// Pairs that one task has done.
#[derive(Debug, Default)]
pub struct Pairs {
    pub took: Vec<Duration>,
    /// How much of it the acquisitions took.
    pub acquiring: Vec<Duration>,
    pub failed: usize,
}

/// Pairs on one lock that nobody else wants.
pub struct Worker {
    locker: Locker,
    name: String,
    generation: usize,
}

impl Worker {
    pub fn new(locker: Locker, name: String) -> Self {
        Self { locker, name, generation: 0 }
    }

    /// Does up to `count` pairs, one at least, and starts none after `end`.
    pub async fn work(&mut self, count: usize, end: Instant, pairs: &mut Pairs) {
        for _ in 0..count {
            let started = Instant::now();
            let done = tokio::time::timeout(LIMIT, self.pair()).await;
            // What was given up took at least so long.
            pairs.took.push(started.elapsed());
            if let Ok(Ok(acquired)) = done {
                pairs.acquiring.push(acquired - started);
            } else {
                pairs.failed += 1;
                // The key may be left, and would be in the way of the next.
                self.generation += 1;
            }
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// When it had the lock.
    async fn pair(&self) -> Result<Instant, Failure> {
        let held = self.locker.try_acquire(&format!("{}-{}", self.name, self.generation)).await?;
        let acquired = Instant::now();
        self.locker.release(held).await?;
        Ok(acquired)
    }
}

/// One repetition: all tasks for this time, each with its own lock. Added to the book.
pub async fn repetition(
    book: &mut Book,
    scenario: &'static str,
    setting: &str,
    (kind, locker): &(Kind, Locker),
    (tasks, time): (usize, Duration),
    servers: &[u32],
) {
    let pairs = slice(locker, (tasks, time), servers).await;
    let mut add = |metric, sample| book.add(scenario, setting, metric, *kind, sample);
    add(P50, pairs.at(0.5));
    add(ACQUIRE, quantile(&pairs.acquiring, 0.5).map_or(f64::NAN, micros));
    add(P99, pairs.at(0.99));
    add(PAIRS, pairs.good() / pairs.time.as_secs_f64());
    add(CLIENT_CPU, micros(pairs.client_cpu) / pairs.good());
    add(SERVER_CPU, micros(pairs.server_cpu) / pairs.good());
    add(FAILED, pairs.failed as f64 / pairs.took.len() as f64 * 100.0);
}

/// The same without a record, so that connections are open and scripts known.
pub async fn warm_up(locker: &Locker, tasks: usize) {
    slice(locker, (tasks, Duration::from_millis(20)), &[]).await;
}

struct Slice {
    /// In order of size.
    took: Vec<Duration>,
    acquiring: Vec<Duration>,
    failed: usize,
    time: Duration,
    client_cpu: Duration,
    server_cpu: Duration,
}

impl Slice {
    fn at(&self, share: f64) -> f64 {
        quantile(&self.took, share).map_or(f64::NAN, micros)
    }

    fn good(&self) -> f64 {
        (self.took.len() - self.failed) as f64
    }
}

async fn slice(locker: &Locker, (tasks, time): (usize, Duration), servers: &[u32]) -> Slice {
    let (client_cpu, server_cpu) = (cpu::of_self(), cpu::of(servers));
    let started = Instant::now();
    let end = started + time;
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let mut worker = Worker::new(locker.clone(), format!("task-{task}"));
            tokio::spawn(async move {
                let mut pairs = Pairs::default();
                worker.work(usize::MAX, end, &mut pairs).await;
                pairs
            })
        })
        .collect();
    let mut all = Pairs::default();
    for task in tasks {
        let pairs = task.await.expect("a task that ends");
        all.took.extend(pairs.took);
        all.acquiring.extend(pairs.acquiring);
        all.failed += pairs.failed;
    }
    let time = started.elapsed();
    all.took.sort_unstable();
    all.acquiring.sort_unstable();
    Slice {
        took: all.took,
        acquiring: all.acquiring,
        failed: all.failed,
        time,
        client_cpu: cpu::of_self().saturating_sub(client_cpu),
        server_cpu: cpu::of(servers).saturating_sub(server_cpu),
    }
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000_000.0
}
