//! What a server says of itself, as far as it decides whether it may vote.

use std::fmt;

/// What kind of server it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// Redis, with its major and minor version.
    Redis(u32, u32),
    /// Valkey, with its major and minor version.
    Valkey(u32, u32),
    /// Something else that speaks the protocol.
    Other(String),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(major, minor) => write!(f, "Redis {major}.{minor}"),
            Self::Valkey(major, minor) => write!(f, "Valkey {major}.{minor}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// What a node was seen to be, in one look.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// The process: a new one at each start.
    pub run_id: String,
    /// What kind of server it is.
    pub server: Server,
    /// Whether it is a master, and not another's replica.
    pub is_master: bool,
    /// Whether it is a node of a Redis Cluster.
    pub is_cluster: bool,
    /// Whether it is still reading its data: then nothing else is known.
    pub is_loading: bool,
    /// `maxmemory-policy`; `None` where it does not say.
    pub eviction: Option<String>,
    /// Whether every write is on the disk before it is answered (`appendfsync always`). `false` also
    /// where it was not asked for or is not told.
    pub is_durable: bool,
    /// How many replicas are attached.
    pub replicas: u32,
    /// The commands that a node needs and this client may not call.
    pub forbidden: Vec<String>,
    /// The marker's text; `None` if there is none.
    pub marker: Option<String>,
    /// At least the largest number that it granted to any resource; `None` if it was not read, or is no number.
    pub max: Option<u64>,
}

impl Facts {
    /// Whether the marker and the largest number could be read.
    pub(crate) fn may_read(&self) -> bool {
        self.forbidden.iter().all(|command| command != "GET")
    }

    /// Reads the reply to `INFO`; the rest is filled in with what is safe. `None` if it is none.
    #[must_use]
    pub fn of_info(info: &str) -> Option<Self> {
        let field = |name: &str| {
            let of_line = |line: &str| {
                line.strip_prefix(name)?.strip_prefix(':').map(|value| value.trim().to_owned())
            };
            info.lines().find_map(of_line)
        };
        Some(Self {
            run_id: field("run_id").filter(|id| !id.is_empty())?,
            server: server(info, &field)?,
            is_master: field("role")? == "master",
            is_cluster: field("cluster_enabled").is_some_and(|enabled| enabled != "0"),
            is_loading: field("loading").is_none_or(|loading| loading != "0"),
            eviction: field("maxmemory_policy"),
            is_durable: false,
            replicas: field("connected_slaves").and_then(|n| n.parse().ok()).unwrap_or(0),
            forbidden: Vec::new(),
            marker: None,
            max: None,
        })
    }
}

/// Those that are neither Redis nor Valkey say so by a version of their own.
fn server(info: &str, field: &impl Fn(&str) -> Option<String>) -> Option<Server> {
    const KNOWN: [&str; 4] = ["redis_version", "valkey_version", "gcc_version", "os_version"];
    let names = info.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    let mut foreign = names.filter(|name| name.ends_with("_version") && !KNOWN.contains(name));
    if let Some(name) = foreign.next() {
        return Some(Server::Other(name.trim_end_matches("_version").to_owned()));
    }
    let version = |text: &str| -> Option<(u32, u32)> {
        let mut numbers = text.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let server = field("server_name").unwrap_or_else(|| "redis".to_owned());
    let told = field(if server == "valkey" { "valkey_version" } else { "redis_version" })?;
    Some(match (server.as_str(), version(&told)) {
        ("valkey", Some((major, minor))) => Server::Valkey(major, minor),
        ("redis", Some((major, minor))) => Server::Redis(major, minor),
        (name, _) => Server::Other(format!("{name} {told}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
        gcc_version:12.2.0\r\nrun_id:0a1b\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\
        # Persistence\r\nloading:0\r\naof_enabled:0\r\n# Replication\r\nrole:master\r\n\
        connected_slaves:2\r\n# Cluster\r\ncluster_enabled:0\r\n";

    fn facts(change: impl Fn(&str) -> String) -> Facts {
        Facts::of_info(&change(REDIS)).unwrap()
    }

    #[test]
    fn a_server_is_read_off_its_info() {
        let seen = facts(str::to_owned);
        assert_eq!(seen.run_id, "0a1b");
        assert_eq!(seen.server, Server::Redis(7, 0));
        assert!(seen.is_master && !seen.is_cluster && !seen.is_loading && !seen.is_durable);
        assert_eq!((seen.eviction.as_deref(), seen.replicas), (Some("noeviction"), 2));
        assert_eq!(seen.max, None, "it was not asked for yet");

        assert!(!facts(|info| info.replace("role:master", "role:slave")).is_master);
        assert!(facts(|info| info.replace("cluster_enabled:0", "cluster_enabled:1")).is_cluster);
        assert!(facts(|info| info.replace("loading:0", "loading:1")).is_loading);
        assert!(facts(|info| info.replace("loading:0", "")).is_loading, "in doubt it is");
    }

    #[test]
    fn other_servers_are_known_by_their_own_version() {
        let of = |line: &str| facts(|info| info.replace("# Server\r\n", line)).server;
        let valkey =
            of("server_name:valkey\r\nvalkey_version:8.1.1\r\nvalkey_release_stage:ga\r\n");
        assert_eq!(valkey, Server::Valkey(8, 1));
        for name in ["dragonfly", "kvrocks", "garnet"] {
            let other = of(&format!("{name}_version:1.2.3\r\n"));
            assert_eq!(other, Server::Other(name.to_owned()));
        }
        assert_eq!(of("server_name:proxy\r\n"), Server::Other("proxy 7.0.15".to_owned()));
    }

    #[test]
    fn what_has_no_run_id_or_role_is_no_server() {
        assert_eq!(Facts::of_info(""), None);
        assert_eq!(Facts::of_info("redis_version:7.0.15\r\nrole:master\r\n"), None);
        assert_eq!(Facts::of_info("redis_version:7.0.15\r\nrun_id:1\r\n"), None);
    }
}
