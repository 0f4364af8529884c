//! Which servers make a `Redlock`, which do not and why, and that nothing is left of a failure.

use std::{
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use quorumlock::{
    ConnectError, NodeOutcome, NodeReports, Redlock,
    fred::types::config::{Config, Server as FredServer, ServerConfig},
    node::{NodeFailure, redis::ConfigError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::support::{Fleet, Proxy, Server, eventually};

/// Bounds what is expected to happen.
const SOON: Duration = Duration::from_secs(5);
/// How long these tests connect to what does not answer.
const CONNECT: Duration = Duration::from_millis(500);
/// What that may come to on a busy machine.
const ABOUT_CONNECT: Duration = Duration::from_secs(2);

/// The URL of a server with credentials in it.
fn url_with(credentials: &str, server: &Server) -> String {
    format!("redis://{credentials}@{}", server.addr())
}

#[track_caller]
fn assert_no_clients<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    let servers: Vec<&Server> = servers.into_iter().collect();
    eventually("the last client", SOON, || servers.iter().all(|server| server.clients() == 0));
}

#[track_caller]
fn assert_unfit(error: &ConnectError, addr: &str, reason: &str) {
    let ConnectError::Unfit { node, reason: given } = error else { panic!("{error:?}") };
    assert_eq!(node.as_str(), addr);
    assert!(given.contains(reason), "{given:?} should say {reason:?}");
}

/// The nodes that could not be reached, and that each says why.
#[track_caller]
fn assert_unreachable(nodes: &NodeReports, addrs: &[String]) {
    let names: Vec<&str> = nodes.iter().map(|report| report.node.as_str()).collect();
    assert_eq!(names, addrs);
    for report in nodes {
        let NodeOutcome::Failed(NodeFailure::Unreachable { cause }) = &report.outcome else {
            panic!("{report:?}");
        };
        assert!(cause.len() > 5, "{report}");
    }
}

/// Locks and unlocks once.
async fn assert_works(redlock: &Redlock) {
    redlock.acquire("a").await.unwrap().release().await.unwrap();
}

// Members.

#[tokio::test]
async fn no_nodes_are_refused() {
    let error = Redlock::connect([""; 0]).await.unwrap_err();
    assert_eq!(error, ConnectError::NoNodes);
    let error = Redlock::builder().new_fleet().connect().await.unwrap_err();
    assert_eq!(error, ConnectError::NoNodes);
}

#[tokio::test]
async fn one_node_is_refused_with_a_pointer_to_single_node() {
    let server = Server::start();
    let error = Redlock::connect([server.url()]).await.unwrap_err();
    assert_eq!(error, ConnectError::OneNode);
    assert!(error.to_string().contains("single_node"), "{error}");
    assert_eq!(server.total_connections(), 0);
    assert_works(
        &Redlock::builder().single_node(server.url()).new_fleet().connect().await.unwrap(),
    )
    .await;
}

#[tokio::test]
async fn a_server_listed_twice_is_refused() {
    let fleet = Fleet::start(2);
    let (a, b, port) = (fleet[0].url(), fleet[1].url(), fleet[0].port());
    let lower = format!("redis://localhost:{port}");
    for urls in [
        [a.clone(), b.clone(), a.clone()],
        [a.clone(), b.clone(), format!("{a}/3")],
        [a.clone(), b.clone(), url_with("alice:pw", &fleet[0])],
        [lower.clone(), b.clone(), format!("redis://LocalHost:{port}")],
        [lower, b, format!("valkey://localhost:{port}/0")],
    ] {
        let error = Redlock::connect(&urls).await.unwrap_err();
        let ConnectError::Duplicate { node } = &error else { panic!("{urls:?}: {error:?}") };
        assert!(node.as_str().ends_with(&port.to_string()), "{error}");
    }
    assert!(fleet.iter().all(|server| server.total_connections() == 0), "nothing is sent");
}

#[tokio::test]
async fn a_missing_port_is_the_usual_one() {
    let urls = ["redis://localhost", "redis://localhost:6379"];
    let error = Redlock::connect(urls).await.unwrap_err();
    let ConnectError::Duplicate { node } = error else { panic!("{error:?}") };
    assert_eq!(node.as_str(), "localhost:6379");
}

#[tokio::test]
async fn malformed_urls_are_refused_and_named() {
    let fleet = Fleet::start(2);
    for (url, shown) in [
        ("127.0.0.1:6379", "127.0.0.1:6379"),
        ("redis://", "redis://"),
        // It could be a password whose host was forgotten.
        ("redis://h:port", "redis://h"),
        ("redis://h/db", "redis://h/db"),
        ("http://h", "http://h"),
        ("h", "h"),
    ] {
        let error = Redlock::connect([&fleet[0].url(), url, &fleet[1].url()]).await.unwrap_err();
        let ConnectError::Config(ConfigError::Url { url: named, .. }) = &error else {
            panic!("{url}: {error:?}");
        };
        assert_eq!(named, shown);
        assert!(error.to_string().contains(shown), "{error}");
    }
    assert!(fleet.iter().all(|server| server.total_connections() == 0), "nothing is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_work_and_tolerate_no_failure() {
    let fleet = Fleet::start(2);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    assert_works(&redlock).await;
    fleet[1].kill();
    let error = redlock.try_acquire("a").await.unwrap_err();
    assert!(error.is_no_quorum(), "{error}");
    assert_eq!(error.attempt().unwrap().quorum, 2);
}

// Credentials.

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_names_the_node_and_leaves_nothing_behind() {
    let (open, locked) = (Fleet::start(2), Server::with_args(&["--requirepass", "right"]));
    let urls = [open[0].url(), url_with(":wrong", &locked), open[1].url()];
    let error = Redlock::connect(urls).await.unwrap_err();
    assert_unfit(&error, &locked.addr(), "WRONGPASS");
    assert_no_clients(open.iter().chain([&locked]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_password_names_the_node_and_leaves_nothing_behind() {
    let (open, locked) = (Fleet::start(2), Server::with_args(&["--requirepass", "right"]));
    let urls = [open[0].url(), locked.url(), open[1].url()];
    let error = Redlock::connect(urls).await.unwrap_err();
    assert_unfit(&error, &locked.addr(), "NOAUTH");
    assert_no_clients(open.iter().chain([&locked]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_password_works() {
    let server = Server::with_args(&["--requirepass", "right"]);
    let url = url_with(":right", &server);
    assert_works(&Redlock::builder().single_node(url).new_fleet().connect().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_the_access_list_works_and_a_wrong_one_is_named() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "alice", "on", ">s3cr@t", "~*", "+@all"]).into_text();
    let url = url_with("alice:s3cr%40t", &server);
    assert_works(&Redlock::builder().single_node(url).new_fleet().connect().await.unwrap()).await;
    let error = Redlock::single_node(url_with("bob:s3cr%40t", &server)).await.unwrap_err();
    assert_unfit(&error, &server.addr(), "WRONGPASS");
}

/// What the library sends, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_only_lock_works() {
    let server = Server::start();
    let commands = "+evalsha +eval +script|load +info +ping +exists +get +set +del +pttl +pexpire \
         +incr +client|id +client|kill +client|setname +select +hello +auth";
    let user = ["ACL", "SETUSER", "alice", "on", ">pw", "~quorumlock:*"];
    let rules: Vec<&str> = user.into_iter().chain(commands.split_whitespace()).collect();
    assert_eq!(server.command(&rules).into_text().as_deref(), Some("OK"));
    let url = url_with("alice:pw", &server);
    assert_works(&Redlock::builder().single_node(url).new_fleet().connect().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_run_scripts_is_refused() {
    let server = Server::start();
    let rules =
        ["ACL", "SETUSER", "alice", "on", ">pw", "~*", "+@all", "-script", "-eval", "-evalsha"];
    assert_eq!(server.command(&rules).into_text().as_deref(), Some("OK"));
    let error = Redlock::single_node(url_with("alice:pw", &server)).await.unwrap_err();
    assert_unfit(&error, &server.addr(), "NOPERM");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_the_server_does_not_have_names_the_node() {
    let server = Server::start();
    let error = Redlock::single_node(format!("{}/99", server.url())).await.unwrap_err();
    assert_unfit(&error, &server.addr(), "DB index");
    assert_no_clients([&server]);
}

// Servers that are none.

/// What something that listens and is no Redis does with a connection.
#[derive(Clone, Copy)]
enum Manner {
    SpeaksHttp,
    NeverAnswers,
    ClosesAtOnce,
}

/// Something that listens and is no Redis. Ends when it is dropped.
struct Impostor {
    addr: String,
    _tasks: JoinSet<()>,
}

impl Impostor {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(async move { manner.serve(stream).await.ok() });
            }
        });
        Self { addr, _tasks: tasks }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

impl Manner {
    async fn serve(self, mut stream: TcpStream) -> io::Result<()> {
        let mut buffer = [0; 1024];
        match self {
            Self::ClosesAtOnce => {}
            Self::NeverAnswers => while stream.read(&mut buffer).await? > 0 {},
            Self::SpeaksHttp => {
                let _request = stream.read(&mut buffer).await?;
                let refusal = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
                stream.write_all(refusal).await?;
            }
        }
        Ok(())
    }
}

/// What connecting to two good servers and an impostor, and to the impostor alone, comes to.
async fn connect_to_impostor(manner: Manner) -> (Result<Redlock, ConnectError>, ConnectError) {
    let (fleet, impostor) = (Fleet::start(2), Impostor::start(manner).await);
    let urls = [fleet[0].url(), impostor.url(), fleet[1].url()];
    let called = Instant::now();
    let among = Redlock::builder().new_fleet().nodes(urls).connect_timeout(CONNECT).connect().await;
    let alone = Redlock::builder().new_fleet().single_node(impostor.url()).connect_timeout(CONNECT);
    let alone = alone.connect().await.unwrap_err();
    assert!(called.elapsed() < SOON, "{:?}", called.elapsed());
    match &among {
        // It works without it.
        Ok(redlock) => assert_works(redlock).await,
        Err(_) => assert_no_clients(&fleet),
    }
    if let ConnectError::NoQuorum { nodes, .. } = &alone {
        assert_unreachable(nodes, &[impostor.addr]);
    } else {
        assert_unfit(&alone, &impostor.addr, "not a Redis or Valkey server");
    }
    (among, alone)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_is_refused_as_no_redis() {
    let (among, alone) = connect_to_impostor(Manner::SpeaksHttp).await;
    assert!(matches!(among, Err(ConnectError::Unfit { .. })), "{among:?}");
    assert!(matches!(alone, ConnectError::Unfit { .. }), "{alone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_is_a_node_that_is_down() {
    let (among, alone) = connect_to_impostor(Manner::NeverAnswers).await;
    assert!(among.is_ok(), "{among:?}");
    assert!(matches!(alone, ConnectError::NoQuorum { .. }), "{alone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_at_once_is_a_node_that_is_down() {
    let (among, alone) = connect_to_impostor(Manner::ClosesAtOnce).await;
    assert!(among.is_ok(), "{among:?}");
    assert!(matches!(alone, ConnectError::NoQuorum { .. }), "{alone:?}");
}

// Nodes that are down.

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_that_is_down_does_not_hold_up_the_others() {
    let fleet = Fleet::start(3);
    fleet[1].kill();
    let called = Instant::now();
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    assert!(called.elapsed() < Duration::from_secs(2), "{:?}", called.elapsed());
    assert_works(&redlock).await;
}

/// What connecting comes to when the last two of three nodes are like this.
async fn connect_without_majority(fail: impl Fn(&Server)) -> (Fleet, ConnectError) {
    let fleet = Fleet::start(3);
    fleet.iter().skip(1).for_each(fail);
    let called = Instant::now();
    let builder = Redlock::builder().new_fleet().nodes(fleet.urls()).connect_timeout(CONNECT);
    let error = builder.connect().await.unwrap_err();
    let took = called.elapsed();
    assert!(took >= CONNECT && took < ABOUT_CONNECT, "{took:?}");
    assert_no_clients([&fleet[0]]);
    (fleet, error)
}

#[track_caller]
fn assert_no_quorum(error: &ConnectError, fleet: &Fleet) {
    let ConnectError::NoQuorum { connected, quorum, waited, nodes } = error else {
        panic!("{error:?}");
    };
    assert_eq!((*connected, *quorum, *waited), (1, 2, CONNECT));
    let down: Vec<String> = fleet.iter().skip(1).map(Server::addr).collect();
    assert_unreachable(nodes, &down);
    let text = error.to_string();
    assert!(down.iter().all(|addr| text.contains(addr)), "{text}");
}

// Field cases 1 and 64: nodes that are down were one opaque error, or waited for for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_is_down_fails_by_the_deadline_and_is_named() {
    let (fleet, error) = connect_without_majority(Server::kill).await;
    assert_no_quorum(&error, &fleet);
    assert!(error.to_string().to_lowercase().contains("refused"), "{error}");
}

// Field cases 1 and 64.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_is_frozen_fails_by_the_deadline_and_is_named() {
    let (fleet, error) = connect_without_majority(Server::freeze).await;
    assert_no_quorum(&error, &fleet);
    assert!(error.to_string().contains("no answer"), "{error}");
    fleet.iter().for_each(Server::thaw);
    assert_no_clients(&fleet);
}

// Field case 64: every failed connect was followed by the next at once.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_to_connect_have_pauses_between_them() {
    let fleet = Fleet::start(2);
    fleet[1].kill();
    // Which counts the attempts that the dead server cannot.
    let proxy = Proxy::start(fleet[1].port());
    let urls = [fleet[0].url(), proxy.url()];
    let builder = Redlock::builder().new_fleet().nodes(urls).connect_timeout(CONNECT);
    builder.connect().await.unwrap_err();
    let attempts = proxy.connections();
    assert!(attempts > 1 && attempts < 30, "{attempts} attempts within {CONNECT:?}");
}

// Where and how.

#[test]
fn outside_a_runtime_there_is_an_error_and_no_panic() {
    let connect = pin!(Redlock::connect(["redis://127.0.0.1:1", "redis://127.0.0.1:2"]));
    let polled = connect.poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert_eq!(error, ConnectError::NoRuntime);
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fred_configurations_work_like_urls() {
    let (open, locked) = (Fleet::start(2), Server::with_args(&["--requirepass", "right"]));
    let config = |server: &Server, password: Option<&str>| Config {
        server: ServerConfig::new_centralized("127.0.0.1", server.port()),
        password: password.map(str::to_owned),
        ..Config::default()
    };
    let configs = [config(&open[0], None), config(&open[1], None), config(&locked, Some("right"))];
    let redlock = Redlock::builder().new_fleet().fred_configs(configs).connect().await.unwrap();
    assert_works(&redlock).await;
    let names: Vec<String> = redlock.nodes().iter().map(|node| node.node.to_string()).collect();
    assert_eq!(names, [open[0].addr(), open[1].addr(), locked.addr()]);
}

// Field case 62: a cluster passed as nodes.
#[tokio::test]
async fn configurations_of_clusters_and_sentinels_are_refused() {
    let hosts = || vec![FredServer::new("127.0.0.1", 1)];
    let servers = [
        ServerConfig::new_clustered(vec![("127.0.0.1", 1)]),
        ServerConfig::Sentinel { hosts: hosts(), service_name: "a".to_owned() },
    ];
    for server in servers {
        let config = Config { server, ..Config::default() };
        let configs = [config.clone(), config];
        let error =
            Redlock::builder().new_fleet().fred_configs(configs).connect().await.unwrap_err();
        let is_standalone_error =
            matches!(error, ConnectError::Config(ConfigError::NotStandalone { .. }));
        assert!(is_standalone_error, "{error:?}");
        assert!(error.to_string().contains("stands alone"), "{error}");
    }
}

// Field case 15: what was cancelled stayed behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_connect_that_is_dropped_leaves_no_client() {
    let fleet = Fleet::start(3);
    fleet[1].freeze();
    fleet[2].freeze();
    {
        let mut connect = pin!(Redlock::connect(fleet.urls()));
        let is_half_done = async {
            while fleet[0].clients() == 0 {
                assert!(timeout(Duration::from_millis(10), connect.as_mut()).await.is_err());
            }
        };
        timeout(SOON, is_half_done).await.expect("a first connection");
    }
    fleet[1].thaw();
    fleet[2].thaw();
    assert_no_clients(&fleet);
    let accepted: Vec<u64> = fleet.iter().map(Server::total_connections).collect();
    assert_eq!(accepted, [1, 1, 1], "nobody goes on connecting");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shut_down_redlock_leaves_no_client() {
    let fleet = Fleet::start(3);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    assert_works(&redlock).await;
    let drained = redlock.shutdown().await;
    assert!(drained.unanswered.is_empty(), "{drained:?}");
    assert_no_clients(&fleet);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_redlock_leaves_no_client() {
    let fleet = Fleet::start(3);
    let redlock = Redlock::builder().nodes(fleet.urls()).new_fleet().connect().await.unwrap();
    let clone = redlock.clone();
    drop(redlock);
    assert_works(&clone).await;
    drop(clone);
    assert_no_clients(&fleet);
}
