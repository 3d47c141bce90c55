//! Changes of a file's shape: where it ends, and which of its bytes have space. Which range each holds, what it zeroes, and in
//! which order, stands here once; a format brings the steps ([`FileSpace`]).
//!
//! Invariants:
//! - what is to read as zeroes is on the device as zeroes before the end of the file moves over it;
//! - what may find no space comes before anything that cannot be taken back: a change that is refused has changed nothing;
//! - blocks that move are found where they are going in the log, for good, before anybody may write to them in place.
//!
//! What the caller knows of the file, and the bytes do not say (who may change it, when a change is durable), is the caller's.

use std::ops::Range;

use super::buffered::BufferedFile;
use super::coherence::HeldToChange;
use crate::direct::{FILE_END_MAX, HeldCopies, Outcome};
use crate::{FileError, FileSpace, Refusal};

/// What is set aside to zero both ends of a range, as far as others share them.
type Ends<'a, M> = [Option<HeldCopies<'a, M>>; 2];

impl<M: FileSpace + 'static> BufferedFile<M> {
    /// Cuts the file off at `size`, or lets it end there, with a hole behind its old end.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn set_len(&self, size: u64) -> Outcome<(), M> {
        check_end(size)?;
        // Which of the two it is shows when the end is held.
        while !(self.cut(size)? || self.lengthen(size)?) {}
        Ok(())
    }

    /// Lets the file end at `size`, unless it ends before.
    fn cut(&self, size: u64) -> Outcome<bool, M> {
        let held = self.hold_to_cut(size)?;
        self.content_changes(size)?;
        // Where it ended when it was held: who extends it to end just there holds nothing of what is held here.
        let is_longer = size <= held.size();
        if is_longer {
            // What lies behind it is given up, shared or not.
            self.file().zero_behind_end(size, u64::MAX)?;
            step(size, self.map().cut(size))?;
            held.was_cut();
        }
        Ok(is_longer)
    }

    /// Lets the file end at `size`, unless it reaches further.
    fn lengthen(&self, size: u64) -> Outcome<bool, M> {
        let held = self.hold_to_grow(size, size)?;
        let is_shorter = held.size() < size;
        if is_shorter {
            self.file().zero_behind_end(held.size(), u64::MAX)?;
            step(size, self.map().set_size(size))?;
        }
        Ok(is_shorter)
    }

    /// Sets space aside for `range`, which reads as zeroes where nothing was before. The file grows to its end, unless
    /// `keep_size`.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn allocate(&self, range: Range<u64>, keep_size: bool) -> Outcome<(), M> {
        check_end(range.end)?;
        let (held, grown) = self.hold_for(&range, keep_size)?;
        // No look at the map says it.
        step(range.start, self.map().check_changeable())?;
        let _staged = self.stage_end(&held, grown)?;
        // What may find no space comes first.
        step(range.start, self.map().set_aside(self.file().blocks_around(range.clone())))?;
        self.zero_end(&held, grown)?;
        self.map().overwritten();
        step(range.start, self.map().was_set_aside(grown))
    }

    /// Makes a hole of `range`: what it took is free, and it reads as zeroes.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn punch_hole(&self, range: Range<u64>) -> Outcome<(), M> {
        check_end(range.end)?;
        let _held = self.hold_blocks(&range)?;
        self.content_changes(range.start)?;
        let _staged = self.stage_ends(&range)?;
        self.in_parts(&range, |blocks| self.map().free(blocks))
    }

    /// Makes `range` read as zeroes and keeps space set aside for it. The file grows to its end, unless `keep_size`.
    ///
    /// # Errors
    /// [`FileError::TooLarge`].
    pub fn zero_range(&self, range: Range<u64>, keep_size: bool) -> Outcome<(), M> {
        check_end(range.end)?;
        let (held, grown) = self.hold_for(&range, keep_size)?;
        let _staged = (self.stage_ends(&range)?, self.stage_end(&held, grown)?);
        step(range.start, self.map().check_pieces())?;
        // Space first: where there is none, the content stays.
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

    /// Cuts `range`, whole blocks before the end of the file, out of it: what lies behind moves to the front, one extent after
    /// the other. A crash on the way leaves some moved and some not, with a hole between, as a kernel does.
    ///
    /// # Errors
    /// [`FileError::ReachesEnd`].
    pub fn collapse_range(&self, range: Range<u64>) -> Outcome<(), M> {
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

    /// Puts a hole of whole blocks into the file: what lies at and behind its start moves back, one extent after the other. A
    /// crash on the way leaves some moved and some not, with a hole between, as a kernel does.
    ///
    /// # Errors
    /// [`FileError::BehindEnd`], [`FileError::TooLarge`].
    pub fn insert_range(&self, range: Range<u64>) -> Outcome<(), M> {
        debug_assert_eq!(self.file().blocks_around(range.clone()), range, "whole blocks");
        // And the block before it: an extent that is changed there must not become one with what is about to move.
        let from = range.start.saturating_sub(self.map().block_size().into());
        let _held = self.hold_to_change(from..u64::MAX)?;
        self.content_changes(range.start)?;
        let size = self.size_to_change(range.start)?;
        if range.start >= size {
            return Err(FileError::BehindEnd);
        }
        let by = range.end - range.start;
        let grown = size.saturating_add(by);
        // Space that was set aside behind the end moves as well.
        if grown.max(self.map().space_end().saturating_add(by)) > FILE_END_MAX {
            return Err(FileError::TooLarge { offset: size, len: by });
        }
        step(range.start, self.map().check_pieces())?;
        self.nothing_behind(size)?;
        self.moved(range.start, self.map().insert(range.clone(), grown))
    }

    /// The size that a change at byte `offset` goes by. A close ends files without a name, whose size is 0 then: the look whether
    /// the volume is open comes behind it.
    fn size_to_change(&self, offset: u64) -> Outcome<u64, M> {
        let size = self.size();
        step(offset, self.map().check_changeable())?;
        Ok(size)
    }

    /// Sees to it that what lies behind the end of the file, at `size` and held, reads as zeroes should it come before
    /// the end, on the way or after a crash.
    pub fn nothing_behind(&self, size: u64) -> Outcome<(), M> {
        let behind = size.next_multiple_of(self.map().block_size().into());
        // Of a block that others have too, nothing can be changed; mostly nothing has to be.
        if !self.file().is_zeroed(size..behind)? {
            self.file().zero_behind_end(size, behind)?;
        }
        step(size, self.map().free_behind_end())
    }

    /// Blocks have moved, some of them perhaps before an error. That is durable before anybody may write to them: a write in
    /// place is in no log, and would be found where the blocks were before if that was not in one either when the power goes.
    fn moved(&self, offset: u64, done: Result<(), M::Error>) -> Outcome<(), M> {
        let durable = self.map().make_durable();
        step(offset, done.and(durable))
    }

    /// Holds the blocks of a range that gets space, and those from the end of the file to it if it lies behind, so that
    /// the file can grow; gives the size that it is to have then.
    fn hold_for(
        &self,
        range: &Range<u64>,
        keep_size: bool,
    ) -> Outcome<(HeldToChange<'_, M>, Option<u64>), M> {
        if keep_size {
            let held = self.hold_blocks(range)?;
            self.content_changes(range.start)?;
            return Ok((held, None));
        }
        let held = self.hold_to_grow(range.start, range.end)?;
        let grown = (held.size() < range.end).then_some(range.end);
        Ok((held, grown))
    }

    /// Sees to it that the last block of a file that is about to grow can be zeroed, as [`stage_ends`](Self::stage_ends) does
    /// of a range.
    fn stage_end(
        &self,
        held: &HeldToChange<'_, M>,
        grown: Option<u64>,
    ) -> Outcome<Option<HeldCopies<'_, M>>, M> {
        let size = held.size();
        match grown {
            Some(_) => self.file().stage_held(size..size.next_multiple_of(self.map().block_size().into())),
            None => Ok(None),
        }
    }

    /// Zeroes the rest of the last block of a file that is about to grow.
    fn zero_end(&self, held: &HeldToChange<'_, M>, grown: Option<u64>) -> Outcome<(), M> {
        if grown.is_some() { self.file().zero_behind_end(held.size(), u64::MAX) } else { Ok(()) }
    }

    /// Sees to it that the parts of blocks at either end of a range, which is held, can be zeroed, as long as what this gives
    /// lives: those that other files share get space to be copied to.
    fn stage_ends(&self, range: &Range<u64>) -> Outcome<Ends<'_, M>, M> {
        match self.blocks_within(range) {
            None => Ok([self.file().stage_held(range.clone())?, None]),
            Some(blocks) => Ok([
                self.file().stage_held(range.start..blocks.start)?,
                self.file().stage_held(blocks.end..range.end)?,
            ]),
        }
    }

    /// Does `whole` to the whole blocks of a range that is held, and zeroes the parts of blocks at both ends of it.
    fn in_parts(
        &self,
        range: &Range<u64>,
        whole: impl FnOnce(Range<u64>) -> Result<(), M::Error>,
    ) -> Outcome<(), M> {
        let Some(blocks) = self.blocks_within(range) else {
            self.map().overwritten();
            // No whole block, but perhaps the ends of two.
            return self.file().zero_held(range.clone());
        };
        // What may find no space comes first.
        step(range.start, whole(blocks.clone()))?;
        // Also where nothing but holes is cleared.
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

/// A step of the format's is over; `offset` is where the change begins.
fn step<T, E: std::error::Error>(offset: u64, done: Result<T, E>) -> Result<T, FileError<E>> {
    done.map_err(|source| FileError::Map { offset, source })
}

fn check_end<E: std::error::Error>(end: u64) -> Result<(), FileError<E>> {
    if end <= FILE_END_MAX { Ok(()) } else { Err(FileError::TooLarge { offset: 0, len: end }) }
}

/// Whether a step was refused before anything of it was done.
fn is_refusal<M: FileSpace>(error: &FileError<M::Error>) -> bool {
    match error {
        FileError::Map { source, .. } => M::is_refusal(source),
        FileError::NotOverwritable { why, .. } => *why == Refusal::Shared,
        FileError::TooLarge { .. } => true,
        _ => false,
    }
}
