//! A granted lock as a thing that lives and ends: valid until, lost, released.
//!
//! The guard and the watchdog share it. What is sent for a lease is sent under its lock, and the
//! lanes keep that order: so nothing that renews can come after the release.
//!
//! Invariants:
//!
//! 1. Validity only moves forward, and never past the longest time that the lock may be held.
//! 2. A lease ends once. After its end no renewal or refill is begun, and no call says "held".
//! 3. From its end on its release is owed to every node that may have its key. Only a lock that is lost
//!    before the end of its validity keeps its keys until then, or until its holder gives it back: he may
//!    rely on what he was told before, and nodes that forgot let nobody in yet.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    clock::Moment,
    error::{ExtendError, NodeReports, ReleaseError},
    lane::ReplyTo,
    loss::Loss,
    node::{Answer, Outcome},
    options::{Terms, millis},
    owner_id::OwnerId,
    quorum::{
        acquire::Granted,
        claim::Claim,
        round::Round,
        tally::{Tally, Verdict},
    },
    validity::valid_until,
};

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) terms: Arc<Terms>,
    pub(crate) loss: Loss,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    claim: Claim,
    valid_until: Moment,
    /// The end of the longest time that it may be held.
    hold_until: Option<Moment>,
    /// The last renewal did not succeed.
    at_risk: bool,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    lost: bool,
    /// The release, until somebody waits for it. None before the keys go: see the third invariant.
    releasing: Option<Round>,
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// Valid until then.
    Until(Moment),
    /// Gone for good.
    Lost,
    /// Too few nodes answered. Valid for as long as before.
    Inconclusive { remaining: Duration },
}

/// What a round of extending means, asked at `started` and judged at `now`, for a lock that was valid
/// `until` then.
fn judge(verdict: Verdict, started: Moment, now: Moment, until: Moment, terms: Terms) -> Renewed {
    match verdict {
        // The end had come before we knew: what was lost stays lost.
        _ if now >= until => Renewed::Lost,
        Verdict::Ours => Renewed::Until(until.max(valid_until(started, terms.ttl, terms.drift))),
        Verdict::Gone => Renewed::Lost,
        Verdict::Unknown => Renewed::Inconclusive { remaining: until.since(now) },
    }
}

impl Lease {
    pub(crate) fn new(granted: Granted, terms: Arc<Terms>) -> Self {
        let Granted { claim, started, valid_until, .. } = granted;
        let hold_until = terms.max_hold.map(|max_hold| started.plus(max_hold));
        let valid_until = hold_until.map_or(valid_until, |end| end.min(valid_until));
        let state = State { claim, valid_until, hold_until, at_risk: false, end: None };
        Self { terms, loss: Loss::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left of the validity; zero from the end on.
    pub(crate) fn remaining(&self) -> Duration {
        let state = self.state();
        if state.end.is_some() {
            Duration::ZERO
        } else {
            state.valid_until.since(state.claim.now())
        }
    }

    /// What is left, if the last renewal did not succeed.
    pub(crate) fn remaining_at_risk(&self) -> Option<Duration> {
        let at_risk = self.state().at_risk;
        at_risk.then(|| self.remaining())
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.state().claim.owner()
    }

    pub(crate) fn reports(&self) -> NodeReports {
        self.state().claim.reports()
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.state().claim.quorum().lanes.len()
    }

    /// When its validity ends, or would have; `None` once it is released.
    pub(crate) fn end(&self) -> Option<Moment> {
        let state = self.state();
        (!state.claim.is_released()).then_some(state.valid_until)
    }

    /// When the watchdog has to look at it again: for its renewal, or for its end. `None` after that.
    pub(crate) fn due(&self) -> Option<Moment> {
        let state = self.state();
        let end = state.valid_until;
        if state.end.is_some() {
            return (!state.claim.is_released()).then_some(end);
        }
        let is_longest = state.hold_until.is_some_and(|longest| end >= longest);
        let Some(renew_every) = self.terms.renew_every.filter(|_| !is_longest) else {
            return Some(end);
        };
        let now = state.claim.now();
        let due = if state.at_risk {
            // Sooner and sooner, but never in a tight loop.
            let left = end.since(now);
            let soon = left.checked_div(4).unwrap_or_default().min(renew_every);
            now.plus(soon.max(self.terms.node_timeout.min(RETRY_AT_LEAST)))
        } else {
            // As if it had last been asked for when its present validity was counted from.
            let whole = self.terms.ttl.saturating_sub(self.terms.drift.over(self.terms.ttl));
            let due = end.before(whole.saturating_sub(renew_every));
            // Many locks of about the same age are renewed together.
            due.rounded_down(SLICE.min(renew_every.checked_div(8).unwrap_or_default())).max(now)
        };
        Some(due.min(end))
    }

    /// Asks all nodes to let the keys live on; `None` if it has ended. For the watchdog, which hears
    /// of the answers through `reply_to`, and has to bring them back.
    pub(crate) fn renew(&self, reply_to: impl Fn(usize) -> ReplyTo) -> Option<Moment> {
        let state = self.state();
        let started = state.claim.now();
        if state.end.is_some() || started >= state.valid_until {
            return None;
        }
        for place in 0..state.claim.quorum().lanes.len() {
            let ttl_ms = millis(self.terms.ttl);
            state.claim.ask_to_extend(ttl_ms, self.terms.node_timeout, reply_to(place));
        }
        Some(started)
    }

    /// A node answered a renewal. Where our key is missing it is set again: this node counts again
    /// from the next round on.
    pub(crate) fn renewal_answered(&self, outcome: &Outcome, reply_to: ReplyTo) {
        let mut state = self.state();
        let is_valid = state.end.is_none() && state.claim.now() < state.valid_until;
        if is_valid && *outcome == Ok(Answer::Missing) {
            state.claim.refill(millis(self.terms.ttl), self.terms.node_timeout, reply_to);
        }
    }

    /// What a round that was asked at `started` comes to, and what that makes of the lease.
    pub(crate) fn judge(&self, verdict: Verdict, started: Moment, terms: Terms) -> Renewed {
        let mut state = self.state();
        let now = state.claim.now();
        if state.end.is_some() {
            return Renewed::Lost;
        }
        let renewed = judge(verdict, started, now, state.valid_until, terms);
        match renewed {
            Renewed::Until(until) => {
                state.valid_until = state.hold_until.map_or(until, |longest| longest.min(until));
                state.at_risk = false;
            }
            Renewed::Lost => {
                if now < state.valid_until {
                    state.end = Some(End { lost: true, releasing: None });
                } else {
                    state.end_lease(true);
                }
                drop(state);
                self.loss.tell();
            }
            Renewed::Inconclusive { .. } => {
                state.at_risk = true;
                drop(state);
                self.loss.warn();
            }
        }
        renewed
    }

    /// Ends the lease if its validity has ended, and gives back what was lost before that. Whether it has
    /// ended, by now or before.
    pub(crate) fn expire(&self) -> bool {
        let mut state = self.state();
        let ends_now = state.claim.now() >= state.valid_until && state.end_lease(true);
        let has_ended = state.end.is_some();
        drop(state);
        if ends_now {
            self.loss.tell();
        }
        has_ended
    }

    /// Ends the lease whatever is left of it: nobody will renew it any more.
    pub(crate) fn abandon(&self) {
        let ends_now = self.state().end_lease(true);
        if ends_now {
            self.loss.tell();
        }
    }

    /// Ends the lease by the holder's will, without waiting for the answers.
    pub(crate) fn release_in_background(&self) {
        let mut state = self.state();
        let lost = state.claim.now() >= state.valid_until;
        let ends_now = state.end_lease(lost);
        drop(state);
        // Whoever listens may be elsewhere than whoever releases.
        if lost && ends_now {
            self.loss.tell();
        }
    }

    /// Ends the lease by the holder's will, and says what a majority confirmed.
    pub(crate) async fn release(&self) -> Result<(), ReleaseError> {
        self.release_in_background();
        let (lost, releasing) = {
            let mut state = self.state();
            state.end.as_mut().map_or((true, None), |end| (end.lost, end.releasing.take()))
        };
        let Some(mut round) = releasing else {
            return Err(ReleaseError::Lost { nodes: self.reports() });
        };
        let verdict = round.decided(self.terms.node_timeout, Tally::verdict).await;
        let nodes = |round: &mut Round| self.state().claim.quorum().reports(round.outcomes());
        match verdict.unwrap_or(Verdict::Unknown) {
            Verdict::Ours if !lost => Ok(()),
            Verdict::Unknown if !lost => {
                Err(ReleaseError::Unconfirmed { nodes: nodes(&mut round) })
            }
            Verdict::Ours | Verdict::Gone | Verdict::Unknown => {
                self.loss.tell();
                Err(ReleaseError::Lost { nodes: nodes(&mut round) })
            }
        }
    }

    /// One round for the holder that lets the lock live on for `terms.ttl`.
    pub(crate) async fn extend(&self, terms: Terms) -> Result<(), ExtendError> {
        if self.expire() {
            return Err(ExtendError::Lost { nodes: None });
        }
        let (mut round, started) = {
            let mut state = self.state();
            let started = state.claim.now();
            if state.end.is_some() || started >= state.valid_until {
                return Err(ExtendError::Lost { nodes: None });
            }
            (state.claim.extend(millis(terms.ttl), terms.node_timeout), started)
        };
        let verdict = round.decided(terms.node_timeout, Tally::verdict).await;
        let renewed = self.judge(verdict.unwrap_or(Verdict::Unknown), started, terms);
        let nodes = self.state().claim.quorum().reports(round.outcomes());
        match renewed {
            Renewed::Until(_) => Ok(()),
            Renewed::Lost => Err(ExtendError::Lost { nodes: Some(nodes) }),
            Renewed::Inconclusive { remaining } => {
                Err(ExtendError::Inconclusive { remaining, nodes })
            }
        }
    }
}

impl State {
    /// Ends the lease, and gives back what it may have on the nodes. Whether it ends by this.
    fn end_lease(&mut self, lost: bool) -> bool {
        let ends_now = self.end.is_none();
        let end = self.end.get_or_insert(End { lost, releasing: None });
        if !self.claim.is_released() {
            end.releasing = Some(self.claim.release());
        }
        ends_now
    }
}

/// What falls due within such a time is due at its beginning.
const SLICE: Duration = Duration::from_millis(10);
/// Between renewals of a lock at risk.
const RETRY_AT_LEAST: Duration = Duration::from_millis(20);

/// What the guard and the watchdog hold.
pub(crate) type SharedLease = Arc<Lease>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        options::{Defaults, LockOptions},
    };

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[track_caller]
    fn check(verdict: Verdict, judged_after_ms: u64, expected: &str) {
        let terms = Defaults::default().terms(LockOptions::new().ttl(MS(1_000))).unwrap();
        let started = Clock::System.now();
        let until = started.plus(MS(500));
        let renewed = match judge(verdict, started, started.plus(MS(judged_after_ms)), until, terms)
        {
            Renewed::Until(until) => format!("until {:?}", until.since(started)),
            Renewed::Lost => "lost".to_owned(),
            Renewed::Inconclusive { remaining } => format!("{remaining:?} left"),
        };
        assert_eq!(renewed, expected);
    }

    #[test]
    fn validity_is_counted_from_before_the_round_that_renewed_it() {
        check(Verdict::Ours, 0, "until 988ms");
        check(Verdict::Ours, 499, "until 988ms");
        check(Verdict::Unknown, 100, "400ms left");
        check(Verdict::Gone, 100, "lost");
    }

    #[test]
    fn a_renewal_that_is_known_after_the_end_is_too_late() {
        for verdict in [Verdict::Ours, Verdict::Gone, Verdict::Unknown] {
            check(verdict, 500, "lost");
            check(verdict, 5_000, "lost");
        }
    }
}
