//! What a transaction does under an AGF: free space, rmap and refcount trees of a group.
//!
//! The roots of these trees lie in the AGF, so whoever has that locked has all of them. [`alloc`](crate::alloc),
//! [`rmap`](crate::rmap) and [`refcount`](crate::refcount) decide what happens to them and know no transaction. This
//! module has the stores that they change.

mod locked;
mod trees;

pub use locked::allocate;
pub(crate) use locked::{
    LockedSpace, change_refcounts, change_rmap, claim_for_owners, free_blocks, promise_to_copies,
};
