//! An XFS that the kernel mounts, on a device in memory of its own.
//!
//! Whatever was made is taken down on drop, in reverse order: each step is a value of its own.

use super::zram::Zram;
use super::{mkfs_options, run};
use crate::config::Config;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir};

/// What a mounted XFS lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RamDevice {
    /// A zram device.
    Zram,
    /// A loop device over a file on tmpfs.
    Loop,
}

/// A mounted XFS.
#[derive(Debug)]
pub struct KernelXfs {
    // Dropped in this order.
    mount: Mount,
    _dir: TempDir,
    _device: Device,
}

/// The device of a mounted XFS.
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

impl KernelXfs {
    /// Makes and mounts an XFS of `bytes` bytes, in as many groups as are asked for, with what `mkfs.xfs` gives it.
    pub fn mount(device: RamDevice, bytes: u64, groups: Option<u32>) -> Result<Self> {
        Self::mount_made(device, bytes, |device| {
            let mut mkfs = Command::new("mkfs.xfs");
            mkfs.args(["-q", "-f"]).args(groups.map(|groups| format!("-dagcount={groups}")));
            run("mkfs.xfs", mkfs.arg(device))
        })
    }

    /// Makes and mounts an XFS of `bytes` bytes beside a volume of uxfs's own, in as many groups: by `mkfs.xfs`, or by
    /// uxfs where a release's features are asked for, so that both volumes have the same.
    pub(crate) fn mount_beside(config: &Config, device: RamDevice, bytes: u64, groups: u32) -> Result<Self> {
        if config.compat.is_none() {
            return Self::mount(device, bytes, Some(groups));
        }
        let options = mkfs_options(config, groups)?.overwrite(true);
        Self::mount_made(device, bytes, |device| uxfs::mkfs(device, &options).map_err(Error::volume))
    }

    fn mount_made(device: RamDevice, bytes: u64, mkfs: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(
                "kernel-xfs makes a RAM device and mounts it, which only root may; \
                 run as root, or give a mounted directory (--vs DIR)"
                    .to_owned(),
            ));
        }
        let device = Device::make(device, bytes)?;
        mkfs(&device.path())?;
        let dir = tempfile::Builder::new()
            .prefix("uxfs-bench-")
            .tempdir()
            .map_err(Error::host("cannot make a directory to mount on"))?;
        let mount = Mount::new(&device, dir.path())?;
        Ok(Self { mount, _dir: dir, _device: device })
    }

    /// The mounted directory.
    pub fn dir(&self) -> &Path {
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
    fn new(device: &Device, dir: &Path) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "xfs"]);
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
