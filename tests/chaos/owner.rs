//! Whose containers, processes and folders these are, so that those of a run that was killed can be
//! told from those of one that goes on beside us.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use std::os::unix::process::CommandExt;

use rustix::process::{Pid, Signal, kill_process};

use crate::{clock, masters::docker};

/// On every container: which run it is of.
pub(crate) const LABEL: &str = "quorumlock.chaos";
/// On every container: among whose processes that run is to be looked for.
pub(crate) const HOST_LABEL: &str = "quorumlock.chaos.host";

/// In the folder of a run: its processes, and that a person may want to look at it.
const PROCESSES: &str = "processes";
const KEPT: &str = "kept";

/// One run of the suite.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its process, when that started, and chance.
    pub(crate) id: String,
    pub(crate) dir: PathBuf,
    watcher: Child,
}

impl Run {
    /// Clears up after runs that were killed, and begins one.
    pub(crate) fn begin() -> Self {
        sweep();
        let pid = process::id();
        let id = format!("{pid}-{}-{:04x}", started(pid).unwrap(), rand::random::<u16>());
        let dir = runs().join(&id);
        fs::create_dir_all(&dir).expect("a folder for the run");
        // Should we be killed, its standard input ends. In a group of its own, so that what is sent to
        // ours from a terminal leaves it alone.
        let watcher = Command::new(env::current_exe().expect("this program"))
            .args(["clear-up", &id])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("this program again");
        Self { id, dir, watcher }
    }

    /// Leaves the folder to a person.
    pub(crate) fn keep(&self) {
        fs::write(self.dir.join(KEPT), "").expect("the folder of the run");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.watcher.kill().ok();
        self.watcher.wait().ok();
        // A panic is a failure as well.
        if thread::panicking() {
            self.keep();
            eprintln!("chaos: broke off. Logs: {}", self.dir.display());
        }
        if !self.dir.join(KEPT).exists() {
            fs::remove_dir_all(&self.dir).ok();
        }
    }
}

/// Notes a process of a run, so that it is found if we are killed.
pub(crate) fn note(dir: &Path, pid: u32) {
    use io::Write as _;
    let Some(started) = started(pid) else { return };
    let file = fs::OpenOptions::new().create(true).append(true).open(dir.join(PROCESSES));
    writeln!(file.expect("the folder of the run"), "{pid} {started}").expect("a line");
}

/// Waits until the run has ended in whatever way, and clears up after it.
pub(crate) fn clear_up_after(run: &str) -> ExitCode {
    io::copy(&mut io::stdin(), &mut io::sink()).ok();
    let patience = clock::now() + Duration::from_secs(10);
    while is_alive(run) && clock::now() < patience {
        clock::sleep_until(clock::now() + Duration::from_millis(20));
    }
    sweep();
    ExitCode::SUCCESS
}

/// Removes what is left of runs that are over.
fn sweep() {
    for entry in fs::read_dir(runs()).into_iter().flatten().flatten() {
        let (dir, name) = (entry.path(), entry.file_name());
        if is_alive(&name.to_string_lossy()) {
            continue;
        }
        let processes = fs::read_to_string(dir.join(PROCESSES)).unwrap_or_default();
        for (pid, since) in processes.lines().filter_map(|line| line.split_once(' ')) {
            let (Ok(pid), Ok(raw)) = (pid.parse(), pid.parse()) else { continue };
            if started(pid).is_some_and(|started| started.to_string() == since) {
                let pid = Pid::from_raw(raw).expect("a process");
                kill_process(pid, Signal::KILL).ok();
            }
        }
        if !dir.join(KEPT).exists() {
            fs::remove_dir_all(&dir).ok();
        }
    }
    docker::sweep(&host(), is_alive);
}

/// Folders of runs. Shared by all runs of this working copy.
fn runs() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos")
}

/// The machine, since its last start, and the part of its processes that we see.
pub(crate) fn host() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let part = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), part.display())
}

fn is_alive(run: &str) -> bool {
    let mut parts = run.split('-');
    let pid = parts.next().and_then(|pid| pid.parse().ok());
    pid.and_then(started).is_some_and(|since| parts.next() == Some(&since.to_string()))
}

/// When a process started, in ticks since the machine did; `None` if it has ended.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // The state comes first here, third in the file; when it started is the 22nd there.
    if matches!(*fields.first()?, "Z" | "X") { None } else { fields.get(19)?.parse().ok() }
}
