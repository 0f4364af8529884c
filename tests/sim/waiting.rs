//! Waiting in virtual time: in which order, and what it costs, to the millisecond.
//!
//! Messages take 1 ms one way.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use quorumlock::{
    LockGuard, LockOptions, Redlock,
    sim::{LinkFaults, SimClient, SimCluster},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const ROUND_TRIP: Duration = Duration::from_millis(2);
/// At the latest then a waiter looks by itself.
const CAP: Duration = Duration::from_millis(2_500);
/// To look at one node, and then at the others.
const TRY: Duration = Duration::from_millis(4);
const KEY: &str = "quorumlock:lock:r";
/// So long that nothing is renewed during a test.
const LONG: Duration = Duration::from_secs(60);

async fn process(cluster: &SimCluster) -> (SimClient, Redlock) {
    let client = cluster.client();
    let redlock = Redlock::builder().new_fleet().sim_client(&client).connect().await.unwrap();
    (client, redlock)
}

async fn hold(redlock: &Redlock) -> LockGuard {
    redlock.acquire_with("r", LockOptions::new().ttl(LONG)).await.unwrap()
}

fn wait(redlock: &Redlock) -> JoinHandle<(LockGuard, Instant)> {
    let redlock = redlock.clone();
    tokio::spawn(async move { (hold(&redlock).await, Instant::now()) })
}

/// Many who wait in one process, and release as soon as they got in. The order in which they did.
async fn pass_on(redlock: &Redlock, held: LockGuard, waiters: usize) -> Vec<usize> {
    let got_in = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..waiters)
        .map(|number| {
            let (redlock, got_in) = (redlock.clone(), Arc::clone(&got_in));
            tokio::spawn(async move {
                let options = LockOptions::new().wait_timeout(Duration::from_secs(600));
                let guard = redlock.acquire_with("r", options).await.unwrap();
                got_in.lock().unwrap().push(number);
                guard.release().await.unwrap();
            })
        })
        .collect();
    sleep(MS(100)).await;
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    got_in.lock().unwrap().clone()
}

// Field case 43.
#[tokio::test(start_paused = true)]
async fn a_thousand_who_wait_in_one_process_get_in_by_arrival_at_the_cost_of_one_each() {
    let mut costs = Vec::new();
    for waiters in [1, 1_000] {
        let cluster = SimCluster::new(3);
        let ((_, holder), (_, waiter)) = (process(&cluster).await, process(&cluster).await);
        let held = hold(&holder).await;
        let before = cluster.operations();
        let order = pass_on(&waiter, held, waiters).await;
        assert_eq!(order, (0..waiters).collect::<Vec<_>>());
        costs.push((cluster.operations() - before) / waiters as u64);
    }
    assert!(costs[1] <= costs[0], "{costs:?} operations for each of one and of many");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_holds_the_lock_two_round_trips_after_its_release() {
    let cluster = SimCluster::new(3);
    let ((_, holder), (_, waiter)) = (process(&cluster).await, process(&cluster).await);
    let held = hold(&holder).await;
    let waiting = wait(&waiter);
    sleep(MS(1_000)).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let (_guard, got_in) = waiting.await.unwrap();
    // The release and its announcement, then all nodes at once.
    assert_eq!(got_in - released, MS(2).saturating_add(MS(2)));
}

// Field case 26: what was not heard costs time, and never the lock.
#[tokio::test(start_paused = true)]
async fn a_lost_announcement_costs_at_most_the_cap() {
    for reset in [false, true] {
        let cluster = SimCluster::new(3);
        let ((_, holder), (client, waiter)) = (process(&cluster).await, process(&cluster).await);
        let held = hold(&holder).await;
        let waiting = wait(&waiter);
        sleep(MS(1_000)).await;
        let released = Instant::now();
        for node in 0..3 {
            if reset {
                client.reset_link(node);
            } else {
                let mut deaf = LinkFaults::default();
                deaf.lose_reply = 100;
                client.set_link(node, deaf);
            }
        }
        held.release().await.unwrap();
        (0..3).for_each(|node| client.set_link(node, LinkFaults::default()));
        let (_guard, got_in) = waiting.await.unwrap();
        let took = got_in - released;
        assert!(took > MS(10), "it was heard: {took:?}");
        assert!(took <= CAP + TRY, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_for_a_dead_client_tries_when_a_quorum_is_free() {
    let cluster = SimCluster::new(3);
    let ((dead, holder), (_, waiter)) = (process(&cluster).await, process(&cluster).await);
    let ttl = MS(1_000);
    let held = holder.acquire_with("r", LockOptions::new().ttl(ttl)).await.unwrap();
    let acquired = Instant::now();
    dead.kill();
    let before = cluster.operations();
    let (_guard, got_in) = wait(&waiter).await.unwrap();
    let took = got_in - acquired;
    assert!(took >= ttl - ROUND_TRIP, "{took:?}");
    assert!(took <= ttl + ttl / 4 + ROUND_TRIP + TRY, "{took:?}");
    assert!(cluster.operations() - before < 12, "{} operations", cluster.operations() - before);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_left_over_on_any_one_node_keeps_nobody_out() {
    for node in 0..3 {
        let cluster = SimCluster::new(3);
        cluster.set_key(node, KEY, Some("left over"), None);
        let ((_, holder), (_, waiter)) = (process(&cluster).await, process(&cluster).await);
        let held = hold(&holder).await;
        let waiting = wait(&waiter);
        sleep(MS(1_000)).await;
        let released = Instant::now();
        held.release().await.unwrap();
        let (_guard, got_in) = waiting.await.unwrap();
        assert!(got_in - released <= CAP + 2 * ROUND_TRIP + TRY, "{node}: {:?}", got_in - released);
    }
}

/// Who got the lock, one after another, of so many processes that all want it again and again.
async fn contend(processes: usize) -> Vec<usize> {
    let cluster = SimCluster::new(5);
    let got_in = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..processes {
        let (client, redlock) = process(&cluster).await;
        for node in 0..5 {
            client.set_link(node, LinkFaults::latency(1, 2));
        }
        let got_in = Arc::clone(&got_in);
        tasks.push(tokio::spawn(async move {
            let end = Instant::now() + Duration::from_secs(20);
            for turn in 0.. {
                if Instant::now() > end {
                    break;
                }
                // They come back at any moment of the others' turns.
                sleep(MS((turn * 7 + number as u64 * 3) % 11)).await;
                let guard = redlock.acquire("r").await.unwrap();
                got_in.lock().unwrap().push(number);
                sleep(MS(1)).await;
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    Arc::into_inner(got_in).unwrap().into_inner().unwrap()
}

#[tokio::test(start_paused = true)]
async fn two_processes_take_turns() {
    let got_in = contend(2).await;
    let (all, first) = (got_in.len(), got_in.iter().filter(|number| **number == 0).count());
    assert!(all > 500, "{all}");
    assert!(first * 5 >= all * 2 && first * 5 <= all * 3, "{first} of {all}");
    let changes = got_in.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes * 10 >= all * 8, "{changes} changes in {all}");
}

// Whoever comes or stands in while the lock changes hands does not take it from the one who was called.
#[tokio::test(start_paused = true)]
async fn ten_processes_take_turns() {
    let got_in = contend(10).await;
    let is_early = |turns: &&[usize]| turns[..7].contains(&turns[7]);
    let early = got_in.windows(8).filter(is_early).count();
    assert!(got_in.len() > 1_000, "{}", got_in.len());
    assert!(early * 100 <= got_in.len(), "{early} of {} were early", got_in.len());
}

// Among so many, some begin on the same seat, and each of those gets the lock half as often as the others.
#[tokio::test(start_paused = true)]
async fn nobody_shares_a_seat_for_long() {
    let got_in = contend(60).await;
    let late = &got_in[got_in.len() / 2..];
    let least = (0..60).map(|number| late.iter().filter(|one| **one == number).count()).min();
    assert!(least.unwrap() * 60 * 10 >= late.len() * 8, "{least:?} of {} by 60", late.len());
}

// Those who come let each other go first, but not for long when nobody has the lock.
#[tokio::test(start_paused = true)]
async fn who_comes_together_to_a_lock_that_was_contended_gets_it_soon() {
    for processes in [2, 5] {
        let cluster = SimCluster::new(5);
        let mut clients = Vec::new();
        for _ in 0..processes {
            clients.push(process(&cluster).await.1);
        }
        for round in 0..5 {
            let come = clients.iter().map(|redlock| async {
                let came = Instant::now();
                let guard = redlock.acquire("r").await.unwrap();
                let waited = came.elapsed();
                sleep(MS(1)).await;
                guard.release().await.unwrap();
                waited
            });
            let mut waited = futures::future::join_all(come).await;
            waited.sort_unstable();
            assert!(waited[0] < MS(40), "round {round} of {processes}: {waited:?}");
            assert!(waited.iter().all(|waited| *waited < MS(150)), "{processes}: {waited:?}");
            // Not for so long that the contention is forgotten.
            sleep(MS(300)).await;
        }
    }
}

// Nothing is announced, and whoever asks that node alone never gets in.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_left_over_on_any_one_node_keeps_nobody_from_the_lock_of_a_dead_client() {
    for (node, waiters) in [(0, 1), (1, 1), (2, 1), (0, 3), (1, 3), (2, 3)] {
        let cluster = SimCluster::new(3);
        cluster.set_key(node, KEY, Some("left over"), None);
        let (dead, holder) = process(&cluster).await;
        let held = holder.acquire_with("r", LockOptions::new().ttl(MS(5_000))).await.unwrap();
        let acquired = Instant::now();
        let mut waiting = Vec::new();
        for _ in 0..waiters {
            waiting.push(wait(&process(&cluster).await.1));
        }
        dead.kill();
        let first = futures::future::select_all(waiting).await.0.unwrap().1 - acquired;
        assert!(first <= MS(5_000) + 2 * CAP, "{waiters} at {node}: {first:?}");
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_for_long_asks_little() {
    let cluster = SimCluster::new(3);
    let ((_, holder), (_, waiter)) = (process(&cluster).await, process(&cluster).await);
    let _held = hold(&holder).await;
    let waiting = wait(&waiter);
    sleep(MS(1_900)).await;
    let before = cluster.operations();
    sleep(MS(17_500)).await;
    // One look in 2 to 2.5 s.
    assert!(cluster.operations() - before <= 10, "{} operations", cluster.operations() - before);
    waiting.abort();
}

// Those who have had it still hear for a while, and are called in vain.
#[tokio::test(start_paused = true)]
async fn a_crowd_of_which_each_comes_once_does_not_stand_before_a_free_lock() {
    let cluster = SimCluster::with_seed(5, 7);
    let mut clients = Vec::new();
    for _ in 0..20 {
        let (client, redlock) = process(&cluster).await;
        (0..5).for_each(|node| client.set_link(node, LinkFaults::latency(1, 2)));
        clients.push(redlock);
    }
    let mut longest = Duration::ZERO;
    for round in 0..200 {
        let (started, name) = (Instant::now(), format!("r{round}"));
        let come = clients.iter().map(|redlock| async {
            let guard = redlock.acquire(&name).await.unwrap();
            let waited = started.elapsed();
            sleep(MS(1)).await;
            guard.release().await.unwrap();
            waited
        });
        let waited = futures::future::join_all(come).await;
        longest = waited.into_iter().fold(longest, Duration::max);
    }
    assert!(longest < MS(1_000), "{longest:?}");
}

/// Comes back at once, so many times. What was waited in the worst case.
async fn turns(
    number: usize,
    redlock: Redlock,
    count: usize,
    had: Arc<Mutex<Vec<usize>>>,
) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..count {
        let started = Instant::now();
        let guard = redlock.acquire("r").await.unwrap();
        longest = longest.max(started.elapsed());
        had.lock().unwrap().push(number);
        sleep(MS(1)).await;
        guard.release().await.unwrap();
    }
    longest
}

/// The second one gets its turns beside the first one, which takes the lock again and again.
async fn gets_in_beside(greedy: Redlock, other: &Redlock, is_dropped: bool) {
    let greedy = tokio::spawn(async move {
        loop {
            let guard = greedy.acquire("r").await.unwrap();
            sleep(MS(10)).await;
            if is_dropped {
                drop(guard);
            } else {
                guard.release().await.unwrap();
            }
        }
    });
    sleep(MS(100)).await;
    for turn in 0..20 {
        let started = Instant::now();
        let guard = hold(other).await;
        let took = started.elapsed();
        assert!(took < MS(100), "{took:?} in turn {turn}, dropped: {is_dropped}");
        guard.release().await.unwrap();
        sleep(MS(turn * 30)).await;
    }
    greedy.abort();
}

// It never has to wait, and so it would never hear of anybody who does.
#[tokio::test(start_paused = true)]
async fn one_who_is_nearer_to_the_nodes_does_not_keep_a_lock_for_itself() {
    for is_dropped in [false, true] {
        let cluster = SimCluster::with_seed(5, 1);
        let ((_, near), (client, far)) = (process(&cluster).await, process(&cluster).await);
        (0..5).for_each(|node| client.set_link(node, LinkFaults::latency(4, 5)));
        gets_in_beside(near, &far, is_dropped).await;
    }
}

// Its own ears still hear for a while, and are called by its own releases.
#[tokio::test(start_paused = true)]
async fn a_lock_that_nobody_else_wants_any_more_is_had_in_a_round_trip() {
    for is_dropped in [false, true] {
        let cluster = SimCluster::new(5);
        let ((_, one), (_, other)) = (process(&cluster).await, process(&cluster).await);
        let had = Arc::new(Mutex::new(Vec::new()));
        let both = [(0, one.clone()), (1, other)];
        let contend = both.map(|(number, redlock)| turns(number, redlock, 50, Arc::clone(&had)));
        futures::future::join_all(contend).await;
        let mut took = Vec::new();
        for _ in 0..1_100 {
            let started = Instant::now();
            let guard = one.acquire("r").await.unwrap();
            took.push(started.elapsed());
            if is_dropped {
                drop(guard);
            } else {
                guard.release().await.unwrap();
            }
        }
        assert!(took[1_000..].iter().all(|took| *took == ROUND_TRIP), "{is_dropped}: {took:?}");
    }
}

// Nobody looks in it: not who waits, and not who comes back. Only who stands in asks one node when the next holds.
#[tokio::test(start_paused = true)]
async fn a_ring_turns_in_order_and_only_who_stands_in_asks() {
    let cluster = SimCluster::new(5);
    let had = Arc::new(Mutex::new(Vec::new()));
    let mut processes = Vec::new();
    for number in 0..5 {
        let (_, redlock) = process(&cluster).await;
        processes.push(tokio::spawn(turns(number, redlock, 200, Arc::clone(&had))));
    }
    let turns_by_now = || had.lock().unwrap().len();
    while turns_by_now() < 100 {
        sleep(MS(1)).await;
    }
    let (before, turns_before) = (cluster.operations(), turns_by_now());
    // Several times as long as it is remembered that somebody had to wait.
    while turns_by_now() < 900 {
        sleep(MS(1)).await;
    }
    let (asked, turns) = (cluster.operations() - before, turns_by_now() - turns_before);
    assert!(asked <= 11 * (turns as u64 + 1), "{asked} operations in {turns} turns");
    for process in processes {
        process.await.unwrap();
    }
    let order = had.lock().unwrap()[100..900].to_vec();
    let round = &order[..5];
    assert!(order.iter().zip(round.iter().cycle()).all(|(had, next)| had == next), "{order:?}");
}

// All of them are away for a moment, and the last call was meant for one who still heard.
#[tokio::test(start_paused = true)]
async fn a_ring_that_ran_dry_turns_again_when_somebody_comes() {
    // A turn takes 5 ms, so these come back before their turn, and after it.
    let many = [1, 5, 10, 20, 30, 40, 60].map(|pause| (8, pause));
    let few = [6, 8, 10, 12, 14, 16, 18].map(|pause| (3, pause));
    for (count, pause) in many.into_iter().chain(few) {
        let cluster = SimCluster::with_seed(5, pause);
        let mut processes = Vec::new();
        for _ in 0..count {
            let (_, redlock) = process(&cluster).await;
            processes.push(async move {
                let mut longest = Duration::ZERO;
                for _ in 0..100 {
                    let started = Instant::now();
                    let guard = redlock.acquire("r").await.unwrap();
                    longest = longest.max(started.elapsed());
                    sleep(MS(1)).await;
                    guard.release().await.unwrap();
                    sleep(MS(pause)).await;
                }
                longest
            });
        }
        let longest = futures::future::join_all(processes).await.into_iter().max().unwrap();
        assert!(longest <= MS(150), "{longest:?}: {count} with pauses of {pause} ms");
    }
}

// The node that searches calls another one than those that were told of one who has left and still hears.
#[tokio::test(start_paused = true)]
async fn who_is_called_by_too_few_gets_in_soon() {
    for seed in 0..30 {
        let cluster = SimCluster::with_seed(5, seed);
        let (_, first) = process(&cluster).await;
        let held = hold(&first).await;
        // They stay, and hear for a while.
        let others = [process(&cluster).await.1, process(&cluster).await.1];
        let waiting: Vec<_> = others.iter().map(wait).collect();
        sleep(MS(100)).await;
        held.release().await.unwrap();
        let (got_in, _, behind) = futures::future::select_all(waiting).await;
        for behind in behind {
            behind.abort();
        }
        let newcomer = wait(&process(&cluster).await.1);
        sleep(MS(40)).await;
        let released = Instant::now();
        got_in.unwrap().0.release().await.unwrap();
        let took = newcomer.await.unwrap().1 - released;
        assert!(took < MS(100), "{took:?} with seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_of_a_ring_is_not_held_up_by_those_who_left() {
    let cluster = SimCluster::new(5);
    let had = Arc::new(Mutex::new(Vec::new()));
    let mut processes = Vec::new();
    for (number, count) in [400, 50, 50].into_iter().enumerate() {
        let (_, redlock) = process(&cluster).await;
        processes.push(tokio::spawn(turns(number, redlock, count, Arc::clone(&had))));
    }
    let started = Instant::now();
    let longest = futures::future::join_all(processes).await.remove(0).unwrap();
    assert!(longest < MS(300), "{longest:?}");
    // At the rate of one who is alone but for a moment.
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn shutting_down_ends_those_who_wait_at_once() {
    let cluster = SimCluster::new(3);
    let ((_, holder), (_, waiter)) = (process(&cluster).await, process(&cluster).await);
    let _held = hold(&holder).await;
    let wait = |redlock: Redlock| tokio::spawn(async move { redlock.acquire("r").await });
    let waiting: Vec<_> = (0..3).map(|_| wait(waiter.clone())).collect();
    sleep(MS(1_000)).await;
    let started = Instant::now();
    waiter.shutdown().await;
    for task in waiting {
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error, quorumlock::AcquireError::ShutDown);
    }
    assert!(started.elapsed() < MS(50), "{:?}", started.elapsed());
}
