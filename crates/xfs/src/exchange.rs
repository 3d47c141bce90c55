//! Exchange of the mappings of two files, one pair at a time. What is left to be exchanged is one intent (XMI). Each
//! step defers the changes of both maps through intents of their own, which come before the rest of the exchange. We
//! exchange only file content. A kernel that repairs a mounted volume also exchanges directories, symlink targets and
//! attribute forks, and a log may have such exchanges unfinished.
//!
//! Invariants:
//! - wherever the log is cut, each pair is exchanged, or deferred, or in the range that is left;
//! - sizes change with the last pair. The reflink flag is never cleared: a file may have it and share nothing;
//! - the log never has an empty exchange, which kernels take for corruption.

use crate::bmap;
use crate::error::{Error, Result};
use crate::ifork::{ExtentList, Mapped};
use crate::inode::{ForkKind, ForkState};
use crate::trans::{Trans, Work};
use std::collections::BTreeMap;
use xfs_format::bmbt::Extent;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::log::{BmapOp, Exchange, ExchangeFlags, InodeFields};
use xfs_format::types::{AgNumber, FileBlock};

const NAME: &str = "XMI";

/// Finishes an item of this layer or of one below. Returns the remaining work.
pub(crate) fn finish_item(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Exchange(todo) => exchange_next_pair(trans, todo).map(|rest| rest.map(Work::Exchange)),
        other => bmap::finish_item(trans, other),
    }
}

/// Defers the exchange of mappings of two joined files.
pub(crate) fn defer_exchange(trans: &mut Trans<'_>, exchange: Exchange) {
    trans.defer(Work::Exchange(exchange), finish_item);
}

/// What a file has at a place: an extent, or a hole of this many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Blocks.
    Extent(Extent),
    /// No blocks.
    Hole(u64),
}

impl Piece {
    /// What `extents` have at `at`, up to `most` blocks.
    pub(crate) fn at(extents: &ExtentList, at: FileBlock, most: u64) -> Self {
        match extents.lookup(at) {
            Mapped::Extent(extent) => {
                let skip = at.0 - extent.startoff.0;
                let blockcount = (u64::from(extent.blockcount) - skip).min(most) as u32;
                let startblock = xfs_format::types::FsBlock(extent.startblock.0 + skip);
                Self::Extent(Extent { startoff: at, startblock, blockcount, ..extent })
            }
            Mapped::Hole(_, end) => Self::Hole(end.map_or(most, |end| (end.0 - at.0).min(most))),
        }
    }

    /// Its number of blocks.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.blockcount.into(),
            Self::Hole(blocks) => *blocks,
        }
    }

    fn cut(self, len: u64) -> Self {
        match self {
            Self::Extent(extent) => Self::Extent(Extent { blockcount: len as u32, ..extent }),
            Self::Hole(_) => Self::Hole(len),
        }
    }

    fn is_written(&self) -> bool {
        matches!(self, Self::Extent(extent) if !extent.unwritten)
    }

    fn extent(&self) -> Option<&Extent> {
        if let Self::Extent(extent) = self { Some(extent) } else { None }
    }

    /// Whether two files have the same here.
    fn is_same(&self, other: &Self) -> bool {
        match (self.extent(), other.extent()) {
            (None, None) => true,
            (Some(one), Some(two)) => one.startblock == two.startblock && one.unwritten == two.unwritten,
            _ => false,
        }
    }
}

/// How many records the rmap tree of each group gets when everything is exchanged. Each piece that moves gets another
/// owner, and may leave one more record of its extent.
pub(crate) fn new_owner_records(
    geometry: &Geometry,
    lists: [&ExtentList; 2],
    mut todo: Exchange,
) -> BTreeMap<AgNumber, u64> {
    const MOVED_AND_LEFT: u64 = 2;
    let mut records = BTreeMap::new();
    while let (Some(pair), left) = next_pair(lists, todo) {
        for extent in pair.iter().filter_map(Piece::extent) {
            if let Some((ag, _)) = geometry.split_block(extent.startblock) {
                *records.entry(ag).or_default() += MOVED_AND_LEFT;
            }
        }
        todo = left;
    }
    records
}

/// The next pair that differs, or `None`; and what is left of the exchange after it.
pub(crate) fn next_pair(lists: [&ExtentList; 2], mut todo: Exchange) -> (Option<[Piece; 2]>, Exchange) {
    while todo.blocks > 0 {
        let [at, to] = todo.offsets;
        let one = Piece::at(lists[0], at, todo.blocks);
        let skipped = todo.flags.contains(ExchangeFlags::INO1_WRITTEN) && !one.is_written();
        let two = Piece::at(lists[1], to, one.len());
        let len = if skipped { one.len() } else { two.len() };
        let one = one.cut(len);
        todo.offsets = todo.offsets.map(|offset| FileBlock(offset.0 + len));
        todo.blocks -= len;
        if !skipped && !one.is_same(&two) {
            return (Some([one, two]), todo);
        }
    }
    (None, todo)
}

/// Exchanges the next pair. Returns what is left.
fn exchange_next_pair(trans: &mut Trans<'_>, todo: Exchange) -> Result<Option<Exchange>> {
    let [one, two] = todo.inodes;
    let kind = if todo.flags.contains(ExchangeFlags::ATTR_FORK) { ForkKind::Attr } else { ForkKind::Data };
    let damaged = |problem| Error::corrupt_inode(one, problem);
    todo.check(trans.geometry()).map_err(damaged)?;
    for ino in [one.min(two), one.max(two)] {
        trans.join_owner(ino)?;
    }
    for (ino, generation) in todo.inodes.into_iter().zip(todo.generations) {
        let inode = trans.inode(ino);
        if inode.core().generation != generation {
            let problem =
                FormatError::mismatch(NAME, "generation", inode.core().generation.into(), generation.into());
            return Err(Error::corrupt_inode(ino, problem));
        }
        let has_blocks = |fork: &ForkState| matches!(fork.format, ForkFormat::Extents | ForkFormat::Btree);
        if !inode.fork_state(kind).is_some_and(has_blocks) {
            return Err(Error::corrupt_inode(
                ino,
                FormatError::new(NAME, "exchange of a fork without blocks"),
            ));
        }
    }
    if kind == ForkKind::Data && trans.inode(one).kind() != trans.inode(two).kind() {
        return Err(damaged(FormatError::new(NAME, "exchange of different types of inodes")));
    }
    let lists = [bmap::extents(trans, one, kind)?, bmap::extents(trans, two, kind)?];
    let (pair, left) = next_pair([&*lists[0], &*lists[1]], todo);
    if let Some([from_one, from_two]) = pair {
        let (at_one, at_two) = (left.offsets[0].0 - from_one.len(), left.offsets[1].0 - from_one.len());
        for (ino, map) in [(one, &from_one), (two, &from_two)] {
            map.extent()
                .into_iter()
                .for_each(|extent| bmap::defer_remap(trans, BmapOp::Unmap, ino, kind, extent));
        }
        for (ino, map, at) in [(two, &from_one, at_two), (one, &from_two, at_one)] {
            let moved = map.extent().map(|extent| Extent { startoff: FileBlock(at), ..*extent });
            moved.iter().for_each(|extent| bmap::defer_remap(trans, BmapOp::Map, ino, kind, extent));
        }
    }
    if left.blocks > 0 {
        return Ok(Some(left));
    }
    if todo.flags.contains(ExchangeFlags::SET_SIZES) {
        for (ino, size) in todo.inodes.into_iter().zip(todo.sizes) {
            trans.inode_mut(ino, InodeFields::CORE).core_mut().size = size;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
