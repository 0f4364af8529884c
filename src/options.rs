//! What a caller may choose, and the check of it before anything is sent.

use std::time::Duration;

use crate::validity::{ClockDrift, validity};

/// Options of one acquisition. What is not set comes from the [`Redlock`](crate::Redlock).
///
/// | option | default |
/// |---|---|
/// | `ttl` | the builder's: 10 s |
/// | `wait_timeout` | the builder's: 30 s |
/// | `renew_every` | the builder's: a third of the ttl |
/// | `max_hold` | the builder's: no limit |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockOptions {
    ttl: Option<Duration>,
    wait_timeout: Option<Duration>,
    renewal: Option<Renewal>,
    max_hold: Option<Duration>,
}

/// Whether and when a held lock is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// A third of the ttl after it was last counted from.
    Third,
    /// So long after it was last counted from.
    Every(Duration),
    /// Not at all: it ends with its ttl.
    Never,
}

impl LockOptions {
    /// Options in which nothing is set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ttl: None, wait_timeout: None, renewal: None, max_hold: None }
    }

    /// How long the lock's keys live on the nodes, measured by each node from the moment at which it
    /// granted. Cut down to whole milliseconds. Defaults to the builder's ttl, 10 s.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to go on trying, measured from the call to the start of the last attempt. The last
    /// attempt itself takes at most a node timeout more. Zero means exactly one attempt. Defaults to
    /// the builder's wait, 30 s.
    #[must_use]
    pub const fn wait_timeout(mut self, wait_timeout: Duration) -> Self {
        self.wait_timeout = Some(wait_timeout);
        self
    }
}

impl LockOptions {
    /// The lock is renewed so long after its validity was last counted from. Has to leave some of the
    /// validity. Defaults to a third of the ttl.
    #[must_use]
    pub const fn renew_every(mut self, renew_every: Duration) -> Self {
        self.renewal = Some(Renewal::Every(renew_every));
        self
    }

    /// The lock is not renewed: it is lost at the end of its validity, unless
    /// [`extend`](crate::LockGuard::extend) is called. By default it is renewed until it is released.
    #[must_use]
    pub const fn without_renewal(mut self) -> Self {
        self.renewal = Some(Renewal::Never);
        self
    }

    /// The longest time for which renewals keep the lock, measured from the start of the attempt that
    /// acquired it: a holder that hangs does not hold for ever. Defaults to no limit.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }
}

/// An option that cannot work. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The resource's name is empty.
    #[error("the resource name is empty")]
    ResourceEmpty,
    /// The resource's name is too long.
    #[error("the resource name has {len} bytes, at most {max} are allowed")]
    ResourceTooLong {
        /// Its length in bytes.
        len: usize,
        /// The largest length allowed.
        max: usize,
    },
    /// Nothing of the ttl would be left after the drift, even if the nodes answered at once.
    #[error("ttl {ttl:?} is too short: clock drift alone takes {drift:?} of it")]
    TtlTooShort {
        /// The ttl asked for, cut down to whole milliseconds.
        ttl: Duration,
        /// What is allowed for clock drift.
        drift: Duration,
    },
    /// The ttl is above the largest of this fleet.
    #[error("ttl {ttl:?} is above max_ttl {max_ttl:?}")]
    TtlTooLong {
        /// The ttl asked for.
        ttl: Duration,
        /// The largest ttl allowed.
        max_ttl: Duration,
    },
    /// Waiting for one silent node could use up the whole validity.
    #[error("node timeout {node_timeout:?} leaves nothing of ttl {ttl:?}")]
    NodeTimeoutTooLong {
        /// The time allowed for one node's answer.
        node_timeout: Duration,
        /// The ttl asked for.
        ttl: Duration,
    },
    /// A renewal would come when the validity has ended.
    #[error("renewal after {renew_every:?} is too late for ttl {ttl:?}")]
    RenewalTooLate {
        /// When the lock would be renewed.
        renew_every: Duration,
        /// The ttl asked for.
        ttl: Duration,
    },
    /// A duration or a bound that has to be positive is zero.
    #[error("{name} must not be zero")]
    Zero {
        /// Which one.
        name: &'static str,
    },
}

/// The choices of a `Redlock` that apply to each of its locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) ttl: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) drift: ClockDrift,
    pub(crate) renewal: Renewal,
    pub(crate) max_hold: Option<Duration>,
    /// How long a counter of fencing tokens stays, from the beginning of a step on.
    pub(crate) fence_idle_ttl: Duration,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            max_ttl: Duration::from_secs(60),
            wait: Duration::from_secs(30),
            node_timeout: None,
            drift: ClockDrift::default(),
            renewal: Renewal::Third,
            max_hold: None,
            fence_idle_ttl: Duration::from_secs(24 * 3600),
        }
    }
}

/// The checked terms of one acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) drift: ClockDrift,
    /// `None`: not renewed.
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

impl Defaults {
    /// Checks `options` against these defaults.
    pub(crate) fn terms(&self, options: LockOptions) -> Result<Terms, OptionsError> {
        // The wire carries milliseconds. Cutting down is safe: it shortens what we believe, too.
        let ttl = whole_millis(options.ttl.unwrap_or(self.ttl));
        let drift = self.drift;
        if ttl > self.max_ttl {
            return Err(OptionsError::TtlTooLong { ttl, max_ttl: self.max_ttl });
        }
        if validity(ttl, Duration::ZERO, drift).is_none() {
            return Err(OptionsError::TtlTooShort { ttl, drift: drift.over(ttl) });
        }
        let node_timeout = self.node_timeout.unwrap_or_else(|| default_node_timeout(ttl));
        if node_timeout.is_zero() {
            return Err(OptionsError::Zero { name: "node_timeout" });
        }
        if validity(ttl, node_timeout, drift).is_none() {
            return Err(OptionsError::NodeTimeoutTooLong { node_timeout, ttl });
        }
        let wait = options.wait_timeout.unwrap_or(self.wait);
        let renew_every = match options.renewal.unwrap_or(self.renewal) {
            Renewal::Never => None,
            Renewal::Third => ttl.checked_div(3),
            Renewal::Every(renew_every) => Some(renew_every),
        };
        if renew_every.is_some_and(|span| span.is_zero()) {
            return Err(OptionsError::Zero { name: "renew_every" });
        }
        if let Some(renew_every) = renew_every.filter(|s| validity(ttl, *s, drift).is_none()) {
            return Err(OptionsError::RenewalTooLate { renew_every, ttl });
        }
        let max_hold = options.max_hold.or(self.max_hold);
        if max_hold.is_some_and(|span| span.is_zero()) {
            return Err(OptionsError::Zero { name: "max_hold" });
        }
        if millis(self.fence_idle_ttl) == 0 {
            return Err(OptionsError::Zero { name: "fence_idle_ttl" });
        }
        Ok(Terms { ttl, wait, node_timeout, drift, renew_every, max_hold })
    }
}

/// A tenth of the ttl, at least 1 ms and at most 200 ms: long for a healthy node in the same region,
/// short beside the validity that waiting for a silent one uses up.
fn default_node_timeout(ttl: Duration) -> Duration {
    ttl.checked_div(10)
        .unwrap_or_default()
        .clamp(Duration::from_millis(1), Duration::from_millis(200))
}

fn whole_millis(span: Duration) -> Duration {
    Duration::from_millis(millis(span))
}

/// A duration as the wire carries it.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn terms(options: LockOptions) -> Result<Terms, OptionsError> {
        Defaults::default().terms(options)
    }

    // Field case 33: a ttl of 0 or a fraction never locked or never expired.
    #[test]
    fn a_ttl_that_cannot_work_is_refused() {
        for ttl in [Duration::ZERO, Duration::from_micros(400), MS(1), MS(2)] {
            assert!(matches!(
                terms(LockOptions::new().ttl(ttl)),
                Err(OptionsError::TtlTooShort { .. })
            ));
        }
        assert!(matches!(
            terms(LockOptions::new().ttl(MS(60_001))),
            Err(OptionsError::TtlTooLong { .. })
        ));
        assert!(matches!(
            terms(LockOptions::new().ttl(Duration::MAX)),
            Err(OptionsError::TtlTooLong { .. })
        ));
        assert!(terms(LockOptions::new().ttl(MS(60_000))).is_ok());
    }

    #[test]
    fn fractions_of_a_millisecond_shorten_the_ttl() {
        let terms = terms(LockOptions::new().ttl(Duration::from_micros(10_999))).unwrap();
        assert_eq!(terms.ttl, MS(10));
    }

    #[test]
    fn the_node_timeout_follows_the_ttl_and_leaves_some_of_it() {
        let timeout = |ttl| terms(LockOptions::new().ttl(ttl)).unwrap().node_timeout;
        assert_eq!(timeout(MS(100)), MS(10));
        assert_eq!(timeout(MS(1_000)), MS(100));
        assert_eq!(timeout(MS(10_000)), MS(200));

        let defaults = Defaults { node_timeout: Some(MS(10_000)), ..Defaults::default() };
        assert!(matches!(
            defaults.terms(LockOptions::new()),
            Err(OptionsError::NodeTimeoutTooLong { .. })
        ));
        let defaults = Defaults { node_timeout: Some(MS(0)), ..Defaults::default() };
        assert!(matches!(defaults.terms(LockOptions::new()), Err(OptionsError::Zero { .. })));
    }

    proptest! {
        #[test]
        fn terms_leave_a_positive_validity_after_a_node_timeout(ttl in any::<Duration>()) {
            if let Ok(terms) = terms(LockOptions::new().ttl(ttl)) {
                prop_assert!(terms.ttl <= ttl);
                prop_assert!(validity(terms.ttl, terms.node_timeout, terms.drift).is_some());
            }
        }
    }
}
