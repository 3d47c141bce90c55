//! The loop that every target is measured by: threads that start together, and blocking calls or a queue each.
//!
//! - The loops are generic over the target's port, so that blocking calls are direct calls.
//! - Nothing is allocated, filled or locked by the loop itself while the clock runs; a queue's write buffers are
//!   filled once, when they are first needed.
//! - One request in [`SAMPLE`] is timed: reading the clock costs as much as a tenth of a request to memory.

use crate::content::{self, PAGE, Sources};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::target::{At, Port, QueuePort, Target};
use crate::work::{Op, Tally, Work, WorkOutcome};
use blockdev::AlignedBuf;
use std::sync::Barrier;
use std::time::Instant;

/// One request in this many is timed.
const SAMPLE: usize = 32;

/// The result of one thread.
struct Done {
    start: Instant,
    end: Instant,
    reads: Tally,
    writes: Tally,
}

/// Runs `work` on `target`.
pub(crate) fn run<T: Target>(target: &mut T, work: &Work<'_>) -> Result<WorkOutcome> {
    if work.depth > 1 {
        let mut queues = Vec::with_capacity(work.threads);
        for _ in 0..work.threads {
            queues.push(target.queue(work.depth)?);
        }
        together(work, queues, queued)
    } else {
        let ports = target.ports(work)?;
        together(work, ports, blocking)
    }
}

/// Starts a thread for each of `ports`, lets them go at once, and sums up what they give.
fn together<P: Send>(
    work: &Work<'_>,
    ports: Vec<P>,
    body: impl Fn(P, &Work<'_>, usize, &Barrier) -> Result<Done> + Sync,
) -> Result<WorkOutcome> {
    interrupt::check()?;
    let barrier = Barrier::new(ports.len());
    let (barrier, body) = (&barrier, &body);
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = ports
            .into_iter()
            .enumerate()
            .map(|(nth, port)| scope.spawn(move || body(port, work, nth, barrier)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(Error::Panicked)))
            .collect::<Vec<Result<Done>>>()
    });
    let mut outcome = WorkOutcome::default();
    let (mut start, mut end) = (None::<Instant>, None::<Instant>);
    for done in done {
        let done = done?;
        start = Some(start.map_or(done.start, |at| at.min(done.start)));
        end = Some(end.map_or(done.end, |at| at.max(done.end)));
        outcome.reads.add(&done.reads);
        outcome.writes.add(&done.writes);
    }
    if let (Some(start), Some(end)) = (start, end) {
        outcome.wall = end - start;
    }
    Ok(outcome)
}

/// Whether this request of the run writes.
fn writes(work: &Work<'_>, page: u64) -> bool {
    match work.op {
        Op::Read => false,
        Op::Write => true,
        Op::Mixed => content::is_write(page, work.generation),
    }
}

/// One thread, one request at a time.
fn blocking<P: Port>(mut port: P, work: &Work<'_>, thread: usize, barrier: &Barrier) -> Result<Done> {
    let share = work.share(thread);
    let sources = Sources::new(work.generation, work.request_bytes());
    let mut sink = AlignedBuf::zeroed(work.request_bytes());
    let (mut reads, mut written) = (Tally::default(), Tally::default());
    barrier.wait();
    let start = Instant::now();
    for _ in 0..work.passes {
        for (nth, &page) in share.iter().enumerate() {
            let page = u64::from(page);
            let at = At { nth, offset: page * PAGE as u64 };
            let timed = nth.is_multiple_of(SAMPLE).then(Instant::now);
            let tally = if writes(work, page) {
                port.write(at, sources.request(page, work.generation))?;
                &mut written
            } else {
                port.read(at, &mut sink)?;
                &mut reads
            };
            tally.ops += 1;
            if let Some(timed) = timed {
                tally.latency.saturating_record(timed.elapsed().as_nanos() as u64);
            }
        }
    }
    Ok(Done { start, end: Instant::now(), reads, writes: written })
}

/// A request in a queue, found again by its tag.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// The class of the buffer, or [`READ`].
    class: usize,
    pushed: Option<Instant>,
}

/// In place of a class: the buffer is for reads.
const READ: usize = content::CLASSES;

/// One thread that keeps `depth` requests in flight.
fn queued(
    mut queue: Box<dyn QueuePort + '_>,
    work: &Work<'_>,
    thread: usize,
    barrier: &Barrier,
) -> Result<Done> {
    debug_assert_eq!(work.span, 1, "requests of a queue are pages");
    let share = work.share(thread);
    let depth = work.depth as usize;
    let mut slots = vec![Slot::default(); depth];
    let mut free: Vec<usize> = (0..depth).collect();
    // Buffers that are not in flight, by class; the last list is for reads.
    let mut pools: [Vec<AlignedBuf>; READ + 1] = std::array::from_fn(|_| Vec::with_capacity(depth));
    let mut tallies: [Tally; 2] = [Tally::default(), Tally::default()];
    let mut failed = None;
    let mut requests = (0..work.passes).flat_map(|_| share.iter().enumerate());
    barrier.wait();
    let start = Instant::now();
    loop {
        while let Some(&slot) = free.last() {
            let Some((nth, &page)) = requests.next() else { break };
            let page = u64::from(page);
            let write = writes(work, page);
            let class = if write { content::class(page, work.generation) } else { READ };
            let buf = pools[class].pop().unwrap_or_else(|| {
                let mut buf = AlignedBuf::zeroed(PAGE);
                if write {
                    content::fill(&mut buf, content::word(class, work.generation));
                }
                buf
            });
            slots[slot] = Slot { class, pushed: nth.is_multiple_of(SAMPLE).then(Instant::now) };
            let offset = page * PAGE as u64;
            if write {
                queue.push_write(offset, buf, slot as u64)?;
            } else {
                queue.push_read(offset, buf, slot as u64)?;
            }
            free.pop();
        }
        if free.len() == depth {
            break;
        }
        queue.wait(1, &mut |done| {
            let at = done.tag as usize;
            let slot = slots[at];
            let tally = &mut tallies[usize::from(slot.class != READ)];
            tally.ops += 1;
            if let Some(pushed) = slot.pushed {
                tally.latency.saturating_record(pushed.elapsed().as_nanos() as u64);
            }
            free.push(at);
            pools[slot.class].push(done.buf);
            if let Err(error) = done.result {
                failed = Some(error);
            }
        })?;
        if let Some(error) = failed.take() {
            return Err(error);
        }
    }
    let end = Instant::now();
    let [reads, writes] = tallies;
    Ok(Done { start, end, reads, writes })
}
