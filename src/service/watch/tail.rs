//! One reader of the feed for all streams of a tenant.
//!
//! If each stream read the store at every commit, thousands of idle ones would
//! keep it busy with finding out that nothing concerns them. So one task reads each
//! change once, keeps the newest ones decoded, and wakes only the streams that a
//! change may interest. It is a shortcut and no more: a stream that is behind what
//! is kept reads the store itself.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::CHUNK;
use super::watched::{Change, Interest, Watched};
use crate::domain::error::{Error, Result};
use crate::domain::id::Tenant;
use crate::domain::log::Digest;
use crate::domain::revision::Revision;
use crate::service::engine::{Engine, explain};
use crate::storage::{self, Abort, Query, Reads};

/// How many commits are kept.
const MAX_COMMITS: usize = 512;
/// How many bytes of records, as they are stored, are kept.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// How many commits a stream is given at a time.
const MAX_TAKEN: usize = 64;
/// How long the store is left alone after a read that found nothing, while commits
/// that concern nobody go on.
const QUIET: Duration = Duration::from_millis(2);

/// The changes of one commit that a kind of watch is about.
#[derive(Debug)]
pub(super) struct Commit<W: Watched> {
    pub(super) revision: Revision,
    /// The feed's chain after it.
    pub(super) chain: Digest,
    /// What it changed, or why that cannot be read.
    pub(super) changes: Result<Vec<Change<W>>>,
    /// The bytes of its records.
    bytes: usize,
}

/// A stretch of the feed.
pub(super) struct Batch<W: Watched> {
    /// The commits in it, in order.
    pub(super) commits: Vec<Arc<Commit<W>>>,
    /// Up to where it goes; `None` when there was nothing new to read.
    pub(super) reached: Option<(Revision, Digest)>,
    /// Whether there is more.
    pub(super) more: bool,
}

/// Reads a stretch of the feed.
pub(super) struct ReadFeed<W> {
    after: Revision,
    watched: PhantomData<fn() -> W>,
}

impl<W> ReadFeed<W> {
    pub(super) const fn after(after: Revision) -> Self {
        Self {
            after,
            watched: PhantomData,
        }
    }
}

impl<W> Debug for ReadFeed<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadFeed")
            .field("after", &self.after)
            .finish()
    }
}

#[async_trait]
impl<W: Watched> Query for ReadFeed<W> {
    type Output = Batch<W>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Batch<W>, Abort> {
        let newest = reads.revision().await?;
        if newest <= self.after {
            return Ok(Batch {
                commits: Vec::new(),
                reached: None,
                more: false,
            });
        }
        let feed = reads.feed(W::KINDS, self.after, newest, CHUNK).await?;
        let more = feed.len() >= CHUNK;
        let mut commits: Vec<Commit<W>> = Vec::new();
        for entry in feed {
            let revision = entry.version.revision;
            if commits.last().is_none_or(|last| last.revision != revision) {
                commits.push(Commit {
                    revision,
                    chain: reads.chain(revision).await?.unwrap_or_default(),
                    changes: Ok(Vec::new()),
                    bytes: 0,
                });
            }
            let change = match W::change(reads, &entry).await {
                Ok(change) => Ok(change),
                // Whoever comes to it is told; the others go on.
                Err(Abort::Store(error @ storage::Error::Corrupt { .. })) => {
                    Err(explain(error.into()))
                }
                Err(abort) => return Err(abort),
            };
            let Some(commit) = commits.last_mut() else {
                continue;
            };
            commit.bytes += entry.version.body.len();
            match (change, &mut commit.changes) {
                (Ok(change), Ok(changes)) => changes.extend(change),
                (Err(error), changes) => *changes = Err(error),
                (Ok(_), Err(_)) => {}
            }
        }
        let reached = match commits.last() {
            Some(last) if more => (last.revision, last.chain),
            _ => (newest, reads.chain(newest).await?.unwrap_or_default()),
        };
        Ok(Batch {
            commits: commits.into_iter().map(Arc::new).collect(),
            reached: Some(reached),
            more,
        })
    }
}

/// The newest changes of a tenant, and who is to be woken by the next.
#[derive(Debug)]
struct Shared<W: Watched> {
    kept: Mutex<Kept<W>>,
    bells: Mutex<Bells>,
}

#[derive(Debug)]
struct Kept<W: Watched> {
    /// All commits after this revision ...
    from: Revision,
    /// ... and up to this one are kept.
    to: Revision,
    chain: Digest,
    commits: VecDeque<Arc<Commit<W>>>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Bells {
    next: u64,
    by_interest: HashMap<Interest, HashMap<u64, Arc<Notify>>>,
}

impl<W: Watched> Shared<W> {
    fn keep(&self, batch: Batch<W>) {
        let Some((to, chain)) = batch.reached else {
            return;
        };
        let mut interested = HashSet::new();
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            for commit in batch.commits {
                match &commit.changes {
                    Ok(changes) => interested.extend(changes.iter().flat_map(W::interested)),
                    Err(_) => {
                        interested.insert(Interest::All);
                    }
                }
                kept.bytes += commit.bytes;
                kept.commits.push_back(commit);
            }
            while kept.commits.len() > MAX_COMMITS || kept.bytes > MAX_BYTES {
                let Some(oldest) = kept.commits.pop_front() else {
                    break;
                };
                kept.bytes -= oldest.bytes;
                kept.from = oldest.revision;
            }
            kept.to = to;
            kept.chain = chain;
        }
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for interest in interested {
            for bell in bells
                .by_interest
                .get(&interest)
                .into_iter()
                .flat_map(HashMap::values)
            {
                bell.notify_one();
            }
        }
    }
}

/// The reader of a tenant's feed. It reads as long as somebody holds it.
#[derive(Debug)]
pub(super) struct Tail<W: Watched> {
    shared: Arc<Shared<W>>,
    _task: AbortOnDropHandle<()>,
}

impl<W: Watched> Tail<W> {
    fn start(engine: Engine, tenant: Tenant, poll: Duration, at: (Revision, Digest)) -> Self {
        let (revision, chain) = at;
        let shared = Arc::new(Shared {
            kept: Mutex::new(Kept {
                from: revision,
                to: revision,
                chain,
                commits: VecDeque::new(),
                bytes: 0,
            }),
            bells: Mutex::default(),
        });
        let task = follow(engine, tenant, poll, revision, Arc::clone(&shared));
        Self {
            shared,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }

    /// What is known to come after a revision; `None` if that is too long ago.
    pub(super) fn after(&self, revision: Revision) -> Option<Batch<W>> {
        let kept = self.shared.kept.lock();
        let kept = kept.unwrap_or_else(PoisonError::into_inner);
        if revision < kept.from {
            return None;
        }
        let start = kept
            .commits
            .partition_point(|commit| commit.revision <= revision);
        let commits: Vec<_> = kept
            .commits
            .range(start..)
            .take(MAX_TAKEN)
            .cloned()
            .collect();
        let more = start + commits.len() < kept.commits.len();
        let reached = match commits.last() {
            Some(last) if more => (last.revision, last.chain),
            _ => (kept.to, kept.chain),
        };
        Some(Batch {
            commits,
            reached: (reached.0 > revision).then_some(reached),
            more,
        })
    }

    /// A bell that rings when something happens that may interest.
    pub(super) fn bell(&self, interest: Interest) -> Bell<W> {
        let bell = Arc::new(Notify::new());
        let bells = self.shared.bells.lock();
        let mut bells = bells.unwrap_or_else(PoisonError::into_inner);
        bells.next += 1;
        let id = bells.next;
        bells
            .by_interest
            .entry(interest.clone())
            .or_default()
            .insert(id, Arc::clone(&bell));
        Bell {
            signal: bell,
            id,
            interest,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// Rings when something happens that may interest its holder. What happened since
/// the last wait is remembered.
#[derive(Debug)]
pub(super) struct Bell<W: Watched> {
    signal: Arc<Notify>,
    id: u64,
    interest: Interest,
    shared: Arc<Shared<W>>,
}

impl<W: Watched> Bell<W> {
    pub(super) async fn rung(&self) {
        self.signal.notified().await;
    }
}

impl<W: Watched> Drop for Bell<W> {
    fn drop(&mut self) {
        let bells = self.shared.bells.lock();
        let mut bells = bells.unwrap_or_else(PoisonError::into_inner);
        if let Some(others) = bells.by_interest.get_mut(&self.interest) {
            others.remove(&self.id);
            if others.is_empty() {
                bells.by_interest.remove(&self.interest);
            }
        }
    }
}

/// Reads the feed for ever.
async fn follow<W: Watched>(
    engine: Engine,
    tenant: Tenant,
    poll: Duration,
    mut at: Revision,
    shared: Arc<Shared<W>>,
) {
    let mut commits = engine.store().commits(&tenant);
    let mut rest_until = Instant::now();
    loop {
        commits.mark_unchanged();
        match engine.read(&tenant, ReadFeed::<W>::after(at)).await {
            Ok(batch) => {
                let (more, quiet) = (batch.more, batch.commits.is_empty());
                at = batch.reached.map_or(at, |(reached, _)| reached);
                shared.keep(batch);
                if more {
                    continue;
                }
                if quiet {
                    rest_until = Instant::now() + QUIET;
                }
            }
            Err(error) => {
                tracing::warn!(%tenant, %error, "the feed cannot be read");
                sleep(poll).await;
                continue;
            }
        }
        tokio::select! {
            changed = commits.changed() => {
                if changed.is_err() {
                    sleep(poll).await;
                }
            }
            // Another replica's commit may show without a wake-up.
            () = sleep(poll) => {}
        }
        sleep_until(rest_until).await;
    }
}

/// The tails of a kind of watch, one for each tenant that is watched.
#[derive(Debug)]
pub struct Tails<W: Watched>(Arc<Mutex<HashMap<Tenant, Weak<Tail<W>>>>>);

impl<W: Watched> Default for Tails<W> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<W: Watched> Clone for Tails<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Watched> Tails<W> {
    /// The tail of a tenant.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(super) async fn of(
        &self,
        engine: &Engine,
        tenant: &Tenant,
        poll: Duration,
    ) -> Result<Arc<Tail<W>>, Error> {
        if let Some(tail) = self.running(tenant) {
            return Ok(tail);
        }
        let at = engine.read(tenant, super::Newest).await?;
        let mut tails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tail) = tails.get(tenant).and_then(Weak::upgrade) {
            return Ok(tail);
        }
        tails.retain(|_, tail| tail.strong_count() > 0);
        let tail = Arc::new(Tail::start(engine.clone(), tenant.clone(), poll, at));
        tails.insert(tenant.clone(), Arc::downgrade(&tail));
        Ok(tail)
    }

    fn running(&self, tenant: &Tenant) -> Option<Arc<Tail<W>>> {
        let tails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tails.get(tenant).and_then(Weak::upgrade)
    }
}
