//! Telling of a loss those who want to know.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// A loss, which is told once and for ever. A token for it is made when somebody asks for one: a process
/// may hold many locks, and mostly nobody listens.
#[derive(Debug, Default)]
pub(crate) struct Loss(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    is_lost: bool,
    token: Option<CancellationToken>,
}

impl Loss {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is cancelled by the loss, or has been.
    pub(crate) fn token(&self) -> CancellationToken {
        let (token, is_lost) = {
            let mut told = self.told();
            (told.token.get_or_insert_default().clone(), told.is_lost)
        };
        // Not under the lock: whoever listens is woken by it, and may ask again.
        if is_lost {
            token.cancel();
        }
        token
    }

    pub(crate) fn tell(&self) {
        let token = {
            let mut told = self.told();
            told.is_lost = true;
            told.token.clone()
        };
        if let Some(token) = token {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_to_those_who_asked_before_and_after_it() {
        let loss = Loss::default();
        let before = loss.token();
        assert!(!before.is_cancelled());
        loss.tell();
        assert!(before.is_cancelled() && loss.token().is_cancelled());

        let loss = Loss::default();
        loss.tell();
        assert!(loss.token().is_cancelled());
        loss.tell();
        assert!(loss.token().is_cancelled());
    }
}
