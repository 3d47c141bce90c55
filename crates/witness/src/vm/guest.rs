//! What runs inside the virtual machine as its first process.
//!
//! Invariant: the first disk begins with [`MAGIC`] and a length only if all went well. Whatever happens, the machine
//! powers off.

use super::initramfs::MODULES;
use crate::fill::{self, Sizes};
use crate::record::Hash;
use crate::{kernel, record};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::system::{RebootCommand, finit_module, reboot};
use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// First bytes of the first disk if it has a report. Its length follows, as 8 bytes little-endian. The report begins at
/// [`BODY`].
pub(super) const MAGIC: &[u8; 8] = b"reported";
/// Where the report begins.
pub(super) const BODY: u64 = 4096;
/// Where volumes are mounted.
pub const MNT: &str = "/mnt";

/// The work of the first process of the virtual machine; of no use elsewhere.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Sizes and seed.
    #[command(flatten)]
    sizes: Sizes,
    /// Do not fill the volume, only describe it.
    #[arg(long)]
    no_fill: bool,
}

/// Runs it: fills the volume, and reports what the kernel sees in it.
pub fn run(args: &Args) -> Result<bool> {
    as_first_process(|report| {
        let (dir, disk) = (Path::new(MNT), disk(0));
        if !args.no_fill {
            mount(&disk, dir, "xfs", MountFlags::NOATIME, None).context("mounting the volume")?;
            fill::fill(dir, &args.sizes, &mut |line| println!("guest: {line}"))?;
            unmount(dir, UnmountFlags::empty()).context("unmounting the volume")?;
        }
        mount(&disk, dir, "xfs", MountFlags::RDONLY, None).context("mounting the volume read-only")?;
        let manifest = kernel::manifest(dir, Hash::Sha256)?;
        record::write(report, &manifest)?;
        unmount(dir, UnmountFlags::empty()).context("unmounting the volume")?;
        println!("guest: done, {} objects", manifest.len());
        Ok(())
    })
}

/// The nth of the disks that a machine was given.
pub fn disk(nth: u8) -> PathBuf {
    PathBuf::from(format!("/dev/vd{}", char::from(b'b' + nth)))
}

/// Does `work` in a machine that is ready for it, stores its output as the report, and ends the machine. Never returns
/// if this is the first process.
pub fn as_first_process(work: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<bool> {
    anyhow::ensure!(std::process::id() == 1, "only the first process of a virtual machine may do this");
    if let Err(error) = set_out().and_then(|()| report(work)) {
        println!("guest: failed: {error:#}");
    }
    rustix::fs::sync();
    reboot(RebootCommand::PowerOff)?;
    Ok(false)
}

fn set_out() -> Result<()> {
    mount("proc", "/proc", "proc", MountFlags::empty(), None).context("mounting /proc")?;
    mount("dev", "/dev", "devtmpfs", MountFlags::empty(), None).context("mounting /dev")?;
    load_modules()
}

fn report(work: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut disk = BufWriter::with_capacity(1 << 20, File::options().write(true).open("/dev/vda")?);
    disk.seek(SeekFrom::Start(BODY))?;
    work(&mut disk)?;
    let len = disk.stream_position()? - BODY;
    disk.seek(SeekFrom::Start(0))?;
    disk.write_all(MAGIC)?;
    disk.write_all(&len.to_le_bytes())?;
    disk.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    Ok(())
}

fn load_modules() -> Result<()> {
    let mut paths: Vec<_> = fs::read_dir(MODULES)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    for path in paths {
        finit_module(File::open(&path)?, c"", 0).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
