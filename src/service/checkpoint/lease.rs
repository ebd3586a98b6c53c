//! Leases: who may advance a thread.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::gate::{LeaseEnd, settle_calls};
use super::{Checkpoints, find_thread, get_thread, is_visible, thread_not_found};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{ConsumerId, MemoryId, MemoryRef, RunId, SessionRef, ThreadRef};
use crate::domain::log::LogId;
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::{Memory, Preconditions, Session};
use crate::domain::thread::{Granted, Lease, Thread, Token, check_token};
use crate::domain::time::Timestamp;
use crate::service::caller::Caller;
use crate::service::cover::covering_thread;
use crate::service::engine::{Command, Done};
use crate::service::session_write::open_session;
use crate::storage::entities::{memory_key, session_key, thread_key};
use crate::storage::typed::{ChangeSet, Loaded, load};
use crate::storage::{Abort, Reads};

/// How often a waiting acquisition looks whether an expired lease is free, at most.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Takes the lease of a thread.
#[derive(Clone, Debug, Serialize)]
pub struct Acquire {
    /// The thread; made if absent.
    pub thread: ThreadRef,
    /// Its session; made if absent. Fixed once the thread is made.
    pub session: Option<SessionRef>,
    /// Who takes it: one value for each process.
    pub consumer: ConsumerId,
    /// For how long.
    pub ttl: Duration,
    /// The memory to link to the session.
    pub memory: Option<MemoryId>,
    /// On the thread's existence, and the session's etag.
    pub preconditions: Preconditions,
    /// The run to begin if none is under way.
    #[serde(skip)]
    pub new_run: RunId,
    /// The log to give to a new session.
    #[serde(skip)]
    pub new_log: LogId,
}

/// What an acquisition granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// The thread.
    pub thread: ThreadRef,
    /// Its session.
    pub session: SessionRef,
    /// The commit that granted the token.
    pub token: Stamp,
    /// The run.
    pub run: RunId,
    /// Who holds it.
    pub consumer: ConsumerId,
    /// When it was granted.
    pub acquired_at: Timestamp,
    /// When another may take it over.
    pub expires_at: Timestamp,
    /// How long it holds after each renewal.
    pub ttl: Duration,
    /// The session's etag.
    pub session_etag: Stamp,
    /// The last `seq` of the session.
    pub session_last_seq: i64,
}

impl LeaseGrant {
    pub(super) fn new(thread: &Thread, lease: &Lease, session: &Session) -> Self {
        Self {
            thread: thread.key.clone(),
            session: session.key.clone(),
            token: lease.token,
            run: lease.run,
            consumer: lease.consumer.clone(),
            acquired_at: lease.acquired_at,
            expires_at: lease.expires_at,
            ttl: lease.ttl,
            session_etag: session.etag,
            session_last_seq: session.head.last_seq,
        }
    }
}

/// A thread opened for writing: made if absent.
///
/// # Errors
///
/// [`Reason::ThreadNotFound`], [`Reason::AlreadyExists`], [`Reason::Deleted`], and
/// [`Reason::ArgumentInvalid`] when it is another session's.
pub(super) async fn open_thread(
    reads: &mut dyn Reads,
    caller: &Caller,
    key: &ThreadRef,
    session: Option<&SessionRef>,
    preconditions: &Preconditions,
) -> Result<Loaded<Thread>, Abort> {
    let found = load::<Thread>(reads, &thread_key(key)).await?;
    let belongs_to = match (&found, session) {
        (Some(found), _) => found.value.session.clone(),
        (None, Some(session)) => session.clone(),
        (None, None) => Checkpoints::default_session(key),
    };
    if !is_visible(caller, &belongs_to) {
        return Err(thread_not_found().into());
    }
    if let Some(found) = found {
        if found.value.deleted_at.is_none() {
            if preconditions.must_not_exist {
                return Err(Error::new(
                    Reason::AlreadyExists,
                    "the thread exists; drop must_not_exist to use it",
                )
                .into());
            }
            if session.is_some_and(|session| *session != found.value.session) {
                return Err(Error::argument(
                    "session",
                    "the thread belongs to another session, which is fixed",
                )
                .into());
            }
            return Ok(found);
        }
        if !preconditions.recreate {
            return Err(Error::new(
                Reason::Deleted,
                "the thread was deleted; send recreate to make it anew, or use another thread_id",
            )
            .into());
        }
        let mut anew = found;
        anew.value = new_thread(key, session, reads.now());
        return Ok(anew);
    }
    if preconditions.must_exist {
        return Err(thread_not_found().into());
    }
    Ok(Loaded::fresh(new_thread(key, session, reads.now())))
}

fn new_thread(key: &ThreadRef, session: Option<&SessionRef>, now: Timestamp) -> Thread {
    Thread {
        key: key.clone(),
        session: session
            .cloned()
            .unwrap_or_else(|| Checkpoints::default_session(key)),
        generation: Stamp::THIS_COMMIT,
        etag: Stamp::THIS_COMMIT,
        created_at: now,
        updated_at: now,
        head: None,
        head_spent: false,
        run: None,
        resume_etags: None,
        lease: None,
        deleted_at: None,
    }
}

/// Takes the lease of a thread and lets it cover the session and its memory.
///
/// Both `thread` and `session` are the caller's to store.
///
/// # Errors
///
/// [`Reason::ThreadLeased`].
pub(super) async fn take_lease(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    caller: &Caller,
    thread: &mut Loaded<Thread>,
    session: &mut Loaded<Session>,
    wanted: (&ConsumerId, RunId, Duration),
) -> Result<Granted, Abort> {
    let now = reads.now();
    let key = thread.value.key.clone();
    let (consumer, run, ttl) = wanted;
    if let Some(other) =
        covering_thread(reads, &key.agent, session.value.leased_by.as_ref()).await?
        && other.value.key != key
    {
        lose_other(reads, changes, caller, other, session, now).await?;
    }
    let granted = thread.value.grant(consumer, run, ttl, now)?;
    if matches!(granted, Granted::New { lost: Some(_) }) {
        settle_calls(
            reads,
            changes,
            caller,
            &thread.value,
            &mut session.value,
            &LeaseEnd::Lost,
        )
        .await?;
    }
    thread.value.updated_at = now;
    thread.value.etag = Stamp::THIS_COMMIT;
    cover(reads, changes, &mut session.value, &key).await?;
    Ok(granted)
}

/// Ends the lease of another thread of the session, if it may be taken over.
async fn lose_other(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    caller: &Caller,
    mut other: Loaded<Thread>,
    session: &mut Loaded<Session>,
    now: Timestamp,
) -> Result<(), Abort> {
    let Some(lease) = &other.value.lease else {
        return Ok(());
    };
    if !lease.is_expired(now) {
        return Err(lease.is_taken(&other.value.key, now).into());
    }
    settle_calls(
        reads,
        changes,
        caller,
        &other.value,
        &mut session.value,
        &LeaseEnd::Lost,
    )
    .await?;
    other.value.lease = None;
    other.value.etag = Stamp::THIS_COMMIT;
    other.value.updated_at = now;
    Ok(changes.update(&other)?)
}

/// Lets the lease of a thread cover a session and its memory.
///
/// # Errors
///
/// [`Reason::ThreadLeased`] when another lease covers the memory, through another
/// session that links it.
async fn cover(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    session: &mut Session,
    thread: &ThreadRef,
) -> Result<(), Abort> {
    session.leased_by = Some(thread.thread.clone());
    let Some(mut memory) = linked_memory(reads, changes, session).await? else {
        return Ok(());
    };
    let own = Some((thread.agent.clone(), thread.thread.clone()));
    if memory.value.leased_by == own {
        return Ok(());
    }
    if let Some((agent, other)) = &memory.value.leased_by
        && let Some(other) = covering_thread(reads, agent, Some(other)).await?
        && let Some(lease) = &other.value.lease
        && other.value.session != session.key
        && !lease.is_expired(reads.now())
    {
        return Err(lease.is_taken(&other.value.key, reads.now()).into());
    }
    memory.value.leased_by = own;
    Ok(changes.update(&memory)?)
}

/// The memory that a session links, if it has been written to.
async fn linked_memory(
    reads: &mut dyn Reads,
    changes: &ChangeSet,
    session: &Session,
) -> Result<Option<Loaded<Memory>>, Abort> {
    let Some(memory) = &session.memory_id else {
        return Ok(None);
    };
    let key = memory_key(&MemoryRef {
        agent: session.key.agent.clone(),
        memory: memory.clone(),
    });
    let found = changes.load::<Memory>(reads, &key).await?;
    Ok(found.filter(|memory| memory.value.deleted_at.is_none()))
}

/// Ends the lease of a thread, if it has one, and uncovers what it covered.
///
/// Both `thread` and `session` are the caller's to store.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn end_lease(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    caller: &Caller,
    thread: &mut Thread,
    session: &mut Session,
    end: &LeaseEnd<'_>,
) -> Result<(), Abort> {
    if thread.lease.is_none() {
        return Ok(());
    }
    settle_calls(reads, changes, caller, thread, session, end).await?;
    thread.lease = None;
    thread.updated_at = reads.now();
    thread.etag = Stamp::THIS_COMMIT;
    if session.leased_by.as_ref() != Some(&thread.key.thread) {
        return Ok(());
    }
    session.leased_by = None;
    let own = (thread.key.agent.clone(), thread.key.thread.clone());
    if let Some(mut memory) = linked_memory(reads, changes, session).await?
        && memory.value.leased_by.as_ref() == Some(&own)
    {
        memory.value.leased_by = None;
        changes.update(&memory)?;
    }
    Ok(())
}

/// Whether a lease handed out before is still the thread's.
pub(super) async fn check_still_held(
    reads: &mut dyn Reads,
    thread: &ThreadRef,
    token: Revision,
) -> Result<(), Abort> {
    let found = find_thread(reads, thread).await?;
    let token = Token {
        thread: Some(thread.clone()),
        revision: token,
    };
    let held = found
        .as_ref()
        .and_then(|found| Some(token.is_current(thread, found.value.lease.as_ref()?)))
        .unwrap_or(false);
    if held {
        return Ok(());
    }
    Err(Error::new(
        Reason::LeaseLost,
        "the lease that this request was granted is lost; send a new request_id to acquire or resume again",
    )
    .into())
}

#[async_trait]
impl Command for Acquire {
    const METHOD: &'static str = "CheckpointService/AcquireThread";
    type Receipt = LeaseGrant;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<LeaseGrant, Abort> {
        let mut thread = open_thread(
            reads,
            caller,
            &self.thread,
            self.session.as_ref(),
            &self.preconditions,
        )
        .await?;
        let session_preconditions = Preconditions {
            etag: self.preconditions.etag,
            recreate: self.preconditions.recreate,
            ..Preconditions::default()
        };
        let mut session = open_session(
            reads,
            &thread.value.session,
            &session_preconditions,
            self.new_log,
        )
        .await?;
        self.link(&mut session)?;
        take_lease(
            reads,
            changes,
            caller,
            &mut thread,
            &mut session,
            (&self.consumer, self.new_run, self.ttl),
        )
        .await?;
        changes.update(&session)?;
        changes.update(&thread)?;
        let lease = thread.value.lease.as_ref();
        let lease = lease
            .ok_or_else(|| crate::storage::Error::Internal("a granted lease is missing".into()))?;
        Ok(LeaseGrant::new(&thread.value, lease, &session.value))
    }

    async fn check_replay(
        &self,
        reads: &mut dyn Reads,
        receipt: &LeaseGrant,
        made: Revision,
    ) -> Result<(), Abort> {
        check_still_held(reads, &receipt.thread, receipt.token.revision(made)).await
    }
}

impl Acquire {
    fn link(&self, session: &mut Loaded<Session>) -> Result<()> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let linked = session.value.memory_id.as_ref();
        if linked == Some(memory) {
            return Ok(());
        }
        if linked.is_some() && self.preconditions.etag.is_none() {
            return Err(Error::new(
                Reason::PreconditionRequired,
                "the session links another memory; send the session's etag to change that",
            ));
        }
        session.value.memory_id = Some(memory.clone());
        session.value.etag = Stamp::THIS_COMMIT;
        Ok(())
    }
}

/// Renews a lease.
#[derive(Debug, Serialize)]
pub struct Renew {
    /// The thread.
    pub thread: ThreadRef,
    /// The holder's token.
    pub token: Option<Token>,
    /// For how long from now; absent keeps the lease's own length.
    pub ttl: Option<Duration>,
}

#[async_trait]
impl Command for Renew {
    const METHOD: &'static str = "CheckpointService/RenewLease";
    type Receipt = LeaseGrant;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<LeaseGrant, Abort> {
        let mut thread = get_thread(reads, caller, &self.thread).await?;
        check_token(Some(&thread.value), self.token.as_ref())?;
        let now = reads.now();
        let Some(lease) = &mut thread.value.lease else {
            return Err(token_required().into());
        };
        lease.ttl = self.ttl.unwrap_or(lease.ttl);
        lease.expires_at = now.after(lease.ttl);
        let lease = lease.clone();
        changes.update(&thread)?;
        let session = load::<Session>(reads, &session_key(&thread.value.session)).await?;
        let session = session
            .ok_or_else(|| crate::storage::Error::Internal("a thread has no session".into()))?;
        Ok(LeaseGrant::new(&thread.value, &lease, &session.value))
    }

    async fn check_replay(
        &self,
        reads: &mut dyn Reads,
        receipt: &LeaseGrant,
        made: Revision,
    ) -> Result<(), Abort> {
        check_still_held(reads, &receipt.thread, receipt.token.revision(made)).await
    }
}

fn token_required() -> Error {
    Error::new(
        Reason::TokenRequired,
        "the thread is not leased, so there is nothing to renew or release; acquire it",
    )
}

/// Gives a lease back.
#[derive(Debug, Serialize)]
pub struct Release {
    /// The thread.
    pub thread: ThreadRef,
    /// The holder's token.
    pub token: Option<Token>,
}

#[async_trait]
impl Command for Release {
    const METHOD: &'static str = "CheckpointService/ReleaseThread";
    type Receipt = ThreadRef;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<ThreadRef, Abort> {
        let mut thread = get_thread(reads, caller, &self.thread).await?;
        check_token(Some(&thread.value), self.token.as_ref())?;
        if thread.value.lease.is_none() {
            return Err(token_required().into());
        }
        let session = load::<Session>(reads, &session_key(&thread.value.session)).await?;
        let mut session = session
            .ok_or_else(|| crate::storage::Error::Internal("a thread has no session".into()))?;
        end_lease(
            reads,
            changes,
            caller,
            &mut thread.value,
            &mut session.value,
            &LeaseEnd::Lost,
        )
        .await?;
        changes.update(&session)?;
        changes.update(&thread)?;
        Ok(self.thread.clone())
    }
}

impl Checkpoints {
    /// Takes the lease of a thread, waiting up to `wait` for it to be free.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadLeased`] with the holder and the expiry,
    /// [`Reason::ThreadNotFound`], [`Reason::Deleted`], [`Reason::EtagMismatch`].
    pub async fn acquire(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        acquire: Acquire,
        wait: Duration,
    ) -> Result<Done<LeaseGrant>> {
        self.waiting(caller, wait, || {
            self.engine.submit(caller, request_id, acquire.clone())
        })
        .await
    }

    /// Tries again while the thread is leased, until `wait` is over.
    pub(super) async fn waiting<T, F>(
        &self,
        caller: &Caller,
        wait: Duration,
        attempt: impl Fn() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let end = Instant::now() + wait;
        let mut commits = self.engine.store().commits(&caller.tenant);
        loop {
            commits.mark_unchanged();
            let refusal = match attempt().await {
                Err(error) if error.reason == Reason::ThreadLeased => error,
                outcome => return outcome,
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(refusal);
            }
            // A commit may have freed it, or its time may have run out.
            let pause = refusal
                .retry_after
                .unwrap_or(LOOK_AGAIN)
                .clamp(Duration::from_millis(10), LOOK_AGAIN);
            let _ = tokio::time::timeout(pause.min(left), commits.changed()).await;
        }
    }

    /// Renews a lease.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadNotFound`], [`Reason::TokenRequired`], [`Reason::Fenced`].
    pub async fn renew(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        renew: Renew,
    ) -> Result<Done<LeaseGrant>> {
        self.engine.submit(caller, request_id, renew).await
    }

    /// Gives a lease back. Calls it started and did not finish are then in doubt.
    ///
    /// # Errors
    ///
    /// [`Reason::ThreadNotFound`], [`Reason::TokenRequired`], [`Reason::Fenced`].
    pub async fn release(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        release: Release,
    ) -> Result<Done<ThreadRef>> {
        self.engine.submit(caller, request_id, release).await
    }
}
