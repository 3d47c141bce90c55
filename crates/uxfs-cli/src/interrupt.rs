//! Ctrl-C, and the other signals that ask for an end.
//!
//! Invariants:
//! - a verb that reads and prints ends at once, whatever it waits for, with the exit code of what was interrupted;
//! - from [`watch`] on (a volume is open for writing, or a file of the host is being made) the first signal is heard by
//!   [`check`]: the verb stops before the next file, and what is open is closed, so that a log is left clean. The second
//!   signal ends the process at once;
//! - a signal that was ignored when the process began stays ignored, as under `nohup`.

use crate::exit::{Exit, Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What the handlers look at, and what they set.
struct Signals {
    /// Whether the process ends as soon as a signal comes.
    at_once: Arc<AtomicBool>,
    /// Whether one has come.
    asked: Arc<AtomicBool>,
}

static SIGNALS: OnceLock<Signals> = OnceLock::new();

/// From now on a signal ends the process with an exit code of ours.
pub fn start() {
    SIGNALS.get_or_init(|| {
        let signals =
            Signals { at_once: Arc::new(AtomicBool::new(true)), asked: Arc::new(AtomicBool::new(false)) };
        let Signals { at_once, asked } = &signals;
        let ignored = ignored();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if ignored >> (signal - 1) & 1 != 0 {
                continue;
            }
            // Where a signal cannot be caught, it ends the process. Handlers run in this order: the second of them acts
            // on the second signal.
            let code = Exit::Interrupted as i32;
            let _ = flag::register_conditional_shutdown(signal, code, Arc::clone(at_once));
            let _ = flag::register_conditional_default(signal, Arc::clone(asked));
            let _ = flag::register(signal, Arc::clone(asked));
        }
        signals
    });
}

/// From now on a file that would become larger than the shell permits (`ulimit -f`) is an error, as on a full disk, and
/// not the end of the process.
pub fn survive_size_limits() {
    // It is caught rather than ignored, as programs that are started would ignore it too.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// From now on a signal that asks for an end is heard by [`check`], and nothing else.
pub fn watch() {
    start();
    if let Some(signals) = SIGNALS.get() {
        signals.at_once.store(false, Ordering::SeqCst);
    }
}

/// Whether the verb is to stop.
pub fn asked() -> bool {
    SIGNALS.get().is_some_and(|signals| signals.asked.load(Ordering::Relaxed))
}

/// Ends the verb if it is to stop.
pub fn check() -> Result<()> {
    if asked() { Err(Failure::new(Exit::Interrupted, WHAT)) } else { Ok(()) }
}

/// What is said of it.
pub const WHAT: &str = "interrupted; what is done is whole";

/// Signals that whoever started us has us ignore, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// Reads what may keep us waiting, as a pipe does: a signal ends the wait.
pub struct Patient<R>(R);

impl<R: Read + AsFd> Patient<R> {
    /// Reads from a file of the host of any type.
    pub fn new(inner: R) -> Self {
        Self(inner)
    }
}

impl<R: Read + AsFd> Read for Patient<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        wait_for_input(&self.0)?;
        self.0.read(buf)
    }
}

/// Waits until there is something to read, or the end.
pub fn wait_for_input(input: impl AsFd) -> io::Result<()> {
    // A signal that comes between the question and the wait is noticed at the next turn.
    const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        if asked() {
            return Err(io::Error::other(WHAT));
        }
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&TURN)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // One that came before the end of the input is heard before that is.
            Ok(_) if asked() => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
