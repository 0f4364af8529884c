//! Resources in the memory of this process: for tests, and for what only one process has.
//!
//! ```
//! use quorumlock::{FencingToken, fenced::memory::Resources};
//!
//! let accounts = Resources::<i64>::new();
//! let (late, current) = (FencingToken::new(33), FencingToken::new(34));
//!
//! accounts.write("alice", current, |balance| *balance += 100)?;
//! let refused = accounts.write("alice", late, |balance| *balance += 100).unwrap_err();
//! assert_eq!(refused.newest, current);
//! assert_eq!(accounts.get("alice"), Some(100));
//! # Ok::<(), quorumlock::fenced::StaleToken>(())
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::StaleToken;
use crate::fencing_token::FencingToken;

/// Values by the names of their resources, each behind a fence of its own. Without a value, by
/// default: then it guards something else, such as a file that only this process writes.
///
/// A fence lives as long as this, and no longer: after a restart of the process the first token wins,
/// whichever it is. Names are never forgotten, so that each costs memory for good.
#[derive(Debug, Default)]
pub struct Resources<T = ()> {
    by_name: Mutex<BTreeMap<String, Arc<Mutex<Fenced<T>>>>>,
}

/// A value, and the largest token that it has seen; none before the first.
#[derive(Debug, Default)]
struct Fenced<T> {
    newest: Option<FencingToken>,
    value: T,
}

impl<T: Default> Resources<T> {
    /// No resources yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `write` on the value, unless the token is stale. A resource begins with the default value.
    ///
    /// No other token is looked at before `write` returns: writers of one resource run one after
    /// another, those of different resources side by side. The thread is blocked meanwhile, so keep it
    /// short in async code. `write` must not write to the same resource: it would wait for itself.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] if the resource has seen a larger one; `write` was not called.
    ///
    /// # Panics
    ///
    /// When `write` panics. The fence stays raised, the value as the panic left it, and later tokens
    /// are looked at as usual.
    pub fn write<R>(
        &self,
        resource: &str,
        token: FencingToken,
        write: impl FnOnce(&mut T) -> R,
    ) -> Result<R, StaleToken> {
        let resource = self.resource(resource);
        let mut fenced = lock(&resource);
        if let Some(newest) = fenced.newest.filter(|newest| token < *newest) {
            return Err(StaleToken { presented: token, newest });
        }
        // Raised first: what `write` did before it panicked was done with this token.
        fenced.newest = Some(token);
        Ok(write(&mut fenced.value))
    }

    fn resource(&self, name: &str) -> Arc<Mutex<Fenced<T>>> {
        let mut by_name = lock(&self.by_name);
        if let Some(resource) = by_name.get(name) {
            return Arc::clone(resource);
        }
        Arc::clone(by_name.entry(name.to_owned()).or_default())
    }
}

impl<T> Resources<T> {
    /// The largest token that the resource has seen; `None` if it has seen none. For watching: what
    /// is decided by it comes too late. Waits for a writer of that resource.
    #[must_use]
    pub fn newest(&self, resource: &str) -> Option<FencingToken> {
        self.existing(resource).and_then(|resource| lock(&resource).newest)
    }

    /// A copy of the value; `None` if the resource has seen no token. Waits for a writer of that
    /// resource.
    #[must_use]
    pub fn get(&self, resource: &str) -> Option<T>
    where
        T: Clone,
    {
        let resource = self.existing(resource)?;
        let fenced = lock(&resource);
        fenced.newest.map(|_| fenced.value.clone())
    }

    fn existing(&self, name: &str) -> Option<Arc<Mutex<Fenced<T>>>> {
        lock(&self.by_name).get(name).map(Arc::clone)
    }
}

/// A writer that panicked has raised the fence before, so there is nothing to mistrust.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::{
        panic::{self, AssertUnwindSafe},
        sync::mpsc,
        thread,
    };

    use proptest::prelude::*;

    const A: FencingToken = FencingToken::new(33);
    const B: FencingToken = FencingToken::new(34);

    fn stale(presented: FencingToken, newest: FencingToken) -> StaleToken {
        StaleToken { presented, newest }
    }

    #[test]
    fn a_smaller_token_is_refused_and_writes_nothing() {
        let log = Resources::<Vec<&str>>::new();
        log.write("a", B, |log| log.push("new")).unwrap();
        assert_eq!(log.write("a", A, |log| log.push("late")), Err(stale(A, B)));
        assert_eq!(log.get("a"), Some(vec!["new"]));
        assert_eq!(log.newest("a"), Some(B));
    }

    #[test]
    fn the_same_holder_may_write_twice() {
        let log = Resources::<Vec<&str>>::new();
        log.write("a", A, |log| log.push("one")).unwrap();
        log.write("a", A, |log| log.push("two")).unwrap();
        assert_eq!(log.get("a"), Some(vec!["one", "two"]));
    }

    #[test]
    fn a_refused_token_does_not_lower_the_fence() {
        let files = Resources::<()>::new();
        files.write("a", B, |()| ()).unwrap();
        assert_eq!(files.write("a", FencingToken::new(1), |()| ()).unwrap_err().newest, B);
        assert_eq!(files.write("a", A, |()| ()), Err(stale(A, B)));
    }

    #[test]
    fn each_name_has_a_fence_of_its_own() {
        let files = Resources::<()>::new();
        files.write("a", B, |()| ()).unwrap();
        files.write("b", A, |()| ()).unwrap();
        assert_eq!((files.newest("a"), files.newest("b")), (Some(B), Some(A)));
        assert_eq!((files.newest("c"), files.get("c")), (None, None));
    }

    #[test]
    fn tokens_are_numbers_and_not_texts() {
        let files = Resources::<()>::new();
        files.write("a", FencingToken::new(9), |()| ()).unwrap();
        files.write("a", FencingToken::new(10), |()| ()).unwrap();
        let nine = files.write("a", FencingToken::new(9), |()| ());
        assert_eq!(nine, Err(stale(FencingToken::new(9), FencingToken::new(10))));
        files.write("a", FencingToken::new(FencingToken::MAX.get() - 1), |()| ()).unwrap();
        files.write("a", FencingToken::MAX, |()| ()).unwrap();
    }

    #[test]
    fn a_writer_that_panics_leaves_the_fence_raised() {
        let log = Resources::<Vec<&str>>::new();
        let write = || log.write("a", B, |_| panic!("half-way"));
        panic::catch_unwind(AssertUnwindSafe(write)).expect_err("a panic");
        assert_eq!(log.write("a", A, |log| log.push("late")), Err(stale(A, B)));
        log.write("a", B, |log| log.push("again")).unwrap();
    }

    #[test]
    fn a_newer_holder_waits_for_a_writer_and_others_do_not() {
        let log = Resources::<Vec<&str>>::new();
        let (entered, has_entered) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let log = &log;
            let slow = scope.spawn(move || {
                log.write("a", A, |log| {
                    entered.send(()).unwrap();
                    goes.recv().unwrap();
                    log.push("slow");
                })
            });
            has_entered.recv().unwrap();
            log.write("b", A, |log| log.push("at once")).unwrap();
            let newer = scope.spawn(|| log.write("a", B, |log| log.push("newer")));
            go.send(()).unwrap();
            slow.join().unwrap().unwrap();
            newer.join().unwrap().unwrap();
        });
        assert_eq!(log.get("a"), Some(vec!["slow", "newer"]));
        assert_eq!(log.write("a", A, |log| log.push("late")), Err(stale(A, B)));
    }

    #[test]
    fn racing_writers_never_go_back() {
        let log = Resources::<Vec<u64>>::new();
        thread::scope(|scope| {
            for offset in 0..4 {
                let log = &log;
                scope.spawn(move || {
                    for number in (offset..2_000).step_by(4) {
                        let token = FencingToken::new(number);
                        log.write("a", token, |log| log.push(number)).ok();
                    }
                });
            }
        });
        let log = log.get("a").unwrap();
        assert!(log.is_sorted(), "{log:?}");
        assert_eq!(log.last(), Some(&1_999));
    }

    proptest! {
        // The model: what is accepted is what is not below anything seen on that resource.
        #[test]
        fn exactly_those_below_the_largest_are_refused(
            steps in prop::collection::vec((0_usize..3, 0_u64..20), 1..60),
        ) {
            let names = ["a", "b", "c"];
            let log = Resources::<Vec<u64>>::new();
            let mut seen: [Vec<u64>; 3] = Default::default();
            for (name, number) in steps {
                let token = FencingToken::new(number);
                let written = log.write(names[name], token, |log| log.push(number));
                let newest = seen[name].iter().copied().max().map(FencingToken::new);
                let refused = newest.filter(|newest| token < *newest);
                prop_assert_eq!(written, refused.map_or(Ok(()), |newest| Err(stale(token, newest))));
                if refused.is_none() {
                    seen[name].push(number);
                }
            }
            for (name, seen) in names.into_iter().zip(seen) {
                prop_assert_eq!(log.get(name).unwrap_or_default(), seen);
            }
        }
    }
}
