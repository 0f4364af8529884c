//! Who may vote: markers, and the scripts of an admission.

use quorumlock::{
    OwnerId,
    node::{Answer, FleetKeys, Link, MarkState, Node, NodeFailure, SendAs, Server},
};

use super::{
    KEY, LONG, LONGER, MARKER, SOMEONE, SOON, World, acquire, ask, assert_not_admitted, connect,
    extend, marker, release,
};
use crate::support::admit::within;

pub async fn nothing_is_granted_but_by_an_admission(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    for send_as in [SendAs::Digest, SendAs::Text] {
        let asked = link.link.call(&acquire(owner, LONG), send_as);
        assert_not_admitted(&within(SOON, asked).await);
    }
    assert_eq!(world.get(KEY), None);
}

pub async fn a_node_that_lost_its_marker_grants_nothing_more(world: &impl World) {
    let (mut link, owner) = (connect(world).await, OwnerId::random());
    world.delete(MARKER);
    assert_not_admitted(&ask(&link, acquire(owner, LONG)).await);
    world.set(MARKER, SOMEONE, None);
    assert_not_admitted(&ask(&link, acquire(owner, LONG)).await);
    world.delete(MARKER);
    assert_eq!(world.get(KEY), None);
    link.admit_again().await;
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
}

pub async fn a_node_that_lost_its_scripts_grants_nothing_more(world: &impl World) {
    let (mut link, owner) = (connect(world).await, OwnerId::random());
    let admission = world.get(MARKER);
    world.flush_scripts();
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Err(NodeFailure::NoScript));
    assert_eq!(world.get(KEY), None);
    link.admit_again().await;
    assert_ne!(world.get(MARKER), admission, "each admission has a marker of its own");
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
}

pub async fn an_admission_that_was_replaced_grants_nothing_more(world: &impl World) {
    let (old, mut new) = (connect(world).await, connect(world).await);
    world.delete(MARKER);
    new.admit_again().await;
    // Its script is still known.
    assert_not_admitted(&ask(&old, acquire(OwnerId::random(), LONG)).await);
    assert_eq!(ask(&new, acquire(OwnerId::random(), LONG)).await, Ok(Answer::Done));
}

pub async fn what_is_still_ours_lives_on_without_an_admission(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
    world.delete(MARKER);
    assert_eq!(ask(&link, extend(owner, LONGER)).await, Ok(Answer::Done));
    assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
}

pub async fn a_marker_is_written_only_instead_of_the_one_that_was_seen(world: &impl World) {
    let link = world.node().connect(&[]).await.expect("a connection");
    let at = FleetKeys::with_prefix("test:");
    let facts = link.look(&at, false, SOON).await.expect("an answer");
    assert_eq!(facts.marker, None);
    let first = marker(&facts.run_id, MarkState::Waiting);
    let seen = Some("another".to_owned());
    assert_eq!(link.mark(&at, seen, first.clone(), SOON).await, Ok(false));
    assert_eq!(link.mark(&at, None, first.clone(), SOON).await, Ok(true));
    assert_eq!(world.get(MARKER), Some(first.to_string()));
    let second = marker(&facts.run_id, MarkState::Waiting);
    assert_eq!(link.mark(&at, None, second.clone(), SOON).await, Ok(false));
    assert_eq!(link.mark(&at, Some(first.to_string()), second.clone(), SOON).await, Ok(true));
    let facts = link.look(&at, false, SOON).await.expect("an answer");
    assert_eq!(facts.marker, Some(second.to_string()));
    assert_eq!(world.pttl(MARKER), -1, "a marker does not expire");
}

pub async fn a_marker_is_written_only_for_the_process_that_was_seen(world: &impl World) {
    let link = world.node().connect(&[]).await.expect("a connection");
    let at = FleetKeys::with_prefix("test:");
    let other = marker("another", MarkState::Admitted);
    assert_eq!(link.mark(&at, None, other, SOON).await, Ok(false));
    assert_eq!(world.get(MARKER), None);
}

pub async fn a_look_tells_what_kind_of_server_it_is(world: &impl World) {
    let link = world.node().connect(&[]).await.expect("a connection");
    for durability in [false, true] {
        let facts =
            link.look(&FleetKeys::with_prefix("test:"), durability, SOON).await.expect("an answer");
        assert_eq!(facts.run_id, link.id().run_id);
        assert!(
            matches!(facts.server, Server::Redis(7.., _) | Server::Valkey(7.., _)),
            "{facts:?}"
        );
        assert!(facts.is_master && !facts.is_cluster && !facts.is_loading && !facts.is_durable);
        assert_eq!((facts.eviction.as_deref(), facts.replicas), (Some("noeviction"), 0));
    }
}
