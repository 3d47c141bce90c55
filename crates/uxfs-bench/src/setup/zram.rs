//! An XFS that the kernel mounts, on a RAM device of its own.
//!
//! zram keeps a page that is filled with one repeated word without compressing it or allocating for it: with the
//! pages that the workloads write ([`crate::content`]) it is the nearest thing to a null device, the kernel's
//! best case. Whatever was made is taken down on drop, in reverse order: each step is a value of its own.

use super::run;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A mounted XFS on a zram device.
#[derive(Debug)]
pub struct KernelXfs {
    // Dropped in this order.
    mount: Mount,
    _dir: TempDir,
    _device: Zram,
}

/// Where a zram device is taken from, so that none that is in use is touched.
const CONTROL: &str = "/sys/class/zram-control";

/// A zram device that is ours.
#[derive(Debug)]
struct Zram {
    id: u32,
}

/// A mounted directory.
#[derive(Debug)]
struct Mount {
    dir: PathBuf,
}

impl KernelXfs {
    /// Makes and mounts an XFS with room for a file of `bytes` bytes.
    pub fn mount(bytes: u64) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(
                "kernel-xfs makes a RAM device and mounts it, which only root may; \
                 run as root, or give a mounted directory (--vs DIR)"
                    .to_owned(),
            ));
        }
        let device = Zram::create(bytes + bytes / 8 + (512 << 20))?;
        let node = device.node();
        run("mkfs.xfs", Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&node))?;
        let dir = tempfile::Builder::new()
            .prefix("uxfs-bench-")
            .tempdir()
            .map_err(Error::host("cannot make a directory to mount on"))?;
        let mount = Mount::new(&node, dir.path())?;
        Ok(Self { mount, _dir: dir, _device: device })
    }

    /// The mounted directory.
    pub fn dir(&self) -> &Path {
        &self.mount.dir
    }
}

impl Zram {
    /// A new device of `bytes` bytes.
    fn create(bytes: u64) -> Result<Self> {
        let control = Path::new(CONTROL);
        if !control.exists() {
            // A kernel that has it as a module; where this fails, the next step says so.
            let _ = run("modprobe", Command::new("modprobe").arg("zram"));
        }
        let id = std::fs::read_to_string(control.join("hot_add"))
            .map_err(Error::host("cannot add a zram device (does this kernel have zram?)"))?;
        let id = id.trim().parse().map_err(|_| Error::Program {
            program: "zram",
            message: format!("the kernel names the new device `{}`", id.trim()),
        })?;
        let device = Self { id };
        let size = format!("/sys/block/zram{id}/disksize");
        std::fs::write(&size, bytes.to_string()).map_err(Error::host(format!("cannot write {size}")))?;
        Ok(device)
    }

    fn node(&self) -> PathBuf {
        format!("/dev/zram{}", self.id).into()
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let remove = || std::fs::write(Path::new(CONTROL).join("hot_remove"), self.id.to_string());
        patiently(&format!("cannot remove /dev/zram{}", self.id), || {
            remove().map_err(|error| error.to_string())
        });
    }
}

impl Mount {
    fn new(node: &Path, dir: &Path) -> Result<Self> {
        run("mount", Command::new("mount").args(["-t", "xfs"]).arg(node).arg(dir))?;
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
fn patiently(what: &str, mut step: impl FnMut() -> Result<(), String>) {
    for tries in (0..20).rev() {
        match step() {
            Ok(()) => return,
            Err(error) if tries == 0 => eprintln!("uxfs: {what}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
