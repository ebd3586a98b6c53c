//! `TimelineService` over the wire.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::auth::{caller, still_valid};
use super::convert::common::{
    metadata, optional_session, page_size, request_id, session, session_ref,
};
use super::convert::timeline as convert;
use crate::domain::error::{Error, Result};
use crate::proto::v1::{self, timeline_service_server::TimelineService};
use crate::service::engine::Engine;
use crate::service::timeline::{AppendEntry, EntryFilter, Timelines};
use crate::service::watch::{Event, Said, Start, TimelineWatch, Watches};

/// Serves `TimelineService`.
#[derive(Debug)]
pub struct TimelineApi {
    timelines: Timelines,
    watches: Watches,
}

impl TimelineApi {
    /// Serves the timelines of an engine's store.
    #[must_use]
    pub const fn new(engine: Engine, watches: Watches) -> Self {
        Self {
            timelines: Timelines::new(engine),
            watches,
        }
    }
}

#[tonic::async_trait]
impl TimelineService for TimelineApi {
    async fn list_entries(
        &self,
        request: Request<v1::ListEntriesRequest>,
    ) -> Result<Response<v1::ListEntriesResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ListEntriesRequest {
            session: key,
            filter,
            min_rev,
            max_rev,
            order,
            page_size: size,
            page_token,
        } = request.into_inner();
        let filter = EntryFilter {
            session: session(&caller, "session", key)?,
            kinds: convert::kinds("filter", filter)?,
            from: min_rev,
            to: max_rev,
            newest_first: match v1::SortOrder::try_from(order) {
                Ok(v1::SortOrder::Unspecified | v1::SortOrder::OldestFirst) => false,
                Ok(v1::SortOrder::NewestFirst) => true,
                Err(_) => return Err(Error::argument("order", "must be an order").into()),
            },
        };
        let size = page_size("page_size", size)?;
        let page = self
            .timelines
            .list(&caller, filter, size, &page_token)
            .await?;
        Ok(Response::new(v1::ListEntriesResponse {
            entries: page
                .items
                .into_iter()
                .map(|(entry, revision)| convert::entry(entry, revision))
                .collect(),
            next_page_token: page.next,
            revision: page.revision.get(),
        }))
    }

    type WatchTimelineStream =
        Pin<Box<dyn Stream<Item = Result<v1::WatchTimelineResponse, Status>> + Send>>;

    async fn watch_timeline(
        &self,
        request: Request<v1::WatchTimelineRequest>,
    ) -> Result<Response<Self::WatchTimelineStream>, Status> {
        let caller = caller(&request)?;
        let valid = still_valid(&request);
        let v1::WatchTimelineRequest {
            session: key,
            filter,
            start,
        } = request.into_inner();
        let key = optional_session(&caller, "session", key)?;
        let start = match start {
            Some(v1::watch_timeline_request::Start::InitialState(true)) => Start::InitialState,
            Some(v1::watch_timeline_request::Start::Cursor(cursor)) => Start::Cursor(cursor),
            Some(v1::watch_timeline_request::Start::Now(true)) => Start::Now,
            Some(
                v1::watch_timeline_request::Start::InitialState(false)
                | v1::watch_timeline_request::Start::Now(false),
            )
            | None => {
                return Err(
                    Error::argument("start", "must be initial_state, cursor or now").into(),
                );
            }
        };
        let watch = TimelineWatch {
            session: key,
            agent: caller.agent.clone(),
            user: caller.user.clone(),
            kinds: convert::kinds("filter", filter)?,
        };
        let stream = self.watches.watch(&caller, watch, start, valid).await?;
        let answers = stream.map(|said| {
            use v1::watch_timeline_response::Event as Wire;
            let Said {
                cursor,
                revision,
                event,
            } = said?;
            let event = match event {
                Event::Snapshot(item) => {
                    Wire::Snapshot(convert::entry(Arc::unwrap_or_clone(item), revision))
                }
                // Entries are never changed, so none ever leaves a filter.
                Event::Changed(item) | Event::Left(item) => {
                    Wire::Changed(convert::entry(Arc::unwrap_or_clone(item), revision))
                }
                Event::Deleted(session) => Wire::Deleted(v1::TimelineDeleted {
                    session: Some(session_ref(&session)),
                }),
                Event::Synced => Wire::Synced(v1::Synced {}),
                Event::Progress => Wire::Progress(v1::Progress {}),
                Event::Goodbye(farewell) => Wire::Goodbye(convert::goodbye(farewell)),
            };
            Ok(v1::WatchTimelineResponse {
                cursor,
                revision: revision.get(),
                event: Some(event),
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn append_entry(
        &self,
        request: Request<v1::AppendEntryRequest>,
    ) -> Result<Response<v1::AppendEntryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::AppendEntryRequest {
            session: key,
            label,
            data_json,
            request_id: request,
        } = request.into_inner();
        if let Some(text) = &data_json {
            metadata("data_json", text)?;
        }
        let append = AppendEntry {
            session: session(&caller, "session", key)?,
            label,
            data_json,
        };
        let done = self
            .timelines
            .append(&caller, request_id(&request)?, append)
            .await?;
        Ok(Response::new(v1::AppendEntryResponse {
            entry: Some(convert::entry(done.receipt, done.revision)),
            revision: done.revision.get(),
        }))
    }
}
