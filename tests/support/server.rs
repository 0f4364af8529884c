//! Real servers: started on a free port, frozen, thawed, killed and restarted at will, and gone with
//! their owner.
//!
//! # Invariants
//!
//! 1. A process started here is reaped by its [`Server`], also when the test panics.
//! 2. All processes are children of one thread that lives as long as the test process: the signal
//!    that lets them die with it is sent when the *thread* that started them ends.
//! 3. A server counts as started only if the process that answers on its port is the one we started.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{
    POLL, holds_within,
    process::{free_port, mortal_command, process_state, server_binary, spawn},
    resp::{Conn, Reply},
    wall_clock::{WallClock, build_shim},
};

/// How long a server may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How many ports are tried before a start is given up.
const PORT_ATTEMPTS: usize = 10;

/// A server of our own.
///
/// # Drop
///
/// Kills and reaps the process, also a frozen one, and removes its directory.
#[derive(Debug)]
pub struct Server {
    port: u16,
    args: Vec<String>,
    dir: TempDir,
    /// What is loaded into its process to move its wall clock, and that clock.
    clock: Option<(PathBuf, WallClock)>,
    /// `None` while the server is killed.
    child: Mutex<Option<Child>>,
    /// Connections this module made to the present process, which [`Server::total_connections`]
    /// leaves out.
    pub(super) own_connections: AtomicU64,
}

/// What became of a process that was just started.
enum Start {
    Ready,
    /// Something else has the port.
    PortTaken,
}

impl Server {
    /// Starts a server which keeps nothing on disk.
    #[track_caller]
    pub fn start() -> Self {
        Self::with_args(&[])
    }

    /// Starts a server with these arguments after the usual ones, which they override.
    #[track_caller]
    pub fn with_args(args: &[&str]) -> Self {
        Self::started(args, |_| None)
    }

    /// Starts a server whose wall clock [`jump_clock`](Self::jump_clock) moves. Linux only, and needs a
    /// C compiler.
    #[track_caller]
    pub fn with_movable_clock() -> Self {
        Self::started(&[], |dir| {
            let shim = build_shim(dir).expect("this test needs a C compiler as `cc` on the PATH");
            Some((shim, WallClock::create(dir.join("clock"))))
        })
    }

    #[track_caller]
    fn started(args: &[&str], clock: impl Fn(&Path) -> Option<(PathBuf, WallClock)>) -> Self {
        for _ in 0..PORT_ATTEMPTS {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let server = Self {
                port: free_port(),
                args: args.iter().copied().map(str::to_owned).collect(),
                clock: clock(dir.path()),
                dir,
                child: Mutex::new(None),
                own_connections: AtomicU64::new(0),
            };
            match server.launch() {
                Start::Ready => return server,
                Start::PortTaken => {}
            }
        }
        panic!("{PORT_ATTEMPTS} ports in a row were taken before the server could have them");
    }

    /// The port it listens on, the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// "127.0.0.1:1234"
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// <redis://127.0.0.1:1234>, without a password even if one is required.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// The id of its process; panics while it is killed.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("the server is killed").id()
    }

    /// Whether its process exists, be it frozen.
    pub fn is_running(&self) -> bool {
        self.child().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Stops the process in its tracks: connections stay open and new ones are accepted by the
    /// kernel, but nothing answers. Returns once it has stopped.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let pid = self.pid();
        assert!(
            holds_within(START_LIMIT, || process_state(pid) == Some('T')),
            "server {pid} did not stop, its state is {:?}",
            process_state(pid)
        );
    }

    /// Lets a frozen process go on; it then answers what came in meanwhile.
    #[track_caller]
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Moves its wall clock, forwards or back.
    #[track_caller]
    pub fn jump_clock(&self, ms: i64) {
        let (_, clock) = self.clock.as_ref().expect("it was started with a clock that moves");
        clock.jump(ms);
    }

    /// Kills the process, as a crash would, and reaps it. Does nothing if it is killed already.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Starts the server again on its port with its arguments and directory, after killing it if it
    /// still runs. Its data are gone unless the arguments make it keep them.
    #[track_caller]
    pub fn restart(&self) {
        self.kill();
        let started = Instant::now();
        // Connections of the former process may still hold the port.
        while matches!(self.launch(), Start::PortTaken) {
            assert!(started.elapsed() < START_LIMIT, "port {} stays taken", self.port);
            thread::sleep(POLL);
        }
    }

    /// Starts a process and waits until it answers.
    #[track_caller]
    fn launch(&self) -> Start {
        self.own_connections.store(0, Ordering::Relaxed);
        *self.child() = Some(spawn(self.command_line()));
        let started = Instant::now();
        loop {
            if !self.is_running() {
                self.kill();
                let log = self.log();
                assert!(log.contains("Address already in use"), "the server exited:\n{log}");
                return Start::PortTaken;
            }
            if self.answers() {
                return Start::Ready;
            }
            if started.elapsed() >= START_LIMIT {
                self.kill();
                panic!("the server did not answer within {START_LIMIT:?}:\n{}", self.log());
            }
            thread::sleep(POLL);
        }
    }

    fn command_line(&self) -> Command {
        // A file takes any amount of output, where a pipe that nobody reads would block the server.
        let log = File::create(self.log_path()).expect("a log file");
        let mut command = mortal_command(server_binary());
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--loglevel", "warning", "--port", &self.port.to_string()])
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log file"))
            .stderr(log);
        if let Some((shim, clock)) = &self.clock {
            command.env("LD_PRELOAD", shim).env("QUORUMLOCK_CLOCK", clock.path());
        }
        command
    }

    /// Whether the process we started, and not another one on the same port, serves commands.
    fn answers(&self) -> bool {
        let answers = || -> io::Result<bool> {
            let mut conn = self.open(Duration::from_secs(1))?;
            let pong = conn.command(&["PING"])?;
            let info = conn.command(&["INFO", "server"])?;
            conn.close();
            Ok(is_ready(&pong) && may_come_from(self.pid(), &info))
        };
        answers().unwrap_or(false)
    }

    /// The password its arguments require.
    pub(super) fn password(&self) -> Option<&str> {
        let name = self.args.iter().position(|arg| arg == "--requirepass")?;
        self.args.get(name.checked_add(1)?).map(String::as_str)
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        let child = self.child();
        let child = child.as_ref().expect("the server is killed");
        kill_process(Pid::from_child(child), signal).expect("the server takes signals");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_else(|e| format!("(no log: {e})"))
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A test that panicked elsewhere must not keep us from reaping the process.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether this reply to PING comes from a server that is done with loading.
fn is_ready(pong: &Reply) -> bool {
    match pong {
        Reply::Text(text) => text == "PONG",
        // A server whose password we do not know is nevertheless one that answers.
        Reply::Error(error) => error.starts_with("NOAUTH") || error.starts_with("NOPERM"),
        Reply::Nil | Reply::Int(_) | Reply::Array(_) => false,
    }
}

/// Whether this reply to INFO fits the process; one that will not say is believed.
fn may_come_from(pid: u32, info: &Reply) -> bool {
    let expected = format!("process_id:{pid}");
    match info {
        Reply::Text(text) => text.lines().any(|line| line == expected),
        Reply::Error(_) => true,
        Reply::Nil | Reply::Int(_) | Reply::Array(_) => false,
    }
}
