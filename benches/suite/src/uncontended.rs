//! A lock that nobody else wants, taken and given back.

use std::{process::Command, time::Duration};

use crate::{
    book::{Book, Metric},
    locker::{Kind, Locker, TTL},
    measure::{repetition, warm_up},
    plan::{Plan, runtime},
    support::{Fleet, Server},
};

pub const NAME: &str = "uncontended";

const MASTERS: [usize; 4] = [1, 3, 5, 7];
const TASKS: [usize; 3] = [1, 64, 512];
const KINDS: [Kind; 5] = [Kind::Ours, Kind::Fenced, Kind::Floor, Kind::Rslock, Kind::Distributed];

const RAW_P50: Metric = Metric::new("one command, p50", "µs");
const RAW_RATE: Metric = Metric::new("commands a second", "");

pub fn setting(masters: usize, tasks: usize) -> String {
    let masters = if masters == 1 { "1 master".to_owned() } else { format!("{masters} masters") };
    format!("{masters}, {tasks} task{}", if tasks == 1 { "" } else { "s" })
}

pub fn run(plan: Plan, book: &mut Book) {
    runtime().block_on(async {
        for masters in plan.settings(&MASTERS) {
            of_masters(plan, book, *masters).await;
        }
    });
}

async fn of_masters(plan: Plan, book: &mut Book, masters: usize) {
    let fleet = Fleet::start(masters);
    let servers: Vec<u32> = fleet.iter().map(Server::pid).collect();
    let mut lockers = Vec::new();
    for kind in KINDS {
        let locker = Locker::connect(kind, &fleet.urls(), TTL).await.expect("connected");
        lockers.push((kind, locker, servers.clone()));
    }
    #[cfg(feature = "etcd")]
    let cluster = crate::etcd::Cluster::start(masters).await.expect("etcd");
    #[cfg(feature = "etcd")]
    if masters <= 5 {
        let locker = Locker::connect(Kind::Etcd, cluster.urls(), TTL).await.expect("connected");
        lockers.push((Kind::Etcd, locker, cluster.pids()));
    }
    for tasks in plan.settings(&TASKS).iter().copied() {
        let setting = setting(masters, tasks);
        for (_, locker, _) in &lockers {
            warm_up(locker, tasks).await;
        }
        for _ in 0..plan.pick(7, 3) {
            for (kind, locker, servers) in &lockers {
                let subject = (*kind, locker.clone());
                let time = plan.ms(250, 50);
                repetition(book, NAME, &setting, &subject, (tasks, time), servers).await;
            }
            if masters == 1 {
                raw(plan, book, &fleet, &setting, tasks);
            }
        }
    }
    for (_, locker, _) in lockers {
        locker.shutdown().await;
    }
}

/// Pairs of one kind alone, for a profiler: `--child pairs KIND MASTERS TASKS MILLISECONDS`.
pub fn pairs(arguments: &[&str]) {
    let [kind, masters, tasks, time] = arguments else { panic!("{arguments:?}") };
    let number = |text: &str| text.parse().expect("a number");
    let kind = Kind::named(kind).expect("a kind");
    let fleet = Fleet::start(number(masters));
    let mut book = Book::default();
    runtime().block_on(async {
        let locker = Locker::connect(kind, &fleet.urls(), TTL).await.expect("connected");
        let time = Duration::from_millis(number(time) as u64);
        let subject = (kind, locker);
        repetition(&mut book, NAME, "alone", &subject, (number(tasks), time), &[]).await;
    });
    print!("{}", book.lines(NAME));
}

/// What the server does at best: `redis-benchmark` on a `SET` such as a lock makes.
fn raw(plan: Plan, book: &mut Book, fleet: &Fleet, setting: &str, tasks: usize) {
    let commands = plan.pick(10_000, 2_000) * if tasks == 1 { 1 } else { 3 };
    let port = fleet[0].port().to_string();
    let mut command = Command::new("redis-benchmark");
    command
        .args(["-h", "127.0.0.1", "-p", &port, "--csv", "-r", "1000000000"])
        .args(["-c", &tasks.to_string(), "-n", &commands.to_string()])
        .args(["SET", "raw:__rand_int__", "owner", "NX", "PX", "1000"]);
    let Ok(output) = command.output() else { return };
    let output = String::from_utf8_lossy(&output.stdout);
    // The name of the test is in quotes, and the numbers are behind it: commands a second, then the mean,
    // the least and the median latency in milliseconds.
    let Some(line) = output.lines().last() else { return };
    let fields: Vec<f64> =
        line.split(',').filter_map(|field| field.trim_matches('"').parse().ok()).collect();
    if let [rate, _, _, p50, ..] = fields[..] {
        book.add(NAME, setting, RAW_RATE, "redis-benchmark", rate);
        book.add(NAME, setting, RAW_P50, "redis-benchmark", p50 * 1_000.0);
    }
}
