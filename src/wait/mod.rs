//! Waiting for a lock that somebody else holds.
//!
//! Within a process the waiters of a resource queue in the order in which they came, and only the first
//! of them, the head, talks to the nodes. Between processes nobody is in charge of the order; but each
//! head counts the releases that it has waited through, and lets those go first that have waited
//! through more. So the order is nearly that of arrival, and few try at a time.

pub(crate) mod ear;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    time::{Instant, sleep_until},
};

use self::ear::{Ears, Ring, Watch};
use crate::{
    clock::due_after,
    error::{NodeOutcome, NodeReports},
    node::{Answer, NodeFailure},
    quorum::{Quorum, acquire::Order, tally},
    resource::Key,
};

/// The longest time for which a head does not look by itself, before it is spread by a quarter.
const LOOK_AT_LATEST: Duration = Duration::from_secs(2);
/// After a release, how much later than its predecessor the next in line tries.
const TURN: Duration = Duration::from_millis(1);

/// For so long after somebody had to wait for it, a lock is expected to be contended still.
const STILL_CONTENDED: Duration = Duration::from_secs(1);
const MAX_CONTENDED: usize = 1_024;
/// How long a head waits to hear that it will hear, before it tries.
const HEAR_FIRST: Duration = Duration::from_millis(5);

/// The queues of one `Redlock`.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_key: Mutex<BTreeMap<Key, Arc<AsyncMutex<Head>>>>,
    /// What was contended, and when last.
    contended: Mutex<BTreeMap<Key, Instant>>,
    pub(crate) ears: Ears,
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    queues: &'a Queues,
    key: Key,
    queue: Arc<AsyncMutex<Head>>,
}

/// What the head of a queue knows, and hands on to the next.
#[derive(Debug, Default)]
pub(crate) struct Head {
    watch: Option<Watch>,
    listening: usize,
    /// Whether it has looked since it is told of releases.
    has_looked: bool,
    /// How often each node announced a release since this head is the head.
    heard: BTreeMap<usize, u32>,
    looks: usize,
}

impl Queues {
    /// Takes a place at the end of a resource's queue. It is left by dropping the ticket.
    pub(crate) fn enter(&self, key: &Key) -> Ticket<'_> {
        let mut queues = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::clone(queues.entry(key.clone()).or_default());
        Ticket { queues: self, key: key.clone(), queue }
    }
}

impl Queues {
    fn note_contention(&self, key: &Key) {
        let mut contended = self.contended.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if contended.len() >= MAX_CONTENDED {
            contended.retain(|_, last| now.saturating_duration_since(*last) < STILL_CONTENDED);
        }
        contended.insert(key.clone(), now);
    }

    fn is_contended(&self, key: &Key) -> bool {
        let contended = self.contended.lock().unwrap_or_else(PoisonError::into_inner);
        contended.get(key).is_some_and(|last| last.elapsed() < STILL_CONTENDED)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's and ours: nobody else is in the queue.
        if Arc::strong_count(&self.queue) <= 2 {
            queues.remove(&self.key);
        }
    }
}

impl Ticket<'_> {
    /// Waits until all who came before have had their turn. Cancel safe: the turn passes on.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<Head> {
        let mut head = Arc::clone(&self.queue).lock_owned().await;
        head.begin();
        head
    }
}

impl Head {
    fn begin(&mut self) {
        self.heard.clear();
        // What was announced to its predecessors is not news for this one.
        while let Some(Ok(ring)) = self.watch.as_mut().map(|watch| watch.rings.try_recv()) {
            self.listening =
                self.listening.saturating_add(usize::from(matches!(ring, Ring::Listening)));
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
        if !queues.is_contended(key) {
            return Order::All;
        }
        let by = due_after(HEAR_FIRST);
        self.listen(queues, key);
        while self.listening < quorum.size() {
            let Some(watch) = &mut self.watch else { break };
            tokio::select! {
                biased;
                ring = watch.rings.recv() => match ring {
                    Some(Ring::Listening) => self.listening = self.listening.saturating_add(1),
                    Some(Ring::Free { .. }) => {}
                    None => break,
                },
                () = sleep_until(by) => break,
            }
        }
        self.has_looked = self.listening >= quorum.size();
        let newcomer = Some(due_after(TURN.saturating_mul(2)));
        self.wait_until_free(quorum, Duration::MAX, left, newcomer).await
    }

    fn listen(&mut self, queues: &Queues, key: &Key) {
        if self.watch.is_none() {
            self.listening = 0;
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
        queues.note_contention(key);
        self.listen(queues, key);
        self.wait_until_free(quorum, free_after(nodes), left, None).await
    }

    /// Waits for a release, or until `free_after` by itself, or for its `turn`.
    async fn wait_until_free(
        &mut self,
        quorum: &Quorum,
        free_after: Duration,
        left: Duration,
        mut turn: Option<Instant>,
    ) -> Order {
        let free_after = free_after.min(LOOK_AT_LATEST);
        let spread = quorum.entropy.percent().saturating_add(400);
        let free_after = free_after.saturating_mul(spread).checked_div(400).unwrap_or(free_after);
        let is_last = left <= free_after;
        let look = due_after(free_after.max(TURN).min(left));
        let first = quorum.first_voting();
        let mut free_on: Vec<usize> = Vec::new();
        loop {
            let Some(watch) = &mut self.watch else { return Order::All };
            let ring = tokio::select! {
                biased;
                ring = watch.rings.recv() => ring,
                () = at(turn) => return Order::First(first),
                // The last time: whoever reads why not wants to know it of every node.
                () = sleep_until(look), if is_last => return Order::All,
                () = sleep_until(look) => {
                    // Another one each time: one node with something left over keeps nobody out.
                    self.looks = self.looks.wrapping_add(1);
                    return Order::First(quorum.voting_after(first, self.looks));
                }
            };
            match ring {
                // The ears are closed, by a shutdown: the next attempt says so.
                None => return Order::All,
                Some(Ring::Listening) => {
                    self.listening = self.listening.saturating_add(1);
                    if !self.has_looked && self.listening >= quorum.size() {
                        // What was released before that was not heard.
                        self.has_looked = true;
                        return Order::First(first);
                    }
                }
                Some(Ring::Free { node, listeners }) => {
                    let heard = self.heard.entry(node).or_default();
                    *heard = heard.saturating_add(1);
                    if !free_on.contains(&node) {
                        free_on.push(node);
                    }
                    // It is free where it will be asked first, or on a majority.
                    if node == first || free_on.len() >= quorum.size() {
                        let heard = self.heard.values().copied().max().unwrap_or(0);
                        turn = Some(due_after(TURN.saturating_mul(turns_before(listeners, heard))));
                    }
                }
            }
        }
    }
}

/// How many others are likely to have waited longer: of those that listen one has just released, and
/// one is this one; each release that this one has waited through let one of them in.
fn turns_before(listeners: u32, heard: u32) -> u32 {
    listeners.saturating_sub(2).saturating_sub(heard)
}

/// When a quorum of nodes is likely to be free, by what they said. Nodes that were not asked, because
/// one had refused before, are likely to be as that one.
fn free_after(nodes: &NodeReports) -> Duration {
    let of_one = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Answered(Answer::Taken { remaining }) => {
            Some(remaining.unwrap_or(Duration::MAX))
        }
        NodeOutcome::Answered(Answer::Done | Answer::Missing) => Some(Duration::ZERO),
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

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
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
    fn who_has_waited_through_more_releases_tries_first() {
        // Ten listen: one has just released, nine wait.
        let turns: Vec<u32> = (0..10).map(|heard| turns_before(10, heard)).collect();
        assert_eq!(turns, [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]);
        assert_eq!(turns_before(1, 1), 0);
    }
}
