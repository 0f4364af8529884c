//! The CPU time and the memory of processes.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// What this process has used, all threads together.
pub fn of_self() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What these processes have used. One that has ended, or a thread that has, counts nothing.
pub fn of(pids: &[u32]) -> Duration {
    pids.iter().map(|pid| of_process(*pid)).sum()
}

/// To the nanosecond, where `/proc/PID/stat` counts in hundredths of a second.
fn of_process(pid: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let on_cpu = threads.filter_map(|thread| {
        let stat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(on_cpu.sum())
}

/// The resident memory of this process, in bytes.
pub fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}
