//! Identifiers.
//!
//! An identifier is what its maker says it is: exact, case-sensitive UTF-8. It
//! is checked once, where it enters, and never cleaned or lower-cased, so two
//! ids that differ never share data. What no backend could keep as a name is
//! refused on every backend alike.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// How long an identifier may be, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 512;

/// Why a text is no identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct InvalidId {
    /// What is wrong, as the end of a sentence that begins with the field.
    pub problem: &'static str,
}

/// Checks what all identifiers have in common: 1 to [`MAX_ID_BYTES`] bytes, no
/// control characters, not `.` or `..`, no `/` or `\`.
///
/// # Errors
///
/// [`InvalidId`] names the first rule that is broken.
pub fn check_id(id: &str) -> Result<(), InvalidId> {
    let problem = if id.is_empty() {
        "must not be empty"
    } else if id.len() > MAX_ID_BYTES {
        "must be at most 512 bytes long"
    } else if id == "." || id == ".." {
        "must not be `.` or `..`"
    } else if id.contains(['/', '\\']) {
        "must not contain `/` or `\\`"
    } else if id.contains(char::is_control) {
        "must not contain control characters"
    } else {
        return Ok(());
    };
    Err(InvalidId { problem })
}

/// Makes an identifier that is a checked text. Cloning it copies a pointer.
macro_rules! text_id {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The identifier as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidId;

            fn try_from(id: &str) -> Result<Self, InvalidId> {
                check_id(id)?;
                Ok(Self(id.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(id: String) -> Result<Self, InvalidId> {
                Self::try_from(id.as_str())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(id: &str) -> Result<Self, InvalidId> {
                Self::try_from(id)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )+};
}

text_id! {
    /// An isolation boundary. It comes from the caller's credentials, never from
    /// a request.
    Tenant;
    /// An agent.
    AgentId;
    /// A person whom an agent serves.
    UserId;
    /// A session of an agent and a user.
    SessionId;
    /// A line of checkpoints. An A2A `contextId` is one.
    ThreadId;
    /// A named, windowed history.
    MemoryId;
    /// A process that takes leases, or that consumes decisions.
    ConsumerId;
    /// A live context that saves and restores a session.
    WriterId;
    /// Who calls: the name that the credentials prove.
    PrincipalName;
}

impl PrincipalName {
    /// The server itself: the one name that no credentials can prove, since it is
    /// empty.
    #[must_use]
    pub fn server() -> Self {
        Self("".into())
    }

    /// Whether it is the server itself.
    #[must_use]
    pub fn is_server(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Tenant {
    /// The tenant `default`, of callers without credentials.
    fn default() -> Self {
        Self("default".into())
    }
}

impl Default for AgentId {
    /// The agent `default`, where a request names none.
    fn default() -> Self {
        Self("default".into())
    }
}

/// Makes an identifier that is a UUID, made by the server unless said otherwise.
macro_rules! uuid_id {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The identifier that is this UUID.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID.
            #[must_use]
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            /// Reads the hyphenated form, 36 characters, hexadecimal digits in
            /// either case.
            fn from_str(id: &str) -> Result<Self, InvalidId> {
                parse_uuid(id).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.as_hyphenated(), f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let id: Cow<'de, str> = Deserialize::deserialize(deserializer)?;
                id.parse().map_err(de::Error::custom)
            }
        }
    )+};
}

uuid_id! {
    /// A stored question to a person.
    InterruptId;
    /// What a suspended or paused run needs to go on.
    CheckpointId;
    /// An immutable copy of a session.
    SnapshotId;
    /// From acquiring a thread to the commit of its run, across takeovers.
    RunId;
    /// A client's name for one attempt to write, which makes repeating it safe.
    RequestId;
}

/// Reads the one spelling that we write. The others (braces, a URN, no hyphens)
/// would give one thing several names.
fn parse_uuid(id: &str) -> Result<Uuid, InvalidId> {
    const INVALID: InvalidId = InvalidId {
        problem: "must be a UUID, like 0198c0de-0000-7000-8000-000000000000",
    };

    if id.len() != uuid::fmt::Hyphenated::LENGTH {
        return Err(INVALID);
    }
    Uuid::try_parse(id).map_err(|_| INVALID)
}

impl ThreadId {
    /// The session that a thread belongs to if nobody says otherwise: the one with
    /// the same id.
    #[must_use]
    pub fn as_session(&self) -> SessionId {
        SessionId(Arc::clone(&self.0))
    }
}

/// The key of a session in its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionRef {
    /// The agent.
    pub agent: AgentId,
    /// The user, or none. A session without user is another than that of any user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserId>,
    /// The session.
    pub session: SessionId,
}

/// The key of a thread in its tenant. A user owns a thread, but is no part of
/// its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadRef {
    /// The agent.
    pub agent: AgentId,
    /// The thread.
    pub thread: ThreadId,
}

/// The key of a memory in its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemoryRef {
    /// The agent.
    pub agent: AgentId,
    /// The memory.
    pub memory: MemoryId,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_kept_exactly() {
        for id in [
            "a",
            "A",
            " a b ",
            ".hidden",
            "...",
            "..a",
            "é",
            "e\u{301}",
            "日本🎉",
            "a:b?c#d%2F",
            &"x".repeat(512),
        ] {
            assert_eq!(SessionId::try_from(id).unwrap().as_str(), id);
        }
        assert_ne!(
            ThreadId::try_from("é").unwrap(),
            ThreadId::try_from("e\u{301}").unwrap()
        );
        assert_ne!(
            ThreadId::try_from("a").unwrap(),
            ThreadId::try_from("A").unwrap()
        );
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for id in [
            "",
            ".",
            "..",
            "/",
            "/a",
            "a/",
            "../x",
            "a\\b",
            "a\0b",
            "a\nb",
            "\u{7f}",
            "\u{85}",
            &"x".repeat(513),
            &"é".repeat(257),
        ] {
            assert!(check_id(id).is_err(), "{id:?}");
            assert!(MemoryId::try_from(id.to_owned()).is_err(), "{id:?}");
        }
        assert_eq!(
            "".parse::<UserId>().unwrap_err().to_string(),
            "must not be empty"
        );
    }

    #[test]
    fn the_defaults_are_ids() {
        assert_eq!(check_id(AgentId::default().as_str()), Ok(()));
        assert_eq!(check_id(Tenant::default().as_str()), Ok(()));
    }

    #[test]
    fn a_uuid_has_one_spelling() {
        let id: RunId = "0198C0DE-0000-7000-8000-00000000000A".parse().unwrap();
        assert_eq!(id.to_string(), "0198c0de-0000-7000-8000-00000000000a");
        assert_eq!(RunId::from_uuid(*id.as_uuid()), id);
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, "\"0198c0de-0000-7000-8000-00000000000a\"");
        assert_eq!(serde_json::from_str::<RunId>(&text).unwrap(), id);
        assert!(serde_json::from_str::<RunId>("\"x\"").is_err());
        for other in [
            "",
            "0198c0de00007000800000000000000a",
            "{0198c0de-0000-7000-8000-00000000000a}",
            "urn:uuid:0198c0de-0000-7000-8000-00000000000a",
            "0198c0de-0000-7000-8000-00000000000g",
            "0198c0de-0000-7000-80000-0000000000a",
        ] {
            assert!(other.parse::<InterruptId>().is_err(), "{other}");
        }
    }

    #[test]
    fn refs_are_written_plainly() {
        let session = SessionRef {
            agent: AgentId::default(),
            user: None,
            session: SessionId::try_from("s").unwrap(),
        };
        let text = serde_json::to_string(&session).unwrap();
        assert_eq!(text, r#"{"agent":"default","session":"s"}"#);
        assert_eq!(serde_json::from_str::<SessionRef>(&text).unwrap(), session);
    }

    proptest! {
        #[test]
        fn an_id_is_refused_or_kept_exactly(id: String) {
            match SessionId::try_from(id.as_str()) {
                Ok(kept) => prop_assert_eq!(kept.to_string(), id),
                Err(_) => prop_assert!(
                    id.is_empty() || id.len() > MAX_ID_BYTES || [".", ".."].contains(&id.as_str())
                        || id.chars().any(|c| c.is_control() || c == '/' || c == '\\')
                ),
            }
        }
    }
}
