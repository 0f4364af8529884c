//! Points in time by a clock that goes on while the machine sleeps.
//!
//! A lock's key on a server expires whether or not the holder's machine was suspended meanwhile, so
//! the holder's clock has to count that time too. `CLOCK_BOOTTIME` does on Linux and `CLOCK_MONOTONIC`
//! does on macOS; `std::time::Instant` does on neither. On other systems the standard clock is used.
//! No clock helps against a hypervisor that stops the guest's clocks; fencing tokens do.

use std::time::Duration;

/// A point in time, as the nanoseconds since an arbitrary origin that is fixed for the process: enough for
/// five centuries, in half the room of a `Duration`. Each held lock has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    fn after_origin(span: Duration) -> Self {
        Self(nanos(span))
    }

    /// This moment, moved into the future by `span`; the end of time where that would overflow.
    pub(crate) fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// This moment, moved into the past by `span`; the origin where that would be before it.
    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }

    /// The last multiple of `step` that is not after this moment.
    pub(crate) fn rounded_down(self, step: Duration) -> Self {
        let over = self.0.checked_rem(nanos(step)).unwrap_or(0);
        Self(self.0.saturating_sub(over))
    }

    /// How long after `earlier` this moment is; zero when it is not after it.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The nanoseconds of a span; the most there can be where it is longer.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Where moments come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The clock of this machine.
    System,
    /// The clock of a simulated machine.
    #[cfg(feature = "sim")]
    Simulated(SimClock),
}

impl Clock {
    /// Reads the clock. A decision reads it once.
    pub(crate) fn now(self) -> Moment {
        match self {
            Self::System => Moment::after_origin(since_origin()),
            #[cfg(feature = "sim")]
            Self::Simulated(clock) => Moment::after_origin(clock.since_origin()),
        }
    }
}

/// A clock that follows tokio's, which a test can pause, at a rate of its own.
#[cfg(feature = "sim")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimClock {
    origin: tokio::time::Instant,
    ppm: i32,
}

#[cfg(feature = "sim")]
impl SimClock {
    /// A clock that starts at `origin` and runs `ppm` millionths faster than true time.
    pub(crate) fn new(origin: tokio::time::Instant, ppm: i32) -> Self {
        Self { origin, ppm }
    }

    /// The time that has gone by on this clock, with the rate that it has.
    pub(crate) fn since_origin(self) -> Duration {
        let true_time = tokio::time::Instant::now().saturating_duration_since(self.origin);
        let parts = u128::from(1_000_000_u32.saturating_add_signed(self.ppm));
        let nanos = true_time.as_nanos().saturating_mul(parts).div_ceil(1_000_000);
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }
}

/// When a timer of `span` from now is due. Timers do not count suspend: no validity rests on one.
pub(crate) fn due_after(span: Duration) -> tokio::time::Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = tokio::time::Instant::now();
    now.checked_add(span.min(FAR)).unwrap_or(now)
}

#[cfg(unix)]
fn since_origin() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(target_os = "linux")]
    const COUNTS_SUSPEND: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const COUNTS_SUSPEND: ClockId = ClockId::Monotonic;

    let read = clock_gettime(COUNTS_SUSPEND);
    // Both are never negative on these clocks.
    Duration::new(u64::try_from(read.tv_sec).unwrap_or(0), u32::try_from(read.tv_nsec).unwrap_or(0))
}

#[cfg(not(unix))]
#[expect(clippy::disallowed_methods, reason = "this is the clock module that reads it for all")]
fn since_origin() -> Duration {
    use std::{sync::OnceLock, time::Instant};

    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_forward() {
        let clock = Clock::System;
        let first = clock.now();
        let second = clock.now();
        assert!(second >= first);
        assert_eq!(first.since(second.plus(Duration::from_secs(1))), Duration::ZERO);
    }

    #[test]
    fn moments_do_not_overflow() {
        let end = Clock::System.now().plus(Duration::MAX).plus(Duration::MAX);
        assert_eq!(end.plus(Duration::from_secs(1)), end);
        assert!(end.before(Duration::from_nanos(1)) < end);
        assert_eq!(end.before(Duration::MAX), Moment::after_origin(Duration::ZERO));
    }

    #[test]
    fn a_moment_is_rounded_down_to_a_multiple() {
        let moment = Moment::after_origin(Duration::from_nanos(29));
        let rounded = |nanos| moment.rounded_down(Duration::from_nanos(nanos));
        assert_eq!(rounded(10), Moment::after_origin(Duration::from_nanos(20)));
        assert_eq!(rounded(0), moment);
        assert_eq!(moment.since(rounded(10)), Duration::from_nanos(9));
    }
}
