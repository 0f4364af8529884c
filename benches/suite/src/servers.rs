//! The servers of all kinds of locks. Those that are not idle when nobody uses them stand still then.

#[cfg(feature = "etcd")]
use crate::{etcd::Cluster, plan::runtime};
use crate::{
    locker::Kind,
    support::{Fleet, Server},
};

pub struct Servers {
    fleet: Fleet,
    pids: Vec<u32>,
    #[cfg(feature = "etcd")]
    cluster: Cluster,
}

impl Servers {
    /// So many of each kind.
    pub fn start(count: usize) -> Self {
        let fleet = Fleet::start(count);
        let pids = fleet.iter().map(Server::pid).collect();
        #[cfg(feature = "etcd")]
        let cluster = {
            let cluster = runtime().block_on(Cluster::start(count)).expect("etcd");
            cluster.freeze();
            cluster
        };
        Self {
            fleet,
            pids,
            #[cfg(feature = "etcd")]
            cluster,
        }
    }

    /// Those that speak Redis' protocol.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Uses those of this kind, by their addresses and processes.
    ///
    /// etcd talks to itself and to the disk also when nobody wants anything of it: it stands still while others
    /// are measured.
    pub fn of<T>(&self, kind: Kind, used: impl FnOnce(&[String], &[u32]) -> T) -> T {
        match kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd => {
                self.cluster.thaw();
                runtime().block_on(self.cluster.answers()).expect("etcd");
                let done = used(self.cluster.urls(), &self.cluster.pids());
                self.cluster.freeze();
                done
            }
            _ => used(&self.fleet.urls(), &self.pids),
        }
    }
}
