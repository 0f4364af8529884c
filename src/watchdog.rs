//! The one task that keeps the locks of a `Redlock`: it renews them, and tells of their loss.
//!
//! However many locks are held, there is one schedule, ordered by when each lock is next to be looked
//! at, and one task that goes through it. What falls due at about the same time is renewed together,
//! so that each node gets its share in one go.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use crate::{
    clock::{Clock, Moment},
    error::NodeOutcome,
    lane::{Inbox, Reply, ReplyTo},
    lease::{Lease, SharedLease},
    quorum::tally::{Tally, Verdict},
};

/// How often the clock is looked at while anything is held. Timers do not count the time in which the
/// machine was suspended; the clock does.
const LOOK: Duration = Duration::from_millis(100);

/// When which lock has to be looked at.
#[derive(Debug, Default)]
struct Schedule {
    due: BTreeMap<(Moment, u64), SharedLease>,
    /// Where each lock is in it.
    places: BTreeMap<u64, Moment>,
    /// When the task will look by itself.
    next_look: Option<Moment>,
    /// Nothing is looked after any more.
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    schedule: Mutex<Schedule>,
    wake: Notify,
    /// Held while what is due is out of the schedule.
    looking: Mutex<()>,
    last_id: AtomicU64,
}

/// The handle of the task, which ends with it.
#[derive(Debug)]
pub(crate) struct Watchdog(Arc<Shared>);

/// A lock in the care of the watchdog.
#[derive(Debug)]
pub(crate) struct Watched {
    watchdog: Arc<Watchdog>,
    lease: SharedLease,
    id: u64,
}

impl Watchdog {
    /// The handle, and the task that has to be run.
    ///
    /// At most `most` renewals are undecided at the same time.
    pub(crate) fn new(
        clock: Clock,
        most: usize,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::new(Shared {
            clock,
            schedule: Mutex::new(Schedule::default()),
            wake: Notify::new(),
            looking: Mutex::new(()),
            last_id: AtomicU64::new(0),
        });
        let task = Task {
            shared: Arc::clone(&shared),
            inbox: Arc::default(),
            most,
            waiting: BTreeMap::new(),
            rounds: BTreeMap::new(),
            renewing: BTreeSet::new(),
            last_round: NOBODY,
        };
        (Arc::new(Self(shared)), task.run())
    }

    /// Takes a lock into its care.
    pub(crate) fn watch(self: &Arc<Self>, lease: Lease) -> Watched {
        let id = self.0.last_id.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let watched = Watched { watchdog: Arc::clone(self), lease: Arc::new(lease), id };
        self.0.put(id, &watched.lease);
        watched
    }

    /// Ends the task. What is held is lost by the return of this call: nobody renews it any more.
    pub(crate) fn close(&self) {
        let looking = self.0.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let held = {
            let mut schedule = self.0.schedule();
            schedule.closed = true;
            schedule.places.clear();
            mem::take(&mut schedule.due)
        };
        drop(looking);
        for lease in held.into_values() {
            lease.abandon();
        }
        self.0.wake.notify_one();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.close();
    }
}

impl Watched {
    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The lock has another end than before.
    pub(crate) fn reschedule(&self) {
        self.watchdog.0.put(self.id, &self.lease);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.lease.release_in_background();
        self.watchdog.0.forget(self.id);
    }
}

impl Shared {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a lock into the schedule where it is next to be looked at.
    fn put(&self, id: u64, lease: &SharedLease) {
        self.put_at(id, lease, Lease::due);
    }

    /// One that has ended belongs nowhere.
    fn put_at(&self, id: u64, lease: &SharedLease, due: impl FnOnce(&Lease) -> Option<Moment>) {
        let mut schedule = self.schedule();
        schedule.forget(id);
        if schedule.closed {
            drop(schedule);
            lease.abandon();
            return;
        }
        // Looked at under the schedule's lock: a release that comes now finds the entry and removes it.
        let Some(due) = due(lease) else { return };
        schedule.due.insert((due, id), Arc::clone(lease));
        schedule.places.insert(id, due);
        if schedule.next_look.is_none_or(|next_look| due < next_look) {
            self.wake.notify_one();
        }
    }

    fn forget(&self, id: u64) {
        self.schedule().forget(id);
    }
}

impl Schedule {
    /// Takes the first that is due by now. What is not would be put back and taken again at once.
    fn take_due(&mut self, now: Moment) -> Option<(u64, SharedLease)> {
        let first = self.due.first_entry().filter(|first| first.key().0 <= now)?;
        let ((_, id), lease) = first.remove_entry();
        self.places.remove(&id);
        Some((id, lease))
    }

    fn forget(&mut self, id: u64) {
        if let Some(due) = self.places.remove(&id) {
            self.due.remove(&(due, id));
        }
    }
}

/// One renewal on all nodes.
struct Round {
    lease: SharedLease,
    id: u64,
    started: Moment,
    outcomes: Vec<NodeOutcome>,
    judged: bool,
}

struct Task {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    /// How many renewals may be undecided. Those that a quorum has decided wait for slow nodes only.
    most: usize,
    /// The locks whose renewal waits for others to end, by when they end themselves.
    waiting: BTreeMap<(Moment, u64), SharedLease>,
    /// The renewals that are not answered by all nodes. Each has a number of its own: an answer to an
    /// earlier renewal says nothing about when a later one was asked for.
    rounds: BTreeMap<u64, Round>,
    /// The locks whose renewal waits or is not decided.
    renewing: BTreeSet<u64>,
    last_round: u64,
}

impl Task {
    async fn run(mut self) {
        loop {
            let next = self.look();
            if next == Next::Over {
                return;
            }
            tokio::select! {
                biased;
                replies = self.inbox.wait() => replies.into_iter().for_each(|reply| self.answered(reply)),
                () = self.shared.wake.notified() => {}
                () = rest(next) => {}
            }
        }
    }

    /// Does what is due, and says when there is more to do.
    fn look(&mut self) -> Next {
        let shared = Arc::clone(&self.shared);
        let _looking = shared.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.shared.clock.now();
        loop {
            let due = shared.schedule().take_due(now);
            let Some((id, lease)) = due else { break };
            if !lease.expire() {
                self.renew(id, &lease);
            }
        }
        self.renew_those_that_wait();
        let mut schedule = shared.schedule();
        if schedule.closed {
            return Next::Over;
        }
        let next = schedule.due.first_key_value().map(|((due, _), _)| due.since(now).min(LOOK));
        schedule.next_look = next.map(|wait| now.plus(wait));
        next.map_or(Next::WhenWoken, Next::After)
    }

    fn renew(&mut self, id: u64, lease: &SharedLease) {
        if let Some(end) = lease.end().filter(|_| lease.terms.renew_every.is_some()) {
            // The nodes are slow to answer the last one: no second one on top of it.
            if self.renewing.insert(id) {
                self.waiting.insert((end, id), Arc::clone(lease));
            }
        }
        // Until the nodes have answered there is nothing to do but to watch for its end.
        self.shared.put_at(id, lease, Lease::end);
    }

    /// As many as may be, those first that end first. With more at once each would be slower, and those
    /// beyond the bound of the lanes would fail.
    fn renew_those_that_wait(&mut self) {
        while self.renewing.len().saturating_sub(self.waiting.len()) < self.most {
            let Some(((_, id), lease)) = self.waiting.pop_first() else { return };
            let round = self.last_round.wrapping_add(1);
            let to = |place| ReplyTo { round, place, to: Arc::clone(&self.inbox) };
            let Some(started) = lease.renew(to) else {
                self.renewing.remove(&id);
                continue;
            };
            let outcomes = vec![NodeOutcome::Pending; lease.nodes()];
            self.rounds.insert(round, Round { lease, id, started, outcomes, judged: false });
            self.last_round = round;
        }
    }

    fn answered(&mut self, reply: Reply) {
        let Some(round) = self.rounds.get_mut(&reply.round) else { return };
        let to = ReplyTo { round: NOBODY, place: reply.place, to: Arc::clone(&self.inbox) };
        round.lease.renewal_answered(&reply.outcome, to);
        if let Some(slot) = round.outcomes.get_mut(reply.place) {
            *slot = reply.outcome.into();
        }
        let tally = Tally::of(&round.outcomes);
        if !round.judged {
            let verdict = tally.verdict();
            if let Some(verdict) =
                verdict.or_else(|| tally.is_complete().then_some(Verdict::Unknown))
            {
                round.judged = true;
                round.lease.judge(verdict, round.started, *round.lease.terms);
                self.renewing.remove(&round.id);
                self.shared.put(round.id, &round.lease);
            }
        }
        if tally.is_complete() {
            self.rounds.remove(&reply.round);
        }
    }
}

/// The number of no renewal: an answer to it interests nobody.
const NOBODY: u64 = 0;

/// When the task has something to do again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    After(Duration),
    /// Nothing is held.
    WhenWoken,
    Over,
}

async fn rest(next: Next) {
    match next {
        Next::After(wait) => sleep(wait).await,
        Next::WhenWoken | Next::Over => std::future::pending().await,
    }
}
