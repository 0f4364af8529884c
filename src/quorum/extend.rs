//! One round that lets a held lock live on.

use super::{
    claim::Claim,
    tally::{Tally, Verdict},
};
use crate::{
    clock::Moment,
    error::ExtendError,
    options::{Terms, millis},
    validity::valid_until,
};

/// Extends, and says until when the lock is valid then. Never earlier than `until`.
///
/// # Errors
///
/// Lost for good, or inconclusive with the validity unchanged.
pub(crate) async fn extend(
    claim: &mut Claim,
    until: Moment,
    terms: Terms,
) -> Result<Moment, ExtendError> {
    let clock = claim.quorum.clock;
    let started = clock.now();
    if started >= until {
        return Err(ExtendError::Lost { nodes: None });
    }
    let mut round = claim.extend(millis(terms.ttl), terms.node_timeout);
    let verdict = round.decided(terms.node_timeout, Tally::verdict).await;
    let verdict = verdict.unwrap_or(Verdict::Unknown);
    let now = clock.now();
    let nodes = claim.quorum.reports(round.outcomes());
    match verdict {
        // The end had come before we knew: what was lost stays lost.
        _ if now >= until => Err(ExtendError::Lost { nodes: Some(nodes) }),
        Verdict::Ours => Ok(until.max(valid_until(started, terms.ttl, terms.drift))),
        Verdict::Gone => Err(ExtendError::Lost { nodes: Some(nodes) }),
        Verdict::Unknown => Err(ExtendError::Inconclusive { remaining: until.since(now), nodes }),
    }
}
