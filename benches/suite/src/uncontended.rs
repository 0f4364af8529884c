//! A lock that nobody else wants, taken and given back.

use std::{process::Command, time::Duration};

use crate::{
    book::{Book, Metric},
    child::{self, Running},
    cpu,
    locker::{Kind, Locker, TTL},
    measure::{Seen, pairs},
    plan::{Plan, runtime},
    servers::Servers,
    support::Fleet,
};

pub const NAME: &str = "uncontended";

const MASTERS: [usize; 4] = [1, 3, 5, 7];
const TASKS: [usize; 3] = [1, 64, 512];
const KINDS: &[Kind] = Kind::ALL;

const RAW_P50: Metric = Metric::new("one command, p50", "µs");
const RAW_RATE: Metric = Metric::new("commands a second", "");

pub fn setting(masters: usize, tasks: usize) -> String {
    let masters = if masters == 1 { "1 master".to_owned() } else { format!("{masters} masters") };
    format!("{masters}, {tasks} task{}", if tasks == 1 { "" } else { "s" })
}

pub fn run(plan: Plan, book: &mut Book) {
    for masters in plan.settings(&MASTERS).iter().copied() {
        let servers = Servers::start(masters);
        for tasks in plan.settings(&TASKS).iter().copied() {
            let setting = setting(masters, tasks);
            // The targets are about five, and one repetition says little on a machine that is shared.
            let repetitions = if masters == 5 { 15 } else { 7 };
            for _ in 0..plan.pick(repetitions, 2) {
                for kind in KINDS {
                    repetition(plan, book, &servers, (&setting, tasks), *kind);
                }
                if masters == 1 {
                    raw(plan, book, servers.fleet(), &setting, tasks);
                }
            }
        }
    }
}

/// One process alone, as most that use a lock use one kind.
fn repetition(
    plan: Plan,
    book: &mut Book,
    servers: &Servers,
    (setting, tasks): (&str, usize),
    kind: Kind,
) {
    // Before it counts, so that connections are open, scripts known and buffers grown.
    let warm_up = plan.ms(250, 50).as_millis().to_string();
    let time = plan.ms(400, 50).as_millis().to_string();
    servers.of(kind, |urls, pids| {
        let tasks = tasks.to_string();
        let urls = urls.join(",");
        let mut child = Running::start(&["pairs", kind.name(), &urls, &tasks, &warm_up, &time]);
        child.ready();
        let before = cpu::of(pids);
        child.go();
        let seen = Seen::read(&child.line());
        let server_cpu = cpu::of(pids).saturating_sub(before);
        seen.note(book, NAME, setting, kind, server_cpu);
        // Until it has given back what it had.
        child.rest();
    });
}

/// What a child does. Instead of addresses it takes a number of servers to start, for a profiler.
pub fn child_pairs(arguments: &[&str]) {
    let [kind, urls, tasks, warm_up, time] = arguments else { panic!("{arguments:?}") };
    let kind = Kind::named(kind).expect("a kind");
    let tasks = tasks.parse().expect("tasks");
    let [warm_up, time] =
        [warm_up, time].map(|text| Duration::from_millis(text.parse().expect("milliseconds")));
    let own = urls.parse().ok().map(Fleet::start);
    let urls = match &own {
        Some(fleet) => fleet.urls(),
        None => urls.split(',').map(str::to_owned).collect(),
    };
    runtime().block_on(async {
        let locker = Locker::connect(kind, &urls, TTL).await.expect("connected");
        pairs(&locker, tasks, warm_up).await;
        child::ready();
        println!("{}", pairs(&locker, tasks, time).await.line());
        drop(tokio::time::timeout(Duration::from_secs(1), locker.shutdown()).await);
    });
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
