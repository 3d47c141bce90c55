//! The rmap tree of a group: who owns which blocks, at which offset of which fork, written or not.
//!
//! This module has the rules of its records. The tree itself is in [`crate::btree::edit`]; transactions, groups and
//! intents are the callers' business.
//!
//! Invariants of a tree that nothing else changes:
//! - records of one owner, fork and state that are adjacent on the volume and in the fork are one record (free space
//!   trees, inode chunks and the like have no offsets, nor have blocks of a fork's map: they only need to be adjacent
//!   on the volume);
//! - blocks have one owner, except for those of data forks, which files share: their records overlap, and those of one
//!   file have different offsets;
//! - the expectations of a call are checked before it changes anything: the owner must have all of the blocks, in the
//!   given state. Otherwise it fails with [`RmapDamage`], which has group, blocks and the conflicting record.
//!
//! ```text
//! map, unmap, convert                         blocks with one owner
//! map_shared, unmap_shared, convert_shared    the data fork of an inode with the reflink flag
//! mapping_in, other_mapping_in, expect_free   who has these blocks
//! ```
//!
//! The inode's flag determines which of the two to use, not whether these particular blocks are shared; the same holds
//! for intents. Attribute forks and blocks of a fork's map are never shared.
//!
//! With shared blocks, the previous and the next record in the tree's order may belong to anyone. Then a record is
//! looked up next to its place first, where it usually is, and otherwise among all that overlap.

mod change;
mod find;
#[cfg(test)]
mod tests;

pub use crate::error::{RmapDamage, RmapProblem};
pub use crate::owner::{Mapping, RmapOwner};
pub use find::{expect_free, mapping_in, other_mapping_in};

use crate::btree::edit::{BtreeCursor, TreeStore};
use crate::error::Result;
use change::{converted, mapped, replace, unmapped};
use find::{Sharing, covering, left_of, no_record_at, nobody_has, right_of};
use xfs_format::btree::Rmapbt;
use xfs_format::types::AgNumber;

/// Blocks get an owner. Nobody may have them yet.
pub fn map<S: TreeStore<Tree = Rmapbt>>(editor: &mut BtreeCursor<S>, mapping: &Mapping) -> Result<()> {
    check(editor, mapping)?;
    nobody_has(editor, mapping)?;
    add(editor, mapping, Sharing::None)
}

/// Blocks get an owner in addition to others. It may have them at another offset as well.
///
/// If it already has the first of them at this offset, that is refused. Later ones are not checked, because there may
/// be any number of other records in between.
pub fn map_shared<S: TreeStore<Tree = Rmapbt>>(editor: &mut BtreeCursor<S>, mapping: &Mapping) -> Result<()> {
    check(editor, mapping)?;
    no_record_at(editor, mapping)?;
    add(editor, mapping, Sharing::Possible)
}

fn add<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<()> {
    let left = left_of(editor, mapping, sharing)?;
    let right = right_of(editor, mapping)?;
    let (left, right) = (left.filter(|left| left.joins(mapping)), right.filter(|right| mapping.joins(right)));
    replace(editor, &mapped(left, mapping, right))
}

/// Blocks lose their owner, which must have all of them.
///
/// [`RmapOwner::ANY`] stands for any owner. Then one record must cover the blocks, or none has any of them. The latter
/// is no corruption: whoever logged the intent to free the blocks may have removed them from the tree before.
pub fn unmap<S: TreeStore<Tree = Rmapbt>>(editor: &mut BtreeCursor<S>, mapping: &Mapping) -> Result<()> {
    if mapping.owner == RmapOwner::ANY {
        return find::sole_record(editor, mapping)?
            .map_or(Ok(()), |record| replace(editor, &unmapped(&record, mapping)));
    }
    remove(editor, mapping, Sharing::None)
}

/// Blocks lose one owner and may keep others.
pub fn unmap_shared<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
) -> Result<()> {
    remove(editor, mapping, Sharing::Possible)
}

fn remove<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<()> {
    check(editor, mapping)?;
    let record = covering(editor, mapping, sharing)?;
    replace(editor, &unmapped(&record, mapping))
}

/// Unwritten blocks of a data fork become written, or vice versa. `mapping` has their old state.
pub fn convert<S: TreeStore<Tree = Rmapbt>>(editor: &mut BtreeCursor<S>, mapping: &Mapping) -> Result<()> {
    change_state(editor, mapping, Sharing::None)
}

/// Like [`convert`], for blocks that may have other owners, whose states stay as they are.
pub fn convert_shared<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
) -> Result<()> {
    change_state(editor, mapping, Sharing::Possible)
}

fn change_state<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<()> {
    let after = Mapping { unwritten: !mapping.unwritten, ..*mapping };
    check(editor, mapping)?;
    check(editor, &after)?;
    let record = covering(editor, mapping, sharing)?;
    // Only a part at an end of the record touches its neighbour there.
    let left = if record.start == mapping.start { left_of(editor, mapping, sharing)? } else { None };
    let right = if record.end() == mapping.end() { right_of(editor, mapping)? } else { None };
    let (left, right) = (left.filter(|left| left.joins(&after)), right.filter(|right| after.joins(right)));
    replace(editor, &converted(left, &record, &after, right))
}

/// Refuses what no rmap tree of this group can have.
fn check<S: TreeStore<Tree = Rmapbt>>(editor: &BtreeCursor<S>, mapping: &Mapping) -> Result<()> {
    let ag = group_of(editor);
    match mapping.problem(editor.store().geometry(), ag) {
        None => Ok(()),
        Some(problem) => Err(RmapDamage::new(ag, mapping, RmapProblem::Invalid(problem)).into()),
    }
}

/// The group of the tree.
fn group_of<S: TreeStore>(editor: &BtreeCursor<S>) -> AgNumber {
    AgNumber(editor.store().owner() as u32)
}
