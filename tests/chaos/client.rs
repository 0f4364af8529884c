//! The client processes, as the nemesis and the judge see them.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    clock,
    event::Event,
    fault::Action,
    owner::{self, Run},
    support::process::{mortal_command, spawn},
    worker::NEW_FLEET,
};

/// What all clients are started with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) resource: String,
    /// For each side, where its masters are.
    pub(crate) urls: Vec<String>,
    pub(crate) dir: PathBuf,
}

/// The place of a client process: after a death another one takes it.
#[derive(Debug)]
pub(crate) struct Slot {
    number: usize,
    setup: Arc<Setup>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// All processes there were, in order.
    lives: Vec<Life>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    commands: ChildStdin,
    answers: mpsc::Receiver<String>,
}

/// One process.
#[derive(Debug)]
struct Life {
    log: PathBuf,
    read: u64,
    /// No later than this it was killed.
    death: Option<Duration>,
}

/// What one process has written down since it was last asked.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) client: usize,
    pub(crate) events: Vec<Event>,
    pub(crate) death: Option<Duration>,
}

impl Slot {
    pub(crate) fn new(number: usize, setup: &Arc<Setup>) -> Self {
        let place = Self { number, setup: Arc::clone(setup), state: Mutex::default() };
        place.respawn();
        place
    }

    pub(crate) fn apply(&self, action: Action) {
        match action {
            Action::PauseClient => self.signal(Signal::STOP),
            Action::ResumeClient => self.signal(Signal::CONT),
            Action::KillClient => self.kill(),
            Action::Respawn => self.respawn(),
            action => panic!("{action:?} is not for a client"),
        }
    }

    /// Undoes what was done to it.
    pub(crate) fn heal(&self) {
        self.signal(Signal::CONT);
        self.respawn();
    }

    fn signal(&self, signal: Signal) {
        if let Some(running) = &self.state.lock().unwrap().running {
            kill_process(Pid::from_child(&running.child), signal).ok();
        }
    }

    fn kill(&self) {
        let mut state = self.state.lock().unwrap();
        if let Some(mut running) = state.running.take() {
            // Read before: what it believed afterwards, it did not believe for long.
            let death = clock::now();
            running.child.kill().ok();
            running.child.wait().ok();
            state.lives.last_mut().unwrap().death = Some(death);
        }
    }

    fn respawn(&self) {
        let mut state = self.state.lock().unwrap();
        if state.running.is_some() {
            return;
        }
        // Unique over all slots and lives.
        let client = self.number + 100 * state.lives.len();
        let log = self.setup.dir.join(format!("client-{client}"));
        let said = File::create(self.setup.dir.join(format!("client-{client}.err")));
        let mut command = mortal_command(env::current_exe().expect("this program"));
        command
            .args(["worker", &client.to_string(), &self.setup.seed.to_string()])
            .arg(&self.setup.urls[self.number % self.setup.urls.len()])
            .arg(&self.setup.resource)
            .arg(&log)
            .envs(state.lives.is_empty().then_some((NEW_FLEET, "yes")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said.expect("a file for what it says"));
        let mut child = spawn(command);
        owner::note(&self.setup.dir, child.id());
        let commands = child.stdin.take().expect("piped");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (answer, answers) = mpsc::channel();
        thread::spawn(move || {
            out.lines().map_while(Result::ok).for_each(|line| drop(answer.send(line)));
        });
        state.running = Some(Running { child, commands, answers });
        state.lives.push(Life { log, read: 0, death: None });
    }

    /// Tells the process what to do next.
    pub(crate) fn command(&self, command: &str) {
        if let Some(running) = &mut self.state.lock().unwrap().running {
            writeln!(running.commands, "{command}").ok();
        }
    }

    /// Waits until the process has said so, or says why it does not.
    pub(crate) fn wait_for(&self, answer: &str, until: Duration) -> Result<(), String> {
        let mut state = self.state.lock().unwrap();
        let number = self.number;
        let Some(running) = &mut state.running else {
            return Err(format!("client {number} does not run"));
        };
        loop {
            match running.answers.recv_timeout(until.saturating_sub(clock::now())) {
                Ok(line) if line == answer => return Ok(()),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(format!("client {number} does not say {answer:?}: it hangs"));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = running.child.wait();
                    return Err(format!("client {number} ended by itself: {status:?}"));
                }
            }
        }
    }

    /// The numbers of those that were killed.
    pub(crate) fn dead(&self) -> Vec<usize> {
        let state = self.state.lock().unwrap();
        let lives = state.lives.iter().enumerate().filter(|(_, life)| life.death.is_some());
        lives.map(|(life, _)| self.number + 100 * life).collect()
    }

    /// What its processes have written down since the last time.
    pub(crate) fn read(&self) -> Vec<Seen> {
        let mut state = self.state.lock().unwrap();
        let read = |(life, process): (usize, &mut Life)| {
            let client = self.number + 100 * life;
            Seen { client, events: process.read(), death: process.death }
        };
        let seen: Vec<Seen> = state.lives.iter_mut().enumerate().map(read).collect();
        seen.into_iter().filter(|seen| !seen.events.is_empty()).collect()
    }
}

impl Life {
    fn read(&mut self) -> Vec<Event> {
        let mut text = String::new();
        let Ok(mut file) = File::open(&self.log) else { return Vec::new() };
        file.seek(SeekFrom::Start(self.read)).expect("a log can be read");
        file.read_to_string(&mut text).expect("a log is text");
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += u64::try_from(whole).unwrap();
        let lines = text[..whole].lines();
        lines.map(|line| line.parse().unwrap_or_else(|error| panic!("{error}"))).collect()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the processes said that is not in their logs: panics, mostly.
pub(crate) fn complaints(run: &Run) -> Vec<String> {
    let files = fs::read_dir(&run.dir).expect("the folder of the run").flatten();
    let errors =
        files.map(|file| file.path()).filter(|path| path.extension() == Some("err".as_ref()));
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_default();
        (!text.is_empty()).then(|| format!("{}: {text}", path.display()))
    };
    errors.filter_map(text).collect()
}
