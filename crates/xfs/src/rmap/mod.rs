//! The reverse map of a group: who owns which blocks, at which offset of which fork, written or not.
//!
//! Here are the rules of its records; the tree itself is [`crate::btree::edit`]'s, and transactions, groups and intents
//! are their callers' business.
//!
//! Invariants, of a tree that is changed by nothing else:
//! - records of one owner, fork and state that touch on the volume and in the fork are one record (free space trees,
//!   inode chunks and the like have no offsets, nor have blocks of a fork's map: they need to touch on the volume alone);
//! - blocks have one owner, but for those of data forks, which files share: their records lie over each other, those of
//!   one file at different offsets;
//! - what a call expects of the map is checked before it changes anything: who says that he owns blocks must own all of
//!   them, in the state that he says. Otherwise it is [`RmapDamage`], which names group, blocks and the record in the way.
//!
//! ```text
//! map, unmap, convert                         blocks that have one owner
//! map_shared, unmap_shared, convert_shared    the data fork of an inode that has the flag for shared blocks
//! mapping_in, other_mapping_in, expect_free   who has these blocks
//! ```
//!
//! Which of the two it must be follows from the inode's flag, not from whether these very blocks are shared: it is so in
//! intents, too. Attribute forks and blocks of a fork's map are never shared.
//!
//! With shared blocks the records before and behind a place in the tree's order may be of anyone. There the record in
//! question is looked for where it is most often, next to its place; and if it is not there, among all that overlap.

mod change;
mod find;
#[cfg(test)]
mod tests;

pub use crate::error::{RmapDamage, RmapProblem};
pub use crate::owner::{Mapping, RmapOwner};
pub use find::{expect_free, mapping_in, other_mapping_in};

use crate::btree::edit::{Editor, TreeStore};
use crate::error::Result;
use change::{converted, mapped, replace, unmapped};
use find::{Sharing, covering, left_of, no_record_at, nobody_has, right_of};
use xfs_format::btree::Rmapbt;
use xfs_format::types::AgNumber;

/// The most records that one call takes out of the tree and puts into it, counted together. Any others it changes in
/// place.
///
/// Two at once are taken out where a converted extent makes one of three; two are put in where it makes three of one; and
/// one is taken out and put in elsewhere where records of others come between its old place and its new one.
pub const CHANGES_MOST: u32 = 2;

/// The most blocks that one call takes for a tree of so many levels.
///
/// The first record that is put in can split a block on each level, and the root besides; the second one meets those
/// halves at the latest in the root's children: levels + 1, and levels - 1.
pub const fn blocks_to_change(levels: u32) -> u32 {
    2 * levels
}

/// The most blocks that one call gives back.
pub const fn blocks_freed_by_change(levels: u32) -> u32 {
    2 * levels
}

/// Blocks get an owner. Nobody may have had them.
pub fn map<S: TreeStore<Tree = Rmapbt>>(editor: &mut Editor<S>, mapping: &Mapping) -> Result<()> {
    check(editor, mapping)?;
    nobody_has(editor, mapping)?;
    add(editor, mapping, Sharing::None)
}

/// Blocks get an owner, which may have them at another offset, besides others that have them.
///
/// That it has the first of them at this offset is refused. Whether it has later ones is not asked: between could be any
/// number of records of others.
pub fn map_shared<S: TreeStore<Tree = Rmapbt>>(editor: &mut Editor<S>, mapping: &Mapping) -> Result<()> {
    check(editor, mapping)?;
    no_record_at(editor, mapping)?;
    add(editor, mapping, Sharing::Possible)
}

fn add<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut Editor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<()> {
    let left = left_of(editor, mapping, sharing)?;
    let right = right_of(editor, mapping)?;
    let (left, right) = (left.filter(|left| left.joins(mapping)), right.filter(|right| mapping.joins(right)));
    replace(editor, &mapped(left, mapping, right))
}

/// Blocks lose their owner, which must have had all of them.
///
/// [`RmapOwner::ANY`] stands for whoever it is: then one record must cover the blocks, or none has any of them, which is
/// no damage: whoever promised in the log to free blocks may have taken them out of the map before.
pub fn unmap<S: TreeStore<Tree = Rmapbt>>(editor: &mut Editor<S>, mapping: &Mapping) -> Result<()> {
    if mapping.owner == RmapOwner::ANY {
        return find::sole_record(editor, mapping)?
            .map_or(Ok(()), |record| replace(editor, &unmapped(&record, mapping)));
    }
    remove(editor, mapping, Sharing::None)
}

/// Blocks lose one owner and may keep others.
pub fn unmap_shared<S: TreeStore<Tree = Rmapbt>>(editor: &mut Editor<S>, mapping: &Mapping) -> Result<()> {
    remove(editor, mapping, Sharing::Possible)
}

fn remove<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut Editor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<()> {
    check(editor, mapping)?;
    let record = covering(editor, mapping, sharing)?;
    replace(editor, &unmapped(&record, mapping))
}

/// Blocks of a data fork that were unwritten are written, or the other way round. `mapping` says how they were.
pub fn convert<S: TreeStore<Tree = Rmapbt>>(editor: &mut Editor<S>, mapping: &Mapping) -> Result<()> {
    change_state(editor, mapping, Sharing::None)
}

/// As [`convert`], for blocks that may have other owners, whose states it leaves alone.
pub fn convert_shared<S: TreeStore<Tree = Rmapbt>>(editor: &mut Editor<S>, mapping: &Mapping) -> Result<()> {
    change_state(editor, mapping, Sharing::Possible)
}

fn change_state<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut Editor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<()> {
    let after = Mapping { unwritten: !mapping.unwritten, ..*mapping };
    check(editor, mapping)?;
    check(editor, &after)?;
    let record = covering(editor, mapping, sharing)?;
    // Only what reaches an end of the record touches its neighbour there.
    let left = if record.start == mapping.start { left_of(editor, mapping, sharing)? } else { None };
    let right = if record.end() == mapping.end() { right_of(editor, mapping)? } else { None };
    let (left, right) = (left.filter(|left| left.joins(&after)), right.filter(|right| after.joins(right)));
    replace(editor, &converted(left, &record, &after, right))
}

/// Refuses what no map of this group can have.
fn check<S: TreeStore<Tree = Rmapbt>>(editor: &Editor<S>, mapping: &Mapping) -> Result<()> {
    let ag = group_of(editor);
    match mapping.problem(editor.store().geometry(), ag) {
        None => Ok(()),
        Some(problem) => Err(RmapDamage::new(ag, mapping, RmapProblem::Invalid(problem)).into()),
    }
}

/// The group whose map it is.
fn group_of<S: TreeStore>(editor: &Editor<S>) -> AgNumber {
    AgNumber(editor.store().owner() as u32)
}
