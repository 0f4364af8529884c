//! Many locks that are held at once, and many tasks that wait for one.
//!
//! Each number of locks is held by a process of its own, so that its memory is its own.

use std::{
    collections::HashMap,
    panic,
    time::{Duration, Instant},
};

use quorumlock::Redlock;

use crate::{
    book::{Book, Metric},
    child::{self, Running},
    contention, cpu,
    locker::{Held, Kind, Locker},
    plan::{Plan, runtime},
    support::{Fleet, Reply, Server},
};

pub const NAME: &str = "renewals";

pub const CLIENT: Metric = Metric::new("client CPU, of one core", "%");
pub const SERVERS: Metric = Metric::new("server CPU, of one core", "%");
pub const COMMANDS: Metric = Metric::new("commands a second", "");
pub const MEMORY: Metric = Metric::new("memory for each lock", "B");
pub const WAITER_MEMORY: Metric = Metric::new("memory for each waiting task", "B");
pub const LOST: Metric = Metric::new("locks that say they are lost", "");
pub const KEPT: Metric = Metric::new("locks with their key on a majority at the end", "%");

const MASTERS: usize = 5;
/// How many tasks take the locks that are then held.
const TAKERS: usize = 64;

struct Cell {
    locks: usize,
    ttl: Duration,
    time: Duration,
    rounds: usize,
    kinds: &'static [Kind],
}

pub fn setting(locks: usize, ttl: Duration) -> String {
    format!("{} locks, ttl {} s", grouped(locks), ttl.as_secs())
}

pub fn waiting(tasks: usize) -> String {
    format!("{} tasks wait for one lock", grouped(tasks))
}

/// Digits in threes.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn run(plan: Plan, book: &mut Book) {
    let seconds = Duration::from_secs;
    let all = &[Kind::Ours, Kind::Fenced, Kind::Distributed];
    let cells = plan.pick(
        vec![
            Cell { locks: 1_000, ttl: seconds(10), time: seconds(10), rounds: 2, kinds: all },
            Cell {
                locks: 10_000,
                ttl: seconds(10),
                time: seconds(20),
                rounds: 3,
                kinds: &[Kind::Ours, Kind::Distributed],
            },
            Cell {
                locks: 100_000,
                ttl: seconds(30),
                time: seconds(30),
                rounds: 2,
                kinds: &[Kind::Ours],
            },
        ],
        vec![
            Cell { locks: 1_000, ttl: seconds(3), time: seconds(2), rounds: 1, kinds: all },
            Cell {
                locks: 10_000,
                ttl: seconds(10),
                time: seconds(4),
                rounds: 1,
                kinds: &[Kind::Ours],
            },
        ],
    );
    for cell in plan.settings(&cells) {
        for _ in 0..cell.rounds {
            for kind in cell.kinds {
                hold(book, cell, *kind);
            }
        }
    }
    for _ in 0..plan.pick(3, 1) {
        wait(book, 10_000);
    }
}

fn hold(book: &mut Book, cell: &Cell, kind: Kind) {
    let fleet = Fleet::start(MASTERS);
    let urls = fleet.urls().join(",");
    let (locks, ttl, time) = (
        cell.locks.to_string(),
        cell.ttl.as_millis().to_string(),
        cell.time.as_millis().to_string(),
    );
    let mut child = Running::start(&["hold", kind.name(), &urls, &locks, &ttl, &time]);
    child.ready();
    let servers: Vec<u32> = fleet.iter().map(Server::pid).collect();
    let (commands, cpu) = (contention::commands(&fleet, kind), cpu::of(&servers));
    child.go();
    let numbers: Vec<f64> = child.line().split(' ').filter_map(|n| n.parse().ok()).collect();
    let [client, memory, lost] = numbers[..] else { panic!("{numbers:?}") };
    let (commands, cpu) =
        (contention::commands(&fleet, kind) - commands, cpu::of(&servers).saturating_sub(cpu));
    let seconds = cell.time.as_secs_f64();
    let setting = setting(cell.locks, cell.ttl);
    let mut add = |metric, sample| book.add(NAME, &setting, metric, kind, sample);
    add(CLIENT, client / seconds * 100.0);
    add(SERVERS, cpu.as_secs_f64() / seconds * 100.0);
    add(COMMANDS, commands as f64 / seconds);
    add(MEMORY, memory / cell.locks as f64);
    add(LOST, lost);
    add(KEPT, on_majority(&fleet) as f64 / cell.locks as f64 * 100.0);
}

/// How many of the held locks have their key on a majority of the servers.
fn on_majority(fleet: &Fleet) -> usize {
    let mut servers_with = HashMap::<String, usize>::new();
    for server in fleet {
        let keys = server.command(&["KEYS", "*lock:held-*"]).into_array();
        for key in keys.into_iter().filter_map(Reply::into_text) {
            *servers_with.entry(key).or_default() += 1;
        }
    }
    servers_with.values().filter(|servers| **servers > MASTERS / 2).count()
}

fn wait(book: &mut Book, tasks: usize) {
    let fleet = Fleet::start(MASTERS);
    let mut child = Running::start(&["wait", &fleet.urls().join(","), &tasks.to_string()]);
    let memory: f64 = child.line().parse().expect("a number");
    book.add(NAME, &waiting(tasks), WAITER_MEMORY, Kind::Ours, memory / tasks as f64);
}

/// What a child does that holds: takes all locks, and prints its CPU seconds, the memory that the locks
/// took and how many were lost.
pub fn child_holds(arguments: &[&str]) {
    let [kind, urls, locks, ttl, time] = arguments else { panic!("{arguments:?}") };
    let kind = Kind::named(kind).expect("a kind");
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let ms = |text: &str| Duration::from_millis(text.parse().expect("milliseconds"));
    let (locks, ttl, time): (usize, _, _) = (locks.parse().expect("locks"), ms(ttl), ms(time));
    if kind == Kind::Distributed {
        // Its renewing tasks panic when they look again at an answer that they have had. What becomes of
        // the locks is measured.
        panic::set_hook(Box::new(|_| {}));
    }
    runtime().block_on(async {
        let locker = Locker::connect(kind, &urls, ttl).await.expect("connected");
        // What the first locks need of buffers is needed once.
        for held in take(&locker, "first", TAKERS * 4).await.into_iter().flatten() {
            locker.release(held).await.expect("released");
        }
        let before = cpu::resident();
        let held = take(&locker, "held", locks).await;
        let memory = cpu::resident().saturating_sub(before);
        // The first renewals are over by then, and go on evenly.
        tokio::time::sleep(ttl / 3).await;
        child::ready();
        let (cpu, started) = (cpu::of_self(), Instant::now());
        tokio::time::sleep(time.saturating_sub(started.elapsed())).await;
        let cpu = cpu::of_self().saturating_sub(cpu);
        let lost = held.iter().flatten().filter(|held| held.is_lost()).count();
        println!("{} {memory} {lost}", cpu.as_secs_f64());
        // At once: what is dropped is released, and the servers are asked for it yet.
        std::process::exit(0)
    });
}

/// The locks, by who took them.
async fn take(locker: &Locker, name: &'static str, locks: usize) -> Vec<Vec<Held>> {
    let takers: Vec<_> = (0..TAKERS)
        .map(|taker| {
            let locker = locker.clone();
            tokio::spawn(async move {
                let mut held = Vec::with_capacity(locks / TAKERS + 1);
                for lock in (taker..locks).step_by(TAKERS) {
                    held.push(locker.acquire(&format!("{name}-{lock}")).await.expect("taken"));
                }
                held
            })
        })
        .collect();
    let mut held = Vec::with_capacity(TAKERS);
    for taker in takers {
        held.push(taker.await.expect("taken"));
    }
    held
}

/// What a child does that waits: prints the memory that its waiting tasks take, the tasks included.
pub fn child_waits(arguments: &[&str]) {
    let [urls, tasks] = arguments else { panic!("{arguments:?}") };
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let tasks: usize = tasks.parse().expect("tasks");
    runtime().block_on(async {
        // Not by `Locker`, whose futures have room for those of all peers.
        let redlock =
            Redlock::builder().nodes(urls).new_fleet().connect().await.expect("connected");
        let _held = redlock.try_acquire("wanted").await.expect("free");
        let before = cpu::resident();
        for _ in 0..tasks {
            let redlock = redlock.clone();
            tokio::spawn(async move { redlock.acquire("wanted").await.map(drop) });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!("{}", cpu::resident().saturating_sub(before));
    });
    std::process::exit(0);
}
