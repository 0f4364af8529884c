//! Stamps that can be compared between the processes of one machine.

use std::{thread, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine was started, suspend included: the clock that validity goes by.
pub(crate) fn now() -> Duration {
    let read = clock_gettime(ClockId::Boottime);
    Duration::new(read.tv_sec.try_into().unwrap(), read.tv_nsec.try_into().unwrap())
}

pub(crate) fn sleep_until(end: Duration) {
    thread::sleep(end.saturating_sub(now()));
}
