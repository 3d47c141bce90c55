//! One recorded run, and all its images.

use super::super::campaign::Task;
use super::super::durable::{Clock, Durable};
use super::super::generator::STRIPED;
use super::super::model::Rules;
use super::super::op::Moment;
use super::super::target::{EngineTarget, Target};
use super::super::{Failure, History, Source, drive, means, replay};
use super::fate::Choice;
use super::image::{Beside, Recovered, Stage};
use super::{Args, Counts};
use crate::chains::Tally;
use crate::record_sizes::RecordSizes;
use crate::sandbox::copy_sparse;
use anyhow::{Context, Error, Result, bail};
use blockdev::{FileOptions, PowerCuts, Recorder, Recording};
use fastrand::Rng;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Sizes of the caches that a run may have: usual ones, and such as have changes written back all the time.
const CACHES: [u64; 3] = [64 << 20, 1 << 20, 128 << 10];

/// As much may be logged before a run, so that the head of the log is anywhere, and its tail far behind.
const LOGGED_BYTES_MAX: u64 = 8 << 20;

/// How many of the images of a recovery that was cut the kernel recovers too, where it can.
const KERNEL_AGAIN: usize = 6;

/// How many wrong images end a run.
const FAILURES_MAX: u64 = 3;

/// How long whoever has the log written waits in between.
const SYNCED_EVERY: Duration = Duration::from_micros(20);

/// An image is recovered, with [`Args::chains`], if fewer had something unfinished at the same place.
const SELDOM: u64 = 3;

/// A run that was recorded.
struct Recorded {
    recording: Recording,
    threads: Vec<Durable>,
    /// When the threads' folders were there.
    begun: u64,
}

/// Records a run and tries its images.
pub fn one(task: &Task, args: &Args) -> Result<Counts> {
    let mut history = History::on_filler(task)?;
    let image = history.image();
    let base = image.with_extension("base");
    copy_sparse(&image, &base)?;
    let recorded = record(&mut history, args)?;
    // The rest of the run is of no use any more.
    std::fs::remove_file(&image)?;
    let stage = Stage::new(&base, history.geometry.sector())?;
    let mut images = Images {
        name: format!("{}-{}", history.geometry.volume.name, history.seed),
        args,
        rng: Rng::with_seed(history.seed ^ history.geometry.salt()),
        stage: &stage,
        copy: image.with_extension("kernel"),
        mnt: history.mnt(),
        threads: &recorded.threads,
        counts: Counts { runs: 1, ops: args.ops, ..Counts::default() },
        wrong: Vec::new(),
    };
    images.all(&recorded)?;
    if images.wrong.is_empty() { Ok(images.counts) } else { bail!("{}", images.wrong.join("\n")) }
}

/// Does a history on a recorded device. Half of them end with files open, the others with the volume closed.
fn record(history: &mut History, args: &Args) -> Result<Recorded> {
    let device =
        FileOptions::in_memory().write(true).sector_size(history.geometry.sector()).open(history.image())?;
    let sizes = Arc::new(RecordSizes::over(Arc::new(device))?);
    let recorder = Arc::new(Recorder::new(sizes.clone()));
    let device = means::of(history.seed ^ history.geometry.salt()).of(recorder.clone());
    let mut rng = Rng::with_seed(history.seed.wrapping_mul(history.geometry.salt()));
    let options = history.options().cache_size(CACHES[rng.usize(..CACHES.len())]);
    let target = EngineTarget::open_device(device, &options)?.by(history.io);
    history.set_out(&target)?;
    target.sync()?;
    let logged = (target.log_bytes()? * 5 / 4).min(LOGGED_BYTES_MAX);
    fill_log(&recorder, &target, rng.u64(..=logged))?;
    for actor in &mut history.actors {
        actor.generator.a_kernel_recovers();
        if args.chains > 0 {
            actor.generator.shares_often();
        }
    }
    let now = recorder.clone();
    let mut threads = replay::watchers(history, &target, &Clock::new(move || now.moment()))?;
    let begun = recorder.moment();
    let rules = Rules { tight: history.geometry.tight, strict: EngineTarget::STRICT };
    let source = Source::Generated((args.ops / history.threads as u64).max(1));
    let over = AtomicBool::new(args.chains == 0);
    let open = std::thread::scope(|scope| {
        scope.spawn(|| {
            // If it fails, so does what the others do.
            while !over.load(Ordering::Relaxed) && target.sync().is_ok() {
                // A thread that wakes up runs before those in the middle of a chain, even with few processors.
                std::thread::sleep(SYNCED_EVERY);
            }
        });
        let done = drive::run(&target, &mut history.actors, &mut threads, source, rules, true);
        over.store(true, Ordering::Relaxed);
        done.map_err(|failure: Failure| Error::new(failure))
    })?;
    if history.seed.is_multiple_of(2) {
        drop(open);
        target.close()?;
    } else {
        target.abandon();
    }
    sizes.verdict()?;
    Ok(Recorded { recording: recorder.recording(), threads, begun })
}

/// Changes one inode until the log has been given so many bytes.
fn fill_log(recorder: &Recorder, target: &EngineTarget, bytes: u64) -> Result<()> {
    const AT_ONCE: i64 = 64;
    let mut nth = 0;
    while recorder.recording().writes().iter().map(|write| write.data.len() as u64).sum::<u64>() < bytes {
        for _ in 0..AT_ONCE {
            nth += 1;
            target.set_times(STRIPED, Moment(nth, 0), Moment(nth, 0))?;
            target.sync()?;
        }
    }
    Ok(())
}

/// The images of a run.
struct Images<'a> {
    name: String,
    args: &'a Args,
    rng: Rng,
    stage: &'a Stage,
    copy: PathBuf,
    mnt: PathBuf,
    threads: &'a [Durable],
    counts: Counts,
    wrong: Vec<String>,
}

/// Which image.
#[derive(Clone, Copy, Debug)]
struct Planned {
    cut: u64,
    choice: Choice,
    kernel: bool,
    again: bool,
    /// Recovered only if something is unfinished at a place that was seldom cut.
    look: bool,
}

impl Images<'_> {
    fn all(&mut self, recorded: &Recorded) -> Result<()> {
        let recording = &recorded.recording;
        let plan = self.plan(recorded);
        let mut cuts = PowerCuts::new(recording, Arc::clone(self.stage.device()));
        for planned in plan {
            cuts.advance(planned.cut)?;
            if planned.choice == Choice::Applied && cuts.in_doubt().next().is_none() {
                // As when all are lost.
                continue;
            }
            cuts.make(self.stage.chooser(planned.choice))?;
            let unfinished = Tally::of(&**self.stage.device()).context("the log");
            let seldom = !unfinished
                .as_ref()
                .is_ok_and(|unfinished| !self.counts.chains.seldom_had(unfinished, SELDOM));
            // A log that cannot be read is what the recovery is to tell of.
            self.counts.chains += unfinished.unwrap_or_default();
            if seldom || !planned.look {
                self.image(planned)?;
            }
            self.stage.device().rewind()?;
            if self.counts.failed >= FAILURES_MAX {
                break;
            }
        }
        Ok(())
    }

    /// All images, in the order of time.
    fn plan(&mut self, recorded: &Recorded) -> Vec<Planned> {
        let Recorded { recording, begun, .. } = recorded;
        let at = |cut, choice| Planned { cut, choice, kernel: false, again: false, look: false };
        let flushes: Vec<u64> = recording.cuts().into_iter().filter(|cut| cut > begun).collect();
        let starts: Vec<u64> =
            recording.writes().iter().map(|write| write.started + 1).filter(|cut| cut > begun).collect();
        (self.counts.writes, self.counts.flushes) = (starts.len() as u64, flushes.len() as u64);
        let mut plan: Vec<Planned> = match self.args.chains {
            0 => {
                flushes.iter().flat_map(|&cut| [at(cut, Choice::Dropped), at(cut, Choice::Applied)]).collect()
            }
            looks => {
                // Flushes with nothing written between them leave the same.
                let mut last = 0;
                let differs = |cut: &&u64| {
                    let before = starts.partition_point(|start| start < cut);
                    std::mem::replace(&mut last, before) != before
                };
                let mut cuts: Vec<u64> = flushes.iter().filter(differs).chain(&starts).copied().collect();
                cuts.sort_unstable();
                let some = cuts.iter().step_by(cuts.len().div_ceil(looks as usize).max(1));
                let choice = |nth: usize| [Choice::Dropped, Choice::Applied][nth % 2];
                let look = |(nth, &cut)| Planned { look: true, ..at(cut, choice(nth)) };
                some.enumerate().map(look).collect()
            }
        };
        for _ in 0..self.args.samples {
            let times = if self.rng.bool() { &flushes } else { &starts };
            let Some(&cut) = self.rng.choice(times) else { break };
            plan.push(at(cut, Choice::Any(self.rng.u64(..))));
        }
        // The kernel does not stand torn blocks: it takes what its first sector says for the age of all of it.
        for _ in 0..self.args.kernel {
            let times = if self.rng.bool() { &flushes } else { &starts };
            let Some(&cut) = self.rng.choice(times) else { break };
            plan.push(Planned { kernel: true, ..at(cut, Choice::Whole(self.rng.u64(..))) });
        }
        for nth in 0..self.args.again {
            let Some(&cut) = self.rng.choice(&starts) else { break };
            let seed = self.rng.u64(..);
            // Every other one without torn blocks, so that the kernel can go on from where the recovery was cut.
            plan.push(match nth % 2 {
                0 => Planned { again: true, kernel: true, ..at(cut, Choice::Whole(seed)) },
                _ => Planned { again: true, ..at(cut, Choice::Any(seed)) },
            });
        }
        plan.sort_by_key(|planned| planned.cut);
        plan
    }

    /// Tries the image that is on the stage.
    fn image(&mut self, planned: Planned) -> Result<()> {
        let Planned { cut, choice, .. } = planned;
        let beside = planned.kernel.then_some(Beside { copy: &self.copy, mnt: &self.mnt });
        let tried = self.stage.try_image(self.threads, cut, beside);
        match choice {
            Choice::Dropped | Choice::Applied => self.counts.boundaries += 1,
            Choice::Any(_) | Choice::Whole(_) => self.counts.samples += 1,
        }
        self.counts.kernel += u64::from(planned.kernel);
        let what = format!("cut-{cut}-{choice}");
        if let (Some(recovery), true) = (self.right(&what, tried)?, planned.again) {
            self.again(planned, &what, &recovery)?;
        }
        Ok(())
    }

    /// Cuts a recovery short at each of its writes. Its image is on the stage. Some of what that leaves the kernel
    /// recovers too, where no write but those to the log was ever torn.
    fn again(&mut self, planned: Planned, what: &str, recovery: &Recording) -> Result<()> {
        let Planned { cut, kernel, .. } = planned;
        let part = if kernel { Choice::Whole } else { Choice::Any };
        let flushes = recovery.cuts().into_iter().map(|at| (at, Choice::Dropped));
        let starts = recovery.writes().iter().map(|write| write.started + 1);
        let writes: Vec<_> = starts.map(|at| [(at, Choice::Applied), (at, part(self.rng.u64(..)))]).collect();
        let mut plan: Vec<(u64, Choice)> = flushes.chain(writes.into_iter().flatten()).collect();
        plan.sort_unstable();
        let kernel_too: Vec<usize> = if kernel {
            (0..KERNEL_AGAIN).map(|_| self.rng.usize(..plan.len())).collect()
        } else {
            Vec::new()
        };
        self.counts.again += 1;
        self.counts.again_writes += recovery.writes().len() as u64;
        self.stage.device().mark();
        let mut cuts = PowerCuts::new(recovery, Arc::clone(self.stage.device()));
        for (nth, (at, choice)) in plan.into_iter().enumerate() {
            cuts.advance(at)?;
            cuts.make(self.stage.chooser(choice))?;
            let beside = kernel_too.contains(&nth).then_some(Beside { copy: &self.copy, mnt: &self.mnt });
            let tried = self.stage.try_image(self.threads, cut, beside);
            self.counts.again_images += 1;
            self.counts.again_kernel += u64::from(beside.is_some());
            self.right(&format!("{what}-recovery-{at}-{choice}"), tried)?;
            self.stage.device().rewind()?;
            if self.counts.failed >= FAILURES_MAX {
                break;
            }
        }
        Ok(self.stage.device().rewind()?)
    }

    /// Notes how an image was; gives what its recovery wrote if it was right.
    fn right(&mut self, what: &str, tried: Result<Recovered>) -> Result<Option<Recording>> {
        match tried {
            Ok(Recovered { recording, sectors }) => {
                self.counts.sectors += sectors;
                Ok(Some(recording))
            }
            Err(error) => {
                self.counts.failed += 1;
                let kept = self.keep(what)?;
                self.wrong.push(format!("{what}: {error:#}{kept}"));
                Ok(None)
            }
        }
    }

    /// Keeps the image that is on the stage.
    fn keep(&self, what: &str) -> Result<String> {
        let Some(folder) = &self.args.which.keep else { return Ok(String::new()) };
        std::fs::create_dir_all(folder)?;
        let image = folder.join(format!("{}-{what}.img", self.name));
        copy_sparse(self.stage.path(), &image).context("keeping an image")?;
        let image = image.display();
        Ok(format!(
            "\n  kept; see it again with: uxfs recover {image} && uxfs check {image} && xfs_repair -n {image}"
        ))
    }
}
