//! A held lock, as its holder sees it.

use std::{fmt, time::Duration};

use crate::{
    clock::Moment,
    error::{ExtendError, NodeReports, ReleaseError},
    options::{Defaults, LockOptions},
    owner_id::OwnerId,
    quorum::{acquire::Granted, claim::Claim, extend, release},
    resource::Resource,
};

/// A held lock.
///
/// The holder may rely on it for [`remaining`](Self::remaining), by a clock that counts the time in
/// which the machine was suspended. It is not renewed by itself: call [`extend`](Self::extend), or
/// finish in time. A process that stands still for longer (a long pause, a suspended virtual machine
/// whose clock stopped with it) cannot notice in time that another has the lock by now.
///
/// # Drop
///
/// Dropping releases in the background and cannot report failure; call [`release`](Self::release)
/// when you need to know. It never blocks and never panics, in or outside a runtime. A process that
/// is killed releases nothing: the ttl does.
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    claim: Claim,
    resource: Resource,
    valid_until: Moment,
    defaults: Defaults,
}

impl LockGuard {
    pub(crate) fn new(granted: Granted, resource: Resource, defaults: Defaults) -> Self {
        let Granted { claim, valid_until } = granted;
        Self { claim, resource, valid_until, defaults }
    }

    /// How long the lock may still be relied on, from now. Zero once it is lost, and then for ever.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.valid_until.since(self.claim.now())
    }

    /// What is locked.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.resource.as_str()
    }

    /// Whose the keys on the nodes are.
    #[must_use]
    pub fn owner_id(&self) -> OwnerId {
        self.claim.owner()
    }

    /// What each node said when the lock was acquired. Answers that came in after the quorum had
    /// decided are in it; those that are still to come are not.
    #[must_use]
    pub fn nodes(&mut self) -> NodeReports {
        self.claim.reports()
    }

    /// Lets the lock live on for `ttl`, measured from before the first node is asked.
    ///
    /// One round: a quorum has to say that the key was still ours. Validity never shrinks: a `ttl`
    /// shorter than what is left changes nothing.
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
        let terms = self.defaults.terms(LockOptions::new().ttl(ttl))?;
        match extend::extend(&mut self.claim, self.valid_until, terms).await {
            Ok(until) => {
                self.valid_until = until;
                Ok(())
            }
            Err(error) => {
                if error.is_lost() {
                    self.valid_until = self.valid_until.min(self.claim.now());
                }
                Err(error)
            }
        }
    }

    /// Releases the lock on every node and waits until a majority has confirmed it, at most for
    /// about a node timeout.
    ///
    /// # Errors
    ///
    /// [`ReleaseError::Lost`] if a majority no longer had our key: someone may have run beside us.
    /// [`ReleaseError::Unconfirmed`] if too few nodes answered to say. In either case there is
    /// nothing left to do: nodes that did not answer are told again when they come back, for as long
    /// as the [`Redlock`](crate::Redlock) or a guard of it exists, and otherwise the ttl does it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the release goes on in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        release::release(self.claim).await
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
