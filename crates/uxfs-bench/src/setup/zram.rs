//! A zram device of our own.
//!
//! zram keeps a page that is filled with one repeated word without compressing it or allocating for it: with the
//! pages that the workloads on files write ([`crate::content`]) it is the nearest thing to a null device, the
//! kernel's best case. Metadata is no such page: it is compressed as it is written. The device goes on drop.

use super::mount::patiently;
use super::run;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a zram device is taken from, so that none that is in use is touched.
const CONTROL: &str = "/sys/class/zram-control";

/// A zram device that is ours.
#[derive(Debug)]
pub(super) struct Zram {
    id: u32,
}

impl Zram {
    /// A new device of `bytes` bytes.
    pub(super) fn create(bytes: u64) -> Result<Self> {
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

    pub(super) fn node(&self) -> PathBuf {
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
