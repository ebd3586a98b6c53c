//! `adjourn keys`: make, list and revoke API keys.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Error, output};
use crate::server::keys::{KeyFile, KeyRing, StoredKey, hash, new_key};
use crate::service::caller::Role;

/// Make, list and revoke API keys.
#[derive(Args, Debug)]
pub struct KeysArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key and print it. It is shown this once: the file has only its hash.
    Create {
        /// The file to add it to; made if absent.
        #[arg(long, env = "ADJOURN_AUTH_FILE", value_name = "PATH")]
        auth_file: PathBuf,
        /// Whose data it opens.
        #[arg(long)]
        tenant: String,
        /// Who uses it: stands in decisions and timelines.
        #[arg(long)]
        principal: String,
        /// What it may do: agent, reviewer, viewer, admin. May be given several
        /// times.
        #[arg(long = "role", value_delimiter = ',', required = true)]
        roles: Vec<String>,
        /// The only agent it is for.
        #[arg(long)]
        agent_id: Option<String>,
        /// The only user it is for.
        #[arg(long)]
        user_id: Option<String>,
        /// Lets it repair guards of its own writers.
        #[arg(long)]
        host: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the keys, without the keys themselves.
    List {
        /// The file.
        #[arg(long, env = "ADJOURN_AUTH_FILE", value_name = "PATH")]
        auth_file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take a key out. A running server notices by itself and ends its streams.
    Revoke {
        /// The file.
        #[arg(long, env = "ADJOURN_AUTH_FILE", value_name = "PATH")]
        auth_file: PathBuf,
        /// The id of the key, from `keys list`.
        id: String,
    },
}

/// Runs the command.
///
/// # Errors
///
/// When the file cannot be used, or something in it makes no sense.
pub fn run(args: &KeysArgs) -> Result<(), Error> {
    match &args.command {
        KeysCommand::Create {
            auth_file,
            tenant,
            principal,
            roles,
            agent_id,
            user_id,
            host,
            json,
        } => {
            for role in roles {
                if Role::from_name(role).is_none() {
                    return Err(format!(
                        "{role} is no role; take agent, reviewer, viewer or admin"
                    )
                    .into());
                }
            }
            let key = new_key().map_err(|error| format!("no random numbers: {error}"))?;
            let sha256 = hash(&key);
            let stored = StoredKey {
                id: sha256.chars().take(12).collect(),
                sha256,
                tenant: tenant.clone(),
                principal: principal.clone(),
                roles: roles.clone(),
                agent_id: agent_id.clone(),
                user_id: user_id.clone(),
                host: *host,
            };
            let id = stored.id.clone();
            let mut file = KeyFile::read(auth_file)?;
            let before = file.clone();
            file.keys.push(stored);
            file.write(auth_file)?;
            // What a server would refuse is refused here, and undone.
            if let Err(error) = KeyRing::of_file(auth_file) {
                before.write(auth_file)?;
                return Err(error.into());
            }
            if *json {
                return output::json(&serde_json::json!({ "id": id, "key": key }));
            }
            output::line(&key)
        }
        KeysCommand::List { auth_file, json } => {
            let file = KeyFile::read(auth_file)?;
            if *json {
                for key in &file.keys {
                    output::json(key)?;
                }
                return Ok(());
            }
            let row = |key: &StoredKey| {
                vec![
                    key.id.clone(),
                    key.tenant.clone(),
                    key.principal.clone(),
                    key.roles.join(", "),
                    key.agent_id.clone().unwrap_or_default(),
                    key.user_id.clone().unwrap_or_default(),
                ]
            };
            output::table(
                &["ID", "TENANT", "PRINCIPAL", "ROLES", "AGENT", "USER"],
                file.keys.iter().map(row),
            )
        }
        KeysCommand::Revoke { auth_file, id } => {
            let mut file = KeyFile::read(auth_file)?;
            let before = file.keys.len();
            file.keys.retain(|key| key.id != *id);
            if file.keys.len() == before {
                return Err(format!("no key has the id {id}; see `adjourn keys list`").into());
            }
            Ok(file.write(auth_file)?)
        }
    }
}
