//! One lock that many want: how fast it changes hands, and how long each has to wait.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use crate::{
    book::{Book, Metric, quantile},
    child::{self, Running},
    locker::{Kind, Locker, TTL},
    plan::Plan,
    servers::Servers,
    support::{Fleet, Server},
};

pub const NAME: &str = "contention";

pub const HANDOFFS: Metric = Metric::new("handoffs a second", "");
pub const WAIT_P50: Metric = Metric::new("wait p50", "ms");
pub const WAIT_P99: Metric = Metric::new("wait p99", "ms");
pub const WAIT_MAX: Metric = Metric::new("longest wait", "ms");
pub const OVER_FAIR: Metric = Metric::new("wait p99 over the fair share", "");
pub const FAIRNESS: Metric = Metric::new("fairness (Jain)", "");
pub const COMMANDS: Metric = Metric::new("commands for each node and handoff", "");

const MASTERS: usize = 5;
const HOLD: Duration = Duration::from_millis(1);
/// Processes, and tasks in each.
const CELLS: [(usize, usize); 7] =
    [(2, 1), (10, 1), (50, 1), (1, 2), (1, 100), (1, 1_000), (10, 100)];
const KINDS: &[Kind] = &[
    Kind::Ours,
    Kind::Fenced,
    Kind::Rslock,
    Kind::Distributed,
    #[cfg(feature = "etcd")]
    Kind::Etcd,
];

pub fn setting(processes: usize, tasks: usize) -> String {
    match (processes, tasks) {
        (1, tasks) => format!("1 process of {tasks} tasks"),
        (processes, 1) => format!("{processes} processes"),
        (processes, tasks) => format!("{processes} processes of {tasks} tasks"),
    }
}

pub fn run(plan: Plan, book: &mut Book) {
    let servers = Servers::start(MASTERS);
    let mut turn = 0;
    for (processes, tasks) in plan.settings(&CELLS).iter().copied() {
        for _ in 0..plan.pick(3, 1) {
            for kind in KINDS {
                turn += 1;
                // All wait at the beginning: it goes on for longer than once round.
                let once_round = Duration::from_millis(2 * (processes * tasks) as u64);
                let (warm_up, time) = (plan.ms(500, 200).max(once_round), plan.ms(2_500, 700));
                let contest = Contest { kind: *kind, processes, tasks, warm_up, time };
                let resource = format!("contended-{turn}");
                servers.of(*kind, |urls, _| {
                    contest.hold(book, servers.fleet(), &urls.join(","), &resource);
                });
            }
        }
    }
}

struct Contest {
    kind: Kind,
    processes: usize,
    tasks: usize,
    /// How long they contend before it counts: until all have their connections, and have had it once.
    warm_up: Duration,
    time: Duration,
}

impl Contest {
    fn hold(&self, book: &mut Book, fleet: &Fleet, urls: &str, resource: &str) {
        let Self { kind, processes, tasks, warm_up, time } = self;
        let arguments = [
            "contend",
            kind.name(),
            urls,
            resource,
            &tasks.to_string(),
            &warm_up.as_millis().to_string(),
            &time.as_millis().to_string(),
        ];
        let mut children: Vec<_> = (0..*processes).map(|_| Running::start(&arguments)).collect();
        children.iter_mut().for_each(Running::ready);
        children.iter_mut().for_each(Running::go);
        thread::sleep(*warm_up);
        let before = commands(fleet, *kind);
        let contenders: Vec<Waits> =
            children.into_iter().flat_map(Running::rest).map(|line| Waits::read(&line)).collect();
        let used = commands(fleet, *kind) - before;

        let setting = setting(*processes, *tasks);
        let mut add = |metric, sample| book.add(NAME, &setting, metric, *kind, sample);
        let got: Vec<f64> = contenders.iter().map(|waits| waits.got.len() as f64).collect();
        let handoffs: f64 = got.iter().sum();
        // Who still waited at the end would have had to wait for longer.
        let mut waits: Vec<u64> = contenders.iter().flat_map(Waits::all).collect();
        waits.sort_unstable();
        let ms = |share| quantile(&waits, share).map_or(f64::NAN, |us| us as f64 / 1_000.0);
        let fair = got.len() as f64 * time.as_secs_f64() * 1_000.0 / handoffs;
        add(HANDOFFS, handoffs / time.as_secs_f64());
        add(WAIT_P50, ms(0.5));
        add(WAIT_P99, ms(0.99));
        add(WAIT_MAX, ms(1.0));
        if handoffs > 0.0 && !kind.commands().is_empty() {
            add(COMMANDS, used as f64 / MASTERS as f64 / handoffs);
        }
        // Where not everybody can have had two turns, these say nothing.
        if fair * 2.0 < time.as_secs_f64() * 1_000.0 {
            let squares: f64 = got.iter().map(|got| got * got).sum();
            add(OVER_FAIR, ms(0.99) / fair);
            add(FAIRNESS, handoffs * handoffs / (got.len() as f64 * squares));
        }
    }
}

/// How many commands clients of this kind have sent. What scripts call does not count.
pub fn commands(fleet: &Fleet, kind: Kind) -> u64 {
    let calls =
        |server: &Server| kind.commands().iter().map(|name| server.calls(name)).sum::<u64>();
    fleet.iter().map(calls).sum()
}

/// How long one contender waited each time, in microseconds.
struct Waits {
    got: Vec<u64>,
    /// The wait that the end of the run cut short.
    cut: Option<u64>,
}

impl Waits {
    fn all(&self) -> impl Iterator<Item = u64> {
        self.got.iter().copied().chain(self.cut)
    }

    fn line(&self) -> String {
        let got: Vec<String> = self.got.iter().map(u64::to_string).collect();
        format!("{};{}", got.join(","), self.cut.map_or(String::new(), |cut| cut.to_string()))
    }

    fn read(line: &str) -> Self {
        let (got, cut) = line.split_once(';').expect("a line of waits");
        Self {
            got: got.split(',').filter_map(|us| us.parse().ok()).collect(),
            cut: cut.parse().ok(),
        }
    }
}

/// What a child does: its tasks want the lock again and again until the time is up.
pub fn contend(arguments: &[&str]) {
    let [kind, urls, resource, tasks, warm_up, time] = arguments else { panic!("{arguments:?}") };
    let kind = Kind::named(kind).expect("a kind");
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let tasks = tasks.parse().expect("tasks");
    let [warm_up, time] =
        [warm_up, time].map(|text| Duration::from_millis(text.parse().expect("milliseconds")));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let first = Locker::connect(kind, &urls, TTL).await.expect("connected");
        let mut lockers = Vec::new();
        for _ in 0..tasks {
            lockers.push(first.contender().await.expect("a contender"));
        }
        child::ready();
        let begin = Instant::now() + warm_up;
        let tasks: Vec<_> = lockers
            .into_iter()
            .map(|locker| tokio::spawn(want(locker, (*resource).to_owned(), begin, begin + time)))
            .collect();
        for task in tasks {
            println!("{}", task.await.expect("a task that ends").line());
        }
        drop(tokio::time::timeout(Duration::from_secs(1), first.shutdown()).await);
    });
}

async fn want(locker: Locker, resource: String, begin: Instant, end: Instant) -> Waits {
    let mut waits = Waits { got: Vec::new(), cut: None };
    while Instant::now() < end {
        let started = Instant::now();
        let waited = tokio::time::timeout_at(end.into(), async {
            loop {
                if let Ok(held) = locker.acquire(&resource).await {
                    return held;
                }
                tokio::task::yield_now().await;
            }
        });
        let waited = waited.await;
        let acquired = Instant::now();
        let took = (acquired - started).as_micros() as u64;
        let Ok(held) = waited else {
            waits.cut = Some(took);
            return waits;
        };
        if acquired >= begin {
            waits.got.push(took);
        }
        // A timer of the runtime would take up to twice as long, and a thread sleeps up to a tenth longer; to
        // come back from one takes some hundredths.
        let spin = move |until| {
            while acquired.elapsed() < until {
                hint::spin_loop();
            }
        };
        let work = move || {
            thread::sleep(HOLD.mul_f64(0.8).saturating_sub(acquired.elapsed()));
            spin(HOLD.mul_f64(0.96));
        };
        tokio::task::spawn_blocking(work).await.expect("held");
        spin(HOLD);
        locker.release(held).await.ok();
    }
    waits
}
