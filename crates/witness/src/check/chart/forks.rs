//! Directories, attributes and symbolic links: what lies in inodes, and in blocks of forks.

use super::inodes::Extent;
use super::tables::{
    ATTR_ENTRY, ATTR_LEAF, DA, DA_NODE, DIR_DATA, DIR_FREE, DIR_LEAF, HASHED, NODE_ENTRY, REMOTE,
};
use super::{Field, Survey, number};
use anyhow::Result;

/// Where an inode's data fork begins.
const FORK: usize = 176;
/// The header of directory and attribute blocks: that of attribute leaves is longer.
const HEADER: usize = 64;
const ATTR_HEADER: usize = 80;

/// Flag of an attribute: it is a parent pointer, and its value a directory, number and generation.
const PARENT: u64 = 8;
const DIRECTORY: &[Field] = &[("directory", 0, 8), ("generation", 8, 4)];

/// Entries inside an inode. Volumes here are too small for inode numbers of eight bytes.
pub(super) fn short_directory(survey: &mut Survey<'_>, piece: u32, bytes: &[u8]) {
    const NAME: &str = "short directory";
    survey.fields(piece, NAME, FORK, &[("count", 0, 1), ("i8count", 1, 1), ("parent", 2, 4)]);
    let mut at = FORK + 6;
    for _ in 0..number(bytes, FORK, 1) {
        let len = number(bytes, at, 1) as usize;
        survey.fields(piece, NAME, at, &[("namelen", 0, 1), ("offset", 1, 2), ("name", 3, 1)]);
        survey.fields(piece, NAME, at + 3 + len, &[("ftype", 0, 1), ("inumber", 1, 4)]);
        at += 3 + len + 5;
    }
}

/// Attributes inside an inode.
pub(super) fn short_attributes(survey: &mut Survey<'_>, piece: u32, bytes: &[u8], fork: usize) {
    const NAME: &str = "short attributes";
    survey.fields(piece, NAME, fork, &[("totsize", 0, 2), ("count", 2, 1), ("pad", 3, 1)]);
    let mut at = fork + 4;
    for _ in 0..number(bytes, fork + 2, 1) {
        let (name, value) = (number(bytes, at, 1) as usize, number(bytes, at + 1, 1) as usize);
        let is_parent = number(bytes, at + 2, 1) & PARENT != 0;
        let structure = if is_parent { "short parent pointer" } else { NAME };
        survey.fields(
            piece,
            structure,
            at,
            &[("namelen", 0, 1), ("valuelen", 1, 1), ("flags", 2, 1), ("name", 3, 1)],
        );
        if is_parent {
            survey.fields(piece, structure, at + 3 + name, DIRECTORY);
        } else if value > 0 {
            survey.field(piece, (NAME, "value"), at + 3 + name, 1);
        }
        at += 3 + name + value;
    }
}

/// The blocks of a directory. Those that lie in two pieces are left out.
pub(super) fn directory(survey: &mut Survey<'_>, extents: &[Extent]) -> Result<()> {
    let shape = survey.shape;
    let step = shape.dir_blocks;
    for &(startoff, startblock, count) in extents {
        let mut offset = startoff.next_multiple_of(step);
        while offset + step <= startoff + count {
            let at = shape.fs_block(startblock + offset - startoff);
            directory_block(survey, at)?;
            offset += step;
        }
    }
    Ok(())
}

fn directory_block(survey: &mut Survey<'_>, at: u64) -> Result<()> {
    let len = survey.shape.dir_block();
    let bytes = survey.bytes(at, len)?;
    match (bytes.first_chunk::<4>(), number(bytes, 8, 2)) {
        (Some(b"XDB3"), _) => {
            let (piece, _) = survey.piece(at, len, 4)?;
            let count = number(bytes, len - 8, 4) as usize;
            let index = len - 8 - 8 * count;
            data(survey, piece, ("block directory", "block directory entry"), bytes, index);
            for nth in 0..count {
                survey.fields(piece, "block directory index", index + 8 * nth, HASHED);
            }
            survey.fields(piece, "block directory tail", len - 8, &[("count", 0, 4), ("stale", 4, 4)]);
        }
        (Some(b"XDD3"), _) => {
            let (piece, _) = survey.piece(at, len, 4)?;
            data(survey, piece, ("data block", "data block entry"), bytes, len);
        }
        (Some(b"XDF3"), _) => {
            let (piece, _) = survey.piece(at, len, 4)?;
            survey.fields(piece, "free block", 0, DIR_FREE);
            for nth in 0..number(bytes, 52, 4) as usize {
                survey.field(piece, ("free block", "best"), HEADER + 2 * nth, 2);
            }
        }
        (_, 0x3df1) => {
            let (piece, _) = survey.piece(at, len, 12)?;
            leaf(survey, piece, "single leaf", bytes);
            let count = number(bytes, len - 4, 4) as usize;
            survey.field(piece, ("single leaf", "bestcount"), len - 4, 4);
            for nth in 0..count {
                survey.field(piece, ("single leaf", "best"), len - 4 - 2 * (count - nth), 2);
            }
        }
        (_, 0x3dff) => {
            let (piece, _) = survey.piece(at, len, 12)?;
            leaf(survey, piece, "directory leaf", bytes);
        }
        (_, 0x3ebe) => {
            let (piece, _) = survey.piece(at, len, 12)?;
            node(survey, piece, "directory node", bytes);
        }
        _ => {}
    }
    Ok(())
}

/// The header of a data block, and its entries up to `end`.
fn data(
    survey: &mut Survey<'_>,
    piece: u32,
    (block, entry): (&'static str, &'static str),
    bytes: &[u8],
    end: usize,
) {
    survey.fields(piece, block, 0, DIR_DATA);
    let mut at = HEADER;
    while at + 8 <= end {
        let next = if number(bytes, at, 2) == 0xffff {
            let len = number(bytes, at + 2, 2) as usize;
            survey.fields(piece, block, at, &[("freetag", 0, 2), ("free length", 2, 2)]);
            survey.field(piece, (block, "free tag"), at + len - 2, 2);
            len
        } else {
            let name = number(bytes, at + 8, 1) as usize;
            let len = (name + 12).next_multiple_of(8);
            survey.fields(piece, entry, at, &[("inumber", 0, 8), ("namelen", 8, 1), ("name", 9, 1)]);
            survey.field(piece, (entry, "ftype"), at + 9 + name, 1);
            survey.field(piece, (entry, "tag"), at + len - 2, 2);
            len
        };
        if next == 0 {
            return;
        }
        at += next;
    }
}

fn leaf(survey: &mut Survey<'_>, piece: u32, name: &'static str, bytes: &[u8]) {
    survey.fields(piece, name, 0, DA);
    survey.fields(piece, name, 0, DIR_LEAF);
    for nth in 0..number(bytes, 56, 2) as usize {
        survey.fields(piece, name, HEADER + 8 * nth, HASHED);
    }
}

fn node(survey: &mut Survey<'_>, piece: u32, name: &'static str, bytes: &[u8]) {
    survey.fields(piece, name, 0, DA);
    survey.fields(piece, name, 0, DA_NODE);
    for nth in 0..number(bytes, 56, 2) as usize {
        survey.fields(piece, name, HEADER + 8 * nth, NODE_ENTRY);
    }
}

/// The blocks of an attribute fork.
pub(super) fn attributes(survey: &mut Survey<'_>, extents: &[Extent]) -> Result<()> {
    let shape = survey.shape;
    let len = shape.block();
    for &(_, startblock, count) in extents {
        for nth in 0..count {
            let at = shape.fs_block(startblock + nth);
            let bytes = survey.bytes(at, len)?;
            match (bytes.first_chunk::<4>(), number(bytes, 8, 2)) {
                (Some(b"XARM"), _) => {
                    let (piece, _) = survey.piece(at, len, 12)?;
                    survey.fields(piece, "remote value", 0, REMOTE);
                }
                (_, 0x3ebe) => {
                    let (piece, _) = survey.piece(at, len, 12)?;
                    node(survey, piece, "attribute node", bytes);
                }
                (_, 0x3bee) => attribute_leaf(survey, at, bytes)?,
                _ => {}
            }
        }
    }
    Ok(())
}

fn attribute_leaf(survey: &mut Survey<'_>, at: u64, bytes: &[u8]) -> Result<()> {
    const NAME: &str = "attribute leaf";
    let (piece, _) = survey.piece(at, bytes.len(), 12)?;
    survey.fields(piece, NAME, 0, DA);
    survey.fields(piece, NAME, 0, ATTR_LEAF);
    for nth in 0..number(bytes, 56, 2) as usize {
        let entry = ATTR_HEADER + 8 * nth;
        survey.fields(piece, NAME, entry, ATTR_ENTRY);
        let name = number(bytes, entry + 4, 2) as usize;
        let flags = number(bytes, entry + 6, 1);
        if flags & 1 == 1 {
            let is_parent = flags & PARENT != 0;
            let structure = if is_parent { "parent pointer" } else { "attribute" };
            survey.fields(piece, structure, name, &[("valuelen", 0, 2), ("namelen", 2, 1), ("name", 3, 1)]);
            if is_parent {
                survey.fields(piece, structure, name + 3 + number(bytes, name + 2, 1) as usize, DIRECTORY);
            }
        } else {
            let table = &[("valueblk", 0, 4), ("valuelen", 4, 4), ("namelen", 8, 1), ("name", 9, 1)];
            survey.fields(piece, "remote attribute", name, table);
        }
    }
    Ok(())
}

/// The blocks of a target: one header an extent.
pub(super) fn symlink(survey: &mut Survey<'_>, extents: &[Extent], len: usize) -> Result<()> {
    let shape = survey.shape;
    let mut left = len;
    for &(_, startblock, count) in extents {
        let room = (count as usize) << shape.block_log;
        let (piece, _) = survey.piece(shape.fs_block(startblock), room, 12)?;
        survey.fields(piece, "symlink block", 0, REMOTE);
        let here = left.min(room - 56);
        for at in [0, here / 2, here.saturating_sub(1)] {
            survey.field(piece, ("symlink block", "target"), 56 + at, 1);
        }
        left -= here;
    }
    Ok(())
}
