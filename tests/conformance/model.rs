//! Whatever is done, SQLite answers what the model in memory answers.

use std::sync::Arc;

use adjourn::domain::id::Tenant;
use adjourn::domain::log::RowClass;
use adjourn::domain::revision::Revision;
use adjourn::storage::conformance::tools::{
    HandClock, Write, all, chain, feed, index, log, marks, named, now, record, records, request,
    rows,
};
use adjourn::storage::memory::MemoryStore;
use adjourn::storage::sqlite::Options;
use adjourn::storage::{Abort, Direction, Error, Index, IndexEntry, Key, Kind, Store, Stretch};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::harness::SqliteHarness;

const TENANTS: [&str; 2] = ["a", "ab"];
const KINDS: [Kind; 3] = [Kind::Session, Kind::Interrupt, Kind::TimelineEntry];
const INDEXES: [Index; 2] = [Index::SessionSaved, Index::InterruptState];

/// Keys, places and prefixes that are easily confused.
const NAMES: [&[u8]; 9] = [
    b"",
    b"\0",
    b"a",
    b"a\0",
    b"a\0b",
    b"ab",
    b"b",
    b"\xff",
    b"\xff\xff",
];

#[derive(Clone, Debug)]
enum Step {
    Write(&'static str, Write),
    SetClock(i64),
    Reopen,
    Records(Kind, Stretch, i64),
    Index(Index, Stretch),
    Feed(Vec<Kind>, i64, i64, usize),
    Rows(i64, i64),
}

fn name() -> impl Strategy<Value = &'static [u8]> {
    select(NAMES.as_slice())
}

fn key() -> impl Strategy<Value = Key> {
    name().prop_map(Key::from_bytes)
}

fn entries() -> impl Strategy<Value = Vec<IndexEntry>> {
    let entry = (select(INDEXES.as_slice()), name()).prop_map(|(index, place)| IndexEntry {
        index,
        place: Bytes::from_static(place),
    });
    vec(entry, 0..3)
}

fn write() -> impl Strategy<Value = Write> {
    let put = (
        select(KINDS.as_slice()),
        key(),
        vec(any::<u8>(), 0..4),
        entries(),
        entries(),
    );
    let class = select([RowClass::Item, RowClass::Cell].as_slice());
    let row = (1..3_u128, class, 0..12_i64, "[ab]{0,2}");
    let request = proptest::option::weighted(0.5, (key(), "[ab]{0,2}"));
    let end = prop_oneof![8 => Just(false), 1 => Just(true)];
    (vec(put, 0..4), vec(row, 0..3), request, end).prop_map(|(puts, appends, request, refused)| {
        let mut write = Write::new();
        for (kind, key, body, unindex, index) in puts {
            write = write.put_indexed(kind, &key, &body, &unindex, &index);
        }
        for (number, class, row, body) in appends {
            write = write.row(log(number), class, row, &body);
        }
        if let Some((key, body)) = request {
            write = write.request(&key, &body);
        }
        if refused { write.refused() } else { write }
    })
}

fn stretch() -> impl Strategy<Value = Stretch> {
    let direction = select([Direction::Forward, Direction::Backward].as_slice());
    (name(), proptest::option::of(name()), direction, 0..6_usize).prop_map(
        |(prefix, after, direction, limit)| Stretch {
            prefix: Bytes::from_static(prefix),
            after: after.map(Bytes::from_static),
            direction,
            limit,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![0..12_i64, Just(i64::MAX)];
    let kind = || select(KINDS.as_slice());
    prop_oneof![
        12 => (select(TENANTS.as_slice()), write()).prop_map(|(tenant, write)| Step::Write(tenant, write)),
        1 => (0..9_i64).prop_map(Step::SetClock),
        1 => Just(Step::Reopen),
        3 => (kind(), stretch(), at()).prop_map(|(kind, stretch, at)| Step::Records(kind, stretch, at)),
        3 => (select(INDEXES.as_slice()), stretch()).prop_map(|(index, stretch)| Step::Index(index, stretch)),
        3 => (vec(kind(), 0..3), at(), at(), 0..6_usize).prop_map(|(kinds, after, until, limit)| {
            Step::Feed(kinds, after, until, limit)
        }),
        2 => (-1..12_i64, -1..12_i64).prop_map(|(from, to)| Step::Rows(from, to)),
    ]
}

/// The outcome of an operation, as far as backends have to agree on it.
async fn outcome(store: &Arc<dyn Store>, tenant: &Tenant, write: Write) -> String {
    match store.transact(tenant, write).await {
        Ok(committed) => format!("{committed:?}"),
        Err(Abort::Refused(_)) => "refused".into(),
        Err(Abort::Store(Error::Internal(_))) => "broken".into(),
        Err(other) => format!("{other:?}"),
    }
}

/// What a step of reading finds.
async fn look(store: &Arc<dyn Store>, tenant: &Tenant, step: &Step) -> String {
    match step.clone() {
        Step::Records(kind, stretch, at) => {
            let found = records(store, tenant, kind, stretch, Revision::new(at)).await;
            format!("{found:?}")
        }
        Step::Index(order, stretch) => format!("{:?}", index(store, tenant, order, stretch).await),
        Step::Feed(kinds, after, until, limit) => {
            let (after, until) = (Revision::new(after), Revision::new(until));
            format!(
                "{:?}",
                feed(store, tenant, kinds, after, until, limit).await
            )
        }
        Step::Rows(from, to) => {
            let items = rows(store, tenant, log(1), RowClass::Item, from, to).await;
            let cells = rows(store, tenant, log(2), RowClass::Cell, from, to).await;
            format!(
                "{items:?} {cells:?} {:?}",
                marks(store, tenant, log(1), from, to).await
            )
        }
        Step::Write(..) | Step::SetClock(_) | Step::Reopen => String::new(),
    }
}

/// All that can be asked about a tenant.
async fn everything(store: &Arc<dyn Store>, tenant: &Tenant) -> String {
    let (newest, entries) = all(store, tenant).await;
    let mut seen = format!("{entries:?} {}", now(store, tenant).await.as_micros());
    for at in 0..=newest.get() {
        seen += &format!(
            "\n{at}: {:?}",
            chain(store, tenant, Revision::new(at)).await
        );
    }
    for name in NAMES {
        let key = Key::from_bytes(name);
        seen += &format!("\n{:?}", request(store, tenant, key.clone()).await);
        for kind in KINDS {
            for at in [Revision::new(newest.get() / 2), Revision::LATEST] {
                seen += &format!("\n{:?}", record(store, tenant, kind, key.clone(), at).await);
            }
        }
    }
    seen
}

async fn compare(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let clock = HandClock::at(5);
    let options = Options {
        clock: clock.clone(),
        sync: false,
        ..Options::default()
    };
    let harness = SqliteHarness::new();
    let model: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.clone()).unwrap());
    let mut store: Arc<dyn Store> = harness.open_with(&options);
    for step in &steps {
        match step {
            Step::SetClock(micros) => clock.set(*micros),
            Step::Reopen => {
                store.close().await;
                store = harness.open_with(&options);
            }
            Step::Write(tenant, write) => {
                let tenant = named(tenant);
                let expected = outcome(&model, &tenant, write.clone()).await;
                prop_assert_eq!(outcome(&store, &tenant, write.clone()).await, expected);
            }
            Step::Records(..) | Step::Index(..) | Step::Feed(..) | Step::Rows(..) => {
                for tenant in TENANTS.map(named) {
                    let expected = look(&model, &tenant, step).await;
                    prop_assert_eq!(look(&store, &tenant, step).await, expected);
                }
            }
        }
    }
    prop_assert_eq!(
        store.tenants().await.unwrap(),
        model.tenants().await.unwrap()
    );
    for tenant in TENANTS.map(named) {
        let expected = everything(&model, &tenant).await;
        prop_assert_eq!(everything(&store, &tenant).await, expected);
    }
    store.close().await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sqlite_answers_what_the_model_answers(steps in vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(steps))?;
    }
}
