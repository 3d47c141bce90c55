//! What stands before another device: [`Layer`] says what it does otherwise, and all else is passed on.
//!
//! Invariant: size, sectors and place are those of the device below, so that a layer can be put around a device in use
//! and nobody takes it for another one ([`Claim`](crate::Claim)). Queues go through the layer's own calls, unless it has
//! queues of its own: no request gets past it.

use std::fmt::Debug;
use std::sync::Arc;

use crate::{BlockDevice, BlockingQueue, DeviceError, Durability, IoQueue, Place};

/// A device that stands before another one. It implements what it does otherwise, and is a [`BlockDevice`] by that.
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
        self.below().size()
    }

    fn sector_size(&self) -> u32 {
        self.below().sector_size()
    }

    fn is_read_only(&self) -> bool {
        self.below().is_read_only()
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

    fn place(&self) -> Place {
        self.below().place()
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        self.pass_queue(depth)
    }
}
