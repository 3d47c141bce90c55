//! Threads read, write, append to and cut one file at the same time, through the page cache and without it. Is there an
//! order of the calls, one after the other, in which each call would have had its result?
//!
//! Invariants: a run succeeds only if
//! - for each round of a few calls, an order explains everything that was read, the sizes, the places of appended data,
//!   and the content after the round, as seen by both kinds of handle;
//! - in that order, a call that ended before another began comes before it;
//! - at the end `xfs_repair -n` and `uxfs check` find nothing, and the kernel's mount has the same bytes.

mod event;
mod linger;
mod search;
mod work;

use crate::handles::Io;
use crate::history::campaign::{Task, Which};
use crate::history::is_sound;
use crate::sandbox::{Mounted, mkfs, scratch};
use anyhow::{Context, Result, bail, ensure};
use blockdev::{BlockDevice, FileOptions};
use clap::Args as ClapArgs;
use event::{By, Event, Op, WORD, Words, told};
use fastrand::Rng;
use linger::Lingering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;
use uxfs::{NewNode, OpenOptions, Volume};
use work::{Mood, Plan, Site, Worker};

/// Has threads use one file at once, and looks for an order that explains what they saw.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs on each geometry, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Calls of a run, all threads together. Of a single thread (--threads) nothing could be said: then there are four.
    #[arg(long, default_value_t = 50_000)]
    ops: u64,
}

/// Sizes of the caches that a run may have.
const CACHES: [u64; 3] = [64 << 20, 256 << 10, 64 << 10];
/// Maximum sizes of the file in bytes. The last is for few runs, because its content is compared often.
const MOST: [u64; 4] = [12 << 10, 24 << 10, 64 << 10, (1 << 20) + (96 << 10)];
/// Maximum calls of a round, without the one that reads the result.
const CALLS_MAX: usize = 40;

/// Runs the command. `Ok(true)`: every run was right.
pub fn run(args: &Args) -> Result<bool> {
    Io::refuse(args.which.io, "linear")?;
    let all: Vec<_> = crate::history::geometry::ALL.into_iter().filter(|geometry| !geometry.tight).collect();
    let tasks = args.which.tasks_on(&all, args.runs, "linear", &format!("--ops {}", args.ops))?;
    let outcome = args.which.all("", tasks, |task| one(task, args))?;
    Ok(outcome.conclude("linear", "runs right", "calls"))
}

fn one(task: &Task, args: &Args) -> Result<(u64, String)> {
    let folder = scratch()?;
    let (image, mnt) = (folder.path().join("image"), folder.path().join("mnt"));
    mkfs(&image, &task.geometry.volume)?;
    let start = Instant::now();
    let result = rounds(task, args.ops, &image);
    if let (Err(error), Some(keep)) = (&result, &args.which.keep) {
        std::fs::create_dir_all(keep)?;
        let name = format!("linear-{}-{}.round", task.geometry.volume.name, task.seed);
        std::fs::write(keep.join(name), format!("{error:#}\n"))?;
    }
    let done = result?;
    let seconds = start.elapsed().as_secs_f64();
    is_sound(&image).context("in the end")?;
    let mounted = Mounted::new(&image, &mnt, true).context("the kernel's mount")?;
    let bytes = std::fs::read(mounted.dir().join(FILE));
    mounted.unmount()?;
    ensure!(work::words(&bytes?) == done.content, "the kernel sees something else in the end");
    let Done { calls, rounds, beside, .. } = done;
    let said = format!("{calls} calls in {rounds} rounds, {beside} of them beside others, {seconds:.1} s");
    Ok((calls, said))
}

const FILE: &str = "file";

/// The totals of all rounds.
#[derive(Default)]
struct Done {
    calls: u64,
    rounds: u64,
    /// Calls that overlapped with a call of another thread.
    beside: u64,
    content: Words,
}

/// What each thread did in a round, or why it could not.
type Results = Vec<Mutex<Result<Vec<Event>>>>;

fn rounds(task: &Task, ops: u64, image: &Path) -> Result<Done> {
    let mut rng = Rng::with_seed(task.seed ^ task.geometry.salt());
    let threads = if task.threads < 2 { 4 } else { task.threads };
    let sector = task.geometry.sector();
    let device: Arc<dyn BlockDevice> =
        Arc::new(FileOptions::in_memory().write(true).sector_size(sector).open(image)?);
    let device = Arc::new(Lingering::new(device, rng.u64(..)));
    let cache = CACHES[rng.usize(..CACHES.len())].max(task.geometry.block() * 4);
    let options = OpenOptions::new().writable(true).cache_size(cache);
    let volume = Volume::open_device(device, &options)?;
    let root = volume.root()?.as_dir()?;
    let file = root.create_file(FILE.as_bytes(), &NewNode::default())?.open()?;
    let beside = root.create_file(b"beside", &NewNode::default())?.open()?.buffered();
    beside.write_at(&[7; 65536], 0)?;
    let (site, seed) = (Site::new(), rng.u64(..));
    let worker = |thread: usize| Worker {
        site: &site,
        thread,
        rng: Rng::with_seed(seed.wrapping_add(thread as u64)),
        direct: file.direct(),
        buffered: file.buffered(),
        beside: beside.clone(),
    };
    let judge = worker(threads);
    let (barrier, stop) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let results: Results = (0..threads).map(|_| Mutex::new(Ok(Vec::new()))).collect();
    let done = std::thread::scope(|scope| {
        for (thread, result) in results.iter().enumerate() {
            let (mut worker, barrier, stop) = (worker(thread), &barrier, &stop);
            scope.spawn(move || {
                loop {
                    barrier.wait();
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    // A thread that is gone would never come to the barrier again.
                    let done = catch_unwind(AssertUnwindSafe(|| worker.round()));
                    *result.lock().expect("no panic") =
                        done.unwrap_or_else(|panic| bail!("a panic: {}", said(&*panic)));
                    barrier.wait();
                }
            });
        }
        let block = task.geometry.block();
        let most = match task.seed % 8 {
            7 => MOST[3],
            _ => MOST[rng.usize(..3)],
        };
        let mut coordinator = Coordinator { rng, threads, most: most.max(block * 5 / 2) / WORD, block };
        let done = coordinator.all(ops, &judge, &results, &barrier);
        stop.store(true, Ordering::SeqCst);
        barrier.wait();
        done
    })?;
    drop((judge, file, beside));
    volume.close()?;
    Ok(done)
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// The coordinator chooses the next calls and judges them.
struct Coordinator {
    rng: Rng,
    threads: usize,
    /// Maximum words of the file.
    most: u64,
    block: u64,
}

impl Coordinator {
    fn all(&mut self, ops: u64, judge: &Worker<'_>, results: &Results, barrier: &Barrier) -> Result<Done> {
        let mut done = Done::default();
        while done.calls < ops {
            let plan = self.plan(done.content.len() as u64);
            judge.site.set_plan(plan);
            barrier.wait();
            barrier.wait();
            let mut events = Vec::new();
            for result in results {
                events
                    .append(&mut std::mem::replace(&mut *result.lock().expect("no panic"), Ok(Vec::new()))?);
            }
            done.rounds += 1;
            done.calls += events.len() as u64;
            done.beside += events.iter().filter(|event| is_beside(event, &events)).count() as u64;
            done.content = self
                .judged(judge, &done.content, events)
                .with_context(|| format!("round {}, {plan:?}", done.rounds))?;
        }
        Ok(done)
    }

    /// The content of the file after a round that could be explained.
    fn judged(&self, judge: &Worker<'_>, start: &Words, mut events: Vec<Event>) -> Result<Words> {
        let all = Op::Read { at: 0, len: self.most * 2 };
        let mut by = [By::Buffered, By::Direct];
        if events.len().is_multiple_of(2) {
            by.reverse();
        }
        for by in by {
            events.push(judge.call(by, all)?);
        }
        events.push(judge.call(By::Direct, Op::Size)?);
        events.push(judge.call(By::Direct, Op::Stat)?);
        events.sort_by_key(|event| event.begun);
        search::explained(start, &events).with_context(|| {
            let lines: String = events.iter().map(|event| format!("\n  {event}")).collect();
            format!("no order explains this; at first the file had {}{lines}\n ", told(start, 0))
        })
    }

    fn plan(&mut self, size: u64) -> Plan {
        let most = self.most;
        let rng = &mut self.rng;
        let threads = rng.usize(2..=self.threads);
        let calls = rng.usize(1..=(CALLS_MAX / threads).min(6));
        let units = [64, 512, self.block / WORD, 1 << 17];
        let unit = units[rng.usize(..units.len())].min(most / 2).max(1);
        let place = rng.u64(..=most / unit) * unit;
        let at = match rng.u32(..4) {
            0 => place + rng.u64(..16),
            1 => place.saturating_sub(rng.u64(..16)),
            2 => size.saturating_sub(rng.u64(..=unit)),
            _ => place,
        };
        let lens = [1, 8, 64, 512, 520, 1024, self.block / WORD, most / 3];
        let len = lens[rng.usize(..lens.len())].clamp(1, most / 2);
        let at = at.min(most - len);
        let mood = [Mood::Meet, Mood::Meet, Mood::End, Mood::All][rng.usize(..4)];
        Plan { threads, calls, at, len, size, most, mood }
    }
}

fn is_beside(event: &Event, events: &[Event]) -> bool {
    let meets = |other: &&Event| {
        other.thread != event.thread && other.begun < event.ended && event.begun < other.ended
    };
    events.iter().any(|other| meets(&other))
}
