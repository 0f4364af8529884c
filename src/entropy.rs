//! Where chance comes from: owner ids, jitter, and the numbers of commands.

use rand::RngExt;
#[cfg(feature = "sim")]
use std::sync::{Arc, Mutex, PoisonError};

/// A source of chance: the operating system's, or a seed's.
#[derive(Clone, Debug, Default)]
pub(crate) enum Entropy {
    /// A cryptographically secure generator that the OS seeded.
    #[default]
    System,
    /// Repeatable: for the simulation.
    #[cfg(feature = "sim")]
    Seeded(Arc<Mutex<rand::rngs::StdRng>>),
}

impl Entropy {
    /// 128 random bits.
    pub(crate) fn bits(&self) -> u128 {
        match self {
            Self::System => rand::rng().random(),
            #[cfg(feature = "sim")]
            Self::Seeded(rng) => rng.lock().unwrap_or_else(PoisonError::into_inner).random(),
        }
    }

    /// A number of 0..=100.
    pub(crate) fn percent(&self) -> u32 {
        match self {
            Self::System => rand::rng().random_range(0..=100),
            #[cfg(feature = "sim")]
            Self::Seeded(rng) => {
                rng.lock().unwrap_or_else(PoisonError::into_inner).random_range(0..=100)
            }
        }
    }
}
