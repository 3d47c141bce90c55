//! Making and freeing inodes: chunks, the trees that list them, and the lists of inodes that have no name.
//!
//! All of it happens in a transaction that has the group's AGI (`locked`).

mod chunk;
mod create;
mod locked;
mod pick;
mod trees;
mod unlinked;

pub(crate) use create::{clusters, encode_free};
pub use pick::{allocate_inode, free_inode};
pub use unlinked::{add_unlinked, for_each_unlinked, remove_unlinked};
