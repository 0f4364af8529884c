//! The connection of a lane: what its loss means, and its silence.

use tokio::time::Instant;

use super::{PATIENCE, PROBE, RECONNECT, Worker};
use crate::{
    clock::due_after,
    lane::connection::Connection,
    node::{Link, Node, NodeFailure},
};

impl<N: Node> Worker<N> {
    pub(super) fn connected(&mut self, link: N::Link) {
        self.candidacy.look(&link, PATIENCE);
        self.connection = Connection::Open { link, probe_again: None };
        self.stale.clear();
        self.back();
    }

    pub(super) fn back_from_silence(&mut self) {
        if let Connection::Open { probe_again, .. } = &mut self.connection {
            // With several probes on the way, the first answer is the one that counts.
            if probe_again.take().is_some() {
                self.back();
            }
        }
    }

    fn back(&mut self) {
        self.ledger.node_is_back();
        self.show_state();
        self.send_releases();
    }

    pub(super) fn suspect_if_overdue(&mut self) {
        if self.calls.is_overdue(Instant::now()) {
            self.suspect();
        }
    }

    /// The node is silent. Nothing more is sent until a probe behind it was answered.
    pub(super) fn suspect(&mut self) {
        if self.connection.why_not().is_none() {
            self.probe_again();
            self.show_state();
        }
    }

    pub(super) fn probe_again(&mut self) {
        if let Connection::Open { probe_again, .. } = &mut self.connection {
            *probe_again = Some(due_after(PROBE));
            self.send_probe();
        }
    }

    /// One caller got no answer in its short time. Whether that says anything about the node shows
    /// when the probe is answered, or is overdue.
    pub(super) fn probe_quietly(&mut self) {
        if self.connection.why_not().is_none() && !self.calls.is_probing() {
            self.send_probe();
        }
    }

    pub(super) fn lose_link(&mut self, cause: &str) {
        let Connection::Open { link, .. } = &self.connection else { return };
        self.stale.push(link.id().clone());
        self.answer_all_calls(&NodeFailure::Disconnected { cause: cause.to_owned() });
        self.not_connected(NodeFailure::Unreachable { cause: cause.to_owned() });
    }

    pub(super) fn not_connected(&mut self, cause: NodeFailure) {
        self.candidacy.disconnected();
        self.failures = self.failures.saturating_add(1);
        let delay = RECONNECT.random_delay(self.failures, &self.common.entropy);
        self.connection = Connection::attempt(&self.node, self.stale.clone(), delay, cause);
        self.show_state();
    }
}
