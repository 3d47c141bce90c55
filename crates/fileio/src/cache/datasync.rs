//! Up to which of a file's changes `fdatasync` has nothing left to do, as far as that is known.
//!
//! Invariant: what is noted here was on stable storage, in the log or in its place, when it was noted.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of the last change of a file, its map and size among them, that somebody has made durable. The mapping counts
/// the changes. As long as the number is the one now, a write in place leaves nothing but its data to be made durable.
#[derive(Debug)]
pub struct Datasynced(AtomicU64);

impl Default for Datasynced {
    fn default() -> Self {
        // No file has so many changes.
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Datasynced {
    /// Whether all changes up to `seq` are known to be durable: a load.
    pub fn is(&self, seq: u64) -> bool {
        self.0.load(Ordering::Acquire) == seq
    }

    /// They are. Whoever says so asked for the number when no change was between being visible and being committed, and has
    /// made durable all that was committed then.
    pub fn note(&self, seq: u64) {
        self.0.store(seq, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_before_it_is_said() {
        let synced = Datasynced::default();
        assert!(!synced.is(0));
        synced.note(0);
        assert!(synced.is(0) && !synced.is(1));
    }
}
