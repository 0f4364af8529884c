//! Waiting for a lock that somebody else holds.
//!
//! Within a process the waiters of a resource queue in the order in which they came, and only the first
//! of them, the head, talks to the nodes. The heads of different processes sit in a ring: a release
//! calls the next one, and the one after it to stand in. So the lock goes round the processes, and each
//! of them is woken when it is its turn, however many wait.

mod signs;
mod turn;
pub(crate) mod ear;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    time::{Instant, sleep_until},
};

use self::{
    ear::{Ears, Ring, Watch},
    signs::{Release, announced, free_after, is_split},
    turn::{Look, Turn, at, due, sooner},
};
use crate::{
    backoff::Backoff,
    clock::due_after,
    error::{NodeOutcome, NodeReports},
    node::{Answer, Operation},
    own_seat::OwnSeat,
    owner_id::OwnerId,
    quorum::{Quorum, acquire::Order, round::Round},
    resource::Key,
    successors::Successors,
};

/// How much later than the one who is called first the one tries who stands in for it.
const STAND_IN_AFTER: Duration = Duration::from_millis(4);
/// How much later than those who wait one tries who has just come.
const NEWCOMER_AFTER: Duration = Duration::from_millis(4);
/// The same, of one who has passed the lock on to somebody known and came back at once: it comes round to him
/// without a question.
const RETURNING_AFTER: Duration = Duration::from_millis(200);
/// When one looks round that is called to be the next, and not by a majority: the nodes disagree about who that
/// is, as where one who was known to wait has left.
const DISAGREED_AFTER: Duration = Duration::from_millis(50);
/// After how long one who waits and is not called asks whether the lock is held at all: those who were called
/// may have had it and be gone, and then nobody is on the way to it.
const UNHEARD: Backoff = Backoff { first: Duration::from_millis(400), cap: Duration::from_secs(1) };
/// How often it does in one turn. After that it has waited for about as long as it takes to look by itself.
const MAX_GLANCES: usize = 2;
/// After a split vote, in which nobody can have been granted.
const SPLIT: Backoff = Backoff { first: Duration::from_millis(2), cap: Duration::from_millis(200) };
/// After one who was not called has let others go first, how soon it looks again whether they are there.
const YIELD: Backoff = Backoff { first: Duration::from_millis(4), cap: Duration::from_millis(8) };
/// How often at most it sees a lock that nobody has, and waits all the same: those who wait may be as new
/// and let this one go first. While a lock goes round it is mostly held at one of so many looks.
const MAX_YIELDS: u32 = 3;
/// How long it takes at most to ask for them.
const ASK_AT_MOST: Duration = Duration::from_millis(20);

/// How long a head waits to hear that it will hear, before it tries.
const HEAR_FIRST: Duration = Duration::from_millis(5);

/// The queues of one `Redlock`.
#[derive(Debug)]
pub(crate) struct Queues {
    by_key: Mutex<BTreeMap<Key, Arc<AsyncMutex<Head>>>>,
    pub(crate) ears: Ears,
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    queues: &'a Queues,
    key: &'a Key,
    /// Taken out when the ticket is dropped.
    queue: Option<Arc<AsyncMutex<Head>>>,
}

/// What the head of a queue knows, and hands on to the next.
#[derive(Debug, Default)]
pub(crate) struct Head {
    watch: Option<Watch>,
    /// The nodes whose announcements are heard.
    listening: BTreeSet<usize>,
    /// Whether it has looked since it is told of releases.
    has_looked: bool,
    looks: usize,
    /// Votes that were split, in a row.
    splits: u32,
    /// How often it has let others go first, since its turn in this process came.
    yielded: u32,
    /// How often it has asked whether the lock is held, since then.
    glances: usize,
    /// Whether somebody else sits where this process was called.
    shares_seat: bool,
    /// The releases since then that called it.
    heard: VecDeque<Release>,
}

/// What one who was not called sees.
#[derive(Clone, Copy, Debug)]
enum Glance {
    /// Nobody else waits.
    Nobody,
    /// Others wait, and somebody has it, for so long.
    Held { remaining: Option<Duration> },
    /// Others wait, and nobody has it: it is on its way to one of them, or they are as new.
    Passing,
    /// The node does not say.
    Unknown,
}

impl Queues {
    pub(crate) fn new(seat: Arc<OwnSeat>, successors: Arc<Successors>) -> Self {
        let ears = Ears::new(seat, successors);
        Self { by_key: Mutex::default(), ears }
    }

    /// Takes a place at the end of a resource's queue. It is left by dropping the ticket.
    pub(crate) fn enter<'a>(&'a self, key: &'a Key) -> Ticket<'a> {
        let mut queues = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::clone(queues.entry(key.clone()).or_default());
        Ticket { queues: self, key, queue: Some(queue) }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        // Given back under the lock: of two that leave together the second one sees the first gone.
        self.queue = None;
        if queues.get(self.key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(self.key);
        }
    }
}

impl Ticket<'_> {
    /// Waits until all who came before have had their turn. Cancel safe: the turn passes on.
    pub(crate) async fn turn(&self) -> Option<OwnedMutexGuard<Head>> {
        Some(Arc::clone(self.queue.as_ref()?).lock_owned().await)
    }
}

impl Head {
    /// Its turn begins.
    pub(crate) fn begin(&mut self, quorum: &Quorum, key: &Key) {
        self.splits = 0;
        self.yielded = 0;
        self.glances = 0;
        self.shares_seat = false;
        self.heard.clear();
        while let Some(Ok(ring)) = self.watch.as_mut().map(|watch| watch.rings.try_recv()) {
            // What was announced to its predecessors is not news for this one.
            if !matches!(ring, Ring::Free { .. }) {
                self.note(ring, quorum, key);
            }
        }
    }

    /// Notes whose announcements are heard, and how to try if by this a majority has announced the same
    /// release, which calls this process to be the next.
    fn note(&mut self, ring: Ring, quorum: &Quorum, key: &Key) -> Option<Order> {
        match ring {
            Ring::Listening { node } => {
                self.listening.insert(node);
            }
            Ring::Deaf { node } => {
                self.listening.remove(&node);
            }
            Ring::Free { node, owner, rank: 0, sharing } => {
                let (nodes, sharing) = announced(&mut self.heard, owner, node, sharing);
                if nodes != quorum.size() {
                    return None;
                }
                // Not where a server does not say.
                self.shares_seat = sharing > 1;
                let is_alone = sharing == 1;
                // By a release of its own, if nobody else waited for that.
                if !(is_alone && owner.seat() == quorum.seat.get()) {
                    quorum.contended.note(key);
                }
                // Where one process alone is called it may ask all at once.
                let first = Order::First(quorum.first_voting());
                return Some(if is_alone { Order::All } else { first });
            }
            Ring::Free { .. } => {}
        }
        None
    }

    /// How to try first: where others have been contending, listen before, let those go first who
    /// have waited longer, and ask one node only.
    pub(crate) async fn first_order(
        &mut self,
        queues: &Queues,
        quorum: &Quorum,
        key: &Key,
        left: Duration,
    ) -> Order {
        if !quorum.contended.lately(key) {
            return Order::All;
        }
        let by = due_after(HEAR_FIRST);
        self.listen(queues, key);
        while !self.can_hear(quorum) {
            let Some(watch) = &mut self.watch else { break };
            tokio::select! {
                biased;
                ring = watch.rings.recv() => match ring.map(|ring| self.note(ring, quorum, key)) {
                    None => break,
                    Some(Some(called)) => return called,
                    Some(None) => {}
                },
                () = sleep_until(by) => break,
            }
        }
        self.has_looked = self.can_hear(quorum);
        let is_passed_on = self.has_looked && quorum.successors.goes_round(key);
        let after = if is_passed_on { RETURNING_AFTER } else { NEWCOMER_AFTER };
        let turn = Some((due_after(after), Turn::Newcomer { at: quorum.first_voting() }));
        self.wait_until_free(quorum, key, Duration::MAX, left, turn).await
    }

    /// What one who was not called sees of the lock on one node.
    async fn look_round(&self, quorum: &Quorum, key: &Key, place: usize, end: Instant) -> Glance {
        let limit = end.saturating_duration_since(Instant::now()).min(ASK_AT_MOST);
        let besides = u32::from(self.listening.contains(&place));
        let waiters = Operation::Waiters { key: key.clone(), besides };
        match Round::ask_one(quorum, place, waiters, limit).await {
            NodeOutcome::Answered(Answer::Taken { .. }) => {}
            NodeOutcome::Answered(_) => return Glance::Nobody,
            NodeOutcome::Pending | NodeOutcome::Failed(_) => return Glance::Unknown,
        }
        self.glance(quorum, key, place, end).await
    }

    /// Whether anybody has the lock, by one node; who waits is not asked.
    async fn glance(&self, quorum: &Quorum, key: &Key, place: usize, end: Instant) -> Glance {
        let limit = end.saturating_duration_since(Instant::now()).min(ASK_AT_MOST);
        // To extend what it does not have changes nothing, and tells who has it.
        let owner = OwnerId::from_entropy(&quorum.entropy, quorum.seat.get());
        let whose = Operation::Extend { key: key.clone(), owner, ttl_ms: 1 };
        match Round::ask_one(quorum, place, whose, limit).await {
            NodeOutcome::Answered(Answer::Taken { remaining }) => Glance::Held { remaining },
            NodeOutcome::Answered(_) => Glance::Passing,
            NodeOutcome::Pending | NodeOutcome::Failed(_) => Glance::Unknown,
        }
    }

    fn listen(&mut self, queues: &Queues, key: &Key) {
        if self.watch.is_none() {
            self.listening.clear();
            self.has_looked = false;
            self.watch = Some(queues.ears.watch(key));
        }
    }

    /// Waits until it is worth another try, at most for `left`, and says how to try.
    pub(crate) async fn wait(
        &mut self,
        queues: &Queues,
        quorum: &Quorum,
        key: &Key,
        nodes: &NodeReports,
        left: Duration,
    ) -> Order {
        quorum.contended.note(key);
        self.listen(queues, key);
        let retry = if is_split(nodes) {
            self.splits = self.splits.saturating_add(1);
            Some((due_after(SPLIT.random_delay(self.splits, &quorum.entropy)), Turn::Split))
        } else {
            self.splits = 0;
            if let Some(watch) = self.watch.as_ref().filter(|_| self.shares_seat) {
                // The other one got it, and stays.
                self.shares_seat = false;
                watch.leave_seat();
            }
            None
        };
        self.wait_until_free(quorum, key, free_after(nodes), left, retry).await
    }

    /// Waits for a release, or until `free_after` by itself, or for its `turn`.
    async fn wait_until_free(
        &mut self,
        quorum: &Quorum,
        key: &Key,
        free_after: Duration,
        left: Duration,
        mut turn: Option<(Instant, Turn)>,
    ) -> Order {
        let mut look = Look::before(due_after(left), free_after, quorum);
        let mut unheard = self.unheard_at(quorum);
        loop {
            let can_hear = self.can_hear(quorum);
            let Some(watch) = &mut self.watch else { return Order::All };
            let ring = tokio::select! {
                biased;
                ring = watch.rings.recv() => ring,
                turn_of = at(turn) => match turn_of {
                    Turn::Split => return Order::First(quorum.first_voting()),
                    Turn::StandIn { at } => return Order::First(at),
                    Turn::Newcomer { at } => {
                        match self.come(quorum, key, at, &mut look).await {
                            ControlFlow::Break(order) => return order,
                            ControlFlow::Continue(again) => turn = again,
                        }
                        continue;
                    }
                },
                () = due(unheard), if turn.is_none() && can_hear => {
                    turn = self.ask_whether_held(quorum, key, look.end).await;
                    unheard = self.unheard_at(quorum);
                    continue;
                }
                // The last time: whoever reads why not wants to know it of every node.
                () = sleep_until(look.due), if look.is_last => return Order::All,
                () = sleep_until(look.due) => return self.another(quorum),
            };
            match ring {
                // The ears are closed, and so is the rest.
                None => return Order::All,
                // Called by one node only, and later than the one who is next.
                Some(Ring::Free { node, rank: 1.., .. }) => {
                    turn = Some((due_after(STAND_IN_AFTER), Turn::StandIn { at: node }));
                }
                Some(ring) => {
                    if let Some(called) = self.note(ring, quorum, key) {
                        return called;
                    }
                    if let Ring::Free { node, .. } = ring {
                        let newcomer = (due_after(DISAGREED_AFTER), Turn::Newcomer { at: node });
                        turn = Some(sooner(turn, newcomer));
                    } else if !self.has_looked && self.can_hear(quorum) {
                        // What was released before that was not heard.
                        self.has_looked = true;
                        let at = quorum.first_voting();
                        turn.get_or_insert((Instant::now(), Turn::Newcomer { at }));
                    }
                }
            }
        }
    }

    /// Who cannot hear is not called either.
    fn can_hear(&self, quorum: &Quorum) -> bool {
        self.listening.len() >= quorum.size()
    }

    /// One who was not called looks whether it may try: how, or when it looks again.
    async fn come(
        &mut self,
        quorum: &Quorum,
        key: &Key,
        place: usize,
        look: &mut Look,
    ) -> ControlFlow<Order, Option<(Instant, Turn)>> {
        let glance = if self.can_hear(quorum) {
            self.look_round(quorum, key, place, look.end).await
        } else {
            Glance::Nobody
        };
        match glance {
            _ if Instant::now() >= look.end => ControlFlow::Break(Order::All),
            Glance::Nobody => ControlFlow::Break(Order::First(place)),
            Glance::Unknown => ControlFlow::Break(self.another(quorum)),
            Glance::Held { remaining } => {
                quorum.contended.note(key);
                // Never later than it was: by one node only.
                let free_after = remaining.unwrap_or(Duration::MAX);
                let by_this = Look::before(look.end, free_after, quorum);
                if by_this.due < look.due {
                    *look = by_this;
                }
                ControlFlow::Continue(None)
            }
            Glance::Passing => {
                quorum.contended.note(key);
                self.yielded = self.yielded.saturating_add(1);
                if self.yielded >= MAX_YIELDS {
                    return ControlFlow::Break(Order::First(place));
                }
                let again = due_after(YIELD.random_delay(self.yielded, &quorum.entropy));
                ControlFlow::Continue(Some((again, Turn::Newcomer { at: place })))
            }
        }
    }

    /// When it asks again whether the lock is held at all.
    fn unheard_at(&self, quorum: &Quorum) -> Option<Instant> {
        let nth = if self.glances == 0 { 1 } else { 2 };
        (self.glances < MAX_GLANCES).then(|| due_after(UNHEARD.random_delay(nth, &quorum.entropy)))
    }

    /// Asks a node whether the lock is held at all; if not, it is this one's turn as that of a newcomer.
    async fn ask_whether_held(
        &mut self,
        quorum: &Quorum,
        key: &Key,
        end: Instant,
    ) -> Option<(Instant, Turn)> {
        self.glances = self.glances.saturating_add(1);
        // Another node each time: one with something left over keeps nobody out.
        let at = quorum.voting_after(quorum.first_voting(), self.glances);
        let is_free = matches!(self.glance(quorum, key, at, end).await, Glance::Passing);
        is_free.then(|| {
            self.yielded = 0;
            (Instant::now(), Turn::Newcomer { at })
        })
    }

    /// Another node first each time: one node with something left over keeps nobody out.
    fn another(&mut self, quorum: &Quorum) -> Order {
        self.looks = self.looks.wrapping_add(1);
        Order::First(quorum.voting_after(quorum.first_voting(), self.looks))
    }
}
