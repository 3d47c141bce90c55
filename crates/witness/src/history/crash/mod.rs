//! Power cuts: histories on a recorded device, cut at every flush and at random, recovered and judged.
//!
//! Invariants:
//! - every image is one that the device could have been left with: what it had promised to keep is there, and of what
//!   it had not, any part;
//! - an image is right only if uxfs recovers it, `xfs_repair -n` and `uxfs check` find nothing, and every thread's
//!   part of the tree is as it was at one moment that is not before what was durable when the power went;
//! - each sector of a file, synced or not, is one that this file had at this place, or zeroes where it had none
//!   (`own` says what that is): the device is full of other bytes before the volume is made;
//! - every file grows then, and what comes behind its old end is zeroes;
//! - where the kernel recovers a copy, both trees are the same: also of what a recovery by uxfs left that was cut short;
//! - what is found wrong is kept as an image, which is all that is needed to see it again.

mod fate;
mod image;
mod run;

pub(crate) use fate::Choice;
pub(crate) use image::Stage;

use super::campaign::Which;
use crate::chains::Tally;
use anyhow::Result;
use clap::Args as ClapArgs;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Mutex;
use std::time::Instant;

/// Cuts the power under histories, at every flush and at random, and has every image recovered and judged.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs on each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Operations of a run, all threads together.
    #[arg(long, default_value_t = 400)]
    ops: u64,
    /// Images of a run with any subset of the writes in doubt, besides the two at every flush.
    #[arg(long, default_value_t = 100)]
    samples: u64,
    /// Images of a run that the kernel recovers too.
    #[arg(long, default_value_t = 5)]
    kernel: u64,
    /// Images of a run whose recovery is cut short in turn, at each of its writes; some of what every other one leaves,
    /// beginning with the first, the kernel recovers too.
    #[arg(long, default_value_t = 0)]
    again: u64,
    /// Has one more thread write the log out all the time, so that checkpoints end within chains of deferred work, which
    /// the others do more of. Then so many flushes of a run are looked at, and what they leave is recovered where it is
    /// unfinished at a place that was seldom cut, besides as many as there are samples.
    #[arg(long, default_value_t = 0)]
    chains: u64,
}

/// How much was tried.
#[derive(Clone, Debug, Default)]
struct Counts {
    runs: u64,
    ops: u64,
    writes: u64,
    flushes: u64,
    /// Images at flushes.
    boundaries: u64,
    samples: u64,
    /// Sectors that were judged of files that nobody had made durable.
    sectors: u64,
    /// Images that the kernel recovered too.
    kernel: u64,
    /// Recoveries that were cut short at each of their writes.
    again: u64,
    /// Writes of these.
    again_writes: u64,
    /// Images of these.
    again_images: u64,
    /// Those of them that the kernel recovered too.
    again_kernel: u64,
    /// What the images had unfinished.
    chains: Tally,
    failed: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.ops += other.ops;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.boundaries += other.boundaries;
        self.samples += other.samples;
        self.sectors += other.sectors;
        self.kernel += other.kernel;
        self.again += other.again;
        self.again_writes += other.again_writes;
        self.again_images += other.again_images;
        self.again_kernel += other.again_kernel;
        self.chains += other.chains;
        self.failed += other.failed;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} writes; {} flushes, {} images at them; {} sampled subsets; {} sectors of files that \
             were not synced; {} beside the kernel; {} \
             recoveries cut at each of {} writes, {} images, {} of them beside the kernel",
            self.ops,
            self.writes,
            self.flushes,
            self.boundaries,
            self.samples,
            self.sectors,
            self.kernel,
            self.again,
            self.again_writes,
            self.again_images,
            self.again_kernel
        )
    }
}

/// Runs the command. `Ok(true)`: every image was recovered as it must be.
pub fn run(args: &Args) -> Result<bool> {
    let mut rest = format!(
        "--ops {} --samples {} --kernel {} --again {}",
        args.ops, args.samples, args.kernel, args.again
    );
    if args.chains > 0 {
        rest.push_str(&format!(" --chains {}", args.chains));
    }
    let tasks = args.which.tasks(args.runs, "crash", &rest)?;
    let sum = Mutex::new(Counts::default());
    let outcome = args.which.all("", tasks, |task| {
        let start = Instant::now();
        let counts = run::one(task, args)?;
        let said = format!("{counts}; {:.0} s", start.elapsed().as_secs_f64());
        let ops = counts.ops;
        *sum.lock().expect("no panic") += counts;
        Ok((ops, said))
    })?;
    let sum = sum.into_inner().expect("no panic");
    print!("crash: what was unfinished (ATTRI: only a kernel writes it):\n{}", sum.chains);
    let missing: Vec<&str> = sum.chains.missing().into_iter().filter(|kind| *kind != "ATTRI").collect();
    if !missing.is_empty() {
        println!("crash: no image had unfinished: {}", missing.join(", "));
    }
    println!(
        "crash: {} runs right: {sum}; {} runs failed{}",
        outcome.right,
        outcome.failed.len(),
        outcome.list()
    );
    Ok(outcome.failed.is_empty())
}
