//! A device whose first sector is written last.
//!
//! For something new that is recognised by its first sector: until [`Withheld::finish`], the device below is not
//! recognised as such, even if the process is killed or fails. Invariant: the sector is never written below before
//! then, and then only when all that was written before is durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{AlignedBuf, BlockDevice, DeviceError, Durability, Layer};

/// A device whose first sector stays in memory until the end.
#[derive(Debug)]
pub struct Withheld {
    inner: Arc<dyn BlockDevice>,
    first: Mutex<AlignedBuf>,
}

impl Withheld {
    /// Withholds the first sector of `inner`, which begins as zeroes, above and, at once, below.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Result<Self, DeviceError> {
        let first = AlignedBuf::zeroed(inner.sector_size() as usize);
        inner.write(0, &first, Durability::Volatile)?;
        inner.flush()?;
        Ok(Self { inner, first: Mutex::new(first) })
    }

    /// Makes all writes durable, then the first sector. Later writes to it are lost.
    pub fn finish(&self) -> Result<(), DeviceError> {
        let first = self.first();
        self.inner.flush()?;
        self.inner.write(0, &first, Durability::Fua)
    }

    fn first(&self) -> MutexGuard<'_, AlignedBuf> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Layer for Withheld {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(offset, buf)?;
        if offset == 0 && !buf.is_empty() {
            let first = self.first();
            buf[..first.len()].copy_from_slice(&first);
        }
        Ok(())
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        let sector = self.sector_size() as usize;
        if offset != 0 || buf.len() < sector || !buf.len().is_multiple_of(sector) {
            return self.inner.write(offset, buf, durability);
        }
        let (first, rest) = buf.split_at(sector);
        self.first().copy_from_slice(first);
        if rest.is_empty() { Ok(()) } else { self.inner.write(sector as u64, rest, durability) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn the_first_sector_comes_last() {
        let below: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 16).unwrap());
        below.write(0, &[9; 1024], Durability::Volatile).unwrap();
        let device = Withheld::new(Arc::clone(&below)).unwrap();
        let read = |device: &dyn BlockDevice| {
            let mut bytes = [7; 1536];
            device.read(0, &mut bytes).unwrap();
            [bytes[0], bytes[511], bytes[512], bytes[1024]]
        };
        assert_eq!((read(&device), read(&*below)), ([0, 0, 9, 0], [0, 0, 9, 0]));
        device.write(0, &[1; 1536], Durability::Fua).unwrap();
        device.write(512, &[2; 512], Durability::Volatile).unwrap();
        device.flush().unwrap();
        assert_eq!((read(&device), read(&*below)), ([1, 1, 2, 1], [0, 0, 2, 1]));
        device.write(0, &[3; 512], Durability::Volatile).unwrap();
        device.finish().unwrap();
        assert_eq!(read(&*below), [3, 3, 2, 1]);
        assert!(device.write(0, &[1; 100], Durability::Volatile).is_err());
    }
}
