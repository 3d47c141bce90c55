//! Recovery for a reader: the log's intents are finished as for a writer, and what that writes stays in memory.
//!
//! A log may end in the middle of a chain of deferred work: blocks were removed from a file, and those that replace
//! them are only promised. If only the log were replayed, such a file would be in neither its old nor its new state. So
//! a volume that is opened for reading goes through the whole recovery on a device that keeps writes in memory, over
//! one that is only read.
//!
//! Invariant: the device below is never written. Memory grows with the content of the log.

use super::Report;
use crate::error::{Error, Result};
use blockdev::{BlockDevice, DeviceError, DevicePlace, Durability, Layer};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Size of a kept page; a multiple of every sector size.
const PAGE: usize = 4096;

/// Written pages over a device.
#[derive(Debug)]
struct Scratch {
    below: Arc<dyn BlockDevice>,
    pages: RwLock<BTreeMap<u64, Box<[u8; PAGE]>>>,
}

/// A device that keeps in memory whatever is written to it.
pub fn in_memory(below: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    Arc::new(Scratch { below, pages: RwLock::default() })
}

/// Finishes the intents of a volume's log in memory. `finish` does so as a writer, and closes the volume. Returns the
/// resulting volume, for reading, and the report.
pub(crate) fn finish_in_memory(
    device: &Arc<dyn BlockDevice>,
    finish: impl FnOnce(Arc<dyn BlockDevice>) -> Result<Option<Report>>,
) -> Result<(Arc<dyn BlockDevice>, Report)> {
    let scratch = in_memory(Arc::clone(device));
    let report = finish(Arc::clone(&scratch))?;
    let report = report.ok_or_else(|| Error::CannotRecover("its log is clean".to_owned()))?;
    Ok((scratch, Report { written: false, ..report }))
}

impl Scratch {
    /// The parts of a request, one per page: the page, the offset in it, and the range in the buffer.
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

    /// A page of the device below. What lies past its end is zero.
    fn page_below(&self, page: u64) -> Result<Box<[u8; PAGE]>, DeviceError> {
        let start = page * PAGE as u64;
        let len = (self.below.size() - start).min(PAGE as u64) as usize;
        let mut bytes = Box::new([0; PAGE]);
        self.below.read(start, &mut bytes[..len])?;
        Ok(bytes)
    }
}

impl Layer for Scratch {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_read_only(&self) -> bool {
        false
    }

    /// Writers of this device do not write the device below.
    fn pass_place(&self) -> DevicePlace {
        DevicePlace::of_memory(self, self.below.size())
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
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

    fn pass_write(&self, offset: u64, buf: &[u8], _durability: Durability) -> Result<(), DeviceError> {
        let (len, size) = (buf.len() as u64, self.below.size());
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

    fn pass_flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn pass_prefetches(&self) -> bool {
        self.below.prefetches()
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
        // The last page is only a part of one.
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
