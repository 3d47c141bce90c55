//! Writes through pages that extend a file.
//!
//! Invariants:
//! - whoever extends the file exclusively holds the block with its end and everything up to the new end, and decides by
//!   the size that it has then. Extending threads wait for one another on `ends`, which is taken before the range;
//! - before the file grows beyond its last block, the rest of that block is zeroes in memory, and is written back
//!   before the end moves on the device. Blocks past the end that had data are freed.

use std::ops::Range;

use rangelock::Mode;

use super::buffered::BufferedFile;
use crate::direct::{Begins, FileResult, Kind};
use crate::sync::atomic::Ordering;
use crate::testing::{CHANGE, HOLD, point};
use crate::{DelayedAllocation, FileError};

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// Writes `buf` at byte `offset` if it ends behind the end of the file, and may begin there. `None` if that no longer
    /// holds. The caller has `ends`.
    pub(super) fn try_extend(
        &self,
        offset: u64,
        buf: &[u8],
        end: u64,
        begins: Begins,
    ) -> FileResult<Option<usize>, M> {
        if !self.is_cached() && (*self.passers.lock() > 0 || !self.begin_caching()) {
            return match begins {
                Begins::Anywhere => self.write_past(offset, buf).map(Some),
                // As a passer, so that nothing is cached before it is over.
                _ => match self.pass_by_now() {
                    Some(_passing) => self.file.extend_if(begins, offset, buf),
                    None => Ok(None),
                },
            };
        }
        let size = self.pages.size();
        if end <= size || !begins.may_be(offset, size) {
            return Ok(None);
        }
        let block = u64::from(self.map().block_size());
        let start = offset.min(size) & !(block - 1);
        point(HOLD);
        point(CHANGE);
        let held = self.file.lock().hold(start..end.next_multiple_of(block), Mode::Exclusive);
        if !self.is_cached() || self.pages.size() != size {
            return Ok(None);
        }
        let map = |source| FileError::Map { offset, source };
        if self.map().size() == size && self.map().data_behind_end(u64::MAX).map_err(map)? {
            drop(held);
            self.free_behind_end(size)?;
            return Ok(None);
        }
        self.content_changes(offset)?;
        let last = size & !(block - 1)..size.next_multiple_of(block);
        if last.end <= offset && !last.is_empty() {
            self.prepare_end(size, last)?;
        }
        self.prepare(offset..end)?;
        // SAFETY: the blocks are held exclusively.
        unsafe { self.pages.copy_in(offset, buf) };
        self.map().overwritten();
        self.pages.set_size(end);
        self.is_ahead.store(true, Ordering::Release);
        self.map().ends_in_memory_at(Some(end));
        drop(held);
        Ok(Some(buf.len()))
    }

    /// Ensures that the rest of the last block, which is held exclusively, is written to the device as zeroes.
    fn prepare_end(&self, size: u64, last: Range<u64>) -> FileResult<(), M> {
        // SAFETY: the block is held.
        let (is_present, _) = unsafe { self.pages.presence(last.start, last.end) };
        if !is_present && matches!(self.file.run_to_read(last.start)?.kind, Kind::Zeroes(_)) {
            return Ok(());
        }
        self.prepare(size..last.end)
    }

    /// Frees what a crash left past the end of the file.
    #[cold]
    fn free_behind_end(&self, size: u64) -> FileResult<(), M> {
        let block = u64::from(self.map().block_size());
        let _held = self.hold_to_change(size & !(block - 1)..u64::MAX)?;
        if self.map().size() == size {
            self.map().free_behind_end().map_err(|source| FileError::Map { offset: size, source })?;
        }
        Ok(())
    }
}
