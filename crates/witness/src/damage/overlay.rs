//! A device whose damage lies over a sound image: the image is shared, only changed sectors take memory.

use blockdev::{BlockDevice, DeviceError, Durability, Layer};
use std::collections::BTreeMap;
use std::sync::Arc;

const SECTOR: usize = 512;

/// An image with other content in some sectors, for reading; perhaps cut short.
#[derive(Debug)]
pub struct Overlay {
    base: Arc<dyn BlockDevice>,
    sectors: BTreeMap<u64, [u8; SECTOR]>,
    size: u64,
}

impl Overlay {
    /// Nothing changed yet.
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        let size = base.size();
        Self { base, sectors: BTreeMap::new(), size }
    }

    /// Changes bytes. `at` and the length are whole sectors; what lies past the end of the image is left
    /// out.
    pub fn change(&mut self, at: usize, bytes: &[u8]) {
        let first = (at / SECTOR) as u64;
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            if let Ok(bytes) = bytes.try_into() {
                self.sectors.insert(sector, bytes);
            }
        }
    }

    /// What was changed: sectors and where they are.
    pub fn changed(&self) -> impl Iterator<Item = (u64, &[u8; SECTOR])> {
        self.sectors.iter().map(|(sector, bytes)| (sector * SECTOR as u64, bytes))
    }

    /// Ends the device at `size` bytes, if that is less.
    pub fn cut(&mut self, size: u64) {
        self.size = self.size.min(size / SECTOR as u64 * SECTOR as u64);
    }
}

impl Layer for Overlay {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.base
    }

    fn pass_size(&self) -> u64 {
        self.size
    }

    fn pass_sector_size(&self) -> u32 {
        SECTOR as u32
    }

    fn pass_read_only(&self) -> bool {
        true
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(DeviceError::OutOfRange { offset, len, size: self.size });
        }
        self.base.read(offset, buf)?;
        let first = offset / SECTOR as u64;
        for (sector, bytes) in self.sectors.range(first..first + len.div_ceil(SECTOR as u64)) {
            let at = (sector - first) as usize * SECTOR;
            if let Some(place) = buf.get_mut(at..at + SECTOR) {
                place.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn pass_write(&self, _: u64, _: &[u8], _: Durability) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    #[test]
    fn changes_lie_over_the_image() {
        let mut device = Overlay::new(Arc::new(MemoryDevice::anonymous(8192).unwrap()));
        device.change(1024, &[7; 1024]);
        let mut buf = [1; 2048];
        device.read(512, &mut buf).unwrap();
        assert_eq!((buf[511], buf[512], buf[1535], buf[1536]), (0, 7, 7, 0));
        device.cut(2000);
        assert_eq!(device.size(), 1536);
        assert!(device.read(1536, &mut buf[..512]).is_err());
        device.read(1024, &mut buf[..512]).unwrap();
    }
}
