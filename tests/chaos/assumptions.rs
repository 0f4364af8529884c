//! Which faults break what mutual exclusion rests on.

use std::time::Duration;

use crate::{
    event::DRIFT_MS,
    fault::{Action, Done, Target},
};

/// What a master keeps through a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// All that it has answered.
    Durable,
    /// Nothing.
    Volatile,
}

/// Whether an action breaks an assumption of `docs/guarantees.md`, "Mutual exclusion".
///
/// Nothing else decides about that: this is the place to change when the library comes to see to one of
/// them itself. Once masters that restarted or were flushed may not vote for the longest ttl, `Wipe`,
/// `Flush` and `Kill` break nothing any more.
pub(crate) fn breaks(action: Action, persistence: Persistence) -> bool {
    match action {
        // A node forgets.
        Action::Wipe | Action::Flush => true,
        Action::Kill | Action::Stop => persistence == Persistence::Volatile,
        // A wall clock jumps forward, also back to where it was: keys end early.
        Action::Jump(ms) => ms > DRIFT_MS,
        Action::Start
        | Action::Pause
        | Action::Unpause
        | Action::Cut
        | Action::Reset
        | Action::Delay(_)
        | Action::DropReplies
        | Action::DropRequests
        | Action::Silence
        | Action::HalfOpen
        | Action::Heal
        | Action::PauseClient
        | Action::ResumeClient
        | Action::KillClient
        | Action::Respawn => false,
    }
}

/// Whether two holders can come from this.
///
/// A majority had the first one's key when the last round began that it was told of, `since`, and a
/// majority had granted the second one's when that was `told`. Two majorities share a master, which must
/// have forgotten in between.
pub(crate) fn explains(
    done: &Done,
    persistence: Persistence,
    since: Duration,
    told: Duration,
) -> bool {
    breaks(done.action, persistence)
        && matches!(done.target, Target::Master(_) | Target::Clock(_))
        && done.until >= since
        && done.from <= told
}

/// Whether a confirmed release can come from this though another had the lock in between.
///
/// A node that forgot is refilled by the watchdog and counts from the next round on, also when the round
/// before was not conclusive; by then another may have come and gone. So a confirmation rests on nodes
/// that do not forget. Once refilled nodes count only after a round that a majority confirmed without
/// them, this is to be `false`.
pub(crate) fn voids_confirmations(
    done: &Done,
    persistence: Persistence,
    granted: Duration,
    told: Duration,
) -> bool {
    explains(done, persistence, granted, told)
}
