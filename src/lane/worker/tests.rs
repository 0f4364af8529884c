use tokio::runtime::Handle;

use super::*;
use crate::{
    admission::Fleet,
    board::Board,
    lane::{Inbox, Permit, Release, ReplyTo},
    node::{Called, FleetKeys},
    resource::Key,
    sim::SimCluster,
    tasks::Environment,
    validity::ClockDrift,
};

// As when the process stood still for all of the time that a lane lives on: of what it has not read yet nothing
// is dropped unseen.
#[tokio::test(start_paused = true)]
async fn what_is_in_the_queue_when_a_lane_has_to_end_is_answered_and_counted() {
    let cluster = SimCluster::new(1);
    let client = cluster.client();
    let Environment { clock, entropy, .. } = client.environment(Handle::current());
    let second = Duration::from_secs(1);
    let node = Arc::new(client.nodes(second).remove(0));
    let fleet = Fleet {
        names: vec![node.name().clone()],
        members: String::new(),
        keys: FleetKeys::with_prefix(""),
        max_ttl: second,
        drift: ClockDrift::default(),
        is_new: true,
        trusts_durability: false,
        allows_eviction: false,
        found_without: second,
        makes_wait: true,
    };
    let board = Arc::new(Board::new(fleet, clock, entropy.clone()));
    let (requests, queue) = mpsc::unbounded_channel();
    let common = Common::new(1_024, second, &Arc::default(), &entropy);
    let (show, owed) = (watch::channel(Shown::new()).0, Arc::default());
    let mut worker = Worker::new(node, queue, common, show, owed, Candidacy::new(board, 0));

    let (key, owner, inbox) = (Key::new("k"), OwnerId::random(), Arc::new(Inbox::default()));
    let reply_to = |place| ReplyTo { round: 0, place, to: Arc::clone(&inbox) };
    let request = Request::Vote {
        operation: Operation::Acquire { key: key.clone(), owner, ttl_ms: 1_000 },
        timeout: second,
        deadline: due_after(second),
        reply_to: reply_to(0),
        permit: Permit::take(&Arc::default(), 1).unwrap(),
    };
    requests.send(request).unwrap();
    let release = Release { key, owner, calls: Called::Next, timeout: second };
    requests.send(Request::Release { release, reply_to: Some(reply_to(1)) }).unwrap();
    let (undelivered, answer) = oneshot::channel();
    requests.send(Request::ShutDown { undelivered }).unwrap();

    worker.begin_ending();
    worker.end().await;
    let replies = inbox.take();
    assert_eq!(replies.iter().map(|reply| reply.place).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(replies[0].outcome, Err(NodeFailure::ShutDown));
    assert!(replies[1].outcome.is_err());
    assert_eq!(answer.await, Ok(1), "one release is owed");
}
