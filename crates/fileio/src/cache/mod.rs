//! Buffered I/O: pages of files in memory, and how they get to the device.
//!
//! - [`PageCache`]: what all files of a volume share: the bound on memory, who is let go, which files are to be written back.
//! - [`BufferedFile`]: one file, read and written through its pages, past them, or both at once.
//!
//! The file's range lock is the lock of its pages too. Who reads or writes bytes holds these bytes and no more, so that a
//! reader never sees half a write, and writers to other ranges never wait. Who brings a block into memory, or makes a clean
//! one dirty, holds that block exclusively; who lets a folio go holds all of it exclusively. So a search needs no lock.

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
