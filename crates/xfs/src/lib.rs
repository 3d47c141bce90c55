//! The XFS engine.
//!
//! A module a layer. `DESIGN.md` lists them in order: a module imports those before it and none behind it, which a test
//! (`module_order`) sees to. The short form: what is in memory and on the device (`log`, `buf`, `btree`, `inode`, …) lies
//! below [`mount`], which has all that a transaction needs; on that stands [`trans`], on that what happens in transactions
//! (`ialloc`, `bmap`, `file`, `namespace`, …), and on top [`volume`], which opens and closes.
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
