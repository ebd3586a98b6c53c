//! Watching: nothing missed, whatever breaks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adjourn::domain::error::{Error, Reason, Result};
use adjourn::domain::id::{InterruptId, SessionRef, Tenant};
use adjourn::domain::interrupt::{Interrupt, InterruptSpec, InterruptState};
use adjourn::domain::revision::Revision;
use adjourn::domain::timeline::{Entry, EntryKind};
use adjourn::service::caller::Caller;
use adjourn::service::interrupt::{Cancel, Filter};
use adjourn::service::watch::{
    Awaited, Event, Farewell, InterruptWatch, Options, Said, Start, Stream, TimelineWatch, Watched,
    Watches,
};
use adjourn::storage::memory::MemoryStore;
use adjourn::storage::{Abort, Boxed, Committed, ErasedOperation, ErasedQuery, Identity, Store};
use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::world::{World, agent, approve, caller, foreigner, may, reject, reviewer, viewer};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// The watches of a world.
struct Watching {
    watches: Watches,
    drain: CancellationToken,
}

impl Watching {
    fn of(world: &World) -> Self {
        Self::with(world, Options::default())
    }

    fn with(world: &World, options: Options) -> Self {
        let drain = CancellationToken::new();
        Self {
            watches: Watches::new(world.engine.clone(), options, drain.clone()),
            drain,
        }
    }

    async fn open<W: Watched>(&self, what: W, start: Start) -> Reader<W> {
        self.try_open(&viewer(), what, start).await.unwrap()
    }

    async fn try_open<W: Watched>(
        &self,
        caller: &Caller,
        what: W,
        start: Start,
    ) -> Result<Reader<W>> {
        let valid = Arc::new(|| true);
        let stream = self.watches.watch(caller, what, start, valid).await?;
        Ok(Reader(stream))
    }
}

type Message<W> = Said<<W as Watched>::Item, <W as Watched>::Gone>;

struct Reader<W: Watched>(Stream<W>);

impl<W: Watched> Reader<W> {
    async fn next(&mut self) -> Message<W> {
        let next = timeout(LONG, self.0.next()).await.expect("silence");
        next.expect("the stream ended").unwrap()
    }

    async fn error(&mut self) -> Error {
        let next = timeout(LONG, self.0.next()).await.expect("silence");
        next.expect("the stream ended").unwrap_err()
    }

    async fn end(&mut self) {
        assert!(
            timeout(LONG, self.0.next())
                .await
                .expect("silence")
                .is_none()
        );
    }

    async fn synced(&mut self) -> Vec<Arc<W::Item>> {
        let mut found = Vec::new();
        loop {
            match self.next().await.event {
                Event::Snapshot(item) => found.push(item),
                Event::Synced => return found,
                early @ (Event::Changed(_)
                | Event::Left(_)
                | Event::Deleted(_)
                | Event::Progress
                | Event::Goodbye(_)) => panic!("{early:?} before the end of the list"),
            }
        }
    }
}

fn all() -> InterruptWatch {
    InterruptWatch {
        filter: Filter::default(),
    }
}

fn pending() -> InterruptWatch {
    InterruptWatch {
        filter: Filter {
            states: vec![InterruptState::Pending],
            ..Filter::default()
        },
    }
}

fn tool(name: &str) -> InterruptWatch {
    InterruptWatch {
        filter: Filter {
            tools: vec![name.to_owned()],
            ..Filter::default()
        },
    }
}

fn timeline(session: Option<&SessionRef>) -> TimelineWatch {
    TimelineWatch {
        session: session.cloned(),
        agent: None,
        user: None,
        kinds: Vec::new(),
    }
}

/// An event, shortly.
fn brief<G: std::fmt::Debug>(event: &Event<Interrupt, G>) -> (&'static str, Option<InterruptId>) {
    match event {
        Event::Snapshot(item) => ("snapshot", Some(item.id)),
        Event::Changed(item) => ("changed", Some(item.id)),
        Event::Left(item) => ("left", Some(item.id)),
        Event::Deleted(_) => ("deleted", None),
        Event::Synced => ("synced", None),
        Event::Progress => ("progress", None),
        Event::Goodbye(_) => ("goodbye", None),
    }
}

async fn cancel(world: &World, id: InterruptId) {
    let cancel = Cancel {
        interrupt: id,
        seen: None,
        comment: String::new(),
    };
    world
        .interrupts
        .cancel(&agent(), None, cancel)
        .await
        .unwrap();
}

/// Two answers in one commit.
async fn decide_both(world: &World, one: InterruptId, other: InterruptId) {
    let answers = vec![
        world.answer(one, approve()).await,
        world.answer(other, reject()).await,
    ];
    let rita = reviewer("rita");
    world.interrupts.decide(&rita, None, answers).await.unwrap();
}

#[tokio::test]
async fn what_is_there_comes_first_and_then_every_change() {
    for world in World::each() {
        let one = world.ask(may("book", "{}")).await;
        world.clock.advance(Duration::from_millis(1));
        let two = world.ask(may("pay", "{}")).await;
        let gone = world.ask(may("look", "{}")).await;
        cancel(&world, gone).await;

        let mut reader = Watching::of(&world)
            .open(pending(), Start::InitialState)
            .await;
        let found: Vec<_> = reader.synced().await.iter().map(|item| item.id).collect();
        assert_eq!(found, [one, two]);

        let three = world.ask(may("call", "{}")).await;
        world.decide(one, approve()).await;
        let said = reader.next().await;
        assert_eq!(brief(&said.event), ("changed", Some(three)));
        let said = reader.next().await;
        let Event::Left(item) = said.event else {
            panic!("{said:?}")
        };
        assert_eq!((item.id, item.state), (one, InterruptState::Resolved));
        assert_eq!(said.revision, world.revised(one).await.1);
    }
}

#[tokio::test]
async fn a_watch_cut_after_each_message_misses_nothing_and_repeats_nothing() {
    for world in World::each() {
        let mut open = Vec::new();
        for number in 0..5 {
            world.clock.advance(Duration::from_millis(1));
            open.push(world.ask(may("book", &format!("{{\"n\":{number}}}"))).await);
        }
        let base = Watching::of(&world);
        let mut whole = base.open(pending(), Start::InitialState).await;
        let first = whole.next().await;
        let mut expected = vec![(first.revision, brief(&first.event))];

        // A client that is cut off after every single message.
        let mut cursor = first.cursor.clone();
        let mut heard = vec![(first.revision, brief(&first.event))];

        // Meanwhile: commits that change one, two, or none that is watched.
        for number in 0..4 {
            open.push(world.ask(may("pay", &format!("{{\"n\":{number}}}"))).await);
            decide_both(&world, open[2 * number], open[2 * number + 1]).await;
            world.session(&format!("s{number}")).await;
            let hidden = world.ask(may("look", "{}")).await;
            cancel(&world, hidden).await;
        }
        let last = world.ask(may("last", "{}")).await;

        while expected.last().map(|(_, event)| *event) != Some(("changed", Some(last))) {
            let said = whole.next().await;
            expected.push((said.revision, brief(&said.event)));
        }
        while heard.len() < expected.len() {
            let mut cut = Watching::of(&world)
                .open(pending(), Start::Cursor(cursor))
                .await;
            let said = cut.next().await;
            heard.push((said.revision, brief(&said.event)));
            cursor = said.cursor;
        }
        assert_eq!(heard, expected);
        assert_eq!(
            expected
                .iter()
                .filter(|(_, event)| event.0 == "synced")
                .count(),
            1
        );
        assert_eq!(
            expected
                .iter()
                .filter(|(_, event)| event.0 == "left")
                .count(),
            12
        );
    }
}

#[tokio::test]
async fn a_cursor_goes_on_after_a_restart() {
    for world in World::each() {
        let one = world.ask(may("book", "{}")).await;
        let cursor = {
            let watching = Watching::of(&world);
            let mut reader = watching.open(all(), Start::InitialState).await;
            reader.synced().await;
            let two = world.ask(may("pay", "{}")).await;
            let said = reader.next().await;
            assert_eq!(brief(&said.event), ("changed", Some(two)));
            watching.drain.cancel();
            drop(reader);
            timeout(LONG, watching.watches.ended()).await.unwrap();
            said.cursor
        };
        world.decide(one, approve()).await;
        let world = world.restarted().await;
        let three = world.ask(may("call", "{}")).await;
        let mut reader = Watching::of(&world)
            .open(all(), Start::Cursor(cursor))
            .await;
        for id in [one, three] {
            assert_eq!(brief(&reader.next().await.event), ("changed", Some(id)));
        }
    }
}

#[tokio::test]
async fn commits_of_others_between_two_reads_do_not_hold_a_watch_up() {
    for world in World::each() {
        let mut reader = Watching::of(&world).open(tool("book"), Start::Now).await;
        let said = reader.next().await;
        assert_eq!(brief(&said.event), ("progress", None));
        // More than what is read at a time, and more than what is kept decoded.
        for number in 0..700 {
            world.ask(may("look", &format!("{{\"n\":{number}}}"))).await;
        }
        let id = world.ask(may("book", "{}")).await;
        assert_eq!(brief(&reader.next().await.event), ("changed", Some(id)));

        let late = Watching::of(&world);
        let mut late = late.open(tool("book"), Start::Cursor(said.cursor)).await;
        assert_eq!(brief(&late.next().await.event), ("changed", Some(id)));
    }
}

#[tokio::test]
async fn each_wrong_cursor_has_an_error_of_its_own() {
    for world in World::each() {
        world.ask(may("book", "{}")).await;
        let watching = Watching::of(&world);
        let mut reader = watching.open(all(), Start::InitialState).await;
        let cursor = reader.next().await.cursor;
        let open = async |who: Caller, what: InterruptWatch, cursor: &str| {
            let start = Start::Cursor(cursor.to_owned());
            let opened = watching.try_open(&who, what, start).await;
            opened.map(drop).map_err(|error| error.reason)
        };
        assert_eq!(open(viewer(), all(), &cursor).await, Ok(()));
        let invalid = Err(Reason::CursorInvalid);
        assert_eq!(open(viewer(), all(), "").await, invalid);
        assert_eq!(open(viewer(), all(), "garbage").await, invalid);
        let mut forged = cursor.clone().into_bytes();
        let at = forged.len() / 2;
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        assert_eq!(open(viewer(), all(), &forged).await, invalid);
        assert_eq!(open(foreigner(), all(), &cursor).await, invalid);
        let other = watching
            .try_open(&viewer(), timeline(None), Start::Cursor(cursor.clone()))
            .await;
        assert_eq!(other.map(drop).unwrap_err().reason, Reason::CursorInvalid);
        let changed = Err(Reason::CursorFilterChanged);
        assert_eq!(open(viewer(), pending(), &cursor).await, changed);
    }
}

/// A store that another identity is claimed for.
#[derive(Debug)]
struct Claimed(Arc<dyn Store>, Identity);

#[async_trait]
impl Store for Claimed {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn identity(&self) -> Identity {
        self.1.clone()
    }

    async fn execute(
        &self,
        tenant: &Tenant,
        operation: Arc<dyn ErasedOperation>,
    ) -> Result<Committed<Boxed>, Abort> {
        self.0.execute(tenant, operation).await
    }

    async fn inspect(&self, tenant: &Tenant, query: &dyn ErasedQuery) -> Result<Boxed, Abort> {
        self.0.inspect(tenant, query).await
    }

    fn commits(&self, tenant: &Tenant) -> watch::Receiver<Revision> {
        self.0.commits(tenant)
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, adjourn::storage::Error> {
        self.0.tenants().await
    }

    async fn ready(&self) -> Result<(), adjourn::storage::Error> {
        self.0.ready().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

#[tokio::test]
async fn a_restored_or_diverged_store_is_noticed() {
    for world in World::each() {
        for number in 0..3 {
            world.ask(may("book", &format!("{{\"n\":{number}}}"))).await;
        }
        let mut reader = Watching::of(&world).open(all(), Start::InitialState).await;
        reader.synced().await;
        world.ask(may("last", "{}")).await;
        let cursor = reader.next().await.cursor;
        let identity = world.engine.store().identity();
        let reopen = async |world: &World| {
            let opened = Watching::of(world)
                .try_open(&viewer(), all(), Start::Cursor(cursor.clone()))
                .await;
            opened.map(drop).map_err(|error| error.reason)
        };
        let same = Claimed(Arc::clone(world.engine.store()), identity.clone());
        assert_eq!(reopen(&world.with_store(Arc::new(same))).await, Ok(()));

        let changed = Err(Reason::CursorEpochChanged);
        let restored = Identity {
            epoch: [7; 8],
            ..identity.clone()
        };
        let restored = Claimed(Arc::clone(world.engine.store()), restored);
        assert_eq!(reopen(&world.with_store(Arc::new(restored))).await, changed);

        // An older copy that kept its identity, and then went another way.
        let clock = Arc::<super::world::HandClock>::clone(&world.clock);
        let copy = Arc::new(MemoryStore::new(clock).unwrap());
        let copy = world.with_store(Arc::new(Claimed(copy, identity)));
        assert_eq!(reopen(&copy).await, changed);
        for number in 0..9 {
            copy.ask(may("other", &format!("{{\"n\":{number}}}"))).await;
        }
        assert_eq!(reopen(&copy).await, changed);
    }
}

#[tokio::test]
async fn a_slow_reader_stalls_nobody_and_misses_nothing() {
    for world in World::each() {
        let watching = Watching::of(&world);
        let mut slow = watching.open(all(), Start::InitialState).await;
        let mut quick = watching.open(all(), Start::InitialState).await;
        slow.synced().await;
        quick.synced().await;
        let mut ids = Vec::new();
        for number in 0..600 {
            ids.push(world.ask(may("book", &format!("{{\"n\":{number}}}"))).await);
            let said = quick.next().await;
            assert_eq!(brief(&said.event), ("changed", ids.last().copied()));
        }
        for id in ids {
            assert_eq!(brief(&slow.next().await.event), ("changed", Some(id)));
        }
    }
}

#[tokio::test]
async fn an_idle_stream_says_where_it_is_beyond_what_it_filters_out() {
    for world in World::each() {
        let options = Options {
            progress: Duration::from_millis(20),
            ..Options::default()
        };
        let mut reader = Watching::with(&world, options)
            .open(tool("book"), Start::InitialState)
            .await;
        reader.synced().await;
        world.ask(may("look", "{}")).await;
        let hidden = world.ask(may("look", r#"{"again":1}"#)).await;
        let newest = world.revised(hidden).await.1;
        let said = loop {
            let said = reader.next().await;
            assert!(matches!(said.event, Event::Progress), "{said:?}");
            if said.revision >= newest {
                break said;
            }
        };
        let mut reader = Watching::of(&world)
            .open(tool("book"), Start::Cursor(said.cursor))
            .await;
        let id = world.ask(may("book", "{}")).await;
        assert_eq!(brief(&reader.next().await.event), ("changed", Some(id)));
    }
}

#[tokio::test]
async fn a_stream_says_goodbye_with_a_cursor_that_goes_on() {
    for world in World::each() {
        for drained in [true, false] {
            let options = Options {
                max_age: if drained {
                    LONG
                } else {
                    Duration::from_millis(30)
                },
                ..Options::default()
            };
            let watching = Watching::with(&world, options);
            let mut reader = watching.open(all(), Start::InitialState).await;
            reader.synced().await;
            if drained {
                watching.drain.cancel();
            }
            let said = reader.next().await;
            let Event::Goodbye(farewell) = said.event else {
                panic!("{said:?}")
            };
            let expected = if drained {
                Farewell::Drain
            } else {
                Farewell::MaxAge
            };
            assert_eq!(farewell, expected);
            reader.end().await;
            watching.drain.cancel();
            timeout(LONG, watching.watches.ended()).await.unwrap();

            let id = world
                .ask(may("book", &format!("{{\"{drained}\":1}}")))
                .await;
            let mut reader = Watching::of(&world)
                .open(all(), Start::Cursor(said.cursor))
                .await;
            assert_eq!(brief(&reader.next().await.event), ("changed", Some(id)));
        }
    }
}

#[tokio::test]
async fn a_principal_has_so_many_streams_and_no_more() {
    for world in World::each() {
        check_streams(&world).await;
    }
}

async fn check_streams(world: &World) {
    let options = Options {
        max_streams: 2,
        ..Options::default()
    };
    let watching = Watching::with(world, options);
    let open = async |name: &str| {
        let who = caller(name, &[]);
        watching.try_open(&who, all(), Start::Now).await
    };
    let one = open("one").await.unwrap();
    let _two = open("one").await.unwrap();
    let refused = open("one").await.map(drop).unwrap_err();
    assert_eq!(refused.reason, Reason::LimitExceeded);
    open("other").await.unwrap();
    drop(one);
    let freed = async {
        while open("one").await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let freed = timeout(LONG, freed).await;
    freed.expect("a stream that ended still counts");
}

#[tokio::test]
async fn the_streams_of_a_revoked_key_end() {
    for world in World::each() {
        let options = Options {
            recheck: Duration::from_millis(10),
            ..Options::default()
        };
        let watching = Watching::with(&world, options);
        let good = Arc::new(AtomicBool::new(true));
        let valid = {
            let good = Arc::clone(&good);
            Arc::new(move || good.load(Ordering::SeqCst))
        };
        let vera = viewer();
        let stream = watching
            .watches
            .watch(&vera, all(), Start::InitialState, valid);
        let mut reader = Reader::<InterruptWatch>(stream.await.unwrap());
        reader.synced().await;
        good.store(false, Ordering::SeqCst);
        assert_eq!(reader.error().await.reason, Reason::Unauthenticated);
        reader.end().await;
    }
}

#[tokio::test]
async fn a_timeline_is_watched_without_a_gap_to_the_end_of_its_session() {
    for world in World::each() {
        let (mine, other) = (world.session("mine").await, world.session("other").await);
        let id = world.ask_in(may("book", "{}"), &mine).await;
        let watching = Watching::of(&world);
        let mut one = watching
            .open(timeline(Some(&mine)), Start::InitialState)
            .await;
        let mut every = watching.open(timeline(None), Start::InitialState).await;
        let rev = |entries: Vec<Arc<Entry>>| -> Vec<i64> {
            entries.iter().map(|entry| entry.rev).collect()
        };
        assert_eq!(rev(one.synced().await), [1]);
        assert_eq!(rev(every.synced().await), [1]);

        world.ask_in(may("pay", "{}"), &other).await;
        world.decide(id, approve()).await;
        let said = one.next().await;
        let Event::Changed(entry) = said.event else {
            panic!("{said:?}")
        };
        assert_eq!((entry.rev, entry.kind), (2, EntryKind::Decision));
        let mut last = HashMap::from([(mine.clone(), 1)]);
        for _ in 0..2 {
            let said = every.next().await;
            let Event::Changed(entry) = said.event else {
                panic!("{said:?}")
            };
            let before = last.insert(entry.session.clone(), entry.rev);
            assert_eq!(entry.rev, before.unwrap_or(0) + 1);
        }
        assert_eq!(last, HashMap::from([(mine.clone(), 2), (other, 1)]));

        world.delete_session(&mine).await;
        let said = one.next().await;
        let Event::Deleted(session) = said.event else {
            panic!("{said:?}")
        };
        assert_eq!(session, mine);
    }
}

#[tokio::test]
async fn a_watch_of_some_kinds_of_entry_says_only_those() {
    for world in World::each() {
        let session = world.session("s").await;
        let what = TimelineWatch {
            kinds: vec![EntryKind::Decision],
            ..timeline(Some(&session))
        };
        let mut reader = Watching::of(&world).open(what, Start::InitialState).await;
        assert!(reader.synced().await.is_empty());
        let id = world.ask_in(may("book", "{}"), &session).await;
        world.decide(id, approve()).await;
        let said = reader.next().await;
        let Event::Changed(entry) = said.event else {
            panic!("{said:?}")
        };
        assert_eq!((entry.rev, entry.kind), (2, EntryKind::Decision));
    }
}

#[tokio::test]
async fn whoever_awaits_a_decision_hears_of_it_before_and_after() {
    for world in World::each() {
        let watching = Watching::of(&world);
        let id = world.ask(may("book", "{}")).await;
        let awaiting = async |who: Caller| {
            watching
                .watches
                .await_decision(&who, id, Arc::new(|| true))
                .await
        };
        let refused = awaiting(foreigner()).await.map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::InterruptNotFound);

        let mut early = awaiting(agent()).await.unwrap();
        let state = |awaited: Option<Result<Awaited>>| match awaited.unwrap().unwrap() {
            Awaited::State(interrupt, _) => interrupt.state,
            Awaited::Goodbye(farewell) => panic!("{farewell:?}"),
        };
        assert_eq!(state(early.next().await), InterruptState::Pending);
        world.decide(id, approve()).await;
        let next = timeout(LONG, early.next()).await.unwrap();
        assert_eq!(state(next), InterruptState::Resolved);
        assert!(early.next().await.is_none());

        let mut late = awaiting(agent()).await.unwrap();
        assert_eq!(state(late.next().await), InterruptState::Resolved);
        assert!(late.next().await.is_none());

        let id = world.ask(may("pay", "{}")).await;
        let valid = Arc::new(|| true);
        let open = watching.watches.await_decision(&agent(), id, valid).await;
        let mut open = open.unwrap();
        assert_eq!(state(open.next().await), InterruptState::Pending);
        watching.drain.cancel();
        let last = timeout(LONG, open.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(last, Awaited::Goodbye(Farewell::Drain)));
        assert!(open.next().await.is_none());
    }
}

#[tokio::test]
async fn a_poll_answers_once_it_is_decided_and_never_fails_for_want_of_time() {
    for world in World::each() {
        let world = Arc::new(world);
        let watching = Arc::new(Watching::of(&world));
        let id = world.ask(may("book", "{}")).await;
        let wait = Duration::from_millis(20);
        let found = watching.watches.poll_decision(&agent(), id, wait).await;
        assert_eq!(found.unwrap().0.state, InterruptState::Pending);

        let poll = |id| {
            let watching = Arc::clone(&watching);
            tokio::spawn(async move {
                let found = watching.watches.poll_decision(&agent(), id, LONG).await;
                found.unwrap().0.state
            })
        };
        let poller = poll(id);
        tokio::time::sleep(wait).await;
        world.decide(id, approve()).await;
        let state = timeout(LONG / 2, poller).await.unwrap().unwrap();
        assert_eq!(state, InterruptState::Resolved);

        let poller = poll(world.ask(may("pay", "{}")).await);
        tokio::time::sleep(wait).await;
        watching.drain.cancel();
        let state = timeout(LONG / 2, poller).await.unwrap().unwrap();
        assert_eq!(state, InterruptState::Pending);
    }
}

#[tokio::test]
async fn a_watch_of_an_agent_a_session_or_a_thread_is_woken_by_what_concerns_it() {
    for world in World::each() {
        let session = world.session("s").await;
        let watching = Watching::of(&world);
        let filter = |filter| InterruptWatch { filter };
        let mut by_agent = watching
            .open(
                filter(Filter {
                    agent: Some(session.agent.clone()),
                    ..Filter::default()
                }),
                Start::InitialState,
            )
            .await;
        let mut by_session = watching
            .open(
                filter(Filter {
                    session: Some("s".to_owned()),
                    ..Filter::default()
                }),
                Start::InitialState,
            )
            .await;
        let mut elsewhere = watching
            .open(
                filter(Filter {
                    session: Some("t".to_owned()),
                    ..Filter::default()
                }),
                Start::InitialState,
            )
            .await;
        for reader in [&mut by_agent, &mut by_session, &mut elsewhere] {
            assert!(reader.synced().await.is_empty());
        }
        let id = world.ask_in(may("book", "{}"), &session).await;
        for reader in [&mut by_agent, &mut by_session] {
            assert_eq!(brief(&reader.next().await.event), ("changed", Some(id)));
        }
        let silence = timeout(Duration::from_millis(50), elsewhere.0.next()).await;
        assert!(silence.is_err());
    }
}

#[tokio::test]
async fn an_interrupt_that_is_superseded_leaves_a_watch_of_pending_ones() {
    for world in World::each() {
        let keyed = |args: &str| InterruptSpec {
            dedup_key: Some("k".to_owned()),
            ..may("book", args)
        };
        let old = world.ask(keyed("{}")).await;
        let mut reader = Watching::of(&world)
            .open(pending(), Start::InitialState)
            .await;
        assert_eq!(reader.synced().await.len(), 1);
        let new = world.ask(keyed(r#"{"n":1}"#)).await;
        let mut said = [reader.next().await, reader.next().await].map(|said| brief(&said.event));
        said.sort_unstable();
        assert_eq!(said, [("changed", Some(new)), ("left", Some(old))]);
    }
}
