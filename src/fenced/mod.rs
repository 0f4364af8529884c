//! Resources that refuse stale fencing tokens.
//!
//! **A token that no resource checks protects nothing.** A holder that was paused beyond its validity
//! wakes up and goes on; only the one who keeps what it writes can stop it. A resource remembers the
//! largest token that it has seen, its *fence*, and refuses smaller ones. It takes an equal one,
//! because the same holder may write twice, and a larger one, which becomes its fence.
//!
//! - [`memory`]: what this process keeps.
//! - [`redis`]: values in Redis, written by scripts that look at the fence first.
//! - `postgres`, with the feature of that name: in a transaction of the caller's.
//!
//! Compare and write in one step: a fence that is read first and acted upon later protects nothing
//! either. `docs/fencing.md` says what else must not be done, and has the plain SQL.

pub mod memory;
pub mod redis;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub mod postgres;

use crate::fencing_token::FencingToken;

/// A fencing token that came too late: the resource has seen a larger one, so another holds the lock
/// or has held it since. Nothing was written. Trying again with the same token will not help.
///
/// What refuses tokens by itself, without this module, may return one as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fencing token {presented} is stale: the resource has seen {newest}")]
pub struct StaleToken {
    /// The one that was refused.
    pub presented: FencingToken,
    /// The largest that the resource has seen.
    pub newest: FencingToken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_both_tokens() {
        let (presented, newest) = (FencingToken::new(33), FencingToken::new(34));
        let text = StaleToken { presented, newest }.to_string();
        assert_eq!(text, "fencing token 33 is stale: the resource has seen 34");
    }
}
