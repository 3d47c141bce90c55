//! One change of a map: some neighbouring extents are replaced by others, in the list and on disk.

use super::difference::difference;
use super::{ForkStore, MapEditor};
use crate::btree::edit::Editor;
use crate::error::{Error, Result};
use xfs_format::bmbt::Extent;
use xfs_format::btree::{Bmbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::inode::ForkFormat;
use xfs_format::types::FileBlock;

/// A change of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Delete(FileBlock),
    /// The record that begins here becomes another one, between the same neighbours.
    Update(FileBlock, Extent),
    Insert(Extent),
}

impl<F: ForkStore> MapEditor<F> {
    /// Replaces the extents `old`, neighbours in the map, by `new`, which take their place. Both ascend.
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
                Step::Delete(start) => {
                    self.list.remove(start);
                }
                Step::Update(start, extent) => {
                    self.list.update(start, &extent);
                }
                Step::Insert(extent) => self.list.insert(&extent),
            }
        }
        self.choose_format()
    }

    /// The form that the fork must have for the extents that it has now.
    pub(super) fn choose_format(&mut self) -> Result<()> {
        let fits = self.list.len() <= self.room / 16;
        match self.format {
            ForkFormat::Btree if fits => self.make_list(),
            ForkFormat::Extents if !fits => self.make_tree(),
            _ => Ok(()),
        }
    }

    fn change_tree(&mut self, steps: &[Step]) -> Result<()> {
        let ino = self.store.ino();
        let missing = |start: FileBlock| {
            Error::corrupt_inode(
                ino,
                FormatError::value(Bmbt::NAME, "extent that is not in the tree", start.0),
            )
        };
        let mut editor = Editor::new(self.tree());
        for step in steps {
            match *step {
                Step::Delete(start) => {
                    editor.seek_eq(start.0)?.ok_or_else(|| missing(start))?;
                    editor.delete()?;
                }
                Step::Update(start, extent) => {
                    editor.seek_eq(start.0)?.ok_or_else(|| missing(start))?;
                    editor.update(extent.pack())?;
                }
                Step::Insert(extent) => editor.insert(extent.pack())?,
            }
        }
        Ok(())
    }
}

/// The changes of single records that replace `old` by `new`, in an order in which records stay sorted. A record that
/// keeps its start is updated; so is one that moves without passing another one.
fn plan(old: &[Extent], new: &[Extent]) -> Vec<Step> {
    let starts =
        |extent: &Extent, among: &[Extent]| among.iter().any(|other| other.startoff == extent.startoff);
    let mut gone: Vec<_> = old.iter().filter(|extent| !starts(extent, new)).copied().collect();
    let mut come: Vec<_> = new.iter().filter(|extent| !starts(extent, old)).copied().collect();
    let stay: Vec<_> = new.iter().filter(|extent| starts(extent, old)).copied().collect();
    let mut moved = None;
    if let (Some(from), Some(to)) = (gone.first().copied(), come.first().copied()) {
        let between = from.startoff.min(to.startoff)..from.startoff.max(to.startoff);
        if !stay.iter().any(|extent| between.contains(&extent.startoff)) {
            moved = Some(Step::Update(from.startoff, to));
            gone.remove(0);
            come.remove(0);
        }
    }
    let mut steps: Vec<Step> = gone.iter().map(|extent| Step::Delete(extent.startoff)).collect();
    steps.extend(
        stay.iter()
            .filter(|extent| !old.contains(extent))
            .map(|extent| Step::Update(extent.startoff, *extent)),
    );
    steps.extend(moved);
    steps.extend(come.into_iter().map(Step::Insert));
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
        assert_eq!(plan(&[a], &[]), [Step::Delete(FileBlock(0))]);
        assert_eq!(plan(&[], &[a]), [Step::Insert(a)]);
        assert_eq!(plan(&[a, b], &[a, b]), []);
        // The one behind grows to the front.
        let (shorter, longer) = (extent(0, 3), extent(3, 7));
        assert_eq!(
            plan(&[a, b], &[shorter, longer]),
            [Step::Update(FileBlock(0), shorter), Step::Update(FileBlock(5), longer)]
        );
        // Three become one.
        let all = extent(0, 12);
        assert_eq!(
            plan(&[a, b, extent(10, 2)], &[all]),
            [Step::Delete(FileBlock(5)), Step::Delete(FileBlock(10)), Step::Update(FileBlock(0), all)]
        );
        // A record never passes another one.
        let behind = extent(20, 1);
        assert_eq!(
            plan(&[a, b], &[extent(5, 4), behind]),
            [Step::Delete(FileBlock(0)), Step::Update(FileBlock(5), extent(5, 4)), Step::Insert(behind)]
        );
    }
}
