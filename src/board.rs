//! What a client knows of its fleet: one board for all lanes, on which each writes what it sees of its
//! node, and from which each reads what its node is to do.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures::task::AtomicWaker;

use crate::{
    admission::{Fleet, Seen, Sight, Verdict},
    clock::{Clock, Moment},
    entropy::Entropy,
    node::{Ballot, Facts, FleetKeys, MarkState, Marker},
};

/// Tells one lane of news: once, however often it rang meanwhile. A lane asks at each of its turns, for which a
/// `Notify` takes a lock twice.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rang: AtomicBool,
    lane: AtomicWaker,
}

impl Bell {
    fn ring(&self) {
        self.rang.store(true, Ordering::Release);
        self.lane.wake();
    }

    /// Whether it rang since it was asked last. If not, whoever asks is woken when it does.
    pub(crate) fn poll_rang(&self, context: &Context<'_>) -> Poll<()> {
        // First: what rings between this and the next line is not missed.
        self.lane.register(context.waker());
        if self.rang.swap(false, Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[derive(Debug)]
pub(crate) struct Board {
    fleet: Fleet,
    clock: Clock,
    entropy: Entropy,
    sight: Mutex<Sight>,
    /// One for each lane.
    news: Vec<Arc<Bell>>,
}

impl Board {
    pub(crate) fn new(fleet: Fleet, clock: Clock, entropy: Entropy) -> Self {
        let nodes = fleet.names.len();
        let sight =
            Sight { nodes: vec![None; nodes], unreachable: vec![false; nodes], ..Sight::default() };
        let news = (0..nodes).map(|_| Arc::default()).collect();
        Self { fleet, clock, entropy, sight: Mutex::new(sight), news }
    }

    fn sight(&self) -> MutexGuard<'_, Sight> {
        self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys of the fleet on each node.
    pub(crate) fn keys(&self) -> &FleetKeys {
        &self.fleet.keys
    }

    /// What a node is asked with that has the marker of this id and with this floor.
    pub(crate) fn ballot(&self, mark: &str, floor: u64) -> Ballot {
        Ballot::new(self.fleet.keys.clone(), mark, &self.fleet.members, floor)
    }

    /// Whether another node needs to know what this one has granted by now.
    pub(crate) fn wants_look(&self, place: usize) -> bool {
        let sight = self.sight();
        let seen = sight.nodes.get(place).and_then(Option::as_ref);
        seen.is_some_and(|seen| sight.look_after.is_some_and(|after| seen.asked_at < after))
    }

    /// Whether it has to be asked how durable a node is.
    pub(crate) fn wants_durability(&self) -> bool {
        self.fleet.trusts_durability
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Tells the lane of this place that something has changed that was seen of any node.
    pub(crate) fn news(&self, place: usize) -> Arc<Bell> {
        self.news.get(place).map(Arc::clone).unwrap_or_default()
    }

    fn tell_all(&self) {
        self.news.iter().for_each(|news| news.ring());
    }

    /// A look at a node has ended just now, that was asked for at `asked_at`.
    pub(crate) fn note(
        &self,
        place: usize,
        mut facts: Facts,
        asked_at: Moment,
        forgot_script: bool,
    ) {
        let now = self.now();
        let mut sight = self.sight();
        let before = sight.nodes.get_mut(place).and_then(Option::take);
        // A right that is gone says nothing about what the node remembers.
        if let Some(before) = before.as_ref().filter(|_| !facts.may_read()) {
            facts.marker.clone_from(&before.facts.marker);
        }
        let same = before
            .filter(|seen| seen.facts.run_id == facts.run_id && seen.facts.marker == facts.marker);
        let since = same.as_ref().map_or(now, |seen| seen.since);
        let marker = match &same {
            Some(same) => same.marker.clone(),
            None => facts.marker.as_deref().and_then(Marker::parse),
        };
        let seen = Seen { marker, since, asked_at, facts, is_reachable: true, forgot_script };
        let was_wanted = sight.look_after.is_some_and(|after| {
            asked_at >= after && same.as_ref().is_none_or(|same| same.asked_at < after)
        });
        let is_news =
            was_wanted || same.is_none_or(|same| !same.is_reachable || same.facts != seen.facts);
        if let Some(slot) = sight.nodes.get_mut(place) {
            *slot = Some(seen);
        }
        if let Some(unreachable) = sight.unreachable.get_mut(place) {
            *unreachable = false;
        }
        let had_founded = sight.founded.is_some();
        self.fleet.found(&mut sight, now);
        let is_news = is_news || had_founded != sight.founded.is_some();
        drop(sight);
        if is_news {
            self.tell_all();
        }
    }

    /// A marker has been written on a node, and else it is as it was seen.
    pub(crate) fn note_marker(&self, place: usize, marker: &Marker) {
        let seen = self.sight().nodes.get(place).cloned().flatten();
        if let Some(Seen { facts, asked_at, .. }) = seen {
            let facts = Facts { marker: Some(marker.to_string()), ..facts };
            self.note(place, facts, asked_at, false);
        }
    }

    /// A node has no connection, and an attempt to have one has failed.
    pub(crate) fn cannot_reach(&self, place: usize) {
        let now = self.now();
        let mut sight = self.sight();
        if let Some(Some(seen)) = sight.nodes.get_mut(place) {
            seen.is_reachable = false;
        }
        let is_news = sight.unreachable.get_mut(place).is_some_and(|unreachable| {
            let is_news = !*unreachable;
            *unreachable = true;
            is_news
        });
        self.fleet.found(&mut sight, now);
        drop(sight);
        if is_news {
            self.tell_all();
        }
    }

    /// What the node of this place is to do now.
    pub(crate) fn verdict(&self, place: usize) -> Verdict {
        let now = self.now();
        let mut sight = self.sight();
        self.fleet.found(&mut sight, now);
        let verdict = self.fleet.verdict(place, &sight, now);
        if let Verdict::LookAtOthers { after } = verdict {
            let is_news = sight.look_after.is_none_or(|before| before < after);
            if is_news {
                sight.look_after = Some(after);
                drop(sight);
                self.tell_all();
            }
        }
        verdict
    }

    /// The marker to write on the node of this place, and the one that it takes the place of.
    pub(crate) fn new_marker(
        &self,
        place: usize,
        state: MarkState,
        floor: Option<u64>,
    ) -> Option<(Option<String>, Marker)> {
        let id = format!("{:032x}", self.entropy.bits());
        let sight = self.sight();
        let seen = sight.nodes.get(place)?.as_ref()?.facts.marker.clone();
        Some((seen, self.fleet.new_marker(place, &sight, (state, floor), id)?))
    }
}
