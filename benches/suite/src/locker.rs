//! The locks that are compared, behind one interface: take a lock, give it back.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use quorumlock::{FencedGuard, LockGuard, LockOptions, Redlock};
use rand::RngExt;
use rslock::LockManager;

use crate::floor::{Floor, Taken};

pub type Failure = Box<dyn Error + Send + Sync>;

/// The ttl of all locks, unless a scenario says otherwise.
pub const TTL: Duration = Duration::from_secs(10);
/// How long one waits at most between two tries with a peer that has no waiting of its own; the
/// default of `rslock`.
const RETRY: Duration = Duration::from_millis(200);

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// This library.
    Ours,
    /// This library, with fencing tokens.
    Fenced,
    /// The same commands without a lock around them.
    Floor,
    Rslock,
    Distributed,
    #[cfg(feature = "etcd")]
    Etcd,
}

impl Kind {
    pub const ALL: &[Self] = &[
        Self::Ours,
        Self::Fenced,
        Self::Floor,
        Self::Rslock,
        Self::Distributed,
        #[cfg(feature = "etcd")]
        Self::Etcd,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "quorumlock",
            Self::Fenced => "quorumlock, fenced",
            Self::Floor => "bare commands",
            Self::Rslock => "rslock",
            Self::Distributed => "distributed-lock-redis",
            #[cfg(feature = "etcd")]
            Self::Etcd => "etcd",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The commands that clients send, as Redis counts them: it counts those of scripts as well.
    pub fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Ours | Self::Fenced | Self::Floor => {
                &["eval", "evalsha", "subscribe", "unsubscribe", "ping"]
            }
            Self::Rslock => &["set", "eval", "evalsha"],
            Self::Distributed => &["set", "eval"],
            #[cfg(feature = "etcd")]
            Self::Etcd => &[],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One lock service as a process uses it. Cheap to clone.
#[derive(Clone)]
pub enum Locker {
    Ours(Redlock),
    Fenced(Redlock),
    Floor(Arc<Floor>),
    Rslock(LockManager),
    Distributed(Arc<RedisLockProvider>),
    #[cfg(feature = "etcd")]
    Etcd(Arc<crate::etcd::Session>),
}

/// A lock that is held.
pub enum Held {
    Ours(LockGuard),
    Fenced(FencedGuard),
    Floor(Taken),
    Rslock(rslock::Lock),
    Distributed(RedisLockHandle),
    #[cfg(feature = "etcd")]
    Etcd(Vec<u8>),
}

impl Locker {
    /// Connects to all of these servers; the address of one makes a single-node lock.
    pub async fn connect(kind: Kind, urls: &[String], ttl: Duration) -> Result<Self, Failure> {
        Ok(match kind {
            Kind::Ours => Self::Ours(redlock(urls, ttl).await?),
            Kind::Fenced => Self::Fenced(redlock(urls, ttl).await?),
            Kind::Floor => Self::Floor(Arc::new(Floor::connect(urls).await?)),
            Kind::Rslock => Self::Rslock(LockManager::new(urls.to_vec())),
            Kind::Distributed => {
                let builder = RedisLockProvider::builder().urls(urls).expiry(ttl);
                // The same shares of the ttl as its defaults have, which are for 30 s.
                let builder = builder.extension_cadence(ttl / 3).min_validity(ttl * 9 / 10);
                Self::Distributed(Arc::new(builder.build().await?))
            }
            #[cfg(feature = "etcd")]
            Kind::Etcd => Self::Etcd(Arc::new(crate::etcd::Session::connect(urls, ttl).await?)),
        })
    }

    /// The same service for another contender of this process.
    ///
    /// etcd's lock belongs to a lease, so that each contender needs one; the others tell attempts apart.
    #[cfg_attr(not(feature = "etcd"), expect(clippy::unused_async, reason = "etcd's awaits"))]
    pub async fn contender(&self) -> Result<Self, Failure> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(session) => Ok(Self::Etcd(Arc::new(session.another().await?))),
            _ => Ok(self.clone()),
        }
    }

    /// One attempt on a lock that should be free.
    pub async fn try_acquire(&self, resource: &str) -> Result<Held, Failure> {
        Ok(match self {
            Self::Ours(redlock) => Held::Ours(redlock.try_acquire(resource).await?),
            Self::Fenced(redlock) => Held::Fenced(redlock.try_acquire_fenced(resource).await?),
            Self::Floor(floor) => Held::Floor(floor.acquire(resource, TTL).await?),
            Self::Rslock(manager) => Held::Rslock(manager.lock(resource.as_bytes(), TTL).await?),
            Self::Distributed(provider) => {
                let lock = provider.create_lock(resource);
                Held::Distributed(lock.try_acquire().await?.ok_or("not acquired")?)
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(session) => Held::Etcd(session.lock(resource).await?),
        })
    }

    /// Waits until the lock is had, however long that takes.
    pub async fn acquire(&self, resource: &str) -> Result<Held, Failure> {
        let for_ever = LockOptions::new().wait_timeout(Duration::from_secs(3_600));
        match self {
            Self::Ours(redlock) => Ok(Held::Ours(redlock.acquire_with(resource, for_ever).await?)),
            Self::Fenced(redlock) => {
                Ok(Held::Fenced(redlock.acquire_fenced_with(resource, for_ever).await?))
            }
            Self::Rslock(manager) => {
                Ok(Held::Rslock(manager.acquire_no_guard(resource.as_bytes(), TTL).await?))
            }
            // Its `acquire` makes one attempt as well.
            Self::Distributed(_) => loop {
                if let Ok(held) = self.try_acquire(resource).await {
                    return Ok(held);
                }
                let delay = rand::rng().random_range(Duration::ZERO..RETRY);
                tokio::time::sleep(delay).await;
            },
            Self::Floor(_) => self.try_acquire(resource).await,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => self.try_acquire(resource).await,
        }
    }

    /// Ends what runs in the background.
    pub async fn shutdown(self) {
        match self {
            Self::Ours(redlock) | Self::Fenced(redlock) => {
                redlock.shutdown().await;
            }
            _ => {}
        }
    }

    /// Gives the lock back.
    pub async fn release(&self, held: Held) -> Result<(), Failure> {
        match (self, held) {
            (_, Held::Ours(guard)) => guard.release().await?,
            (_, Held::Fenced(guard)) => guard.release().await?,
            (Self::Floor(floor), Held::Floor(taken)) => floor.release(taken).await?,
            (_, Held::Rslock(lock)) => lock.release().await,
            (_, Held::Distributed(handle)) => handle.release().await?,
            #[cfg(feature = "etcd")]
            (Self::Etcd(session), Held::Etcd(key)) => session.unlock(key).await?,
            _ => return Err("a lock of another service".into()),
        }
        Ok(())
    }
}

impl Held {
    /// Whether it says of itself that it is lost; `rslock` cannot.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Ours(guard) => guard.is_lost(),
            Self::Fenced(guard) => guard.is_lost(),
            Self::Distributed(handle) => *handle.lost_token().borrow(),
            _ => false,
        }
    }
}

async fn redlock(urls: &[String], ttl: Duration) -> Result<Redlock, Failure> {
    let builder = Redlock::builder().ttl(ttl).new_fleet();
    let builder = match urls {
        [url] => builder.single_node(url),
        _ => builder.nodes(urls),
    };
    Ok(builder.connect().await?)
}
