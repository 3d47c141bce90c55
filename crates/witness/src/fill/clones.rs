//! Files that share blocks, whole and in part, and were changed afterwards.

use super::Sizes;
use super::site::{Site, preallocate, punch};
use anyhow::Result;
use rustix::fs::{copy_file_range, fsync, ftruncate, ioctl_ficlone};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

pub(super) fn fill(site: &mut Site, sizes: &Sizes) -> Result<()> {
    let block = site.block;
    let source = site.file(b"source", 100 * block as usize + 123)?;
    preallocate(&source, 150 * block, 50 * block, false)?;
    fsync(&source)?;
    let probe = site.create(b"whole-0")?;
    match ioctl_ficlone(&probe, &source) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => return Ok(()),
        other => other?,
    }
    for index in 1..sizes.many(40, 8) {
        let clone = site.create(format!("whole-{index}").as_bytes())?;
        ioctl_ficlone(&clone, &source)?;
        change(site, &clone, index)?;
    }
    parts(site, &source, sizes.many(40, 8))?;
    within(site)?;
    // The source changes last, so that some of what was shared is now the clones' alone.
    let bytes = site.bytes(3 * block as usize);
    source.write_all_at(&bytes, 7 * block)?;
    punch(&source, 60 * block, 4 * block)?;
    let gone = site.file(b"gone", 20 * block as usize)?;
    fsync(&gone)?;
    let heir = site.create(b"heir-of-a-removed-file")?;
    ioctl_ficlone(&heir, &gone)?;
    site.unlink(b"gone")
}

/// Overwrites, cuts, extends or punches a clone.
fn change(site: &mut Site, clone: &File, index: u64) -> Result<()> {
    let block = site.block;
    for _ in 0..index % 6 {
        let at = site.rng.u64(0..100 * block);
        let len = site.rng.u64(1..=4 * block);
        let bytes = site.bytes(len as usize);
        clone.write_all_at(&bytes, at)?;
    }
    match index % 4 {
        1 => ftruncate(clone, site.rng.u64(0..90 * block))?,
        2 => punch(clone, site.rng.u64(0..50) * block, 5 * block)?,
        3 => clone.write_all_at(b"behind the end", 230 * block + 5)?,
        _ => {}
    }
    Ok(())
}

/// Files made of pieces of the source. A copy of whole blocks inside a volume that can share them shares them.
fn parts(site: &mut Site, source: &File, count: u64) -> Result<()> {
    let mut dir = site.child(b"parts")?;
    for index in 0..count {
        let file = dir.file(format!("{index}").as_bytes(), 10 * dir.block as usize)?;
        for _ in 0..4 {
            let (mut from, mut to) = (dir.rng.u64(0..90) * dir.block, dir.rng.u64(0..60) * dir.block);
            let len = dir.rng.u64(1..=10) * dir.block;
            copy_file_range(source, Some(&mut from), &file, Some(&mut to), len as usize)?;
        }
    }
    Ok(())
}

/// A file that shares blocks with itself.
fn within(site: &mut Site) -> Result<()> {
    let block = site.block;
    let file = site.file(b"with-itself", 8 * block as usize)?;
    fsync(&file)?;
    for index in 1..12u64 {
        let (mut from, mut to) = (block, (index * 10) * block);
        copy_file_range(&file, Some(&mut from), &file, Some(&mut to), 3 * block as usize)?;
    }
    Ok(())
}
