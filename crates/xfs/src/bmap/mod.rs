//! Block maps of forks: changing where a fork's blocks lie.
//!
//! [`edit`] is the editor of one fork's map, with which a transaction changes the maps of its inodes. It knows inodes
//! and transactions, and nothing of a fork's content. A [`TransFork`] is one fork of an inode in a transaction, for
//! code that does know the content.

pub mod edit;
mod map;
mod remap;
mod trans_fork;

pub(crate) use map::{fit_map, map, mark, shift_map, split_map, unmap};
pub(crate) use remap::defer_remap;
pub use trans_fork::TransFork;
pub(crate) use trans_fork::{DATA_BYTES_USUAL, allocation_target, extents};

use crate::defer;
use crate::error::Result;
use crate::trans::{Trans, Work};

/// Finishes an item of this layer or of one below. Returns the remaining work.
pub(crate) fn finish_item(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Map(update) => remap::finish_bmap(trans, update).map(|rest| rest.map(Work::Map)),
        other => defer::finish_item(trans, other),
    }
}
