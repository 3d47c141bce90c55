//! Small volumes that hold each structure in each form, filled by the kernel: what the campaign damages.
//!
//! Invariant: small, as `xfs_repair` reads each of them thousands of times, and yet with trees of several levels,
//! which small blocks give: 64 MiB, in groups of 16 MiB.

use super::staging;
use crate::fill::site::{Site, preallocate, punch};
use crate::sandbox::Mounted;
use crate::volumes::VolumeKind;
use anyhow::Result;
use oracles::xfsprogs::Release;
use rustix::fs::{FileType, fsync, ioctl_ficlone};
use rustix::io::Errno;
use std::os::unix::fs::FileExt;
use std::path::Path;

const fn kind(name: &'static str, options: &'static [&'static str]) -> VolumeKind {
    VolumeKind {
        name,
        options,
        v4: false,
        size: 64 << 20,
        beyond_repair: false,
        newer: 0,
        defaults_of: Release::System,
    }
}

/// One with all that the newest `mkfs.xfs` turns on: the reverse map, shared extents, large extent counts, parent
/// pointers, the exchange of mappings. Its `xfs_repair` judges it.
const fn today(name: &'static str, options: &'static [&'static str]) -> VolumeKind {
    VolumeKind { defaults_of: Release::Unstable, ..kind(name, options) }
}

/// The volume on which space is staged for copies on write.
const STAGED: &str = "staged";

/// The volumes. Such small ones are made by `mkfs.xfs` only if it is told that nobody will support them.
pub const KINDS: [VolumeKind; 8] = [
    kind("b1024", &["-b", "size=1024", "-d", "agcount=4", "--unsupported"]),
    kind(
        "rmapbt",
        &[
            "-b",
            "size=1024",
            "-n",
            "size=8192",
            "-d",
            "agcount=4",
            "-m",
            "rmapbt=1",
            "-i",
            "nrext64=1",
            "--unsupported",
        ],
    ),
    kind("b4096", &["-b", "size=4096", "-d", "agcount=4", "--unsupported"]),
    kind(
        "plain",
        &[
            "-b",
            "size=1024",
            "-d",
            "agcount=4",
            "-m",
            "reflink=0,finobt=0,bigtime=0,inobtcount=0",
            "-i",
            "sparse=0",
            "--unsupported",
        ],
    ),
    kind("sparse", &["-b", "size=1024", "-d", "agcount=4", "-m", "rmapbt=1", "--unsupported"]),
    today("today", &["-b", "size=1024", "-d", "agcount=4", "--unsupported"]),
    today("today-b4096", &["-d", "agcount=4", "--unsupported"]),
    today(STAGED, &["-b", "size=1024", "-d", "agcount=4", "--unsupported"]),
];

/// How much one of the volumes gets.
struct Amount {
    /// Names of the largest directory, links to one file.
    links: u32,
    /// Files, most of which are removed again, so that most chunks of inodes have free ones.
    files: u32,
    /// Extents of the most fragmented file, and shared runs.
    extents: u64,
    /// Attributes of one file: of many, their index has nodes above nodes.
    attributes: usize,
}

/// Fills a volume.
pub fn fill(image: &Path, kind: &VolumeKind, folder: &Path) -> Result<()> {
    let mounted = Mounted::new(image, &folder.join("mnt"), false)?;
    let mut root = Site::root(mounted.dir(), 1)?;
    let amount = match kind.name {
        "b1024" => Amount { links: 9_000, files: 6_000, extents: 1_500, attributes: 2_500 },
        "rmapbt" => Amount { links: 600, files: 200, extents: 600, attributes: 100 },
        // As many parent pointers of one inode.
        "today" => Amount { links: 3_500, files: 200, extents: 1_500, attributes: 300 },
        "plain" => Amount { links: 1_000, files: 4_500, extents: 300, attributes: 300 },
        _ => Amount { links: 900, files: 200, extents: 700, attributes: 200 },
    };
    files(&mut root.child(b"files")?, &amount)?;
    shared(&mut root.child(b"shared")?, &amount)?;
    directories(&mut root.child(b"directories")?, &amount)?;
    attributes(&mut root.child(b"attributes")?, amount.attributes)?;
    others(&mut root.child(b"others")?)?;
    if kind.name == "sparse" {
        scattered(&mut root.child(b"scattered")?)?;
    }
    names(&mut root.child(b"names")?)?;
    root.sync()?;
    drop(root);
    mounted.unmount()?;
    if kind.name == STAGED { staging::leave(image, folder) } else { Ok(()) }
}

/// Files in each form of a map, and free space in many pieces.
fn files(site: &mut Site, amount: &Amount) -> Result<()> {
    let block = site.block;
    for index in 0..20_u64 {
        let file = site.file(format!("file {index}").as_bytes(), (index * block / 3) as usize)?;
        if index % 4 == 0 {
            preallocate(&file, 8 * block, 4 * block, index % 8 == 0)?;
        }
        if index % 5 == 0 {
            file.write_all_at(b"behind a hole", 40 * block)?;
        }
    }
    // Every other block of one file is freed: as many free pieces, and as many extents.
    let file = site.create(b"pieces")?;
    preallocate(&file, 0, 2 * amount.extents * block, false)?;
    for index in 0..amount.extents {
        punch(&file, (2 * index + 1) * block, block)?;
    }
    let file = site.create(b"few pieces")?;
    for index in 0..60 {
        file.write_all_at(b"one block", 3 * index * block)?;
    }
    Ok(())
}

/// Files that share blocks in many runs.
fn shared(site: &mut Site, amount: &Amount) -> Result<()> {
    let block = site.block;
    let runs = amount.extents / 3;
    let source = site.file(b"source", (3 * runs * block) as usize)?;
    fsync(&source)?;
    for index in 0..3 {
        let clone = site.create(format!("clone {index}").as_bytes())?;
        match ioctl_ficlone(&clone, &source) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => return Ok(()),
            other => other?,
        }
        // The first one parts with every third block, the others with a few.
        let step = if index == 0 { 3 } else { 50 + index };
        for at in (0..3 * runs).step_by(step as usize) {
            punch(&clone, at * block, block)?;
        }
    }
    punch(&source, 7 * block, 9 * block)
}

/// Directories in each form, and more inodes than one leaf of their tree has room for.
fn directories(site: &mut Site, amount: &Amount) -> Result<()> {
    site.child(b"empty")?;
    let few = site.child(b"few")?;
    for name in ["one", "two", "a longer name", "x"] {
        few.touch(name.as_bytes())?;
    }
    for (name, count) in [("block", 30_u32), ("leaf", 220), ("node", 800)] {
        let mut dir = site.child(name.as_bytes())?;
        linked(&mut dir, count)?;
    }
    let mut dir = site.child(b"largest")?;
    linked(&mut dir, amount.links)?;
    let dir = site.child(b"removed")?;
    for index in 0..amount.files {
        dir.touch(format!("{index}").as_bytes())?;
    }
    for index in (0..amount.files).filter(|index| index % 64 > 40) {
        dir.unlink(format!("{index}").as_bytes())?;
    }
    Ok(())
}

/// This many names of one file, of which some are removed again.
fn linked(dir: &mut Site, count: u32) -> Result<()> {
    dir.touch(b"linked")?;
    let here = dir.child(b"a directory")?;
    here.touch(b"a file in it")?;
    let name = |index: u32| format!("{index} {}", &"a name of some length"[..(index % 20) as usize]);
    for index in 0..count {
        dir.link(dir, b"linked", name(index).as_bytes())?;
    }
    for index in (0..count).filter(|index| index % 7 == 3) {
        dir.unlink(name(index).as_bytes())?;
    }
    Ok(())
}

/// Attributes in each form.
fn attributes(site: &mut Site, most: usize) -> Result<()> {
    for (name, count, len) in
        [("short", 3, 5), ("leaf", 12, 30), ("node", 60, 40), ("most", most, 30), ("remote", 4, 3000)]
    {
        site.touch(name.as_bytes())?;
        for index in 0..count {
            let space = ["user", "trusted", "security"][index % 3];
            let value = site.bytes(len + index % 9);
            site.set_attr(name.as_bytes(), format!("{space}.name {index}").as_bytes(), &value)?;
        }
        for index in (0..count).filter(|index| index % 11 == 5) {
            let space = ["user", "trusted", "security"][index % 3];
            site.remove_attr(name.as_bytes(), format!("{space}.name {index}").as_bytes())?;
        }
    }
    let dir = site.child(b"directory")?;
    dir.touch(b"entry")?;
    site.set_attr(b"directory", b"user.of a directory", b"value")?;
    Ok(())
}

/// Names in several directories, the same and others: where inodes say them, in an inode, in a leaf, in a tree, and beside
/// values that lie in blocks of their own.
fn names(site: &mut Site) -> Result<()> {
    site.child(b"elsewhere")?;
    for (name, links) in [("alone", 0), ("few", 3), ("some", 12), ("many", 150)] {
        site.touch(name.as_bytes())?;
        for index in 0..links {
            let other =
                if index % 3 == 0 { format!("elsewhere/{name}-{index}") } else { format!("{name} {index}") };
            site.link(site, name.as_bytes(), other.as_bytes())?;
        }
    }
    site.link(site, b"few", b"elsewhere/few")?;
    let value = site.bytes(3000);
    site.set_attr(b"some", b"user.in blocks of its own", &value)?;
    Ok(())
}

/// Symbolic links and special files.
fn others(site: &mut Site) -> Result<()> {
    site.symlink(b"../files/file 3", b"short link")?;
    site.symlink(&[b'x'; 200], b"longer link")?;
    site.symlink(&[b'y'; 700], b"remote link")?;
    site.symlink(&[b'z'; 1023], b"longest link")?;
    site.mknod(b"fifo", FileType::Fifo, 0, 0)?;
    site.mknod(b"socket", FileType::Socket, 0, 0)?;
    site.mknod(b"character device", FileType::CharacterDevice, 1, 3)?;
    site.mknod(b"block device", FileType::BlockDevice, 7, 200)
}

/// Space that is free only in pieces that are too short for a chunk of inodes, and inodes in them.
fn scattered(site: &mut Site) -> Result<()> {
    const INODES: u32 = 400;
    const PIECE: u64 = 24;
    let block = site.block;
    let file = site.create(b"all")?;
    let (mut end, mut size) = (0, 16_384 * block);
    while size >= block {
        match preallocate(&file, end, size, false) {
            Ok(()) => end += size,
            Err(_) => size /= 2,
        }
    }
    for at in (0..end).step_by((PIECE * block) as usize) {
        punch(&file, at, PIECE / 2 * block)?;
    }
    for index in 0..INODES {
        site.touch(format!("{index}").as_bytes())?;
    }
    Ok(())
}
