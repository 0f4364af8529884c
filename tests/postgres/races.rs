//! Transactions that meet: who waits, who is refused, and that no resource ever goes back.

use std::{sync::Arc, time::Duration};

use quorumlock::fenced::{
    StaleToken,
    postgres::{
        CheckError, check,
        tokio_postgres::{Client, IsolationLevel},
    },
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{task::JoinHandle, time::timeout};

use crate::{LEVELS, begin, sees_commits, support::postgres::Postgres, token};

const SOON: Duration = Duration::from_secs(20);

/// The id of the process that serves a connection.
pub(crate) async fn backend(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Waits until the process waits for a lock of another transaction.
pub(crate) async fn until_blocked(watcher: &Client, backend: i32) {
    let is_blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0";
    let blocked = async {
        while !watcher.query_one(is_blocked, &[&backend]).await.unwrap().get::<_, bool>(0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(SOON, blocked).await.expect("the other transaction waits");
}

/// One transaction that checks this token, and commits if it may.
async fn attempt(
    client: &mut Client,
    level: IsolationLevel,
    resource: &str,
    number: u64,
) -> Result<(), CheckError> {
    let transaction = begin(client, level).await;
    check(&transaction, resource, token(number)).await?;
    Ok(transaction.commit().await?)
}

/// What a check says that had to wait for a transaction with token 34.
struct Waited {
    level: IsolationLevel,
    presented: u64,
    said: Result<(), CheckError>,
    client: Client,
}

/// Checks 34, lets another transaction run into that, and then commits or rolls back.
async fn behind_34(
    server: &Postgres,
    (level, resource, presented): (IsolationLevel, &'static str, u64),
    commits: bool,
) -> Waited {
    let watcher = server.connect().await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    let backend = backend(&second).await;
    let open = begin(&mut first, level).await;
    check(&open, resource, token(34)).await.unwrap();
    let waiting: JoinHandle<_> = tokio::spawn(async move {
        let said = attempt(&mut second, level, resource, presented).await;
        (said, second)
    });
    until_blocked(&watcher, backend).await;
    assert!(!waiting.is_finished(), "it waits for the transaction that has checked");
    if commits {
        open.commit().await.unwrap();
    } else {
        open.rollback().await.unwrap();
    }
    let (said, client) = timeout(SOON, waiting).await.expect("it goes on").unwrap();
    Waited { level, presented, said, client }
}

#[track_caller]
fn assert_follows_34(presented: u64, said: &Result<(), CheckError>) {
    match said {
        Ok(()) => assert!(presented >= 34, "{presented} was accepted after 34"),
        Err(CheckError::Stale(stale)) => {
            let expected = StaleToken { presented: token(presented), newest: token(34) };
            assert_eq!(*stale, expected);
            assert!(presented < 34, "{presented} was refused after 34");
        }
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_while_another_has_checked_waits_and_is_judged_by_what_was_committed() {
    let server = Postgres::start();
    server.migrated().await;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let cases = LEVELS.into_iter().flat_map(|level| [33, 34, 35].map(|number| (level, number)));
    for ((level, presented), resource) in cases.zip(names) {
        let mut waited = behind_34(&server, (level, resource, presented), true).await;
        if !sees_commits(waited.level) {
            // Whatever the token is: its transaction began before the other one was committed.
            let error = waited.said.expect_err("a serialization failure");
            assert!(error.is_retryable() && !error.is_stale(), "{level:?} {presented}: {error:?}");
            waited.said = attempt(&mut waited.client, level, resource, presented).await;
        }
        assert_follows_34(waited.presented, &waited.said);
    }
}

// The second time, the check raises nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_checks_again_keeps_others_waiting_as_well() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    for (level, resource) in LEVELS.into_iter().zip(["a", "b", "c"]) {
        attempt(&mut client, level, resource, 34).await.unwrap();
        let waited = behind_34(&server, (level, resource, 35), true).await;
        match waited.said {
            Ok(()) => assert!(sees_commits(level), "{level:?}"),
            Err(error) => assert!(error.is_retryable(), "{level:?}: {error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_whose_transaction_is_rolled_back_was_never_there() {
    let server = Postgres::start();
    server.migrated().await;
    for (level, resource) in LEVELS.into_iter().zip(["a", "b", "c"]) {
        let waited = behind_34(&server, (level, resource, 33), false).await;
        waited.said.unwrap_or_else(|error| panic!("{level:?}: {error:?}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_vanishes_keeps_nobody_out() {
    let server = Postgres::start();
    let watcher = server.migrated().await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    let backends = (backend(&first).await, backend(&second).await);
    let open = begin(&mut first, IsolationLevel::ReadCommitted).await;
    check(&open, "a", token(34)).await.unwrap();
    let waiting =
        tokio::spawn(
            async move { attempt(&mut second, IsolationLevel::ReadCommitted, "a", 33).await },
        );
    until_blocked(&watcher, backends.1).await;
    watcher.execute("SELECT pg_terminate_backend($1)", &[&backends.0]).await.unwrap();
    timeout(SOON, waiting).await.expect("it goes on").unwrap().unwrap();
}

// The snapshot is older than the commit, so what the transaction reads may be, too.
#[tokio::test]
async fn a_snapshot_from_before_a_commit_is_not_granted_anything_after_it() {
    let server = Postgres::start();
    let mut first = server.migrated().await;
    let mut second = server.connect().await;
    // With the fence new, and with one that was there before.
    for earlier in [None, Some(1)] {
        for (level, resource) in LEVELS.into_iter().zip(["a", "b", "c"]) {
            for presented in [33, 35] {
                first.execute("DELETE FROM quorumlock_fence", &[]).await.unwrap();
                if let Some(earlier) = earlier {
                    attempt(&mut first, level, resource, earlier).await.unwrap();
                }
                let old = begin(&mut second, level).await;
                old.query("SELECT 1 FROM quorumlock_fence", &[]).await.unwrap();
                attempt(&mut first, level, resource, 34).await.unwrap();
                let said = check(&old, resource, token(presented)).await;
                if sees_commits(level) {
                    assert_follows_34(presented, &said);
                } else {
                    assert!(said.unwrap_err().is_retryable(), "{level:?} {presented}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_check_that_a_savepoint_undoes_does_not_count() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    let mut transaction = client.transaction().await.unwrap();
    let savepoint = transaction.transaction().await.unwrap();
    check(&savepoint, "a", token(34)).await.unwrap();
    savepoint.rollback().await.unwrap();
    check(&transaction, "a", token(33)).await.unwrap();
}

/// One writer of the race: transactions with tokens that are handed out in order and used late.
async fn write(client: &mut Client, rng: &mut StdRng, level: IsolationLevel, number: i64) -> bool {
    let transaction = begin(client, level).await;
    let presented = token(number.unsigned_abs());
    match check(&transaction, "account", presented).await {
        Ok(()) => {}
        Err(CheckError::Stale(stale)) => {
            assert!(stale.presented == presented && stale.newest > presented, "{stale}");
            return false;
        }
        Err(error) => {
            assert!(error.is_retryable() && !sees_commits(level), "{level:?}: {error:?}");
            return false;
        }
    }
    if rng.random_bool(0.3) {
        tokio::task::yield_now().await;
    }
    // Not in the way of other writers by itself: only the check orders them.
    let log = "INSERT INTO log (fence) VALUES ($1)";
    transaction.execute(log, &[&number]).await.unwrap();
    if rng.random_bool(0.2) {
        transaction.rollback().await.unwrap();
        return false;
    }
    match transaction.commit().await {
        Ok(()) => true,
        Err(error) => {
            assert!(CheckError::from(error).is_retryable());
            false
        }
    }
}

/// Races `WRITERS` transactions on one resource. What was committed must be in order.
async fn race(server: &Postgres, levels: &'static [IsolationLevel], seed: u64) {
    const WRITERS: u64 = 6;
    const ROUNDS: i64 = 60;
    let watcher = server.migrated().await;
    let fresh = "DROP TABLE IF EXISTS log; CREATE TABLE log (id bigserial PRIMARY KEY, fence bigint \
                 NOT NULL); DELETE FROM quorumlock_fence";
    watcher.batch_execute(fresh).await.unwrap();
    let next = Arc::new(std::sync::atomic::AtomicI64::new(1));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let mut client = server.connect().await;
        let next = Arc::clone(&next);
        writers.push(tokio::spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed * WRITERS + writer);
            let mut committed = 0_usize;
            for _ in 0..ROUNDS {
                let level = levels[rng.random_range(0..levels.len())];
                // Some come with a token that was given out long ago.
                let late = rng.random_range(0..8);
                let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) - late;
                committed += usize::from(write(&mut client, &mut rng, level, number.max(0)).await);
            }
            committed
        }));
    }
    let mut committed = 0;
    for writer in writers {
        committed += writer.await.unwrap();
    }
    // The ids are drawn while the fence is locked, so they are in the order of the commits.
    let log = watcher.query("SELECT fence FROM log ORDER BY id", &[]).await.unwrap();
    let log: Vec<i64> = log.iter().map(|row| row.get(0)).collect();
    assert_eq!(log.len(), committed, "{levels:?}: what was committed is there");
    assert!(log.is_sorted(), "{levels:?}: the resource went back: {log:?}");
    let fence = watcher.query_one("SELECT fence FROM quorumlock_fence", &[]).await.unwrap();
    assert_eq!(log.last(), Some(&fence.get(0)), "{levels:?}");
    let distinct = log.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(distinct > 10, "{levels:?}: only {distinct} tokens followed another: no race");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_race_the_resource_never_goes_back() {
    let server = Postgres::start();
    race(&server, &[IsolationLevel::ReadCommitted], 1).await;
    race(&server, &[IsolationLevel::RepeatableRead], 2).await;
    race(&server, &[IsolationLevel::Serializable], 3).await;
    race(&server, &LEVELS, 4).await;
}

// The classic story: a holder pauses beyond its ttl, another acquires and writes, the first wakes.
#[tokio::test]
async fn a_holder_that_wakes_up_too_late_moves_no_money() {
    let server = Postgres::start();
    let mut early = server.migrated().await;
    let mut later = server.connect().await;
    let accounts = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL); INSERT \
                    INTO accounts VALUES (7, 100)";
    early.batch_execute(accounts).await.unwrap();
    let pay = "UPDATE accounts SET balance = balance - 100 WHERE id = 7";
    for level in LEVELS {
        early.execute("UPDATE accounts SET balance = 100", &[]).await.unwrap();
        early.execute("DELETE FROM quorumlock_fence", &[]).await.unwrap();
        // 33 has the lock and is paused; 34 gets it and pays.
        let transaction = begin(&mut later, level).await;
        check(&transaction, "account:7", token(34)).await.unwrap();
        transaction.execute(pay, &[]).await.unwrap();
        transaction.commit().await.unwrap();
        // 33 wakes up.
        let transaction = begin(&mut early, level).await;
        let error = check(&transaction, "account:7", token(33)).await.unwrap_err();
        assert!(error.is_stale(), "{error:?}");
        drop(transaction);
        let row = early.query_one("SELECT balance FROM accounts", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 0, "{level:?}");
    }
}
