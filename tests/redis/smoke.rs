use std::time::{Duration, Instant};

use quorumlock::{LockOptions, Redlock};

use crate::support::{Fleet, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let fleet = Fleet::start(5);
    let redlock = Redlock::connect(fleet.urls()).await.unwrap();
    let mut guard = redlock.acquire("a").await.unwrap();
    println!("{guard:?} {}", guard.nodes());
    let e = redlock.try_acquire("a").await.unwrap_err();
    println!("{e}");
    guard.extend(Duration::from_secs(20)).await.unwrap();
    println!("{guard:?}");
    guard.release().await.unwrap();
    fleet[0].freeze();
    fleet[1].freeze();
    fleet[2].freeze();
    let t = Instant::now();
    let e = redlock.try_acquire("b").await.unwrap_err();
    println!("{:?} {e}", t.elapsed());
    let t = Instant::now();
    let e = redlock.try_acquire("b").await.unwrap_err();
    println!("{:?} {e}", t.elapsed());
    fleet[0].thaw();
    fleet[1].thaw();
    fleet[2].thaw();
    let t = Instant::now();
    eventually("gone", Duration::from_secs(1), || fleet.iter().all(|s| s.keys().is_empty()));
    println!("gone after {:?}", t.elapsed());
    let t = Instant::now();
    let g =
        redlock.acquire_with("b", LockOptions::new().ttl(Duration::from_secs(1))).await.unwrap();
    println!("{:?} {g:?}", t.elapsed());
    drop(g);
    println!("{:?}", redlock.nodes());
    println!("{:?}", redlock.shutdown().await);
    println!("{:?}", redlock.try_acquire("x").await);
}
