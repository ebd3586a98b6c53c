//! Logs.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::config::LogFormat;

/// Starts writing logs to standard error. Standard output is for answers.
///
/// # Errors
///
/// When the filter cannot be read, or logs are written already.
pub fn start(
    format: LogFormat,
    filter: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let filter = EnvFilter::try_new(filter)?;
    let writer = BoxMakeWriter::new(std::io::stderr);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
}
