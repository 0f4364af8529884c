//! The masters, in containers or as plain processes, and what is seen of them from outside.

pub(crate) mod docker;
mod process;

use std::{fs, path::Path, sync::Mutex, time::Duration};

use docker::Container;
use process::Process;

use crate::{
    assumptions::Persistence,
    clock,
    fault::{Action, MASTERS},
    owner::Run,
    support::{
        Conn, Reply,
        process::free_port,
        wall_clock::{self, WallClock},
    },
};

/// How long a healthy master may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

pub(crate) struct Masters {
    /// What they are.
    pub(crate) what: String,
    pub(crate) has_clocks: bool,
    all: Vec<Master>,
}

struct Master {
    port: u16,
    backing: Mutex<Backing>,
    clock: WallClock,
}

enum Backing {
    Container(Container),
    Process(Process),
}

impl Masters {
    /// Starts them, in containers if Docker answers and there is an image.
    pub(crate) fn start(run: &Run, persistence: Persistence) -> Self {
        let config = match persistence {
            Persistence::Durable => "docker/durable.conf",
            Persistence::Volatile => "docker/volatile.conf",
        };
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(config);
        let clock = |number| WallClock::create(run.dir.join(format!("clock-{number}")));
        let clocks = (0..MASTERS).map(clock);
        let (what, has_clocks, masters) = match docker::image() {
            Ok(image) => {
                let what = format!("containers of {}", image.name);
                let start = |(number, clock): (usize, WallClock)| {
                    let container = Container::start(run, number, &image, &config, clock.path());
                    Master {
                        port: container.port,
                        backing: Backing::Container(container).into(),
                        clock,
                    }
                };
                (what, image.shim.is_some(), clocks.enumerate().map(start).collect())
            }
            Err(why) => {
                let what = format!("plain processes, since {why}");
                let shim = wall_clock::build_shim(&run.dir);
                let start = |(number, clock): (usize, WallClock)| {
                    let port = free_port();
                    let process =
                        Process::new(run, number, port, &config, shim.as_deref(), clock.path());
                    let master = Master { port, backing: Backing::Process(process).into(), clock };
                    master.apply(Action::Start);
                    master
                };
                (what, shim.is_some(), clocks.enumerate().map(start).collect())
            }
        };
        let masters = Self { what, has_clocks, all: masters };
        masters.wait_until_all_answer();
        masters
    }

    pub(crate) fn port(&self, master: usize) -> u16 {
        self.all[master].port
    }

    pub(crate) fn apply(&self, master: usize, action: Action) {
        self.all[master].apply(action);
    }

    /// Undoes what was done to a master, whatever it is. Its clock stays as it is: setting it right
    /// would be a jump.
    pub(crate) fn heal(&self, master: usize) {
        self.apply(master, Action::Unpause);
        self.apply(master, Action::Start);
    }

    pub(crate) fn wait_until_all_answer(&self) {
        let end = clock::now() + ANSWERS_WITHIN;
        for (number, master) in self.all.iter().enumerate() {
            while master.ask(&["PING"]) != Some(Reply::Text("PONG".to_owned())) {
                assert!(clock::now() < end, "n{number} does not answer:\n{}", master.log());
                // One that found its port taken has ended again.
                master.apply(Action::Start);
                clock::sleep_until(clock::now() + Duration::from_millis(10));
            }
        }
    }

    /// The locks that have keys, each with where and for how many milliseconds more.
    pub(crate) fn locked(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (number, master) in self.all.iter().enumerate() {
            let Some(Reply::Array(keys)) = master.ask(&["KEYS", "quorumlock:lock:*"]) else {
                found.push((String::new(), format!("n{number} does not say")));
                continue;
            };
            for key in keys.into_iter().filter_map(Reply::into_text) {
                // It may end between the two looks.
                if let Some(Reply::Int(left @ (-1 | 0..))) = master.ask(&["PTTL", &key]) {
                    let name = key.trim_start_matches("quorumlock:lock:").to_owned();
                    found.push((name, format!("{key} on n{number} for {left} ms")));
                }
            }
        }
        found
    }

    /// What they have written to their logs.
    pub(crate) fn logs(&self, to: &Path) {
        for (number, master) in self.all.iter().enumerate() {
            fs::write(to.join(format!("n{number}.log")), master.log()).ok();
        }
    }
}

impl Master {
    fn apply(&self, action: Action) {
        match action {
            Action::Jump(ms) => return self.clock.jump(ms),
            Action::Flush => return drop(self.ask(&["FLUSHALL"])),
            _ => {}
        }
        let mut backing = self.backing.lock().unwrap();
        match (&mut *backing, action) {
            (Backing::Container(container), Action::Kill) => container.kill(),
            (Backing::Container(container), Action::Stop) => container.stop(),
            (Backing::Container(container), Action::Wipe) => container.wipe(),
            (Backing::Container(container), Action::Start) => container.start_again(),
            (Backing::Container(container), Action::Pause) => container.pause(),
            (Backing::Container(container), Action::Unpause) => container.unpause(),
            (Backing::Process(process), Action::Kill) => process.kill(),
            (Backing::Process(process), Action::Stop) => process.stop(),
            (Backing::Process(process), Action::Wipe) => process.wipe(),
            (Backing::Process(process), Action::Start) => process.start(),
            (Backing::Process(process), Action::Pause) => process.pause(),
            (Backing::Process(process), Action::Unpause) => process.unpause(),
            (_, action) => panic!("{action:?} is not for a master"),
        }
    }

    /// One command on a connection of its own; `None` if it does not answer.
    fn ask(&self, command: &[&str]) -> Option<Reply> {
        let addr = format!("127.0.0.1:{}", self.port);
        let mut conn = Conn::open(&addr, Duration::from_secs(2)).ok()?;
        conn.command(command).ok()
    }

    fn log(&self) -> String {
        match &*self.backing.lock().unwrap() {
            Backing::Container(container) => container.log(),
            Backing::Process(process) => process.log(),
        }
    }
}
