//! Real masters, real clients in processes of their own, and a nemesis that breaks both by a seed.
//!
//! `cargo test --test chaos` runs two minutes of it; `CHAOS_SECONDS=` sets how long and `SEED=` what
//! happens. `docs/testing.md` says what it checks and how to read what it prints.
//!
//! This program is also each of the client processes, and the one that clears up after it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unchecked_time_subtraction,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::wildcard_enum_match_arm,
    reason = "a program that tests may panic, and says what it does"
)]

#[cfg(target_os = "linux")]
#[path = "../support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod event;
#[cfg(target_os = "linux")]
mod fault;
#[cfg(target_os = "linux")]
mod assumptions;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod resource;
#[cfg(target_os = "linux")]
mod worker;
#[cfg(target_os = "linux")]
mod owner;
#[cfg(target_os = "linux")]
mod masters;
#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod nemesis;
#[cfg(target_os = "linux")]
mod judge;
#[cfg(target_os = "linux")]
mod selfcheck;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod run;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", client, seed, urls, resource, log] => {
            worker::main(client, seed, urls, resource, log)
        }
        ["clear-up", run] => owner::clear_up_after(run),
        _ => run::main(),
    }
}

/// Processes are told apart, stamped and frozen by what Linux has for that.
#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    println!("chaos: runs on Linux only");
    ExitCode::SUCCESS
}
