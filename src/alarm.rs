//! One timer for everything that a task has to do at some time.

use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is set anew only for what is due sooner, or when it went off too early: registering one costs
/// more than that.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Waits until what is next is due, and says what that is; for ever if it is `None`. Cancel safe.
    pub(crate) async fn until<T>(&mut self, next: Option<(Instant, T)>) -> T {
        let Some((due, what)) = next else { return std::future::pending().await };
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().await;
        if timer.deadline() < due {
            timer.as_mut().reset(due);
            timer.as_mut().await;
        }
        what
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_goes_off_at_its_time_however_often_it_was_set() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let at = |seconds| Some((start + second * seconds, seconds));
        let mut alarm = Alarm::default();
        assert_eq!(alarm.until(None::<(Instant, u32)>).now_or_never(), None);
        assert_eq!(alarm.until(at(3)).now_or_never(), None);
        assert_eq!(alarm.until(at(1)).await, 1);
        assert_eq!(start.elapsed(), second);
        assert_eq!(alarm.until(at(1)).now_or_never(), Some(1), "what is past is past");
        assert_eq!(alarm.until(at(2)).await, 2);
        assert_eq!(start.elapsed(), second * 2);
        assert_eq!(alarm.until(at(3)).now_or_never(), None);
        assert_eq!(alarm.until(at(5)).await, 5, "set anew for later");
        assert_eq!(start.elapsed(), second * 5);
    }
}
