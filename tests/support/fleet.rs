//! Several servers at once, the nodes of one lock.

use std::{
    ops::{Index, IndexMut},
    panic, slice, thread,
};

use super::server::Server;

/// Several servers, the nodes of one lock.
#[derive(Debug)]
pub struct Fleet {
    servers: Vec<Server>,
}

impl Fleet {
    /// Starts `n` servers at the same time.
    #[track_caller]
    pub fn start(n: usize) -> Self {
        Self::with_args(n, &[])
    }

    /// Starts `n` servers at the same time, each with these arguments.
    #[track_caller]
    pub fn with_args(n: usize, args: &[&str]) -> Self {
        Self::of(n, || Server::with_args(args))
    }

    /// Starts `n` servers at the same time, of which the wall clocks can be set.
    #[track_caller]
    pub fn with_clocks(n: usize) -> Self {
        Self::of(n, Server::with_clock)
    }

    #[track_caller]
    fn of(n: usize, start: impl Fn() -> Server + Sync) -> Self {
        let servers = thread::scope(|scope| {
            let starts: Vec<_> = (0..n).map(|_| scope.spawn(&start)).collect();
            // All are joined before any panic goes on, so that the others are dropped, not leaked.
            let servers: Vec<_> = starts.into_iter().map(thread::ScopedJoinHandle::join).collect();
            servers
                .into_iter()
                .map(|server| server.unwrap_or_else(|panic| panic::resume_unwind(panic)))
                .collect()
        });
        Self { servers }
    }

    /// The address of each as a URL, in order.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Server::url).collect()
    }

    /// The servers, in order.
    pub fn iter(&self) -> slice::Iter<'_, Server> {
        self.servers.iter()
    }

    /// How many there are, whether they run or not.
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}

impl Index<usize> for Fleet {
    type Output = Server;

    #[track_caller]
    fn index(&self, index: usize) -> &Server {
        self.servers.get(index).expect("a server of the fleet")
    }
}

impl IndexMut<usize> for Fleet {
    #[track_caller]
    fn index_mut(&mut self, index: usize) -> &mut Server {
        self.servers.get_mut(index).expect("a server of the fleet")
    }
}

impl<'a> IntoIterator for &'a Fleet {
    type Item = &'a Server;
    type IntoIter = slice::Iter<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
