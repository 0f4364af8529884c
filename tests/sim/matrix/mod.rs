//! Objections to locks with a ttl, each in every mode: what was observed, as the table in
//! `docs/kleppmann/README.md`.
//!
//! `UPDATE_MATRIX=1 cargo test --test sim matrix` writes the table; without it a table that differs is a
//! failure.

mod scene;
mod schedules;

use std::{env, fmt::Write as _, fs, path::Path};

use scene::{Admission, Disk, Masters, Mode, Seen};
use schedules::{SCHEDULES, Schedule};

const DOCS: &str = "docs/kleppmann/README.md";
const BEGIN: &str = "<!-- matrix -->\n";
const END: &str = "<!-- /matrix -->\n";
const HEAD: &str = "\
| chapter | what happens | masters | single node | single node, fenced | quorum | quorum, fenced |
|---|---|---|---|---|---|---|
";
/// Single or not, fenced or not, in the order of the columns.
const COLUMNS: [(bool, bool); 4] = [(true, false), (true, true), (false, false), (false, true)];

/// What each mode comes to, for one kind of masters.
type Row = [String; 4];

fn all_masters() -> Vec<Masters> {
    let admissions = [Admission::On, Admission::Trusting, Admission::Off];
    let of = |disk| admissions.map(|admission| Masters { disk, admission });
    [of(Disk::Volatile), of(Disk::Durable)].concat()
}

/// One run in a virtual time of its own.
fn run(schedule: Schedule, mode: Mode, with_fault: bool) -> Seen {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(schedules::run(schedule, mode, with_fault))
}

fn row(schedule: Schedule, masters: Masters, with_fault: bool) -> Row {
    COLUMNS.map(|(is_single, is_fenced)| {
        let mode = Mode { is_single, is_fenced, masters };
        cell(run(schedule, mode, with_fault), is_fenced)
    })
}

/// What is behind a fence is safe as long as the tokens are in order and no late write was taken.
fn cell(seen: Seen, is_fenced: bool) -> String {
    let harms = [
        (seen.two_holders, "two holders"),
        (seen.late_write, "late write"),
        (seen.tokens_back, "tokens go back"),
        (seen.holder_refused, "holder refused"),
    ];
    let harms: Vec<&str> =
        harms.into_iter().filter_map(|(seen, what)| seen.then_some(what)).collect();
    let is_unsafe = seen.late_write
        || seen.tokens_back
        || seen.holder_refused
        || (seen.two_holders && !is_fenced);
    let refused = seen.late_refused.then_some("late write refused");
    match (is_unsafe, seen.unavailable) {
        (true, false) => format!("**unsafe**: {}", harms.join(", ")),
        (true, true) => format!("unavailable, then **unsafe**: {}", harms.join(", ")),
        (false, true) => "unavailable".to_owned(),
        (false, false) => match harms.into_iter().chain(refused).collect::<Vec<_>>()[..] {
            [] => "safe".to_owned(),
            ref what => format!("safe: {}", what.join(", ")),
        },
    }
}

/// The kinds of masters that come to the same, in words.
fn words(group: &[Masters]) -> String {
    if group.len() == all_masters().len() {
        return "any".to_owned();
    }
    let of = |disk, name: &str| {
        let admissions = group.iter().filter(|masters| masters.disk == disk);
        let admissions: Vec<&str> = admissions
            .map(|masters| match masters.admission {
                Admission::On => "on",
                Admission::Trusting => "trusting",
                Admission::Off => "off",
            })
            .collect();
        (!admissions.is_empty()).then(|| format!("{name}, admission {}", admissions.join(" or ")))
    };
    let disks = [of(Disk::Volatile, "volatile"), of(Disk::Durable, "durable")];
    disks.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn table() -> String {
    let mut table = HEAD.to_owned();
    for (chapter, schedule, what) in SCHEDULES {
        let mut groups: Vec<(Vec<Masters>, Row)> = Vec::new();
        for masters in all_masters() {
            let row = row(schedule, masters, true);
            match groups.iter_mut().find(|(_, of_group)| *of_group == row) {
                Some((group, _)) => group.push(masters),
                None => groups.push((vec![masters], row)),
            }
        }
        for (group, row) in groups {
            let (masters, cells) = (words(&group), row.join(" | "));
            writeln!(table, "| {chapter} | {what} | {masters} | {cells} |").unwrap();
        }
    }
    table
}

/// What is before the table, the table, and what is after it.
fn split(docs: &str) -> (&str, &str, &str) {
    let (before, rest) = docs.split_once(BEGIN).expect("the table begins");
    let (table, after) = rest.split_once(END).expect("the table ends");
    (before, table, after)
}

#[test]
fn the_table_in_the_docs_is_what_was_observed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCS);
    let docs = fs::read_to_string(&path).unwrap();
    let (before, written, after) = split(&docs);
    let observed = table();
    println!("{observed}");
    if env::var_os("UPDATE_MATRIX").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{observed}{END}{after}")).unwrap();
        return;
    }
    for (written, observed) in written.lines().zip(observed.lines()) {
        assert_eq!(written, observed, "left: {DOCS}, right: the run (UPDATE_MATRIX=1 writes it)");
    }
    assert_eq!(written.lines().count(), observed.lines().count());
}

// The same schedules on a day on which nothing goes wrong: it is the faults that do it.
#[test]
fn without_its_fault_every_cell_is_safe() {
    for (_, schedule, what) in SCHEDULES {
        for masters in all_masters() {
            let row = row(schedule, masters, false);
            assert_eq!(row, ["safe"; 4], "{what}, {masters:?}");
        }
    }
}
