//! One connection through the proxy: what is on its way in it, and the rules for that.
//!
//! The rules decide about bytes when they would be delivered, not when they came in, so a new mode
//! acts at once on what waits.

use std::{
    collections::VecDeque,
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Pass,
    DropReplies,
    DropRequests,
    Cut,
    Hold,
    HoldRequests,
    Delay(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

/// Whose rules a link follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Those of the mode.
    Connected,
    /// Its client was sent away; its requests wait for their release.
    Orphaned,
    /// Its client was sent away; its requests go on to the server.
    Released,
}

/// One connection: a client, the server, and what is on its way between them.
#[derive(Debug)]
pub(super) struct Link {
    sockets: Arc<Sockets>,
    pub(super) fate: Fate,
    /// Whether the client has closed its side or was sent away.
    pub(super) is_client_gone: bool,
    requests: VecDeque<Piece>,
    replies: VecDeque<Piece>,
}

#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) client: TcpStream,
    pub(super) upstream: TcpStream,
}

#[derive(Debug)]
struct Piece {
    arrived: Instant,
    /// Empty at the end of the stream.
    bytes: Vec<u8>,
}

/// What becomes of the piece at the head of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verdict {
    Deliver,
    Swallow,
    /// It waits for a change of the rules.
    Hold,
    /// It waits for its time.
    Delay(Duration),
}

impl Mode {
    fn verdict(self, direction: Direction, age: Duration) -> Verdict {
        match (self, direction) {
            (Self::DropReplies, Direction::Replies) | (Self::DropRequests, Direction::Requests) => {
                Verdict::Swallow
            }
            (Self::Hold, _) | (Self::HoldRequests, Direction::Requests) => Verdict::Hold,
            (Self::Delay(delay), _) => match delay.checked_sub(age) {
                Some(rest) if !rest.is_zero() => Verdict::Delay(rest),
                Some(_) | None => Verdict::Deliver,
            },
            (
                Self::Pass
                | Self::DropReplies
                | Self::DropRequests
                | Self::Cut
                | Self::HoldRequests,
                _,
            ) => Verdict::Deliver,
        }
    }
}

impl Link {
    pub(super) fn new(client: TcpStream, upstream: TcpStream) -> Self {
        Self {
            sockets: Arc::new(Sockets { client, upstream }),
            fate: Fate::Connected,
            is_client_gone: false,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
        }
    }

    /// Ends both connections; see invariant 1.
    pub(super) fn close(&self) {
        self.sockets.client.shutdown(Shutdown::Both).ok();
        self.sockets.upstream.shutdown(Shutdown::Both).ok();
    }

    /// Sends the client away and keeps the server.
    pub(super) fn orphan(&mut self) {
        self.fate = Fate::Orphaned;
        self.is_client_gone = true;
        self.sockets.client.shutdown(Shutdown::Both).ok();
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.requests.iter().chain(&self.replies).map(|piece| piece.bytes.len()).sum()
    }

    pub(super) fn sockets(&self) -> Arc<Sockets> {
        Arc::clone(&self.sockets)
    }

    /// Takes in what arrived, no bytes being the end of the stream.
    pub(super) fn push(&mut self, direction: Direction, bytes: Vec<u8>) {
        self.is_client_gone |= bytes.is_empty() && direction == Direction::Requests;
        self.queue(direction).push_back(Piece { arrived: Instant::now(), bytes });
    }

    pub(super) fn pop(&mut self, direction: Direction) -> Option<Vec<u8>> {
        self.queue(direction).pop_front().map(|piece| piece.bytes)
    }

    fn queue(&mut self, direction: Direction) -> &mut VecDeque<Piece> {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Replies => &mut self.replies,
        }
    }

    /// What becomes of the next piece; [`Verdict::Hold`] if there is none.
    pub(super) fn verdict(&mut self, mode: Mode, direction: Direction) -> Verdict {
        let fate = self.fate;
        let Some(piece) = self.queue(direction).front() else {
            return Verdict::Hold;
        };
        let verdict = match (fate, direction) {
            (Fate::Connected, _) => mode.verdict(direction, piece.arrived.elapsed()),
            (Fate::Orphaned, Direction::Requests) => Verdict::Hold,
            (Fate::Released, Direction::Requests) => Verdict::Deliver,
            (Fate::Orphaned | Fate::Released, Direction::Replies) => Verdict::Swallow,
        };
        match verdict {
            // Else nobody would learn that the other side has gone, and the link would stay for ever.
            Verdict::Swallow if piece.bytes.is_empty() => Verdict::Deliver,
            Verdict::Deliver | Verdict::Swallow | Verdict::Hold | Verdict::Delay(_) => verdict,
        }
    }
}
