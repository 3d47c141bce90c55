//! Writing dirty pages to the device.
//!
//! Invariants:
//! - write-back keeps writers off its pages (readers go on) and excludes other write-back of them, from before the
//!   first look until they are clean;
//! - blocks first get their space, then their data, and only then does the map say that they have data. A crash in
//!   between leaves what was there, or zeroes;
//! - the end of the file moves on the device only over blocks that were all written: `telling` is held from finding out
//!   how far that is until the map says so and the pages are clean;
//! - what cannot be written for lack of space stays dirty, and the caller is told. Other failures are final: the pages
//!   become clean, and everybody who syncs is told.

use std::ops::Range;

use blockdev::{AlignedBuf, DeviceError, Durability};
use rangelock::{Mode, RangeGuard, RangeLock};

use super::buffered::BufferedFile;
use super::failures::Failure;
use crate::direct::{FileResult, Kind};
use crate::sync::atomic::Ordering;
use crate::{DelayedAllocation, FileError, Refusal};

/// Maximum length of a file that is kept from writers at once.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Pieces of at least this many bytes are written directly. Smaller ones are gathered.
const ALONE_BYTES: usize = 128 << 10;
/// How many runs are written before another file has its turn.
const RUNS_AT_ONCE: usize = 16;
/// How often the file is gone through so that its end gets to the device, if others write before it.
const ROUNDS: usize = 3;

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// Writes back what is dirty in `range`. If the range includes the file's end, the size on the device becomes the
    /// present one.
    pub fn write_back(&self, range: Range<u64>) -> Result<(), Failure> {
        let mut done = self.write_back_in(range.clone());
        if done.is_err() && self.is_cached() && self.pages.is_dirty_in(&self.pages.pages_around(&range)) {
            // It lacks space, but writing back a part may take more space than all of it.
            done = self.write_back_in(0..u64::MAX);
        }
        self.settle_end();
        if !self.pages.is_dirty()
            && let Some(this) = self.this.upgrade()
        {
            // Write-back no longer keeps it in memory.
            self.pages.pool().dequeue(&(this as _));
        }
        done
    }

    fn write_back_in(&self, range: Range<u64>) -> Result<(), Failure> {
        let size = self.size().min(range.end);
        let mut done = Ok(());
        for _ in 0..ROUNDS {
            done = done.and(self.write_back_once(&range));
            let is_told = !self.is_cached() || self.map().size() >= size.min(self.pages.size());
            if done.is_err() || is_told {
                return done;
            }
        }
        let _held = self.file.lock().hold(0..u64::MAX, self.file.against_writers());
        self.write_back_held(0..u64::MAX)
    }

    /// Sets the size on the device to that in memory, when nothing before it is dirty: what failed to be written was
    /// dropped and reads as zeroes. The caller holds the end, so that it stays.
    pub(super) fn tell_size(&self) -> Result<(), Failure> {
        let _telling = self.telling.lock();
        let Some(size) = self.size_to_tell(&(0..0)) else { return Ok(()) };
        let told = self.map().written_back(0..0, Some(size));
        told.map_err(|source| {
            let lacks_space = M::lacks_space(&source);
            let error = FileError::Map { offset: size, source };
            if lacks_space { Failure::new(error) } else { self.note(error) }
        })
    }

    /// The size in memory is that on the device by now, in most cases; then it is no longer reported separately to the
    /// map. Otherwise a file that was closed, opened anew, and changed without the pages, would still seem to end
    /// there. The caller holds nothing of it.
    fn settle_end(&self) {
        if !self.is_ahead.load(Ordering::Acquire) || !self.is_cached() {
            return;
        }
        let (size, block) = (self.pages.size(), u64::from(self.map().block_size()));
        let last = size & !(block - 1);
        let _held = self.file.lock().hold(last..last + block, self.file.against_writers());
        if self.is_cached() && self.pages.size() == size {
            self.end_is_held();
        }
    }

    /// The same, for a caller that keeps writers off the end of the file.
    fn end_is_held(&self) {
        if self.is_ahead.load(Ordering::Acquire) && self.map().size() == self.pages.size() {
            self.is_ahead.store(false, Ordering::Release);
            self.map().ends_in_memory_at(None);
        }
    }

    fn write_back_once(&self, range: &Range<u64>) -> Result<(), Failure> {
        let mut done = Ok(());
        let mut at = range.start;
        while let Some(run) = self.next_run(at, range.end) {
            at = run.end;
            let written = self.write_back_run(run);
            done = done.and(written);
        }
        done
    }

    /// Writes back some runs from the front.
    pub(super) fn write_back_some(&self) -> bool {
        let mut at = 0;
        let mut is_done = true;
        for _ in 0..RUNS_AT_ONCE {
            let Some(run) = self.next_run(at, u64::MAX) else { break };
            at = run.end;
            is_done &= self.write_back_run(run).is_ok();
        }
        self.settle_end();
        is_done
    }

    /// The next run of adjacent dirty pages before `end` that is written back at once.
    fn next_run(&self, from: u64, end: u64) -> Option<Range<u64>> {
        let start = self.pages.next_dirty(from).filter(|start| *start < end)?;
        let page = self.pages.page_size();
        let mut to = start + page;
        while to < end && to - start < RUN_BYTES_MAX && self.pages.next_dirty(to) == Some(to) {
            to += page;
        }
        Some(start..to)
    }

    fn write_back_run(&self, run: Range<u64>) -> Result<(), Failure> {
        let _held = self.file.lock().hold(run.clone(), self.file.against_writers());
        let _alone = self.flushing.lock(run.clone(), Mode::Exclusive);
        self.write_run(run)
    }

    /// Writes back what is dirty in `range`, whole pages, which the caller holds so that nobody writes to it.
    pub(super) fn write_back_held(&self, range: Range<u64>) -> Result<(), Failure> {
        self.write_runs_back(range, |run| Some(self.flushing.lock(run, Mode::Exclusive)))
    }

    /// The same, for a caller that also excludes other write-back of `range`.
    pub(super) fn write_back_alone(&self, range: Range<u64>) -> Result<(), Failure> {
        self.write_runs_back(range, |_| None)
    }

    fn write_runs_back<'a>(
        &'a self,
        range: Range<u64>,
        alone: impl Fn(Range<u64>) -> Option<RangeGuard<'a, RangeLock>>,
    ) -> Result<(), Failure> {
        let mut done = Ok(());
        let mut at = range.start;
        while let Some(run) = self.next_run(at, range.end) {
            at = run.end;
            let _alone = alone(run.clone());
            let written = self.write_run(run);
            done = done.and(written);
        }
        if self.is_cached() && range.contains(&self.pages.size()) {
            if self.map().size() < self.pages.size() {
                done = done.and(self.tell_size());
            }
            self.end_is_held();
        }
        done
    }

    /// Writes back a run of pages that the caller has alone.
    fn write_run(&self, run: Range<u64>) -> Result<(), Failure> {
        let dirty = self.dirty_runs(&run);
        let Some(last) = dirty.last().cloned() else { return Ok(()) };
        let written = self.write_blocks(&dirty).and_then(|fresh| {
            let _telling = self.telling.lock();
            let size = self.size_to_tell(&run);
            self.tell(&fresh, last, size)?;
            // SAFETY: writers are kept out of the run, and others who write back.
            unsafe { self.pages.set_clean(run.clone()) };
            Ok(())
        });
        written.map_err(|error| self.fail(&run, error))
    }

    /// Tells the map what it has now.
    fn tell(&self, fresh: &[Range<u64>], last: Range<u64>, size: Option<u64>) -> FileResult<(), M> {
        let map = |offset| move |source| FileError::Map { offset, source };
        let (end, before) = match fresh.split_last() {
            Some((end, before)) => (end.clone(), before),
            // Only the end of the file moves.
            None if size.is_some() => (last, &[][..]),
            None => return Ok(()),
        };
        for blocks in before {
            self.map().written_back(blocks.clone(), None).map_err(map(blocks.start))?;
        }
        self.map().written_back(end.clone(), size).map_err(map(end.start))
    }

    /// Where the file may end on the device once `run` is written: before the first page that is still dirty. `telling`
    /// is held.
    fn size_to_tell(&self, run: &Range<u64>) -> Option<u64> {
        let (size, told) = (self.pages.size(), self.map().size());
        if size <= told || self.is_end_held.load(Ordering::Acquire) {
            return None;
        }
        let mut dirty = self.pages.next_dirty(told);
        while let Some(at) = dirty.filter(|at| run.contains(at)) {
            dirty = self.pages.next_dirty(at + self.pages.page_size());
        }
        let end = dirty.map_or(size, |at| at.min(size));
        (end > told).then_some(end)
    }

    fn dirty_runs(&self, run: &Range<u64>) -> Vec<Range<u64>> {
        let (mut runs, mut at) = (Vec::new(), run.start);
        while at < run.end {
            // SAFETY: the caller keeps writers off the run.
            let (is_dirty, len) = unsafe { self.pages.dirt(at, run.end) };
            if is_dirty {
                runs.push(at..at + len);
            }
            at += len;
        }
        runs
    }

    /// Writes runs of dirty blocks. Returns those of which the map must be told.
    fn write_blocks(&self, dirty: &[Range<u64>]) -> FileResult<Vec<Range<u64>>, M> {
        let mut fresh = Vec::new();
        let len = dirty.iter().map(|blocks| blocks.end - blocks.start).sum::<u64>() as usize;
        let mut batch = Batch { left: len, ..Batch::default() };
        for blocks in dirty {
            self.allocate_delayed(blocks)?;
            let mut at = blocks.start;
            let mut is_fresh = false;
            while at < blocks.end {
                let (device, len, is_new) = self.place_for(at, blocks.end - at)?;
                is_fresh |= is_new;
                let write = |from, piece: &[u8]| batch.add(self, device + (from - at), piece);
                // SAFETY: writers are kept out of the blocks, and what is dirty is present.
                unsafe { self.pages.drain(at..at + len, write) }?;
                at += len;
            }
            if is_fresh {
                fresh.push(blocks.clone());
            }
        }
        batch.send(self)?;
        Ok(fresh)
    }

    /// Allocates space for those of `blocks` for which it was reserved.
    fn allocate_delayed(&self, blocks: &Range<u64>) -> FileResult<(), M> {
        let mut at = blocks.start;
        while at < blocks.end {
            // SAFETY: writers are kept out of the blocks.
            let (is_delayed, len) = unsafe { self.pages.delay(at, blocks.end) };
            if is_delayed {
                let allocated = self.map().allocate_reserved(at..at + len);
                self.settle_delayed(at..at + len)?;
                allocated.map_err(|source| FileError::Map { offset: at, source })?;
            }
            at += len;
        }
        Ok(())
    }

    /// Blocks that have space by now need no reservation.
    fn settle_delayed(&self, blocks: Range<u64>) -> FileResult<(), M> {
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.file.run_to_read(at)?;
            let len = run.len.min(blocks.end - at);
            if run.kind != Kind::Zeroes(Refusal::Hole) {
                // SAFETY: writers are kept out of the blocks, and others who write back.
                unsafe { self.pages.set_delayed(at..at + len, false) };
            }
            at += len;
        }
        Ok(())
    }

    /// Where to write byte `at`, how many of `len` bytes are contiguous from there, and whether the map must be told.
    fn place_for(&self, at: u64, len: u64) -> FileResult<(u64, u64, bool), M> {
        let (run, is_fresh) = self.file.run_for_write(at)?;
        if run.kind != Kind::SharedData {
            return Ok((run.device, run.len.min(len), is_fresh));
        }
        let refused = || FileError::NotOverwritable { offset: at, why: Refusal::Shared };
        let copier = self.map().copy_on_write().ok_or_else(refused)?;
        let staged = copier.staged(at).map_err(|source| FileError::Map { offset: at, source })?;
        let staged = staged.filter(|staged| staged.len > 0).ok_or_else(refused)?;
        Ok((staged.device, staged.len.min(run.len).min(len), true))
    }

    /// Drops what could not be written, unless it only lacks space.
    fn fail(&self, run: &Range<u64>, error: FileError<M::Error>) -> Failure {
        if matches!(&error, FileError::Map { source, .. } if M::lacks_space(source)) {
            // Nothing is lost: it stays dirty.
            return Failure::new(error);
        }
        let failure = self.note(error);
        let _telling = self.telling.lock();
        self.give_up(run);
        failure
    }

    /// Drops what is dirty in `range`, whole pages; the caller keeps out readers as well. `telling` is held.
    pub(super) fn give_up_in(&self, range: Range<u64>) {
        let mut at = range.start;
        while let Some(run) = self.next_run(at, range.end) {
            at = run.end;
            self.give_up(&run);
        }
    }

    /// Marks a run of pages as clean, and releases what was reserved for it. `telling` is held.
    fn give_up(&self, run: &Range<u64>) {
        self.map().give_up(run.clone());
        let mut at = run.start;
        while at < run.end {
            // SAFETY: writers are kept out of the run, and others who write back.
            let (is_delayed, len) = unsafe { self.pages.delay(at, run.end) };
            if is_delayed {
                self.map().unreserve(len);
            }
            at += len;
        }
        // SAFETY: as above.
        unsafe {
            self.pages.set_delayed(run.clone(), false);
            self.pages.set_clean(run.clone());
        }
    }

    /// Records a failure for everybody who syncs.
    fn note(&self, error: FileError<M::Error>) -> Failure {
        let failure = Failure::new(error);
        self.failures.note(failure.clone());
        self.pages.pool().note_failure(failure.clone());
        failure
    }

    fn send(&self, device: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.file.device().write(device, bytes, Durability::Volatile)
    }
}

/// Small pieces that are adjacent on the device, gathered into one request.
#[derive(Default)]
struct Batch {
    start: u64,
    len: usize,
    /// Bytes that are still to come.
    left: usize,
    buf: Option<AlignedBuf>,
}

impl Batch {
    fn add<M: DelayedAllocation + 'static>(
        &mut self,
        file: &BufferedFile<M>,
        device: u64,
        piece: &[u8],
    ) -> Result<(), DeviceError> {
        let fits = self.len + piece.len() <= RUN_BYTES_MAX as usize;
        if self.len > 0 && (device != self.start + self.len as u64 || !fits) {
            self.send(file)?;
        }
        debug_assert!(piece.len() <= self.left, "no more comes than was said");
        let rest = self.left;
        self.left -= piece.len();
        // There is nothing to gather it with.
        let is_alone = self.len == 0 && self.left == 0;
        if is_alone || piece.len() >= ALONE_BYTES {
            self.send(file)?;
            return file.send(device, piece);
        }
        if self.len == 0 {
            self.start = device;
        }
        let buf = self.buf.get_or_insert_with(|| AlignedBuf::zeroed(rest.min(RUN_BYTES_MAX as usize)));
        buf[self.len..self.len + piece.len()].copy_from_slice(piece);
        self.len += piece.len();
        Ok(())
    }

    fn send<M: DelayedAllocation + 'static>(&mut self, file: &BufferedFile<M>) -> Result<(), DeviceError> {
        let len = std::mem::take(&mut self.len);
        match &self.buf {
            Some(buf) if len > 0 => file.send(self.start, &buf[..len]),
            _ => Ok(()),
        }
    }
}
