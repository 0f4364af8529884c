//! Another process of the test binary, which a test can stop in its tracks.

use std::{
    env,
    io::{BufRead, BufReader, Write, stdout},
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    holds_within,
    process::{mortal_command, process_state, spawn},
};

/// What the lines begin with that a twin says, among those of the test harness.
const MARK: &str = "twin: ";
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A process that runs one test of this binary. It ends with this value.
#[derive(Debug)]
pub struct Twin {
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Twin {
    /// Starts the test `entry` of this binary, alone, in a process that has `variable`.
    #[track_caller]
    pub fn start(entry: &str, variable: (&str, &str)) -> Self {
        let mut command = mortal_command(env::current_exe().expect("this binary has a path"));
        command
            .args(["--exact", entry, "--nocapture", "--test-threads=1"])
            .env(variable.0, variable.1)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn(command);
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (say, said) = mpsc::channel();
        let listen = move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(what) = line.strip_prefix(MARK) {
                    say.send(what.to_owned()).ok();
                }
            }
        };
        thread::Builder::new().name("twin".to_owned()).spawn(listen).expect("a thread");
        Self { child, said }
    }

    /// The rest of the next thing that it says, which has to begin with `what`.
    #[track_caller]
    pub fn says(&self, what: &str, limit: Duration) -> String {
        let said = self.said.recv_timeout(limit);
        let said = said.unwrap_or_else(|_| panic!("waited {limit:?} in vain for the twin: {what}"));
        let rest = said.strip_prefix(what).unwrap_or_else(|| panic!("{said}, and not {what}"));
        rest.trim().to_owned()
    }

    /// Whether it has said nothing that was not heard.
    pub fn is_silent(&self) -> bool {
        self.said.try_recv().is_err()
    }

    /// Stops the process in its tracks. Returns once it has stopped.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let is_stopped = || process_state(self.child.id()) == Some('T');
        assert!(holds_within(STOP_LIMIT, is_stopped), "the twin did not stop");
    }

    /// Lets it go on.
    #[track_caller]
    pub fn thaw(&self) -> Instant {
        self.signal(Signal::CONT);
        Instant::now()
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the twin runs");
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What a twin says to the test that started it.
pub fn say(what: &str) {
    // The harness may be in the middle of a line.
    writeln!(stdout(), "\n{MARK}{what}").expect("the test listens");
}
