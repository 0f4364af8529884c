//! The entry point: a set of nodes to lock on.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::OwnedMutexGuard,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    backoff::Backoff,
    clock::Moment,
    error::{AcquireError, FailedAttempt, NodeOutcome},
    fenced_guard::FencedGuard,
    fencing_token::FencingToken,
    guard::LockGuard,
    lane::{Lane, NodeEvents, NodeStatus},
    lease::Lease,
    node::{Fence, NodeFailure, NodeName},
    options::{Defaults, LockOptions, Terms, millis},
    quorum::{
        Quorum,
        acquire::{self, Granted, Order},
    },
    resource::{Key, Resource},
    wait::{Head, Queues},
    watchdog::Watchdog,
};

/// Between attempts of one acquisition.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(20), cap: Duration::from_millis(200) };

/// Locks on a fixed set of independent masters. Cheap to clone; clones share the connections.
///
/// The connections live until the last clone and the last guard are gone, or until
/// [`shutdown`](Self::shutdown). They are made on the tokio runtime in which it was connected, which
/// has to go on for as long as locks are used.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use quorumlock::Redlock;
///
/// let redlock =
///     Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]).await?;
/// let guard = redlock.acquire("orders:42").await?;
/// println!("ours for {:?}", guard.remaining());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redlock {
    inner: Arc<Inner>,
}

struct Inner {
    quorum: Arc<Quorum>,
    defaults: Arc<Defaults>,
    /// The terms of the locks that are held, which are mostly the same: a process may hold many.
    usual_terms: Mutex<Option<Arc<Terms>>>,
    key_prefix: Box<str>,
    watchdog: Arc<Watchdog>,
    queues: Queues,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What a [`Redlock::shutdown`] left undone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Nodes that had not answered all releases by the end, and how many releases: what they may
    /// still hold goes with its ttl, counted from when the node executed the acquire.
    pub unanswered: Vec<(NodeName, usize)>,
}

impl Redlock {
    pub(crate) fn new(
        quorum: Quorum,
        defaults: Defaults,
        key_prefix: Box<str>,
        watchdog: Arc<Watchdog>,
        queues: Queues,
        tasks: Vec<JoinHandle<()>>,
    ) -> Self {
        let (quorum, defaults) = (Arc::new(quorum), Arc::new(defaults));
        let (usual_terms, tasks) = (Mutex::default(), Mutex::new(tasks));
        Self {
            inner: Arc::new(Inner {
                quorum,
                defaults,
                usual_terms,
                key_prefix,
                watchdog,
                queues,
                tasks,
            }),
        }
    }

    /// Acquires the lock, waiting until it is free.
    ///
    /// Gives up after the builder's [`wait`](crate::RedlockBuilder::wait), 30 s by default. Those who
    /// wait with the same `Redlock`, or with clones of it, get in by arrival; between processes no
    /// order is promised: the lock goes round them. A waiter is woken by the holder's release, and tries
    /// by itself when the nodes said that the lock will have expired, every 2.5 s at the latest.
    ///
    /// # Errors
    ///
    /// [`AcquireError`], with what each node said in the last attempt. On any error nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future releases, in the background, whatever it had set.
    pub async fn acquire(&self, resource: &str) -> Result<LockGuard, AcquireError> {
        // Not by way of `acquire_with`: those who wait may be many, and each would keep options as well.
        let terms = self.inner.defaults.terms(LockOptions::new())?;
        let (granted, resource) = self.grant(resource, &terms, false).await?;
        Ok(self.guard(granted, terms, resource))
    }

    /// Acquires the lock in exactly one round, or says why not.
    ///
    /// Takes at most a node timeout: a tenth of the ttl, at most 200 ms, by default.
    ///
    /// # Errors
    ///
    /// [`AcquireError`], with what each node said. On any error nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future releases, in the background, whatever it had set.
    pub async fn try_acquire(&self, resource: &str) -> Result<LockGuard, AcquireError> {
        self.acquire_with(resource, LockOptions::new().wait_timeout(Duration::ZERO)).await
    }

    /// Acquires the lock with options of its own.
    ///
    /// Each attempt has an owner id of its own, and its validity is counted from its own start.
    ///
    /// # Errors
    ///
    /// [`AcquireError`], with what each node said in the last attempt, how many attempts there were
    /// and how long they took. On any error nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future releases, in the background, whatever it had set.
    pub async fn acquire_with(
        &self,
        resource: &str,
        options: LockOptions,
    ) -> Result<LockGuard, AcquireError> {
        let terms = self.inner.defaults.terms(options)?;
        let (granted, resource) = self.grant(resource, &terms, false).await?;
        Ok(self.guard(granted, terms, resource))
    }

    /// Acquires the lock with a fencing token, waiting until it is free.
    ///
    /// As [`acquire`](Self::acquire). Mostly it takes no longer: a second round is needed only where the
    /// nodes' counters do not agree.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire). Too few nodes that confirm the token are
    /// [`NoQuorum`](AcquireError::NoQuorum).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future releases, in the background, whatever it had set.
    pub async fn acquire_fenced(&self, resource: &str) -> Result<FencedGuard, AcquireError> {
        self.acquire_fenced_with(resource, LockOptions::new()).await
    }

    /// Acquires the lock with a fencing token in exactly one attempt, or says why not.
    ///
    /// As [`try_acquire`](Self::try_acquire), and at most one more node timeout.
    ///
    /// # Errors
    ///
    /// As for [`acquire_fenced`](Self::acquire_fenced).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future releases, in the background, whatever it had set.
    pub async fn try_acquire_fenced(&self, resource: &str) -> Result<FencedGuard, AcquireError> {
        self.acquire_fenced_with(resource, LockOptions::new().wait_timeout(Duration::ZERO)).await
    }

    /// Acquires the lock with a fencing token and with options of its own.
    ///
    /// # Errors
    ///
    /// As for [`acquire_fenced`](Self::acquire_fenced).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future releases, in the background, whatever it had set.
    pub async fn acquire_fenced_with(
        &self,
        resource: &str,
        options: LockOptions,
    ) -> Result<FencedGuard, AcquireError> {
        let terms = self.inner.defaults.terms(options)?;
        let (granted, resource) = self.grant(resource, &terms, true).await?;
        let (token, was_raised) = (granted.claim.token(), granted.was_raised);
        let guard = self.guard(granted, terms, resource);
        // One that counts has a token when it is granted. Resources refuse 0 once they know another.
        let token = token.unwrap_or(FencingToken::new(0));
        Ok(FencedGuard::new(guard, token, was_raised))
    }

    async fn grant(
        &self,
        resource: &str,
        terms: &Terms,
        is_fenced: bool,
    ) -> Result<(Granted, Resource), AcquireError> {
        let Inner { quorum, key_prefix, .. } = &*self.inner;
        let resource = Resource::new(key_prefix, resource)?;
        // Futures of attempts are large, and those of tasks that wait are many: apart, they take no room
        // before their turn.
        let granted = if terms.wait.is_zero() {
            let fence = self.fence(&resource, is_fenced);
            let key = resource.lock_key().clone();
            Box::pin(acquire::attempt(quorum, key, fence, *terms, Order::All)).await?
        } else {
            let called = quorum.clock.now();
            let ticket = self.inner.queues.enter(resource.lock_key());
            let Ok(Some(head)) = timeout(terms.wait, ticket.turn()).await else {
                return Err(self.never_had_its_turn(called));
            };
            let fence = self.fence(&resource, is_fenced);
            let key = resource.lock_key();
            Box::pin(self.acquire_in_turn(head, called, key, fence, *terms)).await?
        };
        Ok((granted, resource))
    }

    fn fence(&self, resource: &Resource, is_fenced: bool) -> Option<Fence> {
        let Inner { key_prefix, defaults, .. } = &*self.inner;
        let idle_ms = millis(defaults.fence_idle_ttl);
        is_fenced.then(|| Fence { key: resource.fence_key(key_prefix), idle_ms })
    }

    fn guard(&self, granted: Granted, terms: Terms, resource: Resource) -> LockGuard {
        let lease = Lease::new(granted, self.shared(terms));
        let watched = self.inner.watchdog.watch(lease);
        LockGuard::new(watched, resource, Arc::clone(&self.inner.defaults))
    }

    /// The terms of a lock that is held: those of the last one, if they are the same.
    fn shared(&self, terms: Terms) -> Arc<Terms> {
        // It has waited.
        let terms = Terms { wait: Duration::ZERO, ..terms };
        let mut usual = self.inner.usual_terms.lock().unwrap_or_else(PoisonError::into_inner);
        let known = usual.take().filter(|usual| **usual == terms);
        Arc::clone(usual.insert(known.unwrap_or_else(|| Arc::new(terms))))
    }

    /// Waits until the nodes grant, for what is left of the wait since it was `called`.
    async fn acquire_in_turn(
        &self,
        mut head: OwnedMutexGuard<Head>,
        called: Moment,
        key: &Key,
        fence: Option<Fence>,
        terms: Terms,
    ) -> Result<Granted, AcquireError> {
        let Inner { quorum, queues, .. } = &*self.inner;
        head.begin(quorum, key);
        let left = terms.wait.saturating_sub(quorum.clock.now().since(called));
        let mut order = head.first_order(queues, quorum, key, left).await;
        let mut attempts: u32 = 0;
        loop {
            attempts = attempts.saturating_add(1);
            let attempt = acquire::attempt(quorum, key.clone(), fence.clone(), terms, order);
            let mut error = match attempt.await {
                Ok(granted) => return Ok(granted),
                Err(error) => error,
            };
            let waited = quorum.clock.now().since(called);
            if let Some(attempt) = error.attempt_mut() {
                attempt.attempts = attempts;
                attempt.waited = waited;
            }
            let left = terms.wait.saturating_sub(waited);
            if left.is_zero() || !error.is_retryable() {
                return Err(error);
            }
            order = if let AcquireError::Contended(attempt) = &error {
                head.wait(queues, quorum, key, &attempt.nodes, left).await
            } else {
                sleep(RETRY.random_delay(attempts, &quorum.entropy).min(left)).await;
                Order::All
            };
        }
    }

    /// Others of this process were before it all the time: no node was asked.
    fn never_had_its_turn(&self, called: Moment) -> AcquireError {
        let quorum = &self.inner.quorum;
        let not_asked = vec![NodeOutcome::Failed(NodeFailure::NotAsked); quorum.lanes.len()];
        AcquireError::Contended(FailedAttempt {
            quorum: quorum.size(),
            nodes: quorum.reports(&not_asked),
            attempts: 0,
            waited: quorum.clock.now().since(called),
        })
    }

    /// What is known of each node, in the order in which they were configured.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.inner.quorum.lanes.iter().map(|lane| lane.view().status()).collect()
    }

    /// Tells how the nodes are, and from then on each time when one changes, for those who log it or
    /// page somebody.
    ///
    /// Begins with each node as it is. Who reads slowly misses what came in between, never what came
    /// last. Ends with this `Redlock`, which it does not keep connected.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(redlock: quorumlock::Redlock) {
    /// use quorumlock::NodeState;
    ///
    /// let mut events = redlock.node_events();
    /// while let Some(status) = events.next().await {
    ///     if status.state != NodeState::Voting {
    ///         println!("{} for {:?}: {}", status.node, status.since.elapsed(), status.state);
    ///     }
    /// }
    /// # }
    /// ```
    pub fn node_events(&self) -> NodeEvents {
        NodeEvents::new(self.inner.quorum.lanes.iter().map(Lane::view))
    }

    /// Ends all connections and tasks, after the releases that are still owed to nodes.
    ///
    /// Waits for nodes that do not answer for at most 2 s, and says what is left. From then on every
    /// acquisition fails with [`AcquireError::ShutDown`]. What is still held is lost: it is released with
    /// the rest, and its guard says so.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the shutdown goes on in the background.
    pub async fn shutdown(&self) -> Drained {
        self.inner.watchdog.close();
        self.inner.queues.ears.close();
        let lanes = &self.inner.quorum.lanes;
        let left = futures::future::join_all(lanes.iter().map(Lane::shut_down)).await;
        let tasks =
            std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        futures::future::join_all(tasks).await;
        let unanswered = lanes.iter().zip(left).filter(|(_, left)| *left > 0);
        Drained { unanswered: unanswered.map(|(lane, left)| (lane.name().clone(), left)).collect() }
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}
