//! The simulated node does what every node has to do.

use crate::support::{conformance::conformance_tests, sim_world::SimWorld};

conformance_tests!(tokio::test(start_paused = true), SimWorld::start());
