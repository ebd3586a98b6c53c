//! A store whose clock is moved by hand, the people who call, and what they do in
//! most tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use adjourn::domain::error::Result;
use adjourn::domain::id::{AgentId, InterruptId, SessionId, SessionRef, Tenant};
use adjourn::domain::interrupt::{
    Action, Answer, DecisionKind, Interrupt, InterruptKind, InterruptSpec, PolicyRequest,
};
use adjourn::domain::log::LogId;
use adjourn::domain::revision::Revision;
use adjourn::domain::session::{Preconditions, Session};
use adjourn::domain::time::{Clock, Timestamp};
use adjourn::domain::timeline::Entry;
use adjourn::service::caller::{Caller, Role};
use adjourn::service::engine::{Command, Engine};
use adjourn::service::interrupt::{Asking, Create, GivenAnswer, Interrupts, Revised};
use adjourn::service::session_write::open_session;
use adjourn::storage::entities::{session_key, timeline_prefix};
use adjourn::storage::memory::MemoryStore;
use adjourn::storage::sqlite::{Options, SqliteStore};
use adjourn::storage::typed::{ChangeSet, decode, load};
use adjourn::storage::{Abort, Direction, Kind, Query, Reads, Store, Stretch};
use async_trait::async_trait;
use serde::Serialize;
use tempfile::TempDir;

/// A clock that stands still until somebody moves it.
#[derive(Debug)]
pub(crate) struct HandClock(AtomicI64);

impl HandClock {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(1_700_000_000_000_000)))
    }

    /// Moves the hands on.
    pub(crate) fn advance(&self, span: Duration) {
        let micros = i64::try_from(span.as_micros()).unwrap();
        self.0.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// A store and what runs on it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) interrupts: Interrupts,
    pub(crate) clock: Arc<HandClock>,
    /// The directory of the store's file, if it has one.
    directory: Option<TempDir>,
}

impl World {
    fn over(store: Arc<dyn Store>, clock: Arc<HandClock>, directory: Option<TempDir>) -> Self {
        let engine = Engine::new(store, Arc::<HandClock>::clone(&clock));
        Self {
            interrupts: Interrupts::new(engine.clone()),
            engine,
            clock,
            directory,
        }
    }

    /// The same world, as another process finds it: over the same file, where there
    /// is one.
    pub(crate) async fn restarted(self) -> Self {
        let Some(directory) = self.directory else {
            return self;
        };
        self.engine.store().close().await;
        drop(self.engine);
        drop(self.interrupts);
        let store = open_sqlite(&directory, &self.clock);
        Self::over(store, self.clock, Some(directory))
    }

    /// What another store holds of the same tenant.
    pub(crate) fn with_store(&self, store: Arc<dyn Store>) -> Self {
        Self::over(store, Arc::clone(&self.clock), None)
    }

    /// An empty world over each kind of store.
    pub(crate) fn each() -> [Self; 2] {
        let clock = HandClock::new();
        let memory = MemoryStore::new(Arc::<HandClock>::clone(&clock)).unwrap();
        let memory = Self::over(Arc::new(memory), clock, None);

        let clock = HandClock::new();
        let directory = TempDir::new().unwrap();
        let sqlite = open_sqlite(&directory, &clock);
        [memory, Self::over(sqlite, clock, Some(directory))]
    }

    /// The agent asks.
    pub(crate) async fn ask(&self, spec: InterruptSpec) -> InterruptId {
        self.try_ask(spec, None).await.unwrap()
    }

    /// The agent asks about a session.
    pub(crate) async fn ask_in(&self, spec: InterruptSpec, session: &SessionRef) -> InterruptId {
        self.try_ask(spec, Some(session.clone())).await.unwrap()
    }

    pub(crate) async fn try_ask(
        &self,
        spec: InterruptSpec,
        session: Option<SessionRef>,
    ) -> Result<InterruptId> {
        let create = Create {
            asking: Asking {
                agent: AgentId::default(),
                session,
                thread: None,
                run: None,
                checkpoint: None,
                execution_key: None,
            },
            spec,
            token: None,
            id: self.interrupts.new_id(),
        };
        let done = self.interrupts.create(&agent(), None, create).await?;
        Ok(done.receipt.id)
    }

    /// The interrupt as it is.
    pub(crate) async fn get(&self, id: InterruptId) -> Interrupt {
        self.revised(id).await.0
    }

    pub(crate) async fn revised(&self, id: InterruptId) -> Revised {
        self.interrupts.get(&viewer(), id).await.unwrap()
    }

    /// An answer to the question as it is.
    pub(crate) async fn answer(&self, id: InterruptId, answer: Answer) -> GivenAnswer {
        GivenAnswer {
            interrupt: id,
            seen: self.get(id).await.etag.stored().unwrap(),
            answer,
            comment: String::new(),
        }
    }

    /// A reviewer decides on the question as it is.
    pub(crate) async fn decide(&self, id: InterruptId, answer: Answer) {
        let answer = self.answer(id, answer).await;
        let caller = reviewer("rita");
        self.interrupts
            .decide(&caller, None, vec![answer])
            .await
            .unwrap();
    }

    /// An empty session.
    pub(crate) async fn session(&self, id: &str) -> SessionRef {
        let key = SessionRef {
            agent: AgentId::default(),
            user: None,
            session: SessionId::try_from(id).unwrap(),
        };
        let make = MakeSession {
            key: key.clone(),
            log: LogId(self.engine.new_id()),
        };
        self.engine.submit(&agent(), None, make).await.unwrap();
        key
    }

    /// Marks a session as deleted.
    pub(crate) async fn delete_session(&self, session: &SessionRef) {
        let delete = DeleteSession(session.clone());
        self.engine.submit(&agent(), None, delete).await.unwrap();
    }

    /// The timeline of a session.
    pub(crate) async fn timeline(&self, session: &SessionRef) -> Vec<Entry> {
        let query = Timeline(session.clone());
        self.engine.read(&Tenant::default(), query).await.unwrap()
    }
}

fn open_sqlite(directory: &TempDir, clock: &Arc<HandClock>) -> Arc<dyn Store> {
    let options = Options {
        clock: Arc::<HandClock>::clone(clock),
        ..Options::default()
    };
    Arc::new(SqliteStore::open(directory.path().join("store.db"), &options).unwrap())
}

#[derive(Debug)]
struct Timeline(SessionRef);

#[async_trait]
impl Query for Timeline {
    type Output = Vec<Entry>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Vec<Entry>, Abort> {
        let stretch = Stretch {
            prefix: timeline_prefix(&self.0),
            after: None,
            direction: Direction::Forward,
            limit: 1000,
        };
        let tenant = reads.tenant().clone();
        let found = reads
            .records(Kind::TimelineEntry, &stretch, Revision::LATEST)
            .await?;
        let mut entries = Vec::new();
        for (key, version) in found {
            entries.push(decode::<Entry>(&tenant, &key, &version)?.value);
        }
        Ok(entries)
    }
}

#[derive(Debug, Serialize)]
struct DeleteSession(SessionRef);

#[async_trait]
impl Command for DeleteSession {
    const METHOD: &'static str = "test";
    type Receipt = ();

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<(), Abort> {
        let found = load::<Session>(reads, &session_key(&self.0)).await?;
        let mut session = found.unwrap();
        session.value.deleted_at = Some(reads.now());
        changes.update(&session)?;
        Ok(())
    }
}

#[derive(Debug, Serialize)]
struct MakeSession {
    key: SessionRef,
    #[serde(skip)]
    log: LogId,
}

#[async_trait]
impl Command for MakeSession {
    const METHOD: &'static str = "test";
    type Receipt = ();

    async fn run(
        &self,
        _caller: &Caller,
        reads: &mut dyn Reads,
        changes: &mut ChangeSet,
    ) -> Result<(), Abort> {
        let session = open_session(reads, &self.key, &Preconditions::default(), self.log).await?;
        changes.update::<Session>(&session)?;
        Ok(())
    }
}

/// A caller of the default tenant.
pub(crate) fn caller(name: &str, roles: &[Role]) -> Caller {
    Caller {
        tenant: Tenant::default(),
        principal: name.parse().unwrap(),
        roles: roles.to_vec(),
        agent: None,
        user: None,
        host: false,
        auth_method: "api_key",
    }
}

pub(crate) fn agent() -> Caller {
    caller("bot", &[Role::Agent])
}

pub(crate) fn viewer() -> Caller {
    caller("vera", &[Role::Viewer])
}

pub(crate) fn reviewer(name: &str) -> Caller {
    caller(name, &[Role::Reviewer])
}

/// Somebody with every role, elsewhere.
pub(crate) fn foreigner() -> Caller {
    Caller {
        tenant: "elsewhere".parse().unwrap(),
        ..caller("rita", &Role::ALL)
    }
}

/// May `tool` run with these arguments?
pub(crate) fn may(tool: &str, args_json: &str) -> InterruptSpec {
    InterruptSpec {
        kind: InterruptKind::Approval,
        reason: String::new(),
        title: String::new(),
        message: format!("May {tool} run?"),
        description_markdown: String::new(),
        locale: String::new(),
        action: Some(Action {
            args_json: Some(args_json.to_owned()),
            ..Action::of(tool)
        }),
        allowed: vec![
            DecisionKind::Approve,
            DecisionKind::Edit,
            DecisionKind::Reject,
        ],
        response_schema_json: None,
        choices: Vec::new(),
        url: String::new(),
        risk: String::new(),
        priority: 0,
        labels: Vec::new(),
        metadata_json: None,
        group_id: None,
        agent_path: Vec::new(),
        on_behalf_of: String::new(),
        assignees: Vec::new(),
        policy: PolicyRequest::default(),
        dedup_key: None,
        correlation_id: None,
        resume_as: None,
        expires_at: None,
    }
}

pub(crate) fn approve() -> Answer {
    Answer::Approve { grant: None }
}

pub(crate) fn reject() -> Answer {
    Answer::Reject {
        reason: "no".to_owned(),
    }
}
