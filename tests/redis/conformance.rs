//! The real node does what every node has to do.

use std::time::Duration;

use quorumlock::node::redis::RedisNode;

use crate::support::{
    Server,
    conformance::{World, conformance_tests},
};

pub(crate) struct RealWorld {
    server: Server,
    node: RedisNode,
}

impl RealWorld {
    pub(crate) fn start() -> Self {
        let server = Server::start();
        let node = RedisNode::from_url(&server.url(), Duration::from_secs(2)).expect("a good URL");
        Self { server, node }
    }
}

impl World for RealWorld {
    type Node = RedisNode;

    fn node(&self) -> &RedisNode {
        &self.node
    }

    fn get(&self, key: &str) -> Option<String> {
        self.server.get(key)
    }

    fn pttl(&self, key: &str) -> i64 {
        self.server.pttl(key)
    }

    fn set(&self, key: &str, value: &str, ttl: Option<Duration>) {
        self.server.set_raw(key, value, ttl);
    }

    fn set_list(&self, key: &str) {
        self.server.command(&["RPUSH", key, "a"]).into_int();
    }

    fn delete(&self, key: &str) {
        self.server.del(key);
    }

    fn flush_scripts(&self) {
        self.server.command(&["SCRIPT", "FLUSH"]).into_text();
    }

    fn clients(&self) -> Vec<i64> {
        let list = self.server.command(&["CLIENT", "LIST"]).into_text().expect("a list");
        // The connection that asks for the list is in it, too.
        let clients = list.lines().filter(|client| !client.contains("cmd=client|list"));
        clients.map(client_id).collect()
    }

    fn kill_client(&self, client_id: i64) {
        let killed = self.server.command(&["CLIENT", "KILL", "ID", &client_id.to_string()]);
        assert_eq!(killed.into_int(), 1, "there was such a client");
    }

    fn freeze(&self) {
        self.server.freeze();
    }

    fn thaw(&self) {
        self.server.thaw();
    }

    fn crash(&self) {
        self.server.kill();
    }
}

/// The number in "id=3 addr=127.0.0.1:1234 ...".
fn client_id(client: &str) -> i64 {
    let id = client.split(' ').find_map(|field| field.strip_prefix("id="));
    id.and_then(|id| id.parse().ok()).expect("every client has an id")
}

conformance_tests!(tokio::test, RealWorld::start());
