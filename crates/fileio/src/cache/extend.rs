//! Writes through pages that make a file longer.
//!
//! Invariants:
//! - who makes the file longer holds the block that its end lies in, exclusively, and all up to the new end, and decides by
//!   the size that it has then. They wait for one another under `ends`, which is taken before the range;
//! - before the file reaches behind its last block, the rest of that is zeroes in memory and is written back before the end
//!   moves on the device; blocks behind the end that hold data are gone.

use std::ops::Range;

use rangelock::Mode;

use super::buffered::BufferedFile;
use crate::direct::{Kind, Outcome};
use crate::sync::atomic::Ordering;
use crate::testing::{CHANGE, HOLD, point};
use crate::{DelayedAllocation, FileError};

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// Writes `buf` at byte `offset` if it ends behind the file, which is to end at `offset` if this `appends`; `None` if
    /// that is not so any more. The caller has `ends`.
    pub(super) fn try_extend(
        &self,
        offset: u64,
        buf: &[u8],
        end: u64,
        appends: bool,
    ) -> Outcome<Option<usize>, M> {
        if !self.is_cached() && (*self.passers.lock() > 0 || !self.begin_caching()) {
            return match appends {
                // As one who passes by, so that nothing is cached before it is over.
                true => match self.pass_by_now() {
                    Some(_passing) => self.file.append_if_at_end(offset, buf),
                    None => Ok(None),
                },
                false => self.write_past(offset, buf).map(Some),
            };
        }
        let size = self.pages.size();
        if end <= size || appends && offset != size {
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

    /// Sees to it that the rest of the last block, which is held exclusively, gets to the device as zeroes.
    fn prepare_end(&self, size: u64, last: Range<u64>) -> Outcome<(), M> {
        // SAFETY: the block is held.
        let (is_present, _) = unsafe { self.pages.presence(last.start, last.end) };
        if !is_present && matches!(self.file.run_to_read(last.start)?.kind, Kind::Zeroes(_)) {
            return Ok(());
        }
        self.prepare(size..last.end)
    }

    /// Frees what a crash left behind the end of the file.
    #[cold]
    fn free_behind_end(&self, size: u64) -> Outcome<(), M> {
        let block = u64::from(self.map().block_size());
        let _held = self.hold_to_change(size & !(block - 1)..u64::MAX)?;
        if self.map().size() == size {
            self.map().free_behind_end().map_err(|source| FileError::Map { offset: size, source })?;
        }
        Ok(())
    }
}
