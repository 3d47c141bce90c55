//! What a transaction does under an AGF: free space, the reverse map and the reference counts of a group.
//!
//! The roots of these trees lie in the AGF, and who has that locked has them all. What happens to them is decided by
//! [`alloc`](crate::alloc), [`rmap`](crate::rmap) and [`refcount`](crate::refcount), which know no transaction; here are the
//! stores that they change.

mod locked;
mod trees;

pub use locked::allocate;
pub(crate) use locked::{
    LockedSpace, change_counts, change_rmap, claim_for_owners, free_blocks, promise_to_copies,
};
