//! Five masters for an example: from a server on the PATH, or else in Docker, or else simulated.

#![allow(clippy::disallowed_methods, reason = "starting servers may block")]

use std::{
    env,
    error::Error,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use quorumlock::sim::SimCluster;

const HOW_TO_GET_REAL_ONES: &str = "for real ones install a server (Debian, Ubuntu: apt-get install \
    redis-server; macOS: brew install redis), or name masters with --nodes \
    redis://…,redis://…,redis://…";

/// Masters that live as long as this value. Those given by URL are not ours to stop.
pub(crate) struct Masters {
    what: String,
    urls: Vec<String>,
    running: Vec<Running>,
}

enum Running {
    Process(Child),
    Container(String),
    Simulated(SimCluster, usize),
}

impl Masters {
    /// Masters that are there already.
    pub(crate) fn given(urls: Vec<String>) -> Self {
        Self { what: "the given ones".to_owned(), urls, running: Vec::new() }
    }

    /// Starts `count` masters on free ports of 127.0.0.1, or simulates them.
    pub(crate) fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let mut masters = Self::given(Vec::new());
        if let Some(server) =
            ["redis-server", "valkey-server"].into_iter().find(|s| works(s, "--version"))
        {
            masters.what = format!("{count} processes of {server}, on loopback ports");
            for _ in 0..count {
                let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
                masters.running.push(Running::Process(start_process(server, port)?));
                masters.urls.push(format!("redis://127.0.0.1:{port}"));
            }
        // Unlike `--version`, this asks the daemon.
        } else if works("docker", "version") {
            let image = env::var("QUORUMLOCK_IMAGE").unwrap_or_else(|_| "redis:7".to_owned());
            masters.what = format!("{count} containers of {image}");
            for _ in 0..count {
                let (container, address) = start_container(&image)?;
                masters.running.push(Running::Container(container));
                masters.urls.push(format!("redis://{address}"));
            }
        } else {
            masters.what = format!(
                "{count} SIMULATED ones, since there is no redis-server or valkey-server on the \
                 PATH and no Docker; {HOW_TO_GET_REAL_ONES}"
            );
            let cluster = SimCluster::new(count);
            masters.running =
                (0..count).map(|node| Running::Simulated(cluster.clone(), node)).collect();
        }
        for url in &masters.urls {
            wait_for(url.trim_start_matches("redis://"))?;
        }
        Ok(masters)
    }

    /// What they are.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Where they are.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The cluster that stands in for them, where there is nothing to start them with.
    pub(crate) fn simulated(&self) -> Option<&SimCluster> {
        self.running.iter().find_map(|running| match running {
            Running::Simulated(cluster, _) => Some(cluster),
            Running::Process(_) | Running::Container(_) => None,
        })
    }

    /// Kills the largest number of masters that is no majority; `false` if they are not ours.
    pub(crate) fn kill_minority(&mut self) -> bool {
        let minority = self.running.len().saturating_sub(1) / 2;
        self.running.drain(..minority).for_each(stop);
        minority > 0
    }
}

impl Drop for Masters {
    fn drop(&mut self) {
        self.running.drain(..).for_each(stop);
    }
}

fn works(program: &str, command: &str) -> bool {
    let mut run = Command::new(program);
    let run = run.arg(command).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

fn start_process(server: &str, port: u16) -> io::Result<Child> {
    let port = port.to_string();
    let options = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    Command::new(server).args(options).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn start_container(image: &str) -> Result<(String, String), Box<dyn Error>> {
    let publish = ["run", "--detach", "--rm", "--publish", "127.0.0.1::6379", image];
    let container = docker(&publish)?;
    let address = docker(&["port", &container, "6379/tcp"])?;
    Ok((container, address.lines().next().unwrap_or_default().to_owned()))
}

fn docker(args: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new("docker").args(args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("docker {} failed; {HOW_TO_GET_REAL_ONES}", args.join(" ")).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn wait_for(address: &str) -> Result<(), Box<dyn Error>> {
    for _ in 0..100 {
        if ping(address).is_ok_and(|pong| pong.starts_with(b"+PONG")) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(format!("the master at {address} does not answer").into())
}

fn ping(address: &str) -> io::Result<[u8; 7]> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.write_all(b"PING\r\n")?;
    let mut pong = [0; 7];
    connection.read_exact(&mut pong)?;
    Ok(pong)
}

/// Stopping is best effort: what is gone already needs none.
fn stop(running: Running) {
    match running {
        Running::Process(mut child) => {
            child.kill().ok();
            child.wait().ok();
        }
        Running::Container(id) => {
            let mut kill = Command::new("docker");
            kill.args(["kill", &id]).stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
        }
        Running::Simulated(cluster, node) => cluster.crash(node),
    }
}
