//! Measures quorumlock beside other locks, and writes what was seen.
//!
//! `benches/run [--quick | --smoke] [--out DIR] [SCENARIO…]`, or this program with the same arguments.
//! The scenarios are `uncontended`, `failing`, `contention`, `renewals` and `wide-area`; all of them
//! without a name. It prints a line for each figure: `scenario/setting/metric ours peer ratio`.
//! A full run of all writes `docs/benchmarks.md` and its plots; other runs do so only with `--out`.
//!
//! All servers and clients are processes of this run on 127.0.0.1, and end with it.

use std::{env, path::PathBuf, process::ExitCode, time::Instant};

mod book;
mod child;
mod contention;
mod cpu;
#[cfg(feature = "etcd")]
mod etcd;
mod failing;
mod floor;
mod locker;
mod machine;
mod measure;
mod plan;
mod plot;
mod renewals;
mod report;
mod servers;
mod targets;
mod uncontended;
mod wide_area;
/// The servers and the proxy of the library's tests.
#[path = "../../../tests/support/mod.rs"]
mod support;

use book::Book;
use plan::Plan;

type Scenario = fn(Plan, &mut Book);

const SCENARIOS: [(&str, Scenario); 5] = [
    (uncontended::NAME, uncontended::run),
    (failing::NAME, failing::run),
    (contention::NAME, contention::run),
    (renewals::NAME, renewals::run),
    (wide_area::NAME, wide_area::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [child::ARGUMENT, "pairs", ref rest @ ..] => uncontended::child_pairs(rest),
        [child::ARGUMENT, "contend", ref rest @ ..] => contention::contend(rest),
        [child::ARGUMENT, "hold", ref rest @ ..] => renewals::child_holds(rest),
        [child::ARGUMENT, "wait", ref rest @ ..] => renewals::child_waits(rest),
        _ => match Wish::read(&arguments) {
            Ok(wish) => return wish.fulfil(),
            Err(what) => {
                eprintln!("{what}\n\nbenches/run [--quick | --smoke] [--out DIR] [SCENARIO…]");
                return ExitCode::from(2);
            }
        },
    }
    ExitCode::SUCCESS
}

/// What the caller asks for.
struct Wish {
    plan: Plan,
    scenarios: Vec<(&'static str, Scenario)>,
    /// Where the report goes.
    out: Option<PathBuf>,
}

impl Wish {
    fn read(arguments: &[&str]) -> Result<Self, String> {
        let (mut plan, mut out, mut scenarios) = (Plan::Full, None, Vec::new());
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--quick" => plan = Plan::Quick,
                "--smoke" => plan = Plan::Smoke,
                "--out" => {
                    out = Some(arguments.next().ok_or("--out needs a folder")?.into());
                }
                name => {
                    let known = SCENARIOS.iter().find(|(known, _)| known.replace(' ', "-") == name);
                    scenarios.push(*known.ok_or_else(|| format!("there is no scenario {name}"))?);
                }
            }
        }
        if scenarios.is_empty() {
            scenarios = SCENARIOS.to_vec();
            if plan == Plan::Full && out.is_none() {
                out = Some(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")));
            }
        }
        Ok(Self { plan, scenarios, out })
    }

    fn fulfil(self) -> ExitCode {
        let mut book = Book::default();
        let started = Instant::now();
        for (name, run) in self.scenarios {
            run(self.plan, &mut book);
            let lines = book.lines(name);
            print!("{lines}");
            if lines.is_empty() {
                eprintln!("{name}: no figures");
                return ExitCode::FAILURE;
            }
        }
        for target in targets::all(&book) {
            let (seen, limit) = (target.seen_text(), target.limit_text());
            println!("target {}: {}, {limit}: {seen}", target.verdict(), target.text);
        }
        println!("took {:.0} s", started.elapsed().as_secs_f64());
        if let Some(out) = self.out {
            report::write(&book, self.plan, started.elapsed(), &out)
                .expect("the report is written");
            println!("wrote {}", out.join("benchmarks.md").display());
        }
        ExitCode::SUCCESS
    }
}
