//! What calls cost over a socket beside a bare echo of the same size, in one run on
//! one machine: `cargo bench --bench rpc`.
//!
//! Ratios count, not numbers. Each is the median of several rounds in which the two
//! take turns, with the load on the same cores as the server.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a measurement that cannot be made has failed, and its numbers are its product"
)]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adjourn::config::{ServeArgs, Settings};
use adjourn::proto::v1::session_service_client::SessionServiceClient;
use adjourn::proto::v1::timeline_service_client::TimelineServiceClient;
use adjourn::proto::v1::timeline_service_server::{TimelineService, TimelineServiceServer};
use adjourn::proto::v1::{self, message};
use adjourn::server::Server;
use futures::Stream;
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use uuid::Uuid;

const ROUNDS: usize = 5;
const CALLERS: usize = 64;
const CHANNELS: usize = 4;
const CALLS: usize = 12_800;
const ALONE: usize = 400;
const BODY: usize = 1024;
const SMALL: usize = 200;

/// Answers what it is sent, and stores nothing.
struct Echo;

type Nothing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl TimelineService for Echo {
    async fn list_entries(
        &self,
        _request: Request<v1::ListEntriesRequest>,
    ) -> Result<Response<v1::ListEntriesResponse>, Status> {
        Err(Status::unimplemented("an echo has no entries"))
    }

    type WatchTimelineStream = Nothing<v1::WatchTimelineResponse>;

    async fn watch_timeline(
        &self,
        _request: Request<v1::WatchTimelineRequest>,
    ) -> Result<Response<Self::WatchTimelineStream>, Status> {
        Err(Status::unimplemented("an echo has no entries"))
    }

    async fn append_entry(
        &self,
        request: Request<v1::AppendEntryRequest>,
    ) -> Result<Response<v1::AppendEntryResponse>, Status> {
        let entry = v1::TimelineEntry {
            label: request.into_inner().label,
            ..v1::TimelineEntry::default()
        };
        Ok(Response::new(v1::AppendEntryResponse {
            entry: Some(entry),
            revision: 0,
        }))
    }
}

async fn channels(address: &str) -> Vec<Channel> {
    let mut channels = Vec::new();
    for _ in 0..CHANNELS {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .unwrap()
            .tcp_nodelay(true);
        channels.push(endpoint.connect().await.unwrap());
    }
    channels
}

async fn serve_echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = TcpListenerStream::new(listener)
        .map(|accepted| accepted.inspect(|stream| stream.set_nodelay(true).unwrap()));
    let server = tonic::transport::Server::builder().add_service(TimelineServiceServer::new(Echo));
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

async fn serve_adjourn(directory: &std::path::Path) -> String {
    let settings = Settings::resolve(ServeArgs {
        listen: vec!["127.0.0.1:0".to_owned()],
        storage: Some(format!("sqlite:{}", directory.join("bench.db").display())),
        ..ServeArgs::default()
    });
    let server = Server::bind(settings.unwrap()).await.unwrap();
    let address = server.addresses().remove(0);
    tokio::spawn(async move { server.run(std::future::pending()).await.unwrap() });
    address
}

async fn echo(channel: Channel, size: usize) {
    let request = v1::AppendEntryRequest {
        label: "x".repeat(size),
        ..v1::AppendEntryRequest::default()
    };
    TimelineServiceClient::new(channel)
        .append_entry(request)
        .await
        .unwrap();
}

fn session(caller: usize) -> v1::SessionRef {
    v1::SessionRef {
        session_id: format!("bench-{caller}"),
        ..v1::SessionRef::default()
    }
}

async fn append(channel: Channel, caller: usize) {
    let message = v1::Message {
        role: message::Role::User.into(),
        content: Some(message::Content::Text("x".repeat(BODY))),
        ..v1::Message::default()
    };
    let request = v1::AppendMessagesRequest {
        session: Some(session(caller)),
        messages: vec![message],
        request_id: Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 0, 0)).to_string(),
        ..v1::AppendMessagesRequest::default()
    };
    SessionServiceClient::new(channel)
        .append_messages(request)
        .await
        .unwrap();
}

async fn read(channel: Channel, caller: usize) {
    let request = v1::GetSessionRequest {
        session: Some(session(caller)),
    };
    SessionServiceClient::new(channel)
        .get_session(request)
        .await
        .unwrap();
}

/// Calls a second, with many callers at once.
async fn rate<F>(
    channels: &[Channel],
    call: impl Fn(Channel, usize) -> F + Clone + Send + 'static,
) -> f64
where
    F: Future<Output = ()> + Send,
{
    let left = Arc::new(AtomicUsize::new(CALLS));
    let start = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (left, channel, call) = (
            Arc::clone(&left),
            channels[caller % CHANNELS].clone(),
            call.clone(),
        );
        callers.spawn(async move {
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
            {
                call(channel.clone(), caller).await;
            }
        });
    }
    callers.join_all().await;
    CALLS as f64 / start.elapsed().as_secs_f64()
}

/// The median time of a call of one caller alone.
async fn alone<F: Future<Output = ()>>(
    channel: &Channel,
    call: impl Fn(Channel, usize) -> F,
) -> Duration {
    let mut times = Vec::with_capacity(ALONE);
    for _ in 0..ALONE {
        let start = Instant::now();
        call(channel.clone(), 0).await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[ALONE / 2]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() {
    let directory = tempfile::tempdir().unwrap();
    let bare = channels(&serve_echo().await).await;
    let ours = channels(&serve_adjourn(directory.path()).await).await;
    for caller in 0..CALLERS {
        append(ours[0].clone(), caller).await;
    }
    let mut rounds: Vec<[f64; 6]> = Vec::new();
    for round in 0..ROUNDS {
        let figures = [
            rate(&bare, |channel, _| echo(channel, BODY)).await,
            rate(&ours, append).await,
            rate(&bare, |channel, _| echo(channel, SMALL)).await,
            rate(&ours, read).await,
            alone(&bare[0], |channel, _| echo(channel, BODY))
                .await
                .as_secs_f64()
                * 1e6,
            alone(&ours[0], append).await.as_secs_f64() * 1e6,
        ];
        println!(
            "round {round}: echo 1 KB {:.0}/s, append {:.0}/s | echo 200 B {:.0}/s, read {:.0}/s | alone: echo {:.0} us, append {:.0} us",
            figures[0], figures[1], figures[2], figures[3], figures[4], figures[5]
        );
        rounds.push(figures);
    }
    let figure = |at: usize| median(rounds.iter().map(|round| round[at]).collect());
    let ratio = |above: usize, below: usize| {
        median(
            rounds
                .iter()
                .map(|round| round[above] / round[below])
                .collect(),
        )
    };
    println!("\n{CALLERS} callers over {CHANNELS} connections, medians of {ROUNDS} rounds");
    println!(
        "durable append of 1 KB / echo of 1 KB   {:.2}  ({:.0}/s, {:.0}/s)",
        ratio(1, 0),
        figure(1),
        figure(0)
    );
    println!(
        "read of a session / echo of 200 B       {:.2}  ({:.0}/s, {:.0}/s)",
        ratio(3, 2),
        figure(3),
        figure(2)
    );
    println!(
        "one caller alone: append {:.0} us, echo {:.0} us at the median",
        figure(5),
        figure(4)
    );
}
