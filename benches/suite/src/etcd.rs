//! etcd: a cluster of members, and its lock.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use etcd_client::{Client, LockOptions};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    locker::Failure,
    support::process::{free_port, mortal_command, spawn},
};

const START_LIMIT: Duration = Duration::from_secs(20);

/// Members that live as long as this value. They keep what they are told on disk, as etcd always does.
pub struct Cluster {
    members: Vec<Child>,
    urls: Vec<String>,
    data: TempDir,
}

impl Cluster {
    /// Starts this many members and waits until they answer; an error if there is no etcd.
    pub async fn start(members: usize) -> Result<Self, Failure> {
        let data = tempfile::tempdir()?;
        let address = |port: u16| format!("http://127.0.0.1:{port}");
        let mut free = BTreeSet::new();
        while free.len() < members * 2 {
            free.insert(free_port());
        }
        let free: Vec<u16> = free.into_iter().collect();
        let ports: Vec<(u16, u16)> = free.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        let all: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(member, (peer, _))| format!("m{member}={}", address(*peer)))
            .collect();
        let mut cluster = Self { members: Vec::new(), urls: Vec::new(), data };
        for (member, (peer, client)) in ports.iter().enumerate() {
            let (peer, client) = (address(*peer), address(*client));
            let mut command = mortal_command(PathBuf::from("etcd"));
            command
                .args(["--name", &format!("m{member}"), "--initial-cluster", &all.join(",")])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .arg("--data-dir")
                .arg(cluster.data.path().join(format!("m{member}")))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            cluster.members.push(spawn(command));
            cluster.urls.push(client);
        }
        cluster.answers().await?;
        Ok(cluster)
    }

    /// Waits until a lease can be had.
    pub async fn answers(&self) -> Result<(), Failure> {
        Session::connect(&self.urls, Duration::from_secs(10)).await.map(drop)
    }

    /// Stops all members, until they are thawed.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        for member in &self.members {
            kill_process(Pid::from_child(member), signal).expect("a member that runs");
        }
    }

    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    pub fn pids(&self) -> Vec<u32> {
        self.members.iter().map(Child::id).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.kill().ok();
            member.wait().ok();
        }
    }
}

/// One contender: a connection to all members, and a lease that is kept alive.
pub struct Session {
    client: Client,
    ttl: Duration,
    lease: i64,
    _alive: Alive,
}

/// The task that keeps a lease alive.
struct Alive(JoinHandle<()>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    pub async fn connect(urls: &[String], ttl: Duration) -> Result<Self, Failure> {
        insist(async || Self::on(Client::connect(urls, None).await?, ttl).await).await
    }

    /// A lease of its own on the same connection.
    pub async fn another(&self) -> Result<Self, Failure> {
        insist(async || Self::on(self.client.clone(), self.ttl).await).await
    }

    async fn on(client: Client, ttl: Duration) -> Result<Self, Failure> {
        let seconds = i64::try_from(ttl.as_secs())?;
        let lease = client.lease_client().grant(seconds, None).await?.id();
        let (mut keeper, mut answers) = client.lease_client().keep_alive(lease).await?;
        let alive = tokio::spawn(async move {
            loop {
                sleep(ttl / 3).await;
                if keeper.keep_alive().await.is_err() || answers.message().await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { client, ttl, lease, _alive: Alive(alive) })
    }

    /// Waits until the lock is had.
    pub async fn lock(&self, resource: &str) -> Result<Vec<u8>, Failure> {
        let options = LockOptions::new().with_lease(self.lease);
        Ok(self.client.lock_client().lock(resource, Some(options)).await?.key().to_vec())
    }

    pub async fn unlock(&self, key: Vec<u8>) -> Result<(), Failure> {
        self.client.lock_client().unlock(key).await?;
        Ok(())
    }
}

/// Tries until it is done, or for as long as a start may take: a cluster that has stood still may have to choose a
/// leader, and has leases to end that ran out meanwhile.
async fn insist<T>(attempt: impl AsyncFn() -> Result<T, Failure>) -> Result<T, Failure> {
    let started = Instant::now();
    loop {
        match attempt().await {
            Err(_) if started.elapsed() < START_LIMIT => sleep(Duration::from_millis(100)).await,
            done => return done,
        }
    }
}
