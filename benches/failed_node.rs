//! What one frozen or dead master of five costs: acquire and release, beside a healthy fleet.
//!
//! `cargo bench --bench failed_node [-- PAIRS]`. The three fleets are measured in turn, pair by pair, so
//! that whatever else the machine does falls on all of them. The figures are ratios to the healthy one.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark may fail, and prints what it measured"
)]

use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use quorumlock::Redlock;

#[allow(dead_code, reason = "an example uses more of it")]
#[path = "../examples/support/masters.rs"]
mod masters;
use masters::Masters;

#[tokio::main]
async fn main() {
    let pairs = env::args().find_map(|arg| arg.parse().ok()).unwrap_or(5_000);
    let (healthy, frozen, dead) =
        (Masters::start(5).unwrap(), Masters::start(5).unwrap(), Masters::start(5).unwrap());
    let fleets = [&healthy, &frozen, &dead];
    let mut redlocks = Vec::new();
    for fleet in fleets {
        redlocks.push(Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap());
    }
    signal(&frozen, "-STOP");
    signal(&dead, "-KILL");
    // Each failure is noticed once; what it costs from then on is measured.
    for redlock in &redlocks {
        pair(redlock).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;

    let mut took = vec![Vec::with_capacity(pairs); redlocks.len()];
    for _ in 0..pairs {
        for (redlock, took) in redlocks.iter().zip(&mut took) {
            let started = Instant::now();
            pair(redlock).await;
            took.push(started.elapsed());
        }
    }
    for took in &mut took {
        took.sort_unstable();
    }
    let micros = |which: usize, percent: usize| {
        took[which][(pairs - 1) * percent / 100].as_secs_f64() * 1_000_000.0
    };
    for (which, name) in ["healthy", "one of five frozen", "one of five dead"].iter().enumerate() {
        println!(
            "failed_node/{name}: p50 {:.0} us ({:.2} of healthy), p99 {:.0} us ({:.2} of healthy)",
            micros(which, 50),
            micros(which, 50) / micros(0, 50),
            micros(which, 99),
            micros(which, 99) / micros(0, 99),
        );
    }
}

/// Sends a signal to the first master of a fleet.
fn signal(fleet: &Masters, signal: &str) {
    let address = fleet.urls()[0].trim_start_matches("redis://");
    let mut connection = TcpStream::connect(address).expect("a master");
    connection.write_all(b"INFO server\r\nQUIT\r\n").expect("a master");
    let mut info = String::new();
    connection.read_to_string(&mut info).expect("its process id");
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a process id");
    assert!(Command::new("kill").args([signal, pid.trim()]).status().expect("kill").success());
}

async fn pair(redlock: &Redlock) {
    redlock.try_acquire("bench").await.expect("granted").release().await.expect("released");
}
