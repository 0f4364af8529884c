//! What no lock can be faster than here: its commands, sent by the same client, with nothing around.
//!
//! Each pair sends the acquire script to all servers, waits for the answers of a quorum, sends the
//! release script to all and waits for a quorum again: the slowest of the three fastest of five. There
//! is no owner of what did not answer in time, no validity, no renewal.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use quorumlock::{
    fred::{
        clients::Client,
        interfaces::ClientLike,
        types::{
            CustomCommand, Value,
            config::{Config, ConnectionConfig, TcpConfig},
        },
    },
    node::script::Script,
};

use crate::locker::Failure;

const MARKER: &str = "floor:marker";

pub struct Floor {
    clients: Vec<Client>,
    acquire: String,
    release: String,
    owners: AtomicU64,
}

/// A key that is set on a quorum.
pub struct Taken {
    key: String,
    owner: String,
}

impl Floor {
    pub async fn connect(urls: &[String]) -> Result<Self, Failure> {
        let mark = "0".repeat(32);
        let mut clients = Vec::new();
        let (mut acquire, mut release) = (String::new(), String::new());
        for url in urls {
            // As the library has it.
            let connection = ConnectionConfig {
                tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
                ..ConnectionConfig::default()
            };
            let client = Client::new(Config::from_url(url)?, None, Some(connection), None);
            client.init().await?;
            call(&client, "SET", vec![MARKER.into(), mark.as_str().into()]).await?;
            acquire = load(&client, &Script::Acquire.text_for(&mark, "the floor", 0)).await?;
            release = load(&client, Script::Release.text()).await?;
            clients.push(client);
        }
        Ok(Self { clients, acquire, release, owners: AtomicU64::new(0) })
    }

    pub async fn acquire(&self, resource: &str, ttl: Duration) -> Result<Taken, Failure> {
        let owner = format!("{:032x}", self.owners.fetch_add(1, Ordering::Relaxed));
        let taken = Taken { key: format!("floor:lock:{resource}"), owner };
        let args = vec![
            self.acquire.as_str().into(),
            Value::Integer(2),
            taken.key.as_str().into(),
            MARKER.into(),
            taken.owner.as_str().into(),
            ttl.as_millis().to_string().into(),
        ];
        self.quorum(args).await?;
        Ok(taken)
    }

    pub async fn release(&self, taken: Taken) -> Result<(), Failure> {
        let args = vec![
            self.release.as_str().into(),
            Value::Integer(1),
            taken.key.into(),
            taken.owner.into(),
            "1".into(),
        ];
        self.quorum(args).await
    }

    async fn quorum(&self, args: Vec<Value>) -> Result<(), Failure> {
        let calls = self.clients.iter().map(|client| call(client, "EVALSHA", args.clone()));
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut missing = self.clients.len() / 2 + 1;
        while let Some(reply) = calls.next().await {
            let is_granted = reply?.as_str().is_some_and(|reply| reply.starts_with("1 "));
            missing -= usize::from(is_granted);
            if missing == 0 {
                return Ok(());
            }
        }
        Err("no quorum".into())
    }
}

async fn load(client: &Client, text: &str) -> Result<String, Failure> {
    let reply = call(client, "SCRIPT", vec!["LOAD".into(), text.into()]).await?;
    reply.into_string().ok_or_else(|| "no digest".into())
}

async fn call(client: &Client, command: &'static str, args: Vec<Value>) -> Result<Value, Failure> {
    let command = CustomCommand::new_static(command, None::<u16>, false);
    Ok(client.custom(command, args).await?)
}
