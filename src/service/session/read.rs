//! Reading sessions without their bodies: one, or a list.

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;

use super::{SessionView, Sessions};
use crate::domain::error::Result;
use crate::domain::id::{AgentId, SessionRef, UserId};
use crate::domain::revision::Revision;
use crate::domain::session::Session;
use crate::domain::time::Timestamp;
use crate::service::caller::Caller;
use crate::service::listing::{Listed, Order, Position, page};
use crate::service::session_write::session_not_found;
use crate::storage::entities::session_key;
use crate::storage::typed::{Loaded, load_at};
use crate::storage::{Abort, Direction, Index, Query, Reads};

/// The list whose page tokens these are.
const METHOD: &str = "ListSessions";

/// A session as it was at a revision.
#[derive(Debug)]
struct Get {
    session: SessionRef,
    at: Revision,
}

#[async_trait]
impl Query for Get {
    type Output = Option<Loaded<Session>>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let found = load_at::<Session>(reads, &session_key(&self.session), self.at).await?;
        Ok(found.filter(|session| session.value.deleted_at.is_none()))
    }
}

/// Which sessions. Absent parts match all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filter {
    /// Of this agent.
    pub agent: Option<AgentId>,
    /// Of this user.
    pub user: Option<UserId>,
    /// With any of these tags.
    pub tags: Vec<String>,
    /// With this text in the title, in whatever case.
    pub title_contains: String,
    /// Made at or after.
    pub created_from: Option<Timestamp>,
    /// Made at or before.
    pub created_to: Option<Timestamp>,
    /// Saved at or after.
    pub saved_from: Option<Timestamp>,
    /// Saved at or before.
    pub saved_to: Option<Timestamp>,
}

impl Filter {
    /// Whether a session is one of them.
    #[must_use]
    pub fn matches(&self, session: &Session) -> bool {
        let Self {
            agent,
            user,
            tags,
            title_contains,
            created_from,
            created_to,
            saved_from,
            saved_to,
        } = self;
        let within = |at: Timestamp, from: &Option<Timestamp>, to: &Option<Timestamp>| {
            from.is_none_or(|from| at >= from) && to.is_none_or(|to| at <= to)
        };
        let title = || session.listing.title.as_deref().unwrap_or_default();
        agent
            .as_ref()
            .is_none_or(|agent| session.key.agent == *agent)
            && (user.is_none() || session.key.user == *user)
            && (tags.is_empty() || tags.iter().any(|tag| session.listing.tags.contains(tag)))
            && (title_contains.is_empty()
                || title()
                    .to_lowercase()
                    .contains(&title_contains.to_lowercase()))
            && within(session.created_at, created_from, created_to)
            && within(session.saved_at, saved_from, saved_to)
    }
}

#[derive(Debug)]
struct List {
    filter: Filter,
    from: Option<Position>,
    limit: usize,
}

#[async_trait]
impl Query for List {
    type Output = Listed<Session>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let order = Order {
            index: Index::SessionSaved,
            prefix: Bytes::new(),
            direction: Direction::Forward,
        };
        let matches = |session: &Session| self.filter.matches(session);
        page::<Session>(reads, &order, self.from.as_ref(), self.limit, matches).await
    }
}

/// A page of sessions.
#[derive(Clone, Debug)]
pub struct SessionPage {
    /// The sessions, the last saved first.
    pub items: Vec<SessionView>,
    /// The token of the next page; empty on the last.
    pub next: String,
    /// The revision that the list is of.
    pub revision: Revision,
}

impl Sessions {
    /// A session as it was at a revision.
    ///
    /// # Errors
    ///
    /// [`SessionNotFound`](crate::domain::error::Reason).
    pub async fn get(
        &self,
        caller: &Caller,
        session: SessionRef,
        at: Revision,
    ) -> Result<SessionView> {
        let found = self
            .engine
            .read(&caller.tenant, Get { session, at })
            .await?
            .ok_or_else(session_not_found)?;
        Ok(self.view(caller, found.value, found.revision))
    }

    /// A page of the sessions that match, the last saved first.
    ///
    /// # Errors
    ///
    /// [`PageTokenInvalid`](crate::domain::error::Reason).
    pub async fn list(
        &self,
        caller: &Caller,
        filter: Filter,
        limit: usize,
        token: &str,
    ) -> Result<SessionPage> {
        let sealer = self.engine.sealer();
        let from = sealer.open_page::<Position>(&caller.tenant, METHOD, &filter, token)?;
        let list = List {
            filter: filter.clone(),
            from,
            limit,
        };
        let listed = self.engine.read(&caller.tenant, list).await?;
        let next = listed
            .next
            .map(|next| sealer.seal_page(&caller.tenant, METHOD, &filter, &next));
        let view = |found: Loaded<Session>| self.view(caller, found.value, found.revision);
        Ok(SessionPage {
            items: listed.items.into_iter().map(view).collect(),
            next: next.unwrap_or_default(),
            revision: listed.at,
        })
    }
}
