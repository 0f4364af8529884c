//! `docs/kleppmann`: its links lead somewhere, on a page and in rustdoc, and the runs that it names exist.

use std::path::PathBuf;

use crate::{files_under, read, root};

const DOCS: &str = "docs/kleppmann";

/// The files, by name, with their texts without code.
fn chapters() -> Vec<(String, String)> {
    let chapter = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, prose(&read(path)))
    };
    files_under(DOCS).into_iter().map(chapter).collect()
}

fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The links that a text defines: label and target.
fn defined(prose: &str) -> Vec<(&str, &str)> {
    prose.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
}

/// The labels that a text uses, as `[label]` or as `[text][label]`.
fn used(prose: &str) -> Vec<&str> {
    let lines = prose.split_inclusive('\n').filter(|line| !line.contains("]: "));
    let brackets = lines.flat_map(|line| line.split('[').skip(1));
    // What another bracket follows at once is the text of a link.
    brackets.filter(|link| !link.ends_with(']')).filter_map(|link| link.split(']').next()).collect()
}

/// The tests that are named in items like "- `tests/file.rs`: `name`".
fn tests(prose: &str) -> Vec<(&str, &str)> {
    let named = prose.lines().filter_map(|line| line.strip_prefix("- `tests/")?.split_once("`: `"));
    named.filter_map(|(file, rest)| Some((file, rest.split_once('`')?.0))).collect()
}

#[test]
fn links_lead_somewhere_on_a_page_and_in_rustdoc() {
    let in_rustdoc = read("src/kleppmann/links.md");
    let in_rustdoc = defined(&in_rustdoc);
    for (file, text) in chapters() {
        let defined = defined(&text);
        for label in used(&text) {
            assert!(defined.iter().any(|(known, _)| *known == label), "{file}: [{label}]");
        }
        for (label, target) in defined {
            assert!(used(&text).contains(&label), "{file}: [{label}] is not used");
            if target.starts_with("http") {
                continue;
            }
            assert!(root().join(DOCS).join(target).is_file(), "{file}: {target}");
            let is_known = in_rustdoc.iter().any(|(known, _)| *known == label);
            assert!(is_known, "{file}: [{label}] leads nowhere in rustdoc");
        }
    }
}

#[test]
fn every_chapter_is_in_rustdoc_and_names_runs_that_exist() {
    let module = read("src/kleppmann/mod.rs");
    let mut named = 0_usize;
    for (file, text) in chapters() {
        assert!(module.contains(&format!("{DOCS}/{file}\")")), "{file} is not included");
        for (source, test) in tests(&text) {
            let source = read(format!("tests/{source}"));
            assert!(source.contains(&format!("fn {test}(")), "{file}: {test} does not exist");
            named = named.saturating_add(1);
        }
    }
    assert!(named >= 15, "{named} tests are found in the docs");
}

#[test]
fn links_and_tests_are_found_where_they_are() {
    let text = "\
See [one] and [the other][two].
```rust
let [a] = b[0];
```
- `tests/it/kleppmann.rs`: `prose`, and more.

[one]: 1.md
[two]: http://two
";
    let text = prose(text);
    assert_eq!(used(&text), ["one", "two"]);
    assert_eq!(defined(&text), [("one", "1.md"), ("two", "http://two")]);
    assert_eq!(tests(&text), [("it/kleppmann.rs", "prose")]);
}
