//! Who goes past the pages of a file, and how they see what is in them.
//!
//! Invariants:
//! - who changes bytes past the pages holds them exclusively, in whole pages; none of them is dirty then, and none is present
//!   any more when they are let go: readers find the change on the device;
//! - who changes where the file ends holds the end, and finds it on the device where it is in memory; nobody else tells the map
//!   of it meanwhile;
//! - who keeps writers out of a whole file keeps those out, too, who write its pages back: nothing of it is under way to the
//!   device, and what could not be written is not attempted again before they let go;
//! - a write past the pages that looks for its bytes itself, as if there were no pages, is one who passes by: as long as there
//!   is one, nothing is cached.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rangelock::{ByteRangeLock, Mode, RangeToken};

use super::buffered::BufferedFile;
use super::failures::{Failure, SyncCursor};
use crate::direct::{Outcome, is_unwritten};
use crate::lock::{Held, Token};
use crate::sync::atomic::Ordering;
use crate::testing::{CHANGE, point};
use crate::{DelayedAllocation, FileError};

/// Bytes of a file that are held by somebody who may change where they lie, and where the file ends. None is in memory.
/// Dropping it lets go.
pub struct HeldToChange<'a, M: DelayedAllocation + 'static> {
    file: &'a BufferedFile<M>,
    range: Range<u64>,
    size: u64,
    /// Whether the end of the file in memory is among them.
    holds_end: bool,
    _held: Held<'a>,
}

impl<M: DelayedAllocation + 'static> fmt::Debug for HeldToChange<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldToChange")
            .field("range", &self.range)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl<'a, M: DelayedAllocation + 'static> HeldToChange<'a, M> {
    /// What is held, of a file whose end in memory stays as it is.
    pub(super) fn beside_end(
        file: &'a BufferedFile<M>,
        range: Range<u64>,
        size: u64,
        held: Held<'a>,
    ) -> Self {
        Self { file, range, size, holds_end: false, _held: held }
    }

    /// The size of the file when it was held. If its end lies in the range, it stays there but for the holder.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl<M: DelayedAllocation + 'static> Drop for HeldToChange<'_, M> {
    fn drop(&mut self) {
        if self.holds_end {
            let _telling = self.file.telling.lock();
            // Who holds the end may have moved it.
            self.file.pages.set_size(self.file.map().size());
            self.file.map().ends_in_memory_at(None);
            self.file.is_end_held.store(false, Ordering::Release);
        }
    }
}

/// A file that writers are kept out of, and those who write back. It stays open, with its pages and its range lock: who opens
/// it meanwhile shares them, and waits as well. Dropping it lets them in.
pub struct HeldFile<M: DelayedAllocation + 'static> {
    file: Arc<BufferedFile<M>>,
    token: Option<Token>,
    /// All of its pages, to be written back by nobody else.
    alone: Option<RangeToken>,
}

impl<M: DelayedAllocation + 'static> fmt::Debug for HeldFile<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldFile").finish_non_exhaustive()
    }
}

impl<M: DelayedAllocation + 'static> Drop for HeldFile<M> {
    fn drop(&mut self) {
        if let Some(alone) = self.alone.take() {
            self.file.flushing.release(alone);
        }
        if let Some(token) = self.token.take() {
            self.file.file.lock().release(token);
        }
    }
}

/// A file that is not cached as long as this lives.
pub struct Unbuffered<M: DelayedAllocation + 'static>(Arc<BufferedFile<M>>);

impl<M: DelayedAllocation + 'static> fmt::Debug for Unbuffered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unbuffered").finish_non_exhaustive()
    }
}

impl<M: DelayedAllocation + 'static> Drop for Unbuffered<M> {
    fn drop(&mut self) {
        *self.0.passers.lock() -= 1;
    }
}

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// Holds `range` exclusively, in whole pages, with nothing of it in memory; and if the file ends in there, all that was
    /// written is on the device before.
    ///
    /// # Errors
    /// What is dirty there cannot be written back, for want of space.
    pub fn hold_to_change(&self, range: Range<u64>) -> Outcome<HeldToChange<'_, M>, M> {
        let range = self.pages.pages_around(&range);
        if self.pages.is_dirty() {
            // Mostly nothing is left to do when the range is held. What fails, all are told who sync.
            let _told_when_synced = self.write_back(0..u64::MAX);
        }
        point(CHANGE);
        let held = self.file.lock().hold(range.clone(), Mode::Exclusive);
        if let Ok(held) = self.settled(range, held) {
            return Ok(held);
        }
        let all = 0..u64::MAX;
        let held = self.file.lock().hold(all.clone(), Mode::Exclusive);
        // A part may take more than the whole: another attempt follows.
        let _shows_there = self.write_back_held(all.clone());
        self.settled(all, held).map_err(FileError::WriteBack)
    }

    /// What is held, if all is as [`hold_to_change`](Self::hold_to_change) says, or why it is not.
    fn settled<'a>(&'a self, range: Range<u64>, held: Held<'a>) -> Result<HeldToChange<'a, M>, Failure> {
        let size = self.map().size();
        if !self.is_cached() {
            return Ok(HeldToChange::beside_end(self, range, size, held));
        }
        self.settle(&range)?;
        let size = self.map().size();
        let now = self.pages.size();
        // SAFETY: the range is held exclusively, in whole pages.
        unsafe { self.pages.forget(range.clone()) };
        let holds_end = range.contains(&now);
        if holds_end {
            // Who writes back elsewhere would tell the map where the file ended before, when it has been cut.
            let _telling = self.telling.lock();
            self.is_end_held.store(true, Ordering::Release);
            self.map().ends_in_memory_at(None);
        }
        Ok(HeldToChange { file: self, range, size, holds_end, _held: held })
    }

    /// Has nothing of `range` dirty, which the caller holds so that nobody writes to it, and the file end on the device where
    /// it ends in memory, if it reaches so far; or says why that cannot be.
    fn settle(&self, range: &Range<u64>) -> Result<(), Failure> {
        let is_settled = || {
            let (told, now) = (self.map().size(), self.pages.size());
            let is_behind = now != told && range.end > told.min(now);
            !is_behind && !self.pages.is_dirty_in(range)
        };
        if is_settled() {
            return Ok(());
        }
        match self.write_back_held(range.clone()) {
            // What has failed for good is dirty no more: all are told who sync.
            _ if is_settled() => Ok(()),
            Err(failure) => Err(failure),
            Ok(()) => Err(self.failures.last().unwrap_or_else(Failure::unknown)),
        }
    }

    /// Holds the blocks of a range, as [`hold_to_change`](Self::hold_to_change) does.
    pub(super) fn hold_blocks(&self, range: &Range<u64>) -> Outcome<HeldToChange<'_, M>, M> {
        self.hold_to_change(self.pages.blocks_around(range))
    }

    /// Holds a range from `from` to `end`, in whole blocks, to write there or to let the file end at `end`. Where the
    /// file ends before `end`, that much of it is held too as lies between; blocks behind its end that held data are
    /// gone. The rest of its last block is the caller's to zero
    /// ([`zero_behind_end`](crate::DirectFile::zero_behind_end)).
    pub(super) fn hold_to_grow(&self, from: u64, end: u64) -> Outcome<HeldToChange<'_, M>, M> {
        let block = u64::from(self.map().block_size());
        let to = end.next_multiple_of(block);
        let map = |source| FileError::Map { offset: from, source };
        loop {
            let size = self.size();
            let first = from.min(size) & !(block - 1);
            // Its extents may reach anywhere.
            let all = end > size && self.map().data_behind_end(to).map_err(map)?;
            point(crate::testing::HOLD);
            let held = self.hold_to_change(first..if all { u64::MAX } else { to.max(first + block) })?;
            if held.size() < first {
                // It was cut meanwhile: what lies between its end and `from` is not held.
                continue;
            }
            if end > held.size() && self.map().data_behind_end(to).map_err(map)? {
                if !all {
                    continue;
                }
                self.map().free_behind_end().map_err(map)?;
            }
            self.content_changes(from)?;
            return Ok(held);
        }
    }

    /// Keeps requests on `range` out, or writes to it alone, if `changes` is not set, with nothing of it dirty, and the file
    /// ending on the device where it ends in memory if the end is in there; `None` if a wait for others takes longer than
    /// `patience`.
    ///
    /// # Errors
    /// What is dirty there cannot be written back, for want of space: patience does not help.
    pub fn hold_within(
        &self,
        range: Range<u64>,
        changes: bool,
        patience: Duration,
    ) -> Result<Option<HeldToChange<'_, M>>, Failure> {
        let range = self.pages.pages_around(&range);
        if self.pages.is_dirty() {
            let _told_when_synced = self.write_back(0..u64::MAX);
        }
        let Some(held) = self.file.hold_within(range.clone(), !changes, patience) else { return Ok(None) };
        if let Ok(held) = self.settled_for(range, changes, held) {
            return Ok(Some(held));
        }
        // What is in the way may lie elsewhere, and a part may take more than the whole.
        let all = 0..u64::MAX;
        let Some(held) = self.file.hold_within(all.clone(), !changes, patience) else { return Ok(None) };
        let _shows_there = self.write_back_held(all.clone());
        self.settled_for(all, changes, held).map(Some)
    }

    fn settled_for<'a>(
        &'a self,
        range: Range<u64>,
        changes: bool,
        held: Held<'a>,
    ) -> Result<HeldToChange<'a, M>, Failure> {
        if changes {
            return self.settled(range, held);
        }
        if self.is_cached() {
            self.settle(&range)?;
        }
        // Nothing changes: no page has to go, and the end stays.
        let size = self.map().size();
        Ok(HeldToChange::beside_end(self, 0..0, size, held))
    }

    /// Keeps everybody out who writes to the file or writes it back, once every write is over that is under way, with nothing
    /// dirty; `None` if that takes longer than `patience`, and with that what could not be written back. Requests of a queue
    /// are over once its thread has taken them out. Readers go on, but for those of bytes that a writer waits for.
    pub fn hold_off_writers(&self, patience: Duration) -> Option<(HeldFile<M>, Result<(), Failure>)> {
        let file = self.this.upgrade()?;
        let token = self.file.acquire_from_writers(patience)?;
        let mut held = HeldFile { file, token: Some(token), alone: None };
        held.alone = Some(self.flushing.acquire(0..u64::MAX, Mode::Exclusive));
        let written = self.write_back_alone(0..u64::MAX);
        Some((held, written))
    }

    /// Has nothing of the file cached as long as what this gives lives; `None` if it takes longer than `patience` until those
    /// are over who are reading or writing.
    ///
    /// # Errors
    /// As of [`hold_within`](Self::hold_within).
    pub fn pass_by(&self, patience: Duration) -> Result<Option<Unbuffered<M>>, Failure> {
        let Some(this) = self.this.upgrade() else { return Ok(None) };
        {
            let mut passers = self.passers.lock();
            if !self.is_cached() {
                *passers += 1;
                return Ok(Some(Unbuffered(this)));
            }
        }
        let Some(held) = self.hold_within(0..u64::MAX, true, patience)? else { return Ok(None) };
        *self.passers.lock() += 1;
        self.is_cached.store(false, Ordering::Release);
        drop(held);
        Ok(Some(Unbuffered(this)))
    }

    /// One who passes by for a moment, if nothing is cached.
    pub(super) fn pass_by_now(&self) -> Option<Passing<'_, M>> {
        let mut passers = self.passers.lock();
        if self.is_cached() {
            return None;
        }
        *passers += 1;
        Some(Passing(self))
    }

    /// Writes over what is at byte `offset`, past the pages, as [`DirectFile::overwrite_at`](crate::DirectFile::overwrite_at).
    pub fn overwrite_past(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        self.overwrite_past_or(offset, buf, |_| Ok(None))
    }

    /// The same; but where something of the range was never written, `write` is asked to do it with what is held, in this mode,
    /// and says whether it has.
    #[inline]
    fn overwrite_past_or(
        &self,
        offset: u64,
        buf: &[u8],
        write: impl FnOnce(Mode) -> Outcome<Option<usize>, M>,
    ) -> Outcome<usize, M> {
        let Some((range, mode)) = self.file.write_range(offset, buf.len())? else { return Ok(0) };
        let seen = self.file.foresee(offset, true);
        point(CHANGE);
        let held = self.file.lock().hold(range, mode);
        if self.is_cached() {
            drop(held);
            return self.overwrite_cached(offset, buf);
        }
        match self.file.overwrite_held(offset, buf, seen) {
            Ok(_) => drop(held),
            Err(error) => {
                if is_unwritten(&error)
                    && let Some(written) = write(mode)?
                {
                    return Ok(written);
                }
                drop(held);
                return self.overwrite_elsewhere(error, offset, buf);
            }
        }
        self.map().overwritten();
        Ok(buf.len())
    }

    /// As [`overwrite_past`](Self::overwrite_past), durable when it returns without a flush. `false`, and nothing was written,
    /// where the device has no [durable writes](blockdev::BlockDevice::has_fua), or where the write is not whole sectors of one
    /// piece that the file has for itself.
    pub fn overwrite_durably(&self, offset: u64, buf: &[u8]) -> Outcome<bool, M> {
        let Some(end) = self.checked_end(offset, buf.len())? else { return Ok(true) };
        if !self.file.device().has_fua() || (offset | end) & self.file.sector_mask() != 0 {
            return Ok(false);
        }
        let Some((range, mode)) = self.file.write_range(offset, buf.len())? else { return Ok(true) };
        point(CHANGE);
        let held = self.file.lock().hold(range, mode);
        let is_written = if self.is_cached() {
            drop(held);
            let _held = self.hold_to_change(offset..end)?;
            self.file.overwrite_held_durably(offset, buf)?
        } else {
            let is_written = self.file.overwrite_held_durably(offset, buf)?;
            drop(held);
            is_written
        };
        if is_written {
            self.map().overwritten();
        }
        Ok(is_written)
    }

    #[cold]
    fn overwrite_elsewhere(&self, error: FileError<M::Error>, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        if !self.file.can_copy(&error) {
            return Err(error);
        }
        match self.pass_by_now() {
            Some(_passing) => self.file.overwrite_at(offset, buf),
            None => self.overwrite_cached(offset, buf),
        }
    }

    #[cold]
    fn overwrite_cached(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        let _held = self.hold_to_change(offset..offset + buf.len() as u64)?;
        match self.file.overwrite_held(offset, buf, None) {
            Err(error) if self.file.can_copy(&error) => self.file.copy_held(offset, buf)?,
            written => drop(written?),
        }
        self.map().overwritten();
        Ok(buf.len())
    }

    /// Writes `buf` at byte `offset`, wherever that is, past the pages, as [`DirectFile::write_at`](crate::DirectFile::write_at).
    pub fn write_past(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        self.with_room(|| self.try_write_past(offset, buf))
    }

    pub(super) fn try_write_past(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        let Some(end) = self.checked_end(offset, buf.len())? else { return Ok(0) };
        if end <= self.size() {
            match self.overwrite_past_or(offset, buf, |mode| self.file.write_in_hold(offset, buf, mode)) {
                Err(FileError::NotOverwritable { .. }) => {}
                other => return other,
            }
        }
        if let Some(_passing) = self.pass_by_now() {
            return self.file.write_new(offset, buf);
        }
        let block = u64::from(self.map().block_size());
        loop {
            let size = self.size();
            let range = if end <= size { offset..end } else { offset.min(size) & !(block - 1)..u64::MAX };
            let held = self.hold_to_change(range)?;
            // It may have been cut meanwhile.
            if held.size() >= size.min(end) {
                return self.file.write_while_held(offset, buf);
            }
        }
    }

    /// Writes behind the end of the file past the pages; gives the byte where it begins, as [`append`](Self::append).
    pub fn append_past(&self, buf: &[u8]) -> Outcome<u64, M> {
        let _alone = self.ends.lock();
        loop {
            let offset = self.size();
            if self.checked_end(offset, buf.len())?.is_none() {
                return Ok(offset);
            }
            let written = self.with_room(|| match self.pass_by_now() {
                Some(_passing) => self.file.append_if_at_end(offset, buf),
                None => self.append_cached(offset, buf),
            })?;
            if written.is_some() {
                return Ok(offset);
            }
        }
    }

    fn append_cached(&self, offset: u64, buf: &[u8]) -> Outcome<Option<usize>, M> {
        let block = u64::from(self.map().block_size());
        let held = self.hold_to_change(offset & !(block - 1)..u64::MAX)?;
        if held.size() != offset {
            return Ok(None);
        }
        self.file.write_while_held(offset, buf).map(Some)
    }

    /// As [`DirectFile::append_at`](crate::DirectFile::append_at), past the pages.
    pub fn fill_past(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        self.with_room(|| match self.pass_by_now() {
            Some(_passing) => self.file.append_at(offset, buf),
            None => self.try_write_past(offset, buf),
        })
    }

    /// What failed to be written back since the cursor was last asked.
    pub fn failed_since(&self, cursor: &SyncCursor) -> Option<Failure> {
        self.failures.tell(cursor)
    }
}

/// Takes itself back when it is dropped.
pub(super) struct Passing<'a, M: DelayedAllocation + 'static>(&'a BufferedFile<M>);

impl<M: DelayedAllocation + 'static> Drop for Passing<'_, M> {
    fn drop(&mut self) {
        *self.0.passers.lock() -= 1;
    }
}
