//! What a simulated master counts: the steps of [`fence::counters`](crate::fence::counters) on its keys.

use std::time::Duration;

use super::master::Master;
use crate::{
    fence::counters::{AtLimit, Counters},
    fencing_token,
    node::{Answer, Ballot, Fence, NodeFailure, Operation, Outcome, SendAs},
    owner_id::OwnerId,
    resource::Key,
};

impl Master {
    /// The number at a key; none if there is none. An error if it is no number.
    pub(super) fn number(&self, key: &Key, now: Duration) -> Result<Option<u64>, NodeFailure> {
        if self.pttl(key.as_str(), now) == -2 {
            return Ok(None);
        }
        let number = self.text(key, now).and_then(|text| fencing_token::number(&text));
        number.map(Some).ok_or_else(|| NodeFailure::Rejected {
            message: format!("ERR quorumlock: {} is not a counter", key.as_str()),
        })
    }

    /// One of the operations that count.
    pub(super) fn count(
        &mut self,
        operation: &Operation,
        send_as: &SendAs,
        now: Duration,
    ) -> Outcome {
        let SendAs::Ballot(ballot) = send_as else {
            return Err(NodeFailure::NotAdmitted { why: "no ballot".to_owned() });
        };
        match operation {
            Operation::AcquireFenced { key, fence, owner, ttl_ms } => {
                let mut counters = self.counters(key, fence, ballot, now)?;
                match counters.acquire(owner.to_string()).map_err(at_limit)? {
                    None => Ok(self.taken(key.as_str(), now)),
                    Some(number) => {
                        self.write_counters(&counters, fence, ballot, now);
                        self.lock(key, *owner, *ttl_ms, now);
                        Ok(Answer::Counted(number))
                    }
                }
            }
            Operation::Raise { key, fence, owner, token } => {
                let mut counters = self.counters(key, fence, ballot, now)?;
                if !counters.raise(&owner.to_string(), *token).map_err(at_limit)? {
                    return Ok(Answer::Missing);
                }
                self.write_counters(&counters, fence, ballot, now);
                Ok(Answer::Done)
            }
            Operation::RefillFenced { key, fence, owner, ttl_ms, token } => {
                let mut counters = self.counters(key, fence, ballot, now)?;
                if !counters.refill(owner.to_string(), *token).map_err(at_limit)? {
                    return Ok(self.taken(key.as_str(), now));
                }
                self.write_counters(&counters, fence, ballot, now);
                self.lock(key, *owner, *ttl_ms, now);
                Ok(Answer::Done)
            }
            Operation::Acquire { .. }
            | Operation::Extend { .. }
            | Operation::Release { .. }
            | Operation::Waiters { .. }
            | Operation::Ping { .. } => Ok(Answer::Done),
        }
    }

    fn counters(
        &self,
        key: &Key,
        fence: &Fence,
        ballot: &Ballot,
        now: Duration,
    ) -> Result<Counters<String>, NodeFailure> {
        let exists = self.pttl(key.as_str(), now) != -2;
        Ok(Counters {
            // What is not a string is somebody's all the same.
            lock: exists.then(|| self.text(key, now).unwrap_or_default()),
            fence: self.number(&fence.key, now)?,
            max: self.number(&ballot.keys.max, now)?.unwrap_or(0),
            floor: ballot.floor,
        })
    }

    fn write_counters(
        &mut self,
        counters: &Counters<String>,
        fence: &Fence,
        ballot: &Ballot,
        now: Duration,
    ) {
        self.set(ballot.keys.max.as_str(), Some(&counters.max.to_string()), None, now);
        let counter = counters.counter().to_string();
        self.set(fence.key.as_str(), Some(&counter), Some(fence.idle_ms), now);
    }

    fn lock(&mut self, key: &Key, owner: OwnerId, ttl_ms: u64, now: Duration) {
        self.set(key.as_str(), Some(&owner.to_string()), Some(ttl_ms), now);
    }
}

fn at_limit(_: AtLimit) -> NodeFailure {
    NodeFailure::Rejected { message: "ERR quorumlock: a counter is not below 2^53 - 1".to_owned() }
}
