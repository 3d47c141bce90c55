//! Ctrl-C and `kill`: the run ends between two measurements, and its set-up is removed.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the first signal asks for the end; a second one ends the process at once.
pub fn install() -> Result<()> {
    if FLAG.get().is_some() {
        return Ok(());
    }
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let setup = signal_hook::flag::register_conditional_default(signal, Arc::clone(flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(flag)));
        setup.map_err(Error::host("cannot handle signals"))?;
    }
    Ok(())
}

/// Fails after a signal.
pub(crate) fn check() -> Result<()> {
    match FLAG.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(Error::Interrupted),
        _ => Ok(()),
    }
}
