//! The sweeper: ends interrupts whose time has run out.
//!
//! Any one replica may sweep a tenant, and several may at once: the commit itself
//! checks that the interrupt is still pending and overdue. Nothing depends on the
//! sweep being in time, for an overdue interrupt cannot be decided any more.
//!
//! A deadline that passes by mistake cannot be taken back, so the sweeper is slow
//! to believe the clock. It expires only what two passes in a row have seen
//! overdue, and it expires nothing for a while after it started, or after the
//! store's clock went another way than a monotonic one.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::engine::{Command, Engine, explain};
use super::session_write::push_entry;
use crate::domain::error::Result;
use crate::domain::id::{InterruptId, Tenant};
use crate::domain::interrupt::{Interrupt, InterruptState};
use crate::domain::session::Session;
use crate::domain::time::Timestamp;
use crate::domain::timeline::{EntryKind, Link};
use crate::storage::entities::{interrupt_key, session_key, state_prefix, time_bytes};
use crate::storage::typed::{ChangeSet, load};
use crate::storage::{Abort, Direction, Index, Query, Reads, Stretch};

/// How many overdue interrupts of a tenant are read at a time.
const CHUNK: usize = 256;

/// How the sweeper goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How often it looks. An interrupt expires after two looks.
    pub every: Duration,
    /// For how long it expires nothing after a start or a jump of the clock.
    pub settle: Duration,
    /// By how much the store's clock may differ, from one pass to the next, from a
    /// monotonic one. More is a jump.
    pub tolerance: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(2),
            settle: Duration::from_secs(30),
            tolerance: Duration::from_secs(5),
        }
    }
}

/// What the sweeper knows of a tenant from the pass before.
#[derive(Debug)]
struct Watch {
    /// The store's time then.
    store: Timestamp,
    /// The monotonic time then.
    monotonic: Duration,
    /// Until when, in monotonic time, nothing expires.
    settled_at: Duration,
    /// What was overdue.
    overdue: HashSet<InterruptId>,
}

/// Ends interrupts whose time has run out.
#[derive(Debug)]
pub struct Sweeper {
    engine: Engine,
    options: Options,
    tenants: HashMap<Tenant, Watch>,
}

impl Sweeper {
    /// A sweeper of an engine's store, which starts now: at zero of its monotonic
    /// time.
    #[must_use]
    pub fn new(engine: Engine, options: Options) -> Self {
        Self {
            engine,
            options,
            tenants: HashMap::new(),
        }
    }

    /// Sweeps until `shutdown` is cancelled. A pass that fails is logged, and the
    /// next one tries again.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let start = Instant::now();
        let mut ticks = interval(self.options.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            match self.pass(start.elapsed()).await {
                Ok(0) => {}
                Ok(expired) => tracing::info!(expired, "interrupts expired"),
                Err(error) => tracing::warn!(%error, "the sweep failed"),
            }
        }
    }

    /// Looks through all tenants once, at `monotonic` since the start, and says how
    /// many interrupts it ended.
    ///
    /// # Errors
    ///
    /// Those of the store. Tenants before the failing one were swept.
    pub async fn pass(&mut self, monotonic: Duration) -> Result<usize> {
        let tenants = self.engine.store().tenants().await;
        let tenants = tenants.map_err(|error| explain(error.into()))?;
        self.tenants.retain(|tenant, _| tenants.contains(tenant));
        let mut expired = 0;
        for tenant in tenants {
            expired += self.sweep(tenant, monotonic).await?;
        }
        Ok(expired)
    }

    async fn sweep(&mut self, tenant: Tenant, monotonic: Duration) -> Result<usize> {
        let seen = self.engine.read(&tenant, Overdue).await?;
        let before = self.tenants.remove(&tenant);
        let mut watch = Watch {
            store: seen.now,
            monotonic,
            settled_at: self.options.settle,
            overdue: HashSet::new(),
        };
        let mut due = Vec::new();
        if let Some(before) = before {
            watch.settled_at = before.settled_at;
            if self.jumped(&before, &watch) {
                tracing::warn!(%tenant, "the clock jumped; deadlines wait");
                watch.settled_at = monotonic + self.options.settle;
            } else if monotonic >= watch.settled_at {
                due = seen
                    .interrupts
                    .iter()
                    .copied()
                    .filter(|id| before.overdue.contains(id))
                    .collect();
            }
        }
        watch.overdue = seen.interrupts.into_iter().collect();
        self.tenants.insert(tenant.clone(), watch);

        let caller = Caller::server(tenant);
        let mut expired = 0;
        for interrupt in due {
            let done = self
                .engine
                .submit(&caller, None, Expire { interrupt })
                .await;
            match done {
                Ok(done) if done.receipt => expired += 1,
                Ok(_) => {}
                // One that cannot be stored must not keep the others from expiring.
                Err(error) => {
                    tracing::warn!(tenant = %caller.tenant, %interrupt, %error, "not expired");
                }
            }
        }
        Ok(expired)
    }

    /// Whether the store's clock went another way than the monotonic one.
    fn jumped(&self, before: &Watch, now: &Watch) -> bool {
        let steady = now.monotonic.saturating_sub(before.monotonic);
        let ahead = now.store.since(before.store.after(steady));
        let behind = before.store.after(steady).since(now.store);
        ahead.max(behind) > self.options.tolerance
    }
}

/// What is overdue in a tenant, by the store's clock.
#[derive(Debug)]
struct Overdue;

struct SeenOverdue {
    now: Timestamp,
    interrupts: Vec<InterruptId>,
}

#[async_trait]
impl Query for Overdue {
    type Output = SeenOverdue;

    async fn run(&self, reads: &mut dyn Reads) -> Result<SeenOverdue, Abort> {
        let now = reads.now();
        let prefix = state_prefix(InterruptState::Pending);
        let end = [prefix.as_ref(), &time_bytes(now)].concat();
        let mut stretch = Stretch {
            after: None,
            direction: Direction::Forward,
            limit: CHUNK,
            prefix,
        };
        let mut interrupts = Vec::new();
        loop {
            let hits = reads.index(Index::InterruptExpiry, &stretch).await?;
            let last_chunk = hits.len() < CHUNK;
            for hit in hits {
                let deadline = hit.place.get(..end.len());
                if deadline.is_none_or(|deadline| deadline > end.as_slice()) {
                    return Ok(SeenOverdue { now, interrupts });
                }
                if let Ok(id) = uuid::Uuid::from_slice(hit.key.as_bytes()) {
                    interrupts.push(InterruptId::from_uuid(id));
                }
                stretch.after = Some(Bytes::clone(&hit.place));
            }
            if last_chunk {
                return Ok(SeenOverdue { now, interrupts });
            }
        }
    }
}

/// Ends an interrupt, if it is still pending and overdue. Answers whether it was.
#[derive(Debug, Serialize, Deserialize)]
struct Expire {
    interrupt: InterruptId,
}

#[async_trait]
impl Command for Expire {
    const METHOD: &'static str = "sweep";
    type Receipt = bool;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<bool, Abort> {
        let now = reads.now();
        let found = load::<Interrupt>(reads, &interrupt_key(self.interrupt)).await?;
        let Some(mut interrupt) = found.filter(|found| found.value.is_overdue(now)) else {
            return Ok(false);
        };
        interrupt.value.expire(now, caller.principal.clone());
        changes.update(&interrupt)?;
        let Some(key) = &interrupt.value.session else {
            return Ok(true);
        };
        if let Some(mut session) = load::<Session>(reads, &session_key(key)).await?
            && session.value.deleted_at.is_none()
        {
            let label = interrupt
                .value
                .resolution()
                .map_or("EXPIRE", |decision| decision.answer.kind().name());
            let link = Some(Link::Interrupt(self.interrupt));
            push_entry(
                changes,
                &mut session.value,
                caller,
                EntryKind::Decision,
                label,
                link,
                now,
            )?;
            changes.update(&session)?;
        }
        Ok(true)
    }
}
