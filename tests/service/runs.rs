//! What the end of a run writes, and who may write while one is under way.

use adjourn::domain::id::SessionRef;
use adjourn::proto::v1;
use adjourn::proto::v1::checkpoint_service_server::CheckpointService as _;
use adjourn::proto::v1::memory_service_server::MemoryService as _;
use adjourn::proto::v1::session_service_server::SessionService as _;

use crate::wire::{
    Wire, answer, by_agent, list, memory, named, reason, request_id, system, texts_of, user, users,
};

fn commit(id: &str, texts: &[&str]) -> v1::CommitRunRequest {
    v1::CommitRunRequest {
        session: named(id),
        transcript: Some(v1::commit_run_request::Transcript::Append(
            v1::MessageList {
                messages: users(texts),
            },
        )),
        ..Default::default()
    }
}

fn under(lease: &v1::AcquireThreadResponse, request: v1::CommitRunRequest) -> v1::CommitRunRequest {
    let lease = lease.lease.as_ref().unwrap();
    v1::CommitRunRequest {
        thread_id: Some(lease.thread.as_ref().unwrap().thread_id.clone()),
        fencing_token: lease.fencing_token.clone(),
        ..request
    }
}

fn key(id: &str) -> SessionRef {
    SessionRef {
        agent: adjourn::domain::id::AgentId::default(),
        user: None,
        session: id.parse().unwrap(),
    }
}

async fn remembered(wire: &Wire, id: &str) -> Vec<String> {
    let request = v1::LoadMemoryRequest {
        memory: memory(id),
        messages_page_size: 1000,
        ..Default::default()
    };
    let loaded = answer(wire.memories.load_memory(by_agent(request)).await).unwrap();
    texts_of(&loaded.messages)
}

#[tokio::test]
async fn a_run_ends_in_one_commit_with_history_memory_state_and_timeline() {
    for wire in Wire::each() {
        let linked = v1::SaveSessionRequest {
            session: named("s"),
            messages: list(vec![system("rules"), user("before")]),
            memory_id: Some("m".to_owned()),
            ..Default::default()
        };
        wire.save(linked).await.unwrap();
        let lease = wire.acquire("s").await;
        let request = v1::CommitRunRequest {
            final_turn: Some(v1::FinalTurn {
                thinking: "hm".to_owned(),
                blocks: vec![v1::Block {
                    kind: Some(v1::block::Kind::Text("done".to_owned())),
                    extra_json: None,
                }],
                message_id: Some("final".to_owned()),
            }),
            input: Some(v1::RunInput {
                content: Some(v1::run_input::Content::Text("ä".repeat(70))),
            }),
            state: Some(v1::StateUpdate {
                entries: vec![v1::StateEntry {
                    key: "k".to_owned(),
                    value_json: "1".to_owned(),
                }],
                ..Default::default()
            }),
            request_id: request_id(1),
            ..under(&lease, commit("s", &["asked"]))
        };
        let done = wire.commit(request.clone()).await.unwrap();
        assert_eq!(done.run_id, lease.lease.as_ref().unwrap().run_id);
        assert_ne!(done.memory_etag, "");

        assert_eq!(wire.said("s").await, ["rules", "before", "asked", "done"]);
        assert_eq!(remembered(&wire, "m").await, ["before", "asked", "done"]);
        let state = wire.load("s").await.data.unwrap().state.unwrap();
        assert_eq!(state.entries[0].value_json, "1");
        let timeline = wire.world.timeline(&key("s")).await;
        assert_eq!(timeline.len(), 1);
        assert_eq!(timeline[0].rev, done.timeline_rev);
        assert_eq!(timeline[0].label, "ä".repeat(60));

        // The lease is given up with the run: its token is worth nothing now, and
        // whoever names none may write again.
        let late = under(&lease, commit("s", &["late"]));
        assert_eq!(reason(wire.commit(late).await), "FENCED");
        let free = v1::AppendMessagesRequest {
            session: named("s"),
            messages: users(&["free"]),
            ..Default::default()
        };
        wire.append(free).await.unwrap();
        assert_eq!(wire.commit(request).await.unwrap(), done, "said again");
    }
}

#[tokio::test]
async fn the_memory_follows_a_replaced_history_and_keeps_its_window() {
    for wire in Wire::each() {
        let settings = v1::ConfigureMemoryRequest {
            memory: memory("m"),
            settings: Some(v1::MemorySettings {
                max_messages: Some(3),
                ..Default::default()
            }),
            ..Default::default()
        };
        answer(wire.memories.configure_memory(by_agent(settings)).await).unwrap();
        let linked = v1::SaveSessionRequest {
            session: named("s"),
            memory_id: Some("m".to_owned()),
            ..Default::default()
        };
        wire.save(linked).await.unwrap();
        let replace = |messages: Vec<v1::Message>| v1::CommitRunRequest {
            session: named("s"),
            transcript: Some(v1::commit_run_request::Transcript::Replace(
                v1::MessageList { messages },
            )),
            overwrite: true,
            ..Default::default()
        };
        let history = vec![
            user("1"),
            system("no"),
            user("2"),
            user("3"),
            system("no"),
            user("4"),
        ];
        wire.commit(replace(history)).await.unwrap();
        assert_eq!(remembered(&wire, "m").await, ["2", "3", "4"]);
        wire.commit(replace(users(&["2", "5"]))).await.unwrap();
        assert_eq!(remembered(&wire, "m").await, ["2", "5"]);

        // What is no message is never dropped and takes no place.
        let odd = v1::Message {
            content: Some(v1::message::Content::NonStandardJson("{}".to_owned())),
            ..Default::default()
        };
        let history = [vec![odd], users(&["1", "2", "3", "4"])].concat();
        wire.commit(replace(history)).await.unwrap();
        let kept = remembered(&wire, "m").await;
        assert_eq!(kept.len(), 4);
        assert_eq!(kept[1..], ["2", "3", "4"]);
        answer(wire.memories.append_memory(by_agent(append_to("m"))).await).unwrap();
        let kept = remembered(&wire, "m").await;
        assert_eq!(kept.len(), 4);
        assert_eq!(kept[1..], ["3", "4", "x"]);
    }
}

#[tokio::test]
async fn while_a_thread_is_leased_its_session_and_memory_want_its_token() {
    for wire in Wire::each() {
        let linked = v1::SaveSessionRequest {
            session: named("s"),
            messages: list(users(&["a"])),
            memory_id: Some("m".to_owned()),
            ..Default::default()
        };
        wire.save(linked).await.unwrap();
        let write_memory = |token: &str| v1::AppendMemoryRequest {
            memory: memory("m"),
            messages: users(&["b"]),
            fencing_token: token.to_owned(),
            ..Default::default()
        };
        answer(
            wire.memories
                .append_memory(by_agent(write_memory("")))
                .await,
        )
        .unwrap();
        let lease = wire.acquire("s").await;
        let token = lease.lease.as_ref().unwrap().fencing_token.clone();
        let append = |token: &str| v1::AppendMessagesRequest {
            session: named("s"),
            messages: users(&["b"]),
            fencing_token: token.to_owned(),
            ..Default::default()
        };
        let update = v1::UpdateSessionRequest {
            session: named("s"),
            listing: Some(v1::ListingMetadata {
                title: Some("t".to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let delete = v1::DeleteSessionRequest {
            session: named("s"),
            ..Default::default()
        };
        let without = [
            reason(wire.append(append("")).await),
            reason(wire.sessions.update_session(by_agent(update)).await),
            reason(wire.sessions.delete_session(by_agent(delete)).await),
            reason(
                wire.memories
                    .append_memory(by_agent(write_memory("")))
                    .await,
            ),
        ];
        assert_eq!(without, ["TOKEN_REQUIRED"; 4]);
        let wrong = [
            reason(wire.append(append("garbage")).await),
            reason(
                wire.memories
                    .append_memory(by_agent(write_memory("garbage")))
                    .await,
            ),
        ];
        assert_eq!(wrong, ["FENCED"; 2]);
        wire.append(append(&token)).await.unwrap();
        answer(
            wire.memories
                .append_memory(by_agent(write_memory(&token)))
                .await,
        )
        .unwrap();
    }
}

#[tokio::test]
async fn a_final_turn_is_plain_text_or_blocks_with_what_was_thought_before_them() {
    use v1::block::Kind;
    use v1::message::Content;

    fn block(kind: Kind) -> v1::Block {
        v1::Block {
            kind: Some(kind),
            extra_json: None,
        }
    }

    fn blocks(kinds: Vec<Kind>) -> Content {
        Content::Blocks(v1::Blocks {
            blocks: kinds.into_iter().map(block).collect(),
        })
    }

    let text = |text: &str| Kind::Text(text.to_owned());
    let image = || Kind::Image(v1::Media::default());
    let thought = || Kind::Reasoning("hm".to_owned());
    let cases = [
        (
            v1::OutputVersion::V0,
            vec![text("a"), text("b")],
            Content::Text("ab".to_owned()),
        ),
        (
            v1::OutputVersion::V0,
            vec![text("a"), image()],
            blocks(vec![text("a"), image()]),
        ),
        (
            v1::OutputVersion::V1,
            vec![text("a")],
            blocks(vec![thought(), text("a")]),
        ),
    ];
    for wire in Wire::each() {
        for (version, said, stored) in &cases {
            let request = v1::CommitRunRequest {
                session: named("s"),
                final_turn: Some(v1::FinalTurn {
                    thinking: "hm".to_owned(),
                    blocks: said.iter().cloned().map(block).collect(),
                    message_id: None,
                }),
                output_version: (*version).into(),
                overwrite: true,
                ..Default::default()
            };
            wire.commit(request).await.unwrap();
            let data = wire.load("s").await.data.unwrap();
            let newest = data.messages.unwrap().messages.pop().unwrap();
            assert_eq!(newest.content.as_ref(), Some(stored));
            assert_eq!(newest.role(), v1::message::Role::Assistant);
        }
    }
}

fn append_to(id: &str) -> v1::AppendMemoryRequest {
    v1::AppendMemoryRequest {
        memory: memory(id),
        messages: users(&["x"]),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_lease_goes_with_the_link_to_another_memory() {
    for wire in Wire::each() {
        for id in ["m", "other"] {
            answer(wire.memories.append_memory(by_agent(append_to(id))).await).unwrap();
        }
        let link = |memory: &str, etag: String, token: String| v1::SaveSessionRequest {
            session: named("s"),
            memory_id: Some(memory.to_owned()),
            etag,
            fencing_token: token,
            ..Default::default()
        };
        wire.save(link("m", String::new(), String::new()))
            .await
            .unwrap();
        let lease = wire.acquire("s").await;
        let token = lease.lease.unwrap().fencing_token;
        wire.save(link("other", lease.session_etag, token))
            .await
            .unwrap();
        answer(wire.memories.append_memory(by_agent(append_to("m"))).await).unwrap();
        let covered = wire
            .memories
            .append_memory(by_agent(append_to("other")))
            .await;
        assert_eq!(reason(covered), "TOKEN_REQUIRED");
    }
}

#[tokio::test]
async fn a_run_does_not_write_to_a_memory_that_anothers_lease_covers() {
    for wire in Wire::each() {
        for id in ["mine", "theirs"] {
            let linked = v1::SaveSessionRequest {
                session: named(id),
                memory_id: Some("shared".to_owned()),
                ..Default::default()
            };
            wire.save(linked).await.unwrap();
        }
        answer(
            wire.memories
                .append_memory(by_agent(append_to("shared")))
                .await,
        )
        .unwrap();
        let lease = wire.acquire("theirs").await;
        let mine = v1::CommitRunRequest {
            overwrite: true,
            ..commit("mine", &["a"])
        };
        assert_eq!(reason(wire.commit(mine.clone()).await), "TOKEN_REQUIRED");
        wire.commit(under(&lease, commit("theirs", &["b"])))
            .await
            .unwrap();
        wire.commit(mine).await.unwrap();
        assert_eq!(remembered(&wire, "shared").await, ["a"]);
    }
}

#[tokio::test]
async fn a_run_without_a_thread_needs_a_precondition_once_the_session_exists() {
    for wire in Wire::each() {
        let first = wire.commit(commit("s", &["a"])).await.unwrap();
        assert_eq!(first.run_id, "");
        assert_eq!(
            reason(wire.commit(commit("s", &["b"])).await),
            "ALREADY_EXISTS"
        );
        let seen = v1::CommitRunRequest {
            etag: first.session.unwrap().etag,
            ..commit("s", &["b"])
        };
        wire.commit(seen.clone()).await.unwrap();
        assert_eq!(reason(wire.commit(seen).await), "ETAG_MISMATCH");
        let absent = v1::CommitRunRequest {
            thread_id: Some("t".to_owned()),
            ..commit("s", &["c"])
        };
        assert_eq!(reason(wire.commit(absent.clone()).await), "TOKEN_REQUIRED");
        let made_up = v1::CommitRunRequest {
            fencing_token: "made up".to_owned(),
            ..absent
        };
        assert_eq!(reason(wire.commit(made_up).await), "THREAD_NOT_FOUND");
        assert_eq!(wire.said("s").await, ["a", "b"]);
    }
}

/// Suspends the thread `s` on a call, and takes its lease again.
async fn suspended_and_taken_over(wire: &Wire) -> (String, v1::AcquireThreadResponse) {
    let lease = wire.acquire("s").await;
    let spec = v1::InterruptSpec {
        kind: v1::interrupt::Kind::Approval.into(),
        message: "May it?".to_owned(),
        action: Some(v1::Action {
            tool_name: "book".to_owned(),
            tool_call_id: "call".to_owned(),
            ..Default::default()
        }),
        allowed_decisions: vec![v1::decision::Kind::Approve.into()],
        ..Default::default()
    };
    let suspend = v1::SuspendThreadRequest {
        thread: lease.lease.as_ref().unwrap().thread.clone(),
        interrupts: vec![spec],
        fencing_token: lease.lease.as_ref().unwrap().fencing_token.clone(),
        ..Default::default()
    };
    let suspended = answer(wire.checkpoints.suspend_thread(by_agent(suspend)).await).unwrap();
    let interrupt = suspended.interrupts[0].interrupt_id.clone();
    (interrupt, wire.acquire("s").await)
}

#[tokio::test]
async fn a_run_does_not_end_while_people_are_asked_unless_it_withdraws_the_question() {
    for wire in Wire::each() {
        let (interrupt, lease) = suspended_and_taken_over(&wire).await;
        let ending = under(&lease, commit("s", &["a"]));
        assert_eq!(
            reason(wire.commit(ending.clone()).await),
            "INTERRUPTS_PENDING"
        );
        let withdrawing = v1::CommitRunRequest {
            withdraw: true,
            ..ending
        };
        let done = wire.commit(withdrawing).await.unwrap();
        assert_eq!(
            done.withdrawn_interrupt_ids,
            std::slice::from_ref(&interrupt)
        );
        let id = adjourn::domain::id::InterruptId::from_uuid(interrupt.parse().unwrap());
        let interrupt = wire.world.get(id).await;
        assert!(interrupt.state.is_terminal());
        let revs: Vec<_> = wire
            .world
            .timeline(&key("s"))
            .await
            .iter()
            .map(|entry| entry.rev)
            .collect();
        assert_eq!(
            revs,
            (1..=i64::try_from(revs.len()).unwrap()).collect::<Vec<_>>()
        );
        assert_eq!(*revs.last().unwrap(), done.timeline_rev);
    }
}

#[tokio::test]
async fn deleting_a_session_withdraws_its_questions_and_deletes_its_threads() {
    for wire in Wire::each() {
        let (interrupt, lease) = suspended_and_taken_over(&wire).await;
        let delete = v1::DeleteSessionRequest {
            session: named("s"),
            fencing_token: lease.lease.as_ref().unwrap().fencing_token.clone(),
            ..Default::default()
        };
        let deleted = wire.sessions.delete_session(by_agent(delete)).await;
        let deleted = answer(deleted).unwrap();
        assert_eq!(deleted.withdrawn_interrupt_ids, [interrupt]);
        let thread = v1::GetThreadRequest {
            thread: lease.lease.unwrap().thread,
        };
        let refused = wire.checkpoints.get_thread(by_agent(thread)).await;
        assert_eq!(reason(refused), "THREAD_NOT_FOUND");

        // A timeline outlives its session.
        let before = wire.world.timeline(&key("s")).await.len();
        let anew = v1::CommitRunRequest {
            recreate: true,
            ..commit("s", &["anew"])
        };
        let done = wire.commit(anew).await.unwrap();
        assert_eq!(done.timeline_rev, i64::try_from(before).unwrap() + 1);
    }
}
