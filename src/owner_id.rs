//! The random value that says whose a key is.

use std::fmt;

use crate::entropy::Entropy;

/// The identity of one attempt to acquire a lock: 128 random bits, never used twice.
///
/// Each *attempt* has its own, not each lock: a retry that reused one could not tell what its
/// predecessor left behind from what it set itself.
///
/// `Debug` shows only the first bits: whoever knows the whole id can release the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(u128);

impl OwnerId {
    /// A fresh id, from a cryptographically secure generator that the OS seeded.
    #[must_use]
    pub fn random() -> Self {
        Self::from_entropy(&Entropy::System)
    }

    pub(crate) fn from_entropy(entropy: &Entropy) -> Self {
        Self(entropy.bits())
    }
}

/// The whole id as 32 hexadecimal digits: the value of the lock's key, as `redis-cli` shows it.
impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({:08x}..)", self.0 >> 96)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_are_redacted_in_debug() {
        let (a, b) = (OwnerId::random(), OwnerId::random());
        assert_ne!(a, b);
        assert_eq!(a.to_string().len(), 32);
        let shown = format!("{a:?}");
        assert!(!shown.contains(&a.to_string()), "{shown}");
    }
}
