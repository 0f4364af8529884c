//! The recipes of `docs/fencing.md` for a fence in the table that is written.

use std::time::Duration;

use quorumlock::fenced::postgres::tokio_postgres::{
    Client, Error, IsolationLevel, error::SqlState, types::ToSql,
};
use tokio::time::timeout;

use crate::{
    LEVELS, begin,
    docs::sql,
    races::{backend, until_blocked},
    sees_commits,
    support::postgres::Postgres,
};

const SOON: Duration = Duration::from_secs(20);
const ID: i64 = 7;

async fn with_accounts(server: &Postgres) -> Client {
    let client = server.connect().await;
    let accounts = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL); INSERT \
                    INTO accounts VALUES (7, 100), (8, 100)";
    client.batch_execute(accounts).await.unwrap();
    client.batch_execute(sql("ALTER TABLE accounts")).await.unwrap();
    client
}

async fn balance_and_fence(client: &Client) -> (i64, i64) {
    let row = client.query_one("SELECT balance, fence FROM accounts WHERE id = 7", &[]).await;
    let row = row.unwrap();
    (row.get(0), row.get(1))
}

/// The recipe's write, in a transaction of its own; how many rows were written.
async fn set_balance(
    client: &mut Client,
    level: IsolationLevel,
    fence: i64,
    balance: i64,
) -> Result<u64, Error> {
    let transaction = begin(client, level).await;
    let params: [&(dyn ToSql + Sync); 3] = [&ID, &fence, &balance];
    let rows = transaction.execute(sql("UPDATE accounts SET balance"), &params).await?;
    transaction.commit().await?;
    Ok(rows)
}

#[tokio::test]
async fn a_write_with_a_smaller_token_changes_no_row() {
    let server = Postgres::start();
    let mut client = with_accounts(&server).await;
    for (level, newest) in LEVELS.into_iter().zip([34, 44, 54]) {
        assert_eq!(set_balance(&mut client, level, newest, 1).await.unwrap(), 1);
        // The same holder writes twice.
        assert_eq!(set_balance(&mut client, level, newest, 2).await.unwrap(), 1);
        assert_eq!(set_balance(&mut client, level, newest - 1, 3).await.unwrap(), 0);
        assert_eq!(balance_and_fence(&client).await, (2, newest), "{level:?}");
    }
    let other = client.query_one("SELECT balance, fence FROM accounts WHERE id = 8", &[]).await;
    assert_eq!(other.unwrap().get::<_, i64>(1), 0, "other rows have fences of their own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_that_waited_for_a_newer_one_changes_no_row() {
    let server = Postgres::start();
    let mut first = with_accounts(&server).await;
    let watcher = server.connect().await;
    for (level, newest) in LEVELS.into_iter().zip([34, 44, 54]) {
        let mut second = server.connect().await;
        let backend = backend(&second).await;
        let open = begin(&mut first, level).await;
        let params: [&(dyn ToSql + Sync); 3] = [&ID, &newest, &1_i64];
        open.execute(sql("UPDATE accounts SET balance"), &params).await.unwrap();
        let waiting = tokio::spawn(async move {
            let written = set_balance(&mut second, level, newest - 1, 2).await;
            (written, second)
        });
        until_blocked(&watcher, backend).await;
        open.commit().await.unwrap();
        let (written, mut second) = timeout(SOON, waiting).await.expect("it goes on").unwrap();
        match written {
            Ok(rows) => assert!(rows == 0 && sees_commits(level), "{level:?}: {rows} rows"),
            Err(error) => {
                assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
                assert!(!sees_commits(level), "{level:?}: {error}");
                let again = set_balance(&mut second, level, newest - 1, 2).await;
                assert_eq!(again.unwrap(), 0, "{level:?}");
            }
        }
        assert_eq!(balance_and_fence(&watcher).await, (1, newest), "{level:?}");
    }
}

#[tokio::test]
async fn reading_by_raising_the_fence_keeps_older_writes_out() {
    let server = Postgres::start();
    let mut client = with_accounts(&server).await;
    for (level, newest) in LEVELS.into_iter().zip([34_i64, 44, 54]) {
        assert_eq!(set_balance(&mut client, level, newest - 2, 100).await.unwrap(), 1);
        let read = sql("UPDATE accounts SET fence");
        let row = client.query_opt(read, &[&ID, &newest]).await.unwrap().expect("not stale");
        assert_eq!(row.get::<_, i64>(0), 100);
        assert_eq!(set_balance(&mut client, level, newest - 1, 0).await.unwrap(), 0, "{level:?}");
        assert!(client.query_opt(read, &[&ID, &(newest - 1)]).await.unwrap().is_none());
        assert_eq!(set_balance(&mut client, level, newest, 50).await.unwrap(), 1);
    }
}

// What the docs warn of, so that it is not taken for fencing.
#[tokio::test]
async fn a_fence_that_is_read_before_the_write_protects_nothing() {
    let server = Postgres::start();
    let mut late = with_accounts(&server).await;
    let mut newer = server.connect().await;
    let level = IsolationLevel::ReadCommitted;
    let transaction = begin(&mut late, level).await;
    let read = transaction.query_one("SELECT fence FROM accounts WHERE id = 7", &[]).await.unwrap();
    assert!(read.get::<_, i64>(0) <= 33, "33 looks and finds nothing newer");
    assert_eq!(set_balance(&mut newer, level, 34, 0).await.unwrap(), 1);
    let unfenced = "UPDATE accounts SET balance = 100, fence = 33 WHERE id = 7";
    transaction.execute(unfenced, &[]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(balance_and_fence(&newer).await, (100, 33), "it went back");
}
