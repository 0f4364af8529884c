//! One lock, many processes: how fast it changes hands, and how long each has to wait.
//!
//! `cargo bench --bench contention [-- CLIENTS SECONDS]`; 10 and 50 clients for 5 s each by default.
//! Each client is a process of its own, holds the lock for 1 ms, and wants it again at once.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "a benchmark may fail, and prints what it measured"
)]

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use quorumlock::Redlock;

#[allow(dead_code, reason = "an example uses more of it")]
#[path = "../examples/support/masters.rs"]
mod masters;
use masters::Masters;

const HOLD: Duration = Duration::from_millis(1);

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["client", urls, seconds] => client(urls, seconds.parse().unwrap()),
        [clients, seconds] => measure(clients.parse().unwrap(), seconds.parse().unwrap()),
        _ => {
            measure(10, 5);
            measure(50, 5);
        }
    }
}

/// Takes and gives back the lock until the time is up, and prints each wait in microseconds.
#[tokio::main(flavor = "current_thread")]
async fn client(urls: &str, seconds: u64) {
    let redlock =
        Redlock::builder().nodes(urls.split(',')).new_fleet().connect().await.expect("masters");
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut waits = Vec::new();
    while Instant::now() < end {
        let started = Instant::now();
        let guard = redlock.acquire("bench").await.expect("the lock");
        waits.push(started.elapsed().as_micros());
        // A timer of the runtime would take up to twice as long.
        tokio::task::spawn_blocking(|| thread::sleep(HOLD)).await.expect("slept");
        guard.release().await.expect("released");
    }
    redlock.shutdown().await;
    let mut out = std::io::stdout().lock();
    for wait in waits {
        writeln!(out, "{wait}").expect("stdout");
    }
}

fn measure(clients: usize, seconds: u64) {
    let masters = Masters::start(5).expect("masters");
    let urls = masters.urls().join(",");
    let before = commands(&masters);
    let exe = env::current_exe().expect("this program");
    let started: Vec<_> = (0..clients)
        .map(|_| {
            let mut child = Command::new(&exe);
            child.args(["client", &urls, &seconds.to_string()]).stdout(Stdio::piped());
            child.spawn().expect("a client")
        })
        .collect();
    let readers: Vec<_> = started
        .into_iter()
        .map(|mut child| {
            thread::spawn(move || {
                let out = BufReader::new(child.stdout.take().expect("piped"));
                let waits: Vec<u64> =
                    out.lines().map(|line| line.unwrap().parse().unwrap()).collect();
                child.wait().expect("ended");
                waits
            })
        })
        .collect();
    let per_client: Vec<Vec<u64>> = readers.into_iter().map(|r| r.join().unwrap()).collect();
    let mut waits: Vec<u64> = per_client.iter().flatten().copied().collect();
    waits.sort_unstable();
    let handoffs = waits.len() as f64;
    let at = |share: f64| waits[((handoffs - 1.0) * share) as usize] as f64 / 1_000.0;
    let (least, most) =
        (per_client.iter().map(Vec::len).min(), per_client.iter().map(Vec::len).max());
    let used = (commands(&masters) - before) as f64 / masters.urls().len() as f64 / handoffs;
    let per_second = handoffs / seconds as f64;
    let fair = clients as f64 / per_second * 1_000.0;
    println!(
        "contention/{clients}: {per_second:.0} handoffs/s, wait p50 {:.1} p99 {:.1} max {:.1} ms, p99 \
         over fair share {:.2}, locks per client {}..{}, {used:.1} commands per node and handoff",
        at(0.5),
        at(0.99),
        at(1.0),
        at(0.99) / fair,
        least.unwrap_or(0),
        most.unwrap_or(0),
    );
}

/// How many commands clients have sent to the masters. What scripts call does not count.
fn commands(masters: &Masters) -> u64 {
    masters.urls().iter().map(|url| sent(url.trim_start_matches("redis://"))).sum()
}

fn sent(address: &str) -> u64 {
    let mut connection = TcpStream::connect(address).expect("a master");
    connection.write_all(b"INFO commandstats\r\nQUIT\r\n").expect("a master");
    let mut stats = String::new();
    connection.read_to_string(&mut stats).expect("statistics");
    let by_clients = ["evalsha", "eval", "subscribe", "unsubscribe", "ping"];
    let lines =
        stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    lines
        .filter(|(command, _)| by_clients.contains(command))
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}
