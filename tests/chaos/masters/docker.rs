//! Masters in containers, reached through ports of 127.0.0.1.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::{
    owner::{self, HOST_LABEL, LABEL, Run},
    support::process::free_port,
};

/// What `docker/build-images` makes, and what those take who have a registry.
const IMAGES: [&str; 2] = ["quorumlock/redis:8.0", "redis:8"];
/// In the image of `docker/build-images`: where the shim is.
const SHIM_LABEL: &str = "quorumlock.clock_shim";
/// Where the container has the file of its clock.
const CLOCK: &str = "/etc/quorumlock/clock";
const CONFIG: &str = "/etc/quorumlock/node.conf";
/// How often a start is tried: a connection of before may still have the port.
const STARTS: u64 = 20;
/// How often anything else is.
const ATTEMPTS: u64 = 10;

pub(crate) struct Image {
    pub(crate) name: String,
    /// Where in it there is a shim that moves the clock.
    pub(crate) shim: Option<String>,
}

/// The image to take, or why there is none.
///
/// `CHAOS_MASTERS=processes` forbids containers, `CHAOS_MASTERS=docker` insists on them, and
/// `QUORUMLOCK_IMAGE=` names the image.
pub(crate) fn image() -> Result<Image, String> {
    let wish = env::var("CHAOS_MASTERS").unwrap_or_default();
    if wish == "processes" {
        return Err("CHAOS_MASTERS asks for them".to_owned());
    }
    let found = find_image();
    if let Err(why) = &found {
        assert_ne!(wish, "docker", "no containers: {why}");
    }
    found
}

fn find_image() -> Result<Image, String> {
    docker(&["version", "--format", "{{.Server.Version}}"])
        .map_err(|_| "Docker does not answer".to_owned())?;
    let wanted = env::var("QUORUMLOCK_IMAGE").map(|name| vec![name]);
    let names = wanted.unwrap_or_else(|_| IMAGES.map(str::to_owned).to_vec());
    let is_here = |name: &&String| docker(&["image", "inspect", name]).is_ok();
    let can_come = |name: &&String| {
        !name.starts_with("quorumlock/") && docker(&["pull", "--quiet", name]).is_ok()
    };
    let name =
        names.iter().find(is_here).or_else(|| names.iter().find(can_come)).ok_or_else(|| {
            format!("there is no image {} (docker/build-images makes one)", names.join(" or "))
        })?;
    let format = format!("{{{{index .Config.Labels {SHIM_LABEL:?}}}}}");
    let shim = docker(&["image", "inspect", "--format", &format, name]).unwrap_or_default();
    Ok(Image { name: name.clone(), shim: Some(shim).filter(|shim| shim.starts_with('/')) })
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) port: u16,
    name: String,
    /// What makes it, but for the port.
    run: Vec<String>,
    command: Vec<String>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Paused,
    /// Its process is stopped by a signal.
    Stopped,
    /// It has its data.
    Down,
    Gone,
}

impl Container {
    pub(crate) fn start(
        run: &Run,
        number: usize,
        image: &Image,
        config: &Path,
        clock: &Path,
    ) -> Self {
        let name = format!("quorumlock-chaos-{}-n{number}", run.id);
        let mut args = vec![
            "run".to_owned(),
            "--detach".to_owned(),
            format!("--name={name}"),
            format!("--label={LABEL}={}", run.id),
            format!("--label={HOST_LABEL}={}", owner::host()),
            format!("--volume={}:{CONFIG}:ro", config.display()),
        ];
        if let Some(shim) = &image.shim {
            args.push(format!("--volume={}:{CLOCK}:ro", clock.display()));
            args.push(format!("--env=QUORUMLOCK_CLOCK={CLOCK}"));
            args.push(format!("--env=LD_PRELOAD={shim}"));
        }
        let command = [&image.name, "redis-server", CONFIG].map(str::to_owned).to_vec();
        let mut container = Self { port: 0, name, run: args, command, state: State::Gone };
        let mut last = String::new();
        for _ in 0..STARTS {
            container.port = free_port();
            match container.create() {
                Ok(()) => return container,
                Err(error) => last = error,
            }
        }
        panic!("no container could be started: {last}");
    }

    /// Makes a new one, without data.
    fn create(&mut self) -> Result<(), String> {
        let publish = format!("--publish=127.0.0.1:{}:6379", self.port);
        let args = self.run.iter().chain([&publish]).chain(&self.command).map(String::as_str);
        let created = docker(&args.collect::<Vec<_>>());
        if created.is_err() {
            self.remove();
        }
        created?;
        self.state = State::Up;
        Ok(())
    }

    pub(crate) fn kill(&mut self) {
        self.unpause();
        insist(&["kill", "--signal=KILL", &self.name]);
        self.state = State::Down;
    }

    pub(crate) fn stop(&mut self) {
        self.unpause();
        insist(&["stop", "--time=3", &self.name]);
        self.state = State::Down;
    }

    pub(crate) fn wipe(&mut self) {
        self.remove();
    }

    pub(crate) fn start_again(&mut self) {
        for _ in 0..STARTS {
            let started = match self.state {
                State::Up | State::Paused | State::Stopped => return,
                State::Down => docker(&["start", &self.name]).map(|_| self.state = State::Up),
                State::Gone => self.create(),
            };
            match started {
                Ok(()) => return,
                Err(error)
                    if error.contains("address already in use")
                        || error.contains("port is already allocated") => {}
                Err(error) => panic!("{} does not start: {error}", self.name),
            }
            thread::sleep(Duration::from_millis(300));
        }
        panic!("port {} stays taken", self.port);
    }

    pub(crate) fn pause(&mut self) {
        if self.state != State::Up {
            return;
        }
        // On a busy machine the kernel may give up on freezing the container; its process can always
        // be stopped.
        self.state = if docker(&["pause", &self.name]).is_ok() {
            State::Paused
        } else {
            insist(&["kill", "--signal=STOP", &self.name]);
            State::Stopped
        };
    }

    pub(crate) fn unpause(&mut self) {
        match self.state {
            State::Paused => insist(&["unpause", &self.name]),
            State::Stopped => insist(&["kill", "--signal=CONT", &self.name]),
            State::Up | State::Down | State::Gone => return,
        }
        self.state = State::Up;
    }

    pub(crate) fn log(&self) -> String {
        docker(&["logs", "--tail=200", &self.name]).unwrap_or_else(|error| error)
    }

    fn remove(&mut self) {
        docker(&["rm", "--force", "--volumes", &self.name]).ok();
        self.state = State::Gone;
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes the containers of runs of this host that are over.
pub(crate) fn sweep(host: &str, is_alive: impl Fn(&str) -> bool) {
    let format = format!("{{{{.ID}}}}\t{{{{.Label {LABEL:?}}}}}\t{{{{.Label {HOST_LABEL:?}}}}}");
    let filter = format!("label={LABEL}");
    let listed = docker(&["ps", "--all", "--filter", &filter, "--format", &format]);
    // Without Docker there are none.
    for line in listed.unwrap_or_default().lines() {
        let [container, run, of_host] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
        if of_host == host && !is_alive(run) {
            docker(&["rm", "--force", "--volumes", container]).ok();
        }
    }
}

/// A command that is to succeed; Docker is not always up to it at once.
fn insist(args: &[&str]) {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match docker(args) {
            Ok(_) => return,
            Err(error) => last = error,
        }
        thread::sleep(Duration::from_millis(200));
    }
    panic!("docker {}: {last}", args.join(" "));
}

/// What a command prints, or what it complains about.
fn docker(args: &[&str]) -> Result<String, String> {
    let output = Command::new("docker").args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
