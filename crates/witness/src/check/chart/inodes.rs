//! Inodes, their cores and what lies in their forks; maps down to their leaves.

use super::tables::{INODE, LARGE_COUNTS, LONG_TREE, SMALL_COUNTS};
use super::{Survey, forks, number, space};
use anyhow::Result;

/// A run of blocks of a fork: where in the fork, which block of the volume, how many.
pub(super) type Extent = (u64, u64, u64);

/// Bytes of a core.
const CORE: usize = 176;
/// The header of a block of a map.
const MAP_HEADER: usize = 72;

/// The names of the structures in an inode of one type.
struct Names {
    core: &'static str,
    extents: &'static str,
    root: &'static str,
}

/// All inodes of all groups, those included that are free.
pub(super) fn all(survey: &mut Survey<'_>) -> Result<()> {
    let shape = survey.shape;
    for ag in 0..shape.ag_count {
        for (start, holes, free) in space::chunks(survey, ag)? {
            for index in (0..64).filter(|index| holes >> (index / 4) & 1 == 0) {
                let inode = start + index;
                let at = shape.ag_block(ag, inode >> shape.inodes_log)
                    + (inode & ((1 << shape.inodes_log) - 1)) * shape.inode as u64;
                one(survey, at, free >> index & 1 == 1)?;
            }
        }
    }
    Ok(())
}

fn names(mode: u64) -> Names {
    let (core, extents, root) = match mode >> 12 {
        8 => ("file", "file extents", "file map root"),
        4 => ("directory", "directory extents", "directory map root"),
        10 => ("symlink", "symlink extents", "symlink map root"),
        _ => ("special file", "special file extents", "special file map root"),
    };
    Names { core, extents, root }
}

fn one(survey: &mut Survey<'_>, at: u64, free: bool) -> Result<()> {
    let shape = survey.shape;
    let (piece, bytes) = survey.piece(at, shape.inode, 100)?;
    let counts = if shape.large_counts() { LARGE_COUNTS } else { SMALL_COUNTS };
    let names = names(number(bytes, 2, 2));
    let core = if free { "free inode" } else { names.core };
    survey.fields(piece, core, 0, INODE);
    survey.fields(piece, core, 0, counts);
    if free {
        return Ok(());
    }
    let forkoff = number(bytes, 82, 1) as usize * 8;
    let data_end = if forkoff == 0 { bytes.len() } else { CORE + forkoff };
    let (nextents, anextents) = if shape.large_counts() {
        (number(bytes, 24, 8), number(bytes, 76, 4))
    } else {
        (number(bytes, 76, 4), number(bytes, 80, 2))
    };
    match number(bytes, 5, 1) {
        0 => survey.field(piece, (names.core, "device"), CORE, 4),
        1 => match number(bytes, 2, 2) >> 12 {
            4 => forks::short_directory(survey, piece, bytes),
            _ => {
                for at in CORE..CORE + number(bytes, 56, 8) as usize {
                    survey.field(piece, ("short symlink", "target"), at, 1);
                }
            }
        },
        format => {
            let fork = (piece, CORE..data_end);
            let extents = extents(survey, fork, format, nextents, (names.extents, names.root))?;
            match number(bytes, 2, 2) >> 12 {
                4 => forks::directory(survey, &extents)?,
                10 => forks::symlink(survey, &extents, number(bytes, 56, 8) as usize)?,
                _ => {}
            }
        }
    }
    if forkoff != 0 {
        match number(bytes, 83, 1) {
            1 => forks::short_attributes(survey, piece, bytes, data_end),
            format => {
                let fork = (piece, data_end..bytes.len());
                let names = ("attribute extents", "attribute map root");
                let extents = extents(survey, fork, format, anextents, names)?;
                forks::attributes(survey, &extents)?;
            }
        }
    }
    Ok(())
}

/// The extents of a fork in any of the two forms.
fn extents(
    survey: &mut Survey<'_>,
    (piece, fork): (u32, std::ops::Range<usize>),
    format: u64,
    count: u64,
    (inline, root): (&'static str, &'static str),
) -> Result<Vec<Extent>> {
    let inode = survey.chart.pieces[piece as usize];
    let bytes = survey.bytes(inode.at, inode.len)?;
    let mut found = Vec::new();
    if format == 2 {
        for at in (0..count as usize).map(|index| fork.start + index * 16) {
            record(survey, piece, inline, bytes, at, &mut found);
        }
        return Ok(found);
    }
    survey.fields(piece, root, fork.start, &[("level", 0, 2), ("numrecs", 2, 2)]);
    let most = (fork.len() - 4) / 16;
    for index in 0..number(bytes, fork.start + 2, 2) as usize {
        survey.field(piece, (root, "key"), fork.start + 4 + index * 8, 8);
        let at = fork.start + 4 + (most + index) * 8;
        survey.field(piece, (root, "pointer"), at, 8);
        map_block(survey, number(bytes, at, 8), &mut found)?;
    }
    Ok(found)
}

fn map_block(survey: &mut Survey<'_>, block: u64, found: &mut Vec<Extent>) -> Result<()> {
    let shape = survey.shape;
    let (piece, bytes) = survey.piece(shape.fs_block(block), shape.block(), 64)?;
    let count = number(bytes, 6, 2) as usize;
    if number(bytes, 4, 2) == 0 {
        survey.fields(piece, "bmbt leaf", 0, LONG_TREE);
        for at in (0..count).map(|index| MAP_HEADER + index * 16) {
            record(survey, piece, "bmbt leaf", bytes, at, found);
        }
        return Ok(());
    }
    survey.fields(piece, "bmbt node", 0, LONG_TREE);
    let most = (bytes.len() - MAP_HEADER) / 16;
    for index in 0..count {
        survey.field(piece, ("bmbt node", "key"), MAP_HEADER + index * 8, 8);
        let at = MAP_HEADER + (most + index) * 8;
        survey.field(piece, ("bmbt node", "pointer"), at, 8);
        map_block(survey, number(bytes, at, 8), found)?;
    }
    Ok(())
}

/// One extent: a flag, the offset in 54 bits, the block in 52, the length in 21.
fn record(
    survey: &mut Survey<'_>,
    piece: u32,
    structure: &'static str,
    bytes: &[u8],
    at: usize,
    found: &mut Vec<Extent>,
) {
    let bit = at * 8;
    survey.bits(piece, (structure, "unwritten"), bit, 1);
    survey.bits(piece, (structure, "startoff"), bit + 1, 54);
    survey.bits(piece, (structure, "startblock"), bit + 55, 52);
    survey.bits(piece, (structure, "blockcount"), bit + 107, 21);
    let (high, low) = (number(bytes, at, 8), number(bytes, at + 8, 8));
    let startoff = high << 1 >> 10;
    found.push((startoff, (high & 0x1ff) << 43 | low >> 21, low & 0x1f_ffff));
}
