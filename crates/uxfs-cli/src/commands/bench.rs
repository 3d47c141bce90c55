//! `uxfs bench`: measures file I/O.

use crate::exit::{Exit, Failure, Result};
use crate::options::Global;

/// Arguments of `bench`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the workloads that are asked for.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let _ = (args, global);
    Err(Failure::new(Exit::Usage, "bench: not built yet"))
}
