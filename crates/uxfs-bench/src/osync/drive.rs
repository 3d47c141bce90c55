//! The loop that all targets run: threads that start together and write to regions of their own until the time is over.
//!
//! Invariant: the loop itself allocates, fills and locks nothing while the clock runs.

use super::WRITE_BYTES;
use super::held::{self, Held, Sources};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::measure::Sample;
use crate::target::Label;
use crate::work::Tally;
use parking_lot::Mutex;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// One thread's way to the storage.
pub(super) trait Port: Send {
    /// Writes, and returns when that is durable; gives whether another write comes, which is so until `is_over`.
    fn write(&mut self, offset: u64, buf: &[u8], is_over: &dyn Fn() -> bool) -> Result<bool>;
}

/// A [`Port`] that needs nothing but to write.
pub(super) struct Plain<F>(pub(super) F);

impl<F: FnMut(u64, &[u8]) -> Result<()> + Send> Port for Plain<F> {
    fn write(&mut self, offset: u64, buf: &[u8], is_over: &dyn Fn() -> bool) -> Result<bool> {
        (self.0)(offset, buf)?;
        Ok(!is_over())
    }
}

/// A storage and a way to write to it.
pub(super) trait Target: Send {
    /// Its name in reports.
    fn label(&self) -> &Label;
    /// What is written: `device write`, `file write`.
    fn op(&self) -> &'static str;
    /// What the storage holds, which other targets may share.
    fn held(&self) -> Arc<Mutex<Held>>;
    /// A port for each thread.
    fn ports<'a>(&'a self, threads: usize) -> Result<Vec<Box<dyn Port + 'a>>>;
    /// Reads back.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
}

/// The result of one thread.
struct Done {
    start: Instant,
    end: Instant,
    tally: Tally,
}

/// Has `threads` threads write for about `time`, and checks what the storage holds then.
pub(super) fn measure(target: &dyn Target, threads: usize, time: Duration) -> Result<Sample> {
    interrupt::check()?;
    let held = target.held();
    let mut held = held.lock();
    let first = held.next_generations(threads);
    let ports = target.ports(threads)?;
    let barrier = Barrier::new(threads);
    let barrier = &barrier;
    let done: Vec<Result<Done>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (first..)
            .zip(ports)
            .enumerate()
            .map(|(nth, (generation, port))| {
                scope.spawn(move || write(port, nth, &Sources::new(generation), time, barrier))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Panicked))).collect()
    });
    let mut tally = Tally::default();
    let (mut start, mut end) = (None::<Instant>, None::<Instant>);
    for (thread, (generation, done)) in (first..).zip(done).enumerate() {
        let done = done?;
        held.note(thread, generation, done.tally.ops);
        tally.add(&done.tally);
        start = Some(start.map_or(done.start, |at| at.min(done.start)));
        end = Some(end.map_or(done.end, |at| at.max(done.end)));
    }
    held.check(&target.label().to_string(), |offset, buf| target.read(offset, buf))?;
    let wall = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    Ok(Sample::of(&tally, wall))
}

fn write(
    mut port: Box<dyn Port + '_>,
    thread: usize,
    sources: &Sources,
    time: Duration,
    barrier: &Barrier,
) -> Result<Done> {
    let mut tally = Tally::default();
    barrier.wait();
    let start = Instant::now();
    let is_over = || start.elapsed() >= time;
    let mut since = start;
    loop {
        let nth = tally.ops;
        let goes_on = port.write(held::offset(thread, nth), sources.nth(nth), &is_over)?;
        let now = Instant::now();
        tally.ops += 1;
        tally.latency.saturating_record((now - since).as_nanos() as u64);
        since = now;
        if !goes_on {
            return Ok(Done { start, end: now, tally });
        }
    }
}

/// Bytes that are written to at most so many threads' regions.
pub(super) fn bytes(threads: usize) -> u64 {
    held::offset(threads, 0)
}

const _: () = assert!(WRITE_BYTES.is_multiple_of(crate::content::PAGE));
