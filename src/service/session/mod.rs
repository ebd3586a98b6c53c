//! Sessions: save, load, append, list, commit a run, delete.

use bytes::Bytes;
use uuid::Uuid;

use super::caller::Caller;
use super::engine::{Done, Engine};
use super::history::Histories;
use super::seal::Purpose;
use crate::domain::error::Result;
use crate::domain::id::{MemoryRef, SessionId, SessionRef};
use crate::domain::log::LogId;
use crate::domain::revision::Revision;
use crate::domain::session::{Session, field};
use crate::domain::thread::Token;
use crate::storage::entities::{memory_key, session_key};
use crate::storage::{Entity as _, Kind};

pub mod body;
pub mod delete;
pub mod load;
pub mod read;
pub mod run;
pub mod write;

/// A session without its body, as callers see it.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The session.
    pub session: Session,
    /// The commit that last changed it.
    pub revision: Revision,
    /// The etag of its content, sealed.
    pub etag: String,
    /// The etag of its listing metadata, sealed.
    pub listing_etag: String,
}

impl SessionView {
    /// Whether input waits that no turn has answered.
    #[must_use]
    pub fn has_pending_input(&self) -> bool {
        body::field_cell(&self.session, field::PENDING_INPUT).is_some()
    }
}

/// A session as a command left it. It is at hand for the first call; a repeated
/// one reads it.
type Left = Option<Box<Session>>;

/// Use cases of sessions.
#[derive(Clone, Debug)]
pub struct Sessions {
    engine: Engine,
    histories: Histories,
}

impl Sessions {
    /// Use cases that run on `engine`.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            histories: Histories::new(engine.clone()),
            engine,
        }
    }

    /// Reads histories.
    #[must_use]
    pub const fn histories(&self) -> &Histories {
        &self.histories
    }

    /// A log for a new session or memory.
    #[must_use]
    pub fn new_log(&self) -> LogId {
        LogId(self.engine.new_id())
    }

    /// An id for a session whose maker names none.
    ///
    /// # Errors
    ///
    /// None that can happen: a UUID is a valid id.
    pub fn new_session_id(&self) -> Result<SessionId> {
        let id = self.engine.new_id().to_string();
        SessionId::try_from(id)
            .map_err(|invalid| crate::domain::error::Error::argument("session_id", invalid.problem))
    }

    /// The fencing token in a field; `None` for an empty one.
    #[must_use]
    pub fn open_token(&self, caller: &Caller, token: &str) -> Option<Token> {
        self.engine.sealer().open_token(&caller.tenant, token)
    }

    /// A session's etag, as it was sent; `None` for an empty one.
    #[must_use]
    pub fn open_etag(&self, caller: &Caller, session: &SessionRef, etag: &str) -> Option<Revision> {
        self.open(caller, Purpose::Etag, session, etag)
    }

    /// The etag of a session's listing metadata, as it was sent; `None` for an
    /// empty one.
    #[must_use]
    pub fn open_listing_etag(
        &self,
        caller: &Caller,
        session: &SessionRef,
        etag: &str,
    ) -> Option<Revision> {
        self.open(caller, Purpose::ListingEtag, session, etag)
    }

    fn open(
        &self,
        caller: &Caller,
        purpose: Purpose,
        session: &SessionRef,
        etag: &str,
    ) -> Option<Revision> {
        let open = || {
            let key = session_key(session);
            self.engine
                .sealer()
                .open_revision(&caller.tenant, purpose, Kind::Session, &key, etag)
        };
        (!etag.is_empty()).then(open)
    }

    /// A session as callers see it.
    #[must_use]
    pub fn view(&self, caller: &Caller, session: Session, revision: Revision) -> SessionView {
        let key = session_key(&session.key);
        let seal = |purpose, etag| {
            self.engine
                .sealer()
                .seal_revision(&caller.tenant, purpose, Kind::Session, &key, etag)
        };
        SessionView {
            etag: seal(Purpose::Etag, session.etag.revision(revision)),
            listing_etag: seal(
                Purpose::ListingEtag,
                session.listing_etag.revision(revision),
            ),
            session,
            revision,
        }
    }

    /// The etag of a memory, sealed.
    #[must_use]
    pub fn seal_memory_etag(&self, caller: &Caller, memory: &MemoryRef, etag: Revision) -> String {
        let key = memory_key(memory);
        self.engine
            .sealer()
            .seal_revision(&caller.tenant, Purpose::Etag, Kind::Memory, &key, etag)
    }

    /// A session as the commit `made` left it.
    async fn after(
        &self,
        caller: &Caller,
        key: &SessionRef,
        left: Left,
        made: Revision,
    ) -> Result<SessionView> {
        match left {
            Some(mut session) => {
                session.resolve(made);
                Ok(self.view(caller, *session, made))
            }
            None => self.get(caller, key.clone(), made).await,
        }
    }

    async fn submit<C: super::engine::Command>(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        command: C,
    ) -> Result<Done<C::Receipt>> {
        self.engine.submit(caller, request_id, command).await
    }
}

/// The bytes of a text.
fn bytes_of(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
