//! One moment: what is on the nodes, what was sent, what each attempt has.

use super::{super::counters::ahead, Attempt, Node};

/// All there is. The nodes are interchangeable: sorted, they stand for all their orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State<const N: usize, const K: usize> {
    pub(super) nodes: [Server<K>; N],
    pub(super) attempts: [Progress; K],
    pub(super) faults: u8,
}

/// One node, and what passed between it and each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Server<const K: usize> {
    pub(super) node: Node,
    /// What a crash leaves.
    pub(super) disk: Node,
    /// It came back from a crash and does not vote yet.
    pub(super) is_away: bool,
    pub(super) with: [Exchange; K],
}

/// What passed between a node and an attempt. A number of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Exchange {
    /// How often the acquire may still be executed.
    pub(super) acquires: u8,
    /// The lock is set and nothing counted yet.
    pub(super) is_torn: bool,
    /// The grants that were answered.
    pub(super) granted: [u64; 2],
    /// A grant that is not answered yet.
    pub(super) unanswered_grant: u64,
    /// The client asks the node to raise, at any time and as often as it likes.
    pub(super) is_asked: bool,
    /// A raise that is not answered yet.
    pub(super) unanswered_raise: bool,
    /// What the node vouches for.
    pub(super) vouched: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// The largest token that was acquired before this attempt began.
    pub(super) before: u64,
    pub(super) token: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    Asking,
    Raising,
    Acquired,
    /// It will not acquire. What it sent may still be executed.
    Over,
}

impl<const N: usize, const K: usize> State<N, K> {
    pub(super) fn new(counters: [u64; N], acquires: u8, faults: u8, step: u64) -> Self {
        let with = [Exchange { acquires, ..Exchange::default() }; K];
        let nodes = counters.map(|number| {
            let fence = (number > 0).then_some(number);
            let node =
                Node { lock: None, fence, max: number.next_multiple_of(step), floor: 0, step };
            Server { node, disk: node, is_away: false, with }
        });
        Self { nodes, attempts: [Progress::default(); K], faults }
    }

    /// The same with the nodes in a fixed order.
    pub(super) fn sorted(mut self) -> Self {
        self.nodes.sort_unstable();
        self
    }

    pub(super) fn acquired(&self) -> impl Iterator<Item = &Progress> {
        self.attempts.iter().filter(|attempt| attempt.phase == Phase::Acquired)
    }

    pub(super) fn exchange(&mut self, n: usize, k: Attempt) -> &mut Exchange {
        &mut self.nodes[n].with[usize::from(k)]
    }

    /// No two attempts acquired with one token.
    pub(super) fn is_unique(&self) -> bool {
        let mut tokens: Vec<u64> = self.acquired().map(|attempt| attempt.token).collect();
        tokens.sort_unstable();
        tokens.windows(2).all(|pair| pair[0] < pair[1])
    }

    /// Whoever began after another had acquired has a larger token.
    pub(super) fn is_ordered(&self) -> bool {
        self.acquired().all(|attempt| attempt.token > attempt.before)
    }

    /// On every node the max is written ahead of the counter.
    pub(super) fn is_ahead(&self) -> bool {
        let mut nodes = self.nodes.iter().flat_map(|server| [server.node, server.disk]);
        nodes.all(|node| node.fence.is_none_or(|fence| node.max >= ahead(fence, node.step)))
    }
}

impl Exchange {
    pub(super) fn grants(&self) -> impl Iterator<Item = u64> + use<> {
        self.granted.into_iter().filter(|number| *number > 0)
    }

    pub(super) fn answer_grant(&mut self) {
        let number = std::mem::take(&mut self.unanswered_grant);
        if number > 0 && !self.granted.contains(&number) {
            self.granted[usize::from(self.granted[0] > 0)] = number;
            self.granted
                .sort_unstable_by_key(|number| if *number > 0 { *number } else { u64::MAX });
        }
    }
}
