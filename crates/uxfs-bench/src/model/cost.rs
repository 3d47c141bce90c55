//! Facts about this machine for the model: the time of a moved line, and that of an operation alone.
//!
//! Both are measured in slices so short that most are not interrupted, and the best of them counts: other work of the
//! machine, or its host's, can only make a slice longer.

use crate::error::{Error, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a line changes hands in a slice: seldom enough that both threads often run all of it, where much else runs.
const HANDS: u64 = 40;
/// Moves, as the model counts them, that one change of hands is: whoever waits fetches the line that was written, and
/// then takes away the other's copy by writing it.
const MOVES: f64 = 2.0;

/// A word in a line that nothing else is in, nor in the line beside it, which some processors fetch along.
#[derive(Default)]
#[repr(align(256))]
struct Ball(AtomicU64);

/// The time that one move of a line takes between two processors, in nanoseconds: two threads wait for each other's
/// writes to one line.
pub(crate) fn moved_line_ns(time: Duration) -> Result<f64> {
    let cpus = two_processors()?;
    let ball = &Ball::default();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let _ = stay_on(cpus[1]);
            let mut seen = 0;
            loop {
                match wait(ball, seen) {
                    u64::MAX => return,
                    now => seen = now + 1,
                }
                ball.0.store(seen, Ordering::Release);
            }
        });
        let best = scope.spawn(move || {
            let _ = stay_on(cpus[0]);
            let until = Instant::now() + time;
            let (mut best, mut now) = (f64::INFINITY, 0);
            while Instant::now() < until {
                let began = Instant::now();
                for _ in 0..HANDS / 2 {
                    ball.0.store(now + 1, Ordering::Release);
                    now = wait(ball, now + 1);
                }
                best = best.min(began.elapsed().as_nanos() as f64 / HANDS as f64);
            }
            ball.0.store(u64::MAX, Ordering::Release);
            best
        });
        let best = best.join().map_err(|_| Error::Panicked)?;
        other.join().map_err(|_| Error::Panicked)?;
        Ok(best / MOVES)
    })
}

/// Two processors that this program may run on.
fn two_processors() -> Result<[usize; 2]> {
    let allowed =
        sched_getaffinity(None).map_err(|error| Error::host("cannot ask for processors")(error.into()))?;
    let mut all = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    all.next().zip(all.next()).map(|(one, two)| [one, two]).ok_or_else(|| {
        let what = "what a moved line costs cannot be measured on one processor; say it with --moved-ns";
        Error::Usage(what.to_owned())
    })
}

/// Keeps the calling thread on one processor; where that is refused, the best slices are still those on two.
fn stay_on(cpu: usize) -> rustix::io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus)
}

/// The value that replaces `old`, as soon as it does.
fn wait(ball: &Ball, old: u64) -> u64 {
    loop {
        // No pause, which is longer than what is measured. A thread that waits in vain gives way now and then: there
        // may be one processor.
        for _ in 0..2_000 {
            let now = ball.0.load(Ordering::Acquire);
            if now != old {
                return now;
            }
        }
        std::thread::yield_now();
    }
}

/// The shortest time of one operation that `slice`, which gives operations a second, finds in so many slices; in
/// nanoseconds.
pub(crate) fn best_ns(slices: usize, mut slice: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..slices.max(1) {
        best = best.min(1e9 / slice()?.max(1e-9));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_takes_some_time() {
        let moved = moved_line_ns(Duration::from_millis(20)).expect("no thread panics");
        assert!((0.5..1e8).contains(&moved), "{moved}");
    }

    #[test]
    fn the_best_slice_counts() {
        let mut rates = [1e6, 2e6, 0.5e6].into_iter();
        assert_eq!(best_ns(3, || Ok(rates.next().unwrap_or_default())).expect("no slice fails"), 500.0);
    }
}
