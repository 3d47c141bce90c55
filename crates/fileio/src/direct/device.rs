//! Transfers of any bytes of a device, in whole sectors.
//!
//! A partly covered sector goes through a sector of memory of the thread's own: read, merged, written. The caller holds
//! those sectors. Invariant: that memory is nobody else's while the device works, which may be a file of this very kind (an
//! image within an image) and want some too.

use std::cell::RefCell;

use blockdev::{AlignedBuf, DeviceError, Durability};

use super::DirectFile;

/// The largest sector that a device may have, in bytes.
const SECTOR_BYTES_MAX: usize = 4096;

thread_local! {
    /// As many as were in use at once: one for each device that lay upon another.
    static SECTORS: RefCell<Vec<AlignedBuf>> = const { RefCell::new(Vec::new()) };
}

/// A request cut at the first and the last sector boundary inside it.
struct Cut {
    /// Bytes before the first boundary (all of them, if there is none).
    head: usize,
    /// Bytes of whole sectors after that.
    middle: usize,
}

impl<M> DirectFile<M> {
    /// Fills `buf` from byte `at` of the device.
    #[inline]
    pub(crate) fn read_device(&self, at: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if (at | buf.len() as u64) & self.sector_mask == 0 {
            return self.device.read(at, buf);
        }
        self.read_cut(at, buf)
    }

    /// Writes `buf` at byte `at` of the device.
    #[inline]
    pub(crate) fn write_device(&self, at: u64, buf: &[u8]) -> Result<(), DeviceError> {
        if (at | buf.len() as u64) & self.sector_mask == 0 {
            return self.device.write(at, buf, Durability::Volatile);
        }
        self.write_cut(at, buf)
    }

    #[cold]
    fn read_cut(&self, at: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let cut = self.cut(at, buf.len());
        let (head, rest) = buf.split_at_mut(cut.head);
        let (middle, tail) = rest.split_at_mut(cut.middle);
        let middle_at = at + head.len() as u64;
        self.read_part(at, head)?;
        if !middle.is_empty() {
            self.device.read(middle_at, middle)?;
        }
        self.read_part(middle_at + middle.len() as u64, tail)
    }

    #[cold]
    fn write_cut(&self, at: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let cut = self.cut(at, buf.len());
        let (head, rest) = buf.split_at(cut.head);
        let (middle, tail) = rest.split_at(cut.middle);
        let middle_at = at + head.len() as u64;
        self.write_part(at, head)?;
        if !middle.is_empty() {
            self.device.write(middle_at, middle, Durability::Volatile)?;
        }
        self.write_part(middle_at + middle.len() as u64, tail)
    }

    fn cut(&self, at: u64, len: usize) -> Cut {
        let mask = self.sector_mask as usize;
        let past = (at & self.sector_mask) as usize;
        let head = if past == 0 { 0 } else { (mask + 1 - past).min(len) };
        Cut { head, middle: (len - head) & !mask }
    }

    /// Reads a part of one sector.
    fn read_part(&self, at: u64, part: &mut [u8]) -> Result<(), DeviceError> {
        self.with_sector(at, part.len(), |sector_at, sector, range| {
            self.device.read(sector_at, sector)?;
            part.copy_from_slice(&sector[range]);
            Ok(())
        })
    }

    /// Writes a part of one sector, and the rest of it as it was.
    fn write_part(&self, at: u64, part: &[u8]) -> Result<(), DeviceError> {
        self.with_sector(at, part.len(), |sector_at, sector, range| {
            self.device.read(sector_at, sector)?;
            sector[range].copy_from_slice(part);
            self.device.write(sector_at, sector, Durability::Volatile)
        })
    }

    /// Lends a sector's memory, with the device byte that it starts at and where in it the part lies.
    fn with_sector(
        &self,
        at: u64,
        len: usize,
        work: impl FnOnce(u64, &mut [u8], std::ops::Range<usize>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        if len == 0 {
            return Ok(());
        }
        let past = (at & self.sector_mask) as usize;
        let spare = SECTORS.with_borrow_mut(Vec::pop);
        let mut memory = spare.unwrap_or_else(|| AlignedBuf::zeroed(SECTOR_BYTES_MAX));
        let sector = &mut memory[..self.sector_mask as usize + 1];
        let worked = work(at - past as u64, sector, past..past + len);
        SECTORS.with_borrow_mut(|spares| spares.push(memory));
        worked
    }
}
