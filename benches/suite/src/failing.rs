//! One and two of five masters that fail, beside a fleet that is well.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    book::{Book, Metric, quantile},
    locker::{Kind, Locker, TTL},
    measure::{FAILED, P50, P99, Pairs, Worker, micros},
    plan::{Plan, runtime},
    support::{Fleet, Proxy, Server},
};

pub const NAME: &str = "failing";

pub const P50_OVER_HEALTHY: Metric = Metric::new("p50 over healthy", "");
pub const P99_OVER_HEALTHY: Metric = Metric::new("p99 over healthy", "");

const KINDS: [Kind; 4] = [Kind::Ours, Kind::Fenced, Kind::Rslock, Kind::Distributed];
const MASTERS: usize = 5;
/// What a slow master adds to a round trip.
const SLOW: Duration = Duration::from_millis(20);
/// How long a flapping master stands still, and then goes.
const FLAP: Duration = Duration::from_millis(300);
/// How many pairs are done on one fleet before the other has its turn.
const BURST: usize = 16;

/// What is wrong with the first masters of a fleet.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Frozen(usize),
    Dead(usize),
    Slow(usize),
    Flapping,
}

const FAULTS: [Fault; 7] = [
    Fault::Frozen(1),
    Fault::Frozen(2),
    Fault::Dead(1),
    Fault::Dead(2),
    Fault::Slow(1),
    Fault::Slow(2),
    Fault::Flapping,
];

impl Fault {
    fn setting(self) -> String {
        let of_five = |count| if count == 1 { "one of five" } else { "two of five" };
        match self {
            Self::Frozen(count) => format!("{} frozen", of_five(count)),
            Self::Dead(count) => format!("{} dead", of_five(count)),
            Self::Slow(count) => format!("{} slow", of_five(count)),
            Self::Flapping => "one of five flapping".to_owned(),
        }
    }
}

/// A fleet of which some masters are not well, once [`break_down`](Self::break_down) was called.
struct Broken {
    fault: Fault,
    fleet: Arc<Fleet>,
    proxies: Vec<Proxy>,
    flapping: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Broken {
    fn start(fault: Fault) -> Self {
        let fleet = Arc::new(Fleet::start(MASTERS));
        let slow = if let Fault::Slow(count) = fault { count } else { 0 };
        let proxies = fleet.iter().take(slow).map(|server| Proxy::start(server.port())).collect();
        Self { fault, fleet, proxies, flapping: None }
    }

    fn urls(&self) -> Vec<String> {
        let direct = self.fleet.iter().skip(self.proxies.len()).map(Server::url);
        self.proxies.iter().map(Proxy::url).chain(direct).collect()
    }

    fn break_down(&mut self) {
        match self.fault {
            Fault::Frozen(count) => self.fleet.iter().take(count).for_each(Server::freeze),
            Fault::Dead(count) => self.fleet.iter().take(count).for_each(Server::kill),
            // It delays each direction.
            Fault::Slow(_) => self.proxies.iter().for_each(|proxy| proxy.delay(SLOW / 2)),
            Fault::Flapping => {
                let (fleet, ended) = (Arc::clone(&self.fleet), Arc::new(AtomicBool::new(false)));
                let until = Arc::clone(&ended);
                let flap = move || {
                    while !until.load(Ordering::Relaxed) {
                        fleet[0].freeze();
                        thread::sleep(FLAP);
                        fleet[0].thaw();
                        thread::sleep(FLAP);
                    }
                };
                self.flapping = Some((ended, thread::spawn(flap)));
            }
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.flapping.take() {
            ended.store(true, Ordering::Relaxed);
            thread.join().ok();
        }
    }
}

pub fn run(plan: Plan, book: &mut Book) {
    runtime().block_on(async {
        let healthy = Fleet::start(MASTERS);
        for fault in plan.settings(&FAULTS) {
            of_fault(plan, book, &healthy, *fault).await;
        }
    });
}

async fn of_fault(plan: Plan, book: &mut Book, healthy: &Fleet, fault: Fault) {
    let mut broken = Broken::start(fault);
    let mut subjects = Vec::new();
    let mut lockers = Vec::new();
    for kind in KINDS {
        let mut workers = Vec::new();
        for urls in [healthy.urls(), broken.urls()] {
            let locker = Locker::connect(kind, &urls, TTL).await.expect("connected");
            lockers.push(locker.clone());
            let mut worker = Worker::new(locker, setting_name(fault));
            // Connections are open and scripts known before anything breaks.
            worker.work(8, far(), &mut Pairs::default()).await;
            workers.push(worker);
        }
        subjects.push((kind, workers));
    }
    broken.break_down();
    // Each failure is noticed once; what it costs from then on is measured.
    for (_, workers) in &mut subjects {
        workers[1].work(1, far(), &mut Pairs::default()).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let time = match fault {
        // Twice both of its states.
        Fault::Flapping => plan.pick(FLAP * 4, FLAP * 2),
        _ => plan.ms(800, 100),
    };
    for _ in 0..plan.pick(5, 3) {
        for (kind, workers) in &mut subjects {
            alternate(book, &fault.setting(), *kind, workers, time).await;
        }
    }
    for locker in lockers {
        // A frozen node would be waited for.
        drop(tokio::time::timeout(Duration::from_millis(100), locker.shutdown()).await);
    }
}

/// Pairs on both fleets in turn for twice this time, so that whatever else the machine does falls on both.
async fn alternate(
    book: &mut Book,
    setting: &str,
    kind: Kind,
    workers: &mut [Worker],
    time: Duration,
) {
    let mut pairs = [Pairs::default(), Pairs::default()];
    let end = Instant::now() + time * 2;
    while Instant::now() < end {
        for (worker, pairs) in workers.iter_mut().zip(&mut pairs) {
            worker.work(BURST, Instant::now() + time / 4, pairs).await;
        }
    }
    for pairs in &mut pairs {
        pairs.took.sort_unstable();
    }
    let [healthy, broken] = &pairs;
    let at = |pairs: &Pairs, share| quantile(&pairs.took, share).map_or(f64::NAN, micros);
    book.add(NAME, setting, P50, kind, at(broken, 0.5));
    book.add(NAME, setting, P99, kind, at(broken, 0.99));
    book.add(NAME, setting, P50_OVER_HEALTHY, kind, at(broken, 0.5) / at(healthy, 0.5));
    book.add(NAME, setting, P99_OVER_HEALTHY, kind, at(broken, 0.99) / at(healthy, 0.99));
    book.add(NAME, setting, FAILED, kind, broken.failed as f64 / broken.took.len() as f64 * 100.0);
}

fn setting_name(fault: Fault) -> String {
    fault.setting().replace(' ', "-")
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}
