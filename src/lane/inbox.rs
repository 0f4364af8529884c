//! Where the answers of the lanes come together until they are read.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::node::Outcome;

/// So many replies take no more room than they need.
const FEW: usize = 4;

/// Takes in the answers to one reader. It takes no room while it is empty, where a channel would keep
/// some for dozens of answers: every held lock has one.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    replies: Mutex<Vec<Reply>>,
    came: Notify,
}

/// The outcome of a call, with where it belongs.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) round: u64,
    pub(crate) place: usize,
    pub(crate) outcome: Outcome,
}

/// Where the outcome of a call goes: to the place of this node in a round.
#[derive(Debug)]
pub(crate) struct ReplyTo {
    pub(crate) round: u64,
    pub(crate) place: usize,
    pub(crate) to: Arc<Inbox>,
}

impl ReplyTo {
    /// The round may be over; then nobody wants to know.
    pub(super) fn send(self, outcome: Outcome) {
        let Self { round, place, to } = self;
        to.put(Reply { round, place, outcome });
    }
}

impl Inbox {
    fn put(&self, reply: Reply) {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        // What comes after the decision of a round may lie here for as long as its lock is held.
        if replies.len() < FEW {
            replies.reserve_exact(1);
        }
        replies.push(reply);
        drop(replies);
        self.came.notify_one();
    }

    /// What has come by now, in order.
    pub(crate) fn take(&self) -> Vec<Reply> {
        std::mem::take(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something has come. Cancel safe.
    pub(crate) async fn wait(&self) -> Vec<Reply> {
        // As a channel does: who always has something to read lets other tasks have their turn.
        tokio::task::consume_budget().await;
        loop {
            let replies = self.take();
            if !replies.is_empty() {
                return replies;
            }
            self.came.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::node::Answer;

    #[tokio::test]
    async fn answers_are_read_once_and_in_order_also_by_a_reader_that_gave_up_before() {
        let inbox = Arc::new(Inbox::default());
        let send =
            |place| ReplyTo { round: 7, place, to: Arc::clone(&inbox) }.send(Ok(Answer::Done));
        let places = |replies: Vec<Reply>| replies.iter().map(|r| r.place).collect::<Vec<_>>();
        assert!(inbox.wait().now_or_never().is_none());
        send(2);
        send(1);
        assert_eq!(places(inbox.wait().await), [2, 1]);
        assert!(inbox.wait().now_or_never().is_none(), "read twice");
        let given_up = inbox.wait().now_or_never();
        assert!(given_up.is_none());
        let (read, ()) = tokio::join!(inbox.wait(), async { send(3) });
        assert_eq!(places(read), [3]);
        assert!(places(inbox.take()).is_empty());
    }
}
