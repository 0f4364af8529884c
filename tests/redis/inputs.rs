//! What cannot work is refused with an error that names it, before anything is sent.

use std::{error::Error, time::Duration};

use quorumlock::{
    AcquireError, ConnectError, ExtendError, LockOptions, OptionsError, Redlock, RedlockBuilder,
    fred::types::config::Config,
    node::{Node, redis::RedisNode},
};

use crate::support::{Fleet, Server, eventually};

const SOON: Duration = Duration::from_secs(5);
const PASSWORD: &str = "hunter2";
const URL_WITH_PASSWORD: &str = "redis://alice:hunter2@127.0.0.1";

fn ttl(ttl: Duration) -> LockOptions {
    LockOptions::new().ttl(ttl)
}

/// Everything an error says: `Display` and `Debug` of itself and of all its sources.
fn all_text(error: &dyn Error) -> String {
    let mut text = format!("{error}\n{error:?}\n{error:#?}");
    if let Some(source) = error.source() {
        text = text + "\n" + &all_text(source);
    }
    text
}

/// How many commands each node got in all, other than the looks of the tests themselves.
fn votes(fleet: &Fleet) -> Vec<u64> {
    let calls = |server: &Server| ["evalsha", "eval", "set", "del"].map(|c| server.calls(c));
    fleet.iter().map(|server| calls(server).iter().sum()).collect()
}

/// What an acquisition with this input fails with; it has sent nothing.
async fn refused(resource: &str, options: LockOptions) -> OptionsError {
    let fleet = Fleet::start(2);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    let before = votes(&fleet);
    let error = redlock.acquire_with(resource, options).await.unwrap_err();
    redlock.shutdown().await;
    assert_eq!(votes(&fleet), before, "nothing is sent");
    assert!(!error.is_retryable());
    let AcquireError::Options(error) = error else { panic!("{error:?}") };
    error
}

#[track_caller]
fn assert_names(error: &OptionsError, names: &[&str]) {
    let text = error.to_string();
    assert!(names.iter().all(|name| text.contains(name)), "{text:?} should name {names:?}");
}

// Field cases 23 and 33: a ttl of 0 or a fraction never locked or never expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_of_which_the_drift_leaves_nothing_is_refused() {
    for (span, shown) in [
        (Duration::ZERO, "0ns"),
        (Duration::from_micros(400), "0ns"),
        (Duration::from_millis(2), "2ms"),
    ] {
        let error = refused("a", ttl(span)).await;
        assert!(matches!(error, OptionsError::TtlTooShort { .. }), "{error:?}");
        assert_names(&error, &["ttl", shown, "drift"]);
    }
}

// Field cases 23 and 33.
#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_above_the_largest_is_refused() {
    for span in [Duration::from_millis(60_001), Duration::from_secs(1 << 40), Duration::MAX] {
        let error = refused("a", ttl(span)).await;
        assert!(matches!(error, OptionsError::TtlTooLong { .. }), "{error:?}");
        assert_names(&error, &["ttl", "max_ttl", "60s"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_name_is_refused() {
    let error = refused("", LockOptions::new()).await;
    assert_eq!(error, OptionsError::ResourceEmpty);
    assert_names(&error, &["resource", "empty"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_too_long_is_refused() {
    // 1,024 bytes are the limit, however few characters they are.
    for name in ["x".repeat(1_025), "\u{e9}".repeat(513)] {
        let error = refused(&name, LockOptions::new()).await;
        assert_eq!(error, OptionsError::ResourceTooLong { len: name.len(), max: 1_024 });
        assert_names(&error, &["resource", "1024"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_name_within_the_limit_is_a_resource_of_its_own() {
    let fleet = Fleet::start(3);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    let longest = "x".repeat(1_024);
    let names = [longest.as_str(), " ", "a", "A", "a b", "a\r\nDEL a\r\n", "\0", "{a}", "é", "*"];
    let mut guards = Vec::new();
    for name in names {
        let guard = redlock.try_acquire(name).await.unwrap();
        assert_eq!(guard.resource(), name);
        guards.push(guard);
    }
    for name in names {
        assert!(redlock.try_acquire(name).await.unwrap_err().is_contended(), "{name:?}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

// Field case 33, for extensions.
#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_cannot_work_is_refused_and_the_lock_stays_held() {
    let fleet = Fleet::start(3);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    let mut guard = redlock.acquire("a").await.unwrap();
    let has_key = |server: &Server| server.exists("quorumlock:lock:a");
    eventually("all grants", SOON, || fleet.iter().all(has_key));
    let before = votes(&fleet);
    for span in [Duration::ZERO, Duration::from_millis(2), Duration::MAX] {
        let error = guard.extend(span).await.unwrap_err();
        assert!(matches!(error, ExtendError::Options(_)), "{error:?}");
        assert!(all_text(&error).contains("ttl"), "{error:?}");
    }
    assert_eq!(votes(&fleet), before, "nothing is sent");
    assert!(guard.remaining() > Duration::from_secs(5), "{:?}", guard.remaining());
    guard.release().await.unwrap();
}

/// What connecting with these options fails with; it has connected to nothing.
async fn refused_builder(set: impl FnOnce(RedlockBuilder) -> RedlockBuilder) -> OptionsError {
    let fleet = Fleet::start(2);
    let error =
        set(Redlock::builder().new_fleet().nodes(fleet.urls())).connect().await.unwrap_err();
    let connections: u64 = fleet.iter().map(Server::total_connections).sum();
    assert_eq!(connections, 0, "nothing is sent");
    let ConnectError::Options(error) = error else { panic!("{error:?}") };
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_have_to_be_positive_are_not_zero() {
    let zero = Duration::ZERO;
    let error = refused_builder(|builder| builder.node_timeout(zero)).await;
    assert_eq!(error, OptionsError::Zero { name: "node_timeout" });
    assert_names(&error, &["node_timeout", "zero"]);
    let error = refused_builder(|builder| builder.connect_timeout(zero)).await;
    assert_eq!(error, OptionsError::Zero { name: "connect_timeout" });
    let error = refused_builder(|builder| builder.max_in_flight(0)).await;
    assert_eq!(error, OptionsError::Zero { name: "max_in_flight" });
    let error = refused_builder(|builder| builder.ttl(zero)).await;
    assert!(matches!(error, OptionsError::TtlTooShort { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_timeout_that_can_use_up_the_validity_is_refused() {
    let long = Duration::from_secs(10);
    let error = refused_builder(|builder| builder.node_timeout(long)).await;
    assert!(matches!(error, OptionsError::NodeTimeoutTooLong { .. }), "{error:?}");
    assert_names(&error, &["node timeout", "10s", "ttl"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_ttl_above_the_largest_is_refused() {
    let long = Duration::from_secs(61);
    let error = refused_builder(|builder| builder.ttl(long)).await;
    assert_eq!(error, OptionsError::TtlTooLong { ttl: long, max_ttl: Duration::from_secs(60) });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_too_short_for_the_node_timeout_is_refused() {
    let fleet = Fleet::start(2);
    let builder = Redlock::builder().new_fleet().node_timeout(Duration::from_secs(1));
    let redlock = builder.nodes(fleet.urls()).connect().await.unwrap();
    let error = redlock.acquire_with("a", ttl(Duration::from_millis(900))).await.unwrap_err();
    let is_of_node_timeout =
        matches!(error, AcquireError::Options(OptionsError::NodeTimeoutTooLong { .. }));
    assert!(is_of_node_timeout, "{error:?}");
}

// Passwords.

#[track_caller]
fn assert_keeps_secret(error: &ConnectError) {
    let text = all_text(error);
    assert!(!text.contains(PASSWORD), "{text}");
    assert!(!text.contains("s%40crt") && !text.contains("s@crt"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_urls_do_not_show_passwords() {
    for url in [
        "redis://:hunter2@127.0.0.1:notaport",
        "redis://alice:hunter2@127.0.0.1/notadb",
        "redis://alice:hunter2@",
        "http://alice:hunter2@127.0.0.1",
        "redis-sentinel://alice:hunter2@127.0.0.1:1",
        "alice:hunter2@127.0.0.1",
        "redis://alice:hunter2@127.0.0.1:1:1",
        "redis://alice:hunter2@a@127.0.0.1:port",
    ] {
        let error = Redlock::single_node(url).await.unwrap_err();
        assert!(matches!(error, ConnectError::Config(_)), "{url}: {error:?}");
        assert_keeps_secret(&error);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_members_do_not_show_passwords() {
    let url = "redis://alice:hunter2@127.0.0.1:1";
    let duplicate = Redlock::connect([url, url]).await.unwrap_err();
    assert!(matches!(duplicate, ConnectError::Duplicate { .. }), "{duplicate:?}");
    assert_keeps_secret(&duplicate);
    assert_keeps_secret(&Redlock::connect([url]).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_servers_do_not_show_passwords() {
    let server = Server::with_args(&["--requirepass", "another"]);
    let url = format!("redis://:hunter2@{}", server.addr());
    assert_keeps_secret(&Redlock::single_node(&url).await.unwrap_err());
    server.kill();
    let connect_timeout = Duration::from_millis(300);
    let down = Redlock::builder().new_fleet().single_node(&url).connect_timeout(connect_timeout);
    assert_keeps_secret(&down.connect().await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_redlock_and_its_errors_do_not_show_passwords() {
    let server = Server::with_args(&["--requirepass", PASSWORD]);
    let url = format!("redis://:hunter2@{}", server.addr());
    let redlock = Redlock::builder().single_node(&url).new_fleet().connect().await.unwrap();
    let guard = redlock.acquire("a").await.unwrap();
    assert!(!format!("{redlock:?} {guard:?}").contains(PASSWORD));
    server.kill();
    let text = all_text(&redlock.try_acquire("b").await.unwrap_err());
    assert!(!text.contains(PASSWORD), "{text}");
}

#[test]
fn a_builder_does_not_show_passwords() {
    let builder = Redlock::builder().new_fleet().nodes([URL_WITH_PASSWORD]);
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
    let config = Config::from_url(URL_WITH_PASSWORD).unwrap();
    let builder = Redlock::builder().new_fleet().fred_configs([config]);
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
}

#[test]
fn a_node_does_not_show_its_password() {
    let node = RedisNode::from_url(URL_WITH_PASSWORD, SOON).unwrap();
    assert!(!format!("{node:?}").contains(PASSWORD), "{node:?}");
}

#[tokio::test]
async fn a_connection_does_not_show_its_password() {
    let server = Server::with_args(&["--requirepass", PASSWORD]);
    let url = format!("redis://:{PASSWORD}@{}", server.addr());
    let link = RedisNode::from_url(&url, SOON).unwrap().connect(&[]).await.unwrap();
    assert!(!format!("{link:?}").contains(PASSWORD), "{link:?}");
}
