//! The connection that hears of releases, by publish/subscribe.

use std::time::Duration;

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, EventInterface, PubsubInterface},
    types::{Message, RespVersion, Value},
};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::timeout,
};

use super::{
    Task,
    reply::{not_connected, unreachable},
    send,
};
use crate::{
    node::{Heard, Listener, Move, NodeFailure, sealed::Sealed},
    owner_id::{OwnerId, Seat},
    resource::Key,
};

/// A connection to a Redis or Valkey server that hears of releases. The channels are the key's name and
/// four characters more, as `release.lua` has them.
#[derive(Debug)]
pub struct RedisListener {
    client: Client,
    task: Task,
    messages: broadcast::Receiver<Message>,
    limit: Duration,
}

impl RedisListener {
    pub(super) fn new(client: Client, task: Task, limit: Duration) -> Self {
        let messages = client.message_rx();
        Self { client, task, messages, limit }
    }
}

/// Waits until the server has done what was sent before, for fred does not wait for the replies to
/// subscriptions. By its kind the answer tells, without RESP3, whether there is any subscription: an
/// error that was the reply to one may have been dropped, or be read as the reply to this.
async fn confirm(client: &Client, limit: Duration) -> Result<Subscribed, Error> {
    let pong = send(client, "PING", Vec::new(), limit).await?;
    let is_plain = !matches!(pong, Value::Array(_));
    Ok(if is_plain && client.protocol_version() == RespVersion::RESP2 {
        Subscribed::ToNothing
    } else {
        Subscribed::AsAsked
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subscribed {
    AsAsked,
    ToNothing,
}

/// Where it is seen that somebody waits at all, among these hundred seats and among these ten; and where
/// a release is heard. All names are the key's with as many characters more, so that no key's channel is
/// another's.
fn channels(key: &Key, seat: Seat) -> Vec<String> {
    let [a, b, c] = seat.digits();
    vec![
        whole_ring(key),
        format!("{}/{a}--", key.as_str()),
        format!("{}/{a}{b}-", key.as_str()),
        format!("{}/{a}{b}{c}", key.as_str()),
    ]
}

/// To which all subscribe who wait for this key.
pub(super) fn whole_ring(key: &Key) -> String {
    format!("{}/---", key.as_str())
}

/// How many characters a channel's name has after the key's.
const CHANNEL_SUFFIX: usize = 4;

/// Reads what `release.lua` publishes: rank, how many share the seat, whose it was, and maybe who sits behind.
fn read(channel: &str, text: &str) -> Option<Heard> {
    let (key, _) = channel.split_at_checked(channel.len().checked_sub(CHANNEL_SUFFIX)?)?;
    let mut words = text.split(' ');
    let rank = words.next()?.parse().ok()?;
    let sharing = words.next()?.parse().ok()?;
    let owner = OwnerId::parse(words.next()?)?;
    let behind = words.next().and_then(|number| number.parse().ok()).map(Seat::new);
    Some(Heard { key: Key::new(key), owner, rank, sharing, behind })
}

impl Sealed for RedisListener {}

impl Listener for RedisListener {
    fn move_to(
        &self,
        moves: Vec<Move>,
    ) -> impl Future<Output = Result<(), NodeFailure>> + Send + 'static {
        let (client, limit) = (self.client.clone(), self.limit);
        let asked = async move {
            let of =
                |key: &Key, seat: &Option<Seat>| seat.map_or_else(Vec::new, |at| channels(key, at));
            let mut leaves = Vec::new();
            for Move { key, from, to } in &moves {
                let (before, mut joins) = (of(key, from), of(key, to));
                leaves.extend(before.iter().filter(|channel| !joins.contains(channel)).cloned());
                joins.retain(|channel| !before.contains(channel));
                // A command for each: where the server forbids one, and fred drops the error, the others are
                // heard all the same.
                if !joins.is_empty() {
                    client.subscribe(joins).await?;
                }
            }
            // Now, so that there is no gap. Without any, all would be left.
            if !leaves.is_empty() {
                client.unsubscribe(leaves).await?;
            }
            match confirm(&client, limit).await? {
                Subscribed::ToNothing if moves.iter().any(|one| one.to.is_some()) => {
                    Err(Error::new(ErrorKind::Auth, "the server refuses the subscription"))
                }
                Subscribed::ToNothing | Subscribed::AsAsked => Ok(()),
            }
        };
        async move {
            match timeout(limit, asked).await {
                Ok(answered) => answered.map_err(|error| not_connected(&error)),
                Err(_) => Err(unreachable("no answer to the subscription")),
            }
        }
    }

    async fn heard(&mut self) -> Result<Heard, NodeFailure> {
        loop {
            let message = tokio::select! {
                biased;
                message = self.messages.recv() => message,
                _ = &mut self.task => return Err(unreachable("the connection was closed")),
            };
            match message {
                Ok(message) => {
                    let text = message.value.as_str().unwrap_or_default();
                    // Somebody else's message on our channel is nothing.
                    if let Some(heard) = read(&message.channel, &text) {
                        return Ok(heard);
                    }
                }
                // Too slow to hear them all. What was missed costs somebody some time.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Err(unreachable("the connection was closed")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_release_lua_publishes_is_read_and_nothing_else() {
        let owner = OwnerId::random();
        let key = Key::new("lock:a/007");
        let heard = |behind| Some(Heard { key: key.clone(), owner, rank: 1, sharing: 3, behind });
        assert_eq!(read("lock:a/007/999", &format!("1 3 {owner}")), heard(None));
        let behind = Some(Seat::new(8));
        assert_eq!(read("lock:a/007/999", &format!("1 3 {owner} 008")), heard(behind));
        for text in ["", "1", "1 3", "1 3 x", "-1 3 00000000000000000000000000000000"] {
            assert_eq!(read("lock:a/007", text), None, "{text}");
        }
        assert_eq!(read("ééaé", &format!("1 3 {owner}")), None);
    }

    #[test]
    fn no_channel_belongs_to_two_keys() {
        let (a, b) = (Key::new("lock:a"), Key::new("lock:a/007"));
        let of = |key: &Key| channels(key, Seat::new(7));
        assert_eq!(of(&a), ["lock:a/---", "lock:a/0--", "lock:a/00-", "lock:a/007"]);
        assert!(of(&a).iter().all(|channel| !of(&b).contains(channel)));
    }
}
