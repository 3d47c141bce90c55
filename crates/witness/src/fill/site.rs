//! A directory that is being filled, and the calls that fill it.
//!
//! Invariant: names are raw bytes relative to the directory, so that any legal name and any depth work.

use anyhow::{Context, Result};
use fastrand::Rng;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A directory that is being filled.
pub struct Site {
    dir: OwnedFd,
    /// Source of everything random in this directory.
    pub rng: Rng,
    /// Bytes a block of the volume.
    pub block: u64,
}

impl Site {
    /// The volume's root.
    pub fn root(dir: &Path, seed: u64) -> Result<Self> {
        let fd =
            rustix::fs::openat(CWD, dir, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())
                .with_context(|| dir.display().to_string())?;
        let block = rustix::fs::fstatvfs(&fd)?.f_bsize;
        Ok(Self { dir: fd, rng: Rng::with_seed(seed), block })
    }

    /// Makes a directory and opens it; its random source depends on ours and on the name.
    pub fn child(&mut self, name: &[u8]) -> Result<Self> {
        let seed = name.iter().fold(self.rng.get_seed(), |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        });
        rustix::fs::mkdirat(&self.dir, name, Mode::from_raw_mode(0o755))?;
        let dir = rustix::fs::openat(
            &self.dir,
            name,
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        Ok(Self { dir, rng: Rng::with_seed(seed), block: self.block })
    }

    /// Inodes of the volume that are in use.
    pub fn inodes_in_use(&self) -> Result<u64> {
        let status = rustix::fs::fstatvfs(&self.dir)?;
        Ok(status.f_files.saturating_sub(status.f_ffree))
    }

    /// Writes everything to the device.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }

    /// Makes an empty file and opens it.
    pub fn create(&self, name: &[u8]) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        Ok(rustix::fs::openat(&self.dir, name, flags, Mode::from_raw_mode(0o644))?.into())
    }

    /// Makes an empty file.
    pub fn touch(&self, name: &[u8]) -> Result<()> {
        self.create(name).map(drop)
    }

    /// Makes a file with `len` random bytes.
    pub fn file(&mut self, name: &[u8], len: usize) -> Result<File> {
        let file = self.create(name)?;
        let bytes = self.bytes(len);
        file.write_all_at(&bytes, 0)?;
        Ok(file)
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes
    }

    /// A random name of `len` bytes: every byte that is legal, save that it does not begin with a dot.
    pub fn name(&mut self, len: usize) -> Vec<u8> {
        let mut name: Vec<u8> = (0..len).map(|_| self.legal_byte()).collect();
        if name.first() == Some(&b'.') {
            name[0] = b'x';
        }
        name
    }

    fn legal_byte(&mut self) -> u8 {
        loop {
            let byte = self.rng.u8(1..);
            if byte != b'/' {
                return byte;
            }
        }
    }

    /// Makes a directory.
    pub fn mkdir(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::mkdirat(&self.dir, name, Mode::from_raw_mode(0o755))?)
    }

    /// Gives the object `old` of `from` a further name here. `Ok(false)`: the name exists.
    pub fn link(&self, from: &Self, old: &[u8], new: &[u8]) -> Result<bool> {
        match rustix::fs::linkat(&from.dir, old, &self.dir, new, AtFlags::empty()) {
            Err(Errno::EXIST) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::REMOVEDIR)?)
    }

    /// Renames `old` to `new` in `to`.
    pub fn rename(&self, old: &[u8], to: &Self, new: &[u8]) -> Result<()> {
        Ok(rustix::fs::renameat(&self.dir, old, &to.dir, new)?)
    }

    /// Swaps two names.
    pub fn exchange(&self, a: &[u8], b: &[u8]) -> Result<()> {
        Ok(rustix::fs::renameat_with(&self.dir, a, &self.dir, b, RenameFlags::EXCHANGE)?)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: &[u8], name: &[u8]) -> Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.dir, name)?)
    }

    /// Makes a device, a fifo or a socket.
    pub fn mknod(&self, name: &[u8], file_type: FileType, major: u32, minor: u32) -> Result<()> {
        let device = rustix::fs::makedev(major, minor);
        Ok(rustix::fs::mknodat(&self.dir, name, file_type, Mode::from_raw_mode(0o640), device)?)
    }

    /// Sets the permission bits. After [`chown`](Self::chown), which may clear some.
    pub fn chmod(&self, name: &[u8], mode: u32) -> Result<()> {
        Ok(rustix::fs::chmodat(&self.dir, name, Mode::from_raw_mode(mode), AtFlags::empty())?)
    }

    /// Sets owner and group.
    pub fn chown(&self, name: &[u8], uid: u32, gid: u32) -> Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        Ok(rustix::fs::chownat(&self.dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the times of access and modification, each seconds and nanoseconds.
    pub fn times(&self, name: &[u8], access: (i64, i64), modification: (i64, i64)) -> Result<()> {
        let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time(access), last_modification: time(modification) };
        Ok(rustix::fs::utimensat(&self.dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets an attribute. `Ok(false)`: the volume has no room for it (v4 takes ACLs of 25 entries at most).
    pub fn set_attr(&self, object: &[u8], attr: &[u8], value: &[u8]) -> Result<bool> {
        match rustix::fs::lsetxattr(self.through_proc(object), attr, value, XattrFlags::empty()) {
            Err(Errno::NOSPC | Errno::TOOBIG) => Ok(false),
            other => {
                other.with_context(|| format!("attribute of {} bytes", value.len()))?;
                Ok(true)
            }
        }
    }

    /// Removes an attribute.
    pub fn remove_attr(&self, object: &[u8], attr: &[u8]) -> Result<()> {
        Ok(rustix::fs::lremovexattr(self.through_proc(object), attr)?)
    }

    /// A path by which calls without a directory argument reach `name`.
    fn through_proc(&self, name: &[u8]) -> PathBuf {
        let mut path = format!("/proc/self/fd/{}/", self.dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name);
        std::ffi::OsString::from_vec(path).into()
    }
}

/// Allocates space without writing it.
pub fn preallocate(file: &File, offset: u64, len: u64, keep_size: bool) -> Result<()> {
    let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
    Ok(rustix::fs::fallocate(file, flags, offset, len)?)
}

/// Makes a hole.
pub fn punch(file: &File, offset: u64, len: u64) -> Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
}
