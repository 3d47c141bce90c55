//! What the model is told about this machine: the time of a moved line, and that of an operation alone.
//!
//! Both are measured in slices so short that most are not interrupted, and the best of them counts: other work of the
//! machine, or its host's, can only make a slice longer.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a line changes hands in a slice.
const HANDS: u64 = 400;
/// Moves, as the model counts them, that one change of hands is: who waits fetches the line that was written, and then
/// takes away the other's copy by writing it.
const MOVES: f64 = 2.0;

/// A word in a line that nothing else is in, nor in the line beside it, which some processors fetch along.
#[derive(Default)]
#[repr(align(256))]
struct Ball(AtomicU64);

/// The time that one move of a line takes between two processors, in nanoseconds: two threads wait for each other's
/// writes to one line.
pub(crate) fn moved_line_ns(time: Duration) -> Result<f64> {
    let ball = &Ball::default();
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut seen = 0;
            loop {
                match wait(ball, seen) {
                    u64::MAX => return,
                    now => seen = now + 1,
                }
                ball.0.store(seen, Ordering::Release);
            }
        });
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
        other.join().map_err(|_| Error::Panicked)?;
        Ok(best / MOVES)
    })
}

/// What is there in place of `old`, as soon as there is.
fn wait(ball: &Ball, old: u64) -> u64 {
    loop {
        // No pause, which is longer than what is measured. A thread that waits in vain gives way now and then: there
        // may be one processor.
        for _ in 0..10_000 {
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
