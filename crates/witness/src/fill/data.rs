//! Content: sizes at every boundary, holes, preallocated and partly written space, many extents, huge offsets.

use super::Sizes;
use super::site::{Site, preallocate, punch};
use anyhow::Result;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::os::unix::fs::FileExt;

pub(super) fn fill(site: &mut Site, sizes: &Sizes) -> Result<()> {
    boundaries(site)?;
    sparse(site, sizes.many(200, 20))?;
    preallocated(site)?;
    shifted(site)?;
    few_extents(site, sizes.many(120, 30))?;
    huge_offsets(site)?;
    many_extents(site, sizes.extents)?;
    fragmented(site, sizes.many(20, 4), sizes.many(400, 60))
}

fn boundaries(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"sizes")?;
    let block = dir.block as usize;
    let mut sizes =
        vec![0, 1, 2, 3, 255, 256, 4_095, 4_096, 4_097, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1];
    for unit in [512, block] {
        for count in [1, 2, 3, 7, 8, 16] {
            sizes.extend([unit * count - 1, unit * count, unit * count + 1]);
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        dir.file(format!("{size}").as_bytes(), size)?;
    }
    Ok(())
}

/// Files with data at random places, some of which end in a hole.
fn sparse(site: &mut Site, count: u64) -> Result<()> {
    let mut dir = site.child(b"sparse")?;
    for index in 0..count {
        let file = dir.create(format!("{index}").as_bytes())?;
        let size = dir.rng.u64(1..=200 * dir.block);
        ftruncate(&file, size)?;
        for _ in 0..dir.rng.u32(0..8) {
            let at = dir.rng.u64(0..size);
            let len = dir.rng.u64(1..=3 * dir.block).min(size - at);
            let bytes = dir.bytes(len as usize);
            file.write_all_at(&bytes, at)?;
        }
        if index % 3 == 0 {
            ftruncate(&file, dir.rng.u64(0..=size + 5 * dir.block))?;
        }
    }
    Ok(())
}

/// Preallocated space: whole, past the end of the file, written in part, with holes in it.
fn preallocated(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"preallocated")?;
    let block = dir.block;
    let whole = dir.create(b"whole")?;
    preallocate(&whole, 0, 40 * block + 17, false)?;
    let beyond = dir.file(b"beyond-end", 1_000)?;
    preallocate(&beyond, 0, 64 * block, true)?;
    let only_beyond = dir.create(b"empty-but-allocated")?;
    preallocate(&only_beyond, 0, 9 * block, true)?;
    for (name, step) in [(&b"every-other-block"[..], 2), (b"every-third-block", 3)] {
        let file = dir.create(name)?;
        preallocate(&file, 0, 60 * block, false)?;
        for at in (0..60).step_by(step) {
            let bytes = dir.bytes(block as usize);
            file.write_all_at(&bytes, at * block)?;
        }
    }
    let parts = dir.create(b"parts-of-blocks")?;
    preallocate(&parts, 0, 30 * block, false)?;
    for at in [0, 5 * block - 1, 9 * block + 100, 30 * block - 1] {
        parts.write_all_at(b"x", at)?;
    }
    let holes = dir.create(b"holes")?;
    preallocate(&holes, 0, 50 * block, false)?;
    punch(&holes, 3 * block, 5 * block)?;
    punch(&holes, 20 * block + 1, block)?;
    let zeroed = dir.file(b"zeroed-range", 20 * block as usize)?;
    fallocate(&zeroed, FallocateFlags::ZERO_RANGE, 4 * block + 7, 9 * block)?;
    let holed = dir.file(b"punched-data", 20 * block as usize + 5)?;
    punch(&holed, block + 7, 9 * block)?;
    punch(&holed, 19 * block, 2 * block)
}

/// Ranges taken out and put in, which shift the map behind them.
fn shifted(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"shifted")?;
    let block = dir.block;
    let collapsed = dir.file(b"collapsed", 30 * block as usize + 9)?;
    fallocate(&collapsed, FallocateFlags::COLLAPSE_RANGE, 4 * block, 3 * block)?;
    let inserted = dir.file(b"inserted", 30 * block as usize + 9)?;
    fallocate(&inserted, FallocateFlags::INSERT_RANGE, 11 * block, 7 * block)?;
    Ok(())
}

/// Files with 1, 2, 3 … extents: the map grows in the inode until it has to leave it.
fn few_extents(site: &mut Site, most: u64) -> Result<()> {
    let mut dir = site.child(b"few-extents")?;
    for count in 1..=most {
        let name = format!("{count}").into_bytes();
        let file = dir.create(&name)?;
        ftruncate(&file, 2 * count * dir.block)?;
        for at in 0..count {
            file.write_all_at(b"data", 2 * at * dir.block + at % dir.block.min(500))?;
        }
        // Attributes take their part of the inode from the map.
        if count % 4 == 0 {
            let value = dir.bytes(30);
            dir.set_attr(&name, b"user.beside-a-map", &value)?;
        }
    }
    Ok(())
}

/// Data at offsets that need every bit of the map.
fn huge_offsets(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"huge-offsets")?;
    let last = i64::MAX as u64 - 1;
    for at in [1 << 31, 1 << 32, 1 << 40, 1 << 44, 1 << 55, 1 << 62, last - dir.block, last] {
        let file = dir.create(format!("{at}").as_bytes())?;
        file.write_all_at(b"far away", if at == last { last - 8 } else { at })?;
    }
    let file = dir.create(b"all")?;
    for shift in (12..62).step_by(2) {
        let bytes = dir.bytes(100);
        file.write_all_at(&bytes, 1 << shift)?;
    }
    dir.create(b"only-a-hole")?.set_len(i64::MAX as u64)?;
    Ok(())
}

/// One file with `extents` extents at least: a third is blocks between holes, a third preallocated space with
/// holes punched into it, and a third preallocated space of which every other block is written.
fn many_extents(site: &mut Site, extents: u64) -> Result<()> {
    let block = site.block;
    let third = extents / 3 + 1;
    let file = site.create(b"many-extents")?;
    let (punched_at, written_at) = (2 * third * block, 5 * third * block);
    ftruncate(&file, written_at + third * block)?;
    for index in 0..third {
        file.write_all_at(&site.rng.u64(..).to_le_bytes(), 2 * index * block)?;
    }
    preallocate(&file, punched_at, 3 * third * block, false)?;
    for index in 0..third {
        punch(&file, punched_at + (3 * index + 2) * block, block)?;
    }
    // The data of whole blocks would be much on volumes with large ones: a few bytes make a block written too.
    preallocate(&file, written_at, third * block, false)?;
    for index in (0..third).step_by(2) {
        file.write_all_at(&site.rng.u64(..).to_le_bytes(), written_at + index * block + index % 500)?;
    }
    Ok(file.sync_all()?)
}

/// Files that grow by turns, each step synchronous, so that their blocks lie between each other's.
fn fragmented(site: &mut Site, files: u64, steps: u64) -> Result<()> {
    let mut dir = site.child(b"fragmented")?;
    let open: Vec<_> =
        (0..files).map(|index| dir.create(format!("{index}").as_bytes())).collect::<Result<_>>()?;
    for step in 0..steps {
        for file in &open {
            preallocate(file, step * dir.block, dir.block, false)?;
        }
    }
    for (index, file) in open.iter().enumerate() {
        for step in (index as u64 % 3..steps).step_by(3) {
            let bytes = dir.bytes(dir.block.min(4_096) as usize);
            file.write_all_at(&bytes, step * dir.block)?;
        }
    }
    Ok(())
}
