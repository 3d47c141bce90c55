//! Space that is staged for copies on write, in a volume whose log is clean: a kernel gives it back before it unmounts, so
//! that the volume is taken as it is while it is frozen, with the log of later, when it was unmounted.
//!
//! Invariant: the volume is sound except for the staged space, which `xfs_repair` calls left over.

use crate::fill::site::{Site, punch};
use crate::sandbox::{Mounted, copy_sparse, repair_findings_by};
use anyhow::{Context, Result, ensure};
use oracles::xfsprogs::Release;
use rustix::fs::{fsync, ioctl_ficlone};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use xfs_format::checksum;

/// How many blocks apart the copies are, and how many there are: more than one block of the tree has room for.
const APART: u64 = 20;
const COPIES: u64 = 150;

/// Leaves staged space in an image.
pub(super) fn leave(image: &Path, folder: &Path) -> Result<()> {
    let frozen = folder.join("frozen");
    let mounted = Mounted::new(image, &folder.join("mnt"), false)?;
    {
        let mut root = Site::root(mounted.dir(), 2)?;
        let mut site = root.child(b"staged")?;
        let block = site.block;
        let source = site.file(b"source", (APART * COPIES * block) as usize)?;
        fsync(&source)?;
        punch(&source, 0, block)?;
        let copy = site.create(b"copy")?;
        ioctl_ficlone(&copy, &source)?;
        for nth in 0..COPIES {
            copy.write_all_at(b"a copy of its own", nth * APART * block + block)?;
            // One by one, so that each stages space of its own.
            fsync(&copy)?;
        }
        let dir = File::open(mounted.dir())?;
        rustix::fs::syncfs(&dir)?;
        freeze("-f", mounted.dir())?;
        let copied = copy_sparse(image, &frozen);
        freeze("-u", mounted.dir())?;
        copied?;
    }
    mounted.unmount()?;
    log_of(image, &frozen)?;
    count_free(&frozen)?;
    Ok(std::fs::rename(&frozen, image)?)
}

fn freeze(how: &str, mnt: &Path) -> Result<()> {
    crate::command::run(std::process::Command::new("xfs_freeze").arg(how).arg(mnt))
}

/// Gives an image the log of another one, of the same shape.
fn log_of(from: &Path, to: &Path) -> Result<()> {
    let from = File::open(from)?;
    let mut sector = [0; 512];
    from.read_exact_at(&mut sector, 0)?;
    let number = |at: usize| {
        sector.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
    };
    let (block, group, start, blocks) =
        (u64::from(number(4)), u64::from(number(84)), u64::from(number(52)), number(96));
    let (ag, within) = (start >> sector[124], start & ((1 << sector[124]) - 1));
    let mut log = vec![0; blocks as usize * block as usize];
    let at = (ag * group + within) * block;
    from.read_exact_at(&mut log, at)?;
    Ok(File::options().write(true).open(to)?.write_all_at(&log, at)?)
}

/// Says in the superblock how many blocks are free: a frozen volume does not.
fn count_free(image: &Path) -> Result<()> {
    let findings = repair_findings_by(Release::Unstable, image)?;
    ensure!(
        findings.iter().any(|line| line.starts_with("leftover CoW extent")),
        "nothing is staged: {findings:?}"
    );
    let Some(line) = findings.iter().find(|line| line.starts_with("sb_fdblocks")) else { return Ok(()) };
    let count = line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok()).context("a count")?;
    let file = File::options().read(true).write(true).open(image)?;
    let mut sector = [0; 512];
    file.read_exact_at(&mut sector, 0)?;
    sector[144..152].copy_from_slice(&count.to_be_bytes());
    ensure!(checksum::store(&mut sector, 224), "the superblock has a checksum");
    Ok(file.write_all_at(&sector, 0)?)
}
