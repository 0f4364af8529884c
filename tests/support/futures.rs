//! Futures that are given up half way, and waiting where blocking would stop the runtime.

use std::{
    future::poll_fn,
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

/// How long a condition is left alone between two looks at it.
const POLL: Duration = Duration::from_millis(2);

/// Polls `future` whenever it is woken, at most `polls` times, and then drops it. Its output, if it
/// had one by then.
///
/// Given `future.as_mut()` of a pinned future it drops no more than the reference.
pub async fn give_up_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left = left.saturating_sub(1);
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// As [`eventually`](super::eventually), for tests on a current-thread runtime.
pub async fn eventually_async(what: &str, limit: Duration, mut cond: impl FnMut() -> bool) {
    let started = Instant::now();
    loop {
        let is_last = started.elapsed() >= limit;
        if cond() {
            return;
        }
        assert!(!is_last, "waited {limit:?} in vain for {what}");
        tokio::time::sleep(POLL).await;
    }
}
