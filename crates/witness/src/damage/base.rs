//! The volumes that are damaged: small, of several shapes, filled with everything.

use crate::command::run;
use crate::fill::{Sizes, fill};
use crate::sandbox::{Mounted, mkfs, scratch};
use crate::volumes::VolumeKind;
use anyhow::{Context, Result};
use oracles::xfsprogs::Release;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

const fn kind(name: &'static str, v4: bool, options: &'static [&'static str]) -> VolumeKind {
    VolumeKind {
        name,
        options,
        v4,
        size: 400 * MIB,
        beyond_repair: true,
        newer: 0,
        defaults_of: Release::System,
    }
}

/// One with all that the newest `mkfs.xfs` turns on.
const fn today(name: &'static str, options: &'static [&'static str]) -> VolumeKind {
    VolumeKind { defaults_of: Release::Unstable, ..kind(name, false, options) }
}

/// Their shapes.
const KINDS: [VolumeKind; 12] = [
    today("today", &[]),
    today("today-b1024", &["-b", "size=1024"]),
    kind("default", false, &[]),
    kind("b1024", false, &["-b", "size=1024"]),
    kind("b1024-rmapbt", false, &["-b", "size=1024", "-m", "rmapbt=1", "-i", "nrext64=1"]),
    kind("n65536", false, &["-n", "size=65536"]),
    kind("b1024-n8192", false, &["-b", "size=1024", "-n", "size=8192"]),
    kind("i2048", false, &["-i", "size=2048", "-m", "rmapbt=1"]),
    kind("plain", false, &["-m", "reflink=0,finobt=0,bigtime=0,inobtcount=0", "-i", "sparse=0"]),
    kind("s4096", false, &["-s", "size=4096", "-i", "nrext64=1"]),
    kind("v4", true, &["-m", "crc=0"]),
    kind("v4-b512", true, &["-m", "crc=0", "-b", "size=512", "-n", "ftype=1"]),
];

const SIZES: Sizes = Sizes { seed: 1, inodes: 200, big_dir: 1500, extents: 700, beyond_repair: true };

/// Makes the volumes that `dir` lacks, and names all of them.
pub fn prepare(dir: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    KINDS.iter().map(|kind| make(dir, kind).with_context(|| format!("volume {}", kind.name))).collect()
}

fn make(dir: &Path, kind: &VolumeKind) -> Result<PathBuf> {
    let done = dir.join(format!("{}.img", kind.name));
    if done.exists() {
        return Ok(done);
    }
    println!("making the volume {}", kind.name);
    let image = dir.join(format!("{}.making", kind.name));
    if kind.v4 {
        from_prototype(&image, kind)?;
    } else {
        mkfs(&image, kind)?;
        let mount_point = scratch()?;
        let mounted = Mounted::new(&image, mount_point.path(), false)?;
        fill(mounted.dir(), &SIZES, &mut |_| ())?;
        mounted.unmount()?;
    }
    // mkfs writes the whole log; zeroes need not be looked through.
    run(Command::new("fallocate").arg("-d").arg(&image))?;
    // Only whole volumes have the right name.
    fs::rename(&image, &done)?;
    Ok(done)
}

/// Kernels of today don't mount v4: `mkfs.xfs` fills the volume from a description. It knows no attributes.
fn from_prototype(image: &Path, kind: &VolumeKind) -> Result<()> {
    let scratch = scratch()?;
    let content = scratch.path().join("content");
    fs::write(&content, b"content of a file\n".repeat(700))?;
    let prototype = scratch.path().join("prototype");
    fs::write(&prototype, describe(&content)?)?;
    fs::File::create(image)?.set_len(kind.size)?;
    run(Command::new("mkfs.xfs").arg("-q").args(kind.mkfs_arguments()).arg("-p").arg(&prototype).arg(image))
}

/// Directories of every form, files, links, special files.
fn describe(content: &Path) -> Result<String> {
    let content = content.display();
    let mut text = String::from("/dev/null\n0 0\nd--755 0 0\n");
    for (name, entries) in [("none", 0), ("few", 4), ("block", 60), ("leaf", 400), ("node", 6000)] {
        writeln!(text, "{name} d--755 1 2")?;
        for entry in 0..entries {
            match entry % 16 {
                3 => writeln!(
                    text,
                    "link-{entry}-{name} l--777 3 4 target/of/{}",
                    "long/".repeat(entry % 150)
                )?,
                7 => writeln!(text, "fifo-{entry} p--644 5 6")?,
                11 => writeln!(text, "device-{entry} b--600 0 0 8 {entry}")?,
                1 => writeln!(text, "file-{entry}-of-{name} ---644 7 8 {content}")?,
                _ => writeln!(text, "file-{entry} ---644 7 8 /dev/null")?,
            }
        }
        writeln!(text, "$")?;
    }
    text.push_str("$\n$\n");
    Ok(text)
}
