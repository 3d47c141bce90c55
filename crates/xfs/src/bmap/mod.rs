//! Block maps of forks: changing where a fork's blocks lie.
//!
//! [`edit`] is the editor of one fork's map; a transaction changes the maps of its inodes by it. It knows inodes and
//! transactions, and nothing of what a fork holds.

pub mod edit;
mod map;
mod remap;

pub(crate) use map::{fit_map, map, mark, shift_map, split_map, unmap};
pub(crate) use remap::remap_later;

use crate::defer;
use crate::error::Result;
use crate::trans::{Trans, Work};

/// Carries out a piece of work of this layer, or of one below; gives what is left of it.
pub(crate) fn carry_out(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Map(update) => remap::remap(trans, update).map(|rest| rest.map(Work::Map)),
        other => defer::carry_out(trans, other),
    }
}
