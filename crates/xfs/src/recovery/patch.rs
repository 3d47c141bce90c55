//! What replay changes, in memory: sectors on top of those of a device.
//!
//! Invariants: the device below is not written before [`Patch::write_out`]. Only sectors that changed are kept, so
//! memory grows with the content of the log. Nothing outside of the volume and nothing of the log is ever changed.
//! Every buffer with a change is written to the device as a whole, in one write: its first sector has the LSN for all
//! of it, and a kernel that recovers after a crash during this recovery takes the whole buffer to be as new as that.

use super::read_cache::ReadCache;
use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice, DeviceError, Durability, Layer};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use xfs_format::error::FormatError;
use xfs_format::types::DiskAddr;

const SECTOR: u64 = 512;
/// Maximum bytes per write, except for overlapping buffers that are longer.
const WRITE_MAX: u64 = 1 << 20;
/// Number of writing threads: they wait more than they compute.
const WRITERS: usize = 4;
/// No log item changes a longer buffer.
const BUFFER_MAX: u64 = 64 << 10;

/// Sectors per lookup: at most an inode cluster.
const UNIT_SECTORS: u64 = 32;

/// The changed sectors of a unit.
type Unit = [Option<Box<[u8; SECTOR as usize]>>; UNIT_SECTORS as usize];

/// A part of the volume that is being changed.
#[derive(Debug)]
pub(super) struct PatchChange {
    offset: u64,
    /// The buffer that contains it.
    buffer: Range<u64>,
    /// The old content, in whole sectors.
    old: Vec<u8>,
    bytes: Vec<u8>,
}

impl PatchChange {
    /// The new content.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

/// Bytes of the volume that a log item names.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteSpan {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Changed sectors over a device.
#[derive(Debug)]
pub(crate) struct Patch {
    device: Arc<dyn BlockDevice>,
    /// The device, with a cache for repeated reads.
    reading: ReadCache,
    units: BTreeMap<u64, Box<Unit>>,
    /// The number of changed sectors.
    sectors: u64,
    /// The buffers that contain them, in whole sectors: start, and end of the longest buffer there.
    buffers: BTreeMap<u64, u64>,
    /// Size of the volume in bytes.
    volume: u64,
    /// Bytes of the device that the log takes.
    log: Range<u64>,
}

impl Patch {
    /// An empty patch of a volume with this many bytes and its log at `log`. It caches this many bytes of what it
    /// reads.
    pub(super) fn new(device: Arc<dyn BlockDevice>, volume: u64, log: Range<u64>, kept: u64) -> Self {
        let reading = ReadCache::new(Arc::clone(&device), kept);
        Self { device, reading, units: BTreeMap::new(), sectors: 0, buffers: BTreeMap::new(), volume, log }
    }

    /// Bytes that changed, in whole sectors.
    pub(super) fn bytes_changed(&self) -> u64 {
        self.sectors * SECTOR
    }

    /// Reads bytes from `offset` on, which a log item names for `structure`.
    pub(super) fn get(&self, offset: u64, len: u64, structure: &'static str) -> Result<Vec<u8>> {
        let sectors = self.sectors_of(offset, len, structure)?;
        let mut bytes = self.read_sectors(&sectors)?;
        bytes.truncate((offset + len - sectors.start) as usize);
        bytes.drain(..(offset - sectors.start) as usize);
        Ok(bytes)
    }

    /// Like [`get`](Self::get), in order to change them: a whole buffer.
    pub(super) fn change(&self, offset: u64, len: u64, structure: &'static str) -> Result<PatchChange> {
        let whole = ByteSpan { offset, len };
        self.change_in(whole, whole, structure)
    }

    /// The same for a part of a buffer.
    pub(super) fn change_in(
        &self,
        buffer: ByteSpan,
        part: ByteSpan,
        structure: &'static str,
    ) -> Result<PatchChange> {
        let ByteSpan { offset, len } = part;
        let buffer = self.sectors_of(buffer.offset, buffer.len, structure)?;
        let sectors = self.sectors_of(offset, len, structure)?;
        debug_assert!(buffer.start <= sectors.start && sectors.end <= buffer.end, "a part of it");
        let old = self.read_sectors(&sectors)?;
        let from = (offset - sectors.start) as usize;
        let bytes = old[from..from + len as usize].to_vec();
        Ok(PatchChange { offset, buffer, old, bytes })
    }

    /// The bytes of the sectors around a place that a log item names.
    fn sectors_of(&self, offset: u64, len: u64, structure: &'static str) -> Result<Range<u64>> {
        let bad = |check, found| {
            Error::corrupt_block(DiskAddr(offset / SECTOR), None, FormatError::value(structure, check, found))
        };
        if len == 0 || len > BUFFER_MAX {
            return Err(bad("length", len));
        }
        let end = offset.checked_add(len).filter(|&end| end <= self.volume);
        let end = end.ok_or_else(|| bad("place behind the volume's end", offset / SECTOR))?;
        if offset < self.log.end && self.log.start < end {
            return Err(bad("place within the log", offset / SECTOR));
        }
        Ok(offset - offset % SECTOR..end.next_multiple_of(SECTOR))
    }

    /// Reads whole 512-byte sectors, whatever the device's sector size is.
    fn read_sectors(&self, range: &Range<u64>) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let sectors = bytes.len() as u64 / SECTOR;
        // If everything there has changed, the device need not be read.
        if self.apply_to(range.start, &mut bytes) < sectors {
            self.reading.read(range.start, &mut bytes)?;
            self.apply_to(range.start, &mut bytes);
        }
        Ok(bytes)
    }

    /// The changed sectors in a range of bytes, by number.
    fn changed(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8; SECTOR as usize])> {
        let (first, end) = (range.start / SECTOR, range.end.div_ceil(SECTOR));
        let units = self.units.range(first / UNIT_SECTORS..end.div_ceil(UNIT_SECTORS));
        units.flat_map(move |(unit, slots)| {
            let begin = unit * UNIT_SECTORS;
            let here = first.saturating_sub(begin)..(end - begin).min(UNIT_SECTORS);
            here.filter_map(move |slot| Some((begin + slot, &**slots[slot as usize].as_ref()?)))
        })
    }

    /// Copies changed sectors over bytes that were read from `begin` on. Returns their number.
    fn apply_to(&self, begin: u64, bytes: &mut [u8]) -> u64 {
        let end = begin + bytes.len() as u64;
        let mut laid = 0;
        for (sector, changed) in self.changed(begin..end) {
            let at = (sector * SECTOR - begin) as usize;
            if let Some(place) = bytes.get_mut(at..at + changed.len()) {
                place.copy_from_slice(changed);
                laid += 1;
            }
        }
        laid
    }

    /// Stores a change.
    pub(super) fn put(&mut self, change: PatchChange) {
        let PatchChange { offset, buffer, old, bytes } = change;
        let from = (offset % SECTOR) as usize;
        let new = if bytes.len() == old.len() {
            bytes
        } else {
            let mut new = old.clone();
            new[from..from + bytes.len()].copy_from_slice(&bytes);
            new
        };
        if old != new {
            self.put_buffer(buffer);
        }
        let sectors = old.chunks_exact(SECTOR as usize).zip(new.chunks_exact(SECTOR as usize));
        for (number, (old, new)) in (offset / SECTOR..).zip(sectors) {
            if old != new {
                self.put_sector(number, new);
            }
        }
    }

    /// Stores a whole buffer, which a log item names for `structure`, whatever was there.
    pub(super) fn replace(&mut self, offset: u64, bytes: &[u8], structure: &'static str) -> Result<()> {
        let sectors = self.sectors_of(offset, bytes.len() as u64, structure)?;
        debug_assert_eq!(sectors.end - sectors.start, bytes.len() as u64, "whole sectors");
        self.put_buffer(sectors.clone());
        for (number, new) in (sectors.start / SECTOR..).zip(bytes.chunks_exact(SECTOR as usize)) {
            self.put_sector(number, new);
        }
        Ok(())
    }

    /// Notes that this buffer has a change.
    fn put_buffer(&mut self, buffer: Range<u64>) {
        let end = self.buffers.entry(buffer.start).or_default();
        *end = buffer.end.max(*end);
    }

    fn put_sector(&mut self, number: u64, new: &[u8]) {
        let unit = self.units.entry(number / UNIT_SECTORS).or_default();
        let slot = &mut unit[(number % UNIT_SECTORS) as usize];
        let sector = slot.get_or_insert_with(|| {
            self.sectors += 1;
            Box::new([0; SECTOR as usize])
        });
        sector.copy_from_slice(new);
    }

    /// Merges the changes of other groups.
    pub(super) fn take_in(&mut self, other: Self) {
        self.sectors += other.sectors;
        other.buffers.into_iter().for_each(|(start, end)| self.put_buffer(start..end));
        for (number, slots) in other.units {
            let unit = self.units.entry(number).or_default();
            for (here, there) in unit.iter_mut().zip(*slots) {
                debug_assert!(here.is_none() || there.is_none(), "a sector lies in one group");
                if there.is_some() {
                    *here = there;
                }
            }
        }
    }

    /// Writes everything to the device and waits until it is on stable storage. In whatever order a crash interrupts
    /// this, the log still has everything.
    pub(super) fn write_out(&self) -> Result<(), DeviceError> {
        let runs = self.runs();
        let share = runs.len().div_ceil(WRITERS).max(1);
        std::thread::scope(|scope| {
            let write = |runs: &[Range<u64>]| runs.iter().try_for_each(|run| self.write_run(run));
            let writers: Vec<_> = runs.chunks(share).map(|runs| scope.spawn(move || write(runs))).collect();
            let join = |writer: ScopedJoinHandle<'_, _>| {
                writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            writers.into_iter().map(join).fold(Ok(()), Result::and)
        })?;
        self.device.flush()
    }

    /// What to write, in whole sectors of the device. No buffer is split between two writes. Overlapping buffers are
    /// one write: a buffer, and an earlier one that was freed and had some of the same blocks.
    fn runs(&self) -> Vec<Range<u64>> {
        let unit = u64::from(self.device.sector_size()).max(SECTOR);
        let mut wholes: Vec<Range<u64>> = Vec::new();
        for (&start, &end) in &self.buffers {
            let (begin, end) = (start / unit * unit, end.next_multiple_of(unit));
            match wholes.last_mut() {
                Some(whole) if begin < whole.end => whole.end = whole.end.max(end),
                _ => wholes.push(begin..end),
            }
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for whole in wholes {
            match runs.last_mut() {
                Some(run) if whole.start == run.end && whole.end - run.start <= WRITE_MAX => {
                    run.end = whole.end
                }
                _ => runs.push(whole),
            }
        }
        runs
    }

    fn write_run(&self, run: &Range<u64>) -> Result<(), DeviceError> {
        let mut bytes = AlignedBuf::zeroed((run.end - run.start) as usize);
        let changed = self.changed(run.clone()).count() as u64;
        if changed * SECTOR < run.end - run.start {
            self.device.read(run.start, &mut bytes)?;
        }
        self.apply_to(run.start, &mut bytes);
        self.device.write(run.start, &bytes, Durability::Volatile)
    }
}

/// The device as it is after the replay, for reading.
impl Layer for Patch {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    fn pass_read_only(&self) -> bool {
        true
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset, buf)?;
        self.apply_to(offset, buf);
        Ok(())
    }

    fn pass_write(&self, _offset: u64, _buf: &[u8], _durability: Durability) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn pass_prefetches(&self) -> bool {
        self.device.prefetches()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{Counter, MemoryDevice, Recorder};

    #[test]
    fn changes_lie_over_the_device_until_they_are_written() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).unwrap());
        let mut patch = Patch::new(Arc::clone(&device), 1 << 20, 4096..8192, 1 << 20);
        let mut change = patch.change(1000, 3000, "x").unwrap();
        change.bytes()[0] = 1;
        change.bytes()[2999] = 2;
        let bytes = change.bytes().clone();
        patch.put(change);
        assert_eq!(patch.bytes_changed(), 1024, "two sectors changed");
        assert_eq!(patch.get(1000, 3000, "x").unwrap(), bytes);
        let whole = |device: &dyn BlockDevice| {
            let mut all = vec![0; 4096];
            device.read(0, &mut all).unwrap();
            (all[1000], all[3999], all.iter().filter(|byte| **byte != 0).count())
        };
        assert_eq!((whole(&patch), whole(&*device)), ((1, 2, 2), (0, 0, 0)));
        patch.write_out().unwrap();
        assert_eq!(whole(&*device), (1, 2, 2));
    }

    /// Sectors that are entirely in the patch are not read. Changes of two threads in one unit are merged.
    #[test]
    fn replaced_sectors_are_not_read_and_patches_come_together() {
        let counter = Arc::new(Counter::new(Arc::new(MemoryDevice::anonymous(1 << 20).unwrap())));
        let new = || Patch::new(Arc::clone(&counter) as _, 1 << 20, 4096..8192, 1 << 20);
        let (mut whole, mut one, mut other) = (new(), new(), new());
        one.replace(1024, &[1; 1024], "x").unwrap();
        other.replace(2048, &[2; 512], "x").unwrap();
        assert!(one.replace(3584, &[0; 1024], "x").is_err(), "over the log");
        assert_eq!(one.get(1024, 1024, "x").unwrap(), [1; 1024]);
        assert_eq!(counter.counts().reads, 0);
        whole.take_in(one);
        whole.take_in(other);
        assert_eq!(whole.bytes_changed(), 1536);
        let expected = [[0; 512], [1; 512], [1; 512], [2; 512]].concat();
        assert_eq!(whole.get(512, 2048, "x").unwrap(), expected);
    }

    /// Regression: a buffer's first sector has its LSN. If it was on the device and a crash came before the others, the
    /// kernel took the whole buffer as replayed, and left a block with a bad checksum.
    #[test]
    fn a_buffer_of_which_anything_changed_is_written_at_once() {
        let recorder = Arc::new(Recorder::new(Arc::new(MemoryDevice::anonymous(8 << 20).unwrap())));
        let mut patch = Patch::new(Arc::clone(&recorder) as _, 8 << 20, 4096..8192, 1 << 20);
        let mut buffers = Vec::new();
        let mut change = |patch: &mut Patch, buffer: (u64, u64), at: &[u64]| {
            let mut change = patch.change(buffer.0, buffer.1, "x").unwrap();
            at.iter().for_each(|&at| change.bytes()[at as usize] = 1);
            patch.put(change);
            buffers.push(buffer.0..buffer.0 + buffer.1);
        };
        change(&mut patch, (8192, 65536), &[0, 65535]);
        change(&mut patch, (1 << 17, 512), &[3]);
        // Adjacent buffers that are longer than a write, with lengths that do not add up to one.
        let many: Vec<u64> = (0..30).map(|n| (1 << 20) + n * 49152).collect();
        many.iter().for_each(|&at| change(&mut patch, (at, 49152), &[1024, 49151]));
        // A block that was freed and is now part of another buffer.
        change(&mut patch, (5 << 20, 16384), &[0]);
        change(&mut patch, ((5 << 20) + 12288, 16384), &[16383]);
        let cluster = ByteSpan { offset: 6 << 20, len: 16384 };
        let mut inode =
            patch.change_in(cluster, ByteSpan { offset: cluster.offset + 1024, len: 512 }, "x").unwrap();
        inode.bytes()[0] = 1;
        patch.put(inode);
        buffers.push(6 << 20..(6 << 20) + 16384);
        let untouched = patch.change(7 << 20, 4096, "x").unwrap();
        patch.put(untouched);
        patch.write_out().unwrap();
        let recording = recorder.recording();
        let writes: Vec<_> = recording
            .writes()
            .iter()
            .map(|write| write.offset..write.offset + write.data.len() as u64)
            .collect();
        for buffer in &buffers {
            let parts: Vec<_> =
                writes.iter().filter(|write| write.start < buffer.end && buffer.start < write.end).collect();
            let whole = |write: &Range<u64>| write.start <= buffer.start && buffer.end <= write.end;
            assert!(parts.len() == 1 && whole(parts[0]), "{buffer:?} in {parts:?}");
        }
        assert!(writes.iter().all(|write| write.end - write.start <= WRITE_MAX), "{writes:?}");
        assert!(writes.iter().all(|write| write.end <= 7 << 20), "nothing else is written: {writes:?}");
        assert!(writes.len() <= 6, "neighbours go together: {writes:?}");
    }

    #[test]
    fn places_that_no_item_may_name_are_refused() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).unwrap());
        let patch = Patch::new(device, 1 << 19, 4096..8192, 1 << 20);
        for (offset, len) in
            [(3584, 1024), (8191, 1), (1 << 19, 1), (u64::MAX, 2), (0, 0), (0, 1 << 20), ((1 << 19) - 1, 2)]
        {
            assert!(patch.get(offset, len, "x").is_err(), "{offset} {len}");
        }
        assert!(patch.get(3584, 512, "x").is_ok() && patch.get(8192, 512, "x").is_ok());
    }
}
