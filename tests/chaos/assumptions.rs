//! Which faults break what mutual exclusion rests on.

use std::{collections::BTreeSet, time::Duration};

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
/// Nothing else decides about that. A master that forgets breaks none: it does not vote before nothing
/// that it forgot can be held.
pub(crate) fn breaks(action: Action) -> bool {
    match action {
        // A wall clock jumps forward, also back to where it was: keys end early.
        Action::Jump(ms) => ms > DRIFT_MS,
        Action::Wipe
        | Action::Flush
        | Action::Kill
        | Action::Stop
        | Action::Start
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
pub(crate) fn explains(done: &Done, since: Duration, told: Duration) -> bool {
    breaks(done.action)
        && matches!(done.target, Target::Master(_) | Target::Clock(_))
        && done.until >= since
        && done.from <= told
}

/// Whether a confirmed release can come from this though another had the lock in between.
pub(crate) fn voids_confirmations(done: &Done, granted: Duration, told: Duration) -> bool {
    explains(done, granted, told)
}

/// The masters that forgot something, at any time.
pub(crate) fn forgot(done: &[Done], persistence: Persistence) -> BTreeSet<usize> {
    let forgets = |action| {
        matches!(action, Action::Wipe | Action::Flush)
            || (persistence == Persistence::Volatile
                && matches!(action, Action::Kill | Action::Stop))
    };
    let masters = done.iter().filter(|done| forgets(done.action)).filter_map(|done| {
        if let Target::Master(master) = done.target { Some(master) } else { None }
    });
    masters.collect()
}
