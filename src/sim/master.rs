//! One simulated server: its keys, its clock, its disk. Pure: time comes in as an argument.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    fence::counters::{STEP, ahead},
    node::{
        Answer, Ballot, FleetKeys, MarkState, Marker, NodeFailure, Operation, Outcome, SendAs,
        script::Script,
    },
    resource::Key,
};

/// What of its keys a server finds again after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persistence {
    /// Nothing: no append-only file.
    #[default]
    None,
    /// Everything but what was written in the last moments before the crash (`appendfsync everysec`).
    EverySec,
    /// Everything that it acknowledged (`appendfsync always`).
    Always,
}

/// The wall clock of one server.
#[derive(Clone, Copy, Debug, Default)]
struct WallClock {
    offset_ms: i64,
    ppm: i32,
}

/// An arbitrary date, so that a clock that jumps back stays positive.
const EPOCH_MS: i64 = 1_700_000_000_000;

impl WallClock {
    fn at(self, true_time: Duration) -> i64 {
        let true_ms = i64::try_from(true_time.as_millis()).unwrap_or(i64::MAX);
        let drift = true_ms.saturating_mul(i64::from(self.ppm)).saturating_div(1_000_000);
        EPOCH_MS.saturating_add(true_ms).saturating_add(drift).saturating_add(self.offset_ms)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// `None`: the key holds something that is not a string.
    text: Option<String>,
    expires_ms: Option<i64>,
}

type Keys = BTreeMap<String, Entry>;

/// One server.
#[derive(Debug)]
pub(super) struct Master {
    wall: WallClock,
    persistence: Persistence,
    keys: Keys,
    /// Writes of the last moments, which `everysec` may lose.
    recent: Vec<(Duration, String, Option<Entry>)>,
    disk: Keys,
    scripts: Vec<Script>,
    /// The ids in the texts of the acquires that are known.
    ballots: BTreeSet<String>,
    pub(super) run: u32,
    pub(super) step: u64,
}

/// How much of the last moments is on the disk with `everysec`: writes older than this.
const EVERYSEC_WINDOW: Duration = Duration::from_secs(1);

impl Master {
    pub(super) fn new(persistence: Persistence) -> Self {
        Self {
            wall: WallClock::default(),
            persistence,
            keys: Keys::new(),
            recent: Vec::new(),
            disk: Keys::new(),
            scripts: Vec::new(),
            ballots: BTreeSet::new(),
            run: 1,
            step: STEP,
        }
    }

    pub(super) fn set_persistence(&mut self, persistence: Persistence) {
        if self.persistence != persistence {
            // Turning it on writes out what is there.
            self.disk.clone_from(&self.keys);
            self.recent.clear();
        }
        self.persistence = persistence;
    }

    /// What has expired is gone, and does not come back with a clock that is set back.
    fn expire(&mut self, now: Duration) {
        let wall = self.wall.at(now);
        let expired = self.keys.iter().filter(|(_, entry)| is_expired(entry, wall));
        for key in expired.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.write(&key, None, now);
        }
    }

    pub(super) fn jump_clock(&mut self, ms: i64, now: Duration) {
        self.expire(now);
        self.wall.offset_ms = self.wall.offset_ms.saturating_add(ms);
    }

    /// Changes the clock's rate from `now` on, without a jump.
    pub(super) fn set_clock_rate(&mut self, ppm: i32, now: Duration) {
        let before = self.wall.at(now);
        self.wall.ppm = ppm;
        let jump = before.saturating_sub(self.wall.at(now));
        self.wall.offset_ms = self.wall.offset_ms.saturating_add(jump);
    }

    pub(super) fn load_scripts(&mut self) {
        self.scripts = vec![Script::Extend, Script::Release];
    }

    pub(super) fn flush_scripts(&mut self) {
        self.scripts.clear();
        self.ballots.clear();
    }

    /// Stops at once. Whether something that was acknowledged is lost.
    pub(super) fn crash(&mut self, now: Duration) -> bool {
        let kept = match self.persistence {
            Persistence::None => Keys::new(),
            Persistence::Always => self.keys.clone(),
            Persistence::EverySec => {
                self.write_back(now);
                self.disk.clone()
            }
        };
        let wall = self.wall.at(now);
        let live = |keys: &Keys| -> Keys {
            let live = keys.iter().filter(|(_, entry)| !is_expired(entry, wall));
            live.map(|(key, entry)| (key.clone(), entry.clone())).collect()
        };
        let lost = live(&self.keys) != live(&kept);
        self.keys.clone_from(&kept);
        self.disk = kept;
        self.recent.clear();
        self.flush_scripts();
        lost
    }

    /// Starts again after a crash, as another process.
    pub(super) fn restart(&mut self) {
        self.run = self.run.saturating_add(1);
    }

    pub(super) fn flush_all(&mut self, now: Duration) -> bool {
        let keys: Vec<String> = self.keys(now).into_keys().collect();
        for key in &keys {
            self.write(key, None, now);
        }
        !keys.is_empty()
    }

    /// The live keys with their values; a value that is not a string is shown as such.
    pub(super) fn keys(&self, now: Duration) -> BTreeMap<String, String> {
        let wall = self.wall.at(now);
        let live = self.keys.iter().filter(|(_, entry)| !is_expired(entry, wall));
        live.map(|(key, entry)| {
            (key.clone(), entry.text.clone().unwrap_or_else(|| "(not a string)".to_owned()))
        })
        .collect()
    }

    /// As `PTTL`: -2 no such key, -1 no ttl.
    pub(super) fn pttl(&self, key: &str, now: Duration) -> i64 {
        let wall = self.wall.at(now);
        match self.get(key, now) {
            None => -2,
            Some(Entry { expires_ms: None, .. }) => -1,
            Some(Entry { expires_ms: Some(at), .. }) => at.saturating_sub(wall).max(0),
        }
    }

    /// Sets a key from outside. `text: None` makes it something other than a string.
    pub(super) fn set(
        &mut self,
        key: &str,
        text: Option<&str>,
        ttl_ms: Option<u64>,
        now: Duration,
    ) {
        let expires_ms = ttl_ms.map(|ttl_ms| self.expiry(ttl_ms, now));
        let entry = Entry { text: text.map(str::to_owned), expires_ms };
        self.write(key, Some(entry), now);
    }

    pub(super) fn delete(&mut self, key: &str, now: Duration) -> bool {
        let existed = self.get(key, now).is_some();
        self.write(key, None, now);
        existed
    }

    fn expiry(&self, ttl_ms: u64, now: Duration) -> i64 {
        self.wall.at(now).saturating_add(i64::try_from(ttl_ms).unwrap_or(i64::MAX))
    }

    fn get(&self, key: &str, now: Duration) -> Option<&Entry> {
        let wall = self.wall.at(now);
        self.keys.get(key).filter(|entry| !is_expired(entry, wall))
    }

    fn write(&mut self, key: &str, entry: Option<Entry>, now: Duration) {
        put(&mut self.keys, key, entry.clone());
        if self.persistence == Persistence::EverySec {
            self.write_back(now);
            self.recent.push((now, key.to_owned(), entry));
        }
    }

    /// What is older than the window is on the disk.
    fn write_back(&mut self, now: Duration) {
        let synced = now.saturating_sub(EVERYSEC_WINDOW);
        let old = self.recent.iter().take_while(|(at, ..)| *at <= synced).count();
        for (_, key, entry) in self.recent.drain(..old) {
            put(&mut self.disk, &key, entry);
        }
    }

    /// Runs one operation with exactly the meaning of its script.
    pub(super) fn execute(
        &mut self,
        operation: &Operation,
        send_as: &SendAs,
        now: Duration,
    ) -> Outcome {
        let Some(script) = script(operation) else { return Ok(Answer::Done) };
        // Each is known by itself.
        if !operation.is_grant() && !self.scripts.contains(&script) {
            match send_as {
                SendAs::Digest | SendAs::Ballot(_) => return Err(NodeFailure::NoScript),
                SendAs::Text => self.scripts.push(script),
            }
        }
        self.perform(operation, send_as, now)
    }

    /// The same, with its script known, or in the text of the one that does several.
    pub(super) fn perform(&mut self, operation: &Operation, by: &SendAs, now: Duration) -> Outcome {
        self.expire(now);
        if operation.is_grant() {
            self.check_ballot(by, now)?;
        }
        match operation {
            // The connections are not the master's.
            Operation::Waiters { .. } | Operation::Ping { .. } => Ok(Answer::Done),
            Operation::Acquire { key, owner, ttl_ms } => {
                if self.get(key.as_str(), now).is_some() {
                    return Ok(self.taken(key.as_str(), now));
                }
                self.set(key.as_str(), Some(&owner.to_string()), Some(*ttl_ms), now);
                Ok(Answer::Done)
            }
            Operation::AcquireFenced { .. }
            | Operation::Raise { .. }
            | Operation::RefillFenced { .. } => self.count(operation, by, now),
            Operation::Extend { key, owner, ttl_ms } => {
                let answer = self.whose(key.as_str(), &owner.to_string(), now)?;
                if answer == Answer::Done {
                    self.prolong(key.as_str(), *ttl_ms, now);
                }
                Ok(answer)
            }
            Operation::Release { key, owner, .. } => {
                let answer = self.whose(key.as_str(), &owner.to_string(), now)?;
                if answer == Answer::Done {
                    self.write(key.as_str(), None, now);
                }
                Ok(answer)
            }
        }
    }

    /// Whether the script of an acquire is known, and finds its marker.
    fn check_ballot(&self, send_as: &SendAs, now: Duration) -> Result<(), NodeFailure> {
        let not_admitted = |why: &str| Err(NodeFailure::NotAdmitted { why: why.to_owned() });
        let SendAs::Ballot(ballot) = send_as else {
            return not_admitted("an acquire goes by its admission only");
        };
        if !self.knows(ballot) {
            return Err(NodeFailure::NoScript);
        }
        let marker = self.text(&ballot.keys.marker, now);
        if marker.is_some_and(|marker| marker.starts_with(&ballot.mark)) {
            Ok(())
        } else {
            not_admitted("it does not know of its admission any more")
        }
    }

    /// Whether it knows the scripts of an admission.
    pub(super) fn knows(&self, ballot: &Ballot) -> bool {
        self.ballots.contains(&ballot.id())
    }

    /// The string of a key.
    pub(super) fn text(&self, key: &Key, now: Duration) -> Option<String> {
        self.get(key.as_str(), now).and_then(|entry| entry.text.clone())
    }

    pub(super) fn is_durable(&self) -> bool {
        self.persistence == Persistence::Always
    }

    /// Loads the scripts of a marker that admits, and writes the marker if nothing has changed.
    pub(super) fn mark(
        &mut self,
        keys: &FleetKeys,
        seen: Option<&str>,
        marker: &Marker,
        is_same_process: bool,
        now: Duration,
    ) -> bool {
        self.expire(now);
        if marker.state == MarkState::Admitted {
            let ballot = Ballot::new(keys.clone(), &marker.id, &marker.members, marker.floor);
            self.ballots.insert(ballot.id());
        }
        let is_as_seen = is_same_process && self.text(&keys.marker, now).as_deref() == seen;
        if is_as_seen {
            let max = self.number(&keys.max, now).unwrap_or(None).unwrap_or(0);
            let ahead = ahead(max.max(marker.floor), self.step);
            if ahead > max {
                self.set(keys.max.as_str(), Some(&ahead.to_string()), None, now);
            }
            self.set(keys.marker.as_str(), Some(&marker.to_string()), None, now);
        }
        is_as_seen
    }

    fn whose(&self, key: &str, owner: &str, now: Duration) -> Outcome {
        match self.get(key, now) {
            None => Ok(Answer::Missing),
            Some(Entry { text: None, .. }) => Err(super::counting::wrong_type()),
            Some(Entry { text: Some(text), .. }) if text == owner => Ok(Answer::Done),
            Some(_) => Ok(self.taken(key, now)),
        }
    }

    pub(super) fn taken(&self, key: &str, now: Duration) -> Answer {
        let remaining = u64::try_from(self.pttl(key, now)).ok().map(Duration::from_millis);
        Answer::Taken { remaining }
    }

    /// `PEXPIRE … GT`: never shortens, and a key without a ttl lives longer than any.
    fn prolong(&mut self, key: &str, ttl_ms: u64, now: Duration) {
        let until = self.expiry(ttl_ms, now);
        if let Some(entry) = self.get(key, now).cloned() {
            if entry.expires_ms.is_some_and(|at| at < until) {
                self.write(key, Some(Entry { expires_ms: Some(until), ..entry }), now);
            }
        }
    }
}

fn script(operation: &Operation) -> Option<Script> {
    match operation {
        Operation::Acquire { .. } => Some(Script::Acquire),
        Operation::AcquireFenced { .. } => Some(Script::AcquireFenced),
        Operation::Raise { .. } => Some(Script::Raise),
        Operation::RefillFenced { .. } => Some(Script::RefillFenced),
        Operation::Extend { .. } => Some(Script::Extend),
        Operation::Release { .. } => Some(Script::Release),
        Operation::Waiters { .. } | Operation::Ping { .. } => None,
    }
}

fn is_expired(entry: &Entry, wall_ms: i64) -> bool {
    entry.expires_ms.is_some_and(|at| wall_ms > at)
}

fn put(keys: &mut Keys, key: &str, entry: Option<Entry>) {
    match entry {
        Some(entry) => drop(keys.insert(key.to_owned(), entry)),
        None => drop(keys.remove(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{node::Called, owner_id::OwnerId};

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn set(master: &mut Master, key: &str, ttl_ms: u64, now: Duration) {
        master.set(key, Some("owner"), Some(ttl_ms), now);
    }

    #[test]
    fn a_key_expires_by_the_servers_own_clock() {
        let mut master = Master::new(Persistence::None);
        set(&mut master, "k", 1_000, S(0));
        let at = Duration::from_millis;
        assert_eq!(master.pttl("k", at(400)), 600);
        master.set_clock_rate(500_000, at(400));
        assert_eq!(master.pttl("k", at(600)), 300);
        master.jump_clock(301, at(600));
        assert_eq!(master.pttl("k", at(600)), -2);
        // It was not looked at meanwhile, so it is still there when the clock is set back.
        master.wall.offset_ms -= 301;
        assert_eq!(master.pttl("k", at(600)), 300);
        master.jump_clock(301, at(600));
        master.jump_clock(-301, at(600));
        assert_eq!(master.pttl("k", at(600)), -2);
    }

    #[test]
    fn a_crash_keeps_what_its_persistence_says() {
        for (persistence, kept) in [
            (Persistence::None, vec![]),
            (Persistence::EverySec, vec!["old"]),
            (Persistence::Always, vec!["new", "old"]),
        ] {
            let mut master = Master::new(persistence);
            set(&mut master, "old", 60_000, S(1));
            set(&mut master, "new", 60_000, S(10));
            let lost = master.crash(S(10) + Duration::from_millis(500));
            master.restart();
            assert_eq!(master.keys(S(11)).into_keys().collect::<Vec<_>>(), kept, "{persistence:?}");
            assert_eq!(lost, kept.len() < 2, "{persistence:?}");
        }
    }

    #[test]
    fn a_restarted_server_knows_no_scripts() {
        let mut master = Master::new(Persistence::Always);
        master.load_scripts();
        master.crash(S(1));
        master.restart();
        let (key, owner) = (Key::new("k"), OwnerId::random());
        let operation = Operation::Release { key, owner, calls: Called::Next };
        let answer = master.execute(&operation, &SendAs::Digest, S(2));
        assert_eq!(answer, Err(NodeFailure::NoScript));
    }
}
