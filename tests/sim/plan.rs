//! What is to happen in one schedule: a value that follows from its seed and that can be made smaller.

use quorumlock::sim::{LinkFaults, Persistence};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// From this seed on, what is asked of a master at the same time goes in one command.
pub(crate) const TOGETHER: u64 = 1 << 32;

/// One schedule.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) masters: usize,
    pub(crate) persistence: Persistence,
    /// The fleet's `max_ttl`: how long nodes wait that may have forgotten.
    pub(crate) max_ttl_ms: u64,
    /// How long a resource's counter stays, from the beginning of a step on.
    pub(crate) fence_idle_ms: u64,
    /// Whether the fleet is in use when the schedule begins. Otherwise nobody knows of it.
    pub(crate) is_founded: bool,
    pub(crate) clients: Vec<ClientPlan>,
    /// When, in milliseconds, and what. In order of time.
    pub(crate) faults: Vec<(u64, Fault)>,
}

#[derive(Clone, Debug)]
pub(crate) struct ClientPlan {
    /// How much faster than true time its clock runs.
    pub(crate) ppm: i32,
    /// How far it is from every master while nothing is wrong.
    pub(crate) latency_ms: (u64, u64),
    pub(crate) connect_timeout_ms: u64,
    pub(crate) node_timeout_ms: u64,
    pub(crate) operations: Vec<Operation>,
    /// Whether it then shuts its `Redlock` down.
    pub(crate) shuts_down: bool,
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
    /// Whether it looks only once, and then relies on what it was told, without listening for the loss.
    pub(crate) relies: bool,
    pub(crate) extend: Option<Extension>,
    pub(crate) stall: Option<Stall>,
    pub(crate) renewed: bool,
    /// Whether it asks for a fencing token.
    pub(crate) fenced: bool,
    pub(crate) max_hold_ms: Option<u64>,
    pub(crate) end: End,
}

/// The lock is extended, and held on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    pub(crate) ttl_ms: u64,
    pub(crate) hold_ms: u64,
}

/// The process stands still, mostly in the middle of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    /// Of extending the lock; otherwise of acquiring it.
    pub(crate) in_extension: bool,
    pub(crate) after_ms: u64,
    pub(crate) for_ms: u64,
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
    FlushAll(usize),
    // These break assumptions.
    ClockJump { node: usize, ms: i64 },
    DeleteKeys(usize),
}

const LAST_FAULT_MS: u64 = 4_000;

impl Plan {
    /// The schedule of a seed. Two of three keep all assumptions of the lock's safety.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let breaks_assumptions = rng.random_ratio(1, 3);
        let masters = *pick(rng, &[5, 5, 5, 5, 3, 3, 4, 2, 1, 7]);
        let persistence =
            *pick(rng, &[Persistence::None, Persistence::EverySec, Persistence::Always]);
        // Short, so that nodes come back to their votes within the schedule; or long, so that there are
        // locks that live for longer than it.
        let max_ttl_ms = *pick(rng, &[1_500, 1_500, MAX_TTL_MS]);
        let fence_idle_ms = *pick(rng, &[100, 1_000, 86_400_000]);
        let is_founded = !rng.random_ratio(1, 10);
        let clients: Vec<ClientPlan> =
            (0..3).map(|_| ClientPlan::random(rng, max_ttl_ms)).collect();
        let mut faults: Vec<(u64, Fault)> =
            (0..masters).map(|node| (0, clock_rate(rng, node))).collect();
        for _ in 0..rng.random_range(5..=14) {
            faults.extend(fault_and_end(rng, masters, &clients, breaks_assumptions));
        }
        faults.sort_by_key(|(at, _)| *at);
        Self { seed, masters, persistence, max_ttl_ms, fence_idle_ms, is_founded, clients, faults }
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

    /// Whether requests to this master are doubled on the way at times.
    pub(crate) fn doubles(&self, master: usize) -> bool {
        self.faults.iter().any(|(_, fault)| {
            matches!(fault, Fault::Link { node, faults, .. }
                if *node == master && faults.duplicate_request > 0)
        })
    }

    pub(crate) fn operations(&self) -> usize {
        self.clients.iter().map(|client| client.operations.len()).sum()
    }
}

impl ClientPlan {
    fn random(rng: &mut StdRng, max_ttl_ms: u64) -> Self {
        Self {
            // With the masters' rates below, clocks differ by less than the 1 % that is allowed for.
            ppm: rng.random_range(-2_000..=2_000),
            latency_ms: *pick(rng, &[(1, 1), (1, 3), (2, 12)]),
            connect_timeout_ms: *pick(rng, &[200, 1_000, 5_000]),
            node_timeout_ms: rng.random_range(10..=60),
            operations: (0..4).map(|_| Operation::random(rng, max_ttl_ms)).collect(),
            shuts_down: rng.random_ratio(1, 5),
        }
    }
}

impl ClientPlan {
    pub(crate) fn healthy_link(&self) -> LinkFaults {
        LinkFaults::latency(self.latency_ms.0, self.latency_ms.1)
    }
}

impl Operation {
    fn random(rng: &mut StdRng, max_ttl_ms: u64) -> Self {
        Self {
            pause_ms: rng.random_range(0..=200),
            resource: rng.random_range(0..2),
            // A short one ends while it is held; a long one shows what nobody took back.
            ttl_ms: if rng.random_ratio(1, 4) { max_ttl_ms } else { rng.random_range(100..=1_500) },
            wait_ms: *pick(rng, &[0, 0, 50, 300, 1_000]),
            patience_ms: rng.random_ratio(1, 5).then(|| rng.random_range(0..=40)),
            hold_ms: *pick(rng, &[0, 1, 10, 100, 400, 1_600]),
            relies: rng.random_ratio(1, 4),
            extend: rng.random_ratio(1, 3).then(|| Extension {
                ttl_ms: rng.random_range(100..=1_500),
                hold_ms: *pick(rng, &[0, 10, 400, 1_600]),
            }),
            stall: rng.random_ratio(1, 8).then(|| Stall {
                in_extension: rng.random_ratio(1, 2),
                after_ms: rng.random_range(0..=8),
                for_ms: *pick(rng, &[20, 200, 1_700]),
            }),
            renewed: rng.random_ratio(1, 2),
            fenced: rng.random_ratio(1, 2),
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
fn fault_and_end(
    rng: &mut StdRng,
    masters: usize,
    clients: &[ClientPlan],
    breaks_assumptions: bool,
) -> Vec<(u64, Fault)> {
    let from = rng.random_range(0..LAST_FAULT_MS);
    let to = from + *pick(rng, &[5, 30, 100, 300, 1_000, 2_500]);
    let node = rng.random_range(0..masters);
    let client = rng.random_range(0..clients.len());
    let link = |node, faults| Fault::Link { client, node, faults };
    let healthy = clients[client].healthy_link();
    let kinds = if breaks_assumptions { 13 } else { 11 };
    match rng.random_range(0..kinds) {
        0 => vec![(from, Fault::Freeze(node)), (to, Fault::Thaw(node))],
        1 => vec![(from, Fault::Crash(node)), (to, Fault::Restart(node))],
        2 | 3 => {
            vec![(from, link(node, link_faults(rng))), (to, link(node, healthy))]
        }
        4 => {
            // A whole client is cut off from several masters, one way or both.
            let faults = link_faults(rng);
            (0..masters)
                .filter(|_| rng.random_ratio(2, 3))
                .flat_map(|node| [(from, link(node, faults)), (to, link(node, healthy))])
                .collect()
        }
        5 if rng.random_ratio(1, 2) => vec![(from, Fault::Reset { client, node })],
        5 => (0..3)
            .flat_map(|time| slow_resets(rng, from + 400 * time, client, masters, healthy))
            .collect(),
        6 => vec![(from, Fault::Pause(client)), (to, Fault::Resume(client))],
        7 if rng.random_ratio(1, 2) => flushes(rng, from, client, masters, healthy),
        7 => vec![(from, Fault::FlushScripts(node))],
        8 => vec![(from, clock_rate(rng, node))],
        9 if rng.random_ratio(1, 4) => vec![(from, Fault::Kill(client))],
        // A majority at once.
        9 => (0..=masters / 2)
            .flat_map(|node| [(from, Fault::Freeze(node)), (to, Fault::Thaw(node))])
            .collect(),
        10 => vec![(from, Fault::FlushAll(node))],
        11 => vec![(from, Fault::ClockJump { node, ms: rng.random_range(-3_000..=3_000) })],
        _ => vec![(from, Fault::DeleteKeys(node))],
    }
}

/// Connections that end twice, while a client is far from the masters: what was sent on the old ones
/// may arrive after what is sent on the new ones.
fn slow_resets(
    rng: &mut StdRng,
    from: u64,
    client: usize,
    masters: usize,
    healthy: LinkFaults,
) -> Vec<(u64, Fault)> {
    let (first, second) = (from + rng.random_range(0..=60), from + rng.random_range(60..=200));
    let slow = LinkFaults::latency(1, 600);
    let of_master = |node| {
        let (link, reset) =
            (|faults| Fault::Link { client, node, faults }, Fault::Reset { client, node });
        [(from, link(slow)), (first, reset.clone()), (second, reset), (second, link(healthy))]
    };
    (0..masters).flat_map(of_master).collect()
}

/// Scripts that are flushed again and again, while a client is slow to hear of it.
fn flushes(
    rng: &mut StdRng,
    from: u64,
    client: usize,
    masters: usize,
    healthy: LinkFaults,
) -> Vec<(u64, Fault)> {
    let link = |node, faults| Fault::Link { client, node, faults };
    let slow = (0..masters).map(|node| (from, link(node, LinkFaults::latency(1, 60))));
    let end = (0..masters).map(|node| (from + 1_200, link(node, healthy)));
    let flush = (0..6 * masters)
        .map(|time| (from + rng.random_range(0..=1_200), Fault::FlushScripts(time % masters)));
    slow.chain(end).chain(flush).collect()
}

fn clock_rate(rng: &mut StdRng, node: usize) -> Fault {
    Fault::ClockRate { node, ppm: rng.random_range(-5_000..=5_000) }
}

fn link_faults(rng: &mut StdRng) -> LinkFaults {
    let mut faults = LinkFaults::latency(1, *pick(rng, &[1, 5, 40, 300]));
    match rng.random_range(0..7) {
        0 => faults.block_requests = true,
        1 => faults.block_replies = true,
        2 => (faults.block_requests, faults.block_replies) = (true, true),
        3 => faults.lose_reply = *pick(rng, &[20, 60, 100]),
        4 => faults.lose_request = *pick(rng, &[20, 40, 100]),
        5 => faults.duplicate_request = *pick(rng, &[20, 100]),
        // No more than slow.
        _ => {}
    }
    faults
}

fn pick<'a, T>(rng: &mut StdRng, of: &'a [T]) -> &'a T {
    &of[rng.random_range(0..of.len())]
}

/// The longest ttl that any operation asks for, extensions included.
const MAX_TTL_MS: u64 = 8_000;
