//! What the device has comes into memory.
//!
//! Invariants:
//! - a block comes in while it is held exclusively, and is present only when all of it is there;
//! - what lies behind the end of the file is zeroes in memory, whatever the device has;
//! - holes, and space that was never written, take no memory.

use std::ops::Range;

use rangelock::Mode;

use super::buffered::BufferedFile;
use crate::DelayedAllocation;
use crate::direct::{Kind, Outcome};
use crate::lock::Held;

/// How much a reader may want so that it comes into memory at all: more is read past it.
const WANTED_MAX: u64 = 4 << 20;

impl<M: DelayedAllocation + 'static> BufferedFile<M> {
    /// Whether nothing of `range`, which the caller holds, is on the device without being in memory.
    pub(super) fn is_hole(&self, range: Range<u64>) -> Outcome<bool, M> {
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

    /// Brings bytes into memory that somebody will read soon, and which are few; where they cannot stay there, or somebody is in
    /// the way, does nothing. The caller holds nothing.
    pub fn will_need(&self, range: Range<u64>) -> Outcome<(), M> {
        if range.start < range.end && range.start < self.size() && self.caches_to_read() {
            self.bring(range.start, range.end - range.start)?;
        }
        Ok(())
    }

    /// Brings `len` bytes from byte `offset` on into memory, and more where reads come one behind the other; whether it makes
    /// sense to look again; if not, somebody is in the way, or it is too much. The caller holds nothing.
    pub(super) fn bring(&self, offset: u64, len: u64) -> Outcome<bool, M> {
        if len > WANTED_MAX || len > self.pages.pool().limit() / 4 {
            return Ok(false);
        }
        let size = self.pages.size();
        let stream = self.streams.of(offset, len, self.pages.page_size());
        let (start, mut end) = (offset, (offset + len + stream.ahead()).min(size).max(offset + 1));
        let mut range = self.pages.pages_around(&(start..end));
        // More than is wanted only where nobody is in the way.
        let lock = self.file.lock();
        let mut token = lock.try_acquire(range.clone(), Mode::Exclusive);
        if token.is_none() {
            end = offset + len;
            range = self.pages.blocks_around(&(start..end));
            token = lock.try_acquire(range.clone(), Mode::Exclusive);
        }
        // Who keeps writers out alone, be it as long as a close takes, is not waited for.
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

    /// Brings all of `blocks` in that are data and not present. The caller holds them exclusively.
    fn fill_data(&self, blocks: Range<u64>) -> Outcome<(), M> {
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

    /// Fills blocks that have folios, as far as they are not present, with what the file has there. The caller holds them
    /// exclusively, and says that they are present.
    pub(super) fn fill_absent(&self, blocks: Range<u64>) -> Outcome<(), M> {
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
