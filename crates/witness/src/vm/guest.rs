//! What runs inside the virtual machine, as its first process: fills the first disk, and writes what the kernel
//! there sees in it to the second.
//!
//! Invariant: the second disk begins with [`MAGIC`] and a length only if all went well; whatever happens, the
//! machine powers off.

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
use std::path::Path;

/// First bytes of the second disk when it holds a manifest. Its length follows, as 8 bytes little-endian; the
/// manifest begins at [`BODY`].
pub(super) const MAGIC: &[u8; 8] = b"manifest";
/// Where the manifest begins.
pub(super) const BODY: u64 = 4096;

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

/// Runs it. Never returns when it is the first process.
pub fn run(args: &Args) -> Result<bool> {
    anyhow::ensure!(std::process::id() == 1, "only the first process of a virtual machine may do this");
    if let Err(error) = work(args) {
        println!("guest: failed: {error:#}");
    }
    rustix::fs::sync();
    reboot(RebootCommand::PowerOff)?;
    Ok(false)
}

fn work(args: &Args) -> Result<()> {
    let dir = Path::new("/mnt");
    mount("proc", "/proc", "proc", MountFlags::empty(), None).context("mounting /proc")?;
    mount("dev", "/dev", "devtmpfs", MountFlags::empty(), None).context("mounting /dev")?;
    load_modules()?;
    if !args.no_fill {
        mount("/dev/vda", dir, "xfs", MountFlags::NOATIME, None).context("mounting the volume")?;
        fill::fill(dir, &args.sizes, &mut |line| println!("guest: {line}"))?;
        unmount(dir, UnmountFlags::empty()).context("unmounting the volume")?;
    }
    mount("/dev/vda", dir, "xfs", MountFlags::RDONLY, None).context("mounting the volume read-only")?;
    let manifest = kernel::manifest(dir, Hash::Sha256)?;
    let mut disk = BufWriter::with_capacity(1 << 20, File::options().write(true).open("/dev/vdb")?);
    disk.seek(SeekFrom::Start(BODY))?;
    record::write(&mut disk, &manifest)?;
    let len = disk.stream_position()? - BODY;
    disk.seek(SeekFrom::Start(0))?;
    disk.write_all(MAGIC)?;
    disk.write_all(&len.to_le_bytes())?;
    disk.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    unmount(dir, UnmountFlags::empty()).context("unmounting the volume")?;
    println!("guest: done, {} objects", manifest.len());
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
