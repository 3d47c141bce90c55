//! The failure of the power under a mounted volume. Its image lies in a volume that can clone files, and a clone of it is
//! what the disk holds at one moment: each write of the kernel is in it whole or not at all, and so is what it flushed.
//!
//! A kernel that is told to shut a volume down is no such thing. Kernels (6.18 among them) cancel the chains of the threads
//! that are in the midst of one, and write the log once more with a tail behind those chains' intents: no recovery finds
//! them again, and blocks that a chain had claimed keep a reference too many.
//!
//! Invariant: the kernel's own volume goes on, and is unmounted before the clone leaves.

use crate::command;
use crate::sandbox::{Mounted, copy_sparse};
use anyhow::Result;
use rustix::fs::ioctl_ficlone;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the volume that images lie in: room for one, and for what changes in it behind the clone.
const BYTES: u64 = 3 << 30;

/// Where an image lies of which the power can fail.
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

    /// Where the image has to be made.
    pub(super) fn image(&self) -> PathBuf {
        self.mounted.dir().join("image")
    }

    fn clone(&self) -> PathBuf {
        self.mounted.dir().join("clone")
    }

    /// Keeps what the disk holds now.
    pub(super) fn fail(&self) -> Result<()> {
        Ok(ioctl_ficlone(File::create(self.clone())?, File::open(self.image())?)?)
    }

    /// Copies what was kept to `image`, and takes the rest away.
    pub(super) fn leave(self, image: &Path) -> Result<()> {
        copy_sparse(&self.clone(), image)?;
        self.mounted.unmount()?;
        Ok(std::fs::remove_file(self.host)?)
    }
}
