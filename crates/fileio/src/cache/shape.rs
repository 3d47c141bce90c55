//! Changes of a file's shape: its size, and which of its bytes have space. What each operation holds, what it zeroes
//! and in which order is defined once, here. A format provides the steps ([`FileSpace`]).
//!
//! Invariants:
//! - what must read as zeroes is on the device as zeroes before the end of the file moves over it;
//! - what may run out of space comes before anything that cannot be undone: a refused change has changed nothing;
//! - moved blocks are permanently in the log at their new place before anybody may write to them in place.
//!
//! What the caller knows of the file, and the bytes do not say (who may change it, when a change is durable), is up to
//! the caller.

use std::ops::Range;

use super::buffered::BufferedFile;
use super::coherence::HeldToChange;
use crate::direct::{FILE_END_MAX, FileResult, HeldCopies};
use crate::{FileError, FileSpace, Refusal};

/// What is set aside to zero both ends of a range, if others share them.
type EndChange<'a, M> = [Option<HeldCopies<'a, M>>; 2];

impl<M: FileSpace + 'static> BufferedFile<M> {
    /// Sets the file's size to `size`. If it grows, there is a hole after its old end.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn set_len(&self, size: u64) -> FileResult<(), M> {
        check_end(size)?;
        // Which of the two it is turns out when the end is held.
        while !(self.cut(size)? || self.lengthen(size)?) {}
        Ok(())
    }

    /// Cuts the file to `size`, unless it is shorter.
    fn cut(&self, size: u64) -> FileResult<bool, M> {
        let held = self.hold_to_cut(size)?;
        self.content_changes(size)?;
        // Use the size from when it was held: a write that extends the file to end exactly there holds nothing of what
        // is held here.
        let is_longer = size <= held.size();
        if is_longer {
            // What lies behind it is dropped, shared or not.
            self.file().zero_behind_end(size, u64::MAX)?;
            step(size, self.map().cut(size))?;
            held.was_cut();
        }
        Ok(is_longer)
    }

    /// Extends the file to `size`, unless it is longer.
    fn lengthen(&self, size: u64) -> FileResult<bool, M> {
        let held = self.hold_to_grow(size, size)?;
        let is_shorter = held.size() < size;
        if is_shorter {
            self.file().zero_behind_end(held.size(), u64::MAX)?;
            step(size, self.map().set_size(size))?;
        }
        Ok(is_shorter)
    }

    /// Preallocates space for `range`. Where nothing was before, it reads as zeroes. The file grows to the range's end,
    /// unless `keep_size`.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn allocate(&self, range: Range<u64>, keep_size: bool) -> FileResult<(), M> {
        check_end(range.end)?;
        let (held, grown) = self.hold_for(&range, keep_size)?;
        // No lookup in the map checks this.
        step(range.start, self.map().check_changeable())?;
        let _staged = self.stage_end(&held, grown)?;
        // What may run out of space comes first.
        step(range.start, self.map().set_aside(self.file().blocks_around(range.clone())))?;
        self.zero_end(&held, grown)?;
        self.map().overwritten();
        step(range.start, self.map().was_set_aside(grown))
    }

    /// Makes `range` a hole: its space is freed, and it reads as zeroes.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn punch_hole(&self, range: Range<u64>) -> FileResult<(), M> {
        check_end(range.end)?;
        let _held = self.hold_blocks(&range)?;
        self.content_changes(range.start)?;
        let _staged = self.stage_ends(&range)?;
        self.in_parts(&range, |blocks| self.map().free(blocks))
    }

    /// Makes `range` read as zeroes and keeps space preallocated for it. The file grows to the range's end, unless
    /// `keep_size`.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn zero_range(&self, range: Range<u64>, keep_size: bool) -> FileResult<(), M> {
        check_end(range.end)?;
        let (held, grown) = self.hold_for(&range, keep_size)?;
        let _staged = (self.stage_ends(&range)?, self.stage_end(&held, grown)?);
        step(range.start, self.map().check_pieces())?;
        // Space first: without it, the content stays.
        let given = step(range.start, self.map().set_aside(self.file().blocks_around(range.clone())))?;
        if let Err(error) = self.in_parts(&range, |blocks| self.map().blank(blocks)) {
            if is_refusal::<M>(&error) {
                step(range.start, self.map().take_back(given))?;
            }
            return Err(error);
        }
        self.zero_end(&held, grown)?;
        step(range.start, self.map().was_set_aside(grown))
    }

    /// Cuts `range`, whole blocks before the end of the file, out of it: everything behind moves forward, one extent
    /// after the other. A crash in between leaves some moved and some not, with a hole in between, as in a kernel.
    ///
    /// # Errors
    /// [`FileError::ReachesEnd`].
    pub fn collapse_range(&self, range: Range<u64>) -> FileResult<(), M> {
        debug_assert_eq!(self.file().blocks_around(range.clone()), range, "whole blocks");
        let _held = self.hold_to_change(range.start..u64::MAX)?;
        self.content_changes(range.start)?;
        let size = self.size_to_change(range.start)?;
        if range.end >= size {
            return Err(FileError::ReachesEnd);
        }
        step(range.start, self.map().check_pieces())?;
        self.nothing_behind(size)?;
        let end = size - (range.end - range.start);
        self.moved(range.start, self.map().collapse(range.clone(), end))
    }

    /// Inserts a hole of whole blocks into the file: everything from its start on moves back, one extent after the
    /// other. A crash in between leaves some moved and some not, with a hole in between, as in a kernel.
    ///
    /// # Errors
    /// [`FileError::BehindEnd`], [`FileError::TooLarge`].
    pub fn insert_range(&self, range: Range<u64>) -> FileResult<(), M> {
        debug_assert_eq!(self.file().blocks_around(range.clone()), range, "whole blocks");
        // Also the block before it: an extent that is changed there must not be merged with one that is about to move.
        let from = range.start.saturating_sub(self.map().block_size().into());
        let _held = self.hold_to_change(from..u64::MAX)?;
        self.content_changes(range.start)?;
        let size = self.size_to_change(range.start)?;
        if range.start >= size {
            return Err(FileError::BehindEnd);
        }
        let by = range.end - range.start;
        let grown = size.saturating_add(by);
        // Space that was preallocated past the end moves as well.
        if grown.max(self.map().space_end().saturating_add(by)) > FILE_END_MAX {
            return Err(FileError::TooLarge { offset: size, len: by });
        }
        step(range.start, self.map().check_pieces())?;
        self.nothing_behind(size)?;
        self.moved(range.start, self.map().insert(range.clone(), grown))
    }

    /// The size for a change at byte `offset`. Closing the volume ends files without a name, whose size is 0 then, so
    /// whether the volume is open is checked after reading the size.
    fn size_to_change(&self, offset: u64) -> FileResult<u64, M> {
        let size = self.size();
        step(offset, self.map().check_changeable())?;
        Ok(size)
    }

    /// Ensures that what lies past the end of the file, which is at `size` and held, reads as zeroes if it comes to lie
    /// before the end, now or after a crash.
    pub fn nothing_behind(&self, size: u64) -> FileResult<(), M> {
        let behind = size.next_multiple_of(self.map().block_size().into());
        // A shared block cannot be changed in place. Mostly that is not needed.
        if !self.file().is_zeroed(size..behind)? {
            self.file().zero_behind_end(size, behind)?;
        }
        step(size, self.map().free_behind_end())
    }

    /// Blocks have moved, some of them perhaps before an error. This must be durable before anybody may write to them:
    /// an in-place write is in no log, and after a power failure it would be found at the blocks' old place if the move
    /// was in no log either.
    fn moved(&self, offset: u64, done: Result<(), M::Error>) -> FileResult<(), M> {
        let durable = self.map().make_durable();
        step(offset, done.and(durable))
    }

    /// Holds the blocks of a range that gets space, and everything from the end of the file to it if it lies behind, so
    /// that the file can grow. Returns the size that the file will have.
    fn hold_for(
        &self,
        range: &Range<u64>,
        keep_size: bool,
    ) -> FileResult<(HeldToChange<'_, M>, Option<u64>), M> {
        if keep_size {
            let held = self.hold_blocks(range)?;
            self.content_changes(range.start)?;
            return Ok((held, None));
        }
        let held = self.hold_to_grow(range.start, range.end)?;
        let grown = (held.size() < range.end).then_some(range.end);
        Ok((held, grown))
    }

    /// Ensures that the last block of a file that is about to grow can be zeroed, as [`stage_ends`](Self::stage_ends)
    /// does for a range.
    fn stage_end(
        &self,
        held: &HeldToChange<'_, M>,
        grown: Option<u64>,
    ) -> FileResult<Option<HeldCopies<'_, M>>, M> {
        if grown.is_some() { self.file().stage_behind_end(held.size()) } else { Ok(None) }
    }

    /// Zeroes the rest of the last block of a file that is about to grow.
    fn zero_end(&self, held: &HeldToChange<'_, M>, grown: Option<u64>) -> FileResult<(), M> {
        if grown.is_some() { self.file().zero_behind_end(held.size(), u64::MAX) } else { Ok(()) }
    }

    /// Ensures that the partial blocks at both ends of a held range can be zeroed, as long as the result lives: if other
    /// files share them, space for a copy is set aside.
    fn stage_ends(&self, range: &Range<u64>) -> FileResult<EndChange<'_, M>, M> {
        match self.blocks_within(range) {
            None => Ok([self.file().stage_held(range.clone())?, None]),
            Some(blocks) => Ok([
                self.file().stage_held(range.start..blocks.start)?,
                self.file().stage_held(blocks.end..range.end)?,
            ]),
        }
    }

    /// Calls `whole` with the whole blocks of a held range, and zeroes the partial blocks at both ends.
    fn in_parts(
        &self,
        range: &Range<u64>,
        whole: impl FnOnce(Range<u64>) -> Result<(), M::Error>,
    ) -> FileResult<(), M> {
        let Some(blocks) = self.blocks_within(range) else {
            self.map().overwritten();
            // No whole block, but perhaps parts of two.
            return self.file().zero_held(range.clone());
        };
        // What may run out of space comes first.
        step(range.start, whole(blocks.clone()))?;
        // Even if only holes are cleared.
        self.map().overwritten();
        self.file().zero_held(range.start..blocks.start)?;
        self.file().zero_held(blocks.end..range.end)
    }

    /// The whole blocks of a range, if there are any.
    fn blocks_within(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let block = u64::from(self.map().block_size());
        let blocks = range.start.next_multiple_of(block)..range.end & !(block - 1);
        (!blocks.is_empty()).then_some(blocks)
    }
}

/// The result of a step of the format. `offset` is where the change begins.
fn step<T, E: std::error::Error>(offset: u64, done: Result<T, E>) -> Result<T, FileError<E>> {
    done.map_err(|source| FileError::Map { offset, source })
}

fn check_end<E: std::error::Error>(end: u64) -> Result<(), FileError<E>> {
    if end <= FILE_END_MAX { Ok(()) } else { Err(FileError::TooLarge { offset: 0, len: end }) }
}

/// Whether a step was refused before anything was done.
fn is_refusal<M: FileSpace>(error: &FileError<M::Error>) -> bool {
    match error {
        FileError::Map { source, .. } => M::is_refusal(source),
        FileError::NotOverwritable { why, .. } => *why == Refusal::Shared,
        FileError::TooLarge { .. } => true,
        _ => false,
    }
}
