//! The second half of a fenced attempt: a quorum of nodes has to vouch for one number.
//!
//! What is decided here is in [`fence`]; this sends what it asks for, and collects the answers.

use std::time::Duration;

use tokio::time::timeout;

use super::{claim::Claim, round::Round};
use crate::{
    error::NodeOutcome,
    fence,
    fencing_token::FencingToken,
    node::{Answer, NodeFailure},
};

/// Has a quorum of nodes vouch for the largest number that was granted, within `limit`.
///
/// In the usual case they all granted the same, and nothing more is sent. `None` if too few vouch.
/// Grants that come in meanwhile are asked to vouch as well. Cancel safe: the claim is taken back by its
/// owner.
pub(super) async fn confirm(claim: &mut Claim, limit: Duration) -> Option<(FencingToken, bool)> {
    let granted = numbers(claim.acquiring.outcomes());
    let token = fence::token(&granted)?;
    if fence::is_confirmed(&granted, token) {
        return Some((token, false));
    }
    let not_asked = vec![NodeOutcome::Failed(NodeFailure::NotAsked); granted.len()];
    let mut raising = Round::start(not_asked, |_| ());
    let mut asked = vec![false; granted.len()];
    let vouching = async {
        loop {
            let granted = numbers(claim.acquiring.outcomes());
            let vouched = vouched(&granted, raising.outcomes(), token);
            if fence::is_confirmed(&vouched, token) {
                return true;
            }
            for place in fence::to_raise(&granted, token) {
                if let Some(asked) = asked.get_mut(place).filter(|asked| !**asked) {
                    *asked = true;
                    let reply_to = raising.expect_from(place);
                    claim.raise(token, reply_to);
                }
            }
            let is_open = |outcomes: &[NodeOutcome]| outcomes.contains(&NodeOutcome::Pending);
            let (more_grants, more_raised) =
                (is_open(claim.acquiring.outcomes()), is_open(raising.outcomes()));
            if !more_grants && !more_raised {
                return false;
            }
            tokio::select! {
                biased;
                () = raising.next(), if more_raised => {}
                () = claim.acquiring.next(), if more_grants => {}
            }
        }
    };
    timeout(limit, vouching).await.is_ok_and(|confirmed| confirmed).then_some((token, true))
}

/// What each node granted.
fn numbers(outcomes: &[NodeOutcome]) -> Vec<Option<FencingToken>> {
    let number = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Answered(Answer::Counted(number)) => Some(*number),
        NodeOutcome::Answered(
            Answer::Done | Answer::PassedOn | Answer::Missing | Answer::Taken { .. },
        )
        | NodeOutcome::Failed(_)
        | NodeOutcome::Pending => None,
    };
    outcomes.iter().map(number).collect()
}

/// For which number each node vouches: for what it granted, and once it has raised it, for the token.
fn vouched(
    granted: &[Option<FencingToken>],
    raised: &[NodeOutcome],
    token: FencingToken,
) -> Vec<Option<FencingToken>> {
    let of_node = |(granted, raised): (&Option<FencingToken>, &NodeOutcome)| {
        if *raised == NodeOutcome::Answered(Answer::Done) { Some(token) } else { *granted }
    };
    granted.iter().zip(raised).map(of_node).collect()
}
