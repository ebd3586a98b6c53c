//! `SessionService` over the wire.

use tonic::{Request, Response, Status};

use super::auth::caller;
use super::convert::common::{
    MAX_METADATA, agent, count, id, memory, optional_uuid, page_size, request_id, session, thread,
    thread_id, user,
};
use super::convert::session as convert;
use super::convert::session::BodyFields;
use super::convert::{checkpoint, message};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{CheckpointId, SessionRef};
use crate::domain::revision::Revision;
use crate::domain::session::Preconditions;
use crate::domain::state::{StateMode, StateUpdate};
use crate::domain::timeline::run_label;
use crate::proto::v1::{self, session_service_server::SessionService};
use crate::service::caller::Caller;
use crate::service::checkpoint::resume::View;
use crate::service::engine::Engine;
use crate::service::history::Target;
use crate::service::session::Sessions;
use crate::service::session::delete::Delete;
use crate::service::session::load::{Load, Prepare};
use crate::service::session::run::CommitRun;
use crate::service::session::write::{AppendMessages, Save, Update};
use crate::service::session_write::MessageWrite;
use crate::service::stored::{EncodedItem, encode};

/// What a run's decisions came to, if its caller says nothing.
const OUTCOME: &str = "completed";

/// Serves `SessionService`.
#[derive(Debug)]
pub struct SessionApi {
    sessions: Sessions,
}

impl SessionApi {
    /// Serves the sessions of an engine's store.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            sessions: Sessions::new(engine),
        }
    }

    fn save(&self, caller: &Caller, request: v1::SaveSessionRequest) -> Result<Save> {
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
            request_id: _,
        } = request;
        convert::no_writer(writer.as_ref())?;
        let body = BodyFields {
            system_prompt,
            instructions,
            plugin_states,
            pending_input,
            state_metadata_json,
            format_version,
            evidence_scope_digest,
            task_scope_digest,
        };
        let Some(v1::SessionRef {
            agent_id,
            user_id,
            session_id,
        }) = key
        else {
            return Err(Error::argument("session", "is required"));
        };
        let new_session = self.sessions.new_session_id()?;
        let named = (!session_id.is_empty())
            .then(|| id("session.session_id", &session_id))
            .transpose()?;
        let key = SessionRef {
            agent: agent(caller, "session.agent_id", &agent_id)?,
            user: user(caller, "session.user_id", user_id.as_deref())?,
            session: named.clone().unwrap_or_else(|| new_session.clone()),
        };
        Ok(Save {
            messages: messages
                .map(|list| encode_all("messages.messages", list.messages))
                .transpose()?,
            state: state_update(state, StateMode::Replace)?,
            body: body.update()?,
            listing: convert::listing("listing", listing, false, Vec::new())?,
            memory: convert::memory_link("memory_id", memory_id.as_deref())?,
            preconditions: Preconditions {
                etag: self.sessions.open_etag(caller, &key, &etag),
                base_seq,
                overwrite,
                must_exist,
                must_not_exist,
                recreate,
            },
            token: self.sessions.open_token(caller, &fencing_token),
            agent: key.agent,
            user: key.user,
            session: named,
            new_session,
            new_log: self.sessions.new_log(),
            most_metadata: MAX_METADATA,
        })
    }

    fn load(&self, caller: &Caller, request: v1::LoadSessionRequest) -> Result<Load> {
        let v1::LoadSessionRequest {
            session: key,
            at_revision,
            expectations,
            seed_messages,
            memory_id,
            etag,
            fencing_token,
            must_exist,
            recreate,
            messages_page_size,
            writer,
            request_id: _,
        } = request;
        convert::no_writer(writer.as_ref())?;
        let key = session(caller, "session", key)?;
        let preconditions = Preconditions {
            etag: self.sessions.open_etag(caller, &key, &etag),
            must_exist,
            recreate,
            ..Preconditions::default()
        };
        let prepare = Prepare {
            session: key,
            expectations: convert::expectations("expectations", expectations)?,
            seed: encode_all("seed_messages", seed_messages)?,
            memory: convert::memory_link("memory_id", memory_id.as_deref())?,
            preconditions,
            token: self.sessions.open_token(caller, &fencing_token),
            new_log: self.sessions.new_log(),
        };
        Ok(Load {
            prepare,
            at: at_revision.map(convert::revision).transpose()?,
            limit: page_size("messages_page_size", messages_page_size)?,
        })
    }

    fn commit(&self, caller: &Caller, request: v1::CommitRunRequest) -> Result<CommitRun> {
        let v1::CommitRunRequest {
            session: key,
            thread_id: thread,
            fencing_token,
            transcript,
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
            request_id: _,
        } = request;
        convert::no_writer(writer.as_ref())?;
        if manager.is_some() {
            let message = "conversation managers are not available yet; leave manager out";
            return Err(Error::new(Reason::NotImplemented, message).at("manager"));
        }
        let key = session(caller, "session", key)?;
        let (mut items, replaces) = match transcript {
            None => (Vec::new(), false),
            Some(v1::commit_run_request::Transcript::Append(list)) => {
                (message::items("append.messages", list.messages)?, false)
            }
            Some(v1::commit_run_request::Transcript::Replace(list)) => {
                (message::items("replace.messages", list.messages)?, true)
            }
        };
        if let Some(turn) = final_turn {
            items.push(convert::final_turn("final_turn", turn, output_version)?);
        }
        let encoded = encode(&items)?;
        let messages = match (replaces, encoded.is_empty()) {
            (true, _) => MessageWrite::Replace(encoded),
            (false, true) => MessageWrite::Keep,
            (false, false) => MessageWrite::Append(encoded),
        };
        let label = input
            .map(|input| convert::run_input("input", input))
            .transpose()?
            .map(|input| run_label(&input))
            .unwrap_or_default();
        let body = BodyFields {
            system_prompt,
            instructions,
            plugin_states,
            pending_input,
            state_metadata_json,
            ..BodyFields::default()
        };
        Ok(CommitRun {
            thread: thread
                .as_deref()
                .map(|text| thread_id("thread_id", text))
                .transpose()?,
            token: self.sessions.open_token(caller, &fencing_token),
            messages,
            label,
            state: state_update(state, StateMode::Merge)?,
            body: body.update()?,
            withdraw,
            outcome: if outcome.is_empty() {
                OUTCOME.to_owned()
            } else {
                outcome
            },
            preconditions: Preconditions {
                etag: self.sessions.open_etag(caller, &key, &etag),
                base_seq,
                overwrite,
                must_exist,
                must_not_exist,
                recreate,
            },
            session: key,
            new_log: self.sessions.new_log(),
        })
    }
}

fn encode_all(field: &str, messages: Vec<v1::Message>) -> Result<Vec<EncodedItem>> {
    encode(&message::items(field, messages)?)
}

fn state_update(state: Option<v1::StateUpdate>, default: StateMode) -> Result<Option<StateUpdate>> {
    state
        .map(|state| message::state_update("state", state, default))
        .transpose()
}

fn not_available(rpc: &str) -> Status {
    Error::new(
        Reason::NotImplemented,
        format!("{rpc} is not available yet; a later version has it"),
    )
    .into()
}

#[tonic::async_trait]
impl SessionService for SessionApi {
    async fn save_session(
        &self,
        request: Request<v1::SaveSessionRequest>,
    ) -> Result<Response<v1::SaveSessionResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let request_id = request_id(&request.request_id)?;
        let save = self.save(&caller, request)?;
        let (view, done) = self.sessions.save(&caller, request_id, save).await?;
        Ok(Response::new(v1::SaveSessionResponse {
            session: Some(convert::session(&view)),
            matched_count: count(done.receipt.matched),
            written_count: count(done.receipt.written),
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn load_session(
        &self,
        request: Request<v1::LoadSessionRequest>,
    ) -> Result<Response<v1::LoadSessionResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let request_id = request_id(&request.request_id)?;
        let load = self.load(&caller, request)?;
        let loaded = self.sessions.load(&caller, request_id, load).await?;
        Ok(Response::new(v1::LoadSessionResponse {
            data: Some(convert::data(
                loaded.session.as_ref(),
                loaded.body,
                loaded.messages,
            )),
            messages_page_token: loaded.next,
            session: loaded.session.as_ref().map(convert::session),
            restored_from: convert::restored_from(loaded.from).into(),
            writer_epoch: None,
            revision: loaded.revision.get(),
        }))
    }

    async fn get_session(
        &self,
        request: Request<v1::GetSessionRequest>,
    ) -> Result<Response<v1::GetSessionResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GetSessionRequest { session: key } = request.into_inner();
        let key = session(&caller, "session", key)?;
        let view = self.sessions.get(&caller, key, Revision::LATEST).await?;
        Ok(Response::new(v1::GetSessionResponse {
            session: Some(convert::session(&view)),
            revision: view.revision.get(),
        }))
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let caller = caller(&request)?;
        let (filter, size, token) = convert::filter(&caller, request.into_inner())?;
        let page = self.sessions.list(&caller, filter, size, &token).await?;
        Ok(Response::new(v1::ListSessionsResponse {
            sessions: page.items.iter().map(convert::session).collect(),
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
        convert::no_writer(writer.as_ref())?;
        let key = session(&caller, "session", key)?;
        let update = Update {
            listing: convert::listing("listing", listing, true, delete_extra_keys)?,
            listing_etag: self
                .sessions
                .open_listing_etag(&caller, &key, &listing_etag),
            token: self.sessions.open_token(&caller, &fencing_token),
            session: key,
            most_metadata: MAX_METADATA,
        };
        let request_id = request_id(&request)?;
        let (view, done) = self.sessions.update(&caller, request_id, update).await?;
        Ok(Response::new(v1::UpdateSessionResponse {
            session: Some(convert::session(&view)),
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
        convert::no_writer(writer.as_ref())?;
        let key = session(&caller, "session", key)?;
        let delete = Delete {
            etag: self.sessions.open_etag(&caller, &key, &etag),
            token: self.sessions.open_token(&caller, &fencing_token),
            session: key.clone(),
        };
        let request_id = request_id(&request)?;
        let done = self.sessions.delete(&caller, request_id, delete).await?;
        let withdrawn = done.receipt.withdrawn.iter();
        Ok(Response::new(v1::DeleteSessionResponse {
            existed: done.receipt.existed,
            session_id: key.session.to_string(),
            withdrawn_interrupt_ids: withdrawn.map(ToString::to_string).collect(),
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
        convert::no_writer(writer.as_ref())?;
        let key = session(&caller, "session", key)?;
        if messages.is_empty() {
            return Err(Error::argument("messages", "must not be empty").into());
        }
        let append = AppendMessages {
            messages: MessageWrite::Append(encode_all("messages", messages)?),
            preconditions: Preconditions {
                etag: self.sessions.open_etag(&caller, &key, &etag),
                base_seq,
                overwrite: false,
                must_exist,
                must_not_exist,
                recreate,
            },
            token: self.sessions.open_token(&caller, &fencing_token),
            session: key,
            new_log: self.sessions.new_log(),
        };
        let request_id = request_id(&request)?;
        let (view, done) = self.sessions.append(&caller, request_id, append).await?;
        Ok(Response::new(v1::AppendMessagesResponse {
            session: Some(convert::session(&view)),
            first_seq: done.receipt.first_seq,
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn list_messages(
        &self,
        request: Request<v1::ListMessagesRequest>,
    ) -> Result<Response<v1::ListMessagesResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ListMessagesRequest {
            target,
            view,
            at_revision,
            order,
            start_index,
            end_index,
            page_size: size,
            page_token,
        } = request.into_inner();
        let target = self::target(&caller, target, view)?;
        let part = convert::part(order, start_index, end_index)?;
        let at = at_revision.map(convert::revision).transpose()?;
        let at = at.unwrap_or(Revision::LATEST);
        let size = page_size("page_size", size)?;
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
            message_count: count(page.total),
            etag: page.etag,
            last_seq: page.last_seq,
            revision: page.revision.get(),
        }))
    }

    async fn commit_run(
        &self,
        request: Request<v1::CommitRunRequest>,
    ) -> Result<Response<v1::CommitRunResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let request_id = request_id(&request.request_id)?;
        let commit = self.commit(&caller, request)?;
        let (view, memory_etag, done) = self
            .sessions
            .commit_run(&caller, request_id, commit)
            .await?;
        let receipt = done.receipt;
        let ids =
            |ids: &[crate::domain::id::InterruptId]| ids.iter().map(ToString::to_string).collect();
        Ok(Response::new(v1::CommitRunResponse {
            session: Some(convert::session(&view)),
            run_id: receipt.run.map(|run| run.to_string()).unwrap_or_default(),
            timeline_rev: receipt.timeline_rev,
            memory_etag,
            last_summary: None,
            removed_count: 0,
            acknowledged_interrupt_ids: ids(&receipt.acknowledged),
            withdrawn_interrupt_ids: ids(&receipt.withdrawn),
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn set_pins(
        &self,
        _request: Request<v1::SetPinsRequest>,
    ) -> Result<Response<v1::SetPinsResponse>, Status> {
        Err(not_available("SetPins"))
    }

    async fn edit_message(
        &self,
        _request: Request<v1::EditMessageRequest>,
    ) -> Result<Response<v1::EditMessageResponse>, Status> {
        Err(not_available("EditMessage"))
    }

    async fn branch_session(
        &self,
        _request: Request<v1::BranchSessionRequest>,
    ) -> Result<Response<v1::BranchSessionResponse>, Status> {
        Err(not_available("BranchSession"))
    }

    async fn create_snapshot(
        &self,
        _request: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        Err(not_available("CreateSnapshot"))
    }

    async fn list_snapshots(
        &self,
        _request: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        Err(not_available("ListSnapshots"))
    }

    async fn get_snapshot(
        &self,
        _request: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        Err(not_available("GetSnapshot"))
    }

    async fn delete_snapshot(
        &self,
        _request: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        Err(not_available("DeleteSnapshot"))
    }

    async fn restore_snapshot(
        &self,
        _request: Request<v1::RestoreSnapshotRequest>,
    ) -> Result<Response<v1::RestoreSnapshotResponse>, Status> {
        Err(not_available("RestoreSnapshot"))
    }

    async fn begin_restore(
        &self,
        _request: Request<v1::BeginRestoreRequest>,
    ) -> Result<Response<v1::BeginRestoreResponse>, Status> {
        Err(not_available("BeginRestore"))
    }

    async fn commit_restore(
        &self,
        _request: Request<v1::CommitRestoreRequest>,
    ) -> Result<Response<v1::CommitRestoreResponse>, Status> {
        Err(not_available("CommitRestore"))
    }

    async fn abort_restore(
        &self,
        _request: Request<v1::AbortRestoreRequest>,
    ) -> Result<Response<v1::AbortRestoreResponse>, Status> {
        Err(not_available("AbortRestore"))
    }

    async fn repair_guard(
        &self,
        _request: Request<v1::RepairGuardRequest>,
    ) -> Result<Response<v1::RepairGuardResponse>, Status> {
        Err(not_available("RepairGuard"))
    }

    async fn get_writer(
        &self,
        _request: Request<v1::GetWriterRequest>,
    ) -> Result<Response<v1::GetWriterResponse>, Status> {
        Err(not_available("GetWriter"))
    }

    async fn manage_conversation(
        &self,
        _request: Request<v1::ManageConversationRequest>,
    ) -> Result<Response<v1::ManageConversationResponse>, Status> {
        Err(not_available("ManageConversation"))
    }

    async fn estimate_tokens(
        &self,
        _request: Request<v1::EstimateTokensRequest>,
    ) -> Result<Response<v1::EstimateTokensResponse>, Status> {
        Err(not_available("EstimateTokens"))
    }

    async fn append_journal(
        &self,
        _request: Request<v1::AppendJournalRequest>,
    ) -> Result<Response<v1::AppendJournalResponse>, Status> {
        Err(not_available("AppendJournal"))
    }

    async fn list_journal(
        &self,
        _request: Request<v1::ListJournalRequest>,
    ) -> Result<Response<v1::ListJournalResponse>, Status> {
        Err(not_available("ListJournal"))
    }

    async fn count_journal(
        &self,
        _request: Request<v1::CountJournalRequest>,
    ) -> Result<Response<v1::CountJournalResponse>, Status> {
        Err(not_available("CountJournal"))
    }
}

/// Whose messages are meant.
fn target(
    caller: &Caller,
    target: Option<v1::list_messages_request::Target>,
    view: i32,
) -> Result<Target> {
    match target {
        None => Err(Error::argument(
            "target",
            "is required: session, checkpoint or memory",
        )),
        Some(v1::list_messages_request::Target::Session(key)) => {
            Ok(Target::Session(session(caller, "session", Some(key))?))
        }
        Some(v1::list_messages_request::Target::Memory(key)) => {
            Ok(Target::Memory(memory(caller, "memory", Some(key))?))
        }
        Some(v1::list_messages_request::Target::Checkpoint(v1::CheckpointRef {
            thread: key,
            checkpoint_id,
        })) => Ok(Target::Checkpoint {
            thread: thread(caller, "checkpoint.thread", key)?,
            checkpoint: optional_uuid(
                "checkpoint.checkpoint_id",
                &checkpoint_id,
                CheckpointId::from_uuid,
            )?,
            view: checkpoint::view("view", view, View::Cut)?,
        }),
        Some(v1::list_messages_request::Target::Snapshot(_)) => Err(Error::new(
            Reason::NotImplemented,
            "snapshots are not available yet; list the messages of a session, checkpoint or memory",
        )
        .at("snapshot")),
    }
}
