//! What a check says, one transaction after another.

use std::error::Error;

use quorumlock::{
    FencingToken,
    fenced::{
        StaleToken,
        postgres::{CheckError, MIGRATION, check},
    },
};

use crate::{LEVELS, begin, support::postgres::Postgres, token};

#[track_caller]
fn assert_stale(checked: Result<(), CheckError>, presented: FencingToken, newest: FencingToken) {
    let error = checked.expect_err("a refusal");
    assert!(error.is_stale() && !error.is_retryable(), "{error:?}");
    let expected = StaleToken { presented, newest };
    assert!(matches!(error, CheckError::Stale(stale) if stale == expected), "{error:?}");
}

#[tokio::test]
async fn smaller_tokens_are_refused_equal_ones_and_larger_ones_are_not() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    for (level, resource) in LEVELS.into_iter().zip(["a", "b", "c"]) {
        for number in [33, 33, 34] {
            let transaction = begin(&mut client, level).await;
            check(&transaction, resource, token(number)).await.unwrap();
            // The same holder writes twice in one transaction.
            check(&transaction, resource, token(number)).await.unwrap();
            transaction.commit().await.unwrap();
        }
        for presented in [33, 0] {
            let transaction = begin(&mut client, level).await;
            let checked = check(&transaction, resource, token(presented)).await;
            assert_stale(checked, token(presented), token(34));
            // Also where the refused one commits, the fence stays where it was.
            transaction.commit().await.unwrap();
        }
        let transaction = begin(&mut client, level).await;
        check(&transaction, resource, token(34)).await.unwrap();
    }
}

#[tokio::test]
async fn a_larger_token_checked_in_the_same_transaction_counts() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    for level in LEVELS {
        let transaction = begin(&mut client, level).await;
        check(&transaction, "a", token(34)).await.unwrap();
        assert_stale(check(&transaction, "a", token(33)).await, token(33), token(34));
        transaction.rollback().await.unwrap();
        // It was rolled back, so it was never there.
        let transaction = begin(&mut client, level).await;
        check(&transaction, "a", token(33)).await.unwrap();
        transaction.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn each_resource_has_a_fence_of_its_own() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    let longest = "x".repeat(1_024);
    let names = ["a", "A", "a ", "", "é", "e\u{301}", "'; DROP TABLE quorumlock_fence", &longest];
    for (name, number) in names.into_iter().zip(2..) {
        let transaction = client.transaction().await.unwrap();
        check(&transaction, name, token(number)).await.unwrap();
        transaction.commit().await.unwrap();
    }
    for (name, number) in names.into_iter().zip(2..) {
        let transaction = client.transaction().await.unwrap();
        let checked = check(&transaction, name, token(1)).await;
        assert_stale(checked, token(1), token(number));
    }
}

#[tokio::test]
async fn tokens_are_compared_as_numbers_and_are_exact() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    let largest = FencingToken::MAX.get();
    for number in [9, 10, 100_000_000_000_000, largest - 1, largest] {
        let transaction = client.transaction().await.unwrap();
        check(&transaction, "a", token(number)).await.unwrap();
        transaction.commit().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let checked = check(&transaction, "a", token(number - 1)).await;
        assert_stale(checked, token(number - 1), token(number));
    }
}

#[tokio::test]
async fn a_number_that_is_no_token_is_refused_and_leaves_the_transaction_usable() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    let transaction = client.transaction().await.unwrap();
    for number in [1 << 53, u64::MAX] {
        let error = check(&transaction, "a", token(number)).await.unwrap_err();
        assert!(matches!(error, CheckError::TooLarge { presented } if presented == token(number)));
        assert!(!error.is_stale() && !error.is_retryable());
    }
    check(&transaction, "a", token(1)).await.unwrap();
}

#[tokio::test]
async fn the_table_refuses_what_is_no_token() {
    let server = Postgres::start();
    let client = server.migrated().await;
    for fence in [-1_i64, 1 << 53] {
        let insert = "INSERT INTO quorumlock_fence VALUES ('a', $1)";
        let error = client.execute(insert, &[&fence]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "23514", "{error}");
    }
    // It can be run again, and keeps what is there.
    client.execute("INSERT INTO quorumlock_fence VALUES ('a', 7)", &[]).await.unwrap();
    client.batch_execute(MIGRATION).await.unwrap();
    let row = client.query_one("SELECT fence FROM quorumlock_fence", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 7);
}

#[tokio::test]
async fn without_the_table_no_token_is_accepted() {
    let server = Postgres::start();
    let mut client = server.connect().await;
    let transaction = client.transaction().await.unwrap();
    let error = check(&transaction, "a", token(1)).await.unwrap_err();
    assert!(matches!(error, CheckError::Database(_)), "{error:?}");
    assert!(!error.is_stale() && !error.is_retryable());
    assert!(error.source().unwrap().to_string().contains("db error"), "{error:?}");
}

#[tokio::test]
async fn a_trigger_that_swallows_the_row_is_no_grant() {
    let server = Postgres::start();
    let mut client = server.migrated().await;
    let swallow = "CREATE FUNCTION swallow() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE \
                   plpgsql; CREATE TRIGGER swallow BEFORE INSERT ON quorumlock_fence FOR EACH ROW \
                   EXECUTE FUNCTION swallow()";
    client.batch_execute(swallow).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let error = check(&transaction, "a", token(1)).await.unwrap_err();
    assert!(matches!(error, CheckError::NotRecorded), "{error:?}");
}
