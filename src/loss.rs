//! Telling of a loss, and of the danger of one, those who want to know.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A loss, which is told once and for ever. What it takes to tell it is made when somebody asks: a process
/// may hold many locks, and mostly nobody listens.
#[derive(Debug, Default)]
pub(crate) struct Loss(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    is_lost: bool,
    listeners: Option<Arc<Listeners>>,
}

/// What those wait for who want to know.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    /// Cancelled by the loss, or has been.
    pub(crate) lost: CancellationToken,
    /// Notified when a renewal has failed.
    pub(crate) at_risk: Notify,
}

impl Loss {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn listeners(&self) -> Arc<Listeners> {
        let (listeners, is_lost) = {
            let mut told = self.told();
            (Arc::clone(told.listeners.get_or_insert_default()), told.is_lost)
        };
        // Not under the lock: whoever listens is woken by it, and may ask again.
        if is_lost {
            listeners.lost.cancel();
        }
        listeners
    }

    pub(crate) fn tell(&self) {
        let listeners = {
            let mut told = self.told();
            told.is_lost = true;
            told.listeners.clone()
        };
        if let Some(listeners) = listeners {
            listeners.lost.cancel();
        }
    }

    /// Tells those who listen by now that a renewal has failed.
    pub(crate) fn warn(&self) {
        let listeners = self.told().listeners.clone();
        if let Some(listeners) = listeners {
            listeners.at_risk.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_loss_is_told_to_those_who_asked_before_and_after_it() {
        let loss = Loss::default();
        let before = loss.listeners();
        assert!(!before.lost.is_cancelled());
        loss.tell();
        assert!(before.lost.is_cancelled() && loss.listeners().lost.is_cancelled());

        let loss = Loss::default();
        loss.tell();
        assert!(loss.listeners().lost.is_cancelled());
        loss.tell();
        assert!(loss.listeners().lost.is_cancelled());
    }

    #[test]
    fn a_warning_wakes_those_who_wait_for_it() {
        let loss = Loss::default();
        loss.warn();
        let listeners = loss.listeners();
        let warned = listeners.at_risk.notified();
        assert!(listeners.at_risk.notified().now_or_never().is_none());
        loss.warn();
        assert!(warned.now_or_never().is_some() && !listeners.lost.is_cancelled());
    }
}
