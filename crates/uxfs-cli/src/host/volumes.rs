//! Files of this machine that hold volumes: a path in one of them was meant where such a file is named as the place of a
//! copy. Nothing goes over one, be it that it was to be replaced: who wants that removes it first.
//!
//! Invariant: it is asked of a file that is held, as a volume is made in a file that is none until the end, by whoever has
//! its lock.

use super::Identity;
use crate::exit::{Exit, Failure, Result, host_name};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What an XFS volume begins with.
const MAGIC: [u8; 4] = *b"XFSB";

/// Refuses a file that is a volume, or that the kernel has attached as a loop device.
pub fn refuse(path: &Path) -> Result<()> {
    if !path.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let name = host_name(path);
    if let Some(what) = uxfs::attached_as(path) {
        return Err(Failure::new(Exit::Locked, format!("{name}: {what}")));
    }
    if File::open(path).is_ok_and(|file| is_volume(&file)) {
        let what = format!(
            "this is an XFS volume; for a place in it write {name}:/, and to replace the file, remove it first"
        );
        return Err(Failure::new(Exit::AlreadyExists, format!("{name}: {what}")));
    }
    Ok(())
}

fn is_volume(file: &File) -> bool {
    let mut begins = [0; MAGIC.len()];
    file.read_exact_at(&mut begins, 0).is_ok() && begins == MAGIC
}

/// Has a file for oneself, as long as it is open, which is to be written over, or to make room for another one. Fails where
/// somebody else has it, or is making a volume in it, and for a volume; if it is what the user `named`, also where it is
/// attached as a loop device. (Of each file of a tree that takes too long.)
pub fn hold(file: impl AsFd, named: bool) -> io::Result<()> {
    let file = file.as_fd();
    // Some file systems have no locks.
    if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        let what =
            "another process has it locked, or is making a volume of it: wait until that is done, or end it";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    }
    let itself = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if let Some(what) = named.then(|| uxfs::attached_as(&itself)).flatten() {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    }
    if File::open(itself).is_ok_and(|file| is_volume(&file)) {
        let what = "there is an XFS volume of that name; to replace the file, remove it first";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    Ok(())
}

/// Holds the file that has a name, if one has: what takes its place comes before this is let go of.
pub fn hold_at(dir: impl AsFd, name: impl Arg + Copy, named: bool) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let identity = |stat: Stat| Identity::of(&stat);
    let there = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
    if !there.is_ok_and(|there| FileType::from_raw_mode(there.st_mode) == FileType::RegularFile) {
        return Ok(None);
    }
    let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        // What may not be read can be no volume of whoever may not.
        Err(Errno::NOENT | Errno::LOOP | Errno::ACCESS | Errno::PERM) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    hold(&file, named)?;
    let now = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(identity);
    if now != rustix::fs::fstat(&file).map(identity) {
        return Err(io::Error::other("something else took its name meanwhile"));
    }
    Ok(Some(file))
}
