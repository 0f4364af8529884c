//! Looking at a server from outside the code under test.
//!
//! Each look is a connection of its own, which is gone when the method returns; none of them shows
//! in [`Server::clients`] or [`Server::total_connections`].
//! All panic if the server does not answer.

use std::{collections::BTreeMap, io, sync::atomic::Ordering, time::Duration};

use super::{
    resp::{Conn, Reply},
    server::Server,
};

/// How long a look waits for the server; longer than any healthy server takes, and short enough for
/// a test that looks at a frozen one by mistake.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

impl Server {
    /// Runs one command; an error reply is returned like any other.
    #[track_caller]
    pub fn command(&self, args: &[&str]) -> Reply {
        let look = || -> io::Result<Reply> {
            let mut conn = self.open(LOOK_LIMIT)?;
            let reply = conn.command(args)?;
            conn.close();
            Ok(reply)
        };
        match look() {
            Ok(reply) => reply,
            Err(error) => panic!("{args:?} on {}: {error}", self.addr()),
        }
    }

    /// Sends one command and does not wait for its reply, which may be long in coming. On this connection.
    pub fn send(&self, args: &[&str]) -> Conn {
        let sent = self.open(LOOK_LIMIT).and_then(|mut conn| conn.send(args).map(|()| conn));
        sent.unwrap_or_else(|error| panic!("{args:?} on {}: {error}", self.addr()))
    }

    /// Connects, and authenticates if the server's arguments require it.
    pub(super) fn open(&self, timeout: Duration) -> io::Result<Conn> {
        let mut conn = Conn::open(&self.addr(), timeout)?;
        self.own_connections.fetch_add(1, Ordering::Relaxed);
        if let Some(password) = self.password() {
            conn.command(&["AUTH", password])?;
        }
        Ok(conn)
    }

    /// The string at `key`, if there is one.
    #[track_caller]
    pub fn get(&self, key: &str) -> Option<String> {
        self.command(&["GET", key]).into_text()
    }

    /// Sets `key`, whatever it holds, for `ttl` or for good.
    #[track_caller]
    pub fn set_raw(&self, key: &str, value: &str, ttl: Option<Duration>) {
        let reply = match ttl {
            None => self.command(&["SET", key, value]),
            Some(ttl) => self.command(&["SET", key, value, "PX", &ttl.as_millis().to_string()]),
        };
        assert_eq!(reply, Reply::Text("OK".to_owned()), "SET {key} on {}", self.addr());
    }

    /// All keys but the markers of fleets, sorted.
    #[track_caller]
    pub fn keys(&self) -> Vec<String> {
        let keys = self.command(&["KEYS", "*"]).into_array();
        let mut keys: Vec<_> = keys.into_iter().filter_map(Reply::into_text).collect();
        keys.retain(|key| !key.ends_with(":marker"));
        keys.sort();
        keys
    }

    /// What is left of the key's ttl in milliseconds; -1 if it has none, -2 if there is no key.
    #[track_caller]
    pub fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key]).into_int()
    }

    /// Whether there is such a key.
    #[track_caller]
    pub fn exists(&self, key: &str) -> bool {
        self.command(&["EXISTS", key]).into_int() == 1
    }

    /// Deletes the key, if there is one.
    #[track_caller]
    pub fn del(&self, key: &str) {
        self.command(&["DEL", key]).into_int();
    }

    /// One section of INFO, field by field.
    #[track_caller]
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        let info = self.command(&["INFO", section]).into_text().expect("INFO is never nil");
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// The id of this run of the server; another one after a restart.
    #[track_caller]
    pub fn run_id(&self) -> String {
        self.info("server").remove("run_id").expect("INFO names the run")
    }

    /// How many locks without tokens it has granted. Each vote tries to set, one that refuses then asks for
    /// the ttl, and so does nothing else that succeeds. Markers are written by a script that is sent as text.
    #[track_caller]
    pub fn grants(&self) -> u64 {
        self.votes().saturating_sub(self.calls("pttl"))
    }

    /// How often it was asked for a lock without a token.
    fn votes(&self) -> u64 {
        self.calls("set").saturating_sub(self.calls("eval"))
    }

    /// How often it was asked for a lock without a token, to let one live on, or to let one go that it had:
    /// the looks of clients call none of these.
    #[track_caller]
    pub fn operations(&self) -> u64 {
        [self.votes(), self.calls("pexpire"), self.calls("del")].iter().sum()
    }

    /// How often a command was called since the server started, its subcommands included and also
    /// when a script called it.
    ///
    /// The looks of this module count as well, among them the PING and INFO that waited for the
    /// server to start: compare two readings for commands that these may send.
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        let name = format!("cmdstat_{}", command.to_lowercase());
        let is_of_command = |field: &str| {
            field.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        };
        let stats = self.info("commandstats");
        let stats = stats.iter().filter(|(field, _)| is_of_command(field));
        stats.filter_map(|(_, stat)| calls_in(stat)).sum()
    }

    /// How many clients are connected, not counting this look.
    #[track_caller]
    pub fn clients(&self) -> usize {
        let list = self.command(&["CLIENT", "LIST"]).into_text().expect("the list is never nil");
        list.lines().count().saturating_sub(1)
    }

    /// How many connections the server accepted since it started, not counting looks.
    #[track_caller]
    pub fn total_connections(&self) -> u64 {
        let stats = self.info("stats");
        let total = stats.get("total_connections_received").expect("INFO counts connections");
        let total: u64 = total.parse().expect("a count is a number");
        total.saturating_sub(self.own_connections.load(Ordering::Relaxed))
    }
}

/// The count in "calls=2,usec=35,...".
fn calls_in(stat: &str) -> Option<u64> {
    stat.split(',').find_map(|field| field.strip_prefix("calls="))?.parse().ok()
}
