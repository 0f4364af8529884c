//! The scripts: one beginning for all, which compares and writes nothing, and an end for each.
//!
//! Every key that a script touches is passed in `KEYS`, and everything that can be checked is checked
//! before anything is written: an error in a script does not roll back what it wrote. The fence is
//! written first, so that an error after it leaves a fence that is at least what the value needs.

use std::sync::LazyLock;

const COMPARE: &str = include_str!("lua/compare.lua");

pub(super) static CLAIM: LazyLock<FencedScript> =
    LazyLock::new(|| FencedScript::of([COMPARE, include_str!("lua/claim.lua")]));
pub(super) static SET: LazyLock<FencedScript> =
    LazyLock::new(|| FencedScript::of([COMPARE, include_str!("lua/set.lua")]));
pub(super) static HSET: LazyLock<FencedScript> =
    LazyLock::new(|| FencedScript::of([COMPARE, include_str!("lua/hset.lua")]));

/// A Lua script that runs only if the fencing token is not stale. Make it once, and use it for every
/// [`Fence::run`](super::Fence::run).
///
/// The server looks at the fence first, then raises it, then runs the script, all in one step. An
/// error in the script does not undo what was written before it, which is the fence at least.
///
/// The script has its keys in `KEYS` and its arguments in `ARGV`, counted from 1, as if there were no
/// fence, and returns what it likes. It must not touch the fence, and has to declare its keys like any
/// script. It cannot begin with a line of flags (`#!lua`).
///
/// ```no_run
/// use quorumlock::{
///     FencingToken,
///     fenced::redis::{Fence, FencedScript, WriteError},
///     fred::clients::Client,
/// };
///
/// async fn log(redis: &Client, token: FencingToken) -> Result<Option<u64>, WriteError> {
///     let push = FencedScript::new(
///         "local length = redis.call('RPUSH', KEYS[1], ARGV[1])
///          redis.call('PEXPIRE', KEYS[1], ARGV[2])
///          return length",
///     );
///     let (keys, args) = (["{orders:42}:events"], [&b"shipped"[..], b"60000"]);
///     let length = Fence::of("orders:42").run(redis, &push, &keys, &args, token).await?;
///     Ok(length.as_u64())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedScript {
    text: String,
    digest: String,
}

impl FencedScript {
    /// The script `lua` behind a fence.
    #[must_use]
    pub fn new(lua: &str) -> Self {
        let (begin, end) =
            (include_str!("lua/custom_begin.lua"), include_str!("lua/custom_end.lua"));
        Self::of([COMPARE, begin, lua, end])
    }

    fn of<const N: usize>(parts: [&str; N]) -> Self {
        let text = parts.concat();
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, digest }
    }

    /// The whole text, for other clients of the same resource: the first of `KEYS` is the fence and
    /// the first of `ARGV` the token in decimal digits. It returns `{1, result}`, `{0, newest}` for a
    /// stale token, and a negative number with what is wrong.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The SHA-1 of the text, by which the server calls it.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scripts() -> [FencedScript; 4] {
        [CLAIM.clone(), SET.clone(), HSET.clone(), FencedScript::new("return 1")]
    }

    fn code(script: &FencedScript) -> Vec<&str> {
        let lines = script.text().lines();
        lines.map(|line| line.split("--").next().unwrap_or_default()).collect()
    }

    // Field case 60: scripts that touch keys which are not in KEYS break on clusters and proxies.
    #[test]
    fn every_key_of_every_script_is_declared() {
        for script in scripts() {
            let code = code(&script).join("\n");
            assert!(!code.contains("pcall") && !code.contains(".."), "{code}");
            for call in code.split("call(").skip(1) {
                let mut args = call.split([',', ')']).map(str::trim);
                assert!(args.next().unwrap().starts_with('\''), "a computed command: {call}");
                assert!(args.next().unwrap().starts_with("KEYS["), "on no declared key: {call}");
            }
        }
    }

    #[test]
    fn the_fence_is_the_first_that_is_written_and_all_is_read_before() {
        for script in scripts() {
            let code = code(&script).join("\n");
            let calls = code.split("call('").skip(1);
            let (mut commands, mut wrote) = (Vec::new(), false);
            for call in calls {
                let (command, rest) = call.split_once('\'').unwrap();
                let is_read = ["TYPE", "GET"].contains(&command);
                if !is_read && !wrote {
                    assert!(rest.starts_with(", KEYS[1], ARGV[1])"), "not the fence: {call}");
                }
                assert!(!(is_read && wrote), "{command} comes after a write");
                wrote = wrote || !is_read;
                commands.push(command);
            }
            assert!(wrote, "{commands:?}");
        }
    }

    #[test]
    fn a_comment_in_the_last_line_of_a_script_does_not_swallow_the_rest() {
        let script = FencedScript::new("return 1 -- the one");
        assert!(code(&script).contains(&"end)()"), "{}", script.text());
    }
}
