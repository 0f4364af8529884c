//! A run: rounds of faults, after each of which all comes to rest and is looked at.

use std::{env, fmt::Write as _, fs, process::ExitCode, sync::Arc, time::Duration};

use crate::{
    assumptions::Persistence,
    client::{self, Seen, Setup, Slot},
    clock,
    event::TTL_MAX,
    fault::{CLIENTS, Done, JUMP_MAX_MS},
    judge::{Verdict, judge},
    masters::Masters,
    nemesis::World,
    owner::Run,
    plan::{Round, Terms, rounds},
    report::Totals,
    resource, selfcheck,
    worker::{OWN, PROGRESS_WITHIN},
};

const SECONDS: u64 = 120;
/// From so many seconds on, every kind of fault has to have been there.
const SECONDS_FOR_ALL: u64 = 100;
/// How long the clients may take to come to rest: an acquisition that is under way, and one of each.
const RESTS_WITHIN: Duration = PROGRESS_WITHIN.saturating_mul(3);
/// How soon nothing is left of clients that live.
const CLEAN_WITHIN: Duration = Duration::from_secs(2);
/// How many violations are printed.
const PRINTED: usize = 10;

struct Settings {
    seed: u64,
    seconds: u64,
    persistence: Persistence,
}

impl Settings {
    fn read() -> Self {
        let number = |name| env::var(name).ok().map(|value| value.parse().expect("a number"));
        let persistence = match env::var("CHAOS_PERSISTENCE").as_deref() {
            Ok("volatile") => Persistence::Volatile,
            _ => Persistence::Durable,
        };
        Self {
            seed: number("SEED").unwrap_or(0),
            seconds: number("CHAOS_SECONDS").unwrap_or(SECONDS),
            persistence,
        }
    }
}

pub(crate) fn main() -> ExitCode {
    selfcheck::all();
    let settings = Settings::read();
    let run = Run::begin();
    let Settings { seed, seconds, persistence } = settings;
    let masters = Masters::start(&run, persistence);
    let clocks = if masters.has_clocks { "can" } else { "cannot" };
    println!(
        "chaos: seed {seed}, {seconds} s, {persistence:?} masters as {}; their clocks {clocks} be moved",
        masters.what
    );
    let terms = Terms { has_clocks: masters.has_clocks };
    let links = World::links(&masters);
    let urls =
        |links: &Vec<_>| links.iter().map(crate::support::Proxy::url).collect::<Vec<_>>().join(",");
    let setup = Arc::new(Setup {
        seed,
        resource: resource::serve().to_string(),
        urls: links.iter().map(urls).collect(),
        dir: run.dir.clone(),
    });
    let clients = (0..CLIENTS).map(|slot| Slot::new(slot, &setup)).collect();
    let world = World { clients, links, masters };

    let mut totals = Totals::default();
    let plan = rounds(seed, seconds, terms);
    for (number, round) in plan.iter().enumerate() {
        let began = clock::now();
        let (verdict, done, residue) = play(&world, round, number, persistence, &run);
        let broken = if round.breaks_assumptions { "broken" } else { "kept" };
        println!(
            "round {} of {}: {:.1?}, assumptions {broken}, {} steps, {} locks, {} excused, {} keys left, \
             {} violations",
            number + 1,
            plan.len(),
            clock::now() - began,
            done.len(),
            verdict.counts.locks,
            verdict.excused.len(),
            residue,
            verdict.violations.len(),
        );
        totals.add(verdict, &done, residue);
        if !totals.violations.is_empty() {
            break;
        }
    }
    if totals.violations.is_empty() {
        totals.violations.extend(end(&world));
        let faults = totals.faults();
        let missing = terms.kinds().into_iter().filter(|kind| !faults.contains_key(kind));
        let missing: Vec<_> = missing.collect();
        if seconds >= SECONDS_FOR_ALL && !missing.is_empty() {
            totals.violations.push(format!("faults that did not come: {missing:?}"));
        }
    }
    println!("\n{}", totals.print());
    if totals.violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    world.masters.logs(&run.dir);
    run.keep();
    for violation in totals.violations.iter().take(PRINTED) {
        println!("VIOLATION {violation}");
    }
    println!(
        "chaos: failed. Logs: {}\nThe same faults again: SEED={seed} CHAOS_SECONDS={seconds} cargo test --test chaos",
        run.dir.display()
    );
    ExitCode::FAILURE
}

/// One round: faults, rest, and what came of it.
fn play(
    world: &World,
    round: &Round,
    number: usize,
    persistence: Persistence,
    run: &Run,
) -> (Verdict, Vec<Done>, usize) {
    world.clients.iter().for_each(|client| client.command("go"));
    let done = world.suffer(round);
    world.heal();
    let well = clock::now();
    let mut violations = Vec::new();
    world.clients.iter().for_each(|client| client.command(&format!("rest {}", number + 1)));
    for client in &world.clients {
        let rests = client.wait_for(&format!("rests {}", number + 1), well + RESTS_WITHIN);
        violations.extend(rests.err());
    }
    let residue = residue(world, round.kills_clients);
    let left = residue.len();
    violations.extend(residue.into_iter().map(|key| format!("residue: {key}")));
    let seen: Vec<Seen> = world.clients.iter().flat_map(Slot::read).collect();
    let mut verdict = judge(&seen, &done, persistence, well);
    verdict.violations.splice(0..0, violations);
    write_down(run, number, round, &done, &verdict);
    (verdict, done, left)
}

/// What is left on the masters when nobody holds anything, after as long as it may take.
///
/// What clients leave that were killed goes with its ttl. Locks that only one task takes tell whose they
/// are; of the others nobody knows.
fn residue(world: &World, were_killed: bool) -> Vec<String> {
    let began = clock::now();
    let dead: Vec<String> =
        world.clients.iter().flat_map(Slot::dead).map(|n| n.to_string()).collect();
    let of_the_dead = |lock: &str| {
        let owner = lock.strip_prefix(OWN).and_then(|lock| lock.split('-').next());
        owner.is_some_and(|owner| dead.iter().any(|dead| dead == owner))
    };
    let patience = |lock: &str| match (of_the_dead(lock), lock.starts_with(OWN) || !were_killed) {
        (true, _) => Duration::MAX,
        (false, true) => CLEAN_WITHIN,
        // By the clocks of the masters, which may have been set back.
        (false, false) => {
            TTL_MAX + Duration::from_millis(JUMP_MAX_MS.unsigned_abs()) + CLEAN_WITHIN
        }
    };
    loop {
        let waited = clock::now() - began;
        let mut locked = world.masters.locked();
        locked.retain(|(lock, _)| patience(lock) != Duration::MAX);
        let is_due = locked.iter().any(|(lock, _)| waited > patience(lock));
        if locked.is_empty() || is_due {
            return locked.into_iter().map(|(_, what)| what).collect();
        }
        clock::sleep_until(clock::now() + Duration::from_millis(20));
    }
}

/// The clients end by themselves, and nothing is left of them.
fn end(world: &World) -> Vec<String> {
    let patience = clock::now() + Duration::from_secs(10);
    world.clients.iter().for_each(|client| client.command("end"));
    let ended = world.clients.iter().map(|client| client.wait_for("ended", patience));
    let mut violations: Vec<String> = ended.filter_map(Result::err).collect();
    violations.extend(residue(world, false));
    let seen: Vec<Seen> = world.clients.iter().flat_map(Slot::read).collect();
    violations.extend(judge(&seen, &[], Persistence::Durable, clock::now()).violations);
    violations
}

/// For whoever looks into a run that failed.
fn write_down(run: &Run, number: usize, round: &Round, done: &[Done], verdict: &Verdict) {
    let mut text = format!("{round:#?}\n");
    for done in done {
        writeln!(
            text,
            "{} .. {} {}: {:?}",
            done.from.as_nanos(),
            done.until.as_nanos(),
            done.target,
            done.action
        )
        .unwrap();
    }
    verdict.excused.iter().for_each(|what| writeln!(text, "excused: {what}").unwrap());
    verdict.violations.iter().for_each(|what| writeln!(text, "VIOLATION {what}").unwrap());
    for what in client::complaints(run) {
        writeln!(text, "{what}").unwrap();
    }
    fs::write(run.dir.join(format!("round-{}", number + 1)), text).expect("the folder of the run");
}
