//! The random value that says whose a key is.

use std::fmt;

use crate::entropy::Entropy;

/// The identity of one attempt to acquire a lock: a random number of 128 bits, never used twice.
///
/// Each *attempt* has its own, not each lock: a retry that reused one could not tell what its
/// predecessor left behind from what it set itself.
///
/// Five of the bits are the [`Seat`] of its process, the other 123 are fresh each time.
///
/// `Debug` shows only the first bits: whoever knows the whole id can release the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(u128);

/// Where the seat is in an owner id: in the first two of its hexadecimal digits.
const SEAT_AT: u32 = 120;

impl OwnerId {
    /// A fresh id, from a cryptographically secure generator that the OS seeded.
    #[must_use]
    pub fn random() -> Self {
        Self(Entropy::System.bits())
    }

    pub(crate) fn from_entropy(entropy: &Entropy, seat: Seat) -> Self {
        let others = !(u128::from(Seat::COUNT.saturating_sub(1)) << SEAT_AT);
        Self(entropy.bits() & others | u128::from(seat.0) << SEAT_AT)
    }

    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }

    /// Where its process waits.
    #[must_use]
    pub fn seat(self) -> Seat {
        Seat::new((self.0 >> SEAT_AT).to_le_bytes()[0])
    }
}

impl OwnerId {
    /// One of so many places, by chance.
    pub(crate) fn one_of(self, places: usize) -> usize {
        let chance = self.0.to_le_bytes()[0];
        usize::from(chance).checked_rem(places).unwrap_or(0)
    }
}

/// The whole id as 32 hexadecimal digits: the value of the lock's key, as `redis-cli` shows it.
impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({:08x}..)", self.0 >> 96)
    }
}

/// Where a process waits for locks: those who wait sit in a ring, and a release calls those who sit
/// next after the one who releases. So the lock goes round, and few are woken however many wait.
///
/// A process has one seat, by chance, for all locks. Several may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat(u8);

impl Seat {
    /// How many there are.
    pub const COUNT: u8 = 32;

    /// The seat of that number, counted round the ring.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number % Self::COUNT)
    }

    pub(crate) fn from_entropy(entropy: &Entropy) -> Self {
        Self::new(entropy.bits().to_le_bytes()[0])
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// All seats in the order in which they are called after this one's release, itself last.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn ring_after(self) -> impl Iterator<Item = Self> {
        (1..=Self::COUNT).map(move |places| Self::new(self.0.wrapping_add(places)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_are_redacted_in_debug() {
        let (a, b) = (OwnerId::random(), OwnerId::random());
        assert_ne!(a, b);
        assert_eq!(a.to_string().len(), 32);
        let shown = format!("{a:?}");
        assert!(!shown.contains(&a.to_string()), "{shown}");
        assert_eq!(OwnerId::parse(&a.to_string()), Some(a));
        assert_eq!(OwnerId::parse("12"), None);
    }

    #[test]
    fn the_ids_of_a_process_have_its_seat_and_nothing_else_in_common() {
        for number in [0, 5, 31] {
            let seat = Seat::new(number);
            let ids: Vec<OwnerId> =
                (0..100).map(|_| OwnerId::from_entropy(&Entropy::System, seat)).collect();
            assert!(ids.iter().all(|id| id.seat() == seat));
            let same = ids.iter().fold(!0, |same, id| same & !(id.0 ^ ids[0].0));
            assert_eq!(same, 31 << SEAT_AT);
        }
    }

    #[test]
    fn the_ring_ends_with_the_one_who_releases() {
        let ring: Vec<u8> = Seat::new(30).ring_after().map(Seat::number).collect();
        assert_eq!(ring[..3], [31, 0, 1]);
        assert_eq!((ring.len(), ring[31]), (32, 30));
    }
}
