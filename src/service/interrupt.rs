//! Interrupts: creating, listing, deciding, consuming, withdrawing.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::caller::{Caller, Role};
use super::cover::check_session;
use super::engine::{Command, Done, Engine};
use super::listing::{self, Order, Position};
use super::schema::check_value;
use super::seal::Purpose;
use super::session_write::{push_entry, session_not_found};
use crate::domain::error::{Error, Reason, Result};
use crate::domain::id::{
    AgentId, CheckpointId, ConsumerId, InterruptId, RunId, SessionRef, ThreadRef, UserId,
};
use crate::domain::interrupt::{
    Answer, AskingRule, Decided, Decision, Interrupt, InterruptKind, InterruptSpec, InterruptState,
    Policy,
};
use crate::domain::revision::{Revision, Stamp};
use crate::domain::session::Session;
use crate::domain::thread::{Thread, Token, ToolRules, check_token};
use crate::domain::time::Timestamp;
use crate::domain::timeline::{EntryKind, Link};
use crate::storage::entities::{
    interrupt_key, place, session_key, session_prefix, state_agent_prefix, state_prefix,
    thread_key, thread_prefix, tool_rules_key,
};
use crate::storage::typed::{ChangeSet, Loaded, load, load_at};
use crate::storage::{Abort, Direction, Index, Kind, Query, Reads, Stretch};

/// How many interrupts are read at a time.
const CHUNK: usize = 256;
/// How much of a comment a timeline shows, in characters.
const LABEL_CHARS: usize = 60;
/// The shortest claim.
pub const MIN_CLAIM: Duration = Duration::from_secs(5);
/// The longest claim.
pub const MAX_CLAIM: Duration = Duration::from_hours(24);
/// The claim of a reviewer who names no length.
pub const DEFAULT_CLAIM: Duration = Duration::from_mins(15);

/// On behalf of what a question is asked.
#[derive(Clone, Debug, Serialize)]
pub struct Asking {
    /// The agent.
    pub agent: AgentId,
    /// The session it is about.
    pub session: Option<SessionRef>,
    /// The thread that waits.
    pub thread: Option<ThreadRef>,
    /// The run.
    pub run: Option<RunId>,
    /// The checkpoint of the suspension.
    pub checkpoint: Option<CheckpointId>,
    /// The call's idempotency key.
    pub execution_key: Option<String>,
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The interrupt that asks.
    pub id: InterruptId,
    /// Whether it asked already, under the same `dedup_key`.
    pub deduplicated: bool,
}

/// Asks a question: makes an interrupt, or finds the live one that asks the same.
///
/// With a session it goes to that session's timeline; the session is the caller's
/// to store.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], and [`Reason::AlreadyExists`] when the
/// `correlation_id` is taken.
pub async fn ask(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    caller: &Caller,
    session: Option<&mut Session>,
    spec: &InterruptSpec,
    id: InterruptId,
    asking: &Asking,
) -> Result<Asked, Abort> {
    let now = reads.now();
    let rules = load::<ToolRules>(reads, &tool_rules_key(&asking.agent)).await?;
    let rule = rules.as_ref().and_then(|rules| asking_rule(rules, spec));
    let blank = Interrupt {
        session: asking.session.clone(),
        thread: asking.thread.clone(),
        run: asking.run,
        checkpoint: asking.checkpoint,
        ..Interrupt::new(
            id,
            asking.agent.clone(),
            spec.kind,
            caller.principal.clone(),
            now,
        )
    };
    let mut interrupt = spec.ask(blank, rule, asking.execution_key.clone())?;
    if let Some(dedup_key) = &spec.dedup_key {
        let parts = [asking.agent.as_str().as_bytes(), dedup_key.as_bytes()];
        if let Some(mut live) = live(reads, changes, Index::InterruptDedup, &place(&parts)).await? {
            if digest(&live.value) == digest(&interrupt) {
                return Ok(Asked {
                    id: live.value.id,
                    deduplicated: true,
                });
            }
            live.value.supersede(id, now);
            interrupt.supersedes = Some(live.value.id);
            interrupt.previous_action.clone_from(&live.value.action);
            changes.update(&live)?;
        }
    }
    if let Some(correlation_id) = &spec.correlation_id
        && let Some(taken) = live(
            reads,
            changes,
            Index::InterruptCorrelation,
            correlation_id.as_bytes(),
        )
        .await?
        && interrupt.supersedes != Some(taken.value.id)
    {
        return Err(Error::new(
            Reason::AlreadyExists,
            "a live interrupt has this correlation_id; use another one, or wait until that one is acknowledged",
        )
        .at("correlation_id")
        .into());
    }
    changes.insert(&interrupt)?;
    if let Some(session) = session {
        push_entry(
            changes,
            session,
            caller,
            EntryKind::Interrupt,
            interrupt.name(),
            Some(Link::Interrupt(id)),
            now,
        )?;
    }
    Ok(Asked {
        id,
        deduplicated: false,
    })
}

/// The admin's rule for the tool that a question is about.
fn asking_rule<'a>(rules: &'a Loaded<ToolRules>, spec: &InterruptSpec) -> Option<AskingRule<'a>> {
    let action = spec.action.as_ref()?;
    let rule = rules.value.rule(&action.tool)?;
    Some(AskingRule {
        policy: Policy {
            revision: rules.value.etag.stored(),
            ..rule.policy.clone()
        },
        allowed: &rule.allowed,
    })
}

fn digest(interrupt: &Interrupt) -> Option<&str> {
    interrupt
        .action
        .as_ref()
        .map(|action| action.digest.as_str())
}

/// The live interrupt at a place of an index where there is at most one.
async fn live(
    reads: &mut dyn Reads,
    changes: &ChangeSet,
    index: Index,
    at: &[u8],
) -> Result<Option<Loaded<Interrupt>>, Abort> {
    let stretch = Stretch {
        prefix: bytes::Bytes::copy_from_slice(at),
        after: None,
        direction: Direction::Forward,
        limit: 1,
    };
    let Some(hit) = reads
        .index(index, &stretch)
        .await?
        .into_iter()
        .find(|hit| *hit.place == *at)
    else {
        return Ok(None);
    };
    let found = changes.load::<Interrupt>(reads, &hit.key).await?;
    Ok(found.filter(|found| found.value.is_live()))
}

/// The live interrupts of a thread, oldest first, as the operation will leave them.
/// Those about a call in doubt are a reviewer's business and block nothing.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn open_interrupts(
    reads: &mut dyn Reads,
    changes: &ChangeSet,
    thread: &ThreadRef,
) -> Result<Vec<Loaded<Interrupt>>, Abort> {
    by_place(
        reads,
        changes,
        Index::InterruptThread,
        thread_prefix(thread),
    )
    .await
    .map(|found| {
        found
            .into_iter()
            .filter(|found| found.value.doubt.is_none() && found.value.is_live())
            .collect()
    })
}

/// The live interrupts of a session.
///
/// # Errors
///
/// [`Abort::Store`] from `reads`.
pub async fn live_in_session(
    reads: &mut dyn Reads,
    changes: &ChangeSet,
    session: &SessionRef,
) -> Result<Vec<Loaded<Interrupt>>, Abort> {
    let prefix = session_prefix(session);
    let mut found = by_place(reads, changes, Index::InterruptSession, prefix).await?;
    found.retain(|found| found.value.is_live());
    Ok(found)
}

async fn by_place(
    reads: &mut dyn Reads,
    changes: &ChangeSet,
    index: Index,
    prefix: bytes::Bytes,
) -> Result<Vec<Loaded<Interrupt>>, Abort> {
    let mut stretch = Stretch {
        prefix,
        after: None,
        direction: Direction::Forward,
        limit: CHUNK,
    };
    let mut found = Vec::new();
    loop {
        let hits = reads.index(index, &stretch).await?;
        let whole = hits.len() < CHUNK;
        stretch.after = hits.last().map(|hit| hit.place.clone());
        for hit in hits {
            found.extend(changes.load::<Interrupt>(reads, &hit.key).await?);
        }
        if whole {
            return Ok(found);
        }
    }
}

/// Ends interrupts because what they were for is no more: withdraws those that
/// nobody has answered, and leaves no answer for anybody to act on. Answers with
/// the ids of those withdrawn.
///
/// # Errors
///
/// [`Abort::Store`] when one cannot be stored.
pub fn withdraw(
    changes: &mut ChangeSet,
    interrupts: Vec<Loaded<Interrupt>>,
    now: Timestamp,
) -> Result<Vec<InterruptId>, Abort> {
    let mut withdrawn = Vec::new();
    for mut interrupt in interrupts {
        if interrupt.value.drop_for_good(now) {
            if interrupt.value.state == InterruptState::Cancelled {
                withdrawn.push(interrupt.value.id);
            }
            changes.update(&interrupt)?;
        }
    }
    Ok(withdrawn)
}

/// An answer, and what its giver saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GivenAnswer {
    /// The interrupt.
    pub interrupt: InterruptId,
    /// The etag of what they saw.
    pub seen: Revision,
    /// The answer.
    pub answer: Answer,
    /// A comment.
    pub comment: String,
}

/// Checks the values of answers against the schemas of what they answer, which
/// never change. To be called before the answers are recorded: a schema is an
/// agent's, and checking may take longer than an operation may.
///
/// # Errors
///
/// [`Reason::ArgumentInvalid`], naming the answer as `decisions[0]` if it is `listed`.
pub async fn check_answers(
    engine: &Engine,
    caller: &Caller,
    answers: &[GivenAnswer],
    listed: bool,
) -> Result<()> {
    for (at, given) in answers.iter().enumerate() {
        let (is_edit, field, value) = match &given.answer {
            Answer::Edit { args_json } => (true, "answer.edit.args_json", args_json),
            Answer::Respond { value_json } => (false, "answer.respond.value_json", value_json),
            Answer::Approve { .. }
            | Answer::Reject { .. }
            | Answer::Choose { .. }
            | Answer::Skip
            | Answer::Suspend => continue,
        };
        let get = GetInterrupt {
            id: given.interrupt,
            at: Revision::LATEST,
        };
        let asked = match engine.read(&caller.tenant, get).await? {
            Some(found) if is_visible(caller, &found.value) => found.value,
            // It is refused when the answer is recorded.
            Some(_) | None => continue,
        };
        if asked.state.is_terminal() {
            continue;
        }
        let schema = if is_edit {
            asked.action.and_then(|action| action.args_schema_json)
        } else {
            asked.response_schema_json
        };
        if let Some(schema) = schema {
            check_value(field, &schema, value).map_err(|refusal| {
                if listed {
                    refusal.within(&format!("decisions[{at}]"))
                } else {
                    refusal
                }
            })?;
        }
    }
    Ok(())
}

/// Records an answer, whose value was checked by [`check_answers`]. `session` is
/// the one that the caller stores anyway.
///
/// # Errors
///
/// [`Reason::PermissionDenied`] without the reviewer role,
/// [`Reason::InterruptNotFound`], and those of [`Interrupt::decide`].
pub async fn decide(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    caller: &Caller,
    session: Option<&mut Loaded<Session>>,
    given: &GivenAnswer,
) -> Result<Decided, Abort> {
    caller.require(&[Role::Reviewer])?;
    let mut interrupt = find(reads, changes, caller, given.interrupt).await?;
    if interrupt.value.doubt.is_some() {
        return Err(Error::argument(
            "interrupt_id",
            "is about a call in doubt; use ResolveInDoubt",
        )
        .into());
    }
    if let Answer::Approve { grant: Some(_) } = &given.answer {
        if !interrupt.value.policy.tool_grants {
            return Err(Error::new(
                Reason::HitlDecision,
                "a grant for the tool needs an admin's policy that allows it; approve this call alone",
            )
            .at("answer.approve.grant")
            .into());
        }
        return Err(Error::new(
            Reason::NotImplemented,
            "standing grants are not available yet",
        )
        .into());
    }
    let now = reads.now();
    let actor = (caller.principal.clone(), caller.auth_method.to_owned());
    let decision = Decision::by(actor, given.answer.clone(), &given.comment, given.seen, now);
    let decided = interrupt.value.decide(decision)?;
    changes.update(&interrupt)?;
    tell(
        reads,
        changes,
        caller,
        session,
        &interrupt.value,
        EntryKind::Decision,
        given.answer.kind().name(),
    )
    .await?;
    Ok(decided)
}

/// Adds an entry about an interrupt to its session's timeline.
async fn tell(
    reads: &mut dyn Reads,
    changes: &mut ChangeSet,
    caller: &Caller,
    session: Option<&mut Loaded<Session>>,
    interrupt: &Interrupt,
    kind: EntryKind,
    label: &str,
) -> Result<(), Abort> {
    let Some(key) = &interrupt.session else {
        return Ok(());
    };
    let (now, link) = (reads.now(), Some(Link::Interrupt(interrupt.id)));
    if let Some(session) = session
        && session.value.key == *key
    {
        push_entry(changes, &mut session.value, caller, kind, label, link, now)?;
        return Ok(());
    }
    if let Some(mut session) = changes.load::<Session>(reads, &session_key(key)).await?
        && session.value.deleted_at.is_none()
    {
        push_entry(changes, &mut session.value, caller, kind, label, link, now)?;
        changes.update(&session)?;
    }
    Ok(())
}

/// The interrupt, if it is there and the caller may see it.
async fn find(
    reads: &mut dyn Reads,
    changes: &ChangeSet,
    caller: &Caller,
    id: InterruptId,
) -> Result<Loaded<Interrupt>, Abort> {
    let found = changes.load::<Interrupt>(reads, &interrupt_key(id)).await?;
    Ok(found
        .filter(|found| is_visible(caller, &found.value))
        .ok_or_else(not_found)?)
}

/// Whether an interrupt is within what the caller's key names.
#[must_use]
pub fn is_visible(caller: &Caller, interrupt: &Interrupt) -> bool {
    let user = interrupt
        .session
        .as_ref()
        .and_then(|session| session.user.as_ref());
    caller.check_agent(&interrupt.agent).is_ok() && caller.check_user(user).is_ok()
}

pub(super) fn not_found() -> Error {
    Error::new(
        Reason::InterruptNotFound,
        "there is no such interrupt; check interrupt_id",
    )
}

/// Asks a question outside of a suspension.
#[derive(Debug, Serialize)]
pub struct Create {
    /// On behalf of what.
    pub asking: Asking,
    /// The question.
    pub spec: InterruptSpec,
    /// The token of the thread's worker.
    pub token: Option<Token>,
    /// The id to give to it.
    #[serde(skip)]
    pub id: InterruptId,
}

#[async_trait]
impl Command for Create {
    const METHOD: &'static str = "InterruptService/CreateInterrupt";
    type Receipt = Asked;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Asked, Abort> {
        let mut asking = self.asking.clone();
        if let Some(key) = &asking.thread {
            let thread = load::<Thread>(reads, &thread_key(key)).await?;
            let thread = thread
                .filter(|thread| thread.value.deleted_at.is_none())
                .ok_or_else(|| {
                    Error::new(
                        Reason::ThreadNotFound,
                        "there is no such thread; acquire it first, or leave thread_id out",
                    )
                })?;
            check_token(Some(&thread.value), self.token.as_ref())?;
            asking.run = thread.value.run;
            let session = asking
                .session
                .get_or_insert_with(|| thread.value.session.clone());
            if *session != thread.value.session {
                return Err(Error::argument(
                    "session_id",
                    "is not the session of the thread; leave it out",
                )
                .into());
            }
        }
        let mut session = match &asking.session {
            Some(key) => {
                let session = load::<Session>(reads, &session_key(key)).await?;
                Some(
                    session
                        .filter(|session| session.value.deleted_at.is_none())
                        .ok_or_else(session_not_found)?,
                )
            }
            None => None,
        };
        if let Some(session) = &session {
            check_session(reads, &session.value, self.token.as_ref()).await?;
        }
        let told = session.as_mut().map(|session| &mut session.value);
        let asked = ask(reads, changes, caller, told, &self.spec, self.id, &asking)
            .await
            .map_err(|abort| within(abort, "interrupt"))?;
        if let Some(session) = &session
            && !asked.deduplicated
        {
            changes.update(session)?;
        }
        Ok(asked)
    }
}

/// Records answers: all of them, or none.
#[derive(Debug, Serialize)]
pub struct Decide {
    /// The answers.
    pub answers: Vec<GivenAnswer>,
}

#[async_trait]
impl Command for Decide {
    const METHOD: &'static str = "InterruptService/DecideInterrupt";
    type Receipt = Vec<InterruptId>;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Vec<InterruptId>, Abort> {
        for (at, answer) in self.answers.iter().enumerate() {
            decide(reads, changes, caller, None, answer)
                .await
                .map_err(|abort| match self.answers.len() {
                    1 => abort,
                    _ => name_it(abort, at, answer.interrupt),
                })?;
        }
        Ok(self.answers.iter().map(|answer| answer.interrupt).collect())
    }
}

/// Says in which part of the request the fault is.
pub(super) fn within(abort: Abort, field: &str) -> Abort {
    match abort {
        Abort::Refused(refusal) => Abort::Refused(refusal.within(field)),
        Abort::Store(error) => Abort::Store(error),
    }
}

/// Says which of several answers was refused.
fn name_it(abort: Abort, at: usize, id: InterruptId) -> Abort {
    match within(abort, &format!("decisions[{at}]")) {
        Abort::Refused(refusal) => Abort::Refused(refusal.with("interrupt_id", id)),
        Abort::Store(error) => Abort::Store(error),
    }
}

/// Withdraws a question.
#[derive(Debug, Serialize)]
pub struct Cancel {
    /// Which.
    pub interrupt: InterruptId,
    /// The etag that was seen, if one was sent.
    pub seen: Option<Revision>,
    /// Why.
    pub comment: String,
}

#[async_trait]
impl Command for Cancel {
    const METHOD: &'static str = "InterruptService/CancelInterrupt";
    type Receipt = InterruptId;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<InterruptId, Abort> {
        let mut interrupt = find(reads, changes, caller, self.interrupt).await?;
        if self.seen.is_some_and(|seen| !interrupt.value.etag.is(seen)) {
            return Err(Error::new(
                Reason::EtagMismatch,
                "the question has changed; look at it again",
            )
            .into());
        }
        match interrupt.value.state {
            InterruptState::Pending => {}
            InterruptState::Cancelled => return Ok(self.interrupt),
            InterruptState::Resolved | InterruptState::Expired | InterruptState::Superseded => {
                return Err(Error::new(
                    Reason::NotPending,
                    "it is closed already; look at the interrupt's state",
                )
                .into());
            }
        }
        interrupt.value.cancel(reads.now());
        changes.update(&interrupt)?;
        tell(
            reads,
            changes,
            caller,
            None,
            &interrupt.value,
            EntryKind::Decision,
            &self.label(),
        )
        .await?;
        Ok(self.interrupt)
    }
}

impl Cancel {
    /// What the timeline shows.
    fn label(&self) -> String {
        if self.comment.is_empty() {
            return "CANCEL".to_owned();
        }
        let why: String = self.comment.chars().take(LABEL_CHARS).collect();
        format!("CANCEL: {why}")
    }
}

/// Takes a question for a while.
#[derive(Debug, Serialize)]
pub struct Claim {
    /// Which.
    pub interrupt: InterruptId,
    /// For how long.
    pub ttl: Duration,
}

#[async_trait]
impl Command for Claim {
    const METHOD: &'static str = "InterruptService/ClaimInterrupt";
    type Receipt = InterruptId;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<InterruptId, Abort> {
        caller.require(&[Role::Reviewer])?;
        let mut interrupt = find(reads, changes, caller, self.interrupt).await?;
        let now = reads.now();
        interrupt.value.take(&caller.principal, self.ttl, now)?;
        changes.update(&interrupt)?;
        Ok(self.interrupt)
    }
}

/// Gives a question back.
#[derive(Debug, Serialize)]
pub struct Unclaim {
    /// Which.
    pub interrupt: InterruptId,
}

#[async_trait]
impl Command for Unclaim {
    const METHOD: &'static str = "InterruptService/UnclaimInterrupt";
    type Receipt = InterruptId;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<InterruptId, Abort> {
        caller.require(&[Role::Reviewer, Role::Admin])?;
        let mut interrupt = find(reads, changes, caller, self.interrupt).await?;
        let any = caller.has_any(&[Role::Admin]);
        let now = reads.now();
        if interrupt.value.give_back(&caller.principal, any, now)? {
            changes.update(&interrupt)?;
        }
        Ok(self.interrupt)
    }
}

/// Takes the answer of a question that no thread waits for, to act on it.
#[derive(Debug, Serialize)]
pub struct Consume {
    /// Which.
    pub interrupt: InterruptId,
    /// Who acts.
    pub consumer: ConsumerId,
    /// For how long before another may.
    pub ttl: Duration,
}

/// What a consumer was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumed {
    /// Which.
    pub interrupt: InterruptId,
    /// The token.
    pub token: Stamp,
    /// Until when.
    pub expires_at: Timestamp,
}

#[async_trait]
impl Command for Consume {
    const METHOD: &'static str = "InterruptService/ConsumeDecision";
    type Receipt = Consumed;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<Consumed, Abort> {
        let now = reads.now();
        let mut interrupt = find(reads, changes, caller, self.interrupt).await?;
        interrupt.value.consume(&self.consumer, self.ttl, now)?;
        changes.update(&interrupt)?;
        let held = interrupt.value.consumption.as_ref();
        Ok(Consumed {
            interrupt: self.interrupt,
            token: held.map_or(Stamp::THIS_COMMIT, |held| held.token),
            expires_at: now.after(self.ttl),
        })
    }

    async fn check_replay(
        &self,
        reads: &mut dyn Reads,
        receipt: &Consumed,
        made: Revision,
    ) -> Result<(), Abort> {
        let found = load::<Interrupt>(reads, &interrupt_key(receipt.interrupt)).await?;
        let token = receipt.token.revision(made);
        let held = found
            .and_then(|found| found.value.consumption)
            .is_some_and(|consumption| {
                consumption.token.is(token) && consumption.acknowledged_at.is_none()
            });
        if held {
            return Ok(());
        }
        Err(Error::new(
            Reason::LeaseLost,
            "another consumer has taken it over, or it was acknowledged",
        )
        .into())
    }
}

/// Records what came of acting on an answer.
#[derive(Debug, Serialize)]
pub struct Acknowledge {
    /// Which.
    pub interrupt: InterruptId,
    /// The consumer's token.
    pub token: Revision,
    /// The outcome, in the consumer's words.
    pub outcome: String,
}

#[async_trait]
impl Command for Acknowledge {
    const METHOD: &'static str = "InterruptService/AcknowledgeDecision";
    type Receipt = InterruptId;

    async fn run(
        &self,
        caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<InterruptId, Abort> {
        let mut interrupt = find(reads, changes, caller, self.interrupt).await?;
        let now = reads.now();
        let outcome = if self.outcome.is_empty() {
            "completed"
        } else {
            &self.outcome
        };
        if interrupt.value.acknowledge(self.token, outcome, now)? {
            changes.update(&interrupt)?;
        }
        Ok(self.interrupt)
    }
}

/// Which interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// In one of these states; empty means any.
    pub states: Vec<InterruptState>,
    /// Of one of these kinds; empty means any.
    pub kinds: Vec<InterruptKind>,
    /// Of this agent.
    pub agent: Option<AgentId>,
    /// Of sessions of this user.
    pub user: Option<UserId>,
    /// Of sessions with this id.
    pub session: Option<String>,
    /// Of threads with this id.
    pub thread: Option<String>,
    /// About one of these tools; empty means any.
    pub tools: Vec<String>,
    /// With all of these labels.
    pub labels: Vec<(String, String)>,
    /// Assigned to this one, or claimed by them.
    pub assignee: Option<String>,
    /// About a call in doubt, or not.
    pub in_doubt: Option<bool>,
    /// With this correlation id.
    pub correlation_id: Option<String>,
    /// Of this group.
    pub group_id: Option<String>,
    /// Made at or after this.
    pub created_from: Option<Timestamp>,
    /// Made at or before this.
    pub created_to: Option<Timestamp>,
    /// Expiring at or before this.
    pub expires_to: Option<Timestamp>,
}

impl Filter {
    /// Whether an interrupt is one of them.
    #[must_use]
    pub fn matches(&self, interrupt: &Interrupt) -> bool {
        let any = |wanted: &[String], has: Option<&str>| {
            wanted.is_empty() || has.is_some_and(|has| wanted.iter().any(|one| one == has))
        };
        let is = |wanted: &Option<String>, has: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == has
        };
        let session = interrupt.session.as_ref();
        (self.states.is_empty() || self.states.contains(&interrupt.state))
            && (self.kinds.is_empty() || self.kinds.contains(&interrupt.kind))
            && self
                .agent
                .as_ref()
                .is_none_or(|agent| interrupt.agent == *agent)
            && self.user.as_ref().is_none_or(|user| {
                session.is_some_and(|session| session.user.as_ref() == Some(user))
            })
            && is(
                &self.session,
                session.map(|session| session.session.as_str()),
            )
            && is(
                &self.thread,
                interrupt
                    .thread
                    .as_ref()
                    .map(|thread| thread.thread.as_str()),
            )
            && any(
                &self.tools,
                interrupt.action.as_ref().map(|action| action.tool.as_str()),
            )
            && self
                .labels
                .iter()
                .all(|label| interrupt.labels.contains(label))
            && self.assignee.as_ref().is_none_or(|assignee| {
                interrupt.assignees.contains(assignee)
                    || interrupt
                        .claim
                        .as_ref()
                        .is_some_and(|claim| claim.by.as_str() == assignee)
            })
            && self
                .in_doubt
                .is_none_or(|doubt| interrupt.doubt.is_some() == doubt)
            && is(&self.correlation_id, interrupt.correlation_id.as_deref())
            && is(&self.group_id, interrupt.group_id.as_deref())
            && self
                .created_from
                .is_none_or(|from| interrupt.created_at >= from)
            && self.created_to.is_none_or(|to| interrupt.created_at <= to)
            && self
                .expires_to
                .is_none_or(|to| interrupt.expires_at.is_some_and(|at| at <= to))
    }

    /// The order that has the fewest others in it.
    pub(super) fn order(&self, by: ListOrder) -> Order {
        let direction = match by {
            ListOrder::Newest => Direction::Backward,
            ListOrder::Oldest | ListOrder::Expiring => Direction::Forward,
        };
        let only = match self.states.as_slice() {
            [state] => Some(*state),
            _ => None,
        };
        let (index, prefix) = if by == ListOrder::Expiring {
            (
                Index::InterruptExpiry,
                state_prefix(InterruptState::Pending),
            )
        } else if let (Some(agent), Some(session)) = (&self.agent, &self.session)
            && let Ok(session) = session.parse()
            && self.user.is_some()
        {
            let key = SessionRef {
                agent: agent.clone(),
                user: self.user.clone(),
                session,
            };
            (Index::InterruptSession, session_prefix(&key))
        } else {
            match (only, &self.agent) {
                (Some(state), Some(agent)) => {
                    (Index::InterruptAgent, state_agent_prefix(state, agent))
                }
                (Some(state), None) => (Index::InterruptState, state_prefix(state)),
                (None, _) => (Index::InterruptCreated, bytes::Bytes::new()),
            }
        };
        Order {
            index,
            prefix,
            direction,
        }
    }
}

/// In which order interrupts are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ListOrder {
    /// By time of creation, newest first.
    Newest,
    /// By time of creation, oldest first.
    Oldest,
    /// Those that expire soonest first; only those that nobody has answered.
    Expiring,
}

/// A page of interrupts.
#[derive(Debug)]
struct ListInterrupts {
    filter: Filter,
    order: ListOrder,
    from: Option<Position>,
    limit: usize,
}

#[async_trait]
impl Query for ListInterrupts {
    type Output = listing::Listed<Interrupt>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let order = self.filter.order(self.order);
        listing::page(reads, &order, self.from.as_ref(), self.limit, |interrupt| {
            self.filter.matches(interrupt)
        })
        .await
    }
}

/// An interrupt, as it was at a revision.
#[derive(Debug)]
struct GetInterrupt {
    id: InterruptId,
    at: Revision,
}

#[async_trait]
impl Query for GetInterrupt {
    type Output = Option<Loaded<Interrupt>>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        Ok(load_at::<Interrupt>(reads, &interrupt_key(self.id), self.at).await?)
    }
}

/// Interrupts, and the commit that last changed each.
pub type Revised = (Interrupt, Revision);

/// A page of interrupts.
#[derive(Clone, Debug)]
pub struct InterruptPage {
    /// The interrupts.
    pub items: Vec<Revised>,
    /// The token of the next page; empty on the last.
    pub next: String,
    /// The revision that the list is of.
    pub revision: Revision,
}

/// Use cases of interrupts.
#[derive(Clone, Debug)]
pub struct Interrupts {
    engine: Engine,
}

impl Interrupts {
    /// Use cases that run on `engine`.
    #[must_use]
    pub const fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// An id for an interrupt.
    #[must_use]
    pub fn new_id(&self) -> InterruptId {
        InterruptId::from_uuid(self.engine.new_id())
    }

    /// The etag of what a caller saw.
    ///
    /// # Errors
    ///
    /// [`Reason::PreconditionRequired`] when it is empty.
    pub fn open_etag(&self, caller: &Caller, id: InterruptId, etag: &str) -> Result<Revision> {
        if etag.is_empty() {
            return Err(Error::new(
                Reason::PreconditionRequired,
                "send the etag of the interrupt as you saw it, so that you decide on what you saw",
            )
            .at("etag"));
        }
        let sealer = self.engine.sealer();
        Ok(sealer.open_revision(
            &caller.tenant,
            Purpose::Etag,
            Kind::Interrupt,
            &interrupt_key(id),
            etag,
        ))
    }

    /// The token of whoever consumes an interrupt, as it is sent.
    #[must_use]
    pub fn seal_token(&self, caller: &Caller, id: InterruptId, token: Revision) -> String {
        let sealer = self.engine.sealer();
        sealer.seal_revision(
            &caller.tenant,
            Purpose::Consumption,
            Kind::Interrupt,
            &interrupt_key(id),
            token,
        )
    }

    /// The token of whoever consumes an interrupt, as it was sent.
    #[must_use]
    pub fn open_token(&self, caller: &Caller, id: InterruptId, token: &str) -> Revision {
        let sealer = self.engine.sealer();
        sealer.open_revision(
            &caller.tenant,
            Purpose::Consumption,
            Kind::Interrupt,
            &interrupt_key(id),
            token,
        )
    }

    /// Asks a question outside of a suspension.
    ///
    /// # Errors
    ///
    /// [`Reason::ArgumentInvalid`], [`Reason::SessionNotFound`],
    /// [`Reason::ThreadNotFound`], [`Reason::TokenRequired`], [`Reason::Fenced`],
    /// [`Reason::AlreadyExists`].
    pub async fn create(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        create: Create,
    ) -> Result<Done<Asked>> {
        self.engine.submit(caller, request_id, create).await
    }

    /// An interrupt as it was at a revision, with the commit that last changed it.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`].
    pub async fn get_at(&self, caller: &Caller, id: InterruptId, at: Revision) -> Result<Revised> {
        let found = self
            .engine
            .read(&caller.tenant, GetInterrupt { id, at })
            .await?;
        let found = found
            .filter(|found| is_visible(caller, &found.value))
            .ok_or_else(not_found)?;
        Ok((found.value, found.revision))
    }

    /// An interrupt as it is.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`].
    pub async fn get(&self, caller: &Caller, id: InterruptId) -> Result<Revised> {
        self.get_at(caller, id, Revision::LATEST).await
    }

    /// A page of interrupts.
    ///
    /// # Errors
    ///
    /// [`Reason::PageTokenInvalid`].
    pub async fn list(
        &self,
        caller: &Caller,
        filter: Filter,
        order: ListOrder,
        limit: usize,
        token: &str,
    ) -> Result<InterruptPage> {
        const METHOD: &str = "ListInterrupts";
        let bound = (&filter, order);
        let sealer = self.engine.sealer();
        let from = sealer.open_page::<Position>(&caller.tenant, METHOD, &bound, token)?;
        let list = ListInterrupts {
            filter: filter.clone(),
            order,
            from,
            limit,
        };
        let listed = self.engine.read(&caller.tenant, list).await?;
        let next = listed
            .next
            .map(|next| sealer.seal_page(&caller.tenant, METHOD, &bound, &next));
        Ok(InterruptPage {
            items: listed
                .items
                .into_iter()
                .map(|loaded| (loaded.value, loaded.revision))
                .collect(),
            next: next.unwrap_or_default(),
            revision: listed.at,
        })
    }

    /// Records answers: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`Reason::PermissionDenied`], [`Reason::InterruptNotFound`],
    /// [`Reason::AlreadyDecided`] with the winner, and those of
    /// [`Interrupt::decide`].
    pub async fn decide(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        answers: Vec<GivenAnswer>,
    ) -> Result<Done<Vec<InterruptId>>> {
        check_answers(&self.engine, caller, &answers, answers.len() > 1).await?;
        self.engine
            .submit(caller, request_id, Decide { answers })
            .await
    }

    /// Withdraws a question.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`], [`Reason::EtagMismatch`],
    /// [`Reason::NotPending`].
    pub async fn cancel(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        cancel: Cancel,
    ) -> Result<Done<InterruptId>> {
        self.engine.submit(caller, request_id, cancel).await
    }

    /// Takes a question for a while.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`], [`Reason::Claimed`], [`Reason::NotPending`],
    /// [`Reason::PermissionDenied`].
    pub async fn claim(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        claim: Claim,
    ) -> Result<Done<InterruptId>> {
        self.engine.submit(caller, request_id, claim).await
    }

    /// Gives a question back.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`], [`Reason::Claimed`],
    /// [`Reason::PermissionDenied`].
    pub async fn unclaim(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        unclaim: Unclaim,
    ) -> Result<Done<InterruptId>> {
        self.engine.submit(caller, request_id, unclaim).await
    }

    /// Takes an answer to act on it.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`], [`Reason::AlreadyConsumed`],
    /// [`Reason::InterruptsPending`], [`Reason::NotPending`].
    pub async fn consume(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        consume: Consume,
    ) -> Result<Done<Consumed>> {
        self.engine.submit(caller, request_id, consume).await
    }

    /// Records what came of acting on an answer.
    ///
    /// # Errors
    ///
    /// [`Reason::InterruptNotFound`], [`Reason::NotPending`],
    /// [`Reason::Fenced`].
    pub async fn acknowledge(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        acknowledge: Acknowledge,
    ) -> Result<Done<InterruptId>> {
        self.engine.submit(caller, request_id, acknowledge).await
    }
}
