//! The model: a store in memory, simple enough to be right.
//!
//! For tests, and for comparing the other backends with. Nothing outlives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Mutex, watch};

use super::poll::to_end;
use super::wake::Wake;
use super::{
    Abort, Boxed, Changes, Committed, Direction, ErasedOperation, ErasedQuery, Error, FeedEntry,
    Identity, Index, IndexHit, Key, Kind, Mark, Reads, RequestRecord, Result, Row, Store, Stretch,
    Version, integrity,
};
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, RowClass};
use crate::domain::revision::Revision;
use crate::domain::time::{Clock, Timestamp};

/// A store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    /// `None` once the store is closed. Whoever waits for it does not hold up a
    /// thread, and is served in turn.
    tenants: Mutex<Option<BTreeMap<Tenant, Data>>>,
    identity: Identity,
    clock: Arc<dyn Clock>,
    wake: Wake,
}

/// What one tenant has.
#[derive(Debug, Default)]
struct Data {
    revision: Revision,
    at: Timestamp,
    chain: Digest,
    /// All changes, in commit order.
    feed: Vec<FeedEntry>,
    /// Where in the feed the versions of a record are, oldest first.
    records: BTreeMap<(Kind, Key), Vec<usize>>,
    places: BTreeMap<Index, BTreeSet<IndexHit>>,
    rows: BTreeMap<(LogId, RowClass, i64), Row>,
    requests: BTreeMap<Key, RequestRecord>,
}

impl MemoryStore {
    /// An empty store.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when the machine has no random numbers.
    pub fn new(clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self {
            tenants: Mutex::new(Some(BTreeMap::new())),
            identity: Identity::random()?,
            clock,
            wake: Wake::default(),
        })
    }
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".into())
}

impl Data {
    /// Refuses what a database's constraints would.
    fn check(&self, changes: &Changes) -> Result<()> {
        let mut rows = BTreeSet::new();
        for append in &changes.appends {
            let place = (append.log, append.class, append.number);
            if self.rows.contains_key(&place) || !rows.insert(place) {
                let number = append.number;
                return Err(Error::Internal(format!("row {number} of the log exists")));
            }
        }
        let mut records = BTreeSet::new();
        for put in &changes.puts {
            let record = (put.kind, put.key.clone());
            if put.kind == Kind::TimelineEntry && self.records.contains_key(&record) {
                return Err(Error::Internal("a timeline entry is written once".into()));
            }
            if !records.insert(record) {
                return Err(Error::Internal("a record is stored twice".into()));
            }
        }
        Ok(())
    }

    fn apply(&mut self, changes: Changes, now: Timestamp) -> Result<()> {
        if changes.puts.is_empty() {
            return Err(Error::Internal("a commit has to change a record".into()));
        }
        self.check(&changes)?;
        self.revision = self.revision.next();
        self.at = now;
        for append in changes.appends {
            let row = Row {
                number: append.number,
                origin: append.origin,
                at: now,
                body: append.body,
                digest: append.digest,
                chain: append.chain,
                mark: append.mark,
            };
            self.rows
                .insert((append.log, append.class, append.number), row);
        }
        for put in changes.puts {
            self.chain =
                integrity::feed_chain(self.chain, self.revision, put.kind, &put.key, put.digest);
            for entry in put.unindex {
                self.places
                    .entry(entry.index)
                    .or_default()
                    .remove(&IndexHit {
                        place: entry.place,
                        key: put.key.clone(),
                    });
            }
            for entry in put.index {
                self.places
                    .entry(entry.index)
                    .or_default()
                    .insert(IndexHit {
                        place: entry.place,
                        key: put.key.clone(),
                    });
            }
            self.records
                .entry((put.kind, put.key.clone()))
                .or_default()
                .push(self.feed.len());
            let version = Version {
                revision: self.revision,
                at: now,
                body: put.body,
                digest: put.digest,
            };
            self.feed.push(FeedEntry {
                kind: put.kind,
                key: put.key,
                version,
                chain: self.chain,
            });
        }
        if let Some(request) = changes.request {
            let record = RequestRecord {
                revision: self.revision,
                at: now,
                body: request.body,
                digest: request.digest,
            };
            self.requests.insert(request.key, record);
        }
        Ok(())
    }

    /// The version of a record that was current at `at`.
    fn version(&self, places: &[usize], at: Revision) -> Option<&Version> {
        places
            .iter()
            .rev()
            .filter_map(|place| self.feed.get(*place))
            .map(|entry| &entry.version)
            .find(|version| version.revision <= at)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn execute(
        &self,
        tenant: &Tenant,
        operation: Arc<dyn ErasedOperation>,
    ) -> Result<Committed<Boxed>, Abort> {
        let committed = {
            let mut tenants = self.tenants.lock().await;
            let tenants = tenants.as_mut().ok_or_else(closed)?;
            let data = tenants.entry(tenant.clone()).or_default();
            let now = self.clock.now().max(data.at);
            let mut reads = Snapshot { tenant, data, now };
            let (changes, output) = to_end(operation.run(&mut reads))?;
            if !changes.is_empty() {
                data.apply(changes, now)?;
            }
            Committed {
                revision: data.revision,
                at: now,
                output,
            }
        };
        self.wake.committed(tenant, committed.revision);
        Ok(committed)
    }

    async fn inspect(&self, tenant: &Tenant, query: &dyn ErasedQuery) -> Result<Boxed, Abort> {
        let tenants = self.tenants.lock().await;
        let tenants = tenants.as_ref().ok_or_else(closed)?;
        let empty = Data::default();
        let data = tenants.get(tenant).unwrap_or(&empty);
        let now = self.clock.now().max(data.at);
        to_end(query.run(&mut Snapshot { tenant, data, now }))
    }

    fn commits(&self, tenant: &Tenant) -> watch::Receiver<Revision> {
        self.wake.subscribe(tenant)
    }

    async fn tenants(&self) -> Result<Vec<Tenant>> {
        let tenants = self.tenants.lock().await;
        let tenants = tenants.as_ref().ok_or_else(closed)?;
        Ok(tenants
            .iter()
            .filter(|(_, data)| data.revision > Revision::ZERO)
            .map(|(tenant, _)| tenant.clone())
            .collect())
    }

    async fn ready(&self) -> Result<()> {
        match *self.tenants.lock().await {
            Some(_) => Ok(()),
            None => Err(closed()),
        }
    }

    async fn close(&self) {
        self.tenants.lock().await.take();
    }
}

/// One tenant's data, held still.
struct Snapshot<'a> {
    tenant: &'a Tenant,
    data: &'a Data,
    now: Timestamp,
}

/// Goes through `all`, which is in order, as a stretch says.
fn travel<'a, T, I>(
    all: I,
    stretch: &'a Stretch,
    name: impl Fn(&T) -> &[u8] + 'a,
) -> impl Iterator<Item = T> + 'a
where
    T: 'a,
    I: DoubleEndedIterator<Item = T> + 'a,
{
    let forward = stretch.direction == Direction::Forward;
    let mut all = all;
    std::iter::from_fn(move || if forward { all.next() } else { all.next_back() }).filter(
        move |one| {
            let name = name(one);
            name.starts_with(&stretch.prefix)
                && stretch
                    .after
                    .as_ref()
                    .is_none_or(|after| if forward { name > after } else { name < after })
        },
    )
}

#[async_trait]
impl Reads for Snapshot<'_> {
    fn tenant(&self) -> &Tenant {
        self.tenant
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    async fn revision(&mut self) -> Result<Revision> {
        Ok(self.data.revision)
    }

    async fn record(&mut self, kind: Kind, key: &Key, at: Revision) -> Result<Option<Version>> {
        let places = self.data.records.get(&(kind, key.clone()));
        Ok(places
            .and_then(|places| self.data.version(places, at))
            .cloned())
    }

    async fn records(
        &mut self,
        kind: Kind,
        stretch: &Stretch,
        at: Revision,
    ) -> Result<Vec<(Key, Version)>> {
        let all = self.data.records.iter().filter(|((of, _), _)| *of == kind);
        let found = travel(all, stretch, |((_, key), _)| key.as_bytes()).filter_map(
            |((_, key), places)| Some((key.clone(), self.data.version(places, at)?.clone())),
        );
        Ok(found.take(stretch.limit).collect())
    }

    async fn index(&mut self, index: Index, stretch: &Stretch) -> Result<Vec<IndexHit>> {
        let Some(all) = self.data.places.get(&index) else {
            return Ok(Vec::new());
        };
        Ok(travel(all.iter(), stretch, |hit| &hit.place)
            .take(stretch.limit)
            .cloned()
            .collect())
    }

    async fn rows(&mut self, log: LogId, class: RowClass, from: i64, to: i64) -> Result<Vec<Row>> {
        if from > to {
            return Ok(Vec::new());
        }
        Ok(self
            .data
            .rows
            .range((log, class, from)..=(log, class, to))
            .map(|(_, row)| row.clone())
            .collect())
    }

    async fn marks(&mut self, log: LogId, from: i64, to: i64) -> Result<Vec<Mark>> {
        let rows = self.rows(log, RowClass::Item, from, to).await?;
        Ok(rows
            .into_iter()
            .map(|row| Mark {
                number: row.number,
                mark: row.mark,
                chain: row.chain,
            })
            .collect())
    }

    async fn feed(
        &mut self,
        kinds: &[Kind],
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<Vec<FeedEntry>> {
        let start = self
            .data
            .feed
            .partition_point(|entry| entry.version.revision <= after);
        let mut found: Vec<FeedEntry> = Vec::new();
        for entry in self.data.feed.iter().skip(start) {
            let revision = entry.version.revision;
            let begun = found
                .last()
                .is_some_and(|last| last.version.revision == revision);
            if revision > until || (found.len() >= limit && !begun) {
                break;
            }
            if kinds.contains(&entry.kind) {
                found.push(entry.clone());
            }
        }
        Ok(found)
    }

    async fn chain(&mut self, revision: Revision) -> Result<Option<Digest>> {
        let end = self
            .data
            .feed
            .partition_point(|entry| entry.version.revision <= revision);
        let last = end.checked_sub(1).and_then(|last| self.data.feed.get(last));
        Ok(last
            .filter(|entry| entry.version.revision == revision)
            .map(|entry| entry.chain))
    }

    async fn request(&mut self, key: &Key) -> Result<Option<RequestRecord>> {
        Ok(self.data.requests.get(key).cloned())
    }
}
