//! Saving a session, appending to it, and changing what lists show of it.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::body::{BodyUpdate, ListingUpdate, MemoryLink, relink, write_body, write_listing};
use super::{Left, SessionView, Sessions};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, SessionId, SessionRef, UserId};
use crate::domain::log::LogId;
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::{Preconditions, Session};
use crate::domain::state::{StateMode, StateUpdate};
use crate::domain::thread::Token;
use crate::service::caller::Caller;
use crate::service::cover::check_session;
use crate::service::engine::{Command, Done};
use crate::service::session_write::{
    MessageWrite, Written, open_session, session_not_found, touch, write_messages, write_state,
};
use crate::storage::typed::{ChangeSet, EncodedItem, Loaded};
use crate::storage::{Abort, Reads};

/// Opens a session for a call that may replace what it holds.
///
/// One that names neither a precondition nor a token makes what is absent, and
/// nothing else.
pub(super) async fn open_to_replace(
    reads: &mut dyn Reads,
    key: &SessionRef,
    preconditions: &Preconditions,
    new_log: LogId,
    needs_one: bool,
    token: Option<&Token>,
) -> Result<Loaded<Session>, Abort> {
    let session = open_session(reads, key, preconditions, new_log).await?;
    check_session(reads, &session.value, token).await?;
    if needs_one
        && session.value.generation.stored().is_some()
        && token.is_none()
        && !preconditions.allows_replacing()
    {
        return Err(Error::new(
            Reason::AlreadyExists,
            "the session exists, and this call would replace what it holds; \
             send its etag, its base_seq, a fencing_token, or overwrite",
        )
        .with("last_seq", session.value.head.last_seq)
        .into());
    }
    Ok(session)
}

/// Replaces the latest state of a session. Absent keeps.
#[derive(Debug, Serialize)]
pub struct Save {
    /// The agent.
    pub agent: AgentId,
    /// The user.
    pub user: Option<UserId>,
    /// The session; none for a new one.
    pub session: Option<SessionId>,
    /// The whole history.
    pub messages: Option<Vec<EncodedItem>>,
    /// The state.
    pub state: Option<StateUpdate>,
    /// Prompts, plugin states and the like.
    pub body: BodyUpdate,
    /// What lists show.
    pub listing: ListingUpdate,
    /// The memory to link.
    pub memory: MemoryLink,
    /// On the session's existence and content.
    pub preconditions: Preconditions,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The id of a session whose maker named none.
    #[serde(skip)]
    pub new_session: SessionId,
    /// The log of a session that is new.
    #[serde(skip)]
    pub new_log: LogId,
    /// The most bytes of listing metadata.
    #[serde(skip)]
    pub most_metadata: usize,
}

/// What a save did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Saved {
    /// The session.
    pub session: SessionRef,
    /// How many of the messages were stored already.
    pub matched: u64,
    /// How many were written.
    pub written: u64,
    #[serde(skip)]
    left: Left,
}

#[async_trait]
impl Command for Save {
    const METHOD: &'static str = "SessionService/SaveSession";
    type Receipt = Saved;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Saved, Abort> {
        let now = reads.now();
        let key = SessionRef {
            agent: self.agent.clone(),
            user: self.user.clone(),
            session: self.session.as_ref().unwrap_or(&self.new_session).clone(),
        };
        let replaces_state = |state: &StateUpdate| state.mode == StateMode::Replace;
        let replaces = self.messages.is_some() || self.state.as_ref().is_some_and(replaces_state);
        let token = self.token.as_ref();
        let mut opened = open_to_replace(
            reads,
            &key,
            &self.preconditions,
            self.new_log,
            replaces,
            token,
        )
        .await?;
        let session = &mut opened.value;

        let mut written = Written::default();
        if let Some(messages) = &self.messages {
            let write = MessageWrite::Replace(messages.clone());
            written = write_messages(reads, changes, session, &write, now).await?;
        }
        let mut is_touched = false;
        if let Some(update) = &self.state {
            let state =
                write_state(reads, changes, &mut session.head, session.state, update).await?;
            is_touched |= state != session.state;
            session.state = state;
        }
        is_touched |= write_body(reads, changes, session, &self.body).await?;
        let has_etag = self.preconditions.etag.is_some();
        is_touched |= relink(reads, changes, session, &self.memory, has_etag, token).await?;
        if is_touched {
            touch(session, now);
        }
        if write_listing(&mut session.listing, &self.listing, self.most_metadata)? {
            session.listing_etag = Stamp::THIS_COMMIT;
        }
        session.saved_at = now;
        changes.update(&opened)?;
        Ok(Saved {
            session: key,
            matched: written.matched,
            written: written.new,
            left: Some(Box::new(opened.value)),
        })
    }
}

/// Appends messages to a session.
#[derive(Debug, Serialize)]
pub struct AppendMessages {
    /// The session.
    pub session: SessionRef,
    /// The messages, oldest first; at least one.
    pub messages: MessageWrite,
    /// On the session's existence and content.
    pub preconditions: Preconditions,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The log of a session that is new.
    #[serde(skip)]
    pub new_log: LogId,
}

/// What an append did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Appended {
    /// The `seq` of the first message.
    pub first_seq: i64,
    #[serde(skip)]
    left: Left,
}

#[async_trait]
impl Command for AppendMessages {
    const METHOD: &'static str = "SessionService/AppendMessages";
    type Receipt = Appended;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Appended, Abort> {
        let now = reads.now();
        let mut opened =
            open_session(reads, &self.session, &self.preconditions, self.new_log).await?;
        let session = &mut opened.value;
        check_session(reads, session, self.token.as_ref()).await?;
        let first_seq = session.head.last_seq + 1;
        write_messages(reads, changes, session, &self.messages, now).await?;
        changes.update(&opened)?;
        Ok(Appended {
            first_seq,
            left: Some(Box::new(opened.value)),
        })
    }
}

/// Changes what lists show of a session.
#[derive(Debug, Serialize)]
pub struct Update {
    /// The session.
    pub session: SessionRef,
    /// What to change.
    pub listing: ListingUpdate,
    /// The listing etag that was seen, if one was sent.
    pub listing_etag: Option<Revision>,
    /// The token of the run that covers it.
    pub token: Option<Token>,
    /// The most bytes of listing metadata.
    #[serde(skip)]
    pub most_metadata: usize,
}

/// What an update did: the session is as it says.
#[derive(Debug, Serialize, Deserialize)]
pub struct Updated {
    #[serde(skip)]
    left: Left,
}

#[async_trait]
impl Command for Update {
    const METHOD: &'static str = "SessionService/UpdateSession";
    type Receipt = Updated;

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Updated, Abort> {
        let mut opened = existing(reads, &self.session).await?;
        let session = &mut opened.value;
        check_session(reads, session, self.token.as_ref()).await?;
        let on_listing = Preconditions {
            etag: self.listing_etag,
            ..Preconditions::default()
        };
        on_listing.check("listing metadata", session.listing_etag, 0)?;
        if !write_listing(&mut session.listing, &self.listing, self.most_metadata)? {
            return Ok(Updated { left: None });
        }
        session.listing_etag = Stamp::THIS_COMMIT;
        changes.update(&opened)?;
        Ok(Updated {
            left: Some(Box::new(opened.value)),
        })
    }
}

/// The session, which must be there.
///
/// # Errors
///
/// [`Reason::SessionNotFound`].
async fn existing(reads: &mut dyn Reads, key: &SessionRef) -> Result<Loaded<Session>, Abort> {
    let key = crate::storage::entities::session_key(key);
    let found = crate::storage::typed::load::<Session>(reads, &key).await?;
    let found = found.filter(|session| session.value.deleted_at.is_none());
    Ok(found.ok_or_else(session_not_found)?)
}

impl Sessions {
    /// Saves a session.
    ///
    /// # Errors
    ///
    /// [`Reason::AlreadyExists`], [`Reason::SessionNotFound`], [`Reason::Deleted`],
    /// [`Reason::EtagMismatch`], [`Reason::SeqMismatch`],
    /// [`Reason::TokenRequired`], [`Reason::Fenced`],
    /// [`Reason::PreconditionRequired`] when it links another memory.
    pub async fn save(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        save: Save,
    ) -> Result<(SessionView, Done<Saved>)> {
        let mut done = self.submit(caller, request_id, save).await?;
        let left = done.receipt.left.take();
        let view = self
            .after(caller, &done.receipt.session, left, done.revision)
            .await?;
        Ok((view, done))
    }

    /// Appends messages.
    ///
    /// # Errors
    ///
    /// As [`Sessions::save`].
    pub async fn append(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        append: AppendMessages,
    ) -> Result<(SessionView, Done<Appended>)> {
        let key = append.session.clone();
        let mut done = self.submit(caller, request_id, append).await?;
        let left = done.receipt.left.take();
        let view = self.after(caller, &key, left, done.revision).await?;
        Ok((view, done))
    }

    /// Changes listing metadata.
    ///
    /// # Errors
    ///
    /// [`Reason::SessionNotFound`], [`Reason::EtagMismatch`],
    /// [`Reason::TokenRequired`], [`Reason::Fenced`], [`Reason::LimitExceeded`].
    pub async fn update(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        update: Update,
    ) -> Result<(SessionView, Done<Updated>)> {
        let key = update.session.clone();
        let mut done = self.submit(caller, request_id, update).await?;
        let left = done.receipt.left.take();
        let view = self.after(caller, &key, left, done.revision).await?;
        Ok((view, done))
    }
}
