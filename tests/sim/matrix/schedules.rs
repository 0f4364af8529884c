//! The objections, each as a schedule. Without its fault each is the same work on a day on which
//! nothing goes wrong.

use std::time::Duration;

use quorumlock::{LockOptions, sim::LinkFaults};

use super::scene::{Mode, ONE, Scene, Seen, TTL, TWO, once, soon};
use crate::behaviours::pass;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    DeadMaster,
    PausedHolder,
    CountersOutOfStep,
    ClockJump,
    OneForgets,
    AllForget,
    PausedInAcquiring,
    LateGrants,
    LateWrite,
    ClockInBounds,
    FastMaster,
    SlowHolder,
}

use Schedule::*;

/// Of which chapter each is, and what happens in it.
pub(super) const SCHEDULES: [(u8, Schedule, &str); 12] = [
    (1, DeadMaster, "C is down and stays down"),
    (2, PausedHolder, "1 is paused between its check and its write"),
    (3, CountersOutOfStep, "the same, with A's counter at 10 and the others' at 5"),
    (4, ClockJump, "C's clock jumps by a ttl"),
    (5, OneForgets, "C crashes and is back at once"),
    (5, AllForget, "all masters crash and are back at once"),
    (6, PausedInAcquiring, "1 is paused while the grants are on their way to it"),
    (7, LateGrants, "the grants to 1 are held up in the network"),
    (7, LateWrite, "1's write is held up in the network, 1 gives up and releases"),
    (8, ClockInBounds, "C's clock runs 1 % too fast"),
    (8, FastMaster, "C's clock runs 50 % too fast"),
    (8, SlowHolder, "1's clock runs at half the speed"),
];

/// Runs a schedule, with its fault or without.
pub(super) async fn run(schedule: Schedule, mode: Mode, with_fault: bool) -> Seen {
    let ppm = if with_fault && schedule == SlowHolder { -500_000 } else { 0 };
    let mut scene = Scene::new(mode, ppm).await;
    match schedule {
        DeadMaster => dead_master(&mut scene, with_fault).await,
        PausedHolder => paused_holder(&mut scene, with_fault).await,
        CountersOutOfStep => counters_out_of_step(&mut scene, with_fault).await,
        ClockJump => clock_jump(&mut scene, with_fault).await,
        OneForgets => {
            let c = scene.c();
            forget(&mut scene, with_fault.then_some(c)).await;
        }
        AllForget => {
            let all = with_fault.then_some(0..scene.cluster.len());
            forget(&mut scene, all.into_iter().flatten()).await;
        }
        PausedInAcquiring => paused_in_acquiring(&mut scene, with_fault).await,
        LateGrants => late_grants(&mut scene, with_fault).await,
        LateWrite => late_write(&mut scene, with_fault).await,
        ClockInBounds => rate(&mut scene, if with_fault { 10_000 } else { 0 }).await,
        FastMaster => rate(&mut scene, if with_fault { 500_000 } else { 0 }).await,
        SlowHolder => rate(&mut scene, 0).await,
    }
    scene.end().await
}

async fn dead_master(scene: &mut Scene, with_fault: bool) {
    let first = scene.acquire(ONE, once()).await.unwrap();
    scene.write(first);
    scene.release(first).await;
    if with_fault {
        scene.cluster.crash(scene.c());
    }
}

async fn paused_holder(scene: &mut Scene, with_fault: bool) {
    let first = scene.acquire(ONE, once()).await.unwrap();
    assert!(!scene.remaining(first).is_zero(), "1 checks");
    if with_fault {
        scene.clients[ONE].pause();
        // One attempt, once the keys have expired: each counts, and would bring counters into step.
        pass(TTL.saturating_add(Duration::from_secs(1))).await;
        let second = scene.acquire(TWO, once()).await.unwrap();
        scene.write(second);
        scene.clients[ONE].resume();
    }
    scene.write(first);
}

async fn counters_out_of_step(scene: &mut Scene, with_fault: bool) {
    for node in 0..scene.cluster.len() {
        let counter = if with_fault && node == 0 { "10" } else { "5" };
        scene.cluster.set_key(node, "quorumlock:fence:r", Some(counter), None);
    }
    scene.divide().await;
    paused_holder(scene, with_fault).await;
}

async fn clock_jump(scene: &mut Scene, with_fault: bool) {
    scene.divide().await;
    let first = scene.acquire(ONE, once()).await.unwrap();
    if with_fault {
        scene.cluster.jump_clock(scene.c(), 10_000);
    }
    scene.contest(first, soon()).await;
}

async fn forget(scene: &mut Scene, who: impl IntoIterator<Item = usize>) {
    scene.divide().await;
    let mut first = scene.acquire(ONE, once()).await.unwrap();
    // The first of several, so that counters that start again are behind.
    for _ in 0..3 {
        scene.release(first).await;
        first = scene.acquire(ONE, once()).await.unwrap();
    }
    scene.write(first);
    for node in who {
        scene.cluster.crash(node);
        scene.cluster.restart(node);
    }
    // Time for both to be connected again, and less than it takes to the next renewal.
    pass(Duration::from_secs(1)).await;
    scene.contest(first, soon()).await;
}

async fn paused_in_acquiring(scene: &mut Scene, with_fault: bool) {
    if !with_fault {
        return paused_holder(scene, false).await;
    }
    let first = scene.acquire_asleep(ONE, async |scene| {
        let second = scene.acquire(TWO, LockOptions::new()).await.unwrap();
        scene.write(second);
    });
    if let Some(first) = first.await {
        scene.contest(first, soon()).await;
    }
}

async fn late_grants(scene: &mut Scene, with_fault: bool) {
    let mut faults = LinkFaults::default();
    faults.block_replies = with_fault;
    for node in 0..scene.cluster.len() {
        scene.clients[ONE].set_link(node, faults);
    }
    if let Some(first) = scene.acquire(ONE, once()).await {
        scene.write(first);
        scene.release(first).await;
    }
    let second = scene.acquire(TWO, LockOptions::new()).await.unwrap();
    scene.write(second);
    for node in 0..scene.cluster.len() {
        scene.clients[ONE].set_link(node, LinkFaults::default());
    }
    pass(Duration::from_secs(1)).await;
}

async fn late_write(scene: &mut Scene, with_fault: bool) {
    let first = scene.acquire(ONE, once()).await.unwrap();
    assert!(!scene.remaining(first).is_zero(), "1 checks, and sends");
    if !with_fault {
        scene.write(first);
    }
    scene.release(first).await;
    let second = scene.acquire(TWO, once()).await.unwrap();
    scene.write(second);
    if with_fault {
        scene.write(first);
    }
}

/// C's clock runs too fast by so much, or 1's too slow, and 2 asks when 1 has next to nothing left.
async fn rate(scene: &mut Scene, ppm: i32) {
    scene.divide().await;
    scene.cluster.set_clock_rate(scene.c(), ppm);
    let first = scene.acquire(ONE, once().without_renewal()).await.unwrap();
    let last = Duration::from_millis(10);
    while scene.remaining(first) > last {
        pass(scene.remaining(first).saturating_sub(last)).await;
    }
    assert!(!scene.remaining(first).is_zero());
    scene.contest(first, once()).await;
}
