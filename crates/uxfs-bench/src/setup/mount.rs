//! A file system that the kernel mounts, on a device in memory of its own.
//!
//! Whatever was made is taken down on drop, in reverse order: each step is a value of its own.

use super::compared::Shape;
use super::zram::Zram;
use super::{mkfs_options, run};
use crate::config::Config;
use crate::error::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir};

/// What a mounted file system lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RamDevice {
    /// A zram device.
    Zram,
    /// A loop device over a file on tmpfs.
    Loop,
}

/// What a mounted file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Xfs,
    Ext4,
}

impl Kind {
    /// As `mount -t` has it.
    fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xfs => "XFS",
            Self::Ext4 => "ext4",
        })
    }
}

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct KernelMount {
    // Dropped in this order.
    mount: Mount,
    _dir: TempDir,
    _device: Device,
}

/// The device of a mounted file system.
#[derive(Debug)]
enum Device {
    Zram(Zram),
    Image(NamedTempFile),
}

/// A mounted directory.
#[derive(Debug)]
struct Mount {
    dir: PathBuf,
}

impl KernelMount {
    /// Makes and mounts a file system with what its own program gives it.
    pub(crate) fn new(device: RamDevice, kind: Kind, shape: Shape) -> Result<Self> {
        Self::mount_made(device, kind, shape.bytes, |device| match kind {
            Kind::Xfs => {
                let mut mkfs = Command::new("mkfs.xfs");
                mkfs.args(["-q", "-f"]).args(shape.groups.map(|groups| format!("-dagcount={groups}")));
                run("mkfs.xfs", mkfs.arg(device))
            }
            Kind::Ext4 => {
                let mut mkfs = Command::new("mkfs.ext4");
                // As many inodes as small files need, all there before anything is measured.
                mkfs.args(["-q", "-F", "-b4096", "-i4096", "-Elazy_itable_init=0,lazy_journal_init=0"]);
                run("mkfs.ext4", mkfs.arg(device))
            }
        })
    }

    /// Makes and mounts an XFS that uxfs has made as its own volume beside it, so that both have the same features.
    pub(crate) fn xfs_of_uxfs(config: &Config, device: RamDevice, bytes: u64, groups: u32) -> Result<Self> {
        let options = mkfs_options(config, groups)?.overwrite(true);
        let mkfs = |device: &Path| uxfs::mkfs(device, &options).map_err(Error::volume);
        Self::mount_made(device, Kind::Xfs, bytes, mkfs)
    }

    fn mount_made(
        device: RamDevice,
        kind: Kind,
        bytes: u64,
        mkfs: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(format!(
                "kernel-{} makes a RAM device and mounts it, which only root may; \
                 run as root, or give a mounted directory (--vs DIR)",
                kind.name()
            )));
        }
        let device = Device::make(device, bytes)?;
        mkfs(&device.path())?;
        let dir = tempfile::Builder::new()
            .prefix("uxfs-bench-")
            .tempdir()
            .map_err(Error::host("cannot make a directory to mount on"))?;
        let mount = Mount::new(&device, kind, dir.path())?;
        Ok(Self { mount, _dir: dir, _device: device })
    }

    /// The mounted directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.mount.dir
    }
}

impl Device {
    fn make(kind: RamDevice, bytes: u64) -> Result<Self> {
        if kind == RamDevice::Zram {
            return Ok(Self::Zram(Zram::create(bytes)?));
        }
        let image = tempfile::Builder::new()
            .prefix("uxfs-bench-")
            .tempfile_in("/dev/shm")
            .map_err(Error::host("cannot make a file in /dev/shm"))?;
        image.as_file().set_len(bytes).map_err(Error::host("cannot make a file in /dev/shm"))?;
        Ok(Self::Image(image))
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Zram(zram) => zram.node(),
            Self::Image(image) => image.path().to_owned(),
        }
    }
}

impl Mount {
    fn new(device: &Device, kind: Kind, dir: &Path) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", kind.name()]);
        if matches!(device, Device::Image(_)) {
            mount.args(["-o", "loop"]);
        }
        run("mount", mount.arg(device.path()).arg(dir))?;
        Ok(Self { dir: dir.to_owned() })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        patiently(&format!("cannot unmount {}", self.dir.display()), || {
            run("umount", Command::new("umount").arg(&self.dir)).map_err(|error| error.to_string())
        });
    }
}

/// Tries for a while: something else (an indexer, udev) may have the device open for a moment.
pub(super) fn patiently(what: &str, mut step: impl FnMut() -> Result<(), String>) {
    for tries in (0..20).rev() {
        match step() {
            Ok(()) => return,
            Err(error) if tries == 0 => eprintln!("uxfs: {what}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
