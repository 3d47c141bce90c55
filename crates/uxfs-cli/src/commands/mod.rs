//! The verbs, a file each: its `Args`, and `run`, which gives the exit code or the failure that ended it.

pub mod bench;

use crate::exit::{Exit, Result};
use crate::options::Global;
use clap::Subcommand;

/// A verb and its arguments.
#[derive(Subcommand)]
pub enum Command {
    /// Measure file I/O: in process, on mounted directories, on raw devices
    Bench(bench::Args),
}

/// Runs a verb.
pub fn run(command: &Command, global: &Global) -> Result<Exit> {
    match command {
        Command::Bench(args) => bench::run(args, global),
    }
}
