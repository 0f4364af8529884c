//! How much is done: everything, or all of it in little.

use std::time::Duration;

/// What the scenarios take their times from.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// All scenarios in under three minutes, for a look and to see that they work.
    pub quick: bool,
}

impl Plan {
    /// One or the other.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The same for milliseconds.
    pub fn ms(self, full: u64, quick: u64) -> Duration {
        Duration::from_millis(self.pick(full, quick))
    }
}

/// The runtime of a scenario: as many threads as there are cores, as services have it.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}
