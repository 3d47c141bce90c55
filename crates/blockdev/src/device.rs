//! The seam between whoever needs bytes on a device and whoever keeps them: [`BlockDevice`] and [`IoQueue`].

use std::fmt::Debug;
use std::sync::Arc;

use crate::{AlignedBuf, DeviceError, DevicePlace};

/// When a write must be on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// At the next [`BlockDevice::flush`].
    Volatile,
    /// Before the write completes (force unit access).
    Fua,
}

/// A block device. All calls may be made from any number of threads at once.
///
/// Two requests in flight on the same bytes give a mixture: each byte is from before or after. The device keeps
/// no order. Whoever needs one enforces it (a range lock, a buffer lock).
pub trait BlockDevice: Send + Sync + Debug {
    /// Size in bytes, a multiple of [`sector_size`](Self::sector_size).
    fn size(&self) -> u64;
    /// Smallest unit of a request, in bytes: a power of two from 512 to 4096, in practice one of these two.
    fn sector_size(&self) -> u32;
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Fills `buf` from byte `offset`. `offset` and the length are whole sectors; the buffer's address may be
    /// anything, but an [`AlignedBuf`] saves a copy on devices that transfer directly.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes `buf` at byte `offset`; alignment as for [`read`](Self::read).
    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError>;
    /// Makes every write that completed before this call durable. It is no error if the device has no flush, or
    /// is open for reading only: then nothing waits to become durable.
    ///
    /// A failure is permanent: every flush and [`Durability::Fua`] write that was in progress fails too, and so does
    /// every later one, with the same error, since data was lost. Devices guarantee this. Wrappers only have to ask
    /// the device below. Requests that a queue has in flight are not waited for.
    fn flush(&self) -> Result<(), DeviceError>;
    /// Whether a [durable write](Durability::Fua) costs less than a flush, as it makes only itself durable. Otherwise
    /// the device is flushed after each such write, and many writes do better to share one flush.
    fn has_fua(&self) -> bool {
        false
    }
    /// Whether written data may wait in a cache for a flush. Without a cache a flush costs nothing, and there is no
    /// need to share one. A wrapper that passes writes and flushes on gives the answer of the device below.
    fn has_write_cache(&self) -> bool {
        true
    }
    /// Whether failures are always errors and never panics. A wrapper that does not panic itself gives the answer of
    /// the device below.
    fn catches_panics(&self) -> bool {
        false
    }
    /// Where the bytes are kept, to keep a second writer in this process out ([`Claim`](crate::Claim)). A
    /// wrapper gives the answer of the device below.
    fn place(&self) -> DevicePlace {
        DevicePlace::of_memory(self, self.size())
    }
    /// Whether [`prefetch`](Self::prefetch) does anything: it does if the bytes are in memory.
    fn prefetches(&self) -> bool {
        false
    }
    /// Whether the bytes are in memory, so that a read waits for nothing and reading ahead gains nothing. A wrapper that
    /// delays nothing gives the answer of the device below.
    fn is_in_memory(&self) -> bool {
        self.prefetches()
    }
    /// Starts to fetch what lies at byte `offset`, and returns at once: a request on it comes next. Any offset is
    /// allowed; what does not exist is ignored.
    fn prefetch(&self, offset: u64) {
        let _ = offset;
    }
    /// A queue that keeps up to `depth` requests in flight, for one thread.
    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError>;
}

/// Requests in flight, owned by one thread. Buffers are lent to the queue and come back with the completion.
///
/// A push fails only by a mistake of the caller (no room, out of range, misaligned, read-only), and then
/// drops the buffer. Failures of the device come with the completion. Requests complete in any order.
/// Dropping a queue waits for what the host already has and may carry out what was pushed but not submitted.
pub trait IoQueue: Send {
    /// How many requests fit.
    fn depth(&self) -> u32;
    /// How many requests were pushed and not yet handed back.
    fn in_flight(&self) -> u32;
    /// Adds a read of `buf.len()` bytes at byte `offset`. `tag` comes back with the completion.
    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError>;
    /// Adds a write of the whole `buf` at byte `offset`.
    fn push_write(
        &mut self,
        offset: u64,
        buf: AlignedBuf,
        durability: Durability,
        tag: u64,
    ) -> Result<(), DeviceError>;
    /// Hands what was pushed to the device.
    fn submit(&mut self) -> Result<(), DeviceError>;
    /// Submits, waits until at least `min` requests are done (0: does not wait; never more than are in flight),
    /// and hands each one that is to `done`. Returns how many.
    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError>;
}

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The tag it was pushed with.
    pub tag: u64,
    /// Its buffer, filled if it was a read that succeeded.
    pub buf: AlignedBuf,
    /// The result.
    pub result: Result<(), DeviceError>,
}
