//! What clients saw, and what must not be seen.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use quorumlock::{
    FencingToken,
    sim::{BrokenAssumption, SimClient, SimCluster, history::Hold},
};

/// What the clients saw.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Log>>);

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) holds: Vec<Hold>,
    pub(crate) tokens: Vec<Issued>,
    pub(crate) violations: Vec<Violation>,
    /// Whether a shutdown said that it left something undone.
    pub(crate) left_undone: bool,
    /// How often each client has begun to stand still.
    pub(crate) pauses: BTreeMap<usize, usize>,
}

/// A fencing token, as the client got it.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) resource: String,
    pub(crate) token: FencingToken,
    /// When it was asked for, and when it was there.
    pub(crate) began: Duration,
    pub(crate) returned: Duration,
}

/// The pairs of tokens of one resource that are not as they were issued: equal, or smaller though the other
/// was there before this one was asked for. Whatever was held for how long, and by which clock.
pub(crate) fn disorder(tokens: &[Issued]) -> Vec<(Issued, Issued)> {
    let mut found = Vec::new();
    for (place, second) in tokens.iter().enumerate() {
        for first in &tokens[..place] {
            let (earlier, later) =
                if first.returned <= second.began { (first, second) } else { (second, first) };
            let is_ordered = earlier.returned <= later.began;
            let is_wrong = if is_ordered {
                earlier.token >= later.token
            } else {
                earlier.token == later.token
            };
            if first.resource == second.resource && is_wrong {
                found.push((earlier.clone(), later.clone()));
            }
        }
    }
    found
}

pub(crate) struct Violation {
    pub(crate) at: Duration,
    pub(crate) what: String,
    pub(crate) rests_on: RestsOn,
}

/// Which assumptions a promise rests on.
#[derive(Clone, Copy)]
pub(crate) enum RestsOn {
    /// None at all: no hang, no panic, progress.
    Nothing,
    /// That no clock jumps and nobody touches keys: who holds what.
    AllAssumptions,
    /// That in addition no node forgets: where the keys of a lock are.
    Keys,
    /// That no node forgot; or, where one did, that no clock jumped and nobody touched keys: the order of
    /// tokens.
    NoForgetting,
    /// That this node did not forget a release that it had answered, as `everysec` can.
    Memory(usize),
    /// That this node's clock was not set back: how long the ttl of a dead client's key is.
    Clock(usize),
}

impl RestsOn {
    pub(crate) fn is_broken_by(self, broken: &BrokenAssumption) -> bool {
        match self {
            Self::Nothing => false,
            // A node that forgot does not vote until it does not matter.
            Self::AllAssumptions => broken.what != "a node forgot",
            // Both have to be broken: see `run.rs`.
            Self::Keys | Self::NoForgetting => true,
            Self::Memory(node) => broken.node == node && broken.what == "a node forgot",
            Self::Clock(node) => broken.node == node && broken.what == "a clock jumped",
        }
    }
}

impl Seen {
    pub(crate) fn violation(&self, cluster: &SimCluster, rests_on: RestsOn, what: String) {
        cluster.note(|| format!("VIOLATION {what}"));
        let at = cluster.now();
        self.log(|log| log.violations.push(Violation { at, what, rests_on }));
    }

    pub(crate) fn pause(&self, number: usize, client: &SimClient) {
        self.log(|log| *log.pauses.entry(number).or_default() += 1);
        client.pause();
    }

    pub(crate) fn log<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }
}
