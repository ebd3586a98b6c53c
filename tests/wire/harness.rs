//! A server in this process on a free port, and clients of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use adjourn::config::{ServeArgs, Settings};
use adjourn::proto::v1::interrupt_service_client::InterruptServiceClient;
use adjourn::proto::v1::session_service_client::SessionServiceClient;
use adjourn::proto::v1::{AppendMessagesRequest, Message, SessionRef, message};
use adjourn::server::Server;
use adjourn::server::keys::{KeyFile, StoredKey, hash, new_key};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt as _;

/// A running server.
pub(crate) struct Running {
    pub(crate) addresses: Vec<String>,
    pub(crate) directory: TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    /// Starts a server on SQLite with these listeners, and with keys or without.
    pub(crate) async fn start(listen: &[&str], with_keys: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let auth_file = directory.path().join("keys.toml");
        if with_keys {
            KeyFile::default().write(&auth_file).unwrap();
        }
        let listen = listen
            .iter()
            .map(|text| text.replace("DIR", &directory.path().display().to_string()));
        let settings = Settings::resolve(ServeArgs {
            listen: listen.collect(),
            storage: Some(format!(
                "sqlite:{}",
                directory.path().join("a.db").display()
            )),
            ready_file: Some(directory.path().join("ready.json")),
            auth_file: with_keys.then(|| auth_file.clone()),
            grace: Some(5),
            ..ServeArgs::default()
        });
        let server = Server::bind(settings.unwrap()).await.unwrap();
        let addresses = server.addresses();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            server.run(async { drop(stopped.await) }).await.unwrap();
        });
        let running = Self {
            addresses,
            directory,
            stop: Some(stop),
            task,
        };
        while !running.ready_file().exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        running
    }

    pub(crate) fn ready_file(&self) -> PathBuf {
        self.directory.path().join("ready.json")
    }

    fn auth_file(&self) -> PathBuf {
        self.directory.path().join("keys.toml")
    }

    /// Asks it to stop.
    pub(crate) fn signal(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until it has stopped.
    pub(crate) async fn stopped(self) {
        tokio::time::timeout(Duration::from_secs(10), self.task)
            .await
            .unwrap()
            .unwrap();
    }

    /// A new key for these roles.
    pub(crate) fn key(&self, tenant: &str, principal: &str, roles: &[&str]) -> String {
        self.key_of(tenant, principal, roles, None)
    }

    /// A new key for these roles, for one user only.
    pub(crate) fn key_of(
        &self,
        tenant: &str,
        principal: &str,
        roles: &[&str],
        user: Option<&str>,
    ) -> String {
        let key = new_key().unwrap();
        let mut file = KeyFile::read(&self.auth_file()).unwrap();
        file.keys.push(StoredKey {
            id: principal.to_owned(),
            sha256: hash(&key),
            tenant: tenant.to_owned(),
            principal: principal.to_owned(),
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            agent_id: None,
            user_id: user.map(str::to_owned),
            host: false,
        });
        file.write(&self.auth_file()).unwrap();
        key
    }

    /// Takes a key out.
    pub(crate) fn revoke(&self, principal: &str) {
        let mut file = KeyFile::read(&self.auth_file()).unwrap();
        file.keys.retain(|key| key.principal != principal);
        file.write(&self.auth_file()).unwrap();
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.addresses[0]).await
    }

    pub(crate) async fn sessions(&self) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.channel().await).max_encoding_message_size(usize::MAX)
    }

    pub(crate) async fn interrupts(&self) -> InterruptServiceClient<Channel> {
        InterruptServiceClient::new(self.channel().await)
    }
}

/// Connects to an address as a server names it.
pub(crate) async fn connect(address: &str) -> Channel {
    let Some(path) = address.strip_prefix("unix:") else {
        return Endpoint::from_shared(format!("http://{address}"))
            .unwrap()
            .connect()
            .await
            .unwrap();
    };
    let path = Path::new(path).to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move {
            tokio::net::UnixStream::connect(path)
                .await
                .map(hyper_util::rt::TokioIo::new)
        }
    });
    Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
        .unwrap()
}

/// A request that presents a key.
pub(crate) fn with_key<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(
        "authorization",
        MetadataValue::try_from(format!("Bearer {key}")).unwrap(),
    );
    request
}

/// An append of one message.
pub(crate) fn append(session: &str, text: &str) -> AppendMessagesRequest {
    AppendMessagesRequest {
        session: Some(SessionRef {
            agent_id: String::new(),
            user_id: None,
            session_id: session.to_owned(),
        }),
        messages: vec![Message {
            role: message::Role::User.into(),
            content: Some(message::Content::Text(text.to_owned())),
            ..Message::default()
        }],
        ..AppendMessagesRequest::default()
    }
}

/// The reason that a refusal names.
pub(crate) fn reason(status: &Status) -> String {
    status
        .get_error_details()
        .error_info()
        .map(|info| info.reason.clone())
        .unwrap_or_default()
}
