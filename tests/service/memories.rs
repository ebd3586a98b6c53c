//! What memories promise.

use std::time::Duration;

use adjourn::proto::v1;
use adjourn::proto::v1::memory_service_server::MemoryService as _;
use tonic::Status;

use crate::wire::{Wire, answer, by_agent, memory, reason, texts_of, users};

async fn append(wire: &Wire, id: &str, texts: &[&str]) -> Result<v1::AppendMemoryResponse, Status> {
    let request = v1::AppendMemoryRequest {
        memory: memory(id),
        messages: users(texts),
        ..Default::default()
    };
    answer(wire.memories.append_memory(by_agent(request)).await)
}

async fn load(wire: &Wire, id: &str) -> v1::LoadMemoryResponse {
    let request = v1::LoadMemoryRequest {
        memory: memory(id),
        ..Default::default()
    };
    answer(wire.memories.load_memory(by_agent(request)).await).unwrap()
}

fn replace(id: &str, texts: &[&str]) -> v1::ReplaceMemoryRequest {
    v1::ReplaceMemoryRequest {
        memory: memory(id),
        messages: users(texts),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_memory_that_was_never_written_is_empty_and_not_an_error() {
    for wire in Wire::each() {
        let loaded = load(&wire, "m").await;
        assert_eq!(loaded.messages, []);
        assert_eq!((loaded.etag.as_str(), loaded.last_seq), ("", 0));
        let get = v1::GetMemoryRequest {
            memory: memory("m"),
        };
        let refused = wire.memories.get_memory(by_agent(get)).await;
        assert_eq!(reason(refused), "MEMORY_NOT_FOUND");
    }
}

#[tokio::test]
async fn an_append_repeats_what_it_is_given_and_keeps_the_newest() {
    for wire in Wire::each() {
        append(&wire, "m", &["a", "b"]).await.unwrap();
        append(&wire, "m", &["a", "b", "c"]).await.unwrap();
        assert_eq!(
            texts_of(&load(&wire, "m").await.messages),
            ["a", "b", "a", "b", "c"]
        );
        let many: Vec<String> = (0..60).map(|at| at.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let appended = append(&wire, "m", &many).await.unwrap();
        assert_eq!(appended.dropped_count, 15);
        let loaded = load(&wire, "m").await;
        assert_eq!(texts_of(&loaded.messages), many[10..]);
        assert_eq!(loaded.message_count, 50);
    }
}

#[tokio::test]
async fn replacing_and_clearing_want_a_precondition_once_there_is_something() {
    for wire in Wire::each() {
        let replaced = wire
            .memories
            .replace_memory(by_agent(replace("m", &["a"])))
            .await;
        let etag = answer(replaced).unwrap().memory.unwrap().etag;
        let refused = wire
            .memories
            .replace_memory(by_agent(replace("m", &["b"])))
            .await;
        assert_eq!(reason(refused), "ALREADY_EXISTS");
        let clear = v1::ClearMemoryRequest {
            memory: memory("m"),
            ..Default::default()
        };
        let refused = wire.memories.clear_memory(by_agent(clear.clone())).await;
        assert_eq!(reason(refused), "ALREADY_EXISTS");

        let seen = v1::ReplaceMemoryRequest {
            etag,
            ..replace("m", &["b", "c"])
        };
        let replaced = wire.memories.replace_memory(by_agent(seen.clone())).await;
        let seq = answer(replaced).unwrap().memory.unwrap().last_seq;
        assert_eq!(texts_of(&load(&wire, "m").await.messages), ["b", "c"]);
        let stale = wire.memories.replace_memory(by_agent(seen)).await;
        assert_eq!(reason(stale), "ETAG_MISMATCH");

        let forced = v1::ClearMemoryRequest {
            overwrite: true,
            ..clear
        };
        answer(wire.memories.clear_memory(by_agent(forced)).await).unwrap();
        assert_eq!(load(&wire, "m").await.messages, []);
        let stale = v1::ReplaceMemoryRequest {
            base_seq: Some(seq),
            ..replace("m", &["b", "c", "d"])
        };
        let refused = wire.memories.replace_memory(by_agent(stale)).await;
        assert_eq!(reason(refused), "SEQ_MISMATCH", "clearing counts");
    }
}

#[tokio::test]
async fn pinned_messages_stay_only_where_they_are_protected() {
    for wire in Wire::each() {
        for (id, protect_pinned) in [("plain", false), ("protecting", true)] {
            let configure = v1::ConfigureMemoryRequest {
                memory: memory(id),
                settings: Some(v1::MemorySettings {
                    max_messages: Some(2),
                    protect_pinned,
                    ..Default::default()
                }),
                ..Default::default()
            };
            answer(wire.memories.configure_memory(by_agent(configure)).await).unwrap();
            let mut messages = users(&["pinned", "a", "b", "c"]);
            messages[0].pinned = Some(true);
            let request = v1::AppendMemoryRequest {
                memory: memory(id),
                messages,
                ..Default::default()
            };
            answer(wire.memories.append_memory(by_agent(request)).await).unwrap();
        }
        assert_eq!(texts_of(&load(&wire, "plain").await.messages), ["b", "c"]);
        assert_eq!(
            texts_of(&load(&wire, "protecting").await.messages),
            ["pinned", "b", "c"]
        );
    }
}

#[tokio::test]
async fn settings_that_cannot_work_or_are_not_there_yet_are_refused() {
    for wire in Wire::each() {
        let configure = |settings: v1::MemorySettings| v1::ConfigureMemoryRequest {
            memory: memory("m"),
            settings: Some(settings),
            ..Default::default()
        };
        let none = configure(v1::MemorySettings {
            max_messages: Some(0),
            ..Default::default()
        });
        let refused = wire.memories.configure_memory(by_agent(none)).await;
        assert_eq!(reason(refused), "ARGUMENT_INVALID");
        let folding = configure(v1::MemorySettings {
            compaction: Some(v1::Compaction::default()),
            ..Default::default()
        });
        let refused = wire.memories.configure_memory(by_agent(folding)).await;
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unimplemented);
        let grounded = v1::LoadMemoryRequest {
            memory: memory("m"),
            grounding: Some(v1::GroundingQuery::default()),
            ..Default::default()
        };
        let refused = wire.memories.load_memory(by_agent(grounded)).await;
        assert_eq!(reason(refused), "GROUNDING_UNAVAILABLE");
    }
}

#[tokio::test]
async fn a_deleted_memory_refuses_late_writes() {
    for wire in Wire::each() {
        append(&wire, "m", &["a"]).await.unwrap();
        let delete = v1::DeleteMemoryRequest {
            memory: memory("m"),
            ..Default::default()
        };
        let deleted = wire.memories.delete_memory(by_agent(delete.clone())).await;
        assert!(answer(deleted).unwrap().existed);
        let again = wire.memories.delete_memory(by_agent(delete)).await;
        assert!(!answer(again).unwrap().existed);
        assert_eq!(reason(append(&wire, "m", &["b"]).await), "DELETED");
        let anew = v1::ReplaceMemoryRequest {
            recreate: true,
            ..replace("m", &["b"])
        };
        answer(wire.memories.replace_memory(by_agent(anew)).await).unwrap();
        assert_eq!(texts_of(&load(&wire, "m").await.messages), ["b"]);
    }
}

#[tokio::test]
async fn memories_are_listed_by_their_last_change_and_stay_so_while_pages_are_turned() {
    for wire in Wire::each() {
        for id in ["a", "b", "c"] {
            append(&wire, id, &["x"]).await.unwrap();
            wire.world.clock.advance(Duration::from_secs(1));
        }
        append(&wire, "a", &["y"]).await.unwrap();
        let list = async |token: &str| {
            let request = v1::ListMemoriesRequest {
                page_size: 2,
                page_token: token.to_owned(),
                ..Default::default()
            };
            let page = answer(wire.memories.list_memories(by_agent(request)).await).unwrap();
            let ids: Vec<String> = page
                .memories
                .into_iter()
                .map(|memory| memory.memory.unwrap().memory_id)
                .collect();
            (ids, page.next_page_token)
        };
        let (ids, token) = list("").await;
        assert_eq!(ids, ["a", "c"]);
        append(&wire, "b", &["y"]).await.unwrap();
        assert_eq!(list(&token).await, (vec!["b".to_owned()], String::new()));
        assert_eq!(
            list("").await.0,
            ["a", "b"],
            "changed at one time, so by id"
        );
    }
}

#[tokio::test]
async fn settings_have_an_etag_of_their_own() {
    for wire in Wire::each() {
        let made = append(&wire, "m", &["a", "b", "c"])
            .await
            .unwrap()
            .memory
            .unwrap();
        let configure = |max_messages: i32, settings_etag: &str| v1::ConfigureMemoryRequest {
            memory: memory("m"),
            settings: Some(v1::MemorySettings {
                max_messages: Some(max_messages),
                ..Default::default()
            }),
            settings_etag: settings_etag.to_owned(),
            ..Default::default()
        };
        append(&wire, "m", &["d"]).await.unwrap();
        let wide = by_agent(configure(10, &made.settings_etag));
        let wide = answer(wire.memories.configure_memory(wide).await)
            .unwrap()
            .memory
            .unwrap();
        assert_eq!(wide.etag, load(&wire, "m").await.etag);
        assert_ne!(wide.settings_etag, made.settings_etag);
        let stale = by_agent(configure(2, &made.settings_etag));
        assert_eq!(
            reason(wire.memories.configure_memory(stale).await),
            "ETAG_MISMATCH"
        );
        let narrow = by_agent(configure(2, &wide.settings_etag));
        let narrow = answer(wire.memories.configure_memory(narrow).await)
            .unwrap()
            .memory
            .unwrap();
        assert_ne!(narrow.etag, wide.etag, "messages left the window");
        assert_eq!(texts_of(&load(&wire, "m").await.messages), ["c", "d"]);
    }
}
