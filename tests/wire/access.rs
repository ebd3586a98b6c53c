//! Who gets in, and what they may call.

use adjourn::proto::v1::{
    DecideInterruptRequest, GetSessionRequest, ListSessionsRequest, SessionRef,
    WatchInterruptsRequest, watch_interrupts_request,
};
use tonic::{Code, Request};

use crate::harness::{Running, append, reason, with_key};

#[tokio::test]
async fn without_keys_a_local_caller_is_an_agent_and_never_a_reviewer() {
    let server = Running::start(&["127.0.0.1:0"], false).await;
    let mut sessions = server.sessions().await;
    sessions
        .append_messages(append("s", "hello"))
        .await
        .unwrap();
    let mut interrupts = server.interrupts().await;
    let refused = interrupts
        .decide_interrupt(DecideInterruptRequest::default())
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::PermissionDenied, "PERMISSION_DENIED")
    );
    // The reviewer's key lies beside the store, and decides.
    let key = std::fs::read_to_string(server.directory.path().join("a.db.reviewer-key")).unwrap();
    let request = with_key(DecideInterruptRequest::default(), key.trim());
    let refused = interrupts.decide_interrupt(request).await.unwrap_err();
    assert_eq!(
        reason(&refused),
        "ARGUMENT_INVALID",
        "a reviewer gets as far as the request"
    );
}

#[tokio::test]
async fn the_reviewers_key_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let server = Running::start(&["127.0.0.1:0"], false).await;
    let file = server.directory.path().join("a.db.reviewer-key");
    assert_eq!(
        std::fs::metadata(file).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[tokio::test]
async fn a_key_that_is_wrong_is_refused_and_not_taken_for_none() {
    for with_keys in [false, true] {
        let server = Running::start(&["127.0.0.1:0"], with_keys).await;
        let refused = server
            .sessions()
            .await
            .append_messages(with_key(append("s", "x"), "adjourn_nonsense"))
            .await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    }
}

#[tokio::test]
async fn with_keys_nobody_gets_in_without_one() {
    let server = Running::start(&["127.0.0.1:0"], true).await;
    let refused = server
        .sessions()
        .await
        .append_messages(append("s", "x"))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::Unauthenticated, "UNAUTHENTICATED")
    );
}

#[tokio::test]
async fn one_tenant_never_sees_another() {
    let server = Running::start(&["127.0.0.1:0"], true).await;
    let (ours, theirs) = (
        server.key("a", "one", &["agent"]),
        server.key("b", "two", &["agent"]),
    );
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    let mut sessions = server.sessions().await;
    sessions
        .append_messages(with_key(append("s", "x"), &ours))
        .await
        .unwrap();
    let key = SessionRef {
        session_id: "s".to_owned(),
        ..SessionRef::default()
    };
    let get = GetSessionRequest { session: Some(key) };
    assert!(
        sessions
            .get_session(with_key(get.clone(), &ours))
            .await
            .is_ok()
    );
    let refused = sessions
        .get_session(with_key(get, &theirs))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::NotFound, "SESSION_NOT_FOUND")
    );
    let list = sessions
        .list_sessions(with_key(ListSessionsRequest::default(), &theirs))
        .await
        .unwrap();
    assert!(list.into_inner().sessions.is_empty());
}

#[tokio::test]
async fn a_viewer_only_reads() {
    let server = Running::start(&["127.0.0.1:0"], true).await;
    let viewer = server.key("a", "vera", &["viewer"]);
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    let mut sessions = server.sessions().await;
    assert!(
        sessions
            .list_sessions(with_key(ListSessionsRequest::default(), &viewer))
            .await
            .is_ok()
    );
    let refused = sessions
        .append_messages(with_key(append("s", "x"), &viewer))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn revoking_a_key_refuses_it_and_ends_its_streams() {
    let server = Running::start(&["127.0.0.1:0"], true).await;
    let key = server.key("a", "rita", &["reviewer"]);
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    let mut interrupts = server.interrupts().await;
    let watch = WatchInterruptsRequest {
        filter: None,
        start: Some(watch_interrupts_request::Start::InitialState(true)),
    };
    let mut stream = interrupts
        .watch_interrupts(with_key(watch, &key))
        .await
        .unwrap()
        .into_inner();
    assert!(stream.message().await.unwrap().is_some(), "synced");
    server.revoke("rita");
    let ended = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a word"),
                Err(status) => return status,
            }
        }
    };
    let ended = tokio::time::timeout(std::time::Duration::from_secs(30), ended)
        .await
        .unwrap();
    assert_eq!(ended.code(), Code::Unauthenticated);
    let refused = server
        .sessions()
        .await
        .list_sessions(with_key(ListSessionsRequest::default(), &key))
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_page_of_another_site_is_refused() {
    let server = Running::start(&["127.0.0.1:0"], false).await;
    let mut request = Request::new(append("s", "x"));
    request
        .metadata_mut()
        .insert("origin", "https://evil.example".parse().unwrap());
    let refused = server
        .sessions()
        .await
        .append_messages(request)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_key_for_one_user_sees_no_thread_of_another() {
    use adjourn::proto::v1::checkpoint_service_client::CheckpointServiceClient;
    use adjourn::proto::v1::{AcquireThreadRequest, GetThreadRequest, ThreadRef};

    let server = Running::start(&["127.0.0.1:0"], true).await;
    let ann = server.key_of("a", "ann-agent", &["agent"], Some("ann"));
    let bob = server.key_of("a", "bob-agent", &["agent"], Some("bob"));
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    let mut threads = CheckpointServiceClient::new(server.channel().await);
    let thread = ThreadRef {
        thread_id: "t".to_owned(),
        ..ThreadRef::default()
    };
    let acquire = |user: &str| AcquireThreadRequest {
        thread: Some(thread.clone()),
        session: Some(SessionRef {
            user_id: Some(user.to_owned()),
            session_id: "s".to_owned(),
            ..SessionRef::default()
        }),
        consumer_id: format!("of-{user}"),
        ..AcquireThreadRequest::default()
    };
    threads
        .acquire_thread(with_key(acquire("ann"), &ann))
        .await
        .unwrap();
    let get = GetThreadRequest {
        thread: Some(thread.clone()),
    };
    assert!(
        threads
            .get_thread(with_key(get.clone(), &ann))
            .await
            .is_ok()
    );
    let refused = threads.get_thread(with_key(get, &bob)).await.unwrap_err();
    assert_eq!(reason(&refused), "THREAD_NOT_FOUND");
    let refused = threads
        .acquire_thread(with_key(acquire("bob"), &bob))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), "THREAD_NOT_FOUND");
}
