//! Cutting a file off.
//!
//! Invariants:
//! - dirty bytes past the new end that cannot be written back are dropped after the file has been cut, not before. So a
//!   cut that fails loses nothing that was accepted, except that the device may already have zeroes for the rest of the
//!   future last block, as in a kernel;
//! - dirty bytes before the new end are on the device when the file is cut, or it is not cut.

use std::fmt;
use std::ops::Range;

use rangelock::Mode;

use super::buffered::BufferedFile;
use super::coherence::HeldToChange;
use super::failures::Failure;
use crate::direct::FileResult;
use crate::sync::atomic::Ordering;
use crate::{DelayedAllocation, FileError};

/// A file that is held in order to cut it off. Dropping it releases it.
pub struct HeldToCut<'a, M: DelayedAllocation + 'static> {
    file: &'a BufferedFile<M>,
    /// What the cut drops from memory: whole pages.
    unwanted: Option<Range<u64>>,
    /// Where the file ended on the device.
    told: u64,
    is_cut: bool,
    held: HeldToChange<'a, M>,
}

impl<M: DelayedAllocation + 'static> fmt::Debug for HeldToCut<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldToCut").field("held", &self.held).finish_non_exhaustive()
    }
}

impl<M: DelayedAllocation + 'static> HeldToCut<'_, M> {
    /// The size of the file when it was held.
    pub fn size(&self) -> u64 {
        self.held.size()
    }

    /// Says that the file was cut, and releases it.
    pub fn was_cut(mut self) {
        self.is_cut = true;
    }
}

impl<M: DelayedAllocation + 'static> Drop for HeldToCut<'_, M> {
    fn drop(&mut self) {
        // A cut that failed half-way has moved the end as well.
        if let Some(unwanted) = self.unwanted.take()
            && (self.is_cut || self.file.map().size() != self.told)
        {
            self.file.give_up_behind_end(unwanted);
        }
    }
}

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// Holds the block with byte `size` and everything behind it, in order to set the file's size to `size` if it is at
    /// least that long. Dirty bytes before that end are written back. Behind it, those that cannot be written may stay.
    ///
    /// # Errors
    /// Dirty bytes that stay in the file cannot be written back for lack of space.
    pub fn hold_to_cut(&self, size: u64) -> FileResult<HeldToCut<'_, M>, M> {
        let block = u64::from(self.map().block_size());
        let held = match self.hold_to_change(size & !(block - 1)..u64::MAX) {
            Err(FileError::WriteBack(failure)) => return self.hold_to_cut_unwritten(size, failure),
            held => held?,
        };
        Ok(HeldToCut { file: self, unwanted: None, told: held.size(), is_cut: false, held })
    }

    #[cold]
    fn hold_to_cut_unwritten(&self, size: u64, failure: Failure) -> FileResult<HeldToCut<'_, M>, M> {
        let held = self.file.lock().hold(0..u64::MAX, Mode::Exclusive);
        let kept = self.pages.pages_around(&(0..size));
        if !self.is_cached() || self.pages.size() <= kept.end {
            return Err(FileError::WriteBack(failure));
        }
        let mut written = self.write_back_held(kept.clone());
        if self.map().size() < size {
            written = written.and(self.tell_size());
        }
        if self.pages.is_dirty_in(&kept) || self.map().size() < size {
            return Err(FileError::WriteBack(written.err().unwrap_or(failure)));
        }
        let unwanted = self.pages.pages_around(&(kept.end..u64::MAX));
        // Cutting the file changes what follows the end in its block.
        let last = self.pages.pages_around(&(size..size)).start..kept.end;
        // SAFETY: all of the file is held exclusively, and nothing is dirty there.
        unsafe { self.pages.forget(last) };
        let told = self.map().size();
        // The end in memory stays unless the file is cut.
        let held = HeldToChange::beside_end(self, 0..u64::MAX, self.pages.size(), held);
        Ok(HeldToCut { file: self, unwanted: Some(unwanted), told, is_cut: false, held })
    }

    /// Drops from memory what is in `unwanted`, whole pages past the end of a file that was cut and that the caller
    /// holds.
    fn give_up_behind_end(&self, unwanted: Range<u64>) {
        let _telling = self.telling.lock();
        self.give_up_in(unwanted.clone());
        // SAFETY: all of the file is held exclusively, and nothing is dirty there any more.
        unsafe { self.pages.forget(unwanted) };
        self.pages.set_size(self.map().size());
        self.map().ends_in_memory_at(None);
        self.is_ahead.store(false, Ordering::Release);
    }
}
