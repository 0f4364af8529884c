//! What locks others want as well: somebody had to wait for them lately, or was called by a release.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::resource::Key;

/// For so long after somebody had to wait for it, a lock is expected to be contended still.
const STILL_CONTENDED: Duration = Duration::from_secs(1);
const MAX_CONTENDED: usize = 1_024;

/// When somebody had to wait last, for each lock.
#[derive(Debug, Default)]
pub(crate) struct Contended(Mutex<BTreeMap<Key, Instant>>);

fn is_over(last: &Instant) -> bool {
    last.elapsed() >= STILL_CONTENDED
}

impl Contended {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has to wait now, or was called.
    pub(crate) fn note(&self, key: &Key) {
        let mut all = self.all();
        if all.len() >= MAX_CONTENDED && !all.contains_key(key) {
            all.retain(|_, last| !is_over(last));
            if all.len() >= MAX_CONTENDED {
                all.clear();
            }
        }
        all.insert(key.clone(), Instant::now());
    }

    /// Whether somebody had to wait for it lately.
    pub(crate) fn lately(&self, key: &Key) -> bool {
        self.all().get(key).is_some_and(|last| !is_over(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_contended_is_remembered_for_a_second_and_not_without_bound() {
        let (contended, key) = (Contended::default(), Key::new("k"));
        assert!(!contended.lately(&key));
        contended.note(&key);
        assert!(contended.lately(&key));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(contended.lately(&key));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!contended.lately(&key));
        for number in 0..10_000 {
            contended.note(&Key::new(&number.to_string()));
        }
        assert!(contended.all().len() <= MAX_CONTENDED);
    }
}
