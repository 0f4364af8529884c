//! Counting votes. Pure: outcomes in, a verdict out.
//!
//! Invariants:
//!
//! 1. The quorum is a strict majority of the *configured* nodes, never of those that answered.
//! 2. Two quorums share a node. That is the whole of mutual exclusion, and it is why no outcome but
//!    that the node did as asked may ever count as a yes.
//! 3. An unknown outcome is neither a yes nor a no.
//! 4. A verdict, once reached, is not changed by the outcomes that come later.

pub(crate) use crate::majority::quorum;
use crate::{error::NodeOutcome, majority::blocking, node::Answer};

/// The outcomes of one round, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    nodes: usize,
    yes: usize,
    no: usize,
    unknown: usize,
    pending: usize,
}

/// What a round of extending or releasing comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority did as asked: the lock was ours.
    Ours,
    /// So many no longer had our key that no majority can have it: the lock is gone.
    Gone,
    /// Neither can be known any more.
    Unknown,
}

/// What a round of acquiring comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// A majority granted.
    Granted,
    /// No majority can grant any more, and refusals are the main reason.
    Contended,
    /// No majority can grant any more, and nodes that gave no answer are the main reason.
    NoQuorum,
}

impl Tally {
    pub(crate) fn of(outcomes: &[NodeOutcome]) -> Self {
        let mut tally = Self { nodes: outcomes.len(), ..Self::default() };
        for outcome in outcomes {
            let count = match outcome {
                NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn) => {
                    &mut tally.yes
                }
                NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => &mut tally.no,
                NodeOutcome::Failed(_) => &mut tally.unknown,
                NodeOutcome::Pending => &mut tally.pending,
            };
            *count = count.saturating_add(1);
        }
        tally
    }

    /// Whether all nodes have answered or failed to.
    pub(crate) const fn is_complete(self) -> bool {
        self.pending == 0
    }

    /// The verdict of acquiring, as soon as there is one.
    pub(crate) fn vote(self) -> Option<Vote> {
        let quorum = quorum(self.nodes);
        if self.yes >= quorum {
            return Some(Vote::Granted);
        }
        if self.yes.saturating_add(self.pending) >= quorum {
            return None;
        }
        // With one dead node the refusals of the others still mean "held", with a dead majority the
        // refusal of one does not.
        let refused = self.no > 0 && self.no >= self.unknown;
        Some(if refused { Vote::Contended } else { Vote::NoQuorum })
    }

    /// The verdict of extending or releasing, as soon as there is one.
    pub(crate) fn verdict(self) -> Option<Verdict> {
        let quorum = quorum(self.nodes);
        // As many as this without our key leave no majority with it.
        let blocking = blocking(self.nodes);
        if self.yes >= quorum {
            return Some(Verdict::Ours);
        }
        if self.no >= blocking {
            return Some(Verdict::Gone);
        }
        let can_be_ours = self.yes.saturating_add(self.pending) >= quorum;
        let can_be_gone = self.no.saturating_add(self.pending) >= blocking;
        (!can_be_ours && !can_be_gone).then_some(Verdict::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::NodeFailure;

    const YES: NodeOutcome = NodeOutcome::Answered(Answer::Done);
    const NO: NodeOutcome = NodeOutcome::Answered(Answer::Missing);
    const WAIT: NodeOutcome = NodeOutcome::Pending;

    fn unknown() -> NodeOutcome {
        NodeOutcome::Failed(NodeFailure::Unresponsive)
    }

    fn outcomes(text: &str) -> Vec<NodeOutcome> {
        text.chars()
            .map(|c| match c {
                'y' => YES,
                'n' => NO,
                '?' => unknown(),
                _ => WAIT,
            })
            .collect()
    }

    #[track_caller]
    fn check_vote(text: &str, expected: Option<Vote>) {
        assert_eq!(Tally::of(&outcomes(text)).vote(), expected, "{text}");
    }

    #[track_caller]
    fn check_verdict(text: &str, expected: Option<Verdict>) {
        assert_eq!(Tally::of(&outcomes(text)).verdict(), expected, "{text}");
    }

    #[test]
    fn a_quorum_is_a_strict_majority_of_the_configured_nodes() {
        let expected = [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (8, 5), (9, 5)];
        for (nodes, majority) in expected {
            assert_eq!(quorum(nodes), majority);
            assert!(majority * 2 > nodes, "two quorums of {nodes} must share a node");
        }
    }

    // Field case 30: the quorum shrank to the servers that the client could see.
    #[test]
    fn nodes_that_do_not_answer_do_not_lower_the_quorum() {
        check_vote("yy???", Some(Vote::NoQuorum));
        check_vote("yyy??", Some(Vote::Granted));
        check_verdict("yy???", Some(Verdict::Unknown));
    }

    #[test]
    fn a_round_is_decided_as_early_as_the_votes_allow() {
        check_vote(".....", None);
        check_vote("yy...", None);
        check_vote("yyy..", Some(Vote::Granted));
        check_vote("nn...", None);
        check_vote("nnn..", Some(Vote::Contended));
        check_vote("???..", Some(Vote::NoQuorum));
        check_vote("y", Some(Vote::Granted));
        check_vote("n", Some(Vote::Contended));
    }

    // Field case 28: a tie never resolved.
    #[test]
    fn even_numbers_of_nodes_decide_ties() {
        check_vote("y.", None);
        check_vote("y?", Some(Vote::NoQuorum));
        check_vote("yynn", Some(Vote::Contended));
        check_vote("nn..", Some(Vote::Contended));
        check_verdict("yynn", Some(Verdict::Gone));
        check_verdict("yy??", Some(Verdict::Unknown));
    }

    // Field case 35: "held" could not be told from "down".
    #[test]
    fn silent_nodes_are_an_outage_and_refusals_are_contention() {
        check_vote("?nn..", Some(Vote::Contended));
        check_vote("???nn", Some(Vote::NoQuorum));
        check_vote("y??n?", Some(Vote::NoQuorum));
        check_vote("ynn??", Some(Vote::Contended));
    }

    #[test]
    fn a_lock_is_gone_only_when_no_majority_can_have_it() {
        check_verdict("nnn..", Some(Verdict::Gone));
        check_verdict("nn...", None);
        check_verdict("nn??y", Some(Verdict::Unknown));
        check_verdict("yyynn", Some(Verdict::Ours));
    }

    fn any_outcome() -> impl Strategy<Value = NodeOutcome> {
        prop_oneof![Just(YES), Just(NO), Just(unknown())]
    }

    fn any_round() -> impl Strategy<Value = Vec<NodeOutcome>> {
        (1_usize..=9).prop_flat_map(|n| proptest::collection::vec(any_outcome(), n))
    }

    /// A round and the order in which its outcomes come in.
    fn any_round_in_any_order() -> impl Strategy<Value = (Vec<NodeOutcome>, Vec<usize>)> {
        any_round().prop_flat_map(|round| {
            let order: Vec<usize> = (0..round.len()).collect();
            (Just(round), Just(order).prop_shuffle())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_first_verdict_stands_whatever_comes_later(
            (round, order) in any_round_in_any_order(),
        ) {
            let mut seen = vec![WAIT; round.len()];
            let (mut vote, mut verdict) = (None, None);
            for node in order {
                seen[node] = round[node].clone();
                let tally = Tally::of(&seen);
                match (vote, tally.vote()) {
                    // Which of the two reasons prevails may still change, the refusal may not.
                    (Some(Vote::Contended | Vote::NoQuorum), now) => {
                        prop_assert!(matches!(now, Some(Vote::Contended | Vote::NoQuorum)));
                    }
                    (Some(Vote::Granted), now) => prop_assert_eq!(now, Some(Vote::Granted)),
                    (None, now) => vote = now,
                }
                match verdict {
                    Some(_) => prop_assert_eq!(tally.verdict(), verdict),
                    None => verdict = tally.verdict(),
                }
            }
            prop_assert!(vote.is_some() && verdict.is_some(), "complete rounds are decided");
        }

        #[test]
        fn granted_and_ours_need_a_majority_of_yes(round in any_round()) {
            let yes = round.iter().filter(|o| **o == YES).count();
            let no = round.iter().filter(|o| **o == NO).count();
            let tally = Tally::of(&round);
            prop_assert_eq!(tally.vote() == Some(Vote::Granted), yes * 2 > round.len());
            prop_assert_eq!(tally.verdict() == Some(Verdict::Ours), yes * 2 > round.len());
            prop_assert_eq!(tally.verdict() == Some(Verdict::Gone), (round.len() - no) * 2 <= round.len());
        }

        // Two owners cannot both be granted by nodes that grant to one owner each.
        #[test]
        fn two_owners_are_never_both_granted(owners in proptest::collection::vec(0_u8..3, 1..=9)) {
            let votes_for = |owner: u8| -> Vec<NodeOutcome> {
                owners.iter().map(|o| if *o == owner { YES } else { NO }).collect()
            };
            let granted = (0..2)
                .filter(|owner| Tally::of(&votes_for(*owner)).vote() == Some(Vote::Granted))
                .count();
            prop_assert!(granted <= 1);
        }

        #[test]
        fn no_verdict_is_given_while_either_side_is_open((round, order) in any_round_in_any_order()) {
            let mut seen = vec![WAIT; round.len()];
            for node in order {
                let tally = Tally::of(&seen);
                let fill = |with: NodeOutcome| -> Tally {
                    Tally::of(&seen.iter().map(|o| if *o == WAIT { with.clone() } else { o.clone() }).collect::<Vec<_>>())
                };
                // Early: decided exactly when the remaining nodes cannot change it.
                let can_grant = fill(YES).vote() == Some(Vote::Granted);
                let can_refuse = fill(NO).vote() != Some(Vote::Granted);
                prop_assert_eq!(tally.vote().is_none(), can_grant && can_refuse);
                seen[node] = round[node].clone();
            }
        }
    }
}
