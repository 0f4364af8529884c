//! Whether the servers and the network of these tests do what the tests take for granted.

mod servers;
mod network;

use std::{io, time::Duration};

use super::{Conn, Reply};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(10);
/// Bounds the wait for what is expected not to happen.
const A_WHILE: Duration = Duration::from_millis(60);

fn text(text: &str) -> Reply {
    Reply::Text(text.to_owned())
}

fn connect(addr: &str) -> Conn {
    Conn::open(addr, SOON).expect("a connection")
}

#[track_caller]
fn assert_silent(addr: &str) {
    let mut conn = Conn::open(addr, A_WHILE).expect("a connection");
    let error = conn.command(&["PING"]).expect_err("silence");
    let is_timeout = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    assert!(is_timeout, "the connection should stay open: {error}");
}
