//! Files of this machine that hold volumes. If one is named as a destination, a path in it was probably meant. It is
//! never overwritten or replaced: to do that, remove it first.
//!
//! Invariant: a file is checked while it is locked, since a volume in the making is recognised only at the end, and its
//! maker has the lock.

use super::Identity;
use crate::exit::{Exit, Failure, Result, host_name};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The magic of an XFS volume.
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
    let what = match File::open(path).is_ok_and(|file| is_volume(&file)) {
        true => format!("this is an XFS volume; for a place in it write {name}:/"),
        false if uxfs::holds_volume(path) => {
            format!("an XFS volume is in one of its partitions; for a place in the Nth write {name}@N:/")
        }
        false => return Ok(()),
    };
    Err(Failure::new(
        Exit::AlreadyExists,
        format!("{name}: {what}, and to replace the file, remove it first"),
    ))
}

/// Whether a file begins like a volume. One that cannot be read by offset does not.
pub fn is_volume(file: &File) -> bool {
    let mut begins = [0; MAGIC.len()];
    file.read_exact_at(&mut begins, 0).is_ok() && begins == MAGIC
}

/// The file with a name that will be replaced.
pub enum Held {
    /// Nothing.
    Free,
    /// A file, in which no one can make a volume while this is open.
    File { _held: OwnedFd },
    /// A file that cannot hold a volume, or may not be read.
    Other,
}

/// How often to retry a lock that others hold for a moment, for example to replace the same file.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Locks a file that will be overwritten, as long as it is open. Fails if someone else has locked it or is making a
/// volume in it, and if it is a volume. `ask`: also if it is attached as a loop device. (To check that for each file of
/// a tree takes too long.)
pub fn hold(file: &OwnedFd, ask: bool) -> io::Result<()> {
    lock(file, FlockOperation::NonBlockingLockExclusive)?;
    refuse_held(file, ask)
}

/// Locks a file. To make a volume takes the lock exclusively; to replace a file takes it shared, since some file
/// systems allow only that for a file open for reading. Some have no locks.
fn lock(file: &OwnedFd, operation: FlockOperation) -> io::Result<()> {
    for nth in 0..TRIES {
        if nth > 0 {
            std::thread::sleep(PAUSE);
        }
        match rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)) {
            Err(Errno::WOULDBLOCK) => {}
            _ => return Ok(()),
        }
    }
    Err(locked())
}

fn locked() -> io::Error {
    let what =
        "another process has it locked, or is making a volume of it: wait until that is done, or end it";
    io::Error::new(io::ErrorKind::ResourceBusy, what)
}

fn refuse_held(file: &OwnedFd, ask: bool) -> io::Result<()> {
    if uxfs::is_locked(file) {
        return Err(locked());
    }
    let itself = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if let Some(what) = ask.then(|| uxfs::attached_as(&itself)).flatten() {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    }
    if uxfs::holds_volume(itself) {
        let what = "there is a file with an XFS volume of that name; to replace the file, remove it first";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    Ok(())
}

/// Holds the file that will be replaced, if there is one. `ask` says which files to check for loop devices.
pub fn hold_at(dir: impl AsFd, name: impl Arg + Copy, ask: impl Fn(Identity) -> bool) -> io::Result<Held> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let look = || rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
    for _ in 0..TRIES {
        match look() {
            Ok(there) if FileType::from_raw_mode(there.st_mode) == FileType::RegularFile => {}
            Ok(_) => return Ok(Held::Other),
            Err(Errno::NOENT) => return Ok(Held::Free),
            Err(error) => return Err(error.into()),
        }
        let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => continue,
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Held::Other),
            Err(error) => return Err(error.into()),
        };
        lock(&file, FlockOperation::NonBlockingLockShared)?;
        let identity = Identity::of(&rustix::fs::fstat(&file)?);
        if look().is_ok_and(|now| Identity::of(&now) == identity) {
            refuse_held(&file, ask(identity))?;
            return Ok(Held::File { _held: file });
        }
    }
    Err(replaced())
}

/// The name was taken after the check.
pub fn replaced() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "something else took its name meanwhile: try again")
}

/// Puts something under a name, while the old file is held. `take` gets whether it may replace: if the name was free,
/// it must not.
pub fn take_place(
    dir: impl AsFd,
    name: impl Arg + Copy,
    ask: impl Fn(Identity) -> bool,
    mut take: impl FnMut(bool) -> io::Result<()>,
) -> io::Result<()> {
    for _ in 0..TRIES {
        let held = hold_at(&dir, name, &ask)?;
        let is_free = matches!(held, Held::Free);
        match take(!is_free) {
            Err(error) if is_free && error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done,
        }
    }
    Err(replaced())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    /// Between the check and the rename another file may appear.
    #[test]
    fn what_came_to_have_the_name_is_looked_at_before_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (target, new) = (dir.path().join("target"), dir.path().join("new"));
        let take = |volume: &'static [u8]| {
            std::fs::write(&new, "new").unwrap();
            let mut asked = Vec::new();
            let done = take_place(
                rustix::fs::CWD,
                &target,
                |_| true,
                |replace| {
                    asked.push(replace);
                    if asked.len() == 1 {
                        // Another process.
                        std::fs::write(&target, volume).unwrap();
                    }
                    super::super::rename(
                        rustix::fs::CWD,
                        new.as_os_str().as_bytes(),
                        target.as_os_str().as_bytes(),
                        replace,
                    )
                },
            );
            (done, asked)
        };
        let (done, asked) = take(b"a file");
        done.unwrap();
        assert_eq!(asked, [false, true]);
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        std::fs::remove_file(&target).unwrap();
        let (done, asked) = take(b"XFSB and so on");
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(asked, [false]);
        assert_eq!(std::fs::read(&target).unwrap(), b"XFSB and so on");
    }

    #[test]
    fn a_file_that_is_replaced_is_shared_and_one_that_is_written_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let held = || hold_at(rustix::fs::CWD, &path, |_| true);
        let one = held().unwrap();
        assert!(matches!((&one, held().unwrap()), (Held::File { .. }, Held::File { .. })));
        let written = OwnedFd::from(File::options().write(true).open(&path).unwrap());
        assert_eq!(hold(&written, true).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(one);
        hold(&written, true).unwrap();
        assert_eq!(held().err().unwrap().kind(), io::ErrorKind::ResourceBusy);
    }
}
