//! Changing a fork's map within a transaction.
//!
//! A [`MapEditor`] takes a fork's map out of a [`ForkStore`], changes it, and puts it back with
//! [`finish`](MapEditor::finish). The blocks of the map's tree come and go through the store. File blocks are neither
//! allocated nor freed here: whoever maps an extent has allocated it, and whoever unmaps one gets it back to free it.
//!
//! Invariants:
//! - the store is told of each block that is mapped, unmapped or changes its state;
//! - the list in memory, the inode's bytes and the tree's blocks have the same content;
//! - a fork is a list within the inode if and only if its extents fit there; otherwise it is a tree;
//! - extents that are contiguous in the file and on the volume and have the same state are merged where they are
//!   changed, up to the maximum length of an extent;
//! - no fork gets more extents than its inode can count.
//!
//! After an error the transaction can only be dropped, except for [`Error::TooManyExtents`] and
//! [`Error::FileTooLarge`], which come before the change.

mod apply;
mod difference;
#[cfg(test)]
mod tests;
mod trans;
mod tree;

use crate::btree::edit::Block;
pub use crate::defer::RmapUpdateKind;
use crate::error::{Error, Result};
use crate::ifork::ExtentList;
use crate::inode::ForkKind;
use std::ops::Range;
use xfs_format::bmbt::{BLOCKCOUNT_BITS, Extent, STARTOFF_BITS};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

/// Maximum length of an extent in blocks.
pub const EXTENT_MOST: u32 = (1 << BLOCKCOUNT_BITS) - 1;

/// The content of a fork that has a map.
#[derive(Clone, Debug)]
pub struct ForkContent {
    /// [`ForkFormat::Extents`] or [`ForkFormat::Btree`].
    pub format: ForkFormat,
    /// Its bytes within the inode: packed extents, or the tree's root with all the space of the fork.
    pub bytes: Vec<u8>,
    /// The map.
    pub extents: ExtentList,
}

/// One fork of an inode in one transaction that has the inode locked.
pub trait ForkStore {
    /// The volume's shape.
    fn geometry(&self) -> &Geometry;
    /// The inode.
    fn ino(&self) -> InodeNumber;
    /// Which fork.
    fn kind(&self) -> ForkKind;
    /// Whether the inode has large extent counts (nrext64).
    fn large_counts(&self) -> bool;
    /// Bytes that the fork may take in the inode.
    fn room(&self) -> usize;
    /// The fork's content as the transaction sees it.
    fn content(&self) -> Result<ForkContent>;
    /// Sets the fork's content. The inode's block count changes by `blocks`.
    fn set_content(&mut self, content: ForkContent, blocks: i64) -> Result<()>;
    /// A block of the map's tree as the transaction sees it.
    fn read(&self, block: FsBlock) -> Result<Block<'_>>;
    /// The bytes of a block of the tree, for changing those in `ranges`.
    fn modify(&mut self, block: FsBlock, ranges: &[Range<usize>]) -> Result<&mut [u8]>;
    /// The zeroed bytes of a block that was just allocated.
    fn create(&mut self, block: FsBlock) -> Result<&mut [u8]>;
    /// Allocates a block for the tree, near another one.
    fn allocate(&mut self, near: FsBlock) -> Result<FsBlock>;
    /// Frees a block of the tree.
    fn free(&mut self, block: FsBlock) -> Result<()>;
    /// Is told of every change of a file block's mapping.
    fn remapped(&mut self, change: RmapUpdateKind) -> Result<()>;
}

/// The result of unmapping a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmapped {
    /// The unmapped extents, last first.
    pub freed: Vec<Extent>,
    /// The part of the range that is left to do.
    pub rest: Option<Range<FileBlock>>,
}

/// A fork's map while it is being changed.
#[derive(Debug)]
pub struct MapEditor<F: ForkStore> {
    store: F,
    format: ForkFormat,
    /// The tree's root within the inode. Empty if there is no tree.
    root: Vec<u8>,
    list: ExtentList,
    room: usize,
    blocks: i64,
}

impl<F: ForkStore> MapEditor<F> {
    /// Takes the map out of a fork that has one.
    pub fn new(store: F) -> Result<Self> {
        let ForkContent { format, bytes, extents } = store.content()?;
        let root = match format {
            ForkFormat::Btree => bytes,
            ForkFormat::Extents => Vec::new(),
            ForkFormat::Dev | ForkFormat::Local => {
                return Err(Error::corrupt_inode(
                    store.ino(),
                    FormatError::new("inode", "fork without a map"),
                ));
            }
        };
        let room = store.room();
        Ok(Self { store, format, root, list: extents, room, blocks: 0 })
    }

    /// The map as it is now.
    pub fn extents(&self) -> &ExtentList {
        &self.list
    }

    /// The store, for other work of the same transaction, but not for changes of this fork.
    pub fn store_mut(&mut self) -> &mut F {
        &mut self.store
    }

    /// Puts the map back.
    pub fn finish(mut self) -> Result<F> {
        let bytes = match self.format {
            ForkFormat::Btree => self.root,
            _ => self.list.records().flat_map(|record| zerocopy_bytes(&record)).collect(),
        };
        let content = ForkContent { format: self.format, bytes, extents: self.list };
        self.store.set_content(content, self.blocks)?;
        Ok(self.store)
    }

    /// How many extents the fork may have.
    pub fn limit(&self) -> u64 {
        extent_limit(self.store.kind(), self.store.large_counts())
    }

    /// Maps an extent where nothing is mapped yet.
    pub fn map(&mut self, extent: Extent) -> Result<()> {
        extent.check(self.store.geometry()).map_err(|problem| self.damage(problem))?;
        let before = self.list.before(extent.startoff);
        let behind = self.list.ending_behind(extent.startoff);
        if before.is_some_and(|before| before.end() > extent.startoff)
            || behind.is_some_and(|behind| behind.startoff < extent.end())
        {
            let problem = FormatError::value("extent", "mapped already", extent.startoff.0);
            return Err(self.damage(problem));
        }
        let (old, merged) = absorb(before, extent, behind);
        self.apply(&old, &[merged])?;
        self.blocks += i64::from(extent.blockcount);
        Ok(())
    }

    /// Unmaps what is mapped in `range`, from its end backwards, up to `most` extents.
    pub fn unmap(&mut self, range: Range<FileBlock>, most: usize) -> Result<Unmapped> {
        let mut done = Unmapped::default();
        let mut end = range.end;
        while let Some(extent) = self.list.before(end).filter(|extent| extent.end() > range.start) {
            if done.freed.len() == most {
                done.rest = Some(range.start..end);
                break;
            }
            let gone = part(&extent, range.start..range.end);
            let (left, right) = around(&extent, &gone);
            let new: Vec<_> = [left, right].into_iter().flatten().collect();
            self.apply(&[extent], &new)?;
            self.blocks -= i64::from(gone.blockcount);
            end = gone.startoff;
            done.freed.push(gone);
        }
        Ok(done)
    }

    /// Makes what is mapped in `range` unwritten or written, up to `most` extents. Returns what is left to do.
    pub fn convert(
        &mut self,
        range: Range<FileBlock>,
        unwritten: bool,
        most: usize,
    ) -> Result<Option<Range<FileBlock>>> {
        let mut at = range.start;
        let mut changed = 0;
        while let Some(extent) = self.list.ending_behind(at).filter(|extent| extent.startoff < range.end) {
            at = extent.end();
            if extent.unwritten == unwritten {
                continue;
            }
            if changed == most {
                return Ok(Some(extent.startoff.max(range.start)..range.end));
            }
            let whole = part(&extent, range.start..range.end);
            let (left, right) = around(&extent, &whole);
            let before = if left.is_none() { self.list.before(extent.startoff) } else { None };
            let behind = if right.is_none() { self.list.ending_behind(extent.end()) } else { None };
            let (absorbed, merged) = absorb(before, Extent { unwritten, ..whole }, behind);
            let mut old = vec![extent];
            old.extend(absorbed);
            old.sort_by_key(|extent| extent.startoff);
            let new: Vec<_> = [left, Some(merged), right].into_iter().flatten().collect();
            self.apply(&old, &new)?;
            changed += 1;
        }
        Ok(None)
    }

    /// Splits the extent that has the blocks on both sides of `at`, so that one begins there.
    pub fn split_at(&mut self, at: FileBlock) -> Result<()> {
        let Some(extent) = self.list.before(at).filter(|extent| extent.end() > at) else { return Ok(()) };
        let left = part(&extent, extent.startoff..at);
        let right = part(&extent, at..extent.end());
        self.apply(&[extent], &[left, right])
    }

    /// Moves up to `most` of the extents that begin in `range` by some file blocks: to the front beginning with the
    /// first, to the back beginning with the last. There must be room. Returns what is left to do.
    pub fn shift(
        &mut self,
        range: Range<FileBlock>,
        by: i64,
        most: usize,
    ) -> Result<Option<Range<FileBlock>>> {
        if by < 0 {
            self.shift_left(range, by.unsigned_abs(), most)
        } else {
            self.shift_right(range, by as u64, most)
        }
    }

    fn shift_left(
        &mut self,
        range: Range<FileBlock>,
        by: u64,
        most: usize,
    ) -> Result<Option<Range<FileBlock>>> {
        let mut at = range.start;
        let mut moved = 0;
        loop {
            let next = self.list.next_beginning(at).filter(|extent| extent.startoff < range.end);
            let Some(extent) = next else { return Ok(None) };
            if moved == most {
                return Ok(Some(extent.startoff..range.end));
            }
            at = extent.end();
            let before = self.list.before(extent.startoff);
            let start = extent.startoff.0.checked_sub(by).map(FileBlock);
            let start = start.filter(|start| before.is_none_or(|before| before.end() <= *start));
            let Some(startoff) = start else { return Err(self.no_room(extent.startoff)) };
            let (mut old, merged) = absorb(before, Extent { startoff, ..extent }, None);
            old.push(extent);
            self.apply(&old, &[merged])?;
            moved += 1;
        }
    }

    fn shift_right(
        &mut self,
        range: Range<FileBlock>,
        by: u64,
        most: usize,
    ) -> Result<Option<Range<FileBlock>>> {
        let mut end = range.end;
        let mut moved = 0;
        loop {
            let Some(extent) = self.list.before(end).filter(|extent| extent.startoff >= range.start) else {
                return Ok(None);
            };
            if moved == most {
                return Ok(Some(range.start..end));
            }
            end = extent.startoff;
            let new_end = extent.end().0.checked_add(by).filter(|end| *end <= 1 << STARTOFF_BITS);
            let Some(new_end) = new_end else { return Err(Error::FileTooLarge(self.store.ino())) };
            if self.list.next_beginning(extent.end()).is_some_and(|next| next.startoff.0 < new_end) {
                return Err(self.no_room(extent.startoff));
            }
            let startoff = FileBlock(extent.startoff.0 + by);
            self.apply(&[extent], &[Extent { startoff, ..extent }])?;
            moved += 1;
        }
    }

    fn no_room(&self, at: FileBlock) -> Error {
        self.damage(FormatError::value("extent", "mapped already", at.0))
    }

    fn damage(&self, problem: FormatError) -> Error {
        Error::corrupt_inode(self.store.ino(), problem)
    }
}

/// How many extents a fork may have.
pub fn extent_limit(kind: ForkKind, large_counts: bool) -> u64 {
    #[cfg(all(test, not(shuttle)))]
    if let (ForkKind::Data, Some(limit)) = (kind, few::LIMIT.get()) {
        return limit;
    }
    match (kind, large_counts) {
        (ForkKind::Data, false) => (1 << 31) - 1,
        (ForkKind::Data, true) => (1 << 48) - 1,
        (ForkKind::Attr, false) => (1 << 15) - 1,
        (ForkKind::Attr, true) => (1 << 32) - 1,
    }
}

/// A limit that a test can reach: no test makes two billion extents.
#[cfg(all(test, not(shuttle)))]
pub(crate) mod few {
    thread_local! {
        /// The limit of data forks, for this thread.
        pub(crate) static LIMIT: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
    }
}

/// Merges an extent with its neighbours where possible. Returns the merged neighbours and the result. If all three
/// together would be too long, it is merged with the previous one.
fn absorb(before: Option<Extent>, extent: Extent, behind: Option<Extent>) -> (Vec<Extent>, Extent) {
    let mut old = Vec::with_capacity(3);
    let mut merged = extent;
    if let Some(before) = before.filter(|before| can_merge(before, &merged)) {
        merged = Extent { blockcount: before.blockcount + merged.blockcount, ..before };
        old.push(before);
    }
    if let Some(behind) = behind.filter(|behind| can_merge(&merged, behind)) {
        merged.blockcount += behind.blockcount;
        old.push(behind);
    }
    (old, merged)
}

/// Whether two extents can be merged.
fn can_merge(left: &Extent, right: &Extent) -> bool {
    left.end() == right.startoff
        && left.startblock.0 + u64::from(left.blockcount) == right.startblock.0
        && left.unwritten == right.unwritten
        && left.blockcount + right.blockcount <= EXTENT_MOST
}

/// The part of an extent that lies in a range. The two must intersect.
fn part(extent: &Extent, range: Range<FileBlock>) -> Extent {
    let start = extent.startoff.max(range.start);
    let end = extent.end().min(range.end).max(start);
    Extent {
        startoff: start,
        startblock: FsBlock(extent.startblock.0 + (start.0 - extent.startoff.0)),
        // No longer than the extent.
        blockcount: (end.0 - start.0) as u32,
        unwritten: extent.unwritten,
    }
}

/// What an extent has before and behind a part of it.
fn around(extent: &Extent, inner: &Extent) -> (Option<Extent>, Option<Extent>) {
    let left = part(extent, extent.startoff..inner.startoff);
    let right = part(extent, inner.end()..extent.end());
    (Some(left).filter(|left| left.blockcount > 0), Some(right).filter(|right| right.blockcount > 0))
}

fn zerocopy_bytes(record: &xfs_format::bmbt::BmbtRecord) -> [u8; 16] {
    zerocopy::transmute!(*record)
}
