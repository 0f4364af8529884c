//! Real servers on loopback ports, started, frozen, killed and cut off by the tests themselves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a failing test may panic"
)]

#[path = "../support/mod.rs"]
mod support;

mod failures;
mod unwind;
mod cancel;
mod lanes;
mod conformance;
mod replies;
mod together;
mod fenced;
#[cfg(feature = "sim")]
mod differential;
mod locking;
mod holding;
mod scope;
mod waiting;
mod inputs;
mod connecting;
mod admission;
mod nodes;
mod rights;
#[cfg(target_os = "linux")]
mod wall_clock;
mod fencing;
mod kleppmann;
#[cfg(feature = "rustls")]
mod tls;
