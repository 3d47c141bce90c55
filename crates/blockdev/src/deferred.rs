//! A device that makes nothing durable before it is told that the work is done.
//!
//! For something that is being made, which nobody has yet: if the host goes down meanwhile, it is made again. Invariant:
//! only after [`Deferred::finish`] is anything that was written known to be durable, and then all of it.

use std::sync::Arc;

use crate::{BlockDevice, BlockingQueue, DeviceError, Durability, IoQueue};

/// A device whose flushes wait for [`finish`](Self::finish). Meant for one that is reached through the page cache, which
/// takes writes at once.
#[derive(Debug)]
pub struct Deferred {
    inner: Arc<dyn BlockDevice>,
}

impl Deferred {
    /// Defers what `inner` is asked to make durable.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner }
    }

    /// Makes everything durable that was written before.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
}

impl BlockDevice for Deferred {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8], _: Durability) -> Result<(), DeviceError> {
        self.inner.write(offset, buf, Durability::Volatile)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(BlockingQueue::new(self, depth)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, MemoryDevice};

    #[test]
    fn nothing_is_flushed_before_the_end() {
        let counter = Arc::new(Counter::new(Arc::new(MemoryDevice::anonymous(1 << 20).unwrap())));
        let device = Arc::new(Deferred::new(Arc::clone(&counter) as Arc<dyn BlockDevice>));
        device.write(0, &[1; 512], Durability::Fua).unwrap();
        let mut queue = Arc::clone(&device).queue(4).unwrap();
        queue.push_write(512, crate::AlignedBuf::zeroed(512), Durability::Fua, 0).unwrap();
        queue.wait(1, &mut |over| over.result.unwrap()).unwrap();
        device.flush().unwrap();
        let counts = counter.counts();
        assert_eq!((counts.writes, counts.fua_writes, counts.flushes), (2, 0, 0));
        device.finish().unwrap();
        assert_eq!(counter.counts().flushes, 1);
    }
}
