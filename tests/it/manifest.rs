//! Every dependency and feature says why it is there, and the rules of the house are in force.

use crate::{files_under, read};

/// Beyond this a file has more than one responsibility.
const LINES: usize = 450;

#[test]
fn every_dependency_and_feature_says_why() {
    let manifest = read("Cargo.toml");
    assert_eq!(unexplained(&manifest), [""; 0], "without a comment above");
    assert!(entries(&manifest).count() > 5, "the manifest is no longer understood");
}

#[test]
fn no_feature_is_on_by_default() {
    assert!(has_entry(&read("Cargo.toml"), "[features]", "default = []"));
}

#[test]
fn unsafe_code_and_undocumented_items_are_refused() {
    let manifest = read("Cargo.toml");
    assert!(has_entry(&manifest, "[lints.rust]", "unsafe_code = \"forbid\""));
    assert!(has_entry(&manifest, "[lints.rust]", "missing_docs = \"warn\""));
    assert!(has_entry(&manifest, "[lints.clippy]", "unwrap_used = \"warn\""));
}

#[test]
fn no_source_file_is_too_long_to_be_read_in_one_go() {
    let long: Vec<String> = files_under("src")
        .into_iter()
        .map(|path| (read(&path).lines().count(), path))
        .filter(|(lines, _)| *lines > LINES)
        .map(|(lines, path)| format!("{}: {lines} lines", path.display()))
        .collect();
    assert!(long.is_empty(), "above {LINES} lines: {long:?}");
}

/// The section, the line above and the line itself of every entry of the manifest.
fn lines(manifest: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let (mut section, mut above) = ("", "");
    manifest.lines().filter_map(move |line| {
        let entry = (section, above, line);
        above = line;
        if line.starts_with('[') {
            section = line;
        }
        // What is indented or closes a list belongs to the entry above.
        line.starts_with(|c: char| c.is_ascii_alphanumeric()).then_some(entry)
    })
}

/// The entries that have to say why they are there, and what stands above each.
fn entries(manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    let needs_reason = |section: &str, line: &str| {
        section.ends_with("dependencies]")
            || (section == "[features]" && !line.starts_with("default ="))
    };
    lines(manifest)
        .filter(move |(section, _, line)| needs_reason(section, line))
        .map(|(_, above, line)| (above, line))
}

fn unexplained(manifest: &str) -> Vec<&str> {
    entries(manifest).filter(|(above, _)| !above.starts_with("# ")).map(|(_, line)| line).collect()
}

fn has_entry(manifest: &str, section: &str, entry: &str) -> bool {
    lines(manifest).any(|(of, _, line)| of == section && line == entry)
}

#[test]
fn an_entry_without_a_comment_is_found() {
    let manifest = "\
[package]
name = \"x\"
[features]
default = []
# Why.
good = []
bad = [
    \"good\",
]
[target.'cfg(unix)'.dependencies]
# Why.
fine = \"1\"
poor = \"1\"
[dev-dependencies]
worse = \"1\"
[lints.rust]
unsafe_code = \"forbid\"
";
    assert_eq!(unexplained(manifest), ["bad = [", "poor = \"1\"", "worse = \"1\""]);
    assert!(has_entry(manifest, "[lints.rust]", "unsafe_code = \"forbid\""));
    assert!(!has_entry(manifest, "[features]", "unsafe_code = \"forbid\""));
}
