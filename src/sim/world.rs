//! The network between simulated clients and masters, and the order of everything that happens.
//!
//! All that is under way is in one queue, ordered by due time and then by the order in which it was
//! sent, and one task delivers it. Chance comes from one generator. So a run is a function of its seed.
//!
//! A connection is as good as TCP: requests arrive in their order, replies too, and both sides find
//! out about an end. As with RESP, a client matches replies to requests by their order alone: a reply
//! that is swallowed on the way puts all later ones out of step.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};

use super::{
    faults::{Direction, LinkFaults},
    master::Master,
    wire::{Answer, Asked, Connection, Delivery, Reply, Request},
};
use crate::{
    alarm::Alarm,
    node::{Heard, LinkId, NodeFailure},
};

#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) master: Master,
    pub(super) up: bool,
    pub(super) frozen: bool,
    pub(super) may_kill_clients: bool,
}

/// An assumption of the lock's safety that a fault has broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokenAssumption {
    /// When, in true time since the cluster was made.
    pub at: Duration,
    /// Which node.
    pub node: usize,
    /// What happened.
    pub what: &'static str,
}

pub(super) struct State {
    pub(super) origin: Instant,
    pub(super) rng: StdRng,
    pub(super) servers: Vec<Server>,
    pub(super) links: BTreeMap<(usize, usize), LinkFaults>,
    pub(super) held: BTreeMap<(usize, usize, Direction), Vec<Delivery>>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) last_connection: u64,
    pub(super) queue: BTreeMap<(Instant, u64), Delivery>,
    pub(super) last_delivery: u64,
    /// When the driver looks at the queue again.
    driver_wakes: Option<Instant>,
    pub(super) clients: usize,
    pub(super) trace: Option<String>,
    pub(super) broken: Vec<BrokenAssumption>,
    pub(super) operations: u64,
    /// How many operations go in one command on the connections that are made.
    pub(super) most_together: usize,
}

/// Everything that simulated processes share. Cheap to clone.
#[derive(Clone)]
pub(super) struct World {
    state: Arc<Mutex<State>>,
    wake: Arc<Notify>,
}

impl Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    pub(super) fn new(names: Vec<String>, seed: u64, origin: Instant) -> Self {
        let servers = names.into_iter().map(|name| Server {
            name,
            master: Master::new(super::Persistence::default()),
            up: true,
            frozen: false,
            may_kill_clients: true,
        });
        let state = State {
            origin,
            rng: StdRng::seed_from_u64(seed),
            servers: servers.collect(),
            links: BTreeMap::new(),
            held: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            queue: BTreeMap::new(),
            last_delivery: 0,
            driver_wakes: None,
            clients: 0,
            trace: None,
            broken: Vec::new(),
            operations: 0,
            most_together: 1,
        };
        Self { state: Arc::new(Mutex::new(state)), wake: Arc::new(Notify::new()) }
    }

    /// Delivers what is under way, until nobody but this task knows the world any more.
    pub(super) fn driver(&self) -> impl Future<Output = ()> + Send + 'static {
        let (state, wake) = (Arc::downgrade(&self.state), Arc::clone(&self.wake));
        async move {
            let mut alarm = Alarm::default();
            loop {
                let next = {
                    let Some(state) = state.upgrade() else { return };
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.deliver_due(Instant::now());
                    state.driver_wakes = state.next_due();
                    state.driver_wakes.map(|due| (due, ()))
                };
                tokio::select! {
                    biased;
                    () = wake.notified() => {}
                    () = alarm.until(next) => {}
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at or changes the world, and wakes the driver if something is due before it looks by itself.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        if state.next_due().is_some_and(|due| state.driver_wakes.is_none_or(|at| due < at)) {
            self.wake.notify_one();
        }
        changed
    }

    /// Opens a connection. What comes of it arrives through the receivers.
    pub(super) fn connect(
        &self,
        client: usize,
        node: usize,
        stale: &[LinkId],
    ) -> (u64, oneshot::Receiver<Result<LinkId, NodeFailure>>, oneshot::Receiver<String>) {
        let (asked, answer) = oneshot::channel();
        let (closed, was_closed) = oneshot::channel();
        let id = self.with(|state| {
            let id = state.open(client, node, closed);
            let hello = Request::Hello { stale: stale.to_vec() };
            state.ask(id, hello, Some(Asked::Hello(asked)));
            id
        });
        (id, answer, was_closed)
    }

    /// Asks a question. Its answer arrives through the receiver.
    pub(super) fn ask<T>(
        &self,
        connection: u64,
        request: Request,
        asked: impl FnOnce(oneshot::Sender<T>) -> Asked,
    ) -> oneshot::Receiver<T> {
        let (answer_to, answer) = oneshot::channel();
        self.with(|state| state.ask(connection, request, Some(asked(answer_to))));
        answer
    }

    /// Where the announcements of a connection arrive.
    pub(super) fn hear(&self, connection: u64) -> mpsc::UnboundedReceiver<Heard> {
        let (tx, heard) = mpsc::unbounded_channel();
        self.with(|state| {
            connection_mut(&mut state.connections, connection, |c| c.hears = Some(tx));
        });
        heard
    }

    pub(super) fn close(&self, connection: u64) {
        self.with(|state| {
            state.ask(connection, Request::Close, None);
            if let Some(connection) = state.connections.get_mut(&connection) {
                connection.open_at_client = false;
                connection.asked.clear();
                connection.closed = None;
            }
            state.forget(connection);
        });
    }
}

// The network.
impl State {
    fn next_due(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((due, _), _)| *due)
    }

    pub(super) fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.origin)
    }

    pub(super) fn new_client(&mut self) -> (usize, u64) {
        let client = self.clients;
        self.clients = client.saturating_add(1);
        (client, self.rng.random())
    }

    fn open(&mut self, client: usize, node: usize, closed: oneshot::Sender<String>) -> u64 {
        self.last_connection = self.last_connection.saturating_add(1);
        let now = Instant::now();
        let connection = Connection {
            client,
            node,
            open_at_server: false,
            unread: VecDeque::new(),
            asked: VecDeque::new(),
            closed: Some(closed),
            hears: None,
            watches: BTreeSet::new(),
            open_at_client: true,
            next_number: 0,
            last_arrival: [now, now],
        };
        self.connections.insert(self.last_connection, connection);
        self.last_connection
    }

    fn ask(&mut self, id: u64, request: Request, asked: Option<Asked>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.next_number = connection.next_number.saturating_add(1);
        let number = connection.next_number;
        if let Some(asked) = asked {
            connection.asked.push_back((number, asked));
        }
        let (client, node) = (connection.client, connection.node);
        self.note(|state| format!("c{client} → {} {number}#{id} {request:?}", state.name(node)));
        let faults = self.faults(client, node);
        let is_call = matches!(request, Request::Call { .. } | Request::Together { .. });
        let is_question = is_call || matches!(request, Request::Look { .. } | Request::Mark { .. });
        if is_question && self.chance(faults.lose_request) {
            self.note(|state| format!("lost on the way to {}: {number}#{id}", state.name(node)));
            return;
        }
        let twice = is_call && self.chance(faults.duplicate_request);
        let second = twice.then(|| request.clone());
        self.transport(Delivery::ToServer { connection: id, request, number });
        if let Some(request) = second {
            self.note(|state| format!("twice on the way to {}: {number}#{id}", state.name(node)));
            self.transport(Delivery::ToServer { connection: id, request, number: 0 });
        }
    }

    pub(super) fn reply(&mut self, id: u64, number: u64, reply: Reply) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (client, node) = (connection.client, connection.node);
        self.note(|state| format!("{} → c{client} {number}#{id} {reply:?}", state.name(node)));
        let faults = self.faults(client, node);
        let can_be_lost = match &reply {
            Reply::Answer(_)
            | Reply::Answers(_)
            | Reply::Heard(_)
            | Reply::Looked(_)
            | Reply::Marked(_) => true,
            Reply::Hello(_) | Reply::Closed(_) => false,
        };
        if can_be_lost && self.chance(faults.lose_reply) {
            self.note(|state| format!("lost on the way from {}: {number}#{id}", state.name(node)));
            return;
        }
        self.transport(Delivery::ToClient { connection: id, reply, number });
    }

    /// Puts a message on its way: to arrive after the link's latency, but not before what was sent
    /// earlier on the same connection in the same direction.
    pub(super) fn transport(&mut self, delivery: Delivery) {
        let (id, direction) = match &delivery {
            Delivery::ToServer { connection, .. } => (*connection, Direction::ToServer),
            Delivery::ToClient { connection, .. } => (*connection, Direction::ToClient),
        };
        let Some(connection) = self.connections.get(&id) else { return };
        let (client, node) = (connection.client, connection.node);
        let faults = self.faults(client, node);
        if faults.is_blocked(direction) {
            self.held.entry((client, node, direction)).or_default().push(delivery);
            return;
        }
        let (shortest, longest) = faults.latency_ms;
        let latency =
            Duration::from_millis(self.rng.random_range(shortest..=longest.max(shortest)));
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let [to_server, to_client] = &mut connection.last_arrival;
        let last = match direction {
            Direction::ToServer => to_server,
            Direction::ToClient => to_client,
        };
        let now = Instant::now();
        let due = now.checked_add(latency).unwrap_or(now).max(*last);
        *last = due;
        self.last_delivery = self.last_delivery.saturating_add(1);
        self.queue.insert((due, self.last_delivery), delivery);
    }

    fn deliver_due(&mut self, now: Instant) {
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > now {
                break;
            }
            match entry.remove() {
                Delivery::ToServer { connection, request, number } => {
                    self.arrive_at_server(connection, number, request);
                }
                Delivery::ToClient { connection, reply, number } => {
                    self.arrive_at_client(connection, number, reply);
                }
            }
        }
    }

    pub(super) fn arrive_at_client(&mut self, id: u64, number: u64, reply: Reply) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match reply {
            Reply::Closed(cause) => {
                connection.open_at_client = false;
                for (_, asked) in connection.asked.drain(..) {
                    asked.fail(cause);
                }
                if let Some(closed) = connection.closed.take() {
                    closed.send(cause.to_owned()).ok();
                }
            }
            Reply::Heard(heard) => {
                if let Some(hears) = &connection.hears {
                    hears.send(heard).ok();
                }
            }
            Reply::Hello(link) => {
                if let Some((_, Asked::Hello(asked))) = connection.asked.pop_front() {
                    asked.send(Ok(link)).ok();
                }
            }
            Reply::Answer(outcome) => {
                if let Some((expected, asked)) = connection.asked.pop_front() {
                    asked.answer(expected == number, Answer::Call(outcome));
                }
            }
            Reply::Answers(outcomes) => {
                if let Some((expected, asked)) = connection.asked.pop_front() {
                    asked.answer(expected == number, Answer::Together(outcomes));
                }
            }
            Reply::Looked(facts) => {
                if let Some((expected, asked)) = connection.asked.pop_front() {
                    asked.answer(expected == number, Answer::Look(facts));
                }
            }
            Reply::Marked(written) => {
                if let Some((expected, asked)) = connection.asked.pop_front() {
                    asked.answer(expected == number, Answer::Mark(written));
                }
            }
        }
        // It may have been the last of a connection that the client had closed meanwhile.
        self.forget(id);
    }

    /// A connection that is closed on both sides is nothing any more.
    pub(super) fn forget(&mut self, id: u64) {
        if self
            .connections
            .get(&id)
            .is_some_and(|c| !c.open_at_client && !c.open_at_server && c.unread.is_empty())
            && !self.is_under_way(id)
        {
            self.connections.remove(&id);
        }
    }

    fn is_under_way(&self, id: u64) -> bool {
        let is_of = |delivery: &Delivery| match delivery {
            Delivery::ToServer { connection, .. } | Delivery::ToClient { connection, .. } => {
                *connection == id
            }
        };
        self.queue.values().any(is_of) || self.held.values().flatten().any(is_of)
    }

    pub(super) fn faults(&self, client: usize, node: usize) -> LinkFaults {
        self.links.get(&(client, node)).copied().unwrap_or_default()
    }

    pub(super) fn chance(&mut self, percent: u8) -> bool {
        percent > 0 && self.rng.random_range(0..100) < percent
    }

    pub(super) fn name(&self, node: usize) -> &str {
        self.servers.get(node).map_or("?", |server| &server.name)
    }
}

pub(super) fn connection_mut(
    connections: &mut BTreeMap<u64, Connection>,
    id: u64,
    change: impl FnOnce(&mut Connection),
) {
    if let Some(connection) = connections.get_mut(&id) {
        change(connection);
    }
}
