//! A simulated master as a [`World`], for the tests that real masters pass as well.
//!
//! What a cluster does not show, the connections that a master has open, is read from its trace: a
//! connection opens with the master's greeting and ends with the master's word or one latency after
//! the client's. At the end of a test the account is checked against the connections that break when
//! the master crashes.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use futures::FutureExt;
use quorumlock::{
    node::{LinkId, Node},
    sim::{LinkFaults, SimClient, SimCluster, SimNode},
};

use super::conformance::World;

/// The trace's name of the client whose connections are counted: the library's.
const CLIENT: &str = "c0";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

pub struct SimWorld {
    cluster: SimCluster,
    client: SimClient,
    node: SimNode,
    /// The same master as an operator reaches it.
    operators: SimNode,
    latency: Duration,
    connections: Mutex<BTreeMap<i64, Connection>>,
}

#[derive(Debug)]
struct Connection {
    client: String,
    /// What the master greeted with; none as long as it has not.
    run_id: Option<String>,
    /// When the master reads that the client has closed it.
    ends: Option<Duration>,
}

impl SimWorld {
    /// One master, 1 ms away. Has to be called in a runtime with a paused clock.
    pub fn start() -> Self {
        let cluster = SimCluster::new(1);
        cluster.start_trace();
        let (client, operator) = (cluster.client(), cluster.client());
        let node = |client: &SimClient| client.nodes(CONNECT_TIMEOUT).pop().expect("one master");
        Self {
            node: node(&client),
            operators: node(&operator),
            cluster,
            client,
            latency: Duration::from_millis(1),
            connections: Mutex::default(),
        }
    }

    /// From now on messages take no time, and so nothing that is asked does.
    pub fn without_latency(mut self) -> Self {
        self.client.set_link(0, LinkFaults::latency(0, 0));
        self.latency = Duration::ZERO;
        self
    }

    /// True time since the start.
    pub fn now(&self) -> Duration {
        self.cluster.now()
    }

    /// All connections by their ids, after what the trace tells.
    fn connections(&self) -> MutexGuard<'_, BTreeMap<i64, Connection>> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let trace = self.cluster.take_trace();
        self.cluster.start_trace();
        for line in trace.lines() {
            self.note(line, &mut connections);
        }
        connections.retain(|_, connection| connection.ends.is_none_or(|at| at > self.now()));
        connections
    }

    /// Takes in a line like `[     0.001] n0 → c0 1#3 Hello(LinkId { run_id: "n0/1", … })`.
    fn note(&self, line: &str, connections: &mut BTreeMap<i64, Connection>) {
        let Some(Message { at, from, to, id, text }) = Message::read(line) else { return };
        if text.starts_with("Hello {") {
            let connection = Connection { client: from.to_owned(), run_id: None, ends: None };
            connections.insert(id, connection);
        } else if text.starts_with("Closed") {
            connections.remove(&id);
        } else if let Some(connection) = connections.get_mut(&id) {
            if text.starts_with("Hello(") && to == connection.client {
                connection.run_id = text.split('"').nth(1).map(str::to_owned);
            } else if text == "Close" {
                connection.ends = Some(at.saturating_add(self.latency));
            }
        }
    }
}

/// A line of the trace about something sent.
struct Message<'a> {
    at: Duration,
    from: &'a str,
    to: &'a str,
    id: i64,
    text: &'a str,
}

impl<'a> Message<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (at, event) = line.trim_start_matches('[').split_once("] ")?;
        let words: Vec<&str> = event.splitn(5, ' ').collect();
        let [from, "→", to, number, text] = words[..] else { return None };
        let (_, id) = number.split_once('#')?;
        let at = Duration::from_secs_f64(at.trim().parse().expect("seconds"));
        Some(Self { at, from, to, id: id.parse().expect("a connection's id"), text })
    }
}

impl World for SimWorld {
    type Node = SimNode;

    fn node(&self) -> &SimNode {
        &self.node
    }

    fn get(&self, key: &str) -> Option<String> {
        self.cluster.keys(0).remove(key)
    }

    fn pttl(&self, key: &str) -> i64 {
        self.cluster.pttl(0, key)
    }

    fn set(&self, key: &str, value: &str, ttl: Option<Duration>) {
        self.cluster.set_key(0, key, Some(value), ttl);
    }

    fn set_list(&self, key: &str) {
        self.cluster.set_key(0, key, None, None);
    }

    fn delete(&self, key: &str) {
        self.cluster.delete_key(0, key);
    }

    fn flush_scripts(&self) {
        self.cluster.flush_scripts(0);
    }

    fn clients(&self) -> Vec<i64> {
        let connections = self.connections();
        let open = connections.iter().filter(|(_, c)| c.client == CLIENT && c.run_id.is_some());
        open.map(|(id, _)| *id).collect()
    }

    /// An operator's connection does it with its first words, and needs no answer.
    fn kill_client(&self, client_id: i64) {
        let connections = self.connections();
        let run_id = connections.get(&client_id).and_then(|connection| connection.run_id.clone());
        let run_id = run_id.expect("there is such a client");
        let killed = LinkId { run_id, client_id: Some(client_id) };
        assert!(self.operators.connect(&[killed]).now_or_never().is_none(), "an answer takes time");
    }

    fn freeze(&self) {
        self.cluster.freeze(0);
    }

    fn thaw(&self) {
        self.cluster.thaw(0);
    }

    fn crash(&self) {
        self.cluster.crash(0);
    }
}

impl Drop for SimWorld {
    fn drop(&mut self) {
        if thread::panicking() || !self.cluster.is_up(0) {
            return;
        }
        let expected: Vec<i64> = self.connections().keys().copied().collect();
        self.cluster.crash(0);
        let trace = self.cluster.take_trace();
        let broken = trace.lines().filter_map(Message::read).map(|message| message.id);
        assert_eq!(broken.collect::<Vec<_>>(), expected, "connections at the end: {trace}");
    }
}
