//! Replies that come to the wrong question.

use std::time::Duration;

use quorumlock::{
    Key, OwnerId,
    node::{Node, NodeFailure, Operation, SendAs, redis::RedisNode},
};

use crate::support::{Proxy, Server, admit::Admitted, eventually};

const SOON: Duration = Duration::from_secs(5);

fn acquire(key: &str) -> Operation {
    Operation::Acquire { key: Key::new(key), owner: OwnerId::random(), ttl_ms: 30_000 }
}

// RESP has no request ids: once a reply was lost, the next one comes to the question before.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_to_another_question_is_no_vote() {
    let (server, held) = (Server::start(), "held");
    server.set_raw(held, "someone else", None);
    let proxy = Proxy::start(server.port());
    let node = RedisNode::from_url(&proxy.url(), SOON).expect("a good URL");
    let link = Admitted::admit(node.connect(&[]).await.expect("a connection")).await;

    proxy.drop_replies();
    let refused = tokio::spawn(link.call(&acquire(held), SendAs::Digest, SOON));
    eventually("the refusal to be lost", SOON, || proxy.swallowed_bytes() > 0);
    proxy.pass();
    let granted = tokio::spawn(link.call(&acquire("free"), SendAs::Digest, SOON));

    let out_of_step = NodeFailure::Disconnected { cause: "a reply out of step".to_owned() };
    assert_eq!(refused.await.expect("no panic"), Err(out_of_step));
    granted.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joint_reply_to_another_command_is_no_vote() {
    let server = Server::start();
    server.set_raw("held", "someone else", None);
    let proxy = Proxy::start(server.port());
    let node = RedisNode::from_url(&proxy.url(), SOON).expect("a good URL");
    let link = Admitted::admit(node.connect(&[]).await.expect("a connection")).await;
    let ballot = link.ballot();

    proxy.drop_replies();
    let all = vec![acquire("held"), acquire("held")];
    let refused = tokio::spawn(link.call_together(all, &ballot, SOON));
    eventually("the refusal to be lost", SOON, || proxy.swallowed_bytes() > 0);
    proxy.pass();
    let all = vec![acquire("free-1"), acquire("free-2")];
    let granted = tokio::spawn(link.call_together(all, &ballot, SOON));

    let out_of_step = NodeFailure::Disconnected { cause: "a reply out of step".to_owned() };
    assert_eq!(refused.await.expect("no panic"), Err(out_of_step));
    granted.abort();
}
