//! A new fleet, which need not wait.

use super::*;

fn new_and_waiting(nodes: usize) -> Case {
    let mut case = Case::unmarked(nodes);
    case.fleet.is_new = true;
    (0..nodes).for_each(|place| case.mark(place, MarkState::Waiting, |_| ()));
    case
}

#[test]
fn a_new_fleet_does_not_wait() {
    let mut case = new_and_waiting(3);
    assert_eq!(case.verdict(), Verdict::Unknown, "until that is settled");
    case.facts(1).max = Some(4);
    assert!(case.found(case.start));
    assert_eq!(case.verdict(), Verdict::Admit { floor: Some(4) });
    // What has been flushed or restarted since has no part in it.
    case.mark(0, MarkState::Waiting, |marker| marker.id = "f".repeat(32));
    assert!(matches!(case.verdict(), Verdict::Wait { .. }));
}

#[test]
fn a_new_fleet_has_no_node_that_was_admitted_before() {
    let mut case = new_and_waiting(3);
    case.mark(2, MarkState::Admitted, |_| ());
    assert!(!case.found(case.start));
    assert!(matches!(case.verdict(), Verdict::Wait { .. }));
    // Nor does it become one when that node forgets.
    case.mark(2, MarkState::Waiting, |_| ());
    assert!(!case.found(case.start.plus(WAIT)));
}

#[test]
fn a_new_fleet_is_founded_by_a_quorum_without_those_that_are_away() {
    let mut case = new_and_waiting(3);
    case.sight.nodes[2] = None;
    assert!(!case.found(case.start), "it may be about to come");
    case.sight.unreachable[2] = true;
    assert!(case.found(case.start));

    let mut case = new_and_waiting(3);
    case.sight.nodes[2] = None;
    assert!(!case.found(case.start));
    assert!(!case.found(BEFORE(case.start.plus(case.fleet.found_without))));
    assert!(case.found(case.start.plus(case.fleet.found_without)));

    let mut case = new_and_waiting(3);
    (1..3).for_each(|place| case.sight.unreachable[place] = true);
    (1..3).for_each(|place| case.sight.nodes[place] = None);
    assert!(!case.found(case.start.plus(WAIT)), "one of three is no quorum");
    assert!(matches!(case.verdict(), Verdict::Wait { .. }), "and nobody waits for more");
}

#[test]
fn a_fleet_that_does_not_say_that_it_is_new_is_not_founded() {
    let mut case = new_and_waiting(3);
    case.fleet.is_new = false;
    assert!(!case.found(case.start));
}
