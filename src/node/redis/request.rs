//! Operations as the commands that they are.

use fred::{bytes::Bytes, types::Value};

use super::{RedisLink, listener::whole_ring};
use crate::{
    node::{Ballot, Called, FleetKeys, Operation, SendAs, script::Script},
    owner_id::{OwnerId, Seat},
    resource::Key,
};

/// A server needs less than a millisecond for them.
pub(super) const MOST_TOGETHER: usize = 64;

impl RedisLink {
    /// The command for an operation; `None` for a vote without a ballot.
    pub(super) fn request(
        &self,
        operation: &Operation,
        send_as: &SendAs,
    ) -> Option<(&'static str, Vec<Value>)> {
        let mut args = Arguments::of(1);
        if let Operation::Waiters { key, .. } = operation {
            args.put("NUMSUB");
            args.put(&whole_ring(key));
            return Some(("PUBSUB", args.into_values()));
        }
        if let Operation::Ping { nonce } = operation {
            args.put_number(*nonce);
            return Some(("PING", args.into_values()));
        }
        let run = Run::of(operation)?;
        let mut command = "EVALSHA";
        match send_as {
            // A vote goes by the digests of its admission, and by nothing else.
            SendAs::Ballot(ballot) if operation.is_grant() => {
                args.put(ballot.digest(run.script)?);
                run.put_keys_of_grant(&ballot.keys, &mut args);
            }
            _ if operation.is_grant() => return None,
            SendAs::Text => {
                command = "EVAL";
                args.put(run.script.text());
                args.put_keys(&[run.key]);
            }
            SendAs::Digest | SendAs::Ballot(_) => {
                args.put(self.digests.of(run.script)?);
                args.put_keys(&[run.key]);
            }
        }
        run.put_args(&mut args);
        Some((command, args.into_values()))
    }
}

/// The arguments of the command of that number for several operations, as `together.lua` has them; `None` if
/// there is one among them that is no script, or if they are of too many kinds.
pub(super) fn together(
    number: u64,
    operations: &[Operation],
    ballot: &Ballot,
) -> Option<Vec<Value>> {
    let runs: Vec<Run<'_>> = operations.iter().map(Run::of).collect::<Option<_>>()?;
    let mut keys = vec![&ballot.keys.marker, &ballot.keys.max];
    keys.extend(runs.iter().map(|run| run.key));
    keys.extend(runs.iter().filter_map(|run| run.counter));
    let mut kinds: Vec<&Run<'_>> = Vec::new();
    let mut kind_of_each = String::with_capacity(runs.len());
    for run in &runs {
        let known = kinds.iter().position(|kind| kind.is_like(run));
        kind_of_each.push(character_of(known.unwrap_or(kinds.len()))?);
        if known.is_none() {
            kinds.push(run);
        }
    }
    let mut args = Arguments::of(runs.len());
    args.put(ballot.digest(Script::Together)?);
    args.put_keys(&keys);
    args.put_number(number);
    args.put_owners(runs.iter().map(|run| run.owner));
    args.put(&kind_of_each);
    for kind in kinds {
        args.put(kind.name);
        for number in kind.numbers {
            args.put_number(number.unwrap_or(0));
        }
    }
    Some(args.into_values())
}

/// A kind's character, from '0' on.
fn character_of(kind: usize) -> Option<char> {
    let byte = u8::try_from(kind).ok()?.checked_add(b'0')?;
    byte.is_ascii_graphic().then_some(byte.into())
}

/// The arguments of one command. They share their memory: one at a time they would cost more than all else.
#[derive(Debug)]
struct Arguments {
    text: String,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Arguments {
    /// With room for those of so many operations, unless their keys are long.
    fn of(operations: usize) -> Self {
        let [text, ends] = [96, 2].map(|of_one: usize| of_one.saturating_mul(operations));
        Self {
            text: String::with_capacity(text.saturating_add(128)),
            ends: Vec::with_capacity(ends.saturating_add(16)),
        }
    }

    fn put(&mut self, argument: &str) {
        self.text.push_str(argument);
        self.ends.push(self.text.len());
    }

    /// Not by `Display`, which takes several times as long.
    fn put_number(&mut self, number: u64) {
        push_digits(&mut self.text, number);
        self.ends.push(self.text.len());
    }

    /// All of them as one argument.
    fn put_owners(&mut self, owners: impl IntoIterator<Item = OwnerId>) {
        for owner in owners {
            self.text.push_str(owner.text().as_str());
        }
        self.ends.push(self.text.len());
    }

    fn put_keys(&mut self, keys: &[&Key]) {
        self.put_number(u64::try_from(keys.len()).unwrap_or(u64::MAX));
        for key in keys {
            self.put(key.as_str());
        }
    }

    fn into_values(self) -> Vec<Value> {
        let text = Bytes::from(self.text);
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let places = begins.zip(&self.ends);
        places.map(|(begin, end)| Value::Bytes(text.slice(begin..*end))).collect()
    }
}

fn push_digits(text: &mut String, number: u64) {
    if number >= 10 {
        push_digits(text, number / 10);
    }
    let digit = u8::try_from(number % 10).unwrap_or(0);
    text.push(char::from(b'0'.wrapping_add(digit)));
}

/// An operation that is a script, with what that takes.
struct Run<'a> {
    script: Script,
    /// What it is called among others.
    name: &'static str,
    key: &'a Key,
    counter: Option<&'a Key>,
    owner: OwnerId,
    numbers: [Option<u64>; 3],
}

impl<'a> Run<'a> {
    fn of(operation: &'a Operation) -> Option<Self> {
        let (script, name, key, counter, owner, numbers) = match operation {
            Operation::Acquire { key, owner, ttl_ms } => {
                (Script::Acquire, "acquire", key, None, owner, [Some(*ttl_ms), None, None])
            }
            Operation::AcquireFenced { key, fence, owner, ttl_ms } => {
                let numbers = [Some(*ttl_ms), Some(fence.idle_ms), None];
                (Script::AcquireFenced, "acquire_fenced", key, Some(&fence.key), owner, numbers)
            }
            Operation::Raise { key, fence, owner, token } => {
                let numbers = [Some(token.get()), Some(fence.idle_ms), None];
                (Script::Raise, "raise", key, Some(&fence.key), owner, numbers)
            }
            Operation::RefillFenced { key, fence, owner, ttl_ms, token } => {
                let numbers = [Some(*ttl_ms), Some(fence.idle_ms), Some(token.get())];
                (Script::RefillFenced, "refill_fenced", key, Some(&fence.key), owner, numbers)
            }
            Operation::Extend { key, owner, ttl_ms } => {
                (Script::Extend, "extend", key, None, owner, [Some(*ttl_ms), None, None])
            }
            Operation::Release { key, owner, calls } => {
                let numbers = [Some(number_of(*calls)), None, None];
                (Script::Release, "release", key, None, owner, numbers)
            }
            Operation::Waiters { .. } | Operation::Ping { .. } => return None,
        };
        Some(Self { script, name, key, counter, owner: *owner, numbers })
    }

    /// The keys of a grant that goes alone.
    fn put_keys_of_grant(&self, fleet: &FleetKeys, args: &mut Arguments) {
        match self.counter {
            None => args.put_keys(&[self.key, &fleet.marker]),
            Some(counter) => args.put_keys(&[self.key, &fleet.marker, counter, &fleet.max]),
        }
    }

    /// Whether it differs from the other in its keys and its owner only.
    fn is_like(&self, other: &Self) -> bool {
        self.script == other.script && self.numbers == other.numbers
    }

    fn put_args(&self, args: &mut Arguments) {
        args.put_owners([self.owner]);
        for number in self.numbers.into_iter().flatten() {
            args.put_number(number);
        }
    }
}

/// Whom a release calls, as `release.lua` is told it.
fn number_of(calls: Called) -> u64 {
    match calls {
        Called::Nobody => 0,
        Called::Next => 1,
        Called::NextAndStandIn => 2,
        Called::Known(seat) => u64::from(Seat::COUNT).saturating_add(seat.number().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Fence;

    fn texts(values: Vec<Value>) -> Vec<String> {
        values.into_iter().filter_map(Value::into_string).collect()
    }

    #[test]
    fn what_goes_together_says_once_what_it_has_in_common() {
        let ballot = Ballot::new(FleetKeys::with_prefix("q:"), "m", "n", 0);
        let owners = [1, 2, 3, 4].map(|id| OwnerId::parse(&format!("{id:032x}")).unwrap());
        let fence = |key| Fence { key: Key::new(key), idle_ms: 9 };
        let [a, b, c, d] = ["a", "b", "c", "d"].map(Key::new);
        let operations = [
            Operation::Acquire { key: a, owner: owners[0], ttl_ms: 5 },
            Operation::AcquireFenced { key: b, fence: fence("fb"), owner: owners[1], ttl_ms: 5 },
            Operation::Acquire { key: c, owner: owners[2], ttl_ms: 5 },
            Operation::Acquire { key: d.clone(), owner: owners[3], ttl_ms: 6 },
            Operation::Release { key: d, owner: owners[3], calls: Called::Known(Seat::new(7)) },
        ];
        let said = texts(together(8, &operations, &ballot).unwrap());
        let keys = ["8", "q:marker", "q:max", "a", "b", "c", "d", "d", "fb"];
        assert_eq!(said[1..10], keys);
        let ids: String = [1, 2, 3, 4, 4].map(|id| format!("{id:032x}")).concat();
        assert_eq!(said[10..13], ["8", &ids, "01023"]);
        let kinds = ["acquire 5 0 0", "acquire_fenced 5 9 0", "acquire 6 0 0", "release 1007 0 0"];
        assert_eq!(said[13..].join(" "), kinds.join(" "));
        assert_eq!(together(8, &[Operation::Ping { nonce: 1 }], &ballot), None);
    }

    #[test]
    fn there_are_characters_for_as_many_kinds_as_may_go_together() {
        let last = character_of(MOST_TOGETHER - 1).unwrap();
        assert_eq!(u32::from(last), u32::from('0') + 63);
        assert_eq!(character_of(usize::MAX), None);
    }

    #[test]
    fn each_argument_is_what_was_put_there() {
        let mut args = Arguments::of(1);
        args.put("digest");
        args.put_keys(&[&Key::new("a"), &Key::new("")]);
        let owner = OwnerId::random();
        args.put_owners([owner, owner]);
        for number in [0, 7, 10, 1_907, u64::MAX] {
            args.put_number(number);
        }
        let texts = texts(args.into_values());
        assert_eq!(texts[..4], ["digest", "2", "a", ""]);
        assert_eq!(texts[4], format!("{owner}{owner}"));
        assert_eq!(texts[5..], ["0", "7", "10", "1907", "18446744073709551615"]);
    }
}
