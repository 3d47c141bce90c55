//! How long to wait for files that must not be written meanwhile.
//!
//! Invariant: no deadlock lasts. A thread with overwrites in a queue may be blocked by a file that we already hold, or
//! by our wait for all of a file, behind which later requests queue. This cannot be detected, so each wait is short at
//! first, and everything is released between two attempts.

use std::time::{Duration, Instant};

/// How long the first attempt waits for a file. Each further one waits twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// For how long attempts are made.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause after a failed attempt.
const PAUSE: Duration = Duration::from_millis(1);

/// Makes attempts until one succeeds, for some seconds at most. Each is told how long it may wait for a file, and
/// releases everything if it fails.
pub(crate) fn patiently<T, E>(
    mut attempt: impl FnMut(Duration) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let until = Instant::now() + PATIENCE;
    let mut wait = FIRST_WAIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match attempt(wait.min(left)) {
            Err(_) if !left.is_zero() => {
                // An attempt that failed at once would fail again at once.
                std::thread::sleep(PAUSE.min(left));
                wait = (wait * 2).min(PATIENCE);
            }
            ended => return ended,
        }
    }
}
