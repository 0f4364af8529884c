//! What a simulated server does with what it receives.

use super::{
    wire::{Connection, Reply, Request},
    world::{State, connection_mut},
};
use crate::{
    node::{Answer, Heard, LinkId, Operation},
    resource::Key,
};

impl State {
    pub(super) fn arrive_at_server(&mut self, id: u64, number: u64, request: Request) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let node = connection.node;
        let Some(server) = self.servers.get(node) else { return };
        if !server.up {
            self.reply(id, 0, Reply::Closed("connection refused"));
        } else if server.frozen {
            connection.unread.push_back((number, request));
        } else {
            self.read(id, number, request);
        }
    }

    /// The server reads a request and answers it.
    pub(super) fn read(&mut self, id: u64, number: u64, request: Request) {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let node = connection.node;
        if matches!(request, Request::Hello { .. }) {
            connection.open_at_server = true;
        } else if !connection.open_at_server {
            self.reply(id, 0, Reply::Closed("connection reset"));
            return;
        }
        let Some(server) = self.servers.get_mut(node) else { return };
        match request {
            Request::Hello { stale } => {
                server.master.load_scripts();
                let run_id = format!("{}/{}", server.name, server.master.run);
                if server.may_kill_clients {
                    self.kill(&stale, &run_id);
                }
                let client_id = i64::try_from(id).ok();
                self.reply(id, number, Reply::Hello(LinkId { run_id, client_id }));
            }
            Request::Call { operation, send_as } => {
                let outcome = server.master.execute(&operation, send_as, now);
                self.operations = self.operations.saturating_add(1);
                if let (Operation::Release { key, .. }, Ok(Answer::Done)) = (&operation, &outcome) {
                    self.announce(node, key);
                }
                // A request that the network doubled is executed twice; one reply is enough.
                if number > 0 {
                    self.reply(id, number, Reply::Answer(outcome));
                } else {
                    self.note(|_| format!("doubled request executed: {outcome:?}"));
                }
            }
            Request::Watch { key, watch } => {
                connection_mut(&mut self.connections, id, |connection| {
                    if watch {
                        connection.watches.insert(key);
                    } else {
                        connection.watches.remove(&key);
                    }
                });
                self.reply(id, number, Reply::Answer(Ok(Answer::Done)));
            }
            Request::Close => {
                connection_mut(&mut self.connections, id, |c| c.open_at_server = false);
                self.forget(id);
            }
        }
    }

    /// Tells those who listen of a release.
    fn announce(&mut self, node: usize, key: &Key) {
        let listens =
            |c: &&Connection| c.node == node && c.open_at_server && c.watches.contains(key);
        let listening = self.connections.iter().filter(|(_, connection)| listens(connection));
        let ids: Vec<u64> = listening.map(|(id, _)| *id).collect();
        let listeners = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        for id in ids {
            self.reply(id, 0, Reply::Heard(Heard { key: key.clone(), listeners }));
        }
    }

    /// `CLIENT KILL ID`: what the killed connection had sent and was not read is never read.
    fn kill(&mut self, stale: &[LinkId], run_id: &str) {
        let ids = stale.iter().filter(|old| old.run_id == run_id).filter_map(|old| old.client_id);
        for id in ids.filter_map(|id| u64::try_from(id).ok()) {
            connection_mut(&mut self.connections, id, |connection| {
                connection.open_at_server = false;
                connection.unread.clear();
            });
            self.reply(id, 0, Reply::Closed("killed"));
        }
    }
}
