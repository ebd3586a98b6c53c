//! The domain's types over a store's rows: encoding, checking, and collecting
//! what an operation wants stored.
//!
//! The only place that knows how a record, an item or a cell is spelled in bytes.
//! Everything read passes its digest here, and everything written gets one.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    Append, Changes, Corrupt, Entity, Error, IndexEntry, Key, NewRequest, Put, Reads,
    RequestRecord, Result, Row, Version, integrity,
};
use crate::domain::diff::Sketch;
use crate::domain::id::Tenant;
use crate::domain::log::{
    Cell, Digest, Head, History, LogId, Origin, Range, RowClass, RowRef, Transcript,
};
use crate::domain::message::Item;
use crate::domain::revision::{Revision, Stamp};
use crate::domain::time::Timestamp;

/// A record that was read, with what is needed to store its successor.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The record; change it in place and hand it to [`ChangeSet::update`].
    pub value: T,
    /// The commit that wrote this version.
    pub revision: Revision,
    /// When that was.
    pub at: Timestamp,
    /// Where this version is to be found.
    was: Vec<IndexEntry>,
}

impl<T: Entity> Loaded<T> {
    /// A record that is not stored yet.
    #[must_use]
    pub const fn fresh(value: T) -> Self {
        Self {
            value,
            revision: Revision::ZERO,
            at: Timestamp::from_micros(0),
            was: Vec::new(),
        }
    }

    /// Whether the record is not stored yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.revision == Revision::ZERO
    }
}

/// The current version of a record.
///
/// # Errors
///
/// [`Error::Corrupt`] when it is not what was stored.
pub async fn load<T: Entity>(reads: &mut dyn Reads, key: &Key) -> Result<Option<Loaded<T>>> {
    load_at(reads, key, Revision::LATEST).await
}

/// The version of a record that was current at a revision.
///
/// # Errors
///
/// [`Error::Corrupt`] when it is not what was stored.
pub async fn load_at<T: Entity>(
    reads: &mut dyn Reads,
    key: &Key,
    at: Revision,
) -> Result<Option<Loaded<T>>> {
    let Some(version) = reads.record(T::KIND, key, at).await? else {
        return Ok(None);
    };
    decode(reads.tenant(), key, &version).map(Some)
}

/// What an idempotency key was used for.
///
/// # Errors
///
/// [`Error::Corrupt`] when it is not what was stored.
pub async fn request(reads: &mut dyn Reads, key: &Key) -> Result<Option<RequestRecord>> {
    let Some(record) = reads.request(key).await? else {
        return Ok(None);
    };
    integrity::check_request(reads.tenant(), key, &record)?;
    Ok(Some(record))
}

/// The record in a version.
///
/// # Errors
///
/// [`Error::Corrupt`] when it is not what was stored.
pub fn decode<T: Entity>(tenant: &Tenant, key: &Key, version: &Version) -> Result<Loaded<T>> {
    let body = integrity::check_record(tenant, T::KIND, key, version)?;
    let mut value: T = serde_json::from_slice(&body).map_err(|error| Error::Corrupt {
        kind: Corrupt::Record(T::KIND),
        key: key.as_bytes().escape_ascii().to_string(),
        problem: format!("revision {} cannot be read: {error}", version.revision),
    })?;
    value.resolve(version.revision);
    let was = value.index();
    Ok(Loaded {
        value,
        revision: version.revision,
        at: version.at,
        was,
    })
}

/// An item of a history, encoded before an operation runs.
///
/// Serialized, it is its body: what tells one command from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedItem {
    body: Bytes,
    sketch: Sketch,
}

impl EncodedItem {
    /// The item, encoded.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when the item cannot be spelled as JSON, which no item
    /// of the domain is.
    pub fn new(item: &Item) -> Result<Self> {
        let body = serde_json::to_vec(item).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Self {
            body: body.into(),
            sketch: sketch(item)?,
        })
    }

    /// What is known of the item without reading it.
    #[must_use]
    pub const fn sketch(&self) -> Sketch {
        self.sketch
    }

    /// The item.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when it cannot be read back, which is a bug.
    pub fn item(&self) -> Result<Item> {
        serde_json::from_slice(&self.body).map_err(|error| Error::Internal(error.to_string()))
    }

    /// How many bytes it takes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether it takes none, which no item does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }
}

impl serde::Serialize for EncodedItem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The body is JSON, and so UTF-8.
        serializer.serialize_str(&String::from_utf8_lossy(&self.body))
    }
}

/// What an item is known by when it is sent again: all but its time and its pin.
fn sketch(item: &Item) -> Result<Sketch> {
    let mut rest = item.clone();
    match &mut rest {
        Item::Message(message) => {
            message.created_at = None;
            message.pinned = None;
        }
        Item::NonStandard { created_at, .. } => *created_at = None,
    }
    let body = serde_json::to_vec(&rest).map_err(|error| Error::Internal(error.to_string()))?;
    Ok(Sketch::new(item, integrity::content_digest(&body)))
}

/// An item that was read, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredItem {
    /// Where it stands.
    pub at: RowRef,
    /// How it came to be.
    pub origin: Origin,
    /// The item. Its time is set, and its pin is the transcript's.
    pub item: Item,
}

/// Collects what an operation wants stored.
#[derive(Debug)]
pub struct ChangeSet {
    tenant: Tenant,
    changes: Changes,
    places: HashMap<(super::Kind, Key), Place>,
}

/// Where a record to store stands among the changes, and what it succeeds.
#[derive(Clone, Debug)]
struct Place {
    put: usize,
    revision: Revision,
    at: Timestamp,
    was: Vec<IndexEntry>,
}

impl ChangeSet {
    /// Nothing yet.
    #[must_use]
    pub fn new(tenant: &Tenant) -> Self {
        Self {
            tenant: tenant.clone(),
            changes: Changes::default(),
            places: HashMap::new(),
        }
    }

    /// Stores a record that is not stored.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when it cannot be spelled as JSON.
    pub fn insert<T: Entity>(&mut self, value: &T) -> Result<()> {
        self.put(&Loaded::fresh(value.clone()))
    }

    /// Stores the successor of a record, or the first version of a fresh one.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when it cannot be spelled as JSON.
    pub fn update<T: Entity>(&mut self, loaded: &Loaded<T>) -> Result<()> {
        self.put(loaded)
    }

    /// The record as it will be: as it was collected, or else as it is stored.
    ///
    /// Steps of an operation that may meet the same record read it here, so that
    /// none undoes what another did.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] when what is stored is not what was stored.
    pub async fn load<T: Entity>(
        &self,
        reads: &mut dyn Reads,
        key: &Key,
    ) -> Result<Option<Loaded<T>>> {
        let Some(place) = self.places.get(&(T::KIND, key.clone())) else {
            return load(reads, key).await;
        };
        let Some(put) = self.changes.puts.get(place.put) else {
            return load(reads, key).await;
        };
        let value = serde_json::from_slice(&put.body)
            .map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Some(Loaded {
            value,
            revision: place.revision,
            at: place.at,
            was: place.was.clone(),
        }))
    }

    fn put<T: Entity>(&mut self, loaded: &Loaded<T>) -> Result<()> {
        let Loaded {
            value,
            revision,
            at,
            was,
        } = loaded;
        let key = value.key();
        // A fresh record in the place of one that was read: what the one that was
        // read is indexed by has to go all the same.
        let earlier = self.places.get(&(T::KIND, key.clone()));
        let was = match earlier {
            Some(earlier) if was.is_empty() => &earlier.was,
            Some(_) | None => was,
        };
        let body: Bytes = serde_json::to_vec(value)
            .map_err(|error| Error::Internal(error.to_string()))?
            .into();
        let digest = integrity::record_digest(&self.tenant, T::KIND, &key, &body);
        let now = value.index();
        let put = Put {
            kind: T::KIND,
            digest,
            body,
            unindex: was
                .iter()
                .filter(|entry| !now.contains(entry))
                .cloned()
                .collect(),
            index: now
                .into_iter()
                .filter(|entry| !was.contains(entry))
                .collect(),
            key: key.clone(),
        };
        if let Some(earlier) = earlier.and_then(|place| self.changes.puts.get_mut(place.put)) {
            // The same record twice in one commit: the first one is never seen.
            *earlier = put;
        } else {
            let place = Place {
                put: self.changes.puts.len(),
                revision: *revision,
                at: *at,
                was: was.clone(),
            };
            self.places.insert((T::KIND, key), place);
            self.changes.puts.push(put);
        }
        Ok(())
    }

    /// Writes an item at the end of the owner's log, and so of its history.
    pub fn append_item(&mut self, head: &mut Head, origin: Origin, item: &EncodedItem) -> RowRef {
        head.last_seq += 1;
        let number = head.last_seq;
        let digest = integrity::row_digest(
            &self.tenant,
            head.log,
            RowClass::Item,
            number,
            origin,
            &item.body,
        );
        head.chain = integrity::log_chain(head.chain, digest);
        self.changes.appends.push(Append {
            log: head.log,
            class: RowClass::Item,
            number,
            origin,
            body: item.body.clone(),
            digest,
            chain: head.chain,
            mark: item.sketch.to_digest(),
        });
        RowRef {
            log: head.log,
            number,
        }
    }

    /// Writes a cell, unless its value is the one that `before` holds.
    pub fn write_cell(
        &mut self,
        head: &mut Head,
        name: &str,
        value: &Bytes,
        before: Option<&Cell>,
    ) -> Cell {
        let content = integrity::content_digest(value);
        if let Some(before) = before
            && before.digest == content
        {
            return Cell {
                name: name.to_owned(),
                ..before.clone()
            };
        }
        head.last_cell += 1;
        let at = self.append_row(head.log, RowClass::Cell, head.last_cell, value.clone());
        Cell {
            name: name.to_owned(),
            at,
            digest: content,
        }
    }

    /// Writes a list of cells; `None` for an empty one.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when it cannot be spelled as JSON.
    pub fn write_cells(&mut self, head: &mut Head, cells: &[Cell]) -> Result<Option<RowRef>> {
        if cells.is_empty() {
            return Ok(None);
        }
        self.write_node(head, &cells).map(Some)
    }

    /// Makes `transcript` the owner's history: it becomes the base of an empty
    /// tail.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when it cannot be spelled as JSON.
    pub fn rebase(&mut self, head: &mut Head, transcript: &Transcript) -> Result<()> {
        head.base_len = transcript.len();
        head.base = if transcript.is_empty() {
            None
        } else {
            Some(self.write_node(head, transcript)?)
        };
        head.tail_from = head.last_seq + 1;
        Ok(())
    }

    fn write_node(&mut self, head: &mut Head, node: &impl serde::Serialize) -> Result<RowRef> {
        let body = serde_json::to_vec(node).map_err(|error| Error::Internal(error.to_string()))?;
        head.last_node += 1;
        Ok(self.append_row(head.log, RowClass::Node, head.last_node, body.into()))
    }

    fn append_row(&mut self, log: LogId, class: RowClass, number: i64, body: Bytes) -> RowRef {
        let origin = Origin::Said;
        let digest = integrity::row_digest(&self.tenant, log, class, number, origin, &body);
        self.changes.appends.push(Append {
            log,
            class,
            number,
            origin,
            body,
            digest,
            chain: Digest::default(),
            mark: Digest::default(),
        });
        RowRef { log, number }
    }

    /// Records what an idempotency key was used for.
    pub fn record_request(&mut self, key: Key, body: Bytes) {
        let digest = integrity::request_digest(&self.tenant, &key, &body);
        self.changes.request = Some(NewRequest { key, body, digest });
    }

    /// The rows of logs to store so far.
    #[must_use]
    pub fn appends(&self) -> &[Append] {
        &self.changes.appends
    }

    /// Whether nothing was collected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// What was collected.
    #[must_use]
    pub fn finish(self) -> Changes {
        self.changes
    }
}

/// The whole transcript of a history, without the items themselves.
///
/// # Errors
///
/// [`Error::Corrupt`] when its base is not what was stored.
pub async fn transcript(reads: &mut dyn Reads, history: &History) -> Result<Transcript> {
    let mut transcript = match history.base {
        Some(at) => node::<Transcript>(reads, at).await?,
        None => Transcript::default(),
    };
    if transcript.len() != history.base_len {
        return Err(corrupt_log(
            history.tail.log,
            format!(
                "a transcript has {} items, not {}",
                transcript.len(),
                history.base_len
            ),
        ));
    }
    transcript.push(history.tail);
    Ok(transcript)
}

/// The items from index `from` up to, not including, `to`.
///
/// # Errors
///
/// [`Error::Corrupt`] when an item is missing or not what was stored.
pub async fn items(
    reads: &mut dyn Reads,
    history: &History,
    from: u64,
    to: u64,
) -> Result<Vec<StoredItem>> {
    // Most reads are of the newest items, which need no base.
    let part = if from >= history.base_len {
        let (from, to) = (
            from - history.base_len,
            to.min(history.len()).saturating_sub(history.base_len),
        );
        Transcript::new([history.tail]).slice(from, to)
    } else {
        transcript(reads, history).await?.slice(from, to)
    };
    let mut items = Vec::new();
    for range in part.ranges() {
        read_range(reads, range, &mut items).await?;
    }
    Ok(items)
}

/// The items of one range.
///
/// # Errors
///
/// [`Error::Corrupt`] when an item is missing or not what was stored.
pub async fn read_range(
    reads: &mut dyn Reads,
    range: &Range,
    into: &mut Vec<StoredItem>,
) -> Result<()> {
    let rows = reads
        .rows(range.log, RowClass::Item, range.from, range.to)
        .await?;
    let mut expected = range.from;
    for row in rows {
        if row.number != expected {
            return Err(corrupt_log(range.log, format!("row {expected} is missing")));
        }
        expected += 1;
        into.push(stored_item(reads.tenant(), range, &row)?);
    }
    if expected <= range.to {
        return Err(corrupt_log(range.log, format!("row {expected} is missing")));
    }
    Ok(())
}

fn stored_item(tenant: &Tenant, range: &Range, row: &Row) -> Result<StoredItem> {
    let body = integrity::check_row(tenant, range.log, RowClass::Item, row)?;
    let mut item: Item = serde_json::from_slice(&body).map_err(|error| {
        corrupt_log(
            range.log,
            format!("row {} cannot be read: {error}", row.number),
        )
    })?;
    item.stamp(row.at);
    if let (Some(pinned), Item::Message(message)) = (range.pinned, &mut item)
        && message.pinned.unwrap_or(false) != pinned
    {
        message.pinned = Some(pinned);
    }
    Ok(StoredItem {
        at: RowRef {
            log: range.log,
            number: row.number,
        },
        origin: row.origin,
        item,
    })
}

/// The cells of a list.
///
/// # Errors
///
/// [`Error::Corrupt`] when the list is missing or not what was stored.
pub async fn cells(reads: &mut dyn Reads, at: Option<RowRef>) -> Result<Vec<Cell>> {
    match at {
        Some(at) => node(reads, at).await,
        None => Ok(Vec::new()),
    }
}

/// The value in a cell.
///
/// # Errors
///
/// [`Error::Corrupt`] when it is missing or not what was stored.
pub async fn cell_value(reads: &mut dyn Reads, at: RowRef) -> Result<Bytes> {
    one_row(reads, at, RowClass::Cell).await
}

/// The text in a cell.
///
/// # Errors
///
/// As [`cell_value`].
pub async fn cell_text(reads: &mut dyn Reads, at: RowRef) -> Result<String> {
    let value = cell_value(reads, at).await?;
    String::from_utf8(value.into())
        .map_err(|_| corrupt_log(at.log, format!("cell {} is not UTF-8", at.number)))
}

async fn node<T: serde::de::DeserializeOwned>(reads: &mut dyn Reads, at: RowRef) -> Result<T> {
    let body = one_row(reads, at, RowClass::Node).await?;
    serde_json::from_slice(&body).map_err(|error| {
        corrupt_log(
            at.log,
            format!("node {} cannot be read: {error}", at.number),
        )
    })
}

async fn one_row(reads: &mut dyn Reads, at: RowRef, class: RowClass) -> Result<Bytes> {
    let rows = reads.rows(at.log, class, at.number, at.number).await?;
    let row = rows
        .first()
        .ok_or_else(|| corrupt_log(at.log, format!("row {} is missing", at.number)))?;
    integrity::check_row(reads.tenant(), at.log, class, row)
}

fn corrupt_log(log: LogId, problem: String) -> Error {
    Error::Corrupt {
        kind: Corrupt::Log,
        key: log.0.to_string(),
        problem,
    }
}

/// Replaces "this commit" in each of `stamps` by the commit that stored them.
pub fn resolve_all<'a>(stamps: impl IntoIterator<Item = &'a mut Stamp>, stored: Revision) {
    for stamp in stamps {
        stamp.resolve(stored);
    }
}
