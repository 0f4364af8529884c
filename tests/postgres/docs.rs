//! The SQL in `docs/fencing.md` is the SQL that is tested.

use quorumlock::fenced::postgres::{CHECK, MIGRATION};

const FENCING: &str = include_str!("../../docs/fencing.md");

/// The only block of SQL in the docs that begins with these words.
#[track_caller]
pub(crate) fn sql(beginning: &str) -> &'static str {
    let blocks = FENCING.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut blocks = blocks.filter(|block| block.starts_with(beginning));
    let block = blocks.next().unwrap_or_else(|| panic!("no SQL begins with {beginning:?}"));
    assert_eq!(blocks.next(), None, "more than one begins with {beginning:?}");
    block
}

#[test]
fn the_docs_show_the_migration_and_the_check() {
    assert_eq!(sql("CREATE TABLE"), MIGRATION);
    assert_eq!(sql("INSERT INTO quorumlock_fence"), CHECK);
}
