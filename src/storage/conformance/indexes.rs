//! Index entries.

use std::sync::Arc;

use bytes::Bytes;

use super::Harness;
use super::tools::{Write, entry, index, key, open, tenant, write};
use crate::domain::id::Tenant;
use crate::storage::{Direction, Index, Kind, Store, Stretch};

async fn find(
    store: &Arc<dyn Store>,
    tenant: &Tenant,
    prefix: &'static str,
    direction: Direction,
) -> String {
    let stretch = Stretch {
        prefix: Bytes::from_static(prefix.as_bytes()),
        after: None,
        direction,
        limit: 99,
    };
    let hits = index(store, tenant, Index::InterruptState, stretch).await;
    let hits = hits.iter().map(|hit| {
        let place = String::from_utf8_lossy(&hit.place);
        format!("{place}={}", String::from_utf8_lossy(hit.key.as_bytes()))
    });
    hits.collect::<Vec<_>>().join(" ")
}

async fn place(store: &Arc<dyn Store>, tenant: &Tenant, name: &str, places: &[&str]) {
    let places: Vec<_> = places
        .iter()
        .map(|place| entry(Index::InterruptState, place))
        .collect();
    let commit = Write::new().put_indexed(Kind::Interrupt, &key(name), b"x", &[], &places);
    write(store, tenant, commit).await;
}

/// In both directions, and only those with the prefix.
pub async fn an_index_is_ordered_by_place_then_key(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    place(&store, &tenant, "z", &["b", "ba"]).await;
    place(&store, &tenant, "y", &["b"]).await;
    place(&store, &tenant, "x", &["c", "a"]).await;
    // Another index does not show.
    let other = [entry(Index::InterruptCreated, "b")];
    let commit = Write::new().put_indexed(Kind::Interrupt, &key("w"), b"x", &[], &other);
    write(&store, &tenant, commit).await;
    let (forward, backward) = (Direction::Forward, Direction::Backward);
    assert_eq!(
        find(&store, &tenant, "", forward).await,
        "a=x b=y b=z ba=z c=x"
    );
    assert_eq!(
        find(&store, &tenant, "", backward).await,
        "c=x ba=z b=z b=y a=x"
    );
    assert_eq!(find(&store, &tenant, "b", forward).await, "b=y b=z ba=z");
    assert_eq!(find(&store, &tenant, "b", backward).await, "ba=z b=z b=y");
    assert_eq!(find(&store, &tenant, "ba", forward).await, "ba=z");
    assert_eq!(find(&store, &tenant, "d", forward).await, "");
}

/// Going on after the last place of a page gives all, once.
pub async fn pages_of_an_index_neither_repeat_nor_skip(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    for name in ["a", "b", "c", "d", "e"] {
        place(&store, &tenant, name, &[name]).await;
    }
    for (direction, expected) in [
        (Direction::Forward, "abcde"),
        (Direction::Backward, "edcba"),
    ] {
        let mut next = Stretch {
            prefix: Bytes::new(),
            after: None,
            direction,
            limit: 2,
        };
        let mut seen = String::new();
        loop {
            let page = index(&store, &tenant, Index::InterruptState, next.clone()).await;
            let Some(last) = page.last() else { break };
            next.after = Some(last.place.clone());
            for hit in page {
                seen.push_str(std::str::from_utf8(&hit.place).unwrap());
            }
            assert!(seen.len() <= expected.len(), "pages without end");
        }
        assert_eq!(seen, expected);
    }
}

/// An index shows how things are now, not how they were.
pub async fn an_entry_is_there_until_it_is_taken_away(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    place(&store, &tenant, "x", &["old", "stays"]).await;
    place(&store, &tenant, "y", &["old"]).await;
    let moved = Write::new().put_indexed(
        Kind::Interrupt,
        &key("x"),
        b"2",
        &[entry(Index::InterruptState, "old")],
        &[entry(Index::InterruptState, "new")],
    );
    write(&store, &tenant, moved).await;
    let found = find(&store, &tenant, "", Direction::Forward).await;
    assert_eq!(found, "new=x old=y stays=x");
}

/// Neither putting an entry that is there is an error, nor taking one away that is
/// not.
pub async fn an_entry_put_twice_is_there_once(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    place(&store, &tenant, "x", &["a"]).await;
    place(&store, &tenant, "x", &["a"]).await;
    let gone = [entry(Index::InterruptState, "never")];
    let commit = Write::new().put_indexed(Kind::Interrupt, &key("x"), b"3", &gone, &[]);
    write(&store, &tenant, commit).await;
    assert_eq!(find(&store, &tenant, "", Direction::Forward).await, "a=x");
}
