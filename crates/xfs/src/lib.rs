//! The XFS engine.
//!
//! One folder a layer, lowest first: `buf` (metadata buffers), `btree` (the short-form trees of a group), `rmap`
//! (the reverse map's rules), `ialloc` (where inodes are), `inode` (inodes and their cache), `bmap` (block maps of
//! forks), `dir`, `dcache` (names in memory), `attr`, and `volume`, which ties them together.
#![forbid(unsafe_code)]

mod agf;
pub mod alloc;
pub mod alter;
pub mod attr;
pub mod bmap;
pub mod btree;
pub mod buf;
mod cache;
pub mod check;
pub mod counters;
pub mod cow;
mod da;
pub mod dcache;
mod defer;
pub mod dir;
mod error;
mod exchange;
pub mod file;
pub mod fork;
pub mod group;
pub mod ialloc;
pub mod ifork;
pub mod imap;
mod inactive;
pub mod inode;
pub mod iomap;
mod keyed_hash;
mod lazy_table;
pub mod log;
pub mod mkfs;
pub mod mount;
pub mod namespace;
mod owner;
pub mod recovery;
pub mod refcount;
pub mod rmap;
pub mod setattr;
pub mod symlink;
#[doc(hidden)]
pub mod testing;
pub mod trans;
pub mod trans_fork;
pub mod upgrade;
pub mod volume;

pub use error::{Error, Result};
