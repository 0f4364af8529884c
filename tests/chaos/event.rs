//! What a client process writes down, one line for each thing that it sees.
//!
//! A line is written by one call, so that a process that is killed leaves whole lines, the last one
//! perhaps excepted.

use std::{fmt, str::FromStr, time::Duration};

/// The longest ttl that a client asks for.
pub(crate) const TTL_MAX: Duration = Duration::from_secs(3);
/// What drift the library allows for at the shortest ttl; a jump of a clock by more breaks an assumption.
pub(crate) const DRIFT_MS: i64 = 2;

/// One line of a client's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// By the clock that all processes of the machine share.
    pub(crate) at: Duration,
    /// Which task of the process.
    pub(crate) task: usize,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It begins to acquire.
    Try { resource: usize, is_last: bool },
    /// It was told that it has the lock. `began` is when the attempt began, `until` the end of the
    /// validity; both rather too early than too late.
    Granted { resource: usize, began: Duration, until: Duration, token: Option<u64> },
    /// It was told that it has not.
    Refused { is_contended: bool },
    /// It did not wait for the answer.
    GaveUp,
    /// It looked, and has the lock until then.
    Valid { until: Duration },
    /// It looked, and has lost the lock.
    Lost,
    /// It is about to give the lock back.
    Releasing,
    /// The release is confirmed: the lock was its own until then.
    Confirmed,
    /// The release was not confirmed, or not waited for.
    Unconfirmed,
    /// It wrote to the resource that checks nothing: had somebody else written meanwhile?
    Wrote { harmed: bool },
    /// The resource that checks tokens refused it.
    Fenced,
    /// It took a lock that only it takes, or tried to.
    Littered,
    /// A call took longer than the promised limit.
    Slow { from: Duration, limit: Duration },
    /// What must not be seen, whatever is broken.
    Violation(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, task, what } = self;
        write!(f, "{} {task} ", at.as_nanos())?;
        let ns = Duration::as_nanos;
        match what {
            What::Try { resource, is_last } => write!(f, "try {resource} {is_last}"),
            What::Granted { resource, began, until, token } => {
                let token = token.map_or("-".to_owned(), |token| token.to_string());
                write!(f, "granted {resource} {} {} {token}", ns(began), ns(until))
            }
            What::Refused { is_contended } => write!(f, "refused {is_contended}"),
            What::GaveUp => f.write_str("gave-up"),
            What::Valid { until } => write!(f, "valid {}", ns(until)),
            What::Lost => f.write_str("lost"),
            What::Releasing => f.write_str("releasing"),
            What::Confirmed => f.write_str("confirmed"),
            What::Unconfirmed => f.write_str("unconfirmed"),
            What::Wrote { harmed } => write!(f, "wrote {harmed}"),
            What::Fenced => f.write_str("fenced"),
            What::Littered => f.write_str("littered"),
            What::Slow { from, limit } => write!(f, "slow {} {}", ns(from), ns(limit)),
            What::Violation(text) => write!(f, "violation {text}"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        parse(line).ok_or_else(|| format!("not an event: {line}"))
    }
}

fn parse(line: &str) -> Option<Event> {
    let mut words = line.splitn(4, ' ');
    let at = time(words.next()?)?;
    let task = words.next()?.parse().ok()?;
    let (name, rest) = (words.next()?, words.next().unwrap_or_default());
    let mut words = rest.split(' ');
    let mut word = || words.next();
    let what = match name {
        "try" => What::Try { resource: word()?.parse().ok()?, is_last: word()?.parse().ok()? },
        "granted" => What::Granted {
            resource: word()?.parse().ok()?,
            began: time(word()?)?,
            until: time(word()?)?,
            token: match word()? {
                "-" => None,
                token => Some(token.parse().ok()?),
            },
        },
        "refused" => What::Refused { is_contended: word()?.parse().ok()? },
        "gave-up" => What::GaveUp,
        "valid" => What::Valid { until: time(word()?)? },
        "lost" => What::Lost,
        "releasing" => What::Releasing,
        "confirmed" => What::Confirmed,
        "unconfirmed" => What::Unconfirmed,
        "wrote" => What::Wrote { harmed: word()?.parse().ok()? },
        "fenced" => What::Fenced,
        "littered" => What::Littered,
        "slow" => What::Slow { from: time(word()?)?, limit: time(word()?)? },
        "violation" => What::Violation(rest.to_owned()),
        _ => return None,
    };
    Some(Event { at, task, what })
}

fn time(nanos: &str) -> Option<Duration> {
    nanos.parse().ok().map(Duration::from_nanos)
}
