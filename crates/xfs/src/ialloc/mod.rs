//! Making and freeing inodes: chunks, the inode trees, and the unlinked lists.
//!
//! All of it happens in a transaction that has the group's AGI locked (`locked`).

mod chunk;
mod create;
mod locked;
mod pick;
mod trees;
mod unlinked;

pub(crate) use create::{clusters, encode_free};
pub use pick::{allocate_inode, free_inode};
pub use unlinked::{add_unlinked, for_each_unlinked, remove_unlinked};
