//! The number that orders the holders of a lock.

use std::fmt;

/// A number that only grows: of two holders of a lock the later one has the larger token.
///
/// A token protects nothing by itself. What is written under the lock has to be guarded by whoever
/// keeps it: a resource that remembers the largest token that it has seen and refuses smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The largest token: 2^53 - 1. What Redis' Lua calculates with is exact up to there.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// A token that comes back from where it was stored.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
