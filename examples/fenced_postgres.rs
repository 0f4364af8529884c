//! Why a lock alone does not protect data, and what does: a bank transfer in PostgreSQL.
//!
//! The holder stands still for longer than its lock lives. Another acquires, and transfers. The first
//! wakes up and goes on, but its fencing token is smaller, so its transaction is refused.
//!
//! `DATABASE_URL=postgres://user:password@host/database cargo run --features postgres --example
//! fenced_postgres`. It creates the table of the fences, and one of its own for the time it runs.
#![allow(clippy::print_stdout, reason = "it shows what happens")]
#![allow(clippy::disallowed_methods, reason = "the task of the connection ends with the process")]
use std::{env, error::Error, time::Duration};

use quorumlock::{
    FencedGuard, FencingToken, LockOptions, Redlock,
    fenced::postgres::{
        CheckError, MIGRATION, check,
        tokio_postgres::{self, Client, NoTls},
    },
};

#[path = "support/masters.rs"]
mod masters;
use masters::Masters;

const TTL: Duration = Duration::from_millis(600);
const ACCOUNTS: &str = "CREATE TEMPORARY TABLE accounts (name text PRIMARY KEY, balance bigint);
    INSERT INTO accounts VALUES ('alice', 100), ('bob', 0);";
const TAKE: &str = "UPDATE accounts SET balance = balance - $1 WHERE name = 'alice'";
const GIVE: &str = "UPDATE accounts SET balance = balance + $1 WHERE name = 'bob'";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("DATABASE_URL").map_err(|_| "DATABASE_URL names no database")?;
    let (mut database, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    database.batch_execute(MIGRATION).await?;
    database.batch_execute(ACCOUNTS).await?;
    // A fence outlives a run, and masters that are new begin to count anew.
    database.execute("DELETE FROM quorumlock_fence WHERE resource = 'example:bank'", &[]).await?;

    let mut masters = Masters::start(3)?;
    println!("masters: {}\n", masters.what());
    let (first, second) = (connect(&masters).await?, connect(&masters).await?);

    let early = acquire("the first", &first).await?;
    println!("the first sees 100 at alice's, and its process stands still");
    tokio::time::sleep(TTL.saturating_mul(2)).await;

    let late = acquire("the second", &second).await?;
    transfer(&mut database, 70, late.token()).await?;
    println!("the second transfers 70 from alice to bob");

    println!("the first wakes up, its lock is lost: {}", early.is_lost());
    match transfer(&mut database, 70, early.token()).await {
        Err(error) if error.is_stale() => println!("its transfer is refused: {error}"),
        other => return Err(format!("transferred twice, or nothing is known: {other:?}").into()),
    }
    for row in database.query("SELECT name, balance FROM accounts ORDER BY name", &[]).await? {
        println!("{} has {}", row.try_get::<_, &str>(0)?, row.try_get::<_, i64>(1)?);
    }
    late.release().await?;
    if masters.kill_minority() {
        println!("\none of the masters is killed; tokens grow all the same");
    }
    acquire("the first", &first).await?.release().await?;
    Ok(())
}

async fn transfer(on: &mut Client, amount: i64, token: FencingToken) -> Result<(), CheckError> {
    let transaction = on.transaction().await?;
    check(&transaction, "example:bank", token).await?;
    transaction.execute(TAKE, &[&amount]).await?;
    transaction.execute(GIVE, &[&amount]).await?;
    Ok(transaction.commit().await?)
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
    let guard = redlock.acquire_fenced_with("bank", options).await?;
    println!("{who} holds the lock with token {} for {:.1?}", guard.token(), guard.remaining());
    Ok(guard)
}
