//! How long to wait before the next try. Pure: chance comes in as an argument.

use std::time::Duration;

use crate::entropy::Entropy;

/// Delays that double from `first` up to `cap`, each spread by half of itself either way, so that
/// clients that failed together do not try again together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) cap: Duration,
}

impl Backoff {
    /// The delay after `failures` failures in a row (counted from 1). `chance` is 0..=100.
    pub(crate) fn delay(self, failures: u32, chance: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        let full = self.first.saturating_mul(1 << doublings).min(self.cap);
        let percent = chance.min(100).saturating_add(50);
        full.saturating_mul(percent).checked_div(100).unwrap_or(full)
    }

    /// The same with a random chance.
    pub(crate) fn random_delay(self, failures: u32, entropy: &Entropy) -> Duration {
        self.delay(failures, entropy.percent())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_millis(20), cap: Duration::from_millis(300) };

    #[test]
    fn delays_double_up_to_the_cap() {
        let delays: Vec<u128> = (0..7).map(|n| BACKOFF.delay(n, 50).as_millis()).collect();
        assert_eq!(delays, [20, 20, 40, 80, 160, 300, 300]);
        assert_eq!(BACKOFF.delay(u32::MAX, 50).as_millis(), 300);
    }

    proptest! {
        // Field case 43: contenders retried in step, and storms followed.
        #[test]
        fn a_delay_is_spread_and_bounded(failures in any::<u32>(), chance in 0_u32..=100) {
            let delay = BACKOFF.delay(failures, chance);
            prop_assert!(delay >= BACKOFF.first / 2);
            prop_assert!(delay <= BACKOFF.cap * 3 / 2);
            prop_assert!(BACKOFF.delay(failures, 0) * 3 == BACKOFF.delay(failures, 100));
        }
    }
}
