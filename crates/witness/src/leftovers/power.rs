//! A power failure below a mounted volume. Its image lies in a volume that can clone files, and a clone of it is the
//! disk's content at one moment: each write of the kernel is in it completely or not at all, and so is what it flushed.
//!
//! Telling a kernel to shut a volume down is not the same. Kernels (6.18 among them) cancel the chains of threads that
//! are in the middle of one, and write the log once more with a tail behind those chains' intents. No recovery finds
//! these again, and blocks that a chain had claimed keep one reference too many.
//!
//! Invariant: the kernel's own volume goes on, and is unmounted before the clone leaves.

use crate::command;
use crate::sandbox::{Mounted, copy_sparse};
use anyhow::Result;
use rustix::fs::ioctl_ficlone;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of the volume that images lie in: room for one, and for its changes after the clone.
const BYTES: u64 = 3 << 30;

/// Where an image lies whose power can fail.
pub(super) struct Power {
    host: PathBuf,
    mounted: Mounted,
}

impl Power {
    /// Makes the volume that the image will lie in.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let host = folder.join("host");
        File::create(&host)?.set_len(BYTES)?;
        command::run(Command::new("mkfs.xfs").arg("-q").arg(&host))?;
        let mounted = Mounted::new(&host, &folder.join("host-mnt"), false)?;
        Ok(Self { host, mounted })
    }

    /// Where to make the image.
    pub(super) fn image(&self) -> PathBuf {
        self.mounted.dir().join("image")
    }

    fn clone(&self) -> PathBuf {
        self.mounted.dir().join("clone")
    }

    /// Keeps the disk's present content.
    pub(super) fn fail(&self) -> Result<()> {
        Ok(ioctl_ficlone(File::create(self.clone())?, File::open(self.image())?)?)
    }

    /// Copies what was kept to `image`, and removes the rest.
    pub(super) fn leave(self, image: &Path) -> Result<()> {
        copy_sparse(&self.clone(), image)?;
        self.mounted.unmount()?;
        Ok(std::fs::remove_file(self.host)?)
    }
}
