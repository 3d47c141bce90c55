//! Files that share blocks in any mounted directory, by system calls.

use super::{AnySite, Named, Site};
use crate::error::{Error, Result};
use crate::target::{Label, SysTarget, mount_of};
use rustix::fs::{CWD, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use tempfile::TempDir;

/// A directory of a mounted file system; what is in it goes with it.
pub(super) struct SysSite {
    dir: TempDir,
    /// Of the directory, to sync its file system by.
    fd: OwnedFd,
}

impl SysSite {
    /// A new directory in `dir`; `suffix` goes to its name in reports.
    pub(super) fn in_dir(dir: &Path, suffix: &str) -> Result<Box<dyn AnySite>> {
        let made = tempfile::Builder::new()
            .prefix("uxfs-bench-")
            .tempdir_in(dir)
            .map_err(Error::host(format!("cannot make a directory in {}", dir.display())))?;
        let (kind, source) = mount_of(made.path())?;
        let label = Label { target: format!("kernel-{kind}{suffix}"), device: source, locking: None };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, made.path(), flags, Mode::empty())
            .map_err(|error| Error::host("open")(error.into()))?;
        Ok(Box::new(Named { label, site: Self { dir: made, fd } }))
    }
}

impl Site for SysSite {
    type File = SysTarget;

    fn create(&mut self, pages: u64) -> Result<SysTarget> {
        SysTarget::create(self.dir.path(), pages, false)
    }

    fn empty(&mut self) -> Result<SysTarget> {
        SysTarget::empty(self.dir.path())
    }

    fn share(&mut self, file: &SysTarget, to: &SysTarget) -> Result<()> {
        file.share(to)
    }

    fn sync(&mut self) -> Result<()> {
        rustix::fs::syncfs(&self.fd).map_err(|error| Error::host("syncfs")(error.into()))
    }

    fn remove(&mut self, file: SysTarget) -> Result<()> {
        // Its path goes with it.
        drop(file);
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.dir.close().map_err(Error::host("cannot remove the directory"))
    }
}
