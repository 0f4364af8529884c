//! `lib.rs` declares the modules bottom-up, and a module uses only modules declared above it.

use std::{iter::Peekable, path::Path, str::Chars};

use crate::{files_under, read};

#[test]
fn modules_use_only_modules_declared_above_them() {
    let lib = read("src/lib.rs");
    let sources =
        files_under("src").into_iter().filter(|path| path.extension() == Some("rs".as_ref()));
    let violations: Vec<String> =
        sources.flat_map(|path| violations(&lib, &path, &read(&path))).collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// What a file uses against the order of `lib`, one sentence each.
fn violations(lib: &str, path: &Path, text: &str) -> Vec<String> {
    let modules = declared_modules(lib);
    let Some(own) = top_module(path) else {
        return Vec::new();
    };
    let Some(own_place) = modules.iter().position(|module| *module == own) else {
        return vec![format!("{}: {own} is not declared in lib.rs", path.display())];
    };
    let complaint = |used: String| {
        let why = match modules.iter().position(|module| *module == used) {
            Some(place) if place <= own_place => return None,
            Some(_) => format!("which is declared below {own}"),
            None => "which is no module: what lib.rs exports comes from below".to_owned(),
        };
        Some(format!("{}: uses crate::{used}, {why}", path.display()))
    };
    crate_paths(&code_of(text)).into_iter().filter_map(complaint).collect()
}

/// The modules in the order of their declarations.
fn declared_modules(lib: &str) -> Vec<String> {
    let declarations = lib.lines().filter_map(|line| {
        let line = line.trim().strip_suffix(';')?;
        let (visibility, name) = line.split_once("mod ")?;
        let visibility = visibility.trim();
        (visibility.is_empty() || visibility.starts_with("pub")).then(|| name.trim().to_owned())
    });
    declarations.collect()
}

/// The module of `lib.rs` that a file belongs to; none for `lib.rs` itself.
fn top_module(path: &Path) -> Option<String> {
    let path = path.strip_prefix("src").expect("a path below src");
    let module = Path::new(path.components().next()?.as_os_str()).file_stem()?.to_str()?;
    (module != "lib").then(|| module.to_owned())
}

/// What follows each `crate::`, one name for each branch of a group.
fn crate_paths(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, root) in code.match_indices("crate::") {
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let (before, from) = (code.get(..at), code.get(at.saturating_add(root.len())..));
        if before.is_some_and(|before| before.ends_with(is_word)) {
            continue;
        }
        let path = from.unwrap_or_default().trim_start();
        match path.strip_prefix('{') {
            Some(group) => names.extend(branches(group)),
            None => names.extend(first_name(path)),
        }
    }
    names
}

/// The first name of each branch of a group whose brace was read.
fn branches(group: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut branches = vec![String::new()];
    for c in group.chars() {
        match c {
            '{' => depth = depth.saturating_add(1),
            '}' if depth == 0 => break,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => branches.push(String::new()),
            c => branches.last_mut().expect("never empty").push(c),
        }
    }
    branches.iter().filter_map(|branch| first_name(branch.trim_start())).collect()
}

fn first_name(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// The text without comments and without what stands in quotes.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'/') => {
                rest.by_ref().find(|c| *c == '\n');
                code.push('\n');
            }
            '/' if rest.peek() == Some(&'*') => skip_block_comment(&mut rest),
            '"' if is_raw(&code) => skip_raw_string(&mut rest, &code),
            '"' => skip_string(&mut rest),
            '\'' => skip_char(&mut rest),
            c => code.push(c),
        }
    }
    code
}

fn skip_block_comment(rest: &mut Peekable<Chars<'_>>) {
    let (mut depth, mut last) = (1_usize, ' ');
    rest.next();
    for c in rest.by_ref() {
        last = match (last, c) {
            ('*', '/') => {
                depth = depth.saturating_sub(1);
                ' '
            }
            ('/', '*') => {
                depth = depth.saturating_add(1);
                ' '
            }
            _ => c,
        };
        if depth == 0 {
            return;
        }
    }
}

/// Whether the quote that comes next opens a raw string: `r"`, `br#"`.
fn is_raw(code: &str) -> bool {
    let opening = code.trim_end_matches('#');
    let opening = opening.strip_suffix('r').map(|before| before.trim_end_matches('b'));
    opening.is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn skip_raw_string(rest: &mut Peekable<Chars<'_>>, code: &str) {
    let hashes = code.chars().rev().take_while(|c| *c == '#').count();
    while rest.by_ref().any(|c| c == '"') {
        if rest.clone().take(hashes).filter(|c| *c == '#').count() == hashes {
            return;
        }
    }
}

fn skip_string(rest: &mut Peekable<Chars<'_>>) {
    while let Some(c) = rest.next() {
        match c {
            '\\' => drop(rest.next()),
            '"' => return,
            _ => {}
        }
    }
}

/// Skips a character in quotes, and leaves a lifetime alone.
fn skip_char(rest: &mut Peekable<Chars<'_>>) {
    let mut ahead = rest.clone();
    match (ahead.next(), ahead.next()) {
        (Some('\\'), _) => {
            rest.next();
            rest.next();
            rest.by_ref().find(|c| *c == '\'');
        }
        (Some(_), Some('\'')) => {
            rest.next();
            rest.next();
        }
        _ => {}
    }
}

const LIB: &str =
    "mod clock;\npub mod node;\nmod lane;\npub(crate) mod quorum;\n\npub use lane::Lane;\n";

#[track_caller]
fn check(path: &str, text: &str, used: &[&str]) {
    let found = violations(LIB, Path::new(path), text);
    let is_of = |complaint: &String, used: &&str| complaint.contains(&format!("crate::{used},"));
    let as_expected = found.len() == used.len() && found.iter().zip(used).all(|(c, u)| is_of(c, u));
    assert!(as_expected, "{text:?} in {path}: expected {used:?}, found {found:?}");
}

#[test]
fn a_use_of_a_module_declared_below_is_found() {
    check("src/clock.rs", "use crate::lane::Lane;", &["lane"]);
    check("src/node/mod.rs", "fn f() { crate::quorum::round() }", &["quorum"]);
    check("src/node/redis/mod.rs", "use crate::{clock::Clock, lane};", &["lane"]);
    check(
        "src/node/mod.rs",
        "use crate::{\n    clock::{Clock, Moment},\n    lane::{Lane, quorum},\n    quorum,\n};",
        &["lane", "quorum"],
    );
    check("src/node/mod.rs", "#[cfg(test)]\nmod tests { use crate::lane::Lane; }", &["lane"]);
    check("src/node/mod.rs", "const A: &str = \"redis://\"; use crate::lane;", &["lane"]);
    check("src/node/mod.rs", "fn f<'a>(c: char) { c == '\"'; crate::lane::f::<'a>() }", &["lane"]);
    check("src/node/mod.rs", "const A: &str = r#\"\"a\"#; use crate::lane;", &["lane"]);
}

#[test]
fn a_use_through_the_exports_of_lib_is_found() {
    check("src/quorum.rs", "use crate::Lane;", &["Lane"]);
}

#[test]
fn what_is_declared_above_or_only_talked_about_may_be_used() {
    check("src/lane/mod.rs", "use crate::{clock::Clock, node::Node, lane::Own};", &[]);
    check("src/clock.rs", "// use crate::lane;\n/// See [`crate::lane`].\n/* crate::lane */", &[]);
    check(
        "src/clock.rs",
        "const A: &str = \"crate::lane\"; const B: &str = r#\"crate::lane\"#;",
        &[],
    );
    check("src/clock.rs", "use other_crate::lane;", &[]);
    check("src/lib.rs", "fn f() { crate::quorum::f() }", &[]);
}

#[test]
fn a_file_of_no_declared_module_is_found() {
    assert_eq!(violations(LIB, Path::new("src/stray.rs"), "").len(), 1);
}
