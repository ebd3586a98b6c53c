//! The command line.

pub mod client;
pub mod demo;
pub mod interrupts;
pub mod keys;
pub mod output;
pub mod sessions;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{ServeArgs, Settings};
use crate::server::Server;
use crate::telemetry;

/// Why a command failed.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Durable state and human interrupts for LLM agents.
///
/// An agent suspends on a tool call that needs a person, its process may exit, a
/// person anywhere decides, and any worker resumes the thread exactly once.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve gRPC until a signal to stop.
    Serve(Box<ServeArgs>),
    /// Play the whole story: an agent suspends, a person decides, another process
    /// resumes, and the server is killed on the way.
    Demo(demo::DemoArgs),
    /// See what waits for people, and decide.
    Interrupts(interrupts::InterruptsArgs),
    /// Look at sessions.
    Sessions(sessions::SessionsArgs),
    /// Show what happened to a session.
    Timeline(sessions::TimelineArgs),
    /// Make, list and revoke API keys.
    Keys(keys::KeysArgs),
    /// Look at the settings.
    Config(ConfigArgs),
}

/// Look at the settings.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What to do with the settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the settings that `serve` would use, and show them.
    Check(Box<ServeArgs>),
}

/// Runs a command.
#[must_use]
pub fn main(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Config(ConfigArgs {
            command: ConfigCommand::Check(args),
        }) => check(*args),
        Command::Keys(args) => keys::run(&args),
        Command::Serve(args) => on_runtime(serve(*args)),
        Command::Demo(args) => on_runtime(demo::run(args)),
        Command::Interrupts(args) => on_runtime(interrupts::run(args)),
        Command::Sessions(args) => on_runtime(sessions::run(args)),
        Command::Timeline(args) => on_runtime(sessions::timeline(args)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&*error);
            ExitCode::FAILURE
        }
    }
}

fn on_runtime(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

async fn serve(args: ServeArgs) -> Result<(), Error> {
    let settings = Settings::resolve(args)?;
    telemetry::start(settings.log_format, &settings.log)?;
    let server = Server::bind(settings).await?;
    server.note_reviewer_key();
    server.run(signal()).await
}

/// Resolves at the first signal to stop.
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};

    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        // Without signals there is nothing to wait for.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn check(args: ServeArgs) -> Result<(), Error> {
    let settings = Settings::resolve(args)?;
    if let Some(path) = &settings.auth_file {
        crate::server::keys::KeyRing::of_file(path)?;
    }
    output::line(&format!("{settings:#?}"))
}
