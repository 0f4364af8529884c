//! Servers: life, death and what looks show.

use std::{
    env,
    io::{self, BufRead, BufReader},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::super::{
    Fleet, Reply, Server, eventually,
    process::{dies_with_us, process_state},
};
use super::{A_WHILE, SOON, assert_silent, connect, text};

#[test]
fn a_server_shows_what_was_written_to_it() {
    let server = Server::start();
    server.set_raw("b", "1", None);
    server.set_raw("a", "2", Some(Duration::from_secs(60)));

    assert_eq!(server.keys(), ["a", "b"]);
    assert_eq!(server.get("a").as_deref(), Some("2"));
    assert_eq!(server.get("c"), None);
    assert_eq!(server.pttl("b"), -1);
    assert_eq!(server.pttl("c"), -2);
    assert!((50_000..=60_000).contains(&server.pttl("a")));
    assert_eq!(server.calls("set"), 2);
    assert_eq!(server.calls("hset"), 0);

    server.del("a");
    assert!(!server.exists("a"));
    assert!(server.exists("b"));
    assert!(matches!(server.command(&["NONSENSE"]), Reply::Error(_)));
}

#[test]
fn looks_do_not_show_among_the_clients() {
    let server = Server::start();
    assert_eq!((server.clients(), server.total_connections()), (0, 0));

    let mut conn = connect(&server.addr());
    assert_eq!(conn.command(&["PING"]).unwrap(), text("PONG"));
    assert_eq!((server.clients(), server.total_connections()), (1, 1));

    conn.close();
    assert_eq!((server.clients(), server.total_connections()), (0, 1));
}

#[test]
fn a_server_with_a_password_lets_only_looks_in() {
    let server = Server::with_args(&["--requirepass", "open sesame"]);
    let stranger = connect(&server.addr()).command(&["GET", "a"]).unwrap();
    assert!(matches!(stranger, Reply::Error(error) if error.starts_with("NOAUTH")));
    assert_eq!(server.get("a"), None);
}

#[test]
fn a_frozen_server_does_not_answer_until_it_is_thawed() {
    let server = Server::start();
    server.freeze();
    assert!(server.is_running());
    assert_silent(&server.addr());

    server.thaw();
    assert_eq!(server.command(&["PING"]), text("PONG"));
}

#[test]
fn a_killed_server_refuses_connections() {
    let server = Server::start();
    server.kill();
    assert!(!server.is_running());
    let refused = TcpStream::connect(server.addr()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_restarted_server_keeps_its_port_and_has_another_run_id() {
    let server = Server::with_args(&["--maxmemory", "64mb"]);
    let (url, run_id) = (server.url(), server.run_id());
    let mut conn = connect(&server.addr());
    server.set_raw("a", "1", None);

    server.restart();
    assert_eq!(server.url(), url);
    assert_ne!(server.run_id(), run_id);
    assert_eq!(server.info("memory").get("maxmemory").map(String::as_str), Some("67108864"));
    assert!(!server.exists("a"));
    assert!(conn.command(&["PING"]).is_err());
    assert_eq!(server.total_connections(), 0);
}

#[test]
fn a_server_told_to_keep_its_data_has_them_after_a_restart() {
    let server = Server::with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.set_raw("a", "1", None);
    server.restart();
    assert_eq!(server.get("a").as_deref(), Some("1"));
}

#[test]
fn a_frozen_server_can_be_restarted() {
    let server = Server::start();
    server.freeze();
    server.restart();
    assert_eq!(server.command(&["PING"]), text("PONG"));
}

#[test]
fn a_restart_waits_for_a_port_that_is_taken() {
    let server = Server::start();
    server.kill();
    let taken = TcpListener::bind(server.addr()).unwrap();
    let release = thread::spawn(move || {
        thread::sleep(A_WHILE);
        drop(taken);
    });
    server.restart();
    release.join().unwrap();
    assert_eq!(server.command(&["PING"]), text("PONG"));
}

#[test]
fn a_dropped_server_is_gone() {
    for is_frozen in [false, true] {
        let server = Server::start();
        let (pid, addr) = (server.pid(), server.addr());
        if is_frozen {
            server.freeze();
        }
        drop(server);
        assert_eq!(process_state(pid), None);
        assert!(TcpStream::connect(addr).is_err());
    }
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = thread::spawn(Server::start).join().unwrap();
    thread::sleep(A_WHILE);
    assert_eq!(server.command(&["PING"]), text("PONG"));
}

#[test]
fn a_panicking_test_leaves_no_server_behind() {
    let (tell, told) = mpsc::channel();
    let test = thread::spawn(move || {
        let server = Server::start();
        tell.send(server.pid()).unwrap();
        assert_eq!(server.command(&["PING"]), text("on purpose"));
    });
    assert!(test.join().is_err());
    assert_eq!(process_state(told.recv().unwrap()), None);
}

/// Set for the process that [`a_server_dies_with_a_killed_test_process`] starts.
const VICTIM_VARIABLE: &str = "QUORUMLOCK_SELFTEST_VICTIM";

#[test]
fn a_victim_with_a_server_waits_to_be_killed() {
    // The second half of the test below; on its own there is nothing to do.
    if env::var_os(VICTIM_VARIABLE).is_some() {
        let server = Server::start();
        server.freeze();
        #[allow(clippy::print_stderr, reason = "how the process tells the one that started it")]
        let () = eprintln!("victim {}", server.pid());
        // Bounded, in case that whoever should kill us is killed.
        thread::sleep(SOON);
    }
}

#[test]
fn a_server_dies_with_a_killed_test_process() {
    // A promise made only where the kernel helps to keep it.
    if !dies_with_us() {
        return;
    }
    let (_, module) = module_path!().split_once("::").expect("a module of the test crate");
    let name = format!("{module}::a_victim_with_a_server_waits_to_be_killed");
    // What the victim cannot remove goes with this directory.
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(VICTIM_VARIABLE, "1")
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stderr.take().unwrap()).lines().map_while(Result::ok);
    let pid = lines.find_map(|line| line.strip_prefix("victim ")?.parse().ok());
    victim.kill().unwrap();
    victim.wait().unwrap();

    let pid = pid.expect("the victim tells the process of its server");
    // Nobody needs to reap it for it to be dead.
    eventually("the end of the server", SOON, || matches!(process_state(pid), None | Some('Z')));
}

#[test]
fn the_servers_of_a_fleet_are_several() {
    let fleet = Fleet::start(3);
    for (index, server) in fleet.iter().enumerate() {
        server.set_raw("index", &index.to_string(), None);
    }
    assert_eq!(fleet.len(), 3);
    assert_eq!(fleet[2].get("index").as_deref(), Some("2"));
    assert_eq!(fleet.urls(), [fleet[0].url(), fleet[1].url(), fleet[2].url()]);
}
