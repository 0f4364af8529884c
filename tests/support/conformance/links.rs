//! Connections: order, what is lost with them, and what they leave.

use std::{future::poll_fn, pin::pin, task::Poll};

use futures::future::maybe_done;
use quorumlock::{
    OwnerId,
    node::{Answer, Link, LinkId, Node, NodeFailure, Operation, Outcome, SendAs},
};

use super::{
    KEY, LONG, SHORT, SOON, World, acquire, ask, closes, connect, connect_after, eventually, ping,
    release,
};
use crate::support::admit::Admitted;

pub async fn a_ping_is_answered(world: &impl World) {
    let link = connect(world).await;
    assert_eq!(ask(&link, ping()).await, Ok(Answer::Done));
    assert_eq!(link.call(&ping(), SendAs::Text, SOON).await, Ok(Answer::Done));
}

/// Each acquire is granted only if the release before it has run, and each release does something
/// only if its acquire has.
pub async fn operations_run_in_the_order_in_which_they_were_first_polled(world: &impl World) {
    let link = connect(world).await;
    let operations = (0..50).flat_map(|_| {
        let owner = OwnerId::random();
        [acquire(owner, LONG), release(owner)]
    });
    // Made in the opposite order: making a call sends nothing.
    let operations: Vec<Operation> = operations.collect();
    let calls = operations
        .iter()
        .rev()
        .map(|operation| Box::pin(maybe_done(link.call(operation, SendAs::Digest, SOON))));
    let mut calls: Vec<_> = calls.collect();
    calls.reverse();
    poll_fn(|context| {
        let ready = calls.iter_mut().map(|call| call.as_mut().poll(context).is_ready());
        // All are polled in any case.
        let pending = ready.filter(|is_ready| !is_ready).count();
        if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let outcomes = calls.iter_mut().map(|call| call.as_mut().take_output().expect("done"));
    let outcomes: Vec<Outcome> = outcomes.collect();
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(Answer::Done)), "{outcomes:?}");
    assert_eq!(world.get(KEY), None);
}

pub async fn an_operation_that_timed_out_may_still_run(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.freeze();
    let outcome = link.call(&acquire(owner, LONG), SendAs::Digest, SHORT).await;
    assert_eq!(outcome, Err(NodeFailure::Timeout { after: SHORT }));
    world.thaw();
    // Behind it on the same link: its answer proves that the acquire has run.
    assert_eq!(ask(&link, ping()).await, Ok(Answer::Done));
    assert_eq!(world.get(KEY), Some(owner.to_string()));
    assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
}

pub async fn a_link_that_the_server_closed_ends(world: &impl World) {
    let mut link = connect(world).await;
    {
        let mut closed = pin!(link.closed());
        let early = tokio::time::timeout(SHORT, closed.as_mut()).await;
        assert!(early.is_err(), "ended while the connection was fine: {early:?}");
    }
    world.kill_client(client_id(&link));
    closes(&mut link).await;
}

pub async fn a_link_to_a_crashed_server_ends(world: &impl World) {
    let mut link = connect(world).await;
    world.crash();
    closes(&mut link).await;
}

pub async fn what_is_sent_on_a_dead_link_ends_in_time_and_is_not_answered(world: &impl World) {
    let mut link = connect(world).await;
    world.kill_client(client_id(&link));
    closes(&mut link).await;
    let call = link.call(&acquire(OwnerId::random(), LONG), SendAs::Digest, SHORT);
    let outcome = tokio::time::timeout(SOON, call).await.expect("an end of the call");
    let is_unknown =
        matches!(outcome, Err(NodeFailure::Disconnected { .. } | NodeFailure::Timeout { .. }));
    assert!(is_unknown, "{outcome:?}");
    assert_eq!(world.get(KEY), None);
}

#[track_caller]
fn client_id(link: &Admitted<impl Link>) -> i64 {
    link.id().client_id.expect("the server tells the client's id")
}

pub async fn connecting_closes_the_stale_links_to_the_same_process(world: &impl World) {
    let mut stale = [connect(world).await, connect(world).await];
    let bystander = connect(world).await;
    let ids = stale.each_ref().map(|link| link.id().clone());
    let link = connect_after(world, &ids).await;
    assert_eq!(link.id().run_id, bystander.id().run_id, "the same process");
    // It is done before the new link is handed out, so that nothing can run behind it.
    let mut expected = vec![client_id(&bystander), client_id(&link)];
    expected.sort_unstable();
    let mut clients = world.clients();
    clients.sort_unstable();
    assert_eq!(clients, expected);
    for link in &mut stale {
        closes(link).await;
    }
    assert_eq!(ask(&bystander, ping()).await, Ok(Answer::Done));
}

pub async fn connecting_leaves_the_links_of_other_processes_alone(world: &impl World) {
    let bystander = connect(world).await;
    let id = LinkId { run_id: "another process".to_owned(), ..bystander.id().clone() };
    let gone = LinkId { client_id: Some(i64::MAX), ..bystander.id().clone() };
    let unknown = LinkId { client_id: None, ..bystander.id().clone() };
    let link = connect_after(world, &[id, gone, unknown]).await;
    assert_eq!(ask(&bystander, ping()).await, Ok(Answer::Done));
    assert_eq!(ask(&link, ping()).await, Ok(Answer::Done));
}

pub async fn a_dead_server_is_unreachable(world: &impl World) {
    world.crash();
    let connected = tokio::time::timeout(SOON, world.node().connect(&[])).await;
    let failure = connected.expect("bounded by the node itself").err().expect("no link");
    assert!(matches!(failure, NodeFailure::Unreachable { .. }), "{failure:?}");
}

pub async fn a_closed_link_leaves_no_client(world: &impl World) {
    let link = connect(world).await;
    assert_eq!(world.clients(), [client_id(&link)]);
    link.link.close().await;
    eventually("the client's end", || world.clients().is_empty()).await;
}

pub async fn a_dropped_link_leaves_no_client(world: &impl World) {
    drop(connect(world).await);
    eventually("the client's end", || world.clients().is_empty()).await;
}
