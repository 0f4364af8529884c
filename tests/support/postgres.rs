//! A PostgreSQL of one's own: on a Unix socket in a directory of its own, and gone with its owner.
//!
//! # Invariants
//!
//! 1. The process is ended and reaped by its [`Postgres`], also when the test panics; where `setpriv`
//!    can see to it, also when the test process is killed.
//! 2. Nothing listens on a network address.

use std::{
    env,
    fs::{self, File},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use quorumlock::fenced::postgres::{
    MIGRATION,
    tokio_postgres::{Client, Config, NoTls},
};
use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

use super::process::{dies_with_us, find_on_path, process_state, spawn};

/// Names the `postgres` binary to test against; without it, the one on the PATH or Debian's.
const BINARY_VARIABLE: &str = "QUORUMLOCK_POSTGRES";
/// Where Debian puts each major version, out of the way of the PATH.
const DEBIAN: &str = "/usr/lib/postgresql";
/// PostgreSQL does not run as root. The first of these that exists is who it runs as instead.
const USERS: [&str; 2] = ["postgres", "nobody"];

const SUPERUSER: &str = "quorumlock";
/// How long a server may take to be ready, on a machine that is busy with other tests.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to end by itself.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// A PostgreSQL of our own.
///
/// # Drop
///
/// Ends and reaps the process, and removes its directory.
#[derive(Debug)]
pub struct Postgres {
    child: Child,
    dir: TempDir,
}

impl Postgres {
    /// Starts a server with the table of the fences in it.
    #[track_caller]
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let user = Unprivileged::find();
        user.give(dir.path());
        let data = dir.path().join("data");
        initialize(&user, &data);
        // A file takes any amount of output, where a pipe that nobody reads would block the server.
        let log = File::create(dir.path().join("server.log")).expect("a log file");
        let mut command = user.command(&binary("postgres"), true);
        command
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(dir.path())
            .args(["-c", "listen_addresses="])
            .args(["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"])
            .args(["-c", "shared_buffers=16MB", "-c", "dynamic_shared_memory_type=mmap"])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log file"))
            .stderr(log);
        let mut server = Self { child: spawn(command), dir };
        server.wait_until_ready();
        server
    }

    /// A connection; the task behind it ends with it.
    pub async fn connect(&self) -> Client {
        let mut config = Config::new();
        config.host_path(self.dir.path()).user(SUPERUSER).dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.expect("a connection");
        tokio::spawn(async move { connection.await.ok() });
        client
    }

    /// A connection, after the migration.
    pub async fn migrated(&self) -> Client {
        let client = self.connect().await;
        client.batch_execute(MIGRATION).await.expect("the migration");
        client
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        let started = Instant::now();
        while !self.is_ready() {
            let ended = self.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "PostgreSQL ended with {ended:?}:\n{}", self.log());
            assert!(started.elapsed() < START_LIMIT, "PostgreSQL is not ready:\n{}", self.log());
            thread::sleep(POLL);
        }
    }

    /// The last line of its pid file says so.
    fn is_ready(&self) -> bool {
        let file = fs::read_to_string(self.dir.path().join("data/postmaster.pid"));
        file.is_ok_and(|text| text.lines().nth(7).is_some_and(|state| state.trim() == "ready"))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("server.log"))
            .unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // QUIT ends all its processes at once and gives its shared memory back, which KILL does not.
        kill_process(Pid::from_child(&self.child), Signal::QUIT).ok();
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && started.elapsed() < STOP_LIMIT {
            thread::sleep(POLL);
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Who PostgreSQL runs as: we ourselves, or somebody else where we are root.
struct Unprivileged(Option<User>);

struct User {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Unprivileged {
    fn find() -> Self {
        if !getuid().is_root() {
            return Self(None);
        }
        let users = fs::read_to_string("/etc/passwd").expect("a list of users");
        let find = |name: &'static str| {
            let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut ids = line.split(':').skip(2).map_while(|field| field.parse().ok());
            Some(User { name, uid: ids.next()?, gid: ids.next()? })
        };
        let user = USERS.into_iter().find_map(find);
        Self(Some(user.expect("PostgreSQL needs a user other than root")))
    }

    fn give(&self, path: &Path) {
        if let Self(Some(user)) = self {
            chown(path, Some(user.uid), Some(user.gid)).expect("we are root");
        }
    }

    /// A command that runs `program` as that user, and if `is_mortal` does not outlive us.
    fn command(&self, program: &Path, is_mortal: bool) -> Command {
        // The signal is lost when the user changes, so one `setpriv` has to see to both, in its order.
        let dies = ["--pdeathsig", "QUIT"];
        let dies: &[&str] = if is_mortal && dies_with_us() { &dies } else { &[] };
        let mut command = match &self.0 {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", user.name, "--regid", &user.gid.to_string()]);
                command.arg("--clear-groups").args(dies);
                command
            }
            None if dies.is_empty() => return Command::new(program),
            None => {
                let mut command = Command::new("setpriv");
                command.args(dies);
                command
            }
        };
        command.arg(program);
        command
    }
}

#[track_caller]
fn initialize(user: &Unprivileged, data: &Path) {
    let mut command = user.command(&binary("initdb"), false);
    command
        .args(["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--no-locale"])
        .args(["--no-sync", "--no-instructions", "-D"])
        .arg(data)
        .current_dir("/")
        .stdin(Stdio::null());
    let output = command.output().expect("initdb can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "initdb: {errors}");
}

/// A program of PostgreSQL. Panics if there is none: a skipped test would look like a passed one.
#[track_caller]
fn binary(program: &str) -> PathBuf {
    let named = env::var_os(BINARY_VARIABLE).map(PathBuf::from);
    let postgres = named.or_else(|| find_on_path("postgres")).or_else(newest_of_debian);
    let postgres = postgres.unwrap_or_else(|| {
        panic!(
            "these tests need PostgreSQL: install it (Debian and Ubuntu: `apt-get install \
             postgresql`, macOS: `brew install postgresql`), or set {BINARY_VARIABLE} to the path \
             of the `postgres` binary"
        )
    });
    // What is on the PATH may be a link to one that has the others beside it.
    let postgres = postgres.canonicalize().unwrap_or(postgres);
    postgres.with_file_name(program)
}

fn newest_of_debian() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let binary = path.join("bin/postgres");
        binary.is_file().then_some((version, binary))
    });
    versions.max().map(|(_, binary)| binary)
}

#[test]
fn a_server_is_gone_with_its_owner_also_after_a_panic() {
    let (tell, told) = std::sync::mpsc::channel();
    let test = thread::spawn(move || {
        let server = Postgres::start();
        tell.send((server.pid(), server.dir().to_owned())).unwrap();
        panic!("as a failing test does");
    });
    test.join().expect_err("a panic");
    let (pid, dir) = told.recv().unwrap();
    assert_eq!(process_state(pid), None, "process {pid}");
    assert!(!dir.exists(), "{}", dir.display());
}
