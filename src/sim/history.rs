//! What clients saw, and the check of it. Pure, and the same for simulated and real runs.

use std::time::Duration;

/// The time in which one client believed that it held a lock. All times are true times since the
/// beginning of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which client.
    pub client: usize,
    /// Which resource.
    pub resource: String,
    /// When it was told that it has the lock.
    pub from: Duration,
    /// When it stopped believing so: it released, was told of the loss, or its validity ended.
    pub until: Duration,
}

/// Two clients that believed at the same time that they held the same lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubleHold {
    /// The one that was first.
    pub first: Hold,
    /// The one that should not have been granted.
    pub second: Hold,
}

/// Every pair of holds of one resource that overlap. The order of `holds` does not matter.
///
/// A hold that ends at the instant at which the next begins does not overlap it.
#[must_use]
pub fn double_holds(holds: &[Hold]) -> Vec<DoubleHold> {
    let mut sorted: Vec<&Hold> = holds.iter().filter(|hold| hold.from < hold.until).collect();
    sorted.sort_by_key(|hold| (&hold.resource, hold.from, hold.until, hold.client));
    let mut found = Vec::new();
    // The earlier hold of this resource that lasts longest.
    let mut longest: Option<&Hold> = None;
    for hold in sorted {
        match longest {
            Some(first) if first.resource == hold.resource => {
                if hold.from < first.until {
                    found.push(DoubleHold { first: first.clone(), second: hold.clone() });
                }
                if hold.until > first.until {
                    longest = Some(hold);
                }
            }
            _ => longest = Some(hold),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(client: usize, resource: &str, from: u64, until: u64) -> Hold {
        let (from, until) = (Duration::from_millis(from), Duration::from_millis(until));
        Hold { client, resource: resource.to_owned(), from, until }
    }

    #[test]
    fn overlapping_holds_are_found_in_any_order() {
        let holds = [hold(1, "a", 90, 200), hold(0, "a", 0, 100)];
        let found = double_holds(&holds);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].first.client, found[0].second.client), (0, 1));
    }

    #[test]
    fn touching_holds_and_holds_of_other_resources_are_fine() {
        let holds = [hold(0, "a", 0, 100), hold(1, "a", 100, 200), hold(1, "b", 0, 500)];
        assert_eq!(double_holds(&holds), []);
    }

    #[test]
    fn a_short_hold_inside_a_long_one_does_not_hide_the_next() {
        let holds = [hold(0, "a", 0, 1_000), hold(1, "a", 10, 20), hold(2, "a", 500, 600)];
        assert_eq!(double_holds(&holds).len(), 2);
    }

    #[test]
    fn an_empty_hold_overlaps_nothing() {
        assert_eq!(double_holds(&[hold(0, "a", 0, 100), hold(1, "a", 50, 50)]), []);
    }
}
