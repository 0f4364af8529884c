//! A held lock with a number that orders its holders.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use crate::{error::ReleaseError, fencing_token::FencingToken, guard::LockGuard};

/// A held lock with a fencing token: everything that a [`LockGuard`] is, and a number that is larger than
/// that of every holder before.
///
/// A token protects nothing by itself: whatever is written under the lock has to refuse smaller ones. See
/// [`fenced`](crate::fenced).
///
/// # What is promised
///
/// Tokens of one resource are unique, and if one acquisition returned before another began, its token is
/// smaller. As long as no node forgets what it has answered, this rests on no clock and no bound on
/// delays. A node that may have forgotten waits before it votes again, and learns from a majority of the
/// others; so with forgetful nodes the order rests on the same assumptions about time as the lock itself.
///
/// # Drop
///
/// As for [`LockGuard`].
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct FencedGuard {
    guard: LockGuard,
    token: FencingToken,
    was_raised: bool,
}

impl FencedGuard {
    pub(crate) fn new(guard: LockGuard, token: FencingToken, was_raised: bool) -> Self {
        Self { guard, token, was_raised }
    }

    /// The number of this holder, to be given to whatever is written to.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Whether the nodes' counters did not agree, so that a second round was needed. Rare for a resource
    /// in steady use, which is to be locked 64 times or more in a `fence_idle_ttl`.
    #[must_use]
    pub fn was_raised(&self) -> bool {
        self.was_raised
    }

    /// As [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the release goes on in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl Deref for FencedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl DerefMut for FencedGuard {
    fn deref_mut(&mut self) -> &mut LockGuard {
        &mut self.guard
    }
}

impl fmt::Debug for FencedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedGuard")
            .field("token", &self.token)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
