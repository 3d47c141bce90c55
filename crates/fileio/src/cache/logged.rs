//! Which version of a file's map a crash would leave, as far as that is known.
//!
//! Invariant: a version that is noted here was on stable storage, log or place, when it was noted. Another version may be
//! there as well: then who asks makes it durable once more.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::MapSeq;

/// The last version of a map and a size that somebody has made durable. A write in place has to be told to nobody else as
/// long as it is the one now.
#[derive(Debug)]
pub struct LoggedMap(AtomicU64);

impl Default for LoggedMap {
    fn default() -> Self {
        // No map gets to this version.
        Self(AtomicU64::new(u64::MAX))
    }
}

impl LoggedMap {
    /// Whether this version is known to be durable: a load.
    pub fn is(&self, seq: MapSeq) -> bool {
        self.0.load(Ordering::Acquire) == seq.0
    }

    /// This version is durable. Who says so has asked for the version when no change of the map was between being visible and
    /// being committed, and has made durable all that was committed then.
    pub fn note(&self, seq: MapSeq) {
        self.0.store(seq.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_before_it_is_said() {
        let logged = LoggedMap::default();
        assert!(!logged.is(MapSeq(0)));
        logged.note(MapSeq(0));
        assert!(logged.is(MapSeq(0)) && !logged.is(MapSeq(1)));
    }
}
