//! Which lease covers what a write touches.
//!
//! At most one thread's lease covers a session and its linked memory. The covered
//! records name the thread, so a write finds the lease with one look-up.

use crate::domain::id::{AgentId, ThreadId, ThreadRef};
use crate::domain::session::{Memory, Session};
use crate::domain::thread::{Thread, Token, check_token};
use crate::storage::entities::thread_key;
use crate::storage::typed::{Loaded, load};
use crate::storage::{Abort, Reads};

/// The thread whose lease covers something, if one does.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn covering_thread(
    reads: &mut dyn Reads,
    agent: &AgentId,
    leased_by: Option<&ThreadId>,
) -> Result<Option<Loaded<Thread>>, Abort> {
    let Some(thread) = leased_by else {
        return Ok(None);
    };
    let key = thread_key(&ThreadRef {
        agent: agent.clone(),
        thread: thread.clone(),
    });
    Ok(load(reads, &key).await?)
}

/// Checks the token of a write to a session.
///
/// # Errors
///
/// See [`check_token`].
pub async fn check_session(
    reads: &mut dyn Reads,
    session: &Session,
    token: Option<&Token>,
) -> Result<(), Abort> {
    let covering = covering_thread(reads, &session.key.agent, session.leased_by.as_ref()).await?;
    Ok(check_token(
        covering.as_ref().map(|thread| &thread.value),
        token,
    )?)
}

/// Checks the token of a write to a memory.
///
/// # Errors
///
/// See [`check_token`].
pub async fn check_memory(
    reads: &mut dyn Reads,
    memory: &Memory,
    token: Option<&Token>,
) -> Result<(), Abort> {
    let covering = match &memory.leased_by {
        Some((agent, thread)) => covering_thread(reads, agent, Some(thread)).await?,
        None => None,
    };
    Ok(check_token(
        covering.as_ref().map(|thread| &thread.value),
        token,
    )?)
}
