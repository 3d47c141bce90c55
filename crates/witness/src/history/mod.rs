//! Random histories: mixed operations done to a file system and to a model of one, which must agree at every step,
//! and a volume that every judge must find right afterwards.
//!
//! Invariants:
//! - all that happens follows from the seed, and from when the volume was full;
//! - a history that fails leaves what it did in a file, and that can be done again and made shorter.

mod acl;
mod content;
mod drive;
mod durable;
mod generator;
mod geometry;
mod judge;
mod model;
mod op;
mod redo;
pub mod replay;
mod target;

use crate::record::Record;
use crate::sandbox::{Mounted, mkfs, scratch};
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, ValueEnum};
use drive::{Actor, Blind, Failure, Source};
use geometry::Geometry;
use model::{Model, Rules};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};
use target::{EngineTarget, MountedTarget, Target};
use tempfile::TempDir;

/// Does random histories to volumes of every geometry, and has them judged.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Seed of the first history.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many histories of each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Operations of one history, all threads together.
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Operations after which the volume is closed and judged.
    #[arg(long, default_value_t = 10_000)]
    leg: u64,
    /// Threads that share the volume.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Only geometries of these names.
    #[arg(long, value_delimiter = ',')]
    geometry: Vec<String>,
    /// What the histories are done to.
    #[arg(long, value_enum, default_value_t = Who::Uxfs)]
    target: Who,
    /// Print how often each kind of operation was done.
    #[arg(long)]
    counts: bool,
    /// Results, one line a history. Histories that are in it already are not done again.
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Do the operations in this file again, as a history that failed has kept them.
    #[arg(long)]
    redo: Option<PathBuf>,
    /// With --redo: look for a shorter history that fails too, for so many seconds.
    #[arg(long, default_value_t = 0)]
    shrink: u64,
    /// Keep image and operations of histories that fail, in this folder.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Who does the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Who {
    /// uxfs, in process.
    Uxfs,
    /// The kernel, through its mount.
    Kernel,
}

/// Runs the command. `Ok(true)`: every history was right.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.redo {
        return redo::run(path, args);
    }
    let done = done_before(args.resume.as_deref())?;
    let mut failed = Vec::new();
    let mut total = 0;
    for geometry in geometry::chosen(&args.geometry)? {
        for seed in args.seed..args.seed + args.runs {
            let label = label(args, &geometry, seed);
            if done.contains(&label) {
                continue;
            }
            let start = Instant::now();
            let verdict = History::new(geometry, seed, args.threads)?.all(args);
            let seconds = start.elapsed().as_secs_f64();
            let line = match &verdict {
                Ok(counts) => {
                    let full = counts.get(drive::NO_SPACE).map_or(0, |(_, count)| *count);
                    let sum = counts.values().map(|(ok, err)| ok + err).sum::<u64>() - full;
                    total += sum;
                    let failed = counts.values().map(|(_, failed)| failed).sum::<u64>() - full;
                    format!(
                        "{label}: right: {sum} operations, {failed} of them errors as they must be, {full} \
                         without space, {seconds:.0} s"
                    )
                }
                Err(error) => format!("{label}: FAILED: {error:#}"),
            };
            println!("history: {line}");
            if let (Ok(counts), true) = (&verdict, args.counts) {
                for (kind, (ok, failed)) in counts {
                    println!("  {kind:22}{ok:8} done{failed:8} errors");
                }
            }
            match &verdict {
                Ok(_) => note(args.resume.as_deref(), &label)?,
                Err(_) => failed.push(label),
            }
        }
    }
    println!("history: {total} operations; {} histories failed{}", failed.len(), list(&failed));
    Ok(failed.is_empty())
}

fn label(args: &Args, geometry: &Geometry, seed: u64) -> String {
    let who = if args.target == Who::Kernel { "kernel" } else { "uxfs" };
    format!(
        "{who} --geometry {} --seed {seed} --threads {} --ops {}",
        geometry.volume.name, args.threads, args.ops
    )
}

fn list(failed: &[String]) -> String {
    failed.iter().map(|label| format!("\n  {label}")).collect()
}

fn done_before(path: Option<&Path>) -> Result<BTreeSet<String>> {
    match path.filter(|path| path.exists()) {
        None => Ok(BTreeSet::new()),
        Some(path) => Ok(BufReader::new(File::open(path)?).lines().collect::<std::io::Result<_>>()?),
    }
}

fn note(path: Option<&Path>, label: &str) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    Ok(writeln!(file, "{label}")?)
}

/// Operations by kind: those that succeeded, and those that failed as they must.
type Counts = BTreeMap<&'static str, (u64, u64)>;

/// One history on one volume.
struct History {
    geometry: Geometry,
    seed: u64,
    threads: usize,
    folder: TempDir,
    since: SystemTime,
    actors: Vec<Actor>,
}

impl History {
    fn new(geometry: Geometry, seed: u64, threads: usize) -> Result<Self> {
        let folder = scratch()?;
        mkfs(&folder.path().join("image"), &geometry.volume)?;
        Ok(Self { geometry, seed, threads, folder, since: SystemTime::now(), actors: Vec::new() })
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mnt(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    fn all(mut self, args: &Args) -> Result<Counts> {
        let result = self.legs(args);
        if let (Err(_), Some(keep)) = (&result, &args.keep) {
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
                let target = EngineTarget::open(&self.image())?;
                self.leg(&target, source)?;
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
        let mut copy = std::process::Command::new("cp");
        crate::command::run(copy.arg("--sparse=always").args([&self.image(), &image]))?;
        println!("history: kept {} and {}", trace.display(), image.display());
        Ok(())
    }
}
