//! Writes that an overwrite is not: into holes, into space that was never written, past the end of the file.
//!
//! Invariants:
//! - space is allocated as never written, and said to hold data only when it does: whatever fails in between, a reader
//!   sees zeroes or what was there, never what some other file left;
//! - a block that gets its first bytes is written whole, the rest of it zeroes;
//! - space for all of a write, holes and copies of shared blocks, is there before anything of it changes;
//! - whoever moves the end of the file holds the block that it lies in, exclusively, and decides by the size that the
//!   file has then: it does not move meanwhile;
//! - before the file reaches after its last block, the rest of that is zeroed, and blocks behind it that hold data are
//!   freed: what was cut off does not come back.

use std::ops::Range;

use blockdev::{AlignedBuf, DeviceError};
use rangelock::Mode;

use super::copy::HeldCopies;
use super::run::{Kind, MappedRun};
use super::{DirectFile, FILE_END_MAX, FileResult};
use crate::lock::Held;
use crate::testing::{CHANGE, HOLD, point};
use crate::{ExtentState, FileError, FileMappingMut, Refusal};

/// Bytes that are copied at once where blocks are filled up with zeroes.
const COPY_BYTES: usize = 1 << 20;

/// Where a write that makes the file longer may begin, by the size that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// Also before the end.
    Anywhere,
    AtEnd,
    /// At the end, or behind it: what is there stays.
    AtEndOrBehind,
}

impl Begins {
    /// Where it begins in a file of this size if `offset` is asked for; `None` if it may not.
    pub(crate) fn place(self, offset: u64, size: u64) -> Option<u64> {
        match self {
            Self::AtEnd => Some(size),
            _ => self.may_be(offset, size).then_some(offset),
        }
    }

    /// Whether it may begin at byte `offset` of a file of this size.
    pub(crate) fn may_be(self, offset: u64, size: u64) -> bool {
        match self {
            Self::Anywhere => true,
            Self::AtEnd => offset == size,
            Self::AtEndOrBehind => offset >= size,
        }
    }
}

/// A part of a file that is held by somebody who may move the file's end. Dropping it lets go.
#[derive(Debug)]
pub(crate) struct HeldEnd<'a> {
    _held: Held<'a>,
    size: u64,
}

impl HeldEnd<'_> {
    /// The size of the file. If its end lies before that of the range, it stays there as long as the range is held.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl<M: FileMappingMut> DirectFile<M> {
    /// Writes `buf` at byte `offset`, wherever that is: over data, into a hole, past the end of the file, which then
    /// grows; gives the number of bytes, which is all of them.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        if offset.saturating_add(buf.len() as u64) > self.map().size() {
            return self.write_new(offset, buf);
        }
        match self.overwrite_or(offset, buf, |mode| self.write_in_hold(offset, buf, mode)) {
            Err(FileError::NotOverwritable { .. }) => self.write_new(offset, buf),
            other => other,
        }
    }

    /// A write to where something was never written, if it needs no more than who overwrites holds, in this mode: whole blocks
    /// before the end of the file, exclusively. Else `None`, and nothing is written.
    pub(crate) fn write_in_hold(&self, offset: u64, buf: &[u8], mode: Mode) -> FileResult<Option<usize>, M> {
        let (block, end) = (u64::from(self.map().block_size()), offset + buf.len() as u64);
        // The end stays behind bytes that are held.
        let size = self.map().size();
        if mode != Mode::Exclusive || (offset | end) & (block - 1) != 0 || end > size {
            return Ok(None);
        }
        self.map().content_changes().map_err(|source| FileError::Map { offset, source })?;
        self.write_from_end(offset, buf, size)?;
        Ok(Some(buf.len()))
    }

    /// As [`write_at`](Self::write_at), in one step with the space for it where `offset` is a whole block at or behind
    /// the end of the file, whose times then stay as they are.
    pub fn append_at(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        let block = u64::from(self.map().block_size());
        let (size, end) = (self.map().size(), offset.saturating_add(buf.len() as u64));
        let behind = size.next_multiple_of(block) <= offset && offset.is_multiple_of(block);
        if !behind || buf.is_empty() || end > FILE_END_MAX {
            return self.write_at(offset, buf);
        }
        let blocks = offset..end.next_multiple_of(block);
        let held = self.hold_to_grow(offset, end)?;
        let size = held.size();
        let found = self.map().lookup(offset).map_err(|source| FileError::Map { offset, source })?;
        let first = found.extent;
        let is_hole =
            first.state == ExtentState::Hole && first.offset.saturating_add(first.len) >= blocks.end;
        let last = size & !(block - 1)..size.next_multiple_of(block);
        if last.end > offset || !is_hole || self.is_shared(last)? {
            // Somebody else was faster, or space was set aside, or the last block is to be copied first.
            drop(held);
            return self.write_at(offset, buf);
        }
        self.zero_behind_end(size, offset)?;
        let mut write = |at: u64, device: u64, len: u64| {
            let from = (at - offset) as usize;
            let data = &buf[from..buf.len().min(from + len as usize)];
            match data.len() as u64 == len {
                true => self.write_device(device, data),
                false => self.write_padded(device, len, 0, data),
            }
        };
        let filled = self.map().fill(blocks, end, &mut write);
        filled.map_err(|source| FileError::Map { offset, source })?;
        Ok(buf.len())
    }

    /// Whether all of `range`, which the caller holds and which is less than a block, is zeroes, wherever the file ends.
    pub(crate) fn is_zeroed(&self, range: Range<u64>) -> FileResult<bool, M> {
        if range.is_empty() {
            return Ok(true);
        }
        let run = self.run_to_read(range.start)?;
        if matches!(run.kind, Kind::Zeroes(_)) {
            return Ok(true);
        }
        let mut bytes = vec![0; run.take((range.end - range.start) as usize)];
        self.read_device(run.device, &mut bytes)?;
        Ok(bytes.iter().all(|&byte| byte == 0))
    }

    /// Writes zeroes over the part of `range` that holds data. The caller holds it exclusively, in whole blocks. What is
    /// [staged](Self::stage_held) already needs no space.
    pub(crate) fn zero_held(&self, range: Range<u64>) -> FileResult<(), M> {
        let staged = self.stage_held(range.clone())?;
        let mut at = range.start;
        while at < range.end {
            let run = self.run_at(at)?;
            let mut len = run.len.min(range.end - at);
            match run.kind {
                Kind::Data => self.write_zeroes(run.device, len)?,
                Kind::SharedData => {
                    len = len.min(COPY_BYTES as u64);
                    self.write_copies(at, run, &vec![0; len as usize])?;
                }
                Kind::Zeroes(_) => {}
            }
            at += len;
        }
        // All of it at once: a part by itself would be a claim of its own, which needs space.
        staged.map_or(Ok(()), HeldCopies::take)
    }

    /// Holds a range from `from` to `end`, in whole blocks, to write there or to let the file end at `end`. Where the
    /// file ends before `end`, that much of it is held too as lies between; blocks past its end that held data are
    /// gone. The rest of its last block is the caller's to zero ([`zero_behind_end`](Self::zero_behind_end)).
    pub(crate) fn hold_to_grow(&self, from: u64, end: u64) -> FileResult<HeldEnd<'_>, M> {
        let block = u64::from(self.map().block_size());
        let to = end.next_multiple_of(block);
        let map = |source| FileError::Map { offset: from, source };
        loop {
            let size = self.map().size();
            let first = from.min(size) & !(block - 1);
            // Its extents may reach anywhere.
            let all = end > size && self.map().data_behind_end(to).map_err(map)?;
            point(HOLD);
            point(CHANGE);
            let held =
                self.lock().hold(first..if all { u64::MAX } else { to.max(first + block) }, Mode::Exclusive);
            let size = self.map().size();
            if size < first {
                // It was cut meanwhile: what lies between its end and `from` is not held.
                continue;
            }
            if end > size && self.map().data_behind_end(to).map_err(map)? {
                if !all {
                    continue;
                }
                self.map().free_behind_end().map_err(map)?;
            }
            self.map().content_changes().map_err(map)?;
            return Ok(HeldEnd { _held: held, size });
        }
    }

    /// Writes zeroes over the rest of the last block of a file that ends at `size`, as far as `to`. The caller holds it
    /// exclusively. Where others share the block and it has zeroes there already, it stays shared: that needs no space.
    pub fn zero_behind_end(&self, size: u64, to: u64) -> FileResult<(), M> {
        let rest = size..size.next_multiple_of(self.map().block_size().into()).min(to);
        if self.is_shared_and_zeroed(&rest)? { Ok(()) } else { self.zero_held(rest) }
    }

    /// Sets space aside for [`zero_behind_end`](Self::zero_behind_end), as far as it needs any.
    pub(crate) fn stage_behind_end(&self, size: u64) -> FileResult<Option<HeldCopies<'_, M>>, M> {
        let rest = size..size.next_multiple_of(self.map().block_size().into());
        if self.is_shared_and_zeroed(&rest)? { Ok(None) } else { self.stage_held(rest) }
    }

    fn is_shared_and_zeroed(&self, rest: &Range<u64>) -> FileResult<bool, M> {
        Ok(self.is_shared(rest.clone())? && self.is_zeroed(rest.clone())?)
    }

    /// As [`write_at`](Self::write_at), by who knows that it is no overwrite, or takes it for none.
    pub(crate) fn write_new(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        if buf.is_empty() {
            return Ok(0);
        }
        let end = match offset.checked_add(buf.len() as u64) {
            // The largest file has all of the last block except a byte.
            Some(end) if end <= FILE_END_MAX => end,
            _ => return Err(FileError::TooLarge { offset, len: buf.len() as u64 }),
        };
        let held = self.hold_to_grow(offset, end)?;
        self.write_from_end(offset, buf, held.size())?;
        Ok(buf.len())
    }

    /// Writes `buf` at byte `offset` if a write that `begins` so may begin there; `None` if not.
    pub(crate) fn extend_if(&self, begins: Begins, offset: u64, buf: &[u8]) -> FileResult<Option<usize>, M> {
        let held = self.hold_to_grow(offset, offset + buf.len() as u64)?;
        if !begins.may_be(offset, held.size()) {
            return Ok(None);
        }
        self.write_from_end(offset, buf, held.size())?;
        Ok(Some(buf.len()))
    }

    /// A write to bytes that the caller holds exclusively, in whole blocks, and from the end of the file on, wherever blocks
    /// lie behind it, if that is before the end of the write.
    pub(crate) fn write_while_held(&self, offset: u64, buf: &[u8]) -> FileResult<usize, M> {
        match self.overwrite_held(offset, buf, None) {
            Err(FileError::NotOverwritable { .. }) => {}
            written => {
                let len = written?;
                self.map().overwritten();
                return Ok(len);
            }
        }
        let end = offset + buf.len() as u64;
        let map = |source| FileError::Map { offset, source };
        if end > self.map().size() && self.map().data_behind_end(end).map_err(map)? {
            self.map().free_behind_end().map_err(map)?;
        }
        self.map().content_changes().map_err(map)?;
        self.write_from_end(offset, buf, self.map().size())?;
        Ok(buf.len())
    }

    /// A write to blocks that are held from the old end on, of a file that ends at `size`, whose last block is zeroed if
    /// there is a gap.
    fn write_from_end(&self, offset: u64, buf: &[u8], size: u64) -> FileResult<(), M> {
        let block = u64::from(self.map().block_size());
        let is_gap = offset > size;
        let last = size & !(block - 1)..size.next_multiple_of(block);
        if is_gap && offset < last.end && self.is_shared(last.clone())? {
            // One copy of the last block, with zeroes and data.
            let mut both = vec![0; (offset - size) as usize];
            both.extend_from_slice(buf);
            self.write_held(size, &both, size)
        } else {
            // Should there be too little space for the rest, the last block stays where it is.
            let _staged = if is_gap { self.stage_behind_end(size)? } else { None };
            self.write_held(offset, buf, size)
        }
    }

    /// A write to blocks that are held from the old end on, of a file that ends at `size`.
    fn write_held(&self, offset: u64, buf: &[u8], size: u64) -> FileResult<(), M> {
        let block = u64::from(self.map().block_size());
        let end = offset + buf.len() as u64;
        let blocks = offset & !(block - 1)..end.next_multiple_of(block);
        let is_gap_in_block = size > blocks.start && size < offset;
        if is_gap_in_block {
            self.zero_behind_end(size, offset)?;
        }
        self.map().allocate(blocks.clone()).map_err(|source| FileError::Map { offset, source })?;
        let claim = self.claim(blocks.clone());
        if size < offset && !is_gap_in_block {
            self.zero_behind_end(size, offset)?;
        }
        let grown = (end > size).then_some(end);
        let written = self.write_blocks(offset, buf, blocks.clone());
        let told = written.and_then(|()| {
            self.map().written(blocks, grown).map_err(|source| FileError::Map { offset, source })
        });
        told.inspect_err(|_| self.failed_midway())?;
        claim.was_taken();
        Ok(())
    }

    /// Writes `buf` into blocks that all have space now; those that never held data are written whole.
    fn write_blocks(&self, offset: u64, buf: &[u8], blocks: Range<u64>) -> FileResult<(), M> {
        let end = offset + buf.len() as u64;
        let mut at = blocks.start;
        while at < blocks.end {
            let (run, fresh) = self.run_for_write(at)?;
            let len = run.len.min(blocks.end - at);
            let (from, to) = (at.max(offset), (at + len).min(end));
            if from < to {
                let data = &buf[(from - offset) as usize..(to - offset) as usize];
                let device = run.device + (from - at);
                match (run.kind, fresh && (from > at || to < at + len)) {
                    (Kind::SharedData, _) => self.write_copies(from, MappedRun { device, ..run }, data)?,
                    (_, true) => self.write_padded(run.device, len, (from - at) as usize, data)?,
                    (_, false) => self.write_device(device, data)?,
                }
            }
            at += len;
        }
        Ok(())
    }

    /// The run at a block that has space, and whether it never held data. A run that never did is cut so that the
    /// padding of its first and last block does not touch what lies between.
    pub(crate) fn run_for_write(&self, at: u64) -> FileResult<(MappedRun, bool), M> {
        let run = self.run_anywhere(at)?;
        match run.kind {
            Kind::Data | Kind::SharedData => Ok((run, false)),
            Kind::Zeroes(Refusal::Unwritten) => Ok((run, true)),
            _ => {
                run.check_overwritable(at)?;
                Ok((run, false))
            }
        }
    }

    /// Writes `data` at byte `skip` of `len` bytes of the device, with zeroes around it.
    fn write_padded(&self, device: u64, len: u64, skip: usize, data: &[u8]) -> Result<(), DeviceError> {
        let block = u64::from(self.map().block_size());
        let (start, end) = (skip as u64, skip as u64 + data.len() as u64);
        let mut at = 0;
        while at < len {
            let inside = at >= start && at < end;
            // Whole blocks of data go as they are; the first and the last may need zeroes.
            let whole = end.saturating_sub(at) / block * block;
            if inside && whole > 0 {
                self.write_device(device + at, &data[(at - start) as usize..(at - start + whole) as usize])?;
                at += whole;
                continue;
            }
            if at + block <= start || at >= end {
                // Blocks of a preallocated run that this write does not touch: they stay unwritten. The caller's range
                // has none, as it is rounded to blocks.
                at += block;
                continue;
            }
            let mut padded = AlignedBuf::zeroed(block as usize);
            let (from, to) = (start.max(at), end.min(at + block));
            padded[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&data[(from - start) as usize..(to - start) as usize]);
            self.write_device(device + at, &padded)?;
            at += block;
        }
        Ok(())
    }

    fn write_zeroes(&self, device: u64, len: u64) -> Result<(), DeviceError> {
        let zeroes = AlignedBuf::zeroed(COPY_BYTES.min(len.next_multiple_of(4096) as usize).max(4096));
        let mut at = 0;
        while at < len {
            let now = (len - at).min(zeroes.len() as u64);
            self.write_device(device + at, &zeroes[..now as usize])?;
            at += now;
        }
        Ok(())
    }
}
