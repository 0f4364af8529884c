//! One operation at a time, on servers of its own: `cargo bench --manifest-path benches/suite/Cargo.toml`.
//!
//! For a change to the library: `criterion` keeps the last run, and says what is faster or slower than it.
//! How it compares with other locks is what `benches/run` measures.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use quorumlock::{LockOptions, Redlock};
use tokio::runtime::Runtime;

/// The servers of the library's tests.
#[path = "../../../tests/support/mod.rs"]
mod support;

use support::{Fleet, aftermath::all_vote, eventually};

/// Those of one server, and of a quorum.
const MASTERS: [usize; 3] = [1, 3, 5];

fn connect(runtime: &Runtime, fleet: &Fleet) -> Redlock {
    let builder = Redlock::builder().new_fleet();
    let builder = match fleet.urls().as_slice() {
        [url] => builder.single_node(url),
        urls => builder.nodes(urls),
    };
    let redlock = runtime.block_on(builder.connect()).expect("connected");
    eventually("all nodes to vote", Duration::from_secs(10), || all_vote(&redlock));
    redlock
}

fn operations(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    for masters in MASTERS {
        let fleet = Fleet::start(masters);
        let redlock = &connect(&runtime, &fleet);
        let mut group = criterion.benchmark_group(format!("masters: {masters}"));
        group.bench_function("acquire and release", |bencher| {
            bencher.to_async(&runtime).iter(|| async {
                let guard = redlock.try_acquire("pair").await.expect("free");
                guard.release().await.expect("released");
            });
        });
        group.bench_function("acquire_fenced and release", |bencher| {
            bencher.to_async(&runtime).iter(|| async {
                let guard = redlock.try_acquire_fenced("fenced pair").await.expect("free");
                black_box(guard.token());
                guard.release().await.expect("released");
            });
        });
        group.bench_function("acquire alone", |bencher| {
            bencher.to_async(&runtime).iter_custom(|times| async move {
                let mut took = Duration::ZERO;
                for _ in 0..times {
                    let started = Instant::now();
                    let guard = redlock.try_acquire("alone").await.expect("free");
                    took += started.elapsed();
                    guard.release().await.expect("released");
                }
                took
            });
        });
        group.bench_function("extend", |bencher| {
            bencher.to_async(&runtime).iter_custom(|times| async move {
                let mut guard = redlock.try_acquire("extended").await.expect("free");
                let started = Instant::now();
                for _ in 0..times {
                    guard.extend(Duration::from_secs(30)).await.expect("still ours");
                }
                let took = started.elapsed();
                guard.release().await.expect("released");
                took
            });
        });
        refused(&mut group, &runtime, redlock);
        group.finish();
        runtime.block_on(redlock.shutdown());
    }
}

type Group<'a> = criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>;

/// What it takes to be told that somebody else has the lock.
fn refused(group: &mut Group<'_>, runtime: &Runtime, redlock: &Redlock) {
    let ttl = LockOptions::new().ttl(Duration::from_secs(30));
    let held = runtime.block_on(redlock.acquire_with("held", ttl)).expect("free");
    group.bench_with_input(BenchmarkId::from_parameter("refused"), &redlock, |bencher, redlock| {
        bencher.to_async(runtime).iter(|| async {
            drop(redlock.try_acquire("held").await.expect_err("it is held"));
        });
    });
    runtime.block_on(held.release()).expect("released");
}

criterion_group!(all, operations);
criterion_main!(all);
