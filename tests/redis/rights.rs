//! What a client is told whose user lacks a right.

use std::{sync::Arc, time::Duration};

use quorumlock::{NodeState, Redlock, RedlockBuilder};

use crate::support::{
    Reply, Server,
    aftermath::{all_vote, key, node},
    futures::eventually_async,
};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(10);
/// The user of `docs/operations.md`, before it is taken something away.
const RIGHTS: &str = "on >pw resetkeys ~quorumlock:* resetchannels &quorumlock:* -@all +evalsha +eval \
     +script|load +ping +info +client|id +client|kill +exists +pttl +get +set +pexpire +del +incr \
     +subscribe +unsubscribe +pubsub|numsub +publish";
/// What no node can do without, and what the error calls it.
const NEEDED: [(&str, &str); 11] = [
    ("-info", "'info'"),
    ("-script", "'script|load'"),
    ("-evalsha", "'evalsha'"),
    ("-eval", "may not call EVAL on quorumlock:marker"),
    ("-get", "may not call GET on quorumlock:marker"),
    ("-set", "may not call SET on quorumlock:marker"),
    ("-exists", "may not call EXISTS on quorumlock:marker"),
    ("-pttl", "may not call PTTL on quorumlock:marker"),
    ("-pexpire", "may not call PEXPIRE on quorumlock:marker"),
    ("-del", "may not call DEL on quorumlock:marker"),
    ("-incr", "may not call INCR on quorumlock:marker"),
];
/// What it can.
const DISPENSABLE: [&str; 7] =
    ["-publish", "-pubsub", "-subscribe", "-unsubscribe", "-client", "resetchannels", "-ping"];

/// Makes or changes a user.
#[track_caller]
fn set_user(server: &Server, name: &str, rules: &[&str]) {
    let command: Vec<&str> =
        ["ACL", "SETUSER", name].into_iter().chain(rules.iter().copied()).collect();
    assert_eq!(server.command(&command), Reply::Text("OK".to_owned()));
}

/// A node that this user reaches, with the rights of `docs/operations.md` and then these changes.
pub(crate) fn as_user(server: &Server, name: &str, changes: &[&str]) -> RedlockBuilder {
    let url = user_url(server, name, changes);
    // With time to answer, also on a machine that is busy.
    Redlock::builder().new_fleet().node_timeout(Duration::from_secs(2)).single_node(url)
}

/// The URL of this user, with the rights of `docs/operations.md` and then these changes.
pub(crate) fn user_url(server: &Server, name: &str, changes: &[&str]) -> String {
    let rules: Vec<&str> = RIGHTS.split_whitespace().chain(changes.iter().copied()).collect();
    set_user(server, name, &rules);
    format!("redis://{name}:pw@{}", server.addr())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lacks_a_right_that_a_node_needs_is_told_which_at_once() {
    let server = Server::start();
    for (change, named) in NEEDED {
        let connected = as_user(&server, &format!("without{change}"), &[change]).connect().await;
        let told = connected.expect_err(change).to_string();
        assert!(told.contains(named), "{change} {named}: {told}");
        assert!(!server.exists("quorumlock:marker"), "{change}");
    }
    // And it is the same where another client has had the node admitted.
    let whole = as_user(&server, "whole", &[]).connect().await.unwrap();
    whole.try_acquire("r").await.unwrap().release().await.unwrap();
    for (change, named) in NEEDED {
        let connected = as_user(&server, &format!("without{change}"), &[change]).connect().await;
        let told = connected.expect_err(change).to_string();
        assert!(told.contains(named), "{change} {named}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lacks_several_is_told_all_of_them() {
    let server = Server::start();
    let told = |changes: &'static [&str]| {
        let builder = as_user(&server, "some", changes);
        async { builder.connect().await.expect_err("a refusal").to_string() }
    };
    let told_commands = told(&["-exists", "-set", "-del"]).await;
    assert!(told_commands.contains("may not call SET, EXISTS, DEL on"), "{told_commands}");
    let told_keys = told(&["resetkeys", "~other:*"]).await;
    let all = "may not call GET, SET, EXISTS, PTTL, PEXPIRE, DEL, INCR on quorumlock:marker";
    assert!(told_keys.contains(all), "{told_keys}");
    let told_read_only = told(&["resetkeys", "%R~quorumlock:*"]).await;
    assert!(told_read_only.contains("may not call SET, PEXPIRE, DEL, INCR on"), "{told_read_only}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lacks_a_right_that_is_not_needed_locks_all_the_same() {
    let server = Server::start();
    for change in [&[][..], &DISPENSABLE[..]].into_iter().chain(DISPENSABLE.chunks(1)) {
        let redlock = as_user(&server, "some", change).connect().await.unwrap();
        redlock.try_acquire("r").await.unwrap().release().await.unwrap();
        redlock.try_acquire_fenced("r").await.unwrap().release().await.unwrap();
        redlock.shutdown().await;
        assert!(!server.exists(&key("r")), "{change:?}");
    }
}

/// A right is taken away from a client while it is connected, and given back.
async fn taken_and_given_back(server: Arc<Server>, change: &'static str, named: &'static str) {
    let (user, resource) = (format!("user{change}"), format!("r{change}"));
    let redlock = as_user(&server, &user, &[]).connect().await.unwrap();
    eventually_async("its vote", SOON, || all_vote(&redlock)).await;
    // One that is new, one that has to look at the largest number, and one that has not.
    let counters = [("new", None), ("first", Some(64)), ("within", Some(70))]
        .map(|(name, counter)| (format!("{name}{change}"), counter));
    for (name, counter) in &counters {
        if let Some(counter) = counter {
            server.set_raw(&format!("quorumlock:fence:{name}"), &counter.to_string(), None);
        }
    }
    set_user(&server, &user, &[change]);
    let mut granted = Vec::new();
    for (name, counter) in &counters {
        let token = redlock.try_acquire_fenced(name).await.map(|guard| guard.token().get());
        granted.push(token.unwrap_or(0).max(counter.unwrap_or(LARGEST)));
    }
    // What a vote needs shows at the vote, and the rest at the next look, after 5 s. Some are then owed a
    // release, too.
    drop(redlock.try_acquire(&resource).await);
    let is_told = || {
        let NodeState::Refused { why } = node(&redlock, 0).state else { return false };
        assert!(why.contains(named), "{change} {named}: {why}");
        true
    };
    eventually_async(named, SOON, is_told).await;
    let error = redlock.try_acquire(&resource).await.expect_err(change).to_string();
    assert!(error.contains(named), "{change} {named}: {error}");
    set_user(&server, &user, &[&change.replace('-', "+")]);
    eventually_async("its vote", SOON, || all_vote(&redlock)).await;
    eventually_async("no key", SOON, || !server.exists(&key(&resource))).await;
    redlock.try_acquire(&resource).await.unwrap().release().await.unwrap();
    for ((name, _), before) in counters.iter().zip(granted) {
        let free = || !server.exists(&key(name));
        eventually_async("no key", SOON, free).await;
        let token = redlock.try_acquire_fenced(name).await.unwrap().token().get();
        assert!(token > before, "{token} after {before} for {name}");
    }
}

/// What other resources were granted before.
const LARGEST: u64 = 640;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_takes_a_right_away_is_refused_by_name_and_votes_again_when_it_gives_it_back() {
    let server = Arc::new(Server::start());
    server.set_raw("quorumlock:max", &LARGEST.to_string(), None);
    // Scripts are loaded at the next admission, and not before.
    let needed = NEEDED.into_iter().filter(|(change, _)| *change != "-script");
    let tests = needed.map(|(change, named)| {
        tokio::spawn(taken_and_given_back(Arc::clone(&server), change, named))
    });
    for test in tests.collect::<Vec<_>>() {
        test.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_refused_is_not_asked_to_extend_before_it_has_answered_its_releases() {
    let server = Server::start();
    let redlock = as_user(&server, "some", &[]).connect().await.unwrap();
    let mut held = redlock.try_acquire("held").await.unwrap();
    let other = redlock.try_acquire("other").await.unwrap();
    set_user(&server, "some", &["-del"]);
    drop(other);
    let is_refused = || matches!(node(&redlock, 0).state, NodeState::Refused { .. });
    eventually_async("a refusal", SOON, is_refused).await;
    assert_eq!(node(&redlock, 0).owed_releases, 1);
    let error = held.extend(SOON).await.unwrap_err();
    assert!(!error.is_lost() && error.to_string().contains("releases that it missed"), "{error}");
    set_user(&server, "some", &["+del"]);
    eventually_async("its vote", SOON, || all_vote(&redlock)).await;
    held.extend(SOON).await.unwrap();
    held.release().await.unwrap();
}

// A command that was renamed is none, and no right is needed to find that out.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lacks_a_command_is_refused_by_its_name() {
    let server = Server::with_args(&["--rename-command", "PEXPIRE", "hidden"]);
    let connected = Redlock::builder().new_fleet().single_node(server.url()).connect().await;
    let told = connected.expect_err("a refusal").to_string();
    assert!(told.contains("may not call PEXPIRE on"), "{told}");
}
