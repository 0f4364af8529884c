//! The marker: what a node remembers of its admission, for as long as it remembers anything.
//!
//! It is one string on the node, read by people as well. A node whose marker is missing, or speaks of
//! another process, has forgotten or may have: it has to prove nothing, only to wait.

use std::{fmt, sync::OnceLock};

use super::{NodeName, script::Script};
use crate::{fencing_token, resource::Key};

/// What an admitted node's votes are asked with: the marker that has to be there, and the script that
/// looks for it. Whoever has it did not have to load anything.
#[derive(Debug)]
pub struct Ballot {
    /// The keys of the fleet.
    pub keys: FleetKeys,
    /// The id of the marker, which is in the texts of the scripts too.
    pub mark: String,
    members: String,
    /// What its node grants only above: it is in the text of the script too.
    pub floor: u64,
    /// The SHA-1 digests of the scripts, in the order of [`Script::VOTES`], once one was asked for.
    digests: OnceLock<[String; Script::VOTES.len()]>,
}

// Whether the digests were computed makes no difference.
impl PartialEq for Ballot {
    fn eq(&self, other: &Self) -> bool {
        let same_admission = self.mark == other.mark && self.members == other.members;
        same_admission && self.floor == other.floor && self.keys == other.keys
    }
}

impl Eq for Ballot {}

impl Ballot {
    /// What votes are asked with by a client that takes these nodes for the fleet. With other nodes the
    /// digests are others, which no server knows.
    #[must_use]
    pub fn new(keys: FleetKeys, mark: &str, members: &str, floor: u64) -> Self {
        let (mark, members) = (mark.to_owned(), members.to_owned());
        Self { keys, mark, members, floor, digests: OnceLock::new() }
    }

    /// What tells this admission's scripts from any other's.
    #[cfg(feature = "sim")]
    pub(crate) fn id(&self) -> String {
        format!("{} {} {}", self.mark, self.members, self.floor)
    }

    fn digests(&self) -> &[String; Script::VOTES.len()] {
        let digest = |script: Script| {
            let text = script.text_for(&self.mark, &self.members, self.floor);
            sha1_smol::Sha1::from(text).digest().to_string()
        };
        self.digests.get_or_init(|| Script::VOTES.map(digest))
    }

    /// The digest of a script; `None` for one that is not part of an admission.
    pub(crate) fn digest(&self, script: Script) -> Option<&str> {
        let place = Script::VOTES.iter().position(|vote| *vote == script)?;
        self.digests().get(place).map(String::as_str)
    }
}

/// The keys that a fleet has on each node beside those of its locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetKeys {
    /// Where the marker is.
    pub marker: Key,
    /// At least the largest number that the node granted to any resource.
    pub max: Key,
}

impl FleetKeys {
    /// The keys with this prefix.
    #[must_use]
    pub fn with_prefix(prefix: &str) -> Self {
        let key = |name: &str| Key::new(&format!("{prefix}{name}"));
        Self { marker: key("marker"), max: key("max") }
    }
}

/// Whether a marker lets its node vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkState {
    /// The node may vote.
    Admitted,
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
    /// The node grants only numbers above it.
    pub floor: u64,
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
        let floor = fencing_token::number(named("floor")?)?;
        let state = match state {
            "waiting" => MarkState::Waiting,
            "admitted" => MarkState::Admitted,
            _ => return None,
        };
        Some(Self {
            id: id.to_owned(),
            state,
            run_id: run_id.to_owned(),
            node: NodeName::new(node),
            members: members.to_owned(),
            max_ttl_ms,
            floor,
        })
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, state, run_id, node, members, max_ttl_ms, floor } = self;
        let word = match state {
            MarkState::Admitted => "admitted",
            MarkState::Waiting => "waiting",
        };
        write!(f, "{id}\nstate: {word}\nrun_id: {run_id}\nnode: {node}\nmembers: {members}")?;
        write!(f, "\nmax_ttl_ms: {max_ttl_ms}\nfloor: {floor}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fencing_token::FencingToken;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        for state in [MarkState::Admitted, MarkState::Waiting] {
            let marker = Marker {
                id: "0123456789abcdef0123456789abcdef".to_owned(),
                state,
                run_id: "7f3".to_owned(),
                node: NodeName::new("10.0.0.1:6379"),
                members: "10.0.0.1:6379,10.0.0.2:6379".to_owned(),
                max_ttl_ms: 60_000,
                floor: 7,
            };
            assert_eq!(Marker::parse(&marker.to_string()), Some(marker.clone()));
            assert!(marker.to_string().starts_with(&marker.id));
        }
    }

    #[test]
    fn what_is_no_marker_is_not_read_as_one() {
        let id = "0123456789abcdef0123456789abcdef";
        let head = format!("{id}\nstate: admitted\nrun_id: r\nnode: n\nmembers: n\nmax_ttl_ms: ");
        let [no_floor, no_number] = ["5", "5\nfloor: x"].map(|end| format!("{head}{end}"));
        let no_ttl = format!("{head}x\nfloor: 0");
        let too_high = format!("{head}5\nfloor: {}", FencingToken::MAX.get() + 1);
        for text in ["", id, "x\nstate: waiting", &head, &no_ttl, &no_floor, &no_number, &too_high]
        {
            assert_eq!(Marker::parse(text), None, "{text}");
        }
        assert!(Marker::parse(&format!("{head}5\nfloor: 0")).is_some());
    }

    #[test]
    fn another_list_of_nodes_or_another_admission_has_other_digests() {
        let ballot = |mark: &str, members, floor| {
            Ballot::new(FleetKeys::with_prefix("q:"), mark, members, floor).digests().clone()
        };
        let (a, b) = ("a".repeat(32), "b".repeat(32));
        let own = ballot(&a, "n0,n1", 7);
        assert_eq!(own, ballot(&a, "n0,n1", 7));
        for other in [ballot(&a, "n0,n2", 7), ballot(&b, "n0,n1", 7)] {
            assert!(own.iter().zip(&other).all(|(own, other)| own != other));
        }
        assert_ne!(own, ballot(&a, "n0,n1", 8));
    }
}
