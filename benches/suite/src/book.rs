//! What was measured: every figure with all its repetitions.

use std::fmt::Write as _;

use crate::locker::Kind;

/// The name by which ours is known among the subjects.
pub const OURS: &str = "quorumlock";

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub unit: &'static str,
}

impl Metric {
    pub const fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit }
    }
}

/// One figure of one subject, with one number for each repetition.
#[derive(Debug)]
pub struct Figure {
    pub scenario: &'static str,
    pub setting: String,
    pub metric: Metric,
    pub subject: String,
    pub samples: Vec<f64>,
}

/// A median, and the quartiles around it.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

/// All figures, in the order in which they were first measured.
#[derive(Debug, Default)]
pub struct Book {
    figures: Vec<Figure>,
}

impl Book {
    /// Adds the number of one repetition.
    pub fn add(
        &mut self,
        scenario: &'static str,
        setting: &str,
        metric: Metric,
        subject: impl Into<String>,
        sample: f64,
    ) {
        let subject = subject.into();
        match self.position(scenario, setting, metric.name, &subject) {
            Some(at) => self.figures[at].samples.push(sample),
            None => self.figures.push(Figure {
                scenario,
                setting: setting.to_owned(),
                metric,
                subject,
                samples: vec![sample],
            }),
        }
    }

    pub fn get(
        &self,
        scenario: &str,
        setting: &str,
        metric: &str,
        subject: &str,
    ) -> Option<&Figure> {
        self.position(scenario, setting, metric, subject).map(|at| &self.figures[at])
    }

    /// The median of ours over that of another, each pair from the same repetition. None if one is over nothing.
    pub fn ratio(&self, figure: &Figure) -> Option<Spread> {
        let ours = self.get(figure.scenario, &figure.setting, figure.metric.name, OURS)?;
        let pairs = ours.samples.iter().zip(&figure.samples);
        let ratios: Vec<f64> = pairs.map(|(ours, other)| ours / other).collect();
        (!ratios.is_empty() && figure.samples.iter().all(|other| *other > 0.0))
            .then(|| spread(&ratios))
    }

    pub fn of(&self, scenario: &str) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(move |figure| figure.scenario == scenario)
    }

    /// `scenario/setting/metric ours peer ratio`, one line for each figure of a peer; those that only we
    /// have, or only others, have a line with what there is.
    pub fn lines(&self, scenario: &str) -> String {
        let mut lines = String::new();
        for figure in self.of(scenario) {
            let Figure { setting, metric, subject, .. } = figure;
            let ours = self.get(scenario, setting, metric.name, OURS);
            let others = self.of(scenario).filter(|other| {
                other.setting == *setting && other.metric == *metric && other.subject != OURS
            });
            if subject == OURS && others.count() > 0 {
                continue;
            }
            let key = [scenario, setting, metric.name].map(slug).join("/");
            let (mut mine, mut theirs, mut ratio) =
                ("-".to_owned(), "-".to_owned(), "-".to_owned());
            if let Some(ours) = ours {
                mine = ours.text();
            }
            if subject != OURS {
                theirs = format!("{}={}", slug(subject), figure.text());
                if let Some(spread) = self.ratio(figure) {
                    ratio = format!("{:.2} [{:.2}..{:.2}]", spread.median, spread.low, spread.high);
                }
            }
            writeln!(lines, "{key} {mine} {theirs} {ratio}").expect("a string takes all");
        }
        lines
    }

    fn position(
        &self,
        scenario: &str,
        setting: &str,
        metric: &str,
        subject: &str,
    ) -> Option<usize> {
        self.figures.iter().position(|figure| {
            figure.scenario == scenario
                && figure.setting == setting
                && figure.metric.name == metric
                && figure.subject == subject
        })
    }
}

impl Figure {
    pub fn spread(&self) -> Spread {
        spread(&self.samples)
    }

    /// The median with its unit.
    pub fn text(&self) -> String {
        with_unit(self.spread().median, self.metric.unit)
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.name().to_owned()
    }
}

/// A number with as many digits as say something, and its unit.
pub fn with_unit(number: f64, unit: &str) -> String {
    let digits = match number.abs() {
        n if n >= 100.0 || n == 0.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 0.1 => 2,
        _ => 3,
    };
    let space = if unit.is_empty() || unit == "%" { "" } else { "\u{a0}" };
    format!("{number:.digits$}{space}{unit}")
}

/// The value at this share of a sorted list.
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * share).round() as usize).copied()
}

fn spread(samples: &[f64]) -> Spread {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    // Outwards where they lie between two numbers, so that few of them do not look like one.
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let middle = sorted.len() / 2;
    let median = match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    };
    Spread { low: at(last / 4), median, high: at((last * 3).div_ceil(4)) }
}

fn slug(text: &str) -> String {
    let letters =
        text.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    let words: String = letters.collect();
    words.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}
