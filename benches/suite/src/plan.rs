//! How much is done: everything, all of it in little, or a part of it.

use std::time::Duration;

/// What the scenarios take their times and settings from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    Full,
    /// All settings in under three minutes, for a look.
    Quick,
    /// The first setting of each scenario, to see that they still work.
    Smoke,
}

impl Plan {
    /// One or the other.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        if self == Self::Full { full } else { quick }
    }

    /// The same for milliseconds.
    pub fn ms(self, full: u64, quick: u64) -> Duration {
        Duration::from_millis(self.pick(full, quick))
    }

    /// Those settings that are measured.
    pub fn settings<T>(self, all: &[T]) -> &[T] {
        if self == Self::Smoke { &all[..1] } else { all }
    }
}

/// The runtime of a scenario: as many threads as there are cores, as services have it.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}
