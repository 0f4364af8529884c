//! One attempt to acquire.

use std::{sync::Arc, time::Duration};

use super::{
    Quorum,
    claim::Claim,
    confirm::confirm,
    tally::{Tally, Vote},
};
use crate::{
    clock::Moment,
    error::{AcquireError, FailedAttempt, NodeOutcome},
    node::{Answer, Fence, NodeFailure},
    options::{Terms, millis},
    resource::Key,
    validity::{valid_until, validity},
};

/// A lock that was granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) claim: Claim,
    /// From when its validity is counted.
    pub(crate) started: Moment,
    pub(crate) valid_until: Moment,
    /// The nodes' counters did not agree: a second round was needed for the token.
    pub(crate) was_raised: bool,
}

/// In which order the nodes are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// All at once: the fastest where nobody contends.
    All,
    /// This one first, and the others if it does not refuse: where many contend, all but one are
    /// refused by one node each instead of getting in each other's way on all of them.
    First(usize),
}

/// Asks the nodes once, with a fresh owner id, and decides as early as the votes allow.
///
/// Unless it returns `Ok`, what the attempt has set or may still set is released in the background,
/// also when its future is dropped.
pub(crate) async fn attempt(
    quorum: &Arc<Quorum>,
    key: Key,
    fence: Option<Fence>,
    terms: Terms,
    order: Order,
) -> Result<Granted, AcquireError> {
    // Read before anything is sent: latency may shorten validity, never lengthen it.
    let started = quorum.clock.now();
    let (mut claim, ttl_ms) = (Claim::new(quorum, key, fence, terms), millis(terms.ttl));
    let nodes = 0..quorum.lanes.len();
    match order {
        Order::All => claim.ask(nodes, ttl_ms),
        Order::First(first) => {
            claim.ask(std::iter::once(first), ttl_ms);
            let outcome = claim.acquiring.outcome_of(first, terms.node_timeout).await;
            if matches!(outcome, NodeOutcome::Answered(Answer::Taken { .. })) {
                let elapsed = quorum.clock.now().since(started);
                return Err(error(Refusal::Contended, &mut claim, terms, elapsed));
            }
            claim.ask(nodes.filter(|place| *place != first), ttl_ms);
        }
    }
    let vote = claim.acquiring.decided(terms.node_timeout, Tally::vote).await;
    let mut vote = vote.unwrap_or(Vote::NoQuorum);
    let mut was_raised = false;
    if vote == Vote::Granted && claim.fence.is_some() {
        match confirm(&mut claim, terms.node_timeout).await {
            Some((token, raised)) => {
                claim.set_token(token);
                was_raised = raised;
            }
            None => vote = Vote::NoQuorum,
        }
    }
    let elapsed = quorum.clock.now().since(started);
    match judge(vote, terms, elapsed) {
        Ok(()) => Ok(Granted {
            claim,
            was_raised,
            started,
            valid_until: valid_until(started, terms.ttl, terms.drift),
        }),
        Err(refusal) => Err(error(refusal, &mut claim, terms, elapsed)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Contended,
    NoQuorum,
    ValidityUsedUp,
}

/// Whether a vote is a lock: a quorum granted, and something of the validity is left.
fn judge(vote: Vote, terms: Terms, elapsed: Duration) -> Result<(), Refusal> {
    match vote {
        Vote::Contended => Err(Refusal::Contended),
        Vote::NoQuorum => Err(Refusal::NoQuorum),
        Vote::Granted => {
            let may_be_held = terms.max_hold.is_none_or(|max_hold| elapsed < max_hold);
            let is_valid = validity(terms.ttl, elapsed, terms.drift).is_some() && may_be_held;
            if is_valid { Ok(()) } else { Err(Refusal::ValidityUsedUp) }
        }
    }
}

fn error(refusal: Refusal, claim: &mut Claim, terms: Terms, elapsed: Duration) -> AcquireError {
    if claim.acquiring.outcomes().contains(&NodeOutcome::Failed(NodeFailure::ShutDown)) {
        return AcquireError::ShutDown;
    }
    let attempt = FailedAttempt {
        quorum: claim.quorum().size(),
        nodes: claim.reports(),
        attempts: 1,
        waited: elapsed,
    };
    match refusal {
        Refusal::Contended => AcquireError::Contended(attempt),
        Refusal::NoQuorum => AcquireError::NoQuorum(attempt),
        Refusal::ValidityUsedUp => AcquireError::ValidityUsedUp {
            ttl: terms.ttl,
            elapsed,
            drift: terms.drift.over(terms.ttl),
            attempt,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Defaults, LockOptions};

    #[test]
    fn a_grant_that_came_too_late_is_no_lock() {
        let ttl = Duration::from_secs(1);
        let terms = Defaults::default().terms(LockOptions::new().ttl(ttl)).unwrap();
        let judged = |ms| judge(Vote::Granted, terms, Duration::from_millis(ms));
        assert_eq!(judged(0), Ok(()));
        assert_eq!(judged(987), Ok(()));
        assert_eq!(judged(988), Err(Refusal::ValidityUsedUp));
        assert_eq!(judged(5_000), Err(Refusal::ValidityUsedUp));

        let terms = Terms { max_hold: Some(Duration::from_millis(50)), ..terms };
        assert_eq!(judge(Vote::Granted, terms, Duration::from_millis(49)), Ok(()));
        assert!(judge(Vote::Granted, terms, Duration::from_millis(50)).is_err());
    }
}
