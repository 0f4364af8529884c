//! A network between a client and a server that fails on request: the switches.
//!
//! What a switch does to bytes is decided in `link.rs` and done in `traffic.rs`.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    link::{Fate, Link, Mode},
    traffic::{CONNECT_LIMIT, Locked, Shared, accept_all},
};

/// How long a switch waits for a write that has begun; one into a full buffer may never end.
const SWITCH_LIMIT: Duration = Duration::from_millis(200);
/// How long the accept loop may take for the connections before a marker; it may be connecting to a
/// server that does not accept.
const ACCEPT_LIMIT: Duration = Duration::from_secs(2);
/// How long the end of all threads is waited for.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A proxy in front of one server, on a port of its own.
///
/// It starts in the mode [`pass`](Self::pass). A method that sets a mode ends the mode before it and
/// acts on live connections and on new ones; once it has returned, nothing passes that the new mode
/// keeps back. The end of a connection passes with the bytes: modes that drop bytes let it pass,
/// modes that keep bytes keep it too, behind them.
///
/// # Drop
///
/// Closes all connections and returns once all threads have ended.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to this port of 127.0.0.1. Nothing needs to listen there yet: a client whose
    /// connection cannot be passed on is closed.
    #[track_caller]
    pub fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let addr = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared::new((Ipv4Addr::LOCALHOST, target_port).into()));
        let acceptor = thread::Builder::new().name("proxy".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || accept_all(&listener, &shared)
        });
        Self { addr, shared, acceptor: Some(acceptor.expect("a thread")) }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// "127.0.0.1:1234"
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// <redis://127.0.0.1:1234>
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Everything passes, at once; what was held goes first.
    pub fn pass(&self) {
        self.switch(Mode::Pass);
    }

    /// Requests are executed, but their replies get lost.
    pub fn drop_replies(&self) {
        self.switch(Mode::DropReplies);
    }

    /// Requests get lost; replies to earlier ones pass.
    pub fn drop_requests(&self) {
        self.switch(Mode::DropRequests);
    }

    /// Closes all connections, and new ones as soon as they are accepted. What they held is lost.
    /// Orphans stay.
    pub fn cut(&self) {
        self.switch(Mode::Cut);
        self.cut_once();
    }

    /// Closes all connections there are; the mode stays, for new ones. What they held is lost.
    /// Orphans stay.
    pub fn cut_once(&self) {
        self.settle_accepts();
        let mut state = self.shared.lock();
        state.links.retain(|_, link| {
            let is_orphan = link.fate != Fate::Connected;
            if !is_orphan {
                link.close();
            }
            is_orphan
        });
        self.shared.changed.notify_all();
    }

    /// Nothing passes either way until the mode changes; then all of it arrives, in order.
    pub fn hold(&self) {
        self.switch(Mode::Hold);
    }

    /// As [`hold`](Self::hold), for requests alone; replies to earlier ones pass.
    pub fn hold_requests(&self) {
        self.switch(Mode::HoldRequests);
    }

    /// Everything passes this long after it came in, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.switch(Mode::Delay(delay));
    }

    /// Closes all connections towards their clients, but not towards the server: requests that had
    /// not been passed on wait for [`release_orphans`](Self::release_orphans), in whatever mode.
    ///
    /// So a command sits in the network and reaches the server after its client has gone.
    pub fn orphan(&self) {
        self.settle_accepts();
        let mut state = self.shared.lock();
        for link in state.links.values_mut().filter(|link| link.fate == Fate::Connected) {
            link.orphan();
        }
        self.shared.changed.notify_all();
        self.settle_writes(state);
    }

    /// Passes on what orphaned connections still held for the server, in whatever mode, and then
    /// closes them. The replies get lost.
    pub fn release_orphans(&self) {
        let mut state = self.shared.lock();
        for link in state.links.values_mut().filter(|link| link.fate == Fate::Orphaned) {
            link.fate = Fate::Released;
        }
        self.shared.changed.notify_all();
    }

    /// How many connections were accepted in all, those closed at once by [`cut`](Self::cut)
    /// included.
    pub fn connections(&self) -> u64 {
        self.shared.lock().connections
    }

    /// How many clients are connected.
    pub fn open(&self) -> usize {
        self.shared.lock().links.values().filter(|link| !link.is_client_gone).count()
    }

    /// How many orphaned connections wait for their release.
    pub fn orphans(&self) -> usize {
        let state = self.shared.lock();
        state.links.values().filter(|link| link.fate == Fate::Orphaned).count()
    }

    /// How many bytes came in and wait, in both directions and those of orphans included.
    pub fn held_bytes(&self) -> usize {
        self.shared.lock().links.values().map(Link::held_bytes).sum()
    }

    /// How many bytes were lost so far to the modes that drop them, or as replies to orphans.
    pub fn swallowed_bytes(&self) -> usize {
        self.shared.lock().swallowed
    }

    fn switch(&self, mode: Mode) {
        let mut state = self.shared.lock();
        state.mode = mode;
        self.shared.changed.notify_all();
        self.settle_writes(state);
    }

    /// Waits for the writes that began under the former rules.
    fn settle_writes(&self, state: Locked<'_>) {
        self.shared.wait_while(state, SWITCH_LIMIT, |state| state.writes > 0);
    }

    /// Waits until every connection that a client regards as established has become a link.
    ///
    /// The kernel establishes connections before they are accepted and queues them in order, so it
    /// is enough to connect as well and wait for our turn.
    fn settle_accepts(&self) {
        // Locked until the marker is noted: it must not be accepted before.
        let mut state = self.shared.lock();
        let Ok(marker) = TcpStream::connect_timeout(&self.addr, CONNECT_LIMIT) else {
            return;
        };
        let Ok(addr) = marker.local_addr() else {
            return;
        };
        state.markers.insert(addr.port());
        self.shared.wait_while(state, ACCEPT_LIMIT, |state| state.markers.contains(&addr.port()));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().is_ended = true;
        // Wakes the accept loop.
        TcpStream::connect_timeout(&self.addr, CONNECT_LIMIT).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
        let mut state = self.shared.lock();
        state.links.values().for_each(Link::close);
        state.links.clear();
        self.shared.changed.notify_all();
        self.shared.wait_while(state, END_LIMIT, |state| state.threads > 0);
    }
}
