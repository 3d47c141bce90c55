//! Random histories: mixed operations done to a file system and to a model of one, which must agree at every step,
//! and a volume that every judge must find right afterwards.
//!
//! Invariants:
//! - all that happens follows from the seed, and from when the volume was full;
//! - a history that fails leaves what it did in a file, and that can be done again and made shorter.

mod acl;
mod behind;
mod bulkstat;
pub(crate) mod campaign;
mod content;
pub mod crash;
mod drive;
mod durable;
pub mod fault;
mod generator;
pub(crate) mod geometry;
mod going;
mod growth;
pub(crate) mod half_set;
pub(crate) mod judge;
pub mod kill;
mod large_dirs;
mod map_trees;
pub(crate) mod means;
mod model;
mod nearly_full;
pub(crate) mod not_freed;
mod op;
mod own;
pub(crate) mod promised;
pub mod recover;
pub(crate) mod redo;
pub mod replay;
mod target;

use crate::handles::Io;
use crate::record::{Hash, Record};
use crate::sandbox::{Mounted, copy_sparse, mkfs, mkfs_over, scratch};
use crate::volumes::VolumeKind;
use anyhow::{Context, Result};
use campaign::{Task, Which};
use clap::{Args as ClapArgs, ValueEnum};
use drive::{Actor, Blind, Failure, Source};
use geometry::Geometry;
pub(crate) use judge::is_sound;
use model::{Model, Rules};
pub(crate) use nearly_full::leave_free;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};
use target::{EngineTarget, MountedTarget, Target};
use tempfile::TempDir;
use uxfs::OpenOptions;

/// What is done to files that others remove meanwhile, behind each leg.
const GOING_OPS: u64 = 400;

/// How often each of some large directories grows or shrinks behind each leg.
const LARGE_DIR_STEPS: u64 = 40;

/// How histories' content is hashed.
const HASH: Hash = Hash::Blake3;

/// Does random histories to volumes of every geometry, and has them judged.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many histories of each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Operations of one history, all threads together.
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Operations after which the volume is closed and judged.
    #[arg(long, default_value_t = 10_000)]
    leg: u64,
    /// What the histories are done to.
    #[arg(long, value_enum, default_value_t = Who::Uxfs)]
    target: Who,
    /// Print how often each kind of operation was done.
    #[arg(long)]
    counts: bool,
    /// Do the operations in this file again, as a history that failed has kept them.
    #[arg(long)]
    redo: Option<PathBuf>,
    /// With --redo: look for a shorter history that fails too, for so many seconds.
    #[arg(long, default_value_t = 0)]
    shrink: u64,
}

/// The side that does the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Who {
    /// uxfs, in process.
    Uxfs,
    /// The kernel, through its mount.
    Kernel,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Uxfs => "uxfs",
            Self::Kernel => "kernel",
        }
    }
}

/// Runs the command. `Ok(true)`: every history was right.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.redo {
        return redo::run(path, args);
    }
    let tasks = args.which.tasks(args.runs, args.target.name(), &format!("--ops {}", args.ops))?;
    let outcome = args.which.all("history: ", tasks, |task| one(task, args))?;
    Ok(outcome.conclude("history", "histories right", "operations"))
}

/// Does one history: how many operations succeeded or failed as they must, and what there is to say of them.
fn one(task: &Task, args: &Args) -> Result<(u64, String)> {
    let start = Instant::now();
    let counts = History::new(task)?.all(args)?;
    let full = counts.get(drive::NO_SPACE).map_or(0, |(_, count)| *count);
    let sum = counts.values().map(|(ok, err)| ok + err).sum::<u64>() - full;
    let failed = counts.values().map(|(_, failed)| failed).sum::<u64>() - full;
    let mut what = format!(
        "{sum} operations, {failed} of them errors as they must be, {full} without space, {:.0} s",
        start.elapsed().as_secs_f64()
    );
    if args.counts {
        for (kind, (ok, failed)) in &counts {
            write!(what, "\n  {kind:22}{ok:8} done{failed:8} errors")?;
        }
    }
    Ok((sum, what))
}

/// Operations by kind: those that succeeded, and those that failed as they must.
type Counts = BTreeMap<&'static str, (u64, u64)>;

/// One history on one volume.
struct History {
    geometry: Geometry,
    seed: u64,
    threads: usize,
    io: Io,
    folder: TempDir,
    since: SystemTime,
    actors: Vec<Actor>,
}

impl History {
    fn new(task: &Task) -> Result<Self> {
        Self::made(task, mkfs)
    }

    /// The same on a device on which something lies already: see [`own::filler_word`].
    fn on_filler(task: &Task) -> Result<Self> {
        Self::made(task, |image, kind| mkfs_over(image, kind, own::filler_word))
    }

    fn made(task: &Task, make: impl FnOnce(&Path, &VolumeKind) -> Result<()>) -> Result<Self> {
        let folder = scratch()?;
        let Task { geometry, seed, threads, io, .. } = *task;
        make(&folder.path().join("image"), &geometry.volume)?;
        Ok(Self { geometry, seed, threads, io, folder, since: SystemTime::now(), actors: Vec::new() })
    }

    /// Opens the volume for uxfs, as this history has it.
    fn open(&self) -> Result<EngineTarget> {
        Ok(EngineTarget::open_with(&self.image(), &self.options())?.by(self.io))
    }

    fn options(&self) -> OpenOptions {
        OpenOptions::new().writable(true).gather_writes(self.io.gathers(self.seed))
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mnt(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    fn all(mut self, args: &Args) -> Result<Counts> {
        let result = self.legs(args);
        if let (Err(_), Some(keep)) = (&result, &args.which.keep) {
            self.keep(keep)?;
        }
        result?;
        let mut counts = Counts::new();
        for (kind, (ok, failed)) in self.actors.iter().flat_map(|actor| &actor.counts) {
            let sum = counts.entry(*kind).or_default();
            *sum = (sum.0 + ok, sum.1 + failed);
        }
        Ok(counts)
    }

    fn legs(&mut self, args: &Args) -> Result<()> {
        let mut left = (args.ops / self.threads as u64).max(1);
        let leg = (args.leg / self.threads as u64).max(1);
        while left > 0 {
            let ops = left.min(leg);
            left -= ops;
            self.one_by(args.target, Source::Generated(ops))?;
            self.judge()?;
            if args.target == Who::Uxfs {
                // What uxfs left must be good enough for the kernel to go on with.
                self.one_by(Who::Kernel, Source::Generated((ops / 20).clamp(50, 500)))?;
                self.judge().context("after the kernel went on")?;
            }
        }
        Ok(())
    }

    /// Does lists of operations, one for each thread.
    fn redo(mut self, lists: &[Vec<op::Op>], who: Who) -> Result<()> {
        self.one_by(who, Source::Listed(lists))?;
        self.judge()
    }

    fn one_by(&mut self, who: Who, source: Source<'_>) -> Result<()> {
        match who {
            Who::Kernel => {
                let mounted = Mounted::new(&self.image(), &self.mnt(), false)?;
                let target = MountedTarget::new(mounted.dir())?;
                let result = self.leg(&target, source);
                drop(target);
                mounted.unmount()?;
                result
            }
            Who::Uxfs => {
                let target = self.open()?;
                self.leg(&target, source)?;
                if !self.geometry.tight {
                    // What it leaves is nothing, for any judge.
                    going::run(target.volume(), self.seed, GOING_OPS).context("files that go")?;
                    large_dirs::run(target.volume(), self.seed, LARGE_DIR_STEPS)
                        .context("large directories")?;
                }
                target.close()
            }
        }
    }

    fn leg<T: Target>(&mut self, target: &T, source: Source<'_>) -> Result<()> {
        self.set_out(target)?;
        let rules = Rules { tight: self.geometry.tight, strict: T::STRICT };
        let mut observers = vec![Blind; self.threads];
        drive::run(target, &mut self.actors, &mut observers, source, rules, false)?;
        Ok(())
    }

    /// Makes the threads' folders, on a fresh volume.
    fn set_out<T: Target>(&mut self, target: &T) -> Result<()> {
        if self.actors.is_empty() {
            let made = drive::actors(target, self.seed, self.threads, &self.geometry);
            self.actors = made.context("making the threads' folders")?;
        }
        Ok(())
    }

    /// What kernel and uxfs both say of the volume.
    fn views_agree(&self) -> Result<Vec<Record>> {
        judge::views_agree(&self.image(), &self.mnt(), |_| Ok(()))
    }

    fn judge(&self) -> Result<()> {
        let models: Vec<&Model> = self.actors.iter().map(|actor| &actor.model).collect();
        judge::judge(&self.image(), &self.mnt(), &models, self.since)
    }

    /// Keeps what is needed to see a failure again.
    fn keep(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let name = format!("{}-{}", self.geometry.volume.name, self.seed);
        let (trace, image) = (folder.join(format!("{name}.ops")), folder.join(format!("{name}.img")));
        let header = redo::Header {
            geometry: self.geometry.volume.name.to_owned(),
            threads: self.threads,
            seed: self.seed,
        };
        let steps = self.actors.iter().enumerate();
        let steps = steps.flat_map(|(thread, actor)| actor.trace.iter().map(move |op| (thread, op.clone())));
        redo::save(&trace, &header, &steps.collect::<Vec<_>>())?;
        copy_sparse(&self.image(), &image)?;
        println!("history: kept {} and {}", trace.display(), image.display());
        Ok(())
    }
}
