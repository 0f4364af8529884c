//! Finding a server binary and a port for it, and starting a process that does not outlive the test
//! process.

use std::{
    collections::hash_map::RandomState,
    env, fs,
    hash::BuildHasher,
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{OnceLock, mpsc},
    thread,
};

/// Names the server binary to test against; without it, the first of [`BINARIES`] on the PATH.
const BINARY_VARIABLE: &str = "QUORUMLOCK_SERVER";
const BINARIES: [&str; 2] = ["redis-server", "valkey-server"];

/// Where the ports of servers start; see [`free_port`].
const PORTS_FROM: u16 = 10_000;
/// How many ports there are to choose from.
const PORTS: u64 = 22_000;
const PORT_PROBES: u32 = 100;

/// A port nobody listens on.
///
/// It lies below the range from which kernels give ports to outgoing connections and to listeners
/// that ask for any (from 32768 on Linux). A port of that range could be gone when a killed server
/// comes back to it, and a client that retries against a killed server there can even end up
/// connected to itself.
pub fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..PORT_PROBES).map(random_port).find(is_free).expect("a free port")
}

fn random_port(probe: u32) -> u16 {
    // Every `RandomState` has other keys, which makes it a source of randomness that is in std.
    let offset = RandomState::new().hash_one(probe) % PORTS;
    u16::try_from(offset).map_or(PORTS_FROM, |offset| PORTS_FROM.saturating_add(offset))
}

/// The server to test against. Panics if there is none: a skipped test would look like a passed one.
pub fn server_binary() -> PathBuf {
    if let Some(binary) = env::var_os(BINARY_VARIABLE) {
        return binary.into();
    }
    BINARIES.into_iter().find_map(find_on_path).unwrap_or_else(|| {
        panic!(
            "these tests need a Redis server: install redis-server (Debian and Ubuntu: `apt-get \
             install redis-server`, macOS: `brew install redis`) or valkey-server, or set \
             {BINARY_VARIABLE} to the path of one"
        )
    })
}

pub(super) fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// A command that runs `program` and, where `setpriv` can see to it, lets the kernel kill it when
/// the test process ends in a way that runs no destructors.
pub fn mortal_command(program: PathBuf) -> Command {
    if !dies_with_us() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Whether there is a `setpriv` that knows the option we need; the one of `BusyBox` does not.
pub(super) fn dies_with_us() -> bool {
    static DIES_WITH_US: OnceLock<bool> = OnceLock::new();
    *DIES_WITH_US.get_or_init(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// Work for the thread that starts all processes.
struct Spawn {
    command: Command,
    done: mpsc::Sender<io::Result<Child>>,
}

/// Starts a process from a thread that lives as long as the test process.
///
/// The kernel ties the signal that [`mortal_command`] asks for to the thread that starts the
/// process, and the threads of tests come and go.
#[track_caller]
pub fn spawn(command: Command) -> Child {
    static SPAWNER: OnceLock<mpsc::Sender<Spawn>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (work, works) = mpsc::channel::<Spawn>();
        let serve = move || {
            for Spawn { mut command, done } in works {
                done.send(command.spawn()).ok();
            }
        };
        thread::Builder::new().name("spawner".to_owned()).spawn(serve).expect("a thread");
        work
    });
    let (done, child) = mpsc::channel();
    spawner.send(Spawn { command, done }).expect("the spawner never ends");
    child.recv().expect("the spawner answers").expect("the server can be started")
}

/// The state letter of a process, 'T' for a stopped one; `None` if there is no such process.
pub fn process_state(pid: u32) -> Option<char> {
    if !Path::new("/proc/self/stat").exists() {
        return process_state_from_ps(pid);
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program comes first, in parentheses, and may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.trim_start().chars().next()
}

/// The same where there is no `/proc`, as on macOS.
fn process_state_from_ps(pid: u32) -> Option<char> {
    let ps = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output();
    String::from_utf8_lossy(&ps.expect("ps").stdout).trim_start().chars().next()
}
