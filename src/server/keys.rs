//! API keys: a file of hashes, and who each key is.
//!
//! A key is 256 random bits, so one round of SHA-256 is enough to store it by:
//! there is nothing to guess that a slow hash would protect.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::domain::id::{AgentId, PrincipalName, Tenant, UserId};
use crate::service::caller::{Caller, Role};

/// What every key begins with, so that scanners for leaked secrets know it.
const PREFIX: &str = "adjourn_";

/// How often the file is looked at for changes, at most.
const LOOK: Duration = Duration::from_millis(500);

/// What is wrong with a file of keys.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It says something that makes no sense.
    #[error("{path}: {problem}")]
    Invalid {
        /// The file.
        path: String,
        /// What.
        problem: String,
    },
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |source| Error::Io {
        path: path.display().to_string(),
        source,
    }
}

fn invalid(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::Invalid {
        path: path.display().to_string(),
        problem: problem.to_string(),
    }
}

/// One key, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredKey {
    /// For people: which key to revoke.
    pub id: String,
    /// SHA-256 of the key, hexadecimal.
    pub sha256: String,
    /// Whose data it opens.
    pub tenant: String,
    /// Who uses it.
    pub principal: String,
    /// What it may do.
    pub roles: Vec<String>,
    /// The only agent it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The only user it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Whether it may repair guards of its own writers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host: bool,
}

/// A file of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The keys.
    #[serde(default, rename = "key")]
    pub keys: Vec<StoredKey>,
}

impl KeyFile {
    /// Reads a file; one that is not there has no keys.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        match std::fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| invalid(path, error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(io(path)(error)),
        }
    }

    /// Writes a file, readable by its owner only, in one step.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = toml::to_string(self).map_err(|error| invalid(path, error))?;
        write_secret(path, &text)
    }
}

/// Writes a file that only its owner can read, whole or not at all.
///
/// # Errors
///
/// [`Error`].
pub fn write_secret(path: &Path, text: &str) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(name);
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| {
        // What is left of a failed attempt is of no use to anybody.
        let _ = std::fs::remove_file(&temporary);
        io(path)(error)
    })
}

/// A new key.
///
/// # Errors
///
/// When the machine has no random numbers.
pub fn new_key() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// What a key is stored as.
#[must_use]
pub fn hash(key: &str) -> String {
    crate::domain::json::hex(&Sha256::digest(key))
}

impl StoredKey {
    /// Who a caller with this key is.
    fn caller(&self, path: &Path) -> Result<Caller, Error> {
        let wrong = |field: &str, problem: &dyn std::fmt::Display| {
            invalid(path, format!("key {}: {field}: {problem}", self.id))
        };
        let mut roles = Vec::new();
        for name in &self.roles {
            let role = Role::from_name(name);
            roles.push(role.ok_or_else(|| wrong("roles", &format!("{name} is no role")))?);
        }
        Ok(Caller {
            tenant: Tenant::try_from(self.tenant.clone())
                .map_err(|error| wrong("tenant", &error))?,
            principal: PrincipalName::try_from(self.principal.clone())
                .map_err(|error| wrong("principal", &error))?,
            roles,
            agent: match &self.agent_id {
                Some(text) => Some(
                    AgentId::try_from(text.clone()).map_err(|error| wrong("agent_id", &error))?,
                ),
                None => None,
            },
            user: match &self.user_id {
                Some(text) => {
                    Some(UserId::try_from(text.clone()).map_err(|error| wrong("user_id", &error))?)
                }
                None => None,
            },
            host: self.host,
            auth_method: "api_key",
        })
    }
}

/// The keys of a running server. A change of the file takes effect by itself.
#[derive(Debug)]
pub struct KeyRing {
    path: Option<PathBuf>,
    /// Keys that are in no file: the reviewer's, on a server without keys.
    own: HashMap<String, Arc<Caller>>,
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    callers: HashMap<String, Arc<Caller>>,
    stamp: Option<(SystemTime, u64)>,
    looked: Option<Instant>,
}

impl KeyRing {
    /// The keys in a file.
    ///
    /// # Errors
    ///
    /// [`Error`] when the file cannot be read, or makes no sense.
    pub fn of_file(path: &Path) -> Result<Self, Error> {
        if !path.exists() {
            return Err(invalid(
                path,
                "there is no such file; make a key with `adjourn keys create`",
            ));
        }
        let callers = read_callers(path)?;
        let loaded = Loaded {
            callers,
            stamp: stamp(path),
            looked: Some(Instant::now()),
        };
        Ok(Self {
            path: Some(path.to_owned()),
            own: HashMap::new(),
            loaded: Mutex::new(loaded),
        })
    }

    /// One key only.
    #[must_use]
    pub fn of_one(key: &str, caller: Caller) -> Self {
        Self {
            path: None,
            own: HashMap::from([(hash(key), Arc::new(caller))]),
            loaded: Mutex::default(),
        }
    }

    /// Who a caller with this key is; `None` when there is no such key.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Arc<Caller>> {
        self.find_hash(&hash(key))
    }

    /// Who a caller is whose key has this hash.
    #[must_use]
    pub fn find_hash(&self, hash: &str) -> Option<Arc<Caller>> {
        // Keys are looked up by a hash that a caller cannot choose, so the time it
        // takes tells nothing of other keys.
        if let Some(caller) = self.own.get(hash) {
            return Some(Arc::clone(caller));
        }
        let path = self.path.as_deref()?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            loaded.looked = Some(Instant::now());
            let now = stamp(path);
            if now != loaded.stamp {
                match read_callers(path) {
                    Ok(callers) => {
                        loaded.callers = callers;
                        loaded.stamp = now;
                    }
                    // The keys that were there go on; a typing error locks nobody out.
                    Err(error) => tracing::error!(%error, "the changed file of keys is not used"),
                }
            }
        }
        loaded.callers.get(hash).map(Arc::clone)
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read_callers(path: &Path) -> Result<HashMap<String, Arc<Caller>>, Error> {
    let mut callers = HashMap::new();
    for key in KeyFile::read(path)?.keys {
        callers.insert(key.sha256.to_lowercase(), Arc::new(key.caller(path)?));
    }
    Ok(callers)
}
