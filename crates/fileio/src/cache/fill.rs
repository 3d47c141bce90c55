//! Bringing data from the device into memory.
//!
//! Invariants:
//! - a block is filled while it is held exclusively, and is present only when all of it is there;
//! - past the end of the file, memory has zeroes, whatever the device has;
//! - holes and unwritten space take no memory.

use std::ops::Range;

use rangelock::Mode;

use super::buffered::BufferedFile;
use crate::DelayedAllocation;
use crate::direct::{FileResult, Kind};
use crate::lock::Held;

/// Maximum read that is brought into memory. Larger reads bypass it.
const WANTED_MAX: u64 = 4 << 20;

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// Whether nothing of `range`, which the caller holds, is on the device without being in memory.
    pub(super) fn is_hole(&self, range: Range<u64>) -> FileResult<bool, M> {
        let mut at = range.start;
        while at < range.end {
            // SAFETY: the caller holds the range.
            let (is_present, len) = unsafe { self.pages.presence(at, range.end) };
            let end = at + len;
            while !is_present && at < end {
                let run = self.file.run_to_read(at)?;
                if !matches!(run.kind, Kind::Zeroes(_)) {
                    return Ok(false);
                }
                at += run.len.min(end - at);
            }
            at = end;
        }
        Ok(true)
    }

    /// Brings a small number of bytes into memory that will be read soon. Does nothing if they cannot stay there or
    /// somebody is in the way. The caller holds nothing.
    pub fn will_need(&self, range: Range<u64>) -> FileResult<(), M> {
        if range.start < range.end && range.start < self.size() && self.caches_to_read() {
            self.bring(range.start, range.end - range.start)?;
        }
        Ok(())
    }

    /// Brings `len` bytes from byte `offset` on into memory, and more if reads are sequential. Returns whether it makes
    /// sense to look again. If not, somebody is in the way, or it is too much. The caller holds nothing.
    pub(super) fn bring(&self, offset: u64, len: u64) -> FileResult<bool, M> {
        if len > WANTED_MAX || len > self.pages.pool().limit() / 4 {
            return Ok(false);
        }
        let size = self.pages.size();
        let stream = self.streams.of(offset, len, self.pages.page_size());
        let (start, mut end) = (offset, (offset + len + stream.ahead()).min(size).max(offset + 1));
        let mut range = self.pages.pages_around(&(start..end));
        // More than is wanted only if nobody is in the way.
        let lock = self.file.lock();
        let mut token = lock.try_acquire(range.clone(), Mode::Exclusive);
        if token.is_none() {
            end = offset + len;
            range = self.pages.blocks_around(&(start..end));
            token = lock.try_acquire(range.clone(), Mode::Exclusive);
        }
        // Do not wait for somebody who keeps writers out, perhaps as long as a close takes.
        let Some(token) = token else { return Ok(false) };
        let held = Held::new(lock, token);
        if !self.is_cached() {
            return Ok(true);
        }
        let end = range.end.min(self.pages.size().next_multiple_of(u64::from(self.map().block_size())));
        if range.start < end {
            self.fill_data(range.start..end)?;
        }
        self.streams.read_to(stream, range.end, len);
        drop(held);
        Ok(true)
    }

    /// Brings in all of `blocks` that are data and not present. The caller holds them exclusively.
    fn fill_data(&self, blocks: Range<u64>) -> FileResult<(), M> {
        let mut at = blocks.start;
        while at < blocks.end {
            // SAFETY: the caller holds the blocks.
            let (is_present, len) = unsafe { self.pages.presence(at, blocks.end) };
            let end = at + len;
            if is_present {
                at = end;
                continue;
            }
            let run = self.file.run_to_read(at)?;
            let to = at + run.len.min(end - at);
            if !matches!(run.kind, Kind::Zeroes(_)) {
                // SAFETY: the caller holds the blocks exclusively.
                unsafe { self.pages.make(&(at..to), &self.this) };
                self.fill_absent(at..to)?;
                // SAFETY: as above.
                unsafe { self.pages.set_present(at..to) };
            }
            at = to;
        }
        Ok(())
    }

    /// Fills blocks that have folios, where they are not present, with the file's content, and marks them as present.
    /// The caller holds them exclusively.
    pub(super) fn fill_absent(&self, blocks: Range<u64>) -> FileResult<(), M> {
        let mut at = blocks.start;
        while at < blocks.end {
            // SAFETY: the caller holds the blocks.
            let (is_present, len) = unsafe { self.pages.presence(at, blocks.end) };
            let end = at + len;
            while !is_present && at < end {
                let run = self.file.run_to_read(at)?;
                let to = at + run.len.min(end - at);
                match run.kind {
                    // SAFETY: the caller holds the blocks exclusively.
                    Kind::Zeroes(_) => unsafe { self.pages.zero(at..to) },
                    Kind::Data | Kind::SharedData => {
                        let read =
                            |from, buf: &mut [u8]| self.file.read_device(run.device + (from - at), buf);
                        // SAFETY: as above.
                        unsafe { self.pages.fill(at..to, read) }?;
                    }
                }
                at = to;
            }
            at = end;
        }
        let size = self.pages.size().max(blocks.start);
        if size < blocks.end && !self.is_present(size & !(u64::from(self.map().block_size()) - 1), blocks.end)
        {
            // SAFETY: as above.
            unsafe { self.pages.zero(size..blocks.end) };
        }
        self.file.check_read(blocks.start)
    }

    fn is_present(&self, at: u64, end: u64) -> bool {
        // SAFETY: the caller holds the blocks.
        unsafe { self.pages.presence(at, end) }.0
    }
}
