//! What commands print: tables for people, JSON for scripts.

use std::io::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::Error;

/// Prints a line.
///
/// # Errors
///
/// When standard output is closed.
pub fn line(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Prints a value as one line of JSON.
///
/// # Errors
///
/// When standard output is closed.
pub fn json(value: &impl Serialize) -> Result<(), Error> {
    line(&serde_json::to_string(value)?)
}

/// Prints rows under headings.
///
/// # Errors
///
/// When standard output is closed.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<(), Error> {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headings);
    for row in rows {
        table.add_row(row);
    }
    line(&table.to_string())
}

/// Asks on the terminal, and reads a line.
///
/// # Errors
///
/// When there is no terminal to ask on.
pub fn ask(question: &str) -> Result<String, Error> {
    let mut out = std::io::stdout().lock();
    write!(out, "{question} ")?;
    out.flush()?;
    drop(out);
    let mut answer = String::new();
    if std::io::stdin().read_line(&mut answer)? == 0 {
        return Err("nobody is there to answer; say it on the command line".into());
    }
    Ok(answer.trim().to_owned())
}

/// Says on standard error what went wrong, with its causes.
pub fn complain(error: &(dyn std::error::Error + 'static)) {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    // Where standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A time for people, in UTC.
#[must_use]
pub fn time(at: Option<&prost_types::Timestamp>) -> String {
    let Some(at) = at else { return String::new() };
    jiff::Timestamp::new(at.seconds, 0)
        .map(|at| at.to_string())
        .unwrap_or_default()
}

/// How long ago a time was, for people.
#[must_use]
pub fn age(at: Option<&prost_types::Timestamp>) -> String {
    use crate::domain::time::{Clock as _, SystemClock};

    let Some(at) = at else { return String::new() };
    let seconds = (SystemClock.now().as_micros() / 1_000_000 - at.seconds).max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A text cut for a table cell, marked where it is cut.
#[must_use]
pub fn cut(text: &str, most: usize) -> String {
    let one_line = text.replace('\n', " ");
    if one_line.chars().count() <= most {
        return one_line;
    }
    let kept: String = one_line.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}
