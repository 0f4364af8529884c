//! What was set out to be reached, and whether it is.

use std::time::Duration;

use crate::{
    book::{Book, Metric, OURS, with_unit},
    contention, failing,
    locker::Kind,
    measure, renewals, uncontended,
};

/// One number and its limit.
pub struct Target {
    pub text: String,
    /// `None` if this run has not measured it.
    pub seen: Option<f64>,
    limit: Limit,
    unit: &'static str,
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    /// `None` if it was not measured.
    pub fn is_met(&self) -> Option<bool> {
        let seen = self.seen?;
        Some(match self.limit {
            Limit::AtMost(limit) => seen <= limit,
            Limit::AtLeast(limit) => seen >= limit,
        })
    }

    pub fn verdict(&self) -> &'static str {
        match self.is_met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "not measured",
        }
    }

    pub fn seen_text(&self) -> String {
        self.seen.map_or("-".to_owned(), |seen| with_unit(seen, self.unit))
    }

    pub fn limit_text(&self) -> String {
        match self.limit {
            Limit::AtMost(limit) => format!("at most {}", with_unit(limit, self.unit)),
            Limit::AtLeast(limit) => format!("at least {}", with_unit(limit, self.unit)),
        }
    }
}

pub fn all(book: &Book) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add =
        |text: String, seen, limit, unit| targets.push(Target { text, seen, limit, unit });
    let over = |setting: &str, metric: Metric, peer: Kind| {
        let figure = book.get(uncontended::NAME, setting, metric.name, peer.name())?;
        Some(book.ratio(figure)?.median)
    };
    let one = uncontended::setting(5, 1);
    let text = format!("{one}: p50 over that of the bare commands");
    add(text, over(&one, measure::P50, Kind::Floor), Limit::AtMost(1.15), "");
    let text = format!("{one}: p50 over that of rslock");
    add(text, over(&one, measure::P50, Kind::Rslock), Limit::AtMost(1.0), "");
    let text = format!("{one}: p50 of acquire_fenced over that of acquire");
    let fenced = over(&one, measure::ACQUIRE, Kind::Fenced).map(|ours| 1.0 / ours);
    add(text, fenced, Limit::AtMost(1.1), "");
    let many = uncontended::setting(5, 64);
    let text = format!("{many}: pairs a second over those of rslock");
    add(text, over(&many, measure::PAIRS, Kind::Rslock), Limit::AtLeast(1.3), "");
    let text = format!("{many}: client CPU for a pair over that of rslock");
    add(text, over(&many, measure::CLIENT_CPU, Kind::Rslock), Limit::AtMost(1.0), "");

    let ours = |scenario, setting: &str, metric: Metric| {
        Some(book.get(scenario, setting, metric.name, OURS)?.spread().median)
    };
    for what in ["one of five frozen", "two of five frozen", "one of five dead", "two of five dead"]
    {
        for metric in [failing::P50_OVER_HEALTHY, failing::P99_OVER_HEALTHY] {
            let text = format!("{what}: {}", metric.name);
            add(text, ours(failing::NAME, what, metric), Limit::AtMost(1.2), "");
        }
    }
    for clients in [10, 50] {
        let setting = contention::setting(clients, 1);
        for (metric, limit) in [
            (contention::HANDOFFS, Limit::AtLeast(600.0)),
            (contention::OVER_FAIR, Limit::AtMost(2.0)),
            (contention::COMMANDS, Limit::AtMost(6.0)),
        ] {
            let text = format!("one lock, {setting}: {}", metric.name);
            add(text, ours(contention::NAME, &setting, metric), limit, "");
        }
    }
    let commands =
        |tasks| ours(contention::NAME, &contention::setting(1, tasks), contention::COMMANDS);
    let text =
        "1,000 waiting tasks in one process: commands for a handoff over those of one that waits";
    let seen = commands(1_000).zip(commands(2)).map(|(many, one)| many / one);
    add(text.to_owned(), seen, Limit::AtMost(1.1), "");

    let held = |locks, ttl, metric| {
        ours(renewals::NAME, &renewals::setting(locks, Duration::from_secs(ttl)), metric)
    };
    let text = "100,000 locks held, ttl 30 s: client CPU, of one core".to_owned();
    add(text, held(100_000, 30, renewals::CLIENT), Limit::AtMost(25.0), "%");
    let text = "100,000 locks held, ttl 30 s: lost".to_owned();
    add(text, held(100_000, 30, renewals::LOST), Limit::AtMost(0.0), "");
    let text = "10,000 locks held, ttl 10 s: lost".to_owned();
    add(text, held(10_000, 10, renewals::LOST), Limit::AtMost(0.0), "");
    let text = "10,000 locks held, ttl 10 s: with their key on a majority at the end".to_owned();
    add(text, held(10_000, 10, renewals::KEPT), Limit::AtLeast(100.0), "%");
    let text = "10,000 locks held, ttl 10 s: memory for each lock".to_owned();
    add(text, held(10_000, 10, renewals::MEMORY), Limit::AtMost(1_024.0), "B");
    let text = "10,000 tasks that wait for one lock: memory for each".to_owned();
    let seen = ours(renewals::NAME, &renewals::waiting(10_000), renewals::WAITER_MEMORY);
    add(text, seen, Limit::AtMost(1_024.0), "B");
    targets
}
