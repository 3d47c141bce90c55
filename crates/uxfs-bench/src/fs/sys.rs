//! A directory of any mounted file system, by system calls.

use super::scene::Site;
use super::{Directory, FileSystem, OpenFile, Seen};
use crate::error::{Error, Result};
use crate::target::{Label, mount_of};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

/// A directory of a mounted file system; what is in it goes with it.
pub(crate) struct SysFs {
    dir: TempDir,
    fd: OwnedFd,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const WRITABLE: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const NEW: OFlags = WRITABLE.union(OFlags::CREATE).union(OFlags::EXCL);

/// Bytes of entries that are asked for at a time, as by the C library.
const ENTRIES_BYTES: usize = 32 << 10;

/// Wraps an error of a system call.
fn failed(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |error| Error::host(what)(error.into())
}

fn seen(stat: &Stat) -> Seen {
    Seen {
        is_dir: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
        size: stat.st_size.cast_unsigned(),
    }
}

impl SysFs {
    /// A new directory in `dir`; `suffix` goes to its name in reports.
    pub(crate) fn in_dir(dir: &Path, suffix: &str) -> Result<Site<Self>> {
        let made = tempfile::Builder::new()
            .prefix("uxfs-bench-")
            .tempdir_in(dir)
            .map_err(Error::host(format!("cannot make a directory in {}", dir.display())))?;
        let (kind, source) = mount_of(made.path())?;
        let label = Label { target: format!("kernel-{kind}{suffix}"), device: source, locking: None };
        let fd = rustix::fs::openat(CWD, made.path(), DIRECTORY, Mode::empty()).map_err(failed("open"))?;
        Ok(Site { label, fs: Self { dir: made, fd } })
    }
}

impl Site<SysFs> {
    /// Removes the directory.
    pub(crate) fn finish(self) -> Result<()> {
        self.fs.dir.close().map_err(Error::host("cannot remove the directory"))
    }
}

impl FileSystem for SysFs {
    type Dir = SysDir;

    fn root(&self) -> Result<SysDir> {
        open_dir(&self.fd, b".")
    }

    fn look(&self, path: &[u8]) -> Result<Seen> {
        let stat = rustix::fs::statat(&self.fd, path, AtFlags::empty()).map_err(failed("stat"))?;
        Ok(seen(&stat))
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(&self.fd).map_err(failed("syncfs"))
    }
}

/// An open directory.
pub(crate) struct SysDir(OwnedFd);

fn open_dir(at: &OwnedFd, name: &[u8]) -> Result<SysDir> {
    rustix::fs::openat(at, name, DIRECTORY, Mode::empty()).map(SysDir).map_err(failed("open"))
}

impl SysDir {
    fn open_as(&self, name: &[u8], flags: OFlags) -> Result<File> {
        let opened = rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(0o644));
        opened.map(File::from).map_err(failed("open"))
    }
}

impl Directory for SysDir {
    type File = File;

    fn reopen(&self) -> Result<Self> {
        open_dir(&self.0, b".")
    }

    fn make(&self, name: &[u8]) -> Result<()> {
        // Closed as it is dropped.
        self.open_as(name, NEW).map(drop)
    }

    fn create(&self, name: &[u8]) -> Result<File> {
        self.open_as(name, NEW)
    }

    fn open(&self, name: &[u8]) -> Result<File> {
        self.open_as(name, WRITABLE)
    }

    fn make_dir(&self, name: &[u8]) -> Result<Self> {
        rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o755)).map_err(failed("mkdir"))?;
        open_dir(&self.0, name)
    }

    fn open_dir(&self, name: &[u8]) -> Result<Self> {
        open_dir(&self.0, name)
    }

    fn look(&self, name: &[u8]) -> Result<Option<Seen>> {
        match rustix::fs::statat(&self.0, name, AtFlags::empty()) {
            Ok(stat) => Ok(Some(seen(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("stat")(error)),
        }
    }

    fn list(&self, each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<()> {
        let mut buf = [MaybeUninit::uninit(); ENTRIES_BYTES];
        // A descriptor has one place in its directory: each listing has its own.
        let mut entries = RawDir::new(open_dir(&self.0, b".")?.0, &mut buf);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed("getdents"))?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") && each(name).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn rename(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        rustix::fs::renameat(&self.0, name, &to.0, new_name).map_err(failed("rename"))
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&self.0, name, AtFlags::empty()).map_err(failed("unlink"))
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR).map_err(failed("rmdir"))
    }
}

impl OpenFile for File {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_exact_at(buf, offset).map_err(Error::host("pread"))
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write_all_at(buf, offset).map_err(Error::host("pwrite"))
    }

    fn set_len(&self, size: u64) -> Result<()> {
        Self::set_len(self, size).map_err(Error::host("ftruncate"))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.metadata().map_err(Error::host("fstat"))?.len())
    }

    fn sync(&self) -> Result<()> {
        self.sync_all().map_err(Error::host("fsync"))
    }
}
