//! Operations as the commands that they are.

use fred::types::Value;

use super::{RedisLink, listener::whole_ring};
use crate::node::{Ballot, FleetKeys, Operation, SendAs, script::Script};

impl RedisLink {
    /// The command for an operation; `None` for a vote without a ballot.
    pub(super) fn request(
        &self,
        operation: &Operation,
        send_as: SendAs,
    ) -> Option<(&'static str, Vec<Value>)> {
        let (script, digest, key, owner, number) = match operation {
            Operation::Acquire { .. }
            | Operation::AcquireFenced { .. }
            | Operation::Raise { .. }
            | Operation::RefillFenced { .. } => {
                let SendAs::Ballot(ballot) = send_as else { return None };
                return vote(operation, &ballot);
            }
            Operation::Extend { key, owner, ttl_ms } => {
                (Script::Extend, &self.digests.extend, key, owner, *ttl_ms)
            }
            Operation::Release { key, owner, calls } => {
                (Script::Release, &self.digests.release, key, owner, u64::from(*calls))
            }
            Operation::Waiters { key, .. } => {
                return Some(("PUBSUB", vec!["NUMSUB".into(), whole_ring(key).into()]));
            }
            Operation::Ping { nonce } => return Some(("PING", vec![nonce.to_string().into()])),
        };
        let (command, body) = match send_as {
            SendAs::Digest | SendAs::Ballot(_) => ("EVALSHA", digest.clone()),
            SendAs::Text => ("EVAL", Value::from_static_str(script.text())),
        };
        let (owner, number) = (owner.to_string().into(), number.to_string().into());
        Some((command, vec![body, Value::Integer(1), key.as_str().into(), owner, number]))
    }
}

/// The command for a vote. It goes by the digests of its admission, and by nothing else.
fn vote(operation: &Operation, ballot: &Ballot) -> Option<(&'static str, Vec<Value>)> {
    let FleetKeys { marker, max } = &ballot.keys;
    let (script, keys, args) = match operation {
        Operation::Acquire { key, owner, ttl_ms } => {
            (Script::Acquire, vec![key, marker], vec![owner.to_string(), ttl_ms.to_string()])
        }
        Operation::AcquireFenced { key, fence, owner, ttl_ms } => (
            Script::AcquireFenced,
            vec![key, marker, &fence.key, max],
            vec![owner.to_string(), ttl_ms.to_string(), fence.idle_ms.to_string()],
        ),
        Operation::Raise { key, fence, owner, token } => (
            Script::Raise,
            vec![key, marker, &fence.key, max],
            vec![owner.to_string(), token.to_string(), fence.idle_ms.to_string()],
        ),
        Operation::RefillFenced { key, fence, owner, ttl_ms, token } => (
            Script::RefillFenced,
            vec![key, marker, &fence.key, max],
            vec![
                owner.to_string(),
                ttl_ms.to_string(),
                fence.idle_ms.to_string(),
                token.to_string(),
            ],
        ),
        Operation::Extend { .. }
        | Operation::Release { .. }
        | Operation::Waiters { .. }
        | Operation::Ping { .. } => {
            return None;
        }
    };
    let digest = Value::from(ballot.digest(script)?);
    let count = Value::Integer(i64::try_from(keys.len()).ok()?);
    let keys = keys.into_iter().map(|key| Value::from(key.as_str()));
    let args = args.into_iter().map(Value::from);
    Some(("EVALSHA", [digest, count].into_iter().chain(keys).chain(args).collect()))
}
