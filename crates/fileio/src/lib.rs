//! The data path of one open file.
//!
//! Generic over [`FileMapping`], the seam between data path and format: this crate knows no on-disk format.
//!
//! - [`DirectFile`]: blocking reads and overwrites, past every cache, from any number of threads at once.
//! - [`DirectQueue`]: the same with many requests in flight, owned by one thread.
//! - [`Locking`]: which design keeps requests apart, so that before and after can be run side by side.
//! - [`Flushing`]: how those who wait for the device's flush share it ([`SharedFlush`]).
//!
//! The way of an overwrite: range lock, extent lookup, device write, unlock. Nothing else: no heap allocation,
//! no transaction, no inode lock. A write for which there is no room yet asks [`FileMappingMut`] for it, writes, and
//! says that it has.

mod cache;
mod direct;
mod error;
mod flush;
mod lock;
mod locking;
mod mapping;
mod queue;
mod sync;
#[doc(hidden)]
pub mod testing;

pub use cache::{
    BufferedFile, Failure, HeldFile, HeldToChange, HeldToCut, PageCache, SyncCursor, Unbuffered, Writers,
};
pub use direct::{DirectFile, FILE_END_MAX};
pub use error::{FileError, Refusal};
pub use flush::{FlushDevice, Flushing, SharedFlush, UnknownFlushing};
pub use lock::Held;
pub use locking::{Locking, UnknownLocking};
pub use mapping::{
    CopyOnWrite, DelayedAllocation, Extent, ExtentState, FileMapping, FileMappingMut, FileSpace, Found,
    MapSeq, Staged,
};
pub use queue::{DirectQueue, FileCompletion};
