//! Nodes that are reached by TLS.

use std::{fs, sync::Arc, time::Duration};

use quorumlock::{
    ConnectError, Redlock,
    fred::{
        rustls::{ClientConfig, RootCertStore},
        types::config::{Config, ServerConfig, TlsConnector},
    },
};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::{Reply, Server};

const CONNECT: Duration = Duration::from_millis(500);
/// What that may come to on a busy machine.
const ABOUT_CONNECT: Duration = Duration::from_secs(2);
const TTL_MS: i64 = 10_000;

/// A server that takes plain connections for the looks of the tests, and TLS on another port.
struct TlsServer {
    server: Server,
    port: u16,
    _files: TempDir,
}

impl TlsServer {
    fn start(certified: &CertifiedKey<KeyPair>) -> Self {
        let files = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = files.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().expect("a path that is text").to_owned()
        };
        let certificate = write("certificate.pem", certified.cert.pem());
        let key = write("key.pem", certified.signing_key.serialize_pem());
        let server = Server::with_args(&[
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &certificate,
            "--tls-auth-clients",
            "no",
        ]);
        let port = open_tls_port(&server);
        Self { server, port, _files: files }
    }

    fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }

    fn config(&self, connector: TlsConnector) -> Config {
        Config {
            server: ServerConfig::new_centralized("127.0.0.1", self.port),
            tls: Some(connector.into()),
            ..Config::default()
        }
    }
}

/// Has the server listen for TLS on the first port that it can have.
fn open_tls_port(server: &Server) -> u16 {
    let from = server.port();
    let is_open = |port: &u16| {
        let set = server.command(&["CONFIG", "SET", "tls-port", &port.to_string()]);
        set == Reply::Text("OK".to_owned())
    };
    (from.saturating_add(1)..)
        .take(50)
        .find(is_open)
        .expect("a port for TLS, and a server with TLS")
}

fn certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap()
}

/// Trusts this certificate alone.
fn connector(certified: &CertifiedKey<KeyPair>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    TlsConnector::Rustls(Arc::new(config).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_work_by_tls_with_a_certificate_that_is_trusted() {
    let certified = certificate();
    let servers = [(); 3].map(|()| TlsServer::start(&certified));
    let configs = servers.each_ref().map(|server| server.config(connector(&certified)));
    let redlock = Redlock::builder().new_fleet().fred_configs(configs).connect().await.unwrap();
    let guard = redlock.acquire("a").await.unwrap();
    let keys =
        servers.iter().filter(|s| (1..=TTL_MS).contains(&s.server.pttl("quorumlock:lock:a")));
    assert!(keys.count() >= 2);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_trusted_is_an_error_that_says_so() {
    let server = TlsServer::start(&certificate());
    let called = Instant::now();
    let by_url = Redlock::builder().new_fleet().single_node(server.url()).connect_timeout(CONNECT);
    let error = by_url.connect().await.unwrap_err();
    assert!(called.elapsed() < ABOUT_CONNECT, "{:?}", called.elapsed());
    let is_of_node = matches!(error, ConnectError::Unfit { .. } | ConnectError::NoQuorum { .. });
    assert!(is_of_node, "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{}", server.port)), "{text}");
    assert!(text.to_lowercase().contains("certificate"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_an_error_and_no_hang() {
    let server = Server::start();
    let url = format!("rediss://{}", server.addr());
    let called = Instant::now();
    let builder = Redlock::builder().new_fleet().single_node(url).connect_timeout(CONNECT);
    let error = builder.connect().await.unwrap_err();
    assert!(called.elapsed() < ABOUT_CONNECT, "{:?}", called.elapsed());
    assert!(error.to_string().contains(&server.addr()), "{error}");
}
