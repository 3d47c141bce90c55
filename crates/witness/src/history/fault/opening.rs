//! The opening of a volume that a crash left, on a device of which each time another request fails.
//!
//! Invariants: whichever read, write or flush of the recovery failed, of the work that it finishes, or of the close
//! behind it,
//! - whoever asked for the volume got an I/O error, or learned that the volume was shut down; never is damage blamed;
//! - the next opening, on a device that is well again, makes of the volume what one without a fault makes of it: also
//!   if the power failed in between.

use super::super::crash::Stage;
use super::super::drive::{self, Blind, Source};
use super::super::durable::END;
use super::super::model::Rules;
use super::super::target::{Called, EngineTarget, Target};
use super::super::{Failure, History, judge};
use super::attempt::back;
use super::{Counts, Planned, Trouble};
use crate::compare::compare;
use crate::record::Record;
use crate::sandbox::repair_finds_nothing;
use anyhow::{Context, Error, Result, bail, ensure};
use blockdev::{BlockDevice, Fate, FaultDevice, Op, PowerCuts, Recorder, Recording, WriteRecord};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{ErrorKind, OpenOptions, Recovery, Volume};

/// Moments of a run that are looked at.
const CUTS_MAX: usize = 60;

/// Runs that are done to find one with a moment that has both kinds of unfinished work.
const RUNS_MAX: u32 = 5;

/// Unfinished work is extents to free, and inodes without a name.
const KINDS: u64 = 2;

/// How many differences are shown.
const SHOWN: usize = 10;

/// How many kinds of unfinished work a recovery had.
fn kinds(done: &Recovery) -> u64 {
    u64::from(done.extents_freed > 0) + u64::from(done.inodes_freed > 0)
}

/// A dirty volume on a stage.
pub struct Opening<'a> {
    stage: &'a Stage,
    /// The tree that an opening without a fault gives.
    expected: Vec<Record>,
    /// How many requests of each kind that opening makes.
    pub requests: [(Op, u64); 3],
    /// What it did.
    pub recovery: Recovery,
}

/// Does a history on the stage, and takes it back: what was written is recorded. Meanwhile blocks are freed in many steps,
/// and all is made durable between any two of them, so that there is work that was begun; some files are left open.
fn record(history: &History, stage: &Stage, ops: u64) -> Result<Recording> {
    stage.device().mark();
    let recorder = Arc::new(Recorder::new(stage.device().clone()));
    let target = EngineTarget::open_device(recorder.clone(), &OpenOptions::new())?.by(history.io);
    let rules = Rules { tight: history.geometry.tight, strict: EngineTarget::STRICT };
    let mut observers = vec![Blind; history.threads];
    let source = Source::Generated((ops / history.threads as u64).max(1));
    let mut actors = history.actors.clone();
    let done = AtomicBool::new(false);
    let open = std::thread::scope(|scope| {
        let _done = Done(&done);
        let again = {
            let done = &done;
            move || !done.load(Ordering::Relaxed)
        };
        let (target, block) = (&target, history.geometry.block());
        scope.spawn(move || while again() && target.sync().is_ok() {});
        scope.spawn(move || while again() && free_in_steps(target, block).is_ok() {});
        drive::run(target, &mut actors, &mut observers, source, rules, true)
            .map_err(|failure: Failure| Error::new(failure))
    })?;
    drop(open);
    target.abandon();
    let recording = recorder.recording();
    stage.device().rewind()?;
    Ok(recording)
}

/// Tells who goes on until then that something is over, however it ends.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Removes a file of many extents, which are freed two at a time. There may be no space for it.
fn free_in_steps(target: &EngineTarget, block: u64) -> Called<()> {
    const NAME: &[u8] = b"freed in steps";
    let freed = target.create(NAME, 0o644).and_then(|file| {
        let written = (0..40).try_for_each(|nth| target.write(&file, b"x", 2 * nth * block).map(drop));
        drop(file);
        target.unlink(NAME).and(written)
    });
    freed.or_else(|error| if error == Errno::NOSPC { Ok(()) } else { Err(error) })
}

/// Does a history, and leaves on the stage, for good, the volume of the first moment of it whose recovery has both kinds of
/// unfinished work; or one of them, if there is none.
pub fn prepare<'a>(history: &History, stage: &'a Stage, ops: u64) -> Result<Opening<'a>> {
    let mut most: Option<(u64, u64, Recording)> = None;
    for _ in 0..RUNS_MAX {
        let recording = record(history, stage, ops)?;
        if let Some((kinds, cut)) = moment(stage, &recording)?
            && most.as_ref().is_none_or(|(other, ..)| kinds > *other)
        {
            most = Some((kinds, cut, recording));
        }
        if most.as_ref().is_some_and(|(kinds, ..)| *kinds == KINDS) {
            break;
        }
    }
    let (_, cut, recording) = most.context("no moment of a run leaves anything to recover")?;
    recording.rebuild(cut, &**stage.device(), kept)?;
    Opening::new(stage)
}

/// The moment of a run, of those that are looked at, whose recovery has most kinds of unfinished work; and how many.
fn moment(stage: &Stage, recording: &Recording) -> Result<Option<(u64, u64)>> {
    let mut images = PowerCuts::new(recording, Arc::clone(stage.device()));
    let mut most = None;
    stage.device().mark();
    let cuts = recording.cuts();
    for &cut in cuts.iter().step_by(cuts.len().div_ceil(CUTS_MAX)) {
        images.advance(cut)?;
        images.make(kept)?;
        let done =
            Volume::open_device(stage.device().clone(), &OpenOptions::new().writable(true))?.recovery();
        stage.device().rewind()?;
        if let Some(kinds) = done.as_ref().map(kinds)
            && most.is_none_or(|(other, _)| kinds > other)
        {
            most = Some((kinds, cut));
        }
        if most.is_some_and(|(kinds, _)| kinds == KINDS) {
            break;
        }
    }
    stage.device().rewind()?;
    Ok(most)
}

/// A process was killed, and the device goes on.
fn kept(_: &WriteRecord) -> Fate {
    Fate::Applied
}

/// What is on the stage, opened and closed on a device with faults.
struct Opened {
    recorder: Arc<Recorder>,
    fault: Arc<FaultDevice>,
    done: uxfs::Result<Option<Recovery>>,
}

impl<'a> Opening<'a> {
    fn new(stage: &'a Stage) -> Result<Self> {
        stage.device().mark();
        let Opened { fault, done, .. } = open(stage, None);
        let recovery = done.context("without any fault")?.context("nothing to recover")?;
        let requests = [Op::Write, Op::Flush, Op::Read].map(|op| (op, fault.seen(op)));
        let expected = seen(stage)?;
        repair_finds_nothing(stage.path())?;
        stage.device().rewind()?;
        Ok(Self { stage, expected, requests, recovery })
    }

    /// Opens the volume with one fault, judges what comes of it, and takes that back.
    pub fn one(&self, planned: Planned, repairs: bool, counts: &mut Counts) -> Result<()> {
        // A device that lies still for a while is tried elsewhere.
        let trouble = if planned.trouble == Trouble::Still { Trouble::Once } else { planned.trouble };
        let planned = Planned { trouble, ..planned };
        self.stage.device().mark();
        let Opened { recorder, fault, done } = open(self.stage, Some(planned));
        let struck = fault.seen(planned.op) > planned.nth;
        counts.openings += 1;
        counts.missed += u64::from(!struck);
        counts.repaired += u64::from(repairs);
        match &done {
            Ok(_) => ensure!(!struck || planned.op == Op::Read, "it failed, and nobody was told"),
            Err(error) if !struck => bail!("before anything failed: {error}"),
            Err(error) => {
                let told = matches!(error.kind(), ErrorKind::Io | ErrorKind::ShutDown);
                ensure!(told, "a failure of the device is called {:?}: {error}", error.kind());
            }
        }
        if planned.cut {
            let recording = recorder.recording();
            self.stage.device().rewind()?;
            self.stage.device().mark();
            let mut cuts = PowerCuts::new(&recording, Arc::clone(self.stage.device()));
            cuts.advance(END)?;
            cuts.make(|_| Fate::Dropped)?;
        }
        open(self.stage, None).done.context("the next opening")?;
        let found = seen(self.stage)?;
        let differences = compare(&self.expected, &found)?.differences;
        let shown = differences.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n");
        ensure!(differences.is_empty(), "another tree than without a fault:\n{shown}");
        if repairs {
            repair_finds_nothing(self.stage.path())?;
        }
        back(self.stage)
    }
}

/// Opens what is on the stage for writing, and closes it.
fn open(stage: &Stage, planned: Option<Planned>) -> Opened {
    let recorder = Arc::new(Recorder::new(stage.device().clone()));
    let fault = Arc::new(FaultDevice::new(recorder.clone(), Vec::new()));
    planned.and_then(|planned| planned.fault(0)).into_iter().for_each(|planned| fault.add(planned));
    let device: Arc<dyn BlockDevice> = fault.clone();
    let done = Volume::open_device(device, &OpenOptions::new().writable(true));
    let done = done.and_then(|volume| volume.close().map(|()| volume.recovery()));
    Opened { recorder, fault, done }
}

/// The tree on the stage, whose log must be clean.
fn seen(stage: &Stage) -> Result<Vec<Record>> {
    judge::checker_finds_nothing(stage.device().clone())?;
    judge::by_uxfs_on(stage.device().clone())
}
