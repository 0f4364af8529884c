//! What the nemesis can do, and to what.

use std::{fmt, time::Duration};

use rand::{RngExt, rngs::StdRng};

pub(crate) const MASTERS: usize = 5;
/// Client processes, each with several tasks.
pub(crate) const CLIENTS: usize = 4;
/// Clients of one side reach a master over the same link; so partitions can have two sides.
pub(crate) const SIDES: usize = 2;

/// No clock is moved by more at a time, in milliseconds.
pub(crate) const JUMP_MAX_MS: i64 = 3_000;

/// What a fault is done to. While one lasts, no other is done to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Master(usize),
    /// The wall clock of a master.
    Clock(usize),
    Link {
        side: usize,
        master: usize,
    },
    Client(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// SIGKILL.
    Kill,
    /// SIGTERM, as an operator would.
    Stop,
    /// SIGKILL, and nothing is left on its disk.
    Wipe,
    Start,
    Pause,
    Unpause,
    /// FLUSHALL: all keys are gone, and it goes on.
    Flush,
    /// The wall clock moves by so many milliseconds.
    Jump(i64),
    /// All connections end, and new ones at once.
    Cut,
    /// All connections end.
    Reset,
    /// Each way.
    Delay(u64),
    DropReplies,
    DropRequests,
    /// Nothing passes, and nobody is told.
    Silence,
    /// The client's half of each connection ends and the master's stays, with requests that had not
    /// arrived yet; they arrive at the end.
    HalfOpen,
    /// The link is well again.
    Heal,
    /// SIGSTOP.
    PauseClient,
    ResumeClient,
    /// SIGKILL.
    KillClient,
    /// Another process takes its place.
    Respawn,
}

/// A kind of fault: what is done to how many, and undone in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Kill,
    KillMajority,
    Stop,
    Wipe,
    WipeMajority,
    Flush,
    FlushMajority,
    Pause,
    PauseMajority,
    ClockBack,
    ClockBackMajority,
    ClockForward,
    ClockForwardMajority,
    Cut,
    Reset,
    Delay,
    DropReplies,
    DropRequests,
    Silence,
    HalfOpen,
    Partition,
    PauseClient,
    PauseClientBeyondTtl,
    KillClient,
}

impl Kind {
    pub(crate) const ALL: [Self; 24] = [
        Self::Kill,
        Self::KillMajority,
        Self::Stop,
        Self::Wipe,
        Self::WipeMajority,
        Self::Flush,
        Self::FlushMajority,
        Self::Pause,
        Self::PauseMajority,
        Self::ClockBack,
        Self::ClockBackMajority,
        Self::ClockForward,
        Self::ClockForwardMajority,
        Self::Cut,
        Self::Reset,
        Self::Delay,
        Self::DropReplies,
        Self::DropRequests,
        Self::Silence,
        Self::HalfOpen,
        Self::Partition,
        Self::PauseClient,
        Self::PauseClientBeyondTtl,
        Self::KillClient,
    ];

    /// Whether it needs masters whose clocks can be moved.
    pub(crate) fn moves_clocks(self) -> bool {
        matches!(self.onset(0), Action::Jump(_))
    }

    /// What it begins with. `size` is from 0 to 99.
    pub(crate) fn onset(self, size: u32) -> Action {
        // At least a third, so that no jump is lost in what drift is allowed for.
        let ms = JUMP_MAX_MS / 3 + JUMP_MAX_MS * 2 / 3 * i64::from(size) / 99;
        match self {
            Self::Kill | Self::KillMajority => Action::Kill,
            Self::Stop => Action::Stop,
            Self::Wipe | Self::WipeMajority => Action::Wipe,
            Self::Flush | Self::FlushMajority => Action::Flush,
            Self::Pause | Self::PauseMajority => Action::Pause,
            Self::ClockBack | Self::ClockBackMajority => Action::Jump(-ms),
            Self::ClockForward | Self::ClockForwardMajority => Action::Jump(ms),
            Self::Cut => Action::Cut,
            Self::Reset => Action::Reset,
            Self::Delay => Action::Delay(5 + u64::from(size) * 3),
            Self::DropReplies => Action::DropReplies,
            Self::DropRequests => Action::DropRequests,
            Self::Silence | Self::Partition => Action::Silence,
            Self::HalfOpen => Action::HalfOpen,
            Self::PauseClient | Self::PauseClientBeyondTtl => Action::PauseClient,
            Self::KillClient => Action::KillClient,
        }
    }

    /// What ends it, unless it is over at once.
    pub(crate) fn relief(self) -> Option<Action> {
        match self {
            Self::Kill | Self::KillMajority | Self::Stop | Self::Wipe | Self::WipeMajority => {
                Some(Action::Start)
            }
            Self::Pause | Self::PauseMajority => Some(Action::Unpause),
            Self::ClockBack
            | Self::ClockBackMajority
            | Self::ClockForward
            | Self::ClockForwardMajority
            | Self::Flush
            | Self::FlushMajority
            | Self::Reset => None,
            Self::Cut
            | Self::Delay
            | Self::DropReplies
            | Self::DropRequests
            | Self::Silence
            | Self::HalfOpen
            | Self::Partition => Some(Action::Heal),
            Self::PauseClient | Self::PauseClientBeyondTtl => Some(Action::ResumeClient),
            Self::KillClient => Some(Action::Respawn),
        }
    }

    /// How long it lasts, in milliseconds.
    pub(crate) fn lasts_ms(self, rng: &mut StdRng) -> u64 {
        let range = match self {
            Self::PauseClient => 50..=600,
            Self::PauseClientBeyondTtl => 3_000..=5_000,
            Self::KillMajority | Self::WipeMajority | Self::PauseMajority | Self::Partition => {
                300..=2_500
            }
            Self::Wipe => 100..=1_500,
            Self::Kill
            | Self::Stop
            | Self::Pause
            | Self::Flush
            | Self::FlushMajority
            | Self::ClockBack
            | Self::ClockBackMajority
            | Self::ClockForward
            | Self::ClockForwardMajority
            | Self::Cut
            | Self::Reset
            | Self::Delay
            | Self::DropReplies
            | Self::DropRequests
            | Self::Silence
            | Self::HalfOpen
            | Self::KillClient => 200..=5_000,
        };
        rng.random_range(range)
    }

    /// All that it could be done to: one of these, or a majority of them.
    pub(crate) fn targets(self, rng: &mut StdRng) -> Vec<Target> {
        let side = rng.random_range(0..SIDES);
        let of_masters = |target: fn(usize) -> Target| (0..MASTERS).map(target).collect();
        match self.onset(0) {
            Action::Kill
            | Action::Stop
            | Action::Wipe
            | Action::Start
            | Action::Pause
            | Action::Unpause
            | Action::Flush => of_masters(Target::Master),
            Action::Jump(_) => of_masters(Target::Clock),
            Action::Cut
            | Action::Reset
            | Action::Delay(_)
            | Action::DropReplies
            | Action::DropRequests
            | Action::Silence
            | Action::HalfOpen
            | Action::Heal => (0..MASTERS).map(|master| Target::Link { side, master }).collect(),
            Action::PauseClient | Action::ResumeClient | Action::KillClient | Action::Respawn => {
                (0..CLIENTS).map(Target::Client).collect()
            }
        }
    }

    /// Whether nobody can get in while it lasts.
    pub(crate) fn keeps_out(self) -> bool {
        self.relief().is_some() && self.hits() > 1
    }

    /// How many of its targets are hit.
    pub(crate) fn hits(self) -> usize {
        match self {
            Self::KillMajority
            | Self::WipeMajority
            | Self::FlushMajority
            | Self::PauseMajority
            | Self::ClockBackMajority
            | Self::ClockForwardMajority
            | Self::Partition => MASTERS / 2 + 1,
            Self::Kill
            | Self::Stop
            | Self::Wipe
            | Self::Flush
            | Self::Pause
            | Self::ClockBack
            | Self::ClockForward
            | Self::Cut
            | Self::Reset
            | Self::Delay
            | Self::DropReplies
            | Self::DropRequests
            | Self::Silence
            | Self::HalfOpen
            | Self::PauseClient
            | Self::PauseClientBeyondTtl
            | Self::KillClient => 1,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Master(master) => write!(f, "n{master}"),
            Self::Clock(master) => write!(f, "clock of n{master}"),
            Self::Link { side, master } => write!(f, "link of side {side} to n{master}"),
            Self::Client(slot) => write!(f, "client {slot}"),
        }
    }
}

/// What was done, when, and for what reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) kind: Option<Kind>,
    pub(crate) target: Target,
    pub(crate) action: Action,
    /// Stamps from before and after it.
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}
