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
        let text = self.text(key, now).ok_or_else(wrong_type)?;
        let none = || refused(key, "is not a number below 2^53");
        fencing_token::number(&text).map(Some).ok_or_else(none)
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
                // A lock that is taken is said to be, whatever the numbers are.
                if self.pttl(key.as_str(), now) != -2 {
                    return Ok(self.taken(key.as_str(), now));
                }
                let at_limit = self.at_limit(fence, ballot, now);
                let next = self.goes_on(fence, ballot, now);
                let goes_on = next.is_some();
                let mut counters =
                    next.map_or_else(|| self.counters(key, fence, ballot, now), Ok)?;
                let granted = counters.acquire(owner.to_string()).map_err(|AtLimit| at_limit)?;
                let Some(number) = granted else {
                    return Ok(self.taken(key.as_str(), now));
                };
                if goes_on {
                    let left = u64::try_from(self.pttl(fence.key.as_str(), now)).ok();
                    self.set(fence.key.as_str(), Some(&number.to_string()), left, now);
                } else {
                    self.write_counters(&counters, fence, ballot, now);
                }
                self.lock(key, *owner, *ttl_ms, now);
                Ok(Answer::Counted(number))
            }
            Operation::Raise { key, fence, owner, token } => {
                let at_limit = self.at_limit(fence, ballot, now);
                let mut counters = self.counters(key, fence, ballot, now)?;
                if counters.lock.is_some() && self.text(key, now).is_none() {
                    return Err(wrong_type());
                }
                if !counters.raise(&owner.to_string(), *token).map_err(|AtLimit| at_limit)? {
                    return Ok(Answer::Missing);
                }
                self.write_counters(&counters, fence, ballot, now);
                Ok(Answer::Done)
            }
            Operation::RefillFenced { key, fence, owner, ttl_ms, token } => {
                let at_limit = self.at_limit(fence, ballot, now);
                let mut counters = self.counters(key, fence, ballot, now)?;
                if !counters.refill(owner.to_string(), *token).map_err(|AtLimit| at_limit)? {
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
            max: self.number(&ballot.keys.max, now)?.unwrap_or(0),
            fence: self.number(&fence.key, now)?,
            floor: ballot.floor,
            step: self.step,
        })
    }

    /// The counters of a free lock whose next grant looks at nothing but the counter and the floor.
    fn goes_on(&self, fence: &Fence, ballot: &Ballot, now: Duration) -> Option<Counters<String>> {
        let number = self.number(&fence.key, now).ok()?;
        let (max, floor, step) = (0, ballot.floor, self.step);
        let counters = Counters { lock: None, fence: number, max, floor, step };
        counters.goes_on().then_some(counters)
    }

    fn at_limit(&self, fence: &Fence, ballot: &Ballot, now: Duration) -> NodeFailure {
        let is_there = self.pttl(fence.key.as_str(), now) != -2;
        let key = if is_there { &fence.key } else { &ballot.keys.max };
        refused(key, "cannot go beyond 2^53 - 1")
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

fn refused(key: &Key, why: &str) -> NodeFailure {
    NodeFailure::Rejected { message: format!("ERR quorumlock: {} {why}", key.as_str()) }
}

pub(super) fn wrong_type() -> NodeFailure {
    let message = "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned();
    NodeFailure::Rejected { message }
}
