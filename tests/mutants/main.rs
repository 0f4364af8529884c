//! Mutants of the safety rules: the library with one rule broken, which the tests have to notice.
//!
//! `cargo test --release --test mutants` breaks one rule after another in a copy of the sources and
//! has the simulation look for a schedule that shows it; the unit tests are asked only where it finds
//! none. Fails if a mutant survives, if its text is not in the sources exactly once, or if it does not
//! compile. `MUTANT=name` tries one (`name,name` several), `RUNS=` sets how many schedules each gets.
//!
//! The copy and what is built of it are in `target/mutants`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::similar_names,
    reason = "a program that tests, and says what it does"
)]

mod list;
mod bench;

use std::process::ExitCode;

use bench::{Bench, Trial};
use list::{MUTANTS, Mutant};

fn main() -> ExitCode {
    let chosen = chosen();
    let bench = Bench::set_up(&chosen);
    let mut trials = Vec::new();
    for mutant in chosen {
        println!("\n{}, against the rule: {}", mutant.name, mutant.rule);
        let trial = bench.try_out(mutant);
        println!("    {}", trial.fate);
        trials.push((mutant, trial));
    }
    println!("\n{}", table(&trials));
    let failed: Vec<&str> =
        trials.iter().filter(|(_, t)| t.fate.is_failure()).map(|(m, _)| m.name).collect();
    println!("{} mutants, not killed: {failed:?}", trials.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn chosen() -> Vec<&'static Mutant> {
    let Ok(names) = std::env::var("MUTANT") else { return MUTANTS.iter().collect() };
    let named = |name| MUTANTS.iter().find(|mutant| mutant.name == name);
    let names = names.split(',');
    names.map(|name| named(name).unwrap_or_else(|| panic!("no mutant is called {name}"))).collect()
}

fn table(trials: &[(&Mutant, Trial)]) -> String {
    let row = |name: &str, by: &str, seed: &str, build: &str, run: &str| {
        format!("{name:45} {by:60} {seed:>6} {build:>7} {run:>6}\n")
    };
    let mut table = row("mutant", "killed by", "seed", "build s", "run s");
    for (mutant, Trial { fate, build, run }) in trials {
        let seed = fate.seed().map_or(String::new(), |seed| seed.to_string());
        let [build, run] = [build, run].map(|time| format!("{:.1}", time.as_secs_f64()));
        table += &row(mutant.name, fate.killer(), &seed, &build, &run);
    }
    table
}
