//! A held lock, as its holder sees it.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{ExtendError, NodeReports, ReleaseError},
    options::{Defaults, LockOptions},
    owner_id::OwnerId,
    resource::Resource,
    watchdog::Watched,
};

/// A held lock.
///
/// It is renewed in the background until it is released, unless
/// [`without_renewal`](LockOptions::without_renewal) says otherwise. The holder may rely on it for
/// [`remaining`](Self::remaining), by a clock that counts the time in which the machine was suspended;
/// [`lost`](Self::lost) tells when it may not any more, and then it stays lost.
///
/// A process that stands still for longer than the ttl (a long pause, a suspended virtual machine whose
/// clock stopped with it) cannot notice in time that another has the lock by now.
///
/// # Drop
///
/// Dropping releases in the background and cannot report failure; call [`release`](Self::release)
/// when you need to know. It never blocks and never panics, in or outside a runtime. A process that
/// is killed releases nothing: the ttl does.
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    watched: Watched,
    resource: Resource,
    /// Shared: a process may hold many locks.
    defaults: Arc<Defaults>,
}

/// How often a waiter for the loss looks at the clock: timers do not count suspend, the clock does.
const LOOK: Duration = Duration::from_millis(100);

impl LockGuard {
    pub(crate) fn new(watched: Watched, resource: Resource, defaults: Arc<Defaults>) -> Self {
        Self { watched, resource, defaults }
    }

    /// How long the lock may still be relied on, from now. Zero once it is lost, and then for ever.
    ///
    /// What it said before a loss stays true, under the assumptions of mutual exclusion: the keys of a lost
    /// lock go with its guard, or at the end that the holder was told. Only
    /// [`shutdown`](crate::Redlock::shutdown) releases at once what is held.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.watched.lease().remaining()
    }

    /// Whether the lock is lost: its validity has ended, or a majority of the nodes no longer has our
    /// key. Once lost it stays lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Resolves when exclusivity can no longer be vouched for: at once when a majority of the nodes says
    /// that the key is gone or another's, and otherwise at the end of the validity, before any node
    /// lets anyone else in.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        let token = self.lost_token();
        loop {
            let remaining = self.remaining();
            if remaining.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = token.cancelled() => return,
                () = sleep(remaining.min(LOOK)) => {}
            }
        }
    }

    /// A token that is cancelled when the lock is [`lost`](Self::lost), for tasks of their own. It is
    /// not cancelled by a release.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        self.watched.lease().loss.listeners().lost.clone()
    }

    /// Resolves when the last renewal did not succeed, with what is left of the validity: too few nodes
    /// answered, and it is tried again until that time is up. At once if that is so already.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn at_risk(&self) -> Duration {
        let lease = self.watched.lease();
        let listeners = lease.loss.listeners();
        loop {
            // Asked for before the look, so that what happens in between is not missed.
            let failed = listeners.at_risk.notified();
            if let Some(remaining) = lease.remaining_at_risk() {
                return remaining;
            }
            tokio::select! {
                biased;
                () = listeners.lost.cancelled() => return Duration::ZERO,
                () = failed => {}
            }
        }
    }

    /// What is locked.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.resource.name()
    }

    /// Whose the keys on the nodes are.
    #[must_use]
    pub fn owner_id(&self) -> OwnerId {
        self.watched.lease().owner()
    }

    /// What each node said when the lock was acquired. Answers that came in after the quorum had
    /// decided are in it; those that are still to come are not.
    #[must_use]
    pub fn nodes(&self) -> NodeReports {
        self.watched.lease().reports()
    }

    /// Lets the lock live on for `ttl`, measured from before the first node is asked.
    ///
    /// One round: a quorum has to say that the key was still ours. Validity never shrinks: a `ttl`
    /// shorter than what is left changes nothing, and neither does one that goes beyond
    /// [`max_hold`](LockOptions::max_hold). Renewals go on as before.
    ///
    /// # Errors
    ///
    /// [`ExtendError::Lost`] if the lock is gone, now and for ever. [`ExtendError::Inconclusive`] if
    /// too few nodes answered: the lock is held for as long as before, and trying again may help.
    /// [`ExtendError::Options`] for a ttl that cannot work.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped the guard keeps the validity that it had, though the
    /// keys may live longer.
    pub async fn extend(&mut self, ttl: Duration) -> Result<(), ExtendError> {
        let terms = self.defaults.terms(LockOptions::new().without_renewal().ttl(ttl))?;
        let extended = self.watched.lease().extend(terms).await;
        self.watched.reschedule();
        extended
    }

    /// Releases the lock on every node and waits until a majority has confirmed it, at most for
    /// about a node timeout.
    ///
    /// # Errors
    ///
    /// [`ReleaseError::Lost`] if it was lost before, or if a majority no longer had our key: someone
    /// may have run beside us. [`ReleaseError::Unconfirmed`] if too few nodes answered to say. In
    /// either case there is nothing left to do: nodes that did not answer are told again when they come
    /// back, for as long as the [`Redlock`](crate::Redlock) or a guard of it exists, and otherwise the
    /// ttl does it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the release goes on in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.watched.lease().release().await
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("resource", &self.resource)
            .field("owner_id", &self.owner_id())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
