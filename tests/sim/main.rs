//! Thousands of schedules in virtual time, each a function of its seed.
//!
//! `SEED=123 cargo test --features sim --test sim replay -- --nocapture` replays one and prints what
//! happened, node by node. `RUNS=100000` sets how many a run takes, from seed `FROM=`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unchecked_time_subtraction,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a failing test may panic, and says what happened"
)]

/// What needs no server: the rest of it does not exist on all systems.
#[path = "../support"]
#[allow(dead_code, unreachable_pub, reason = "as in `support/mod.rs`")]
mod support {
    pub mod admit;
    pub mod conformance;
    pub mod futures;
    pub mod sim_world;
}

mod conformance;
mod behaviours;
mod holding;
mod assumptions;
mod waiting;
mod far;
mod nodes;
mod plan;
mod seen;
mod life;
mod run;
mod volume;
mod regressions;
mod digest;
mod matrix;
