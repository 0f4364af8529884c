//! The connection of a lane, or the attempt to have one.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use crate::node::{Link, LinkId, Node, NodeFailure};

pub(super) enum Connection<L> {
    Trying {
        attempt: BoxFuture<'static, Result<L, NodeFailure>>,
        /// Why there is no connection.
        cause: NodeFailure,
    },
    Open {
        link: L,
        /// Since the node is silent: when to ask it for a sign of life again.
        probe_again: Option<Instant>,
    },
}

pub(super) enum Change<L> {
    Connected(Result<L, NodeFailure>),
    Closed(String),
}

impl<L: Link> Connection<L> {
    /// Tries to connect, after a delay.
    pub(super) fn attempt<N: Node<Link = L>>(
        node: &Arc<N>,
        stale: Vec<LinkId>,
        delay: Duration,
        cause: NodeFailure,
    ) -> Self {
        let node = Arc::clone(node);
        let attempt = Box::pin(async move {
            sleep(delay).await;
            node.connect(&stale).await
        });
        Self::Trying { attempt, cause }
    }

    /// Waits until the attempt or the connection has ended. Cancel safe.
    pub(super) async fn changed(&mut self) -> Change<L> {
        match self {
            Self::Trying { attempt, .. } => Change::Connected(attempt.await),
            Self::Open { link, .. } => Change::Closed(link.closed().await),
        }
    }

    /// Why nothing can be sent now; `None` if something can.
    pub(super) fn why_not(&self) -> Option<NodeFailure> {
        match self {
            Self::Trying { cause, .. } => Some(cause.clone()),
            Self::Open { probe_again: Some(_), .. } => Some(NodeFailure::Unresponsive),
            Self::Open { probe_again: None, .. } => None,
        }
    }

    pub(super) fn probe_again_at(&self) -> Option<Instant> {
        match self {
            Self::Trying { .. } => None,
            Self::Open { probe_again, .. } => *probe_again,
        }
    }
}
