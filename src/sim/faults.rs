//! What can be wrong with the network between one client and one master.

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    ToServer,
    ToClient,
}

/// The state of the network between one client and one master.
///
/// Defaults to 1 ms each way and no faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkFaults {
    /// The least and the largest latency of one way, in milliseconds. Each message draws its own, but
    /// none overtakes another of the same connection.
    pub latency_ms: (u64, u64),
    /// Of 100 requests, how many are swallowed on the way to the master.
    pub lose_request: u8,
    /// Of 100 replies, how many are swallowed on the way back, after the master executed.
    pub lose_reply: u8,
    /// Of 100 requests, how many reach the master twice.
    pub duplicate_request: u8,
    /// Nothing reaches the master; what was sent meanwhile arrives when this ends.
    pub block_requests: bool,
    /// Nothing comes back from the master; what was sent meanwhile arrives when this ends.
    pub block_replies: bool,
}

impl Default for LinkFaults {
    fn default() -> Self {
        Self {
            latency_ms: (1, 1),
            lose_request: 0,
            lose_reply: 0,
            duplicate_request: 0,
            block_requests: false,
            block_replies: false,
        }
    }
}

impl LinkFaults {
    /// No faults, and a latency of `least..=most` milliseconds each way.
    #[must_use]
    pub fn latency(least: u64, most: u64) -> Self {
        Self { latency_ms: (least, most), ..Self::default() }
    }

    /// Nothing passes either way.
    #[must_use]
    pub fn partitioned() -> Self {
        Self { block_requests: true, block_replies: true, ..Self::default() }
    }

    pub(super) fn is_blocked(self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.block_requests,
            Direction::ToClient => self.block_replies,
        }
    }
}
