//! The table of cases: what is seen of a node, and what follows.

mod new_fleet;

use std::time::Duration;

use super::*;
use crate::clock::Clock;

const MAX_TTL: Duration = Duration::from_secs(60);
/// `MAX_TTL`, and the drift over it.
const WAIT: Duration = Duration::from_millis(60_602);
const BEFORE: fn(Moment) -> Moment = |moment| moment.before(Duration::from_millis(1));

fn fleet(nodes: usize) -> Fleet {
    let names: Vec<NodeName> = (0..nodes).map(|n| NodeName::new(&format!("n{n}"))).collect();
    Fleet {
        members: members(&names),
        names,
        keys: FleetKeys::with_prefix("q:"),
        max_ttl: MAX_TTL,
        drift: ClockDrift::default(),
        is_new: false,
        trusts_durability: false,
        allows_eviction: false,
        found_without: Duration::from_secs(1),
        makes_wait: true,
    }
}

fn run_id(place: usize) -> String {
    format!("run{place}")
}

/// A healthy server without a marker.
fn facts(place: usize) -> Facts {
    Facts {
        run_id: run_id(place),
        server: Server::Redis(7, 0),
        is_master: true,
        is_cluster: false,
        is_loading: false,
        eviction: Some("noeviction".to_owned()),
        is_durable: false,
        replicas: 0,
        forbidden: Vec::new(),
        marker: None,
        max: Some(0),
    }
}

fn marker(fleet: &Fleet, place: usize, state: MarkState) -> Marker {
    Marker {
        id: format!("{place:032x}"),
        state,
        run_id: run_id(place),
        node: fleet.names[place].clone(),
        members: fleet.members.clone(),
        max_ttl_ms: millis(MAX_TTL),
        floor: 0,
    }
}

struct Case {
    fleet: Fleet,
    sight: Sight,
    start: Moment,
}

impl Case {
    /// What is written on node 0 that is admitted with this floor.
    fn new_marker(&self, floor: Option<u64>) -> Marker {
        let state = (MarkState::Admitted, floor);
        self.fleet.new_marker(0, &self.sight, state, "i".to_owned()).unwrap()
    }

    /// All nodes have been seen, without any marker.
    fn unmarked(nodes: usize) -> Self {
        let start = Clock::System.now().plus(Duration::from_secs(3_600));
        let (is_reachable, forgot_script, marker) = (true, false, None);
        let seen = |place| {
            let (facts, since, asked_at, marker) = (facts(place), start, start, marker.clone());
            Some(Seen { facts, marker, since, asked_at, is_reachable, forgot_script })
        };
        let sight = Sight {
            nodes: (0..nodes).map(seen).collect(),
            unreachable: vec![false; nodes],
            ..Sight::default()
        };
        Self { fleet: fleet(nodes), sight, start }
    }

    /// All nodes vote.
    fn voting(nodes: usize) -> Self {
        let mut case = Self::unmarked(nodes);
        (0..nodes).for_each(|place| case.mark(place, MarkState::Admitted, |_| ()));
        case
    }

    /// The first node waits since the start, and the others vote.
    fn one_waits(nodes: usize) -> Self {
        let mut case = Self::voting(nodes);
        case.mark(0, MarkState::Waiting, |_| ());
        case
    }

    fn node(&mut self, place: usize) -> &mut Seen {
        self.sight.nodes[place].as_mut().unwrap()
    }

    fn facts(&mut self, place: usize) -> &mut Facts {
        &mut self.node(place).facts
    }

    fn mark(&mut self, place: usize, state: MarkState, change: impl FnOnce(&mut Marker)) {
        let mut marker = marker(&self.fleet, place, state);
        change(&mut marker);
        self.text(place, Some(&marker.to_string()));
    }

    /// What is there in place of a marker.
    fn text(&mut self, place: usize, text: Option<&str>) {
        let node = self.node(place);
        node.facts.marker = text.map(str::to_owned);
        node.marker = text.and_then(Marker::parse);
    }

    fn end(&self) -> Moment {
        self.start.plus(WAIT)
    }

    fn verdict_at(&self, now: Moment) -> Verdict {
        self.fleet.verdict(0, &self.sight, now)
    }

    fn verdict(&self) -> Verdict {
        self.verdict_at(self.start)
    }

    #[track_caller]
    fn is_refused(&self, expected: Refusal) {
        assert_eq!(self.verdict(), Verdict::Refused(expected));
    }

    #[track_caller]
    fn votes(&self) {
        assert!(matches!(self.verdict(), Verdict::Vote { .. }), "{:?}", self.verdict());
    }

    /// Looks at all nodes once more.
    fn look(&mut self, at: Moment) {
        self.sight.nodes.iter_mut().flatten().for_each(|seen| seen.asked_at = at);
    }

    fn found(&mut self, now: Moment) -> bool {
        self.fleet.found(&mut self.sight, now);
        self.sight.founded.is_some()
    }
}

#[test]
fn a_node_with_the_marker_of_its_process_votes() {
    Case::voting(3).votes();
    let mut case = Case::voting(3);
    case.mark(0, MarkState::Admitted, |marker| marker.floor = 7);
    assert_eq!(case.verdict(), Verdict::Vote { mark: format!("{:032x}", 0), floor: 7 });
}

#[test]
fn a_node_that_was_not_seen_or_is_loading_is_unknown() {
    let mut case = Case::voting(3);
    case.sight.nodes[0] = None;
    assert_eq!(case.verdict(), Verdict::Unknown);
    let mut case = Case::voting(3);
    case.facts(0).is_loading = true;
    // Whatever else it says.
    case.facts(0).is_master = false;
    assert_eq!(case.verdict(), Verdict::Unknown);
}

#[test]
fn a_node_that_may_have_forgotten_has_to_wait_from_now_on() {
    // No marker; another process'; another node's; what it waited for was of another process or node.
    let mut case = Case::voting(3);
    case.text(0, None);
    assert_eq!(case.verdict(), Verdict::Mark);
    for state in [MarkState::Admitted, MarkState::Waiting] {
        let mut case = Case::voting(3);
        case.mark(0, state, |marker| marker.run_id = "another".to_owned());
        assert_eq!(case.verdict_at(case.end()), Verdict::Mark);
        case.mark(0, state, |marker| marker.node = NodeName::new("n1"));
        assert_eq!(case.verdict_at(case.end()), Verdict::Mark);
    }
}

#[test]
fn the_wait_is_the_longest_ttl_and_the_drift_over_it() {
    let case = Case::one_waits(3);
    let waits = Verdict::Wait { until: case.end(), why: Why::MayHaveForgotten };
    assert_eq!(case.verdict(), waits);
    assert_eq!(case.verdict_at(BEFORE(case.end())), waits);
    assert_ne!(case.verdict_at(case.end()), waits);
}

#[test]
fn the_longest_ttl_is_that_of_any_marker_of_the_fleet() {
    let mut case = Case::one_waits(3);
    case.mark(2, MarkState::Admitted, |marker| marker.max_ttl_ms = 600_000);
    let until = case.start.plus(Duration::from_millis(606_002));
    let waits = Verdict::Wait { until, why: Why::MayHaveForgotten };
    assert_eq!(case.verdict_at(case.end()), waits);
    // And what is written then says so.
    assert_eq!(case.new_marker(None).max_ttl_ms, 600_000);
}

#[test]
fn a_floor_never_falls_as_long_as_there_is_a_marker() {
    let mut case = Case::one_waits(3);
    assert_eq!(case.new_marker(None).floor, 0);
    assert_eq!(case.new_marker(Some(7)).floor, 7);
    case.mark(0, MarkState::Admitted, |marker| marker.floor = 7);
    assert_eq!(case.new_marker(None).floor, 7);
    assert_eq!(case.new_marker(Some(6)).floor, 7);
    assert_eq!(case.new_marker(Some(8)).floor, 8);
}

#[test]
fn a_client_that_asks_for_more_than_the_fleet_is_refused() {
    let mut case = Case::voting(3);
    case.mark(0, MarkState::Admitted, |marker| marker.max_ttl_ms = 59_999);
    let fleet = Duration::from_millis(59_999);
    case.is_refused(Refusal::MaxTtl { fleet, ours: MAX_TTL });
    // As long as it only waits, it waits for longer.
    case.mark(0, MarkState::Waiting, |marker| marker.max_ttl_ms = 59_999);
    assert_eq!(case.verdict_at(case.end()), Verdict::Mark);
    // One that asks for less is served.
    case.mark(0, MarkState::Admitted, |marker| marker.max_ttl_ms = 60_001);
    case.votes();
}

#[test]
fn flushed_scripts_alone_cost_no_wait() {
    let mut case = Case::voting(3);
    case.node(0).forgot_script = true;
    assert_eq!(case.verdict(), Verdict::Admit { floor: None });
    case.mark(0, MarkState::Admitted, |marker| marker.run_id = "another".to_owned());
    assert_eq!(case.verdict(), Verdict::Mark);
}

#[test]
fn a_durable_node_need_not_wait_where_that_is_trusted() {
    for (is_durable, trusts_durability, expected) in [
        (true, true, Verdict::Admit { floor: None }),
        (true, false, Verdict::Mark),
        (false, true, Verdict::Mark),
    ] {
        let mut case = Case::voting(3);
        case.mark(0, MarkState::Admitted, |marker| marker.run_id = "another".to_owned());
        case.facts(0).is_durable = is_durable;
        case.fleet.trusts_durability = trusts_durability;
        assert_eq!(case.verdict(), expected, "{is_durable} {trusts_durability}");
        // What it has on its disk is another's, or nothing, or only that it waits.
        let mut other = Case::voting(3);
        other.fleet.trusts_durability = true;
        other.facts(0).is_durable = true;
        other.mark(0, MarkState::Admitted, |marker| marker.node = NodeName::new("n1"));
        assert_eq!(other.verdict(), Verdict::Mark);
        other.mark(0, MarkState::Waiting, |marker| marker.run_id = "another".to_owned());
        assert_eq!(other.verdict(), Verdict::Mark);
        other.text(0, None);
        assert_eq!(other.verdict(), Verdict::Mark);
    }
}

#[test]
fn another_list_of_nodes_is_another_fleet() {
    let mut case = Case::voting(3);
    case.mark(0, MarkState::Admitted, |marker| marker.members = "n0,n1,n3".to_owned());
    case.is_refused(Refusal::OtherMembers("n0,n1,n3".to_owned()));
    case.fleet.is_new = true;
    assert_eq!(case.verdict(), Verdict::Mark, "it is taken over");
    // But not back again.
    case.sight.had_own = vec![true; 3];
    case.is_refused(Refusal::OtherMembers("n0,n1,n3".to_owned()));
    // In which order they are listed does not matter.
    let mut case = Case::voting(3);
    case.fleet.names.reverse();
    assert_eq!(members(&case.fleet.names), "n0,n1,n2");
}

#[test]
fn what_is_no_marker_is_not_written_over() {
    let mut case = Case::voting(3);
    case.text(0, Some("x"));
    case.is_refused(Refusal::NoMarker("q:marker".to_owned()));
}

#[test]
fn what_cannot_be_a_node_is_refused() {
    let refused = |change: &dyn Fn(&mut Facts), expected: Refusal| {
        let mut case = Case::voting(3);
        change(case.facts(0));
        case.is_refused(expected);
    };
    refused(&|f| f.is_master = false, Refusal::Replica);
    refused(&|f| f.is_cluster = true, Refusal::Cluster);
    let other = Server::Other("dragonfly".to_owned());
    refused(&|f| f.server = other.clone(), Refusal::OtherServer("dragonfly".to_owned()));
    for old in [Server::Redis(6, 2), Server::Valkey(7, 1)] {
        refused(&|f| f.server = old.clone(), Refusal::TooOld { server: old.clone() });
    }
    refused(&|f| f.max = None, Refusal::NoNumber("q:max".to_owned()));
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let evicts = Refusal::Eviction(policy.to_owned());
        refused(&|f| f.eviction = Some(policy.to_owned()), evicts);
    }
    let forbidden =
        Refusal::Forbidden { commands: "GET, SET".to_owned(), key: "q:marker".to_owned() };
    refused(&|f| f.forbidden = ["GET", "SET"].map(str::to_owned).into(), forbidden.clone());
    for new in
        [Server::Redis(7, 0), Server::Redis(8, 0), Server::Valkey(7, 2), Server::Valkey(9, 1)]
    {
        let mut case = Case::voting(3);
        case.facts(0).server = new;
        case.votes();
    }
}

#[test]
fn an_eviction_policy_that_is_accepted_or_not_told_refuses_nobody() {
    let mut case = Case::voting(3);
    case.facts(0).eviction = None;
    case.votes();
    case.facts(0).eviction = Some("allkeys-lru".to_owned());
    case.fleet.allows_eviction = true;
    case.votes();
}

#[test]
fn one_server_under_two_names_is_one_node() {
    let mut case = Case::voting(3);
    case.facts(2).run_id = run_id(0);
    case.votes();
    let second = case.fleet.verdict(2, &case.sight, case.start);
    assert_eq!(second, Verdict::Refused(Refusal::SameServer(NodeName::new("n0"))));
    // One that has gone may be at another address now.
    case.node(0).is_reachable = false;
    assert_eq!(case.fleet.verdict(2, &case.sight, case.start), Verdict::Mark);
}

#[test]
fn after_the_wait_the_others_are_looked_at_once_more() {
    let mut case = Case::one_waits(5);
    let look = Verdict::LookAtOthers { after: case.end() };
    assert_eq!(case.verdict_at(case.end()), look);
    case.look(BEFORE(case.end()));
    assert_eq!(case.verdict_at(case.end()), look, "what was read before the end may be too old");
    case.look(case.end());
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(0) });
}

#[test]
fn the_floor_is_the_largest_number_of_enough_others_and_its_own() {
    let mut case = Case::one_waits(5);
    case.look(case.end());
    for (place, max) in [(1, 7), (2, 30), (3, 9), (4, 8)] {
        case.facts(place).max = Some(max);
    }
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(30) });
    case.facts(0).max = Some(31);
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(31) });
    // One that forgot itself, and was admitted between the two reads of a look.
    case.mark(1, MarkState::Admitted, |marker| marker.floor = 50);
    case.facts(1).max = Some(0);
    case.look(case.end());
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(50) });
    case.mark(1, MarkState::Admitted, |_| ());
    case.facts(1).max = Some(7);
    case.look(case.end());
    // Three of the four others are enough, two are not.
    case.facts(0).max = Some(0);
    case.node(2).is_reachable = false;
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(9) });
    case.node(3).is_reachable = false;
    let waits = Verdict::WaitForOthers { why: Why::MayHaveForgotten };
    assert_eq!(case.verdict_at(case.end()), waits);
}

#[test]
fn others_that_do_not_vote_themselves_do_not_count() {
    let mut case = Case::one_waits(5);
    case.look(case.end());
    case.node(1).is_reachable = false;
    case.mark(2, MarkState::Waiting, |_| ());
    let waits = Verdict::WaitForOthers { why: Why::MayHaveForgotten };
    assert_eq!(case.verdict_at(case.end()), waits);
}

#[test]
fn a_fleet_that_nobody_remembers_waits_and_begins_again_with_all_nodes() {
    let mut case = Case::unmarked(3);
    assert_eq!(case.verdict(), Verdict::Mark);
    (0..3).for_each(|place| case.mark(place, MarkState::Waiting, |_| ()));
    let waits = Verdict::Wait { until: case.end(), why: Why::NobodyRemembers };
    assert_eq!(case.verdict(), waits);
    case.look(case.end());
    case.facts(2).max = Some(12);
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(12) });
    // With fewer than all it cannot.
    case.node(2).is_reachable = false;
    let others = Verdict::WaitForOthers { why: Why::NobodyRemembers };
    assert_eq!(case.verdict_at(case.end()), others);
    // Nor with one that is there and could not be read: it may have granted any number.
    case.node(2).is_reachable = true;
    case.facts(2).forbidden = vec!["GET".to_owned()];
    case.facts(2).max = None;
    assert_eq!(case.verdict_at(case.end()), others);
}

// A client died after it had admitted two of five.
#[test]
fn a_fleet_of_which_a_minority_is_marked_needs_all_nodes() {
    let mut case = Case::unmarked(5);
    (0..3).for_each(|place| case.mark(place, MarkState::Waiting, |_| ()));
    (3..5).for_each(|place| case.mark(place, MarkState::Admitted, |_| ()));
    case.look(case.end());
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(0) });
    case.node(1).is_reachable = false;
    let others = Verdict::WaitForOthers { why: Why::MayHaveForgotten };
    assert_eq!(case.verdict_at(case.end()), others);
}

#[test]
fn a_node_alone_has_no_others() {
    let mut case = Case::unmarked(1);
    case.mark(0, MarkState::Waiting, |_| ());
    case.facts(0).max = Some(5);
    assert!(matches!(case.verdict(), Verdict::Wait { .. }));
    assert_eq!(case.verdict_at(case.end()), Verdict::Admit { floor: Some(5) });
}
