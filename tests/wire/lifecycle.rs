//! How a server starts, says how it is, refuses what is too large, and stops.

use std::time::Duration;

use adjourn::proto::v1::{
    ListSessionsRequest, WatchInterruptsRequest, goodbye, watch_interrupts_request,
    watch_interrupts_response,
};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::harness::{Running, append, connect, reason};

#[tokio::test]
async fn the_ready_file_says_where_it_listens_on_tcp_and_unix() {
    let server = Running::start(&["127.0.0.1:0", "unix:DIR/a.sock"], false).await;
    let text = std::fs::read_to_string(server.ready_file()).unwrap();
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(said, serde_json::json!({ "listen": server.addresses }));
    for address in &server.addresses {
        let channel = connect(address).await;
        let mut sessions =
            adjourn::proto::v1::session_service_client::SessionServiceClient::new(channel);
        sessions.append_messages(append("s", "x")).await.unwrap();
    }
}

#[tokio::test]
async fn a_socket_that_a_killed_server_left_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let listen = format!("unix:{}", socket.display());
    let server = Running::start(&[&listen], false).await;
    connect(&server.addresses[0]).await;
}

#[tokio::test]
async fn each_service_says_how_it_is() {
    let server = Running::start(&["127.0.0.1:0"], true).await;
    let mut health = HealthClient::new(server.channel().await);
    for service in [
        "",
        "adjourn.v1.SessionService",
        "adjourn.v1.InterruptService",
        "adjourn.v1.CheckpointService",
    ] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        assert_eq!(
            health.check(request).await.unwrap().into_inner().status,
            1,
            "{service}"
        );
    }
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let server = Running::start(&["127.0.0.1:0"], true).await;
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection
        .server_reflection_info(tokio_stream::once(ask))
        .await
        .unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list")
    };
    let names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    assert!(
        names.contains(&"adjourn.v1.CheckpointService".to_owned()),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_request_of_70_mib_is_refused_with_the_limit() {
    let server = Running::start(&["127.0.0.1:0"], false).await;
    let huge = append("s", &"x".repeat(70 << 20));
    let mut sessions = server.sessions().await;
    let refused = sessions.append_messages(huge).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::ResourceExhausted, "LIMIT_EXCEEDED")
    );
    let list = sessions
        .list_sessions(ListSessionsRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(list.sessions.is_empty(), "nothing was written");
}

#[tokio::test]
async fn a_server_that_stops_says_goodbye_and_lets_go_of_the_file() {
    let mut server = Running::start(&["127.0.0.1:0"], false).await;
    let watch = WatchInterruptsRequest {
        filter: None,
        start: Some(watch_interrupts_request::Start::InitialState(true)),
    };
    let mut stream = server
        .interrupts()
        .await
        .watch_interrupts(watch)
        .await
        .unwrap()
        .into_inner();
    assert!(stream.message().await.unwrap().is_some(), "synced");
    server.signal();
    let last = tokio::time::timeout(Duration::from_secs(5), async {
        let mut last = None;
        while let Some(said) = stream.message().await.unwrap() {
            last = Some(said);
        }
        last.unwrap()
    });
    let last = last.await.unwrap();
    let Some(watch_interrupts_response::Event::Goodbye(bye)) = last.event else {
        panic!("{last:?}")
    };
    assert_eq!(bye.reason(), goodbye::Reason::Drain);
    assert!(!last.cursor.is_empty());
    server.stopped().await;
}
