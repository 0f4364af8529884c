//! Real servers on loopback ports, started, frozen, killed and cut off by the tests themselves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

#[path = "../support/mod.rs"]
mod support;

mod smoke;
