//! When a head tries that was not called by a majority.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{clock::due_after, quorum::Quorum};

/// The longest time for which a head does not look by itself, before it is spread by a quarter.
const LOOK_AT_LATEST: Duration = Duration::from_secs(2);
/// The shortest.
const LOOK_AT_SOONEST: Duration = Duration::from_millis(4);

/// Why a head tries that was not called to be the next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// Nobody can have the lock.
    Split,
    /// It was called to stand in, by this node.
    StandIn { at: usize },
    /// It has just come, or was not called for long, or by too few: whoever waits goes first. It asks this node.
    Newcomer { at: usize },
}

/// When a head looks by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) due: Instant,
    /// Whether it gives up then.
    pub(super) is_last: bool,
    /// Until when it waits at most.
    pub(super) end: Instant,
}

impl Look {
    pub(super) fn before(end: Instant, free_after: Duration, quorum: &Quorum) -> Self {
        let free_after = free_after.min(LOOK_AT_LATEST);
        let spread = quorum.entropy.percent().saturating_add(400);
        let free_after = free_after.saturating_mul(spread).checked_div(400).unwrap_or(free_after);
        let due = due_after(free_after.max(LOOK_AT_SOONEST));
        Self { due: due.min(end), is_last: end <= due_after(free_after), end }
    }
}

/// The first of two turns.
pub(super) fn sooner(turn: Option<(Instant, Turn)>, other: (Instant, Turn)) -> (Instant, Turn) {
    turn.filter(|(due, _)| *due <= other.0).unwrap_or(other)
}

pub(super) async fn due(moment: Option<Instant>) {
    let Some(moment) = moment else { return std::future::pending().await };
    sleep_until(moment).await;
}

pub(super) async fn at(turn: Option<(Instant, Turn)>) -> Turn {
    let Some((moment, turn)) = turn else { return std::future::pending().await };
    sleep_until(moment).await;
    turn
}
