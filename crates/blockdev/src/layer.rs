//! Wrappers around devices: a [`Layer`] implements what it changes, and passes everything else on.
//!
//! Invariant: unless a layer says otherwise, size, sectors and place are those of the device below, so a layer can wrap a
//! device in use without being taken for another one ([`Claim`](crate::Claim)). Unless the layer has queues of its own,
//! queues use its calls: no request bypasses it.

use std::fmt::Debug;
use std::sync::Arc;

use crate::{BlockDevice, BlockingQueue, DeviceError, DevicePlace, Durability, IoQueue};

/// A wrapper around another device. It implements what it changes, and becomes a [`BlockDevice`].
///
/// ```
/// use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct NeverDurable(Arc<dyn BlockDevice>);
///
/// impl Layer for NeverDurable {
///     fn below(&self) -> &Arc<dyn BlockDevice> {
///         &self.0
///     }
///
///     fn pass_flush(&self) -> Result<(), DeviceError> {
///         Ok(())
///     }
/// }
/// # fn main() -> Result<(), DeviceError> {
/// let device = NeverDurable(Arc::new(MemoryDevice::anonymous(1 << 20)?));
/// device.write(0, &[7; 512], Durability::Volatile)?;
/// device.flush()?;
/// # Ok(())
/// # }
/// ```
pub trait Layer: Send + Sync + Debug {
    /// The device below.
    fn below(&self) -> &Arc<dyn BlockDevice>;

    /// Size in bytes.
    fn pass_size(&self) -> u64 {
        self.below().size()
    }

    /// Smallest unit of a request, in bytes.
    fn pass_sector_size(&self) -> u32 {
        self.below().sector_size()
    }

    /// Whether writes are refused.
    fn pass_read_only(&self) -> bool {
        self.below().is_read_only()
    }

    /// What a read does.
    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.below().read(offset, buf)
    }

    /// What a write does.
    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.below().write(offset, buf, durability)
    }

    /// What a flush does.
    fn pass_flush(&self) -> Result<(), DeviceError> {
        self.below().flush()
    }

    /// Whether durable writes spare a flush.
    fn pass_fua(&self) -> bool {
        self.below().has_fua()
    }

    /// Whether what was written may wait in a cache for a flush. Whoever makes nothing else of writes and flushes may say what the
    /// device below says.
    fn pass_write_cache(&self) -> bool {
        true
    }

    /// Whether what goes wrong inside comes out as an error. Whoever panics at nothing itself may say what the device below
    /// says.
    fn pass_catches_panics(&self) -> bool {
        false
    }

    /// Where the bytes are kept.
    fn pass_place(&self) -> DevicePlace {
        self.below().place()
    }

    /// Whether hints of what is asked for next do anything.
    fn pass_prefetches(&self) -> bool {
        false
    }

    /// Whether reads wait for nothing.
    fn pass_in_memory(&self) -> bool {
        self.pass_prefetches()
    }

    /// What such a hint does.
    fn pass_prefetch(&self, offset: u64) {
        if self.pass_prefetches() {
            self.below().prefetch(offset);
        }
    }

    /// A queue whose requests do what calls do.
    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError>
    where
        Self: Sized + 'static,
    {
        Ok(Box::new(BlockingQueue::new(self, depth)?))
    }
}

impl<L: Layer + 'static> BlockDevice for L {
    fn size(&self) -> u64 {
        self.pass_size()
    }

    fn sector_size(&self) -> u32 {
        self.pass_sector_size()
    }

    fn is_read_only(&self) -> bool {
        self.pass_read_only()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.pass_read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.pass_write(offset, buf, durability)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.pass_flush()
    }

    fn has_fua(&self) -> bool {
        self.pass_fua()
    }

    fn has_write_cache(&self) -> bool {
        self.pass_write_cache()
    }

    fn catches_panics(&self) -> bool {
        self.pass_catches_panics()
    }

    fn place(&self) -> DevicePlace {
        self.pass_place()
    }

    fn prefetches(&self) -> bool {
        self.pass_prefetches()
    }

    fn is_in_memory(&self) -> bool {
        self.pass_in_memory()
    }

    fn prefetch(&self, offset: u64) {
        self.pass_prefetch(offset);
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        self.pass_queue(depth)
    }
}
