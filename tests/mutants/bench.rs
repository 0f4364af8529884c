//! A copy of the sources in which a rule is broken, and the tests that have to notice.

use std::{
    env, fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::list::{Mutant, Witness};

/// After so long a run of tests hangs. The unmutated sources have to pass in far less.
const HANGS_AFTER: Duration = Duration::from_secs(45);
/// Enough for every mutant of the list, with room for seeds that come out otherwise.
const SCHEDULES: &str = "4000";
/// What of the repository is copied.
const COPIED: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", "src", "tests", "examples", "docs", "docker"];

pub(crate) struct Bench {
    /// The copy.
    tree: PathBuf,
    target: PathBuf,
    /// How many schedules a mutant gets.
    schedules: String,
    has_server: bool,
}

/// What came of one mutant.
pub(crate) struct Trial {
    pub(crate) fate: Fate,
    pub(crate) build: Duration,
    pub(crate) run: Duration,
}

pub(crate) enum Fate {
    Killed {
        by: String,
        /// Which schedule showed it.
        seed: Option<u64>,
        what: String,
    },
    Survived,
    /// The list is out of date: so often is its text in the file.
    Found(usize),
    NotCompiled(String),
    /// It takes a server to notice, and there is none.
    NoServer,
}

/// A part of the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    /// Schedules, and what every node has to do.
    Simulation,
    /// What is to happen in one situation, to the millisecond.
    Scenarios,
    Units,
    /// Those with this in their name.
    Servers(&'static str),
}

enum Run {
    Passed,
    Failed(String),
    Hung,
}

impl Bench {
    /// Copies the sources and has the suites pass that are to notice `mutants`: a mutant that fails
    /// together with the original is not killed.
    pub(crate) fn set_up(mutants: &[&Mutant]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tree = root.join("target/mutants/tree");
        if tree.exists() {
            fs::remove_dir_all(&tree).expect("the old copy can be removed");
        }
        for name in COPIED {
            copy(&root.join(name), &tree.join(name)).expect("the sources can be copied");
        }
        let bench = Self {
            tree,
            target: root.join("target/mutants/target"),
            schedules: env::var("RUNS").unwrap_or_else(|_| SCHEDULES.to_owned()),
            has_server: has_server(),
        };
        let mut suites = Vec::new();
        for suite in mutants.iter().flat_map(|mutant| bench.suites(mutant.witness)) {
            if suites.contains(&suite) {
                continue;
            }
            suites.push(suite);
            let (built, build) = bench.build(suite);
            let (run, took) = bench.run(suite, &built.expect("the original compiles"));
            match run {
                Run::Passed => {}
                Run::Failed(output) => panic!("the original fails:\n{output}"),
                Run::Hung => panic!("the original hangs"),
            }
            assert!(took < HANGS_AFTER / 3, "{took:?}: a mutant that hangs could not be told");
            println!("the original passes: {suite}, built in {build:.1?}, run in {took:.1?}");
        }
        bench
    }

    /// Breaks one rule, sees who notices, and puts it right again.
    pub(crate) fn try_out(&self, mutant: &Mutant) -> Trial {
        let file = self.tree.join(mutant.file);
        let original = fs::read_to_string(&file).unwrap_or_default();
        let found = original.matches(mutant.text).count();
        if found != 1 {
            let (build, run) = Default::default();
            return Trial { fate: Fate::Found(found), build, run };
        }
        let mutated = original.replace(mutant.text, mutant.instead);
        fs::write(&file, mutated).expect("the copy can be changed");
        let trial = self.hunt(mutant.witness);
        fs::write(&file, original).expect("the copy can be changed");
        trial
    }

    /// Who is asked whether they notice, in this order: a schedule says most.
    fn suites(&self, witness: Witness) -> Vec<Suite> {
        match witness {
            Witness::Simulation => vec![Suite::Simulation, Suite::Scenarios, Suite::Units],
            Witness::Servers(tests) if self.has_server => vec![Suite::Servers(tests)],
            Witness::Servers(_) => Vec::new(),
        }
    }

    fn hunt(&self, witness: Witness) -> Trial {
        let suites = self.suites(witness);
        let fate = if suites.is_empty() { Fate::NoServer } else { Fate::Survived };
        let mut trial = Trial { fate, build: Duration::ZERO, run: Duration::ZERO };
        for suite in suites {
            let (built, build) = self.build(suite);
            trial.build += build;
            let program = match built {
                Ok(program) => program,
                Err(output) => return Trial { fate: Fate::NotCompiled(output), ..trial },
            };
            let (run, took) = self.run(suite, &program);
            trial.run += took;
            match run {
                Run::Passed => {}
                Run::Failed(output) => {
                    return Trial { fate: Fate::killed(suite, &output), ..trial };
                }
                Run::Hung => return Trial { fate: Fate::hung(suite), ..trial },
            }
        }
        trial
    }

    /// The program of a suite, or what the compiler says.
    fn build(&self, suite: Suite) -> (Result<PathBuf, String>, Duration) {
        let started = Instant::now();
        let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let output = Command::new(cargo)
            .args(["test", "--release", "--features", "sim", "--no-run", "--color", "never"])
            .args(suite.target())
            .arg("--target-dir")
            .arg(&self.target)
            .env("CARGO_INCREMENTAL", "1")
            .current_dir(&self.tree)
            .output()
            .expect("cargo runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // `  Executable tests/sim/main.rs (path)`
        let mut lines = said.lines().filter(|line| line.trim_start().starts_with("Executable"));
        let program = lines.find_map(|line| line.rsplit_once('(')?.1.strip_suffix(')'));
        let built = match program {
            Some(program) if output.status.success() => Ok(self.tree.join(program)),
            _ => Err(said),
        };
        (built, started.elapsed())
    }

    fn run(&self, suite: Suite, program: &Path) -> (Run, Duration) {
        // Into a file: a pipe that nobody reads would stop the tests.
        let log = self.target.join("output");
        let to_log = || File::create(&log).expect("the output can be written");
        let started = Instant::now();
        let mut tests = Command::new(program)
            .args(suite.tests())
            .env("RUNS", &self.schedules)
            .env("RUST_BACKTRACE", "0")
            .env_remove("FROM")
            .env_remove("SEED")
            .current_dir(&self.tree)
            .stdin(Stdio::null())
            .stdout(to_log())
            .stderr(Stdio::null())
            .spawn()
            .expect("the tests start");
        while started.elapsed() < HANGS_AFTER {
            if let Some(status) = tests.try_wait().expect("the tests end") {
                let took = started.elapsed();
                let output = fs::read(&log).expect("the output can be read");
                let output = String::from_utf8_lossy(&output).into_owned();
                return (if status.success() { Run::Passed } else { Run::Failed(output) }, took);
            }
            thread::sleep(Duration::from_millis(10));
        }
        tests.kill().expect("the tests can be ended");
        tests.wait().expect("the tests end");
        (Run::Hung, started.elapsed())
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_file() {
        fs::create_dir_all(to.parent().expect("a file is in a folder"))?;
        fs::copy(from, to)?;
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

/// Whether the tests find a server binary, by the same rules as theirs.
fn has_server() -> bool {
    let named = env::var("QUORUMLOCK_SERVER").ok();
    let names =
        named.map_or(vec!["redis-server".to_owned(), "valkey-server".to_owned()], |n| vec![n]);
    names.iter().any(|name| Command::new(name).arg("--version").output().is_ok())
}

impl Suite {
    /// What to build of it.
    fn target(self) -> &'static [&'static str] {
        match self {
            Self::Simulation | Self::Scenarios => &["--test", "sim"],
            Self::Units => &["--lib"],
            Self::Servers(_) => &["--test", "redis"],
        }
    }

    /// Which tests to run.
    fn tests(self) -> Vec<&'static str> {
        match self {
            Self::Simulation => {
                vec!["no_schedule_breaks_a_promise", "what_was_mended", "conformance"]
            }
            Self::Scenarios => {
                vec!["holding::", "waiting::", "behaviours::", "assumptions::", "nodes::", "far::"]
            }
            // Without the search through the model, which takes longer than a mutant may.
            Self::Units => vec!["--skip", "fence::model"],
            Self::Servers(tests) => vec![tests],
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulation => f.write_str("simulation"),
            Self::Scenarios => f.write_str("scenario"),
            Self::Units => f.write_str("unit test"),
            Self::Servers(tests) => write!(f, "servers ({tests})"),
        }
    }
}

impl Fate {
    fn killed(suite: Suite, output: &str) -> Self {
        let failed =
            output.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let (seed, violation) = first_violation(output).unzip();
        let panicked = || output.lines().skip_while(|line| !line.contains("panicked at")).nth(1);
        let what = violation.or_else(panicked).unwrap_or("no message").trim().to_owned();
        let by = match (suite, failed) {
            (Suite::Simulation, _) if seed.is_some() => "schedule".to_owned(),
            (_, Some(test)) => format!("{suite}: {test}"),
            (_, None) => format!("{suite}: the run broke off"),
        };
        Self::Killed { by, seed, what }
    }

    fn hung(suite: Suite) -> Self {
        Self::Killed {
            by: format!("{suite}: hang"),
            seed: None,
            what: "a run without end".to_owned(),
        }
    }

    pub(crate) fn killer(&self) -> &str {
        match self {
            Self::Killed { by, .. } => by,
            Self::Survived => "SURVIVED",
            Self::Found(_) => "NOT FOUND",
            Self::NotCompiled(_) => "NOT COMPILED",
            Self::NoServer => "(no server)",
        }
    }

    pub(crate) fn seed(&self) -> Option<u64> {
        match self {
            Self::Killed { seed, .. } => *seed,
            Self::Survived | Self::Found(_) | Self::NotCompiled(_) | Self::NoServer => None,
        }
    }

    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::Survived | Self::Found(_) | Self::NotCompiled(_) => true,
            Self::Killed { .. } | Self::NoServer => false,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed { by, seed: Some(seed), what } => write!(f, "{by}, seed {seed}: {what}"),
            Self::Killed { by, seed: None, what } => write!(f, "{by}: {what}"),
            Self::Survived => f.write_str("SURVIVED: no test noticed"),
            Self::Found(times) => write!(f, "its text is in the file {times} times, not once"),
            Self::NotCompiled(output) => write!(f, "does not compile:\n{output}"),
            Self::NoServer => f.write_str("not tried: no server on this machine"),
        }
    }
}

/// The first schedule that failed, and how: `seed 7 violates [`, and the violations line by line.
///
/// Each thread of a run ends at its first. Since they take the seeds in order, the least of them is
/// the least of all.
fn first_violation(output: &str) -> Option<(u64, &str)> {
    let lines: Vec<&str> = output.lines().collect();
    let violations = lines.windows(2).filter_map(|pair| {
        let seed = pair[0].strip_prefix("seed ")?.strip_suffix(" violates [")?;
        Some((seed.parse().ok()?, pair[1]))
    });
    violations.min_by_key(|(seed, _)| *seed)
}
