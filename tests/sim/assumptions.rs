//! What happens when an assumption of the lock's safety is broken: two hold one lock, and it shows.
//!
//! A simulation in which nothing ever goes wrong proves nothing. So here are the violations that the
//! textbooks have, each beside the same run without its cause.

use std::time::Duration;

use quorumlock::{
    LockGuard, Redlock,
    sim::{
        Persistence, SimClient, SimCluster,
        history::{Hold, double_holds},
    },
};
use tokio::time::sleep;

const MS: fn(u64) -> Duration = Duration::from_millis;
/// The ttl of all locks here.
const TTL: Duration = Duration::from_secs(10);
const KEY: &str = "quorumlock:lock:r";
/// The node on which something happens.
const N1: usize = 1;

async fn connect(client: &SimClient) -> Redlock {
    // A renewal would set a key again that a node lost, and hide what a bare quorum comes to.
    let builder = Redlock::builder()
        .new_fleet()
        .without_quarantine()
        .sim_client(client)
        .ttl(TTL)
        .without_renewal();
    builder.connect().await.unwrap()
}

/// Three masters, a lock, and a second client that will try for it.
struct Scene {
    cluster: SimCluster,
    clients: [SimClient; 2],
    first: LockGuard,
    held_since: Duration,
}

impl Scene {
    /// n0 and n1 granted; n2 was down at the time and is back without a key.
    async fn bare_quorum() -> Self {
        Self::new(|cluster| cluster.crash(2)).await
    }

    /// All three granted.
    async fn all_granted() -> Self {
        Self::new(|_| {}).await
    }

    async fn new(prepare: impl FnOnce(&SimCluster)) -> Self {
        let cluster = SimCluster::new(3);
        let clients = [cluster.client(), cluster.client()];
        prepare(&cluster);
        let holder = connect(&clients[0]).await;
        let first = holder.try_acquire("r").await.unwrap();
        let held_since = cluster.now();
        cluster.restart(2);
        // Long enough for everything to be on disk, and for n2 to be connected.
        sleep(MS(2_000)).await;
        assert_eq!(cluster.broken_assumptions(), []);
        Self { cluster, clients, first, held_since }
    }

    /// The second client tries. What it got, if it got it.
    async fn second(&self) -> Option<LockGuard> {
        connect(&self.clients[1]).await.try_acquire("r").await.ok()
    }

    /// How many pairs of holders there are once the second has tried.
    async fn double_holders(&self) -> usize {
        let Some(second) = self.second().await else { return 0 };
        let now = self.cluster.now();
        let hold = |client: usize, from, guard: &LockGuard| Hold {
            client,
            resource: guard.resource().to_owned(),
            from,
            until: now + guard.remaining(),
        };
        let holds = [hold(0, self.held_since, &self.first), hold(1, now, &second)];
        double_holds(&holds).len()
    }

    fn broken(&self) -> Vec<(usize, &'static str)> {
        self.cluster.broken_assumptions().iter().map(|broken| (broken.node, broken.what)).collect()
    }
}

/// That `fault`, on n1 of a bare quorum, gives two holders and is written down as `what`; and that it
/// gives one if all nodes had granted.
async fn check(what: &'static str, fault: impl AsyncFn(&SimCluster)) {
    let scene = Scene::bare_quorum().await;
    fault(&scene.cluster).await;
    assert_eq!(scene.double_holders().await, 1, "{what}: two hold it");
    assert_eq!(scene.broken(), [(N1, what)]);

    let scene = Scene::all_granted().await;
    fault(&scene.cluster).await;
    assert_eq!(scene.double_holders().await, 0, "{what}: two of three still have the key");
    assert_eq!(scene.broken(), [(N1, what)]);
}

#[tokio::test(start_paused = true)]
async fn without_a_fault_a_bare_quorum_is_enough() {
    let scene = Scene::bare_quorum().await;
    assert!(!scene.cluster.keys(2).contains_key(KEY), "n2 came back without it");
    assert_eq!(scene.double_holders().await, 0);
    assert_eq!(scene.broken(), []);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_gives_a_bare_quorum_away() {
    check("a clock jumped", async |cluster| cluster.jump_clock(N1, 10_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_without_its_keys_gives_a_bare_quorum_away() {
    check("a node forgot", async |cluster| {
        cluster.crash(N1);
        cluster.restart(N1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_flushed_node_gives_a_bare_quorum_away() {
    check("a node forgot", async |cluster| cluster.flush_all(N1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_deleted_by_hand_gives_a_bare_quorum_away() {
    check("a key was deleted", async |cluster| cluster.delete_key(N1, KEY)).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_overwritten_by_hand_gives_a_bare_quorum_away() {
    check("a key was overwritten", async |cluster| {
        cluster.set_key(N1, KEY, Some("another"), Some(MS(1)));
        sleep(MS(5)).await;
    })
    .await;
}

// Whether a rate is within bounds depends on what the clients allow for, so none is written down.
#[tokio::test(start_paused = true)]
async fn a_clock_that_runs_faster_than_is_allowed_for_gives_a_bare_quorum_away() {
    for (ppm, double_holders) in [(10_000, 0), (500_000, 1)] {
        let scene = Scene::bare_quorum().await;
        scene.cluster.set_clock_rate(N1, ppm);
        let valid = scene.first.remaining();
        sleep(valid.saturating_sub(MS(10))).await;
        assert_eq!(scene.double_holders().await, double_holders, "{ppm} ppm");
        assert_eq!(scene.broken(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_with_its_keys_gives_nothing_away() {
    for persistence in [Persistence::EverySec, Persistence::Always] {
        let scene = Scene::bare_quorum().await;
        scene.cluster.set_persistence(N1, persistence);
        scene.cluster.crash(N1);
        scene.cluster.restart(N1);
        assert_eq!(scene.broken(), [], "{persistence:?}");
        assert_eq!(scene.double_holders().await, 0, "{persistence:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_lost_the_last_second_gives_a_new_lock_away() {
    for (age, lost) in [(MS(500), true), (MS(1_500), false)] {
        let cluster = SimCluster::new(3);
        let [first, second] = [cluster.client(), cluster.client()];
        cluster.set_persistence(N1, Persistence::EverySec);
        cluster.crash(2);
        let holder = connect(&first).await;
        let guard = holder.try_acquire("r").await.unwrap();
        sleep(age).await;
        cluster.restart(2);
        cluster.crash(N1);
        cluster.restart(N1);
        let acquired = connect(&second).await.try_acquire("r").await;
        assert!(!guard.remaining().is_zero());
        assert_eq!(acquired.is_ok(), lost, "{age:?} old: {acquired:?}");
        assert_eq!(cluster.broken_assumptions().len(), usize::from(lost));
    }
}

// The objection to every lock with a ttl: a holder that stood still goes on.
#[tokio::test(start_paused = true)]
async fn a_holder_that_was_paused_finds_its_validity_over_when_it_looks() {
    let scene = Scene::all_granted().await;
    let [holder, other] = &scene.clients;
    holder.pause();
    let second = connect(other).await.acquire("r").await.unwrap();
    assert!(scene.cluster.now() >= scene.held_since + TTL, "the ttl had to go by");
    holder.resume();
    assert!(!second.remaining().is_zero());
    assert_eq!(scene.first.remaining(), Duration::ZERO);
    assert_eq!(scene.broken(), [], "no assumption of the lock's is broken by a pause");
}
