//! Where this process waits.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{entropy::Entropy, owner_id::Seat};

/// How long a process stays on the seat that it took. In a crowd of a thousand nobody finds one for itself.
const STAYS_FOR: Duration = Duration::from_secs(10);

/// The seat of a process. Who shares it with another gets the lock half as often; the loser of a race for it
/// takes another one, so that one of them stays.
#[derive(Debug)]
pub(crate) struct OwnSeat {
    entropy: Entropy,
    sitting: Mutex<Sitting>,
}

#[derive(Debug)]
struct Sitting {
    seat: Seat,
    /// When it took this one for another.
    since: Option<Instant>,
}

impl OwnSeat {
    pub(crate) fn by_chance(entropy: &Entropy) -> Self {
        let sitting = Mutex::new(Sitting { seat: Seat::from_entropy(entropy), since: None });
        Self { entropy: entropy.clone(), sitting }
    }

    fn sitting(&self) -> MutexGuard<'_, Sitting> {
        self.sitting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Seat {
        self.sitting().seat
    }

    /// Whether it takes another seat, now that it lost to somebody who sits there.
    pub(crate) fn leave(&self) -> bool {
        let mut sitting = self.sitting();
        if sitting.since.is_some_and(|since| since.elapsed() < STAYS_FOR) {
            return false;
        }
        *sitting = Sitting { seat: Seat::from_entropy(&self.entropy), since: Some(Instant::now()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_took_another_seat_stays_there_for_a_while() {
        let own = OwnSeat::by_chance(&Entropy::System);
        let mut seats = vec![own.get()];
        for _ in 0..10 {
            assert!(own.leave());
            seats.push(own.get());
            tokio::time::advance(Duration::from_millis(9_999)).await;
            assert!(!own.leave());
            assert_eq!(seats.last(), Some(&own.get()));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        seats.sort_unstable();
        seats.dedup();
        assert!(seats.len() > 5, "{seats:?}");
    }
}
