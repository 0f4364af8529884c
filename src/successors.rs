//! Who waits behind this process, as it was told when it was called.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{owner_id::Seat, resource::Key};

/// For so many locks at most.
const MAX_KNOWN: usize = 1_024;
/// For how long: then others may wait, and a search takes no time beside that for which the lock was held.
const KNOWN_FOR: Duration = Duration::from_millis(100);
/// Who comes back to a lock so soon after he passed it on, sits there before it comes round.
const AT_ONCE: Duration = Duration::from_millis(20);

/// On which seat somebody waits behind this process, for each lock for which it was called.
///
/// A release that knows it need not search the ring, while the next one waits for it.
#[derive(Debug, Default)]
pub(crate) struct Successors(Mutex<BTreeMap<Key, Known>>);

#[derive(Clone, Copy, Debug)]
enum Known {
    Waits { seat: Seat, since: Instant },
    WasCalled { at: Instant },
}

impl Known {
    fn is_new(&self) -> bool {
        match self {
            Self::Waits { since, .. } => since.elapsed() < KNOWN_FOR,
            Self::WasCalled { at } => at.elapsed() < AT_ONCE,
        }
    }
}

impl Successors {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process was called, by somebody who named this seat.
    pub(crate) fn note(&self, key: &Key, seat: Seat) {
        let mut all = self.all();
        if all.len() >= MAX_KNOWN && !all.contains_key(key) {
            all.retain(|_, known| known.is_new());
            if all.len() >= MAX_KNOWN {
                all.clear();
            }
        }
        all.insert(key.clone(), Known::Waits { seat, since: Instant::now() });
    }

    /// This process was called in vain: it neither takes the lock nor passes it on.
    pub(crate) fn forget(&self, key: &Key) {
        self.all().remove(key);
    }

    /// Whom a release is to call. Only once: who came in between is found by the search of the next.
    pub(crate) fn call(&self, key: &Key) -> Option<Seat> {
        let mut all = self.all();
        let known = all.remove(key).filter(Known::is_new)?;
        let Known::Waits { seat, .. } = known else { return None };
        all.insert(key.clone(), Known::WasCalled { at: Instant::now() });
        Some(seat)
    }

    /// Whether the lock goes round: a moment ago this process was called, or called the next.
    pub(crate) fn goes_round(&self, key: &Key) -> bool {
        self.all().get(key).is_some_and(Known::is_new)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_latest_that_was_named_is_called_once() {
        let (successors, key) = (Successors::default(), Key::new("k"));
        assert_eq!(successors.call(&key), None);
        assert!(!successors.goes_round(&key));
        successors.note(&key, Seat::new(1));
        successors.note(&key, Seat::new(2));
        assert!(successors.goes_round(&key));
        assert_eq!(successors.call(&key), Some(Seat::new(2)));
        assert!(successors.goes_round(&key));
        assert_eq!(successors.call(&key), None, "it may have had its turn");
        assert!(!successors.goes_round(&key), "nobody known was called");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_known_for_long_nor_after_a_call_in_vain() {
        let (successors, key) = (Successors::default(), Key::new("k"));
        successors.note(&key, Seat::new(1));
        advance(KNOWN_FOR).await;
        assert!(!successors.goes_round(&key));
        assert_eq!(successors.call(&key), None);
        successors.note(&key, Seat::new(1));
        assert!(successors.call(&key).is_some());
        advance(AT_ONCE).await;
        assert!(!successors.goes_round(&key));
        successors.note(&key, Seat::new(1));
        successors.forget(&key);
        assert!(!successors.goes_round(&key));
        assert_eq!(successors.call(&key), None);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let successors = Successors::default();
        for number in 0..10_000 {
            successors.note(&Key::new(&number.to_string()), Seat::new(3));
        }
        assert!(successors.all().len() <= MAX_KNOWN);
        assert_eq!(successors.call(&Key::new("9999")), Some(Seat::new(3)));
    }
}
