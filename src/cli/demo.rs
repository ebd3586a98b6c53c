//! `adjourn demo`: the whole story, on a recorded conversation.

use clap::Args;

use super::Error;

/// Play the whole story.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Approve without asking.
    #[arg(long)]
    pub yes: bool,
}

/// Plays it.
///
/// # Errors
///
/// When a step did not hold.
pub async fn run(_args: DemoArgs) -> Result<(), Error> {
    Err("not yet".into())
}
