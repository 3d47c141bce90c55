//! Changing the refcounts of a group's blocks.
//!
//! The refcount tree has two domains. The *shared* domain has the number of owners of blocks with more than one: blocks
//! in use that it does not list have a single owner. The *CoW* domain, which the highest bit of a record's start marks
//! and which thus sorts last, lists the extents that are staged for copy-on-write. Each has a count of 1 and belongs to
//! no file yet, and the next mount after a crash frees it.
//!
//! Invariants of each change: counts are at least 2 in the shared domain and 1 in the CoW domain. Adjacent records of a
//! domain have different counts, so the same sharing has only one representation. No block is in both domains. A count
//! that has reached [`COUNT_MAX`] stays there for ever.
//!
//! Nothing here knows of transactions: the functions change a tree through a [`BtreeCursor`] and return what is to be
//! freed. Each has a maximum number of tree changes, from which the log reservation is computed
//! ([`blocks_of_changes`]). All reading is done before the first change, so that corruption which is met leaves the
//! tree as it was.
//!
//! ```text
//! adjust               one owner more or less, for as many pieces of a run as a transaction has room for
//! add_cow, remove_cow  a staging extent is added, or removed (to a file, or back to free space)
//! find_shared          the first part of a run that has more than one owner
//! Sharing              what the trees say of blocks, for readers
//! first_cow            one staging extent after the other: what a crash left
//! ```

mod adjust;
mod cow;
mod record;
mod shared;
mod sharing;
#[cfg(test)]
mod tests;
mod window;

pub use adjust::{Adjust, Adjusted, adjust, changes_of_adjust};
pub use cow::{COW_CHANGES, add_cow, first_cow, remove_cow};
pub use record::COUNT_MAX;
pub use shared::find_shared;
pub use sharing::SharedRun;
pub(crate) use sharing::Sharing;

use crate::alloc::AgExtent;
use crate::btree::edit::{BtreeCursor, TreeStore};
use crate::error::{Error, Result};
use record::Domain;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::RefcountRecord;
use xfs_format::types::{AgBlock, AgNumber, DiskAddr};

/// A refcount tree.
pub trait CountStore: TreeStore<Tree = Refcountbt> {}
impl<S: TreeStore<Tree = Refcountbt>> CountStore for S {}

/// Maximum number of blocks that this many adjacent changes log, in a tree with this many levels.
///
/// On each level these are the blocks with the changed entries, as many new ones if they are split, and at either end a
/// neighbour that gives or takes entries or only gets a new sibling; and a new root. Each changed block changes one
/// entry on the level above.
pub fn blocks_of_changes(geometry: &Geometry, levels: u32, changes: u32) -> u32 {
    let body = (geometry.block_size as usize).saturating_sub(Refcountbt::header_len(geometry.v5));
    let (leaf, inner) = (Refcountbt::max_records(body) / 2, Refcountbt::max_children(body) / 2);
    let (mut entries, mut blocks) = (changes, 1_u32);
    for level in 0..levels {
        let least = if level == 0 { leaf } else { inner };
        entries = (entries / (least.max(1) as u32)).saturating_mul(2).saturating_add(6);
        blocks = blocks.saturating_add(entries);
    }
    blocks
}

/// The group of a tree.
fn group<S: CountStore>(editor: &BtreeCursor<S>) -> AgNumber {
    AgNumber(editor.store().owner() as u32)
}

/// Blocks of the group that a record can list.
fn group_blocks<S: CountStore>(editor: &BtreeCursor<S>) -> u64 {
    editor.store().geometry().ag_blocks_of(group(editor)).min(RefcountRecord::COW).into()
}

/// The disk address of a block of the group.
fn daddr<S: CountStore>(editor: &BtreeCursor<S>, block: AgBlock) -> DiskAddr {
    editor.store().geometry().daddr_of(group(editor), block)
}

/// Corruption in a tree's record for a block.
fn corrupt_at<S: CountStore>(editor: &BtreeCursor<S>, block: AgBlock, problem: FormatError) -> Error {
    Error::corrupt_block(daddr(editor, block), None, problem)
}

/// A run to be counted must have blocks and lie in the group. Its first block is a header in every group.
fn check_run<S: CountStore>(editor: &BtreeCursor<S>, run: AgExtent) -> Result<()> {
    let blocks = group_blocks(editor);
    if run.len > 0 && run.start.0 > 0 && run.end() <= blocks {
        return Ok(());
    }
    let problem = FormatError::mismatch(Refcountbt::NAME, "end of an extent", run.end(), blocks);
    Err(corrupt_at(editor, run.start, problem))
}

/// No block of a run may be in this domain.
fn check_absent<S: CountStore>(editor: &mut BtreeCursor<S>, domain: Domain, run: AgExtent) -> Result<()> {
    let Some(found) = window::first_in(editor, domain, run)? else { return Ok(()) };
    let what = match domain {
        Domain::Shared => "blocks that are shared and staged for copy-on-write",
        Domain::Cow => "blocks that are staged for copy-on-write already",
    };
    Err(corrupt_at(editor, found.start, FormatError::value(Refcountbt::NAME, what, found.start.0.into())))
}
