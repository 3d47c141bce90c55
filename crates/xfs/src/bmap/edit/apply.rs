//! One change of a map: replaces some neighbouring extents by others, in the list and on disk.

use super::difference::difference;
use super::{ForkStore, MapEditor};
use crate::btree::edit::BtreeCursor;
use crate::error::{Error, Result};
use xfs_format::bmbt::Extent;
use xfs_format::btree::{Bmbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::inode::ForkFormat;
use xfs_format::types::FileBlock;

/// A change of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordChange {
    Delete(FileBlock),
    /// The record that begins here becomes another one between the same neighbours.
    Update(FileBlock, Extent),
    Insert(Extent),
}

impl<F: ForkStore> MapEditor<F> {
    /// Replaces the extents `old`, neighbours in the map, by `new` in the same place. Both are in ascending order.
    pub(super) fn apply(&mut self, old: &[Extent], new: &[Extent]) -> Result<()> {
        let count = self.list.len() + new.len() - old.len();
        if new.len() > old.len() && count as u64 > self.limit() {
            return Err(Error::TooManyExtents { inode: self.store.ino(), limit: self.limit() });
        }
        difference(old, new).into_iter().try_for_each(|change| self.store.remapped(change))?;
        let steps = plan(old, new);
        if self.format == ForkFormat::Btree {
            self.change_tree(&steps)?;
        }
        for step in steps {
            match step {
                RecordChange::Delete(start) => {
                    self.list.remove(start);
                }
                RecordChange::Update(start, extent) => {
                    self.list.update(start, &extent);
                }
                RecordChange::Insert(extent) => self.list.insert(&extent),
            }
        }
        self.choose_format()
    }

    /// Gives the fork the format that its extents need.
    pub(super) fn choose_format(&mut self) -> Result<()> {
        let fits = self.list.len() <= self.room / 16;
        match self.format {
            ForkFormat::Btree if fits => self.make_list(),
            ForkFormat::Extents if !fits => self.make_tree(),
            _ => Ok(()),
        }
    }

    fn change_tree(&mut self, steps: &[RecordChange]) -> Result<()> {
        let ino = self.store.ino();
        let missing = |start: FileBlock| {
            Error::corrupt_inode(
                ino,
                FormatError::value(Bmbt::NAME, "extent that is not in the tree", start.0),
            )
        };
        let mut editor = BtreeCursor::new(self.tree());
        for step in steps {
            match *step {
                RecordChange::Delete(start) => {
                    editor.seek_eq(start.0)?.ok_or_else(|| missing(start))?;
                    editor.delete()?;
                }
                RecordChange::Update(start, extent) => {
                    editor.seek_eq(start.0)?.ok_or_else(|| missing(start))?;
                    editor.update(extent.pack())?;
                }
                RecordChange::Insert(extent) => editor.insert(extent.pack())?,
            }
        }
        Ok(())
    }
}

/// The changes of single records that replace `old` by `new`, in an order that keeps records sorted. A record that
/// keeps its start is updated, and so is one that moves without passing another.
fn plan(old: &[Extent], new: &[Extent]) -> Vec<RecordChange> {
    let starts =
        |extent: &Extent, among: &[Extent]| among.iter().any(|other| other.startoff == extent.startoff);
    let mut gone: Vec<_> = old.iter().filter(|extent| !starts(extent, new)).copied().collect();
    let mut come: Vec<_> = new.iter().filter(|extent| !starts(extent, old)).copied().collect();
    let stay: Vec<_> = new.iter().filter(|extent| starts(extent, old)).copied().collect();
    let mut moved = None;
    if let (Some(from), Some(to)) = (gone.first().copied(), come.first().copied()) {
        let between = from.startoff.min(to.startoff)..from.startoff.max(to.startoff);
        if !stay.iter().any(|extent| between.contains(&extent.startoff)) {
            moved = Some(RecordChange::Update(from.startoff, to));
            gone.remove(0);
            come.remove(0);
        }
    }
    let mut steps: Vec<RecordChange> =
        gone.iter().map(|extent| RecordChange::Delete(extent.startoff)).collect();
    steps.extend(
        stay.iter()
            .filter(|extent| !old.contains(extent))
            .map(|extent| RecordChange::Update(extent.startoff, *extent)),
    );
    steps.extend(moved);
    steps.extend(come.into_iter().map(RecordChange::Insert));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::types::FsBlock;

    fn extent(startoff: u64, blockcount: u32) -> Extent {
        Extent { startoff: FileBlock(startoff), startblock: FsBlock(startoff), blockcount, unwritten: false }
    }

    #[test]
    fn records_that_can_be_updated_are() {
        let (a, b) = (extent(0, 5), extent(5, 5));
        assert_eq!(plan(&[a], &[]), [RecordChange::Delete(FileBlock(0))]);
        assert_eq!(plan(&[], &[a]), [RecordChange::Insert(a)]);
        assert_eq!(plan(&[a, b], &[a, b]), []);
        // The second one grows to the front.
        let (shorter, longer) = (extent(0, 3), extent(3, 7));
        assert_eq!(
            plan(&[a, b], &[shorter, longer]),
            [RecordChange::Update(FileBlock(0), shorter), RecordChange::Update(FileBlock(5), longer)]
        );
        // Three become one.
        let all = extent(0, 12);
        assert_eq!(
            plan(&[a, b, extent(10, 2)], &[all]),
            [
                RecordChange::Delete(FileBlock(5)),
                RecordChange::Delete(FileBlock(10)),
                RecordChange::Update(FileBlock(0), all)
            ]
        );
        // A record never passes another one.
        let behind = extent(20, 1);
        assert_eq!(
            plan(&[a, b], &[extent(5, 4), behind]),
            [
                RecordChange::Delete(FileBlock(0)),
                RecordChange::Update(FileBlock(5), extent(5, 4)),
                RecordChange::Insert(behind)
            ]
        );
    }
}
