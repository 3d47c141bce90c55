//! Block devices in user space.
//!
//! One trait, [`BlockDevice`], with blocking calls and a submission queue ([`IoQueue`]). Offsets and lengths
//! are bytes and multiples of the device's sector size. This crate knows no file system.

mod buf;

use std::fmt::Debug;
use std::sync::Arc;

pub use buf::AlignedBuf;

/// When a write must be on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At the next [`BlockDevice::flush`].
    Volatile,
    /// Before the write completes (force unit access).
    Fua,
}

/// Why a device refused or failed a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The request lies wholly or in part behind the end of the device.
    #[error("{len} bytes at byte {offset} lie outside the device of {size} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The request is not a multiple of the sector size.
    #[error("{len} bytes at byte {offset} are not whole sectors of {sector} bytes")]
    Misaligned {
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// The device's sector size in bytes.
        sector: u32,
    },
    /// A write or flush of a device that was opened for reading only.
    #[error("the device is open for reading only")]
    ReadOnly,
    /// Another process has the image open for writing.
    #[error("another process has the image open (it holds the lock)")]
    Locked,
    /// The queue holds as many requests as it has room for.
    #[error("the queue is full")]
    QueueFull,
    /// The host failed the request.
    #[error("{op} of {len} bytes at byte {offset} failed: {source}")]
    Io {
        /// `read`, `write`, `flush`, …
        op: &'static str,
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// What the host said.
        source: std::io::Error,
    },
    /// The device could not be opened or set up.
    #[error("{what}: {source}")]
    Setup {
        /// What was being done.
        what: String,
        /// What the host said.
        source: std::io::Error,
    },
}

/// A block device. All calls may be made from any number of threads at once.
///
/// Two requests in flight on the same bytes give either's result, sector by sector; whoever needs an order
/// keeps it (a range lock, a buffer lock).
pub trait BlockDevice: Send + Sync + Debug {
    /// Size in bytes, a multiple of [`sector_size`](Self::sector_size).
    fn size(&self) -> u64;
    /// Smallest unit of a request, in bytes: 512 or 4096.
    fn sector_size(&self) -> u32;
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Fills `buf` from byte `offset`. `offset` and the length are whole sectors; the buffer's address may be
    /// anything, but an [`AlignedBuf`] spares a copy on devices that transfer directly.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes `buf` at byte `offset`; alignment as for [`read`](Self::read).
    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError>;
    /// Makes every write that completed before this call durable. A device without a flush is not an error.
    fn flush(&self) -> Result<(), DeviceError>;
    /// A queue that keeps up to `depth` requests in flight, for one thread.
    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError>;
}

/// Requests in flight, owned by one thread. Buffers are lent to the queue and come back with the completion.
pub trait IoQueue: Send {
    /// How many requests fit.
    fn depth(&self) -> u32;
    /// How many requests were pushed and not yet handed back.
    fn in_flight(&self) -> u32;
    /// Adds a read of `buf.len()` bytes at byte `offset`. `tag` comes back with the completion.
    /// On an error the buffer is dropped with it only if it is the caller's own fault (range, alignment).
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
    /// Submits, waits until at least `min` requests are done (0: does not wait), and hands each one that is to
    /// `done`. Returns how many.
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
