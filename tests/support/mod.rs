//! What the tests need around the library: real servers, a network that misbehaves on request, and
//! a way to look at a server from outside.
//!
//! Everything here is plain threads and blocking sockets, so that it serves tests of any flavour:
//! on a current-thread runtime, under a paused clock, or without a runtime.
//! Everything listens on 127.0.0.1, on ports found at run time, and ends with its owner.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each test crate uses the part it needs"
)]
#![allow(
    unreachable_pub,
    unnameable_types,
    reason = "public to the test crate around it, which nobody uses in turn"
)]
#![allow(clippy::disallowed_methods, reason = "these threads are real and live in real time")]

mod resp;
pub mod process;
pub mod wall_clock;
mod server;
mod inspect;
mod fleet;
mod link;
mod traffic;
mod proxy;
mod selftest;
pub mod futures;
pub mod aftermath;
pub mod twin;
pub mod admit;
pub mod conformance;
#[cfg(feature = "sim")]
pub mod sim_world;

pub use fleet::Fleet;
pub use proxy::Proxy;
pub use resp::{Conn, Reply};
pub use server::Server;
pub use twin::Twin;

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a condition is left alone between two looks at it.
const POLL: Duration = Duration::from_millis(2);

/// Waits until `cond` holds, and panics if it does not within `limit`.
///
/// `what` completes the sentence "waited in vain for ...".
#[track_caller]
pub fn eventually(what: &str, limit: Duration, cond: impl FnMut() -> bool) {
    assert!(holds_within(limit, cond), "waited {limit:?} in vain for {what}");
}

/// Whether `cond` comes to hold within `limit`.
fn holds_within(limit: Duration, mut cond: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        // The limit is read before the condition: a condition that blocks past the limit and then
        // holds has held.
        let is_last = started.elapsed() >= limit;
        if cond() {
            return true;
        }
        if is_last {
            return false;
        }
        thread::sleep(POLL);
    }
}
