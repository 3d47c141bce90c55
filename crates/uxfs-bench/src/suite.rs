//! A whole run: sets up the targets, measures them in turn, round by round, and takes them down.
//!
//! Targets take turns within each round (A B A B …), so that whatever else the machine does hits all alike; the
//! report holds medians over the rounds. After the last round of a workload the content of every file is checked.

use crate::config::{Config, Versus, Workload};
use crate::content::{Content, PAGE};
use crate::cow;
use crate::dbench;
use crate::error::{Error, Result};
use crate::fsmark;
use crate::fxmark;
use crate::handles;
use crate::interrupt;
use crate::locks;
use crate::lockstat::{ClassReport, Tracker};
use crate::measure::{Collector, Measurement, Sample, Series};
use crate::osync;
use crate::setup::{Compared, Shape};
use crate::target::{AnyTarget, Label, Measured, MemcpyTarget, SysTarget};
use crate::volume::OwnVolume;
use crate::work::{Op, Work, pages_in_order, random_pages};
use parking_lot::Mutex;
use std::sync::Arc;

/// Observes the progress of a run.
pub trait Observer {
    /// A workload starts, of this many steps.
    fn start(&mut self, workload: &str, steps: u64);
    /// The next step is about to start.
    fn step(&mut self, what: &str);
    /// Something worth knowing that takes a while.
    fn note(&mut self, what: &str);
}

/// An observer that does not care.
#[derive(Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn start(&mut self, _workload: &str, _steps: u64) {}
    fn step(&mut self, _what: &str) {}
    fn note(&mut self, _what: &str) {}
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// The medians.
    pub measurements: Vec<Measurement>,
    /// Lock classes as they were counted in all rounds, where that was asked for.
    pub locks: Vec<ClassReport>,
    /// Lock classes of a round of its own behind all others, where that was asked for. It gave no measurement.
    pub counted: Vec<ClassReport>,
    /// What the volume's file holds after the last run, where there was one on files.
    pub content: Option<Content>,
}

/// Runs `workloads` one after the other.
pub fn run(config: &Config, workloads: &[Workload], observer: &mut dyn Observer) -> Result<Report> {
    config.check()?;
    if workloads == [Workload::Cow] && config.versus.contains(&Versus::KernelExt4) {
        return Err(Error::Usage("cow: ext4 has no files that share blocks".to_owned()));
    }
    if workloads.contains(&Workload::Seq) && config.block > config.size.min(config.pages * PAGE as u64) {
        return Err(Error::Usage("seq: a block is larger than what is gone over".to_owned()));
    }
    interrupt::install()?;
    let mut report = rounds(config, workloads, observer)?;
    if config.count_locks && !config.lockstat {
        report.counted = count_locks(config, workloads, observer)?;
    }
    Ok(report)
}

/// Runs a short round behind all others. Locks count from then on, and what was measured before is not slowed.
fn count_locks(
    config: &Config,
    workloads: &[Workload],
    observer: &mut dyn Observer,
) -> Result<Vec<ClassReport>> {
    let counting: Vec<Workload> = workloads.iter().copied().filter(|one| one.counts_locks()).collect();
    observer.note("counting locks");
    Ok(rounds(&config.short(), &counting, observer)?.locks)
}

/// All rounds of all workloads.
fn rounds(config: &Config, workloads: &[Workload], observer: &mut dyn Observer) -> Result<Report> {
    if config.lockstat {
        ::lockstat::enable();
    }
    let mut report = Report::default();
    let mut scene = None;
    for &workload in workloads {
        match workload {
            Workload::RangeLock => {
                report.measurements.extend(locks::run(config, observer)?);
                continue;
            }
            Workload::FsMark => {
                fsmark::run(config, observer, &mut report)?;
                continue;
            }
            Workload::Handles => {
                handles::run(config, observer, &mut report)?;
                continue;
            }
            Workload::Dbench => {
                dbench::run(config, observer, &mut report)?;
                continue;
            }
            Workload::FxMark => {
                fxmark::run(config, observer, &mut report)?;
                continue;
            }
            Workload::Cow => {
                report.measurements.extend(cow::run(config, observer)?);
                continue;
            }
            Workload::OSync => {
                osync::run(config, observer, &mut report)?;
                continue;
            }
            Workload::Overwrite | Workload::RandRw | Workload::Buffered | Workload::Seq => {}
        }
        let buffered = matches!(workload, Workload::Buffered | Workload::Seq);
        if scene.as_ref().is_some_and(|scene: &Scene| scene.buffered != buffered) {
            finish(scene.take(), config, observer, &mut report)?;
        }
        let scene = match &mut scene {
            Some(scene) => scene,
            none => none.insert(Scene::set(config, buffered, observer)?),
        };
        scene.run(config, workload, observer, &mut report)?;
    }
    finish(scene, config, observer, &mut report)?;
    Ok(report)
}

/// Takes the targets on files down.
fn finish(
    scene: Option<Scene>,
    config: &Config,
    observer: &mut dyn Observer,
    report: &mut Report,
) -> Result<()> {
    if let Some(scene) = scene {
        report.content = Some(scene.own.content());
        scene.own.finish(config, observer)?;
    }
    Ok(())
}

/// The targets of the workloads on files. Set up once; dropped in this order.
struct Scene {
    /// Whether all of it goes through page caches.
    buffered: bool,
    own: OwnVolume,
    others: Vec<Box<dyn AnyTarget>>,
    _compared: Vec<Compared>,
}

impl Scene {
    fn set(config: &Config, buffered: bool, observer: &mut dyn Observer) -> Result<Self> {
        let pages = config.file_pages();
        observer.note("making a volume");
        let own = OwnVolume::make(config)?;
        let mut others: Vec<Box<dyn AnyTarget>> = Vec::new();
        if config.raw && !buffered {
            others.push(own.raw());
        }
        if config.memcpy {
            let label = Label { target: "memcpy".into(), device: "memory".into(), locking: None };
            others.push(Box::new(Measured::new(label, new_content(pages), MemcpyTarget::new(pages)?)));
        }
        let shape = Shape { bytes: config.size + config.size / 8 + (512 << 20), groups: None };
        let mut all = Vec::new();
        for versus in &config.versus {
            let compared = Compared::set(config, versus, shape, observer)?;
            let target = SysTarget::create(compared.dir(), pages, buffered)?;
            let label = target.label(compared.suffix())?;
            others.push(Box::new(Measured::new(label, new_content(pages), target)));
            all.push(compared);
        }
        Ok(Self { buffered, own, others, _compared: all })
    }

    fn run(
        &mut self,
        config: &Config,
        workload: Workload,
        observer: &mut dyn Observer,
        report: &mut Report,
    ) -> Result<()> {
        let mut own: Vec<Box<dyn AnyTarget>> = config
            .lockings(workload)
            .iter()
            .map(|&locking| self.own.target(locking, self.buffered))
            .collect::<Result<_>>()?;
        let mut targets: Vec<&mut dyn AnyTarget> =
            own.iter_mut().chain(&mut self.others).map(|target| &mut **target as _).collect();
        let mut locks = config.lockstat.then(Tracker::start);
        report.measurements.extend(on_files(config, workload, &mut targets, observer, locks.as_mut())?);
        report.locks.extend(locks.map(|locks| locks.finish(workload.name())).unwrap_or_default());
        Ok(())
    }
}

/// The known content of a new file.
pub(crate) fn new_content(pages: u64) -> Arc<Mutex<Content>> {
    Arc::new(Mutex::new(Content::zeroed(pages)))
}

/// Measures a workload on files, on all of `targets`, and checks what the files hold afterwards.
pub(crate) fn on_files(
    config: &Config,
    workload: Workload,
    targets: &mut [&mut dyn AnyTarget],
    observer: &mut dyn Observer,
    mut locks: Option<&mut Tracker>,
) -> Result<Vec<Measurement>> {
    let ops: &[Op] = match workload {
        Workload::RandRw | Workload::Buffered => &[Op::Mixed],
        _ => &[Op::Read, Op::Write],
    };
    let (depths, span) = (config.depths(workload), config.span(workload));
    let steps = config.rounds * depths.len() * config.threads.len() * ops.len() * targets.len();
    for target in targets.iter_mut() {
        observer.note(&format!("writing the file of {}", target.label()));
        target.prepare()?;
    }
    observer.start(workload.name(), steps as u64);
    let mut collector = Collector::default();
    for depth in depths {
        let passes = calibrate(config, workload, targets, depth)?;
        if let Some(locks) = &mut locks {
            locks.skip();
        }
        for round in 0..config.rounds {
            let pages = pages(config, workload, round);
            for &threads in &config.threads {
                for &op in ops {
                    for (target, &passes) in targets.iter_mut().zip(&passes) {
                        observer.step(&format!("{} {} × {threads}", target.label(), op.name()));
                        let work = Work { pages: &pages, op, generation: 0, threads, depth, passes, span };
                        measure(&mut collector, workload, *target, work)?;
                        if let Some(locks) = &mut locks {
                            locks.attribute(&target.label().to_string());
                        }
                    }
                }
            }
        }
    }
    for target in targets.iter_mut() {
        observer.note(&format!("checking the content of {}", target.label()));
        target.verify()?;
    }
    Ok(collector.finish())
}

/// The first pages of a round's requests.
fn pages(config: &Config, workload: Workload, round: usize) -> Vec<u32> {
    match workload {
        Workload::Seq => pages_in_order(config.file_pages(), config.pages, config.span(workload)),
        _ => random_pages(config.file_pages(), config.pages, config.seed.wrapping_add(round as u64)),
    }
}

/// How often each target goes over the pages, so that a measurement takes long enough. Warms up, too.
fn calibrate(
    config: &Config,
    workload: Workload,
    targets: &mut [&mut dyn AnyTarget],
    depth: u32,
) -> Result<Vec<u32>> {
    const MAX_PASSES: f64 = 64.0;
    let (pages, span) = (pages(config, workload, 0), config.span(workload));
    let threads = config.threads.first().copied().unwrap_or(1);
    targets
        .iter_mut()
        .map(|target| {
            let work = Work { pages: &pages, op: Op::Read, generation: 0, threads, depth, passes: 1, span };
            let wall = target.measure(work)?.wall.as_secs_f64().max(1e-6);
            Ok((config.min_time.as_secs_f64() / wall).ceil().clamp(1.0, MAX_PASSES) as u32)
        })
        .collect()
}

/// One measurement; a mixed run gives a line each way.
fn measure(
    collector: &mut Collector,
    workload: Workload,
    target: &mut dyn AnyTarget,
    work: Work<'_>,
) -> Result<()> {
    let outcome = target.measure(work)?;
    for (op, tally) in [(Op::Read, &outcome.reads), (Op::Write, &outcome.writes)] {
        if tally.ops == 0 {
            continue;
        }
        let line = Series {
            workload: workload.name(),
            label: target.label().clone(),
            op: op.name(),
            threads: work.threads,
            depth: if target.has_queue() { work.depth } else { 1 },
            bytes: work.request_bytes() as u64,
            samples: Vec::new(),
        };
        collector.add(line, Sample::new(&outcome, tally));
    }
    Ok(())
}
