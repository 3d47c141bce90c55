//! One step on one volume, in a process of its own, with phases that are measured one by one.

use super::report::Measured;
use super::setting::Setting;
use super::subject::{Shape, Subject, scattered};
use crate::command::resident_peak;
use crate::damage::{memory_peak, reset_memory_peak};
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, ValueEnum};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;
use uxfs::Volume;

/// How many parts are looked up.
const SAMPLE: u64 = 10_000;

/// One step; prints what it measured, a line of JSON each phase.
#[derive(ClapArgs, Debug)]
pub struct Args {
    what: What,
    shape: Shape,
    count: u64,
    image: PathBuf,
    #[command(flatten)]
    setting: Setting,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    Make,
    Touch,
    Remove,
}

/// Runs the step.
pub fn run(args: &Args) -> Result<bool> {
    let subject = args.shape.subject(args.count, &args.setting);
    let volume = Volume::open(&args.image, &args.setting.options().writable(true))?;
    let info = volume.info()?;
    let log_bytes = u64::from(info.log_blocks) * u64::from(info.block_size);
    let step = Step { subject: &*subject, args, log_bytes };
    match args.what {
        What::Make => {
            step.phase("make", args.count, || step.share(|parts| subject.make(&volume, parts)))?;
            step.phase("sync", 1, || Ok(volume.sync()?))?;
            let sample = SAMPLE.min(args.count);
            step.phase("look up", sample, || {
                (0..sample).try_for_each(|nth| subject.check(&volume, scattered(nth, args.count)))
            })?;
        }
        What::Touch => step.phase("touch", args.count, || subject.touch(&volume))?,
        What::Remove => {
            step.phase("remove", args.count, || {
                if subject.removes_at_once() {
                    return subject.remove(&volume, 0..args.count);
                }
                step.share(|parts| subject.remove(&volume, parts))
            })?;
        }
    }
    step.phase("close", 1, || Ok(volume.close()?))?;
    Ok(true)
}

struct Step<'a> {
    subject: &'a dyn Subject,
    args: &'a Args,
    log_bytes: u64,
}

impl Step<'_> {
    /// Does all parts with the requested number of threads, each with its own range.
    fn share(&self, work: impl Fn(std::ops::Range<u64>) -> Result<()> + Sync) -> Result<()> {
        let (count, threads) = (self.args.count, self.args.setting.threads.max(1));
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads)
                .map(|nth| scope.spawn(move || work(count * nth / threads..count * (nth + 1) / threads)))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
        })
    }

    fn phase(&self, phase: &str, ops: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
        // Resets the peak of resident memory.
        fs::write("/proc/self/clear_refs", "5")?;
        reset_memory_peak();
        let before = cpu_seconds();
        let started = Instant::now();
        work().with_context(|| phase.to_owned())?;
        let measured = Measured {
            phase: phase.to_owned(),
            ops,
            seconds: started.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() - before,
            heap_peak: memory_peak() as u64,
            resident_peak: resident_peak("self")?,
            memory_bound: self.memory_bound(),
        };
        println!("{}", serde_json::to_string(&measured)?);
        Ok(())
    }

    /// Bytes that may be allocated: the caches, the same again for changes that cannot leave them before they are
    /// written back, what is committed and on its way into the log, and the subject itself.
    fn memory_bound(&self) -> u64 {
        const REST: u64 = 8 << 20;
        let caches = 2 * self.args.setting.cache_bytes();
        // The size that a checkpoint should gather.
        let checkpoint = self.log_bytes / 8;
        caches + CHECKPOINTS * checkpoint * ITEM_FACTOR + self.subject.bytes() + REST
    }
}

/// Checkpoints in memory: the open one has up to two before commits wait, and so have the one that is being written and
/// the one whose last record is.
const CHECKPOINTS: u64 = 3 * 2;
/// Memory per byte that goes into the log: itself, and its item.
const ITEM_FACTOR: u64 = 2;

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
