//! The number that orders the holders of a lock.

use std::fmt;

/// A number that only grows: of two holders of a lock the later one has the larger token.
///
/// A token protects nothing by itself. What is written under the lock has to be guarded by whoever
/// keeps it: a resource that remembers the largest token that it has seen and refuses smaller ones,
/// such as those in [`fenced`](crate::fenced).
///
/// With the feature `serde` it is a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
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

/// A number as nodes keep it: none above the largest token.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= FencingToken::MAX.get())
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_ordered_and_shown_as_numbers() {
        assert!(FencingToken::new(9) < FencingToken::new(10));
        assert_eq!(FencingToken::MAX.to_string(), "9007199254740991");
        assert_eq!(number("9007199254740991"), Some(FencingToken::MAX.get()));
        assert_eq!(number("9007199254740992"), None);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_token_is_serialized_as_a_plain_number() {
        for token in [FencingToken::new(0), FencingToken::new(34), FencingToken::MAX] {
            let text = serde_json::to_string(&token).unwrap();
            assert_eq!(text, token.to_string());
            assert_eq!(serde_json::from_str::<FencingToken>(&text).unwrap(), token);
        }
        for text in ["-1", "1.0", "1e3", "\"34\"", "null", "[34]"] {
            serde_json::from_str::<FencingToken>(text).expect_err(text);
        }
    }
}
