//! The one task that keeps the locks of a `Redlock`: it renews them, and tells of their loss.
//!
//! However many locks are held, there is one schedule, ordered by when each lock is next to be looked
//! at, and one task that goes through it. What falls due at about the same time is renewed together,
//! so that each node gets its share in one go.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};

use crate::{
    clock::{Clock, Moment},
    error::NodeOutcome,
    lane::{Reply, ReplyTo},
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
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    schedule: Mutex<Schedule>,
    wake: Notify,
    closed: AtomicBool,
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
    pub(crate) fn new(clock: Clock) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::new(Shared {
            clock,
            schedule: Mutex::new(Schedule::default()),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
        });
        let (answers_to, answers) = mpsc::unbounded_channel();
        let task =
            Task { shared: Arc::clone(&shared), answers_to, answers, rounds: BTreeMap::new() };
        (Arc::new(Self(shared)), task.run())
    }

    /// Takes a lock into its care.
    pub(crate) fn watch(self: &Arc<Self>, lease: Lease) -> Watched {
        let id = self.0.last_id.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let watched = Watched { watchdog: Arc::clone(self), lease: Arc::new(lease), id };
        if self.0.closed.load(Ordering::Acquire) {
            watched.lease.abandon();
        } else {
            self.0.put(id, &watched.lease);
        }
        watched
    }

    /// Ends the task. What is held is lost with it: nobody renews it any more.
    pub(crate) fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
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
    fn forget(&mut self, id: u64) {
        if let Some(due) = self.places.remove(&id) {
            self.due.remove(&(due, id));
        }
    }
}

/// One renewal on all nodes.
struct Round {
    lease: SharedLease,
    started: Moment,
    outcomes: Vec<NodeOutcome>,
    judged: bool,
}

struct Task {
    shared: Arc<Shared>,
    answers_to: mpsc::UnboundedSender<Reply>,
    answers: mpsc::UnboundedReceiver<Reply>,
    /// The renewals that are not answered by all nodes, by the id of their lock.
    rounds: BTreeMap<u64, Round>,
}

impl Task {
    async fn run(mut self) {
        while !self.shared.closed.load(Ordering::Acquire) {
            let wait = self.look();
            tokio::select! {
                biased;
                Some(reply) = self.answers.recv() => self.answered(reply),
                () = self.shared.wake.notified() => {}
                () = rest(wait) => {}
            }
        }
        let held = mem::take(&mut self.shared.schedule().due);
        for lease in held.into_values() {
            lease.abandon();
        }
    }

    /// Does what is due, and says how long there is nothing to do.
    fn look(&mut self) -> Option<Duration> {
        let now = self.shared.clock.now();
        for (id, lease) in self.take_due(now) {
            if !lease.expire() {
                self.renew(id, &lease);
            }
        }
        let mut schedule = self.shared.schedule();
        let next = schedule.due.first_key_value().map(|((due, _), _)| due.since(now).min(LOOK));
        schedule.next_look = next.map(|wait| now.plus(wait));
        next
    }

    /// Takes what is due out of the schedule.
    fn take_due(&mut self, now: Moment) -> Vec<(u64, SharedLease)> {
        let mut schedule = self.shared.schedule();
        // Only what is due by now: something taken early would be put back and taken again at once.
        let later = schedule.due.split_off(&(now, u64::MAX));
        let due = mem::replace(&mut schedule.due, later);
        due.into_iter()
            .map(|((_, id), lease)| {
                schedule.places.remove(&id);
                (id, lease)
            })
            .collect()
    }

    fn renew(&mut self, id: u64, lease: &SharedLease) {
        // The nodes are slow to answer the last one: no second one on top of it.
        let is_renewing = self.rounds.get(&id).is_some_and(|round| !round.judged);
        let wants_renewal = lease.terms.renew_every.is_some();
        let started = if is_renewing || !wants_renewal {
            None
        } else {
            let to = &self.answers_to;
            lease.renew(|place| ReplyTo { round: id, place, to: to.clone() })
        };
        if let Some(started) = started {
            let outcomes = vec![NodeOutcome::Pending; lease.nodes()];
            let round = Round { lease: Arc::clone(lease), started, outcomes, judged: false };
            self.rounds.insert(id, round);
        }
        // Until the nodes have answered there is nothing to do but to watch for its end.
        self.shared.put_at(id, lease, Lease::end);
    }

    fn answered(&mut self, reply: Reply) {
        let Some(round) = self.rounds.get_mut(&reply.round) else { return };
        let to = ReplyTo { round: NOBODY, place: reply.place, to: self.answers_to.clone() };
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
                round.lease.judge(verdict, round.started, round.lease.terms);
                self.shared.put(reply.round, &round.lease);
            }
        }
        if tally.is_complete() {
            self.rounds.remove(&reply.round);
        }
    }
}

/// The id of no lock: an answer to it interests nobody.
const NOBODY: u64 = 0;

async fn rest(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}
