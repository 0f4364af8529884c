//! What a run prints.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    fault::{Done, Kind},
    judge::{Counts, Verdict},
};

/// What all rounds came to.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) rounds: usize,
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<String>,
    pub(crate) excused: usize,
    pub(crate) residue: usize,
    hits: BTreeMap<Kind, usize>,
}

impl Totals {
    pub(crate) fn add(&mut self, verdict: Verdict, done: &[Done], residue: usize) {
        self.rounds += 1;
        self.counts.add(verdict.counts);
        self.violations.extend(verdict.violations);
        self.excused += verdict.excused.len();
        self.residue += residue;
        for kind in done.iter().filter_map(|done| done.kind) {
            *self.hits.entry(kind).or_default() += 1;
        }
    }

    /// How often each kind of fault came: some hit several targets at the same time.
    pub(crate) fn faults(&self) -> BTreeMap<Kind, usize> {
        self.hits.iter().map(|(kind, hits)| (*kind, hits / kind.hits())).collect()
    }

    pub(crate) fn print(&self) -> String {
        let Counts {
            attempts,
            locks,
            contended,
            no_quorum,
            given_up,
            littered,
            lost,
            confirmed,
            wrongly_confirmed,
            writes,
            harmed,
            fenced,
            longest_wait,
            longest_wait_when_well,
        } = self.counts;
        let mut faults = String::new();
        for (kind, times) in self.faults() {
            write!(faults, "{kind:?} {times}, ").unwrap();
        }
        format!(
            "rounds              {}\n\
             acquisitions        {attempts}: {locks} locks, {contended} contended, {no_quorum} without \
             quorum, {given_up} given up; {littered} more of locks of its own\n\
             locks               {lost} lost, {confirmed} with a confirmed release, {wrongly_confirmed} of them wrongly, by broken \
             assumptions\n\
             faults              {}: {}\n\
             longest wait        {longest_wait:.2?}; after the last fault of a round \
             {longest_wait_when_well:.2?}\n\
             two holders         {} by broken assumptions\n\
             unfenced resource   {writes} writes, {harmed} of them undid another's\n\
             fenced resource     {fenced} refused\n\
             residue             {} keys\n\
             violations          {}",
            self.rounds,
            self.faults().values().sum::<usize>(),
            faults.trim_end_matches(", "),
            self.excused - wrongly_confirmed,
            self.residue,
            self.violations.len(),
        )
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.locks += other.locks;
        self.contended += other.contended;
        self.no_quorum += other.no_quorum;
        self.given_up += other.given_up;
        self.littered += other.littered;
        self.lost += other.lost;
        self.confirmed += other.confirmed;
        self.wrongly_confirmed += other.wrongly_confirmed;
        self.writes += other.writes;
        self.harmed += other.harmed;
        self.fenced += other.fenced;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.longest_wait_when_well = self.longest_wait_when_well.max(other.longest_wait_when_well);
    }
}
