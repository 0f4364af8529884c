//! What a simulated server does with what it receives.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    wire::{Connection, Reply, Request},
    world::{Server, State, connection_mut},
};
use crate::{
    node::{
        self, Answer, Ballot, Called, Facts, FleetKeys, Heard, LinkId, NodeFailure, Operation,
        Outcome, SendAs,
    },
    owner_id::{OwnerId, Seat},
    resource::Key,
};

impl Server {
    fn run_id(&self) -> String {
        format!("{}/{}", self.name, self.master.run)
    }

    /// What a look finds.
    fn facts(&self, keys: &FleetKeys, now: Duration) -> Facts {
        Facts {
            run_id: self.run_id(),
            server: node::Server::Redis(7, 0),
            is_master: true,
            is_cluster: false,
            is_loading: false,
            eviction: Some("noeviction".to_owned()),
            is_durable: self.master.is_durable(),
            replicas: 0,
            forbidden: Vec::new(),
            marker: self.master.text(&keys.marker, now),
            max: self.master.number(&keys.max, now).ok().map(|max| max.unwrap_or(0)),
        }
    }
}

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
                let run_id = server.run_id();
                if server.may_kill_clients {
                    self.kill(&stale, &run_id);
                }
                let client_id = i64::try_from(id).ok();
                self.reply(id, number, Reply::Hello(LinkId { run_id, client_id }));
            }
            Request::Call { operation, send_as } => {
                let mut outcome = server.master.execute(&operation, &send_as, now);
                if let Operation::Waiters { key, besides } = &operation {
                    outcome = Ok(self.waiters(node, key, *besides));
                }
                self.executed(node, &operation, &mut outcome);
                self.reply_once(id, number, Reply::Answer(outcome));
            }
            Request::Together { operations, ballot } => {
                let outcomes = if server.master.knows(&ballot) {
                    Ok(self.execute_together(node, &operations, ballot, now))
                } else {
                    Err(NodeFailure::NoScript)
                };
                self.reply_once(id, number, Reply::Answers(outcomes));
            }
            Request::Look { keys } => {
                let facts = server.facts(&keys, now);
                self.reply(id, number, Reply::Looked(Box::new(facts)));
            }
            Request::Mark { keys, seen, marker } => {
                let run_id = server.run_id();
                let is_same = marker.run_id == run_id;
                let written = server.master.mark(&keys, seen.as_deref(), &marker, is_same, now);
                self.reply(id, number, Reply::Marked(written));
            }
            Request::Watch { key, seat, watch } => {
                connection_mut(&mut self.connections, id, |connection| {
                    let place = (key, seat);
                    if watch {
                        connection.watches.insert(place);
                    } else {
                        connection.watches.remove(&place);
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

    /// One after another, in one step.
    fn execute_together(
        &mut self,
        node: usize,
        operations: &[Operation],
        ballot: Arc<Ballot>,
        now: Duration,
    ) -> Vec<Outcome> {
        let ballot = SendAs::Ballot(ballot);
        let mut outcomes = Vec::new();
        for operation in operations {
            let Some(server) = self.servers.get_mut(node) else { break };
            let mut outcome = server.master.perform(operation, &ballot, now);
            self.executed(node, operation, &mut outcome);
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Counts an operation, and calls those who wait if it was a release.
    fn executed(&mut self, node: usize, operation: &Operation, outcome: &mut Outcome) {
        self.operations = self.operations.saturating_add(1);
        if let (Operation::Release { key, owner, calls }, Ok(Answer::Done)) = (operation, &outcome)
        {
            if self.announce(node, key, *owner, *calls) > 0 {
                *outcome = Ok(Answer::PassedOn);
            }
        }
    }

    /// A request that the network doubled is executed twice; one reply is enough.
    fn reply_once(&mut self, id: u64, number: u64, reply: Reply) {
        if number > 0 {
            self.reply(id, number, reply);
        } else {
            self.note(|_| format!("doubled request executed: {reply:?}"));
        }
    }

    /// Whether more connections than these wait for releases of the key.
    fn waiters(&self, node: usize, key: &Key, besides: u32) -> Answer {
        let waits =
            |c: &&Connection| c.node == node && c.open_at_server && c.seats(key).next().is_some();
        let waiters = self.connections.values().filter(waits).count();
        if u32::try_from(waiters).is_ok_and(|waiters| waiters <= besides) {
            Answer::Missing
        } else {
            Answer::Taken { remaining: None }
        }
    }

    /// Calls those who wait and are next. On how many seats others are.
    fn announce(&mut self, node: usize, key: &Key, owner: OwnerId, calls: Called) -> usize {
        let mut sitting: BTreeMap<Seat, Vec<u64>> = BTreeMap::new();
        for (id, connection) in &self.connections {
            if connection.node == node && connection.open_at_server {
                for seat in connection.seats(key) {
                    sitting.entry(seat).or_default().push(*id);
                }
            }
        }
        let of_known = match calls {
            Called::Known(seat) => sitting.remove_entry(&seat),
            Called::Nobody | Called::Next | Called::NextAndStandIn => None,
        };
        let most = match calls {
            Called::Nobody => 0,
            Called::Next | Called::Known(_) => 1,
            Called::NextAndStandIn => 2,
        };
        let own = sitting.remove_entry(&owner.seat());
        let behind = sitting.split_off(&owner.seat());
        let others = of_known.into_iter().chain(behind).chain(sitting);
        let mut called: Vec<(Seat, Vec<u64>)> = others.take(most).collect();
        let mut others = called.len();
        if called.is_empty() && most > 0 {
            called.extend(own);
            others = called.iter().filter(|(_, ids)| ids.len() > 1).count();
        }
        let stands_in = called.get(1).filter(|(_, ids)| ids.len() == 1).map(|(seat, _)| *seat);
        for (rank, (_, ids)) in (0..).zip(called) {
            let sharing = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            let behind = stands_in.filter(|_| rank == 0);
            for id in ids {
                let heard = Heard { key: key.clone(), owner, rank, sharing, behind };
                self.reply(id, 0, Reply::Heard(heard));
            }
        }
        others
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
