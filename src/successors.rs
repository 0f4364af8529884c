//! Who waits behind this process, as it was told when it was called.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{owner_id::Seat, resource::Key};

/// For so many locks at most.
const MAX_KNOWN: usize = 1_024;

/// On which seat somebody waits behind this process, for each lock for which it was called.
///
/// A release that knows it need not search the ring, while the next one waits for it. What is known may be
/// out of date, and is then of no use; it does no harm.
#[derive(Debug, Default)]
pub(crate) struct Successors(Mutex<BTreeMap<Key, Known>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Waits(Seat),
    /// Its turn has come.
    WasCalled,
}

impl Successors {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call said.
    pub(crate) fn note(&self, key: &Key, seat: Seat) {
        let mut all = self.all();
        if all.len() >= MAX_KNOWN && !all.contains_key(key) {
            all.clear();
        }
        all.insert(key.clone(), Known::Waits(seat));
    }

    /// Whom a release is to call. Only once: who came in between is found by the search of the next.
    pub(crate) fn call(&self, key: &Key) -> Option<Seat> {
        let known = std::mem::replace(self.all().get_mut(key)?, Known::WasCalled);
        if let Known::Waits(seat) = known { Some(seat) } else { None }
    }

    /// Whether the lock goes round: somebody waits behind this process, or was called by its last release.
    /// Whether he was is said once.
    pub(crate) fn goes_round(&self, key: &Key) -> bool {
        let mut all = self.all();
        let known = all.get(key).copied();
        if known == Some(Known::WasCalled) {
            all.remove(key);
        }
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_used_once_and_not_kept_without_bound() {
        let (successors, key) = (Successors::default(), Key::new("k"));
        assert_eq!(successors.call(&key), None);
        assert!(!successors.goes_round(&key));
        successors.note(&key, Seat::new(1));
        successors.note(&key, Seat::new(2));
        assert!(successors.goes_round(&key));
        assert_eq!(successors.call(&key), Some(Seat::new(2)));
        assert_eq!(successors.call(&key), None);
        assert!(successors.goes_round(&key) && !successors.goes_round(&key));
        for number in 0..10_000 {
            successors.note(&Key::new(&number.to_string()), Seat::new(3));
        }
        assert!(successors.all().len() <= MAX_KNOWN);
        assert_eq!(successors.call(&Key::new("9999")), Some(Seat::new(3)));
    }
}
