//! Which records replace which, and the changes of the tree.

use super::group_of;
use crate::btree::edit::{BtreeCursor, TreeStore};
use crate::error::{Result, RmapDamage, RmapProblem};
use crate::owner::Mapping;
use smallvec::SmallVec;
use xfs_format::btree::{Rmapbt, Tree};

type Few = SmallVec<[Mapping; 3]>;

/// Records to be removed, and their replacements.
pub(super) struct RmapChange {
    old: Few,
    new: Few,
}

/// Blocks get an owner, merged with adjacent records.
pub(super) fn mapped(left: Option<Mapping>, middle: &Mapping, right: Option<Mapping>) -> RmapChange {
    let old = left.into_iter().chain(right).collect();
    RmapChange { old, new: Few::from_iter([joined(left, middle, right)]) }
}

/// Blocks are removed from a record.
pub(super) fn unmapped(record: &Mapping, part: &Mapping) -> RmapChange {
    let (before, behind) = around(record, part);
    RmapChange { old: Few::from_iter([*record]), new: before.into_iter().chain(behind).collect() }
}

/// A part of a record gets another state, merged with adjacent records.
pub(super) fn converted(
    left: Option<Mapping>,
    record: &Mapping,
    part: &Mapping,
    right: Option<Mapping>,
) -> RmapChange {
    let (before, behind) = around(record, part);
    let middle = joined(left, part, right);
    RmapChange {
        old: left.into_iter().chain([*record]).chain(right).collect(),
        new: before.into_iter().chain([middle]).chain(behind).collect(),
    }
}

/// What is left of a record without a part of it.
fn around(record: &Mapping, part: &Mapping) -> (Option<Mapping>, Option<Mapping>) {
    let before = (record.start < part.start).then(|| record.until(part.start));
    let behind = (part.end() < record.end()).then(|| record.from(part.end()));
    (before, behind)
}

/// Merges neighbours.
fn joined(left: Option<Mapping>, middle: &Mapping, right: Option<Mapping>) -> Mapping {
    let first = left.unwrap_or(*middle);
    let end = right.map_or(middle.end(), |right| right.end());
    Mapping { len: (end - u64::from(first.start.0)) as u32, ..first }
}

/// Makes the change in the tree. A record stays in place as long as the order allows it.
pub(super) fn replace<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    change: &RmapChange,
) -> Result<()> {
    let absent = |from: &Few, one: &Mapping| !from.iter().any(|other| other.rank() == one.rank());
    let mut gone = change.old.iter().filter(|old| absent(&change.new, old));
    let mut come = change.new.iter().filter(|new| absent(&change.old, new));
    let mut moved = None;
    loop {
        match (gone.next(), come.next()) {
            (None, None) => break,
            (Some(old), Some(new)) => moved = Some((old, new)),
            (Some(old), None) => delete(editor, old)?,
            (None, Some(new)) => editor.insert(new.record())?,
        }
    }
    for old in &change.old {
        let stays = change.new.iter().find(|new| new.rank() == old.rank());
        if let Some(new) = stays.filter(|new| *new != old) {
            seek(editor, old)?;
            editor.update(new.record())?;
        }
    }
    moved.map_or(Ok(()), |(old, new)| relocate(editor, old, new))
}

/// A record begins elsewhere. It keeps its place if nothing lies between its old rank and its new one.
fn relocate<S: TreeStore<Tree = Rmapbt>>(
    editor: &mut BtreeCursor<S>,
    old: &Mapping,
    new: &Mapping,
) -> Result<()> {
    seek(editor, old)?;
    let up = new.rank() > old.rank();
    let neighbour = if up { editor.next()? } else { editor.prev()? };
    let free = neighbour.is_none_or(|record| {
        let rank = Rmapbt::record_rank(&record);
        if up { new.rank() < rank } else { rank < new.rank() }
    });
    if !free {
        delete(editor, old)?;
        return editor.insert(new.record());
    }
    if up {
        editor.prev()?;
    } else {
        editor.next()?;
    }
    editor.update(new.record())
}

fn delete<S: TreeStore<Tree = Rmapbt>>(editor: &mut BtreeCursor<S>, mapping: &Mapping) -> Result<()> {
    seek(editor, mapping)?;
    editor.delete().map(drop)
}

/// Moves to a record that was there a moment ago.
fn seek<S: TreeStore<Tree = Rmapbt>>(editor: &mut BtreeCursor<S>, mapping: &Mapping) -> Result<()> {
    let found = editor.seek_eq(mapping.rank())?.map(|record| Mapping::of_record(&record));
    if found == Some(*mapping) {
        return Ok(());
    }
    Err(RmapDamage::new(group_of(editor), mapping, RmapProblem::NotMapped(found)).into())
}
