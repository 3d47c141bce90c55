//! Buffered I/O: pages of files in memory, and how they get to the device.
//!
//! - [`PageCache`]: what all files of a volume share: the memory limit, eviction, and which files are to be written
//!   back.
//! - [`BufferedFile`]: one file, read and written through its pages, without them, or both at once.
//!
//! The file's range lock is also the lock of its pages. Whoever reads or writes bytes holds exactly these bytes. So a
//! reader never sees half a write, and writers to other ranges never wait. Bringing a block into memory, or making a
//! clean one dirty, needs that block held exclusively; evicting a folio needs all of it held exclusively. So a search
//! needs no lock.

mod buffered;
mod coherence;
mod counted;
mod cut;
mod extend;
mod failures;
mod fill;
mod folio;
mod index;
mod pages;
mod pool;
mod shape;
mod streams;
mod writeback;
mod writers;

pub use buffered::BufferedFile;
pub use coherence::{HeldFile, HeldToChange, Unbuffered};
pub use cut::HeldToCut;
pub use failures::{Failure, SyncCursor};

pub use pool::PageCache;
pub use writers::Writers;
