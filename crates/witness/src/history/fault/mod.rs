//! Histories on a device that fails: every write, every flush and every read of a run, in turn.
//!
//! Invariants: a run is right only if, whichever request failed,
//! - nothing panicked and nothing hung;
//! - a call that failed because of it gave an I/O error, or said that the volume was shut down; before the fault there
//!   was no such error, and a volume that says that it was shut down never changes anything again;
//! - the volume closed cleanly, with all that was done in it, or it said that it did not, and recovers, sound, on a
//!   device that is well again, with all that a sync had reported as durable: also if the power fails then. Where files are
//!   written through pages, what fails may be needed to write back what an earlier call put there: it is lost then, and
//!   told to one sync. Where no sync tells of a loss, all that was written is there.
//!
//! What such a history leaves is opened anew, with a log to recover and work to finish, on a device that fails as well:
//! see `opening`.

mod attempt;
mod opening;
mod watch;

use super::campaign::Which;
use anyhow::Result;
use blockdev::{Effect, Fault, Op, Repeat};
use clap::Args as ClapArgs;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Mutex;
use std::time::Instant;

/// Fails every request of recorded histories in turn.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs of each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Operations of one run, all threads together.
    #[arg(long, default_value_t = 200)]
    ops: u64,
    /// Every Nth request of a run fails.
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// xfs_repair checks every Nth volume that is left.
    #[arg(long, default_value_t = 20)]
    repair_every: u64,
    /// Seconds after which an attempt hangs.
    #[arg(long, default_value_t = 300)]
    limit: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    runs: u64,
    /// Requests that failed, by kind.
    reads: u64,
    writes: u64,
    flushes: u64,
    /// Attempts in which the fault came when nothing was asked any more.
    missed: u64,
    /// Volumes with a dirty log, each opened with one fault.
    openings: u64,
    /// Runs whose recovery had extents to free, and inodes without a name.
    unfinished: u64,
    nameless: u64,
    /// Ends of attempts.
    closed: u64,
    recovered: u64,
    cut: u64,
    shut_down: u64,
    repaired: u64,
    failed: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.missed += other.missed;
        self.openings += other.openings;
        self.unfinished += other.unfinished;
        self.nameless += other.nameless;
        self.closed += other.closed;
        self.recovered += other.recovered;
        self.cut += other.cut;
        self.shut_down += other.shut_down;
        self.repaired += other.repaired;
        self.failed += other.failed;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} writes, {} flushes and {} reads failed ({} came too late); {} volumes shut down; {} closed cleanly, {} \
             recovered, {} recovered after a power cut; {} recoveries failed (of {} runs with extents to free, of {} with \
             nameless inodes); {} volumes seen by xfs_repair",
            self.writes,
            self.flushes,
            self.reads,
            self.missed,
            self.shut_down,
            self.closed,
            self.recovered,
            self.cut,
            self.openings,
            self.unfinished,
            self.nameless,
            self.repaired
        )
    }
}

/// What goes wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A request fails.
    Once,
    /// A request is done in part, and fails.
    Short,
    /// Requests of its kind fail from now on.
    Sticky,
    /// Nothing can be written any more.
    ReadOnly,
    /// A request takes a while; nothing fails.
    Still,
    /// The volume is closed while others use it; nothing fails.
    Closed,
}

/// One thing that goes wrong in a run.
#[derive(Clone, Copy, Debug)]
struct Planned {
    op: Op,
    nth: u64,
    trouble: Trouble,
    /// Whether the power fails in the end.
    cut: bool,
}

impl Planned {
    /// What goes wrong with request `nth`: most often it just fails. Every second time the power fails afterwards.
    fn new(op: Op, nth: u64, seed: u64) -> Self {
        let trouble = match (nth.wrapping_add(seed) % 10, op) {
            (_, Op::Write | Op::Flush) if nth % 50 == 17 => Trouble::Still,
            (5, Op::Write | Op::Flush) => Trouble::Closed,
            (1 | 2, Op::Write | Op::Read) => Trouble::Short,
            (3, _) => Trouble::Sticky,
            (4, Op::Write | Op::Flush) => Trouble::ReadOnly,
            _ => Trouble::Once,
        };
        Self { op, nth, trouble, cut: nth.is_multiple_of(2) }
    }

    /// The same where nobody else uses the volume.
    fn alone(self) -> Self {
        let trouble = if self.trouble == Trouble::Closed { Trouble::Once } else { self.trouble };
        Self { trouble, ..self }
    }

    /// As the device is told, of which `seen` requests of the kind have passed.
    fn fault(self, seen: u64) -> Option<Fault> {
        let (effect, repeat) = match self.trouble {
            Trouble::Once => (Effect::Fail, Repeat::Once),
            Trouble::Short => (Effect::Short(1), Repeat::Once),
            Trouble::Sticky => (Effect::Fail, Repeat::Sticky),
            Trouble::ReadOnly => (Effect::Fail, Repeat::ReadOnlyAfter),
            Trouble::Still | Trouble::Closed => return None,
        };
        Some(Fault { op: self.op, nth: seen + self.nth, effect, repeat })
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = if self.cut { ", then the power" } else { "" };
        write!(f, "{:?} {} ({:?}){power}", self.op, self.nth, self.trouble)
    }
}

/// Runs the command. `Ok(true)`: whatever failed, all was as it must be.
pub fn run(args: &Args) -> Result<bool> {
    let rest = format!("--ops {} --every {}", args.ops, args.every);
    let tasks = args.which.tasks(args.runs, "fault", &rest)?;
    let sum = Mutex::new(Counts::default());
    let watch = watch::Watch::start(args.limit);
    let outcome = args.which.all("", tasks, |task| {
        let start = Instant::now();
        let counts = attempt::all(task, args, &watch)?;
        *sum.lock().expect("no panic") += counts;
        let failed = counts.reads + counts.writes + counts.flushes + counts.openings;
        Ok((failed, format!("{counts}; {:.0} s", start.elapsed().as_secs_f64())))
    })?;
    let sum = sum.into_inner().expect("no panic");
    println!(
        "fault: {} runs right, {} faults: {sum}; {} runs failed{}",
        outcome.right,
        outcome.total,
        outcome.failed.len(),
        outcome.list()
    );
    Ok(outcome.failed.is_empty())
}
