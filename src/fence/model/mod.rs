//! A model of the fencing tokens that is searched in full: every order of every step.
//!
//! What is modelled and what is not, and what the search found, is in `docs/fencing-model.md`. The
//! nodes' steps and the clients' decisions are the functions of [`super`] and [`super::counters`]:
//! the [`Protocol`] names them. The broken variants replace one of them or take an assumption away.
//!
//! - An attempt is asking, raising, has acquired, or is over. Attempts begin in the order of their
//!   numbers; nothing else is ordered.
//! - A request is executed at any time after it was sent, or never. Its reply is at hand at any
//!   time after, or never.
//! - A lock's key may vanish at any instant. So there is no step for it: whoever sets a lock may
//!   find it gone.
//! - An attempt has acquired as soon as a quorum vouches, before the client hears of it. That is
//!   the earliest moment, and the hardest for those who begin after it.

mod state;
mod steps;
mod words;
mod checks;

use super::counters::{AtLimit, Counters};
use crate::fencing_token::FencingToken;

/// An attempt, by its place; the owner of a lock.
type Attempt = u8;
type Node = Counters<Attempt>;
type Step<Arguments, Answer> = fn(&mut Node, Arguments) -> Result<Answer, AtLimit>;

/// What decides: in production, and here.
#[derive(Clone, Copy, Debug)]
struct Protocol {
    acquire: Step<Attempt, Option<FencingToken>>,
    raise: Step<(Attempt, FencingToken), bool>,
    refill: Step<(Attempt, FencingToken), bool>,
    admit: fn(&mut Node, u64),
    /// The token, or all that it may be; empty if it is too early.
    tokens: fn(&[Option<FencingToken>]) -> Vec<FencingToken>,
    to_raise: fn(&[Option<FencingToken>], FencingToken) -> Vec<usize>,
    is_confirmed: fn(&[Option<FencingToken>], FencingToken) -> bool,
    floor: fn(u64, &[Option<u64>]) -> Option<u64>,
}

const PRODUCTION: Protocol = Protocol {
    acquire: Counters::acquire,
    raise: |node, (owner, token)| node.raise(&owner, token),
    refill: |node, (owner, token)| node.refill(owner, token),
    admit: Counters::admit,
    tokens: |grants| super::token(grants).into_iter().collect(),
    to_raise: super::to_raise,
    is_confirmed: super::is_confirmed,
    floor: super::floor,
};

/// What is searched: a protocol and what may go wrong around it.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that may go wrong by itself")]
struct Variant {
    name: &'static str,
    protocol: Protocol,
    /// Only nodes whose grants were at hand when the token was taken are asked to raise.
    asks_first_quorum_only: bool,
    /// An acquire may be executed a second time, with the same owner.
    resent: bool,
    /// Between setting the lock and counting, other requests are executed.
    torn: bool,
    /// Holders set their lock again, at any time, as often as they like.
    refills: bool,
    /// Counters vanish while the node keeps its `max`.
    counters_vanish: bool,
    /// Other resources of the node are acquired, which raises its `max`.
    other_resources: bool,
    crash: Option<Crash>,
    /// In steps of how many numbers the max is written ahead.
    step: u64,
    /// How many faults there are: vanished counters, other resources' grants and crashes.
    faults: u8,
}

/// How a node crashes and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crash {
    disk: Disk,
    back: Back,
}

/// What of a node is there after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// Nothing.
    Empty,
    /// An older state (`everysec`, snapshots): what was there when it was last written out.
    Stale,
    /// Either of them.
    EmptyOrStale,
    /// All that was acknowledged (`always`): nothing is answered before it is written out.
    Durable,
}

/// When and as what a node votes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    /// At once, as it is.
    AtOnce,
    /// As soon as the others were read.
    Reads,
    /// After all attempts that it granted to are over or have acquired.
    Waits,
    /// After these, and the others were read before.
    ReadsThenWaits,
    /// After these, and the others were read after them.
    WaitsThenReads,
}

impl Variant {
    /// The protocol as it is, with messages late and lost and locks vanishing.
    const fn production(name: &'static str) -> Self {
        Self {
            name,
            protocol: PRODUCTION,
            asks_first_quorum_only: false,
            resent: false,
            torn: false,
            refills: false,
            counters_vanish: false,
            other_resources: false,
            crash: None,
            step: 1,
            faults: 0,
        }
    }

    /// Other functions than those of production.
    const fn with(name: &'static str, protocol: Protocol) -> Self {
        Self { protocol, ..Self::production(name) }
    }

    /// One crash.
    const fn crash(name: &'static str, disk: Disk, back: Back) -> Self {
        Self { crash: Some(Crash { disk, back }), faults: 1, ..Self::production(name) }
    }
}
