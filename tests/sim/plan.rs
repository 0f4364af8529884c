//! What is to happen in one schedule: a value that follows from its seed and that can be made smaller.

use std::time::Duration;

use quorumlock::sim::{LinkFaults, Persistence};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// One schedule.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) masters: usize,
    pub(crate) persistence: Persistence,
    pub(crate) clients: Vec<ClientPlan>,
    /// When, in milliseconds, and what. In order of time.
    pub(crate) faults: Vec<(u64, Fault)>,
}

#[derive(Clone, Debug)]
pub(crate) struct ClientPlan {
    /// How much faster than true time its clock runs.
    pub(crate) ppm: i32,
    pub(crate) node_timeout_ms: u64,
    pub(crate) operations: Vec<Operation>,
}

/// One lock that a client takes and gives back.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) pause_ms: u64,
    pub(crate) resource: u8,
    pub(crate) ttl_ms: u64,
    pub(crate) wait_ms: u64,
    /// The caller gives up after so long, whatever the library says.
    pub(crate) patience_ms: Option<u64>,
    pub(crate) hold_ms: u64,
    pub(crate) extend: bool,
    pub(crate) renewed: bool,
    pub(crate) max_hold_ms: Option<u64>,
    pub(crate) end: End,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Release,
    Drop,
    /// The release is begun and its future dropped after so long.
    AbandonedRelease(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Freeze(usize),
    Thaw(usize),
    Crash(usize),
    Restart(usize),
    Link { client: usize, node: usize, faults: LinkFaults },
    Reset { client: usize, node: usize },
    Pause(usize),
    Resume(usize),
    Kill(usize),
    FlushScripts(usize),
    ClockRate { node: usize, ppm: i32 },
    // These break assumptions.
    ClockJump { node: usize, ms: i64 },
    FlushAll(usize),
    DeleteKeys(usize),
}

const LAST_FAULT_MS: u64 = 4_000;

impl Plan {
    /// The schedule of a seed. Two of three keep all assumptions of the lock's safety.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let breaks_assumptions = rng.random_ratio(1, 3);
        let masters = *pick(rng, &[5, 5, 5, 5, 3, 3, 4, 2, 1, 7]);
        let persistence = if breaks_assumptions {
            *pick(rng, &[Persistence::None, Persistence::EverySec, Persistence::Always])
        } else {
            Persistence::Always
        };
        let clients: Vec<ClientPlan> = (0..3).map(|_| ClientPlan::random(rng)).collect();
        let size = Size { masters, clients: clients.len() };
        let faults = rng.random_range(5..=14);
        let mut faults: Vec<(u64, Fault)> =
            (0..faults).flat_map(|_| fault_and_end(rng, size, breaks_assumptions)).collect();
        faults.sort_by_key(|(at, _)| *at);
        Self { seed, masters, persistence, clients, faults }
    }

    /// The same without the faults and operations whose place is not in the lists.
    pub(crate) fn only(&self, faults: &[usize], operations: &[usize]) -> Self {
        let mut plan = self.clone();
        plan.faults = faults.iter().map(|place| self.faults[*place].clone()).collect();
        let mut place = 0;
        for client in &mut plan.clients {
            client.operations.retain(|_| {
                place += 1;
                operations.contains(&(place - 1))
            });
        }
        plan
    }

    pub(crate) fn operations(&self) -> usize {
        self.clients.iter().map(|client| client.operations.len()).sum()
    }
}

#[derive(Clone, Copy)]
struct Size {
    masters: usize,
    clients: usize,
}

impl ClientPlan {
    fn random(rng: &mut StdRng) -> Self {
        Self {
            // With the masters' rates below, clocks differ by less than the 1 % that is allowed for.
            ppm: rng.random_range(-2_000..=2_000),
            node_timeout_ms: rng.random_range(10..=60),
            operations: (0..7).map(|_| Operation::random(rng)).collect(),
        }
    }
}

impl Operation {
    fn random(rng: &mut StdRng) -> Self {
        Self {
            pause_ms: rng.random_range(0..=200),
            resource: rng.random_range(0..2),
            ttl_ms: rng.random_range(100..=1_500),
            wait_ms: *pick(rng, &[0, 0, 50, 300, 1_000]),
            patience_ms: rng.random_ratio(1, 5).then(|| rng.random_range(0..=40)),
            hold_ms: *pick(rng, &[0, 1, 10, 100, 400, 1_600]),
            extend: rng.random_ratio(1, 3),
            renewed: rng.random_ratio(1, 2),
            max_hold_ms: rng.random_ratio(1, 6).then(|| rng.random_range(50..=1_000)),
            end: match rng.random_range(0..4) {
                0 | 1 => End::Release,
                2 => End::Drop,
                _ => End::AbandonedRelease(rng.random_range(0..=10)),
            },
        }
    }
}

/// A fault and, mostly, its end.
fn fault_and_end(rng: &mut StdRng, size: Size, breaks_assumptions: bool) -> Vec<(u64, Fault)> {
    let from = rng.random_range(0..LAST_FAULT_MS);
    let to = from + *pick(rng, &[5, 30, 100, 300, 1_000, 2_500]);
    let node = rng.random_range(0..size.masters);
    let client = rng.random_range(0..size.clients);
    let healthy = Fault::Link { client, node, faults: LinkFaults::default() };
    let kinds = if breaks_assumptions { 13 } else { 10 };
    match rng.random_range(0..kinds) {
        0 => vec![(from, Fault::Freeze(node)), (to, Fault::Thaw(node))],
        1 => vec![(from, Fault::Crash(node)), (to, Fault::Restart(node))],
        2 | 3 => {
            vec![(from, Fault::Link { client, node, faults: link_faults(rng) }), (to, healthy)]
        }
        4 => {
            // A whole client is cut off from several masters, one way or both.
            let faults = link_faults(rng);
            (0..size.masters)
                .filter(|_| rng.random_ratio(2, 3))
                .flat_map(|node| {
                    let healthy = Fault::Link { client, node, faults: LinkFaults::default() };
                    [(from, Fault::Link { client, node, faults }), (to, healthy)]
                })
                .collect()
        }
        5 => vec![(from, Fault::Reset { client, node })],
        6 => vec![(from, Fault::Pause(client)), (to, Fault::Resume(client))],
        7 => vec![(from, Fault::FlushScripts(node))],
        8 => vec![(from, Fault::ClockRate { node, ppm: rng.random_range(-5_000..=5_000) })],
        9 if rng.random_ratio(1, 4) => vec![(from, Fault::Kill(client))],
        // A majority at once.
        9 => (0..=size.masters / 2)
            .flat_map(|node| [(from, Fault::Freeze(node)), (to, Fault::Thaw(node))])
            .collect(),
        10 => vec![(from, Fault::ClockJump { node, ms: rng.random_range(-3_000..=3_000) })],
        11 => vec![(from, Fault::FlushAll(node))],
        _ => vec![(from, Fault::DeleteKeys(node))],
    }
}

fn link_faults(rng: &mut StdRng) -> LinkFaults {
    let mut faults = LinkFaults::latency(1, *pick(rng, &[1, 5, 40, 300]));
    match rng.random_range(0..6) {
        0 => faults.block_requests = true,
        1 => faults.block_replies = true,
        2 => (faults.block_requests, faults.block_replies) = (true, true),
        3 => faults.lose_reply = *pick(rng, &[20, 60, 100]),
        4 => faults.lose_request = *pick(rng, &[20, 60, 100]),
        _ => faults.duplicate_request = *pick(rng, &[20, 100]),
    }
    faults
}

fn pick<'a, T>(rng: &mut StdRng, of: &'a [T]) -> &'a T {
    &of[rng.random_range(0..of.len())]
}

/// The longest ttl that any operation asks for, extensions included.
pub(crate) const MAX_TTL: Duration = Duration::from_millis(1_500);
