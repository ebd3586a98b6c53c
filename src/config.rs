//! Settings: flags, `ADJOURN_*` variables, and a TOML file. A flag wins over a
//! variable, and a variable over the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// Where the server listens if nobody says otherwise.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7420";
/// Where the server keeps its data if nobody says otherwise.
pub const DEFAULT_STORAGE: &str = "sqlite:./adjourn.db";
/// The most bytes of a request if nobody says otherwise: 16 MiB.
pub const DEFAULT_MAX_REQUEST: usize = 16 * 1024 * 1024;

/// What `adjourn serve` takes.
#[derive(Args, Clone, Debug, Default)]
pub struct ServeArgs {
    /// Where to listen: HOST:PORT (port 0 picks a free one) or unix:PATH. May be
    /// given several times. [default: 127.0.0.1:7420]
    #[arg(
        long,
        env = "ADJOURN_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS"
    )]
    pub listen: Vec<String>,

    /// Where to keep the data: sqlite:FILE, or memory: for trying things out.
    /// [default: sqlite:./adjourn.db]
    #[arg(long, env = "ADJOURN_STORAGE", value_name = "URL")]
    pub storage: Option<String>,

    /// Write {"listen":["HOST:PORT",…]} to this file once the server is serving.
    #[arg(long, env = "ADJOURN_READY_FILE", value_name = "PATH")]
    pub ready_file: Option<PathBuf>,

    /// The file with the API keys; see `adjourn keys create`. Without one, anybody
    /// who can reach a loopback address or a Unix socket is an agent and a viewer of
    /// the tenant `default`, and the server listens nowhere else.
    #[arg(long, env = "ADJOURN_AUTH_FILE", value_name = "PATH")]
    pub auth_file: Option<PathBuf>,

    /// Listen without keys on addresses that others can reach. Whoever can connect
    /// then reads and writes everything of the tenant `default`.
    #[arg(long, env = "ADJOURN_INSECURE")]
    pub insecure: bool,

    /// How many seconds to let requests finish after SIGTERM. [default: 20]
    #[arg(long, env = "ADJOURN_GRACE", value_name = "SECONDS")]
    pub grace: Option<u64>,

    /// The most bytes of a request. [default: 16777216]
    #[arg(long, env = "ADJOURN_MAX_REQUEST_BYTES", value_name = "BYTES")]
    pub max_request_bytes: Option<usize>,

    /// How logs are written. [default: text]
    #[arg(long, env = "ADJOURN_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// What is logged: a level, or a filter such as adjourn=debug. [default: info]
    #[arg(long, env = "ADJOURN_LOG", value_name = "FILTER")]
    pub log: Option<String>,

    /// A TOML file with the same settings, named as the flags with _ for -.
    #[arg(long, env = "ADJOURN_CONFIG", value_name = "PATH")]
    pub config: Option<PathBuf>,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What the file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    #[serde(default)]
    listen: Vec<String>,
    storage: Option<String>,
    ready_file: Option<PathBuf>,
    auth_file: Option<PathBuf>,
    insecure: Option<bool>,
    grace: Option<u64>,
    max_request_bytes: Option<usize>,
    log_format: Option<LogFormat>,
    log: Option<String>,
}

/// All settings of a server, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Where to keep the data.
    pub storage: Storage,
    /// The file that says where the server is.
    pub ready_file: Option<PathBuf>,
    /// The file with the API keys.
    pub auth_file: Option<PathBuf>,
    /// Whether keys are not needed anywhere.
    pub insecure: bool,
    /// How long requests may take to finish after a signal to stop.
    pub grace: Duration,
    /// The most bytes of a request.
    pub max_request_bytes: usize,
    /// How logs are written.
    pub log_format: LogFormat,
    /// What is logged.
    pub log: String,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A place to keep data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory, for trying things out.
    Memory,
    /// In a SQLite file.
    Sqlite(PathBuf),
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct Invalid {
    /// Which one.
    pub setting: &'static str,
    /// What is wrong, and what to do.
    pub problem: String,
}

fn invalid(setting: &'static str, problem: impl Into<String>) -> Invalid {
    Invalid {
        setting,
        problem: problem.into(),
    }
}

impl Settings {
    /// The settings that flags, variables and file give together.
    ///
    /// # Errors
    ///
    /// [`Invalid`], naming the setting.
    pub fn resolve(args: ServeArgs) -> Result<Self, Invalid> {
        let file = match &args.config {
            Some(path) => read_file(path)?,
            None => FileSettings::default(),
        };
        let listen = [args.listen, file.listen]
            .into_iter()
            .find(|listen| !listen.is_empty());
        let listen = listen.unwrap_or_else(|| vec![DEFAULT_LISTEN.to_owned()]);
        let storage = args
            .storage
            .or(file.storage)
            .unwrap_or_else(|| DEFAULT_STORAGE.to_owned());
        let max_request_bytes = args
            .max_request_bytes
            .or(file.max_request_bytes)
            .unwrap_or(DEFAULT_MAX_REQUEST);
        if max_request_bytes < 64 * 1024 {
            return Err(invalid("max_request_bytes", "must be at least 65536"));
        }
        let settings = Self {
            listen: listen
                .iter()
                .map(|text| parse_listen(text))
                .collect::<Result<_, _>>()?,
            storage: parse_storage(&storage)?,
            ready_file: args.ready_file.or(file.ready_file),
            auth_file: args.auth_file.or(file.auth_file),
            insecure: args.insecure || file.insecure.unwrap_or(false),
            grace: Duration::from_secs(args.grace.or(file.grace).unwrap_or(20)),
            max_request_bytes,
            log_format: args.log_format.or(file.log_format).unwrap_or_default(),
            log: args.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
        };
        settings.check_reach()?;
        Ok(settings)
    }

    /// Refuses to let strangers in.
    fn check_reach(&self) -> Result<(), Invalid> {
        if self.auth_file.is_some() || self.insecure {
            return Ok(());
        }
        for listen in &self.listen {
            if let Listen::Tcp(address) = listen
                && !address.ip().is_loopback()
            {
                return Err(invalid(
                    "listen",
                    format!(
                        "{address} can be reached by others, and there are no keys; make some with `adjourn keys create` \
                         and name the file with --auth-file, listen on 127.0.0.1, or say --insecure"
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn read_file(path: &Path) -> Result<FileSettings, Invalid> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| invalid("config", format!("{}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| invalid("config", format!("{}: {error}", path.display())))
}

fn parse_listen(text: &str) -> Result<Listen, Invalid> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(invalid("listen", "unix: needs a path"));
        }
        return Ok(Listen::Unix(path.into()));
    }
    let text = text.replacen("localhost:", "127.0.0.1:", 1);
    text.parse().map(Listen::Tcp).map_err(|_| {
        invalid(
            "listen",
            format!("{text} is no HOST:PORT with a numeric host, and no unix:PATH"),
        )
    })
}

fn parse_storage(text: &str) -> Result<Storage, Invalid> {
    if text == "memory:" {
        return Ok(Storage::Memory);
    }
    match text.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(Storage::Sqlite(path.into())),
        _ => Err(invalid(
            "storage",
            format!("{text} is not supported; use sqlite:FILE or memory:"),
        )),
    }
}

/// Where the command line finds the key of a reviewer on this machine.
///
/// A server without keys notes there, by its address, in which file its reviewer
/// key is; the directory is the user's own.
#[must_use]
pub fn state_directory() -> Option<PathBuf> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the user's directories are settings of the system, not ours"
    )]
    let variable = |name: &str| {
        std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("adjourn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(listen: &[&str]) -> ServeArgs {
        ServeArgs {
            listen: listen.iter().map(|text| (*text).to_owned()).collect(),
            ..ServeArgs::default()
        }
    }

    #[test]
    fn the_defaults_are_those_of_a_sidecar() {
        let settings = Settings::resolve(ServeArgs::default()).unwrap();
        assert_eq!(
            settings.listen,
            [Listen::Tcp("127.0.0.1:7420".parse().unwrap())]
        );
        assert_eq!(settings.storage, Storage::Sqlite("./adjourn.db".into()));
    }

    #[test]
    fn strangers_are_not_let_in_without_keys() {
        let refused = Settings::resolve(args(&["0.0.0.0:7420"])).unwrap_err();
        assert!(refused.to_string().contains("--auth-file"), "{refused}");
        let keys = ServeArgs {
            auth_file: Some("keys.toml".into()),
            ..args(&["0.0.0.0:7420"])
        };
        assert!(Settings::resolve(keys).is_ok());
        let insecure = ServeArgs {
            insecure: true,
            ..args(&["0.0.0.0:7420"])
        };
        assert!(Settings::resolve(insecure).is_ok());
    }

    #[test]
    fn a_flag_wins_over_the_file_and_unknown_settings_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("adjourn.toml");
        std::fs::write(&file, "storage = \"memory:\"\ngrace = 3\n").unwrap();
        let with_file = |storage: Option<&str>| ServeArgs {
            config: Some(file.clone()),
            storage: storage.map(str::to_owned),
            ..ServeArgs::default()
        };
        let settings = Settings::resolve(with_file(None)).unwrap();
        assert_eq!(
            (settings.storage, settings.grace),
            (Storage::Memory, Duration::from_secs(3))
        );
        let settings = Settings::resolve(with_file(Some("sqlite:x.db"))).unwrap();
        assert_eq!(settings.storage, Storage::Sqlite("x.db".into()));
        std::fs::write(&file, "strage = \"memory:\"\n").unwrap();
        assert!(
            Settings::resolve(with_file(None))
                .unwrap_err()
                .to_string()
                .contains("strage")
        );
    }

    #[test]
    fn unknown_places_are_refused_with_what_would_do() {
        let odd = ServeArgs {
            storage: Some("redis://x".into()),
            ..ServeArgs::default()
        };
        assert!(
            Settings::resolve(odd)
                .unwrap_err()
                .to_string()
                .contains("sqlite:FILE")
        );
        assert!(
            Settings::resolve(args(&["nonsense"]))
                .unwrap_err()
                .to_string()
                .contains("unix:PATH")
        );
    }
}
