//! What an operation would read if the changes it has collected were stored.
//!
//! A later step of an operation may need what an earlier one wrote: a memory
//! follows the history that the same commit appends to.

use async_trait::async_trait;

use super::typed::ChangeSet;
use super::{
    Append, FeedEntry, Index, IndexHit, Key, Kind, Mark, Reads, RequestRecord, Result, Row,
    Stretch, Version,
};
use crate::domain::id::Tenant;
use crate::domain::log::{Digest, LogId, RowClass};
use crate::domain::revision::Revision;
use crate::domain::time::Timestamp;

/// Reads with the rows of logs that a [`ChangeSet`] holds.
///
/// Records, indexes and the feed are as they are stored: what an operation changed
/// of those it has at hand.
pub struct Overlay<'a> {
    reads: &'a mut dyn Reads,
    changes: &'a ChangeSet,
}

impl std::fmt::Debug for Overlay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Overlay")
            .field("changes", self.changes)
            .finish_non_exhaustive()
    }
}

impl<'a> Overlay<'a> {
    /// Reads with the rows of `changes`.
    pub fn new(reads: &'a mut dyn Reads, changes: &'a ChangeSet) -> Self {
        Self { reads, changes }
    }

    fn pending(
        &self,
        log: LogId,
        class: RowClass,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = &'a Append> {
        self.changes.appends().iter().filter(move |append| {
            append.log == log && append.class == class && (from..=to).contains(&append.number)
        })
    }
}

#[async_trait]
impl Reads for Overlay<'_> {
    fn tenant(&self) -> &Tenant {
        self.reads.tenant()
    }

    fn now(&self) -> Timestamp {
        self.reads.now()
    }

    async fn revision(&mut self) -> Result<Revision> {
        self.reads.revision().await
    }

    async fn record(&mut self, kind: Kind, key: &Key, at: Revision) -> Result<Option<Version>> {
        self.reads.record(kind, key, at).await
    }

    async fn records(
        &mut self,
        kind: Kind,
        stretch: &Stretch,
        at: Revision,
    ) -> Result<Vec<(Key, Version)>> {
        self.reads.records(kind, stretch, at).await
    }

    async fn index(&mut self, index: Index, stretch: &Stretch) -> Result<Vec<IndexHit>> {
        self.reads.index(index, stretch).await
    }

    async fn rows(&mut self, log: LogId, class: RowClass, from: i64, to: i64) -> Result<Vec<Row>> {
        let mut rows = self.reads.rows(log, class, from, to).await?;
        let at = self.reads.now();
        // Rows are written in the order of their numbers, after those stored.
        rows.extend(self.pending(log, class, from, to).map(|append| Row {
            number: append.number,
            origin: append.origin,
            at,
            body: append.body.clone(),
            digest: append.digest,
            chain: append.chain,
            mark: append.mark,
        }));
        Ok(rows)
    }

    async fn marks(&mut self, log: LogId, from: i64, to: i64) -> Result<Vec<Mark>> {
        let mut marks = self.reads.marks(log, from, to).await?;
        let pending = self.pending(log, RowClass::Item, from, to);
        marks.extend(pending.map(|append| Mark {
            number: append.number,
            mark: append.mark,
            chain: append.chain,
        }));
        Ok(marks)
    }

    async fn feed(
        &mut self,
        kinds: &[Kind],
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<Vec<FeedEntry>> {
        self.reads.feed(kinds, after, until, limit).await
    }

    async fn chain(&mut self, revision: Revision) -> Result<Option<Digest>> {
        self.reads.chain(revision).await
    }

    async fn request(&mut self, key: &Key) -> Result<Option<RequestRecord>> {
        self.reads.request(key).await
    }
}
