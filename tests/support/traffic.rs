//! The threads of the proxy, and the state they share with its switches.
//!
//! Each [`Link`] is served by a reader and a writer for each direction. The reader puts into the
//! queue whatever arrives, at once; the writer takes from it what the rules let pass.
//!
//! # Invariants
//!
//! 1. A link lives while it is in [`State::links`]. Whoever takes it out closes it, which wakes its
//!    readers, and notifies, which wakes its writers; they find it gone and end.
//! 2. Bytes of one direction are delivered in the order in which they came, the end of the stream
//!    last.
//! 3. No lock is held during a read or a write.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use super::{
    POLL,
    link::{Direction, Link, Mode, Sockets, Verdict},
};

/// How long the server may take to accept a connection of the proxy.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(1);

const READ_SIZE: usize = 16 * 1024;

/// What the threads of a proxy share with its switches.
#[derive(Debug)]
pub(super) struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    /// Notified on every change of the state that a thread may wait for.
    pub(super) changed: Condvar,
}

pub(super) type Locked<'a> = MutexGuard<'a, State>;

#[derive(Debug)]
pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) is_ended: bool,
    /// Connections accepted; the count gives each link its id.
    pub(super) connections: u64,
    pub(super) links: BTreeMap<u64, Link>,
    /// Links whose threads have not ended yet.
    pub(super) threads: usize,
    /// Pieces taken from a queue whose write has not ended yet.
    pub(super) writes: usize,
    /// Bytes dropped by a mode or because their client was orphaned.
    pub(super) swallowed: usize,
    /// Local ports of the proxy's connections to itself, which are neither counted nor passed on.
    pub(super) markers: BTreeSet<u16>,
}

impl Shared {
    pub(super) fn new(target: SocketAddr) -> Self {
        let state = State {
            mode: Mode::Pass,
            is_ended: false,
            connections: 0,
            links: BTreeMap::new(),
            threads: 0,
            writes: 0,
            swallowed: 0,
            markers: BTreeSet::new(),
        };
        Self { target, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait_while(
        &self,
        state: Locked<'_>,
        limit: Duration,
        mut cond: impl FnMut(&State) -> bool,
    ) {
        let waited = self.changed.wait_timeout_while(state, limit, |state| cond(state));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Puts what a reader got into its queue. Returns whether to read on.
    fn arrive(&self, id: u64, direction: Direction, bytes: Vec<u8>) -> bool {
        let mut state = self.lock();
        let Some(link) = state.links.get_mut(&id) else {
            return false;
        };
        let is_end = bytes.is_empty();
        link.push(direction, bytes);
        self.changed.notify_all();
        !is_end
    }

    /// Waits for the next bytes to deliver, and counts them as being written. Empty at the end of the
    /// stream, `None` if the link is gone.
    fn next(&self, id: u64, direction: Direction) -> Option<Vec<u8>> {
        let mut state = self.lock();
        loop {
            let mode = state.mode;
            let link = state.links.get_mut(&id)?;
            state = match link.verdict(mode, direction) {
                Verdict::Deliver => {
                    let bytes = link.pop(direction)?;
                    state.writes = state.writes.saturating_add(1);
                    return Some(bytes);
                }
                Verdict::Swallow => {
                    let bytes = link.pop(direction)?;
                    state.swallowed = state.swallowed.saturating_add(bytes.len());
                    self.changed.notify_all();
                    state
                }
                Verdict::Hold => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Verdict::Delay(rest) => {
                    let waited = self.changed.wait_timeout(state, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn written(&self) {
        let mut state = self.lock();
        state.writes = state.writes.saturating_sub(1);
        self.changed.notify_all();
    }

    fn remove(&self, id: u64) {
        if let Some(link) = self.lock().links.remove(&id) {
            link.close();
        }
        self.changed.notify_all();
    }

    /// Moves what goes in one direction from the socket into the queue until either ends.
    fn read_all(&self, id: u64, direction: Direction, mut from: &TcpStream) {
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let bytes = match from.read(&mut buffer) {
                Ok(count) => buffer.get(..count).unwrap_or_default().to_vec(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A reset ends the stream as well; the other side need not know the difference.
                Err(_) => Vec::new(),
            };
            if !self.arrive(id, direction, bytes) {
                return;
            }
        }
    }

    /// Moves what goes in one direction from the queue into the socket until either ends.
    fn write_all(&self, id: u64, direction: Direction, mut to: &TcpStream) {
        let mut is_broken = false;
        while let Some(bytes) = self.next(id, direction) {
            let is_end = bytes.is_empty();
            match direction {
                // A client may close its side behind its last request; the server gets both.
                Direction::Requests if is_end => {
                    to.shutdown(Shutdown::Write).ok();
                }
                // A server that has closed takes no more requests either.
                Direction::Replies if is_end => self.remove(id),
                // After a failure the rest is lost, but the other direction goes on: the requests of
                // a client that has gone still arrive.
                Direction::Requests | Direction::Replies => {
                    is_broken = is_broken || to.write_all(&bytes).is_err();
                }
            }
            self.written();
            if is_end {
                return;
            }
        }
    }
}

/// Accepts connections until the proxy ends.
pub(super) fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let Ok((client, peer)) = listener.accept() else {
            // Out of file descriptors, most likely; they may come back.
            thread::sleep(POLL);
            continue;
        };
        let mut state = shared.lock();
        if state.is_ended {
            return;
        }
        if state.markers.remove(&peer.port()) {
            shared.changed.notify_all();
            continue;
        }
        state.connections = state.connections.saturating_add(1);
        let (id, mode) = (state.connections, state.mode);
        drop(state);
        if mode != Mode::Cut {
            // A client whose connection cannot be passed on is closed as it is dropped here.
            connect(shared, id, client).ok();
        }
    }
}

/// Connects a client to the server and starts the threads that serve the two.
fn connect(shared: &Arc<Shared>, id: u64, client: TcpStream) -> io::Result<()> {
    let upstream = TcpStream::connect_timeout(&shared.target, CONNECT_LIMIT)?;
    upstream.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let link = Link::new(client, upstream);
    let sockets = link.sockets();

    let mut state = shared.lock();
    state.links.insert(id, link);
    state.threads = state.threads.saturating_add(1);
    drop(state);

    let serve = {
        let shared = Arc::clone(shared);
        move || {
            let Sockets { client, upstream } = &*sockets;
            thread::scope(|scope| {
                scope.spawn(|| shared.read_all(id, Direction::Requests, client));
                scope.spawn(|| shared.write_all(id, Direction::Requests, upstream));
                scope.spawn(|| shared.read_all(id, Direction::Replies, upstream));
                shared.write_all(id, Direction::Replies, client);
            });
            shared.remove(id);
            // Closed before the proxy may count us as ended.
            drop(sockets);
            let mut state = shared.lock();
            state.threads = state.threads.saturating_sub(1);
            shared.changed.notify_all();
        }
    };
    thread::Builder::new().name("proxy link".to_owned()).spawn(serve).map(drop)
}
