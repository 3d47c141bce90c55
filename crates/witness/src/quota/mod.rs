//! Quota in dirty logs: volumes that a kernel with quota left in the middle of a load are recovered by that kernel and
//! by uxfs, and both must have the same dquots.
//!
//! The kernel is Debian's, in a virtual machine, because the running one may have no quota. It is booted twice for a
//! batch of volumes: once to load them all, once to mount what was recovered.
//!
//! Invariant: a run succeeds only if
//! - `uxfs check` found that the dquots of the dirty volume count what its inodes use, as the log leaves both;
//! - uxfs replayed dquots, and left a volume in which `xfs_repair -n` and `uxfs check` find nothing and which does not
//!   claim that quota was counted;
//! - then each dquot was the same, in every field, as after the kernel's recovery of another copy without recounting;
//! - where files without a name were freed, dquots differ by exactly as many inodes, because uxfs does not update
//!   counts;
//! - the kernel mounted what uxfs had recovered, counted, and came to as many inodes and no more blocks than its own
//!   recovery. `xfs_repair -n`, which counts too, says that both are right.

mod dquots;
mod guest;
mod judge;
mod load;
mod plan;

pub use guest::{GuestArgs, guest};

use crate::history::campaign::{CampaignOutcome, done_before, note};
use crate::sandbox::{copy_sparse, mkfs, scratch};
use crate::vm::{DebianKernel, Machine, run_machine};
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use guest::Task;
use judge::CrashedVolume;
use plan::Plan;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that the virtual machine may take.
const LIMIT: Duration = Duration::from_secs(1800);
/// Maximum number of runs that share a machine: each has two disks there.
const BATCH_MAX: usize = 10;

/// Leaves volumes with quota in a dirty log, and has both a kernel with quota and uxfs recover a copy.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Seed of the first run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs, with one seed after the other.
    #[arg(long, default_value_t = 30)]
    runs: u64,
    /// Operations of a run.
    #[arg(long, default_value_t = 2_000)]
    ops: u64,
    /// How many runs share a virtual machine.
    #[arg(long, default_value_t = BATCH_MAX)]
    batch: usize,
    /// Switch quota off in the middle of runs. Kernels before 5.14 log that; later ones refuse it.
    #[arg(long)]
    quota_off: bool,
    /// Folder of the unpacked kernel; fetched if it is empty.
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Results, one line for each run that was right. Those that are in it already are not done again.
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Keep the images of runs that fail, dirty as they were and recovered by either, in this folder.
    #[arg(long)]
    keep: Option<PathBuf>,
}

impl Args {
    fn label(&self, seed: u64) -> String {
        let off = if self.quota_off { " --quota-off" } else { "" };
        format!("quota --seed {seed} --ops {}{off}", self.ops)
    }
}

/// Runs the command. `Ok(true)`: every volume was recovered as it must be.
pub fn run(args: &Args) -> Result<bool> {
    let kernel = DebianKernel::at(&args.kernel.clone().map_or_else(DebianKernel::default_dir, Ok)?)?;
    let done = done_before(args.resume.as_deref())?;
    let seeds: Vec<u64> =
        (args.seed..args.seed + args.runs).filter(|&seed| !done.contains(&args.label(seed))).collect();
    let mut outcome = CampaignOutcome::default();
    for seeds in seeds.chunks(args.batch.clamp(1, BATCH_MAX)) {
        let start = Instant::now();
        for (seed, result) in batch(args, &kernel, seeds)? {
            let label = args.label(seed);
            match result {
                Ok((dquots, what)) => {
                    println!("{label}: right: {what}");
                    note(args.resume.as_deref(), &label, dquots)?;
                    outcome.right += 1;
                    outcome.total += dquots;
                }
                Err(error) => {
                    println!("{label}: FAILED: {error:#}");
                    outcome.failed.push(label);
                }
            }
        }
        println!("quota: {} runs in {:.0} s", seeds.len(), start.elapsed().as_secs_f64());
    }
    Ok(outcome.conclude("quota", "runs right", "dquots replayed"))
}

/// The result of a run: how many dquots were replayed, and a remark.
type Verdict = Result<(u64, String)>;

/// Makes a kernel with quota count the usage of a volume, which then says so.
pub fn count(image: &Path, folder: &Path) -> Result<()> {
    let kernel = DebianKernel::at(&DebianKernel::default_dir()?)?;
    let arguments = GuestArgs::line(Task::Count, &[0], false, 0);
    let machine = Machine { disks: &[image], programs: &[], arguments: &arguments, limit: LIMIT };
    let report = String::from_utf8(run_machine(&kernel, &machine, folder)?).context("the report")?;
    ensure!(report.trim() == guest::COUNTED, "the machine says: {report}");
    Ok(())
}

/// Does the runs that share a machine.
fn batch(args: &Args, kernel: &DebianKernel, seeds: &[u64]) -> Result<Vec<(u64, Verdict)>> {
    let folder = scratch()?;
    let plans = seeds.iter().map(|&seed| Plan::new(seed, args.quota_off)).collect::<Result<Vec<_>>>()?;
    let images: Vec<PathBuf> = seeds.iter().map(|seed| folder.path().join(format!("{seed}.img"))).collect();
    for (plan, image) in plans.iter().zip(&images) {
        mkfs(image, &plan.geometry.volume)?;
    }
    let loaded = boot(args, kernel, Task::Load, seeds, &images, folder.path())?;

    let (mut runs, mut disks, mut owners) = (Vec::new(), Vec::new(), Vec::new());
    for ((plan, image), loaded) in plans.into_iter().zip(&images).zip(loaded) {
        let run = CrashedVolume::new(plan, image, loaded)?;
        disks.extend([run.theirs.clone(), run.ours.clone()]);
        owners.extend([plan.seed; 2]);
        runs.push((run.recover(), run));
    }
    let mounted = boot(args, kernel, Task::Mount, &owners, &disks, folder.path())?;

    let mut verdicts = Vec::new();
    for (((recovered, run), mounted), image) in runs.into_iter().zip(mounted.chunks(2)).zip(&images) {
        let verdict = recovered.and_then(|recovered| run.judge(&recovered, mounted));
        if let (Err(_), Some(keep)) = (&verdict, &args.keep) {
            std::fs::create_dir_all(keep)?;
            for (of, name) in [(image, "img"), (&run.theirs, "kernel"), (&run.ours, "uxfs")] {
                copy_sparse(of, &keep.join(format!("quota-{}.{name}", run.plan.seed)))?;
            }
        }
        verdicts.push((run.plan.seed, verdict));
    }
    Ok(verdicts)
}

/// Boots a machine that does a task with each volume. Returns its report for each.
fn boot(
    args: &Args,
    kernel: &DebianKernel,
    task: Task,
    seeds: &[u64],
    images: &[PathBuf],
    folder: &Path,
) -> Result<Vec<String>> {
    let disks: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    let machine = Machine {
        disks: &disks,
        programs: &["xfs_io", "xfs_quota"],
        arguments: &GuestArgs::line(task, seeds, args.quota_off, args.ops),
        limit: LIMIT,
    };
    let report = String::from_utf8(run_machine(kernel, &machine, folder)?).context("the report")?;
    let lines: Vec<String> = report.lines().map(str::to_owned).collect();
    ensure!(lines.len() == images.len(), "the machine says of {} volumes:\n{report}", images.len());
    Ok(lines)
}
