//! Threads that do the same over and over for a given time: the loop of the workloads that are about locks.
//!
//! Invariant: the loop itself takes no lock, and writes nothing that another thread reads, while the clock runs.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// What the threads of a measurement are to do, as told by the one who measures.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Phase {
    /// Run, but don't count: new threads share a processor until the scheduler has spread them.
    WarmUp,
    Count,
    Stop,
}

/// The longest warm-up; a shorter measurement warms up as long as it measures.
const WARM_UP: Duration = Duration::from_millis(50);

/// What one thread did while it counted.
struct Counted {
    start: Instant,
    end: Instant,
    ops: u64,
}

/// Runs `cycle` over and over, in a thread for each of `parts`, for about `time`; each call makes `each` operations. Gives
/// how many a second all threads made together.
pub(crate) fn run<P: Send>(
    parts: &mut [P],
    time: Duration,
    each: u64,
    cycle: impl Fn(&mut P) -> Result<()> + Sync,
) -> Result<f64> {
    let phase = AtomicU8::new(Phase::WarmUp as u8);
    let (phase, cycle) = (&phase, &cycle);
    let counted = std::thread::scope(|scope| {
        let workers: Vec<_> = parts
            .iter_mut()
            .map(|part| {
                scope.spawn(move || {
                    while phase.load(Ordering::Relaxed) == Phase::WarmUp as u8 {
                        cycle(part)?;
                    }
                    let start = Instant::now();
                    let mut done = 0;
                    loop {
                        cycle(part)?;
                        done += each;
                        if phase.load(Ordering::Relaxed) == Phase::Stop as u8 {
                            return Ok(Counted { start, end: Instant::now(), ops: done });
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(time.min(WARM_UP));
        phase.store(Phase::Count as u8, Ordering::Relaxed);
        std::thread::sleep(time);
        phase.store(Phase::Stop as u8, Ordering::Relaxed);
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or(Err(Error::Panicked)))
            .collect::<Result<Vec<_>>>()
    })?;
    let start = counted.iter().map(|thread| thread.start).min();
    let end = counted.iter().map(|thread| thread.end).max();
    let wall = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    let ops: u64 = counted.iter().map(|thread| thread.ops).sum();
    Ok(ops as f64 / wall.as_secs_f64().max(1e-9))
}
