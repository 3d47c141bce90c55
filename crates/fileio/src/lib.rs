//! The data path of one open file.
//!
//! Generic over [`FileMapping`], the seam between data path and format: this crate knows no on-disk format.

mod locking;
mod mapping;

pub use locking::{Locking, UnknownLocking};
pub use mapping::{Extent, ExtentState, FileMapping, MapSeq};
