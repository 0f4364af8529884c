//! The marker: what a node remembers of its admission, for as long as it remembers anything.
//!
//! It is one string on the node, read by people as well. A node whose marker is missing, or speaks of
//! another process, has forgotten or may have: it has to prove nothing, only to wait.

use std::fmt;

use super::NodeName;
use crate::resource::Key;

/// What an admitted node's votes are asked with: the marker that has to be there, and the script that
/// looks for it. Whoever has it did not have to load anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// The key of the marker.
    pub marker: Key,
    /// The id of the marker, which is in the script's text too.
    pub mark: String,
    /// The SHA-1 digest of the script that acquires.
    pub acquire: String,
}

/// Whether a marker lets its node vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkState {
    /// The node may vote.
    Admitted {
        /// The SHA-1 digest of the script that acquires, with this marker's id in its text.
        acquire: String,
    },
    /// It was seen without a marker that counts. That this one is still there shows that nothing was
    /// forgotten since.
    Waiting,
}

/// A marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// 128 random bits as 32 hexadecimal digits: no two markers have the same.
    pub id: String,
    /// Whether the node may vote.
    pub state: MarkState,
    /// The process that it was written for.
    pub run_id: String,
    /// The node that it was written for, as its clients call it.
    pub node: NodeName,
    /// All nodes of the fleet in alphabetical order, separated by commas.
    pub members: String,
    /// The largest ttl that the clients of the fleet may ask for, in milliseconds.
    pub max_ttl_ms: u64,
}

/// How many characters of a marker are its id.
pub(crate) const ID_LEN: usize = 32;

impl Marker {
    /// Reads what `Display` writes; `None` if it is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let id = lines.next().filter(|id| id.len() == ID_LEN)?;
        let mut named = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(": ");
        let (state, run_id, node) = (named("state")?, named("run_id")?, named("node")?);
        let (members, max_ttl_ms) = (named("members")?, named("max_ttl_ms")?.parse().ok()?);
        let state = match state {
            "waiting" => MarkState::Waiting,
            "admitted" => MarkState::Admitted { acquire: named("acquire")?.to_owned() },
            _ => return None,
        };
        Some(Self {
            id: id.to_owned(),
            state,
            run_id: run_id.to_owned(),
            node: NodeName::new(node),
            members: members.to_owned(),
            max_ttl_ms,
        })
    }

    /// What votes are asked with while this marker is there.
    #[must_use]
    pub fn ballot(&self, at: &Key) -> Option<Ballot> {
        match &self.state {
            MarkState::Waiting => None,
            MarkState::Admitted { acquire } => {
                let (mark, acquire) = (self.id.clone(), acquire.clone());
                Some(Ballot { marker: at.clone(), mark, acquire })
            }
        }
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, state, run_id, node, members, max_ttl_ms } = self;
        let word = match state {
            MarkState::Admitted { .. } => "admitted",
            MarkState::Waiting => "waiting",
        };
        write!(f, "{id}\nstate: {word}\nrun_id: {run_id}\nnode: {node}\nmembers: {members}")?;
        write!(f, "\nmax_ttl_ms: {max_ttl_ms}")?;
        match state {
            MarkState::Admitted { acquire } => write!(f, "\nacquire: {acquire}"),
            MarkState::Waiting => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let admitted = MarkState::Admitted { acquire: "a94a8fe5".to_owned() };
        for state in [admitted, MarkState::Waiting] {
            let marker = Marker {
                id: "0123456789abcdef0123456789abcdef".to_owned(),
                state,
                run_id: "7f3".to_owned(),
                node: NodeName::new("10.0.0.1:6379"),
                members: "10.0.0.1:6379,10.0.0.2:6379".to_owned(),
                max_ttl_ms: 60_000,
            };
            assert_eq!(Marker::parse(&marker.to_string()), Some(marker.clone()));
            assert!(marker.to_string().starts_with(&marker.id));
        }
    }

    #[test]
    fn what_is_no_marker_is_not_read_as_one() {
        let id = "0123456789abcdef0123456789abcdef";
        let head = format!("{id}\nstate: admitted\nrun_id: r\nnode: n\nmembers: n\nmax_ttl_ms: ");
        for text in ["", id, "x\nstate: waiting", &head, &format!("{head}x"), &format!("{head}5")] {
            assert_eq!(Marker::parse(text), None, "{text}");
        }
        assert!(Marker::parse(&format!("{head}5\nacquire: d")).is_some());
    }
}
