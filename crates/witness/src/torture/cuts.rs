//! Power cuts: what a device may then contain is recovered by uxfs and by the kernel, and judged.

use super::{Args, Done};
use crate::chains::Tally;
use crate::history::campaign::Task;
use crate::history::crash::{Choice, Stage};
use crate::history::judge::checker_finds_nothing;
use crate::sandbox::{Mounted, copy_sparse, repair_finds_nothing};
use anyhow::{Context, Result};
use blockdev::PowerCuts;
use fastrand::Rng;
use std::path::Path;
use std::sync::Arc;
use uxfs::{OpenOptions, Volume};

/// Tries images of a run.
pub(super) fn all(task: &Task, args: &Args, base: &Path, mnt: &Path, done: &Done) -> Result<Tally> {
    let mut rng = Rng::with_seed(task.seed.wrapping_mul(task.geometry.salt()));
    let recording = &done.recording;
    let stage = Stage::new(base, task.geometry.sector())?;
    let flushes: Vec<u64> = recording.cuts().into_iter().filter(|cut| *cut > done.begun).collect();
    let starts: Vec<u64> =
        recording.writes().iter().map(|write| write.started + 1).filter(|cut| *cut > done.begun).collect();
    let mut plan: Vec<(u64, Choice, bool)> = Vec::new();
    for nth in 0..args.cuts {
        let times = if rng.bool() { &flushes } else { &starts };
        let Some(&cut) = rng.choice(times) else { break };
        // The kernel does not cope with torn blocks.
        let kernel = nth < args.kernel;
        let choice = match rng.u32(..4) {
            0 => Choice::Dropped,
            1 => Choice::Applied,
            _ if kernel => Choice::Whole(rng.u64(..)),
            _ => Choice::Any(rng.u64(..)),
        };
        plan.push((cut, choice, kernel));
    }
    plan.sort_by_key(|(cut, ..)| *cut);
    let mut tally = Tally::default();
    let mut power = PowerCuts::new(recording, Arc::clone(stage.device()));
    for (cut, choice, kernel) in plan {
        power.advance(cut)?;
        power.make(stage.chooser(choice))?;
        let kernel = kernel.then_some(mnt);
        tally += image(&stage, cut, done, kernel).with_context(|| format!("cut at {cut}, {choice}"))?;
        stage.device().rewind()?;
    }
    Ok(tally)
}

/// Tries the image that is on the stage.
fn image(stage: &Stage, cut: u64, done: &Done, kernel: Option<&Path>) -> Result<Tally> {
    let tally = Tally::of(&**stage.device()).context("the log")?;
    if let Some(mnt) = kernel {
        let copy = stage.path().with_extension("kernel");
        copy_sparse(stage.path(), &copy)?;
        let mounted = Mounted::new(&copy, mnt, false).context("the kernel's recovery")?;
        let found = done.expected.check(Some(cut), |name| Ok(std::fs::read(mounted.dir().join(name))?));
        mounted.unmount()?;
        found.context("what the kernel recovered")?;
        repair_finds_nothing(&copy).context("of what the kernel recovered")?;
        std::fs::remove_file(&copy)?;
    }
    let volume = Volume::open_device(stage.device().clone(), &OpenOptions::new().writable(true))
        .context("the recovery")?;
    let found = done.expected.check(Some(cut), |name| {
        let file = volume.open_file(name)?;
        let mut bytes = vec![0; file.size() as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    });
    found.context("what uxfs recovered")?;
    volume.close().context("closing after the recovery")?;
    drop(volume);
    checker_finds_nothing(stage.device().clone())?;
    repair_finds_nothing(stage.path())?;
    Ok(tally)
}
