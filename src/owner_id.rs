//! The random value that says whose a key is.

use std::fmt;

use crate::entropy::Entropy;

/// The identity of one attempt to acquire a lock: a random number of 128 bits, never used twice.
///
/// Each *attempt* has its own, not each lock: a retry that reused one could not tell what its
/// predecessor left behind from what it set itself.
///
/// Twelve of the bits are the [`Seat`] of its process, the other 116 are fresh each time.
///
/// `Debug` shows only the first bits: whoever knows the whole id can release the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(u128);

/// Where the seat is in an owner id: its number is the first three digits.
const SEAT_AT: u32 = 116;

impl OwnerId {
    /// A fresh id, from a cryptographically secure generator that the OS seeded.
    #[must_use]
    pub fn random() -> Self {
        Self(Entropy::System.bits())
    }

    pub(crate) fn from_entropy(entropy: &Entropy, seat: Seat) -> Self {
        Self(entropy.bits()).on_seat(seat)
    }

    /// This id, with this seat in it.
    #[must_use]
    pub fn on_seat(self, seat: Seat) -> Self {
        let [a, b, c] = seat.digits().map(u128::from);
        Self(self.0 & !(0xfff << SEAT_AT) | (a << 8 | b << 4 | c) << SEAT_AT)
    }

    /// What `Display` writes, without its machinery: it is needed for each command and each reply.
    pub(crate) fn text(self) -> OwnerText {
        let digit = |half: u8| half.wrapping_add(if half < 10 { b'0' } else { b'a' - 10 });
        let mut text = [0; 32];
        for (digits, byte) in text.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            digits.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        OwnerText(text)
    }

    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }

    /// Where its process waits. In the ids of no process the digits beyond 9 begin again at 0.
    #[must_use]
    pub fn seat(self) -> Seat {
        let [high, low, ..] = self.0.to_be_bytes().map(u16::from);
        let digits = [high / 16, high % 16, low / 16].map(|digit| digit % 10);
        Seat::new(
            digits.iter().fold(0, |number, digit| number.saturating_mul(10).saturating_add(*digit)),
        )
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
        f.write_str(self.text().as_str())
    }
}

/// The text of an owner id: all of it, so it is not to be shown.
#[derive(Clone, Copy)]
pub(crate) struct OwnerText([u8; 32]);

impl OwnerText {
    pub(crate) fn as_str(&self) -> &str {
        // They are digits.
        std::str::from_utf8(&self.0).unwrap_or_default()
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
/// A process has one seat, by chance, for all locks. Of several that share one, one takes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat(u16);

impl Seat {
    /// How many there are.
    pub const COUNT: u16 = 1_000;

    /// The seat of that number, counted round the ring.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number % Self::COUNT)
    }

    pub(crate) fn from_entropy(entropy: &Entropy) -> Self {
        let [low, high, ..] = entropy.bits().to_le_bytes();
        Self::new(u16::from_le_bytes([low, high]))
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The three digits of its number.
    #[must_use]
    pub const fn digits(self) -> [u16; 3] {
        [self.0 / 100, self.0 / 10 % 10, self.0 % 10]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_are_redacted_in_debug() {
        let (a, b) = (OwnerId::random(), OwnerId::random());
        assert_ne!(a, b);
        assert_eq!(a.to_string(), format!("{:032x}", a.0));
        assert_eq!(OwnerId(0x0a9).to_string(), format!("{:032x}", 0x0a9));
        let shown = format!("{a:?}");
        assert!(!shown.contains(&a.to_string()), "{shown}");
        assert_eq!(OwnerId::parse(&a.to_string()), Some(a));
        assert_eq!(OwnerId::parse("12"), None);
    }

    #[test]
    fn the_ids_of_a_process_have_its_seat_and_nothing_else_in_common() {
        for number in [0, 5, 999] {
            let seat = Seat::new(number);
            let ids: Vec<OwnerId> =
                (0..100).map(|_| OwnerId::from_entropy(&Entropy::System, seat)).collect();
            assert!(ids.iter().all(|id| id.seat() == seat));
            let same = ids.iter().fold(!0, |same, id| same & !(id.0 ^ ids[0].0));
            assert_eq!(same, 0xfff << SEAT_AT);
        }
    }

    #[test]
    fn the_first_three_digits_say_the_seat() {
        for number in [0, 5, 300, 999] {
            let id = OwnerId::from_entropy(&Entropy::System, Seat::new(number));
            assert_eq!(id.to_string()[..3], format!("{number:03}"));
        }
        // As `release.lua` reads those of no process.
        let id = OwnerId::parse("af9d0000000000000000000000000000").unwrap();
        assert_eq!(id.seat(), Seat::new(59));
    }
}
