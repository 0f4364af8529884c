//! Waiting for a lock that somebody else holds.
//!
//! Within a process the waiters of a resource queue in the order in which they came, and only the first
//! of them, the head, talks to the nodes. The heads of different processes sit in a ring: a release
//! calls the next one, and the one after it to stand in. So the lock goes round the processes, and each
//! of them is woken when it is its turn, however many wait.

mod contended;
pub(crate) mod ear;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    time::{Instant, sleep_until},
};

use self::{
    contended::Contended,
    ear::{Ears, Ring, Watch},
};
use crate::{
    backoff::Backoff,
    clock::due_after,
    error::{NodeOutcome, NodeReports},
    node::{Answer, NodeFailure, Operation},
    owner_id::{OwnerId, Seat},
    quorum::{Quorum, acquire::Order, round::Round, tally},
    resource::Key,
};

/// The longest time for which a head does not look by itself, before it is spread by a quarter.
const LOOK_AT_LATEST: Duration = Duration::from_secs(2);
/// How much later than the one who is called first the one tries who stands in for it.
const STAND_IN_AFTER: Duration = Duration::from_millis(4);
/// How much later than those who wait one tries who has just come.
const NEWCOMER_AFTER: Duration = Duration::from_millis(4);
/// After a split vote, in which nobody can have been granted.
const SPLIT: Backoff = Backoff { first: Duration::from_millis(2), cap: Duration::from_millis(200) };
/// After one who was not called has let others go first, how soon it looks again whether they are there.
const YIELD: Backoff = Backoff { first: Duration::from_millis(4), cap: Duration::from_millis(128) };
/// For how long it does so at most: others may be as new and let this one go first. And not for longer
/// than twice the time that it had to wait the last time: by then it is called if the lock goes round.
const YIELD_AT_MOST: Duration = Duration::from_millis(250);
/// How long it takes at most to ask for them.
const ASK_AT_MOST: Duration = Duration::from_millis(50);
/// How many releases that it hears of at the same time a head can tell apart.
const MAX_HEARD: usize = 8;

/// How long a head waits to hear that it will hear, before it tries.
const HEAR_FIRST: Duration = Duration::from_millis(5);

/// The queues of one `Redlock`.
#[derive(Debug)]
pub(crate) struct Queues {
    by_key: Mutex<BTreeMap<Key, Arc<AsyncMutex<Head>>>>,
    contended: Contended,
    pub(crate) ears: Ears,
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    queues: &'a Queues,
    key: Key,
    /// Taken out when the ticket is dropped.
    queue: Option<Arc<AsyncMutex<Head>>>,
}

/// What the head of a queue knows, and hands on to the next.
#[derive(Debug, Default)]
pub(crate) struct Head {
    watch: Option<Watch>,
    /// The nodes whose announcements are heard.
    listening: BTreeSet<usize>,
    /// Whether it has looked since it is told of releases.
    has_looked: bool,
    looks: usize,
    /// Votes that were split, in a row.
    splits: u32,
    /// When its turn in this process came.
    since: Option<Instant>,
    /// How often it has let others go first since then.
    yielded: u32,
}

/// Why a head tries that was not called to be the next.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// Nobody can have the lock.
    Split,
    /// It was called to stand in, by this node.
    StandIn { at: usize },
    /// It has just come: whoever waits goes first.
    Newcomer,
}

/// A release that calls this process first.
#[derive(Clone, Debug)]
struct Release {
    owner: OwnerId,
    /// The nodes that announced it.
    on: BTreeSet<usize>,
}

impl Queues {
    pub(crate) fn new(seat: Seat) -> Self {
        Self { by_key: Mutex::default(), contended: Contended::default(), ears: Ears::new(seat) }
    }

    /// Takes a place at the end of a resource's queue. It is left by dropping the ticket.
    pub(crate) fn enter(&self, key: &Key) -> Ticket<'_> {
        let mut queues = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::clone(queues.entry(key.clone()).or_default());
        Ticket { queues: self, key: key.clone(), queue: Some(queue) }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        // Given back under the lock: of two that leave together the second one sees the first gone.
        self.queue = None;
        if queues.get(&self.key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.key);
        }
    }
}

impl Ticket<'_> {
    /// Waits until all who came before have had their turn. Cancel safe: the turn passes on.
    pub(crate) async fn turn(&self) -> Option<OwnedMutexGuard<Head>> {
        let mut head = Arc::clone(self.queue.as_ref()?).lock_owned().await;
        head.begin();
        Some(head)
    }
}

impl Head {
    fn begin(&mut self) {
        self.splits = 0;
        self.yielded = 0;
        self.since = Some(Instant::now());
        // What was announced to its predecessors is not news for this one.
        while let Some(Ok(ring)) = self.watch.as_mut().map(|watch| watch.rings.try_recv()) {
            self.note(ring);
        }
    }

    /// Whose announcements are heard.
    fn note(&mut self, ring: Ring) {
        match ring {
            Ring::Listening { node } => {
                self.listening.insert(node);
            }
            Ring::Deaf { node } => {
                self.listening.remove(&node);
            }
            Ring::Free { .. } => {}
        }
    }

    /// How to try first: where others have been contending, listen before, let those go first who
    /// have waited longer, and ask one node only.
    pub(crate) async fn first_order(
        &mut self,
        queues: &Queues,
        quorum: &Quorum,
        key: &Key,
        left: Duration,
    ) -> Order {
        if queues.contended.lately(key).is_none() {
            return Order::All;
        }
        let by = due_after(HEAR_FIRST);
        self.listen(queues, key);
        while self.listening.len() < quorum.size() {
            let Some(watch) = &mut self.watch else { break };
            tokio::select! {
                biased;
                ring = watch.rings.recv() => match ring {
                    Some(ring) => self.note(ring),
                    None => break,
                },
                () = sleep_until(by) => break,
            }
        }
        self.has_looked = self.listening.len() >= quorum.size();
        let turn = Some((due_after(NEWCOMER_AFTER), Turn::Newcomer));
        self.wait_until_free(queues, quorum, key, Duration::MAX, left, turn).await
    }

    /// Whether others wait for their turn, as far as this node knows.
    async fn others_wait(&self, quorum: &Quorum, key: &Key, place: usize, until: Instant) -> bool {
        let besides = u32::from(self.listening.contains(&place));
        let question = Operation::Waiters { key: key.clone(), besides };
        let limit = until.saturating_duration_since(Instant::now()).min(ASK_AT_MOST);
        let said = Round::ask_one(quorum, place, question, limit).await;
        matches!(said, NodeOutcome::Answered(Answer::Taken { .. }))
    }

    /// Looks whether others wait for their turn; then they have been called, or will be, and this one with
    /// them. When it is to look again, if they do.
    async fn let_others_go_first(
        &mut self,
        queues: &Queues,
        quorum: &Quorum,
        key: &Key,
        place: usize,
        end: Instant,
    ) -> Option<(Instant, Turn)> {
        let waited = queues.contended.lately(key).unwrap_or_default();
        let until = self.since?.checked_add(waited.saturating_mul(2).min(YIELD_AT_MOST))?;
        if Instant::now() >= until || !self.others_wait(quorum, key, place, end).await {
            return None;
        }
        self.yielded = self.yielded.saturating_add(1);
        let again = YIELD.random_delay(self.yielded, &quorum.entropy);
        Some((due_after(again).min(until), Turn::Newcomer))
    }

    /// Its process has the lock.
    pub(crate) fn got_in(&self, queues: &Queues, key: &Key) {
        if let Some(since) = self.since {
            queues.contended.note_wait(key, since.elapsed());
        }
    }

    fn listen(&mut self, queues: &Queues, key: &Key) {
        if self.watch.is_none() {
            self.listening.clear();
            self.has_looked = false;
            self.watch = Some(queues.ears.watch(key));
        }
    }

    /// Waits until it is worth another try, at most for `left`, and says how to try.
    pub(crate) async fn wait(
        &mut self,
        queues: &Queues,
        quorum: &Quorum,
        key: &Key,
        nodes: &NodeReports,
        left: Duration,
    ) -> Order {
        queues.contended.note(key);
        self.listen(queues, key);
        let retry = if is_split(nodes) {
            self.splits = self.splits.saturating_add(1);
            Some((due_after(SPLIT.random_delay(self.splits, &quorum.entropy)), Turn::Split))
        } else {
            self.splits = 0;
            None
        };
        self.wait_until_free(queues, quorum, key, free_after(nodes), left, retry).await
    }

    /// Waits for a release, or until `free_after` by itself, or for its `turn`.
    async fn wait_until_free(
        &mut self,
        queues: &Queues,
        quorum: &Quorum,
        key: &Key,
        free_after: Duration,
        left: Duration,
        mut turn: Option<(Instant, Turn)>,
    ) -> Order {
        let end = due_after(left);
        let free_after = free_after.min(LOOK_AT_LATEST);
        let spread = quorum.entropy.percent().saturating_add(400);
        let free_after = free_after.saturating_mul(spread).checked_div(400).unwrap_or(free_after);
        let is_last = left <= free_after;
        let look = due_after(free_after.max(STAND_IN_AFTER).min(left));
        let first = quorum.first_voting();
        let mut heard: VecDeque<Release> = VecDeque::new();
        loop {
            let Some(watch) = &mut self.watch else { return Order::All };
            let ring = tokio::select! {
                biased;
                ring = watch.rings.recv() => ring,
                turn_of = at(turn) => match turn_of {
                    Turn::Split => return Order::First(first),
                    Turn::StandIn { at } => return Order::First(at),
                    Turn::Newcomer => match self.let_others_go_first(queues, quorum, key, first, end).await {
                        None => return Order::First(first),
                        again => {
                            turn = again;
                            continue;
                        }
                    },
                },
                // The last time: whoever reads why not wants to know it of every node.
                () = sleep_until(look), if is_last => return Order::All,
                () = sleep_until(look) => {
                    // Another one each time: one node with something left over keeps nobody out.
                    self.looks = self.looks.wrapping_add(1);
                    return Order::First(quorum.voting_after(first, self.looks));
                }
            };
            match ring {
                // The ears are closed, and so is the rest.
                None => return Order::All,
                Some(ring @ (Ring::Listening { .. } | Ring::Deaf { .. })) => {
                    self.note(ring);
                    if !self.has_looked && self.listening.len() >= quorum.size() {
                        // What was released before that was not heard.
                        self.has_looked = true;
                        turn.get_or_insert((Instant::now(), Turn::Newcomer));
                    }
                }
                // Called by one node only, and later than the one who is next.
                Some(Ring::Free { node, rank: 1.., .. }) => {
                    turn = Some((due_after(STAND_IN_AFTER), Turn::StandIn { at: node }));
                }
                Some(Ring::Free { node, owner, sharing, .. }) => {
                    // Where one process alone is called it may ask all at once.
                    if announced(&mut heard, owner, node) == quorum.size() {
                        return if sharing <= 1 { Order::All } else { Order::First(first) };
                    }
                }
            }
        }
    }
}

/// By how many nodes this owner's release has been announced, with this one.
fn announced(heard: &mut VecDeque<Release>, owner: OwnerId, node: usize) -> usize {
    let known = heard.iter().position(|release| release.owner == owner);
    let known = known.and_then(|place| heard.remove(place));
    let mut release = known.unwrap_or(Release { owner, on: BTreeSet::new() });
    release.on.insert(node);
    let nodes = release.on.len();
    heard.push_back(release);
    if heard.len() > MAX_HEARD {
        heard.pop_front();
    }
    nodes
}

/// Whether nobody can have been granted: too few nodes said that they are another's. Nodes that were not
/// asked are likely to be as the one that refused.
fn is_split(nodes: &NodeReports) -> bool {
    let is_taken = |outcome: &NodeOutcome| {
        matches!(
            outcome,
            NodeOutcome::Answered(Answer::Taken { .. })
                | NodeOutcome::Failed(NodeFailure::NotAsked)
        )
    };
    let taken = nodes.iter().filter(|report| is_taken(&report.outcome)).count();
    taken < tally::quorum(nodes.iter().count())
}

/// When a quorum of nodes is likely to be free, by what they said. Nodes that were not asked, because
/// one had refused before, are likely to be as that one.
fn free_after(nodes: &NodeReports) -> Duration {
    let of_one = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Answered(Answer::Taken { remaining }) => {
            Some(remaining.unwrap_or(Duration::MAX))
        }
        NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::Missing) => {
            Some(Duration::ZERO)
        }
        NodeOutcome::Failed(NodeFailure::NotAsked) => None,
        NodeOutcome::Pending | NodeOutcome::Failed(_) => Some(Duration::MAX),
    };
    let answers = nodes.iter().map(|report| of_one(&report.outcome));
    let likely = answers.clone().flatten().max().unwrap_or(Duration::MAX);
    let mut free: Vec<Duration> = answers.map(|after| after.unwrap_or(likely)).collect();
    free.sort_unstable();
    let quorum = tally::quorum(free.len()).saturating_sub(1);
    free.get(quorum).copied().unwrap_or(Duration::MAX)
}

async fn at(turn: Option<(Instant, Turn)>) -> Turn {
    let Some((moment, turn)) = turn else { return std::future::pending().await };
    sleep_until(moment).await;
    turn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::NodeReport, node::NodeName};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn reports(outcomes: &[NodeOutcome]) -> NodeReports {
        let report = |outcome: &NodeOutcome| NodeReport {
            node: NodeName::new("n"),
            outcome: outcome.clone(),
        };
        NodeReports(outcomes.iter().map(report).collect())
    }

    fn taken(ms: u64) -> NodeOutcome {
        NodeOutcome::Answered(Answer::Taken { remaining: Some(MS(ms)) })
    }

    #[test]
    fn a_quorum_is_free_when_the_last_node_that_it_takes_is() {
        let done = NodeOutcome::Answered(Answer::Done);
        let down = NodeOutcome::Failed(NodeFailure::Unresponsive);
        assert_eq!(free_after(&reports(&[taken(300), taken(100), taken(200)])), MS(200));
        assert_eq!(free_after(&reports(&[taken(300), done.clone(), done])), MS(0));
        assert_eq!(free_after(&reports(&[taken(300), taken(100), down.clone()])), MS(300));
        assert_eq!(free_after(&reports(&[taken(300), down.clone(), down])), Duration::MAX);
        let not_asked = NodeOutcome::Failed(NodeFailure::NotAsked);
        assert_eq!(free_after(&reports(&[not_asked.clone(), taken(20), not_asked])), MS(20));
    }

    #[test]
    fn a_vote_is_split_when_nobody_can_have_a_majority() {
        let done = NodeOutcome::Answered(Answer::Done);
        let down = NodeOutcome::Failed(NodeFailure::Unresponsive);
        let not_asked = NodeOutcome::Failed(NodeFailure::NotAsked);
        assert!(is_split(&reports(&[taken(1), done.clone(), down.clone()])));
        assert!(is_split(&reports(&[taken(1), taken(1), done.clone(), done.clone(), down])));
        assert!(!is_split(&reports(&[taken(1), taken(1), done])));
        assert!(!is_split(&reports(&[taken(1), not_asked.clone(), not_asked])));
    }

    #[test]
    fn releases_are_told_apart_and_not_remembered_for_ever() {
        let mut heard = VecDeque::new();
        let owners: Vec<OwnerId> = (0..100).map(|_| OwnerId::random()).collect();
        for owner in &owners {
            assert_eq!(announced(&mut heard, *owner, 1), 1);
            assert_eq!(announced(&mut heard, *owner, 1), 1);
            assert_eq!(announced(&mut heard, *owner, 2), 2);
        }
        assert_eq!(heard.len(), MAX_HEARD);
        assert!(heard.iter().all(|release| release.on.len() == 2));
    }
}
