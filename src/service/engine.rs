//! Runs commands and queries: idempotency, and one kind of error.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::caller::Caller;
use super::seal::Sealer;
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::Tenant;
use crate::domain::revision::Revision;
use crate::domain::time::{Clock, Timestamp};
use crate::storage::typed::{self, ChangeSet};
use crate::storage::{
    self, Abort, Changes, Committed, Corrupt, Key, Kind, Operation, Query, Reads, Store,
};

/// How long a used request id is remembered.
pub const REQUEST_TTL: Duration = Duration::from_hours(24);

/// A use case that writes, as the caller meant it: parsed, and with everything
/// hashed and encoded that can be.
///
/// Its serialized form is its identity for idempotency: what the server adds, such
/// as new ids, is left out with `#[serde(skip)]`.
#[async_trait]
pub trait Command: Debug + Serialize + Send + Sync + 'static {
    /// The RPC, such as `SessionService/AppendMessages`.
    const METHOD: &'static str;

    /// What the command made, by reference: ids, numbers and stamps, small enough
    /// to keep. The answer to the first call and to a repeated one is built from it
    /// in the same way.
    type Receipt: Debug + Serialize + DeserializeOwned + Send + 'static;

    /// Reads, decides, and collects what to store.
    ///
    /// # Errors
    ///
    /// [`Abort::Refused`] when a rule says no; [`Abort::Store`] from `reads`.
    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Self::Receipt, Abort>;

    /// Whether a repeated call may still have the first one's answer: one that
    /// hands out a lease may not, once the lease is lost.
    ///
    /// # Errors
    ///
    /// [`Reason::LeaseLost`].
    async fn check_replay(
        &self,
        _reads: &mut dyn Reads,
        _receipt: &Self::Receipt,
        _made: Revision,
    ) -> Result<(), Abort> {
        Ok(())
    }
}

/// What a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The commit; the first one's for a repeated call.
    pub revision: Revision,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// What it made.
    pub receipt: T,
    /// Whether this repeats the answer to an earlier call.
    pub replayed: bool,
}

/// Runs use cases on a store.
#[derive(Clone, Debug)]
pub struct Engine {
    store: Arc<dyn Store>,
    sealer: Sealer,
    clock: Arc<dyn Clock>,
}

impl Engine {
    /// An engine over `store`. The clock is only for making ids.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let sealer = Sealer::new(store.identity());
        Self {
            store,
            sealer,
            clock,
        }
    }

    /// Makes and opens the opaque strings that callers hold.
    #[must_use]
    pub const fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// The store, for watches and background work.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// A new id: a UUID version 7, so that ids made later stand later.
    #[must_use]
    pub fn new_id(&self) -> Uuid {
        let micros = self.clock.now().as_micros().unsigned_abs();
        let (seconds, nanos) = (micros / 1_000_000, micros % 1_000_000 * 1_000);
        let nanos = u32::try_from(nanos).unwrap_or(0);
        Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos))
    }

    /// Runs a command, or answers as the first time if the request id was used for
    /// the same command before.
    ///
    /// # Errors
    ///
    /// The command's, and [`Reason::RequestIdReused`].
    pub async fn submit<C: Command>(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        command: C,
    ) -> Result<Done<C::Receipt>> {
        let request = match request_id {
            Some(id) => Some((request_key(id, caller, C::METHOD), fingerprint(&command)?)),
            None => None,
        };
        let operation = Once {
            caller: caller.clone(),
            request,
            command,
        };
        let Committed {
            revision,
            at,
            output,
        } = self
            .store
            .transact(&caller.tenant, operation)
            .await
            .map_err(explain)?;
        Ok(match output {
            Outcome::First(receipt) => Done {
                revision,
                at,
                receipt,
                replayed: false,
            },
            Outcome::Replayed {
                receipt,
                revision,
                at,
            } => Done {
                revision,
                at,
                receipt,
                replayed: true,
            },
        })
    }

    /// Runs a query on one snapshot.
    ///
    /// # Errors
    ///
    /// The query's.
    pub async fn read<Q: Query>(&self, tenant: &Tenant, query: Q) -> Result<Q::Output> {
        self.store.read(tenant, query).await.map_err(explain)
    }
}

/// A command and the request id that makes it safe to repeat.
#[derive(Debug)]
struct Once<C> {
    caller: Caller,
    request: Option<(Key, String)>,
    command: C,
}

#[derive(Debug)]
enum Outcome<T> {
    First(T),
    Replayed {
        receipt: T,
        revision: Revision,
        at: Timestamp,
    },
}

/// What is kept of a request: its fingerprint, and a reference to what it made.
#[derive(Debug, Serialize, Deserialize)]
struct Kept<T> {
    fingerprint: String,
    receipt: T,
}

#[async_trait]
impl<C: Command> Operation for Once<C> {
    type Output = Outcome<C::Receipt>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, Self::Output), Abort> {
        if let Some((key, fingerprint)) = &self.request
            && let Some(earlier) = typed::request(reads, key).await?
            && reads.now() < earlier.at.after(REQUEST_TTL)
        {
            let kept: Kept<serde_json::Value> = from_json(&earlier.body)?;
            if kept.fingerprint != *fingerprint {
                return Err(Error::new(
                    Reason::RequestIdReused,
                    "this request_id was used for another command; send a new one",
                )
                .at("request_id")
                .into());
            }
            let receipt =
                C::Receipt::deserialize(kept.receipt).map_err(|error| internal(&error))?;
            self.command
                .check_replay(reads, &receipt, earlier.revision)
                .await?;
            let replayed = Outcome::Replayed {
                receipt,
                revision: earlier.revision,
                at: earlier.at,
            };
            return Ok((Changes::default(), replayed));
        }
        let mut changes = ChangeSet::new(reads.tenant());
        let receipt = self.command.run(&self.caller, reads, &mut changes).await?;
        if let Some((key, fingerprint)) = &self.request {
            let kept = Kept {
                fingerprint: fingerprint.clone(),
                receipt: &receipt,
            };
            let body = serde_json::to_vec(&kept).map_err(|error| internal(&error))?;
            changes.record_request(key.clone(), body.into());
        }
        Ok((changes.finish(), Outcome::First(receipt)))
    }
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, storage::Error> {
    serde_json::from_slice(body).map_err(|error| internal(&error))
}

fn internal(error: &serde_json::Error) -> storage::Error {
    storage::Error::Internal(error.to_string())
}

/// Request ids stand in the order of their making if the client makes them so:
/// new ones then go to the end of the index.
fn request_key(id: Uuid, caller: &Caller, method: &str) -> Key {
    Key::of(&[
        id.as_bytes(),
        caller.principal.as_str().as_bytes(),
        method.as_bytes(),
    ])
}

/// What tells a command from another one under the same request id.
fn fingerprint<C: Command>(command: &C) -> Result<String> {
    let body = serde_json::to_vec(command).map_err(|error| explain(internal(&error).into()))?;
    let digest = Sha256::digest(&body);
    Ok(crate::domain::json::hex(&digest))
}

/// The refusal that a failure shows as. What the store said stays in the log.
pub fn explain(abort: Abort) -> Error {
    let error = match abort {
        Abort::Refused(refusal) => return refusal,
        Abort::Store(error) => error,
    };
    let pause = Duration::from_secs(1);
    match &error {
        storage::Error::Unavailable(_) => {
            tracing::warn!(%error, "store unavailable");
            Error::new(
                Reason::StorageUnavailable,
                "the store is unavailable and nothing was written; try again",
            )
            .retry_after(pause)
        }
        storage::Error::OutcomeUnknown(_) => {
            tracing::error!(%error, "outcome unknown");
            Error::new(
                Reason::OutcomeUnknown,
                "the answer to the commit was lost; repeat the call with the same request_id to learn its outcome",
            )
            .retry_after(pause)
        }
        storage::Error::Full(_) => {
            tracing::error!(%error, "store full");
            Error::new(
                Reason::StorageUnavailable,
                "the store is full and nothing was written; make room, then try again",
            )
            .retry_after(Duration::from_secs(30))
        }
        storage::Error::Corrupt { kind, key, problem } => {
            tracing::error!(kind = ?kind, key, problem, "corrupt data");
            Error::new(
                corrupt_reason(*kind),
                format!("{error}; it was left as it is, restore it from a backup"),
            )
            .with("key", key)
        }
        storage::Error::Internal(_) => {
            tracing::error!(%error, "internal error");
            Error::new(
                Reason::Internal,
                "internal error; nothing was written, and the server's log says more",
            )
        }
    }
}

const fn corrupt_reason(kind: Corrupt) -> Reason {
    match kind {
        Corrupt::Log | Corrupt::Request | Corrupt::Database => Reason::LogCorrupt,
        Corrupt::Record(kind) => match kind {
            Kind::Memory => Reason::MemoryCorrupt,
            Kind::Snapshot => Reason::SnapshotCorrupt,
            Kind::Checkpoint | Kind::Thread | Kind::Call => Reason::CheckpointCorrupt,
            Kind::Interrupt | Kind::ToolRules | Kind::Grant => Reason::InterruptCorrupt,
            Kind::Session | Kind::TimelineEntry | Kind::Writer => Reason::SessionCorrupt,
            Kind::LogHeader => Reason::LogCorrupt,
        },
    }
}
