//! A device that looks at each record of the log that is written to it: a kernel that recovers reads all records from the
//! tail on as the first of them says it is (`h_size`), and takes others for torn.
//!
//! Invariant: whoever has one under a volume asks for its verdict behind the run.

use anyhow::{Result, ensure};
use blockdev::{BlockDevice, DeviceError, Durability, Layer};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use xfs_format::log::{BLOCK_SIZE, LogIdentity, RecordHeader};
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;

/// The device, below which the volume lies.
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
        const LARGEST_SECTOR: usize = 32 << 10;
        let mut bytes = vec![0; LARGEST_SECTOR];
        inner.read(0, &mut bytes)?;
        let sector = Superblock::claimed_sector_size(&bytes)? as usize;
        let superblock = Superblock::parse(&bytes[..sector])?;
        let start = superblock.log_daddr().0 * BLOCK_SIZE as u64;
        let identity = LogIdentity { v5: superblock.is_v5(), uuid: superblock.uuid() };
        Ok(Self { inner, log: start..start + superblock.log_bytes(), identity, found: Mutex::default() })
    }

    /// How many records were written, all of which name a tail with records of their size.
    pub fn verdict(&self) -> Result<u64> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(found.odd.is_none(), "the log: {}", found.odd.as_deref().unwrap_or_default());
        Ok(found.records)
    }

    fn look(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let Ok(header) = RecordHeader::check(bytes, &self.identity) else { return Ok(()) };
        let (lsn, tail, size) = (header.lsn(), header.tail_lsn(), header.size.get());
        let odd = match self.block_of(lsn) == offset && lsn != tail {
            true => self.odd_tail(tail, size)?.map(|what| format!("the record at {:#x} {what}", lsn.0)),
            // What begins with a header's magic by chance, or names itself.
            false => None,
        };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.records += 1;
        found.odd = found.odd.take().or(odd);
        Ok(())
    }

    fn block_of(&self, lsn: Lsn) -> u64 {
        self.log.start + (lsn.0 & 0xffff_ffff) * BLOCK_SIZE as u64
    }

    /// What is wrong with a tail for records of this size.
    fn odd_tail(&self, tail: Lsn, size: u32) -> Result<Option<String>, DeviceError> {
        let mut bytes = vec![0; self.inner.sector_size().max(BLOCK_SIZE as u32) as usize];
        self.inner.read(self.block_of(tail), &mut bytes)?;
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
        let record = |over: &RecordSizes, at: u64, tail: u64, size| {
            let mut block = [0; BLOCK_SIZE];
            let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
            put(0, &[0xfe, 0xed, 0xba, 0xbe, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 2, 0]);
            put(16, &(1 << 32 | at).to_be_bytes());
            put(24, &(1 << 32 | tail).to_be_bytes());
            put(300, &[0, 0, 0, 1]);
            put(304, &over.identity.uuid.0);
            put(320, &u32::to_be_bytes(size));
            over.write(over.block_of(Lsn(at)), &block, Durability::Volatile).unwrap();
        };
        let over = || RecordSizes::over(Arc::clone(&device)).unwrap();
        let good = over();
        record(&good, 100, 100, 256 << 10);
        record(&good, 200, 100, 256 << 10);
        assert_eq!(good.verdict().unwrap(), 2);
        for (tail, size) in [(100, 32 << 10), (0, 256 << 10), (150, 256 << 10)] {
            let odd = over();
            record(&odd, 300, tail, size);
            record(&odd, 200, 100, 256 << 10);
            assert!(odd.verdict().is_err(), "{tail}");
        }
    }
}
