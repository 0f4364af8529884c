//! Everything can move between tasks and threads, and nothing shows what it should not.

use std::time::Duration;

use quorumlock::{
    AcquireError, ConnectError, Drained, ExtendError, FencingToken, LockGuard, LockOptions,
    NodeEvents, NodeReports, NodeStatus, OptionsError, OwnerId, Redlock, RedlockBuilder,
    ReleaseError,
    fenced::{
        StaleToken,
        memory::Resources,
        redis::{Fence, FencedScript, WriteError},
    },
    fred::clients::Client,
    node::redis::{ConfigError, RedisLink, RedisNode},
};

fn is_shareable<T: Send + Sync + 'static>() {}
fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
fn is_send<T: Send>(value: T) {
    drop(value);
}

#[test]
fn all_types_can_be_shared_between_threads() {
    is_shareable::<Redlock>();
    is_shareable::<RedlockBuilder>();
    is_shareable::<LockGuard>();
    is_shareable::<LockOptions>();
    is_shareable::<OwnerId>();
    is_shareable::<NodeStatus>();
    is_shareable::<NodeEvents>();
    is_shareable::<NodeReports>();
    is_shareable::<Drained>();
    is_shareable::<RedisNode>();
    is_shareable::<RedisLink>();
    is_shareable::<FencingToken>();
    is_shareable::<Resources<String>>();
    is_shareable::<Fence>();
    is_shareable::<FencedScript>();
}

#[test]
fn all_errors_can_be_boxed_and_sent() {
    is_error::<AcquireError>();
    is_error::<ExtendError>();
    is_error::<ReleaseError>();
    is_error::<ConnectError>();
    is_error::<OptionsError>();
    is_error::<ConfigError>();
    is_error::<StaleToken>();
    is_error::<WriteError>();
    #[cfg(feature = "postgres")]
    is_error::<quorumlock::fenced::postgres::CheckError>();
}

/// Never called: that it compiles is the test.
fn every_future_is_send(redlock: &Redlock, builder: RedlockBuilder, mut guard: LockGuard) {
    is_send(redlock.acquire("a"));
    is_send(redlock.try_acquire("a"));
    is_send(redlock.acquire_with("a", LockOptions::new()));
    is_send(async { redlock.node_events().next().await });
    is_send(redlock.shutdown());
    is_send(Redlock::connect(["redis://a"]));
    is_send(Redlock::single_node("redis://a"));
    is_send(builder.connect());
    is_send(guard.extend(Duration::ZERO));
    is_send(guard.release());
}

/// Never called, as above.
fn every_fenced_future_is_send(fence: &Fence, client: &Client, script: &FencedScript) {
    is_send(fence.claim(client, FencingToken::MAX));
    is_send(fence.set(client, "a", "x", FencingToken::MAX));
    is_send(fence.hset(client, "a", "f", "x", FencingToken::MAX));
    is_send(fence.run(client, script, &["a"], &[b"x"], FencingToken::MAX));
}

/// Never called, as above.
#[cfg(feature = "postgres")]
fn every_check_is_send(transaction: &tokio_postgres::Transaction<'_>) {
    is_send(quorumlock::fenced::postgres::check(transaction, "a", FencingToken::MAX));
}

#[test]
fn all_futures_can_move_between_threads() {
    let _: fn(&Redlock, RedlockBuilder, LockGuard) = every_future_is_send;
    let _: fn(&Fence, &Client, &FencedScript) = every_fenced_future_is_send;
    #[cfg(feature = "postgres")]
    let _: fn(&tokio_postgres::Transaction<'_>) = every_check_is_send;
}

#[test]
fn an_owner_id_is_shown_only_in_part() {
    let owner = OwnerId::random();
    let whole = owner.to_string();
    let (_, secret) = whole.split_at(whole.len() / 2);
    for shown in [format!("{owner:?}"), format!("{owner:#?}")] {
        assert!(!shown.contains(secret), "{shown} shows half of {whole} or more");
    }
}
