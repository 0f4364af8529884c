//! A Redis or Valkey server as a [`Node`], through fred.
//!
//! One fred client is one connection and is never reconnected: after a loss a new client is made.
//! fred's own reconnecting would replay what was queued and would let commands flow before the old
//! connection is known to be dead.
//!
//! Invariants:
//!
//! 1. Scripts go out as custom commands, because fred ignores options on `eval` and `evalsha`.
//! 2. Each has one attempt, and no timeout of fred's own, which would be one more timer for each: the lane, which
//!    bounds what it waits for, has one for all. fred also takes commands after its connection has ended, and never
//!    answers them: the lane, which hears of the end, answers what was in flight.
//! 3. A call's future is polled to its end by the lane: fred sends what a dropped future asked for.

mod config;
mod listener;
mod look;
mod reply;
mod request;

pub use config::ConfigError;
pub use listener::RedisListener;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::Client,
    error::Error,
    interfaces::ClientLike,
    types::{
        CustomCommand, Value,
        config::{Config, ConnectionConfig, Options, PerformanceConfig, TcpConfig},
    },
};
use futures::{FutureExt, future::ready};
use tokio_util::task::AbortOnDropHandle;

use self::{
    look::Commands,
    reply::{decode, decode_together, failed_call, not_connected, out_of_step, unreachable},
};

use super::{
    Ballot, Facts, FleetKeys, Link, LinkId, Marker, Node, NodeFailure, NodeName, Operation,
    Outcome, SendAs, script::Script, sealed::Sealed,
};
use crate::entropy::Entropy;

/// With so many announcements a listener may be behind: those of locks that are released together come
/// together. What is beyond is lost, and costs those who wait some time. fred takes room for them eight times.
const ANNOUNCEMENTS: usize = 128;

/// A Redis or Valkey server that stands alone. `Debug` does not show its credentials.
pub struct RedisNode {
    name: NodeName,
    config: Config,
    connect_timeout: Duration,
}

impl RedisNode {
    /// A node from a URL: `redis://[[user:]password@]host[:port][/database]`, or `rediss://` for TLS
    /// with the feature `rustls`. `connect_timeout` bounds each attempt to connect.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], which names the URL without its credentials.
    pub fn from_url(url: &str, connect_timeout: Duration) -> Result<Self, ConfigError> {
        Self::from_config(config::parse_url(url)?, connect_timeout)
    }

    /// A node from a fred configuration for one server that stands alone.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for a cluster or sentinel configuration.
    pub fn from_config(config: Config, connect_timeout: Duration) -> Result<Self, ConfigError> {
        let name = config::node_name(&config)?;
        Ok(Self { name, config, connect_timeout })
    }

    /// The same node under another name.
    #[must_use]
    pub fn named(self, name: NodeName) -> Self {
        Self { name, ..self }
    }

    /// The parts of the configuration that the protocol depends on are set here, whatever it says.
    fn client(&self, announcements: usize) -> Client {
        let config = Config { fail_fast: true, ..self.config.clone() };
        let connection = ConnectionConfig {
            connection_timeout: self.connect_timeout,
            internal_command_timeout: self.connect_timeout,
            max_command_attempts: 1,
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        let performance = PerformanceConfig {
            default_command_timeout: self.connect_timeout,
            broadcast_channel_capacity: announcements,
            ..PerformanceConfig::default()
        };
        Client::new(config, Some(performance), Some(connection), None)
    }

    async fn open(&self, announcements: usize) -> Result<(Client, Task), NodeFailure> {
        let client = self.client(announcements);
        let mut task = AbortOnDropHandle::new(client.connect());
        while !client.is_connected() {
            tokio::select! {
                biased;
                ended = &mut task => return Err(match ended {
                    Ok(Err(error)) => not_connected(&error),
                    Ok(Ok(())) | Err(_) => unreachable("the connection was closed"),
                }),
                // fred subscribes to the event only after it looked at the state, so that the event
                // can be missed in between: look again soon.
                _ = tokio::time::timeout(LOOK_AGAIN, client.wait_for_connect()) => {}
            }
        }
        Ok((client, task))
    }

    async fn connect_and_set_up(&self, stale: &[LinkId]) -> Result<RedisLink, NodeFailure> {
        let (client, mut task) = self.open(1).await?;
        let setup = Setup { client: &client, timeout: self.connect_timeout };
        let (id, digests) = tokio::select! {
            biased;
            // fred takes commands after its task has ended and never answers them.
            _ = &mut task => return Err(unreachable("the connection was closed")),
            set_up = setup.run(stale) => set_up?,
        };
        let first = u64::try_from(Entropy::System.bits() >> 64).unwrap_or(0);
        Ok(RedisLink { id, client, task, digests, numbers: AtomicU64::new(first) })
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(10);

type Task = AbortOnDropHandle<Result<(), Error>>;

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Sealed for RedisNode {}

impl Node for RedisNode {
    type Link = RedisLink;
    type Listener = RedisListener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    async fn connect(&self, stale: &[LinkId]) -> Result<RedisLink, NodeFailure> {
        tokio::time::timeout(self.connect_timeout, self.connect_and_set_up(stale))
            .await
            .unwrap_or_else(|_| Err(unreachable("no answer to the connection attempt")))
    }

    async fn listen(&self) -> Result<RedisListener, NodeFailure> {
        let (client, task) = tokio::time::timeout(self.connect_timeout, self.open(ANNOUNCEMENTS))
            .await
            .unwrap_or_else(|_| Err(unreachable("no answer to the connection attempt")))?;
        Ok(RedisListener::new(client, task, self.connect_timeout))
    }
}

/// A connection to a Redis or Valkey server.
#[derive(Debug)]
pub struct RedisLink {
    id: LinkId,
    client: Client,
    task: Task,
    digests: Digests,
    /// The number of the next command for several operations. Counted from a random one: a proxy may mix up the
    /// replies on several connections.
    numbers: AtomicU64,
}

/// The scripts' SHA-1 digests, as the server computed them.
#[derive(Debug)]
struct Digests {
    extend: String,
    release: String,
}

impl Digests {
    fn of(&self, script: Script) -> Option<&str> {
        let known = [(Script::Extend, &*self.extend), (Script::Release, &*self.release)];
        known.into_iter().find(|(known, _)| *known == script).map(|(_, digest)| digest)
    }
}

impl Sealed for RedisLink {}

impl Link for RedisLink {
    fn id(&self) -> &LinkId {
        &self.id
    }

    fn call(
        &self,
        operation: &Operation,
        send_as: SendAs,
    ) -> impl Future<Output = Outcome> + Send + 'static {
        let Some((command, args)) = self.request(operation, &send_as) else {
            let why = "an acquire goes by its admission only".to_owned();
            return ready(Err(NodeFailure::NotAdmitted { why })).left_future();
        };
        let expected = operation.clone();
        // Not an async block: it would have room for the future twice, before and while it is awaited.
        let reply = send(&self.client, command, args, UNBOUNDED);
        reply
            .map(move |reply| match reply {
                Ok(value) => decode(&value, &expected),
                Err(error) => Err(failed_call(&error, UNBOUNDED)),
            })
            .right_future()
    }

    fn most_together(&self) -> usize {
        request::MOST_TOGETHER
    }

    fn call_together(
        &self,
        operations: Vec<Operation>,
        ballot: &Arc<Ballot>,
    ) -> impl Future<Output = Result<Vec<Outcome>, NodeFailure>> + Send + 'static {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let Some(args) = request::together(number, &operations, ballot) else {
            let why = "they cannot go together".to_owned();
            return ready(Err(NodeFailure::NotAdmitted { why })).left_future();
        };
        let reply = send(&self.client, "EVALSHA", args, UNBOUNDED);
        reply
            .map(move |reply| match reply {
                Ok(value) => decode_together(value.as_str().as_deref(), number, &operations),
                Err(error) => Err(failed_call(&error, UNBOUNDED)),
            })
            .right_future()
    }

    fn look(
        &self,
        keys: &FleetKeys,
        durability: bool,
        timeout: Duration,
    ) -> impl Future<Output = Result<Facts, NodeFailure>> + Send + 'static {
        Commands { client: self.client.clone(), timeout }.look(keys.clone(), durability)
    }

    fn mark(
        &self,
        keys: &FleetKeys,
        seen: Option<String>,
        marker: Marker,
        timeout: Duration,
    ) -> impl Future<Output = Result<bool, NodeFailure>> + Send + 'static {
        Commands { client: self.client.clone(), timeout }.mark(keys.clone(), seen, marker)
    }

    async fn closed(&mut self) -> String {
        match (&mut self.task).await {
            Ok(Err(error)) => error.details().to_owned(),
            Ok(Ok(())) | Err(_) => "closed".to_owned(),
        }
    }

    async fn close(self) {
        self.task.abort();
        // The task's end is all that is waited for; that it was aborted is known.
        drop(self.task.await);
    }
}

/// To fred a timeout of zero means none at all.
const UNBOUNDED: Duration = Duration::ZERO;

/// Sends one command with the options that a vote needs. See the module's invariants.
fn send(
    client: &Client,
    command: &'static str,
    args: Vec<Value>,
    timeout: Duration,
) -> impl Future<Output = Result<Value, Error>> + Send + 'static {
    let options = Options {
        timeout: Some(timeout),
        max_attempts: Some(1),
        fail_fast: true,
        ..Options::default()
    };
    let client = client.with_options(&options);
    let command = CustomCommand::new_static(command, None::<u16>, false);
    async move { client.custom(command, args).await }
}

/// The first commands on a new connection, before anybody else uses it.
struct Setup<'a> {
    client: &'a Client,
    timeout: Duration,
}

impl Setup<'_> {
    async fn run(&self, stale: &[LinkId]) -> Result<(LinkId, Digests), NodeFailure> {
        let run_id = self.run_id().await?;
        let client_id = self.client_id().await?;
        for old in stale.iter().filter(|old| old.run_id == run_id) {
            self.kill(old).await?;
        }
        let digests = Digests {
            extend: self.load(Script::Extend).await?,
            release: self.load(Script::Release).await?,
        };
        Ok((LinkId { run_id, client_id }, digests))
    }

    async fn ask(&self, command: &'static str, args: &[&str]) -> Result<Value, NodeFailure> {
        let args = args.iter().map(|arg| Value::from(*arg)).collect();
        send(self.client, command, args, self.timeout).await.map_err(|error| not_connected(&error))
    }

    async fn run_id(&self) -> Result<String, NodeFailure> {
        let info = self.ask("INFO", &["server"]).await?;
        info.as_str()
            .as_deref()
            .and_then(|info| info.lines().find_map(|line| line.strip_prefix("run_id:")))
            .map(|run_id| run_id.trim().to_owned())
            .ok_or_else(|| NodeFailure::Unfit {
                reason: "not a Redis or Valkey server: its INFO has no run_id".to_owned(),
            })
    }

    async fn client_id(&self) -> Result<Option<i64>, NodeFailure> {
        Ok(self.allowed("CLIENT", &["ID"]).await?.and_then(|id| id.as_i64()))
    }

    /// Closes what is left of an old connection to the same process, unread. Should the server not
    /// let us, a command in its buffers can still run later; its ttl bounds what that leaves.
    async fn kill(&self, old: &LinkId) -> Result<(), NodeFailure> {
        if let Some(id) = old.client_id {
            self.allowed("CLIENT", &["KILL", "ID", &id.to_string()]).await?;
        }
        Ok(())
    }

    /// `None` where the server forbids the command, as managed servers do.
    async fn allowed(
        &self,
        command: &'static str,
        args: &[&str],
    ) -> Result<Option<Value>, NodeFailure> {
        match self.ask(command, args).await {
            Err(NodeFailure::Unfit { reason } | NodeFailure::Unreachable { cause: reason })
                if reason.starts_with("NOPERM") || reason.starts_with("ERR unknown") =>
            {
                tracing::warn!(command, %reason, "forbidden: late commands cannot be cut off");
                Ok(None)
            }
            answered => answered.map(Some),
        }
    }

    async fn load(&self, script: Script) -> Result<String, NodeFailure> {
        let digest = self.ask("SCRIPT", &["LOAD", script.text()]).await?;
        digest.into_string().ok_or_else(out_of_step)
    }
}
