//! What idempotency keys were used for.

use super::Harness;
use super::tools::{HandClock, Write, key, named, open, request, tenant, write};
use crate::domain::revision::Revision;
use crate::storage::{Kind, integrity};

/// With the commit that it made, and when that was.
pub async fn a_request_is_remembered(harness: &dyn Harness) {
    let store = open(harness).await;
    let tenant = tenant();
    assert_eq!(request(&store, &tenant, key("id")).await, None);
    write(
        &store,
        &tenant,
        Write::record(Kind::Session, &key("a"), "1"),
    )
    .await;
    let commit = Write::record(Kind::Session, &key("a"), "2").request(&key("id"), "receipt");
    write(&store, &tenant, commit).await;
    let found = request(&store, &tenant, key("id")).await.unwrap();
    assert_eq!(found.revision, Revision::new(2));
    assert_eq!(found.at.as_micros(), 1_000_000);
    assert_eq!(found.body, "receipt");
    integrity::check_request(&tenant, &key("id"), &found).unwrap();
    assert_eq!(request(&store, &tenant, key("i")).await, None);
    assert_eq!(request(&store, &named("other"), key("id")).await, None);
}

/// A key that was used again after it was forgotten stands for its new use.
pub async fn a_request_is_replaced(harness: &dyn Harness) {
    let clock = HandClock::at(1_000_000);
    let store = harness.open(clock.clone()).await;
    let tenant = tenant();
    for (time, body) in [(1, "first"), (2, "second")] {
        clock.set(time * 1_000_000);
        let commit = Write::record(Kind::Session, &key("a"), body).request(&key("id"), body);
        write(&store, &tenant, commit).await;
    }
    let found = request(&store, &tenant, key("id")).await.unwrap();
    assert_eq!(found.revision, Revision::new(2));
    assert_eq!(found.at.as_micros(), 2_000_000);
    assert_eq!(found.body, "second");
}
