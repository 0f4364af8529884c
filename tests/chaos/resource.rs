//! What the locks are there for: a resource that believes every writer, and one that asks for tokens.
//!
//! A line of a client is a command, and a line answers it:
//! `read R` the version of resource R; `write R VERSION TOKEN` the next one, for who has read VERSION.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

#[derive(Debug, Default, Clone, Copy)]
struct State {
    version: u64,
    largest_token: u64,
}

/// Serves the resources for as long as the program runs. Returns where.
pub(crate) fn serve() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let addr = listener.local_addr().expect("an address");
    let states: Arc<Mutex<BTreeMap<usize, State>>> = Arc::default();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let states = Arc::clone(&states);
            thread::spawn(move || serve_one(&stream, &states));
        }
    });
    addr
}

fn serve_one(stream: &TcpStream, states: &Mutex<BTreeMap<usize, State>>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    for line in BufReader::new(stream).lines() {
        let line = line.ok()?;
        let words: Vec<&str> = line.split(' ').collect();
        let (command, resource) = (words.first()?, words.get(1)?.parse().ok()?);
        let answer = {
            let mut states = states.lock().unwrap();
            let state = states.entry(resource).or_default();
            if *command == "read" {
                state.version.to_string()
            } else {
                write(state, words.get(2)?.parse().ok()?, words.get(3)?.parse().ok())
            }
        };
        let mut to = stream;
        to.write_all(format!("{answer}\n").as_bytes()).ok()?;
    }
    Some(())
}

/// What both resources make of a write: whether it undid one that it had not read, and whether it was
/// refused for its token.
fn write(state: &mut State, read: u64, token: Option<u64>) -> String {
    let harmed = state.version != read;
    state.version = read + 1;
    let fenced = token.is_some_and(|token| token < state.largest_token);
    state.largest_token = state.largest_token.max(token.unwrap_or(0));
    format!("{harmed} {fenced}")
}
