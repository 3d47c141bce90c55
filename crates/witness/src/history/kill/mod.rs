//! Processes that are killed while they write: a child does a history to an image file and tells what it has done; its
//! parent kills it at any moment, or it is killed right behind a sync; the parent is let in at once, and finds everything
//! that was made durable.
//!
//! Invariants: a run is right only if
//! - nobody else was let in to write while the child lived, and somebody was as soon as it was dead;
//! - the volume recovered, sound to `uxfs check` and `xfs_repair -n`, to a moment of the history that has all that the
//!   child had reported as durable;
//! - what the parent knows of the child, it was told through a pipe, operation by operation; the rest follows from the
//!   seed.

mod child;
mod parent;

pub use child::{Args as WorkerArgs, run as work};

use super::campaign::Which;
use super::geometry::{self, Geometry};
use anyhow::Result;
use clap::Args as ClapArgs;
use std::time::Instant;

/// Kills processes that write to an image, and recovers what they leave.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs of each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Most operations before the kill, all threads together; how many there are follows from the seed.
    #[arg(long, default_value_t = 2_000)]
    ops: u64,
}

/// Runs the command. `Ok(true)`: every volume was recovered as it must be.
pub fn run(args: &Args) -> Result<bool> {
    // Parent and child must come to the same without a word: nothing may depend on when a volume was full.
    let roomy: Vec<Geometry> = geometry::ALL.into_iter().filter(|geometry| !geometry.tight).collect();
    let tasks = args.which.tasks_on(&roomy, args.runs, "kill", &format!("--ops {}", args.ops))?;
    let outcome = args.which.all("", tasks, |task| {
        let start = Instant::now();
        let (ops, what) = parent::one(task, args)?;
        Ok((ops, format!("{what}, {:.0} s", start.elapsed().as_secs_f64())))
    })?;
    Ok(outcome.conclude("kill", "processes killed and their volumes right", "operations"))
}
