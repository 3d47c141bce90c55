//! Changing the reference counts of a group's blocks.
//!
//! The tree of reference counts has two domains. The *shared* one counts the owners of blocks that have more than one:
//! what it does not name and is in use has a single owner. The *CoW* one, marked by the highest bit of a record's start
//! and so behind all of the other, names the extents that are staged for copy-on-write: each has a count of 1 and
//! belongs to no file yet, and the next mount after a crash frees it.
//!
//! What holds after each change, if it held before: counts are at least 2 in the shared domain and 1 in the CoW domain;
//! records of a domain that touch have different counts, so that there is one way only to write down what is shared;
//! no block is in both domains. A count that has reached [`COUNT_MAX`] stays there for ever.
//!
//! Nothing here knows of transactions: the functions change a tree through an [`Editor`], and tell what is to be freed.
//! Each tells how often it changes the tree at most, from which the room in the log is reckoned
//! ([`blocks_of_changes`]). All reading is done
//! before the first change, so that damage which is met leaves the tree as it was.
//!
//! ```text
//! adjust               one owner more or less, for as many pieces of a run as a transaction can bear
//! add_cow, remove_cow  a staging extent comes, or goes (to a file, or back to the free space)
//! find_shared          the first part of a run that has more than one owner
//! Sharing              what the trees say of blocks, for whoever only looks
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

use crate::alloc::Run;
use crate::btree::edit::{Editor, TreeStore};
use crate::error::{Error, Result};
use record::Domain;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::RefcountRecord;
use xfs_format::types::{AgBlock, AgNumber, DiskAddr};

/// A tree of reference counts.
pub trait CountStore: TreeStore<Tree = Refcountbt> {}
impl<S: TreeStore<Tree = Refcountbt>> CountStore for S {}

/// Blocks of a tree of so many levels that this many changes beside each other log at most.
///
/// At each level those are the blocks that hold the changed entries, as many new ones where they are split, and at
/// either end a neighbour that gives or takes entries or only learns of a new sibling; and a new root. For what changes
/// in a level there is one entry to change in the level above.
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

/// The group that a tree counts.
fn group<S: CountStore>(editor: &Editor<S>) -> AgNumber {
    AgNumber(editor.store().owner() as u32)
}

/// Blocks of the group that a record can name.
fn group_blocks<S: CountStore>(editor: &Editor<S>) -> u64 {
    editor.store().geometry().ag_blocks_of(group(editor)).min(RefcountRecord::COW).into()
}

/// Where a block of the group lies on the device.
fn daddr<S: CountStore>(editor: &Editor<S>, block: AgBlock) -> DiskAddr {
    editor.store().geometry().daddr_of(group(editor), block)
}

/// What is wrong with a block that the tree counts.
fn corrupt_at<S: CountStore>(editor: &Editor<S>, block: AgBlock, problem: FormatError) -> Error {
    Error::corrupt_block(daddr(editor, block), None, problem)
}

/// A run that is to be counted must have blocks, and lie in the group. Its first block is a header's in every group.
fn check_run<S: CountStore>(editor: &Editor<S>, run: Run) -> Result<()> {
    let blocks = group_blocks(editor);
    if run.len > 0 && run.start.0 > 0 && run.end() <= blocks {
        return Ok(());
    }
    let problem = FormatError::mismatch(Refcountbt::NAME, "end of an extent", run.end(), blocks);
    Err(corrupt_at(editor, run.start, problem))
}

/// No block of a run may be in this domain.
fn check_absent<S: CountStore>(editor: &mut Editor<S>, domain: Domain, run: Run) -> Result<()> {
    let Some(found) = window::first_in(editor, domain, run)? else { return Ok(()) };
    let what = match domain {
        Domain::Shared => "blocks that are shared and staged for copy-on-write",
        Domain::Cow => "blocks that are staged for copy-on-write already",
    };
    Err(corrupt_at(editor, found.start, FormatError::value(Refcountbt::NAME, what, found.start.0.into())))
}
