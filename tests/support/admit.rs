//! A link to a node that has been admitted.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use quorumlock::{
    OwnerId,
    node::{
        Ballot, FleetKeys, Link, MarkState, Marker, NodeFailure, NodeName, Operation, Outcome,
        SendAs,
    },
};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(5);
const PREFIX: &str = "test:";

/// A link, and what its acquires are sent with.
#[derive(Debug)]
pub struct Admitted<L> {
    pub link: L,
    ballot: Arc<Ballot>,
}

impl<L: Link> Admitted<L> {
    /// Has the node admitted that this link leads to, unless it is.
    pub async fn admit(link: L) -> Self {
        let ballot = ballot(&link, false).await.expect("admitted");
        Self { link, ballot }
    }

    /// Has it admitted anew.
    pub async fn admit_again(&mut self) {
        self.ballot = ballot(&self.link, true).await.expect("admitted again");
    }

    /// As [`Link::call`], for at most `timeout`; what is sent by its digest goes by the admission if it has to.
    pub fn call(
        &self,
        operation: &Operation,
        send_as: SendAs,
        timeout: Duration,
    ) -> impl Future<Output = Outcome> + Send + 'static {
        let is_grant = operation.is_grant() && send_as == SendAs::Digest;
        let send_as = if is_grant { SendAs::Ballot(self.ballot()) } else { send_as };
        let outcome = Box::pin(self.link.call(operation, send_as));
        async move { within(timeout, outcome).await }
    }

    /// As [`Link::call_together`], for at most `timeout`.
    pub fn call_together(
        &self,
        operations: Vec<Operation>,
        ballot: &Arc<Ballot>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Outcome>, NodeFailure>> + Send + 'static {
        let outcomes = Box::pin(self.link.call_together(operations, ballot));
        async move { within(timeout, outcomes).await }
    }

    /// What its acquires are sent with.
    pub fn ballot(&self) -> Arc<Ballot> {
        Arc::clone(&self.ballot)
    }
}

/// What was asked for, or a timeout.
pub async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, NodeFailure>>,
) -> Result<T, NodeFailure> {
    let too_late = |_| Err(NodeFailure::Timeout { after: limit });
    timeout(limit, asked).await.unwrap_or_else(too_late)
}

async fn ballot(link: &impl Link, mut anew: bool) -> Result<Arc<Ballot>, NodeFailure> {
    let keys = FleetKeys::with_prefix(PREFIX);
    loop {
        let facts = link.look(&keys, false, LIMIT).await?;
        let marker = facts.marker.as_deref().and_then(Marker::parse);
        let is_of_process = marker.as_ref().is_some_and(|marker| marker.run_id == facts.run_id);
        // It never falls.
        let floor = marker.as_ref().map_or(0, |marker| marker.floor);
        if is_of_process && !anew {
            let marker = marker.expect("of this process");
            let ballot = Ballot::new(keys, &marker.id, &marker.members, marker.floor);
            return Ok(Arc::new(ballot));
        }
        let marker = Marker {
            id: OwnerId::random().to_string(),
            state: MarkState::Admitted,
            run_id: facts.run_id,
            node: NodeName::new("n"),
            members: "n".to_owned(),
            max_ttl_ms: 60_000,
            floor,
        };
        anew = !link.mark(&keys, facts.marker, marker, LIMIT).await?;
    }
}

impl<L> Deref for Admitted<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.link
    }
}

impl<L> DerefMut for Admitted<L> {
    fn deref_mut(&mut self) -> &mut L {
        &mut self.link
    }
}
