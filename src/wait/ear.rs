//! One task per node that hears of releases while somebody waits.
//!
//! A release is announced on every node, to whoever listens at that moment. An announcement that is
//! lost, with its connection or by a slow listener, costs a waiter some time and never a lock: it looks
//! by itself as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    backoff::Backoff,
    clock::due_after,
    entropy::Entropy,
    node::{Heard, Listener, Node, NodeFailure},
    owner_id::{OwnerId, Seat},
    resource::Key,
    successors::Successors,
    tasks::Spawner,
};

/// How long a key is still listened for after the last waiter has gone: there may soon be another. Not
/// for longer, and not after a call that nobody followed: it was meant for somebody who waits.
const LINGER: Duration = Duration::from_millis(100);
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
}

/// The ears of one `Redlock`, one per node.
#[derive(Debug)]
pub(crate) struct Ears(Arc<Hub>);

#[derive(Debug)]
struct Hub {
    seat: Seat,
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
    pub(crate) fn new(seat: Seat, successors: Arc<Successors>) -> Self {
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
            wanted: BTreeMap::new(),
            entropy: entropy.clone(),
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

/// A key that is listened for.
#[derive(Default)]
struct Wanted {
    watches: usize,
    /// Without any watch: until when it is listened for all the same.
    until: Option<Instant>,
    /// Whether its waiter knows that it is listened for.
    told: bool,
}

struct Ear<N: Node> {
    node: Arc<N>,
    place: usize,
    hub: Arc<Hub>,
    wishes: mpsc::UnboundedReceiver<Wish>,
    wanted: BTreeMap<Key, Wanted>,
    entropy: Entropy,
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
                    for wanted in self.wanted.values_mut() {
                        wanted.told = false;
                    }
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
                let wanted = self.wanted.entry(key).or_default();
                wanted.watches = wanted.watches.saturating_add(1);
                wanted.until = None;
                wanted.told = false;
            }
            Some(Wish::Unwatch(key)) => {
                if let Some(wanted) = self.wanted.get_mut(&key) {
                    wanted.watches = wanted.watches.saturating_sub(1);
                    wanted.until = (wanted.watches == 0).then(|| due_after(LINGER));
                }
            }
        }
        Ok(())
    }

    /// Forgets what nobody has waited for lately.
    fn purge(&mut self) {
        let now = Instant::now();
        self.wanted.retain(|_, wanted| wanted.until.is_none_or(|until| until > now));
    }

    async fn listen_while_wanted(&mut self) -> Result<Result<(), NodeFailure>, Closed> {
        self.purge();
        while self.wanted.is_empty() {
            let wish = self.wishes.recv().await;
            self.note(wish)?;
        }
        let node = Arc::clone(&self.node);
        let mut listener = match self.unless_closed(node.listen()).await? {
            Ok(listener) => listener,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut subscribed = BTreeSet::new();
        let ended = self.listen(&mut listener, &mut subscribed).await;
        for key in &subscribed {
            self.hub.ring(key, Ring::Deaf { node: self.place });
        }
        ended
    }

    /// Listens for all that is wanted, until nothing is.
    async fn listen(
        &mut self,
        listener: &mut N::Listener,
        subscribed: &mut BTreeSet<Key>,
    ) -> Result<Result<(), NodeFailure>, Closed> {
        loop {
            self.purge();
            let unwanted = subscribed.iter().find(|key| !self.wanted.contains_key(*key)).cloned();
            let missing = self.wanted.keys().find(|key| !subscribed.contains(*key)).cloned();
            let done = if let Some(key) = unwanted {
                subscribed.remove(&key);
                self.unless_closed(listener.unwatch(&key, self.hub.seat)).await?
            } else if let Some(key) = missing {
                let watched = self.unless_closed(listener.watch(&key, self.hub.seat)).await?;
                subscribed.insert(key);
                watched
            } else if self.wanted.is_empty() {
                return Ok(Ok(()));
            } else {
                self.tell_waiters();
                let next = self.wanted.values().filter_map(|wanted| wanted.until).min();
                tokio::select! {
                    biased;
                    heard = listener.heard() => heard.map(|heard| self.ring(&heard)),
                    wish = self.wishes.recv() => Ok(self.note(wish)?),
                    () = unwanted_at(next) => Ok(()),
                }
            };
            if let Err(failure) = done {
                return Ok(Err(failure));
            }
        }
    }

    fn tell_waiters(&mut self) {
        for (key, wanted) in &mut self.wanted {
            if !wanted.told {
                wanted.told = true;
                self.hub.ring(key, Ring::Listening { node: self.place });
            }
        }
    }

    fn ring(&mut self, heard: &Heard) {
        let Heard { key, owner, rank, sharing, behind } = heard;
        let ring = Ring::Free { node: self.place, owner: *owner, rank: *rank, sharing: *sharing };
        if self.hub.ring(key, ring) {
            if let Some(seat) = behind {
                self.hub.successors.note(key, *seat);
            }
        } else {
            self.hub.successors.forget(key);
            if let Some(wanted) = self.wanted.get_mut(key).filter(|wanted| wanted.watches == 0) {
                wanted.until = Some(Instant::now());
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
