//! A scratch folder in memory, images in it, and their mounts.
//!
//! Invariant: dropping its guard unmounts an image, and the folder is removed with its images, also when a witness
//! fails or panics.

use crate::command::{finish, run, said};
use crate::volumes::VolumeKind;
use anyhow::{Context, Result, ensure};
use oracles::xfsprogs::Release;
use oracles::{mount, umount};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use xfs_format::checksum;

/// A scratch folder: in memory where the host has a file system there.
pub fn scratch() -> Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("uxfs-witness-").tempdir_in(parent).context("making a scratch folder")
}

/// Makes a volume in a new sparse file.
pub fn mkfs(image: &Path, kind: &VolumeKind) -> Result<()> {
    File::create(image)?.set_len(kind.size)?;
    mkfs_in(image, kind)
}

/// Makes a volume in a new file in which each sector repeats a word of its own. What the volume does not need stays as
/// it is.
pub fn mkfs_over(image: &Path, kind: &VolumeKind, word: impl Fn(u64) -> u64) -> Result<()> {
    /// Sectors at a time.
    const SECTORS: u64 = 2048;
    const SECTOR: usize = 512;
    let file = File::create(image)?;
    let mut bytes = vec![0; SECTORS as usize * SECTOR];
    for first in (0..kind.size / SECTOR as u64).step_by(SECTORS as usize) {
        for (sector, bytes) in (first..).zip(bytes.chunks_mut(SECTOR)) {
            let word = word(sector).to_le_bytes();
            bytes.chunks_mut(word.len()).for_each(|to| to.copy_from_slice(&word));
        }
        file.write_all_at(&bytes, first * SECTOR as u64)?;
    }
    file.set_len(kind.size)?;
    mkfs_in(image, kind)
}

/// Makes a volume in a file without discarding anything.
fn mkfs_in(image: &Path, kind: &VolumeKind) -> Result<()> {
    run(kind.release().tool("mkfs.xfs")?.args(["-q", "-f", "-K"]).args(kind.mkfs_arguments()).arg(image))?;
    if kind.newer == 0 { Ok(()) } else { set_incompat(image, kind.newer) }
}

/// Sets incompatible feature bits in the superblock of a fresh volume. Its other copies are not read.
fn set_incompat(image: &Path, bits: u32) -> Result<()> {
    const CRC: usize = 224;
    let file = File::options().read(true).write(true).open(image)?;
    let (mut sector, old) = superblock(&file)?;
    sector[INCOMPAT].copy_from_slice(&(old | bits).to_be_bytes());
    ensure!(checksum::store(&mut sector, CRC), "the superblock has a checksum");
    Ok(file.write_all_at(&sector, 0)?)
}

const INCOMPAT: std::ops::Range<usize> = 216..220;

/// The superblock's sector, and its incompatible feature bits.
fn superblock(file: &File) -> Result<([u8; 512], u32)> {
    let mut sector = [0; 512];
    file.read_exact_at(&mut sector, 0)?;
    let bits = u32::from_be_bytes(sector[INCOMPAT].try_into().context("four bytes")?);
    Ok((sector, bits))
}

/// The release whose `xfs_repair` judges a volume: the system's, or the newest if the volume has newer features.
pub fn judging(image: &Path) -> Result<Release> {
    /// Incompatible features up to large extent counts.
    const KNOWN: u32 = 0x3f;
    let (sector, bits) = superblock(&File::open(image)?)?;
    let v5 = sector[101] & 0xf == 5;
    Ok(if v5 && bits & !KNOWN != 0 { Release::Unstable } else { Release::System })
}

/// Copies an image or the content of a block device. Zeroes take no space.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--sparse=always").args([from, to]))
}

/// How many lines of what `xfs_repair` says are shown.
const SHOWN_FINDINGS: usize = 40;

/// Runs `xfs_repair -n`. `Err` holds its findings.
pub fn repair_finds_nothing(image: &Path) -> Result<()> {
    let findings = repair_findings(image)?;
    let shown: Vec<&str> = findings.iter().take(SHOWN_FINDINGS).map(String::as_str).collect();
    ensure!(findings.is_empty(), "xfs_repair -n: {}", shown.join("\n"));
    Ok(())
}

/// The findings of `xfs_repair -n`, line by line; none if all is well. Uses the system's, or the newest for volumes
/// that the system's does not know.
pub fn repair_findings(image: &Path) -> Result<Vec<String>> {
    repair_findings_by(judging(image)?, image)
}

/// The same with this release of it.
pub fn repair_findings_by(release: Release, image: &Path) -> Result<Vec<String>> {
    /// Beginnings of lines that are not findings.
    const BESIDES: [&str; 6] = [
        "- ",
        "Phase ",
        "No modify flag set",
        "Cannot get host filesystem geometry",
        "Repair may fail if there is a sector size mismatch",
        "the image and the host filesystem",
    ];
    let output = finish(release.tool("xfs_repair")?.arg("-n").arg(image))?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    let said = said(&output);
    let is_finding = |line: &&str| !BESIDES.iter().any(|begin| line.starts_with(begin));
    let findings: Vec<String> = said.lines().map(str::trim).filter(is_finding).map(str::to_owned).collect();
    ensure!(!findings.is_empty(), "xfs_repair -n failed without a finding: {said}");
    Ok(findings)
}

/// A mounted image. Dropping it unmounts it.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
    active: bool,
}

impl Mounted {
    /// Mounts `image` at `dir`, which is made if necessary.
    pub fn new(image: &Path, dir: &Path, read_only: bool) -> Result<Self> {
        Self::with_options(image, dir, if read_only { "loop,ro" } else { "loop,noatime,nodev" })
    }

    /// Mounts a block device at `dir`.
    pub fn device(device: &Path, dir: &Path) -> Result<Self> {
        Self::with_options(device, dir, "noatime,nodev")
    }

    /// Mounts an image or a block device with these options.
    pub fn with_options(what: &Path, dir: &Path, options: &str) -> Result<Self> {
        mount(what, dir, options)?;
        Ok(Self { dir: dir.to_owned(), active: true })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts it, which writes everything to the image.
    pub fn unmount(mut self) -> Result<()> {
        self.active = false;
        umount(&self.dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Only after a failure, which is what the user must see.
        if self.active {
            let _ = umount(&self.dir);
        }
    }
}
