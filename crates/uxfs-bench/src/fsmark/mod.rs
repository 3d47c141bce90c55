//! The workload `fsmark`: threads that fill directories of their own with empty files, look at all of them, and
//! remove them.
//!
//! A round makes the directories (which is not measured) and then goes through the phases of [`PHASES`], each begun
//! by all threads at once: `create` makes the files, `walk` lists the directories and looks at each file, `unlink`
//! removes them. Where that is asked for, `create` is `create + fsync`: each file gets some bytes, and its thread has it durable
//! before it makes the next one. Otherwise neither uxfs nor a kernel's file system makes an operation durable by itself: a phase ends with its
//! last operation. What it left to be made durable is timed apart: `create + sync` and `unlink + sync` are the
//! same operations over the time of the phase and of one sync of the volume behind it.
//!
//! A walk counts the files, and after `unlink` there may be none: a target that loses files does not count.

mod sys;
mod tree;
mod uxfs;

pub(crate) use sys::SysTree;
pub(crate) use tree::{AnyTree, Named, Seen, Tree, TreeDir, Watch, together};
pub(crate) use uxfs::{UxfsTree, make_device, named};

use crate::config::{Config, Workload};
use crate::error::Result;
use crate::lockstat::{self, Tracker};
use crate::measure::{Collector, Sample, Series};
use crate::setup::{Compared, Shape, volume_bytes};
use crate::suite::{Observer, Report};
use crate::target::Label;
use crate::timer;
use crate::work::Tally;
use ::uxfs::Designs;
use std::time::Duration;

/// The name of the workload in reports.
pub(crate) const NAME: &str = "fsmark";

/// Bytes of a volume that a file may take: its inode, its name, and what trees and directories leave unused.
const BYTES_A_FILE: u64 = 4096;

/// What is measured, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Create,
    Walk,
    Unlink,
}

const PHASES: [Phase; 3] = [Phase::Create, Phase::Walk, Phase::Unlink];

impl Phase {
    const fn name(self, fsync: Option<u64>) -> &'static str {
        match (self, fsync) {
            (Self::Create, None) => "create",
            (Self::Create, Some(_)) => "create + fsync",
            (Self::Walk, _) => "walk",
            (Self::Unlink, _) => "unlink",
        }
    }

    /// One operation in so many is timed.
    const fn timed(self, fsync: Option<u64>) -> u32 {
        match (self, fsync) {
            (Self::Create, Some(_)) => timer::EACH,
            (Self::Create, None) | (Self::Unlink, _) => timer::SHORT,
            (Self::Walk, _) => timer::TINY,
        }
    }

    /// The name of the phase with a sync behind it, if that has anything to do.
    const fn synced_name(self, fsync: Option<u64>) -> Option<&'static str> {
        match (self, fsync) {
            (Self::Create, None) => Some("create + sync"),
            (Self::Unlink, _) => Some("unlink + sync"),
            (Self::Create, Some(_)) | (Self::Walk, _) => None,
        }
    }
}

/// What a target does in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) round: usize,
    pub(crate) threads: usize,
    /// Files of each thread.
    pub(crate) files: u64,
    /// Directories of each thread.
    pub(crate) dirs: usize,
    /// Bytes that each file gets and has durable; none: it stays empty.
    pub(crate) fsync: Option<u64>,
}

/// What a phase took.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub(crate) phase: Phase,
    /// Operations of all threads.
    pub(crate) tally: Tally,
    /// From the first thread's first operation to the last thread's last.
    pub(crate) wall: Duration,
    /// The sync behind it.
    pub(crate) sync: Duration,
}

/// Volumes of the same size and shape, each with all that is mounted for it.
struct Scene {
    trees: Vec<Box<dyn AnyTree>>,
    _compared: Vec<Compared>,
}

impl Scene {
    fn set(config: &Config, observer: &mut dyn Observer) -> Result<Self> {
        let most = config.threads.iter().copied().max().unwrap_or(1) as u64;
        let bytes_a_file = BYTES_A_FILE + config.fsync.unwrap_or(0).next_multiple_of(BYTES_A_FILE);
        // A group for each thread, as directories go to one group after the other.
        let groups = u32::try_from(most).unwrap_or(u32::MAX).max(4);
        let bytes = volume_bytes(most * config.files * bytes_a_file, groups);
        observer.note("making a volume");
        let own = config.designs(Workload::FsMark);
        let make = |designs: &Designs| UxfsTree::make(config, bytes, groups, *designs);
        let mut trees: Vec<Box<dyn AnyTree>> = own.iter().map(make).collect::<Result<_>>()?;
        let shape = Shape { bytes, groups: Some(groups) };
        let mut all = Vec::new();
        for versus in &config.versus {
            let compared = Compared::set(config, versus, shape, observer)?;
            trees.push(SysTree::in_dir(compared.dir(), compared.suffix())?);
            all.push(compared);
        }
        Ok(Self { trees, _compared: all })
    }
}

/// Measures all targets, round by round.
pub(crate) fn run(config: &Config, observer: &mut dyn Observer, report: &mut Report) -> Result<()> {
    let mut scene = Scene::set(config, observer)?;
    observer.start(NAME, (config.rounds * config.threads.len() * scene.trees.len()) as u64);
    let mut collector = Collector::default();
    let mut locks = config.lockstat.then(Tracker::start);
    for round in 0..config.rounds {
        for &threads in &config.threads {
            let Config { files, dirs, fsync, .. } = *config;
            let plan = Plan { round, threads, files, dirs, fsync };
            for tree in &mut scene.trees {
                let label = tree.label().clone();
                observer.step(&format!("{label} × {threads}"));
                let (collector, locks) = (&mut collector, locks.as_mut());
                tree.round(plan, &mut Recorder { plan, label, collector, locks })?;
            }
        }
    }
    report.measurements.extend(collector.finish());
    report.locks.extend(locks.map(|locks| lockstat::shared_first(locks.finish(NAME))).unwrap_or_default());
    // The first volume is that of today's design.
    let mut keep = config.keep.as_deref();
    for tree in scene.trees.drain(..) {
        observer.note(&format!("closing {}", tree.label()));
        tree.finish(keep.take())?;
    }
    Ok(())
}

/// Puts what phases took into the report's lines.
struct Recorder<'a> {
    plan: Plan,
    label: Label,
    collector: &'a mut Collector,
    locks: Option<&'a mut Tracker>,
}

impl Watch for Recorder<'_> {
    fn begin(&mut self) {
        if let Some(locks) = &mut self.locks {
            locks.skip();
        }
    }

    fn end(&mut self, phase: Phase) {
        if let Some(locks) = &mut self.locks {
            locks.attribute(&format!(
                "{} {} × {}",
                self.label,
                phase.name(self.plan.fsync),
                self.plan.threads
            ));
        }
    }

    fn timed(&mut self, timed: &Timed) {
        self.add(timed.phase.name(self.plan.fsync), Sample::of(&timed.tally, timed.wall));
        if let Some(op) = timed.phase.synced_name(self.plan.fsync) {
            // Single operations are those of the phase.
            let tally = Tally { ops: timed.tally.ops, ..Tally::default() };
            self.add(op, Sample::of(&tally, timed.wall + timed.sync));
        }
    }
}

impl Recorder<'_> {
    fn add(&mut self, op: &'static str, sample: Sample) {
        let line = Series {
            workload: NAME,
            label: self.label.clone(),
            op,
            threads: self.plan.threads,
            depth: 1,
            bytes: 0,
            samples: Vec::new(),
        };
        self.collector.add(line, sample);
    }
}
