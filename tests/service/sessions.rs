//! What saves, loads, appends and lists promise.

use adjourn::proto::v1;
use adjourn::proto::v1::load_session_response::RestoredFrom;
use adjourn::proto::v1::memory_service_server::MemoryService as _;
use adjourn::proto::v1::session_service_server::SessionService as _;
use std::time::Duration;

use crate::wire::{
    Wire, answer, by, by_agent, fact, list, memory, named, reason, request_id, system, texts_of,
    user, users, with_id,
};
use crate::world::{agent, foreigner, viewer};

fn state(entries: &[(&str, &str)]) -> Option<v1::StateUpdate> {
    Some(v1::StateUpdate {
        entries: entries
            .iter()
            .map(|(key, value_json)| v1::StateEntry {
                key: (*key).to_owned(),
                value_json: (*value_json).to_owned(),
            })
            .collect(),
        ..Default::default()
    })
}

fn plugins(states: &[(&str, &str)]) -> Option<v1::PluginStates> {
    Some(v1::PluginStates {
        plugin_states: states
            .iter()
            .map(|(name, value_json)| v1::PluginState {
                name: (*name).to_owned(),
                value_json: (*value_json).to_owned(),
            })
            .collect(),
    })
}

fn save(id: &str) -> v1::SaveSessionRequest {
    v1::SaveSessionRequest {
        session: named(id),
        overwrite: true,
        ..Default::default()
    }
}

fn append(id: &str, texts: &[&str]) -> v1::AppendMessagesRequest {
    v1::AppendMessagesRequest {
        session: named(id),
        messages: users(texts),
        ..Default::default()
    }
}

fn full(id: &str) -> v1::SaveSessionRequest {
    v1::SaveSessionRequest {
        messages: list(users(&["a", "b"])),
        state: state(&[("k", "1"), ("l", "[1.0]")]),
        system_prompt: Some("be kind".to_owned()),
        instructions: Some("be brief".to_owned()),
        plugin_states: plugins(&[("working_memory", r#"{"version":1,"entries":[{},{}]}"#)]),
        pending_input: list(users(&["and?"])),
        state_metadata_json: Some(r#"{"a":1}"#.to_owned()),
        format_version: Some(3),
        evidence_scope_digest: Some("e".to_owned()),
        task_scope_digest: Some("t".to_owned()),
        listing: Some(v1::ListingMetadata {
            title: Some("A title".to_owned()),
            description: Some("About".to_owned()),
            tags: Some(v1::TagList {
                tags: vec!["x".to_owned()],
            }),
            extra_json: Some(r#"{"colour":"red"}"#.to_owned()),
        }),
        ..save(id)
    }
}

#[tokio::test]
async fn a_save_keeps_what_is_absent_and_empties_what_is_present_and_empty() {
    for wire in Wire::each() {
        wire.save(full("s")).await.unwrap();
        let before = wire.load("s").await;

        let kept = wire.save(save("s")).await.unwrap().session.unwrap();
        let after = wire.load("s").await;
        assert_eq!(before.data, after.data);
        assert_eq!(kept.etag, before.session.as_ref().unwrap().etag);
        assert_eq!(kept.working_memory_count, 2);
        assert!(kept.has_pending_input);

        let empty = v1::SaveSessionRequest {
            messages: list(Vec::new()),
            state: state(&[]),
            system_prompt: Some(String::new()),
            instructions: Some(String::new()),
            plugin_states: plugins(&[]),
            pending_input: list(Vec::new()),
            state_metadata_json: Some(String::new()),
            ..save("s")
        };
        let emptied = wire.save(empty).await.unwrap().session.unwrap();
        let data = wire.load("s").await.data.unwrap();
        assert_eq!(data.messages, list(Vec::new()));
        assert_eq!(data.state.unwrap().entries, []);
        assert_eq!(data.system_prompt.unwrap_or_default(), "");
        assert_eq!(data.instructions.unwrap_or_default(), "");
        assert_eq!(data.plugin_states.unwrap().plugin_states, []);
        assert_eq!(data.pending_input, list(Vec::new()));
        assert_eq!(data.state_metadata_json, None);
        assert_eq!(data.format_version, Some(3));
        assert_eq!(emptied.working_memory_count, 0);
        assert!(!emptied.has_pending_input);
        assert_eq!(emptied.listing, before.session.unwrap().listing);
    }
}

#[tokio::test]
async fn what_was_saved_comes_back_byte_for_byte() {
    let odd_numbers = r#"{"big": 9007199254740993, "one":1.0,"zero" :-0, "e":1E400}"#;
    let blocks = vec![
        v1::Block {
            kind: Some(v1::block::Kind::Reasoning("hm".to_owned())),
            extra_json: Some(r#"{ "signature":"abc" }"#.to_owned()),
        },
        v1::Block {
            kind: Some(v1::block::Kind::ToolCall(v1::ToolCall {
                id: "call".to_owned(),
                name: "book".to_owned(),
                args_json: Some(odd_numbers.to_owned()),
            })),
            extra_json: None,
        },
        v1::Block {
            kind: Some(v1::block::Kind::NonStandardJson(
                "[ 1, \"\\u00e9\" ]".to_owned(),
            )),
            extra_json: None,
        },
        v1::Block {
            kind: Some(v1::block::Kind::Image(v1::Media {
                url: Some("https://example.org/p.png".to_owned()),
                mime_type: Some("image/png".to_owned()),
                ..Default::default()
            })),
            extra_json: None,
        },
    ];
    let sent = vec![
        v1::Message {
            id: Some("m-1".to_owned()),
            role: v1::message::Role::Assistant.into(),
            content: Some(v1::message::Content::Blocks(v1::Blocks { blocks })),
            name: Some("Ann".to_owned()),
            pinned: Some(false),
            created_at: Some(prost_types::Timestamp {
                seconds: 1_600_000_000,
                nanos: 123_456_000,
            }),
            extra_json: Some(odd_numbers.to_owned()),
            ..Default::default()
        },
        v1::Message {
            content: Some(v1::message::Content::NonStandardJson(
                r#"{"type":"compaction",  "z":null}"#.to_owned(),
            )),
            ..Default::default()
        },
        v1::Message {
            role: v1::message::Role::Tool.into(),
            content: Some(v1::message::Content::Blocks(v1::Blocks::default())),
            tool_call_id: Some("call".to_owned()),
            tool_name: Some("book".to_owned()),
            ..Default::default()
        },
    ];
    for wire in Wire::each() {
        wire.save(v1::SaveSessionRequest {
            messages: list(sent.clone()),
            state: state(&[("k", odd_numbers)]),
            ..save("s")
        })
        .await
        .unwrap();
        let data = wire.load("s").await.data.unwrap();
        let got = data.messages.unwrap().messages;
        for ((index, sent), got) in (0..).zip(&sent).zip(&got) {
            let wanted = v1::Message {
                seq: i64::from(index) + 1,
                index,
                origin: v1::message::Origin::Said.into(),
                created_at: sent.created_at.or(got.created_at),
                ..sent.clone()
            };
            assert_eq!(*got, wanted);
            assert!(got.created_at.is_some());
        }
        assert_eq!(got.len(), sent.len());
        assert_eq!(data.state.unwrap().entries[0].value_json, odd_numbers);
    }
}

#[tokio::test]
async fn saving_the_whole_history_a_hundred_times_stores_each_message_once() {
    for wire in Wire::each() {
        let mut history = Vec::new();
        for turn in 0..100 {
            history.push(user(&format!("message {turn}")));
            let saved = wire
                .save(v1::SaveSessionRequest {
                    messages: list(history.clone()),
                    ..save("s")
                })
                .await
                .unwrap();
            assert_eq!(saved.written_count, 1);
            assert_eq!(saved.matched_count, turn);
            assert_eq!(saved.session.unwrap().last_seq, i64::from(turn) + 1);
        }
        assert_eq!(wire.said("s").await.len(), 100);
    }
}

#[tokio::test]
async fn an_edit_under_a_known_id_keeps_the_time_and_the_rows_around_it() {
    for wire in Wire::each() {
        let history = |second: &str| {
            vec![
                with_id("1", user("a")),
                with_id("2", user(second)),
                with_id("3", user("c")),
            ]
        };
        wire.save(v1::SaveSessionRequest {
            messages: list(history("b")),
            ..save("s")
        })
        .await
        .unwrap();
        let said_at = wire
            .load("s")
            .await
            .data
            .unwrap()
            .messages
            .unwrap()
            .messages[1]
            .created_at;
        wire.world.clock.advance(Duration::from_secs(60));

        let saved = wire
            .save(v1::SaveSessionRequest {
                messages: list(history("B")),
                ..save("s")
            })
            .await
            .unwrap();
        assert_eq!((saved.matched_count, saved.written_count), (2, 1));
        let messages = wire
            .load("s")
            .await
            .data
            .unwrap()
            .messages
            .unwrap()
            .messages;
        assert_eq!(texts_of(&messages), ["a", "B", "c"]);
        let seqs: Vec<_> = messages.iter().map(|message| message.seq).collect();
        assert_eq!(seqs, [1, 4, 3]);
        assert_eq!(messages[1].origin, i32::from(v1::message::Origin::Edit));
        assert_eq!(messages[1].created_at, said_at);

        // What follows an edit is appended after it.
        wire.append(append("s", &["d"])).await.unwrap();
        assert_eq!(wire.said("s").await, ["a", "B", "c", "d"]);
    }
}

#[tokio::test]
async fn a_history_with_hundreds_of_edits_stays_readable() {
    for wire in Wire::each() {
        let history = |edited: usize| -> Vec<v1::Message> {
            (0..700)
                .map(|at| {
                    let text = if at % 2 == 0 && at < edited {
                        format!("edited {at}")
                    } else {
                        format!("said {at}")
                    };
                    with_id(&at.to_string(), user(&text))
                })
                .collect()
        };
        for edited in [0, 300, 700] {
            wire.save(v1::SaveSessionRequest {
                messages: list(history(edited)),
                ..save("s")
            })
            .await
            .unwrap();
            assert_eq!(wire.said("s").await, texts_of(&history(edited)));
        }
    }
}

#[tokio::test]
async fn a_shortened_history_moves_last_seq_so_that_a_stale_base_is_noticed() {
    for wire in Wire::each() {
        wire.append(append("s", &["a", "b"])).await.unwrap();
        wire.save(v1::SaveSessionRequest {
            messages: list(users(&["a"])),
            ..save("s")
        })
        .await
        .unwrap();
        let stale = v1::SaveSessionRequest {
            messages: list(users(&["a", "b", "c"])),
            overwrite: false,
            base_seq: Some(2),
            ..save("s")
        };
        assert_eq!(reason(wire.save(stale).await), "SEQ_MISMATCH");
        assert_eq!(wire.said("s").await, ["a"]);
    }
}

#[tokio::test]
async fn of_two_writers_that_saw_the_same_the_second_is_told() {
    for wire in Wire::each() {
        let first = wire.append(append("s", &["a"])).await.unwrap();
        let seen = first.session.unwrap();
        let next = |text: &str| v1::AppendMessagesRequest {
            expected_last_seq: Some(seen.last_seq),
            ..append("s", &[text])
        };
        wire.append(next("b")).await.unwrap();
        let refused = wire.append(next("c")).await.unwrap_err();
        assert_eq!(fact(&refused, "last_seq").as_deref(), Some("2"));
        assert_eq!(reason::<()>(Err(refused)), "SEQ_MISMATCH");

        let stale = v1::SaveSessionRequest {
            messages: list(users(&["z"])),
            etag: seen.etag.clone(),
            overwrite: false,
            ..save("s")
        };
        assert_eq!(reason(wire.save(stale).await), "ETAG_MISMATCH");
        assert_eq!(wire.said("s").await, ["a", "b"]);

        let forced = v1::SaveSessionRequest {
            messages: list(users(&["z"])),
            ..save("s")
        };
        wire.save(forced).await.unwrap();
        assert_eq!(wire.said("s").await, ["z"]);
    }
}

#[tokio::test]
async fn a_replacement_that_names_no_precondition_only_makes_what_is_absent() {
    for wire in Wire::each() {
        let bare = v1::SaveSessionRequest {
            session: named("s"),
            messages: list(users(&["a"])),
            ..Default::default()
        };
        wire.save(bare.clone()).await.unwrap();
        assert_eq!(reason(wire.save(bare).await), "ALREADY_EXISTS");
        let prompt = v1::SaveSessionRequest {
            session: named("s"),
            system_prompt: Some("be kind".to_owned()),
            ..Default::default()
        };
        wire.save(prompt).await.unwrap();
        assert_eq!(wire.said("s").await, ["a"]);
    }
}

#[tokio::test]
async fn a_request_id_gives_the_first_answer_again_and_no_other_command_may_use_it() {
    for wire in Wire::each() {
        let once = v1::AppendMessagesRequest {
            request_id: request_id(1),
            ..append("s", &["a"])
        };
        let first = wire.append(once.clone()).await.unwrap();
        wire.append(append("s", &["b"])).await.unwrap();
        let again = wire.append(once.clone()).await.unwrap();
        assert_eq!(first, again);
        assert_eq!(wire.said("s").await, ["a", "b"]);

        let other = v1::AppendMessagesRequest {
            messages: users(&["c"]),
            ..once
        };
        assert_eq!(reason(wire.append(other).await), "REQUEST_ID_REUSED");

        let unnamed = v1::SaveSessionRequest {
            messages: list(users(&["x"])),
            request_id: request_id(2),
            ..save("")
        };
        let first = wire.save(unnamed.clone()).await.unwrap();
        let again = wire.save(unnamed).await.unwrap();
        assert_eq!(first, again);
        assert_ne!(first.session.unwrap().session.unwrap().session_id, "");
    }
}

#[tokio::test]
async fn ids_that_differ_only_in_case_or_user_never_share_data() {
    for wire in Wire::each() {
        let of_user = |user: Option<&str>| {
            Some(v1::SessionRef {
                user_id: user.map(str::to_owned),
                ..named("s").unwrap()
            })
        };
        for (session, text) in [
            (named("s"), "lower"),
            (named("S"), "upper"),
            (of_user(Some("u")), "user"),
            (of_user(Some("U")), "another user"),
        ] {
            wire.append(v1::AppendMessagesRequest {
                session,
                ..append("", &[text])
            })
            .await
            .unwrap();
        }
        assert_eq!(wire.said("s").await, ["lower"]);
        assert_eq!(wire.said("S").await, ["upper"]);
        let request = v1::LoadSessionRequest {
            session: of_user(Some("u")),
            ..Default::default()
        };
        let loaded = answer(wire.sessions.load_session(by_agent(request)).await).unwrap();
        let messages = loaded.data.unwrap().messages.unwrap().messages;
        assert_eq!(texts_of(&messages), ["user"]);
    }
}

#[tokio::test]
async fn a_deleted_session_refuses_late_writes_and_is_made_anew_on_purpose() {
    for wire in Wire::each() {
        let before = wire.append(append("s", &["a"])).await.unwrap();
        let delete = v1::DeleteSessionRequest {
            session: named("s"),
            ..Default::default()
        };
        let deleted = wire.sessions.delete_session(by_agent(delete.clone())).await;
        assert!(answer(deleted).unwrap().existed);
        let again = wire.sessions.delete_session(by_agent(delete)).await;
        assert!(!answer(again).unwrap().existed);

        let get = v1::GetSessionRequest {
            session: named("s"),
        };
        let got = wire.sessions.get_session(by_agent(get)).await;
        assert_eq!(reason(got), "SESSION_NOT_FOUND");
        assert_eq!(wire.load("s").await.restored_from(), RestoredFrom::New);
        assert_eq!(reason(wire.append(append("s", &["b"])).await), "DELETED");

        let anew = v1::AppendMessagesRequest {
            recreate: true,
            ..append("s", &["b"])
        };
        let anew = wire.append(anew).await.unwrap().session.unwrap();
        assert_eq!(wire.said("s").await, ["b"]);
        assert_eq!(anew.last_seq, 1);
        let etag = before.session.unwrap().etag;
        assert_ne!(anew.etag, etag);
        let stale = v1::AppendMessagesRequest {
            etag,
            ..append("s", &["c"])
        };
        assert_eq!(reason(wire.append(stale).await), "ETAG_MISMATCH");
    }
}

#[tokio::test]
async fn a_tombstone_lasts_thirty_days() {
    for wire in Wire::each() {
        wire.append(append("s", &["a"])).await.unwrap();
        let delete = v1::DeleteSessionRequest {
            session: named("s"),
            ..Default::default()
        };
        answer(wire.sessions.delete_session(by_agent(delete)).await).unwrap();
        wire.world.clock.advance(Duration::from_hours(30 * 24 - 1));
        assert_eq!(reason(wire.append(append("s", &["b"])).await), "DELETED");
        wire.world.clock.advance(Duration::from_hours(1));
        wire.append(append("s", &["b"])).await.unwrap();
        assert_eq!(wire.said("s").await, ["b"]);
    }
}

#[tokio::test]
async fn a_list_shows_what_it_showed_on_its_first_page_whatever_is_written_meanwhile() {
    for wire in Wire::each() {
        for id in ["a", "b", "c", "d", "e"] {
            wire.append(append(id, &["hello"])).await.unwrap();
            wire.world.clock.advance(Duration::from_secs(1));
        }
        let page = async |token: &str| {
            let request = v1::ListSessionsRequest {
                page_size: 2,
                page_token: token.to_owned(),
                ..Default::default()
            };
            let page = answer(wire.sessions.list_sessions(by_agent(request)).await).unwrap();
            let ids: Vec<String> = page
                .sessions
                .iter()
                .map(|session| session.session.as_ref().unwrap().session_id.clone())
                .collect();
            (ids, page.next_page_token, page.sessions)
        };
        let (ids, token, _) = page("").await;
        assert_eq!(ids, ["e", "d"]);

        wire.append(append("b", &["again"])).await.unwrap();
        wire.append(append("new", &["hello"])).await.unwrap();
        let delete = v1::DeleteSessionRequest {
            session: named("a"),
            ..Default::default()
        };
        answer(wire.sessions.delete_session(by_agent(delete)).await).unwrap();

        let retitle = v1::UpdateSessionRequest {
            session: named("c"),
            listing: Some(v1::ListingMetadata {
                title: Some("Later".to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        };
        answer(wire.sessions.update_session(by_agent(retitle)).await).unwrap();

        let (ids, token, sessions) = page(&token).await;
        assert_eq!(ids, ["c", "b"]);
        assert_eq!(sessions[0].listing.as_ref().unwrap().title, None);
        assert_eq!(sessions[1].message_count, 1, "as it was then");
        let (ids, token, _) = page(&token).await;
        assert_eq!(ids, ["a"]);
        assert_eq!(token, "");
        let (ids, ..) = page("").await;
        assert_eq!(ids, ["b", "new"], "saved at one time, so by id");
    }
}

#[tokio::test]
async fn lists_are_filtered_by_what_they_show() {
    for wire in Wire::each() {
        let listed = |id: &str, title: &str, tags: &[&str]| v1::SaveSessionRequest {
            listing: Some(v1::ListingMetadata {
                title: Some(title.to_owned()),
                tags: Some(v1::TagList {
                    tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
                }),
                ..Default::default()
            }),
            ..save(id)
        };
        wire.save(listed("a", "Flight to Oslo", &["travel", "air"]))
            .await
            .unwrap();
        wire.world.clock.advance(Duration::from_secs(10));
        wire.save(listed("b", "Train to oslo", &["travel"]))
            .await
            .unwrap();
        wire.save(listed("c", "Groceries", &["home"]))
            .await
            .unwrap();
        let ids = async |request: v1::ListSessionsRequest| {
            let page = answer(wire.sessions.list_sessions(by_agent(request)).await).unwrap();
            let mut ids: Vec<String> = page
                .sessions
                .into_iter()
                .map(|session| session.session.unwrap().session_id)
                .collect();
            ids.sort();
            ids
        };
        let tags = |tags: &[&str]| v1::ListSessionsRequest {
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Default::default()
        };
        assert_eq!(ids(tags(&["air", "home"])).await, ["a", "c"]);
        let titled = v1::ListSessionsRequest {
            title_contains: "OSLO".to_owned(),
            ..Default::default()
        };
        assert_eq!(ids(titled).await, ["a", "b"]);
        let saved = wire.load("b").await.session.unwrap().save_time;
        let since = v1::ListSessionsRequest {
            min_save_time: saved,
            ..Default::default()
        };
        assert_eq!(ids(since).await, ["b", "c"], "inclusive");
        let other = v1::ListSessionsRequest {
            agent_id: Some("other".to_owned()),
            ..Default::default()
        };
        assert_eq!(ids(other).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_page_token_of_another_list_or_tenant_is_refused() {
    for wire in Wire::each() {
        for id in ["a", "b"] {
            wire.append(append(id, &["1", "2"])).await.unwrap();
        }
        let sessions = v1::ListSessionsRequest {
            page_size: 1,
            ..Default::default()
        };
        let first = wire
            .sessions
            .list_sessions(by_agent(sessions.clone()))
            .await;
        let token = answer(first).unwrap().next_page_token;
        let filtered = v1::ListSessionsRequest {
            tags: vec!["x".to_owned()],
            page_token: token.clone(),
            ..sessions.clone()
        };
        let refused = wire.sessions.list_sessions(by_agent(filtered)).await;
        assert_eq!(reason(refused), "PAGE_TOKEN_INVALID");
        let elsewhere = v1::ListSessionsRequest {
            page_token: token,
            ..sessions
        };
        let refused = wire
            .sessions
            .list_sessions(by(foreigner(), elsewhere))
            .await;
        assert_eq!(reason(refused), "PAGE_TOKEN_INVALID");

        let messages = |id: &str, token: String| v1::ListMessagesRequest {
            target: Some(v1::list_messages_request::Target::Session(
                named(id).unwrap(),
            )),
            page_size: 1,
            page_token: token,
            ..Default::default()
        };
        let first = wire
            .sessions
            .list_messages(by_agent(messages("a", String::new())))
            .await;
        let token = answer(first).unwrap().next_page_token;
        let refused = wire
            .sessions
            .list_messages(by_agent(messages("b", token)))
            .await;
        assert_eq!(reason(refused), "PAGE_TOKEN_INVALID");
    }
}

#[tokio::test]
async fn messages_are_listed_from_either_end_by_range_and_as_they_were() {
    for wire in Wire::each() {
        let appended = wire
            .append(append("s", &["0", "1", "2", "3", "4"]))
            .await
            .unwrap();
        let target = || {
            Some(v1::list_messages_request::Target::Session(
                named("s").unwrap(),
            ))
        };
        let read = async |request: v1::ListMessagesRequest| {
            let page = answer(wire.sessions.list_messages(by_agent(request)).await).unwrap();
            (texts_of(&page.messages), page)
        };
        let newest = v1::ListMessagesRequest {
            target: target(),
            order: v1::SortOrder::NewestFirst.into(),
            page_size: 2,
            ..Default::default()
        };
        let (texts, page) = read(newest.clone()).await;
        assert_eq!(texts, ["4", "3"]);
        assert_eq!(page.messages[0].index, 4);

        wire.append(append("s", &["5"])).await.unwrap();
        wire.save(v1::SaveSessionRequest {
            messages: list(users(&["anew"])),
            ..save("s")
        })
        .await
        .unwrap();
        let (texts, page) = read(v1::ListMessagesRequest {
            page_token: page.next_page_token,
            ..newest.clone()
        })
        .await;
        assert_eq!(texts, ["2", "1"]);
        assert_eq!(page.message_count, 5);

        let (texts, _) = read(v1::ListMessagesRequest {
            target: target(),
            at_revision: Some(appended.revision),
            start_index: Some(1),
            end_index: Some(3),
            ..Default::default()
        })
        .await;
        assert_eq!(texts, ["1", "2"]);
        let (texts, _) = read(v1::ListMessagesRequest {
            target: target(),
            ..Default::default()
        })
        .await;
        assert_eq!(texts, ["anew"]);
    }
}

#[tokio::test]
async fn a_long_history_is_loaded_in_pages_of_one_revision() {
    for wire in Wire::each() {
        let texts: Vec<String> = (0..120).map(|at| at.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        wire.append(append("s", &texts)).await.unwrap();
        let request = v1::LoadSessionRequest {
            session: named("s"),
            ..Default::default()
        };
        let loaded = answer(wire.sessions.load_session(by_agent(request)).await).unwrap();
        let mut read = texts_of(&loaded.data.unwrap().messages.unwrap().messages);
        assert_eq!(read.len(), 50);
        wire.append(append("s", &["late"])).await.unwrap();
        let mut token = loaded.messages_page_token;
        while !token.is_empty() {
            let request = v1::ListMessagesRequest {
                target: Some(v1::list_messages_request::Target::Session(
                    named("s").unwrap(),
                )),
                page_token: token,
                ..Default::default()
            };
            let page = answer(wire.sessions.list_messages(by_agent(request)).await).unwrap();
            read.extend(texts_of(&page.messages));
            token = page.next_page_token;
        }
        assert_eq!(read, texts);
    }
}

#[tokio::test]
async fn a_load_of_an_earlier_revision_shows_all_of_it_as_it_was() {
    for wire in Wire::each() {
        let saved = wire.save(full("s")).await.unwrap();
        let then = wire.load("s").await;
        wire.save(v1::SaveSessionRequest {
            messages: list(users(&["z"])),
            state: state(&[("k", "2")]),
            system_prompt: Some("be mean".to_owned()),
            ..save("s")
        })
        .await
        .unwrap();
        let request = v1::LoadSessionRequest {
            session: named("s"),
            at_revision: Some(saved.revision),
            ..Default::default()
        };
        let loaded = answer(wire.sessions.load_session(by_agent(request)).await).unwrap();
        assert_eq!(loaded.data, then.data);
        assert_eq!(loaded.session, then.session);
        assert_eq!(loaded.revision, saved.revision);
    }
}

#[tokio::test]
async fn a_load_that_expects_something_else_is_rejected_and_changes_nothing() {
    for wire in Wire::each() {
        wire.save(full("s")).await.unwrap();
        let before = wire.load("s").await;
        let expecting = |expectations: v1::SessionExpectations| v1::LoadSessionRequest {
            session: named("s"),
            expectations: Some(expectations),
            memory_id: Some("m".to_owned()),
            request_id: request_id(7),
            ..Default::default()
        };
        for (wrong, what) in [
            (
                v1::SessionExpectations {
                    format_versions: vec![1, 2],
                    ..Default::default()
                },
                "format_version",
            ),
            (
                v1::SessionExpectations {
                    user_id: Some("u".to_owned()),
                    ..Default::default()
                },
                "user_id",
            ),
            (
                v1::SessionExpectations {
                    task_scope_digest: Some("other".to_owned()),
                    ..Default::default()
                },
                "task_scope_digest",
            ),
        ] {
            let linking = expecting(wrong);
            let reading = v1::LoadSessionRequest {
                memory_id: None,
                ..linking.clone()
            };
            for request in [linking, reading] {
                let refused = wire.sessions.load_session(by_agent(request)).await;
                let status = refused.unwrap_err();
                assert_eq!(fact(&status, "mismatch").as_deref(), Some(what));
                assert_eq!(reason::<()>(Err(status)), "RESTORE_REJECTED");
            }
        }
        assert_eq!(wire.load("s").await, before);
        let right = v1::SessionExpectations {
            format_versions: vec![3],
            agent_id: Some("default".to_owned()),
            ..Default::default()
        };
        let loaded = wire.sessions.load_session(by_agent(expecting(right))).await;
        let session = answer(loaded).unwrap().session.unwrap();
        assert_eq!(session.memory_id.as_deref(), Some("m"));
    }
}

#[tokio::test]
async fn a_seed_is_written_once_and_only_where_nothing_is() {
    for wire in Wire::each() {
        let seed = v1::LoadSessionRequest {
            session: named("s"),
            seed_messages: users(&["welcome"]),
            request_id: request_id(1),
            ..Default::default()
        };
        let by_viewer = wire.sessions.load_session(by(viewer(), seed.clone())).await;
        assert_eq!(reason(by_viewer), "PERMISSION_DENIED");
        let without_id = v1::LoadSessionRequest {
            request_id: String::new(),
            ..seed.clone()
        };
        let refused = wire.sessions.load_session(by_agent(without_id)).await;
        assert_eq!(reason(refused), "ARGUMENT_INVALID");

        for _ in 0..2 {
            let loaded = wire.sessions.load_session(by_agent(seed.clone())).await;
            let loaded = answer(loaded).unwrap();
            assert_eq!(loaded.restored_from(), RestoredFrom::Seed);
        }
        let later = v1::LoadSessionRequest {
            request_id: request_id(2),
            ..seed
        };
        let loaded = answer(wire.sessions.load_session(by_agent(later)).await).unwrap();
        assert_eq!(loaded.restored_from(), RestoredFrom::Session);
        assert_eq!(wire.said("s").await, ["welcome"]);

        let nothing = wire.load("absent").await;
        assert_eq!(nothing.restored_from(), RestoredFrom::New);
        assert_eq!(nothing.session, None);
        let must_exist = v1::LoadSessionRequest {
            session: named("absent"),
            must_exist: true,
            ..Default::default()
        };
        let refused = wire.sessions.load_session(by_agent(must_exist)).await;
        assert_eq!(reason(refused), "SESSION_NOT_FOUND");
    }
}

#[tokio::test]
async fn a_session_without_a_history_starts_from_its_memory() {
    for wire in Wire::each() {
        let remember = v1::AppendMemoryRequest {
            memory: memory("m"),
            messages: users(&["remembered"]),
            ..Default::default()
        };
        answer(wire.memories.append_memory(by_agent(remember)).await).unwrap();
        wire.save(v1::SaveSessionRequest {
            memory_id: Some("m".to_owned()),
            ..save("s")
        })
        .await
        .unwrap();
        let loaded = wire.load("s").await;
        assert_eq!(loaded.restored_from(), RestoredFrom::Memory);
        let messages = loaded.data.unwrap().messages.unwrap().messages;
        assert_eq!(texts_of(&messages), ["remembered"]);
    }
}

#[tokio::test]
async fn the_link_to_a_memory_is_changed_and_removed_only_with_an_etag() {
    for wire in Wire::each() {
        let link = |memory: &str, etag: &str| v1::SaveSessionRequest {
            memory_id: Some(memory.to_owned()),
            etag: etag.to_owned(),
            ..save("s")
        };
        let linked = wire.save(link("m", "")).await.unwrap().session.unwrap();
        wire.save(link("m", "")).await.unwrap();
        assert_eq!(
            reason(wire.save(link("other", "")).await),
            "PRECONDITION_REQUIRED"
        );
        assert_eq!(
            reason(wire.save(link("", "")).await),
            "PRECONDITION_REQUIRED"
        );
        let moved = wire.save(link("other", &linked.etag)).await.unwrap();
        let moved = moved.session.unwrap();
        assert_eq!(moved.memory_id.as_deref(), Some("other"));
        let unlinked = wire.save(link("", &moved.etag)).await.unwrap();
        assert_eq!(unlinked.session.unwrap().memory_id, None);
    }
}

#[tokio::test]
async fn listing_metadata_is_merged_without_touching_content_or_saved_time() {
    for wire in Wire::each() {
        wire.save(full("s")).await.unwrap();
        let before = wire.load("s").await.session.unwrap();
        wire.world.clock.advance(Duration::from_secs(60));
        let update = v1::UpdateSessionRequest {
            session: named("s"),
            listing: Some(v1::ListingMetadata {
                description: Some(String::new()),
                extra_json: Some(r#"{"size": 1.0}"#.to_owned()),
                ..Default::default()
            }),
            delete_extra_keys: vec!["colour".to_owned()],
            listing_etag: before.listing_etag.clone(),
            ..Default::default()
        };
        let updated = wire.sessions.update_session(by_agent(update.clone())).await;
        let after = answer(updated).unwrap().session.unwrap();
        let listing = after.listing.unwrap();
        assert_eq!(listing.title.as_deref(), Some("A title"));
        assert_eq!(listing.description, None);
        assert_eq!(listing.extra_json.as_deref(), Some(r#"{"size":1.0}"#));
        assert_eq!(after.etag, before.etag);
        assert_eq!(after.save_time, before.save_time);
        assert_ne!(after.listing_etag, before.listing_etag);
        let stale = wire.sessions.update_session(by_agent(update)).await;
        assert_eq!(reason(stale), "ETAG_MISMATCH");
    }
}

#[tokio::test]
async fn a_save_of_what_is_stored_counts_as_a_save_and_not_as_a_change() {
    for wire in Wire::each() {
        wire.append(append("s", &["a"])).await.unwrap();
        wire.append(append("other", &["a"])).await.unwrap();
        let before = wire.load("s").await.session.unwrap();
        wire.world.clock.advance(Duration::from_secs(60));
        let again = v1::SaveSessionRequest {
            messages: list(users(&["a"])),
            ..save("s")
        };
        let after = wire.save(again).await.unwrap().session.unwrap();
        assert_eq!(after.etag, before.etag);
        assert_eq!(after.last_seq, before.last_seq);
        let seconds = |time: Option<prost_types::Timestamp>| time.unwrap().seconds;
        assert_eq!(seconds(after.save_time) - seconds(before.save_time), 60);
    }
}

#[tokio::test]
async fn a_foreign_tenant_sees_nothing() {
    for wire in Wire::each() {
        wire.append(append("s", &["a"])).await.unwrap();
        let get = v1::GetSessionRequest {
            session: named("s"),
        };
        let refused = wire.sessions.get_session(by(foreigner(), get)).await;
        assert_eq!(reason(refused), "SESSION_NOT_FOUND");
        let list = v1::ListSessionsRequest::default();
        let listed = wire.sessions.list_sessions(by(foreigner(), list)).await;
        assert_eq!(answer(listed).unwrap().sessions, []);
    }
}

#[tokio::test]
async fn a_key_for_one_agent_or_user_reaches_no_other() {
    for wire in Wire::each() {
        let bound = adjourn::service::caller::Caller {
            agent: Some("mine".parse().unwrap()),
            user: Some("ann".parse().unwrap()),
            ..agent()
        };
        let at = |agent: &str, user: Option<&str>| v1::AppendMessagesRequest {
            session: Some(v1::SessionRef {
                agent_id: agent.to_owned(),
                user_id: user.map(str::to_owned),
                session_id: "s".to_owned(),
            }),
            ..append("", &["a"])
        };
        for (agent, user) in [("", Some("ann")), ("mine", None), ("mine", Some("bob"))] {
            let refused = by(bound.clone(), at(agent, user));
            let refused = wire.sessions.append_messages(refused).await;
            assert_eq!(reason(refused), "PERMISSION_DENIED");
        }
        let own = by(bound.clone(), at("mine", Some("ann")));
        answer(wire.sessions.append_messages(own).await).unwrap();
        wire.append(append("other", &["b"])).await.unwrap();
        let list = v1::ListSessionsRequest::default();
        let listed = wire.sessions.list_sessions(by(bound, list)).await;
        assert_eq!(answer(listed).unwrap().sessions.len(), 1);
    }
}

#[tokio::test]
async fn bad_input_names_its_field_and_writes_nothing() {
    for wire in Wire::each() {
        let text = |content: v1::message::Content| v1::Message {
            role: v1::message::Role::User.into(),
            content: Some(content),
            ..Default::default()
        };
        let deep = format!("{}{}", "[".repeat(150), "]".repeat(150));
        let json = |value: &str| v1::Message {
            extra_json: Some(value.to_owned()),
            ..user("a")
        };
        let non_standard =
            |value: &str| text(v1::message::Content::NonStandardJson(value.to_owned()));
        let cases = [
            (
                vec![user("ok"), json("{")],
                "JSON_INVALID",
                "messages[1].extra_json",
            ),
            (vec![json("[]")], "JSON_INVALID", "messages[0].extra_json"),
            (
                vec![non_standard("NaN")],
                "JSON_INVALID",
                "messages[0].non_standard_json",
            ),
            (
                vec![non_standard(r#"{"a":1,"a":2}"#)],
                "JSON_INVALID",
                "messages[0].non_standard_json",
            ),
            (
                vec![non_standard(&deep)],
                "JSON_INVALID",
                "messages[0].non_standard_json",
            ),
            (
                vec![v1::Message {
                    role: 77,
                    ..user("a")
                }],
                "ARGUMENT_INVALID",
                "messages[0].role",
            ),
            (
                vec![v1::Message {
                    content: None,
                    ..user("a")
                }],
                "ARGUMENT_INVALID",
                "messages[0].content",
            ),
            (Vec::new(), "ARGUMENT_INVALID", "messages"),
            (
                vec![user(&"x".repeat(8 * 1024 * 1024 + 1))],
                "LIMIT_EXCEEDED",
                "messages[0]",
            ),
        ];
        for (messages, wanted, field) in cases {
            let request = v1::AppendMessagesRequest {
                session: named("s"),
                messages,
                ..Default::default()
            };
            let status = wire.append(request).await.unwrap_err();
            assert!(status.message().contains(field), "{status}");
            assert_eq!(reason::<()>(Err(status)), wanted, "{field}");
        }
        for id in ["", "..", "a/b", "a\0b", "a\nb", &"x".repeat(600)] {
            let refused = wire.append(append(id, &["a"])).await;
            assert_eq!(reason(refused), "ARGUMENT_INVALID", "{id:?}");
        }
        let mut request = append("s", &["a"]);
        request.request_id = "not-a-uuid".to_owned();
        assert_eq!(reason(wire.append(request).await), "ARGUMENT_INVALID");
        assert_eq!(wire.load("s").await.session, None);
    }
}

#[tokio::test]
async fn what_is_not_there_yet_says_so() {
    for wire in Wire::each() {
        let mut managed = append("s", &["a"]);
        managed.writer = Some(v1::Writer {
            writer_id: "w".to_owned(),
            writer_epoch: None,
        });
        let status = wire.append(managed).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        let pins = v1::SetPinsRequest::default();
        let status = wire.sessions.set_pins(by_agent(pins)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        assert_eq!(wire.load("s").await.session, None);
    }
}

#[tokio::test]
async fn a_system_message_in_the_history_is_no_system_prompt() {
    for wire in Wire::each() {
        wire.save(v1::SaveSessionRequest {
            messages: list(vec![system("rules"), user("hi")]),
            ..save("s")
        })
        .await
        .unwrap();
        let data = wire.load("s").await.data.unwrap();
        assert_eq!(data.system_prompt, None);
        assert_eq!(texts_of(&data.messages.unwrap().messages), ["rules", "hi"]);
    }
}
