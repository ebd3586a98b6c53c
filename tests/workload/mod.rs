//! What a store does all day, and how to tell whether it kept its word: shared by
//! the tests that cut the power, kill the process and fill the disk.
//!
//! Callers append to accounts of several tenants, each commit with items, at times
//! a large cell, a timeline entry and a request record. After a crash everything
//! acknowledged has to be there whole, and of everything else all or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use adjourn::domain::id::Tenant;
use adjourn::domain::log::{Cell, Digest, Head, LogId, Origin, RowClass};
use adjourn::domain::message::{Content, Item, Message, Role};
use adjourn::domain::revision::{Revision, Stamp};
use adjourn::storage::typed::{self, ChangeSet, EncodedItem, Loaded};
use adjourn::storage::{
    Abort, Changes, Direction, Entity, Index, IndexEntry, Key, Kind, Operation, Query, Reads,
    Result, Store, Stretch, integrity,
};
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use uuid::Uuid;

const TENANTS: usize = 3;
const ACCOUNTS: usize = 5;

/// What is appended to.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Account {
    name: String,
    head: Head,
    /// How often it was appended to.
    turn: i64,
    /// The request that did so last.
    request: String,
    blob: Option<Cell>,
    etag: Stamp,
}

impl Entity for Account {
    const KIND: Kind = Kind::Session;

    fn key(&self) -> Key {
        Key::of(&[self.name.as_bytes()])
    }

    fn resolve(&mut self, stored: Revision) {
        self.etag.resolve(stored);
    }

    fn index(&self) -> Vec<IndexEntry> {
        // Changes with each commit, so that entries come and go.
        vec![IndexEntry {
            index: Index::SessionSaved,
            place: format!("{:08} {}", self.turn, self.name).into(),
        }]
    }
}

/// A line of an account's timeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    account: String,
    turn: i64,
}

impl Entity for Line {
    const KIND: Kind = Kind::TimelineEntry;

    fn key(&self) -> Key {
        Key::of(&[self.account.as_bytes(), &self.turn.to_be_bytes()])
    }

    fn resolve(&mut self, _stored: Revision) {}

    fn index(&self) -> Vec<IndexEntry> {
        Vec::new()
    }
}

/// What is kept of a request, and acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    account: String,
    turn: i64,
    first_seq: i64,
    last_seq: i64,
}

/// One turn of a conversation.
#[derive(Debug)]
struct Append {
    account: String,
    request: String,
    items: Vec<EncodedItem>,
    blob: Option<Bytes>,
}

fn message(text: String) -> Item {
    Item::Message(Message {
        id: None,
        role: Role::User,
        content: Content::Text(text),
        name: None,
        tool_call_id: None,
        tool_name: None,
        pinned: None,
        created_at: None,
        extra_json: None,
    })
}

fn text(request: &str, number: usize) -> String {
    let seed = request
        .bytes()
        .fold(7_usize, |sum, byte| sum * 31 % 65_521 + usize::from(byte));
    // Most are small; one in eleven spills into pages of its own.
    let repeat = if seed.is_multiple_of(11) {
        900
    } else {
        1 + seed % 40
    };
    format!("{number} of {request}; ").repeat(repeat)
}

impl Append {
    fn new(account: String, request: String) -> Self {
        let count = 1 + request.len() % 2;
        let items = (0..count).map(|number| EncodedItem::new(&message(text(&request, number))));
        let blob = request.ends_with('3').then(|| text(&request, 99).into());
        Self {
            items: items.collect::<Result<_>>().unwrap(),
            blob,
            account,
            request,
        }
    }
}

#[async_trait]
impl Operation for Append {
    type Output = Receipt;

    async fn run(&self, reads: &mut dyn Reads) -> Result<(Changes, Receipt), Abort> {
        let key = Key::of(&[self.account.as_bytes()]);
        let mut account = match typed::load::<Account>(reads, &key).await? {
            Some(account) => account,
            None => Loaded::fresh(Account {
                name: self.account.clone(),
                head: Head::new(LogId(log_id(reads.tenant(), &self.account))),
                turn: 0,
                request: String::new(),
                blob: None,
                etag: Stamp::THIS_COMMIT,
            }),
        };
        let mut changes = ChangeSet::new(reads.tenant());
        let first_seq = account.value.head.last_seq + 1;
        for item in &self.items {
            changes.append_item(&mut account.value.head, Origin::Said, item);
        }
        if let Some(blob) = &self.blob {
            let Account {
                head, blob: before, ..
            } = &mut account.value;
            *before = Some(changes.write_cell(head, "blob", blob, before.as_ref()));
        }
        account.value.turn += 1;
        account.value.request.clone_from(&self.request);
        account.value.etag = Stamp::THIS_COMMIT;
        changes.update(&account)?;
        changes.insert(&Line {
            account: self.account.clone(),
            turn: account.value.turn,
        })?;
        let receipt = Receipt {
            account: self.account.clone(),
            turn: account.value.turn,
            first_seq,
            last_seq: account.value.head.last_seq,
        };
        let body = serde_json::to_vec(&receipt).unwrap();
        changes.record_request(request_key(&self.request), body.into());
        Ok((changes.finish(), receipt))
    }
}

fn request_key(request: &str) -> Key {
    Key::of(&[request.as_bytes()])
}

fn log_id(tenant: &Tenant, account: &str) -> Uuid {
    let digest = integrity::content_digest(format!("{tenant:?} {account}").as_bytes());
    Uuid::from_bytes(digest.0)
}

fn tenant(number: usize) -> Tenant {
    Tenant::try_from(format!("tenant-{number}")).unwrap()
}

/// A request that was answered, as a line.
#[derive(Debug, Serialize, Deserialize)]
struct Ack {
    tenant: Tenant,
    request: String,
    revision: Revision,
    receipt: Receipt,
}

/// Lets `callers` work at once, each for `rounds` requests, and acknowledges each
/// as a line. `run` tells this run's requests from those of others.
///
/// A caller that fails stops; the first failure is answered once all have stopped.
pub(crate) async fn work(
    store: &Arc<dyn Store>,
    run: &str,
    (callers, rounds): (usize, usize),
    ack: impl Fn(String) + Clone + Send + 'static,
) -> Result<(), Abort> {
    let mut calls = JoinSet::new();
    for caller in 0..callers {
        let (store, ack) = (Arc::clone(store), ack.clone());
        let run = run.to_owned();
        calls.spawn(async move {
            for round in 0..rounds {
                let request = format!("{run}-{caller}-{round}");
                let account = format!("account-{}", (caller + round) % ACCOUNTS);
                let tenant = tenant(caller % TENANTS);
                let committed = store
                    .transact(&tenant, Append::new(account, request.clone()))
                    .await?;
                let line = serde_json::to_string(&Ack {
                    tenant,
                    request,
                    revision: committed.revision,
                    receipt: committed.output,
                });
                ack(line.unwrap());
            }
            Ok(())
        });
    }
    let mut outcome = Ok(());
    while let Some(caller) = calls.join_next().await {
        outcome = outcome.and(caller.unwrap());
    }
    outcome
}

/// Says what is wrong with a store of which `acked` were acknowledged.
pub(crate) async fn verify(store: &Arc<dyn Store>, acked: &[String]) -> Result<(), String> {
    let mut by_tenant: BTreeMap<Tenant, Vec<Ack>> = BTreeMap::new();
    for line in acked {
        let ack: Ack = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        by_tenant.entry(ack.tenant.clone()).or_default().push(ack);
    }
    let stored = store.tenants().await.map_err(|error| error.to_string())?;
    for tenant in stored {
        by_tenant.entry(tenant).or_default();
    }
    for (tenant, acked) in by_tenant {
        store
            .read(&tenant, Check(acked))
            .await
            .map_err(|abort| abort.to_string())?
            .map_err(|wrong| format!("{}: {wrong}", tenant.as_str()))?;
    }
    Ok(())
}

/// Goes through all that a tenant has.
#[derive(Debug)]
struct Check(Vec<Ack>);

/// What [`Check`] found out about an account: its newest version.
type Accounts = BTreeMap<String, (Revision, Account)>;

#[async_trait]
impl Query for Check {
    type Output = Result<(), String>;

    async fn run(&self, reads: &mut dyn Reads) -> Result<Self::Output, Abort> {
        let accounts = match whole_commits(reads).await? {
            Ok(accounts) => accounts,
            Err(wrong) => return Ok(Err(wrong)),
        };
        for (revision, account) in accounts.values() {
            if let Err(wrong) = whole_account(reads, *revision, account).await? {
                return Ok(Err(format!("{}: {wrong}", account.name)));
            }
        }
        for ack in &self.0 {
            if let Err(wrong) = kept(reads, ack).await? {
                return Ok(Err(format!("{} was acknowledged: {wrong}", ack.request)));
            }
        }
        Ok(Ok(()))
    }
}

/// The feed is whole from the first commit to the last, and each commit has all
/// that belongs to it.
async fn whole_commits(reads: &mut dyn Reads) -> Result<Result<Accounts, String>, Abort> {
    let tenant = reads.tenant().clone();
    let newest = reads.revision().await?;
    let mut chain = Digest::default();
    let mut seen = Revision::ZERO;
    let mut accounts = Accounts::new();
    loop {
        let page = reads.feed(&Kind::ALL, seen, Revision::LATEST, 500).await?;
        let Some(last) = page.last() else { break };
        let last = last.version.revision;
        chain = integrity::check_feed(&tenant, chain, &page)?;
        for commit in page.chunk_by(|a, b| a.version.revision == b.version.revision) {
            let revision = seen.next();
            let [session, line] = commit else {
                return Ok(Err(format!(
                    "commit {revision} has {} changes",
                    commit.len()
                )));
            };
            if session.version.revision != revision || line.kind != Kind::TimelineEntry {
                return Ok(Err(format!("commit {revision} is not there, or not whole")));
            }
            seen = revision;
            let account = typed::decode::<Account>(&tenant, &session.key, &session.version)?.value;
            let line = typed::decode::<Line>(&tenant, &line.key, &line.version)?.value;
            let before = accounts
                .get(&account.name)
                .map_or(0, |(_, before)| before.turn);
            if account.turn != before + 1 || line.turn != account.turn {
                return Ok(Err(format!(
                    "commit {revision} does not follow turn {before}"
                )));
            }
            let request = typed::request(reads, &request_key(&account.request)).await?;
            if request.is_none_or(|request| request.revision != revision) {
                return Ok(Err(format!("commit {revision} has no request")));
            }
            accounts.insert(account.name.clone(), (revision, account));
        }
        if seen != last {
            return Ok(Err(format!("a page ends at {last}, not at {seen}")));
        }
    }
    if seen != newest || reads.chain(newest).await?.unwrap_or_default() != chain {
        return Ok(Err(format!("the feed ends at {seen}, not at {newest}")));
    }
    Ok(Ok(accounts))
}

/// The current version is the newest one, it is found where it should be and only
/// there, and the log has its rows, and no more.
async fn whole_account(
    reads: &mut dyn Reads,
    revision: Revision,
    account: &Account,
) -> Result<Result<(), String>, Abort> {
    let current = typed::load::<Account>(reads, &account.key()).await?;
    if current.is_none_or(|current| current.revision != revision) {
        return Ok(Err("the current version is not the newest one".into()));
    }
    let everywhere = Stretch {
        prefix: Bytes::new(),
        after: None,
        direction: Direction::Forward,
        limit: usize::MAX,
    };
    let hits = reads.index(Index::SessionSaved, &everywhere).await?;
    let places: Vec<_> = hits.iter().filter(|hit| hit.key == account.key()).collect();
    if places.len() != 1
        || places
            .iter()
            .any(|hit| hit.place != account.index()[0].place)
    {
        return Ok(Err(format!("it is indexed at {places:?}")));
    }
    let head = &account.head;
    for (class, last) in [
        (RowClass::Item, head.last_seq),
        (RowClass::Cell, head.last_cell),
        (RowClass::Node, head.last_node),
    ] {
        let rows = reads.rows(head.log, class, i64::MIN, i64::MAX).await?;
        let mut chain = Digest::default();
        for (row, expected) in rows.iter().zip(1..) {
            integrity::check_row(reads.tenant(), head.log, class, row)?;
            chain = integrity::log_chain(chain, row.digest);
            if row.number != expected || (class == RowClass::Item && row.chain != chain) {
                return Ok(Err(format!("{class:?} {expected} is not there")));
            }
        }
        let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        if count != last || (class == RowClass::Item && chain != head.chain) {
            return Ok(Err(format!("{count} rows of {class:?}, not {last}")));
        }
    }
    Ok(Ok(()))
}

/// What was acknowledged is there as it was acknowledged.
async fn kept(reads: &mut dyn Reads, ack: &Ack) -> Result<Result<(), String>, Abort> {
    let Some(request) = typed::request(reads, &request_key(&ack.request)).await? else {
        return Ok(Err("its request is gone".into()));
    };
    let receipt: Receipt = serde_json::from_slice(&request.body).unwrap();
    if receipt != ack.receipt || request.revision != ack.revision {
        return Ok(Err(format!("its request says {receipt:?}")));
    }
    let key = Key::of(&[receipt.account.as_bytes()]);
    let Some(account) = typed::load_at::<Account>(reads, &key, ack.revision).await? else {
        return Ok(Err("its account is gone".into()));
    };
    if account.revision != ack.revision || account.value.turn != receipt.turn {
        return Ok(Err(format!("its version is at {}", account.revision)));
    }
    let history = account.value.head.history();
    let from = u64::try_from(receipt.first_seq - 1).unwrap_or(0);
    let items = typed::items(reads, &history, from, history.len()).await?;
    for (number, item) in items.iter().enumerate() {
        let Item::Message(message) = &item.item else {
            return Ok(Err("an item is no message".into()));
        };
        if message.content != Content::Text(text(&ack.request, number)) {
            return Ok(Err(format!("item {number} is another one")));
        }
    }
    if items.is_empty() || history.tail.to != receipt.last_seq {
        return Ok(Err(format!("its history has {} items of it", items.len())));
    }
    Ok(Ok(()))
}
