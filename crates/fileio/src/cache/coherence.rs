//! Access to a file that bypasses its pages, and how it sees what is in them.
//!
//! Invariants:
//! - whoever changes bytes without the pages holds them exclusively, in whole pages. Meanwhile none of these is dirty,
//!   and when they are released none is present any more, so readers find the change on the device;
//! - whoever changes where the file ends holds the end, and finds it on the device where it is in memory. Nobody else
//!   tells the map about it meanwhile;
//! - whoever keeps writers out of a whole file also keeps out those that write its pages back: nothing of it is under
//!   way to the device, and what could not be written is not tried again before the release;
//! - a direct write that looks up its bytes as if there were no pages counts as a passer: as long as there is one,
//!   nothing is cached.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rangelock::{Mode, RangeToken};

use super::buffered::BufferedFile;
use super::failures::{Failure, SyncCursor};
use crate::direct::{Begins, FileResult, is_unwritten};
use crate::lock::{Held, Token};
use crate::sync::atomic::Ordering;
use crate::testing::{CHANGE, OVERWRITTEN, point};
use crate::{DelayedAllocation, FileError};

/// Bytes of a file that are held by somebody who may change where they lie and where the file ends. None is in memory.
/// Dropping it releases them.
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
    /// Held bytes of a file whose end in memory stays as it is.
    pub(super) fn beside_end(
        file: &'a BufferedFile<M>,
        range: Range<u64>,
        size: u64,
        held: Held<'a>,
    ) -> Self {
        Self { file, range, size, holds_end: false, _held: held }
    }

    /// The size of the file when it was held. If its end lies in the range, only the holder can change it.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl<M: DelayedAllocation + 'static> Drop for HeldToChange<'_, M> {
    fn drop(&mut self) {
        if self.holds_end {
            let _telling = self.file.telling.lock();
            // The holder of the end may have moved it.
            self.file.pages.set_size(self.file.map().size());
            self.file.map().ends_in_memory_at(None);
            self.file.is_end_held.store(false, Ordering::Release);
        }
    }
}

/// A file from which writers and write-back are kept out. It stays open, with its pages and its range lock: whoever
/// opens it meanwhile shares them, and waits as well. Dropping it lets them in.
pub struct HeldFile<M: DelayedAllocation + 'static> {
    file: Arc<BufferedFile<M>>,
    token: Option<Token>,
    /// All of its pages, so that nobody else writes them back.
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
    /// Holds `range` exclusively, in whole pages, with nothing of it in memory. If the file ends in the range,
    /// everything that was written is on the device before.
    ///
    /// # Errors
    /// Dirty bytes there cannot be written back for lack of space.
    pub fn hold_to_change(&self, range: Range<u64>) -> FileResult<HeldToChange<'_, M>, M> {
        let range = self.pages.pages_around(&range);
        if self.pages.is_dirty() {
            // Then mostly nothing is left to do once the range is held. Failures are reported to everybody who syncs.
            let _told_when_synced = self.write_back(0..u64::MAX);
        }
        point(CHANGE);
        let held = self.file.lock().hold(range.clone(), Mode::Exclusive);
        if let Ok(held) = self.settled(range, held) {
            return Ok(held);
        }
        let all = 0..u64::MAX;
        let held = self.file.lock().hold(all.clone(), Mode::Exclusive);
        // Writing back a part may take more space than all of it, so try again.
        let _shows_there = self.write_back_held(all.clone());
        self.settled(all, held).map_err(FileError::WriteBack)
    }

    /// The held bytes, if everything is as [`hold_to_change`](Self::hold_to_change) says; otherwise why it is not.
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
            // Write-back elsewhere would tell the map the file's old end after it has been cut.
            let _telling = self.telling.lock();
            self.is_end_held.store(true, Ordering::Release);
            self.map().ends_in_memory_at(None);
        }
        Ok(HeldToChange { file: self, range, size, holds_end, _held: held })
    }

    /// Ensures that nothing of `range` is dirty, which the caller holds so that nobody writes to it, and, if the range
    /// includes the end in memory, that the file ends there on the device. Otherwise returns why that is impossible.
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
            // What has failed for good is no longer dirty. It is reported to everybody who syncs.
            _ if is_settled() => Ok(()),
            Err(failure) => Err(failure),
            Ok(()) => Err(self.failures.last().unwrap_or_else(Failure::unknown)),
        }
    }

    /// Holds the blocks of a range, like [`hold_to_change`](Self::hold_to_change).
    pub(super) fn hold_blocks(&self, range: &Range<u64>) -> FileResult<HeldToChange<'_, M>, M> {
        self.hold_to_change(self.pages.blocks_around(range))
    }

    /// Holds a range from `from` to `end`, in whole blocks, in order to write there or to set the file's size to `end`.
    /// If the file ends before `end`, everything in between is held too, and blocks past its end that had data are
    /// freed. The caller zeroes the rest of its last block ([`zero_behind_end`](crate::DirectFile::zero_behind_end)).
    pub(super) fn hold_to_grow(&self, from: u64, end: u64) -> FileResult<HeldToChange<'_, M>, M> {
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
                // The file was cut meanwhile: what lies between its end and `from` is not held.
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

    /// Keeps requests on `range` out, or only writes to it if `changes` is not set, with nothing of it dirty. If the
    /// end is in the range, the file ends on the device where it ends in memory. `None` if waiting for others takes
    /// longer than `patience`.
    ///
    /// # Errors
    /// Dirty bytes there cannot be written back for lack of space; patience does not help.
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
        // The obstacle may lie elsewhere, and writing back a part may take more space than all of it.
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
        // Nothing changes, so no page has to be dropped, and the end stays.
        let size = self.map().size();
        Ok(HeldToChange::beside_end(self, 0..0, size, held))
    }

    /// Keeps everybody out who writes to the file or writes it back, once every write in progress has ended, with
    /// nothing dirty. `None` if that takes longer than `patience`. Also returns what could not be written back.
    /// Requests of a queue end when its thread has taken their completions. Readers go on, except for bytes that a
    /// writer waits for.
    pub fn hold_off_writers(&self, patience: Duration) -> Option<(HeldFile<M>, Result<(), Failure>)> {
        let file = self.this.upgrade()?;
        let token = self.file.acquire_from_writers(patience)?;
        let mut held = HeldFile { file, token: Some(token), alone: None };
        held.alone = Some(self.flushing.acquire(0..u64::MAX, Mode::Exclusive));
        let written = self.write_back_alone(0..u64::MAX);
        Some((held, written))
    }

    /// Ensures that nothing of the file is cached as long as the result lives. `None` if requests in progress take
    /// longer than `patience`.
    ///
    /// # Errors
    /// Those of [`hold_within`](Self::hold_within).
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

    /// A passer for a moment, if nothing is cached.
    pub(super) fn pass_by_now(&self) -> Option<Passing<'_, M>> {
        let mut passers = self.passers.lock();
        if self.is_cached() {
            return None;
        }
        *passers += 1;
        Some(Passing(self))
    }

    /// Overwrites bytes at byte `offset`, bypassing the pages, like
    /// [`DirectFile::overwrite_at`](crate::DirectFile::overwrite_at).
    pub fn overwrite_past(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        self.overwrite_past_or(offset, buf, |_| Ok(None))
    }

    /// The same. If something of the range is unwritten, `write` is asked to do it with what is held, in this mode, and
    /// returns whether it has.
    #[inline]
    fn overwrite_past_or(
        &self,
        offset: u64,
        buf: &[u8],
        write: impl FnOnce(Mode) -> FileResult<Option<usize>, M>,
    ) -> FileResult<usize, M> {
        let Some((range, mode)) = self.file.write_range(offset, buf.len())? else { return Ok(0) };
        let prefetched = self.file.prefetch(offset, true);
        point(CHANGE);
        let held = self.file.lock().hold(range, mode);
        if self.is_cached() {
            drop(held);
            return self.overwrite_cached(offset, buf);
        }
        match self.file.overwrite_held(offset, buf, prefetched) {
            Ok(_) => {
                self.map().overwritten();
                drop(held);
                point(OVERWRITTEN);
                Ok(buf.len())
            }
            Err(error) => {
                if is_unwritten(&error)
                    && let Some(written) = write(mode)?
                {
                    return Ok(written);
                }
                drop(held);
                self.overwrite_elsewhere(error, offset, buf)
            }
        }
    }

    /// Like [`overwrite_past`](Self::overwrite_past), but durable on return without a flush. Returns `false`, with
    /// nothing written, if the device has no [durable writes](blockdev::BlockDevice::has_fua), or if the write is not
    /// whole sectors of one extent that only this file has.
    pub fn overwrite_durably(&self, offset: u64, buf: &[u8]) -> FileResult<bool, M> {
        let Some(end) = self.checked_end(offset, buf.len())? else { return Ok(true) };
        if !self.file.device().has_fua() || (offset | end) & self.file.sector_mask() != 0 {
            return Ok(false);
        }
        let Some((range, mode)) = self.file.write_range(offset, buf.len())? else { return Ok(true) };
        point(CHANGE);
        let held = self.file.lock().hold(range, mode);
        if self.is_cached() {
            drop(held);
            let _held = self.hold_to_change(offset..end)?;
            return self.overwrite_durably_held(offset, buf);
        }
        let is_written = self.overwrite_durably_held(offset, buf)?;
        drop(held);
        point(OVERWRITTEN);
        Ok(is_written)
    }

    /// The same for bytes that the caller holds.
    fn overwrite_durably_held(&self, offset: u64, buf: &[u8]) -> FileResult<bool, M> {
        let is_written = self.file.overwrite_held_durably(offset, buf)?;
        if is_written {
            // While the bytes are held: a close waits for these, and logs what is noted.
            self.map().overwritten();
        }
        Ok(is_written)
    }

    #[cold]
    fn overwrite_elsewhere(
        &self,
        error: FileError<M::Error>,
        offset: u64,
        buf: &[u8],
    ) -> FileResult<usize, M> {
        if !self.file.can_copy(&error) {
            return Err(error);
        }
        match self.pass_by_now() {
            Some(_passing) => self.file.overwrite_at(offset, buf),
            None => self.overwrite_cached(offset, buf),
        }
    }

    #[cold]
    fn overwrite_cached(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        let _held = self.hold_to_change(offset..offset + buf.len() as u64)?;
        match self.file.overwrite_held(offset, buf, None) {
            Err(error) if self.file.can_copy(&error) => self.file.copy_held(offset, buf)?,
            written => drop(written?),
        }
        self.map().overwritten();
        Ok(buf.len())
    }

    /// Writes `buf` at any byte `offset`, bypassing the pages, like
    /// [`DirectFile::write_at`](crate::DirectFile::write_at).
    pub fn write_past(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        self.with_room(|| self.try_write_past(offset, buf))
    }

    pub(super) fn try_write_past(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
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
            // The file may have been cut meanwhile.
            if held.size() >= size.min(end) {
                return self.file.write_while_held(offset, buf);
            }
        }
    }

    /// Appends to the file, bypassing the pages. Returns the byte where it begins, like [`append`](Self::append).
    pub fn append_past(&self, buf: &[u8]) -> FileResult<u64, M> {
        self.extend_past(Begins::AtEnd, 0, buf).map(Option::unwrap_or_default)
    }

    /// Like [`write_behind_end`](Self::write_behind_end), bypassing the pages.
    pub fn write_past_behind_end(&self, offset: u64, buf: &[u8]) -> FileResult<bool, M> {
        self.extend_past(Begins::AtEndOrBehind, offset, buf).map(|at| at.is_some())
    }

    /// Returns the byte where it begins; `None` if it may not.
    pub(super) fn extend_past(&self, begins: Begins, offset: u64, buf: &[u8]) -> FileResult<Option<u64>, M> {
        let _alone = self.ends.lock();
        loop {
            let Some(at) = begins.place(offset, self.size()) else { return Ok(None) };
            if self.checked_end(at, buf.len())?.is_none() {
                return Ok(Some(at));
            }
            let written = self.with_room(|| match self.pass_by_now() {
                Some(_passing) => self.file.extend_if(begins, at, buf),
                None => self.extend_cached(begins, at, buf),
            })?;
            if written.is_some() {
                return Ok(Some(at));
            }
        }
    }

    fn extend_cached(&self, begins: Begins, offset: u64, buf: &[u8]) -> FileResult<Option<usize>, M> {
        let first = offset.min(self.size()) & !(u64::from(self.map().block_size()) - 1);
        let held = self.hold_to_change(first..u64::MAX)?;
        // The file may have been cut meanwhile, to before what is held.
        if held.size() < first || !begins.may_be(offset, held.size()) {
            return Ok(None);
        }
        self.file.write_while_held(offset, buf).map(Some)
    }

    /// Like [`DirectFile::append_at`](crate::DirectFile::append_at), bypassing the pages.
    pub fn fill_past(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        self.with_room(|| match self.pass_by_now() {
            Some(_passing) => self.file.append_at(offset, buf),
            None => self.try_write_past(offset, buf),
        })
    }

    /// What failed to be written back since the cursor was last used.
    pub fn failed_since(&self, cursor: &SyncCursor) -> Option<Failure> {
        self.failures.tell(cursor)
    }
}

/// A passer. It ends when dropped.
pub(super) struct Passing<'a, M: DelayedAllocation + 'static>(&'a BufferedFile<M>);

impl<M: DelayedAllocation + 'static> Drop for Passing<'_, M> {
    fn drop(&mut self) {
        *self.0.passers.lock() -= 1;
    }
}
