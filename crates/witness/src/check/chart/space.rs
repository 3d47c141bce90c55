//! The headers of groups, and the trees that they have the roots of.

use super::tables::{
    AGF, AGFL, AGI, CHUNK, CHUNK_KEY, REFCOUNT, REFCOUNT_KEY, RMAP, RMAP_KEY, SHORT_TREE, SPACE, SPACE_KEY,
    SPARSE_CHUNK, SUPERBLOCK,
};
use super::{Field, Survey, number};
use anyhow::Result;

/// The header of a block of a group's tree.
pub(super) const HEADER: usize = 56;

/// A kind of tree.
struct Tree {
    leaf: &'static str,
    node: &'static str,
    record: &'static [Field],
    record_len: usize,
    key: &'static [Field],
    key_len: usize,
}

const BNOBT: Tree =
    Tree { leaf: "bnobt leaf", node: "bnobt node", record: SPACE, record_len: 8, key: SPACE_KEY, key_len: 8 };
const CNTBT: Tree = Tree { leaf: "cntbt leaf", node: "cntbt node", ..BNOBT };
const INOBT: Tree = Tree {
    leaf: "inobt leaf",
    node: "inobt node",
    record: CHUNK,
    record_len: 16,
    key: CHUNK_KEY,
    key_len: 4,
};
const FINOBT: Tree = Tree { leaf: "finobt leaf", node: "finobt node", ..INOBT };
const RMAPBT: Tree = Tree {
    leaf: "rmapbt leaf",
    node: "rmapbt node",
    record: RMAP,
    record_len: 24,
    key: RMAP_KEY,
    key_len: 40,
};
const REFCOUNTBT: Tree = Tree {
    leaf: "refcountbt leaf",
    node: "refcountbt node",
    record: REFCOUNT,
    record_len: 12,
    key: REFCOUNT_KEY,
    key_len: 4,
};

/// Superblocks, AGFs, AGIs and AGFLs.
pub(super) fn headers(survey: &mut Survey<'_>) -> Result<()> {
    let shape = survey.shape;
    let sector = shape.sector as u64;
    for ag in 0..shape.ag_count {
        let at = shape.ag_block(ag, 0);
        let (piece, _) = survey.piece(at, shape.sector, 224)?;
        let structure = if ag == 0 { "superblock" } else { "superblock copy" };
        survey.fields(piece, structure, 0, SUPERBLOCK);
        let (piece, agf) = survey.piece(at + sector, shape.sector, 216)?;
        survey.fields(piece, "AGF", 0, AGF);
        let (piece, _) = survey.piece(at + 2 * sector, shape.sector, 312)?;
        survey.fields(piece, "AGI", 0, AGI);
        for bucket in 0..64 {
            survey.field(piece, ("AGI", "unlinked"), 40 + 4 * bucket, 4);
        }
        let (piece, _) = survey.piece(at + 3 * sector, shape.sector, 32)?;
        survey.fields(piece, "AGFL", 0, AGFL);
        let slots = (shape.sector - 36) / 4;
        let (first, count) = (number(agf, 40, 4) as usize, number(agf, 48, 4) as usize);
        for slot in 0..slots {
            let used = (slot + slots - first) % slots < count;
            let field = if used { "bno" } else { "bno, not in use" };
            survey.field(piece, ("AGFL", field), 36 + 4 * slot, 4);
        }
    }
    Ok(())
}

/// All trees of all groups.
pub(super) fn trees(survey: &mut Survey<'_>) -> Result<()> {
    let shape = survey.shape;
    let inobt = |tree: Tree| if shape.sparse() { Tree { record: SPARSE_CHUNK, ..tree } } else { tree };
    for ag in 0..shape.ag_count {
        let at = shape.ag_block(ag, 0);
        let agf = survey.bytes(at + shape.sector as u64, shape.sector)?;
        let agi = survey.bytes(at + 2 * shape.sector as u64, shape.sector)?;
        walk(survey, ag, &BNOBT, number(agf, 16, 4))?;
        walk(survey, ag, &CNTBT, number(agf, 20, 4))?;
        if shape.rmapbt() {
            walk(survey, ag, &RMAPBT, number(agf, 24, 4))?;
        }
        if shape.reflink() {
            walk(survey, ag, &REFCOUNTBT, number(agf, 88, 4))?;
        }
        walk(survey, ag, &inobt(INOBT), number(agi, 20, 4))?;
        if shape.finobt() {
            walk(survey, ag, &inobt(FINOBT), number(agi, 328, 4))?;
        }
    }
    Ok(())
}

fn walk(survey: &mut Survey<'_>, ag: u64, tree: &Tree, block: u64) -> Result<()> {
    let shape = survey.shape;
    let (piece, bytes) = survey.piece(shape.ag_block(ag, block), shape.block(), 52)?;
    let (level, count) = (number(bytes, 4, 2), number(bytes, 6, 2) as usize);
    if level == 0 {
        survey.fields(piece, tree.leaf, 0, SHORT_TREE);
        for index in 0..count {
            let at = HEADER + index * tree.record_len;
            survey.fields(piece, tree.leaf, at, tree.record);
            if tree.record_len == 24 {
                // Flags and offset of a reverse mapping share eight bytes.
                survey.bits(piece, (tree.leaf, "attribute flag"), (at + 16) * 8, 1);
                survey.bits(piece, (tree.leaf, "map block flag"), (at + 16) * 8 + 1, 1);
                survey.bits(piece, (tree.leaf, "unwritten flag"), (at + 16) * 8 + 2, 1);
                survey.bits(piece, (tree.leaf, "offset"), (at + 16) * 8 + 3, 61);
            }
        }
        return Ok(());
    }
    survey.fields(piece, tree.node, 0, SHORT_TREE);
    let most = (bytes.len() - HEADER) / (tree.key_len + 4);
    for index in 0..count {
        survey.fields(piece, tree.node, HEADER + index * tree.key_len, tree.key);
        let at = HEADER + most * tree.key_len + index * 4;
        survey.field(piece, (tree.node, "pointer"), at, 4);
        walk(survey, ag, tree, number(bytes, at, 4))?;
    }
    Ok(())
}

/// The chunks of a group: each its first inode, holes, and free inodes.
pub(super) fn chunks(survey: &Survey<'_>, ag: u64) -> Result<Vec<(u64, u64, u64)>> {
    let shape = survey.shape;
    let agi = survey.bytes(shape.ag_block(ag, 0) + 2 * shape.sector as u64, shape.sector)?;
    let (mut found, mut blocks) = (Vec::new(), vec![number(agi, 20, 4)]);
    while let Some(block) = blocks.pop() {
        let bytes = survey.bytes(shape.ag_block(ag, block), shape.block())?;
        let count = number(bytes, 6, 2) as usize;
        if number(bytes, 4, 2) == 0 {
            for at in (0..count).map(|index| HEADER + index * 16) {
                let holes = if shape.sparse() { number(bytes, at + 4, 2) } else { 0 };
                found.push((number(bytes, at, 4), holes, number(bytes, at + 8, 8)));
            }
        } else {
            let most = (bytes.len() - HEADER) / 8;
            blocks.extend((0..count).map(|index| number(bytes, HEADER + most * 4 + index * 4, 4)));
        }
    }
    Ok(found)
}
