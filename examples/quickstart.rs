//! A lock over five masters, two of which die while it is in use.
//!
//! `cargo run --example quickstart [-- --nodes redis://a,redis://b,redis://c]`
#![allow(clippy::print_stdout, reason = "it shows what happens")]
use std::{error::Error, time::Duration};

use quorumlock::{ConnectError, LockGuard, LockOptions, Redlock};

#[path = "support/masters.rs"]
mod masters;
use masters::Masters;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut masters = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Masters::start(5)?,
        ["--nodes", urls] => Masters::given(urls.split(',').map(str::to_owned).collect()),
        _ => return Err("usage: quickstart [--nodes redis://a,redis://b,redis://c]".into()),
    };
    println!("masters: {}", masters.what());
    tokio::select! {
        shown = show(&mut masters) => shown,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn show(masters: &mut Masters) -> Result<(), Box<dyn Error>> {
    // Two clients, as two replicas of a service would be.
    let ours = connect(masters).await?;
    let theirs = connect(masters).await?;

    println!("\n1. acquire \"orders:42\": a majority of the masters has to grant it");
    let options = LockOptions::new().ttl(Duration::from_secs(10));
    let mut guard = ours.acquire_with("orders:42", options).await?;
    print(&mut guard);

    println!("\n2. a second client tries once");
    match theirs.try_acquire("orders:42").await {
        Ok(_) => return Err("granted twice".into()),
        Err(refused) => println!("   refused: {refused}"),
    }

    println!("\n3. release; then the second client gets it");
    guard.release().await?;
    let mut guard = theirs.acquire("orders:42").await?;
    print(&mut guard);
    drop(guard); // Releases as well, in the background.

    if masters.kill_minority() {
        println!("\n4. two masters were killed; acquire \"orders:43\"");
        let mut guard = ours.acquire("orders:43").await?;
        print(&mut guard);
        guard.release().await?;

        println!("\n5. what the first client knows of each master");
        for status in ours.nodes() {
            println!("   {}: {}", status.node, status.state);
        }
    }
    let left = [ours.shutdown().await, theirs.shutdown().await];
    println!("\ndone: connections closed, releases not yet answered: {left:?}");
    Ok(())
}

async fn connect(masters: &Masters) -> Result<Redlock, ConnectError> {
    match masters.simulated() {
        None => Redlock::builder().nodes(masters.urls()).new_fleet().connect().await,
        Some(cluster) => Redlock::builder().new_fleet().sim(cluster).connect().await,
    }
}

fn print(guard: &mut LockGuard) {
    println!("   ours for {:.3?}, as owner {}", guard.remaining(), guard.owner_id());
    for report in &guard.nodes() {
        println!("   {report}");
    }
}
