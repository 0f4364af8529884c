//! Waiting until enough nodes are connected to begin.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::{
    clock::due_after,
    error::{ConnectError, NodeOutcome, NodeReport, NodeReports},
    lane::{NodeState, NodeStatus},
    node::{NodeFailure, NodeName},
    quorum::tally,
    redlock::Redlock,
};

/// Whether these are the members of a quorum.
pub(crate) fn check_members<'a>(
    names: &(impl Iterator<Item = &'a NodeName> + Clone),
    single_node: bool,
) -> Result<(), ConnectError> {
    match names.clone().count() {
        0 => return Err(ConnectError::NoNodes),
        1 if !single_node => return Err(ConnectError::OneNode),
        2 => tracing::warn!("two nodes tolerate no failure, like one; give three or five"),
        _ => {}
    }
    // The names of a fleet stand in one line, with commas between them.
    let is_ambiguous = |name: &str| name.contains(|c: char| c == ',' || c.is_control());
    if let Some(node) = names.clone().find(|node| is_ambiguous(node.as_str())) {
        return Err(ConnectError::Name { node: node.clone() });
    }
    for (place, node) in names.clone().enumerate() {
        if names.clone().take(place).any(|earlier| earlier == node) {
            return Err(ConnectError::Duplicate { node: node.clone() });
        }
    }
    Ok(())
}

/// Once a quorum is connected, how long the other nodes are waited for.
const GRACE: Duration = Duration::from_millis(200);

/// Waits until all nodes are connected, or a quorum for a while.
pub(crate) async fn wait_for_quorum(
    redlock: &Redlock,
    limit: Duration,
) -> Result<(), ConnectError> {
    let started = Instant::now();
    let mut deadline = due_after(limit);
    let mut grace = None;
    let mut events = redlock.node_events();
    loop {
        let seen = redlock.nodes();
        for NodeStatus { node, state, .. } in &seen {
            if let NodeState::Unreachable { cause: NodeFailure::Unfit { reason } } = state {
                return Err(ConnectError::Unfit { node: node.clone(), reason: reason.clone() });
            }
            if let NodeState::Refused { why } = state {
                return Err(ConnectError::Unfit { node: node.clone(), reason: why.clone() });
            }
        }
        let settled = seen.iter().filter(|status| is_settled(&status.state)).count();
        let quorum = tally::quorum(seen.len());
        if settled == seen.len() {
            return Ok(());
        }
        if settled >= quorum {
            deadline = *grace.get_or_insert_with(|| due_after(GRACE));
        }
        let Ok(Some(_)) = timeout_at(deadline, events.next()).await else {
            if settled >= quorum {
                return Ok(());
            }
            let connected = seen.iter().filter(|status| is_connected(&status.state)).count();
            let nodes = unconnected(seen);
            let waited = started.elapsed().min(limit);
            return Err(ConnectError::NoQuorum { connected, quorum, waited, nodes });
        };
    }
}

/// Whether it is known what can be expected of the node.
fn is_settled(state: &NodeState) -> bool {
    match state {
        NodeState::Voting
        | NodeState::Quarantined { .. }
        | NodeState::CatchingUp
        | NodeState::Unresponsive => true,
        NodeState::Connecting
        | NodeState::Joining
        | NodeState::Refused { .. }
        | NodeState::Unreachable { .. }
        | NodeState::ShutDown => false,
    }
}

fn is_connected(state: &NodeState) -> bool {
    is_settled(state) || *state == NodeState::Joining
}

fn unconnected(seen: Vec<NodeStatus>) -> NodeReports {
    let unconnected = seen.into_iter().filter(|status| !is_connected(&status.state));
    let reports = unconnected.map(|NodeStatus { node, state, .. }| {
        let failure = match state {
            NodeState::Unreachable { cause } => cause,
            NodeState::ShutDown => NodeFailure::ShutDown,
            NodeState::Connecting
            | NodeState::Joining
            | NodeState::Voting
            | NodeState::Quarantined { .. }
            | NodeState::Refused { .. }
            | NodeState::CatchingUp
            | NodeState::Unresponsive => {
                NodeFailure::Unreachable { cause: "no answer to the connection attempt".to_owned() }
            }
        };
        NodeReport { node, outcome: NodeOutcome::Failed(failure) }
    });
    NodeReports(reports.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_read_as_others_are_refused() {
        let check = |names: &[&str]| {
            let names: Vec<NodeName> = names.iter().map(|name| NodeName::new(name)).collect();
            check_members(&names.iter(), false)
        };
        assert_eq!(check(&["a", "b", "c"]), Ok(()));
        for name in ["a,b", "a\nb"] {
            let expected = ConnectError::Name { node: NodeName::new(name) };
            assert_eq!(check(&["c", name, "d"]), Err(expected));
        }
    }
}
