//! The `cow` workload: one file is cloned, and random pages that it shares with the clone are overwritten.
//!
//! A round is about a new file, written from its first page to its last. `clone` makes some files share all of
//! it, one after the other, of which one is kept; `copy` overwrites pages in random order, each once, so that each write finds blocks with two owners; `again`
//! overwrites the same pages in the same order, which are the file's own by then. No write is made durable by itself;
//! `+ sync` is the same over the time of the phase and of one sync of the volume behind it.
//!
//! Invariant: after each round the file holds what was written last, and the clone that was kept what the file held
//! before.

mod sys;
mod uxfs;

use crate::config::{Config, Versus};
use crate::content::{Content, PAGE};
use crate::drive;
use crate::error::Result;
use crate::measure::{Collector, Measurement, Sample, Series};
use crate::setup::{Compared, Shape};
use crate::suite::Observer;
use crate::target::{Label, Target};
use crate::timer::{self, Timer};
use crate::work::{Op, Tally, Work, random_pages};
use std::time::{Duration, Instant};
use sys::SysSite;
use uxfs::UxfsSite;

/// The name of the workload in reports.
const NAME: &str = "cow";

/// Groups of the volumes.
const GROUPS: u32 = 4;

/// A volume on which files can share blocks.
trait Site: Send {
    type File: Target;
    /// A new file of this many pages, whose blocks can be overwritten.
    fn create(&mut self, pages: u64) -> Result<Self::File>;
    /// A new and empty file.
    fn empty(&mut self) -> Result<Self::File>;
    /// Clones `file` into `to`, which is empty.
    fn share(&mut self, file: &Self::File, to: &Self::File) -> Result<()>;
    /// Makes everything durable.
    fn sync(&mut self) -> Result<()>;
    /// Removes a file.
    fn remove(&mut self, file: Self::File) -> Result<()>;
    /// Takes down what was set up.
    fn finish(self) -> Result<()>;
}

/// A [`Site`] with its name in reports.
struct Named<T> {
    label: Label,
    site: T,
}

/// What a round does.
#[derive(Clone, Copy)]
struct Plan<'a> {
    /// The round.
    nth: usize,
    file_pages: u64,
    clones: usize,
    pages: &'a [u32],
    threads: usize,
    depth: u32,
}

/// What a phase took.
struct Timed {
    op: &'static str,
    tally: Tally,
    wall: Duration,
}

impl Timed {
    /// A phase, and the same with the sync after it, which does not count in single operations.
    fn pair([op, synced]: [&'static str; 2], tally: Tally, wall: Duration, with_sync: Duration) -> [Self; 2] {
        let alone = Tally { ops: tally.ops, ..Tally::default() };
        [Self { op, tally, wall }, Self { op: synced, tally: alone, wall: with_sync }]
    }
}

/// A [`Named`] site of any type.
trait AnySite: Send {
    fn label(&self) -> &Label;
    fn round(&mut self, plan: Plan<'_>) -> Result<Vec<Timed>>;
    fn finish(self: Box<Self>) -> Result<()>;
}

impl<T: Site> AnySite for Named<T> {
    fn label(&self) -> &Label {
        &self.label
    }

    fn round(&mut self, plan: Plan<'_>) -> Result<Vec<Timed>> {
        let mut content = Content::zeroed(plan.file_pages);
        let all: Vec<u32> = (0..u32::try_from(plan.file_pages).unwrap_or(u32::MAX)).collect();
        let mut file = self.site.create(plan.file_pages)?;
        overwrite(&mut file, Plan { pages: &all, threads: 1, depth: 32, ..plan }, &mut content)?;
        self.site.sync()?;

        let mut clones = (0..plan.clones).map(|_| self.site.empty()).collect::<Result<Vec<_>>>()?;
        self.site.sync()?;
        let (mut timer, start) = (Timer::new(timer::EACH), Instant::now());
        clones.iter().try_for_each(|clone| timer.of(|| self.site.share(&file, clone)))?;
        let wall = start.elapsed();
        self.site.sync()?;
        let with_sync = start.elapsed();
        let tally = Tally { ops: plan.clones as u64, latency: timer.finish() };
        let mut timed = Vec::from(Timed::pair(["clone", "clone + sync"], tally, wall, with_sync));
        // One is kept: each page has two owners.
        let mut clone = clones.swap_remove(plan.nth % clones.len());
        clones.into_iter().try_for_each(|clone| self.site.remove(clone))?;
        self.site.sync()?;

        let cloned = content.clone();
        for names in [["copy", "copy + sync"], ["again", "again + sync"]] {
            let (tally, wall) = overwrite(&mut file, plan, &mut content)?;
            let start = Instant::now();
            self.site.sync()?;
            timed.extend(Timed::pair(names, tally, wall, wall + start.elapsed()));
        }
        let name = self.label.to_string();
        for (file, content) in [(&mut file, &content), (&mut clone, &cloned)] {
            file.scan(plan.file_pages, &mut |first, bytes| content.check(&name, first, bytes))?;
        }
        self.site.remove(clone)?;
        self.site.remove(file)?;
        self.site.sync()?;
        Ok(timed)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.site.finish()
    }
}

/// Overwrites the plan's pages; gives how many that were, what single ones took, and the time.
fn overwrite<T: Target>(file: &mut T, plan: Plan<'_>, content: &mut Content) -> Result<(Tally, Duration)> {
    let depth = if file.has_queue() { plan.depth } else { 1 };
    let (pages, threads, generation) = (plan.pages, plan.threads, content.next_generation());
    let work = Work { pages, op: Op::Write, generation, threads, depth, passes: 1, span: 1 };
    let outcome = drive::run(file, &work)?;
    content.apply(&work);
    Ok((outcome.writes, outcome.wall))
}

/// Volumes of the same size and shape, each with all that is mounted for it.
struct Scene {
    sites: Vec<Box<dyn AnySite>>,
    _compared: Vec<Compared>,
}

impl Scene {
    fn set(config: &Config, observer: &mut dyn Observer) -> Result<Self> {
        // The file, the copies of its pages with what is set aside around each, and room for metadata.
        let bytes = (3 * config.size + (1 << 30)).next_multiple_of(1 << 20);
        observer.note("making a volume");
        let mut sites: Vec<Box<dyn AnySite>> = vec![UxfsSite::make(config, bytes, GROUPS)?];
        let shape = Shape { bytes, groups: Some(GROUPS) };
        let mut all = Vec::new();
        for versus in &config.versus {
            if *versus == Versus::KernelExt4 {
                observer.note("left out: ext4 has no files that share blocks");
                continue;
            }
            let compared = Compared::set(config, versus, shape, observer)?;
            sites.push(SysSite::in_dir(compared.dir(), compared.suffix())?);
            all.push(compared);
        }
        Ok(Self { sites, _compared: all })
    }
}

/// Measures all sites, round by round.
pub(crate) fn run(config: &Config, observer: &mut dyn Observer) -> Result<Vec<Measurement>> {
    let mut scene = Scene::set(config, observer)?;
    let depths = config.depths(crate::config::Workload::Cow);
    let steps = config.rounds * config.threads.len() * depths.len() * scene.sites.len();
    observer.start(NAME, steps as u64);
    let mut collector = Collector::default();
    for round in 0..config.rounds {
        let pages = random_pages(config.file_pages(), config.pages, config.seed.wrapping_add(round as u64));
        for &depth in &depths {
            for &threads in &config.threads {
                let (file_pages, clones) = (config.file_pages(), config.clones);
                let plan = Plan { nth: round, file_pages, clones, pages: &pages, threads, depth };
                for site in &mut scene.sites {
                    observer.step(&format!("{} × {threads}", site.label()));
                    for timed in site.round(plan)? {
                        let sample = Sample::of(&timed.tally, timed.wall);
                        collector.add(line(site.label(), plan, &timed), sample);
                    }
                }
            }
        }
    }
    for site in scene.sites.drain(..) {
        observer.note(&format!("closing {}", site.label()));
        site.finish()?;
    }
    Ok(collector.finish())
}

fn line(label: &Label, plan: Plan<'_>, timed: &Timed) -> Series {
    Series {
        workload: NAME,
        label: label.clone(),
        op: timed.op,
        threads: plan.threads,
        depth: plan.depth,
        bytes: if timed.op.starts_with("clone") { 0 } else { PAGE as u64 },
        samples: Vec::new(),
    }
}
