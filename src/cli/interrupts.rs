//! `adjourn interrupts`: what waits for people, and what they say.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::client::{Client, Connection, refused, request_id};
use super::{Error, output};
use crate::proto::v1::{
    self, Answer, DecideInterruptRequest, GetInterruptRequest, Interrupt, InterruptFilter,
    ListInterruptsRequest, WatchInterruptsRequest, watch_interrupts_response,
};

/// See what waits for people, and decide.
#[derive(Args, Debug)]
pub struct InterruptsArgs {
    /// Which server, and as whom.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: InterruptsCommand,
}

/// What to do with interrupts.
#[derive(Debug, Subcommand)]
pub enum InterruptsCommand {
    /// Show what is there, and every change, until stopped.
    Watch {
        /// Which.
        #[command(flatten)]
        filter: Filter,
        /// Go on after this cursor, as printed with --json.
        #[arg(long, value_name = "CURSOR")]
        from: Option<String>,
    },
    /// List interrupts, newest first.
    List {
        /// Which.
        #[command(flatten)]
        filter: Filter,
        /// At most so many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show one interrupt, whole.
    Show {
        /// Its id.
        id: String,
    },
    /// Let the action be taken. Shows it and asks, unless --etag says what you saw.
    Approve {
        /// Its id.
        id: String,
        /// How to decide.
        #[command(flatten)]
        how: How,
    },
    /// Do not let the action be taken.
    Reject {
        /// Its id.
        id: String,
        /// What the model is told.
        #[arg(long, default_value = "")]
        reason: String,
        /// How to decide.
        #[command(flatten)]
        how: How,
    },
    /// Let the action be taken with other arguments: all of them, as JSON.
    Edit {
        /// Its id.
        id: String,
        /// The arguments, JSON.
        args: String,
        /// How to decide.
        #[command(flatten)]
        how: How,
    },
}

/// How to decide.
#[derive(Args, Clone, Debug)]
pub struct How {
    /// The etag of what you saw, as printed with --json. Decides without asking.
    #[arg(long)]
    pub etag: Option<String>,
    /// A comment, for the record.
    #[arg(long, default_value = "")]
    pub comment: String,
    /// Decide on what is there now, without asking.
    #[arg(long, conflicts_with = "etag")]
    pub yes: bool,
}

/// Which interrupts.
#[derive(Args, Clone, Debug)]
pub struct Filter {
    /// In this state.
    #[arg(long, value_enum, default_value_t = State::Pending)]
    pub state: State,
    /// Of this agent.
    #[arg(long)]
    pub agent: Option<String>,
    /// Of this session.
    #[arg(long)]
    pub session: Option<String>,
    /// Of this thread.
    #[arg(long)]
    pub thread: Option<String>,
    /// About this tool.
    #[arg(long)]
    pub tool: Vec<String>,
}

/// A state, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum State {
    /// Nobody has answered.
    Pending,
    /// Answered.
    Resolved,
    /// Time ran out.
    Expired,
    /// Withdrawn.
    Cancelled,
    /// Another one took its place.
    Superseded,
    /// Any.
    Any,
}

impl Filter {
    fn to_wire(&self) -> InterruptFilter {
        let states = match self.state {
            State::Pending => vec![v1::interrupt::State::Pending],
            State::Resolved => vec![v1::interrupt::State::Resolved],
            State::Expired => vec![v1::interrupt::State::Expired],
            State::Cancelled => vec![v1::interrupt::State::Cancelled],
            State::Superseded => vec![v1::interrupt::State::Superseded],
            State::Any => Vec::new(),
        };
        InterruptFilter {
            states: states.into_iter().map(i32::from).collect(),
            agent_id: self.agent.clone(),
            session_id: self.session.clone(),
            thread_id: self.thread.clone(),
            tool_names: self.tool.clone(),
            ..InterruptFilter::default()
        }
    }
}

/// Runs the command.
///
/// # Errors
///
/// What the server refuses, in its words.
pub async fn run(args: InterruptsArgs) -> Result<(), Error> {
    let InterruptsArgs {
        connection,
        command,
    } = args;
    let mut client = connection.connect().await?;
    let json = connection.json;
    match command {
        InterruptsCommand::Watch { filter, from } => watch(&mut client, &filter, from, json).await,
        InterruptsCommand::List { filter, limit } => list(&mut client, &filter, limit, json).await,
        InterruptsCommand::Show { id } => {
            let interrupt = get(&mut client, &id).await?;
            if json {
                output::json(&to_json(&interrupt))
            } else {
                show(&interrupt)
            }
        }
        InterruptsCommand::Approve { id, how } => {
            let decision = v1::answer::Decision::Approve(v1::Approve { grant: None });
            decide(&mut client, &id, decision, &how, "Approve?", json).await
        }
        InterruptsCommand::Reject { id, reason, how } => {
            let decision = v1::answer::Decision::Reject(v1::Reject { reason });
            decide(&mut client, &id, decision, &how, "Reject?", json).await
        }
        InterruptsCommand::Edit { id, args, how } => {
            let question = format!("Run it with {args} instead?");
            let decision = v1::answer::Decision::Edit(v1::Edit { args_json: args });
            decide(&mut client, &id, decision, &how, &question, json).await
        }
    }
}

async fn get(client: &mut Client, id: &str) -> Result<Interrupt, Error> {
    let request = GetInterruptRequest {
        interrupt_id: id.to_owned(),
    };
    let answer = client
        .interrupts
        .get_interrupt(request)
        .await
        .map_err(|status| refused(&status))?;
    answer
        .into_inner()
        .interrupt
        .ok_or_else(|| "the server answered without the interrupt".into())
}

async fn list(client: &mut Client, filter: &Filter, limit: usize, json: bool) -> Result<(), Error> {
    let mut found: Vec<Interrupt> = Vec::new();
    let mut page_token = String::new();
    while found.len() < limit {
        let request = ListInterruptsRequest {
            filter: Some(filter.to_wire()),
            page_size: i32::try_from((limit - found.len()).min(1000)).unwrap_or(1000),
            page_token,
            ..ListInterruptsRequest::default()
        };
        let page = client
            .interrupts
            .list_interrupts(request)
            .await
            .map_err(|status| refused(&status))?
            .into_inner();
        found.extend(page.interrupts);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    if json {
        return found
            .iter()
            .try_for_each(|interrupt| output::json(&to_json(interrupt)));
    }
    if found.is_empty() {
        return output::line("Nothing waits.");
    }
    output::table(&HEADINGS, found.iter().map(row))
}

const HEADINGS: [&str; 7] = [
    "ID",
    "STATE",
    "AGENT",
    "SESSION",
    "WHAT",
    "ARGUMENTS",
    "AGE",
];

fn row(interrupt: &Interrupt) -> Vec<String> {
    let action = interrupt.action.as_ref();
    let what = action.map_or(interrupt.title.as_str(), |action| action.tool_name.as_str());
    let args = action
        .and_then(|action| action.args_json.as_deref())
        .unwrap_or(&interrupt.message);
    vec![
        interrupt.interrupt_id.clone(),
        state_name(interrupt),
        interrupt.agent_id.clone(),
        interrupt.session_id.clone().unwrap_or_default(),
        output::cut(what, 40),
        output::cut(args, 60),
        output::age(interrupt.create_time.as_ref()),
    ]
}

fn state_name(interrupt: &Interrupt) -> String {
    interrupt
        .state()
        .as_str_name()
        .trim_start_matches("STATE_")
        .to_lowercase()
}

fn show(interrupt: &Interrupt) -> Result<(), Error> {
    let mut rows = Vec::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            rows.push(vec![name.to_owned(), value]);
        }
    };
    add("id", interrupt.interrupt_id.clone());
    add("state", state_name(interrupt));
    add("title", interrupt.title.clone());
    add("message", interrupt.message.clone());
    add("agent", interrupt.agent_id.clone());
    add("session", interrupt.session_id.clone().unwrap_or_default());
    add("thread", interrupt.thread_id.clone().unwrap_or_default());
    if let Some(action) = &interrupt.action {
        add("tool", action.tool_name.clone());
        // The whole of it: a person decides on what they see.
        add(
            "arguments",
            pretty(action.args_json.as_deref().unwrap_or("{}")),
        );
        add("digest", action.action_digest.clone());
    }
    let allowed: Vec<_> = interrupt
        .allowed_decisions()
        .map(|kind| {
            kind.as_str_name()
                .trim_start_matches("KIND_")
                .to_lowercase()
        })
        .collect();
    add("allowed", allowed.join(", "));
    add("asked", output::time(interrupt.create_time.as_ref()));
    add("expires", output::time(interrupt.expire_time.as_ref()));
    for decision in &interrupt.decisions {
        let who = decision
            .actor
            .as_ref()
            .map(|actor| actor.principal.clone())
            .unwrap_or_default();
        let kind = decision
            .kind()
            .as_str_name()
            .trim_start_matches("KIND_")
            .to_lowercase();
        let text = [
            decision.reason.clone(),
            decision.args_json.clone(),
            Some(decision.comment.clone()),
        ];
        let text: Vec<_> = text
            .into_iter()
            .flatten()
            .filter(|text| !text.is_empty())
            .collect();
        add("decision", format!("{kind} by {who} {}", text.join("; ")));
    }
    add("etag", interrupt.etag.clone());
    output::table(&["", ""], rows)
}

fn pretty(text: &str) -> String {
    serde_json::from_str::<Box<serde_json::value::RawValue>>(text)
        .ok()
        .and_then(|_| serde_json::from_str::<serde_json::Value>(text).ok())
        .and_then(|value| serde_json::to_string_pretty(&value).ok())
        .unwrap_or_else(|| text.to_owned())
}

async fn decide(
    client: &mut Client,
    id: &str,
    decision: v1::answer::Decision,
    how: &How,
    question: &str,
    json: bool,
) -> Result<(), Error> {
    let etag = if let Some(etag) = &how.etag {
        etag.clone()
    } else {
        let interrupt = get(client, id).await?;
        if !how.yes {
            show(&interrupt)?;
            let answer = output::ask(&format!("{question} [y/N]"))?;
            if !matches!(answer.as_str(), "y" | "Y" | "yes") {
                return Err("not decided".into());
            }
        }
        interrupt.etag
    };
    let request = DecideInterruptRequest {
        interrupt_id: id.to_owned(),
        etag,
        answer: Some(Answer {
            decision: Some(decision),
        }),
        comment: how.comment.clone(),
        request_id: request_id()?,
    };
    let answer = client
        .interrupts
        .decide_interrupt(request)
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let interrupt = answer.interrupt.unwrap_or_default();
    if json {
        return output::json(&to_json(&interrupt));
    }
    output::line(&format!(
        "{} is {}",
        interrupt.interrupt_id,
        state_name(&interrupt)
    ))
}

async fn watch(
    client: &mut Client,
    filter: &Filter,
    from: Option<String>,
    json: bool,
) -> Result<(), Error> {
    use watch_interrupts_response::Event;

    let mut cursor = from;
    loop {
        let start = match &cursor {
            Some(cursor) => v1::watch_interrupts_request::Start::Cursor(cursor.clone()),
            None => v1::watch_interrupts_request::Start::InitialState(true),
        };
        let request = WatchInterruptsRequest {
            filter: Some(filter.to_wire()),
            start: Some(start),
        };
        let mut stream = client
            .interrupts
            .watch_interrupts(request)
            .await
            .map_err(|status| refused(&status))?
            .into_inner();
        let ended = loop {
            let said = match stream.message().await {
                Ok(Some(said)) => said,
                Ok(None) => break None,
                Err(status) => break Some(status),
            };
            cursor = Some(said.cursor.clone());
            let (what, interrupt) = match said.event {
                Some(Event::Snapshot(interrupt)) => ("there", Some(interrupt)),
                Some(Event::Changed(interrupt)) => ("changed", Some(interrupt)),
                Some(Event::Left(interrupt)) => ("left", Some(interrupt)),
                Some(Event::Deleted(_)) => ("deleted", None),
                Some(Event::Synced(_)) => ("synced", None),
                Some(Event::Progress(_)) => ("progress", None),
                Some(Event::Goodbye(_)) => ("goodbye", None),
                None => continue,
            };
            if json {
                let interrupt = interrupt.as_ref().map(to_json);
                output::json(
                    &json!({ "event": what, "cursor": said.cursor, "revision": said.revision, "interrupt": interrupt }),
                )?;
            } else if let Some(interrupt) = &interrupt {
                output::line(&format!("{what:8} {}", row(interrupt).join("  ")))?;
            } else if what == "synced" {
                output::line("-------- that is what is there; changes follow")?;
            }
        };
        // A server that stops or is killed is waited for: nothing is missed.
        if let Some(status) = ended
            && status.code() != tonic::Code::Unavailable
            && status.code() != tonic::Code::Unknown
        {
            return Err(refused(&status));
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

/// An interrupt for scripts. JSON values stay texts, byte for byte.
#[must_use]
pub fn to_json(interrupt: &Interrupt) -> serde_json::Value {
    let action = interrupt.action.as_ref().map(|action| {
        json!({
            "tool_name": action.tool_name,
            "tool_call_id": action.tool_call_id,
            "args_json": action.args_json,
            "action_digest": action.action_digest,
        })
    });
    let decisions: Vec<_> = interrupt
        .decisions
        .iter()
        .map(|decision| {
            json!({
                "kind": decision.kind().as_str_name().trim_start_matches("KIND_"),
                "principal": decision.actor.as_ref().map(|actor| &actor.principal),
                "args_json": decision.args_json,
                "reason": decision.reason,
                "value_json": decision.value_json,
                "comment": decision.comment,
                "resolving": decision.resolving,
                "decide_time": output::time(decision.decide_time.as_ref()),
            })
        })
        .collect();
    json!({
        "interrupt_id": interrupt.interrupt_id,
        "state": interrupt.state().as_str_name().trim_start_matches("STATE_"),
        "kind": interrupt.kind().as_str_name().trim_start_matches("KIND_"),
        "agent_id": interrupt.agent_id,
        "user_id": interrupt.user_id,
        "session_id": interrupt.session_id,
        "thread_id": interrupt.thread_id,
        "run_id": interrupt.run_id,
        "title": interrupt.title,
        "message": interrupt.message,
        "action": action,
        "allowed_decisions": interrupt.allowed_decisions().map(|kind| kind.as_str_name().trim_start_matches("KIND_")).collect::<Vec<_>>(),
        "decisions": decisions,
        "create_time": output::time(interrupt.create_time.as_ref()),
        "expire_time": output::time(interrupt.expire_time.as_ref()),
        "etag": interrupt.etag,
        "revision": interrupt.revision,
    })
}
