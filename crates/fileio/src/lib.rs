//! The data path of one open file.
//!
//! It is generic over [`FileMapping`], the interface between data path and format: this crate knows no on-disk format.
//!
//! - [`DirectFile`]: blocking reads and overwrites, bypassing every cache, from any number of threads at once.
//! - [`DirectQueue`]: the same with many requests in flight, owned by one thread.
//! - [`Locking`]: which design keeps requests apart, so that old and new designs can be compared.
//! - [`Flushing`]: how threads that wait for the device's flush share it ([`SharedFlush`]).
//!
//! The course of an overwrite: range lock, extent lookup, device write, unlock. There is nothing else: no heap
//! allocation, no transaction, no inode lock. A write that has no space yet asks [`FileMappingMut`] for it, writes, and
//! reports that it has.

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
    CopyOnWrite, DelayedAllocation, Extent, ExtentState, FileMapping, FileMappingMut, FileSpace, MapLookup,
    MapSeq, Staged,
};
pub use queue::{DirectQueue, FileCompletion};
