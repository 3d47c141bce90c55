//! An image that both sides have alike: made by uxfs, and mounted by the kernel for a step.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::setup::{Mounted, mkfs_options};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use uxfs::{OpenOptions, Volume};

/// Allocation groups: what `mkfs.xfs` gives volumes of some GiB.
const GROUPS: u32 = 4;

/// An image with a volume.
pub(super) struct Image {
    path: PathBuf,
    bytes: u64,
    /// Inodes in use while nothing is in it.
    empty: u64,
}

/// Only root may mount.
pub(super) fn may_mount() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::Usage("trees has the kernel mount an image, which only root may; run as root".to_owned()))
}

impl Image {
    /// A new volume at `path`.
    pub(super) fn make(config: &Config, path: PathBuf, bytes: u64) -> Result<Self> {
        // What is there is gone at once, so that no side has its blocks to free first.
        if path.exists() {
            std::fs::remove_file(&path).map_err(Error::host(format!("cannot remove {}", path.display())))?;
        }
        uxfs::mkfs(&path, &mkfs_options(config, GROUPS)?.size(bytes)).map_err(Error::volume)?;
        let empty = in_use(&path)?;
        Ok(Self { path, bytes, empty })
    }

    /// The same with nothing in it.
    pub(super) fn anew(self, config: &Config) -> Result<Self> {
        Self::make(config, self.path, self.bytes)
    }

    /// As verbs name a path in it.
    pub(super) fn location(&self, path: &str) -> OsString {
        let mut location = self.path.clone().into_os_string();
        location.push(format!(":{path}"));
        location
    }

    /// Has the host's page cache forget what it has of the image, all of which is on the disk before.
    pub(super) fn forget_pages(&self) -> Result<()> {
        let cannot = || Error::host(format!("cannot read {}", self.path.display()));
        let file = File::open(&self.path).map_err(cannot())?;
        file.sync_all().map_err(cannot())?;
        let forgotten = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        forgotten.map_err(|errno| cannot()(errno.into()))
    }

    pub(super) fn mount(&self) -> Result<Mounted> {
        Mounted::image(&self.path)
    }

    /// There must be so many inodes in it.
    pub(super) fn expect(&self, who: &str, step: &str, names: u64) -> Result<()> {
        let found = in_use(&self.path)? - self.empty;
        if found == names {
            return Ok(());
        }
        Err(Error::Result(format!("{who}: {step} left {found} inodes, not {names}")))
    }
}

/// Inodes that are in use.
fn in_use(path: &Path) -> Result<u64> {
    let volume = Volume::open(path, &OpenOptions::new()).map_err(Error::volume)?;
    let info = volume.info().map_err(Error::volume)?;
    Ok(info.inodes - info.free_inodes)
}
