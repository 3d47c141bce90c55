//! A device that checks each log record that is written to it. A kernel that recovers assumes that all records from the
//! tail on have the size in the first one (`h_size`), and takes others for torn.
//!
//! Invariant: whoever puts one below a volume asks for its verdict after the run.

use anyhow::{Result, ensure};
use blockdev::{BlockDevice, DeviceError, Durability, Layer};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use xfs_format::log::{BLOCK_SIZE, LogIdentity, RecordHeader};
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;

/// The device, below the volume.
#[derive(Debug)]
pub struct RecordSizes {
    inner: Arc<dyn BlockDevice>,
    log: Range<u64>,
    identity: LogIdentity,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    records: u64,
    odd: Option<String>,
}

impl RecordSizes {
    /// Over the volume of a device.
    pub fn over(inner: Arc<dyn BlockDevice>) -> Result<Self> {
        let superblock = superblock(&*inner)?;
        let identity = LogIdentity { v5: superblock.is_v5(), uuid: superblock.uuid() };
        Ok(Self { inner, log: log_of(&superblock), identity, found: Mutex::default() })
    }

    /// The number of written records, all of which name a tail whose records have their size.
    pub fn verdict(&self) -> Result<u64> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(found.odd.is_none(), "the log: {}", found.odd.as_deref().unwrap_or_default());
        Ok(found.records)
    }

    /// Checks all records of a write.
    fn look(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= BLOCK_SIZE) {
            at += match RecordHeader::check(rest, &self.identity) {
                // Otherwise it only looks like a header.
                Ok(header) if self.block_of(header.lsn()) == offset + at as u64 => {
                    self.look_at(header, offset, bytes)?;
                    header.total_blocks() as usize * BLOCK_SIZE
                }
                _ => BLOCK_SIZE,
            };
        }
        Ok(())
    }

    /// Checks a record that is written with others or alone.
    fn look_at(&self, header: &RecordHeader, offset: u64, written: &[u8]) -> Result<(), DeviceError> {
        let (lsn, tail, size) = (header.lsn(), header.tail_lsn(), header.size.get());
        // If it names itself, nothing comes before it.
        let odd = if lsn == tail { None } else { self.odd_tail(tail, size, offset, written)? };
        let odd = odd.map(|what| format!("the record at {:#x} {what}", lsn.0));
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.records += 1;
        found.odd = found.odd.take().or(odd);
        Ok(())
    }

    fn block_of(&self, lsn: Lsn) -> u64 {
        self.log.start + (lsn.0 & 0xffff_ffff) * BLOCK_SIZE as u64
    }

    /// What is wrong with a tail for records of this size.
    fn odd_tail(
        &self,
        tail: Lsn,
        size: u32,
        offset: u64,
        written: &[u8],
    ) -> Result<Option<String>, DeviceError> {
        let mut bytes = vec![0; self.inner.sector_size().max(BLOCK_SIZE as u32) as usize];
        // If everything else is written back, the first record of a checkpoint is its tail, and is in the same write.
        let beside = self.block_of(tail).checked_sub(offset).and_then(|at| written.get(at as usize..));
        match beside.and_then(|beside| beside.first_chunk::<BLOCK_SIZE>()) {
            Some(beside) => bytes = beside.to_vec(),
            None => self.inner.read(self.block_of(tail), &mut bytes)?,
        }
        Ok(match RecordHeader::check(&bytes, &self.identity) {
            Ok(header) if header.lsn() != tail => Some(format!("names a tail, {:#x}, that is gone", tail.0)),
            Ok(header) if header.size.get() != size => Some(format!(
                "has a size of {size}, and names a tail, {:#x}, of {}",
                tail.0,
                header.size.get()
            )),
            Ok(_) => None,
            Err(problem) => Some(format!("names a tail, {:#x}, that is none: {problem}", tail.0)),
        })
    }
}

/// The first superblock of a device.
pub fn superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    const LARGEST_SECTOR: usize = 32 << 10;
    let mut bytes = vec![0; LARGEST_SECTOR];
    device.read(0, &mut bytes)?;
    let sector = Superblock::claimed_sector_size(&bytes)? as usize;
    Ok(Superblock::parse(&bytes[..sector])?)
}

/// Position of a volume's log in bytes.
pub fn log_of(superblock: &Superblock) -> Range<u64> {
    let start = superblock.log_daddr().0 * BLOCK_SIZE as u64;
    start..start + superblock.log_bytes()
}

impl Layer for RecordSizes {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if self.log.contains(&offset) {
            self.look(offset, buf)?;
        }
        self.inner.write(offset, buf, durability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;
    use uxfs::{MkfsOptions, mkfs_device};

    #[test]
    fn a_tail_of_other_records_and_one_that_is_none_are_told() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).unwrap());
        mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), false).unwrap();
        let block = |over: &RecordSizes, at: u64, tail: u64, size| {
            let mut block = [0; BLOCK_SIZE];
            let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
            put(0, &[0xfe, 0xed, 0xba, 0xbe, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 2, 0]);
            put(16, &(1 << 32 | at).to_be_bytes());
            put(24, &(1 << 32 | tail).to_be_bytes());
            put(300, &[0, 0, 0, 1]);
            put(304, &over.identity.uuid.0);
            put(320, &u32::to_be_bytes(size));
            block
        };
        let record = |over: &RecordSizes, at: u64, tail: u64, size| {
            over.write(over.block_of(Lsn(at)), &block(over, at, tail, size), Durability::Volatile).unwrap();
        };
        let over = || RecordSizes::over(Arc::clone(&device)).unwrap();
        let good = over();
        record(&good, 100, 100, 256 << 10);
        record(&good, 200, 100, 256 << 10);
        assert_eq!(good.verdict().unwrap(), 2);
        // Eight blocks of headers and one of data.
        let whole = |over: &RecordSizes, at, tail| {
            let mut record = block(over, at, tail, 256 << 10).to_vec();
            record.resize(9 * BLOCK_SIZE, 0);
            record
        };
        let several = over();
        let together =
            [(400, 100), (409, 100), (418, 150)].map(|(at, tail)| whole(&several, at, tail)).concat();
        several.write(several.block_of(Lsn(400)), &together, Durability::Volatile).unwrap();
        assert!(several.verdict().is_err(), "the last of those that are written together");
        let first = over();
        let together = [(500, 100), (509, 500)].map(|(at, tail)| whole(&first, at, tail)).concat();
        first.write(first.block_of(Lsn(500)), &together, Durability::Volatile).unwrap();
        assert_eq!(first.verdict().unwrap(), 2, "the first of them may be the tail");
        for (tail, size) in [(100, 32 << 10), (0, 256 << 10), (150, 256 << 10)] {
            let odd = over();
            record(&odd, 300, tail, size);
            record(&odd, 200, 100, 256 << 10);
            assert!(odd.verdict().is_err(), "{tail}");
        }
    }
}
