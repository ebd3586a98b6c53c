//! Rows of logs.

use super::Harness;
use super::tools::{Write, key, log, marks, open, revision, rows, tenant, text, write};
use crate::domain::log::{Origin, RowClass};
use crate::domain::revision::Revision;
use crate::storage::{Abort, Kind, integrity};

fn touch() -> Write {
    Write::record(Kind::Session, &key("owner"), "x")
}

/// A second row of one number is refused, and all of its commit with it.
pub async fn a_row_is_written_once(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let first = touch().row(log(1), RowClass::Item, 1, "first");
    write(&store, &tenant, first).await;
    for body in ["second", "first"] {
        let again = Write::record(Kind::Session, &key("owner"), "changed")
            .row(log(1), RowClass::Item, 2, "new")
            .row(log(1), RowClass::Item, 1, body);
        let outcome = store.transact(&tenant, again).await;
        assert!(matches!(outcome, Err(Abort::Store(_))), "{outcome:?}");
    }
    let left = rows(&store, &tenant, log(1), RowClass::Item, i64::MIN, i64::MAX).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].body, "first");
    assert_eq!(text(&store, &tenant, Kind::Session, "owner").await, "x");
    assert_eq!(revision(&store, &tenant).await, Revision::new(1));
}

/// Also when both are new.
pub async fn one_row_twice_in_a_commit_is_refused(harness: &dyn Harness) {
    let store = open(harness).await;
    let twice = touch()
        .row(log(1), RowClass::Item, 1, "a")
        .row(log(1), RowClass::Item, 1, "b");
    let outcome = store.transact(&tenant(), twice).await;
    assert!(matches!(outcome, Err(Abort::Store(_))), "{outcome:?}");
    let left = rows(&store, &tenant(), log(1), RowClass::Item, 0, 9).await;
    assert!(left.is_empty());
}

/// A range gives what is there, in order.
pub async fn absent_rows_are_left_out(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let commit = touch()
        .row(log(1), RowClass::Item, 7, "7")
        .row(log(1), RowClass::Item, 2, "2")
        .row(log(1), RowClass::Item, 3, "3");
    write(&store, &tenant, commit).await;
    let find = async |from, to| {
        let found = rows(&store, &tenant, log(1), RowClass::Item, from, to).await;
        found.iter().map(|row| row.number).collect::<Vec<_>>()
    };
    assert_eq!(find(1, 9).await, [2, 3, 7]);
    assert_eq!(find(2, 3).await, [2, 3]);
    assert_eq!(find(3, 3).await, [3]);
    assert!(find(4, 6).await.is_empty());
    assert!(find(3, 2).await.is_empty());
    assert_eq!(find(i64::MIN, i64::MAX).await, [2, 3, 7]);
}

/// Rows of two classes, or of two logs, may have one number.
pub async fn classes_and_logs_are_apart(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let classes = [RowClass::Item, RowClass::Cell, RowClass::Node];
    let mut commit = touch();
    for number in [1, 2] {
        for class in classes {
            commit = commit.row(log(number), class, 1, &format!("{number}{class:?}"));
        }
    }
    write(&store, &tenant, commit).await;
    for number in [1, 2] {
        for class in classes {
            let found = rows(&store, &tenant, log(number), class, 0, 9).await;
            assert_eq!(found.len(), 1);
            let row = &found[0];
            assert_eq!(row.body, format!("{number}{class:?}"));
            assert_eq!(row.origin, Origin::Said);
            integrity::check_row(&tenant, log(number), class, row).unwrap();
        }
    }
}

/// What histories are compared by is that of the items, and of nothing else.
pub async fn marks_are_those_of_the_items(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    let commit = touch()
        .row(log(1), RowClass::Item, 1, "a")
        .row(log(1), RowClass::Item, 3, "b")
        .row(log(1), RowClass::Cell, 2, "c")
        .row(log(2), RowClass::Item, 2, "d");
    write(&store, &tenant, commit).await;
    let items = rows(&store, &tenant, log(1), RowClass::Item, 0, 9).await;
    let found = marks(&store, &tenant, log(1), 0, 9).await;
    let seen: Vec<_> = found.iter().map(|m| (m.number, m.mark, m.chain)).collect();
    let expected: Vec<_> = items.iter().map(|r| (r.number, r.mark, r.chain)).collect();
    assert_eq!(seen, expected);
    assert_eq!(seen.len(), 2);
    assert_eq!(marks(&store, &tenant, log(1), 2, 3).await.len(), 1);
    assert_eq!(marks(&store, &tenant, log(1), 3, 2).await.len(), 0);
}
