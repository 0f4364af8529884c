//! What locks somebody had to wait for lately.

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

#[derive(Debug, Default)]
pub(super) struct Contended(Mutex<BTreeMap<Key, Contention>>);

#[derive(Clone, Copy, Debug)]
struct Contention {
    /// When somebody had to wait last.
    last: Instant,
    /// How long it took until this process had the lock, the last time.
    waited: Duration,
}

impl Contention {
    fn is_over(&self) -> bool {
        self.last.elapsed() >= STILL_CONTENDED
    }
}

impl Contended {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Contention>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has to wait now.
    pub(super) fn note(&self, key: &Key) {
        let mut all = self.all();
        if all.len() >= MAX_CONTENDED {
            all.retain(|_, contention| !contention.is_over());
            if all.len() >= MAX_CONTENDED {
                all.clear();
            }
        }
        let now = Instant::now();
        all.entry(key.clone()).or_insert(Contention { last: now, waited: Duration::ZERO }).last =
            now;
    }

    /// This process has the lock, after so long.
    pub(super) fn note_wait(&self, key: &Key, waited: Duration) {
        if let Some(contention) = self.all().get_mut(key) {
            contention.waited = waited;
        }
    }

    /// How long this process had to wait for it the last time; `None` if nobody had to lately.
    pub(super) fn lately(&self, key: &Key) -> Option<Duration> {
        let all = self.all();
        all.get(key).filter(|contention| !contention.is_over()).map(|contention| contention.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_contended_is_remembered_for_a_second_and_not_without_bound() {
        let (contended, key) = (Contended::default(), Key::new("k"));
        assert_eq!(contended.lately(&key), None);
        contended.note_wait(&key, Duration::from_millis(5));
        assert_eq!(contended.lately(&key), None, "nobody had to wait");
        contended.note(&key);
        assert_eq!(contended.lately(&key), Some(Duration::ZERO));
        contended.note_wait(&key, Duration::from_millis(5));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(contended.lately(&key), Some(Duration::from_millis(5)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(contended.lately(&key), None);
        for number in 0..10_000 {
            contended.note(&Key::new(&number.to_string()));
        }
        assert!(contended.all().len() <= MAX_CONTENDED);
    }
}
