//! Asking and deciding: who may, and that it takes effect once.

use std::sync::Arc;

use adjourn::domain::error::{Error, Reason};
use adjourn::domain::interrupt::{
    Answer, DecisionKind, InterruptSpec, InterruptState, OnExpire, PolicyRequest,
};
use adjourn::domain::timeline::EntryKind;
use adjourn::service::caller::{Caller, Role};
use adjourn::service::interrupt::{
    Acknowledge, Cancel, Claim, Consume, Filter, ListOrder, Unclaim,
};
use std::time::Duration;
use tokio::sync::Barrier;
use uuid::Uuid;

use super::world::{World, agent, approve, caller, foreigner, may, reject, reviewer, viewer};

fn fact<'a>(error: &'a Error, key: &str) -> &'a str {
    let found = error.metadata.iter().find(|(name, _)| *name == key);
    found.map_or("", |(_, value)| value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_deciders_one_wins_and_the_other_learns_who() {
    for world in World::each() {
        let world = Arc::new(world);
        for round in 0..20 {
            let id = world.ask(may("book", "{}")).await;
            let barrier = Arc::new(Barrier::new(2));
            let mut deciders = Vec::new();
            for (name, answer) in [("rita", approve()), ("rob", reject())] {
                let answer = world.answer(id, answer).await;
                let (world, barrier) = (Arc::clone(&world), Arc::clone(&barrier));
                deciders.push(tokio::spawn(async move {
                    barrier.wait().await;
                    let rita = reviewer(name);
                    let done = world.interrupts.decide(&rita, None, vec![answer]).await;
                    (name, done)
                }));
            }
            let (mut winners, mut losers) = (Vec::new(), Vec::new());
            for decider in deciders {
                let (name, done) = decider.await.unwrap();
                match done {
                    Ok(_) => winners.push(name),
                    Err(error) => losers.push(error),
                }
            }
            assert_eq!(winners.len(), 1, "round {round}");
            let refusal = &losers[0];
            assert_eq!(refusal.reason, Reason::AlreadyDecided);
            assert_eq!(fact(refusal, "winner"), winners[0]);
            let decided = world.get(id).await;
            let won = decided.resolution().unwrap();
            assert_eq!(won.actor.as_str(), winners[0]);
            assert_eq!(fact(refusal, "kind"), won.answer.kind().name());
            let at = won.at.as_micros().to_string();
            assert_eq!(fact(refusal, "decide_time_us"), at);
            assert_eq!(decided.decisions.len(), 1);
        }
    }
}

#[tokio::test]
async fn only_a_reviewer_of_the_tenant_decides() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        let answer = vec![world.answer(id, approve()).await];
        let all_but_reviewer = caller("bot", &[Role::Agent, Role::Viewer, Role::Admin]);
        for (who, reason) in [
            (agent(), Reason::PermissionDenied),
            (all_but_reviewer, Reason::PermissionDenied),
            (foreigner(), Reason::InterruptNotFound),
        ] {
            let refused = world.interrupts.decide(&who, None, answer.clone()).await;
            assert_eq!(refused.unwrap_err().reason, reason, "{who:?}");
        }
        assert_eq!(world.get(id).await.state, InterruptState::Pending);
        world.decide(id, approve()).await;
    }
}

#[tokio::test]
async fn a_foreign_tenant_finds_nothing() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        let who = foreigner();
        let reason = |error: Error| error.reason;
        let not_found = Err(Reason::InterruptNotFound);
        let interrupts = &world.interrupts;
        assert_eq!(
            interrupts.get(&who, id).await.map(drop).map_err(reason),
            not_found
        );
        let cancel = Cancel {
            interrupt: id,
            seen: None,
            comment: String::new(),
        };
        let done = interrupts.cancel(&who, None, cancel).await;
        assert_eq!(done.map(drop).map_err(reason), not_found);
        let claim = Claim {
            interrupt: id,
            ttl: Duration::from_secs(60),
        };
        let done = interrupts.claim(&who, None, claim).await;
        assert_eq!(done.map(drop).map_err(reason), not_found);
        let page = interrupts
            .list(&who, Filter::default(), ListOrder::Newest, 10, "")
            .await
            .unwrap();
        assert!(page.items.is_empty());
    }
}

#[tokio::test]
async fn a_key_for_one_agent_sees_that_agent_only() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        let other = Caller {
            agent: Some("other".parse().unwrap()),
            ..reviewer("rita")
        };
        let found = world.interrupts.get(&other, id).await;
        assert_eq!(found.unwrap_err().reason, Reason::InterruptNotFound);
        let answer = world.answer(id, approve()).await;
        let done = world.interrupts.decide(&other, None, vec![answer]).await;
        assert_eq!(done.unwrap_err().reason, Reason::InterruptNotFound);
    }
}

#[tokio::test]
async fn an_answer_to_what_has_changed_is_refused() {
    for world in World::each() {
        let spec = InterruptSpec {
            policy: PolicyRequest {
                required_approvals: Some(2),
                ..PolicyRequest::default()
            },
            ..may("book", r#"{"seats":1}"#)
        };
        let id = world.ask(spec).await;
        let stale = world.answer(id, approve()).await;
        let edit = Answer::Edit {
            args_json: r#"{"seats":2}"#.to_owned(),
        };
        world.decide(id, edit).await;
        let refused = world
            .interrupts
            .decide(&reviewer("rob"), None, vec![stale])
            .await;
        assert_eq!(refused.unwrap_err().reason, Reason::EtagMismatch);

        let interrupt = world.get(id).await;
        assert_eq!(interrupt.state, InterruptState::Pending);
        let action = interrupt.action.unwrap();
        assert_eq!(action.args_json.as_deref(), Some(r#"{"seats":2}"#));
        for (name, state) in [
            ("rob", InterruptState::Pending),
            ("rosa", InterruptState::Resolved),
        ] {
            let answer = world.answer(id, approve()).await;
            let who = reviewer(name);
            world
                .interrupts
                .decide(&who, None, vec![answer])
                .await
                .unwrap();
            assert_eq!(world.get(id).await.state, state);
        }
    }
}

#[tokio::test]
async fn a_vote_or_a_claim_leaves_the_etag_alone() {
    for world in World::each() {
        let spec = InterruptSpec {
            policy: PolicyRequest {
                required_approvals: Some(2),
                ..PolicyRequest::default()
            },
            ..may("book", "{}")
        };
        let id = world.ask(spec).await;
        let seen = world.answer(id, approve()).await;
        world.decide(id, approve()).await;
        let claim = Claim {
            interrupt: id,
            ttl: Duration::from_secs(60),
        };
        let rob = reviewer("rob");
        world.interrupts.claim(&rob, None, claim).await.unwrap();
        world
            .interrupts
            .decide(&rob, None, vec![seen])
            .await
            .unwrap();
        assert_eq!(world.get(id).await.state, InterruptState::Resolved);
    }
}

#[tokio::test]
async fn a_claim_keeps_others_away_until_it_ends() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        let (rita, rob) = (reviewer("rita"), reviewer("rob"));
        let claim = || Claim {
            interrupt: id,
            ttl: Duration::from_secs(60),
        };
        let unclaim = || Unclaim { interrupt: id };
        let claims = &world.interrupts;
        claims.claim(&rita, None, claim()).await.unwrap();
        let refused = claims.claim(&rob, None, claim()).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Claimed);
        let answer = world.answer(id, approve()).await;
        let refused = claims.decide(&rob, None, vec![answer.clone()]).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Claimed);
        let refused = claims.unclaim(&rob, None, unclaim()).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Claimed);
        let admin = caller("ada", &[Role::Admin]);
        claims.unclaim(&admin, None, unclaim()).await.unwrap();

        claims.claim(&rita, None, claim()).await.unwrap();
        world.clock.advance(Duration::from_secs(60));
        claims.claim(&rob, None, claim()).await.unwrap();
        for _ in 0..2 {
            claims.unclaim(&rob, None, unclaim()).await.unwrap();
        }
        assert_eq!(world.get(id).await.claim, None);
        claims.decide(&rita, None, vec![answer]).await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_is_decided_whole_or_not_at_all() {
    for world in World::each() {
        let session = world.session("s").await;
        let one = world.ask_in(may("book", "{}"), &session).await;
        let two = world.ask_in(may("pay", "{}"), &session).await;
        let answers = vec![
            world.answer(one, approve()).await,
            world.answer(two, Answer::Skip).await,
        ];
        let rita = reviewer("rita");
        let refused = world
            .interrupts
            .decide(&rita, None, answers)
            .await
            .unwrap_err();
        assert_eq!(refused.reason, Reason::HitlDecision);
        assert_eq!(fact(&refused, "interrupt_id"), two.to_string());
        assert_eq!(world.get(one).await.state, InterruptState::Pending);

        let answers = vec![
            world.answer(one, approve()).await,
            world.answer(two, reject()).await,
        ];
        world.interrupts.decide(&rita, None, answers).await.unwrap();
        let told = world.timeline(&session).await;
        let told: Vec<_> = told
            .iter()
            .map(|entry| (entry.rev, entry.kind, entry.label.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (1, EntryKind::Interrupt, "book"),
                (2, EntryKind::Interrupt, "pay"),
                (3, EntryKind::Decision, "APPROVE"),
                (4, EntryKind::Decision, "REJECT"),
            ]
        );
    }
}

#[tokio::test]
async fn a_repeated_decision_is_the_first_one() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        let answer = vec![world.answer(id, approve()).await];
        let (rita, request) = (reviewer("rita"), Some(Uuid::from_u128(7)));
        let decide = || world.interrupts.decide(&rita, request, answer.clone());
        let first = decide().await.unwrap();
        let again = decide().await.unwrap();
        assert!(!first.replayed && again.replayed);
        assert_eq!(again.revision, first.revision);
        assert_eq!(world.get(id).await.decisions.len(), 1);
        let other = vec![world.answer(id, reject()).await];
        let refused = world.interrupts.decide(&rita, request, other).await;
        assert_eq!(refused.unwrap_err().reason, Reason::RequestIdReused);
    }
}

#[tokio::test]
async fn the_same_question_under_one_key_is_asked_once() {
    for world in World::each() {
        let keyed = |args: &str| InterruptSpec {
            dedup_key: Some("k".to_owned()),
            ..may("book", args)
        };
        let first = world.ask(keyed(r#"{"a":1,"b":2}"#)).await;
        assert_eq!(world.ask(keyed(r#"{ "b": 2.0, "a": 1 }"#)).await, first);

        let second = world.ask(keyed(r#"{"a":2}"#)).await;
        assert_ne!(second, first);
        let (old, new) = (world.get(first).await, world.get(second).await);
        assert_eq!(old.state, InterruptState::Superseded);
        assert_eq!(old.superseded_by, Some(second));
        assert_eq!(new.supersedes, Some(first));
        let before = new.previous_action.unwrap().args_json;
        assert_eq!(before.as_deref(), Some(r#"{"a":1,"b":2}"#));

        // A key that only begins the same is another key.
        let longer = InterruptSpec {
            dedup_key: Some("kk".to_owned()),
            ..may("book", r#"{"a":3}"#)
        };
        world.ask(longer).await;
        assert_eq!(world.get(second).await.state, InterruptState::Pending);

        // An answer that nobody has acted on yet still answers the question.
        world.decide(second, approve()).await;
        assert_eq!(world.ask(keyed(r#"{"a":2}"#)).await, second);
        let answer = world.answer(first, approve()).await;
        let late = world
            .interrupts
            .decide(&reviewer("rita"), None, vec![answer])
            .await;
        assert_eq!(
            fact(&late.unwrap_err(), "superseded_by"),
            second.to_string()
        );
    }
}

#[tokio::test]
async fn a_correlation_id_is_of_one_live_interrupt() {
    for world in World::each() {
        let correlated = || InterruptSpec {
            correlation_id: Some("c".to_owned()),
            ..may("book", "{}")
        };
        let id = world.ask(correlated()).await;
        assert!(world.get(id).await.expires_at.is_some());
        let taken = world.try_ask(correlated(), None).await;
        assert_eq!(taken.unwrap_err().reason, Reason::AlreadyExists);
        world.decide(id, approve()).await;
        let taken = world.try_ask(correlated(), None).await;
        assert_eq!(taken.unwrap_err().reason, Reason::AlreadyExists);

        act_on(&world, id).await;
        let next = world.ask(correlated()).await;
        assert_ne!(next, id);
    }
}

/// Consumes and acknowledges an answer.
async fn act_on(world: &World, id: adjourn::domain::id::InterruptId) {
    let consume = Consume {
        interrupt: id,
        consumer: "worker".parse().unwrap(),
        ttl: Duration::from_secs(60),
    };
    let done = world
        .interrupts
        .consume(&agent(), None, consume)
        .await
        .unwrap();
    let acknowledge = Acknowledge {
        interrupt: id,
        token: done.receipt.token.revision(done.revision),
        outcome: "done".to_owned(),
    };
    world
        .interrupts
        .acknowledge(&agent(), None, acknowledge)
        .await
        .unwrap();
}

#[tokio::test]
async fn one_consumer_acts_on_an_answer_until_its_time_is_over() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        let consume = |who: &str| Consume {
            interrupt: id,
            consumer: who.parse().unwrap(),
            ttl: Duration::from_secs(60),
        };
        let bot = agent();
        let take = async |who: &str| {
            let done = world.interrupts.consume(&bot, None, consume(who)).await?;
            Ok::<_, Error>(done.receipt.token.revision(done.revision))
        };
        let refused = take("one").await.unwrap_err();
        assert_eq!(refused.reason, Reason::InterruptsPending);
        world.decide(id, approve()).await;

        let token = take("one").await.unwrap();
        let refused = take("two").await.unwrap_err();
        assert_eq!(refused.reason, Reason::AlreadyConsumed);
        assert_eq!(take("one").await.unwrap(), token, "renewed");

        world.clock.advance(Duration::from_secs(60));
        let taken_over = take("two").await.unwrap();
        assert_ne!(taken_over, token);
        let acknowledge = |token| Acknowledge {
            interrupt: id,
            token,
            outcome: "done".to_owned(),
        };
        let fenced = world
            .interrupts
            .acknowledge(&bot, None, acknowledge(token))
            .await;
        assert_eq!(fenced.unwrap_err().reason, Reason::Fenced);
        for _ in 0..2 {
            let done = world
                .interrupts
                .acknowledge(&bot, None, acknowledge(taken_over));
            done.await.unwrap();
        }
        assert!(!world.get(id).await.is_live());
        assert!(take("three").await.is_err());
    }
}

#[tokio::test]
async fn a_replayed_consumption_is_refused_once_another_has_taken_over() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        world.decide(id, approve()).await;
        let consume = |who: &str| Consume {
            interrupt: id,
            consumer: who.parse().unwrap(),
            ttl: Duration::from_secs(60),
        };
        let (bot, request) = (agent(), Some(Uuid::from_u128(1)));
        let first = world
            .interrupts
            .consume(&bot, request, consume("one"))
            .await
            .unwrap();
        let again = world
            .interrupts
            .consume(&bot, request, consume("one"))
            .await
            .unwrap();
        assert!(again.replayed);
        assert_eq!(
            again.receipt.token.revision(again.revision),
            first.receipt.token.revision(first.revision)
        );
        world.clock.advance(Duration::from_secs(60));
        world
            .interrupts
            .consume(&bot, None, consume("two"))
            .await
            .unwrap();
        let lost = world
            .interrupts
            .consume(&bot, request, consume("one"))
            .await;
        assert_eq!(lost.unwrap_err().reason, Reason::LeaseLost);
    }
}

#[tokio::test]
async fn what_is_withdrawn_is_not_decided() {
    for world in World::each() {
        let id = world.ask(may("book", "{}")).await;
        let cancel = || Cancel {
            interrupt: id,
            seen: None,
            comment: String::new(),
        };
        for _ in 0..2 {
            world
                .interrupts
                .cancel(&agent(), None, cancel())
                .await
                .unwrap();
        }
        let answer = world.answer(id, approve()).await;
        let refused = world
            .interrupts
            .decide(&reviewer("rita"), None, vec![answer])
            .await;
        assert_eq!(refused.unwrap_err().reason, Reason::NotPending);
    }
}

#[tokio::test]
async fn a_request_only_tightens_the_policy() {
    for world in World::each() {
        let with = |policy: PolicyRequest| InterruptSpec {
            policy,
            ..may("book", "{}")
        };
        let nothing = PolicyRequest::default;
        for (field, policy) in [
            (
                "on_expire",
                PolicyRequest {
                    on_expire: Some(OnExpire::Approve),
                    ..nothing()
                },
            ),
            (
                "on_expire",
                PolicyRequest {
                    on_expire: Some(OnExpire::Default),
                    default_json: Some("1".to_owned()),
                    ..nothing()
                },
            ),
            (
                "tool_grants",
                PolicyRequest {
                    tool_grants: Some(true),
                    ..nothing()
                },
            ),
            (
                "on_lost_consumer",
                PolicyRequest {
                    retry_on_lost_consumer: Some(true),
                    ..nothing()
                },
            ),
        ] {
            let refused = world.try_ask(with(policy), None).await.unwrap_err();
            assert_eq!(refused.reason, Reason::ArgumentInvalid);
            let field = format!("interrupt.policy.{field}");
            assert_eq!(refused.field.as_ref(), Some(&field));
            assert!(refused.message.starts_with(&field), "{refused}");
        }
        let id = world
            .ask(with(PolicyRequest {
                exclude_requester: Some(true),
                comment_required: vec![DecisionKind::Approve],
                ..nothing()
            }))
            .await;
        let bot = caller("bot", &[Role::Agent, Role::Reviewer]);
        let answer = world.answer(id, approve()).await;
        let rita = reviewer("rita");
        let refused = world
            .interrupts
            .decide(&rita, None, vec![answer.clone()])
            .await;
        assert_eq!(refused.unwrap_err().reason, Reason::CommentRequired);
        let answer = adjourn::service::interrupt::GivenAnswer {
            comment: "fine".to_owned(),
            ..answer
        };
        let refused = world
            .interrupts
            .decide(&bot, None, vec![answer.clone()])
            .await;
        assert_eq!(refused.unwrap_err().reason, Reason::ApproverExcluded);
        world
            .interrupts
            .decide(&rita, None, vec![answer])
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn lists_stay_as_they_were_while_pages_are_turned() {
    for world in World::each() {
        let mut ids = Vec::new();
        for number in 0..25 {
            world.clock.advance(Duration::from_millis(1));
            ids.push(world.ask(may("book", &format!("{{\"n\":{number}}}"))).await);
        }
        let filter = Filter {
            states: vec![InterruptState::Pending],
            ..Filter::default()
        };
        for (order, expected) in [
            (ListOrder::Oldest, ids.clone()),
            (ListOrder::Newest, ids.iter().rev().copied().collect()),
        ] {
            let (mut token, mut found) = (String::new(), Vec::new());
            loop {
                let vera = viewer();
                let list = world
                    .interrupts
                    .list(&vera, filter.clone(), order, 10, &token);
                let page = list.await.unwrap();
                found.extend(page.items.iter().map(|(interrupt, _)| interrupt.id));
                token = page.next;
                // What happens between two pages is of another revision.
                world.clock.advance(Duration::from_millis(1));
                let fresh = world.ask(may("late", "{}")).await;
                let cancel = |id| Cancel {
                    interrupt: id,
                    seen: None,
                    comment: String::new(),
                };
                world
                    .interrupts
                    .cancel(&agent(), None, cancel(fresh))
                    .await
                    .unwrap();
                if token.is_empty() {
                    break;
                }
                let gone = ids[found.len() + 1];
                if order == ListOrder::Newest {
                    world
                        .interrupts
                        .cancel(&agent(), None, cancel(gone))
                        .await
                        .unwrap();
                }
            }
            assert_eq!(found, expected);
        }
    }
}

#[tokio::test]
async fn a_page_token_goes_with_its_filter_only() {
    for world in World::each() {
        for number in 0..3 {
            world.ask(may("book", &format!("{{\"n\":{number}}}"))).await;
        }
        let list = async |filter: Filter, token: &str| {
            world
                .interrupts
                .list(&viewer(), filter, ListOrder::Newest, 1, token)
                .await
        };
        let token = list(Filter::default(), "").await.unwrap().next;
        let other = Filter {
            tools: vec!["book".to_owned()],
            ..Filter::default()
        };
        let refused = list(other, &token).await;
        assert_eq!(refused.unwrap_err().reason, Reason::PageTokenInvalid);
        let refused = list(Filter::default(), "garbage").await;
        assert_eq!(refused.unwrap_err().reason, Reason::PageTokenInvalid);
    }
}

#[tokio::test]
async fn an_answer_has_to_fit_the_schema_of_the_question() {
    for world in World::each() {
        let schema = Some(r#"{"required":["seats"]}"#.to_owned());
        let mut spec = may("book", "{}");
        spec.allowed.push(DecisionKind::Respond);
        spec.response_schema_json = Some(r#"{"type":"string"}"#.to_owned());
        spec.action
            .as_mut()
            .unwrap()
            .args_schema_json
            .clone_from(&schema);
        let (id, other) = (world.ask(spec.clone()).await, world.ask(spec).await);
        let rita = reviewer("rita");
        let edit = |args: &str| Answer::Edit {
            args_json: args.to_owned(),
        };
        let respond = |value: &str| Answer::Respond {
            value_json: value.to_owned(),
        };
        for (answer, field) in [
            (edit("{}"), "answer.edit.args_json"),
            (respond("1"), "answer.respond.value_json"),
        ] {
            let given = world.answer(id, answer).await;
            let refused = world.interrupts.decide(&rita, None, vec![given]).await;
            let refused = refused.unwrap_err();
            assert_eq!(refused.reason, Reason::ArgumentInvalid);
            assert_eq!(refused.field.as_deref(), Some(field));
        }
        let batch = vec![
            world.answer(other, approve()).await,
            world.answer(id, edit("{}")).await,
        ];
        let refused = world
            .interrupts
            .decide(&rita, None, batch)
            .await
            .unwrap_err();
        let field = "decisions[1].answer.edit.args_json";
        assert_eq!(refused.field.as_deref(), Some(field));
        assert_eq!(world.get(other).await.state, InterruptState::Pending);
        world.decide(id, edit(r#"{"seats":2}"#)).await;
        world.decide(other, respond("\"yes\"")).await;
    }
}
