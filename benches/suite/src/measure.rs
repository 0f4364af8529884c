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

/// What a process saw of its pairs.
pub struct Seen {
    p50: f64,
    acquire: f64,
    p99: f64,
    rate: f64,
    client_cpu: f64,
    failed: f64,
    good: f64,
}

impl Seen {
    pub fn line(&self) -> String {
        let Self { p50, acquire, p99, rate, client_cpu, failed, good } = self;
        format!("{p50} {acquire} {p99} {rate} {client_cpu} {failed} {good}")
    }

    pub fn read(line: &str) -> Self {
        let numbers: Vec<f64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [p50, acquire, p99, rate, client_cpu, failed, good] = numbers[..] else {
            panic!("not seven numbers: {line}")
        };
        Self { p50, acquire, p99, rate, client_cpu, failed, good }
    }

    /// Adds it to the book, with the time that the servers' processors needed.
    pub fn note(
        &self,
        book: &mut Book,
        scenario: &'static str,
        setting: &str,
        kind: Kind,
        server_cpu: Duration,
    ) {
        let mut add = |metric, sample| book.add(scenario, setting, metric, kind, sample);
        add(P50, self.p50);
        add(ACQUIRE, self.acquire);
        add(P99, self.p99);
        add(PAIRS, self.rate);
        add(CLIENT_CPU, self.client_cpu);
        add(SERVER_CPU, micros(server_cpu) / self.good);
        add(FAILED, self.failed);
    }
}

/// All tasks for this time, each with its own lock.
pub async fn pairs(locker: &Locker, tasks: usize, time: Duration) -> Seen {
    let (client_cpu, process) = (cpu::of_self(), std::process::id());
    let started = Instant::now();
    let end = started + time;
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let mut worker = Worker::new(locker.clone(), format!("task-{process}-{task}"));
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
    let client_cpu = cpu::of_self().saturating_sub(client_cpu);
    all.took.sort_unstable();
    all.acquiring.sort_unstable();
    let at = |sorted: &[Duration], share| quantile(sorted, share).map_or(f64::NAN, micros);
    let good = (all.took.len() - all.failed) as f64;
    Seen {
        p50: at(&all.took, 0.5),
        acquire: at(&all.acquiring, 0.5),
        p99: at(&all.took, 0.99),
        rate: good / time.as_secs_f64(),
        client_cpu: micros(client_cpu) / good,
        failed: all.failed as f64 / all.took.len() as f64 * 100.0,
        good,
    }
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000_000.0
}
