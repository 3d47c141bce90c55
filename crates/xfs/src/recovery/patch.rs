//! What replay changes, in memory: sectors that lie over those of a device.
//!
//! Invariants: the device below is never written before [`Patch::write_out`]; only sectors that changed are kept, so
//! that memory goes with what the log holds; nothing outside the volume, and nothing of the log, is ever changed.

use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice, BlockingQueue, DeviceError, Durability, IoQueue};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::types::DiskAddr;

const SECTOR: u64 = 512;
/// Most bytes that are written at once.
const WRITE_MAX: u64 = 1 << 20;
/// No item of the log changes a buffer that is longer.
const BUFFER_MAX: u64 = 64 << 10;

/// Changed sectors over a device.
#[derive(Debug)]
pub(crate) struct Patch {
    device: Arc<dyn BlockDevice>,
    sectors: BTreeMap<u64, Box<[u8; SECTOR as usize]>>,
    /// Bytes of the volume.
    volume: u64,
    /// Bytes of the device that the log takes.
    log: Range<u64>,
}

impl Patch {
    /// Nothing changed yet of a volume of so many bytes, with its log at `log`.
    pub(super) fn new(device: Arc<dyn BlockDevice>, volume: u64, log: Range<u64>) -> Self {
        Self { device, sectors: BTreeMap::new(), volume, log }
    }

    /// Bytes that changed, in whole sectors.
    pub(super) fn bytes_changed(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR
    }

    /// Reads bytes from `offset` on, which an item of the log names for `structure`.
    pub(super) fn get(&self, offset: u64, len: u64, structure: &'static str) -> Result<Vec<u8>> {
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
        let begin = offset - offset % SECTOR;
        let mut bytes = self.read_sectors(begin, end.next_multiple_of(SECTOR) - begin)?;
        bytes.truncate((end - begin) as usize);
        bytes.drain(..(offset - begin) as usize);
        Ok(bytes)
    }

    /// Reads whole sectors of 512 bytes, whatever the device's are.
    fn read_sectors(&self, begin: u64, len: u64) -> Result<Vec<u8>, DeviceError> {
        let unit = u64::from(self.device.sector_size());
        let aligned = begin - begin % unit;
        let end = (begin + len).next_multiple_of(unit);
        let mut below = AlignedBuf::zeroed((end - aligned) as usize);
        self.device.read(aligned, &mut below)?;
        let mut bytes = below[(begin - aligned) as usize..][..len as usize].to_vec();
        self.lay(begin, &mut bytes);
        Ok(bytes)
    }

    /// Puts what changed over bytes that were read from `begin` on: whole sectors.
    fn lay(&self, begin: u64, bytes: &mut [u8]) {
        let end = begin + bytes.len() as u64;
        for (&sector, changed) in self.sectors.range(begin / SECTOR..end.div_ceil(SECTOR)) {
            let at = (sector * SECTOR - begin) as usize;
            if let Some(place) = bytes.get_mut(at..at + changed.len()) {
                place.copy_from_slice(&changed[..]);
            }
        }
    }

    /// Replaces what [`get`](Self::get) gave for `offset`.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let begin = offset - offset % SECTOR;
        let end = (offset + bytes.len() as u64).next_multiple_of(SECTOR);
        let old = self.read_sectors(begin, end - begin)?;
        let mut new = old.clone();
        new[(offset - begin) as usize..][..bytes.len()].copy_from_slice(bytes);
        let sectors = old.chunks_exact(SECTOR as usize).zip(new.chunks_exact(SECTOR as usize));
        for (number, (old, new)) in (begin / SECTOR..).zip(sectors) {
            if old != new
                && let Ok(new) = <[u8; SECTOR as usize]>::try_from(new)
            {
                self.sectors.insert(number, Box::new(new));
            }
        }
        Ok(())
    }

    /// Writes everything to the device and waits until it is on stable storage. Whatever order a crash leaves of it,
    /// the log still says all of it.
    pub(super) fn write_out(&self) -> Result<(), DeviceError> {
        let unit = u64::from(self.device.sector_size()).max(SECTOR);
        let mut run: Option<Range<u64>> = None;
        for &sector in self.sectors.keys() {
            let begin = sector * SECTOR / unit * unit;
            let end = begin + unit;
            match &mut run {
                Some(run) if begin <= run.end && end - run.start <= WRITE_MAX => run.end = run.end.max(end),
                _ => {
                    run.take().map_or(Ok(()), |run| self.write_run(run))?;
                    run = Some(begin..end);
                }
            }
        }
        run.map_or(Ok(()), |run| self.write_run(run))?;
        self.device.flush()
    }

    fn write_run(&self, run: Range<u64>) -> Result<(), DeviceError> {
        let mut bytes = AlignedBuf::zeroed((run.end - run.start) as usize);
        self.device.read(run.start, &mut bytes)?;
        self.lay(run.start, &mut bytes);
        self.device.write(run.start, &bytes, Durability::Volatile)
    }
}

/// The device as it is after the replay, for reading.
impl BlockDevice for Patch {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn sector_size(&self) -> u32 {
        self.device.sector_size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset, buf)?;
        self.lay(offset, buf);
        Ok(())
    }

    fn write(&self, _offset: u64, _buf: &[u8], _durability: Durability) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn prefetches(&self) -> bool {
        self.device.prefetches()
    }

    fn prefetch(&self, offset: u64) {
        self.device.prefetch(offset);
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(BlockingQueue::new(self, depth)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    #[test]
    fn changes_lie_over_the_device_until_they_are_written() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).unwrap());
        let mut patch = Patch::new(Arc::clone(&device), 1 << 20, 4096..8192);
        let mut bytes = patch.get(1000, 3000, "x").unwrap();
        bytes[0] = 1;
        bytes[2999] = 2;
        patch.put(1000, &bytes).unwrap();
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

    #[test]
    fn places_that_no_item_may_name_are_refused() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).unwrap());
        let patch = Patch::new(device, 1 << 19, 4096..8192);
        for (offset, len) in
            [(3584, 1024), (8191, 1), (1 << 19, 1), (u64::MAX, 2), (0, 0), (0, 1 << 20), ((1 << 19) - 1, 2)]
        {
            assert!(patch.get(offset, len, "x").is_err(), "{offset} {len}");
        }
        assert!(patch.get(3584, 512, "x").is_ok() && patch.get(8192, 512, "x").is_ok());
    }
}
