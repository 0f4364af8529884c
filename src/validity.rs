//! How long a lock may be relied on. Pure: times come in as arguments.
//!
//! `validity = ttl - elapsed - drift`, where `elapsed` runs from *before* the first request was sent
//! to *after* the deciding reply was read, and `drift` allows for the clocks of the nodes running
//! faster than ours. Source: [Distributed Locks with Redis][text], the Redlock algorithm's step 3 and the
//! section on whether the algorithm is asynchronous.
//!
//! [text]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

use std::time::Duration;

use crate::clock::Moment;

/// What is allowed for clocks that run at different rates.
///
/// The allowance over a ttl is `ttl × ppm / 1,000,000 + margin`, rounded up. It covers nodes whose
/// clocks run *faster* than the client's by up to that much. It does not cover clocks that jump.
///
/// Defaults to 10,000 ppm (1 %) plus 2 ms, the figures of the Redlock text's own implementations:
/// far more than the 500 ppm that NTP corrects for, and 2 ms for the resolution of Redis' expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockDrift {
    ppm: u32,
    margin: Duration,
}

impl ClockDrift {
    /// An allowance of `ppm` millionths of the ttl plus a fixed `margin`.
    #[must_use]
    pub const fn new(ppm: u32, margin: Duration) -> Self {
        Self { ppm, margin }
    }

    /// The allowance over `ttl`.
    #[must_use]
    pub fn over(self, ttl: Duration) -> Duration {
        let nanos = ttl.as_nanos().saturating_mul(u128::from(self.ppm)).div_ceil(1_000_000);
        let share = u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos);
        share.saturating_add(self.margin)
    }
}

impl Default for ClockDrift {
    fn default() -> Self {
        Self::new(10_000, Duration::from_millis(2))
    }
}

/// What is left of `ttl` after `elapsed` and the drift; `None` when nothing is.
pub(crate) fn validity(ttl: Duration, elapsed: Duration, drift: ClockDrift) -> Option<Duration> {
    let left = ttl.checked_sub(elapsed)?.checked_sub(drift.over(ttl))?;
    (!left.is_zero()).then_some(left)
}

/// The moment up to which a lock asked for at `started` may be relied on.
pub(crate) fn valid_until(started: Moment, ttl: Duration, drift: ClockDrift) -> Moment {
    started.plus(ttl.saturating_sub(drift.over(ttl)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Clock;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[track_caller]
    fn check(ttl_ms: u64, elapsed_ms: u64, expected: Option<Duration>) {
        assert_eq!(validity(MS(ttl_ms), MS(elapsed_ms), ClockDrift::default()), expected);
    }

    #[test]
    fn validity_is_ttl_less_elapsed_less_drift() {
        check(10_000, 0, Some(MS(9_898)));
        check(10_000, 398, Some(MS(9_500)));
        check(10_000, 9_898, None);
        check(10_000, 20_000, None);
        check(0, 0, None);
        check(2, 0, None);
    }

    proptest! {
        // Field case 23: small ttls panicked or wrapped round elsewhere.
        #[test]
        fn validity_never_exceeds_ttl_less_drift_and_never_panics(
            ttl in any::<Duration>(),
            elapsed in any::<Duration>(),
            ppm in any::<u32>(),
            margin in any::<Duration>(),
        ) {
            let drift = ClockDrift::new(ppm, margin);
            if let Some(left) = validity(ttl, elapsed, drift) {
                prop_assert!(!left.is_zero());
                prop_assert!(left <= ttl.saturating_sub(drift.over(ttl)).saturating_sub(elapsed));
            }
        }

        #[test]
        fn small_ttls_do_not_wrap_round(ttl_us in 0_u64..2_000_000, elapsed_us in 0_u64..4_000_000) {
            let (ttl, elapsed) = (Duration::from_micros(ttl_us), Duration::from_micros(elapsed_us));
            let drift = ClockDrift::default();
            let bound = ttl.saturating_sub(drift.over(ttl));
            prop_assert!(validity(ttl, elapsed, drift).unwrap_or_default() <= bound);
        }

        // The guard's end and the decision's validity are one figure seen from two sides.
        #[test]
        fn the_end_of_validity_agrees_with_the_validity_at_the_decision(
            ttl_ms in 0_u64..100_000,
            elapsed_ms in 0_u64..100_000,
        ) {
            let (ttl, elapsed, drift) = (MS(ttl_ms), MS(elapsed_ms), ClockDrift::default());
            let started = Clock::System.now();
            let left = valid_until(started, ttl, drift).since(started.plus(elapsed));
            prop_assert_eq!(validity(ttl, elapsed, drift).unwrap_or_default(), left);
        }

        #[test]
        fn drift_grows_with_the_ttl(a in any::<Duration>(), b in any::<Duration>()) {
            let drift = ClockDrift::default();
            prop_assert!(drift.over(a.min(b)) <= drift.over(a.max(b)));
        }
    }
}
