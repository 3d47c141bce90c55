//! The XFS engine.
//!
//! `DESIGN.md` lists the modules in order. A module imports only those before it; the test `module_order` checks this.
//! In short: what is in memory and on the device (`log`, `buf`, `btree`, `inode`, …) lies below [`mount`], which has
//! all that a transaction needs. [`trans`] stands on `mount`. The operations that run in transactions (`ialloc`,
//! `bmap`, `file`, `namespace`, …) stand on `trans`. [`volume`] is on top: it opens and closes.
#![forbid(unsafe_code)]

pub mod agf;
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
pub mod defer;
pub mod dir;
mod error;
mod exchange;
pub mod file;
pub mod fork;
pub mod group;
pub mod ialloc;
pub mod ifork;
pub mod imap;
pub mod inactive;
pub mod inode;
pub mod iomap;
mod keyed_hash;
mod lazy_table;
pub mod log;
pub mod mkfs;
pub mod mount;
pub mod namespace;
mod owner;
mod published;
pub mod recovery;
pub mod refcount;
pub mod rmap;
pub mod setattr;
pub mod symlink;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod trans;
pub mod upgrade;
pub mod volume;

pub use error::{Error, Result};
