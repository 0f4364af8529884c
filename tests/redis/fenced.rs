//! Values behind a fence, on a real server.

use std::time::Duration;

use proptest::{prelude::*, test_runner::TestRunner};
use quorumlock::{
    FencingToken,
    fenced::{
        StaleToken,
        redis::{Fence, FencedScript, WriteError},
    },
    fred::{
        clients::Client,
        interfaces::ClientLike as _,
        types::{
            RespVersion, Value,
            config::{Config, Options},
        },
    },
};

use crate::support::{Proxy, Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(5);
const FENCE: &str = "quorumlock:fence:{a}";

const fn token(number: u64) -> FencingToken {
    FencingToken::new(number)
}

async fn client(url: &str) -> Client {
    let client = Client::new(Config::from_url(url).unwrap(), None, None, None);
    client.init().await.unwrap();
    client
}

#[track_caller]
fn assert_stale<T: std::fmt::Debug>(written: Result<T, WriteError>, presented: u64, newest: u64) {
    let error = written.expect_err("a refusal");
    assert!(error.is_stale(), "{error:?}");
    let expected = StaleToken { presented: token(presented), newest: token(newest) };
    assert!(matches!(error, WriteError::Stale(stale) if stale == expected), "{error:?}");
}

/// Everything on the server, as `DUMP` gives it, so that any write shows.
fn everything(server: &Server) -> Vec<(String, Reply, i64)> {
    let dump = |key: String| {
        let (value, ttl) = (server.command(&["DUMP", &key]), server.pttl(&key));
        (key, value, ttl)
    };
    server.keys().into_iter().map(dump).collect()
}

fn hget(server: &Server, key: &str, field: &str) -> Option<String> {
    server.command(&["HGET", key, field]).into_text()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_token_writes_nothing_and_equal_and_larger_ones_do() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    fence.set(&client, "a", "one", token(33)).await.unwrap();
    fence.set(&client, "a", "two", token(33)).await.unwrap();
    fence.hset(&client, "{a}:h", "f", "three", token(34)).await.unwrap();
    fence.hset(&client, "{a}:h", "g", "four", token(34)).await.unwrap();
    let before = everything(&server);

    assert_stale(fence.set(&client, "a", "late", token(33)).await, 33, 34);
    assert_stale(fence.hset(&client, "{a}:h", "f", "late", token(0)).await, 0, 34);
    assert_stale(fence.claim(&client, token(33)).await, 33, 34);
    let script = FencedScript::new("return redis.call('DEL', KEYS[1])");
    assert_stale(fence.run(&client, &script, &["a"], &[], token(33)).await, 33, 34);

    assert_eq!(everything(&server), before);
    assert_eq!(server.get("a").as_deref(), Some("two"));
    assert_eq!(hget(&server, "{a}:h", "f").as_deref(), Some("three"));
    assert_eq!(hget(&server, "{a}:h", "g").as_deref(), Some("four"));
    assert_eq!((server.get(FENCE).as_deref(), server.pttl(FENCE)), (Some("34"), -1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_keeps_older_holders_out_before_anything_is_written() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    fence.claim(&client, token(34)).await.unwrap();
    fence.claim(&client, token(34)).await.unwrap();
    assert_stale(fence.set(&client, "a", "late", token(33)).await, 33, 34);
    assert_eq!(server.keys(), [FENCE]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_of_two_resources_do_not_meet() {
    let server = Server::start();
    let client = client(&server.url()).await;
    Fence::of("a").set(&client, "a", "x", token(34)).await.unwrap();
    Fence::of("{a}").set(&client, "{a}", "x", token(33)).await.unwrap();
    Fence::at("elsewhere").set(&client, "a", "y", token(1)).await.unwrap();
    assert_eq!(server.get("elsewhere").as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_compared_as_numbers_and_kept_exactly() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    let largest = FencingToken::MAX.get();
    // Lua prints the one in the middle as 1e+14.
    for number in [9, 10, 100_000_000_000_000, largest - 1, largest] {
        fence.set(&client, "a", number.to_string(), token(number)).await.unwrap();
        assert_eq!(server.get(FENCE), Some(number.to_string()));
        let late = fence.set(&client, "a", "late", token(number - 1)).await;
        assert_stale(late, number - 1, number);
        assert_eq!(server.get("a"), Some(number.to_string()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_no_token_is_not_sent() {
    let server = Server::start();
    let client = client(&server.url()).await;
    for number in [1 << 53, u64::MAX] {
        let error = Fence::of("a").set(&client, "a", "x", token(number)).await.unwrap_err();
        assert!(matches!(error, WriteError::TooLarge { presented } if presented == token(number)));
    }
    assert_eq!(server.keys(), [""; 0]);
}

/// What all writes fail with; nothing is written.
async fn refused(server: &Server, client: &Client, fence: &Fence) -> Vec<WriteError> {
    let before = everything(server);
    let script = FencedScript::new("return redis.call('SET', KEYS[1], 'x')");
    let errors = vec![
        fence.set(client, "a", "x", token(34)).await.unwrap_err(),
        fence.hset(client, "{a}:h", "f", "x", token(34)).await.unwrap_err(),
        fence.claim(client, token(34)).await.unwrap_err(),
        fence.run(client, &script, &["a"], &[], token(34)).await.unwrap_err(),
    ];
    assert_eq!(everything(server), before, "nothing is written");
    errors
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_is_no_token_is_an_error_and_nothing_is_written() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    let long = "9".repeat(400);
    for bad in ["", "x", "-1", "1.5", "1e3", "0x10", " 1", "1 ", "9007199254740992", "inf", &long] {
        server.set_raw(FENCE, bad, None);
        for error in refused(&server, &client, &fence).await {
            let WriteError::BadFence { key, found } = &error else { panic!("{bad:?}: {error:?}") };
            assert!(key == FENCE && *found == bad[..bad.len().min(40)], "{bad:?}: {error:?}");
        }
    }
    server.del(FENCE);
    for (type_name, add) in [("list", "RPUSH"), ("set", "SADD")] {
        server.command(&[add, FENCE, "1"]).into_int();
        for error in refused(&server, &client, &fence).await {
            assert!(matches!(&error, WriteError::BadFence { found, .. } if found == type_name));
        }
        server.del(FENCE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_another_type_is_an_error_and_nothing_is_written() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    server.set_raw("{a}:s", "x", None);
    server.command(&["HSET", "{a}:h", "f", "x"]).into_int();
    server.command(&["RPUSH", "{a}:l", "x"]).into_int();
    let before = everything(&server);
    let errors = [
        ("{a}:h", "hash", fence.set(&client, "{a}:h", "y", token(34)).await),
        ("{a}:l", "list", fence.set(&client, "{a}:l", "y", token(34)).await),
        ("{a}:s", "string", fence.hset(&client, "{a}:s", "f", "y", token(34)).await),
        ("{a}:l", "list", fence.hset(&client, "{a}:l", "f", "y", token(34)).await),
    ];
    for (of, type_name, written) in errors {
        let error = written.unwrap_err();
        let WriteError::WrongType { key, found } = &error else { panic!("{error:?}") };
        assert!(key == of && found == type_name, "{error:?}");
    }
    assert_eq!(everything(&server), before, "nothing is written");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_itself_cannot_be_written_through() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    let script = FencedScript::new("return redis.call('DEL', KEYS[2])");
    for written in [
        fence.set(&client, FENCE, "1", token(34)).await,
        fence.hset(&client, FENCE, "f", "1", token(34)).await,
        fence.run(&client, &script, &["a", FENCE], &[], token(34)).await.map(drop),
    ] {
        let error = written.unwrap_err();
        assert!(matches!(&error, WriteError::IsFence { key } if key == FENCE), "{error:?}");
    }
    assert_eq!(server.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_bytes() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    fence.set(&client, "a", [0, 255, 13, 10], token(1)).await.unwrap();
    assert_eq!(server.command(&["STRLEN", "a"]).into_int(), 4);
    fence.set(&client, "a", "", token(1)).await.unwrap();
    assert_eq!(server.get("a").as_deref(), Some(""));
    fence.hset(&client, "{a}:h", "\r\n", "12", token(1)).await.unwrap();
    assert_eq!(hget(&server, "{a}:h", "\r\n").as_deref(), Some("12"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_has_its_own_keys_and_arguments_and_returns_what_it_likes() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    let push = FencedScript::new(
        "local length = redis.call('RPUSH', KEYS[1], ARGV[1], ARGV[2])
         return {length, KEYS[2], #KEYS, #ARGV} -- and no more",
    );
    let pushed = fence.run(&client, &push, &["{a}:l", "{a}:m"], &[b"x", b"y"], token(34)).await;
    let expected = vec![2.into(), "{a}:m".into(), 2.into(), 2.into()];
    assert_eq!(pushed.unwrap(), Value::Array(expected));
    for (lua, returned) in [
        ("", Value::Null),
        ("return false", Value::Null),
        ("return 7", 7.into()),
        ("return 'text'", "text".into()),
        ("return redis.status_reply('FINE')", "FINE".into()),
        ("return {}", Value::Array(vec![])),
    ] {
        let ran = fence.run(&client, &FencedScript::new(lua), &[], &[], token(34)).await;
        assert_eq!(ran.unwrap(), returned, "{lua}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_of_the_client_makes_no_difference() {
    let server = Server::start();
    let config = Config { version: RespVersion::RESP3, ..Config::from_url(&server.url()).unwrap() };
    let client = Client::new(config, None, None, None);
    client.init().await.unwrap();
    let fence = Fence::of("a");
    fence.set(&client, "a", "x", token(34)).await.unwrap();
    assert_stale(fence.hset(&client, "{a}:h", "f", "x", token(33)).await, 33, 34);
    let script = FencedScript::new("return {1, false}");
    let ran = fence.run(&client, &script, &[], &[], token(34)).await;
    assert_eq!(ran.unwrap(), Value::Array(vec![1.into(), Value::Null]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_fails_leaves_the_fence_raised() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    let scripts = [
        "redis.call('SET', KEYS[1], 'half')
         error('over')",
        "return redis.error_reply('MINE over')",
        "return redis.call('LPUSH', KEYS[1], 'x')",
    ];
    for (number, lua) in (34..).zip(scripts) {
        let ran = fence.run(&client, &FencedScript::new(lua), &["a"], &[], token(number)).await;
        let error = ran.unwrap_err();
        assert!(matches!(error, WriteError::Redis(_)), "{lua}: {error:?}");
        assert_stale(fence.set(&client, "a", "late", token(number - 1)).await, number - 1, number);
        assert_eq!(server.get("a").as_deref(), Some("half"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_script_serves_other_clients() {
    let server = Server::start();
    let script = FencedScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    let eval = |token: &str| {
        server.command(&["EVAL", script.text(), "2", FENCE, "a", token, "5"]).into_array()
    };
    assert_eq!(eval("34"), [Reply::Int(1), Reply::Int(5)]);
    assert_eq!(eval("33"), [Reply::Int(0), Reply::Text("34".to_owned())]);
    for bad in ["", "x", "-1", "9007199254740992"] {
        assert_eq!(eval(bad), [Reply::Int(-3), Reply::Text(bad.to_owned())]);
    }
    assert_eq!(server.get("a").as_deref(), Some("5"));
    let failing = FencedScript::new("return redis.error_reply('MINE over')");
    let reply = server.command(&["EVAL", failing.text(), "1", FENCE, "34"]);
    assert!(matches!(&reply, Reply::Error(error) if error.contains("MINE")), "{reply:?}");
}

// The server computes the digests that EVALSHA is called with.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_go_out_by_digest_and_by_text_only_where_they_are_not_known() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    for flushes in 1..3 {
        for _ in 0..3 {
            fence.set(&client, "a", "x", token(1)).await.unwrap();
        }
        assert_eq!(server.calls("eval"), flushes, "each time that the scripts were flushed");
        server.command(&["SCRIPT", "FLUSH"]);
    }
    let script = FencedScript::new("return 1");
    let loaded = server.command(&["SCRIPT", "LOAD", script.text()]).into_text().unwrap();
    assert_eq!(loaded.len(), 40);
    let evals = server.calls("eval");
    fence.run(&client, &script, &[], &[], token(1)).await.unwrap();
    assert_eq!(server.calls("eval"), evals, "it was known by its digest");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_memory_leaves_value_and_fence_as_they_were() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let fence = Fence::of("a");
    fence.set(&client, "a", "x", token(33)).await.unwrap();
    fence.hset(&client, "{a}:h", "f", "x", token(33)).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for error in refused(&server, &client, &fence).await {
        assert!(matches!(&error, WriteError::Redis(e) if e.details().contains("OOM")), "{error:?}");
    }
}

// A write that was sent in time, and arrives when another holder has been there.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_held_up_in_the_network_is_refused() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (early, later) = (client(&proxy.url()).await, client(&server.url()).await);
    let fence = Fence::of("a");
    fence.set(&early, "a", "before", token(33)).await.unwrap();
    proxy.hold_requests();
    let held_up = tokio::spawn({
        let fence = fence.clone();
        async move { fence.set(&early, "a", "late", token(33)).await }
    });
    eventually("the request to be held", SOON, || proxy.held_bytes() > 0);
    fence.set(&later, "a", "later", token(34)).await.unwrap();
    proxy.pass();
    assert_stale(held_up.await.unwrap(), 33, 34);
    assert_eq!(server.get("a").as_deref(), Some("later"));
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_writers_never_go_back() {
    const WRITERS: u64 = 4;
    const TOKENS: u64 = 400;
    let server = Server::start();
    // The order in which the server ran the scripts that wrote.
    let append = FencedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (client, append) = (client(&server.url()).await, append.clone());
        writers.push(tokio::spawn(async move {
            let fence = Fence::of("a");
            let mut accepted = 0_usize;
            for number in (writer..TOKENS).step_by(4) {
                let args = [number.to_string().into_bytes()];
                let args = [args[0].as_slice()];
                match fence.run(&client, &append, &["{a}:l"], &args, token(number)).await {
                    Ok(_) => accepted += 1,
                    Err(error) => assert!(error.is_stale(), "{error:?}"),
                }
            }
            accepted
        }));
    }
    let mut accepted = 0;
    for writer in writers {
        accepted += writer.await.unwrap();
    }
    let log = server.command(&["LRANGE", "{a}:l", "0", "-1"]).into_array();
    let log: Vec<u64> =
        log.into_iter().map(|entry| entry.into_text().unwrap().parse().unwrap()).collect();
    assert_eq!(log.len(), accepted);
    assert!(log.is_sorted(), "{log:?}");
    assert_eq!(server.get(FENCE), log.last().map(u64::to_string));
}

// The model: what is written is what is not below anything presented before.
#[test]
fn exactly_those_below_the_largest_are_refused() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let client = runtime.block_on(client(&server.url()));
    let numbers = prop_oneof![0..30_u64, 99_999_999_999_990..100_000_000_000_010_u64];
    let steps = prop::collection::vec((numbers, 0..4_usize), 1..40);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(30));
    let script = FencedScript::new("return redis.call('SET', KEYS[1], ARGV[1])");
    let run = runner.run(&steps, |steps| {
        server.command(&["FLUSHALL"]);
        let fence = Fence::of("a");
        let (mut newest, mut value) = (None::<u64>, None::<String>);
        for (number, how) in steps {
            let (t, text) = (token(number), number.to_string());
            let written = runtime.block_on(async {
                match how {
                    0 => fence.claim(&client, t).await,
                    1 => fence.set(&client, "a", &text, t).await,
                    2 => fence.hset(&client, "{a}:h", "f", &text, t).await,
                    _ => fence.run(&client, &script, &["a"], &[text.as_bytes()], t).await.map(drop),
                }
            });
            match (written, newest.filter(|newest| number < *newest)) {
                (Ok(()), None) => {
                    newest = Some(number);
                    if how == 1 || how == 3 {
                        value = Some(text);
                    }
                }
                (Err(WriteError::Stale(stale)), Some(newest)) => {
                    prop_assert_eq!(stale, StaleToken { presented: t, newest: token(newest) });
                }
                (written, refused) => prop_assert!(false, "{number}: {written:?}, {refused:?}"),
            }
            prop_assert_eq!(server.get("a"), value.clone());
            prop_assert_eq!(server.get(FENCE), newest.map(|newest| newest.to_string()));
            prop_assert_eq!(server.pttl(FENCE), -1, "it is kept for good");
        }
        Ok(())
    });
    run.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster_a_fence_serves_the_keys_of_its_slot_and_no_others() {
    let server =
        Server::with_args(&["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let is_up = || {
        let info = server.command(&["CLUSTER", "INFO"]).into_text().unwrap();
        info.contains("cluster_state:ok")
    };
    eventually("the cluster to be up", SOON, is_up);
    let client = client(&format!("redis-cluster://{}", server.addr())).await;
    for (resource, keys) in [("a", ["a", "{a}:h"]), ("x{b}", ["x{b}", "{b}:h"])] {
        let fence = Fence::of(resource);
        fence.set(&client, keys[0], "x", token(1)).await.unwrap();
        fence.hset(&client, keys[1], "f", "x", token(1)).await.unwrap();
    }
    let before = everything(&server);
    for (resource, key) in [("a", "b"), ("a}b", "a}b")] {
        let error = Fence::of(resource).set(&client, key, "x", token(1)).await.unwrap_err();
        let WriteError::Redis(error) = error else { panic!("{error:?}") };
        assert!(error.details().starts_with("CROSSSLOT"), "{error:?}");
    }
    assert_eq!(everything(&server), before, "nothing is written");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_is_an_error_and_no_refusal() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let options = Options {
        timeout: Some(Duration::from_millis(300)),
        max_attempts: Some(1),
        ..Options::default()
    };
    let client = client(&proxy.url()).await.with_options(&options);
    let fence = Fence::of("a");
    proxy.drop_replies();
    let error = fence.set(&client, "a", "x", token(34)).await.unwrap_err();
    assert!(matches!(error, WriteError::Redis(_)), "{error:?}");
    // The server knows no scripts yet: it was asked by digest, and the answer to that got lost.
    assert_eq!(server.get("a"), None);
    server.command(&["SCRIPT", "LOAD", FencedScript::new("").text()]);
    let error = fence.run(&client, &FencedScript::new(""), &[], &[], token(34)).await.unwrap_err();
    assert!(matches!(error, WriteError::Redis(_)), "{error:?}");
    eventually("the fence", SOON, || server.get(FENCE).as_deref() == Some("34"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_survives_a_crash_where_its_value_does() {
    let durable = Server::with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let forgetful = Server::start();
    let fence = Fence::of("a");
    for server in [&durable, &forgetful] {
        fence.set(&client(&server.url()).await, "a", "x", token(34)).await.unwrap();
        server.restart();
    }
    let late = fence.set(&client(&durable.url()).await, "a", "late", token(33)).await;
    assert_stale(late, 33, 34);
    assert_eq!(durable.get("a").as_deref(), Some("x"));
    // What the docs warn of.
    fence.set(&client(&forgetful.url()).await, "a", "late", token(33)).await.unwrap();
}
