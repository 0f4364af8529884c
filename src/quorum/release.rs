//! The round that gives a lock back.

use super::{
    claim::Claim,
    tally::{Tally, Verdict},
};
use crate::error::ReleaseError;

/// Releases on every node that may have the key and says what a majority confirmed.
///
/// The release is owed to the nodes from the first poll on: dropping the future takes nothing back.
pub(crate) async fn release(claim: Claim) -> Result<(), ReleaseError> {
    let limit = claim.node_timeout();
    let (quorum, mut round) = claim.release();
    match round.decided(limit, Tally::verdict).await.unwrap_or(Verdict::Unknown) {
        Verdict::Ours => Ok(()),
        Verdict::Gone => Err(ReleaseError::Lost { nodes: quorum.reports(round.outcomes()) }),
        Verdict::Unknown => {
            Err(ReleaseError::Unconfirmed { nodes: quorum.reports(round.outcomes()) })
        }
    }
}
