//! What must hold of what the clients saw. Pure.

use std::{collections::BTreeMap, time::Duration};

use quorumlock::sim::history::{Hold, double_holds};

use crate::{
    assumptions::{Persistence, explains, forgot, voids_confirmations},
    client::Seen,
    event::{Event, What},
    fault::{Action, Done, Target},
    worker::{PROGRESS_WITHIN, RESOURCES},
};

/// What came of a round.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// What must never happen.
    pub(crate) violations: Vec<String>,
    /// Two holders that come from a broken assumption: what may happen.
    pub(crate) excused: Vec<String>,
    pub(crate) counts: Counts,
}

/// Things counted, and the longest of those that are measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) attempts: usize,
    pub(crate) locks: usize,
    pub(crate) contended: usize,
    pub(crate) no_quorum: usize,
    pub(crate) given_up: usize,
    /// Locks that only one task takes, taken or tried for.
    pub(crate) littered: usize,
    pub(crate) lost: usize,
    pub(crate) confirmed: usize,
    /// Confirmed releases of locks that another had in between, after a master forgot.
    pub(crate) wrongly_confirmed: usize,
    pub(crate) writes: usize,
    /// Writes to the resource that checks nothing which undid one of another holder.
    pub(crate) harmed: usize,
    /// Writes that the resource with tokens refused.
    pub(crate) fenced: usize,
    pub(crate) longest_wait: Duration,
    /// Of an acquisition, from the end of all faults on.
    pub(crate) longest_wait_when_well: Duration,
}

/// One lock that one task had.
#[derive(Clone, Debug)]
struct Held {
    hold: Hold,
    /// When the attempt that got it began.
    began: Duration,
    /// How long it is valid from the beginning of a round that a majority answered.
    valid_for: Duration,
    /// When it was seen to be valid, and when the last such round had begun by then.
    rounds: Vec<(Duration, Duration)>,
    token: Option<u64>,
    /// When it was last seen to be valid.
    looked: Duration,
    is_confirmed: bool,
}

/// Judges a round. All faults were healed at `well`.
pub(crate) fn judge(
    seen: &[Seen],
    done: &[Done],
    persistence: Persistence,
    well: Duration,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut held = Vec::new();
    for seen in seen {
        let mut tasks: BTreeMap<usize, Vec<&Event>> = BTreeMap::new();
        seen.events.iter().for_each(|event| tasks.entry(event.task).or_default().push(event));
        for events in tasks.values() {
            held.extend(verdict.follow(seen, events, done, well));
        }
    }
    let holds: Vec<Hold> = held.iter().map(|held| held.hold.clone()).collect();
    for double in double_holds(&holds) {
        let told = double.second.from;
        let first = held.iter().find(|held| held.hold == double.first).expect("one of them");
        let since = first.last_round(told);
        let by = done.iter().find(|done| explains(done, since, told));
        let what = format!("two holders: {:?} and {:?}", double.first, double.second);
        match by {
            Some(done) => verdict.excused.push(format!("{what}, after {done:?}")),
            None => verdict.violations.push(what),
        }
    }
    for (first, second) in intruders(&held) {
        let (granted, told) = (first.hold.from, second.hold.from);
        let what = format!("a release was confirmed: {:?}, though: {:?}", first.hold, second.hold);
        if done.iter().any(|done| voids_confirmations(done, granted, told)) {
            verdict.counts.wrongly_confirmed += 1;
            verdict.excused.push(what);
        } else {
            verdict.violations.push(what);
        }
    }
    let disordered = disordered_tokens(&held);
    // With a majority of the masters that forgot there may be nobody who remembers the largest.
    if forgot(done, persistence).len() >= 3 {
        verdict.excused.extend(disordered);
    } else {
        verdict.violations.extend(disordered);
    }
    verdict
}

impl Counts {
    fn count(&mut self, what: &What) {
        let count = match what {
            What::Try { .. } => &mut self.attempts,
            What::Granted { .. } => &mut self.locks,
            What::Refused { is_contended: true } => &mut self.contended,
            What::Refused { is_contended: false } => &mut self.no_quorum,
            What::GaveUp => &mut self.given_up,
            What::Littered => &mut self.littered,
            What::Lost => &mut self.lost,
            What::Confirmed => &mut self.confirmed,
            What::Fenced => &mut self.fenced,
            What::Wrote { harmed } => {
                self.harmed += usize::from(*harmed);
                &mut self.writes
            }
            _ => return,
        };
        *count += 1;
    }
}

impl Held {
    /// What its task saw of it since it was granted.
    fn see(&mut self, at: Duration, what: &What) {
        match what {
            What::Valid { until } => {
                self.hold.until = self.hold.until.max(*until);
                self.rounds.push((at, until.saturating_sub(self.valid_for)));
                self.looked = at;
            }
            // Before the end of its validity: nobody knows when, after the last look.
            What::Lost if at < self.hold.until => self.hold.until = self.looked,
            What::Releasing => self.hold.until = self.hold.until.min(at),
            What::Confirmed => self.is_confirmed = true,
            _ => {}
        }
    }

    /// When the last round began of which it was told by then that a majority still had its key.
    fn last_round(&self, by: Duration) -> Duration {
        let known = self.rounds.iter().take_while(|(looked, _)| *looked <= by);
        known.map(|(_, began)| *began).max().unwrap_or(self.began)
    }
}

impl Verdict {
    /// What one task had, and what was wrong with what it saw.
    fn follow(
        &mut self,
        seen: &Seen,
        events: &[&Event],
        done: &[Done],
        well: Duration,
    ) -> Vec<Held> {
        let mut held: Vec<Held> = Vec::new();
        let mut trying: Option<(Duration, usize)> = None;
        let client = seen.client;
        for Event { at, what, .. } in events.iter().copied() {
            self.counts.count(what);
            match what {
                What::Try { resource, .. } => trying = Some((*at, *resource)),
                What::Granted { resource, began, until, token } => held.push(Held {
                    hold: Hold {
                        client,
                        resource: format!("r{resource}"),
                        from: *at,
                        until: *until,
                    },
                    began: *began,
                    valid_for: until.saturating_sub(*began),
                    rounds: vec![(*at, *began)],
                    token: *token,
                    looked: *at,
                    is_confirmed: false,
                }),
                What::Slow { from, limit } => self.slow(client, *from, *at, *limit, done),
                What::Violation(what) => self.violations.push(what.clone()),
                _ => {
                    if let Some(held) = held.last_mut() {
                        held.see(*at, what);
                    }
                }
            }
            if matches!(what, What::Granted { .. } | What::Refused { .. } | What::GaveUp) {
                if let Some((since, resource)) = trying.take() {
                    self.waited(client, resource, since, *at, well);
                }
            }
        }
        if let Some(death) = seen.death {
            for held in &mut held {
                held.hold.until = held.hold.until.min(death);
            }
        }
        held
    }

    fn waited(
        &mut self,
        client: usize,
        resource: usize,
        since: Duration,
        end: Duration,
        well: Duration,
    ) {
        let counts = &mut self.counts;
        counts.longest_wait = counts.longest_wait.max(end.saturating_sub(since));
        let when_well = end.saturating_sub(since.max(well));
        counts.longest_wait_when_well = counts.longest_wait_when_well.max(when_well);
        if when_well > PROGRESS_WITHIN {
            let what =
                format!("client {client} waited {when_well:?} for r{resource} while all was well");
            self.violations.push(what);
        }
    }

    /// A call that took longer than promised, by more than its process stood still.
    fn slow(
        &mut self,
        client: usize,
        from: Duration,
        at: Duration,
        limit: Duration,
        done: &[Done],
    ) {
        let slot = client % 100;
        let of_client = done.iter().filter(|done| done.target == Target::Client(slot));
        let (mut paused, mut since) = (Duration::ZERO, None);
        for done in of_client {
            match done.action {
                Action::PauseClient => since = Some(done.from),
                Action::ResumeClient => {
                    let begin = since.take().unwrap_or(from).max(from);
                    paused += done.until.min(at).saturating_sub(begin);
                }
                _ => {}
            }
        }
        let took = (at - from).saturating_sub(paused);
        if took > limit {
            self.violations.push(format!("client {client}: a call took {took:?}, not {limit:?}"));
        }
    }
}

/// Whoever has its release confirmed was alone from its grant on: no other can have begun an attempt and
/// been granted in between. Those who had, and those who were.
fn intruders(held: &[Held]) -> Vec<(&Held, &Held)> {
    let mut found = Vec::new();
    for resource in 0..RESOURCES {
        let name = format!("r{resource}");
        let mut held: Vec<&Held> = held.iter().filter(|held| held.hold.resource == name).collect();
        held.sort_by_key(|held| held.hold.from);
        for (place, first) in held.iter().enumerate().filter(|(_, held)| held.is_confirmed) {
            let later = held[place + 1..].iter();
            let beside = later.take_while(|second| second.hold.from < first.hold.until);
            let within = beside.filter(|second| second.began > first.hold.from);
            // One whose validity had ended when it was told never had the lock.
            let within = within.filter(|second| second.hold.from < second.hold.until);
            found.extend(within.map(|second| (*first, *second)));
        }
    }
    found
}

/// Tokens are unique, and who was granted before another began to try has the smaller one. On masters
/// that keep what they have answered this rests on no clock.
fn disordered_tokens(held: &[Held]) -> Vec<String> {
    let mut with_token: Vec<(&Held, u64)> =
        held.iter().filter_map(|held| Some((held, held.token?))).collect();
    with_token.sort_by_key(|(held, token)| (&held.hold.resource, *token));
    let disordered = with_token.windows(2).filter(|pair| {
        let ((first, small), (second, large)) = (&pair[0], &pair[1]);
        first.hold.resource == second.hold.resource
            && (small == large || second.hold.from < first.began)
    });
    disordered.map(|pair| format!("tokens out of order: {:?} and {:?}", pair[0], pair[1])).collect()
}
