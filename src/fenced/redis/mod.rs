//! Resources in Redis or Valkey: a script compares the token and writes, in one step.
//!
//! ```no_run
//! use quorumlock::{
//!     FencingToken,
//!     fenced::redis::{Fence, WriteError},
//!     fred::clients::Client,
//! };
//!
//! async fn publish(redis: &Client, token: FencingToken) -> Result<(), WriteError> {
//!     let orders = Fence::of("orders:42");
//!     orders.set(redis, "orders:42", "shipped", token).await?;
//!     orders.hset(redis, "{orders:42}:lines", "7", "2 pieces", token).await
//! }
//! ```
//!
//! This is the Redis in which the values are, with the caller's own client; not the nodes of the lock.
//!
//! # What the server has to keep
//!
//! The fence is a key without ttl. A fence that is lost lets every token in.
//!
//! - **Crashes**: value and fence are written together, and come back together. With an append-only
//!   file and `appendfsync always`, a write that was answered is still there after a crash. With
//!   `everysec` the last second is gone, with snapshots alone what came after the last one, and
//!   without persistence everything: values and fences alike, so that tokens which were refused before
//!   the crash may be taken after it.
//! - **Failovers**: replication is asynchronous. A replica that is promoted may lack the last writes,
//!   values and fences alike.
//! - **Eviction**: `noeviction`, or a `volatile-` policy, which leaves keys without ttl alone. An
//!   `allkeys-` policy evicts fences.
//! - Nobody deletes the fence, gives it a ttl, or writes the values without it. Renaming and restoring
//!   values moves no fence.
//!
//! # Cluster
//!
//! A script runs on keys of one slot. The fence of a resource is in the slot of the key with the
//! resource's name: `orders:42` in the example, and `{orders:42}:lines` by its hash tag. If the name
//! has a hash tag itself, it is in the slot of that tag. There is no such fence for a name that has a
//! `}` and no hash tag: on a cluster its writes fail with `CROSSSLOT`, and write nothing.
//!
//! Redis 6.2 or newer, or Valkey.

mod script;

pub use script::FencedScript;

use fred::{
    error::Error,
    interfaces::ClientLike,
    types::{ClusterHash, CustomCommand, Value},
};

use super::StaleToken;
use crate::fencing_token::FencingToken;

/// The fence of a resource: a key beside the values that it guards, all in one slot.
///
/// What one lock guards should have one fence, however many keys it is: then a holder that has written
/// any of them keeps older ones from all of them. The fence is looked at only by writes that go through
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    key: String,
}

impl Fence {
    /// The fence of the resource, in the slot of the key of that name.
    #[must_use]
    pub fn of(resource: &str) -> Self {
        // The two forms differ in their beginning, so that no two resources share a fence.
        Self::at(&if has_hash_tag(resource) {
            format!("quorumlock:fence-of:{resource}")
        } else {
            format!("quorumlock:fence:{{{resource}}}")
        })
    }

    /// The fence that is kept in this key, which is used for nothing else.
    #[must_use]
    pub fn at(key: &str) -> Self {
        Self { key: key.to_owned() }
    }

    /// The key in which the fence is kept, as decimal digits.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Raises the fence without writing a value: from then on, older holders are refused.
    ///
    /// Do this before reading what the writes depend on, so that no older holder changes it in
    /// between. It does not stand in for the fence of a write: a write that follows it by another
    /// command may come later than a newer holder's.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set), but for [`WriteError::WrongType`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the fence may or may not be raised. Either is safe.
    pub async fn claim<C: ClientLike>(
        &self,
        client: &C,
        token: FencingToken,
    ) -> Result<(), WriteError> {
        self.eval(client, &script::CLAIM, &[], Vec::new(), token).await.map(drop)
    }

    /// Sets the string at `key`, and raises the fence. It is set for good: a ttl that the key had is
    /// gone.
    ///
    /// How long it takes, and how often the client sends it, is what the client's options say. A
    /// second sending changes nothing, unless a newer holder came in between: then it is refused,
    /// though the first was not.
    ///
    /// # Errors
    ///
    /// [`WriteError::Stale`] if a larger token was here. After [`WriteError::Redis`] it is not known
    /// whether the value was written; after any other error it was not.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the value may or may not be written, at once or later; the fence is
    /// looked at then.
    pub async fn set<C: ClientLike>(
        &self,
        client: &C,
        key: &str,
        value: impl AsRef<[u8]> + Send,
        token: FencingToken,
    ) -> Result<(), WriteError> {
        let args = vec![bytes(value.as_ref())];
        self.eval(client, &script::SET, &[key], args, token).await.map(drop)
    }

    /// Sets a field of the hash at `key`, and raises the fence.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set).
    pub async fn hset<C: ClientLike>(
        &self,
        client: &C,
        key: &str,
        field: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
        token: FencingToken,
    ) -> Result<(), WriteError> {
        let args = vec![bytes(field.as_ref()), bytes(value.as_ref())];
        self.eval(client, &script::HSET, &[key], args, token).await.map(drop)
    }

    /// Raises the fence and runs the script, and returns what it returned.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set), but for [`WriteError::WrongType`]. An error of the script's own is a
    /// [`WriteError::Redis`]: the fence is raised then, and what the script wrote before it stays.
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set). A script that the client sends twice runs twice.
    pub async fn run<C: ClientLike>(
        &self,
        client: &C,
        script: &FencedScript,
        keys: &[&str],
        args: &[&[u8]],
        token: FencingToken,
    ) -> Result<Value, WriteError> {
        let args = args.iter().map(|arg| bytes(arg)).collect();
        self.eval(client, script, keys, args, token).await
    }

    async fn eval<C: ClientLike>(
        &self,
        client: &C,
        script: &FencedScript,
        keys: &[&str],
        args: Vec<Value>,
        token: FencingToken,
    ) -> Result<Value, WriteError> {
        if token > FencingToken::MAX {
            return Err(WriteError::TooLarge { presented: token });
        }
        if keys.contains(&self.key()) {
            return Err(WriteError::IsFence { key: self.key.clone() });
        }
        let mut request = vec![keys.len().saturating_add(1).to_string().into(), self.key().into()];
        request.extend(keys.iter().map(|key| Value::from(*key)));
        request.push(token.to_string().into());
        request.extend(args);
        let reply = match send(client, "EVALSHA", script.digest(), request.clone()).await {
            // The server does not have the script, so it has done nothing.
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                send(client, "EVAL", script.text(), request).await
            }
            sent => sent,
        };
        self.decode(reply?, keys, token)
    }

    /// Reads the replies that are described in the scripts.
    fn decode(
        &self,
        reply: Value,
        keys: &[&str],
        presented: FencingToken,
    ) -> Result<Value, WriteError> {
        let Value::Array(items) = reply else { return Err(WriteError::Unreadable) };
        let mut items = items.into_iter();
        let code = items.next();
        let what = items.next().unwrap_or(Value::Null);
        let text = what.as_string().unwrap_or_default();
        match code {
            Some(Value::Integer(1)) => Ok(what),
            Some(Value::Integer(0)) => {
                let newest = text.parse().map_err(|_| WriteError::Unreadable)?;
                Err(StaleToken { presented, newest: FencingToken::new(newest) }.into())
            }
            Some(Value::Integer(-1)) => {
                Err(WriteError::BadFence { key: self.key.clone(), found: text })
            }
            Some(Value::Integer(-2)) => {
                let key = keys.first().copied().unwrap_or_default().to_owned();
                Err(WriteError::WrongType { key, found: text })
            }
            _ => Err(WriteError::Unreadable),
        }
    }
}

/// Calls a script, by its digest or its text. As a custom command, because fred ignores options on its
/// `eval` and `evalsha`. The first key is the third argument.
async fn send<C: ClientLike>(
    client: &C,
    command: &'static str,
    script: &str,
    request: Vec<Value>,
) -> Result<Value, Error> {
    let command = CustomCommand::new_static(command, ClusterHash::Offset(2), false);
    let mut args = vec![Value::from(script)];
    args.extend(request);
    client.custom(command, args).await
}

fn bytes(value: &[u8]) -> Value {
    Value::Bytes(value.to_vec().into())
}

/// Whether only a part of the key decides its slot: what is between the first `{` and the next `}`,
/// unless that is nothing.
fn has_hash_tag(key: &str) -> bool {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.is_some_and(|(tag, _)| !tag.is_empty())
}

/// Why a fenced write was not answered with success.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A larger token was here before. Nothing was written.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// The number is above [`FencingToken::MAX`], so that it is no token of a lock. It was not sent:
    /// once recorded, it would keep all tokens out for good.
    #[error("{presented} is too large for a fencing token")]
    TooLarge {
        /// What was to be presented.
        presented: FencingToken,
    },
    /// The key to be written is that of the fence itself. Nothing was sent.
    #[error("{key:?} is the key of the fence")]
    IsFence {
        /// The key.
        key: String,
    },
    /// The key of the fence holds something else: it is in use otherwise, or was written by hand.
    /// Nothing was written.
    #[error("{key:?} holds {found:?}, which is no fence")]
    BadFence {
        /// The key of the fence.
        key: String,
        /// What is there: the type, or the beginning of the string.
        found: String,
    },
    /// The key to be written holds another type. Nothing was written.
    #[error("{key:?} holds a {found}, which is not what was to be written")]
    WrongType {
        /// The key.
        key: String,
        /// The type of what is there.
        found: String,
    },
    /// The reply is none that the scripts give, as from a client that only queues commands. It is not
    /// known whether the value was written.
    #[error("the reply is not that of the script")]
    Unreadable,
    /// The server refused, or the client failed: it is not known whether the value was written.
    #[error("the fenced write failed")]
    Redis(#[from] Error),
}

impl WriteError {
    /// Whether the token is stale: another holds the lock or has held it since.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use fred::util::redis_keyslot;
    use proptest::prelude::*;

    fn slot(key: &str) -> u16 {
        redis_keyslot(key.as_bytes())
    }

    #[test]
    fn a_fence_is_in_the_slot_of_its_resource() {
        for resource in ["orders:42", "{orders:42}:lines", "a{b}c{d}", "{", "a{b", "é"] {
            let fence = Fence::of(resource);
            assert_eq!(slot(fence.key()), slot(resource), "{resource:?}: {}", fence.key());
        }
        assert_eq!(slot(Fence::of("orders:42").key()), slot("{orders:42}:lines"));
    }

    #[test]
    fn a_fence_has_the_documented_key() {
        assert_eq!(Fence::of("orders:42").key(), "quorumlock:fence:{orders:42}");
        assert_eq!(Fence::of("{orders:42}:lines").key(), "quorumlock:fence-of:{orders:42}:lines");
        assert_eq!(Fence::at("x").key(), "x");
    }

    proptest! {
        #[test]
        fn fences_are_in_the_slot_of_any_resource_without_a_stray_brace(resource in "[a-c:{é]{1,9}") {
            prop_assert_eq!(slot(Fence::of(&resource).key()), slot(&resource));
        }

        #[test]
        fn tagged_resources_keep_their_tag(a in "[a-c:]{0,3}", tag in "[a-c:]{1,3}", b in "[a-c{}]{0,4}") {
            let resource = format!("{a}{{{tag}}}{b}");
            prop_assert_eq!(slot(Fence::of(&resource).key()), slot(&tag));
        }

        #[test]
        fn no_two_resources_share_a_fence(a in "[a{}:]{0,5}", b in "[a{}:]{0,5}") {
            prop_assert_eq!(Fence::of(&a) == Fence::of(&b), a == b);
            prop_assert_ne!(Fence::of(&a), Fence::of(&format!("{{{a}}}")));
        }
    }

    fn decoded(items: Vec<Value>) -> Result<Value, WriteError> {
        Fence::at("f").decode(Value::Array(items), &["k"], FencingToken::new(3))
    }

    #[test]
    fn replies_are_read_as_documented_in_the_scripts() {
        assert_eq!(decoded(vec![1.into()]).unwrap(), Value::Null);
        assert_eq!(decoded(vec![1.into(), "x".into()]).unwrap(), Value::from("x"));
        let stale = decoded(vec![0.into(), "9007199254740991".into()]).unwrap_err();
        let newest = FencingToken::MAX;
        let expected = StaleToken { presented: FencingToken::new(3), newest };
        assert!(matches!(stale, WriteError::Stale(stale) if stale == expected), "{stale:?}");
        let fence = decoded(vec![(-1).into(), "list".into()]).unwrap_err();
        assert_eq!(fence.to_string(), "\"f\" holds \"list\", which is no fence");
        let value = decoded(vec![(-2).into(), "list".into()]).unwrap_err();
        assert!(value.to_string().starts_with("\"k\" holds a list"), "{value}");
    }

    #[test]
    fn what_no_script_replies_is_no_success() {
        for items in [vec![], vec![2.into()], vec!["1".into()], vec![0.into(), "x".into()]] {
            let error = decoded(items).unwrap_err();
            assert!(matches!(error, WriteError::Unreadable), "{error:?}");
        }
        let queued = Fence::at("f").decode("QUEUED".into(), &[], FencingToken::new(3));
        assert!(matches!(queued, Err(WriteError::Unreadable)), "{queued:?}");
    }
}
