//! The scripts: one file per operation, each one atomic step on the server.
//!
//! Every key a script touches is passed in `KEYS`. An error in a script does not roll back what it wrote, so
//! nothing can fail behind the first write that did not fail itself; but that a lock is set while it is seen
//! whether it can be counted for, and taken back before the error. Every script returns the
//! owner id that it was given, or the `run_id`, and `together` the number of its command, so that a reply which
//! a client library or a proxy took for another's is found out instead of becoming a vote.

use super::{Answer, Operation};
use crate::fencing_token::FencingToken;

use std::time::Duration;

/// What an acquire says that finds no marker, or another one than its own.
pub(crate) const NOT_ADMITTED: u8 = 3;
/// What only the script says that looks for rights.
pub(crate) const RIGHTS: u8 = 4;

/// What is said of an operation that failed among others.
pub(crate) const FAILED: u8 = 5;

/// One of the library's scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Sets a free key on an admitted node.
    Acquire,
    /// The same, and counts.
    AcquireFenced,
    /// Raises a counter.
    Raise,
    /// Sets a key again, with its token.
    RefillFenced,
    /// Says which commands are forbidden.
    Rights,
    /// Writes the marker of an admission.
    Mark,
    /// Lets one's own key live on.
    Extend,
    /// Deletes one's own key.
    Release,
    /// Several of all these but two: `Rights` and `Mark`.
    Together,
}

/// The text of a script, out of these files.
macro_rules! texts {
    ($($name:literal),+) => { concat!($(include_str!(concat!("lua/", $name, ".lua"))),+) };
}

/// The text of a script as what is done if its name is this.
macro_rules! operation {
    ($name:literal, $($text:literal),+) => {
        concat!("if name == '", $name, "' then\n", texts!($($text),+), "end\n")
    };
}

impl Script {
    /// Every script.
    pub const ALL: [Self; 9] = [
        Self::Acquire,
        Self::AcquireFenced,
        Self::Raise,
        Self::RefillFenced,
        Self::Rights,
        Self::Mark,
        Self::Extend,
        Self::Release,
        Self::Together,
    ];
    /// Those by which a node votes: each admission has texts of its own, by [`text_for`](Self::text_for).
    pub const VOTES: [Self; 5] =
        [Self::Acquire, Self::AcquireFenced, Self::Raise, Self::RefillFenced, Self::Together];

    /// Its text.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Acquire => texts!("alone", "admitted", "take", "acquire"),
            Self::AcquireFenced => {
                texts!("alone", "admitted", "take", "acquire_fenced", "counting", "begin_step")
            }
            Self::Raise => texts!("alone", "admitted", "counting", "raise"),
            Self::RefillFenced => texts!("alone", "admitted", "counting", "refill_fenced"),
            Self::Rights => texts!("rights"),
            Self::Mark => texts!("mark"),
            Self::Extend => texts!("alone", "extend"),
            Self::Release => texts!("alone", "release"),
            Self::Together => concat!(
                "local to = ''\n",
                "local function operation(name, KEYS, ARGV)\n",
                operation!("acquire", "take", "acquire"),
                operation!("acquire_fenced", "take", "acquire_fenced", "counting", "begin_step"),
                operation!("raise", "counting", "raise"),
                operation!("refill_fenced", "counting", "refill_fenced"),
                operation!("extend", "extend"),
                operation!("release", "release"),
                "end\n",
                texts!("together")
            ),
        }
    }

    /// The text of one by which a node votes, for the marker of that id, the fleet of these nodes and this
    /// floor.
    #[must_use]
    pub fn text_for(self, mark: &str, members: &str, floor: u64) -> String {
        let text = self.text().replace("'@mark@'", &format!("'{mark}'"));
        let text = text.replace("@floor@", &floor.to_string());
        // In a comment, where no name can be taken for a command.
        let members = members.replace(['\n', '\r'], " ");
        format!("-- The nodes of the fleet: {members}\n{text}")
    }
}

/// What all scripts reply: `code number owner`, and more behind it in some. Those of several operations that went
/// together name no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said<'a> {
    pub(crate) code: u8,
    number: i64,
    /// Whom it was said to.
    pub(crate) to: &'a str,
    pub(crate) more: &'a str,
}

impl<'a> Said<'a> {
    /// `None` if it is something else.
    pub(crate) fn read(reply: &'a str) -> Option<Self> {
        let (code, rest) = first_word(reply)?;
        let (number, rest) = first_word(rest)?;
        let (to, more) = first_word(rest).unwrap_or((rest, ""));
        Some(Self { code: code.parse().ok()?, number: number.parse().ok()?, to, more })
    }

    /// What it means to whoever asked; `None` if it means nothing.
    pub(crate) fn answer(self, asked: &Operation) -> Option<Answer> {
        let number = u64::try_from(self.number).ok();
        match self.code {
            // The number, or the one behind it.
            1 | 6 if matches!(asked, Operation::AcquireFenced { .. }) => {
                let number = number?.checked_add(u64::from(self.code == 6))?;
                let is_token = (1..=FencingToken::MAX.get()).contains(&number);
                is_token.then_some(Answer::Counted(FencingToken::new(number)))
            }
            0 => Some(Answer::Missing),
            // A number is for one who counts.
            1 if self.number == 0 => Some(Answer::Done),
            1 if matches!(asked, Operation::Release { .. }) => number.map(|_| Answer::PassedOn),
            2 => Some(Answer::Taken { remaining: number.map(Duration::from_millis) }),
            _ => None,
        }
    }
}

/// What is before the first blank, and what behind it. As `split_once`, which takes three times as long for
/// words as short as these.
fn first_word(text: &str) -> Option<(&str, &str)> {
    let blank = text.bytes().position(|byte| byte == b' ')?;
    Some((text.get(..blank)?, text.get(blank.checked_add(1)?..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        node::{Called, Fence},
        owner_id::OwnerId,
        resource::Key,
    };

    #[test]
    fn replies_are_read_as_documented_in_the_scripts() {
        let answer = |reply, asked| Said::read(reply).unwrap().answer(asked);
        let ping = Operation::Ping { nonce: 1 };
        assert_eq!(answer("0 0 x", &ping), Some(Answer::Missing));
        assert_eq!(answer("1 0 x", &ping), Some(Answer::Done));
        let remaining = Some(Duration::from_millis(250));
        assert_eq!(answer("2 250 x", &ping), Some(Answer::Taken { remaining }));
        assert_eq!(answer("2 -1 x", &ping), Some(Answer::Taken { remaining: None }));
        assert_eq!(answer("4 0 x", &ping), None);
        let (key, owner) = (Key::new("k"), OwnerId::random());
        let fence = Fence { key: Key::new("f"), idle_ms: 1 };
        let fenced = Operation::AcquireFenced { key, fence, owner, ttl_ms: 1 };
        assert_eq!(answer("1 7 x", &fenced), Some(Answer::Counted(FencingToken::new(7))));
        assert_eq!(answer("6 7 x", &fenced), Some(Answer::Counted(FencingToken::new(8))));
        assert_eq!(answer("6 7 x", &ping), None);
        assert_eq!(answer("1 7 x", &ping), None);
        let (key, owner) = (Key::new("k"), OwnerId::random());
        let release = Operation::Release { key, owner, calls: Called::NextAndStandIn };
        assert_eq!(answer("1 0 x", &release), Some(Answer::Done));
        assert_eq!(answer("1 2 x", &release), Some(Answer::PassedOn));
        assert_eq!(answer("1 -2 x", &release), None);
        let limit = Some(Answer::Counted(FencingToken::MAX));
        assert_eq!(answer("6 9007199254740990 x", &fenced), limit);
        let beyond = ["1 9007199254740992 x", "6 9007199254740991 x"];
        for nonsense in ["1 -7 x", "1 0 x", "6 -1 x"].into_iter().chain(beyond) {
            assert_eq!(answer(nonsense, &fenced), None, "{nonsense}");
        }

        let said = |to, more| Some(Said { code: 1, number: 0, to, more });
        assert_eq!(Said::read("1 0 x"), said("x", ""));
        assert_eq!(Said::read("1 0 x GET SET"), said("x", "GET SET"));
        for nonsense in ["", "1", "1 0", "x 0 x", "1 x x", "1 1e15 x", "-1 0 x"] {
            assert_eq!(Said::read(nonsense), None, "{nonsense}");
        }
    }

    // Field case 60: scripts that touch keys which are not in KEYS break on clusters and proxies.
    #[test]
    fn every_key_of_every_script_is_declared() {
        for script in Script::ALL {
            let code: Vec<&str> = script
                .text()
                .lines()
                .map(|line| line.split("--").next().unwrap_or_default().trim())
                .filter(|line| !line.is_empty())
                .collect();
            let calls = |function: &str| -> Vec<(String, String)> {
                let calls = code.iter().flat_map(|line| line.split(function).skip(1));
                calls
                    .map(|call| {
                        let mut args = call.split([',', ')']).map(|arg| arg.trim().to_owned());
                        let command = args.next().unwrap_or_default();
                        (command, args.next().unwrap_or_default())
                    })
                    .collect()
            };
            let keyed = calls("redis.call(");
            assert_eq!(keyed.is_empty(), script == Script::Rights, "{script:?}");
            // Channels are no keys.
            let is_of_channels = |command: &str| ["'PUBSUB'", "'PUBLISH'"].contains(&command);
            let caught = calls("redis.pcall(").into_iter();
            let caught = caught.filter(|(command, _)| !is_of_channels(command));
            for (command, key) in keyed.into_iter().chain(caught) {
                assert!(command.starts_with('\''), "{script:?}: computed command {command}");
                // `key` is what a function of the script is called with.
                let is_declared = key.starts_with("KEYS[") || key == "key" || command == "'INFO'";
                assert!(is_declared, "{script:?}: {command} on {key}");
                // A number that is joined to a string is rounded.
                assert!(!key.contains(".."), "{script:?}: {command} on {key}");
            }
            assert!(!script.text().starts_with("#!"), "{script:?} has a shebang");
        }
    }

    #[test]
    fn the_protocol_shows_the_scripts_as_they_are() {
        let protocol = include_str!("../../docs/protocol.md");
        let shown = [
            texts!("alone"),
            texts!("admitted"),
            texts!("take"),
            texts!("acquire"),
            texts!("extend"),
            texts!("release"),
        ];
        for script in shown {
            let code = script.lines().skip_while(|line| line.starts_with("--"));
            let code = code.collect::<Vec<_>>().join("\n");
            assert!(protocol.contains(&code), "{script}");
        }
    }

    #[test]
    fn every_command_that_a_script_needs_is_one_of_which_the_rights_are_checked() {
        for script in Script::ALL {
            let text = script.text();
            let caught =
                text.split("redis.pcall('").skip(1).filter(|call| !call.starts_with("PUB"));
            for call in text.split("redis.call('").skip(1).chain(caught) {
                let command = call.split('\'').next().unwrap_or_default();
                // Every look begins with it, and its error has the name.
                let is_checked = Script::Rights.text().contains(&format!("{{'{command}', "));
                assert!(is_checked || command == "INFO", "{script:?}: {command}");
            }
        }
    }

    #[test]
    fn each_admission_has_an_acquire_of_its_own() {
        let [a, b] = ["a", "b"].map(|id| Script::Acquire.text_for(&id.repeat(32), "n\nn", 7));
        assert_ne!(a, b);
        assert!(a.contains(&"a".repeat(32)) && !a.contains("'@mark@'"));
        assert!(a.starts_with("-- The nodes of the fleet: n n\n"));
        for vote in Script::VOTES {
            let text = vote.text_for(&"a".repeat(32), "n", 7);
            assert!(text.contains(&"a".repeat(32)) && !text.contains("'@mark@'"), "{vote:?}");
            assert!(!text.contains("@floor@"), "{vote:?}");
        }
        for counting in [Script::AcquireFenced, Script::Together] {
            let [low, high] = [7, 8].map(|floor| counting.text_for("m", "n", floor));
            assert_ne!(low, high);
            assert!(low.contains("math.max(counter, 7)"));
        }
    }
}
