//! Recovery for a reader: what a log promises is carried out as for a writer, and what that writes stays in memory.
//!
//! A log may end in the midst of a chain of deferred work: blocks were taken from a file, and those that come in their
//! place are promised. Replayed alone, such a file is neither as it was nor as it was to be. So a volume that is opened
//! for reading goes through the whole of recovery on a device that keeps what is written, over one that is only read.
//!
//! Invariant: the device below is never written. Memory goes with what the log holds.

use super::Report;
use crate::error::{Error, Result};
use blockdev::{BlockDevice, BlockingQueue, DeviceError, Durability, IoQueue};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// What is kept at a time; a multiple of every device's sectors.
const PAGE: usize = 4096;

/// Pages that were written, over a device.
#[derive(Debug)]
struct Scratch {
    below: Arc<dyn BlockDevice>,
    pages: RwLock<BTreeMap<u64, Box<[u8; PAGE]>>>,
}

/// Carries out what the log of a volume promises, in memory: `finish` does it as a writer does, and closes the volume. Gives
/// the volume as it is then, for reading, and what was done.
pub(crate) fn finish_in_memory(
    device: &Arc<dyn BlockDevice>,
    finish: impl FnOnce(Arc<dyn BlockDevice>) -> Result<Option<Report>>,
) -> Result<(Arc<dyn BlockDevice>, Report)> {
    let pages = RwLock::default();
    let scratch: Arc<dyn BlockDevice> = Arc::new(Scratch { below: Arc::clone(device), pages });
    let report = finish(Arc::clone(&scratch))?;
    let report = report.ok_or_else(|| Error::CannotRecover("its log is clean".to_owned()))?;
    Ok((scratch, Report { written: false, ..report }))
}

impl Scratch {
    /// The parts of a request, each in one page: the page, where in it, and where in the buffer.
    fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let byte = offset + at as u64;
            let within = (byte % PAGE as u64) as usize;
            let part = at..(at + PAGE - within).min(len);
            at = part.end;
            (!part.is_empty()).then_some((byte / PAGE as u64, within, part))
        })
    }

    /// A page as the device below has it; what lies behind its end is zero.
    fn page_below(&self, page: u64) -> Result<Box<[u8; PAGE]>, DeviceError> {
        let start = page * PAGE as u64;
        let len = (self.below.size() - start).min(PAGE as u64) as usize;
        let mut bytes = Box::new([0; PAGE]);
        self.below.read(start, &mut bytes[..len])?;
        Ok(bytes)
    }
}

impl BlockDevice for Scratch {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn sector_size(&self) -> u32 {
        self.below.sector_size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read(offset, buf)?;
        let pages = self.pages.read();
        let end = offset + buf.len() as u64;
        if pages.range(offset / PAGE as u64..end.div_ceil(PAGE as u64)).next().is_none() {
            return Ok(());
        }
        for (page, within, part) in Self::parts(offset, buf.len()) {
            if let Some(bytes) = pages.get(&page) {
                let len = part.len();
                buf[part].copy_from_slice(&bytes[within..within + len]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8], _durability: Durability) -> Result<(), DeviceError> {
        let (len, size) = (buf.len() as u64, self.size());
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfRange { offset, len, size });
        }
        let mut pages = self.pages.write();
        for (page, within, part) in Self::parts(offset, buf.len()) {
            let bytes = match pages.entry(page) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(none) => none.insert(self.page_below(page)?),
            };
            bytes[within..within + part.len()].copy_from_slice(&buf[part]);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn prefetches(&self) -> bool {
        self.below.prefetches()
    }

    fn prefetch(&self, offset: u64) {
        self.below.prefetch(offset);
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
    fn what_is_written_lies_over_the_device_and_leaves_it_as_it_is() {
        let below: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(10 << 10).unwrap());
        below.write(0, &[1; 10 << 10], Durability::Volatile).unwrap();
        let scratch = Scratch { below: Arc::clone(&below), pages: RwLock::default() };
        scratch.write(3584, &[2; 1024], Durability::Fua).unwrap();
        // The last page is a part of one.
        scratch.write(9728, &[3; 512], Durability::Volatile).unwrap();
        assert!(scratch.write(10 << 10, &[4; 512], Durability::Volatile).is_err(), "behind the end");
        let mut all = [0; 10 << 10];
        scratch.read(0, &mut all).unwrap();
        let expected = [vec![1; 3584], vec![2; 1024], vec![1; 5120], vec![3; 512]].concat();
        assert_eq!(all[..], expected[..]);
        scratch.read(4096, &mut all[..512]).unwrap();
        assert_eq!(all[..512], [2; 512]);
        below.read(0, &mut all).unwrap();
        assert_eq!(all, [1; 10 << 10]);
    }
}
