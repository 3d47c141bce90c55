//! Finding records of given blocks, or adjacent ones.

use super::{check, group_of};
use crate::btree::edit::{BtreeCursor, TreeStore};
use crate::error::{Result, RmapDamage, RmapProblem};
use crate::owner::{Mapping, RmapOwner};
use std::ops::{ControlFlow, Range};
use xfs_format::btree::Rmapbt;
use xfs_format::records::{RmapKeyPair, RmapRecord};
use xfs_format::types::AgBlock;

/// Whether others may have the same blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Nobody: then neighbours on the volume are neighbours in the tree.
    None,
    /// Data forks of inodes.
    Possible,
}

/// The first record that has any of these blocks. Before blocks are freed, this checks that their owner is no longer in
/// the tree.
pub fn mapping_in<S: TreeStore<Tree = Rmapbt>>(
    editor: &BtreeCursor<S>,
    start: AgBlock,
    len: u32,
) -> Result<Option<Mapping>> {
    first_in(editor, blocks(start, len), |_| true)
}

/// The first record that has any of these blocks for an owner other than `owner`, whose first block is `start`.
pub fn other_mapping_in<S: TreeStore<Tree = Rmapbt>>(
    editor: &BtreeCursor<S>,
    start: AgBlock,
    len: u32,
    owner: RmapOwner,
) -> Result<Option<Mapping>> {
    let own = Mapping { start, len, owner, unwritten: false };
    first_in(editor, blocks(start, len), |record| !record.covers(&own.within(record)))
}

/// Fails if anybody has any of these blocks.
pub fn expect_free<S: TreeStore<Tree = Rmapbt>>(
    editor: &BtreeCursor<S>,
    start: AgBlock,
    len: u32,
) -> Result<()> {
    nobody_has(editor, &Mapping { start, len, owner: RmapOwner::ANY, unwritten: false })
}

/// Fails if anybody has any of the blocks that are to be mapped.
pub(super) fn nobody_has<S: TreeStore<Tree = Rmapbt>>(
    editor: &BtreeCursor<S>,
    mapping: &Mapping,
) -> Result<()> {
    match mapping_in(editor, mapping.start, mapping.len)? {
        None => Ok(()),
        Some(record) => Err(RmapDamage::new(group_of(editor), mapping, RmapProblem::Mapped(record)).into()),
    }
}

/// Fails if there is a record of this rank: its owner would have the same blocks at the same offset twice.
pub(super) fn no_record_at<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
) -> Result<()> {
    match editor.seek_eq(mapping.rank())? {
        None => Ok(()),
        Some(record) => {
            let problem = RmapProblem::Mapped(Mapping::of_record(&record));
            Err(RmapDamage::new(group_of(editor), mapping, problem).into())
        }
    }
}

/// The record that has all of these blocks, in this state, for this owner.
pub(super) fn covering<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<Mapping> {
    let near = editor.seek_le(mapping.rank())?;
    let mut found = checked(editor, near)?.filter(|record| record.covers(mapping));
    if found.is_none() && sharing == Sharing::Possible {
        found = first_in(editor, blocks(mapping.start, 1), |record| record.covers(mapping))?;
    }
    match found {
        Some(record) if record.unwritten == mapping.unwritten => Ok(record),
        Some(_) => Err(RmapDamage::new(group_of(editor), mapping, RmapProblem::State).into()),
        None => {
            let other = mapping_in(editor, mapping.start, mapping.len)?;
            Err(RmapDamage::new(group_of(editor), mapping, RmapProblem::NotMapped(other)).into())
        }
    }
}

/// The record that ends where `mapping` begins, on the volume and for its owner, in any state.
///
/// A record that begins before `mapping` and has its first block at that offset is corruption: then no neighbour ends
/// there.
pub(super) fn left_of<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
    sharing: Sharing,
) -> Result<Option<Mapping>> {
    editor.seek_eq(mapping.rank())?;
    let near = editor.prev()?;
    let found = checked(editor, near)?.filter(|record| record.touches(mapping));
    let start = mapping.start.0;
    if found.is_some() || sharing == Sharing::None || start == 0 {
        return Ok(found);
    }
    let first = mapping.until(AgBlock(start + 1));
    let before = u64::from(start) - 1;
    let found =
        first_in(editor, before..before + 1, |record| record.touches(mapping) || record.covers(&first))?;
    match found {
        Some(record) if record.covers(&first) => {
            Err(RmapDamage::new(group_of(editor), mapping, RmapProblem::Mapped(record)).into())
        }
        found => Ok(found),
    }
}

/// The record that begins where `mapping` ends, on the volume and for its owner, in any state.
pub(super) fn right_of<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    mapping: &Mapping,
) -> Result<Option<Mapping>> {
    let Ok(end) = u32::try_from(mapping.end()) else { return Ok(None) };
    let owner = mapping.owner.advanced(mapping.len);
    let behind = Mapping { start: AgBlock(end), owner, ..*mapping };
    let found = editor.seek_eq(behind.rank())?;
    checked(editor, found)
}

/// The only record with these blocks, which must have all of them, for any owner. `None` if nobody has any.
pub(super) fn sole_record<S: TreeStore<Tree = Rmapbt>>(
    editor: &BtreeCursor<S>,
    mapping: &Mapping,
) -> Result<Option<Mapping>> {
    let Some(first) = mapping_in(editor, mapping.start, mapping.len)? else { return Ok(None) };
    let problem = if first.start > mapping.start || first.end() < mapping.end() {
        RmapProblem::NotMapped(Some(first))
    } else {
        match first_in(editor, blocks(mapping.start, mapping.len), |record| *record != first)? {
            None => return Ok(Some(first)),
            Some(other) => RmapProblem::Mapped(other),
        }
    };
    Err(RmapDamage::new(group_of(editor), mapping, problem).into())
}

/// The first record in these blocks that is `wanted`.
fn first_in<S: TreeStore<Tree = Rmapbt>>(
    editor: &BtreeCursor<S>,
    blocks: Range<u64>,
    wanted: impl Fn(&Mapping) -> bool,
) -> Result<Option<Mapping>> {
    let mut found = None;
    let under = |key: &RmapKeyPair| {
        u64::from(key.low.startblock.get()) < blocks.end
            && u64::from(key.high.startblock.get()) >= blocks.start
    };
    editor.visit(under, |record| {
        let mapping = Mapping::of_record(record);
        if u64::from(mapping.start.0) >= blocks.end {
            return Ok(ControlFlow::Break(()));
        }
        if mapping.end() <= blocks.start {
            return Ok(ControlFlow::Continue(()));
        }
        check(editor, &mapping)?;
        if !wanted(&mapping) {
            return Ok(ControlFlow::Continue(()));
        }
        found = Some(mapping);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// The content of a tree's record, if an rmap tree can have it.
fn checked<S: TreeStore<Tree = Rmapbt>>(
    editor: &BtreeCursor<S>,
    record: Option<RmapRecord>,
) -> Result<Option<Mapping>> {
    let Some(mapping) = record.as_ref().map(Mapping::of_record) else { return Ok(None) };
    check(editor, &mapping)?;
    Ok(Some(mapping))
}

fn blocks(start: AgBlock, len: u32) -> Range<u64> {
    u64::from(start.0)..u64::from(start.0) + u64::from(len)
}
