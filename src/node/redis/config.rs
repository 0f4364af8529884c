//! From a URL to a fred configuration, and from that to a node's name.

use fred::types::config::{Config, ServerConfig};

use crate::node::NodeName;

/// A URL or configuration that does not describe one server that stands alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The URL cannot be used.
    #[error("invalid node URL {url:?}: {reason}")]
    Url {
        /// The URL, without its credentials.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration is not for one server that stands alone.
    #[error("a node is one server that stands alone, not {found}")]
    NotStandalone {
        /// What it is for.
        found: &'static str,
    },
}

/// Reads `redis://[[user:]password@]host[:port][/database]` (also `valkey://`, `rediss://`,
/// `valkeys://`).
pub(super) fn parse_url(url: &str) -> Result<Config, ConfigError> {
    let invalid = |reason: &str| ConfigError::Url { url: redacted(url), reason: reason.to_owned() };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("no scheme"))?;
    match scheme {
        "redis" | "valkey" => {}
        "rediss" | "valkeys" if cfg!(feature = "rustls") => {}
        "rediss" | "valkeys" => return Err(invalid("TLS needs the feature `rustls`")),
        _ => {
            return Err(invalid("the scheme is not redis, rediss, valkey or valkeys"));
        }
    }
    if rest.contains(['?', '#']) {
        return Err(invalid("query and fragment have no meaning here"));
    }
    let host = authority(rest);
    if host.is_empty() || host.starts_with(':') {
        return Err(invalid("no host"));
    }
    let config = Config::from_url_centralized(url).map_err(|error| invalid(error.details()))?;
    let path = rest.split_once('/').map_or("", |(_, path)| path).trim_end_matches('/');
    if !path.is_empty() && config.database.map(|n| n.to_string()).as_deref() != Some(path) {
        return Err(invalid("the database is not a number from 0 to 255"));
    }
    Ok(config)
}

/// The part between credentials and path: `host[:port]`.
fn authority(rest: &str) -> &str {
    let authority = rest.split_once('/').map_or(rest, |(authority, _)| authority);
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// The URL without its credentials, fit to be shown.
fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    // Everything before the last `@` goes, wherever a malformed URL may have put it.
    let shown = rest.rsplit_once('@').map_or(rest, |(_, shown)| shown);
    // A port that is none may be a password whose host was forgotten.
    let shown = match shown.rsplit_once(':') {
        Some((host, port)) if !port.starts_with(|c: char| c.is_ascii_digit()) => host,
        _ => shown,
    };
    if scheme.is_empty() { shown.to_owned() } else { format!("{scheme}://{shown}") }
}

/// Host and port: two nodes with the same are one server.
fn server_address(config: &Config) -> Result<(String, u16), ConfigError> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "fred has more variants with more features")]
    let found = match &config.server {
        ServerConfig::Centralized { server } => {
            return Ok((server.host.to_lowercase(), server.port));
        }
        other if other.is_clustered() => "a cluster",
        other if other.is_sentinel() => "a sentinel's replica set",
        _ => "something else",
    };
    Err(ConfigError::NotStandalone { found })
}

pub(super) fn node_name(config: &Config) -> Result<NodeName, ConfigError> {
    let (host, port) = server_address(config)?;
    Ok(NodeName::new(&format!("{host}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_carry_user_password_and_database() {
        let config = parse_url("redis://alice:s%40crt@db.example:6380/3").unwrap();
        assert_eq!(config.username.as_deref(), Some("alice"));
        assert_eq!(config.password.as_deref(), Some("s@crt"));
        assert_eq!(config.database, Some(3));
        assert_eq!(node_name(&config).unwrap().as_str(), "db.example:6380");

        let config = parse_url("valkey://:pw@db.example").unwrap();
        assert_eq!(config.username, None);
        assert_eq!(config.password.as_deref(), Some("pw"));
        assert_eq!(node_name(&config).unwrap().as_str(), "db.example:6379");
    }

    #[test]
    fn an_ipv6_address_is_a_host() {
        let config = parse_url("redis://[::1]:6380").unwrap();
        assert_eq!(server_address(&config).unwrap().1, 6380);
    }

    #[test]
    fn a_malformed_url_is_refused_and_its_password_is_not_shown() {
        for url in [
            "",
            "127.0.0.1:6379",
            "redis://",
            "redis://:6379",
            "redis:///1",
            "redis://u:hunter2@",
            "redis://u:hunter2@h:99999",
            "redis://u:hunter2@h:port",
            "redis://u:hunter2@h/notadb",
            "redis://u:hunter2@h/256",
            "redis://u:hunter2@h/-1",
            "redis://u:hunter2@h?db=2",
            "http://u:hunter2@h",
            "redis-cluster://u:hunter2@h:1",
            "redis-sentinel://u:hunter2@h:1",
            "u:hunter2@h",
            "redis://u:hunter2",
        ] {
            let error = parse_url(url).expect_err(url);
            assert!(matches!(error, ConfigError::Url { .. }), "{url}: {error:?}");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[cfg(not(feature = "rustls"))]
    #[test]
    fn tls_without_the_feature_says_which_feature() {
        let error = parse_url("rediss://h").unwrap_err();
        assert!(error.to_string().contains("rustls"), "{error}");
    }

    #[cfg(feature = "rustls")]
    #[test]
    fn tls_is_set_up_with_the_feature() {
        assert!(parse_url("rediss://h").unwrap().tls.is_some());
        assert!(parse_url("redis://h").unwrap().tls.is_none());
    }

    #[test]
    fn clusters_and_sentinels_are_not_nodes() {
        let cluster = Config::from_url("redis-cluster://h:1?node=i:2").unwrap();
        assert!(matches!(server_address(&cluster), Err(ConfigError::NotStandalone { .. })));
        let sentinel = Config::from_url("redis-sentinel://h:1?sentinelServiceName=s").unwrap();
        assert!(matches!(server_address(&sentinel), Err(ConfigError::NotStandalone { .. })));
    }
}
