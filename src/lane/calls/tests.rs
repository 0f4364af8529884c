use std::{
    future::{pending, ready},
    sync::Mutex,
};

use super::*;
use crate::{
    node::{Answer, Called, Facts, FleetKeys, LinkId, Marker, sealed::Sealed},
    resource::Key,
};

/// Takes down what is sent, and answers as it is told to.
#[derive(Debug)]
struct Told {
    id: LinkId,
    /// How many operations each command had.
    sent: Mutex<Vec<usize>>,
    /// What is said of those that go together; silence if there is nothing.
    together: Option<Result<Vec<Outcome>, NodeFailure>>,
    /// What is said of those that go alone; silence if there is nothing.
    alone: Option<Outcome>,
}

impl Sealed for Told {}

impl Link for Told {
    fn most_together(&self) -> usize {
        4
    }

    fn id(&self) -> &LinkId {
        &self.id
    }

    fn call(&self, _: &Operation, _: SendAs) -> impl Future<Output = Outcome> + Send + 'static {
        self.sent.lock().unwrap().push(1);
        match self.alone.clone() {
            Some(outcome) => ready(outcome).left_future(),
            None => pending().right_future(),
        }
    }

    fn call_together(
        &self,
        operations: Vec<Operation>,
        _: &Arc<Ballot>,
    ) -> impl Future<Output = Result<Vec<Outcome>, NodeFailure>> + Send + 'static {
        self.sent.lock().unwrap().push(operations.len());
        match self.together.clone() {
            Some(outcomes) => ready(outcomes).left_future(),
            None => pending().right_future(),
        }
    }

    fn look(
        &self,
        _: &FleetKeys,
        _: bool,
        _: Duration,
    ) -> impl Future<Output = Result<Facts, NodeFailure>> + Send + 'static {
        pending()
    }

    fn mark(
        &self,
        _: &FleetKeys,
        _: Option<String>,
        _: Marker,
        _: Duration,
    ) -> impl Future<Output = Result<bool, NodeFailure>> + Send + 'static {
        pending()
    }

    async fn closed(&mut self) -> String {
        pending().await
    }

    async fn close(self) {}
}

fn link(together: Option<Result<Vec<Outcome>, NodeFailure>>) -> Told {
    let id = LinkId { run_id: String::new(), client_id: None };
    Told { id, sent: Mutex::default(), together, alone: Some(Ok(Answer::Done)) }
}

fn ballot() -> Arc<Ballot> {
    Arc::new(Ballot::new(FleetKeys::with_prefix(""), "m", "n", 0))
}

#[tokio::test]
async fn a_vote_is_disowned_by_its_release_that_is_answered_first() {
    let link = link(None);
    let mut calls = Calls::default();
    let [own, others] = [OwnerId::random(), OwnerId::random()];
    for owner in [own, others] {
        let operation = Operation::Extend { key: Key::new("k"), owner, ttl_ms: 1 };
        let vote = Vote {
            operation: operation.clone(),
            sent_as: SendAs::Digest,
            timeout: Duration::MAX,
            deadline: Instant::now(),
            reply_to: ReplyTo { round: 0, place: 0, to: Arc::default() },
            permit: Permit::take(&Arc::default(), 1).unwrap(),
            disowned: false,
        };
        calls.send(Call::Vote(vote), operation);
    }
    calls.flush(&link, Some(&ballot()));
    let operation = Operation::Release { key: Key::new("k"), owner: own, calls: Called::Next };
    calls.send(release(own, Instant::now()), operation);
    calls.flush(&link, Some(&ballot()));
    assert_eq!(*link.sent.lock().unwrap(), [2, 1]);
    let (answered, _) = calls.answered().await;
    assert_eq!(owner(&answered), own);
    let disowned = calls.take().map(|call| matches!(call, Call::Vote(vote) if vote.disowned));
    assert_eq!(disowned.collect::<Vec<_>>(), [true, false]);
}

fn release(owner: OwnerId, until: Instant) -> Call {
    let limits = Limits { strange_from: until, until };
    Call::Release { owner, sent_as: SendAs::Digest, limits }
}

/// Sends releases that end after so many milliseconds, and says of whom.
fn send(calls: &mut Calls, link: &Told, ends_after: &[u64]) -> Vec<OwnerId> {
    let send_one = |ms: &u64| {
        let (key, owner) = (Key::new("k"), OwnerId::random());
        let operation = Operation::Release { key, owner, calls: Called::Next };
        let until = Instant::now() + Duration::from_millis(*ms);
        calls.send(release(owner, until), operation);
        owner
    };
    let owners = ends_after.iter().map(send_one).collect();
    calls.flush(link, Some(&ballot()));
    owners
}

fn owner(call: &Call) -> OwnerId {
    let Call::Release { owner, .. } = call else { panic!("only releases are sent") };
    *owner
}

#[tokio::test]
async fn each_call_gets_its_own_answer_out_of_those_that_come_together() {
    let answers = [Answer::Done, Answer::Missing, Answer::Taken { remaining: None }];
    let link = link(Some(Ok(answers.map(Ok).to_vec())));
    let mut calls = Calls::default();
    let owners = send(&mut calls, &link, &[1_000; 3]);
    for (expected, answer) in owners.into_iter().zip(answers) {
        let (call, said) = calls.answered().await;
        assert_eq!(owner(&call), expected);
        assert!(matches!(said, CallEnd::Outcome(outcome) if outcome == Ok(answer)));
    }
    assert!(calls.is_empty() && calls.answered().now_or_never().is_none());
    assert_eq!(*link.sent.lock().unwrap(), [3]);
}

#[tokio::test]
async fn what_is_refused_together_is_asked_again_and_from_then_on_each_goes_alone() {
    let message = "NOPERM No permissions to access a key".to_owned();
    let link = link(Some(Err(NodeFailure::Rejected { message })));
    let mut calls = Calls::default();
    for expected in send(&mut calls, &link, &[1_000; 3]) {
        let (call, said) = calls.answered().await;
        assert_eq!(owner(&call), expected);
        assert!(matches!(said, CallEnd::RefusedTogether));
    }
    send(&mut calls, &link, &[1_000; 3]);
    assert_eq!(*link.sent.lock().unwrap(), [3, 1, 1, 1]);
    // The next connection may be another user's.
    drop(calls.take());
    send(&mut calls, &link, &[1_000; 2]);
    assert_eq!(*link.sent.lock().unwrap(), [3, 1, 1, 1, 2]);
}

#[tokio::test]
async fn any_other_failure_is_that_of_all_that_went_together() {
    let lost = NodeFailure::Disconnected { cause: "lost".to_owned() };
    let link = link(Some(Err(lost.clone())));
    let mut calls = Calls::default();
    for _ in send(&mut calls, &link, &[1_000; 2]) {
        let (_, said) = calls.answered().await;
        assert!(matches!(said, CallEnd::Outcome(outcome) if outcome == Err(lost.clone())));
    }
    send(&mut calls, &link, &[1_000; 2]);
    assert_eq!(*link.sent.lock().unwrap(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_in_its_own_time_among_others_that_have_more() {
    let link = link(None);
    let mut calls = Calls::default();
    let owners = send(&mut calls, &link, &[2_000, 50, 80]);
    let start = Instant::now();
    assert!(calls.end(start).is_empty());
    for (place, ms) in [(1, 50), (2, 80), (0, 2_000)] {
        let end = start + Duration::from_millis(ms);
        assert_eq!(calls.ends_at(), Some(end));
        assert!(calls.end(end - Duration::from_millis(1)).is_empty());
        let ended: Vec<OwnerId> = calls.end(end).iter().map(owner).collect();
        assert_eq!(ended, [owners[place]]);
    }
    assert!(calls.is_empty() && calls.ends_at().is_none());
}

#[tokio::test(start_paused = true)]
async fn of_what_was_answered_nothing_ends_and_nothing_is_overdue() {
    let (mut calls, start) = (Calls::default(), Instant::now());
    let at = |ms| start + Duration::from_millis(ms);
    for (ends, strange) in [(50, 10), (80, 20)] {
        let operation = Operation::Ping { nonce: calls.nonce() };
        let limits = Limits { strange_from: at(strange), until: at(ends) };
        calls.send(Call::Probe { limits }, operation);
    }
    let mut silent = link(None);
    silent.alone = None;
    calls.flush(&silent, None);
    assert!(!calls.is_overdue(at(9)));
    assert!(calls.is_overdue(at(10)), "not answered");
    assert!(calls.unanswered.remove(1).is_some());
    assert!(calls.overdue_at() <= Some(at(20)) && calls.ends_at() <= Some(at(80)), "not too late");
    assert!(!calls.is_overdue(at(19)) && calls.end(at(79)).is_empty(), "answered in time");
    assert_eq!((calls.overdue_at(), calls.ends_at()), (Some(at(20)), Some(at(80))));
    assert!(calls.is_overdue(at(20)));
    assert_eq!(calls.end(at(80)).len(), 1);
    assert!(!calls.is_overdue(at(1_000)));
    assert_eq!((calls.overdue_at(), calls.ends_at()), (None, None));
}

// What was put here meanwhile would wait for the next event, as nothing is sent while there is something to read.
#[tokio::test(start_paused = true)]
async fn an_answer_to_what_has_ended_is_not_one_to_be_read() {
    let link = link(Some(Ok(vec![Ok(Answer::Done); 2])));
    let mut calls = Calls::default();
    let owners = send(&mut calls, &link, &[2_000, 50]);
    assert_eq!(calls.end(Instant::now() + Duration::from_millis(50)).len(), 1);
    let (answered, _) = calls.answered().await;
    assert_eq!(owner(&answered), owners[0]);
    assert!(!calls.has_answers());
    let owners = send(&mut calls, &link, &[2_000; 2]);
    assert_eq!(owner(&calls.answered().await.0), owners[0]);
    assert!(calls.has_answers());
}

// It would be executed on the next connection, and nobody would know.
#[tokio::test]
async fn what_was_not_sent_on_a_connection_that_is_lost_is_not_sent_on_the_next() {
    let link = link(None);
    let mut calls = Calls::default();
    let (key, owner) = (Key::new("k"), OwnerId::random());
    let operation = Operation::Acquire { key, owner, ttl_ms: 1 };
    calls.send(release(owner, Instant::now()), operation);
    assert_eq!(calls.take().count(), 1);
    calls.flush(&link, Some(&ballot()));
    assert!(link.sent.lock().unwrap().is_empty());
}
