//! Ctrl-C, and the other signals that ask for an end.
//!
//! Invariants:
//! - a verb that reads and prints ends at once, whatever it waits for, with the exit code for an interruption;
//! - from [`watch`] on (a volume is open for writing, or a file of the host is being made) the first signal is noticed
//!   by [`check`]: the verb stops before the next file, and the volume is closed, so that its log is clean. The second
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

/// The flags of the signal handlers.
struct Signals {
    /// Whether the process ends as soon as a signal comes.
    at_once: Arc<AtomicBool>,
    /// Whether a signal has come.
    asked: Arc<AtomicBool>,
}

static SIGNALS: OnceLock<Signals> = OnceLock::new();

/// From now on a signal ends the process with our exit code.
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

/// From now on exceeding the file size limit (`ulimit -f`) is an error, as on a full disk, and does not end the
/// process.
pub fn survive_size_limits() {
    // It is caught and not ignored, as child processes would inherit that.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// From now on only [`check`] notices a signal.
pub fn watch() {
    start();
    if let Some(signals) = SIGNALS.get() {
        signals.at_once.store(false, Ordering::SeqCst);
    }
}

/// Whether the verb should stop.
pub fn asked() -> bool {
    SIGNALS.get().is_some_and(|signals| signals.asked.load(Ordering::Relaxed))
}

/// Fails if the verb should stop.
pub fn check() -> Result<()> {
    if asked() { Err(Failure::new(Exit::Interrupted, WHAT)) } else { Ok(()) }
}

/// Its message.
pub const WHAT: &str = "interrupted; what is done is whole";

/// Signals that were ignored at the start, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// Reads from something that may block, like a pipe: a signal ends the wait.
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
    // A signal between the check and the wait is noticed at the next turn.
    const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        if asked() {
            return Err(io::Error::other(WHAT));
        }
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&TURN)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // A signal that came before the end of the input takes precedence.
            Ok(_) if asked() => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
