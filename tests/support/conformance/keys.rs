//! What becomes of a lock's key, and which scripts do it.

use std::time::Duration;

use quorumlock::{
    OwnerId,
    node::{Answer, NodeFailure, SendAs},
};

use super::{
    KEY, LONG, LONGER, SHORT, SOMEONE, SOON, World, acquire, ask, assert_lives_for,
    assert_taken_for_at_most, assert_wrong_type, connect, eventually, extend, ms_i64, release,
};

pub async fn a_free_key_is_granted_with_owner_and_ttl(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
    assert_eq!(world.get(KEY), Some(owner.to_string()));
    assert_lives_for(world, LONG);
}

pub async fn a_held_key_is_refused_and_left_alone(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    let refused = ask(&link, acquire(OwnerId::random(), LONGER)).await;
    assert_taken_for_at_most(&refused, LONG);
    assert_eq!(world.get(KEY), Some(owner.to_string()));
    assert_lives_for(world, LONG);
}

pub async fn a_key_is_never_granted_twice_not_even_to_its_owner(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_taken_for_at_most(&ask(&link, acquire(owner, LONGER)).await, LONG);
    assert_lives_for(world, LONG);
}

pub async fn a_key_without_ttl_is_taken_for_good(world: &impl World) {
    world.set(KEY, SOMEONE, None);
    let (link, owner) = (connect(world).await, OwnerId::random());
    let for_good = Ok(Answer::Taken { remaining: None });
    assert_eq!(ask(&link, acquire(owner, LONG)).await, for_good);
    assert_eq!(ask(&link, extend(owner, LONG)).await, for_good);
    assert_eq!(ask(&link, release(owner)).await, for_good);
    assert_eq!(world.get(KEY).as_deref(), Some(SOMEONE));
    assert_eq!(world.pttl(KEY), -1);
}

pub async fn a_key_of_another_type_is_neither_granted_nor_touched(world: &impl World) {
    world.set_list(KEY);
    let (link, owner) = (connect(world).await, OwnerId::random());
    let acquired = ask(&link, acquire(owner, LONG)).await;
    assert_eq!(acquired, Ok(Answer::Taken { remaining: None }));
    assert_wrong_type(&ask(&link, extend(owner, LONG)).await);
    assert_wrong_type(&ask(&link, release(owner)).await);
    assert_eq!(world.pttl(KEY), -1, "the list is as it was");
}

pub async fn an_expired_key_is_free(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, SHORT)).await.expect("granted");
    eventually("the expiry", || world.pttl(KEY) == -2).await;
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Missing));
    assert_eq!(ask(&link, acquire(OwnerId::random(), LONG)).await, Ok(Answer::Done));
    assert_taken_for_at_most(&ask(&link, release(owner)).await, LONG);
}

pub async fn extending_ones_own_key_prolongs_it(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_eq!(ask(&link, extend(owner, LONGER)).await, Ok(Answer::Done));
    assert_lives_for(world, LONGER);
    assert_eq!(world.get(KEY), Some(owner.to_string()));
}

pub async fn extending_never_shortens(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_eq!(ask(&link, extend(owner, Duration::from_secs(1))).await, Ok(Answer::Done));
    assert_lives_for(world, LONG);
}

pub async fn extending_a_key_that_lost_its_ttl_gives_it_none(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.set(KEY, &owner.to_string(), None);
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Done));
    assert_eq!(world.pttl(KEY), -1);
}

pub async fn extending_a_missing_key_does_not_create_it(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    world.delete(KEY);
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Missing));
    assert_eq!(world.get(KEY), None);
}

pub async fn extending_anothers_key_is_refused(world: &impl World) {
    world.set(KEY, SOMEONE, Some(LONG));
    let link = connect(world).await;
    assert_taken_for_at_most(&ask(&link, extend(OwnerId::random(), LONGER)).await, LONG);
    assert_lives_for(world, LONG);
}

pub async fn releasing_ones_own_key_deletes_it(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    ask(&link, acquire(owner, LONG)).await.expect("granted");
    assert_eq!(ask(&link, release(owner)).await, Ok(Answer::Done));
    assert_eq!(world.get(KEY), None);
}

pub async fn releasing_a_missing_key_says_so(world: &impl World) {
    let link = connect(world).await;
    assert_eq!(ask(&link, release(OwnerId::random())).await, Ok(Answer::Missing));
}

pub async fn releasing_anothers_key_leaves_it(world: &impl World) {
    world.set(KEY, SOMEONE, Some(LONG));
    let link = connect(world).await;
    assert_taken_for_at_most(&ask(&link, release(OwnerId::random())).await, LONG);
    assert_eq!(world.get(KEY).as_deref(), Some(SOMEONE));
    assert_lives_for(world, LONG);
}

pub async fn forgotten_scripts_execute_nothing_and_are_learnt_by_text(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    assert_eq!(ask(&link, acquire(owner, LONG)).await, Ok(Answer::Done));
    let steps = [extend(owner, LONGER), release(owner)];
    for step in steps {
        world.flush_scripts();
        let before = (world.get(KEY), world.pttl(KEY) > ms_i64(LONG));
        assert_eq!(ask(&link, step.clone()).await, Err(NodeFailure::NoScript), "{step:?}");
        assert_eq!((world.get(KEY), world.pttl(KEY) > ms_i64(LONG)), before, "{step:?}");
        assert_eq!(link.call(&step, SendAs::Text, SOON).await, Ok(Answer::Done), "{step:?}");
        // Known again: a verdict on the key as it is now, and not NoScript.
        assert!(ask(&link, step.clone()).await.is_ok(), "{step:?}");
    }
    assert_eq!(world.get(KEY), None);
}

pub async fn a_script_that_is_learnt_by_text_is_the_only_one(world: &impl World) {
    let (link, owner) = (connect(world).await, OwnerId::random());
    world.flush_scripts();
    let extended = link.call(&extend(owner, LONG), SendAs::Text, SOON).await;
    assert_eq!(extended, Ok(Answer::Missing));
    assert_eq!(ask(&link, extend(owner, LONG)).await, Ok(Answer::Missing));
    assert_eq!(ask(&link, release(owner)).await, Err(NodeFailure::NoScript));
}
