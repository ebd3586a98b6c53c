use super::*;
use crate::domain::id::AgentId;

const NOW: Timestamp = Timestamp::from_micros(1_000_000);
const SEEN: Revision = Revision::new(7);

fn name(name: &str) -> PrincipalName {
    name.parse().unwrap()
}

/// A question about a call, stored at [`SEEN`].
fn question() -> Interrupt {
    let id = InterruptId::from_uuid(uuid::Uuid::from_u128(1));
    Interrupt {
        action: Some(Action::of("book")),
        allowed: vec![
            DecisionKind::Approve,
            DecisionKind::Edit,
            DecisionKind::Reject,
        ],
        etag: Stamp::at(SEEN),
        ..Interrupt::new(
            id,
            AgentId::default(),
            InterruptKind::Approval,
            name("bot"),
            NOW,
        )
    }
}

fn with_votes(required_approvals: u32) -> Interrupt {
    Interrupt {
        policy: Policy {
            required_approvals,
            ..Policy::default()
        },
        ..question()
    }
}

fn by(who: &str, answer: Answer) -> Decision {
    Decision::by((name(who), "api_key".to_owned()), answer, "", SEEN, NOW)
}

fn approve() -> Answer {
    Answer::Approve { grant: None }
}

fn edit() -> Answer {
    Answer::Edit {
        args_json: r#"{"seats":2}"#.to_owned(),
    }
}

fn reject() -> Answer {
    Answer::Reject {
        reason: String::new(),
    }
}

/// Why an answer is refused; and that it left no trace.
fn refusal(interrupt: &mut Interrupt, decision: Decision) -> Reason {
    let before = interrupt.clone();
    let refused = interrupt.decide(decision).unwrap_err();
    assert_eq!(*interrupt, before);
    refused.reason
}

#[test]
fn one_answer_of_an_allowed_kind_decides() {
    for answer in [approve(), edit(), reject()] {
        let mut interrupt = question();
        assert_eq!(
            interrupt.decide(by("rita", answer.clone())),
            Ok(Decided::Resolved)
        );
        assert_eq!(interrupt.state, InterruptState::Resolved);
        assert_eq!(interrupt.resolution().map(|won| &won.answer), Some(&answer));
        assert_eq!(
            refusal(&mut interrupt, by("rob", approve())),
            Reason::AlreadyDecided
        );
    }
    let respond = Answer::Respond {
        value_json: "1".to_owned(),
    };
    for answer in [respond, Answer::Skip] {
        assert_eq!(
            refusal(&mut question(), by("rita", answer)),
            Reason::HitlDecision
        );
    }
}

#[test]
fn a_postponed_question_stays_open() {
    let mut interrupt = question();
    assert_eq!(
        interrupt.decide(by("rita", Answer::Suspend)),
        Ok(Decided::Postponed)
    );
    assert_eq!(interrupt.state, InterruptState::Pending);
    assert!(interrupt.etag.is(SEEN));
    assert_eq!(
        interrupt.decide(by("rita", approve())),
        Ok(Decided::Resolved)
    );
}

#[test]
fn a_person_has_one_vote() {
    let mut interrupt = with_votes(2);
    assert_eq!(interrupt.decide(by("rita", approve())), Ok(Decided::Voted));
    assert_eq!(interrupt.decide(by("rita", approve())), Ok(Decided::Voted));
    assert!(interrupt.etag.is(SEEN), "a vote changes no etag");
    assert_eq!(
        interrupt.decide(by("rob", approve())),
        Ok(Decided::Resolved)
    );
    assert_eq!(interrupt.resolution().unwrap().actor, name("rob"));
}

#[test]
fn one_rejection_is_enough() {
    let mut interrupt = with_votes(3);
    interrupt.decide(by("rita", approve())).unwrap();
    assert_eq!(interrupt.decide(by("rob", reject())), Ok(Decided::Resolved));
}

#[test]
fn an_edit_among_several_voters_asks_all_of_them_anew() {
    let mut interrupt = with_votes(2);
    interrupt.decide(by("rita", approve())).unwrap();
    assert_eq!(interrupt.decide(by("rob", edit())), Ok(Decided::Amended));
    assert!(!interrupt.etag.is(SEEN));
    assert!(interrupt.is_voided(0));
    let action = interrupt.action.clone().unwrap();
    assert_eq!(action.args_json.as_deref(), Some(r#"{"seats":2}"#));
    assert_eq!(
        action.digest,
        json::action_digest_hex("book", action.args_json.as_deref())
    );
    assert_eq!(
        refusal(&mut interrupt, by("rosa", approve())),
        Reason::EtagMismatch
    );

    interrupt.etag = Stamp::at(SEEN);
    assert_eq!(interrupt.decide(by("rita", approve())), Ok(Decided::Voted));
    assert!(!interrupt.is_voided(2));
    assert_eq!(
        interrupt.decide(by("rosa", approve())),
        Ok(Decided::Resolved)
    );
    assert_eq!(interrupt.resolution().unwrap().action_digest, action.digest);
}

#[test]
fn whoever_asked_or_changed_the_arguments_is_kept_out_where_the_policy_says_so() {
    let mut interrupt = with_votes(2);
    interrupt.policy.exclude_requester = true;
    assert_eq!(
        refusal(&mut interrupt, by("bot", approve())),
        Reason::ApproverExcluded
    );
    interrupt.decide(by("rob", edit())).unwrap();
    interrupt.etag = Stamp::at(SEEN);
    assert_eq!(
        refusal(&mut interrupt, by("rob", approve())),
        Reason::ApproverExcluded
    );
    let mut open = question();
    assert_eq!(open.decide(by("bot", approve())), Ok(Decided::Resolved));
}

#[test]
fn an_answer_comes_too_late_or_about_something_else() {
    let mut overdue = Interrupt {
        expires_at: Some(NOW),
        ..question()
    };
    assert_eq!(
        refusal(&mut overdue, by("rita", approve())),
        Reason::InterruptOverdue
    );
    let other = Decision {
        seen: Revision::new(6),
        ..by("rita", approve())
    };
    assert_eq!(refusal(&mut question(), other), Reason::EtagMismatch);
    let mut gone = question();
    gone.cancel(NOW);
    assert_eq!(
        refusal(&mut gone, by("rita", approve())),
        Reason::NotPending
    );
}

#[test]
fn a_notice_is_closed_by_a_skip_only() {
    let notice = || Interrupt {
        kind: InterruptKind::Notice,
        allowed: Vec::new(),
        ..question()
    };
    assert_eq!(
        refusal(&mut notice(), by("rita", approve())),
        Reason::HitlDecision
    );
    assert_eq!(
        notice().decide(by("rita", Answer::Skip)),
        Ok(Decided::Resolved)
    );
}

#[test]
fn a_choice_is_answered_by_one_of_its_choices() {
    let choice = || Interrupt {
        kind: InterruptKind::Choice,
        allowed: vec![DecisionKind::Respond],
        choices: vec![Choice {
            id: "a".to_owned(),
            title: "A".to_owned(),
            description: String::new(),
            prompt_fill: String::new(),
            style: String::new(),
        }],
        ..question()
    };
    let choose = |id: &str| Answer::Choose {
        choice_id: id.to_owned(),
    };
    let value = Answer::Respond {
        value_json: "\"a\"".to_owned(),
    };
    for wrong in [choose("b"), value] {
        assert_eq!(
            refusal(&mut choice(), by("rita", wrong)),
            Reason::ArgumentInvalid
        );
    }
    assert_eq!(
        choice().decide(by("rita", choose("a"))),
        Ok(Decided::Resolved)
    );
}

#[test]
fn expiry_answers_only_where_the_policy_has_an_answer() {
    for (on_expire, default_json, state) in [
        (OnExpire::Expire, None, InterruptState::Expired),
        (OnExpire::Approve, None, InterruptState::Resolved),
        (OnExpire::Reject, None, InterruptState::Resolved),
        (OnExpire::Default, Some("1"), InterruptState::Resolved),
        (OnExpire::Default, None, InterruptState::Expired),
    ] {
        let mut interrupt = question();
        interrupt.policy.on_expire = on_expire;
        interrupt.policy.default_json = default_json.map(ToOwned::to_owned);
        interrupt.expire(NOW, PrincipalName::server());
        assert_eq!(interrupt.state, state, "{on_expire:?} {default_json:?}");
        let source = interrupt.resolution().map(|decision| decision.source);
        assert_eq!(
            source,
            (state == InterruptState::Resolved).then_some(DecisionSource::Timeout)
        );
    }
}

#[test]
fn what_lets_a_call_pass_without_a_person_is_the_admins_to_say() {
    let admin = Policy {
        required_approvals: 2,
        exclude_requester: true,
        on_expire: OnExpire::Approve,
        tool_grants: true,
        retry_on_lost_consumer: true,
        ..Policy::default()
    };
    let nothing = PolicyRequest::default;
    assert_eq!(admin.tightened(&nothing(), "policy"), Ok(admin.clone()));

    let strict = PolicyRequest {
        required_approvals: Some(3),
        on_expire: Some(OnExpire::Expire),
        tool_grants: Some(false),
        retry_on_lost_consumer: Some(false),
        ..nothing()
    };
    let expected = Policy {
        required_approvals: 3,
        exclude_requester: true,
        ..Policy::default()
    };
    assert_eq!(admin.tightened(&strict, "policy"), Ok(expected));
    let same = PolicyRequest {
        on_expire: Some(OnExpire::Approve),
        tool_grants: Some(true),
        ..nothing()
    };
    assert_eq!(admin.tightened(&same, "policy"), Ok(admin.clone()));

    for (field, looser) in [
        (
            "required_approvals",
            PolicyRequest {
                required_approvals: Some(1),
                ..nothing()
            },
        ),
        (
            "exclude_requester",
            PolicyRequest {
                exclude_requester: Some(false),
                ..nothing()
            },
        ),
        (
            "on_expire",
            PolicyRequest {
                on_expire: Some(OnExpire::Default),
                ..nothing()
            },
        ),
    ] {
        let refused = admin.tightened(&looser, "policy").unwrap_err();
        assert_eq!(refused.field, Some(format!("policy.{field}")));
    }
}

#[test]
fn an_answer_nobody_acted_on_is_dropped_with_what_it_was_for() {
    let mut pending = question();
    assert!(pending.drop_for_good(NOW));
    assert_eq!(pending.state, InterruptState::Cancelled);
    let mut answered = question();
    answered.decide(by("rita", approve())).unwrap();
    assert!(answered.is_live());
    assert!(answered.drop_for_good(NOW));
    assert!(!answered.is_live());
    assert_eq!(answered.state, InterruptState::Resolved);
    assert!(!answered.drop_for_good(NOW));
}

#[test]
fn an_answer_that_somebody_acts_on_is_not_taken_back_by_another_question() {
    let next = InterruptId::from_uuid(uuid::Uuid::from_u128(2));
    let mut waiting = question();
    waiting.decide(by("rita", approve())).unwrap();
    let mut taken = waiting.clone();
    waiting.supersede(next, NOW);
    assert_eq!(waiting.state, InterruptState::Superseded);

    let worker = "worker".parse().unwrap();
    taken.consume(&worker, Duration::from_mins(1), NOW).unwrap();
    taken.supersede(next, NOW);
    assert_eq!(taken.state, InterruptState::Resolved);
    assert_eq!(taken.superseded_by, Some(next));
}
