//! What a majority is.

/// How many of `nodes` are a strict majority.
pub(crate) const fn quorum(nodes: usize) -> usize {
    nodes.saturating_div(2).saturating_add(1)
}
