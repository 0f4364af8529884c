//! Where this process waits.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{entropy::Entropy, owner_id::Seat};

/// How long a process stays on the seat that it took. In a large crowd nobody finds one for itself.
const STAYS_FOR: Duration = Duration::from_secs(10);

/// The seat of a process. Who shares it with another gets the lock half as often, and so one of them leaves.
#[derive(Debug)]
pub(crate) struct OwnSeat(Mutex<Sitting>);

#[derive(Debug)]
struct Sitting {
    seat: Seat,
    /// When it took this one for another.
    since: Option<Instant>,
}

impl OwnSeat {
    pub(crate) fn by_chance(entropy: &Entropy) -> Self {
        Self(Mutex::new(Sitting { seat: Seat::from_entropy(entropy), since: None }))
    }

    fn sitting(&self) -> MutexGuard<'_, Sitting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Seat {
        self.sitting().seat
    }

    /// Whether it takes another seat, now that somebody else sits there: in one of two cases, for the other
    /// one may leave as well.
    pub(crate) fn leave(&self, entropy: &Entropy) -> bool {
        let mut sitting = self.sitting();
        let stays = sitting.since.is_some_and(|since| since.elapsed() < STAYS_FOR);
        if stays || entropy.percent() < 50 {
            return false;
        }
        *sitting = Sitting { seat: Seat::from_entropy(entropy), since: Some(Instant::now()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_of_two_leaves_and_nobody_again_and_again() {
        let mut left = 0;
        for _ in 0..1_000 {
            let own = OwnSeat::by_chance(&Entropy::System);
            let before = own.get();
            if !own.leave(&Entropy::System) {
                assert_eq!(own.get(), before);
                continue;
            }
            left += 1;
            tokio::time::advance(Duration::from_millis(9_999)).await;
            assert!(!(0..20).any(|_| own.leave(&Entropy::System)), "too soon");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!((0..200).any(|_| own.leave(&Entropy::System)), "never again");
        }
        assert!((300..700).contains(&left), "{left} of 1,000");
    }
}
