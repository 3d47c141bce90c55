//! Directories in any mounted directory, by system calls.

use super::{AnyTree, Named, Seen, Tree, TreeDir};
use crate::error::{Error, Result};
use crate::target::{Label, mount_of};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use tempfile::TempDir;

/// A directory of a mounted file system; what is in it goes with it.
pub(crate) struct SysTree {
    dir: TempDir,
    /// Of the directory, to sync its file system by.
    fd: OwnedFd,
}

/// One of its directories, open.
pub(crate) struct SysDir(OwnedFd);

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Wraps an error of a system call.
fn failed(what: &str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |error| Error::host(what)(error.into())
}

impl SysTree {
    /// A new directory in `dir`; `suffix` goes to its name in reports.
    pub(crate) fn in_dir(dir: &Path, suffix: &str) -> Result<Box<dyn AnyTree>> {
        let made = tempfile::Builder::new()
            .prefix("uxfs-bench-")
            .tempdir_in(dir)
            .map_err(Error::host(format!("cannot make a directory in {}", dir.display())))?;
        let (kind, source) = mount_of(made.path())?;
        let label = Label { target: format!("kernel-{kind}{suffix}"), device: source, locking: None };
        let fd = rustix::fs::openat(CWD, made.path(), DIRECTORY, Mode::empty()).map_err(failed("open"))?;
        Ok(Box::new(Named { label, tree: Self { dir: made, fd } }))
    }
}

impl Tree for SysTree {
    type Dir = SysDir;

    fn make_dir(&mut self, name: &str) -> Result<SysDir> {
        rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)).map_err(failed("mkdir"))?;
        rustix::fs::openat(&self.fd, name, DIRECTORY, Mode::empty()).map(SysDir).map_err(failed("open"))
    }

    fn remove_dir(&mut self, name: &str) -> Result<()> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR).map_err(failed("rmdir"))
    }

    fn sync(&mut self) -> Result<()> {
        rustix::fs::syncfs(&self.fd).map_err(failed("syncfs"))
    }

    fn finish(self, _keep: Option<&Path>) -> Result<()> {
        self.dir.close().map_err(Error::host("cannot remove the directory"))
    }
}

impl SysDir {
    fn made(&self, name: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(0o644)).map_err(failed("open"))
    }
}

impl TreeDir for SysDir {
    fn create(&mut self, name: &[u8]) -> Result<()> {
        // Closed as it is dropped.
        self.made(name).map(drop)
    }

    fn create_durably(&mut self, name: &[u8], content: &[u8]) -> Result<()> {
        let mut file = std::fs::File::from(self.made(name)?);
        file.write_all(content).map_err(Error::host("write"))?;
        file.sync_all().map_err(Error::host("fsync"))
    }

    fn walk(&mut self, each: &mut dyn FnMut(Seen)) -> Result<()> {
        for entry in Dir::read_from(&self.0).map_err(failed("open"))? {
            let entry = entry.map_err(failed("getdents"))?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = rustix::fs::statat(&self.0, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("stat"))?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            each(Seen { is_file, size: stat.st_size.cast_unsigned() });
        }
        Ok(())
    }

    fn unlink(&mut self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&self.0, name, AtFlags::empty()).map_err(failed("unlink"))
    }
}
