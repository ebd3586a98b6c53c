//! Deleting a session, with its threads and what they wait for.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Sessions;
use super::body::linked_memory;
use crate::domain::error::Result;
use crate::domain::id::{InterruptId, SessionRef};
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::{Preconditions, Session};
use crate::domain::thread::Thread;
use crate::domain::thread::Token;
use crate::service::caller::Caller;
use crate::service::cover::check_session;
use crate::service::engine::{Command, Done};
use crate::service::interrupt::{live_in_session, withdraw};
use crate::storage::entities::{session_key, session_prefix};
use crate::storage::typed::{ChangeSet, load};
use crate::storage::{Abort, Direction, Index, Reads, Stretch};

/// How many threads of a session are found at a time.
const THREADS: usize = 256;

/// Deletes a session. It leaves a tombstone.
#[derive(Debug, Serialize)]
pub struct Delete {
    /// The session.
    pub session: SessionRef,
    /// The etag that was seen, if one was sent.
    pub etag: Option<Revision>,
    /// The token of the run that covers it.
    pub token: Option<Token>,
}

/// What a deletion did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Deleted {
    /// Whether there was something to delete.
    pub existed: bool,
    /// Interrupts that were withdrawn with it.
    pub withdrawn: Vec<InterruptId>,
}

#[async_trait]
impl Command for Delete {
    const METHOD: &'static str = "SessionService/DeleteSession";
    type Receipt = Deleted;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Deleted, Abort> {
        let now = reads.now();
        let found = load::<Session>(reads, &session_key(&self.session)).await?;
        let Some(mut opened) = found.filter(|session| session.value.deleted_at.is_none()) else {
            return Ok(Deleted {
                existed: false,
                withdrawn: Vec::new(),
            });
        };
        let session = &mut opened.value;
        check_session(reads, session, self.token.as_ref()).await?;
        let on_content = Preconditions {
            etag: self.etag,
            ..Preconditions::default()
        };
        on_content.check("session", session.etag, session.head.last_seq)?;

        let live = live_in_session(reads, changes, &self.session).await?;
        let withdrawn = withdraw(changes, live, now)?;
        self.delete_threads(reads, changes).await?;
        if let Some(mut memory) = linked_memory(reads, session, Revision::LATEST).await?
            && let Some(thread) = &session.leased_by
            && memory.value.leased_by == Some((session.key.agent.clone(), thread.clone()))
        {
            memory.value.leased_by = None;
            changes.update(&memory)?;
        }
        session.leased_by = None;
        session.deleted_at = Some(now);
        session.etag = Stamp::THIS_COMMIT;
        session.listing_etag = Stamp::THIS_COMMIT;
        changes.update(&opened)?;
        Ok(Deleted {
            existed: true,
            withdrawn,
        })
    }
}

impl Delete {
    /// Deletes the threads of the session, and with them their leases.
    async fn delete_threads(
        &self,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<(), Abort> {
        let now = reads.now();
        let mut stretch = Stretch {
            prefix: session_prefix(&self.session),
            after: None,
            direction: Direction::Forward,
            limit: THREADS,
        };
        loop {
            let hits = reads.index(Index::ThreadSession, &stretch).await?;
            let Some(last) = hits.last() else {
                return Ok(());
            };
            stretch.after = Some(last.place.clone());
            for hit in hits {
                let Some(mut thread) = load::<Thread>(reads, &hit.key).await? else {
                    continue;
                };
                thread.value.lease = None;
                thread.value.deleted_at = Some(now);
                thread.value.updated_at = now;
                thread.value.etag = Stamp::THIS_COMMIT;
                changes.update(&thread)?;
            }
        }
    }
}

impl Sessions {
    /// Deletes a session, its threads, and withdraws their interrupts.
    ///
    /// # Errors
    ///
    /// [`EtagMismatch`](crate::domain::error::Reason), [`TokenRequired`](crate::domain::error::Reason), [`Fenced`](crate::domain::error::Reason).
    pub async fn delete(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        delete: Delete,
    ) -> Result<Done<Deleted>> {
        self.submit(caller, request_id, delete).await
    }
}
