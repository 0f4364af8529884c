//! A simulated master as a [`Node`], as one client process sees it.

use std::{sync::Arc, time::Duration};

use futures::future::try_join_all;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    wire::{Asked, Request},
    world::World,
};
use crate::{
    node::{
        Ballot, Facts, FleetKeys, Heard, Link, LinkId, Listener, Marker, Move, Node, NodeFailure,
        NodeName, Operation, Outcome, SendAs, sealed::Sealed,
    },
    resource::Key,
};

/// A simulated master, from the side of one client.
#[derive(Debug)]
pub struct SimNode {
    pub(super) name: NodeName,
    pub(super) world: World,
    pub(super) client: usize,
    pub(super) node: usize,
    pub(super) connect_timeout: Duration,
}

impl Sealed for SimNode {}

impl Node for SimNode {
    type Link = SimLink;
    type Listener = SimListener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    async fn connect(&self, stale: &[LinkId]) -> Result<SimLink, NodeFailure> {
        let (connection, answer, closed) = self.world.connect(self.client, self.node, stale);
        // From here on the connection is closed however this future ends.
        let open = OpenConnection { world: self.world.clone(), id: connection };
        let no_answer = |cause: &str| NodeFailure::Unreachable { cause: cause.to_owned() };
        match timeout(self.connect_timeout, answer).await {
            Ok(Ok(Ok(id))) => {
                let most_together = self.world.with(|state| state.most_together);
                Ok(SimLink { id, most_together, open, closed })
            }
            Ok(Ok(Err(failure))) => Err(failure),
            Ok(Err(_)) => Err(no_answer("the connection was closed")),
            Err(_) => Err(no_answer("no answer to the connection attempt")),
        }
    }

    async fn listen(&self) -> Result<SimListener, NodeFailure> {
        let SimLink { open, closed, .. } = self.connect(&[]).await?;
        let heard = self.world.hear(open.id);
        Ok(SimListener { open, closed, heard, limit: self.connect_timeout })
    }
}

#[derive(Debug)]
struct OpenConnection {
    world: World,
    id: u64,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.world.close(self.id);
    }
}

/// A connection to a simulated master.
#[derive(Debug)]
pub struct SimLink {
    id: LinkId,
    most_together: usize,
    open: OpenConnection,
    closed: oneshot::Receiver<String>,
}

impl Sealed for SimLink {}

impl Link for SimLink {
    fn id(&self) -> &LinkId {
        &self.id
    }

    fn call(
        &self,
        operation: &Operation,
        send_as: SendAs,
    ) -> impl Future<Output = Outcome> + Send + 'static {
        let (world, connection, operation) =
            (self.open.world.clone(), self.open.id, operation.clone());
        // Sent at the first poll, as the real one is.
        async move {
            let call = Request::Call { operation, send_as };
            answer_to(world.ask(connection, call, Asked::Call)).await
        }
    }

    fn most_together(&self) -> usize {
        self.most_together
    }

    fn call_together(
        &self,
        operations: Vec<Operation>,
        ballot: &Arc<Ballot>,
    ) -> impl Future<Output = Result<Vec<Outcome>, NodeFailure>> + Send + 'static {
        let (world, connection) = (self.open.world.clone(), self.open.id);
        let together = Request::Together { operations, ballot: Arc::clone(ballot) };
        async move { answer_to(world.ask(connection, together, Asked::Together)).await }
    }

    fn look(
        &self,
        keys: &FleetKeys,
        _durability: bool,
        limit: Duration,
    ) -> impl Future<Output = Result<Facts, NodeFailure>> + Send + 'static {
        let (world, connection) = (self.open.world.clone(), self.open.id);
        let look = Request::Look { keys: keys.clone() };
        async move { answer_in(limit, world.ask(connection, look, Asked::Look)).await }
    }

    fn mark(
        &self,
        keys: &FleetKeys,
        seen: Option<String>,
        marker: Marker,
        limit: Duration,
    ) -> impl Future<Output = Result<bool, NodeFailure>> + Send + 'static {
        let (world, connection) = (self.open.world.clone(), self.open.id);
        let mark = Request::Mark { keys: keys.clone(), seen, marker };
        async move { answer_in(limit, world.ask(connection, mark, Asked::Mark)).await }
    }

    async fn closed(&mut self) -> String {
        (&mut self.closed).await.unwrap_or_else(|_| "closed".to_owned())
    }

    async fn close(self) {
        drop(self);
    }
}

type Awaited<T> = oneshot::Receiver<Result<T, NodeFailure>>;

async fn answer_to<T>(asked: Awaited<T>) -> Result<T, NodeFailure> {
    let closed = |_| Err(NodeFailure::Disconnected { cause: "closed".to_owned() });
    asked.await.unwrap_or_else(closed)
}

async fn answer_in<T>(limit: Duration, asked: Awaited<T>) -> Result<T, NodeFailure> {
    let too_late = |_| Err(NodeFailure::Timeout { after: limit });
    timeout(limit, answer_to(asked)).await.unwrap_or_else(too_late)
}

/// A connection to a simulated master that hears of releases.
#[derive(Debug)]
pub struct SimListener {
    open: OpenConnection,
    closed: oneshot::Receiver<String>,
    heard: mpsc::UnboundedReceiver<Heard>,
    limit: Duration,
}

impl Sealed for SimListener {}

impl Listener for SimListener {
    fn move_to(
        &self,
        moves: Vec<Move>,
    ) -> impl Future<Output = Result<(), NodeFailure>> + Send + 'static {
        let (world, connection, limit) = (self.open.world.clone(), self.open.id, self.limit);
        async move {
            // All of them are on the way before the first answer comes, and the old seats are left last.
            let ask = |key: &Key, seat, watch| {
                let request = Request::Watch { key: key.clone(), seat, watch };
                answer_in(limit, world.ask(connection, request, Asked::Call))
            };
            let joins = moves.iter().filter_map(|one| Some(ask(&one.key, one.to?, true)));
            let leaves = moves.iter().filter_map(|one| Some(ask(&one.key, one.from?, false)));
            let asked: Vec<_> = joins.chain(leaves).collect();
            try_join_all(asked).await.map(drop)
        }
    }

    async fn heard(&mut self) -> Result<Heard, NodeFailure> {
        let gone = || NodeFailure::Disconnected { cause: "closed".to_owned() };
        tokio::select! {
            biased;
            heard = self.heard.recv() => heard.ok_or_else(gone),
            _ = &mut self.closed => Err(gone()),
        }
    }
}
