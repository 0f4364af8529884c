//! Why a lock alone does not protect data, and what does: a transfer between two accounts in Redis.
//!
//! The holder stands still for longer than its lock lives. Another acquires, and writes. The first wakes
//! up and writes too, but its fencing token is smaller, so the resource refuses it.
//!
//! `cargo run --example fenced_redis`. The masters are real where there is a server on the PATH; the
//! accounts then are in Redis as well, and in memory otherwise.
#![allow(clippy::print_stdout, reason = "it shows what happens")]
use std::{error::Error, time::Duration};

use quorumlock::{
    FencedGuard, FencingToken, LockOptions, Redlock,
    fenced::{memory::Resources, redis::Fence},
    fred::{clients::Client, interfaces::ClientLike as _, types::config::Config},
};

#[path = "support/masters.rs"]
mod masters;
use masters::Masters;

const TTL: Duration = Duration::from_millis(600);

/// Where the balance is. It looks at the token in the same step in which it writes.
enum Accounts {
    Redis(Fence, Client),
    Memory(Resources<String>),
}

impl Accounts {
    async fn set(&self, balance: &str, token: FencingToken) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Redis(fence, client) => fence.set(client, "account:7", balance, token).await?,
            Self::Memory(of) => of.write("account:7", token, |value| balance.clone_into(value))?,
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut masters = Masters::start(3)?;
    // Not one of the masters: what is protected is somewhere else. Here they are as good as any.
    let accounts = match masters.urls().first() {
        Some(url) => {
            let client = Client::new(Config::from_url(url)?, None, None, None);
            client.init().await?;
            Accounts::Redis(Fence::of("account:7"), client)
        }
        None => Accounts::Memory(Resources::new()),
    };
    println!("masters: {}\n", masters.what());
    let (alice, bob) = (connect(&masters).await?, connect(&masters).await?);

    let of_alice = acquire("alice", &alice).await?;
    println!("alice reads a balance of 100, and her process stands still");
    tokio::time::sleep(TTL.saturating_mul(2)).await;

    let of_bob = acquire("bob", &bob).await?;
    accounts.set("50", of_bob.token()).await?;
    println!("bob takes 50 and writes a balance of 50");

    println!("alice wakes up, her lock is lost: {}. She does not look", of_alice.is_lost());
    println!("alice takes 70 from her 100, and writes a balance of 30");
    match accounts.set("30", of_alice.token()).await {
        Ok(()) => return Err("bob's withdrawal was overwritten".into()),
        Err(refused) => println!("refused: {refused}"),
    }
    of_bob.release().await?;
    if masters.kill_minority() {
        println!("\none of the masters is killed; tokens grow all the same");
    }
    acquire("alice", &alice).await?.release().await?;
    Ok(())
}

async fn connect(masters: &Masters) -> Result<Redlock, Box<dyn Error>> {
    let builder = Redlock::builder().new_fleet();
    Ok(match masters.simulated() {
        None => builder.nodes(masters.urls()).connect().await?,
        Some(cluster) => builder.sim(cluster).connect().await?,
    })
}

async fn acquire(who: &str, redlock: &Redlock) -> Result<FencedGuard, Box<dyn Error>> {
    let options = LockOptions::new().ttl(TTL).without_renewal();
    let guard = redlock.acquire_fenced_with("account:7", options).await?;
    println!("{who} holds the lock with token {} for {:.1?}", guard.token(), guard.remaining());
    Ok(guard)
}
