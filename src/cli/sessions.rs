//! `adjourn sessions` and `adjourn timeline`: what is kept, and what happened.

use clap::{Args, Subcommand};
use serde_json::json;

use super::client::{Client, Connection, refused};
use super::{Error, output};
use crate::proto::v1::{
    self, ListEntriesRequest, ListSessionsRequest, LoadSessionRequest, Message, Session, SessionRef,
};

/// Look at sessions.
#[derive(Args, Debug)]
pub struct SessionsArgs {
    /// Which server, and as whom.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: SessionsCommand,
}

/// What to do with sessions.
#[derive(Debug, Subcommand)]
pub enum SessionsCommand {
    /// List sessions, saved last first.
    List {
        /// Of this agent.
        #[arg(long)]
        agent: Option<String>,
        /// With one of these tags.
        #[arg(long)]
        tag: Vec<String>,
        /// At most so many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show a session with its newest messages.
    Show {
        /// Which.
        #[command(flatten)]
        session: Which,
        /// How many messages.
        #[arg(long, default_value_t = 20)]
        messages: u16,
    },
}

/// Which session.
#[derive(Args, Clone, Debug)]
pub struct Which {
    /// The session's id.
    pub session_id: String,
    /// Its agent.
    #[arg(long, default_value = "default")]
    pub agent: String,
    /// Its user, if it has one.
    #[arg(long)]
    pub user: Option<String>,
}

impl Which {
    fn to_wire(&self) -> SessionRef {
        SessionRef {
            agent_id: self.agent.clone(),
            user_id: self.user.clone(),
            session_id: self.session_id.clone(),
        }
    }
}

/// Show what happened to a session.
#[derive(Args, Debug)]
pub struct TimelineArgs {
    /// Which server, and as whom.
    #[command(flatten)]
    pub connection: Connection,
    /// Which.
    #[command(flatten)]
    pub session: Which,
}

/// Runs `adjourn sessions`.
///
/// # Errors
///
/// What the server refuses, in its words.
pub async fn run(args: SessionsArgs) -> Result<(), Error> {
    let SessionsArgs {
        connection,
        command,
    } = args;
    let mut client = connection.connect().await?;
    match command {
        SessionsCommand::List { agent, tag, limit } => {
            list(&mut client, agent, tag, limit, connection.json).await
        }
        SessionsCommand::Show { session, messages } => {
            show(&mut client, &session, messages, connection.json).await
        }
    }
}

async fn list(
    client: &mut Client,
    agent_id: Option<String>,
    tags: Vec<String>,
    limit: usize,
    json: bool,
) -> Result<(), Error> {
    let mut found: Vec<Session> = Vec::new();
    let mut page_token = String::new();
    while found.len() < limit {
        let request = ListSessionsRequest {
            agent_id: agent_id.clone(),
            tags: tags.clone(),
            page_size: i32::try_from((limit - found.len()).min(1000)).unwrap_or(1000),
            page_token,
            ..ListSessionsRequest::default()
        };
        let page = client
            .sessions
            .list_sessions(request)
            .await
            .map_err(|status| refused(&status))?
            .into_inner();
        found.extend(page.sessions);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    if json {
        return found
            .iter()
            .try_for_each(|session| output::json(&session_json(session)));
    }
    if found.is_empty() {
        return output::line("There are no sessions.");
    }
    let row = |session: &Session| {
        let key = session.session.clone().unwrap_or_default();
        let title = session
            .listing
            .as_ref()
            .and_then(|listing| listing.title.clone())
            .unwrap_or_default();
        vec![
            key.session_id,
            key.agent_id,
            key.user_id.unwrap_or_default(),
            output::cut(&title, 40),
            session.message_count.to_string(),
            output::time(session.save_time.as_ref()),
        ]
    };
    output::table(
        &["SESSION", "AGENT", "USER", "TITLE", "MESSAGES", "SAVED"],
        found.iter().map(row),
    )
}

async fn show(client: &mut Client, which: &Which, messages: u16, json: bool) -> Result<(), Error> {
    let request = LoadSessionRequest {
        session: Some(which.to_wire()),
        must_exist: true,
        messages_page_size: 1,
        ..LoadSessionRequest::default()
    };
    let loaded = client
        .sessions
        .load_session(request)
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let request = v1::ListMessagesRequest {
        target: Some(v1::list_messages_request::Target::Session(which.to_wire())),
        order: v1::SortOrder::NewestFirst.into(),
        page_size: i32::from(messages),
        ..v1::ListMessagesRequest::default()
    };
    let mut newest = client
        .sessions
        .list_messages(request)
        .await
        .map_err(|status| refused(&status))?
        .into_inner()
        .messages;
    newest.reverse();
    let session = loaded.session.unwrap_or_default();
    if json {
        output::json(&session_json(&session))?;
        return newest
            .iter()
            .try_for_each(|message| output::json(&message_json(message)));
    }
    let listing = session.listing.clone().unwrap_or_default();
    let mut rows = vec![
        vec!["session".to_owned(), which.session_id.clone()],
        vec!["messages".to_owned(), session.message_count.to_string()],
        vec![
            "created".to_owned(),
            output::time(session.create_time.as_ref()),
        ],
        vec!["saved".to_owned(), output::time(session.save_time.as_ref())],
    ];
    if let Some(title) = listing.title {
        rows.push(vec!["title".to_owned(), title]);
    }
    for entry in loaded
        .data
        .and_then(|data| data.state)
        .unwrap_or_default()
        .entries
    {
        rows.push(vec![
            format!("state {}", entry.key),
            output::cut(&entry.value_json, 80),
        ]);
    }
    output::table(&["", ""], rows)?;
    let row = |message: &Message| {
        vec![
            message.index.to_string(),
            role(message),
            output::cut(&text(message), 100),
        ]
    };
    output::table(&["#", "ROLE", "MESSAGE"], newest.iter().map(row))
}

/// Runs `adjourn timeline`.
///
/// # Errors
///
/// What the server refuses, in its words.
pub async fn timeline(args: TimelineArgs) -> Result<(), Error> {
    let mut client = args.connection.connect().await?;
    let entries = entries(&mut client, args.session.to_wire()).await?;
    if args.connection.json {
        return entries.iter().try_for_each(|entry| {
            output::json(&json!({
                "rev": entry.rev,
                "kind": kind(entry),
                "label": entry.label,
                "at": output::time(entry.at.as_ref()),
                "principal": entry.principal,
                "data_json": entry.data_json,
                "revision": entry.revision,
            }))
        });
    }
    print_entries(&entries)
}

/// All entries of a session's timeline.
///
/// # Errors
///
/// What the server refuses, in its words.
pub async fn entries(
    client: &mut Client,
    session: SessionRef,
) -> Result<Vec<v1::TimelineEntry>, Error> {
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListEntriesRequest {
            session: Some(session.clone()),
            page_size: 1000,
            page_token,
            ..ListEntriesRequest::default()
        };
        let page = client
            .timeline
            .list_entries(request)
            .await
            .map_err(|status| refused(&status))?
            .into_inner();
        found.extend(page.entries);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(found);
        }
    }
}

/// Prints entries for people.
///
/// # Errors
///
/// When standard output is closed.
pub fn print_entries(entries: &[v1::TimelineEntry]) -> Result<(), Error> {
    let row = |entry: &v1::TimelineEntry| {
        vec![
            entry.rev.to_string(),
            output::time(entry.at.as_ref()),
            kind(entry),
            output::cut(&entry.label, 60),
            entry.principal.clone(),
        ]
    };
    output::table(
        &["REV", "AT", "WHAT", "LABEL", "BY"],
        entries.iter().map(row),
    )
}

fn kind(entry: &v1::TimelineEntry) -> String {
    entry
        .kind()
        .as_str_name()
        .trim_start_matches("KIND_")
        .to_lowercase()
}

fn role(message: &Message) -> String {
    message
        .role()
        .as_str_name()
        .trim_start_matches("ROLE_")
        .to_lowercase()
}

/// What a message says, for people.
fn text(message: &Message) -> String {
    match &message.content {
        Some(v1::message::Content::Text(text) | v1::message::Content::NonStandardJson(text)) => {
            text.clone()
        }
        Some(v1::message::Content::Blocks(blocks)) => {
            let one = |block: &v1::Block| match &block.kind {
                Some(v1::block::Kind::Text(text) | v1::block::Kind::Reasoning(text)) => {
                    text.clone()
                }
                Some(v1::block::Kind::ToolCall(call)) => {
                    format!(
                        "{}({})",
                        call.name,
                        call.args_json.as_deref().unwrap_or("{}")
                    )
                }
                Some(_) | None => "[…]".to_owned(),
            };
            blocks.blocks.iter().map(one).collect::<Vec<_>>().join(" ")
        }
        None => String::new(),
    }
}

fn session_json(session: &Session) -> serde_json::Value {
    let key = session.session.clone().unwrap_or_default();
    let listing = session.listing.clone().unwrap_or_default();
    json!({
        "agent_id": key.agent_id,
        "user_id": key.user_id,
        "session_id": key.session_id,
        "title": listing.title,
        "description": listing.description,
        "tags": listing.tags.map(|tags| tags.tags),
        "message_count": session.message_count,
        "last_seq": session.last_seq,
        "memory_id": session.memory_id,
        "create_time": output::time(session.create_time.as_ref()),
        "save_time": output::time(session.save_time.as_ref()),
        "etag": session.etag,
        "revision": session.revision,
    })
}

fn message_json(message: &Message) -> serde_json::Value {
    json!({
        "seq": message.seq,
        "index": message.index,
        "id": message.id,
        "role": role(message),
        "text": text(message),
        "tool_call_id": message.tool_call_id,
    })
}
