//! How long to wait for files that are to be kept still, so that nobody writes to them.
//!
//! Invariant: nobody is kept for long from what has to come before a file is free. One who has overwrites of a file in a
//! queue, and is to take them out, may be kept at another file that is held already, or at other bytes of that very one,
//! where those who come later stand behind who waits for all of it. Nobody can tell; so each wait is a short one at first,
//! and all is let go between two of them.

use std::time::{Duration, Instant};

/// How long the first attempt waits for a file; each one after it waits twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// For how long attempts are made.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long nothing is attempted after one that failed.
const PAUSE: Duration = Duration::from_millis(1);

/// Makes attempts, each of which is told how long it may wait for a file and lets go of all when it fails, until one
/// succeeds, or none has for some seconds.
pub(crate) fn patiently<T, E>(
    mut attempt: impl FnMut(Duration) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let until = Instant::now() + PATIENCE;
    let mut wait = FIRST_WAIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match attempt(wait.min(left)) {
            Err(_) if !left.is_zero() => {
                // One that failed at once would fail as fast again.
                std::thread::sleep(PAUSE.min(left));
                wait = (wait * 2).min(PATIENCE);
            }
            ended => return ended,
        }
    }
}
