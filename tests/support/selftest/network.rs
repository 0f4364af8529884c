//! The proxy: what each switch lets through.

use std::{
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use super::{
    super::{Proxy, Reply, Server, eventually},
    SOON, assert_silent, connect, text,
};

#[test]
fn a_passing_proxy_passes_everything() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    // More than one read of the proxy, and more than the sockets buffer.
    let large = "x".repeat(5_000_000);
    assert_eq!(conn.command(&["SET", "a", &large]).unwrap(), text("OK"));
    assert_eq!(conn.command(&["GET", "a"]).unwrap(), Reply::Text(large));
    assert_eq!((proxy.connections(), proxy.open(), proxy.held_bytes()), (1, 1, 0));

    drop(conn);
    eventually("the client to be gone", SOON, || server.clients() == 0 && proxy.open() == 0);
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn dropped_replies_are_executed_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    assert_eq!(conn.command(&["PING"]).unwrap(), text("PONG"));

    proxy.drop_replies();
    conn.send(&["SET", "a", "1"]).unwrap();
    eventually("the reply to be lost", SOON, || proxy.swallowed_bytes() == "+OK\r\n".len());
    assert!(server.exists("a"));
    assert_silent(&proxy.addr());

    proxy.pass();
    assert_eq!(conn.command(&["GET", "a"]).unwrap(), text("1"));
}

#[test]
fn dropped_requests_are_not_executed() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());

    proxy.drop_requests();
    conn.send(&["SET", "a", "1"]).unwrap();
    assert_silent(&proxy.addr());
    eventually("the request to be dropped", SOON, || proxy.held_bytes() == 0);

    proxy.pass();
    assert_eq!(conn.command(&["EXISTS", "a"]).unwrap(), Reply::Int(0));
}

#[test]
fn a_cut_closes_both_sides_and_lasts() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    assert_eq!(conn.command(&["PING"]).unwrap(), text("PONG"));

    proxy.cut();
    assert_eq!(proxy.open(), 0);
    assert!(conn.command(&["PING"]).is_err());
    eventually("the server to lose its client", SOON, || server.clients() == 0);
    assert!(connect(&proxy.addr()).command(&["PING"]).is_err());
    assert_eq!(server.total_connections(), 1);

    proxy.pass();
    assert_eq!(connect(&proxy.addr()).command(&["PING"]).unwrap(), text("PONG"));
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn a_single_cut_spares_new_connections() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // Without a word, so that it may still wait to be accepted when the cut comes.
    let mut conn = connect(&proxy.addr());
    proxy.cut_once();
    assert!(conn.command(&["PING"]).is_err());
    assert_eq!(connect(&proxy.addr()).command(&["PING"]).unwrap(), text("PONG"));
}

#[test]
fn held_bytes_arrive_in_order_once_they_may_pass() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    proxy.hold();
    for value in ["1", "2", "3"] {
        conn.send(&["RPUSH", "list", value]).unwrap();
    }
    let bytes = 3 * "*3\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n$1\r\n1\r\n".len();
    eventually("the requests to be held", SOON, || proxy.held_bytes() == bytes);
    assert!(!server.exists("list"));

    proxy.pass();
    for length in 1..=3 {
        assert_eq!(conn.receive().unwrap(), Reply::Int(length));
    }
    let list = server.command(&["LRANGE", "list", "0", "-1"]).into_array();
    assert_eq!(list, ["1", "2", "3"].map(text));
}

#[test]
fn replies_pass_while_requests_are_held() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    // A reply that comes when we want it.
    conn.send(&["BLPOP", "list", "0"]).unwrap();
    let is_blocked = || server.info("clients").get("blocked_clients").is_some_and(|n| n == "1");
    eventually("the request to wait in the server", SOON, is_blocked);

    proxy.hold_requests();
    conn.send(&["SET", "a", "1"]).unwrap();
    server.command(&["RPUSH", "list", "1"]);
    assert_eq!(conn.receive().unwrap(), Reply::Array(vec![text("list"), text("1")]));
    eventually("the request to be held", SOON, || proxy.held_bytes() > 0);
    assert!(!server.exists("a"));

    proxy.pass();
    assert_eq!(conn.receive().unwrap(), text("OK"));
}

#[test]
fn a_delay_counts_in_each_direction() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    proxy.delay(Duration::from_millis(20));
    let started = Instant::now();
    assert_eq!(conn.command(&["PING"]).unwrap(), text("PONG"));
    assert!(started.elapsed() >= Duration::from_millis(40));

    proxy.delay(SOON * 100);
    conn.send(&["PING"]).unwrap();
    proxy.pass();
    assert_eq!(conn.receive().unwrap(), text("PONG"));
}

#[test]
fn orphaned_requests_reach_the_server_after_their_client_has_gone() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    assert_eq!(conn.command(&["PING"]).unwrap(), text("PONG"));
    proxy.hold_requests();
    conn.send(&["SET", "a", "1"]).unwrap();
    eventually("the request to be held", SOON, || proxy.held_bytes() > 0);

    proxy.orphan();
    assert!(conn.receive().is_err());
    drop(conn);
    assert_eq!((proxy.open(), proxy.orphans()), (0, 1));
    // The client comes back and neither that nor a cut disturbs the orphan.
    proxy.pass();
    assert_eq!(connect(&proxy.addr()).command(&["EXISTS", "a"]).unwrap(), Reply::Int(0));
    proxy.cut();
    eventually("the orphan to be alone", SOON, || server.clients() == 1);

    proxy.release_orphans();
    eventually("the late request", SOON, || server.exists("a"));
    eventually("the end of the orphan", SOON, || server.clients() == 0);
    eventually("its reply to be lost", SOON, || proxy.held_bytes() == 0);
    assert_eq!(proxy.orphans(), 0);
}

#[test]
fn a_request_held_for_a_client_that_left_by_itself_arrives_as_well() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.hold();
    let mut conn = connect(&proxy.addr());
    conn.send(&["SET", "a", "1"]).unwrap();
    conn.send(&["SET", "b", "1"]).unwrap();
    drop(conn);
    eventually("the client to be gone", SOON, || proxy.open() == 0 && proxy.held_bytes() > 0);
    proxy.pass();
    eventually("the late requests", SOON, || server.keys() == ["a", "b"]);
    eventually("the end of the connection", SOON, || server.clients() == 0);
}

#[test]
fn a_proxy_outlives_its_server() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut conn = connect(&proxy.addr());
    assert_eq!(conn.command(&["PING"]).unwrap(), text("PONG"));

    server.kill();
    assert!(conn.command(&["PING"]).is_err());
    assert!(connect(&proxy.addr()).command(&["PING"]).is_err());
    server.restart();
    assert_eq!(connect(&proxy.addr()).command(&["PING"]).unwrap(), text("PONG"));
}

#[test]
fn a_dropped_proxy_leaves_no_connection_in_any_mode() {
    let switches: [fn(&Proxy); 7] = [
        Proxy::pass,
        Proxy::hold,
        Proxy::hold_requests,
        Proxy::drop_requests,
        Proxy::drop_replies,
        Proxy::orphan,
        |proxy| proxy.delay(SOON * 100),
    ];
    let server = Server::start();
    for switch in switches {
        let proxy = Proxy::start(server.port());
        let mut conn = connect(&proxy.addr());
        assert_eq!(conn.command(&["PING"]).unwrap(), text("PONG"));
        switch(&proxy);
        conn.send(&["PING"]).ok();

        let (addr, dropped) = (proxy.addr(), Instant::now());
        drop(proxy);
        assert!(dropped.elapsed() < Duration::from_secs(4), "threads went on");
        assert!(TcpStream::connect(addr).is_err());
        eventually("the server to lose its client", SOON, || server.clients() == 0);
    }
}

#[test]
fn a_proxy_stuck_in_a_write_can_be_switched_and_dropped() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = connect(&proxy.addr());
    server.freeze();
    // More than all buffers on the way take, so that client and proxy both wait for the server.
    let sender = thread::spawn({
        let mut client = client;
        move || client.send(&["SET", "a", &"x".repeat(50_000_000)])
    });
    eventually("the proxy to be stuck", SOON, || proxy.held_bytes() > 10_000_000);

    let started = Instant::now();
    proxy.hold();
    drop(proxy);
    assert!(started.elapsed() < Duration::from_secs(4), "threads went on");
    sender.join().unwrap().ok();
}
