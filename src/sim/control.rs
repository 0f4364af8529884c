//! What a test does to the simulated world, and sees of it.

use std::{fmt::Write as _, time::Duration};

use rand::RngExt;

use super::{
    faults::{Direction, LinkFaults},
    master::Master,
    wire::Reply,
    world::{BrokenAssumption, State, connection_mut},
};

impl State {
    pub(super) fn master<T>(
        &mut self,
        node: usize,
        look: impl FnOnce(&mut Master, Duration) -> T,
    ) -> Option<T> {
        let now = self.now();
        self.servers.get_mut(node).map(|server| look(&mut server.master, now))
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.name.clone()).collect()
    }

    pub(super) fn is_up(&self, node: usize) -> bool {
        self.servers.get(node).is_some_and(|server| server.up)
    }

    pub(super) fn is_frozen(&self, node: usize) -> bool {
        self.servers.get(node).is_some_and(|server| server.frozen)
    }

    pub(super) fn set_faults(&mut self, client: usize, node: usize, faults: LinkFaults) {
        self.note(|state| format!("link c{client} – {}: {faults:?}", state.name(node)));
        self.links.insert((client, node), faults);
        for direction in [Direction::ToServer, Direction::ToClient] {
            if !faults.is_blocked(direction) {
                // What was stuck arrives now, as TCP sends it again.
                for delivery in self.held.remove(&(client, node, direction)).unwrap_or_default() {
                    self.transport(delivery);
                }
            }
        }
    }

    /// Closes all connections of a link, as a middlebox that forgets does. What was sent before still
    /// arrives at the server.
    pub(super) fn reset_link(&mut self, client: usize, node: usize) {
        self.note(|state| format!("reset c{client} – {}", state.name(node)));
        let on_link = self.connections.iter().filter(|(_, c)| c.client == client && c.node == node);
        for id in on_link.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.arrive_at_client(id, 0, Reply::Closed("connection reset"));
        }
    }

    pub(super) fn freeze(&mut self, node: usize) {
        self.note(|state| format!("{} freezes", state.name(node)));
        // A process that does not run cannot stand still.
        if let Some(server) = self.servers.get_mut(node).filter(|server| server.up) {
            server.frozen = true;
        }
    }

    /// Goes on, and reads what has come meanwhile: each connection in its order, the connections mixed.
    pub(super) fn thaw(&mut self, node: usize) {
        self.note(|state| format!("{} thaws", state.name(node)));
        if let Some(server) = self.servers.get_mut(node) {
            server.frozen = false;
        }
        loop {
            let waiting =
                self.connections.iter().filter(|(_, c)| c.node == node && !c.unread.is_empty());
            let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
            if waiting.is_empty() {
                break;
            }
            let chosen = self.rng.random_range(0..waiting.len());
            let Some(id) = waiting.get(chosen).copied() else { break };
            let next = self.connections.get_mut(&id).and_then(|c| c.unread.pop_front());
            if let Some((number, request)) = next {
                self.read(id, number, request);
            }
        }
    }

    /// The process ends at once; its connections break.
    pub(super) fn crash(&mut self, node: usize) {
        let now = self.now();
        let Some(server) = self.servers.get_mut(node).filter(|server| server.up) else { return };
        server.up = false;
        server.frozen = false;
        let lost = server.master.crash(now);
        self.note(|state| format!("{} crashes, data lost: {lost}", state.name(node)));
        if lost {
            self.assumption_broken(node, "a node forgot");
        }
        let of_node = self.connections.iter().filter(|(_, c)| c.node == node);
        for id in of_node.map(|(id, _)| *id).collect::<Vec<_>>() {
            connection_mut(&mut self.connections, id, |connection| {
                connection.open_at_server = false;
                connection.unread.clear();
            });
            self.reply(id, 0, Reply::Closed("the server ended"));
        }
    }

    pub(super) fn restart(&mut self, node: usize) {
        self.note(|state| format!("{} starts", state.name(node)));
        if let Some(server) = self.servers.get_mut(node).filter(|server| !server.up) {
            server.up = true;
            server.master.restart();
        }
    }

    pub(super) fn allow_kill(&mut self, node: usize, allowed: bool) {
        if let Some(server) = self.servers.get_mut(node) {
            server.may_kill_clients = allowed;
        }
    }

    pub(super) fn assumption_broken(&mut self, node: usize, what: &'static str) {
        let at = self.now();
        self.note(|state| format!("assumption broken: {what} ({})", state.name(node)));
        self.broken.push(BrokenAssumption { at, node, what });
    }

    pub(super) fn broken(&self) -> &[BrokenAssumption] {
        &self.broken
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    pub(super) fn start_trace(&mut self) {
        self.trace = Some(String::new());
    }

    pub(super) fn take_trace(&mut self) -> String {
        self.trace.take().unwrap_or_default()
    }

    /// Writes a line of the trace, which costs nothing while there is none.
    pub(super) fn note(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let (now, line) = (self.now(), line(self));
            if let Some(trace) = &mut self.trace {
                writeln!(trace, "[{:>10.3}] {line}", now.as_secs_f64()).ok();
            }
        }
    }
}
