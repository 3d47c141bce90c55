//! Reading a directory in order, from any position.
//!
//! A position is the offset of an entry in the data space, divided by 8. A walk from it continues with the next entry.
//! In every form `.` has an offset above 0, so 0 is the start. Entries inside the inode have the offset that they would
//! have in a block, so positions stay valid when a directory grows out of the inode.
//!
//! Only data blocks are read, in order. Holes are skipped.

use super::{DirDataBlock, DirEntry, FileType, NAME, leaf_space, parse_short, position};
use crate::error::{Error, Result};
use crate::fork::Fork;
use std::ops::ControlFlow;
use xfs_format::dir::{DATA_ALIGN_LOG, DataItem, DataKind, LEAF_SPACE, ShortDir};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// Calls `each` for every entry from `cookie` on (0: the start), in directory order, `.` and `..` first, until it
/// breaks.
pub fn walk(
    fork: &dyn Fork,
    cookie: u64,
    each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    match fork.local() {
        Some(local) => walk_short(fork, local, cookie, each),
        None => walk_blocks(fork, cookie, each),
    }
}

fn walk_short(
    fork: &dyn Fork,
    local: &[u8],
    cookie: u64,
    each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let geometry = fork.geometry();
    let corrupt = |problem| Error::corrupt_inode(fork.inode(), problem);
    let dir = parse_short(fork, local)?;
    let dots = [
        (&b"."[..], fork.inode(), ShortDir::dot_offset(geometry.v5)),
        (b"..", dir.parent, ShortDir::dotdot_offset(geometry.v5, geometry.ftype)),
    ];
    for (name, inode, offset) in dots {
        let next = position(offset as u64);
        let entry = DirEntry { name, inode, file_type: FileType::Directory, next };
        if next > cookie && each(entry).is_break() {
            return Ok(());
        }
    }
    for entry in dir.entries() {
        let entry = entry.map_err(corrupt)?;
        let next = position(entry.offset.into());
        let entry =
            DirEntry { name: entry.name, inode: entry.inode, file_type: entry.file_type.into(), next };
        if next > cookie && each(entry).is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn walk_blocks(
    fork: &dyn Fork,
    cookie: u64,
    each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let geometry = fork.geometry();
    let step = u64::from(geometry.dir_block_blocks());
    let Some(start) = cookie.checked_mul(1 << DATA_ALIGN_LOG).filter(|&start| start < LEAF_SPACE) else {
        return Ok(());
    };
    let mut at = start / u64::from(geometry.dir_block_size()) * step;
    while let Some(mapped) = fork.next_mapped(FileBlock(at))? {
        debug_assert!(mapped.0 >= at, "next_mapped goes forward");
        if cookie == 0 && at == 0 && mapped.0 != 0 {
            return Err(Error::corrupt_inode(fork.inode(), FormatError::new(NAME, "first block")));
        }
        // Read a block that begins in a hole as well: reading it tells what is wrong.
        at = mapped.0 - mapped.0 % step;
        if at >= leaf_space(geometry) {
            break;
        }
        if walk_block(fork, FileBlock(at), cookie, each)?.is_break() {
            break;
        }
        at += step;
    }
    Ok(())
}

/// Walks the entries after `cookie` in one directory block.
fn walk_block(
    fork: &dyn Fork,
    at: FileBlock,
    cookie: u64,
    each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let geometry = fork.geometry();
    let base = at.0 << geometry.block_log;
    if base >= fork.size() {
        let problem = FormatError::mismatch(NAME, "data block behind the end", base, fork.size());
        return Err(Error::corrupt_inode(fork.inode(), problem));
    }
    let data = DirDataBlock::read_in_order(fork, at)?;
    let block = data.view(fork)?;
    if block.kind == DataKind::Block {
        let step = u64::from(geometry.dir_block_blocks());
        if at.0 != 0 || fork.next_mapped(FileBlock(step))?.is_some() {
            let problem = FormatError::value(NAME, "block form with further blocks", at.0);
            return Err(data.corrupt(fork, problem));
        }
    }
    for item in block.items() {
        let DataItem::Entry(entry) = item.map_err(|problem| data.corrupt(fork, problem))? else {
            continue;
        };
        let next = position(base + entry.offset as u64);
        let entry =
            DirEntry { name: entry.name, inode: entry.inode, file_type: entry.file_type.into(), next };
        if next > cookie && each(entry).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
