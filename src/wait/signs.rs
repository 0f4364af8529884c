//! What a head reads off announcements and votes. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{
    error::{NodeOutcome, NodeReports},
    node::{Answer, NodeFailure},
    owner_id::OwnerId,
    quorum::tally,
};

/// How many releases that it hears of at the same time a head can tell apart.
const MAX_HEARD: usize = 8;

/// A release that calls this process first.
#[derive(Clone, Debug)]
pub(super) struct Release {
    owner: OwnerId,
    /// The nodes that announced it, and how many they said sit where this process does.
    on: BTreeMap<usize, u32>,
}

/// By how many nodes this owner's release has been announced, with this one; and how many sit where this
/// process does, by the median of what they said.
pub(super) fn announced(
    heard: &mut VecDeque<Release>,
    owner: OwnerId,
    node: usize,
    sharing: u32,
) -> (usize, u32) {
    let known = heard.iter().position(|release| release.owner == owner);
    let known = known.and_then(|place| heard.remove(place));
    let mut release = known.unwrap_or(Release { owner, on: BTreeMap::new() });
    release.on.insert(node, sharing);
    let nodes = release.on.len();
    let mut said: Vec<u32> = release.on.values().copied().collect();
    said.sort_unstable();
    let sharing = said.get(nodes / 2).copied().unwrap_or_default();
    heard.push_back(release);
    if heard.len() > MAX_HEARD {
        heard.pop_front();
    }
    (nodes, sharing)
}

/// Whether nobody can have been granted: too few nodes said that they are another's. Nodes that were not
/// asked are likely to be as the one that refused.
pub(super) fn is_split(nodes: &NodeReports) -> bool {
    let is_taken = |outcome: &NodeOutcome| {
        matches!(
            outcome,
            NodeOutcome::Answered(Answer::Taken { .. })
                | NodeOutcome::Failed(NodeFailure::NotAsked)
        )
    };
    let taken = nodes.iter().filter(|report| is_taken(&report.outcome)).count();
    taken < tally::quorum(nodes.iter().count())
}

/// When a quorum of nodes is likely to be free, by what they said. Nodes that were not asked, because
/// one had refused before, are likely to be as that one.
pub(super) fn free_after(nodes: &NodeReports) -> Duration {
    let of_one = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Answered(Answer::Taken { remaining }) => {
            Some(remaining.unwrap_or(Duration::MAX))
        }
        NodeOutcome::Answered(
            Answer::Done | Answer::Counted(_) | Answer::PassedOn | Answer::Missing,
        ) => Some(Duration::ZERO),
        NodeOutcome::Failed(NodeFailure::NotAsked) => None,
        NodeOutcome::Pending | NodeOutcome::Failed(_) => Some(Duration::MAX),
    };
    let answers = nodes.iter().map(|report| of_one(&report.outcome));
    let likely = answers.clone().flatten().max().unwrap_or(Duration::MAX);
    let mut free: Vec<Duration> = answers.map(|after| after.unwrap_or(likely)).collect();
    free.sort_unstable();
    let quorum = tally::quorum(free.len()).saturating_sub(1);
    free.get(quorum).copied().unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::NodeReport, node::NodeName};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn reports(outcomes: &[NodeOutcome]) -> NodeReports {
        let report = |outcome: &NodeOutcome| NodeReport {
            node: NodeName::new("n"),
            outcome: outcome.clone(),
        };
        NodeReports(outcomes.iter().map(report).collect())
    }

    fn taken(ms: u64) -> NodeOutcome {
        NodeOutcome::Answered(Answer::Taken { remaining: Some(MS(ms)) })
    }

    #[test]
    fn a_quorum_is_free_when_the_last_node_that_it_takes_is() {
        let done = NodeOutcome::Answered(Answer::Done);
        let down = NodeOutcome::Failed(NodeFailure::Unresponsive);
        assert_eq!(free_after(&reports(&[taken(300), taken(100), taken(200)])), MS(200));
        assert_eq!(free_after(&reports(&[taken(300), done.clone(), done])), MS(0));
        assert_eq!(free_after(&reports(&[taken(300), taken(100), down.clone()])), MS(300));
        assert_eq!(free_after(&reports(&[taken(300), down.clone(), down])), Duration::MAX);
        let not_asked = NodeOutcome::Failed(NodeFailure::NotAsked);
        assert_eq!(free_after(&reports(&[not_asked.clone(), taken(20), not_asked])), MS(20));
    }

    #[test]
    fn a_vote_is_split_when_nobody_can_have_a_majority() {
        let done = NodeOutcome::Answered(Answer::Done);
        let down = NodeOutcome::Failed(NodeFailure::Unresponsive);
        let not_asked = NodeOutcome::Failed(NodeFailure::NotAsked);
        assert!(is_split(&reports(&[taken(1), done.clone(), down.clone()])));
        assert!(is_split(&reports(&[taken(1), taken(1), done.clone(), done.clone(), down])));
        assert!(!is_split(&reports(&[taken(1), taken(1), done])));
        assert!(!is_split(&reports(&[taken(1), not_asked.clone(), not_asked])));
    }

    #[test]
    fn releases_are_told_apart_and_not_remembered_for_ever() {
        let mut heard = VecDeque::new();
        let owners: Vec<OwnerId> = (0..100).map(|_| OwnerId::random()).collect();
        for owner in &owners {
            assert_eq!(announced(&mut heard, *owner, 1, 1), (1, 1));
            assert_eq!(announced(&mut heard, *owner, 1, 1), (1, 1));
            assert_eq!(announced(&mut heard, *owner, 2, 1), (2, 1));
        }
        assert_eq!(heard.len(), MAX_HEARD);
        assert!(heard.iter().all(|release| release.on.len() == 2));
    }

    #[test]
    fn most_of_the_nodes_say_how_many_share_the_seat_in_whatever_order() {
        let owner = OwnerId::random();
        for (said, sharing) in [
            ([1, 1, 2], 1),
            ([2, 1, 1], 1),
            ([2, 2, 1], 2),
            ([1, 3, 2], 2),
            ([0, 1, 0], 0),
            ([0, 1, 2], 1),
        ] {
            let mut heard = VecDeque::new();
            let mut hear = |node| announced(&mut heard, owner, node, said[node]);
            assert_eq!([hear(0), hear(1), hear(2)][2], (3, sharing), "{said:?}");
        }
    }
}
