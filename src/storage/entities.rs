//! Keys and index entries of the domain's records.
//!
//! A key is made of the ids that name a record, joined by NUL. A place in an index
//! is made the same way, with numbers in big-endian so that their order is the
//! order of the bytes.

use bytes::Bytes;

use super::typed::resolve_all;
use super::{Entity, Index, IndexEntry, Key, Kind};
use crate::domain::id::{AgentId, CheckpointId, InterruptId, MemoryRef, SessionRef, ThreadRef};
use crate::domain::interrupt::{Interrupt, InterruptState};
use crate::domain::revision::Revision;
use crate::domain::session::{Memory, Session};
use crate::domain::thread::{Call, CallIdentity, CallState, Checkpoint, Thread, ToolRules};
use crate::domain::time::Timestamp;
use crate::domain::timeline::Entry;

/// Bytes whose order is the order of the instants.
#[must_use]
pub fn time_bytes(at: Timestamp) -> [u8; 8] {
    // Flipping the sign bit puts the time before 1970 first.
    (at.as_micros() ^ i64::MIN).to_be_bytes()
}

/// Bytes whose order is the order of the instants, newest first.
#[must_use]
pub fn newest_first(at: Timestamp) -> [u8; 8] {
    (!(at.as_micros() ^ i64::MIN)).to_be_bytes()
}

/// The place made of `parts`.
#[must_use]
pub fn place(parts: &[&[u8]]) -> Bytes {
    parts.join(&0).into()
}

fn entry(index: Index, parts: &[&[u8]]) -> IndexEntry {
    IndexEntry {
        index,
        place: place(parts),
    }
}

fn session_parts(key: &SessionRef) -> [&[u8]; 3] {
    // No user and an empty user cannot be confused: ids are never empty.
    let user = key.user.as_ref().map_or("", |user| user.as_str());
    [
        key.agent.as_str().as_bytes(),
        user.as_bytes(),
        key.session.as_str().as_bytes(),
    ]
}

fn thread_parts(key: &ThreadRef) -> [&[u8]; 2] {
    [
        key.agent.as_str().as_bytes(),
        key.thread.as_str().as_bytes(),
    ]
}

/// The key of a session.
#[must_use]
pub fn session_key(key: &SessionRef) -> Key {
    Key::of(&session_parts(key))
}

/// The key of a thread.
#[must_use]
pub fn thread_key(key: &ThreadRef) -> Key {
    Key::of(&thread_parts(key))
}

/// The key of a memory.
#[must_use]
pub fn memory_key(key: &MemoryRef) -> Key {
    Key::of(&[
        key.agent.as_str().as_bytes(),
        key.memory.as_str().as_bytes(),
    ])
}

/// The key of an interrupt.
#[must_use]
pub fn interrupt_key(id: InterruptId) -> Key {
    Key::of(&[id.as_uuid().as_bytes()])
}

/// The key of a checkpoint. Those of a thread stand together.
#[must_use]
pub fn checkpoint_key(thread: &ThreadRef, id: CheckpointId) -> Key {
    let [agent, thread] = thread_parts(thread);
    Key::of(&[agent, thread, id.as_uuid().as_bytes()])
}

/// What the keys of a thread's checkpoints start with.
#[must_use]
pub fn checkpoint_prefix(thread: &ThreadRef) -> Bytes {
    let [agent, thread] = thread_parts(thread);
    place(&[agent, thread, b""])
}

/// The key of a gated call. Those of a thread stand together.
#[must_use]
pub fn call_key(identity: &CallIdentity) -> Key {
    let [agent, thread] = thread_parts(&identity.thread);
    Key::of(&[
        agent,
        thread,
        identity.run.as_uuid().as_bytes(),
        identity.action_digest.as_bytes(),
        &identity.ordinal.to_be_bytes(),
        identity.tool_call_id.as_bytes(),
    ])
}

/// The key of a timeline entry. Those of a session stand together, in order.
#[must_use]
pub fn timeline_key(session: &SessionRef, rev: i64) -> Key {
    let [agent, user, session] = session_parts(session);
    Key::of(&[agent, user, session, &rev.to_be_bytes()])
}

/// What the keys of a session's timeline start with.
#[must_use]
pub fn timeline_prefix(session: &SessionRef) -> Bytes {
    let [agent, user, session] = session_parts(session);
    place(&[agent, user, session, b""])
}

/// What the places of a thread in [`Index::InterruptThread`] and
/// [`Index::CallOpen`] start with.
#[must_use]
pub fn thread_prefix(thread: &ThreadRef) -> Bytes {
    let [agent, thread] = thread_parts(thread);
    place(&[agent, thread, b""])
}

/// What the places of a session in [`Index::InterruptSession`],
/// [`Index::ThreadSession`] and [`Index::SnapshotTime`] start with.
#[must_use]
pub fn session_prefix(session: &SessionRef) -> Bytes {
    let [agent, user, session] = session_parts(session);
    place(&[agent, user, session, b""])
}

/// What the places of a state in [`Index::InterruptState`] and
/// [`Index::InterruptExpiry`] start with.
#[must_use]
pub fn state_prefix(state: InterruptState) -> Bytes {
    place(&[&[state as u8], b""])
}

/// What the places of a state and an agent in [`Index::InterruptAgent`] start with.
#[must_use]
pub fn state_agent_prefix(state: InterruptState, agent: &AgentId) -> Bytes {
    place(&[&[state as u8], agent.as_str().as_bytes(), b""])
}

impl Entity for Session {
    const KIND: Kind = Kind::Session;

    fn key(&self) -> Key {
        session_key(&self.key)
    }

    fn resolve(&mut self, stored: Revision) {
        resolve_all(
            [&mut self.generation, &mut self.etag, &mut self.listing_etag],
            stored,
        );
    }

    fn index(&self) -> Vec<IndexEntry> {
        if self.deleted_at.is_some() {
            return Vec::new();
        }
        // Sessions of several agents or users may have one id and one time.
        let [agent, user, session] = session_parts(&self.key);
        vec![entry(
            Index::SessionSaved,
            &[&newest_first(self.saved_at), session, agent, user],
        )]
    }
}

impl Entity for Memory {
    const KIND: Kind = Kind::Memory;

    fn key(&self) -> Key {
        memory_key(&self.key)
    }

    fn resolve(&mut self, stored: Revision) {
        resolve_all(
            [
                &mut self.generation,
                &mut self.etag,
                &mut self.settings_etag,
            ],
            stored,
        );
    }

    fn index(&self) -> Vec<IndexEntry> {
        if self.deleted_at.is_some() {
            return Vec::new();
        }
        vec![entry(
            Index::MemoryUpdated,
            &[
                &newest_first(self.updated_at),
                self.key.memory.as_str().as_bytes(),
                self.key.agent.as_str().as_bytes(),
            ],
        )]
    }
}

impl Entity for Thread {
    const KIND: Kind = Kind::Thread;

    fn key(&self) -> Key {
        thread_key(&self.key)
    }

    fn resolve(&mut self, stored: Revision) {
        resolve_all([&mut self.generation, &mut self.etag], stored);
        resolve_all(self.lease.as_mut().map(|lease| &mut lease.token), stored);
        if let Some((session, memory)) = &mut self.resume_etags {
            resolve_all(std::iter::once(session).chain(memory), stored);
        }
    }

    fn index(&self) -> Vec<IndexEntry> {
        if self.deleted_at.is_some() {
            return Vec::new();
        }
        let [agent, thread] = thread_parts(&self.key);
        let [session_agent, user, session] = session_parts(&self.session);
        vec![
            entry(
                Index::ThreadUpdated,
                &[&newest_first(self.updated_at), agent, thread],
            ),
            entry(
                Index::ThreadSession,
                &[session_agent, user, session, agent, thread],
            ),
        ]
    }
}

impl Entity for Checkpoint {
    const KIND: Kind = Kind::Checkpoint;

    fn key(&self) -> Key {
        checkpoint_key(&self.thread, self.id)
    }

    fn resolve(&mut self, stored: Revision) {
        resolve_all([&mut self.generation, &mut self.session_etag], stored);
        resolve_all(self.memory_etag.as_mut(), stored);
    }

    fn index(&self) -> Vec<IndexEntry> {
        let [agent, thread] = thread_parts(&self.thread);
        vec![entry(
            Index::CheckpointTime,
            &[
                agent,
                thread,
                &newest_first(self.created_at),
                self.id.as_uuid().as_bytes(),
            ],
        )]
    }
}

impl Entity for Call {
    const KIND: Kind = Kind::Call;

    fn key(&self) -> Key {
        call_key(&self.identity)
    }

    fn resolve(&mut self, stored: Revision) {
        resolve_all([&mut self.token], stored);
    }

    fn index(&self) -> Vec<IndexEntry> {
        let [agent, thread] = thread_parts(&self.identity.thread);
        let place = [agent, thread, self.execution_key.as_bytes()];
        let mut index = vec![entry(Index::CallKey, &place)];
        if matches!(self.state, CallState::Started | CallState::InDoubt) {
            index.push(entry(Index::CallOpen, &place));
        }
        index
    }
}

/// The key of an agent's tool rules.
#[must_use]
pub fn tool_rules_key(agent: &AgentId) -> Key {
    Key::of(&[agent.as_str().as_bytes()])
}

impl Entity for ToolRules {
    const KIND: Kind = Kind::ToolRules;

    fn key(&self) -> Key {
        tool_rules_key(&self.agent)
    }

    fn resolve(&mut self, stored: Revision) {
        resolve_all([&mut self.etag], stored);
    }

    fn index(&self) -> Vec<IndexEntry> {
        Vec::new()
    }
}

impl Entity for Entry {
    const KIND: Kind = Kind::TimelineEntry;

    fn key(&self) -> Key {
        timeline_key(&self.session, self.rev)
    }

    fn resolve(&mut self, _stored: Revision) {}

    fn index(&self) -> Vec<IndexEntry> {
        Vec::new()
    }
}

impl Entity for Interrupt {
    const KIND: Kind = Kind::Interrupt;

    fn key(&self) -> Key {
        interrupt_key(self.id)
    }

    fn resolve(&mut self, stored: Revision) {
        resolve_all([&mut self.etag], stored);
        resolve_all(
            self.decisions
                .iter_mut()
                .map(|decision| &mut decision.revision),
            stored,
        );
        resolve_all(
            self.consumption
                .as_mut()
                .map(|consumption| &mut consumption.token),
            stored,
        );
    }

    fn index(&self) -> Vec<IndexEntry> {
        let created = time_bytes(self.created_at);
        let id = self.id.as_uuid().as_bytes().as_slice();
        let state = [self.state as u8];
        let mut index = vec![
            entry(Index::InterruptCreated, &[&created, id]),
            entry(Index::InterruptState, &[&state, &created, id]),
            entry(
                Index::InterruptAgent,
                &[&state, self.agent.as_str().as_bytes(), &created, id],
            ),
        ];
        if self.state == InterruptState::Pending {
            let expiry = self.expires_at.unwrap_or(Timestamp::from_micros(i64::MAX));
            index.push(entry(
                Index::InterruptExpiry,
                &[&state, &time_bytes(expiry), id],
            ));
        }
        if let Some(session) = &self.session {
            let [agent, user, session] = session_parts(session);
            index.push(entry(
                Index::InterruptSession,
                &[agent, user, session, &created, id],
            ));
        }
        if !self.is_live() {
            return index;
        }
        if let Some(thread) = &self.thread {
            let [agent, thread] = thread_parts(thread);
            index.push(entry(
                Index::InterruptThread,
                &[agent, thread, &created, id],
            ));
        }
        if let Some(dedup_key) = &self.dedup_key
            && self.superseded_by.is_none()
        {
            index.push(entry(
                Index::InterruptDedup,
                &[self.agent.as_str().as_bytes(), dedup_key.as_bytes()],
            ));
        }
        if let Some(correlation_id) = &self.correlation_id {
            index.push(entry(
                Index::InterruptCorrelation,
                &[correlation_id.as_bytes()],
            ));
        }
        index
    }
}
