//! A counterexample in words, one line for each step.

use stateright::Path;

use super::{
    Attempt,
    state::{Phase, State},
    steps::Action,
};

/// The lines of a path. Attempts are counted from 1, nodes from A.
pub(super) fn story<const N: usize, const K: usize>(
    path: Path<State<N, K>, Action<N>>,
) -> Vec<String> {
    let steps = path.into_vec();
    let first = steps.first().map(|(state, _)| state.nodes.map(|server| server.node.max));
    let mut lines = vec![format!("counters {:?}", first.unwrap_or([0; N]))];
    for pair in steps.windows(2) {
        if let [(before, Some(action)), (after, _)] = pair {
            lines.push(line(before, action, after));
        }
    }
    lines
}

fn line<const N: usize, const K: usize>(
    before: &State<N, K>,
    action: &Action<N>,
    after: &State<N, K>,
) -> String {
    let fence = |n: &usize| {
        let (from, to) = (before.nodes[*n].node, after.nodes[*n].node);
        let counter =
            |fence: Option<u64>| fence.map_or_else(|| "none".to_owned(), |n| n.to_string());
        format!(
            "counter {} -> {}, max {} -> {}",
            counter(from.fence),
            counter(to.fence),
            from.max,
            to.max
        )
    };
    let read = |set: &u8| (0..N).filter(|m| set >> m & 1 == 1).map(node).collect::<String>();
    let text = match action {
        Action::Begin { k } => format!("attempt {} begins", k + 1),
        Action::Acquire { n, k } if after.nodes[*n].with[usize::from(*k)].is_torn => {
            format!("{} sets the lock for {}", node(*n), k + 1)
        }
        Action::Acquire { n, k } => format!("{} grants to {}: {}", node(*n), k + 1, fence(n)),
        Action::Count { n, k } => format!("{} counts for {}: {}", node(*n), k + 1, fence(n)),
        Action::Decide { k, grants, token } => {
            format!("attempt {} has the grants {grants:?} and takes the token {token}", k + 1)
        }
        Action::Raise { n, k } => format!("{} raises for {}: {}", node(*n), k + 1, fence(n)),
        Action::Refill { n, k } => format!("{} is refilled by {}: {}", node(*n), k + 1, fence(n)),
        Action::CounterVanishes { n } => format!("{}'s counter vanishes: {}", node(*n), fence(n)),
        Action::OtherResource { n } => {
            format!("{} grants another resource: {}", node(*n), fence(n))
        }
        Action::WriteOut { n } => format!("{} writes to its disk", node(*n)),
        Action::Crash { n, read: set, .. } => {
            format!("{} crashes (read: {:?}): {}", node(*n), read(set), fence(n))
        }
        Action::Return { n, read: set } => {
            format!(
                "{} votes again (read: {:?}), floor {}",
                node(*n),
                read(set),
                after.nodes[*n].node.floor
            )
        }
    };
    let acquired = |(k, attempt): (usize, &super::state::Progress)| {
        let was = before.attempts[k].phase;
        let now = attempt.phase == Phase::Acquired && was != Phase::Acquired;
        now.then(|| format!("  => attempt {} has acquired with token {}", k + 1, attempt.token))
    };
    after.attempts.iter().enumerate().filter_map(acquired).fold(text, |text, more| text + &more)
}

fn node(n: usize) -> String {
    let letter = Attempt::try_from(n).map_or('?', |n| char::from(b'A' + n));
    letter.to_string()
}
