//! Ctrl-C in a verb that changes a volume: it stops before the next file, and the volume is closed, so that its log is
//! left clean.
//!
//! Invariants: before the first volume is opened for writing signals do what they always did; the second one ends the
//! process at once.

use crate::exit::{Exit, Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on a signal that asks for an end is heard by [`check`].
pub fn watch() {
    ASKED.get_or_init(|| {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Where a signal cannot be caught, it ends the process. The first of the two acts on the second signal.
            let _ = flag::register_conditional_default(signal, Arc::clone(&asked));
            let _ = flag::register(signal, Arc::clone(&asked));
        }
        asked
    });
}

/// Whether the verb is to stop.
pub fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// Ends the verb if it is to stop.
pub fn check() -> Result<()> {
    if asked() { Err(Failure::new(Exit::Interrupted, WHAT)) } else { Ok(()) }
}

/// What is said of it.
pub const WHAT: &str = "interrupted; what is done is whole";
