//! How a `Redlock` is set up and connected.

use std::{fmt, sync::Arc, time::Duration};

use fred::types::config::Config;
use tokio::runtime::Handle;

#[cfg(feature = "sim")]
use crate::sim::{SimClient, SimCluster};
use crate::{
    admission::{Fleet, members},
    board::Board,
    clock::Clock,
    connect::{check_members, wait_for_quorum},
    entropy::Entropy,
    error::ConnectError,
    lane::{Common, Lane},
    node::{
        FleetKeys, Node, NodeName,
        redis::{ConfigError, RedisNode},
    },
    options::{Defaults, LockOptions, OptionsError, Renewal},
    own_seat::OwnSeat,
    quorum::Quorum,
    redlock::Redlock,
    tasks::{Environment, Spawner},
    validity::ClockDrift,
    wait::Queues,
    watchdog::Watchdog,
};

/// No counter is kept for longer without use: servers refuse times that are too long.
const LONGEST_IDLE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Sets up a [`Redlock`].
///
/// | option | default |
/// |---|---|
/// | `ttl` | 10 s |
/// | `max_ttl` | 60 s |
/// | `wait` | 30 s |
/// | `node_timeout` | a tenth of the ttl, 1 ms to 200 ms |
/// | `renew_every` | a third of the ttl |
/// | `max_hold` | no limit |
/// | `fence_idle_ttl` | 24 h |
/// | `clock_drift` | 1 % of the ttl + 2 ms |
/// | `connect_timeout` | 5 s |
/// | `key_prefix` | `quorumlock:` |
/// | `max_in_flight` | 1024 |
/// | `new_fleet` | no: nodes that nobody remembers wait for `max_ttl` |
/// | `trust_durability` | no |
/// | `allow_eviction` | no |
///
/// `Debug` does not show the nodes, whose URLs may contain passwords.
#[must_use = "a builder does nothing until it is connected"]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct RedlockBuilder {
    servers: Vec<Server>,
    single_node: bool,
    defaults: Defaults,
    connect_timeout: Duration,
    key_prefix: String,
    max_in_flight: usize,
    new_fleet: bool,
    trust_durability: bool,
    allow_eviction: bool,
    make_wait: bool,
    #[cfg(feature = "sim")]
    sim: Option<SimClient>,
}

enum Server {
    Url(String),
    /// A name, and the URL.
    Named(String, String),
    Config(Box<Config>),
}

impl RedlockBuilder {
    pub(crate) fn new() -> Self {
        Self {
            servers: Vec::new(),
            single_node: false,
            defaults: Defaults::default(),
            connect_timeout: Duration::from_secs(5),
            key_prefix: "quorumlock:".to_owned(),
            max_in_flight: 1024,
            new_fleet: false,
            trust_durability: false,
            allow_eviction: false,
            make_wait: true,
            #[cfg(feature = "sim")]
            sim: None,
        }
    }

    /// The independent masters, by URL: `redis://[[user:]password@]host[:port][/database]`, or
    /// `rediss://` for TLS with the feature `rustls`. Three tolerate one failure, five two.
    ///
    /// Every client of the same locks has to be given the same masters: two lists that differ can
    /// have disjoint majorities.
    pub fn nodes<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.single_node = false;
        self.servers = urls.into_iter().map(|url| Server::Url(url.as_ref().to_owned())).collect();
        self
    }

    /// The independent masters by URL, each with a name of its own.
    ///
    /// The name is what makes a node a member of the fleet, in the place of `host:port`: every client has
    /// to give the same names, without commas and control characters. For nodes that clients reach by different addresses, and for a server that
    /// takes another's place at another address.
    pub fn named_nodes<N: AsRef<str>, U: AsRef<str>>(
        mut self,
        nodes: impl IntoIterator<Item = (N, U)>,
    ) -> Self {
        self.single_node = false;
        let named =
            |(name, url): (N, U)| Server::Named(name.as_ref().to_owned(), url.as_ref().to_owned());
        self.servers = nodes.into_iter().map(named).collect();
        self
    }

    /// One server alone; see [`Redlock::single_node`].
    pub fn single_node(mut self, url: impl AsRef<str>) -> Self {
        self = self.nodes([url]);
        self.single_node = true;
        self
    }

    /// The independent masters, by [fred] configurations: for what a URL cannot say.
    ///
    /// Server, credentials, database, protocol version and TLS are taken from them. Everything that
    /// the protocol depends on (timeouts, attempts, reconnecting) is set by this library.
    pub fn fred_configs(mut self, configs: impl IntoIterator<Item = Config>) -> Self {
        self.single_node = false;
        let configs = configs.into_iter().map(|config| Server::Config(Box::new(config)));
        self.servers = configs.collect();
        self
    }

    /// Simulated masters, in the place of servers; see [`sim`](crate::sim).
    #[cfg(feature = "sim")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
    pub fn sim(self, cluster: &SimCluster) -> Self {
        self.sim_client(&cluster.client())
    }

    /// Simulated masters, for a client process that the test can stop.
    #[cfg(feature = "sim")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
    pub fn sim_client(mut self, client: &SimClient) -> Self {
        self.sim = Some(client.clone());
        self
    }

    /// One server alone, by a fred configuration; see [`Redlock::single_node`].
    pub fn single_fred_config(mut self, config: Config) -> Self {
        self = self.fred_configs([config]);
        self.single_node = true;
        self
    }

    /// How long a lock's keys live unless an acquisition says otherwise. Defaults to 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = ttl;
        self
    }

    /// The largest ttl that anyone may ask for. Defaults to 60 s.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.defaults.max_ttl = max_ttl;
        self
    }

    /// How long [`Redlock::acquire`] goes on trying, measured from the call. Defaults to 30 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = wait;
        self
    }

    /// How long one node may take for one answer, measured from when it is asked. A tenth of the ttl by
    /// default, 1 ms to 200 ms. Who is silent for so long (100 ms to 1 s) is not asked until it answers.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.defaults.node_timeout = Some(node_timeout);
        self
    }

    /// Held locks are renewed so long after their validity was last counted from. Defaults to a third of
    /// the ttl.
    pub fn renew_every(mut self, renew_every: Duration) -> Self {
        self.defaults.renewal = Renewal::Every(renew_every);
        self
    }

    /// Locks are not renewed: each is lost at the end of its validity, unless it is extended.
    pub fn without_renewal(mut self) -> Self {
        self.defaults.renewal = Renewal::Never;
        self
    }

    /// The longest time for which renewals keep a lock, measured from the start of the attempt that
    /// acquired it. Defaults to no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.defaults.max_hold = Some(max_hold);
        self
    }

    /// How long the counter of a resource's fencing tokens stays on the nodes after it was last counted past a
    /// multiple of 64, made, raised or refilled. Tokens do not go back when it goes: what is missing counts from
    /// above the largest number that the node granted to any resource. Defaults to 24 h; more than 100 years
    /// count as 100.
    pub fn fence_idle_ttl(mut self, fence_idle_ttl: Duration) -> Self {
        self.defaults.fence_idle_ttl = fence_idle_ttl.min(LONGEST_IDLE);
        self
    }

    /// What is allowed for clocks that run at different rates. Defaults to 1 % of the ttl + 2 ms.
    pub fn clock_drift(mut self, drift: ClockDrift) -> Self {
        self.defaults.drift = drift;
        self
    }

    /// How long [`connect`](Self::connect) waits for a quorum, and how long any later attempt to
    /// connect to a node may take. Defaults to 5 s.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// What the names of all keys begin with. Fleets of locks with different prefixes do not see each
    /// other. Defaults to `quorumlock:`.
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = key_prefix.into();
        self
    }

    /// How many votes may be queued for or sent to one node and not answered. Above it a node's
    /// outcome is [`NodeFailure::Overloaded`](crate::node::NodeFailure::Overloaded) at once. Up to half as many
    /// renewals are undecided at a time; the others wait for these. Defaults to 1024.
    pub fn max_in_flight(mut self, max_in_flight: usize) -> Self {
        self.max_in_flight = max_in_flight;
        self
    }

    /// Says that nothing can be held on nodes that know of no fleet: they need not wait.
    ///
    /// Without it the nodes of a fleet that nobody remembers wait for `max_ttl` before the first lock
    /// is granted. It only counts where no node of the fleet has been admitted before and a quorum is
    /// there; a single node that comes back empty waits all the same. It also takes over servers that
    /// belong to a fleet of other nodes: stop all clients of that one for its `max_ttl` before.
    ///
    /// Right for tests, and the first time that a fleet is used. Where it stays in the configuration, a
    /// fleet is taken for a new one if a quorum of its nodes lost its data and none that remembers answers
    /// a client that starts, and locks that were held then can be granted again.
    pub fn new_fleet(mut self) -> Self {
        self.new_fleet = true;
        self
    }

    /// Lets a node that restarted vote at once if it keeps every write on its disk before it answers
    /// (`appendonly yes` and `appendfsync always`), instead of after `max_ttl`.
    ///
    /// The price: that is how it is configured *now*. Where it was not so when it stopped, where its disk
    /// lies about what is written, or where it was given an older copy of its data, a lock can be granted
    /// twice.
    pub fn trust_durability(mut self) -> Self {
        self.trust_durability = true;
        self
    }

    /// Accepts nodes whose `maxmemory-policy` may evict keys. An evicted key is a lock given away.
    pub fn allow_eviction(mut self) -> Self {
        self.allow_eviction = true;
        self
    }

    /// Lets nodes vote that may have forgotten locks, at once. It switches off what protects from masters
    /// that come back empty: only to show, in a test, what that is good for.
    #[cfg(feature = "sim")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
    pub fn without_quarantine(mut self) -> Self {
        self.make_wait = false;
        self
    }

    /// Connects to all nodes at once.
    ///
    /// Returns when all are connected, or 200 ms after a quorum is: a minority that is down is picked
    /// up when it comes.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]. Options, URLs and configurations that cannot work, before anything is sent;
    /// [`Unfit`](ConnectError::Unfit) as soon as any server says that it cannot serve;
    /// [`NoQuorum`](ConnectError::NoQuorum) when fewer than a quorum could be reached within
    /// [`connect_timeout`](Self::connect_timeout), with the reason for each.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes what was opened.
    #[cfg_attr(not(feature = "sim"), expect(unused_mut, reason = "the simulation takes a part"))]
    pub async fn connect(mut self) -> Result<Redlock, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let node_timeout = self.check_options()?;
        #[cfg(feature = "sim")]
        if let Some(client) = self.sim.take() {
            let nodes = client.nodes(self.connect_timeout);
            check_members(&nodes.iter().map(Node::name), nodes.len() == 1)?;
            return self.connect_to(nodes, node_timeout, client.environment(runtime)).await;
        }
        let environment = Environment {
            spawner: Spawner::new(runtime),
            clock: Clock::System,
            entropy: Entropy::System,
        };
        let nodes = self.redis_nodes()?;
        self.connect_to(nodes, node_timeout, environment).await
    }

    async fn connect_to<N: Node>(
        self,
        nodes: Vec<N>,
        node_timeout: Duration,
        environment: Environment,
    ) -> Result<Redlock, ConnectError> {
        let Environment { spawner, clock, entropy } = environment;
        let (seat, successors) = (Arc::new(OwnSeat::by_chance(&entropy)), Arc::default());
        let queues = Queues::new(Arc::clone(&seat), Arc::clone(&successors));
        let (mut lanes, mut tasks, contended) = (Vec::new(), Vec::new(), Arc::default());
        let common = Common::new(self.max_in_flight, node_timeout, &contended, &entropy);
        let names: Vec<NodeName> = nodes.iter().map(|node| node.name().clone()).collect();
        let fleet = Fleet {
            members: members(&names),
            names,
            keys: FleetKeys::with_prefix(&self.key_prefix),
            max_ttl: self.defaults.max_ttl,
            drift: self.defaults.drift,
            is_new: self.new_fleet,
            trusts_durability: self.trust_durability,
            allows_eviction: self.allow_eviction,
            found_without: self.connect_timeout.min(Duration::from_secs(5)).div_f64(5.0),
            makes_wait: self.make_wait,
        };
        let board = Arc::new(Board::new(fleet, clock, entropy.clone()));
        for (place, node) in nodes.into_iter().enumerate() {
            let node = Arc::new(node);
            tasks.push(queues.ears.grow(&node, &spawner, &entropy));
            let (lane, task) = Lane::start(node, &common, &board, place, &spawner);
            lanes.push(lane);
            tasks.push(task);
        }
        let (watchdog, watching) = Watchdog::new(clock, self.max_in_flight.div_ceil(2));
        tasks.push(spawner.spawn(watching));
        let quorum = Quorum { lanes, clock, entropy, seat, successors, contended };
        let key_prefix = self.key_prefix.into_boxed_str();
        let redlock = Redlock::new(quorum, self.defaults, key_prefix, watchdog, queues, tasks);
        match wait_for_quorum(&redlock, self.connect_timeout).await {
            Ok(()) => Ok(redlock),
            Err(error) => {
                redlock.shutdown().await;
                Err(error)
            }
        }
    }

    /// The node timeout of an attempt without options of its own.
    fn check_options(&self) -> Result<Duration, OptionsError> {
        let terms = self.defaults.terms(LockOptions::new())?;
        if self.connect_timeout.is_zero() {
            return Err(OptionsError::Zero { name: "connect_timeout" });
        }
        if self.max_in_flight == 0 {
            return Err(OptionsError::Zero { name: "max_in_flight" });
        }
        Ok(terms.node_timeout)
    }

    fn redis_nodes(&self) -> Result<Vec<RedisNode>, ConnectError> {
        let nodes = self.servers.iter().map(|server| self.redis_node(server));
        let nodes: Vec<RedisNode> = nodes.collect::<Result<_, _>>()?;
        check_members(&nodes.iter().map(Node::name), self.single_node)?;
        Ok(nodes)
    }

    fn redis_node(&self, server: &Server) -> Result<RedisNode, ConfigError> {
        match server {
            Server::Url(url) => RedisNode::from_url(url, self.connect_timeout),
            Server::Named(name, url) => {
                Ok(RedisNode::from_url(url, self.connect_timeout)?.named(NodeName::new(name)))
            }
            Server::Config(config) => {
                RedisNode::from_config(config.as_ref().clone(), self.connect_timeout)
            }
        }
    }
}

impl fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBuilder")
            .field("nodes", &self.servers.len())
            .field("defaults", &self.defaults)
            .field("connect_timeout", &self.connect_timeout)
            .field("key_prefix", &self.key_prefix)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}

impl Redlock {
    /// Connects to independent masters, given by their URLs, with default options.
    ///
    /// See [`RedlockBuilder::connect`] for how long it waits and for what.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: URLs that cannot be used, servers that cannot serve, or fewer than a quorum
    /// within 5 s.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes what was opened.
    pub async fn connect<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, ConnectError> {
        Self::builder().nodes(urls).connect().await
    }

    /// Connects to one server: the same algorithm with one node, which tolerates no failure.
    ///
    /// While that server is away nothing can be locked, and after it has restarted, failed over or was
    /// restored it does not vote for [`max_ttl`](RedlockBuilder::max_ttl) and the drift over it.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes what was opened.
    pub async fn single_node(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().single_node(url).connect().await
    }

    /// For everything that is not the default.
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::new()
    }
}
