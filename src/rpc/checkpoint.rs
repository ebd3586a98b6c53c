//! `CheckpointService` over the wire.

use std::time::Duration;

use tonic::{Request, Response, Status};

use super::auth::caller;
use super::convert::checkpoint as convert;
use super::convert::common::{
    agent, id, inward_duration, json, limit, optional_session, page_size, request_id, thread,
};
use super::convert::interrupt as convert_interrupt;
use super::convert::message as convert_message;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, ConsumerId, InterruptId, MemoryId};
use crate::domain::message::Item;
use crate::domain::revision::Revision;
use crate::domain::session::Preconditions;
use crate::domain::state::StateMode;
use crate::proto::v1::{self, checkpoint_service_server::CheckpointService};
use crate::service::caller::Caller;
use crate::service::checkpoint::gate::{Finish, Gate, Gated, ResolveInDoubt};
use crate::service::checkpoint::lease::{Acquire, Release, Renew};
use crate::service::checkpoint::read::{GetCheckpoint, GetSummary, ThreadFilter};
use crate::service::checkpoint::resume::{Resume, View};
use crate::service::checkpoint::rules::SetToolRules;
use crate::service::checkpoint::save::{Draft, Saved, Suspend};
use crate::service::checkpoint::{Checkpoints, lease_ttl};
use crate::service::engine::{Done, Engine};
use crate::service::interrupt::Interrupts;
use crate::service::session_write::MessageWrite;

/// The longest wait for a lease.
const MAX_WAIT: Duration = Duration::from_secs(50);

/// The most bytes of a checkpoint's payload; what a request may have, less room for
/// the rest of it.
const MAX_PAYLOAD: usize = 15 * 1024 * 1024;

/// Serves `CheckpointService`.
#[derive(Debug)]
pub struct CheckpointApi {
    engine: Engine,
    checkpoints: Checkpoints,
    interrupts: Interrupts,
}

impl CheckpointApi {
    /// Serves the threads of an engine's store.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            checkpoints: Checkpoints::new(engine.clone()),
            interrupts: Interrupts::new(engine.clone()),
            engine,
        }
    }
}

/// The fields that saving, suspending and pausing have in common.
struct DraftFields {
    thread: Option<v1::ThreadRef>,
    session: Option<v1::SessionRef>,
    append: Option<v1::MessageList>,
    replace: Option<v1::MessageList>,
    state: Option<v1::StateUpdate>,
    payload: bytes::Bytes,
    payload_type: String,
    format_version: Option<i64>,
    expected_parent_id: Option<String>,
    fencing_token: String,
    etag: String,
    preconditions: Preconditions,
    writer: Option<v1::Writer>,
}

fn refuse_writer(writer: Option<&v1::Writer>) -> Result<()> {
    match writer {
        None => Ok(()),
        Some(_) => Err(Error::new(
            Reason::NotImplemented,
            "managed restore is not available yet; leave writer out",
        )
        .at("writer")),
    }
}

fn not_implemented(what: &str) -> Status {
    Error::new(
        Reason::NotImplemented,
        format!("{what} is not available yet"),
    )
    .into()
}

fn wait(field: &str, span: Option<&prost_types::Duration>) -> Result<Duration> {
    let wait = span
        .map(|span| inward_duration(field, span))
        .transpose()?
        .unwrap_or_default();
    if wait > MAX_WAIT {
        return Err(Error::argument(
            field,
            "must be at most 50 seconds; call again to wait longer",
        ));
    }
    Ok(wait)
}

fn ttl(span: Option<&prost_types::Duration>) -> Result<Duration> {
    lease_ttl(
        "ttl",
        span.map(|span| inward_duration("ttl", span)).transpose()?,
    )
}

impl CheckpointApi {
    fn draft(&self, caller: &Caller, fields: DraftFields) -> Result<Draft> {
        refuse_writer(fields.writer.as_ref())?;
        let thread = thread(caller, "thread", fields.thread)?;
        let session = optional_session(caller, "session", fields.session)?;
        let (messages, written) = match (fields.append, fields.replace) {
            (Some(list), _) => {
                let items = convert_message::items("append.messages", list.messages)?;
                (MessageWrite::Append(Checkpoints::encode(&items)?), items)
            }
            (None, Some(list)) => {
                let items = convert_message::items("replace.messages", list.messages)?;
                (MessageWrite::Replace(Checkpoints::encode(&items)?), items)
            }
            (None, None) => (MessageWrite::Keep, Vec::<Item>::new()),
        };
        let state = fields
            .state
            .map(|update| convert_message::state_update("state", update, StateMode::Merge))
            .transpose()?;
        limit("payload", "bytes", fields.payload.len(), MAX_PAYLOAD)?;
        let expected_parent = match fields.expected_parent_id {
            None => None,
            Some(text) => Some(convert::checkpoint_id("expected_parent_id", &text)?),
        };
        let session_key = session
            .clone()
            .unwrap_or_else(|| Checkpoints::default_session(&thread));
        let preconditions = Preconditions {
            etag: self
                .checkpoints
                .open_session_etag(caller, &session_key, &fields.etag),
            ..fields.preconditions
        };
        let (id, new_log, new_run) = self.checkpoints.draft_ids();
        Ok(Draft {
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &fields.fencing_token),
            thread,
            session,
            messages,
            written,
            state,
            payload: (!fields.payload.is_empty()).then_some(fields.payload),
            payload_type: fields.payload_type,
            format_version: fields.format_version,
            expected_parent,
            preconditions,
            id,
            new_log,
            new_run,
        })
    }

    async fn saved(&self, caller: &Caller, saved: &Saved) -> Result<v1::Checkpoint> {
        let get = GetSummary {
            thread: saved.thread.clone(),
            checkpoint: Some(saved.checkpoint),
        };
        Ok(convert::checkpoint(
            &self.checkpoints.checkpoint_summary(caller, get).await?,
        ))
    }

    fn message_page(number: i32) -> Result<u64> {
        Ok(page_size("messages_page_size", number)? as u64)
    }
}

#[tonic::async_trait]
impl CheckpointService for CheckpointApi {
    async fn save_checkpoint(
        &self,
        request: Request<v1::SaveCheckpointRequest>,
    ) -> Result<Response<v1::SaveCheckpointResponse>, Status> {
        let caller = caller(&request)?;
        let v1::SaveCheckpointRequest {
            thread,
            session,
            state,
            pending_calls,
            payload,
            payload_type,
            format_version,
            expected_parent_id,
            fencing_token,
            must_exist,
            must_not_exist,
            recreate,
            writer,
            request_id: request,
            messages,
        } = request.into_inner();
        if !pending_calls.is_empty() {
            return Err(Error::argument(
                "pending_calls",
                "a run that waits for decisions is suspended with SuspendThread",
            )
            .into());
        }
        let (append, replace) = match messages {
            None => (None, None),
            Some(v1::save_checkpoint_request::Messages::Append(list)) => (Some(list), None),
            Some(v1::save_checkpoint_request::Messages::Replace(list)) => (None, Some(list)),
        };
        let preconditions = Preconditions {
            must_exist,
            must_not_exist,
            recreate,
            ..Preconditions::default()
        };
        let draft = self.draft(
            &caller,
            DraftFields {
                thread,
                session,
                append,
                replace,
                state,
                payload,
                payload_type,
                format_version,
                expected_parent_id,
                fencing_token,
                etag: String::new(),
                preconditions,
                writer,
            },
        )?;
        let done = self
            .checkpoints
            .save(&caller, request_id(&request)?, draft)
            .await?;
        Ok(Response::new(v1::SaveCheckpointResponse {
            checkpoint: Some(self.saved(&caller, &done.receipt).await?),
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn get_checkpoint(
        &self,
        request: Request<v1::GetCheckpointRequest>,
    ) -> Result<Response<v1::GetCheckpointResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GetCheckpointRequest {
            thread: key,
            checkpoint_id,
            view,
            messages_page_size,
        } = request.into_inner();
        let key = thread(&caller, "thread", key)?;
        let checkpoint = convert::checkpoint_id("checkpoint_id", &checkpoint_id)?;
        let view = convert::view("view", view, View::Cut)?;
        let get = GetCheckpoint {
            thread: key.clone(),
            checkpoint,
            view,
            page: Self::message_page(messages_page_size)?,
            at: Revision::LATEST,
        };
        let content = self.checkpoints.get_checkpoint(&caller, get).await?;
        let summary = self
            .checkpoints
            .checkpoint_summary(
                &caller,
                GetSummary {
                    thread: key,
                    checkpoint: Some(content.checkpoint.id),
                },
            )
            .await?;
        let token = self.checkpoints.messages_token(&caller, &content, view);
        let sealer = self.engine.sealer();
        Ok(Response::new(v1::GetCheckpointResponse {
            messages: convert_message::page(content.messages, 0),
            messages_page_token: token,
            checkpoint: Some(convert::checkpoint(&summary)),
            state: Some(convert_message::state(content.state)),
            pending_calls: content
                .pending
                .into_iter()
                .map(|call| convert::pending_call(call, &caller, sealer))
                .collect(),
            payload: content.payload.unwrap_or_default(),
            revision: content.revision.get(),
        }))
    }

    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Result<Response<v1::ListCheckpointsResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ListCheckpointsRequest {
            thread: key,
            unspent_only,
            page_size: size,
            page_token,
        } = request.into_inner();
        let key = thread(&caller, "thread", key)?;
        let size = page_size("page_size", size)?;
        let page = self
            .checkpoints
            .list_checkpoints(&caller, key, unspent_only, size, &page_token)
            .await?;
        Ok(Response::new(v1::ListCheckpointsResponse {
            checkpoints: page.items.iter().map(convert::checkpoint).collect(),
            next_page_token: page.next,
            revision: page.revision.get(),
        }))
    }

    async fn get_thread(
        &self,
        request: Request<v1::GetThreadRequest>,
    ) -> Result<Response<v1::GetThreadResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GetThreadRequest { thread: key } = request.into_inner();
        let key = thread(&caller, "thread", key)?;
        let summary = self
            .checkpoints
            .get_thread(&caller, key, Revision::LATEST)
            .await?;
        Ok(Response::new(v1::GetThreadResponse {
            thread: Some(convert::thread(&summary)),
            revision: summary.revision.get(),
        }))
    }

    async fn list_threads(
        &self,
        request: Request<v1::ListThreadsRequest>,
    ) -> Result<Response<v1::ListThreadsResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ListThreadsRequest {
            agent_id,
            user_id,
            session_id,
            has_open_interrupts,
            leased,
            page_size: size,
            page_token,
        } = request.into_inner();
        let named = agent_id
            .as_deref()
            .map(|text| agent(&caller, "agent_id", text))
            .transpose()?;
        let filter = ThreadFilter {
            // A key for one agent lists that agent's threads.
            agent: named.or_else(|| caller.agent.clone()),
            user: user_id
                .as_deref()
                .map(|text| id("user_id", text))
                .transpose()?
                .or_else(|| caller.user.clone()),
            session: session_id,
            open_interrupts: has_open_interrupts,
            leased,
        };
        let size = page_size("page_size", size)?;
        let page = self
            .checkpoints
            .list_threads(&caller, filter, size, &page_token)
            .await?;
        Ok(Response::new(v1::ListThreadsResponse {
            threads: page.items.iter().map(convert::thread).collect(),
            next_page_token: page.next,
            revision: page.revision.get(),
        }))
    }

    async fn delete_thread(
        &self,
        _request: Request<v1::DeleteThreadRequest>,
    ) -> Result<Response<v1::DeleteThreadResponse>, Status> {
        Err(not_implemented("DeleteThread"))
    }

    async fn copy_thread(
        &self,
        _request: Request<v1::CopyThreadRequest>,
    ) -> Result<Response<v1::CopyThreadResponse>, Status> {
        Err(not_implemented("CopyThread"))
    }

    async fn prune_checkpoints(
        &self,
        _request: Request<v1::PruneCheckpointsRequest>,
    ) -> Result<Response<v1::PruneCheckpointsResponse>, Status> {
        Err(not_implemented("PruneCheckpoints"))
    }

    async fn pause_thread(
        &self,
        request: Request<v1::PauseThreadRequest>,
    ) -> Result<Response<v1::PauseThreadResponse>, Status> {
        let caller = caller(&request)?;
        let v1::PauseThreadRequest {
            thread,
            session,
            state,
            payload,
            payload_type,
            format_version,
            expected_parent_id,
            fencing_token,
            etag,
            base_seq,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
            writer,
            request_id: request,
            messages,
        } = request.into_inner();
        let (append, replace) = match messages {
            None => (None, None),
            Some(v1::pause_thread_request::Messages::Append(list)) => (Some(list), None),
            Some(v1::pause_thread_request::Messages::Replace(list)) => (None, Some(list)),
        };
        let preconditions = Preconditions {
            etag: None,
            base_seq,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
        };
        let draft = self.draft(
            &caller,
            DraftFields {
                thread,
                session,
                append,
                replace,
                state,
                payload,
                payload_type,
                format_version,
                expected_parent_id,
                fencing_token,
                etag,
                preconditions,
                writer,
            },
        )?;
        let done = self
            .checkpoints
            .pause(&caller, request_id(&request)?, draft)
            .await?;
        Ok(Response::new(v1::PauseThreadResponse {
            checkpoint: Some(self.saved(&caller, &done.receipt).await?),
            timeline_rev: done.receipt.timeline_rev,
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn acquire_thread(
        &self,
        request: Request<v1::AcquireThreadRequest>,
    ) -> Result<Response<v1::AcquireThreadResponse>, Status> {
        let caller = caller(&request)?;
        let v1::AcquireThreadRequest {
            thread: key,
            session,
            consumer_id,
            ttl: span,
            wait: longest,
            memory_id,
            etag,
            must_exist,
            must_not_exist,
            recreate,
            writer,
            request_id: request,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        let key = thread(&caller, "thread", key)?;
        let session = optional_session(&caller, "session", session)?;
        let session_key = session
            .clone()
            .unwrap_or_else(|| Checkpoints::default_session(&key));
        let (_, new_log, new_run) = self.checkpoints.draft_ids();
        let acquire = Acquire {
            thread: key,
            session,
            consumer: id::<ConsumerId>("consumer_id", &consumer_id)?,
            ttl: ttl(span.as_ref())?,
            memory: memory_id
                .as_deref()
                .map(|text| id::<MemoryId>("memory_id", text))
                .transpose()?,
            preconditions: Preconditions {
                etag: self
                    .checkpoints
                    .open_session_etag(&caller, &session_key, &etag),
                must_exist,
                must_not_exist,
                recreate,
                ..Preconditions::default()
            },
            new_run,
            new_log,
        };
        let longest = wait("wait", longest.as_ref())?;
        let Done {
            revision,
            receipt: grant,
            ..
        } = self
            .checkpoints
            .acquire(&caller, request_id(&request)?, acquire, longest)
            .await?;
        let summary = self
            .checkpoints
            .get_thread(&caller, grant.thread.clone(), revision)
            .await?;
        Ok(Response::new(v1::AcquireThreadResponse {
            lease: Some(convert::lease(
                &grant,
                revision,
                &caller,
                self.engine.sealer(),
            )),
            thread: Some(convert::thread(&summary)),
            session_etag: self
                .checkpoints
                .seal_session_etag(&caller, &grant, revision),
            session_last_seq: grant.session_last_seq,
            writer_epoch: None,
            revision: revision.get(),
        }))
    }

    async fn suspend_thread(
        &self,
        request: Request<v1::SuspendThreadRequest>,
    ) -> Result<Response<v1::SuspendThreadResponse>, Status> {
        let caller = caller(&request)?;
        let v1::SuspendThreadRequest {
            thread,
            session,
            state,
            interrupts,
            pending_calls,
            payload,
            payload_type,
            format_version,
            expected_parent_id,
            fencing_token,
            etag,
            base_seq,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
            writer,
            request_id: request,
            messages,
        } = request.into_inner();
        if !pending_calls.is_empty() {
            return Err(Error::argument(
                "pending_calls",
                "leave it out: the calls that wait are those that the interrupts name",
            )
            .into());
        }
        let (append, replace) = match messages {
            None => (None, None),
            Some(v1::suspend_thread_request::Messages::Append(list)) => (Some(list), None),
            Some(v1::suspend_thread_request::Messages::Replace(list)) => (None, Some(list)),
        };
        let preconditions = Preconditions {
            etag: None,
            base_seq,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
        };
        let draft = self.draft(
            &caller,
            DraftFields {
                thread,
                session,
                append,
                replace,
                state,
                payload,
                payload_type,
                format_version,
                expected_parent_id,
                fencing_token,
                etag,
                preconditions,
                writer,
            },
        )?;
        let interrupts: Vec<_> = interrupts
            .into_iter()
            .enumerate()
            .map(|(at, spec)| convert_interrupt::spec(&format!("interrupts[{at}]"), spec))
            .collect::<Result<_>>()?;
        let interrupt_ids = interrupts
            .iter()
            .map(|_| self.checkpoints.interrupt_id())
            .collect();
        let suspend = Suspend {
            draft,
            interrupts,
            interrupt_ids,
        };
        let done = self
            .checkpoints
            .suspend(&caller, request_id(&request)?, suspend)
            .await?;
        let mut asked = Vec::new();
        for id in &done.receipt.interrupts {
            let (interrupt, revision) = self.interrupts.get_at(&caller, *id, done.revision).await?;
            asked.push(convert_interrupt::outward(
                &interrupt,
                revision,
                &caller,
                self.engine.sealer(),
            ));
        }
        Ok(Response::new(v1::SuspendThreadResponse {
            checkpoint: Some(self.saved(&caller, &done.receipt).await?),
            interrupts: asked,
            timeline_rev: done.receipt.timeline_rev,
            writer_epoch: None,
            revision: done.revision.get(),
        }))
    }

    async fn resume_thread(
        &self,
        request: Request<v1::ResumeThreadRequest>,
    ) -> Result<Response<v1::ResumeThreadResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ResumeThreadRequest {
            thread: key,
            checkpoint_id,
            consumer_id,
            ttl: span,
            wait: longest,
            view,
            state_mode,
            overwrite,
            allow_partial,
            allow_replay,
            decisions,
            messages_page_size,
            writer,
            request_id: request,
        } = request.into_inner();
        refuse_writer(writer.as_ref())?;
        let key = thread(&caller, "thread", key)?;
        let page = Self::message_page(messages_page_size)?;
        let answers = decisions
            .into_iter()
            .enumerate()
            .map(|(at, answer)| {
                convert_interrupt::given_answer(
                    &format!("decisions[{at}]"),
                    answer,
                    &caller,
                    self.engine.sealer(),
                )
            })
            .collect::<Result<Vec<_>>>()?;
        let resume = Resume {
            thread: key.clone(),
            checkpoint: convert::checkpoint_id("checkpoint_id", &checkpoint_id)?,
            consumer: id::<ConsumerId>("consumer_id", &consumer_id)?,
            ttl: ttl(span.as_ref())?,
            view: convert::view("view", view, View::Cut)?,
            state_mode: convert_message::state_mode("state_mode", state_mode, StateMode::Merge)?,
            overwrite,
            allow_partial,
            allow_replay,
            answers,
            new_run: self.checkpoints.run_id(),
        };
        let longest = wait("wait", longest.as_ref())?;
        let Done {
            revision, receipt, ..
        } = self
            .checkpoints
            .resume(&caller, request_id(&request)?, resume, longest)
            .await?;
        let get = GetCheckpoint {
            thread: key.clone(),
            checkpoint: Some(receipt.checkpoint),
            view: receipt.view,
            page,
            at: revision,
        };
        let content = self.checkpoints.get_checkpoint(&caller, get).await?;
        let summary = self
            .checkpoints
            .checkpoint_summary(
                &caller,
                GetSummary {
                    thread: key,
                    checkpoint: Some(receipt.checkpoint),
                },
            )
            .await?;
        let token = self
            .checkpoints
            .messages_token(&caller, &content, receipt.view);
        let sealer = self.engine.sealer();
        Ok(Response::new(v1::ResumeThreadResponse {
            messages: convert_message::page(content.messages, 0),
            messages_page_token: token,
            lease: Some(convert::lease(&receipt.grant, revision, &caller, sealer)),
            checkpoint: Some(convert::checkpoint(&summary)),
            state: Some(convert_message::state(content.state)),
            pending_calls: content
                .pending
                .into_iter()
                .map(|call| convert::pending_call(call, &caller, sealer))
                .collect(),
            sibling_results: content
                .siblings
                .into_iter()
                .map(convert_message::outward)
                .collect(),
            payload: content.payload.unwrap_or_default(),
            session_etag: self
                .checkpoints
                .seal_session_etag(&caller, &receipt.grant, revision),
            session_last_seq: receipt.grant.session_last_seq,
            timeline_rev: receipt.timeline_rev,
            writer_epoch: None,
            revision: revision.get(),
        }))
    }

    async fn renew_lease(
        &self,
        request: Request<v1::RenewLeaseRequest>,
    ) -> Result<Response<v1::RenewLeaseResponse>, Status> {
        let caller = caller(&request)?;
        let v1::RenewLeaseRequest {
            thread: key,
            fencing_token,
            ttl: span,
            request_id: request,
        } = request.into_inner();
        let renew = Renew {
            thread: thread(&caller, "thread", key)?,
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &fencing_token),
            ttl: match &span {
                Some(span) => Some(ttl(Some(span))?),
                None => None,
            },
        };
        let done = self
            .checkpoints
            .renew(&caller, request_id(&request)?, renew)
            .await?;
        Ok(Response::new(v1::RenewLeaseResponse {
            lease: Some(convert::lease(
                &done.receipt,
                done.revision,
                &caller,
                self.engine.sealer(),
            )),
            revision: done.revision.get(),
        }))
    }

    async fn release_thread(
        &self,
        request: Request<v1::ReleaseThreadRequest>,
    ) -> Result<Response<v1::ReleaseThreadResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ReleaseThreadRequest {
            thread: key,
            fencing_token,
            request_id: request,
        } = request.into_inner();
        let release = Release {
            thread: thread(&caller, "thread", key)?,
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &fencing_token),
        };
        let done = self
            .checkpoints
            .release(&caller, request_id(&request)?, release)
            .await?;
        let summary = self
            .checkpoints
            .get_thread(&caller, done.receipt.clone(), done.revision)
            .await?;
        Ok(Response::new(v1::ReleaseThreadResponse {
            released: true,
            thread: Some(convert::thread(&summary)),
            revision: done.revision.get(),
        }))
    }

    async fn gate_tool_call(
        &self,
        request: Request<v1::GateToolCallRequest>,
    ) -> Result<Response<v1::GateToolCallResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GateToolCallRequest {
            thread: key,
            fencing_token,
            tool_call_id,
            tool_name,
            args_json,
            ordinal,
            requested_policy,
            agent_decision,
            request_id: request,
        } = request.into_inner();
        if agent_decision.is_some() {
            return Err(not_implemented("agent_decision"));
        }
        if tool_name.is_empty() {
            return Err(Error::argument("tool_name", "must not be empty").into());
        }
        if tool_call_id.is_empty() {
            return Err(Error::argument("tool_call_id", "must not be empty").into());
        }
        if let Some(args) = &args_json {
            json("args_json", args)?;
        }
        let gate = Gate {
            thread: thread(&caller, "thread", key)?,
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &fencing_token),
            tool_call_id,
            tool: tool_name,
            args_json,
            ordinal: u32::try_from(ordinal)
                .map_err(|_| Error::argument("ordinal", "must not be negative"))?,
            requested_policy: requested_policy
                .map(|policy| convert_interrupt::policy_request("requested_policy", policy))
                .transpose()?,
        };
        let done = self
            .checkpoints
            .gate(&caller, request_id(&request)?, gate)
            .await?;
        let decided_by = match &done.receipt {
            Gated::Proceed {
                decided_by: interrupt,
                ..
            }
            | Gated::Reject { interrupt, .. } => *interrupt,
            Gated::Respond { interrupt, .. } => Some(*interrupt),
            Gated::Done { .. } | Gated::Interrupt { .. } | Gated::InDoubt { .. } => None,
        };
        let decision = match decided_by {
            Some(id) => {
                let (interrupt, revision) =
                    self.interrupts.get_at(&caller, id, done.revision).await?;
                convert_interrupt::outward(&interrupt, revision, &caller, self.engine.sealer())
                    .resolution
            }
            None => None,
        };
        Ok(Response::new(v1::GateToolCallResponse {
            outcome: Some(convert::gated(done.receipt)),
            decision,
            revision: done.revision.get(),
        }))
    }

    async fn finish_tool_call(
        &self,
        request: Request<v1::FinishToolCallRequest>,
    ) -> Result<Response<v1::FinishToolCallResponse>, Status> {
        let caller = caller(&request)?;
        let v1::FinishToolCallRequest {
            thread: key,
            fencing_token,
            execution_key,
            result,
            request_id: request,
        } = request.into_inner();
        let finish = Finish {
            thread: thread(&caller, "thread", key)?,
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &fencing_token),
            execution_key,
            result: convert::tool_result("result", result)?,
        };
        let done = self
            .checkpoints
            .finish(&caller, request_id(&request)?, finish)
            .await?;
        Ok(Response::new(v1::FinishToolCallResponse {
            call: Some(convert::call(done.receipt)),
            revision: done.revision.get(),
        }))
    }

    async fn resolve_in_doubt(
        &self,
        request: Request<v1::ResolveInDoubtRequest>,
    ) -> Result<Response<v1::ResolveInDoubtResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ResolveInDoubtRequest {
            interrupt_id,
            etag,
            resolution,
            comment,
            request_id: request,
        } = request.into_inner();
        let interrupt =
            super::convert::common::uuid("interrupt_id", &interrupt_id, InterruptId::from_uuid)?;
        let result = match resolution {
            Some(v1::resolve_in_doubt_request::Resolution::Retry(_)) => None,
            Some(v1::resolve_in_doubt_request::Resolution::MarkDone(done)) => {
                Some(convert::tool_result("mark_done.result", done.result)?)
            }
            None => return Err(Error::argument("resolution", "must be retry or mark_done").into()),
        };
        let seen = self.interrupts.open_etag(&caller, interrupt, &etag)?;
        let resolve = ResolveInDoubt {
            interrupt,
            seen,
            result,
            comment,
        };
        let done = self
            .checkpoints
            .resolve_in_doubt(&caller, request_id(&request)?, resolve)
            .await?;
        let (interrupt, revision) = self
            .interrupts
            .get_at(&caller, done.receipt, done.revision)
            .await?;
        Ok(Response::new(v1::ResolveInDoubtResponse {
            interrupt: Some(convert_interrupt::outward(
                &interrupt,
                revision,
                &caller,
                self.engine.sealer(),
            )),
            revision: done.revision.get(),
        }))
    }

    async fn set_tool_rules(
        &self,
        request: Request<v1::SetToolRulesRequest>,
    ) -> Result<Response<v1::SetToolRulesResponse>, Status> {
        let caller = caller(&request)?;
        let v1::SetToolRulesRequest {
            agent_id,
            rules,
            etag,
            overwrite,
            request_id: request,
        } = request.into_inner();
        let agent: AgentId = agent(&caller, "agent_id", &agent_id)?;
        let set = SetToolRules {
            etag: self.checkpoints.open_rules_etag(&caller, &agent, &etag),
            agent: agent.clone(),
            rules: convert::tool_rules("rules", rules)?,
            overwrite,
        };
        let done = self
            .checkpoints
            .set_tool_rules(&caller, request_id(&request)?, set)
            .await?;
        Ok(Response::new(v1::SetToolRulesResponse {
            etag: self
                .checkpoints
                .seal_rules_etag(&caller, &agent, done.receipt.as_ref()),
            rules: convert::outward_rules(done.receipt),
            revision: done.revision.get(),
        }))
    }

    async fn get_tool_rules(
        &self,
        request: Request<v1::GetToolRulesRequest>,
    ) -> Result<Response<v1::GetToolRulesResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GetToolRulesRequest { agent_id } = request.into_inner();
        let agent = agent(&caller, "agent_id", &agent_id)?;
        let rules = self.checkpoints.tool_rules(&caller, agent.clone()).await?;
        Ok(Response::new(v1::GetToolRulesResponse {
            etag: self
                .checkpoints
                .seal_rules_etag(&caller, &agent, rules.as_ref()),
            revision: rules
                .as_ref()
                .and_then(|rules| rules.etag.stored())
                .unwrap_or_default()
                .get(),
            rules: convert::outward_rules(rules),
        }))
    }

    async fn list_grants(
        &self,
        _request: Request<v1::ListGrantsRequest>,
    ) -> Result<Response<v1::ListGrantsResponse>, Status> {
        Err(not_implemented("ListGrants"))
    }

    async fn revoke_grant(
        &self,
        _request: Request<v1::RevokeGrantRequest>,
    ) -> Result<Response<v1::RevokeGrantResponse>, Status> {
        Err(not_implemented("RevokeGrant"))
    }

    async fn cancel_run(
        &self,
        _request: Request<v1::CancelRunRequest>,
    ) -> Result<Response<v1::CancelRunResponse>, Status> {
        Err(not_implemented("CancelRun"))
    }
}
