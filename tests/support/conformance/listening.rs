//! Who hears of a release.

use quorumlock::{
    Key, OwnerId, Seat,
    node::{Answer, Called, Heard, Link, Listener, Move, Node, Operation},
};

use super::{
    KEY, LONG, SEAT, SHORT, SOMEONE, SOON, World, ask, assert_taken_for_at_most, connect,
    eventually, ms, release,
};
use crate::support::admit::Admitted;

type ListenerOf<W> = <<W as World>::Node as Node>::Listener;

async fn listen<W: World>(world: &W) -> ListenerOf<W> {
    listen_on(world, SEAT).await
}

async fn listen_on<W: World>(world: &W, seat: Seat) -> ListenerOf<W> {
    let listener = world.node().listen().await.expect("a connection");
    listener.move_to(vec![to(KEY, None, Some(seat))]).await.expect("watched");
    listener
}

fn to(key: &str, from: Option<Seat>, to: Option<Seat>) -> Move {
    Move { key: Key::new(key), from, to }
}

async fn watch(listener: &impl Listener, key: &str) {
    listener.move_to(vec![to(key, None, Some(SEAT))]).await.expect("watched");
}

async fn unwatch(listener: &impl Listener, key: &str) {
    listener.move_to(vec![to(key, Some(SEAT), None)]).await.expect("unwatched");
}

async fn hears(listener: &mut impl Listener) -> Heard {
    let heard = tokio::time::timeout(SOON, listener.heard()).await;
    heard.expect("waited in vain for a release").expect("connected")
}

async fn hears_nothing(listener: &mut impl Listener) {
    let heard = tokio::time::timeout(SHORT, listener.heard()).await;
    assert!(heard.is_err(), "{heard:?}");
}

async fn ends(listener: &mut impl Listener) {
    let heard = tokio::time::timeout(SOON, listener.heard()).await;
    let heard = heard.expect("waited in vain for the end of the listener");
    assert!(heard.is_err(), "{heard:?}");
}

/// Acquires and releases a key. Whose it was.
async fn come_and_go(link: &Admitted<impl Link>, key: &str) -> OwnerId {
    come_and_go_from(link, key, OwnerId::random().seat(), Called::NextAndStandIn).await
}

/// The same, of an owner on this seat, who calls these.
async fn come_and_go_from(
    link: &Admitted<impl Link>,
    key: &str,
    seat: Seat,
    calls: Called,
) -> OwnerId {
    let (key, owner) = (Key::new(key), OwnerId::random().on_seat(seat));
    let acquire = Operation::Acquire { key: key.clone(), owner, ttl_ms: ms(LONG) };
    assert_eq!(ask(link, acquire).await, Ok(Answer::Done));
    let released = ask(link, Operation::Release { key, owner, calls }).await;
    assert!(matches!(released, Ok(Answer::Done | Answer::PassedOn)), "{released:?}");
    owner
}

pub async fn a_node_says_whether_others_wait(world: &impl World) {
    let link = connect(world).await;
    let others = async |besides| {
        let waiters = Operation::Waiters { key: Key::new(KEY), besides };
        ask(&link, waiters).await.expect("answered") != Answer::Missing
    };
    assert!(!others(0).await, "nobody waits");
    let first = listen(world).await;
    assert!(others(0).await && !others(1).await);
    let _second = listen_on(world, Seat::new(900)).await;
    let of_another_key = listen_on(world, SEAT).await;
    let moves = vec![to("lock:b", None, Some(SEAT)), to(KEY, Some(SEAT), None)];
    of_another_key.move_to(moves).await.expect("moved");
    assert!(others(1).await && !others(2).await);
    unwatch(&first, KEY).await;
    assert!(others(0).await && !others(1).await);
}

pub async fn a_listener_hears_whose_release_it_was_and_who_shares_its_seat(world: &impl World) {
    let heard =
        |owner, sharing| Heard { key: Key::new(KEY), owner, rank: 0, sharing, behind: None };
    let (link, mut first) = (connect(world).await, listen(world).await);
    let owner = come_and_go(&link, KEY).await;
    assert_eq!(hears(&mut first).await, heard(owner, 1));

    let mut second = listen(world).await;
    let owner = come_and_go(&link, KEY).await;
    for listener in [&mut first, &mut second] {
        assert_eq!(hears(listener).await, heard(owner, 2));
        hears_nothing(listener).await;
    }
}

pub async fn a_release_calls_the_next_in_the_ring_and_one_to_stand_in(world: &impl World) {
    let link = connect(world).await;
    // Two of one ten.
    let seats = [3, 500, 505].map(Seat::new);
    let mut listeners = Vec::new();
    for seat in seats {
        listeners.push(listen_on(world, seat).await);
    }
    // Of owners on seats before, behind and between them, in their tens and hundreds and in others, and on
    // their own.
    let owners = [0, 3, 4, 9, 10, 99, 100, 499, 500, 501, 504, 505, 506, 510, 599, 600, 999];
    for own in owners {
        let calls = Called::NextAndStandIn;
        let owner = come_and_go_from(&link, KEY, Seat::new(own), calls).await;
        // Who sits at the owner's own seat is the last.
        let first = seats.iter().position(|seat| seat.number() > own).unwrap_or(0);
        let heard = |rank, behind| Heard { key: Key::new(KEY), owner, rank, sharing: 1, behind };
        listeners.rotate_left(first);
        let behind = seats.iter().cycle().nth(first.saturating_add(1)).copied();
        let [next, stands_in, other] = &mut listeners[..] else { panic!("three listen") };
        assert_eq!(hears(next).await, heard(0, behind), "{owner:?}");
        assert_eq!(hears(stands_in).await, heard(1, None), "{owner:?}");
        hears_nothing(other).await;
        listeners.rotate_right(first);
    }
}

pub async fn a_release_calls_whom_it_is_told_to_and_the_next_if_nobody_is_there(
    world: &impl World,
) {
    let link = connect(world).await;
    let seats = [3, 500, 505].map(Seat::new);
    let mut listeners = Vec::new();
    for seat in seats {
        listeners.push(listen_on(world, seat).await);
    }
    // From an owner on a seat before all of them, and on one of theirs.
    let places = [(0, 3, 0), (0, 505, 2), (500, 3, 0), (500, 500, 1), (0, 7, 0), (4, 998, 1)];
    for (own, known, place) in places {
        let calls = Called::Known(Seat::new(known));
        let owner = come_and_go_from(&link, KEY, Seat::new(own), calls).await;
        let heard = Heard { key: Key::new(KEY), owner, rank: 0, sharing: 1, behind: None };
        assert_eq!(hears(&mut listeners[place]).await, heard, "{own}, {known}");
        for (other, listener) in listeners.iter_mut().enumerate() {
            if other != place {
                hears_nothing(listener).await;
            }
        }
    }
}

pub async fn who_stands_in_is_not_named_where_several_share_that_seat(world: &impl World) {
    let (link, mut next) = (connect(world).await, listen_on(world, Seat::new(5)).await);
    let [mut one, mut other] = [listen(world).await, listen(world).await];
    let calls = Called::NextAndStandIn;
    let owner = come_and_go_from(&link, KEY, Seat::new(0), calls).await;
    let heard = |rank, sharing| Heard { key: Key::new(KEY), owner, rank, sharing, behind: None };
    assert_eq!(hears(&mut next).await, heard(0, 1));
    for listener in [&mut one, &mut other] {
        assert_eq!(hears(listener).await, heard(1, 2));
    }
}

pub async fn all_who_share_a_seat_that_is_called_hear_that_they_do(world: &impl World) {
    let (link, mut one) = (connect(world).await, listen(world).await);
    let mut other = listen(world).await;
    let owner = come_and_go_from(&link, KEY, Seat::new(0), Called::Known(SEAT)).await;
    let heard = Heard { key: Key::new(KEY), owner, rank: 0, sharing: 2, behind: None };
    for listener in [&mut one, &mut other] {
        assert_eq!(hears(listener).await, heard);
        hears_nothing(listener).await;
    }
}

pub async fn a_release_says_whether_somebody_was_called(world: &impl World) {
    let link = connect(world).await;
    let own = Seat::new(1);
    let released = async |calls| {
        let (key, owner) = (Key::new(KEY), OwnerId::random().on_seat(own));
        let acquire = Operation::Acquire { key: key.clone(), owner, ttl_ms: ms(LONG) };
        assert_eq!(ask(&link, acquire).await, Ok(Answer::Done));
        ask(&link, Operation::Release { key, owner, calls }).await
    };
    let all = [Called::Next, Called::NextAndStandIn, Called::Known(SEAT), Called::Nobody];
    for calls in all {
        assert_eq!(released(calls).await, Ok(Answer::Done), "{calls:?}, and nobody waits");
    }
    let _own = listen_on(world, own).await;
    assert_eq!(released(Called::Next).await, Ok(Answer::Done), "nobody else waits");
    let sharing = listen_on(world, own).await;
    assert_eq!(released(Called::Next).await, Ok(Answer::PassedOn), "another has the same seat");
    drop(sharing);
    let _one = listen(world).await;
    let _another = listen_on(world, Seat::new(900)).await;
    for calls in all {
        let expected = if calls == Called::Nobody { Answer::Done } else { Answer::PassedOn };
        assert_eq!(released(calls).await, Ok(expected), "{calls:?}");
    }
    assert_eq!(released(Called::Known(Seat::new(8))).await, Ok(Answer::PassedOn));
}

pub async fn a_release_that_calls_nobody_is_not_heard(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    come_and_go_from(&link, KEY, Seat::new(0), Called::Nobody).await;
    hears_nothing(&mut listener).await;
}

pub async fn a_listener_does_not_hear_what_was_released_before(world: &impl World) {
    let link = connect(world).await;
    come_and_go(&link, KEY).await;
    hears_nothing(&mut listen(world).await).await;
}

pub async fn a_listener_does_not_hear_releases_that_release_nothing(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    assert_eq!(ask(&link, release(OwnerId::random())).await, Ok(Answer::Missing));
    world.set(KEY, SOMEONE, Some(LONG));
    assert_taken_for_at_most(&ask(&link, release(OwnerId::random())).await, LONG);
    hears_nothing(&mut listener).await;
}

pub async fn a_listener_does_not_hear_of_other_keys(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    come_and_go(&link, "lock:b").await;
    hears_nothing(&mut listener).await;
}

pub async fn a_listener_hears_nothing_more_after_unwatching(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    unwatch(&listener, KEY).await;
    come_and_go(&link, KEY).await;
    hears_nothing(&mut listener).await;
    watch(&listener, KEY).await;
    come_and_go(&link, KEY).await;
    hears(&mut listener).await;
}

pub async fn a_listener_hears_of_every_key_that_it_watches(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    watch(&listener, "lock:b").await;
    for key in [KEY, "lock:b", KEY] {
        come_and_go(&link, key).await;
        assert_eq!(hears(&mut listener).await.key, Key::new(key));
    }
}

pub async fn a_listener_changes_many_keys_at_once(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    let other = Seat::new(900);
    let many = |numbers: std::ops::Range<u32>, from, at| -> Vec<Move> {
        numbers.map(|number| to(&format!("lock:many-{number}"), from, at)).collect()
    };
    let mut moves = many(0..150, None, Some(SEAT));
    moves.push(to(KEY, Some(SEAT), None));
    listener.move_to(moves).await.expect("moved");
    let mut moves = many(0..50, Some(SEAT), None);
    moves.extend(many(50..100, Some(SEAT), Some(other)));
    moves.extend(many(150..200, None, Some(SEAT)));
    listener.move_to(moves).await.expect("moved");
    let heard = [50, 99, 100, 149, 150, 199].map(|number| format!("lock:many-{number}"));
    for key in ["lock:many-0", "lock:many-49", KEY].into_iter().chain(heard.iter().map(|k| &**k)) {
        come_and_go(&link, key).await;
    }
    for key in &heard {
        assert_eq!(hears(&mut listener).await.key, Key::new(key));
    }
    hears_nothing(&mut listener).await;
}

pub async fn a_listener_that_moves_is_called_on_its_new_seat_alone(world: &impl World) {
    let link = connect(world).await;
    for seat in [8, 17, 107, 506] {
        let (mut moves, mut stays) = (listen(world).await, listen(world).await);
        moves.move_to(vec![to(KEY, Some(SEAT), Some(Seat::new(seat)))]).await.expect("moved");
        let around = [(Seat::new(0), &mut stays), (SEAT, &mut moves)];
        for (behind, called) in around {
            come_and_go_from(&link, KEY, behind, Called::Next).await;
            let heard = hears(called).await;
            assert_eq!((heard.rank, heard.sharing), (0, 1), "{seat}");
        }
        hears_nothing(&mut moves).await;
        hears_nothing(&mut stays).await;
        drop((moves, stays));
        eventually("the listeners' end", || world.clients().len() == 1).await;
    }
}

pub async fn a_listener_hears_of_all_that_are_released_together(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    let owner = OwnerId::random();
    let keys: Vec<Key> = (0..64).map(|number| Key::new(&format!("lock:many-{number}"))).collect();
    let moves = |key: &Key| Move { key: key.clone(), from: None, to: Some(SEAT) };
    listener.move_to(keys.iter().map(moves).collect()).await.expect("moved");
    let acquire = |key: &Key| Operation::Acquire { key: key.clone(), owner, ttl_ms: ms(LONG) };
    let calls = Called::Next;
    let release = |key: &Key| Operation::Release { key: key.clone(), owner, calls };
    for all in [keys.iter().map(acquire).collect(), keys.iter().map(release).collect()] {
        link.call_together(all, &link.ballot(), SOON).await.expect("an answer");
    }
    for key in keys {
        assert_eq!(hears(&mut listener).await.key, key);
    }
}

pub async fn of_what_is_released_together_each_calls_those_who_wait_for_it(world: &impl World) {
    let (link, mut listener) = (connect(world).await, listen(world).await);
    let [owner, other] = [(); 2].map(|()| OwnerId::random().on_seat(Seat::new(0)));
    let keys: Vec<Key> = (0..8).map(|number| Key::new(&format!("lock:some-{number}"))).collect();
    let calls = [Called::Next, Called::NextAndStandIn, Called::Known(SEAT), Called::Nobody];
    let acquire = |key: &Key| Operation::Acquire { key: key.clone(), owner, ttl_ms: ms(LONG) };
    let all = keys.iter().map(acquire).collect();
    link.call_together(all, &link.ballot(), SOON).await.expect("an answer");
    // The first of each two.
    let waited: Vec<&Key> = keys.iter().step_by(2).collect();
    listener
        .move_to(waited.iter().map(|key| to(key.as_str(), None, Some(SEAT))).collect())
        .await
        .expect("moved");
    let mut all = vec![Operation::Release { key: keys[2].clone(), owner: other, calls: calls[0] }];
    for (place, key) in keys.iter().enumerate() {
        all.push(Operation::Extend { key: key.clone(), owner, ttl_ms: ms(LONG) });
        all.push(Operation::Release { key: key.clone(), owner, calls: calls[place / 2] });
        all.push(acquire(key));
    }
    let outcomes = link.call_together(all, &link.ballot(), SOON).await.expect("an answer");
    assert_taken_for_at_most(&outcomes[0], LONG);
    for (place, outcomes) in outcomes[1..].chunks(3).enumerate() {
        let is_called = place % 2 == 0 && calls[place / 2] != Called::Nobody;
        let released = if is_called { Answer::PassedOn } else { Answer::Done };
        let done = Ok(Answer::Done);
        assert_eq!(outcomes, [done.clone(), Ok(released), done], "{place}");
    }
    for place in [0, 2, 4] {
        let heard = hears(&mut listener).await;
        assert_eq!((heard.key, heard.owner, heard.rank), (keys[place].clone(), owner, 0));
    }
    hears_nothing(&mut listener).await;
}

pub async fn watching_at_a_frozen_server_fails_in_time(world: &impl World) {
    let listener = listen(world).await;
    world.freeze();
    let asked = listener.move_to(vec![to("lock:b", None, Some(SEAT))]);
    let watched = tokio::time::timeout(SOON, asked).await;
    let watched = watched.expect("bounded by the listener itself");
    assert!(watched.is_err(), "nobody can have said so");
    world.thaw();
}

pub async fn a_listener_whose_connection_was_killed_ends(world: &impl World) {
    let mut listener = listen(world).await;
    let clients = world.clients();
    let [client] = clients[..] else { panic!("not only the listener's: {clients:?}") };
    world.kill_client(client);
    ends(&mut listener).await;
}

pub async fn a_listener_at_a_crashed_server_ends(world: &impl World) {
    let mut listener = listen(world).await;
    world.crash();
    ends(&mut listener).await;
}

pub async fn a_dropped_listener_leaves_no_client(world: &impl World) {
    drop(listen(world).await);
    eventually("the client's end", || world.clients().is_empty()).await;
}
