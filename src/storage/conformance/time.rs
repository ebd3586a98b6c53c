//! The store's time.

use super::Harness;
use super::tools::{HandClock, Write, key, log, named, now, record, request, rows, tenant, write};
use crate::domain::log::RowClass;
use crate::domain::revision::Revision;
use crate::storage::Kind;

/// When the clock is set back, time stands still until the clock has caught up.
pub async fn time_never_goes_backwards(harness: &dyn Harness) {
    let clock = HandClock::at(5_000_000);
    let store = harness.open(clock.clone()).await;
    let tenant = tenant();
    let touch = || Write::record(Kind::Session, &key("a"), "x");
    assert_eq!(now(&store, &tenant).await.as_micros(), 5_000_000);
    let mut last = 0;
    for (hands, expected) in [(5, 5), (3, 5), (4, 5), (6, 6), (1, 6)] {
        clock.set(hands * 1_000_000);
        let committed = write(&store, &tenant, touch()).await;
        assert_eq!(committed.at.as_micros(), expected * 1_000_000);
        assert_eq!(now(&store, &tenant).await.as_micros(), expected * 1_000_000);
        assert!(committed.at.as_micros() >= last);
        last = committed.at.as_micros();
        let stored = record(&store, &tenant, Kind::Session, key("a"), Revision::LATEST).await;
        assert_eq!(stored.unwrap().at, committed.at);
    }
    // It is a matter of each tenant.
    let other = named("other");
    assert_eq!(now(&store, &other).await.as_micros(), 1_000_000);
    let committed = write(&store, &other, touch()).await;
    assert_eq!(committed.at.as_micros(), 1_000_000);
}

/// That of the commit, which is also what the caller is told.
pub async fn rows_records_and_requests_of_a_commit_have_one_time(harness: &dyn Harness) {
    let store = harness.open(HandClock::at(7_000_001)).await;
    let tenant = tenant();
    let commit = Write::record(Kind::Session, &key("a"), "x")
        .row(log(1), RowClass::Item, 1, "item")
        .request(&key("id"), "receipt");
    let committed = write(&store, &tenant, commit).await;
    assert_eq!(committed.at.as_micros(), 7_000_001);
    let version = record(&store, &tenant, Kind::Session, key("a"), Revision::LATEST).await;
    assert_eq!(version.unwrap().at, committed.at);
    let rows = rows(&store, &tenant, log(1), RowClass::Item, 1, 1).await;
    assert_eq!(rows[0].at, committed.at);
    assert_eq!(
        request(&store, &tenant, key("id")).await.unwrap().at,
        committed.at
    );
}
