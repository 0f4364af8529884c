//! `benchmarks.md` and its plots, from what was measured.

use std::{error::Error, fmt::Write as _, fs, path::Path, time::Duration};

use crate::{
    book::{Book, Figure, Metric, OURS, with_unit},
    contention, failing, machine, measure,
    plan::Plan,
    plot::Plot,
    renewals, targets, uncontended, wide_area,
};

/// What each scenario does, for readers.
const ABOUT: [(&str, &str, &str); 5] = [
    (uncontended::NAME, "A lock that nobody else wants", include_str!("about/uncontended.md")),
    (failing::NAME, "Masters that fail", include_str!("about/failing.md")),
    (contention::NAME, "One lock that many want", include_str!("about/contention.md")),
    (renewals::NAME, "Many locks that are held", include_str!("about/renewals.md")),
    (wide_area::NAME, "Masters in several regions", include_str!("about/wide-area.md")),
];

pub fn write(book: &Book, plan: Plan, took: Duration, out: &Path) -> Result<(), Box<dyn Error>> {
    let plots = out.join("benchmarks");
    fs::create_dir_all(&plots)?;
    let mut text = include_str!("about/head.md").to_owned();
    let run = match plan {
        Plan::Full => "full",
        Plan::Quick | Plan::Smoke => "a short one, for a look only",
    };
    let minutes = took.as_secs_f64() / 60.0;
    writeln!(text, "\n## The run\n\n- A {}.", machine::describe())?;
    writeln!(
        text,
        "- {}.\n- The run took {minutes:.0} minutes ({run}).",
        machine::versions().join("; ")
    )?;
    text.push_str(&targets_table(book));
    for (name, title, about) in ABOUT {
        if book.of(name).next().is_none() {
            continue;
        }
        writeln!(
            text,
            "\n## {title}\n\n{}",
            about.replace("@source@", wide_area::SOURCE).trim_end()
        )?;
        for (file, plot) in plots_of(book, name) {
            plot.write(&plots.join(file))?;
            writeln!(text, "\n![{}](benchmarks/{file})", plot.title)?;
        }
        text.push_str(&tables(book, name));
    }
    text.push_str(include_str!("about/tail.md"));
    fs::write(out.join("benchmarks.md"), text)?;
    Ok(())
}

fn targets_table(book: &Book) -> String {
    let mut text = "\n## Targets\n\n| target | limit | seen | |\n|---|---|---|---|\n".to_owned();
    for target in targets::all(book) {
        let (limit, seen, verdict) = (target.limit_text(), target.seen_text(), target.verdict());
        writeln!(text, "| {} | {limit} | {seen} | {verdict} |", target.text).expect("text");
    }
    text
}

/// One table for each metric, with a column for each subject; one alone where there is one subject.
fn tables(book: &Book, scenario: &str) -> String {
    let metrics = distinct(book.of(scenario).map(|figure| figure.metric));
    let subjects = distinct(book.of(scenario).map(|figure| figure.subject.as_str()));
    if subjects == [OURS] {
        return only_ours(book, scenario, &metrics);
    }
    let mut text = String::new();
    for metric in metrics {
        let of = || book.of(scenario).filter(|figure| figure.metric == metric);
        let unit =
            if metric.unit.is_empty() { String::new() } else { format!(", {}", metric.unit) };
        let columns = distinct(of().map(|figure| figure.subject.as_str()));
        let rows = distinct(of().map(|figure| figure.setting.as_str()));
        let dashes = "---|".repeat(columns.len() + 1);
        write!(text, "\n### {}{unit}\n\n| | {} |\n|{dashes}\n", metric.name, columns.join(" | "))
            .expect("text");
        for row in rows {
            let cells = columns.iter().map(|column| {
                book.get(scenario, row, metric.name, column)
                    .map_or(String::new(), |f| cell(book, f))
            });
            writeln!(text, "| {row} | {} |", cells.collect::<Vec<_>>().join(" | ")).expect("text");
        }
    }
    text
}

fn only_ours(book: &Book, scenario: &str, metrics: &[Metric]) -> String {
    let names = metrics.iter().map(|metric| match metric.unit {
        "" => metric.name.to_owned(),
        unit => format!("{}, {unit}", metric.name),
    });
    let dashes = "---|".repeat(metrics.len() + 1);
    let mut text = format!("\n| | {} |\n|{dashes}\n", names.collect::<Vec<_>>().join(" | "));
    for row in distinct(book.of(scenario).map(|figure| figure.setting.as_str())) {
        let cells = metrics.iter().map(|metric| {
            let figure = book.get(scenario, row, metric.name, OURS);
            figure.map_or(String::new(), |figure| with_unit(figure.spread().median, ""))
        });
        writeln!(text, "| {row} | {} |", cells.collect::<Vec<_>>().join(" | ")).expect("text");
    }
    text
}

/// The median, the quartiles where there are repetitions, and ours over it.
fn cell(book: &Book, figure: &Figure) -> String {
    let spread = figure.spread();
    let mut text = with_unit(spread.median, "");
    if figure.samples.len() > 2 && spread.high > 0.0 {
        write!(text, " ({}–{})", with_unit(spread.low, ""), with_unit(spread.high, ""))
            .expect("text");
    }
    if figure.subject != OURS
        && !figure.metric.name.contains(" over ")
        && let Some(ratio) = book.ratio(figure)
    {
        write!(text, "; {:.2}", ratio.median).expect("text");
    }
    text
}

fn plots_of(book: &Book, scenario: &str) -> Vec<(&'static str, Plot)> {
    match scenario {
        uncontended::NAME => {
            let settings = [1, 64, 512].map(|tasks| uncontended::setting(5, tasks)).to_vec();
            vec![(
                "uncontended.svg",
                subjects(book, scenario, measure::PAIRS, settings, "Pairs a second, 5 masters"),
            )]
        }
        failing::NAME => {
            let settings = distinct(book.of(scenario).map(|figure| figure.setting.clone()));
            let title = "p50 over that of a healthy fleet";
            vec![(
                "failing.svg",
                subjects(book, scenario, failing::P50_OVER_HEALTHY, settings, title),
            )]
        }
        contention::NAME => {
            let cells = [(2, 1), (10, 1), (50, 1), (1, 100), (1, 1_000)];
            let settings: Vec<_> = cells.map(|(p, t)| contention::setting(p, t)).to_vec();
            let fair = "p99 of the waits over the fair share";
            vec![
                (
                    "handoffs.svg",
                    subjects(
                        book,
                        scenario,
                        contention::HANDOFFS,
                        settings.clone(),
                        "Handoffs a second",
                    ),
                ),
                ("waits.svg", subjects(book, scenario, contention::OVER_FAIR, settings, fair)),
            ]
        }
        wide_area::NAME => {
            vec![("wide-area.svg", timeouts(book)), ("wide-area-clients.svg", clients(book))]
        }
        _ => Vec::new(),
    }
}

/// A line for each subject over these settings.
fn subjects(
    book: &Book,
    scenario: &str,
    metric: Metric,
    places: Vec<String>,
    title: &'static str,
) -> Plot {
    let of = book.of(scenario).filter(|figure| figure.metric == metric);
    let lines = distinct(of.map(|figure| figure.subject.clone())).into_iter().map(|subject| {
        let at = |place: &String| {
            Some(book.get(scenario, place, metric.name, &subject)?.spread().median)
        };
        let line = places.iter().map(at).collect();
        (subject, line)
    });
    Plot { title, unit: metric.unit, lines: lines.collect(), places }
}

/// How much is granted over node timeouts, a line for each region of the widest map.
fn timeouts(book: &Book) -> Plot {
    let map = &wide_area::MAPS[2];
    let lines = map.regions.iter().map(|region| {
        let at = |timeout: &u64| {
            let setting = wide_area::timeout_setting(map, region, *timeout);
            Some(book.get(wide_area::NAME, &setting, wide_area::P99.name, OURS)?.spread().median)
        };
        (format!("from {region}"), wide_area::NODE_TIMEOUTS.iter().map(at).collect())
    });
    Plot {
        title: "Acquire p99 over the node timeout, 5 regions; no point: nothing granted",
        unit: "ms",
        lines: lines.collect(),
        places: wide_area::NODE_TIMEOUTS.iter().map(|ms| format!("{ms} ms")).collect(),
    }
}

fn clients(book: &Book) -> Plot {
    let mut lines = Vec::new();
    for map in &wide_area::MAPS {
        for metric in [wide_area::WAIT_P50, wide_area::WAIT_P99] {
            let at = |clients: &usize| {
                let setting = wide_area::clients_setting(map, *clients);
                Some(book.get(wide_area::NAME, &setting, metric.name, OURS)?.spread().median)
            };
            let line = wide_area::CLIENTS.iter().map(at).collect();
            lines.push((format!("{}, {}", map.name, metric.name), line));
        }
    }
    Plot {
        title: "How long a lock is waited for, ten clients for each lock",
        unit: "ms",
        lines,
        places: wide_area::CLIENTS.iter().map(|clients| renewals::grouped(*clients)).collect(),
    }
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}
