//! What several services share: ids, times, pages, preconditions.

use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{AgentId, InvalidId, MemoryId, MemoryRef, SessionRef, ThreadRef, UserId};
use crate::domain::json;
use crate::domain::time::Timestamp;
use crate::proto::v1;
use crate::service::caller::Caller;

/// How many items a page has if the request names no number.
pub const DEFAULT_PAGE: usize = 50;
/// The most items that a page has.
pub const MAX_PAGE: usize = 1000;
/// The most bytes of metadata of any kind.
pub const MAX_METADATA: usize = 64 * 1024;

/// The id in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], naming the field.
pub fn id<T: FromStr<Err = InvalidId>>(field: &str, text: &str) -> Result<T> {
    text.parse()
        .map_err(|invalid: InvalidId| Error::argument(field, invalid.problem))
}

/// The thread id in a field.
///
/// # Errors
///
/// [`Reason::ThreadIdInvalid`], naming the field.
pub fn thread_id(field: &str, text: &str) -> Result<crate::domain::id::ThreadId> {
    text.parse().map_err(|invalid: InvalidId| {
        Error::new(
            Reason::ThreadIdInvalid,
            format!("{field}: {}", invalid.problem),
        )
        .at(field)
    })
}

/// The UUID in a field, as one of the domain's ids.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], naming the field.
pub fn uuid<T>(field: &str, text: &str, make: impl FnOnce(Uuid) -> T) -> Result<T> {
    Uuid::parse_str(text)
        .map(make)
        .map_err(|_| Error::argument(field, "must be a UUID"))
}

/// The UUID in a field that may be empty.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], naming the field.
pub fn optional_uuid<T>(
    field: &str,
    text: &str,
    make: impl FnOnce(Uuid) -> T,
) -> Result<Option<T>> {
    if text.is_empty() {
        Ok(None)
    } else {
        uuid(field, text, make).map(Some)
    }
}

/// The request id of a call that writes; an empty one gives no safety.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`].
pub fn request_id(text: &str) -> Result<Option<Uuid>> {
    optional_uuid("request_id", text, |uuid| uuid)
}

/// The agent in a field; an empty one is the default agent.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], and [`Reason::PermissionDenied`] when the caller's
/// key is for another agent.
pub fn agent(caller: &Caller, field: &str, text: &str) -> Result<AgentId> {
    let agent = if text.is_empty() {
        AgentId::default()
    } else {
        id(field, text)?
    };
    caller.check_agent(&agent)?;
    Ok(agent)
}

/// The user in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], and [`Reason::PermissionDenied`] when the caller's
/// key is for another user.
pub fn user(caller: &Caller, field: &str, text: Option<&str>) -> Result<Option<UserId>> {
    let user = text.map(|text| id(field, text)).transpose()?;
    caller.check_user(user.as_ref())?;
    Ok(user)
}

/// The session in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is absent or not well formed, and
/// [`Reason::PermissionDenied`].
pub fn session(
    caller: &Caller,
    field: &str,
    session: Option<v1::SessionRef>,
) -> Result<SessionRef> {
    optional_session(caller, field, session)?.ok_or_else(|| Error::argument(field, "is required"))
}

/// The session in a field that may be absent.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is not well formed, and
/// [`Reason::PermissionDenied`].
pub fn optional_session(
    caller: &Caller,
    field: &str,
    session: Option<v1::SessionRef>,
) -> Result<Option<SessionRef>> {
    let Some(session) = session else {
        return Ok(None);
    };
    let v1::SessionRef {
        agent_id,
        user_id,
        session_id,
    } = session;
    Ok(Some(SessionRef {
        agent: agent(caller, &format!("{field}.agent_id"), &agent_id)?,
        user: user(caller, &format!("{field}.user_id"), user_id.as_deref())?,
        session: id(&format!("{field}.session_id"), &session_id)?,
    }))
}

/// The thread in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], [`Reason::ThreadIdInvalid`] and
/// [`Reason::PermissionDenied`].
pub fn thread(caller: &Caller, field: &str, thread: Option<v1::ThreadRef>) -> Result<ThreadRef> {
    let Some(thread) = thread else {
        return Err(Error::argument(field, "is required"));
    };
    let v1::ThreadRef {
        agent_id,
        thread_id,
    } = thread;
    Ok(ThreadRef {
        agent: agent(caller, &format!("{field}.agent_id"), &agent_id)?,
        thread: self::thread_id(&format!("{field}.thread_id"), &thread_id)?,
    })
}

/// The memory in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] and [`Reason::PermissionDenied`].
pub fn memory(caller: &Caller, field: &str, memory: Option<v1::MemoryRef>) -> Result<MemoryRef> {
    let Some(memory) = memory else {
        return Err(Error::argument(field, "is required"));
    };
    let v1::MemoryRef {
        agent_id,
        memory_id,
    } = memory;
    Ok(MemoryRef {
        agent: agent(caller, &format!("{field}.agent_id"), &agent_id)?,
        memory: id::<MemoryId>(&format!("{field}.memory_id"), &memory_id)?,
    })
}

/// How many items a page is to have.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when the number is negative.
pub fn page_size(field: &str, number: i32) -> Result<usize> {
    match usize::try_from(number) {
        Ok(0) => Ok(DEFAULT_PAGE),
        Ok(number) => Ok(number.min(MAX_PAGE)),
        Err(_) => Err(Error::argument(field, "must not be negative")),
    }
}

/// Checks JSON text.
///
/// # Errors
///
/// [`Reason::JsonInvalid`], naming the field and the place in the value.
pub fn json(field: &str, text: &str) -> Result<()> {
    json::check(text).map_err(|error| json_invalid(field, &error))
}

/// Checks JSON text that has to be an object.
///
/// # Errors
///
/// As [`json()`].
pub fn json_object(field: &str, text: &str) -> Result<()> {
    json::check_object(text).map_err(|error| json_invalid(field, &error))
}

/// Checks metadata: a JSON object of bounded size.
///
/// # Errors
///
/// As [`json()`], and [`Reason::LimitExceeded`].
pub fn metadata(field: &str, text: &str) -> Result<()> {
    limit(field, "bytes", text.len(), MAX_METADATA)?;
    json_object(field, text)
}

fn json_invalid(field: &str, error: &json::JsonError) -> Error {
    Error::new(
        Reason::JsonInvalid,
        format!("{field}: {error}; send JSON text as RFC 8259 has it"),
    )
    .at(field)
}

/// Checks that there is not more of something than allowed.
///
/// # Errors
///
/// [`Reason::LimitExceeded`], naming the field, the limit and the number.
pub fn limit(field: &str, unit: &str, number: usize, most: usize) -> Result<()> {
    if number <= most {
        return Ok(());
    }
    Err(Error::new(
        Reason::LimitExceeded,
        format!("{field}: {number} {unit}, and {most} is the most; send less at a time"),
    )
    .at(field)
    .with("limit", most)
    .with("actual", number))
}

/// The instant in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is no instant.
pub fn inward_time(field: &str, time: &prost_types::Timestamp) -> Result<Timestamp> {
    let prost_types::Timestamp { seconds, nanos } = time;
    let nanos = i64::from(*nanos);
    let micros = seconds
        .checked_mul(1_000_000)
        .and_then(|micros| micros.checked_add(nanos / 1_000));
    match micros {
        Some(micros) if (0..1_000_000_000).contains(&nanos) => Ok(Timestamp::from_micros(micros)),
        _ => Err(Error::argument(field, "is no valid time")),
    }
}

/// An instant on the wire.
#[must_use]
pub fn time(at: Timestamp) -> prost_types::Timestamp {
    let micros = at.as_micros();
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1_000).unwrap_or(0),
    }
}

/// The time span in a field.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`] when it is negative or no span.
pub fn inward_duration(field: &str, span: &prost_types::Duration) -> Result<Duration> {
    let prost_types::Duration { seconds, nanos } = span;
    match (u64::try_from(*seconds), u32::try_from(*nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
        _ => Err(Error::argument(field, "must not be negative")),
    }
}

/// A time span on the wire.
#[must_use]
pub fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

/// A session on the wire.
#[must_use]
pub fn session_ref(key: &SessionRef) -> v1::SessionRef {
    v1::SessionRef {
        agent_id: key.agent.to_string(),
        user_id: key.user.as_ref().map(ToString::to_string),
        session_id: key.session.to_string(),
    }
}

/// A thread on the wire.
#[must_use]
pub fn thread_ref(key: &ThreadRef) -> v1::ThreadRef {
    v1::ThreadRef {
        agent_id: key.agent.to_string(),
        thread_id: key.thread.to_string(),
    }
}

/// A memory on the wire.
#[must_use]
pub fn memory_ref(key: &MemoryRef) -> v1::MemoryRef {
    v1::MemoryRef {
        agent_id: key.agent.to_string(),
        memory_id: key.memory.to_string(),
    }
}

/// A count on the wire, where no honest one is ever too large.
#[must_use]
pub fn count(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}
