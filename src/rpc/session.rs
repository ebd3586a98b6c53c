//! `SessionService` over the wire.

use tonic::{Request, Response, Status};

use super::auth::caller;
use super::convert::checkpoint::{checkpoint_id, view};
use super::convert::common::{id, memory, page_size, request_id, session, thread, thread_id};
use super::convert::session::{self as convert, Fields};
use super::convert::{message, session::at_revision};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{MemoryId, MemoryRef, SessionRef, ThreadRef};
use crate::domain::message::Item;
use crate::domain::revision::Revision;
use crate::domain::session::Preconditions;
use crate::domain::state::StateMode;
use crate::domain::thread::Token;
use crate::proto::v1::{self, session_service_server::SessionService};
use crate::service::caller::{Caller, Role};
use crate::service::checkpoint::resume::View;
use crate::service::engine::{Done, Engine};
use crate::service::history::{Part, Target};
use crate::service::session::{
    Append, CommitRun, Delete, RunCommitted, Save, Seed, Sessions, Update,
};
use crate::service::session_write::{MessageWrite, session_not_found};

/// Serves `SessionService`.
#[derive(Debug)]
pub struct SessionApi {
    engine: Engine,
    sessions: Sessions,
}

fn not_implemented<T>(what: &str) -> Result<T, Status> {
    Err(Error::new(
        Reason::NotImplemented,
        format!("{what} is not available yet"),
    )
    .into())
}

fn refuse_writer(writer: Option<&v1::Writer>) -> Result<()> {
    match writer {
        None => Ok(()),
        Some(_) => {
            let message = "managed restore is not available yet; leave writer out";
            Err(Error::new(Reason::NotImplemented, message).at("writer"))
        }
    }
}

impl SessionApi {
    /// Serves the sessions of an engine's store.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            sessions: Sessions::new(engine.clone()),
            engine,
        }
    }

    fn outward(
        &self,
        caller: &Caller,
        session: &crate::domain::session::Session,
        revision: Revision,
    ) -> v1::Session {
        convert::session(
            session,
            self.sessions.seal_etags(caller, session, revision),
            revision,
        )
    }

    /// A session as a commit left it.
    async fn after(&self, caller: &Caller, key: SessionRef, at: Revision) -> Result<v1::Session> {
        let (session, revision) = self.sessions.get(caller, key, at).await?;
        Ok(self.outward(caller, &session, revision))
    }

    fn token(&self, caller: &Caller, sealed: &str) -> Option<Token> {
        self.engine.sealer().open_token(&caller.tenant, sealed)
    }

    fn memory_id(text: Option<&str>) -> Result<Option<MemoryId>> {
        text.map(|text| id::<MemoryId>("memory_id", text))
            .transpose()
    }

    /// Writes the seed of a new session, or the link to a memory.
    async fn seed(&self, caller: &Caller, key: &SessionRef, request: SeedRequest) -> Result<bool> {
        if request.messages.is_empty() && request.memory.is_none() {
            return Ok(false);
        }
        caller.require(&[Role::Agent])?;
        let Some(request_id) = request_id(&request.request_id)? else {
            let message = "a load that writes a seed or a link needs a request_id";
            return Err(Error::new(Reason::ArgumentInvalid, message).at("request_id"));
        };
        let seed = Seed {
            session: key.clone(),
            messages: self.sessions.encode(&request.messages)?,
            memory: request.memory,
            preconditions: Preconditions {
                etag: self.sessions.open_etag(caller, key, &request.etag),
                must_exist: request.must_exist,
                recreate: request.recreate,
                ..Preconditions::default()
            },
            token: self.token(caller, &request.fencing_token),
            new_log: self.sessions.new_log(),
        };
        Ok(self
            .sessions
            .seed(caller, Some(request_id), seed)
            .await?
            .receipt)
    }
}

/// The answer to the end of a run.
fn convert_committed(session: v1::Session, done: Done<RunCommitted>) -> v1::CommitRunResponse {
    let Done {
        revision, receipt, ..
    } = done;
    v1::CommitRunResponse {
        session: Some(session),
        run_id: receipt.run.to_string(),
        timeline_rev: receipt.timeline_rev,
        acknowledged_interrupt_ids: receipt
            .acknowledged
            .iter()
            .map(ToString::to_string)
            .collect(),
        withdrawn_interrupt_ids: receipt.withdrawn.iter().map(ToString::to_string).collect(),
        revision: revision.get(),
        ..v1::CommitRunResponse::default()
    }
}

/// The fields of a load that write.
struct SeedRequest {
    messages: Vec<Item>,
    memory: Option<MemoryId>,
    etag: String,
    fencing_token: String,
    must_exist: bool,
    recreate: bool,
    request_id: String,
}

#[tonic::async_trait]
impl SessionService for SessionApi {
    async fn save_session(
        &self,
        request: Request<v1::SaveSessionRequest>,
    ) -> Result<Response<v1::SaveSessionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::SaveSessionRequest {
            session: key,
            messages,
            state,
            system_prompt,
            instructions,
            plugin_states,
            pending_input,
            state_metadata_json,
            format_version,
            evidence_scope_digest,
            task_scope_digest,
            listing,
            memory_id,
            etag,
            base_seq,
            fencing_token,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
            writer,
            request_id: request,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        let key = convert::session_or_new(&caller, key, || self.sessions.new_session_id())?;
        let messages = match messages {
            Some(list) => Some(
                self.sessions
                    .encode(&message::items("messages.messages", list.messages)?)?,
            ),
            None => None,
        };
        let fields = convert::fields(Fields {
            system_prompt,
            instructions,
            plugin_states,
            pending_input,
            state_metadata_json,
            format_version,
            evidence_scope_digest,
            task_scope_digest,
        })?;
        let save = Save {
            messages,
            state: state
                .map(|update| message::state_update("state", update, StateMode::Replace))
                .transpose()?,
            fields,
            listing: listing
                .map(|listing| convert::listing(listing, false, Vec::new()))
                .transpose()?,
            memory: Self::memory_id(memory_id.as_deref())?,
            preconditions: Preconditions {
                etag: self.sessions.open_etag(&caller, &key, &etag),
                base_seq,
                overwrite,
                must_exist,
                must_not_exist,
                recreate,
            },
            token: self.token(&caller, &fencing_token),
            session: key,
            new_log: self.sessions.new_log(),
        };
        let done = self
            .sessions
            .save(&caller, request_id(&request)?, save)
            .await?;
        Ok(Response::new(v1::SaveSessionResponse {
            session: Some(
                self.after(&caller, done.receipt.session, done.revision)
                    .await?,
            ),
            matched_count: super::convert::common::count(done.receipt.matched),
            written_count: super::convert::common::count(done.receipt.written),
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn load_session(
        &self,
        request: Request<v1::LoadSessionRequest>,
    ) -> Result<Response<v1::LoadSessionResponse>, Status> {
        use v1::load_session_response::RestoredFrom;

        let caller = caller(&request)?;
        let v1::LoadSessionRequest {
            session: key,
            at_revision: at,
            expectations,
            seed_messages,
            memory_id,
            etag,
            fencing_token,
            must_exist,
            recreate,
            messages_page_size,
            writer,
            request_id,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        let key = session(&caller, "session", key)?;
        let at = at_revision(at)?;
        let page = page_size("messages_page_size", messages_page_size)?;
        let memory = Self::memory_id(memory_id.as_deref())?;
        // Expectations come first: a load that is refused changes nothing.
        if let Some(expected) = expectations {
            match self.sessions.get(&caller, key.clone(), at).await {
                Ok((stored, _)) => convert::expect(&stored, expected)?,
                Err(error) if error.reason == Reason::SessionNotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        let seed = SeedRequest {
            messages: message::items("seed_messages", seed_messages)?,
            memory: memory.clone(),
            etag,
            fencing_token,
            must_exist,
            recreate,
            request_id,
        };
        let seeded = self.seed(&caller, &key, seed).await?;
        let content = self
            .sessions
            .content(&caller, key.clone(), at, page)
            .await?;
        let linked = content
            .as_ref()
            .and_then(|content| content.session.memory_id.clone())
            .or(memory);
        let Some(content) = content else {
            if must_exist {
                return Err(session_not_found().into());
            }
            return Ok(Response::new(v1::LoadSessionResponse {
                data: Some(v1::SessionData::default()),
                messages_page_token: String::new(),
                session: None,
                restored_from: RestoredFrom::New.into(),
                writer_epoch: None,
                revision: 0,
            }));
        };
        let (revision, token) = (
            content.revision,
            self.sessions.messages_token(&caller, &content),
        );
        let wire = self.outward(&caller, &content.session, revision);
        let empty = content.session.head.is_empty();
        let mut response = v1::LoadSessionResponse {
            data: Some(convert::data(content)),
            messages_page_token: token,
            session: Some(wire),
            restored_from: if seeded {
                RestoredFrom::Seed
            } else {
                RestoredFrom::Session
            }
            .into(),
            writer_epoch: None,
            revision: revision.get(),
        };
        // A session without a history of its own starts from its memory's.
        if empty && let Some(memory) = linked {
            let key = MemoryRef {
                agent: key.agent,
                memory,
            };
            if let Some(history) = self.sessions.memory_history(&caller, key, page).await? {
                let messages = history
                    .items
                    .into_iter()
                    .map(|(index, item)| message::stored(item, index))
                    .collect();
                response.data.get_or_insert_default().messages = Some(v1::MessageList { messages });
                response.messages_page_token = history.next;
                response.restored_from = RestoredFrom::Memory.into();
            }
        }
        Ok(Response::new(response))
    }

    async fn get_session(
        &self,
        request: Request<v1::GetSessionRequest>,
    ) -> Result<Response<v1::GetSessionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GetSessionRequest { session: key } = request.into_inner();
        let key = session(&caller, "session", key)?;
        let session = self.after(&caller, key, Revision::LATEST).await?;
        Ok(Response::new(v1::GetSessionResponse {
            revision: session.revision,
            session: Some(session),
        }))
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let filter = convert::filter(&request, &caller)?;
        let size = page_size("page_size", request.page_size)?;
        let page = self
            .sessions
            .list(&caller, filter, size, &request.page_token)
            .await?;
        Ok(Response::new(v1::ListSessionsResponse {
            sessions: page
                .items
                .iter()
                .map(|(session, revision)| self.outward(&caller, session, *revision))
                .collect(),
            next_page_token: page.next,
            revision: page.revision.get(),
        }))
    }

    async fn update_session(
        &self,
        request: Request<v1::UpdateSessionRequest>,
    ) -> Result<Response<v1::UpdateSessionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::UpdateSessionRequest {
            session: key,
            listing,
            delete_extra_keys,
            listing_etag,
            fencing_token,
            writer,
            request_id: request,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        let key = session(&caller, "session", key)?;
        let update = Update {
            listing: convert::listing(listing.unwrap_or_default(), true, delete_extra_keys)?,
            seen: self
                .sessions
                .open_listing_etag(&caller, &key, &listing_etag),
            token: self.token(&caller, &fencing_token),
            session: key,
        };
        let done = self
            .sessions
            .update(&caller, request_id(&request)?, update)
            .await?;
        Ok(Response::new(v1::UpdateSessionResponse {
            session: Some(self.after(&caller, done.receipt, done.revision).await?),
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn delete_session(
        &self,
        request: Request<v1::DeleteSessionRequest>,
    ) -> Result<Response<v1::DeleteSessionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::DeleteSessionRequest {
            session: key,
            etag,
            fencing_token,
            writer,
            request_id: request,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        let key = session(&caller, "session", key)?;
        let delete = Delete {
            etag: self.sessions.open_etag(&caller, &key, &etag),
            token: self.token(&caller, &fencing_token),
            session: key.clone(),
        };
        let done = self
            .sessions
            .delete(&caller, request_id(&request)?, delete)
            .await?;
        Ok(Response::new(v1::DeleteSessionResponse {
            existed: done.receipt.existed,
            session_id: key.session.to_string(),
            withdrawn_interrupt_ids: done
                .receipt
                .withdrawn
                .iter()
                .map(ToString::to_string)
                .collect(),
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn append_messages(
        &self,
        request: Request<v1::AppendMessagesRequest>,
    ) -> Result<Response<v1::AppendMessagesResponse>, Status> {
        let caller = caller(&request)?;
        let v1::AppendMessagesRequest {
            session: key,
            messages,
            expected_last_seq: base_seq,
            etag,
            fencing_token,
            must_exist,
            must_not_exist,
            recreate,
            writer,
            request_id: request,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        let key = session(&caller, "session", key)?;
        if messages.is_empty() {
            return Err(Error::argument("messages", "must not be empty").into());
        }
        let append = Append {
            messages: self
                .sessions
                .encode(&message::items("messages", messages)?)?,
            preconditions: Preconditions {
                etag: self.sessions.open_etag(&caller, &key, &etag),
                base_seq,
                overwrite: false,
                must_exist,
                must_not_exist,
                recreate,
            },
            token: self.token(&caller, &fencing_token),
            session: key,
            new_log: self.sessions.new_log(),
        };
        let Done {
            revision, receipt, ..
        } = self
            .sessions
            .append(&caller, request_id(&request)?, append)
            .await?;
        Ok(Response::new(v1::AppendMessagesResponse {
            session: Some(self.outward(&caller, &receipt.session, revision)),
            first_seq: receipt.first_seq,
            writer_epoch: None,
            revision: revision.get(),
        }))
    }

    async fn list_messages(
        &self,
        request: Request<v1::ListMessagesRequest>,
    ) -> Result<Response<v1::ListMessagesResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ListMessagesRequest {
            target,
            view: wanted,
            at_revision: at,
            order,
            start_index,
            end_index,
            page_size: size,
            page_token,
        } = request.into_inner();
        let target = match target {
            Some(v1::list_messages_request::Target::Session(key)) => {
                Target::Session(session(&caller, "session", Some(key))?)
            }
            Some(v1::list_messages_request::Target::Memory(key)) => {
                Target::Memory(memory(&caller, "memory", Some(key))?)
            }
            Some(v1::list_messages_request::Target::Checkpoint(v1::CheckpointRef {
                thread: key,
                checkpoint_id: id,
            })) => Target::Checkpoint {
                thread: thread(&caller, "checkpoint.thread", key)?,
                checkpoint: checkpoint_id("checkpoint.checkpoint_id", &id)?,
                view: view("view", wanted, View::Full)?,
            },
            Some(v1::list_messages_request::Target::Snapshot(_)) => {
                return not_implemented("a snapshot");
            }
            None => {
                return Err(Error::argument(
                    "target",
                    "must be session, snapshot, checkpoint or memory",
                )
                .into());
            }
        };
        let part = Part {
            from: convert::index("start_index", start_index)?,
            to: convert::index("end_index", end_index)?,
            newest_first: match v1::SortOrder::try_from(order) {
                Ok(v1::SortOrder::Unspecified | v1::SortOrder::OldestFirst) => false,
                Ok(v1::SortOrder::NewestFirst) => true,
                Err(_) => return Err(Error::argument("order", "must be an order").into()),
            },
        };
        let size = page_size("page_size", size)?;
        let at = at_revision(at)?;
        let page = self
            .sessions
            .histories()
            .page(&caller, target, part, at, size, &page_token)
            .await?;
        Ok(Response::new(v1::ListMessagesResponse {
            messages: page
                .items
                .into_iter()
                .map(|(index, item)| message::stored(item, index))
                .collect(),
            next_page_token: page.next,
            message_count: super::convert::common::count(page.total),
            etag: page.etag,
            last_seq: page.last_seq,
            revision: page.revision.get(),
        }))
    }

    async fn set_pins(
        &self,
        _request: Request<v1::SetPinsRequest>,
    ) -> Result<Response<v1::SetPinsResponse>, Status> {
        not_implemented("SetPins")
    }

    async fn edit_message(
        &self,
        _request: Request<v1::EditMessageRequest>,
    ) -> Result<Response<v1::EditMessageResponse>, Status> {
        not_implemented("EditMessage")
    }

    async fn branch_session(
        &self,
        _request: Request<v1::BranchSessionRequest>,
    ) -> Result<Response<v1::BranchSessionResponse>, Status> {
        not_implemented("BranchSession")
    }

    async fn commit_run(
        &self,
        request: Request<v1::CommitRunRequest>,
    ) -> Result<Response<v1::CommitRunResponse>, Status> {
        let caller = caller(&request)?;
        let v1::CommitRunRequest {
            session: key,
            thread_id: thread,
            fencing_token,
            final_turn,
            output_version,
            input,
            manager,
            state,
            system_prompt,
            instructions,
            plugin_states,
            pending_input,
            state_metadata_json,
            withdraw,
            outcome,
            etag,
            base_seq,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
            writer,
            request_id: request,
            transcript,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        if manager.is_some() {
            return not_implemented("a conversation manager in CommitRun");
        }
        let key = session(&caller, "session", key)?;
        let (mut written, replaces) = match transcript {
            None => (Vec::new(), false),
            Some(v1::commit_run_request::Transcript::Append(list)) => {
                (message::items("append.messages", list.messages)?, false)
            }
            Some(v1::commit_run_request::Transcript::Replace(list)) => {
                (message::items("replace.messages", list.messages)?, true)
            }
        };
        if let Some(turn) = final_turn {
            written.push(convert::final_turn(turn, output_version)?);
        }
        let encoded = self.sessions.encode(&written)?;
        let messages = match (replaces, encoded.is_empty()) {
            (true, _) => MessageWrite::Replace(encoded),
            (false, true) => MessageWrite::Keep,
            (false, false) => MessageWrite::Append(encoded),
        };
        let thread = match thread.as_deref() {
            Some(text) => Some(ThreadRef {
                agent: key.agent.clone(),
                thread: thread_id("thread_id", text)?,
            }),
            None => None,
        };
        let commit = CommitRun {
            thread,
            token: self.token(&caller, &fencing_token),
            messages,
            written,
            input: input.map(convert::input).transpose()?,
            state: state
                .map(|update| message::state_update("state", update, StateMode::Merge))
                .transpose()?,
            fields: convert::fields(Fields {
                system_prompt,
                instructions,
                plugin_states,
                pending_input,
                state_metadata_json,
                ..Fields::default()
            })?,
            withdraw,
            outcome,
            preconditions: Preconditions {
                etag: self.sessions.open_etag(&caller, &key, &etag),
                base_seq,
                overwrite,
                must_exist,
                must_not_exist,
                recreate,
            },
            session: key,
            new_log: self.sessions.new_log(),
            new_run: self.sessions.new_run(),
        };
        let done = self
            .sessions
            .commit_run(&caller, request_id(&request)?, commit)
            .await?;
        let session = self
            .after(&caller, done.receipt.session.clone(), done.revision)
            .await?;
        Ok(Response::new(convert_committed(session, done)))
    }

    async fn create_snapshot(
        &self,
        _request: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        not_implemented("CreateSnapshot")
    }

    async fn list_snapshots(
        &self,
        _request: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        not_implemented("ListSnapshots")
    }

    async fn get_snapshot(
        &self,
        _request: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        not_implemented("GetSnapshot")
    }

    async fn delete_snapshot(
        &self,
        _request: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        not_implemented("DeleteSnapshot")
    }

    async fn restore_snapshot(
        &self,
        _request: Request<v1::RestoreSnapshotRequest>,
    ) -> Result<Response<v1::RestoreSnapshotResponse>, Status> {
        not_implemented("RestoreSnapshot")
    }

    async fn begin_restore(
        &self,
        _request: Request<v1::BeginRestoreRequest>,
    ) -> Result<Response<v1::BeginRestoreResponse>, Status> {
        not_implemented("BeginRestore")
    }

    async fn commit_restore(
        &self,
        _request: Request<v1::CommitRestoreRequest>,
    ) -> Result<Response<v1::CommitRestoreResponse>, Status> {
        not_implemented("CommitRestore")
    }

    async fn abort_restore(
        &self,
        _request: Request<v1::AbortRestoreRequest>,
    ) -> Result<Response<v1::AbortRestoreResponse>, Status> {
        not_implemented("AbortRestore")
    }

    async fn repair_guard(
        &self,
        _request: Request<v1::RepairGuardRequest>,
    ) -> Result<Response<v1::RepairGuardResponse>, Status> {
        not_implemented("RepairGuard")
    }

    async fn get_writer(
        &self,
        _request: Request<v1::GetWriterRequest>,
    ) -> Result<Response<v1::GetWriterResponse>, Status> {
        not_implemented("GetWriter")
    }

    async fn manage_conversation(
        &self,
        _request: Request<v1::ManageConversationRequest>,
    ) -> Result<Response<v1::ManageConversationResponse>, Status> {
        not_implemented("ManageConversation")
    }

    async fn estimate_tokens(
        &self,
        _request: Request<v1::EstimateTokensRequest>,
    ) -> Result<Response<v1::EstimateTokensResponse>, Status> {
        not_implemented("EstimateTokens")
    }

    async fn append_journal(
        &self,
        _request: Request<v1::AppendJournalRequest>,
    ) -> Result<Response<v1::AppendJournalResponse>, Status> {
        not_implemented("AppendJournal")
    }

    async fn list_journal(
        &self,
        _request: Request<v1::ListJournalRequest>,
    ) -> Result<Response<v1::ListJournalResponse>, Status> {
        not_implemented("ListJournal")
    }

    async fn count_journal(
        &self,
        _request: Request<v1::CountJournalRequest>,
    ) -> Result<Response<v1::CountJournalResponse>, Status> {
        not_implemented("CountJournal")
    }
}
