//! Threads: leases, checkpoints, suspend and resume, and the gate of tool calls.

pub mod gate;
pub mod lease;
pub mod read;
pub mod resume;
pub mod rules;
pub mod save;

use std::time::Duration;

use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, SessionRef, ThreadRef};
use crate::domain::revision::Revision;
use crate::domain::thread::{DEFAULT_TTL, MAX_TTL, MIN_TTL, Thread, ToolRules};
use crate::service::caller::Caller;
use crate::service::engine::Engine;
use crate::service::seal::Purpose;
use crate::storage::entities::{session_key, thread_key, tool_rules_key};
use crate::storage::typed::{Loaded, load};
use crate::storage::{Abort, Kind, Reads};

/// Use cases of threads.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    engine: Engine,
}

impl Checkpoints {
    /// Use cases that run on `engine`.
    #[must_use]
    pub const fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// The session of a thread whose maker names none: the one with the same id.
    #[must_use]
    pub fn default_session(thread: &ThreadRef) -> SessionRef {
        SessionRef {
            agent: thread.agent.clone(),
            user: None,
            session: thread.thread.as_session(),
        }
    }

    /// A session's etag, as it was sent; `None` for an empty one.
    #[must_use]
    pub fn open_session_etag(
        &self,
        caller: &Caller,
        session: &SessionRef,
        etag: &str,
    ) -> Option<Revision> {
        let open = || {
            let key = session_key(session);
            self.engine.sealer().open_revision(
                &caller.tenant,
                Purpose::Etag,
                Kind::Session,
                &key,
                etag,
            )
        };
        (!etag.is_empty()).then(open)
    }

    /// The etag of the session that a lease covers, to send.
    #[must_use]
    pub fn seal_session_etag(
        &self,
        caller: &Caller,
        grant: &lease::LeaseGrant,
        made: Revision,
    ) -> String {
        let key = session_key(&grant.session);
        let revision = grant.session_etag.revision(made);
        self.engine.sealer().seal_revision(
            &caller.tenant,
            Purpose::Etag,
            Kind::Session,
            &key,
            revision,
        )
    }

    /// The etag of an agent's tool rules, as it was sent; `None` for an empty one.
    #[must_use]
    pub fn open_rules_etag(
        &self,
        caller: &Caller,
        agent: &AgentId,
        etag: &str,
    ) -> Option<Revision> {
        let open = || {
            let key = tool_rules_key(agent);
            self.engine.sealer().open_revision(
                &caller.tenant,
                Purpose::Etag,
                Kind::ToolRules,
                &key,
                etag,
            )
        };
        (!etag.is_empty()).then(open)
    }

    /// The etag of an agent's tool rules, to send; empty when it never had any.
    #[must_use]
    pub fn seal_rules_etag(
        &self,
        caller: &Caller,
        agent: &AgentId,
        rules: Option<&ToolRules>,
    ) -> String {
        let Some(revision) = rules.and_then(|rules| rules.etag.stored()) else {
            return String::new();
        };
        let key = tool_rules_key(agent);
        self.engine.sealer().seal_revision(
            &caller.tenant,
            Purpose::Etag,
            Kind::ToolRules,
            &key,
            revision,
        )
    }
}

/// The lease length that a request asks for.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is out of bounds.
pub fn lease_ttl(field: &str, ttl: Option<Duration>) -> Result<Duration> {
    match ttl {
        None => Ok(DEFAULT_TTL),
        Some(ttl) if (MIN_TTL..=MAX_TTL).contains(&ttl) => Ok(ttl),
        Some(_) => Err(Error::argument(
            field,
            "must be from 5 seconds to 10 minutes",
        )),
    }
}

/// The thread, if it is there and not deleted.
async fn find_thread(
    reads: &mut dyn Reads,
    thread: &ThreadRef,
) -> Result<Option<Loaded<Thread>>, Abort> {
    let found = load::<Thread>(reads, &thread_key(thread)).await?;
    Ok(found.filter(|found| found.value.deleted_at.is_none()))
}

/// The thread.
///
/// # Errors
///
/// [`Reason::ThreadNotFound`].
async fn get_thread(
    reads: &mut dyn Reads,
    caller: &Caller,
    thread: &ThreadRef,
) -> Result<Loaded<Thread>, Abort> {
    let found = find_thread(reads, thread).await?;
    let found = found.filter(|found| is_visible(caller, &found.value.session));
    Ok(found.ok_or_else(thread_not_found)?)
}

/// Whether a thread is within what the caller's key names: a key for one user
/// sees that user's threads only.
#[must_use]
pub fn is_visible(caller: &Caller, session: &SessionRef) -> bool {
    caller.check_user(session.user.as_ref()).is_ok()
}

fn thread_not_found() -> Error {
    Error::new(
        Reason::ThreadNotFound,
        "there is no such thread; check agent_id and thread_id, or acquire it to make it",
    )
}
