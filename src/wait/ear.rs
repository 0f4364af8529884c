//! One task per node that hears of releases while somebody waits.
//!
//! A release is announced on every node, to whoever listens at that moment. An announcement that is
//! lost, with its connection or by a slow listener, costs a waiter some time and never a lock: it looks
//! by itself as well.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    backoff::Backoff,
    clock::due_after,
    entropy::Entropy,
    node::{Heard, Listener, Node, NodeFailure},
    resource::Key,
    tasks::Spawner,
};

/// How long a key is still listened for after the last waiter has gone: there may soon be another.
const LINGER: Duration = Duration::from_secs(1);
const RECONNECT: Backoff =
    Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };

/// What a waiter hears of its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ring {
    /// From now on this node's announcements are heard.
    Listening,
    /// It was released on this node, with so many processes listening.
    Free { node: usize, listeners: u32 },
}

#[derive(Debug)]
enum Wish {
    Watch(Key),
    Unwatch(Key),
}

/// The ears of one `Redlock`, one per node.
#[derive(Debug, Default)]
pub(crate) struct Ears(Arc<Hub>);

#[derive(Debug, Default)]
struct Hub {
    /// The latest waiter of each key, with the number of its watch.
    waiting: Mutex<BTreeMap<Key, (u64, mpsc::UnboundedSender<Ring>)>>,
    last_watch: AtomicU64,
    wishes: Mutex<Vec<mpsc::UnboundedSender<Wish>>>,
    closed: watch::Sender<bool>,
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
        let mut closed = self.0.closed.subscribe();
        spawner.spawn(async move {
            tokio::select! {
                biased;
                // Whatever it is about to do then: a node that does not answer holds up no shutdown.
                _ = closed.wait_for(|closed| *closed) => {}
                () = ear.run() => {}
            }
        })
    }

    /// Listens for a key on all nodes.
    pub(super) fn watch(&self, key: &Key) -> Watch {
        let (tx, rings) = mpsc::unbounded_channel();
        let number = self.0.last_watch.fetch_add(1, Ordering::Relaxed);
        {
            let mut waiting = self.0.waiting();
            // Otherwise its rings have ended at once.
            if !*self.0.closed.borrow() {
                waiting.insert(key.clone(), (number, tx));
            }
        }
        self.0.tell(&|| Wish::Watch(key.clone()));
        Watch { rings, key: key.clone(), number, hub: Arc::clone(&self.0) }
    }

    /// Ends the tasks, and the rings of those who wait.
    pub(crate) fn close(&self) {
        {
            let mut waiting = self.0.waiting();
            self.0.closed.send_replace(true);
            waiting.clear();
        }
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

    fn ring(&self, key: &Key, ring: Ring) {
        if let Some((_, waiter)) = self.waiting().get(key) {
            waiter.send(ring).ok();
        }
    }
}

/// A key that is listened for.
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

    /// Waits for something while it takes wishes.
    async fn unless_closed<F: Future>(&mut self, future: F) -> Result<F::Output, Closed> {
        tokio::pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                wish = self.wishes.recv() => match wish {
                    Some(wish) => drop(self.note(wish)),
                    None => return Err(Closed),
                },
            }
        }
    }

    /// Takes down a wish. The key that is to be listened for from now on, if it is a new one.
    fn note(&mut self, wish: Wish) -> Option<Key> {
        match wish {
            Wish::Watch(key) => {
                let is_new = !self.wanted.contains_key(&key);
                let wanted = self.wanted.entry(key.clone()).or_default();
                wanted.watches = wanted.watches.saturating_add(1);
                wanted.until = None;
                is_new.then_some(key)
            }
            Wish::Unwatch(key) => {
                if let Some(wanted) = self.wanted.get_mut(&key) {
                    wanted.watches = wanted.watches.saturating_sub(1);
                    wanted.until = (wanted.watches == 0).then(|| due_after(LINGER));
                }
                None
            }
        }
    }

    async fn listen_while_wanted(&mut self) -> Result<Result<(), NodeFailure>, Closed> {
        let now = Instant::now();
        self.wanted.retain(|_, wanted| wanted.until.is_none_or(|until| until > now));
        while self.wanted.is_empty() {
            let Some(wish) = self.wishes.recv().await else { return Err(Closed) };
            drop(self.note(wish));
        }
        let node = Arc::clone(&self.node);
        let mut listener = match self.unless_closed(node.listen()).await? {
            Ok(listener) => listener,
            Err(failure) => return Ok(Err(failure)),
        };
        for key in self.wanted.keys().cloned().collect::<Vec<_>>() {
            if let Err(failure) = self.watch(&mut listener, &key).await {
                return Ok(Err(failure));
            }
        }
        while !self.wanted.is_empty() {
            let unwanted =
                self.wanted.iter().filter_map(|(key, wanted)| Some((wanted.until?, key)));
            let next = unwanted.min().map(|(until, key)| (until, key.clone()));
            let done = tokio::select! {
                biased;
                heard = listener.heard() => heard.map(|heard| self.ring(&heard)),
                wish = self.wishes.recv() => {
                    let Some(wish) = wish else { return Err(Closed) };
                    let again = match &wish {
                        Wish::Watch(key) if self.wanted.contains_key(key) => Some(key.clone()),
                        Wish::Watch(_) | Wish::Unwatch(_) => None,
                    };
                    match (self.note(wish), again) {
                        (Some(key), _) => self.watch(&mut listener, &key).await,
                        (None, Some(key)) => {
                            self.hub.ring(&key, Ring::Listening);
                            Ok(())
                        }
                        (None, None) => Ok(()),
                    }
                }
                key = unwanted_at(next) => {
                    self.wanted.remove(&key);
                    listener.unwatch(&key).await
                }
            };
            if let Err(failure) = done {
                return Ok(Err(failure));
            }
        }
        Ok(Ok(()))
    }

    async fn watch(&self, listener: &mut N::Listener, key: &Key) -> Result<(), NodeFailure> {
        listener.watch(key).await?;
        self.hub.ring(key, Ring::Listening);
        Ok(())
    }

    fn ring(&self, heard: &Heard) {
        let ring = Ring::Free { node: self.place, listeners: heard.listeners };
        self.hub.ring(&heard.key, ring);
    }
}

async fn unwanted_at(next: Option<(Instant, Key)>) -> Key {
    match next {
        Some((until, key)) => {
            sleep_until(until).await;
            key
        }
        None => std::future::pending().await,
    }
}
