//! The seam between whoever needs bytes on a device and whoever keeps them: [`BlockDevice`] and [`IoQueue`].

use std::fmt::Debug;
use std::sync::Arc;

use crate::{AlignedBuf, DeviceError, Place, Storage};

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
/// Two requests in flight on the same bytes give a mixture: each byte is from before or after, no order is kept
/// between them. Whoever needs an order keeps it (a range lock, a buffer lock).
pub trait BlockDevice: Send + Sync + Debug {
    /// Size in bytes, a multiple of [`sector_size`](Self::sector_size).
    fn size(&self) -> u64;
    /// Smallest unit of a request, in bytes: a power of two from 512 to 4096, in practice one of these two.
    fn sector_size(&self) -> u32;
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Fills `buf` from byte `offset`. `offset` and the length are whole sectors; the buffer's address may be
    /// anything, but an [`AlignedBuf`] spares a copy on devices that transfer directly.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes `buf` at byte `offset`; alignment as for [`read`](Self::read).
    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError>;
    /// Makes every write that completed before this call durable. A device without a flush is not an error, nor
    /// is one that is open for reading only: nothing of it waits to become durable.
    ///
    /// That one failed is known for good: every flush and every [`Durability::Fua`] write that was under way beside it
    /// fails too, and every later one, with the same error, since what was to be made durable is lost. Whoever makes a
    /// device sees to that, and whoever stands before another one only has to ask that one. What a queue has in flight
    /// is not waited for.
    fn flush(&self) -> Result<(), DeviceError>;
    /// Whether a write that is to be [durable on completion](Durability::Fua) makes that write durable and no more, which
    /// costs less than a flush. Where it does not, the device is flushed behind such a write, and many are better off with one
    /// flush for all.
    fn has_fua(&self) -> bool {
        false
    }
    /// Whether what was written may wait in a cache for a flush. Where nothing does, a flush costs nothing, and nobody need
    /// share one. Whoever stands before another device, and makes nothing else of writes and flushes, says what that one says.
    fn has_write_cache(&self) -> bool {
        true
    }
    /// Whether what goes wrong inside comes out as an error, and never as a panic. Whoever stands before another device, and
    /// panics at nothing itself, says what that one says.
    fn catches_panics(&self) -> bool {
        false
    }
    /// Where its bytes are kept: so that nobody writes a device that has a writer in this process already
    /// ([`Claim`](crate::Claim)). Whoever stands before another device says what that one says.
    fn place(&self) -> Place {
        let address = std::ptr::from_ref(self).cast::<()>().addr();
        Place { storage: Storage::Memory(address), start: 0, len: self.size() }
    }
    /// Whether [`prefetch`](Self::prefetch) does anything: it does where bytes are in memory.
    fn prefetches(&self) -> bool {
        false
    }
    /// Starts to bring what lies at byte `offset` nearer, and returns at once: a request on it comes next. Anything
    /// may be asked for; what does not exist is left out.
    fn prefetch(&self, offset: u64) {
        let _ = offset;
    }
    /// A queue that keeps up to `depth` requests in flight, for one thread.
    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError>;
}

/// Requests in flight, owned by one thread. Buffers are lent to the queue and come back with the completion.
///
/// A push fails only through the caller's own fault (no room, out of range, misaligned, read-only), and drops
/// the buffer then; what the device does wrong comes with the completion. Requests complete in any order.
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

/// A request that is over.
#[derive(Debug)]
pub struct Completion {
    /// The tag it was pushed with.
    pub tag: u64,
    /// Its buffer, filled if it was a read that succeeded.
    pub buf: AlignedBuf,
    /// How it went.
    pub result: Result<(), DeviceError>,
}
