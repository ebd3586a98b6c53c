//! The composition root: opens the store, builds the services, serves, stops.

pub mod guard;
pub mod keys;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic_health::ServingStatus;

use self::guard::Guard;
use self::keys::{KeyRing, new_key, write_secret};
use crate::config::{Listen, Settings, Storage, state_directory};
use crate::domain::time::{Clock, SystemClock};
use crate::proto::FILE_DESCRIPTOR_SET;
use crate::proto::v1::checkpoint_service_server::CheckpointServiceServer;
use crate::proto::v1::interrupt_service_server::InterruptServiceServer;
use crate::proto::v1::memory_service_server::MemoryServiceServer;
use crate::proto::v1::session_service_server::SessionServiceServer;
use crate::proto::v1::timeline_service_server::TimelineServiceServer;
use crate::rpc::checkpoint::CheckpointApi;
use crate::rpc::interrupt::InterruptApi;
use crate::rpc::memory::MemoryApi;
use crate::rpc::session::SessionApi;
use crate::rpc::timeline::TimelineApi;
use crate::service::caller::{Caller, Role};
use crate::service::engine::Engine;
use crate::service::sweep::{self, Sweeper};
use crate::service::watch::{self, Watches};
use crate::storage::Store;
use crate::storage::memory::MemoryStore;
use crate::storage::sqlite::{Options, SqliteStore};

/// Why a server cannot serve.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How often an idle connection is asked whether it still stands.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A server that has its addresses and is about to serve.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    listeners: Vec<Bound>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    keys: Arc<KeyRing>,
    anonymous: Option<Arc<Caller>>,
    /// Where the reviewer's key of a server without keys is.
    reviewer_key: Option<PathBuf>,
    watches: watch::Options,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

impl Bound {
    fn address(&self) -> String {
        match self {
            Self::Tcp(_, address) => address.to_string(),
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

impl Server {
    /// Opens the store and takes the addresses.
    ///
    /// # Errors
    ///
    /// When one of them cannot be had; the message says which.
    pub async fn bind(settings: Settings) -> Result<Self, Error> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut listeners = Vec::new();
        for listen in &settings.listen {
            listeners.push(bind(listen).await?);
        }
        let store = open_store(&settings.storage, &clock)?;
        let (keys, anonymous, reviewer_key) = match &settings.auth_file {
            Some(path) => (KeyRing::of_file(path)?, None, None),
            None => {
                let reviewer = reviewer_key(&settings.storage)?;
                let caller = local_caller("reviewer", &[Role::Reviewer], "local_key")?;
                let keys = KeyRing::of_one(&reviewer.key, caller);
                (keys, Some(anonymous()?), Some(reviewer.path))
            }
        };
        Ok(Self {
            settings,
            listeners,
            store,
            clock,
            keys: Arc::new(keys),
            anonymous: anonymous.map(Arc::new),
            reviewer_key,
            watches: watch::Options::default(),
        })
    }

    /// Notes in the user's own directory where the reviewer's key is, so that the
    /// command line finds it. It helps that and nobody else, so a home that cannot
    /// be written to is no reason not to serve.
    pub fn note_reviewer_key(&self) {
        let Some(key) = &self.reviewer_key else {
            return;
        };
        for address in self.addresses() {
            let Some(note) = reviewer_note(&address) else {
                return;
            };
            let noted = note
                .parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .map_err(Error::from)
                .and_then(|()| Ok(write_secret(&note, &format!("{}\n", key.display()))?));
            if let Err(error) = noted {
                tracing::debug!(%error, "the reviewer's key was not noted");
            }
        }
    }

    /// Sets how watches behave.
    #[must_use]
    pub const fn with_watches(mut self, options: watch::Options) -> Self {
        self.watches = options;
        self
    }

    /// Where it listens: `HOST:PORT` or `unix:PATH`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().map(Bound::address).collect()
    }

    /// Serves until `shutdown` resolves, then lets requests finish.
    ///
    /// # Errors
    ///
    /// When a listener fails, or the ready file cannot be written.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let addresses = self.addresses();
        let Self {
            settings,
            listeners,
            store,
            clock,
            keys,
            anonymous,
            watches,
            reviewer_key: _,
        } = self;
        store.ready().await?;
        let engine = Engine::new(Arc::clone(&store), clock);
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let watches = Watches::new(engine.clone(), watches, drain.clone());
        let (health, health_service) = tonic_health::server::health_reporter();
        let limit = settings.max_request_bytes;

        let routes = Routes::new(health_service)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        let routes = add_services(routes, &health, &engine, &watches, limit).await;

        let loopback_only = anonymous.is_some() && !settings.insecure;
        let guard = Guard::new(keys, anonymous, loopback_only, limit);
        let tasks = TaskTracker::new();
        let sweeper = Sweeper::new(engine.clone(), sweep::Options::default());
        tasks.spawn(sweeper.run(drain.clone()));
        for listener in listeners {
            let server = tonic::transport::Server::builder()
                .http2_keepalive_interval(Some(KEEPALIVE))
                .http2_keepalive_timeout(Some(KEEPALIVE / 2))
                .layer(guard.clone())
                .add_routes(routes.clone());
            let (stop, drain) = (stop.clone(), drain.clone());
            tasks.spawn(async move {
                let stopped = stop.cancelled_owned();
                let outcome = match listener {
                    Bound::Tcp(listener, _) => {
                        let incoming = TcpListenerStream::new(listener).map(|accepted| {
                            // Without it small answers wait for acknowledgements.
                            accepted.inspect(|stream| drop(stream.set_nodelay(true)))
                        });
                        server.serve_with_incoming_shutdown(incoming, stopped).await
                    }
                    Bound::Unix(listener, path) => {
                        let outcome = server
                            .serve_with_incoming_shutdown(
                                UnixListenerStream::new(listener),
                                stopped,
                            )
                            .await;
                        // The next server would otherwise find a socket of nobody.
                        let _ = std::fs::remove_file(path);
                        outcome
                    }
                };
                if let Err(error) = outcome {
                    tracing::error!(%error, "a listener failed");
                    drain.cancel();
                }
            });
        }
        if let Some(path) = &settings.ready_file {
            write_ready(path, &addresses)?;
        }
        tracing::info!(listen = ?addresses, storage = store.name(), "serving");

        let drained = drain.clone();
        tokio::select! {
            () = shutdown => {}
            () = drained.cancelled() => {}
        }
        tracing::info!("draining");
        // Say so first, so that balancers look elsewhere; then end the streams and
        // close the door, and wait for those who are still inside.
        health
            .set_service_status("", ServingStatus::NotServing)
            .await;
        for service in SERVICES {
            health
                .set_service_status(service, ServingStatus::NotServing)
                .await;
        }
        drain.cancel();
        stop.cancel();
        tasks.close();
        let inside = async {
            watches.ended().await;
            tasks.wait().await;
        };
        if tokio::time::timeout(settings.grace, inside).await.is_err() {
            tracing::warn!("requests were still running at the end of the grace period");
        }
        store.close().await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// The services, by the names that health checks ask for.
const SERVICES: [&str; 5] = [
    "adjourn.v1.SessionService",
    "adjourn.v1.MemoryService",
    "adjourn.v1.CheckpointService",
    "adjourn.v1.InterruptService",
    "adjourn.v1.TimelineService",
];

async fn add_services(
    routes: Routes,
    health: &tonic_health::server::HealthReporter,
    engine: &Engine,
    watches: &Watches,
    limit: usize,
) -> Routes {
    for service in SERVICES {
        health
            .set_service_status(service, ServingStatus::Serving)
            .await;
    }
    let unbounded = usize::MAX;
    routes
        .add_service(
            SessionServiceServer::new(SessionApi::new(engine.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(unbounded),
        )
        .add_service(
            MemoryServiceServer::new(MemoryApi::new(engine.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(unbounded),
        )
        .add_service(
            CheckpointServiceServer::new(CheckpointApi::new(engine.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(unbounded),
        )
        .add_service(
            InterruptServiceServer::new(InterruptApi::new(engine.clone(), watches.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(unbounded),
        )
        .add_service(
            TimelineServiceServer::new(TimelineApi::new(engine.clone(), watches.clone()))
                .max_decoding_message_size(limit)
                .max_encoding_message_size(unbounded),
        )
}

fn open_store(storage: &Storage, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>, Error> {
    Ok(match storage {
        Storage::Memory => Arc::new(MemoryStore::new(Arc::clone(clock))?),
        Storage::Sqlite(path) => {
            let options = Options {
                clock: Arc::clone(clock),
                ..Options::default()
            };
            Arc::new(
                SqliteStore::open(path, &options)
                    .map_err(|error| format!("{}: {error}", path.display()))?,
            )
        }
    })
}

async fn bind(listen: &Listen) -> Result<Bound, Error> {
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)
                .await
                .map_err(|error| format!("cannot listen on {address}: {error}"))?;
            let address = listener.local_addr()?;
            Ok(Bound::Tcp(listener, address))
        }
        Listen::Unix(path) => {
            use std::os::unix::fs::PermissionsExt as _;

            let cannot = |error: std::io::Error| {
                format!("cannot listen on unix:{}: {error}", path.display())
            };
            // A socket that nobody listens on is left from a server that was killed.
            if path.exists() {
                if tokio::net::UnixStream::connect(path).await.is_ok() {
                    return Err(format!("another server listens on unix:{}", path.display()).into());
                }
                std::fs::remove_file(path).map_err(cannot)?;
            }
            let listener = UnixListener::bind(path).map_err(cannot)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
                .map_err(cannot)?;
            Ok(Bound::Unix(listener, path.clone()))
        }
    }
}

fn write_ready(path: &Path, addresses: &[String]) -> Result<(), Error> {
    let text = serde_json::to_string(&serde_json::json!({ "listen": addresses }))?;
    Ok(write_secret(path, &format!("{text}\n"))?)
}

/// Who a caller without a key is: an agent that can never approve itself.
fn anonymous() -> Result<Caller, Error> {
    local_caller("anonymous", &[Role::Agent, Role::Viewer], "loopback")
}

fn local_caller(
    principal: &str,
    roles: &[Role],
    auth_method: &'static str,
) -> Result<Caller, Error> {
    Ok(Caller {
        tenant: "default"
            .parse()
            .map_err(|_| "the default tenant is no id")?,
        principal: principal.parse().map_err(|_| "the principal is no id")?,
        roles: roles.to_vec(),
        agent: None,
        user: None,
        host: false,
        auth_method,
    })
}

struct ReviewerKey {
    key: String,
    path: PathBuf,
}

/// The reviewer's key of a server without keys: made at the first start, in a file
/// that only its owner can read.
fn reviewer_key(storage: &Storage) -> Result<ReviewerKey, Error> {
    let path = match storage {
        Storage::Sqlite(path) => {
            let mut name = path.as_os_str().to_owned();
            name.push(".reviewer-key");
            PathBuf::from(name)
        }
        Storage::Memory => {
            std::env::temp_dir().join(format!("adjourn-{}.reviewer-key", std::process::id()))
        }
    };
    let key = match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
        Ok(_) => {
            return Err(format!(
                "{} is empty; remove it, and a new key is made",
                path.display()
            )
            .into());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = new_key().map_err(|error| format!("no random numbers: {error}"))?;
            write_secret(&path, &format!("{key}\n"))?;
            tracing::info!(path = %path.display(), "made a key for reviewers");
            key
        }
        Err(error) => return Err(format!("{}: {error}", path.display()).into()),
    };
    Ok(ReviewerKey {
        path: path.canonicalize().unwrap_or(path),
        key,
    })
}

/// The file in which the command line finds where the reviewer's key of the server
/// at an address is.
#[must_use]
pub fn reviewer_note(address: &str) -> Option<PathBuf> {
    let name: String = address
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '_'
            }
        })
        .collect();
    Some(state_directory()?.join("reviewer-keys").join(name))
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
