//! What goes over the simulated network: messages, and the two ends of a connection.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{
    node::{
        Ballot, Facts, FleetKeys, Heard, LinkId, Marker, NodeFailure, Operation, Outcome, SendAs,
    },
    owner_id::Seat,
    resource::Key,
};

/// What a client sends on a connection.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Hello { stale: Vec<LinkId> },
    Call { operation: Operation, send_as: SendAs },
    Together { operations: Vec<Operation>, ballot: Arc<Ballot> },
    Look { keys: FleetKeys },
    Mark { keys: FleetKeys, seen: Option<String>, marker: Marker },
    Watch { key: Key, seat: Seat, watch: bool },
    Close,
}

/// What a server sends on a connection.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Hello(LinkId),
    Answer(Outcome),
    Answers(Result<Vec<Outcome>, NodeFailure>),
    Looked(Box<Facts>),
    Marked(bool),
    Heard(Heard),
    Closed(&'static str),
}

#[derive(Debug)]
pub(super) enum Delivery {
    ToServer { connection: u64, request: Request, number: u64 },
    ToClient { connection: u64, reply: Reply, number: u64 },
}

/// A question of a client, waiting for its reply.
#[derive(Debug)]
pub(super) enum Asked {
    Hello(oneshot::Sender<Result<LinkId, NodeFailure>>),
    Call(oneshot::Sender<Outcome>),
    Together(oneshot::Sender<Result<Vec<Outcome>, NodeFailure>>),
    Look(oneshot::Sender<Result<Facts, NodeFailure>>),
    Mark(oneshot::Sender<Result<bool, NodeFailure>>),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: usize,
    pub(super) node: usize,
    /// Whether the server has accepted it and not closed it.
    pub(super) open_at_server: bool,
    /// Arrived at a frozen server, and not read.
    pub(super) unread: VecDeque<(u64, Request)>,
    /// The client's questions without a reply, in their order.
    pub(super) asked: VecDeque<(u64, Asked)>,
    pub(super) closed: Option<oneshot::Sender<String>>,
    /// Where announcements go.
    pub(super) hears: Option<mpsc::UnboundedSender<Heard>>,
    /// What it listens for at the server, and on which seat.
    pub(super) watches: BTreeSet<(Key, Seat)>,
    pub(super) open_at_client: bool,
    pub(super) next_number: u64,
    pub(super) last_arrival: [Instant; 2],
}

impl Connection {
    /// Where it listens for releases of this key: on one seat, or on two while it moves.
    pub(super) fn seats(&self, key: &Key) -> impl Iterator<Item = Seat> {
        let last = Seat::new(Seat::COUNT - 1);
        let places = (key.clone(), Seat::new(0))..=(key.clone(), last);
        self.watches.range(places).map(|(_, seat)| *seat)
    }
}

/// What a server answers to a question.
#[derive(Debug)]
pub(super) enum Answer {
    Call(Outcome),
    Together(Result<Vec<Outcome>, NodeFailure>),
    Look(Box<Facts>),
    Mark(bool),
}

impl Asked {
    /// Replies are matched by their order alone; a client finds out when one is out of step.
    pub(super) fn answer(self, is_in_step: bool, answer: Answer) {
        match (self, answer) {
            (Self::Call(asked), Answer::Call(outcome)) if is_in_step => drop(asked.send(outcome)),
            (Self::Together(asked), Answer::Together(outcomes)) if is_in_step => {
                drop(asked.send(outcomes));
            }
            (Self::Look(asked), Answer::Look(facts)) if is_in_step => drop(asked.send(Ok(*facts))),
            (Self::Mark(asked), Answer::Mark(written)) if is_in_step => {
                drop(asked.send(Ok(written)));
            }
            (asked, _) => asked.fail("a reply out of step"),
        }
    }

    pub(super) fn fail(self, cause: &str) {
        let cause = cause.to_owned();
        match self {
            Self::Hello(asked) => {
                asked.send(Err(NodeFailure::Unreachable { cause })).ok();
            }
            Self::Call(asked) => {
                asked.send(Err(NodeFailure::Disconnected { cause })).ok();
            }
            Self::Together(asked) => {
                asked.send(Err(NodeFailure::Disconnected { cause })).ok();
            }
            Self::Look(asked) => {
                asked.send(Err(NodeFailure::Disconnected { cause })).ok();
            }
            Self::Mark(asked) => {
                asked.send(Err(NodeFailure::Disconnected { cause })).ok();
            }
        }
    }
}
