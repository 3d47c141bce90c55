//! The command `uxfs`.
//!
//! This file parses the command line and turns the outcome into an exit code; a verb is a file in
//! [`commands`]. Results go to standard output, and everything else, in single lines that start with
//! `uxfs: `, to standard error.
#![forbid(unsafe_code)]

mod archive;
mod commands;
mod edit;
mod exit;
mod fill;
mod flags;
mod glob;
mod host;
mod interrupt;
mod location;
mod mode;
mod options;
mod output;
mod problems;
mod progress;
mod trust;
mod walk;

use clap::Parser;
use exit::{Exit, Failure};
use options::Global;
use std::ffi::OsString;
use std::process::ExitCode;

/// Metadata versions are allocated by one thread and mostly freed by another, the journal's. This allocator handles
/// that without contention.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Read and write XFS volumes without mounting them, and run many threads through one file.
#[derive(Parser)]
#[command(name = "uxfs", version, after_help = exit::HELP)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    if let Some(recorded) = commands::bench::recorded() {
        return recorded.unwrap_or_else(|failure| report(&failure)).into();
    }
    let cli = match Cli::try_parse_from(arguments()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are requested output, and go to standard output; a closed pipe is no
            // failure.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Ok }.into();
        }
    };
    match commands::run(&cli.command, &cli.global) {
        Ok(exit) => exit.into(),
        Err(failure) => report(&failure).into(),
    }
}

/// The command line; tests of `find` may have one dash, as with `find`.
fn arguments() -> impl Iterator<Item = OsString> {
    let mut behind_find = false;
    std::env::args_os().map(move |argument| {
        if !behind_find {
            behind_find = argument == "find";
            return argument;
        }
        match argument.to_str().and_then(|text| text.strip_prefix('-')) {
            Some(test) if commands::find::SINGLE_DASH.contains(&test) => format!("--{test}").into(),
            _ => argument,
        }
    })
}

/// Reports a failure on standard error, unless the reader of the output is gone.
fn report(failure: &Failure) -> Exit {
    if !failure.is_quiet() {
        problems::complain(&failure.to_string());
    }
    failure.exit()
}
