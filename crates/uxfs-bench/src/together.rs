//! Threads that do the same over and over for a given time: the loop of the workloads that are about locks.
//!
//! - The loop itself takes no lock, and writes nothing that another thread reads, while the clock runs.
//! - Operations are counted first and timed after that, by the same code: a pair of handles takes as little as a look at the
//!   clock, so that no operation that counts has one in it. Locks are counted alone, by a loop of their own ([`count`]): the
//!   shortest pair takes 10 ns, and 20 where it goes by way of a [`Clock`], even one that is none.

use crate::error::{Error, Result};
use crate::measure::Sample;
use crate::timer::Timer;
use crate::work::{Latency, Tally};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// What the threads of a measurement are to do, as told by the one who measures.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Phase {
    /// Run, but don't count: new threads share a processor until the scheduler has spread them.
    WarmUp,
    Count,
    /// Look at the clock, and don't count.
    Time,
    Stop,
}

/// The longest warm-up; a shorter measurement warms up as long as it measures.
const WARM_UP: Duration = Duration::from_millis(50);
/// The longest time in which single operations are timed; it, too, is no longer than the measurement.
const TIMED: Duration = Duration::from_millis(50);

/// Observes each operation.
pub(crate) trait Clock {
    /// Does an operation.
    fn of<R>(&mut self, operation: impl FnOnce() -> R) -> R;
}

impl Clock for Timer {
    #[inline]
    fn of<R>(&mut self, operation: impl FnOnce() -> R) -> R {
        Timer::of(self, operation)
    }
}

/// Reads no clock.
struct Untimed;

impl Clock for Untimed {
    #[inline]
    fn of<R>(&mut self, operation: impl FnOnce() -> R) -> R {
        operation()
    }
}

/// What a thread does over and over.
pub(crate) trait Cycle: Sync {
    /// What each thread has for itself.
    type Part: Send;
    /// One operation in so many is timed.
    const TIMED: u32;
    /// Operations of a cycle.
    const OPS: u64;
    /// Does them, each by way of `clock`.
    fn run(&self, part: &mut Self::Part, clock: &mut impl Clock) -> Result<()>;
}

/// What one thread did while it counted, and what single operations took after that, if they were timed.
struct Done {
    start: Instant,
    end: Instant,
    tally: Tally,
}

/// Runs `cycle` over and over, in a thread for each of `parts`, for about `time`; each call makes `each` operations. Gives
/// how many a second all threads made together.
pub(crate) fn count<P: Send>(
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
                            let end = Instant::now();
                            return Ok(Done { start, end, tally: Tally { ops: done, ..Tally::default() } });
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
    Ok(sample(&counted).ops_per_s)
}

/// Runs `cycle` over and over, in a thread for each of `parts`, for about `time`. Gives how many operations a second all
/// threads made together, and what single ones took.
pub(crate) fn run<C: Cycle>(parts: &mut [C::Part], time: Duration, cycle: &C) -> Result<Sample> {
    let phase = AtomicU8::new(Phase::WarmUp as u8);
    let done = std::thread::scope(|scope| {
        let work = |part| work(cycle, part, &phase);
        let workers: Vec<_> = parts.iter_mut().map(|part| scope.spawn(move || work(part))).collect();
        let phases = [(time.min(WARM_UP), Phase::Count), (time, Phase::Time), (time.min(TIMED), Phase::Stop)];
        for (time, next) in phases {
            std::thread::sleep(time);
            phase.store(next as u8, Ordering::Relaxed);
        }
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or(Err(Error::Panicked)))
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(sample(&done))
}

/// What all threads did together.
fn sample(done: &[Done]) -> Sample {
    let start = done.iter().map(|thread| thread.start).min();
    let end = done.iter().map(|thread| thread.end).max();
    let wall = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    let mut tally = Tally::default();
    done.iter().for_each(|thread| tally.add(&thread.tally));
    Sample::of(&tally, wall)
}

/// One thread's part in all phases. It counts one cycle at least, and times one.
fn work<C: Cycle>(cycle: &C, part: &mut C::Part, phase: &AtomicU8) -> Result<Done> {
    let is_in = |of: Phase| phase.load(Ordering::Relaxed) == of as u8;
    while is_in(Phase::WarmUp) {
        cycle.run(part, &mut Untimed)?;
    }
    let (start, mut ops) = (Instant::now(), 0);
    loop {
        cycle.run(part, &mut Untimed)?;
        ops += C::OPS;
        if !is_in(Phase::Count) {
            break;
        }
    }
    let end = Instant::now();
    let latency = time(cycle, part, phase)?;
    Ok(Done { start, end, tally: Tally { ops, latency } })
}

/// What single operations take.
fn time<C: Cycle>(cycle: &C, part: &mut C::Part, phase: &AtomicU8) -> Result<Latency> {
    let mut timer = Timer::new(C::TIMED);
    loop {
        cycle.run(part, &mut timer)?;
        if phase.load(Ordering::Relaxed) == Phase::Stop as u8 {
            return Ok(timer.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Operations that are told of, three a cycle.
    #[derive(Default)]
    struct Told(AtomicU64);

    impl Cycle for Told {
        type Part = u64;
        const TIMED: u32 = 1;
        const OPS: u64 = 3;

        fn run(&self, part: &mut u64, clock: &mut impl Clock) -> Result<()> {
            (0..Self::OPS).for_each(|_| clock.of(|| *part += 1));
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn operations_are_counted_and_some_more_are_timed() {
        let told = Told::default();
        let mut parts = [0; 3];
        let sample = run(&mut parts, Duration::from_millis(2), &told).expect("it runs");
        assert!(sample.ops_per_s > 0.0 && sample.p50_us.is_some() && sample.p50_us <= sample.p999_us);
        assert_eq!(parts.iter().sum::<u64>(), Told::OPS * told.0.into_inner());
    }

    #[test]
    fn a_thread_that_counts_looks_at_no_clock() {
        // Behind the end there is one cycle to count and one to time.
        let mut part = 0;
        let done = work(&Told::default(), &mut part, &AtomicU8::new(Phase::Stop as u8)).expect("it runs");
        assert_eq!((done.tally.ops, done.tally.latency.len(), part), (3, 3, 6));
    }
}
