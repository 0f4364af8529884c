//! Which nodes may vote: only those that remember what they granted. Pure: facts in, a verdict out.
//!
//! A master that crashed and came back empty would grant a lock that is still held. The Redis
//! documentation asks the operator for a [delayed restart][text]: to keep it away for longer than any
//! lock lives. Here the clients do that by themselves.
//!
//! Invariants:
//!
//! 1. A node votes for one process and one set of data: while the marker of an admission is there, and
//!    the script that looks for it, the node has not forgotten a grant since.
//! 2. A node that may have forgotten waits for the longest ttl of the fleet, and for the drift over it,
//!    by the clock of the client that waits, from the moment at which that client saw a marker that is
//!    still there at the end.
//! 3. All clients that vote on a node have the same list of nodes.
//!
//! [text]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

#[cfg(test)]
mod cases;
mod sight;

use std::{fmt, time::Duration};

pub(crate) use self::sight::{Seen, Sight};

use crate::{
    clock::Moment,
    fence,
    majority::quorum,
    node::{Facts, FleetKeys, MarkState, Marker, NodeName, Server},
    options::millis,
    validity::ClockDrift,
};

/// The oldest servers that can be a node: `PEXPIRE … GT`, and scripts that run when memory is full.
const REDIS_AT_LEAST: (u32, u32) = (7, 0);
const VALKEY_AT_LEAST: (u32, u32) = (7, 2);

/// What a client takes for its fleet.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub(crate) struct Fleet {
    pub(crate) names: Vec<NodeName>,
    /// What [`members`] makes of the names.
    pub(crate) members: String,
    pub(crate) keys: FleetKeys,
    pub(crate) max_ttl: Duration,
    pub(crate) drift: ClockDrift,
    /// Nothing can be held on nodes without a marker.
    pub(crate) is_new: bool,
    /// What is on the disk of a durable node is all that it ever granted.
    pub(crate) trusts_durability: bool,
    /// Nodes may evict keys.
    pub(crate) allows_eviction: bool,
    /// How long the nodes of a new fleet wait for those that cannot be reached.
    pub(crate) found_without: Duration,
    /// Nodes that may have forgotten have to wait. Only a test shows what happens otherwise.
    pub(crate) makes_wait: bool,
}

/// What a node is to do, or to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing can be said yet.
    Unknown,
    /// It cannot be a node, until somebody changes something.
    Refused(Refusal),
    /// It votes, with the marker of this id and with this floor.
    Vote { mark: String, floor: u64 },
    /// Its wait begins: a waiting marker has to be written.
    Mark,
    /// It waits.
    Wait { until: Moment, why: Why },
    /// It has waited for long enough, and waits for others.
    WaitForOthers { why: Why },
    /// It has waited for long enough. The others have to be looked at once more, after this moment.
    LookAtOthers { after: Moment },
    /// It is admitted: an admitting marker has to be written, with this floor.
    Admit { floor: Option<u64> },
}

/// Why a node has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It has no marker, or one from before.
    MayHaveForgotten,
    /// No node of the fleet has one.
    NobodyRemembers,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MayHaveForgotten => {
                "it has restarted or was flushed and may have forgotten locks"
            }
            Self::NobodyRemembers => {
                "no node knows of this fleet; a new one need not wait if it says so: new_fleet()"
            }
        })
    }
}

/// Why a server cannot be a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it is {0}, not Redis or Valkey: whether it forgets cannot be told")]
    OtherServer(String),
    #[error("{server} is too old: Redis 7.0 or Valkey 7.2 at least")]
    TooOld { server: Server },
    #[error("it is a replica: nodes are independent masters")]
    Replica,
    #[error("it is a node of a cluster: nodes are independent masters")]
    Cluster,
    #[error(
        "its maxmemory-policy is {0}, which may evict the keys of locks: set noeviction, or \
         allow_eviction() if you know better"
    )]
    Eviction(String),
    #[error(
        "this client's user may not call {commands} on {key}: docs/operations.md has all rights that \
         a node needs"
    )]
    Forbidden { commands: String, key: String },
    #[error("it is the same server as {0}")]
    SameServer(NodeName),
    #[error("it belongs to a fleet of other nodes: {0}")]
    OtherMembers(String),
    #[error("its fleet's max_ttl is {fleet:?}, and {ours:?} is asked for")]
    MaxTtl { fleet: Duration, ours: Duration },
    #[error("the key {0} is not a marker of this library")]
    NoMarker(String),
    #[error("the key {0} is not a number below 2^53")]
    NoNumber(String),
}

/// The names of all nodes in alphabetical order, as a marker has them.
pub(crate) fn members(names: &[NodeName]) -> String {
    let mut names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
    names.sort_unstable();
    names.join(",")
}

impl Fleet {
    /// What the node of this place is to do.
    pub(crate) fn verdict(&self, place: usize, sight: &Sight, now: Moment) -> Verdict {
        let Some(seen) = sight.nodes.get(place).and_then(Option::as_ref) else {
            return Verdict::Unknown;
        };
        let facts = &seen.facts;
        if facts.is_loading {
            return Verdict::Unknown;
        }
        if let Err(refusal) = self.check_server(place, sight, facts) {
            return Verdict::Refused(refusal);
        }
        if facts.max.is_none() {
            return Verdict::Refused(Refusal::NoNumber(self.keys.max.as_str().to_owned()));
        }
        if facts.marker.is_none() {
            return Verdict::Mark;
        }
        let Some(marker) = &seen.marker else {
            return Verdict::Refused(Refusal::NoMarker(self.keys.marker.as_str().to_owned()));
        };
        if marker.members != self.members {
            // A fleet that was here before does not take a node back: of two that want it one has it.
            let had_own = sight.had_own.get(place).copied().unwrap_or(false);
            return if self.is_new && !had_own {
                Verdict::Mark
            } else {
                Verdict::Refused(Refusal::OtherMembers(marker.members.clone()))
            };
        }
        let is_of_node = self.names.get(place).is_some_and(|name| *name == marker.node);
        let is_of_process = marker.run_id == facts.run_id;
        let is_too_short = marker.max_ttl_ms < millis(self.max_ttl);
        match marker.state {
            MarkState::Admitted if is_too_short => Verdict::Refused(Refusal::MaxTtl {
                fleet: Duration::from_millis(marker.max_ttl_ms),
                ours: self.max_ttl,
            }),
            MarkState::Admitted if is_of_node && is_of_process => {
                if seen.forgot_script {
                    // The scripts were flushed, and nothing else.
                    return Verdict::Admit { floor: None };
                }
                Verdict::Vote { mark: marker.id.clone(), floor: marker.floor }
            }
            MarkState::Admitted if is_of_node && self.trusts_durability && facts.is_durable => {
                Verdict::Admit { floor: None }
            }
            MarkState::Waiting if is_of_node && is_of_process && !is_too_short => {
                self.verdict_of_waiting(place, sight, seen, now)
            }
            MarkState::Admitted | MarkState::Waiting => Verdict::Mark,
        }
    }

    fn verdict_of_waiting(&self, place: usize, sight: &Sight, seen: &Seen, now: Moment) -> Verdict {
        if !self.makes_wait {
            return Verdict::Admit { floor: None };
        }
        if let Some(founded) = &sight.founded {
            if founded.get(place).is_some_and(|with| with.is_some() && *with == seen.facts.marker) {
                return Verdict::Admit { floor: Some(sight.largest()) };
            }
        } else if self.may_be_founded(sight) {
            return Verdict::Unknown;
        }
        let admitted = self.admitted(sight).count();
        let why = if admitted == 0 { Why::NobodyRemembers } else { Why::MayHaveForgotten };
        let until = seen.since.plus(self.wait(sight));
        if now < until {
            return Verdict::Wait { until, why };
        }
        self.verdict_after_the_wait(place, sight, until, why)
    }

    /// For how long a node waits that may have forgotten: until nothing that it granted can be held.
    pub(crate) fn wait(&self, sight: &Sight) -> Duration {
        let max_ttl = self.fleet_max_ttl(sight);
        max_ttl.saturating_add(self.drift.over(max_ttl))
    }

    /// The largest ttl that any client of the fleet may ask for, as far as it is known.
    fn fleet_max_ttl(&self, sight: &Sight) -> Duration {
        let markers = sight.nodes.iter().flatten().filter_map(|seen| self.marker_of(seen));
        let largest = markers.map(|marker| marker.max_ttl_ms).max().unwrap_or(0);
        self.max_ttl.max(Duration::from_millis(largest))
    }

    /// Nothing that it forgot is held any more. But before it counts again it has to learn what was
    /// granted meanwhile, from so many others that every quorum has one of them; or else, where the fleet
    /// begins again, from all.
    fn verdict_after_the_wait(
        &self,
        place: usize,
        sight: &Sight,
        until: Moment,
        why: Why,
    ) -> Verdict {
        let own = sight.largest_of(place);
        let others = |is_read: &dyn Fn(usize, &Seen) -> bool| -> Vec<Option<u64>> {
            let others = sight.nodes.iter().enumerate().filter(|(other, _)| *other != place);
            let read = |(other, seen): (usize, &Option<Seen>)| {
                let seen = seen.as_ref().filter(|seen| seen.is_reachable && is_read(other, seen));
                seen.and_then(Seen::largest)
            };
            others.map(read).collect()
        };
        let is_fresh = |seen: &Seen| seen.asked_at >= until;
        let admitted = |other: usize, seen: &Seen| self.is_admitted(other, seen);
        let fresh = others(&|other, seen| admitted(other, seen) && is_fresh(seen));
        if let Some(floor) = fence::floor(own, &fresh) {
            return Verdict::Admit { floor: Some(floor) };
        }
        let all_fresh = others(&|_, seen| is_fresh(seen));
        if all_fresh.iter().all(Option::is_some) {
            return Verdict::Admit {
                floor: Some(all_fresh.into_iter().flatten().fold(own, u64::max)),
            };
        }
        let can_be_enough = fence::floor(own, &others(&admitted)).is_some()
            || others(&|_, _| true).iter().all(Option::is_some);
        if can_be_enough {
            Verdict::LookAtOthers { after: until }
        } else {
            Verdict::WaitForOthers { why }
        }
    }

    /// The places of the nodes that vote.
    fn admitted<'a>(&'a self, sight: &'a Sight) -> impl Iterator<Item = usize> + 'a {
        let nodes = sight.nodes.iter().enumerate();
        nodes
            .filter(|(place, seen)| {
                seen.as_ref()
                    .is_some_and(|seen| seen.is_reachable && self.is_admitted(*place, seen))
            })
            .map(|(place, _)| place)
    }

    fn is_admitted(&self, place: usize, seen: &Seen) -> bool {
        self.marker_of(seen).is_some_and(|marker| {
            matches!(marker.state, MarkState::Admitted)
                && marker.run_id == seen.facts.run_id
                && self.names.get(place) == Some(&marker.node)
        })
    }

    /// The marker of this fleet.
    fn marker_of<'a>(&self, seen: &'a Seen) -> Option<&'a Marker> {
        seen.marker.as_ref().filter(|marker| marker.members == self.members)
    }

    fn check_server(&self, place: usize, sight: &Sight, facts: &Facts) -> Result<(), Refusal> {
        let is_old = match &facts.server {
            Server::Other(name) => return Err(Refusal::OtherServer(name.clone())),
            Server::Redis(major, minor) => (*major, *minor) < REDIS_AT_LEAST,
            Server::Valkey(major, minor) => (*major, *minor) < VALKEY_AT_LEAST,
        };
        if is_old {
            return Err(Refusal::TooOld { server: facts.server.clone() });
        }
        if facts.is_cluster {
            return Err(Refusal::Cluster);
        }
        if !facts.is_master {
            return Err(Refusal::Replica);
        }
        if !self.allows_eviction {
            // In doubt it evicts nothing: a server that does not tell has mostly no such policy.
            if let Some(policy) = facts.eviction.as_ref().filter(|policy| *policy != "noeviction") {
                return Err(Refusal::Eviction(policy.clone()));
            }
        }
        if !facts.forbidden.is_empty() {
            let (commands, key) =
                (facts.forbidden.join(", "), self.keys.marker.as_str().to_owned());
            return Err(Refusal::Forbidden { commands, key });
        }
        let earlier = sight.nodes.iter().zip(&self.names).take(place);
        for (seen, name) in earlier {
            if seen.as_ref().is_some_and(|s| s.is_reachable && s.facts.run_id == facts.run_id) {
                return Err(Refusal::SameServer(name.clone()));
            }
        }
        Ok(())
    }

    /// The marker that a verdict asks for.
    pub(crate) fn new_marker(
        &self,
        place: usize,
        sight: &Sight,
        (state, floor): (MarkState, Option<u64>),
        id: String,
    ) -> Option<Marker> {
        let seen = sight.nodes.get(place)?.as_ref()?;
        let before = seen.marker.as_ref().map(|marker| marker.floor);
        Some(Marker {
            id,
            state,
            // It never falls as long as anything is remembered of it.
            floor: floor.max(before).unwrap_or(0),
            run_id: seen.facts.run_id.clone(),
            node: self.names.get(place)?.clone(),
            members: self.members.clone(),
            max_ttl_ms: millis(self.fleet_max_ttl(sight)),
        })
    }
}

// A new fleet.
impl Fleet {
    /// Whether the nodes may turn out to be a new fleet, and nothing has been settled.
    fn may_be_founded(&self, sight: &Sight) -> bool {
        let missing = sight.unreachable.iter().filter(|unreachable| **unreachable).count();
        let can_be_there = self.names.len().saturating_sub(missing);
        self.is_new && !sight.is_old && can_be_there >= quorum(self.names.len())
    }

    /// Settles whether this is a new fleet, after each look: if all that can be reached wait, a quorum at
    /// least, and none has been admitted before, then all of those vote at once. A node that is later is
    /// not among them.
    pub(crate) fn found(&self, sight: &mut Sight, now: Moment) {
        let own = sight
            .nodes
            .iter()
            .map(|seen| seen.as_ref().is_some_and(|seen| self.marker_of(seen).is_some()));
        let own: Vec<bool> = own.collect();
        sight.had_own.resize(own.len(), false);
        sight.had_own.iter_mut().zip(own).for_each(|(had, has)| *had |= has);
        sight.is_old |= sight.nodes.iter().flatten().any(|seen| {
            let marker = self.marker_of(seen);
            marker.is_some_and(|marker| matches!(marker.state, MarkState::Admitted))
        }) && sight.founded.is_none();
        if sight.founded.is_some() || !self.may_be_founded(sight) {
            return;
        }
        let waits = |(place, seen): (usize, &Option<Seen>)| {
            let seen = seen.as_ref().filter(|seen| seen.is_reachable)?;
            let marker = self.marker_of(seen)?;
            let waits = marker.state == MarkState::Waiting
                && marker.run_id == seen.facts.run_id
                && self.names.get(place) == Some(&marker.node);
            waits.then(|| seen.facts.marker.clone()).flatten()
        };
        let waiting: Vec<Option<String>> = sight.nodes.iter().enumerate().map(waits).collect();
        let there = waiting.iter().flatten().count();
        if there < quorum(self.names.len()) {
            sight.founding_since = None;
            return;
        }
        let since = *sight.founding_since.get_or_insert(now);
        let is_lost = |(place, waiting): (usize, &Option<String>)| {
            waiting.is_some() || sight.unreachable.get(place).copied().unwrap_or(false)
        };
        let accounted_for = waiting.iter().enumerate().all(is_lost);
        if accounted_for || now >= since.plus(self.found_without) {
            sight.founded = Some(waiting);
        }
    }
}
