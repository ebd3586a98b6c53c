//! `adjourn demo`: the whole story, on a recorded conversation.
//!
//! A server runs on a temporary SQLite file. An agent, in a process of its own,
//! plays a recorded conversation until a change of a booking needs a person, and
//! exits. The server is killed and started again: the question is still there. A
//! person decides. The server is killed once more, and another process resumes the
//! thread, runs the change and finishes. A third one finds nothing left to resume.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Deserialize;
use tokio::process::{Child, Command};

use super::client::{Client, Connection, refused, request_id};
use super::{Error, output, sessions};
use crate::proto::v1::{self, SessionRef, ThreadRef};

/// The recording: an excerpt of τ-bench (Sierra, MIT licence).
const RECORDING: &str = include_str!("../../tests/data/booking.json");
/// The tool whose calls a person has to allow.
const HELD: &str = "update_reservation_passengers";
const AGENT: &str = "airline-desk";
const THREAD: &str = "booking-3RK2T9";
/// How long a started server may take to be ready.
const START: Duration = Duration::from_secs(20);

/// Play the whole story.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Approve without asking.
    #[arg(long)]
    pub yes: bool,
    /// One part of the story, which the demo starts as a process of its own.
    #[command(subcommand)]
    pub part: Option<Part>,
}

/// One part of the story.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Play the conversation until a call is held, and exit.
    #[command(hide = true)]
    Agent {
        /// The server.
        #[arg(long)]
        addr: String,
    },
    /// Resume the thread, run the call and finish.
    #[command(hide = true)]
    Resume {
        /// The server.
        #[arg(long)]
        addr: String,
    },
}

/// Plays it.
///
/// # Errors
///
/// When a step did not hold.
pub async fn run(args: DemoArgs) -> Result<(), Error> {
    match args.part {
        None => story(args.yes).await,
        Some(Part::Agent { addr }) => agent(&addr).await,
        Some(Part::Resume { addr }) => resume(&addr).await,
    }
}

async fn story(yes: bool) -> Result<(), Error> {
    let directory = Scratch::new()?;
    let store = directory.path.join("adjourn.db");
    step("A server starts on a temporary SQLite file.")?;
    let mut server = Running::start(&directory.path, &store).await?;

    step(
        "An agent, in a process of its own, plays a recorded conversation until a booking is to be changed.",
    )?;
    part("agent", &server.addr).await?;

    step(
        "The agent's process is gone. Now the server is killed (SIGKILL), and started again on the same file.",
    )?;
    server = server.kill_and_restart(&directory.path, &store).await?;

    let key = std::fs::read_to_string(directory.path.join("adjourn.db.reviewer-key"))?;
    let reviewer = Connection {
        addr: server.addr.clone(),
        key: Some(key.trim().to_owned()),
        json: false,
    };
    let mut client = reviewer.connect().await?;
    let interrupt = waiting(&mut client).await?;
    let action = interrupt
        .action
        .clone()
        .ok_or("the interrupt has no action")?;
    step("The question is still there. This is what a person sees:")?;
    output::line(&format!(
        "    {}\n    {} {}\n",
        interrupt.message,
        action.tool_name,
        action.args_json.as_deref().unwrap_or("{}")
    ))?;

    let approve = yes || ask()?;
    let decision = if approve {
        v1::answer::Decision::Approve(v1::Approve { grant: None })
    } else {
        v1::answer::Decision::Reject(v1::Reject {
            reason: "The desk says no.".to_owned(),
        })
    };
    let decide = v1::DecideInterruptRequest {
        interrupt_id: interrupt.interrupt_id.clone(),
        etag: interrupt.etag.clone(),
        answer: Some(v1::Answer {
            decision: Some(decision),
        }),
        comment: String::new(),
        request_id: request_id()?,
    };
    client
        .interrupts
        .decide_interrupt(decide.clone())
        .await
        .map_err(|status| refused(&status))?;
    step(if approve { "Approved." } else { "Rejected." })?;

    let again = v1::DecideInterruptRequest {
        request_id: request_id()?,
        ..decide
    };
    match client.interrupts.decide_interrupt(again).await {
        Err(status) if refused(&status).to_string().starts_with("ALREADY_DECIDED") => {
            step("A second click, from somebody else's screen, is told who has decided.")?;
        }
        Err(status) => return Err(refused(&status)),
        Ok(_) => return Err("the decision was taken twice".into()),
    }

    step("The server is killed once more, before anybody has acted on the decision.")?;
    server = server.kill_and_restart(&directory.path, &store).await?;

    step("Another process resumes the thread, and finishes the run.")?;
    part("resume", &server.addr).await?;

    step("A third process tries to resume the same thread.")?;
    if part("resume", &server.addr).await.is_ok() {
        return Err("the thread was resumed twice".into());
    }
    step("It was refused: the checkpoint is spent. The change ran once.")?;

    let reviewer = Connection {
        addr: server.addr.clone(),
        ..reviewer
    };
    let mut client = reviewer.connect().await?;
    let entries = sessions::entries(&mut client, session()).await?;
    step("The timeline:")?;
    sessions::print_entries(&entries)?;
    check_timeline(&entries)?;
    check_history(&mut client, approve).await?;
    server.stop().await?;
    step("Every step held.")
}

/// Asks the person in front of the terminal.
fn ask() -> Result<bool, Error> {
    loop {
        match output::ask("Approve? [y/n]")?.as_str() {
            "y" | "Y" | "yes" => return Ok(true),
            "n" | "N" | "no" => return Ok(false),
            _ => {}
        }
    }
}

fn step(text: &str) -> Result<(), Error> {
    output::line(&format!("» {text}"))
}

fn check_timeline(entries: &[v1::TimelineEntry]) -> Result<(), Error> {
    let kinds: Vec<_> = entries.iter().map(v1::TimelineEntry::kind).collect();
    let expected = [
        v1::timeline_entry::Kind::Interrupt,
        v1::timeline_entry::Kind::Decision,
        v1::timeline_entry::Kind::Resume,
        v1::timeline_entry::Kind::Run,
    ];
    let gap_free = entries.iter().zip(1..).all(|(entry, rev)| entry.rev == rev);
    if kinds == expected && gap_free {
        return Ok(());
    }
    Err(format!("the timeline is not what happened: {kinds:?}").into())
}

/// The history has to be the recording, or end with the rejection.
async fn check_history(client: &mut Client, approved: bool) -> Result<(), Error> {
    let request = v1::ListMessagesRequest {
        target: Some(v1::list_messages_request::Target::Session(session())),
        page_size: 1000,
        ..v1::ListMessagesRequest::default()
    };
    let stored = client
        .sessions
        .list_messages(request)
        .await
        .map_err(|status| refused(&status))?
        .into_inner()
        .messages;
    let recorded = recording()?;
    if approved {
        let same = stored.len() == recorded.len()
            && stored.iter().zip(&recorded).all(|(stored, recorded)| {
                (stored.role, &stored.content, &stored.tool_call_id)
                    == (recorded.role, &recorded.content, &recorded.tool_call_id)
            });
        return if same {
            Ok(())
        } else {
            Err("the stored history is not the recorded one".into())
        };
    }
    let told = stored.iter().rev().any(|message| {
        message.role() == v1::message::Role::Tool
            && matches!(&message.content, Some(v1::message::Content::Text(text)) if text == "The desk says no.")
    });
    if told {
        Ok(())
    } else {
        Err("the rejection is not in the history".into())
    }
}

/// What waits for a person.
async fn waiting(client: &mut Client) -> Result<v1::Interrupt, Error> {
    let request = v1::ListInterruptsRequest {
        filter: Some(v1::InterruptFilter {
            states: vec![v1::interrupt::State::Pending.into()],
            ..v1::InterruptFilter::default()
        }),
        ..v1::ListInterruptsRequest::default()
    };
    let found = client
        .interrupts
        .list_interrupts(request)
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let [interrupt] = found.interrupts.as_slice() else {
        return Err(format!("{} interrupts wait, not one", found.interrupts.len()).into());
    };
    Ok(interrupt.clone())
}

/// The agent: plays the conversation up to the held call, and suspends.
async fn agent(addr: &str) -> Result<(), Error> {
    let mut client = connect(addr).await?;
    let recorded = recording()?;
    let (turn, call) = held(&recorded)?;
    let acquired = client
        .checkpoints
        .acquire_thread(v1::AcquireThreadRequest {
            thread: Some(thread()),
            consumer_id: consumer(),
            request_id: request_id()?,
            ..v1::AcquireThreadRequest::default()
        })
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let lease = acquired
        .lease
        .ok_or("the server answered without a lease")?;
    // Whatever the model says is appended as it is said.
    for message in recorded.iter().take(turn) {
        client
            .sessions
            .append_messages(v1::AppendMessagesRequest {
                session: Some(session()),
                messages: vec![message.clone()],
                fencing_token: lease.fencing_token.clone(),
                request_id: request_id()?,
                ..v1::AppendMessagesRequest::default()
            })
            .await
            .map_err(|status| refused(&status))?;
    }
    let gated = gate(&mut client, &lease.fencing_token, &call, true).await?;
    let Some(v1::gate_tool_call_response::Outcome::Interrupt(needed)) = gated.outcome else {
        return Err("the gate did not hold the call".into());
    };
    let spec = v1::InterruptSpec {
        kind: v1::interrupt::Kind::Approval.into(),
        title: "Change a passenger".to_owned(),
        message: "The airline desk's agent wants to change the passengers of a reservation:"
            .to_owned(),
        action: needed.action,
        allowed_decisions: needed.allowed_decisions,
        ..v1::InterruptSpec::default()
    };
    let interrupted = recorded.get(turn).cloned().into_iter().collect();
    let suspended = client
        .checkpoints
        .suspend_thread(v1::SuspendThreadRequest {
            thread: Some(thread()),
            messages: Some(v1::suspend_thread_request::Messages::Append(
                v1::MessageList {
                    messages: interrupted,
                },
            )),
            interrupts: vec![spec],
            fencing_token: lease.fencing_token,
            request_id: request_id()?,
            ..v1::SuspendThreadRequest::default()
        })
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let id = suspended
        .interrupts
        .first()
        .map(|interrupt| interrupt.interrupt_id.clone())
        .unwrap_or_default();
    output::line(&format!(
        "  [agent {}] suspended on {HELD}; asked as interrupt {id}; exiting",
        std::process::id()
    ))
}

/// The worker: resumes, runs what may run, and ends the run.
async fn resume(addr: &str) -> Result<(), Error> {
    let mut client = connect(addr).await?;
    let recorded = recording()?;
    let (turn, call) = held(&recorded)?;
    let resumed = client
        .checkpoints
        .resume_thread(v1::ResumeThreadRequest {
            thread: Some(thread()),
            consumer_id: consumer(),
            view: v1::CheckpointView::Full.into(),
            request_id: request_id()?,
            ..v1::ResumeThreadRequest::default()
        })
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let lease = resumed.lease.ok_or("the server answered without a lease")?;
    let gated = gate(&mut client, &lease.fencing_token, &call, false).await?;
    let recorded_rest: Vec<_> = recorded.iter().skip(turn + 1).cloned().collect();
    let rest = match gated.outcome {
        Some(v1::gate_tool_call_response::Outcome::Proceed(proceed)) => {
            output::line(&format!(
                "  [worker {}] runs {HELD} under the key {}",
                std::process::id(),
                proceed.execution_key
            ))?;
            let result = recorded_rest
                .first()
                .and_then(|message| match &message.content {
                    Some(v1::message::Content::Text(text)) => Some(text.clone()),
                    Some(_) | None => None,
                });
            client
                .checkpoints
                .finish_tool_call(v1::FinishToolCallRequest {
                    thread: Some(thread()),
                    fencing_token: lease.fencing_token.clone(),
                    execution_key: proceed.execution_key,
                    result: Some(v1::ToolResult {
                        content: Some(v1::tool_result::Content::Text(result.unwrap_or_default())),
                        is_error: false,
                    }),
                    request_id: request_id()?,
                })
                .await
                .map_err(|status| refused(&status))?;
            recorded_rest
        }
        Some(v1::gate_tool_call_response::Outcome::Reject(reject)) => {
            output::line(&format!(
                "  [worker {}] does not run {HELD}: {}",
                std::process::id(),
                reject.feedback
            ))?;
            let content = |text: &str| Some(v1::message::Content::Text(text.to_owned()));
            vec![
                v1::Message {
                    role: v1::message::Role::Tool.into(),
                    tool_call_id: Some(call.id.clone()),
                    tool_name: Some(call.name.clone()),
                    content: content(&reject.feedback),
                    ..v1::Message::default()
                },
                v1::Message {
                    role: v1::message::Role::Assistant.into(),
                    content: content("I am sorry, the desk did not allow this change."),
                    ..v1::Message::default()
                },
            ]
        }
        outcome => return Err(format!("the gate answered {outcome:?}").into()),
    };
    client
        .sessions
        .commit_run(v1::CommitRunRequest {
            session: Some(session()),
            thread_id: Some(THREAD.to_owned()),
            fencing_token: lease.fencing_token,
            transcript: Some(v1::commit_run_request::Transcript::Append(
                v1::MessageList { messages: rest },
            )),
            input: Some(v1::RunInput {
                content: Some(v1::run_input::Content::Text(
                    "Change the passenger name on 3RK2T9".to_owned(),
                )),
            }),
            outcome: "done".to_owned(),
            request_id: request_id()?,
            ..v1::CommitRunRequest::default()
        })
        .await
        .map_err(|status| refused(&status))?;
    output::line(&format!(
        "  [worker {}] finished the run",
        std::process::id()
    ))
}

async fn gate(
    client: &mut Client,
    token: &str,
    call: &v1::ToolCall,
    hold: bool,
) -> Result<v1::GateToolCallResponse, Error> {
    let request = v1::GateToolCallRequest {
        thread: Some(thread()),
        fencing_token: token.to_owned(),
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        args_json: call.args_json.clone(),
        // The agent knows which of its tools need a person; an admin's rules could
        // say so as well.
        requested_policy: hold.then(v1::Policy::default),
        request_id: request_id()?,
        ..v1::GateToolCallRequest::default()
    };
    Ok(client
        .checkpoints
        .gate_tool_call(request)
        .await
        .map_err(|status| refused(&status))?
        .into_inner())
}

async fn connect(addr: &str) -> Result<Client, Error> {
    // An agent has no key here, and so can never approve itself.
    Connection {
        addr: addr.to_owned(),
        key: None,
        json: false,
    }
    .connect_without_key()
    .await
}

fn thread() -> ThreadRef {
    ThreadRef {
        agent_id: AGENT.to_owned(),
        thread_id: THREAD.to_owned(),
    }
}

fn session() -> SessionRef {
    SessionRef {
        agent_id: AGENT.to_owned(),
        user_id: None,
        session_id: THREAD.to_owned(),
    }
}

fn consumer() -> String {
    format!("demo-{}", std::process::id())
}

/// The turn with the held call, and the call.
fn held(recorded: &[v1::Message]) -> Result<(usize, v1::ToolCall), Error> {
    for (at, message) in recorded.iter().enumerate() {
        let Some(v1::message::Content::Blocks(blocks)) = &message.content else {
            continue;
        };
        for block in &blocks.blocks {
            if let Some(v1::block::Kind::ToolCall(call)) = &block.kind
                && call.name == HELD
            {
                return Ok((at, call.clone()));
            }
        }
    }
    Err("the recording has no call to hold".into())
}

/// A recorded conversation, in the chat form of OpenAI.
#[derive(Deserialize)]
struct Recording {
    messages: Vec<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    role: String,
    content: Option<String>,
    name: Option<String>,
    tool_call_id: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<RecordedCall>>,
}

#[derive(Deserialize)]
struct RecordedCall {
    id: String,
    function: RecordedFunction,
}

#[derive(Deserialize)]
struct RecordedFunction {
    name: String,
    arguments: String,
}

fn recording() -> Result<Vec<v1::Message>, Error> {
    let recording: Recording = serde_json::from_str(RECORDING)?;
    recording.messages.into_iter().map(message).collect()
}

fn message(recorded: Recorded) -> Result<v1::Message, Error> {
    let role = match recorded.role.as_str() {
        "system" => v1::message::Role::System,
        "user" => v1::message::Role::User,
        "assistant" => v1::message::Role::Assistant,
        "tool" => v1::message::Role::Tool,
        other => return Err(format!("the recording has a role {other}").into()),
    };
    let calls = recorded.tool_calls.unwrap_or_default();
    let content = if calls.is_empty() {
        v1::message::Content::Text(recorded.content.unwrap_or_default())
    } else {
        let block = |kind| v1::Block {
            kind: Some(kind),
            extra_json: None,
        };
        let said = recorded
            .content
            .filter(|text| !text.is_empty())
            .map(|text| block(v1::block::Kind::Text(text)));
        let asked = calls.into_iter().map(|call| {
            block(v1::block::Kind::ToolCall(v1::ToolCall {
                id: call.id,
                name: call.function.name,
                args_json: Some(call.function.arguments),
            }))
        });
        v1::message::Content::Blocks(v1::Blocks {
            blocks: said.into_iter().chain(asked).collect(),
        })
    };
    Ok(v1::Message {
        role: role.into(),
        content: Some(content),
        tool_name: recorded.name,
        tool_call_id: recorded.tool_call_id,
        ..v1::Message::default()
    })
}

/// Runs a part of the story in a process of its own, to its end.
async fn part(name: &str, addr: &str) -> Result<(), Error> {
    let status = Command::new(std::env::current_exe()?)
        .args(["demo", name, "--addr", addr])
        .kill_on_drop(true)
        .status()
        .await?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the {name} process failed: {status}").into())
    }
}

/// A server in a process of its own.
struct Running {
    child: Child,
    addr: String,
}

impl Running {
    async fn start(directory: &Path, store: &Path) -> Result<Self, Error> {
        let ready = directory.join("ready.json");
        let _ = std::fs::remove_file(&ready);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"])
            .arg("--storage")
            .arg(format!("sqlite:{}", store.display()))
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let began = std::time::Instant::now();
        loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                let said: serde_json::Value = serde_json::from_str(&text)?;
                let addr = said
                    .pointer("/listen/0")
                    .and_then(serde_json::Value::as_str)
                    .ok_or("the server did not say where it is")?
                    .to_owned();
                output::line(&format!(
                    "  [server {}] at {addr}",
                    child.id().unwrap_or_default()
                ))?;
                return Ok(Self { child, addr });
            }
            if let Some(status) = child.try_wait()? {
                return Err(format!("the server ended at once: {status}").into());
            }
            if began.elapsed() > START {
                return Err("the server did not start in time".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn kill_and_restart(mut self, directory: &Path, store: &Path) -> Result<Self, Error> {
        // SIGKILL: no chance to tidy up.
        self.child.kill().await?;
        Self::start(directory, store).await
    }

    async fn stop(mut self) -> Result<(), Error> {
        self.child.kill().await?;
        Ok(())
    }
}

/// A directory that is removed at the end.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!(
            "adjourn-demo-{}-{}",
            std::process::id(),
            request_id()?
        ));
        std::fs::create_dir_all(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is the system's to remove.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
