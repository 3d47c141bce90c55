//! Exchange of the mappings of two files, a pair at a time: what is still to be exchanged is one intent (XMI), and each
//! step owes the changes of both maps by intents of their own, in front of what is left. What we exchange is the content of
//! files; a kernel that repairs a mounted volume exchanges directories, targets of symbolic links and attribute forks too,
//! and a log may have that unfinished.
//!
//! Invariants:
//! - wherever the log is cut, each pair is exchanged, or owed, or in the range that is left;
//! - sizes change with the last pair; the mark of shared blocks is never taken off: a file may have it and share nothing;
//! - the log never has an exchange of nothing, which kernels take for damage.

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

/// Carries out a piece of work of this layer, or of one below; gives what is left of it.
pub(crate) fn carry_out(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Exchange(todo) => step(trans, todo).map(|rest| rest.map(Work::Exchange)),
        other => bmap::carry_out(trans, other),
    }
}

/// Owes the exchange of mappings of two files, which are joined.
pub(crate) fn exchange_later(trans: &mut Trans<'_>, exchange: Exchange) {
    trans.owe(Work::Exchange(exchange), carry_out);
}

/// What a file has at a place: an extent, or a hole of so many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Blocks.
    Extent(Extent),
    /// None.
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

    /// Blocks.
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

/// How many records come into the reverse map of each group when all of it is exchanged: each piece that moves is another
/// owner's then, and may leave one more of its extent behind it.
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

/// The next pair that differs, and what is left of the exchange behind it. `None`: there is none.
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

/// Exchanges the next pair; gives what is left to be exchanged.
fn step(trans: &mut Trans<'_>, todo: Exchange) -> Result<Option<Exchange>> {
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
    let lists = [trans.extents(one, kind)?, trans.extents(two, kind)?];
    let (pair, left) = next_pair([&*lists[0], &*lists[1]], todo);
    if let Some([from_one, from_two]) = pair {
        let (at_one, at_two) = (left.offsets[0].0 - from_one.len(), left.offsets[1].0 - from_one.len());
        for (ino, piece) in [(one, &from_one), (two, &from_two)] {
            piece
                .extent()
                .into_iter()
                .for_each(|extent| bmap::remap_later(trans, BmapOp::Unmap, ino, kind, extent));
        }
        for (ino, piece, at) in [(two, &from_one, at_two), (one, &from_two, at_one)] {
            let moved = piece.extent().map(|extent| Extent { startoff: FileBlock(at), ..*extent });
            moved.iter().for_each(|extent| bmap::remap_later(trans, BmapOp::Map, ino, kind, extent));
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
