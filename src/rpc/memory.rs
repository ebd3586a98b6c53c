//! `MemoryService` over the wire.

use tonic::{Request, Response, Status};

use super::auth::caller;
use super::convert::common::{agent, count, memory, page_size, request_id, user};
use super::convert::memory as convert;
use super::convert::message;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::MemoryRef;
use crate::domain::revision::Revision;
use crate::domain::session::Preconditions;
use crate::proto::v1::{self, memory_service_server::MemoryService};
use crate::service::caller::Caller;
use crate::service::engine::{Done, Engine};
use crate::service::memory::{DeleteMemory, Memories, MemoryWrite, MemoryWritten, WriteMemory};
use crate::service::stored::encode;

/// Serves `MemoryService`.
#[derive(Debug)]
pub struct MemoryApi {
    engine: Engine,
    memories: Memories,
}

impl MemoryApi {
    /// Serves the memories of an engine's store.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            memories: Memories::new(engine.clone()),
            engine,
        }
    }

    /// A memory as a commit left it.
    async fn after(&self, caller: &Caller, memory: MemoryRef, at: Revision) -> Result<v1::Memory> {
        let (memory, revision) = self.memories.get(caller, memory, at).await?;
        let etags = self.memories.seal_etags(caller, &memory, revision);
        Ok(convert::memory(&memory, etags, revision))
    }

    async fn write(
        &self,
        caller: &Caller,
        write: WriteFields,
    ) -> Result<(v1::Memory, Done<MemoryWritten>)> {
        let key = memory(caller, "memory", write.memory)?;
        let owner = match write.user_id.as_deref() {
            Some(text) => user(caller, "user_id", Some(text))?,
            None => caller.user.clone(),
        };
        let command = WriteMemory {
            preconditions: Preconditions {
                etag: self.memories.open_etag(caller, &key, &write.etag),
                ..write.preconditions
            },
            settings_etag: self
                .memories
                .open_settings_etag(caller, &key, &write.settings_etag),
            memory: key,
            owner,
            write: write.write,
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &write.fencing_token),
            new_log: self.memories.new_log(),
        };
        let done = self
            .memories
            .write(caller, request_id(&write.request_id)?, command)
            .await?;
        let memory = self
            .after(caller, done.receipt.memory.clone(), done.revision)
            .await?;
        Ok((memory, done))
    }
}

/// The fields that writes to a memory have in common.
struct WriteFields {
    memory: Option<v1::MemoryRef>,
    user_id: Option<String>,
    write: MemoryWrite,
    etag: String,
    settings_etag: String,
    preconditions: Preconditions,
    fencing_token: String,
    request_id: String,
}

fn not_implemented() -> Status {
    Error::new(Reason::NotImplemented, "compaction is not available yet").into()
}

fn no_grounding() -> Error {
    Error::new(
        Reason::GroundingUnavailable,
        "there is no graph to ground answers in; leave grounding out",
    )
    .at("grounding")
}

#[tonic::async_trait]
impl MemoryService for MemoryApi {
    async fn load_memory(
        &self,
        request: Request<v1::LoadMemoryRequest>,
    ) -> Result<Response<v1::LoadMemoryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::LoadMemoryRequest {
            memory: key,
            user_id,
            grounding,
            messages_page_size,
        } = request.into_inner();
        if grounding.is_some() {
            return Err(no_grounding().into());
        }
        let key = memory(&caller, "memory", key)?;
        let owner = match user_id.as_deref() {
            Some(text) => user(&caller, "user_id", Some(text))?,
            None => caller.user.clone(),
        };
        let size = page_size("messages_page_size", messages_page_size)?;
        let page = self
            .memories
            .load(&caller, key, owner.as_ref(), size)
            .await?;
        Ok(Response::new(v1::LoadMemoryResponse {
            messages: page
                .items
                .into_iter()
                .map(|(index, item)| message::stored(item, index))
                .collect(),
            messages_page_token: page.next,
            etag: page.etag,
            last_seq: page.last_seq,
            message_count: count(page.total),
            facts: Vec::new(),
            facts_text: String::new(),
            revision: page.revision.get(),
        }))
    }

    async fn append_memory(
        &self,
        request: Request<v1::AppendMemoryRequest>,
    ) -> Result<Response<v1::AppendMemoryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::AppendMemoryRequest {
            memory,
            user_id,
            messages,
            etag,
            expected_last_seq: base_seq,
            fencing_token,
            must_exist,
            must_not_exist,
            recreate,
            request_id,
        } = request.into_inner();
        let write = MemoryWrite::Append(encode(&message::items("messages", messages)?)?);
        let preconditions = Preconditions {
            etag: None,
            base_seq,
            overwrite: false,
            must_exist,
            must_not_exist,
            recreate,
        };
        let write = WriteFields {
            memory,
            user_id,
            write,
            etag,
            settings_etag: String::new(),
            preconditions,
            fencing_token,
            request_id,
        };
        let (memory, done) = self.write(&caller, write).await?;
        Ok(Response::new(v1::AppendMemoryResponse {
            memory: Some(memory),
            first_seq: done.receipt.first_seq,
            dropped_count: count(done.receipt.dropped),
            revision: done.revision.get(),
        }))
    }

    async fn replace_memory(
        &self,
        request: Request<v1::ReplaceMemoryRequest>,
    ) -> Result<Response<v1::ReplaceMemoryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ReplaceMemoryRequest {
            memory,
            user_id,
            messages,
            etag,
            base_seq,
            fencing_token,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
            request_id,
        } = request.into_inner();
        let write = MemoryWrite::Replace(encode(&message::items("messages", messages)?)?);
        let preconditions = Preconditions {
            etag: None,
            base_seq,
            overwrite,
            must_exist,
            must_not_exist,
            recreate,
        };
        let write = WriteFields {
            memory,
            user_id,
            write,
            etag,
            settings_etag: String::new(),
            preconditions,
            fencing_token,
            request_id,
        };
        let (memory, done) = self.write(&caller, write).await?;
        Ok(Response::new(v1::ReplaceMemoryResponse {
            memory: Some(memory),
            written_count: count(done.receipt.written),
            dropped_count: count(done.receipt.dropped),
            revision: done.revision.get(),
        }))
    }

    async fn clear_memory(
        &self,
        request: Request<v1::ClearMemoryRequest>,
    ) -> Result<Response<v1::ClearMemoryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ClearMemoryRequest {
            memory,
            user_id,
            etag,
            base_seq,
            fencing_token,
            overwrite,
            must_exist,
            recreate,
            request_id,
        } = request.into_inner();
        let preconditions = Preconditions {
            etag: None,
            base_seq,
            overwrite,
            must_exist,
            must_not_exist: false,
            recreate,
        };
        let write = WriteFields {
            memory,
            user_id,
            write: MemoryWrite::Clear,
            etag,
            settings_etag: String::new(),
            preconditions,
            fencing_token,
            request_id,
        };
        let (memory, done) = self.write(&caller, write).await?;
        Ok(Response::new(v1::ClearMemoryResponse {
            memory: Some(memory),
            revision: done.revision.get(),
        }))
    }

    async fn get_memory(
        &self,
        request: Request<v1::GetMemoryRequest>,
    ) -> Result<Response<v1::GetMemoryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::GetMemoryRequest { memory: key } = request.into_inner();
        let key = memory(&caller, "memory", key)?;
        let memory = self.after(&caller, key, Revision::LATEST).await?;
        Ok(Response::new(v1::GetMemoryResponse {
            revision: memory.revision,
            memory: Some(memory),
        }))
    }

    async fn list_memories(
        &self,
        request: Request<v1::ListMemoriesRequest>,
    ) -> Result<Response<v1::ListMemoriesResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ListMemoriesRequest {
            agent_id,
            user_id,
            page_size: size,
            page_token,
        } = request.into_inner();
        let named = agent_id
            .as_deref()
            .map(|text| agent(&caller, "agent_id", text))
            .transpose()?;
        let owner = match user_id.as_deref() {
            Some(text) => user(&caller, "user_id", Some(text))?,
            None => caller.user.clone(),
        };
        let size = page_size("page_size", size)?;
        let agent = named.or_else(|| caller.agent.clone());
        let page = self
            .memories
            .list(&caller, agent, owner, size, &page_token)
            .await?;
        let outward = |(memory, revision): &(crate::domain::session::Memory, Revision)| {
            convert::memory(
                memory,
                self.memories.seal_etags(&caller, memory, *revision),
                *revision,
            )
        };
        Ok(Response::new(v1::ListMemoriesResponse {
            memories: page.items.iter().map(outward).collect(),
            next_page_token: page.next,
            revision: page.revision.get(),
        }))
    }

    async fn configure_memory(
        &self,
        request: Request<v1::ConfigureMemoryRequest>,
    ) -> Result<Response<v1::ConfigureMemoryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ConfigureMemoryRequest {
            memory,
            user_id,
            settings,
            settings_etag,
            fencing_token,
            must_exist,
            must_not_exist,
            recreate,
            request_id,
        } = request.into_inner();
        let write = MemoryWrite::Configure(convert::settings("settings", settings)?);
        let preconditions = Preconditions {
            must_exist,
            must_not_exist,
            recreate,
            ..Preconditions::default()
        };
        let write = WriteFields {
            memory,
            user_id,
            write,
            etag: String::new(),
            settings_etag,
            preconditions,
            fencing_token,
            request_id,
        };
        let (memory, done) = self.write(&caller, write).await?;
        Ok(Response::new(v1::ConfigureMemoryResponse {
            memory: Some(memory),
            revision: done.revision.get(),
        }))
    }

    async fn delete_memory(
        &self,
        request: Request<v1::DeleteMemoryRequest>,
    ) -> Result<Response<v1::DeleteMemoryResponse>, Status> {
        let caller = caller(&request)?;
        let v1::DeleteMemoryRequest {
            memory: key,
            etag,
            fencing_token,
            request_id: request,
        } = request.into_inner();
        let key = memory(&caller, "memory", key)?;
        let delete = DeleteMemory {
            etag: self.memories.open_etag(&caller, &key, &etag),
            memory: key,
            token: self
                .engine
                .sealer()
                .open_token(&caller.tenant, &fencing_token),
        };
        let done = self
            .memories
            .delete(&caller, request_id(&request)?, delete)
            .await?;
        Ok(Response::new(v1::DeleteMemoryResponse {
            existed: done.receipt,
            revision: done.revision.get(),
        }))
    }

    async fn plan_compaction(
        &self,
        _request: Request<v1::PlanCompactionRequest>,
    ) -> Result<Response<v1::PlanCompactionResponse>, Status> {
        Err(not_implemented())
    }

    async fn compact_memory(
        &self,
        _request: Request<v1::CompactMemoryRequest>,
    ) -> Result<Response<v1::CompactMemoryResponse>, Status> {
        Err(not_implemented())
    }

    async fn undo_compaction(
        &self,
        _request: Request<v1::UndoCompactionRequest>,
    ) -> Result<Response<v1::UndoCompactionResponse>, Status> {
        Err(not_implemented())
    }

    async fn get_summarized(
        &self,
        _request: Request<v1::GetSummarizedRequest>,
    ) -> Result<Response<v1::GetSummarizedResponse>, Status> {
        Err(not_implemented())
    }
}
