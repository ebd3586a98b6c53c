//! The services as a caller of the API sees them, short of a socket.

use std::sync::Arc;

use adjourn::proto::v1;
use adjourn::proto::v1::checkpoint_service_server::CheckpointService as _;
use adjourn::proto::v1::session_service_server::SessionService as _;
use adjourn::rpc::checkpoint::CheckpointApi;
use adjourn::rpc::memory::MemoryApi;
use adjourn::rpc::session::SessionApi;
use adjourn::service::caller::Caller;
use tonic::{Request, Response, Status};
use tonic_types::StatusExt as _;

use crate::world::{World, agent};

/// The services over a world's store.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) sessions: SessionApi,
    pub(crate) memories: MemoryApi,
    pub(crate) checkpoints: CheckpointApi,
    pub(crate) world: World,
}

impl Wire {
    /// The services over each kind of store, empty.
    pub(crate) fn each() -> [Self; 2] {
        World::each().map(|world| Self {
            sessions: SessionApi::new(world.engine.clone()),
            memories: MemoryApi::new(world.engine.clone()),
            checkpoints: CheckpointApi::new(world.engine.clone()),
            world,
        })
    }

    pub(crate) async fn save(
        &self,
        request: v1::SaveSessionRequest,
    ) -> Result<v1::SaveSessionResponse, Status> {
        answer(self.sessions.save_session(by_agent(request)).await)
    }

    pub(crate) async fn append(
        &self,
        request: v1::AppendMessagesRequest,
    ) -> Result<v1::AppendMessagesResponse, Status> {
        answer(self.sessions.append_messages(by_agent(request)).await)
    }

    pub(crate) async fn commit(
        &self,
        request: v1::CommitRunRequest,
    ) -> Result<v1::CommitRunResponse, Status> {
        answer(self.sessions.commit_run(by_agent(request)).await)
    }

    /// All of a session.
    pub(crate) async fn load(&self, id: &str) -> v1::LoadSessionResponse {
        let request = v1::LoadSessionRequest {
            session: named(id),
            messages_page_size: 1000,
            ..Default::default()
        };
        answer(self.sessions.load_session(by_agent(request)).await).unwrap()
    }

    /// The texts of a session's messages.
    pub(crate) async fn said(&self, id: &str) -> Vec<String> {
        let data = self.load(id).await.data.unwrap();
        texts_of(&data.messages.unwrap().messages)
    }

    /// The lease of a thread of the session with the same id.
    pub(crate) async fn acquire(&self, id: &str) -> v1::AcquireThreadResponse {
        let request = v1::AcquireThreadRequest {
            thread: Some(v1::ThreadRef {
                agent_id: String::new(),
                thread_id: id.to_owned(),
            }),
            consumer_id: "worker".to_owned(),
            ..Default::default()
        };
        answer(self.checkpoints.acquire_thread(by_agent(request)).await).unwrap()
    }
}

/// A request of the agent.
pub(crate) fn by_agent<T>(message: T) -> Request<T> {
    by(agent(), message)
}

/// A request of a caller whom the server verified.
pub(crate) fn by<T>(caller: Caller, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Arc::new(caller));
    request
}

/// The message in an answer.
pub(crate) fn answer<T>(response: Result<Response<T>, Status>) -> Result<T, Status> {
    response.map(Response::into_inner)
}

/// The reason that a program acts on.
pub(crate) fn reason<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
    let status = result.unwrap_err();
    status.get_details_error_info().unwrap().reason
}

/// A fact of a refusal.
pub(crate) fn fact(status: &Status, name: &str) -> Option<String> {
    let info = status.get_details_error_info()?;
    info.metadata.get(name).cloned()
}

/// The session with an id.
pub(crate) fn named(id: &str) -> Option<v1::SessionRef> {
    Some(v1::SessionRef {
        agent_id: String::new(),
        user_id: None,
        session_id: id.to_owned(),
    })
}

/// The memory with an id.
pub(crate) fn memory(id: &str) -> Option<v1::MemoryRef> {
    Some(v1::MemoryRef {
        agent_id: String::new(),
        memory_id: id.to_owned(),
    })
}

pub(crate) fn message(role: v1::message::Role, text: &str) -> v1::Message {
    v1::Message {
        role: role.into(),
        content: Some(v1::message::Content::Text(text.to_owned())),
        ..Default::default()
    }
}

pub(crate) fn user(text: &str) -> v1::Message {
    message(v1::message::Role::User, text)
}

pub(crate) fn system(text: &str) -> v1::Message {
    message(v1::message::Role::System, text)
}

pub(crate) fn with_id(id: &str, message: v1::Message) -> v1::Message {
    v1::Message {
        id: Some(id.to_owned()),
        ..message
    }
}

pub(crate) fn list(messages: Vec<v1::Message>) -> Option<v1::MessageList> {
    Some(v1::MessageList { messages })
}

pub(crate) fn users(texts: &[&str]) -> Vec<v1::Message> {
    texts.iter().map(|text| user(text)).collect()
}

pub(crate) fn texts_of(messages: &[v1::Message]) -> Vec<String> {
    messages
        .iter()
        .map(|message| match &message.content {
            Some(v1::message::Content::Text(text)) => text.clone(),
            other => format!("{other:?}"),
        })
        .collect()
}

/// A UUID of a client.
pub(crate) fn request_id(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}
