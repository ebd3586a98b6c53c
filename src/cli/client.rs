//! How commands reach a server.

use std::path::PathBuf;

use clap::Args;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt as _;

use super::Error;
use crate::config::DEFAULT_LISTEN;
use crate::proto::v1::checkpoint_service_client::CheckpointServiceClient;
use crate::proto::v1::interrupt_service_client::InterruptServiceClient;
use crate::proto::v1::session_service_client::SessionServiceClient;
use crate::proto::v1::timeline_service_client::TimelineServiceClient;
use crate::server::reviewer_note;

/// The most bytes of an answer.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Which server, and as whom.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// The server: HOST:PORT or unix:PATH.
    #[arg(long, env = "ADJOURN_ADDR", default_value = DEFAULT_LISTEN, value_name = "ADDRESS", global = true)]
    pub addr: String,

    /// The API key. Without one, the key of the reviewer that a server on this
    /// machine made for its own user is taken, where there is one.
    #[arg(
        long,
        env = "ADJOURN_KEY",
        hide_env_values = true,
        value_name = "KEY",
        global = true
    )]
    pub key: Option<String>,

    /// Print JSON, one value a line.
    #[arg(long, global = true)]
    pub json: bool,
}

/// A channel that presents a key.
pub type Keyed = InterceptedService<Channel, Present>;

/// Presents a key with each call.
#[derive(Clone, Debug)]
pub struct Present(Option<MetadataValue<Ascii>>);

impl Interceptor for Present {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// The services of a server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Interrupts.
    pub interrupts: InterruptServiceClient<Keyed>,
    /// Sessions.
    pub sessions: SessionServiceClient<Keyed>,
    /// Threads.
    pub checkpoints: CheckpointServiceClient<Keyed>,
    /// Timelines.
    pub timeline: TimelineServiceClient<Keyed>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When there is no server at the address.
    pub async fn connect(&self) -> Result<Client, Error> {
        self.connect_as(self.key.clone().or_else(|| self.local_key()))
            .await
    }

    /// Connects as nobody in particular: an agent, where that is allowed.
    ///
    /// # Errors
    ///
    /// When there is no server at the address.
    pub async fn connect_without_key(&self) -> Result<Client, Error> {
        self.connect_as(None).await
    }

    async fn connect_as(&self, key: Option<String>) -> Result<Client, Error> {
        let channel = channel(&self.addr).await?;
        let value = match key {
            Some(key) => Some(
                format!("Bearer {key}")
                    .parse()
                    .map_err(|_| "the key has characters that no key has")?,
            ),
            None => None,
        };
        let present = Present(value);
        Ok(Client {
            interrupts: InterruptServiceClient::with_interceptor(channel.clone(), present.clone())
                .max_decoding_message_size(MAX_ANSWER),
            sessions: SessionServiceClient::with_interceptor(channel.clone(), present.clone())
                .max_decoding_message_size(MAX_ANSWER),
            checkpoints: CheckpointServiceClient::with_interceptor(
                channel.clone(),
                present.clone(),
            )
            .max_decoding_message_size(MAX_ANSWER),
            timeline: TimelineServiceClient::with_interceptor(channel, present)
                .max_decoding_message_size(MAX_ANSWER),
        })
    }

    /// The reviewer's key of a server of the same user on this machine.
    fn local_key(&self) -> Option<String> {
        let address = self.addr.replacen("localhost:", "127.0.0.1:", 1);
        let path = std::fs::read_to_string(reviewer_note(&address)?).ok()?;
        let key = std::fs::read_to_string(PathBuf::from(path.trim())).ok()?;
        Some(key.trim().to_owned())
    }
}

async fn channel(addr: &str) -> Result<Channel, Error> {
    let cannot = |error: &dyn std::fmt::Display| {
        format!("no server answers at {addr} ({error}); start one with `adjourn serve`")
    };
    let Some(path) = addr.strip_prefix("unix:") else {
        let endpoint = Endpoint::from_shared(format!("http://{addr}"))?.tcp_nodelay(true);
        return Ok(endpoint.connect().await.map_err(|error| cannot(&error))?);
    };
    let path = PathBuf::from(path);
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move {
            tokio::net::UnixStream::connect(path)
                .await
                .map(hyper_util::rt::TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    Ok(endpoint
        .connect_with_connector(connect)
        .await
        .map_err(|error| cannot(&error))?)
}

/// What a server's refusal says to a person: the reason, the message, and the
/// facts.
#[must_use]
pub fn refused(status: &Status) -> Error {
    let details = status.get_error_details();
    let Some(info) = details.error_info() else {
        return format!("{}: {}", status.code(), status.message()).into();
    };
    let mut facts: Vec<String> = info
        .metadata
        .iter()
        .filter(|(name, _)| name.as_str() != "outcome")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    facts.sort();
    let facts = if facts.is_empty() {
        String::new()
    } else {
        format!(" ({})", facts.join(", "))
    };
    format!("{}: {}{facts}", info.reason, status.message()).into()
}

/// A new request id.
///
/// # Errors
///
/// When the machine has no random numbers.
pub fn request_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    Ok(uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .to_string())
}
