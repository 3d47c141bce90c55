//! Writes that an overwrite is not: into holes, into space that was never written, behind the end of the file.
//!
//! Invariants:
//! - space is allocated as never written, and said to hold data only when it does: whatever fails in between, a reader
//!   sees zeroes or what was there, never what some other file left;
//! - a block that gets its first bytes is written whole, the rest of it zeroes;
//! - all that a write is about is looked at before anything of it changes: one that reaches shared blocks changes nothing;
//! - the rest of the file's last block is zeroed before the file reaches behind it.

use std::ops::Range;

use blockdev::{AlignedBuf, DeviceError};
use rangelock::Mode;

use super::run::{Kind, Run};
use super::{DirectFile, FILE_END_MAX, Outcome};
use crate::{ExtentState, FileError, FileMappingMut, Refusal};

/// Bytes that are copied at once where blocks are filled up with zeroes.
const COPY_BYTES: usize = 1 << 20;

impl<M: FileMappingMut> DirectFile<M> {
    /// Writes `buf` at byte `offset`, wherever that is: over data, into a hole, behind the end of the file, which then
    /// grows; gives the number of bytes, which is all of them.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        match self.overwrite_at(offset, buf) {
            Err(FileError::NotOverwritable { why, .. }) if why != Refusal::Shared => {
                self.write_new(offset, buf)
            }
            other => other,
        }
    }

    /// As [`write_at`](Self::write_at), in one step with the space for it where `offset` is a whole block at or behind
    /// the end of the file, whose times then stay as they are.
    pub fn append_at(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        let block = u64::from(self.map().block_size());
        let (size, end) = (self.map().size(), offset.saturating_add(buf.len() as u64));
        let behind = size.next_multiple_of(block) <= offset && offset.is_multiple_of(block);
        if !behind || buf.is_empty() || end > FILE_END_MAX & !(block - 1) {
            return self.write_at(offset, buf);
        }
        let blocks = offset..end.next_multiple_of(block);
        let held = self.lock().hold(size & !(block - 1)..blocks.end, Mode::Exclusive);
        let found = self.map().lookup(offset).map_err(|source| FileError::Map { offset, source })?;
        let first = found.extent;
        let is_hole =
            first.state == ExtentState::Hole && first.offset.saturating_add(first.len) >= blocks.end;
        if found.size != size || !is_hole {
            // Somebody else was faster, or space was set aside.
            drop(held);
            return self.write_at(offset, buf);
        }
        self.zero_held(size..size.next_multiple_of(block))?;
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

    /// Fails if any of `range`, which the caller holds, lies on blocks that other files share. Who is about to change
    /// several things asks this of all of them before the first.
    pub fn check_unshared(&self, range: Range<u64>) -> Outcome<(), M> {
        let mut at = range.start;
        while at < range.end {
            let run = self.run_at(at)?;
            if run.kind == Kind::SharedData {
                run.check_overwritable(at)?;
            }
            at += run.len.min(range.end - at);
        }
        Ok(())
    }

    /// Writes zeroes over the part of `range` that holds data. The caller holds it exclusively. Blocks that other files
    /// share are refused before the first is written.
    pub fn zero_held(&self, range: Range<u64>) -> Outcome<(), M> {
        self.check_unshared(range.clone())?;
        let mut at = range.start;
        while at < range.end {
            let run = self.run_at(at)?;
            let len = run.len.min(range.end - at);
            if run.kind == Kind::Data {
                self.write_zeroes(run.device, len)?;
            }
            at += len;
        }
        Ok(())
    }

    fn write_new(&self, offset: u64, buf: &[u8]) -> Outcome<usize, M> {
        if buf.is_empty() {
            return Ok(0);
        }
        let block = u64::from(self.map().block_size());
        let end = match offset.checked_add(buf.len() as u64) {
            // The last block of the largest file is not all of it.
            Some(end) if end <= FILE_END_MAX & !(block - 1) => end,
            _ => return Err(FileError::NotOverwritable { offset, why: Refusal::PastEnd }),
        };
        loop {
            let size = self.map().size();
            let first = offset.min(size) & !(block - 1);
            let blocks = offset & !(block - 1)..end.next_multiple_of(block);
            let _held = self.lock().hold(first..blocks.end, Mode::Exclusive);
            let size_now = self.map().size();
            if size_now < size {
                // It was cut meanwhile: what lies between its end and ours is not held.
                continue;
            }
            self.check_unshared(blocks.clone())?;
            if offset > size_now {
                let rest = size_now..size_now.next_multiple_of(block).min(offset);
                self.zero_held(rest)?;
            }
            self.map().allocate(blocks.clone()).map_err(|source| FileError::Map { offset, source })?;
            self.write_blocks(offset, buf, blocks.clone())?;
            let grown = (end > size_now).then_some(end);
            self.map().written(blocks, grown).map_err(|source| FileError::Map { offset, source })?;
            return Ok(buf.len());
        }
    }

    /// Writes `buf` into blocks that all have space now; those that never held data are written whole.
    fn write_blocks(&self, offset: u64, buf: &[u8], blocks: Range<u64>) -> Outcome<(), M> {
        let end = offset + buf.len() as u64;
        let mut at = blocks.start;
        while at < blocks.end {
            let (run, fresh) = self.run_for_write(at)?;
            let len = run.len.min(blocks.end - at);
            let (from, to) = (at.max(offset), (at + len).min(end));
            if from < to {
                let data = &buf[(from - offset) as usize..(to - offset) as usize];
                let device = run.device + (from - at);
                match fresh && (from > at || to < at + len) {
                    true => self.write_padded(run.device, len, (from - at) as usize, data)?,
                    false => self.write_device(device, data)?,
                }
            }
            at += len;
        }
        Ok(())
    }

    /// The run at a block that has space, and whether it never held data. A run that never did is cut so that the
    /// padding of its first and last block does not touch what lies between.
    fn run_for_write(&self, at: u64) -> Outcome<(Run, bool), M> {
        let run = self.run_anywhere(at)?;
        match run.kind {
            Kind::Data => Ok((run, false)),
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
