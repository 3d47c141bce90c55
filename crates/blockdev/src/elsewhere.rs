//! Whether anybody else has a file open for writing, or has locked it: a virtual machine, an editor, a loop device.
//!
//! The kernel grants a read lease of a file only while nobody has its inode open for writing. It goes by the inode, so
//! an opener cannot hide in another mount namespace or in overlayfs, as loop devices and their files can. Only the
//! file's owner may ask, or a process with `CAP_LEASE` or with `CAP_SETUID`, which can become the owner. Some file
//! systems have no leases. In these cases no one is found. Locks are checked as well: a virtual machine holds one even
//! if its file is open for reading, or is open on another machine.
//!
//! Files that this process has open itself are skipped: then a refused lease says nothing.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{OFlags, stat};

use crate::{DeviceError, in_use};

/// Some have it open only for a moment: a loop device that is being detached, or a process between fork and exec.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Refuses a regular file that somebody else has open for writing, or has locked. `file` is open for reading, and
/// this process is about to open it for writing.
pub(crate) fn refuse_open(file: &File, path: &Path) -> Result<(), DeviceError> {
    let answer = ask(|| {
        // A lock is never held for only a moment.
        if let Err(locked) = refuse_locked(file) {
            return Some(Err(locked));
        }
        if is_written(file) != Some(true) || is_ours(file) {
            return Some(Ok(()));
        }
        // Names the opener if it can.
        in_use::refuse_attached(file, path).err().map(Err)
    });
    answer.unwrap_or(Err(DeviceError::Locked))
}

/// Asks until there is an answer or the time is up.
fn ask<T>(mut question: impl FnMut() -> Option<T>) -> Option<T> {
    (0..TRIES).find_map(|nth| {
        if nth > 0 {
            std::thread::sleep(PAUSE);
        }
        question()
    })
}

/// Refuses a file that another process has locked in whole or in part, as virtual machines do.
pub(crate) fn refuse_locked(file: &impl AsRawFd) -> Result<(), DeviceError> {
    // SAFETY: `flock` is plain numbers, of which any are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    // SAFETY: the kernel reads and fills one `flock`, which lives as long as the call.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    let is_free = asked != 0 || lock.l_type == libc::F_UNLCK as libc::c_short;
    let is_own = u32::try_from(lock.l_pid).is_ok_and(|pid| pid == std::process::id());
    if is_free || is_own { Ok(()) } else { Err(DeviceError::Locked) }
}

/// Finds, as far as possible, a writer without a lock of a file that is about to be read: the kernel, which has it
/// mounted, or a program that takes no locks.
pub fn written_by(path: &Path) -> Option<String> {
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let of = file.metadata().ok()?;
    if is_ours(&file) {
        return None;
    }
    if of.file_type().is_block_device() {
        return in_use::mounted(of.rdev());
    }
    let answer = ask(|| match (is_written(&file), in_use::writing(&file, path)) {
        (Some(false), _) | (None, None) => Some(None),
        (_, Some((name, is_going))) if !is_going => Some(Some(name)),
        _ => None,
    });
    answer.unwrap_or_else(|| Some("another process or the kernel".to_owned()))
}

/// Whether another process has locked a file in whole or in part, as virtual machines do (by record locks, be they POSIX's or
/// of an open file; not by `flock`).
pub fn is_locked(file: &impl AsRawFd) -> bool {
    refuse_locked(file).is_err()
}

/// The error for a file that the kernel has attached as a loop device, and that therefore must not be
/// written.
pub fn attached_as(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    in_use::refuse_attached(&file, path).err().map(|error| error.to_string())
}

/// Whether the kernel says that some descriptor of the file can write; `None` where it does not say.
fn is_written(file: &File) -> Option<bool> {
    let owner = || file.metadata().ok().map(|of| of.uid());
    let refused = match lease(file) {
        // Root in a container can seldom ask about the files of other users, but can become them.
        Err(libc::EACCES) => owner().map_or(Ok(()), |owner| as_user(owner, || lease(file))),
        other => other,
    };
    match refused {
        Ok(()) => Some(false),
        Err(libc::EAGAIN) => Some(true),
        Err(_) => None,
    }
}

/// Takes a read lease and gives it back; gives the kernel's error if it was not granted.
fn lease(file: &File) -> Result<(), libc::c_int> {
    let command = |command, number: libc::c_int| {
        // SAFETY: these commands take a number, and no memory.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, number) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    };
    // If someone opens the file for writing during the lease, the kernel sends us a signal. We choose one that does
    // nothing; the default would end the process.
    command(F_SETSIG, libc::SIGURG)?;
    command(libc::F_SETLEASE, libc::F_RDLCK)?;
    command(libc::F_SETLEASE, libc::F_UNLCK)
}

/// Calls `work` with the file-system user ID of another user, if this thread may take it.
fn as_user<T>(user: u32, work: impl FnOnce() -> T) -> T {
    // SAFETY: it takes a number, and affects only this thread.
    let before = unsafe { libc::setfsuid(user) };
    let done = work();
    if let Ok(before) = u32::try_from(before) {
        // SAFETY: as above.
        unsafe { libc::setfsuid(before) };
    }
    done
}

/// Asks for another signal than `SIGIO`.
const F_SETSIG: libc::c_int = 10;

/// Whether this process has the file open for writing itself.
fn is_ours(file: &File) -> bool {
    let Ok(own) = file.metadata() else { return false };
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return false };
    open.flatten().any(|entry| {
        let same = stat(entry.path()).is_ok_and(|of| (of.st_dev, of.st_ino) == (own.dev(), own.ino()));
        same && can_write(&Path::new("/proc/self/fdinfo").join(entry.file_name()))
    })
}

/// Whether a descriptor can write, from the kernel's record of it.
fn can_write(info: &Path) -> bool {
    let info = fs::read_to_string(info).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags =
        flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).map(OFlags::from_bits_retain);
    flags
        .is_some_and(|flags| !flags.contains(OFlags::PATH) && flags.intersects(OFlags::WRONLY | OFlags::RDWR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_descriptors_tell_nothing_and_readers_are_nobody() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = File::open(file.path()).unwrap();
        assert!(is_written(&read) == Some(true) && is_ours(&read));
        refuse_open(&read, file.path()).unwrap();
        let path = file.into_temp_path();
        // Another test may have forked at this moment.
        while is_written(&read) != Some(false) {
            std::thread::sleep(PAUSE);
        }
        assert!(!is_ours(&read));
        let _other = File::open(&path).unwrap();
        assert_eq!(is_written(&read), Some(false));
        // The lease is given back: nobody waits for it.
        File::options().write(true).open(&path).unwrap();
    }
}
