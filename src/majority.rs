//! How many nodes are enough. Pure.

/// How many of `nodes` are a strict majority. Two sets of this size share a node.
pub(crate) const fn quorum(nodes: usize) -> usize {
    nodes.saturating_div(2).saturating_add(1)
}

/// The fewest of `nodes` without which no quorum is left: every set of this size shares a node with
/// every quorum.
pub(crate) const fn blocking(nodes: usize) -> usize {
    nodes.saturating_sub(quorum(nodes)).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_blocking_set_shares_a_node_with_every_quorum_and_no_smaller_one_does() {
        let expected = [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (7, 4)];
        for (nodes, fewest) in expected {
            assert_eq!(blocking(nodes), fewest);
            assert!(blocking(nodes) + quorum(nodes) > nodes);
            assert!(blocking(nodes) - 1 + quorum(nodes) <= nodes);
        }
    }

    // What a node that forgot has to ask, without itself: a strict majority of the others.
    #[test]
    fn a_blocking_set_is_a_strict_majority_of_all_nodes_but_one() {
        for nodes in 2..100 {
            assert_eq!(blocking(nodes), quorum(nodes - 1));
        }
    }
}
