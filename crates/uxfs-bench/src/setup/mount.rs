//! A file system that the kernel mounts, on a device of its own.
//!
//! Whatever was made is taken down on drop, in reverse order: each step is a value of its own.

use super::compared::Shape;
use super::zram::Zram;
use super::{mkfs_options, output, run};
use crate::config::Config;
use crate::error::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir};

/// What a mounted file system lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// A zram device.
    Zram,
    /// A loop device over a file on tmpfs.
    LoopInMemory,
    /// A loop device over a file in this directory, by direct I/O where that can be.
    LoopIn(PathBuf),
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zram | Self::LoopInMemory => f.write_str("in memory"),
            Self::LoopIn(dir) => write!(f, "in {}", dir.display()),
        }
    }
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
    Loop {
        // Dropped in this order.
        device: Loop,
        _image: NamedTempFile,
    },
}

/// A loop device that is ours.
#[derive(Debug)]
struct Loop {
    node: PathBuf,
}

/// An image that is mounted for a while.
#[derive(Debug)]
pub(crate) struct Mounted {
    // Dropped in this order.
    mount: Mount,
    _dir: TempDir,
}

impl Mounted {
    /// Mounts an XFS as `mount -o loop` does it unasked, by way of the host's page cache. On a disk, a loop device with
    /// direct I/O reads small files many times as slowly.
    pub(crate) fn image(image: &Path) -> Result<Self> {
        let dir = dir_to_mount_on()?;
        let mount = Mount::new(image, true, Kind::Xfs, dir.path())?;
        Ok(Self { mount, _dir: dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.mount.dir
    }

    /// Unmounts at once: by then all is durable.
    pub(crate) fn unmount(mut self) -> Result<()> {
        self.mount.unmount()?;
        self.mount.is_gone = true;
        Ok(())
    }
}

fn dir_to_mount_on() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("uxfs-bench-")
        .tempdir()
        .map_err(Error::host("cannot make a directory to mount on"))
}

/// A mounted directory.
#[derive(Debug)]
struct Mount {
    dir: PathBuf,
    /// It was unmounted to learn the result.
    is_gone: bool,
}

impl KernelMount {
    /// Makes and mounts a file system with what its own program gives it.
    pub(crate) fn new(storage: Storage, kind: Kind, shape: Shape) -> Result<Self> {
        Self::mount_made(storage, kind, shape.bytes, |device| match kind {
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
    pub(crate) fn xfs_of_uxfs(config: &Config, storage: Storage, bytes: u64, groups: u32) -> Result<Self> {
        let options = mkfs_options(config, groups)?.overwrite(true);
        let mkfs = |device: &Path| uxfs::mkfs(device, &options).map_err(Error::volume);
        Self::mount_made(storage, Kind::Xfs, bytes, mkfs)
    }

    fn mount_made(
        storage: Storage,
        kind: Kind,
        bytes: u64,
        mkfs: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(format!(
                "kernel-{} makes a device and mounts it, which only root may; \
                 run as root, or give a mounted directory (--vs DIR)",
                kind.name()
            )));
        }
        let device = Device::make(&storage, bytes)?;
        mkfs(&device.path())?;
        let dir = dir_to_mount_on()?;
        let is_file = matches!(device, Device::Image(_));
        let mount = Mount::new(&device.path(), is_file, kind, dir.path())?;
        Ok(Self { mount, _dir: dir, _device: device })
    }

    /// The mounted directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.mount.dir
    }
}

impl Device {
    fn make(storage: &Storage, bytes: u64) -> Result<Self> {
        Ok(match storage {
            Storage::Zram => Self::Zram(Zram::create(bytes)?),
            Storage::LoopInMemory => Self::Image(new_image(Path::new("/dev/shm"), bytes)?),
            Storage::LoopIn(dir) => {
                let image = new_image(dir, bytes)?;
                Self::Loop { device: Loop::over(image.path())?, _image: image }
            }
        })
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Zram(zram) => zram.node(),
            Self::Image(image) => image.path().to_owned(),
            Self::Loop { device, .. } => device.node.clone(),
        }
    }
}

/// A file of `bytes` bytes, none of them written.
fn new_image(dir: &Path, bytes: u64) -> Result<NamedTempFile> {
    let cannot = || Error::host(format!("cannot make a file in {}", dir.display()));
    let image = tempfile::Builder::new().prefix("uxfs-bench-").tempfile_in(dir).map_err(cannot())?;
    image.as_file().set_len(bytes).map_err(cannot())?;
    Ok(image)
}

impl Loop {
    /// Sectors are those of uxfs's volumes, which suit direct I/O to any disk.
    fn over(image: &Path) -> Result<Self> {
        let attach = |direct: &[&str]| {
            let mut losetup = Command::new("losetup");
            losetup.args(["--find", "--show", "--sector-size=4096"]).args(direct);
            output("losetup", losetup.arg(image))
        };
        let node = attach(&["--direct-io=on"]).or_else(|_| attach(&[]))?;
        Ok(Self { node: node.into() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let node = self.node.display();
        patiently(&format!("cannot detach {node}"), || {
            run("losetup", Command::new("losetup").arg("--detach").arg(&self.node))
                .map_err(|error| error.to_string())
        });
    }
}

impl Mount {
    /// Mounts a device, or a file, on a loop device that goes with the mount.
    fn new(device: &Path, is_file: bool, kind: Kind, dir: &Path) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", kind.name()]);
        if is_file {
            mount.args(["-o", "loop"]);
        }
        run("mount", mount.arg(device).arg(dir))?;
        Ok(Self { dir: dir.to_owned(), is_gone: false })
    }

    fn unmount(&self) -> Result<()> {
        run("umount", Command::new("umount").arg(&self.dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.is_gone {
            let what = format!("cannot unmount {}", self.dir.display());
            patiently(&what, || self.unmount().map_err(|error| error.to_string()));
        }
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
