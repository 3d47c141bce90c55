//! Reads and overwrites of one file, as the workloads `overwrite` and `randrw` have them, for a recording.
//!
//! One request at a time, or as many in flight as a queue has; then, while one thread is recorded, each of the others has
//! half as many in flight. A file of the recording's own is smaller than the one that is measured, in which all else is the
//! same.

use super::pen::{Pen, Script, introduce, take_turns};
use super::record::{Recorder, Request};
use super::{Scene, Subject, no_subject};
use crate::config::{Config, Workload};
use crate::content::PAGE;
use crate::error::{Error, Result};
use crate::locks::CASES;
use crate::setup;
use crate::target::{AnyTarget, Label};
use crate::volume::{OwnVolume, open_buffered, open_file};
use crate::work::{Op, Work, random_pages};
use blockdev::{AlignedBuf, BlockDevice, MemoryOptions};
use std::path::Path;
use std::sync::Arc;
use uxfs::{File, Locking, Queue};

/// The largest file that is recorded.
const MOST: u64 = 128 << 20;
/// The same through a page cache, into which all of it is read under the recorder: a mebibyte takes seconds.
const MOST_BUFFERED: u64 = 4 << 20;
/// The size of a folio then. Two threads meet in one folio as seldom as in a large file of large folios.
const FOLIO: usize = 16 << 10;
/// Requests in a cycle, one at a time: enough that the clock does not tick in all of them, as slow as they are then.
const REQUESTS: usize = 48;
/// Pages of a slice.
const SLICE_PAGES: u64 = 4096;
/// Slices that each begin with opening a volume and its file, and reading that if it is to be in memory.
const SLICES: usize = 12;

/// The recorded subject: a locking, and the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Requests {
    locking: Locking,
    op: Op,
    depth: u32,
    buffered: bool,
}

impl Requests {
    fn key(self) -> String {
        let Self { locking, op, depth, buffered } = self;
        format!("{locking} {} {depth} {buffered}", op.name())
    }

    fn of_key(key: &str) -> Option<Self> {
        let mut words = key.split(' ');
        let locking = words.next()?.parse().ok()?;
        let name = words.next()?;
        let op = [Op::Read, Op::Write, Op::Mixed].into_iter().find(|op| op.name() == name)?;
        Some(Self { locking, op, depth: words.next()?.parse().ok()?, buffered: words.next()?.parse().ok()? })
    }
}

/// A thread that has more requests in flight than pages would wait for itself.
fn check_room(config: &Config, workload: Workload) -> Result<()> {
    let depth = u64::from(config.depths(workload).into_iter().max().unwrap_or(1));
    let threads = config.threads.iter().copied().max().unwrap_or(1) as u64;
    let pages = config.file_pages().min(MOST / PAGE as u64);
    if threads * depth <= pages {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{threads} threads with {depth} requests in flight each need {} pages of their own, and the file has {pages}",
        threads * depth
    )))
}

/// The lockings and requests that the model can be asked for.
pub(crate) fn scene<'a>(config: &'a Config, workload: Workload, recorder: &Recorder) -> Result<Scene<'a>> {
    let buffered = workload == Workload::Buffered;
    let ops: &[Op] = if workload == Workload::Overwrite { &[Op::Read, Op::Write] } else { &[Op::Mixed] };
    check_room(config, workload)?;
    let own = OwnVolume::make(config)?;
    let mut subjects = Vec::new();
    for depth in config.depths(workload) {
        for &op in ops {
            for locking in config.lockings(workload) {
                let mut target = own.target(locking, buffered)?;
                target.prepare()?;
                let label: Label = target.label().clone();
                let requests = Requests { locking, op, depth, buffered };
                subjects.push(Subject {
                    label,
                    op: op.name(),
                    depth,
                    each: if depth > 1 { u64::from(depth) } else { 1 },
                    key: requests.key(),
                    slices: SLICES,
                    alone: Box::new(move || alone(config, &mut *target, op, depth)),
                });
            }
        }
    }
    let instruction_ns = Some(instruction_ns(config, recorder)?);
    let image = if buffered { make_small_image } else { make_image };
    Ok(Scene { subjects, instruction_ns, image: Some(image) })
}

/// Operations a second of one thread.
fn alone(config: &Config, target: &mut dyn AnyTarget, op: Op, depth: u32) -> Result<f64> {
    let pages = random_pages(config.file_pages(), config.pages.min(SLICE_PAGES), config.seed);
    let outcome =
        target.measure(Work { pages: &pages, op, generation: 0, threads: 1, depth, passes: 1, span: 1 })?;
    Ok((outcome.reads.ops + outcome.writes.ops) as f64 / outcome.wall.as_secs_f64().max(1e-9))
}

/// The time of an instruction that waits for no memory: those of locking and unlocking by one thread.
fn instruction_ns(config: &Config, recorder: &Recorder) -> Result<f64> {
    let config = Config { locking: vec![Locking::Range], ..config.clone() };
    let mut scene = super::locks::scene(&config);
    let subject = scene.subjects.first_mut().ok_or_else(|| no_subject(CASES[0].op))?;
    let alone_ns = super::cost::best_ns(subject.slices, &mut subject.alone)?;
    let request =
        Request { workload: Workload::RangeLock, key: subject.key.clone(), threads: 1, image: None };
    Ok(alone_ns / recorder.record(&request)?.instructions().max(1.0))
}

fn make_image(config: &Config, path: &Path) -> Result<()> {
    setup::make_image(path, config.size.min(MOST))
}

fn make_small_image(config: &Config, path: &Path) -> Result<()> {
    setup::make_image(path, config.size.min(MOST_BUFFERED))
}

/// Runs the recorded operations.
pub(crate) fn record(key: &str, image: &Path, threads: usize) -> Result<()> {
    let requests = Requests::of_key(key).ok_or_else(|| no_subject(key))?;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryOptions::new().copy_of(image)?);
    let open = if requests.buffered { open_buffered } else { open_file };
    let file = open(&device, requests.locking)?;
    if requests.buffered {
        bring_in(&file)?;
    }
    introduce()?;
    let pages = random_pages(file.size() / PAGE as u64, u64::MAX, Config::default().seed);
    let script = OnFile { file: &file, requests, pages: &pages, threads };
    if requests.depth > 1 { take_turns(&Queued(script), threads) } else { take_turns(&script, threads) }?;
    let volume = file.node().volume().clone();
    drop(file);
    volume.close().map_err(Error::volume)
}

/// Reads all of a file into memory from its end to its start, so that nothing is read ahead.
fn bring_in(file: &File) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(FOLIO);
    for nth in (0..file.size().div_ceil(FOLIO as u64)).rev() {
        file.read_at(&mut buf, nth * FOLIO as u64).map_err(Error::volume)?;
    }
    Ok(())
}

struct OnFile<'a> {
    file: &'a File,
    requests: Requests,
    pages: &'a [u32],
    threads: usize,
}

impl OnFile<'_> {
    /// Where the `nth` request of a thread goes; none of another's goes there.
    fn offset(&self, thread: usize, nth: usize) -> u64 {
        let share = (self.pages.len() / self.threads).max(1);
        u64::from(self.pages[(thread * share + nth % share) % self.pages.len()]) * PAGE as u64
    }

    fn writes(&self, nth: usize) -> bool {
        match self.requests.op {
            Op::Read => false,
            Op::Write => true,
            Op::Mixed => nth % 2 == 1,
        }
    }
}

/// What a thread has: its number, how many requests it has made, and memory to read into and to write from.
struct Hand {
    thread: usize,
    nth: usize,
    sink: AlignedBuf,
    source: AlignedBuf,
}

impl Script for OnFile<'_> {
    type Part = Hand;
    type Stand = ();

    fn part(&self, thread: usize) -> Result<Hand> {
        Ok(Hand { thread, nth: 0, sink: AlignedBuf::zeroed(PAGE), source: AlignedBuf::zeroed(PAGE) })
    }

    fn stand(&self, _: &mut Hand) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _: &mut Hand, (): ()) -> Result<()> {
        Ok(())
    }

    fn cycle(&self, hand: &mut Hand, pen: &Pen) -> Result<()> {
        for _ in 0..REQUESTS {
            let offset = self.offset(hand.thread, hand.nth);
            let Hand { sink, source, .. } = hand;
            let done = match (self.writes(hand.nth), self.requests.buffered) {
                (false, _) => pen.op_by_clock(|| self.file.read_at(sink, offset).map(drop)),
                (true, false) => pen.op_by_clock(|| self.file.overwrite_at(source, offset)),
                (true, true) => pen.op_by_clock(|| self.file.write_at(source, offset)),
            };
            done.map_err(Error::volume)?;
            hand.nth += 1;
        }
        Ok(())
    }
}

/// The same with requests in flight.
struct Queued<'a>(OnFile<'a>);

/// What a thread has then: its queue, and buffers that are not in it.
struct QueueHand {
    thread: usize,
    nth: usize,
    queue: Queue,
    bufs: Vec<AlignedBuf>,
}

impl QueueHand {
    /// Adds requests.
    fn push(&mut self, script: &OnFile<'_>, count: u32) -> Result<()> {
        for _ in 0..count {
            let buf = self.bufs.pop().unwrap_or_else(|| AlignedBuf::zeroed(PAGE));
            let offset = script.offset(self.thread, self.nth);
            match script.writes(self.nth) {
                true => self.queue.push_overwrite(offset, buf, 0),
                false => self.queue.push_read(offset, buf, 0),
            }
            .map_err(Error::volume)?;
            self.nth += 1;
        }
        Ok(())
    }

    /// Waits for all that are in flight.
    fn drain(&mut self) -> Result<()> {
        let mut result = Ok(());
        while self.queue.in_flight() > 0 {
            let bufs = &mut self.bufs;
            let waited = self.queue.wait(1, |done| {
                bufs.push(done.buf);
                if let Err(error) = done.result {
                    result = Err(Error::volume(error));
                }
            });
            waited.map_err(Error::volume)?;
        }
        result
    }
}

impl Script for Queued<'_> {
    type Part = QueueHand;
    type Stand = ();

    fn part(&self, thread: usize) -> Result<QueueHand> {
        let queue = self.0.file.queue(self.0.requests.depth).map_err(Error::volume)?;
        Ok(QueueHand { thread, nth: 0, queue, bufs: Vec::new() })
    }

    fn stand(&self, hand: &mut QueueHand) -> Result<()> {
        // Nobody can hold a range beside one who writes, where that locks the whole file.
        match self.0.requests.locking {
            Locking::Exclusive => Ok(()),
            _ => hand.push(&self.0, self.0.requests.depth / 2),
        }
    }

    fn leave(&self, hand: &mut QueueHand, (): ()) -> Result<()> {
        hand.drain()
    }

    fn cycle(&self, hand: &mut QueueHand, pen: &Pen) -> Result<()> {
        pen.op(|| {
            hand.push(&self.0, self.0.requests.depth)?;
            hand.drain()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_has_more_in_flight_than_pages() {
        let config = |threads: usize, size| Config { threads: vec![1, threads], size, ..Config::default() };
        let check =
            |threads, pages: u64, workload| check_room(&config(threads, pages * PAGE as u64), workload);
        assert!(check(2, 256, Workload::RandRw).is_ok());
        assert!(matches!(check(2, 255, Workload::RandRw), Err(Error::Usage(_))));
        assert!(check(2, 255, Workload::Overwrite).is_ok());
        // What is recorded is no larger, but room for as many threads as there can be.
        assert!(check(256, 1 << 20, Workload::RandRw).is_ok());
        assert!(matches!(check(257, 1 << 20, Workload::RandRw), Err(Error::Usage(_))));
    }

    #[test]
    fn keys_lead_back() {
        for locking in Locking::ALL {
            for (op, depth, buffered) in [(Op::Read, 1, false), (Op::Write, 1, true), (Op::Mixed, 128, false)]
            {
                let requests = Requests { locking, op, depth, buffered };
                assert_eq!(Requests::of_key(&requests.key()), Some(requests));
            }
        }
        assert_eq!(Requests::of_key("range read 1"), None);
    }
}
