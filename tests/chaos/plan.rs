//! What is to happen when: a value that follows from the seed.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    assumptions::breaks,
    fault::{Action, Kind, Target},
};

/// How many seconds of faults a round has, at about.
const ROUND_S: u64 = 20;
/// What a round needs besides: the masters and the clients come to rest.
const REST_S: u64 = 4;
/// Between the end of a fault and the next on the same target.
const GAP_MS: u64 = 200;
/// How often another place is tried for a fault that does not fit.
const TRIES: usize = 40;

/// Faults for a time, after which all is healed and looked at.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// Whether faults may break what mutual exclusion rests on.
    pub(crate) breaks_assumptions: bool,
    /// Whether clients are killed, which leaves their keys to the ttl.
    pub(crate) kills_clients: bool,
    pub(crate) lasts_ms: u64,
    /// For each target what is done to it, in order of time, in milliseconds from the beginning.
    pub(crate) tracks: BTreeMap<Target, Vec<Step>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) at_ms: u64,
    pub(crate) action: Action,
    /// Of the fault that begins with this step.
    pub(crate) kind: Option<Kind>,
}

/// What the masters allow for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) has_clocks: bool,
}

impl Terms {
    pub(crate) fn kinds(self) -> Vec<Kind> {
        let all = Kind::ALL.into_iter();
        all.filter(|kind| self.has_clocks || !kind.moves_clocks()).collect()
    }
}

/// The rounds of a run of so many seconds.
pub(crate) fn rounds(seed: u64, seconds: u64, terms: Terms) -> Vec<Round> {
    let count = (seconds / (ROUND_S + REST_S)).max(1);
    let lasts_ms = (seconds * 1_000 / count).saturating_sub(REST_S * 1_000).max(2_000);
    let mut planner = Planner {
        rng: StdRng::seed_from_u64(seed),
        terms,
        deck: Vec::new(),
        unused: terms.kinds(),
    };
    (0..count).map(|number| planner.round(number, lasts_ms)).collect()
}

struct Planner {
    rng: StdRng,
    terms: Terms,
    /// Kinds to come, so that each comes about as often as the others.
    deck: Vec<Kind>,
    /// Kinds that no round has had yet: they come first.
    unused: Vec<Kind>,
}

impl Planner {
    fn round(&mut self, number: u64, lasts_ms: u64) -> Round {
        let mut round = Round {
            breaks_assumptions: number % 3 == 1,
            kills_clients: number % 2 == 1,
            lasts_ms,
            tracks: BTreeMap::new(),
        };
        // Somewhat more than one in a second. Not all are allowed, and not all that are find a place.
        let wanted = usize::try_from(lasts_ms / 800).unwrap();
        let mut placed = 0;
        for _ in 0..wanted * 5 {
            let kind = self.draw(&round);
            if placed < wanted && round.allows(kind) && self.place(kind, &mut round) {
                self.unused.retain(|other| *other != kind);
                placed += 1;
            }
        }
        for track in round.tracks.values_mut() {
            track.sort_by_key(|step| step.at_ms);
        }
        round
    }

    fn draw(&mut self, round: &Round) -> Kind {
        // What breaks assumptions comes in few rounds, and then often.
        if round.breaks_assumptions && self.rng.random_ratio(1, 2) {
            let mut breaking = self.terms.kinds();
            breaking.retain(|kind| breaks(kind.onset(99)));
            // Those first that have not been there yet; then what lets others in at once.
            if let Some(kind) = breaking.iter().find(|kind| self.unused.contains(kind)) {
                return *kind;
            }
            breaking.retain(|kind| !kind.keeps_out());
            return breaking[self.rng.random_range(0..breaking.len())];
        }
        if self.deck.is_empty() {
            self.deck = self.terms.kinds();
            for place in (1..self.deck.len()).rev() {
                self.deck.swap(place, self.rng.random_range(0..=place));
            }
            let unused = &self.unused;
            self.deck.sort_by_key(|kind| unused.contains(kind));
        }
        self.deck.pop().unwrap()
    }

    /// Finds a time and targets that are free then.
    fn place(&mut self, kind: Kind, round: &mut Round) -> bool {
        let rng = &mut self.rng;
        for _ in 0..TRIES {
            let lasts = if kind.relief().is_some() { kind.lasts_ms(rng) } else { 0 };
            let Some(latest) = round.lasts_ms.checked_sub(lasts) else { continue };
            let at = rng.random_range(0..=latest);
            let mut targets = kind.targets(rng);
            targets.retain(|target| round.is_free(*target, at, at + lasts));
            if targets.len() < kind.hits() {
                continue;
            }
            let onset = kind.onset(rng.random_range(0..=99));
            for _ in 0..kind.hits() {
                let target = targets.swap_remove(rng.random_range(0..targets.len()));
                let track = round.tracks.entry(target).or_default();
                track.push(Step { at_ms: at, action: onset, kind: Some(kind) });
                let relief = kind.relief();
                track.extend(relief.map(|action| Step { at_ms: at + lasts, action, kind: None }));
            }
            return true;
        }
        false
    }
}

impl Round {
    fn allows(&self, kind: Kind) -> bool {
        let is_breaking = breaks(kind.onset(99));
        // What keeps everybody out would keep out those as well who are to get in wrongly.
        let fits =
            if self.breaks_assumptions { is_breaking || !kind.keeps_out() } else { !is_breaking };
        fits && (self.kills_clients || kind != Kind::KillClient)
    }

    /// Whether nothing is done to the target in that time: steps come in pairs, but for those that are
    /// over at once.
    fn is_free(&self, target: Target, from: u64, until: u64) -> bool {
        let Some(track) = self.tracks.get(&target) else { return true };
        let mut steps = track.iter().peekable();
        while let Some(step) = steps.next() {
            let has_relief = step.kind.is_some_and(|kind| kind.relief().is_some());
            let end =
                if has_relief { steps.next().map_or(step.at_ms, |s| s.at_ms) } else { step.at_ms };
            if from < end + GAP_MS && step.at_ms < until + GAP_MS {
                return false;
            }
        }
        true
    }
}
