//! The `adjourn` program.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    adjourn::cli::main(adjourn::cli::Cli::parse())
}
