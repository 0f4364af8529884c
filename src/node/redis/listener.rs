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

use super::{Task, not_connected, send, unreachable};
use crate::{
    node::{Heard, Listener, NodeFailure, sealed::Sealed},
    resource::Key,
};

/// A connection to a Redis or Valkey server that hears of releases. The channel is the key's name.
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

    async fn ask(
        &mut self,
        asked: impl Future<Output = Result<(), Error>> + Send,
    ) -> Result<(), NodeFailure> {
        tokio::select! {
            biased;
            _ = &mut self.task => Err(unreachable("the connection was closed")),
            answered = timeout(self.limit, asked) => match answered {
                Ok(answered) => answered.map_err(|error| not_connected(&error)),
                Err(_) => Err(unreachable("no answer to the subscription")),
            },
        }
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

impl Sealed for RedisListener {}

impl Listener for RedisListener {
    async fn watch(&mut self, key: &Key) -> Result<(), NodeFailure> {
        let (client, limit) = (self.client.clone(), self.limit);
        self.ask(async move {
            client.subscribe(key.as_str()).await?;
            match confirm(&client, limit).await? {
                Subscribed::AsAsked => Ok(()),
                Subscribed::ToNothing => {
                    Err(Error::new(ErrorKind::Auth, "the server refuses the subscription"))
                }
            }
        })
        .await
    }

    async fn unwatch(&mut self, key: &Key) -> Result<(), NodeFailure> {
        let (client, limit) = (self.client.clone(), self.limit);
        self.ask(async move {
            client.unsubscribe(key.as_str()).await?;
            confirm(&client, limit).await.map(drop)
        })
        .await
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
                    let listeners = message.value.as_u64().and_then(|n| u32::try_from(n).ok());
                    let (key, listeners) = (Key::new(&message.channel), listeners.unwrap_or(1));
                    return Ok(Heard { key, listeners });
                }
                // Too slow to hear them all. What was missed costs somebody some time.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Err(unreachable("the connection was closed")),
            }
        }
    }
}
