//! Corrupt is never missing: it is loud, names its resource, spares the rest, and
//! is overwritten by nothing.

use std::path::Path;
use std::sync::Arc;

use adjourn::domain::time::SystemClock;
use adjourn::proto::v1;
use adjourn::proto::v1::memory_service_server::MemoryService as _;
use adjourn::proto::v1::session_service_server::SessionService as _;
use adjourn::rpc::memory::MemoryApi;
use adjourn::rpc::session::SessionApi;
use adjourn::service::engine::Engine;
use adjourn::storage::Store;
use adjourn::storage::sqlite::{Options, SqliteStore};
use tempfile::TempDir;
use tonic::Code;

use crate::wire::{answer, by_agent, memory, named, reason, users};

async fn open(path: &Path) -> (SessionApi, MemoryApi, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path, &Options::default()).unwrap());
    store.ready().await.unwrap();
    let engine = Engine::new(Arc::clone(&store), Arc::new(SystemClock));
    (
        SessionApi::new(engine.clone()),
        MemoryApi::new(engine),
        store,
    )
}

fn append(id: &str) -> v1::AppendMessagesRequest {
    v1::AppendMessagesRequest {
        session: named(id),
        messages: users(&["needle"]),
        ..Default::default()
    }
}

fn load(id: &str) -> v1::LoadSessionRequest {
    v1::LoadSessionRequest {
        session: named(id),
        ..Default::default()
    }
}

/// Changes a byte of the bodies that hold `text`.
fn damage(path: &Path, table: &str, text: &str) -> usize {
    let file = rusqlite::Connection::open(path).unwrap();
    // A disk asks no trigger.
    file.execute_batch(&format!("DROP TRIGGER {table}_are_written_once"))
        .unwrap();
    let mut rows = file
        .prepare(&format!("SELECT rowid, body FROM {table}"))
        .unwrap();
    let damaged: Vec<(i64, Vec<u8>)> = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .filter_map(|(row, mut body): (i64, Vec<u8>)| {
            let at = body
                .windows(text.len())
                .position(|window| window == text.as_bytes())?;
            body[at] ^= 1;
            Some((row, body))
        })
        .collect();
    let update = format!("UPDATE {table} SET body = ?2 WHERE rowid = ?1");
    for (row, body) in &damaged {
        file.execute(&update, (row, body)).unwrap();
    }
    damaged.len()
}

#[tokio::test]
async fn a_damaged_message_is_a_loss_of_its_log_and_of_nothing_else() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("store.db");
    let (sessions, _, store) = open(&path).await;
    for id in ["broken", "whole"] {
        let mut request = append(id);
        request.messages = users(&[id]);
        answer(sessions.append_messages(by_agent(request)).await).unwrap();
    }
    store.close().await;
    drop((sessions, store));
    assert_eq!(damage(&path, "log_rows", "broken"), 1);

    let (sessions, _, store) = open(&path).await;
    let lost = sessions.load_session(by_agent(load("broken"))).await;
    let lost = lost.unwrap_err();
    assert_eq!(lost.code(), Code::DataLoss);
    assert_eq!(reason::<()>(Err(lost)), "LOG_CORRUPT");
    let whole = sessions.load_session(by_agent(load("whole"))).await;
    answer(whole).unwrap();
    // What would have to read it to replace it is refused too.
    let save = v1::SaveSessionRequest {
        session: named("broken"),
        messages: Some(v1::MessageList {
            messages: users(&["other"]),
        }),
        overwrite: true,
        ..Default::default()
    };
    let refused = sessions.save_session(by_agent(save)).await;
    assert_eq!(refused.unwrap_err().code(), Code::DataLoss);
    store.close().await;
}

#[tokio::test]
async fn a_damaged_record_is_a_loss_that_names_what_it_was() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("store.db");
    let (sessions, memories, store) = open(&path).await;
    answer(
        sessions
            .append_messages(by_agent(append("damaged-session")))
            .await,
    )
    .unwrap();
    let request = v1::AppendMemoryRequest {
        memory: memory("damaged-memory"),
        messages: users(&["a"]),
        ..Default::default()
    };
    answer(memories.append_memory(by_agent(request)).await).unwrap();
    store.close().await;
    drop((sessions, memories, store));
    assert!(damage(&path, "versions", "damaged-") >= 2);

    let (sessions, memories, store) = open(&path).await;
    let lost = sessions
        .load_session(by_agent(load("damaged-session")))
        .await;
    assert_eq!(reason(lost), "SESSION_CORRUPT");
    let lost = sessions
        .append_messages(by_agent(append("damaged-session")))
        .await;
    assert_eq!(reason(lost), "SESSION_CORRUPT");
    let request = v1::LoadMemoryRequest {
        memory: memory("damaged-memory"),
        ..Default::default()
    };
    let lost = memories.load_memory(by_agent(request)).await;
    assert_eq!(reason(lost), "MEMORY_CORRUPT");
    store.close().await;
}
