//! Masters as plain processes, where there are no containers.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    clock, owner,
    owner::Run,
    support::process::{mortal_command, server_binary, spawn},
};

/// How long a server may take to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct Process {
    port: u16,
    config: PathBuf,
    shim: Option<PathBuf>,
    clock: PathBuf,
    /// Where it keeps its data.
    data: PathBuf,
    log: PathBuf,
    /// Where processes are noted.
    dir: PathBuf,
    child: Option<Child>,
}

impl Process {
    pub(crate) fn new(
        run: &Run,
        number: usize,
        port: u16,
        config: &Path,
        shim: Option<&Path>,
        clock: &Path,
    ) -> Self {
        let data = run.dir.join(format!("n{number}"));
        fs::create_dir(&data).expect("a folder for the data");
        Self {
            port,
            config: config.to_owned(),
            shim: shim.map(Path::to_owned),
            clock: clock.to_owned(),
            data,
            log: run.dir.join(format!("n{number}.server")),
            dir: run.dir.clone(),
            child: None,
        }
    }

    pub(crate) fn start(&mut self) {
        if self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return;
        }
        self.kill();
        let log = File::options().create(true).append(true).open(&self.log).expect("a log");
        let mut command = mortal_command(server_binary());
        command
            .arg(&self.config)
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .arg("--dir")
            .arg(&self.data)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log);
        if let Some(shim) = &self.shim {
            command.env("LD_PRELOAD", shim).env("QUORUMLOCK_CLOCK", &self.clock);
        }
        let child = spawn(command);
        owner::note(&self.dir, child.id());
        self.child = Some(child);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let end = clock::now() + ENDS_WITHIN;
        while let Some(child) = &mut self.child {
            if clock::now() > end || matches!(child.try_wait(), Ok(Some(_))) {
                self.kill();
            } else {
                clock::sleep_until(clock::now() + Duration::from_millis(5));
            }
        }
    }

    pub(crate) fn wipe(&mut self) {
        self.kill();
        fs::remove_dir_all(&self.data).expect("the data can be removed");
        fs::create_dir(&self.data).expect("a folder for the data");
    }

    pub(crate) fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn unpause(&mut self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_else(|error| format!("no log: {error}"))
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            kill_process(Pid::from_child(child), signal).ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
