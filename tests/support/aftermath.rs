//! What is left when a test is over: keys on servers, and releases that are owed to nodes.

use std::{array, time::Duration};

use quorumlock::{NodeOutcome, NodeReports, NodeState, NodeStatus, Redlock};

use super::{Fleet, Proxy, Server, eventually};

/// A proxy in front of each of the first `N` servers.
pub fn proxies<const N: usize>(fleet: &Fleet) -> [Proxy; N] {
    array::from_fn(|i| Proxy::start(fleet[i].port()))
}

/// The key of a resource under the default prefix.
pub fn key(resource: &str) -> String {
    format!("quorumlock:lock:{resource}")
}

/// What is known of one node.
#[track_caller]
pub fn node(redlock: &Redlock, place: usize) -> NodeStatus {
    redlock.nodes().into_iter().nth(place).expect("a node of the lock")
}

/// Whether all nodes are asked for their votes.
pub fn all_vote(redlock: &Redlock) -> bool {
    redlock.nodes().iter().all(|node| node.state == NodeState::Voting)
}

/// Whether nothing is queued for, sent or owed to any node.
pub fn is_idle(redlock: &Redlock) -> bool {
    redlock.nodes().iter().all(|node| node.in_flight == 0 && node.owed_releases == 0)
}

/// Whether no server that runs has any key.
pub fn no_keys<'a>(servers: impl IntoIterator<Item = &'a Server>) -> bool {
    servers.into_iter().filter(|server| server.is_running()).all(|server| server.keys().is_empty())
}

/// Waits until no key is left anywhere and nothing is owed or in flight.
#[track_caller]
pub fn nothing_is_left(redlock: &Redlock, fleet: &Fleet, limit: Duration) {
    eventually("nothing to be left", limit, || is_idle(redlock) && no_keys(fleet));
}

/// The nodes of which the outcome is such, by their places.
pub fn places(reports: &NodeReports, is_such: impl Fn(&NodeOutcome) -> bool) -> Vec<usize> {
    let reports = reports.iter().enumerate().filter(|(_, report)| is_such(&report.outcome));
    reports.map(|(place, _)| place).collect()
}

/// Whether the node gave no usable answer.
pub fn is_failure(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Failed(_))
}
