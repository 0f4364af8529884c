//! One task per node that hears of releases while somebody waits.
//!
//! A release is announced on every node, to whoever listens at that moment. An announcement that is
//! lost, with its connection or by a slow listener, costs a waiter some time and never a lock: it looks
//! by itself as well.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::{Fuse, FusedFuture, FutureExt};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    backoff::Backoff,
    clock::due_after,
    entropy::Entropy,
    node::{Heard, Listener, Move, Node, NodeFailure},
    own_seat::OwnSeat,
    owner_id::{OwnerId, Seat},
    resource::Key,
    successors::Successors,
    tasks::Spawner,
};

/// How long a key is still listened for after the last waiter has gone: there may soon be another. Not
/// for longer, and not after a call that nobody followed: it was meant for somebody who waits.
const LINGER: Duration = Duration::from_millis(100);
/// For how many keys a node is asked at once. With names of usual length it is about what a new connection
/// carries in one round trip.
const AT_ONCE: usize = 64;
const RECONNECT: Backoff =
    Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };

/// What a waiter hears of its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ring {
    /// From now on this node's announcements are heard.
    Listening { node: usize },
    /// This node's announcements are no longer heard.
    Deaf { node: usize },
    /// It was released on this node, and this process is next, or stands in for the next.
    Free { node: usize, owner: OwnerId, rank: u32, sharing: u32 },
}

#[derive(Debug)]
enum Wish {
    Watch(Key),
    Unwatch(Key),
    /// To the seat that the process has now.
    Move,
}

/// The ears of one `Redlock`, one per node.
#[derive(Debug)]
pub(crate) struct Ears(Arc<Hub>);

#[derive(Debug)]
struct Hub {
    seat: Arc<OwnSeat>,
    successors: Arc<Successors>,
    /// The latest waiter of each key, with the number of its watch.
    waiting: Mutex<BTreeMap<Key, (u64, mpsc::UnboundedSender<Ring>)>>,
    last_watch: AtomicU64,
    closed: AtomicBool,
    wishes: Mutex<Vec<mpsc::UnboundedSender<Wish>>>,
}

/// A key that is listened for.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) rings: mpsc::UnboundedReceiver<Ring>,
    key: Key,
    number: u64,
    hub: Arc<Hub>,
}

impl Ears {
    pub(crate) fn new(seat: Arc<OwnSeat>, successors: Arc<Successors>) -> Self {
        Self(Arc::new(Hub {
            seat,
            successors,
            waiting: Mutex::default(),
            last_watch: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            wishes: Mutex::default(),
        }))
    }

    /// Grows an ear for one more node. The task ends with the ears.
    pub(crate) fn grow<N: Node>(
        &self,
        node: &Arc<N>,
        spawner: &Spawner,
        entropy: &Entropy,
    ) -> JoinHandle<()> {
        let (tx, wishes) = mpsc::unbounded_channel();
        let place = {
            let mut all = self.0.wishes.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(tx);
            all.len().saturating_sub(1)
        };
        let ear = Ear {
            node: Arc::clone(node),
            place,
            hub: Arc::clone(&self.0),
            wishes,
            entropy: entropy.clone(),
            wanted: BTreeMap::new(),
            lingering: VecDeque::new(),
            subscribed: BTreeMap::new(),
            changed: BTreeSet::new(),
            to_move: BTreeSet::new(),
            turn: None,
        };
        spawner.spawn(ear.run())
    }

    /// Listens for a key on all nodes.
    pub(super) fn watch(&self, key: &Key) -> Watch {
        let (tx, rings) = mpsc::unbounded_channel();
        let number = self.0.last_watch.fetch_add(1, Ordering::Relaxed);
        {
            // Looked at under the lock that `close` takes: a sender left in there would ring for ever.
            let mut waiting = self.0.waiting();
            if !self.0.closed.load(Ordering::Acquire) {
                waiting.insert(key.clone(), (number, tx));
            }
        }
        self.0.tell(&|| Wish::Watch(key.clone()));
        Watch { rings, key: key.clone(), number, hub: Arc::clone(&self.0) }
    }

    /// Ends the tasks, and the waiting of those who wait for a ring.
    pub(crate) fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.waiting().clear();
        self.0.wishes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.close();
    }
}

impl Watch {
    /// Takes another seat for this process, unless it has just done so.
    pub(super) fn leave_seat(&self) {
        if self.hub.seat.leave() {
            self.hub.tell(&|| Wish::Move);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        {
            let mut waiting = self.hub.waiting();
            // Its successor may be there already.
            if waiting.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
                waiting.remove(&self.key);
            }
        }
        self.hub.tell(&|| Wish::Unwatch(self.key.clone()));
    }
}

impl Hub {
    fn tell(&self, wish: &dyn Fn() -> Wish) {
        for ear in self.wishes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // An ear that has ended hears nothing more.
            drop(ear.send(wish()));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Key, (u64, mpsc::UnboundedSender<Ring>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits who hears it.
    fn ring(&self, key: &Key, ring: Ring) -> bool {
        self.waiting().get(key).is_some_and(|(_, waiter)| waiter.send(ring).is_ok())
    }
}

/// A key that somebody waits for, or did a moment ago.
#[derive(Default)]
struct Wanted {
    watches: usize,
    /// Without any watch: until when it is listened for all the same.
    until: Option<Instant>,
}

struct Ear<N: Node> {
    node: Arc<N>,
    place: usize,
    hub: Arc<Hub>,
    wishes: mpsc::UnboundedReceiver<Wish>,
    entropy: Entropy,
    wanted: BTreeMap<Key, Wanted>,
    /// What is wanted without a watch, the soonest end first; and what was a moment ago.
    lingering: VecDeque<(Instant, Key)>,
    /// What is listened for, and on which seat.
    subscribed: BTreeMap<Key, Seat>,
    /// For all other keys that is as wanted, or will be by what the node is being asked for.
    changed: BTreeSet<Key>,
    /// Those of which no more than the seat has changed.
    to_move: BTreeSet<Key>,
    /// Which of them was the last in turn.
    turn: Option<Key>,
}

/// The ears have been closed.
struct Closed;

impl<N: Node> Ear<N> {
    async fn run(mut self) {
        let mut failures: u32 = 0;
        loop {
            let listening = self.listen_while_wanted().await;
            match listening {
                Err(Closed) => return,
                Ok(Ok(())) => failures = 0,
                Ok(Err(failure)) => {
                    failures = failures.saturating_add(1);
                    tracing::debug!(node = %self.node.name(), %failure, "not hearing of releases");
                    let pause = sleep(RECONNECT.random_delay(failures, &self.entropy));
                    tokio::pin!(pause);
                    if self.unless_closed(pause).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for something while it takes down wishes.
    async fn unless_closed<F: Future>(&mut self, future: F) -> Result<F::Output, Closed> {
        tokio::pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                wish = self.wishes.recv() => self.note(wish)?,
            }
        }
    }

    fn note(&mut self, wish: Option<Wish>) -> Result<(), Closed> {
        match wish {
            None => return Err(Closed),
            Some(Wish::Watch(key)) => {
                let wanted = self.wanted.entry(key.clone()).or_default();
                wanted.watches = wanted.watches.saturating_add(1);
                wanted.until = None;
                if self.subscribed.contains_key(&key) {
                    self.hub.ring(&key, Ring::Listening { node: self.place });
                } else {
                    self.changed.insert(key);
                }
            }
            Some(Wish::Unwatch(key)) => {
                if let Some(wanted) = self.wanted.get_mut(&key) {
                    wanted.watches = wanted.watches.saturating_sub(1);
                    if wanted.watches == 0 {
                        let until = due_after(LINGER);
                        wanted.until = Some(until);
                        self.lingering.push_back((until, key));
                    }
                }
            }
            Some(Wish::Move) => self.to_move.extend(self.subscribed.keys().cloned()),
        }
        Ok(())
    }

    /// Forgets what nobody has waited for lately, and says when that is to be done again.
    fn purge(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while let Some((until, key)) = self.lingering.pop_front() {
            if until > now {
                self.lingering.push_front((until, key));
                return Some(until);
            }
            if self.wanted.get(&key).is_some_and(|wanted| wanted.until == Some(until)) {
                self.wanted.remove(&key);
                self.changed.insert(key);
            }
        }
        None
    }

    async fn listen_while_wanted(&mut self) -> Result<Result<(), NodeFailure>, Closed> {
        self.purge();
        // With the connection it begins anew. A node that is down for long does not pile them up.
        self.changed.clear();
        self.to_move.clear();
        while self.wanted.is_empty() {
            let wish = self.wishes.recv().await;
            self.note(wish)?;
        }
        let node = Arc::clone(&self.node);
        let mut listener = match self.unless_closed(node.listen()).await? {
            Ok(listener) => listener,
            Err(failure) => return Ok(Err(failure)),
        };
        self.changed = self.wanted.keys().cloned().collect();
        let ended = self.listen(&mut listener).await;
        for key in std::mem::take(&mut self.subscribed).into_keys() {
            self.hub.ring(&key, Ring::Deaf { node: self.place });
        }
        ended
    }

    /// Listens for all that is wanted, until nothing is.
    async fn listen(
        &mut self,
        listener: &mut N::Listener,
    ) -> Result<Result<(), NodeFailure>, Closed> {
        // It hears meanwhile: over a wide area a round trip is long.
        let asking = Fuse::terminated();
        tokio::pin!(asking);
        loop {
            let next = self.purge();
            if self.wanted.is_empty() {
                return Ok(Ok(()));
            }
            let moves = if asking.is_terminated() { self.moves() } else { Vec::new() };
            if !moves.is_empty() {
                let asked = listener.move_to(moves.clone());
                asking.set(asked.map(|done| done.map(|()| moves)).fuse());
            }
            let done = tokio::select! {
                biased;
                heard = listener.heard() => heard.map(|heard| self.ring(&heard)),
                moves = &mut asking => moves.map(|moves| self.moved(moves)),
                wish = self.wishes.recv() => Ok(self.note(wish)?),
                () = unwanted_at(next) => Ok(()),
            };
            if let Err(failure) = done {
                return Ok(Err(failure));
            }
        }
    }

    /// Each in turn, so that none waits for ever for those before it in the alphabet, and those last that are
    /// heard of in any case.
    fn next_changed(&mut self) -> Option<Key> {
        let behind = self.turn.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.changed.range((behind, Bound::Unbounded)).next();
        let Some(key) = next.or_else(|| self.changed.first()).cloned() else {
            return self.to_move.pop_first();
        };
        self.changed.remove(&key);
        self.turn = Some(key.clone());
        Some(key)
    }

    /// What the node is to be asked for.
    fn moves(&mut self) -> Vec<Move> {
        let seat = self.hub.seat.get();
        let mut moves = Vec::new();
        while moves.len() < AT_ONCE {
            let Some(key) = self.next_changed() else { break };
            let from = self.subscribed.get(&key).copied();
            let to = self.wanted.contains_key(&key).then_some(seat);
            if to.is_none() {
                self.subscribed.remove(&key);
            }
            if from != to {
                moves.push(Move { key, from, to });
            }
        }
        moves
    }

    fn moved(&mut self, moves: Vec<Move>) {
        let seat = self.hub.seat.get();
        for Move { key, from, to } in moves {
            let Some(to) = to else { continue };
            if from.is_none() {
                self.hub.ring(&key, Ring::Listening { node: self.place });
            }
            if to != seat {
                // It has changed again meanwhile.
                self.to_move.insert(key.clone());
            }
            self.subscribed.insert(key, to);
        }
    }

    fn ring(&mut self, heard: &Heard) {
        let Heard { key, owner, rank, sharing, behind } = heard;
        let ring = Ring::Free { node: self.place, owner: *owner, rank: *rank, sharing: *sharing };
        if self.hub.ring(key, ring) {
            // Nor is it its own successor, who sits on two seats in the moment in which it moves.
            if let Some(seat) = behind.filter(|seat| *seat != self.hub.seat.get()) {
                self.hub.successors.note(key, seat);
            }
        } else {
            self.hub.successors.forget(key);
            if self.wanted.get(key).is_some_and(|wanted| wanted.watches == 0) {
                self.wanted.remove(key);
                self.changed.insert(key.clone());
            }
        }
    }
}

async fn unwanted_at(next: Option<Instant>) {
    match next {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
