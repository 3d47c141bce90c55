//! Writes to blocks that other files share: they go elsewhere.
//!
//! Invariants:
//! - the whole blocks are held, exclusively, from before the first look until what was written has taken the place of what
//!   was there;
//! - all that the write is about is looked at, and space for all of its copies is there, before anything is written;
//! - a block goes whole: what the write leaves of it is read from where it was;
//! - what fails on the way leaves in shared blocks what was there.

use std::ops::Range;

use blockdev::{AlignedBuf, DeviceError};
use rangelock::Mode;

use super::run::{Kind, MappedRun};
use super::{DirectFile, FileResult};
use crate::testing::{CHANGE, STAGED, point};
use crate::{CopyOnWrite, FileError, FileMapping, Refusal};

/// Space that is set aside for a change of what is shared: as long as this lives, nobody else gets it. However the change
/// ends, by a device that panics too, nothing is claimed behind it: the next to write there would have what this one left in
/// the place of its own.
#[derive(Debug)]
#[must_use = "the space is anybody's again when this is dropped"]
pub(crate) struct HeldCopies<'a, M: FileMapping> {
    file: &'a DirectFile<M>,
    blocks: Range<u64>,
}

impl<M: FileMapping> HeldCopies<'_, M> {
    /// The write is over.
    pub(super) fn was_taken(mut self) {
        self.blocks = 0..0;
    }

    /// Whatever was written to the copies takes the place of what was there.
    pub(super) fn take(self) -> FileResult<(), M> {
        let (file, blocks) = (self.file, self.blocks.clone());
        let offset = blocks.start;
        file.copier(offset)?.replace(blocks).map_err(|source| FileError::Map { offset, source })?;
        self.was_taken();
        Ok(())
    }
}

impl<M: FileMapping> Drop for HeldCopies<'_, M> {
    /// What was changed by then does not need it any more.
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            self.file.map().give_up(self.blocks.clone());
        }
    }
}

impl<M: FileMapping> DirectFile<M> {
    /// Whether an overwrite was refused that can be done by copying.
    #[cold]
    pub(crate) fn can_copy(&self, error: &FileError<M::Error>) -> bool {
        matches!(error, FileError::NotOverwritable { why: Refusal::Shared, .. })
            && self.map().copy_on_write().is_some()
    }

    /// What a copying overwrite locks, exclusively.
    pub(crate) fn blocks_around(&self, range: Range<u64>) -> Range<u64> {
        let mask = u64::from(self.map().block_size()) - 1;
        range.start & !mask..range.end.saturating_add(mask) & !mask
    }

    /// An overwrite that reached shared blocks, begun anew.
    #[cold]
    pub(super) fn overwrite_shared(&self, offset: u64, buf: &[u8]) -> FileResult<(), M> {
        let blocks = self.blocks_around(offset..offset.saturating_add(buf.len() as u64));
        point(CHANGE);
        let _held = self.lock().hold(blocks, Mode::Exclusive);
        self.copy_held(offset, buf)?;
        self.map().overwritten();
        Ok(())
    }

    /// An overwrite whose whole blocks are held exclusively.
    #[cold]
    pub(crate) fn copy_held(&self, offset: u64, buf: &[u8]) -> FileResult<(), M> {
        let end = offset + buf.len() as u64;
        self.check_data(offset..end)?;
        self.map().content_changes().map_err(|source| FileError::Map { offset, source })?;
        self.write_copying(offset, buf)
    }

    /// Sets space aside for what is shared of the blocks around `range`, which the caller holds exclusively, for a change
    /// that comes later, by [`zero_held`](Self::zero_held).
    pub(crate) fn stage_held(&self, range: Range<u64>) -> FileResult<Option<HeldCopies<'_, M>>, M> {
        let blocks = self.blocks_around(range);
        if blocks.is_empty() || !self.is_shared(blocks.clone())? {
            return Ok(None);
        }
        let offset = blocks.start;
        let copier = self.copier(offset)?;
        copier.stage(blocks.clone()).map_err(|source| FileError::Map { offset, source })?;
        Ok(Some(self.claim(blocks)))
    }

    /// Writes to data, shared or not, whose whole blocks are held exclusively.
    pub(super) fn write_copying(&self, offset: u64, buf: &[u8]) -> FileResult<(), M> {
        let blocks = self.blocks_around(offset..offset + buf.len() as u64);
        let staged = self.copier(offset)?.stage(blocks.clone());
        staged.map_err(|source| FileError::Map { offset, source })?;
        let claim = self.claim(blocks);
        let written = self.write_where_staged(offset, buf).and_then(|()| claim.take());
        // What is not shared is written in place.
        written.inspect_err(|_| self.failed_midway())
    }

    /// What was staged in `blocks` for a write that is about to begin.
    pub(super) fn claim(&self, blocks: Range<u64>) -> HeldCopies<'_, M> {
        point(STAGED);
        HeldCopies { file: self, blocks }
    }

    /// Puts data where they belong: in place, or where shared blocks of them are staged.
    fn write_where_staged(&self, offset: u64, buf: &[u8]) -> FileResult<(), M> {
        let mut at = offset;
        let end = offset + buf.len() as u64;
        while at < end {
            let run = self.run_at(at)?;
            let data = &buf[(at - offset) as usize..];
            let data = &data[..run.take(data.len())];
            match run.kind {
                Kind::SharedData => self.write_copies(at, run, data)?,
                _ => {
                    run.check_overwritable(at)?;
                    self.write_device(run.device, data)?;
                }
            }
            at += data.len() as u64;
        }
        Ok(())
    }

    /// Writes `data` of byte `at`, all of it in a shared run, to where that is staged.
    pub(super) fn write_copies(&self, at: u64, run: MappedRun, data: &[u8]) -> FileResult<(), M> {
        let copier = self.copier(at)?;
        let mut done = 0;
        while done < data.len() {
            let now = at + done as u64;
            let staged = copier.staged(now).map_err(|source| FileError::Map { offset: now, source })?;
            let staged =
                staged.filter(|staged| staged.len > 0 && (staged.device ^ now) & self.sector_mask() == 0);
            let Some(staged) = staged else {
                return Err(FileError::NotOverwritable { offset: now, why: Refusal::Shared });
            };
            let piece = &data[done..];
            let piece = &piece[..piece.len().min(usize::try_from(staged.len).unwrap_or(usize::MAX))];
            self.write_copy(now, run.device + done as u64, staged.device, piece)?;
            done += piece.len();
        }
        Ok(())
    }

    /// Writes `data` of byte `at` of the file to byte `to` of the device, in whole blocks: the rest of the first and of the
    /// last one is what lies around byte `from`.
    fn write_copy(&self, at: u64, from: u64, to: u64, data: &[u8]) -> Result<(), DeviceError> {
        let block = u64::from(self.map().block_size());
        let mut done = 0;
        while done < data.len() as u64 {
            let past = (at + done) & (block - 1);
            let left = data.len() as u64 - done;
            let whole = left & !(block - 1);
            let rest = &data[done as usize..];
            if past == 0 && whole > 0 {
                self.write_device(to + done, &rest[..whole as usize])?;
                done += whole;
                continue;
            }
            let len = left.min(block - past);
            let mut merged = AlignedBuf::zeroed(block as usize);
            self.read_device(from + done - past, &mut merged)?;
            merged[past as usize..(past + len) as usize].copy_from_slice(&rest[..len as usize]);
            self.write_device(to + done - past, &merged)?;
            done += len;
        }
        Ok(())
    }

    /// Fails unless all of `range` is data before the end of the file.
    fn check_data(&self, range: Range<u64>) -> FileResult<(), M> {
        let mut at = range.start;
        while at < range.end {
            let run = self.run_at(at)?;
            if range.end > run.size {
                return Err(FileError::NotOverwritable { offset: run.size.max(at), why: Refusal::PastEnd });
            }
            if run.kind != Kind::SharedData {
                run.check_overwritable(at)?;
            }
            at += run.len.min(range.end - at);
        }
        Ok(())
    }

    /// Whether any of `range`, which the caller holds, lies on blocks that other files share.
    pub(super) fn is_shared(&self, range: Range<u64>) -> FileResult<bool, M> {
        let mut at = range.start;
        while at < range.end {
            let run = self.run_at(at)?;
            if run.kind == Kind::SharedData {
                return Ok(true);
            }
            at += run.len.min(range.end - at);
        }
        Ok(false)
    }

    /// What has copies made; a format without it has shared blocks refused.
    fn copier(&self, offset: u64) -> FileResult<&dyn CopyOnWrite<Error = M::Error>, M> {
        let refused = FileError::NotOverwritable { offset, why: Refusal::Shared };
        self.map().copy_on_write().ok_or(refused)
    }
}
