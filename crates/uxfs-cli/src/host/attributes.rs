//! Owner, permissions, attributes and times of what was written, where the host permits them.
//!
//! Order matters: a change of owner clears set-user-ID and capabilities, so that permissions and attributes come
//! behind it; the permissions of a file with an access control list are its mask, so that an inherited list goes
//! before they come; and every change moves the time of change, so that times come last.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::io;
use uxfs::{Metadata, Node, Timestamp};

/// Access control lists, as attributes of the host.
const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Which of them are kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Permissions.
    pub mode: bool,
    /// Owner and group.
    pub ownership: bool,
    /// Times of access and of change of content.
    pub timestamps: bool,
    /// Extended attributes, access control lists among them.
    pub xattrs: bool,
}

/// What was not kept because the host does not permit or not support it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    /// Attributes.
    pub xattrs: u64,
    /// Owners.
    pub owners: u64,
}

/// Something new on the host, in whichever way it can be reached.
pub enum Written<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A symbolic link, device node, pipe or socket: its directory, its name.
    Named(BorrowedFd<'a>, &'a [u8]),
}

/// Gives what was written the attributes of `node`.
pub fn apply(keep: Keep, umask: Mode, node: &Node, written: &Written<'_>, lost: &mut Lost) -> io::Result<()> {
    let metadata = node.metadata();
    let place = Place::of(written)?;
    let mut owned = true;
    if keep.ownership {
        owned = place.chown(&metadata, lost)?;
    }
    if !metadata.is_symlink() {
        if keep.mode || keep.xattrs {
            // What the directory gives to new files would let in people whom the image doesn't.
            place.remove_acls(metadata.is_dir())?;
        }
        place.chmod(mode(keep, umask, &metadata, owned))?;
    }
    if keep.xattrs {
        xattrs(node, &place, lost)?;
    }
    if keep.timestamps {
        place.set_times(&metadata)?;
    }
    Ok(())
}

/// The permissions that it gets. A file that runs as its owner must not come to run as another one.
fn mode(keep: Keep, umask: Mode, metadata: &Metadata, owned: bool) -> Mode {
    let kept = Mode::from_raw_mode(metadata.permissions().into());
    match (keep.mode, keep.ownership && owned) {
        (true, true) => kept,
        (true, false) => kept - (Mode::SUID | Mode::SGID),
        (false, _) => {
            let all = if metadata.is_dir() { 0o777 } else { 0o666 };
            Mode::from_raw_mode(all) - umask
        }
    }
}

/// Copies attributes; those that the host refuses are counted.
fn xattrs(node: &Node, place: &Place<'_>, lost: &mut Lost) -> io::Result<()> {
    for name in node.xattr_names()? {
        // The list itself goes over as `system.posix_acl_…`; this is XFS's form of it.
        if name.starts_with(b"trusted.SGI_ACL_") || name.contains(&0) {
            continue;
        }
        let Some(value) = node.xattr(&name)? else { continue };
        match place.set_xattr(&name, &value) {
            Err(
                Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSPC | Errno::TOOBIG | Errno::INVAL,
            ) => {
                lost.xattrs += 1;
            }
            other => other?,
        }
    }
    Ok(())
}

/// How attributes of it are set.
enum Place<'a> {
    Open(BorrowedFd<'a>),
    /// A handle that doesn't open it, with its directory and name.
    Handle(OwnedFd, BorrowedFd<'a>, &'a [u8]),
}

impl<'a> Place<'a> {
    fn of(written: &Written<'a>) -> io::Result<Self> {
        Ok(match *written {
            Written::Open(fd) => Self::Open(fd),
            Written::Named(dir, name) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                Self::Handle(rustix::fs::openat(dir, name, flags, Mode::empty())?, dir, name)
            }
        })
    }

    /// Whether the owner is now the right one.
    fn chown(&self, metadata: &Metadata, lost: &mut Lost) -> io::Result<bool> {
        let (Some(uid), Some(gid)) = (uid(metadata.uid), gid(metadata.gid)) else {
            lost.owners += 1;
            return Ok(false);
        };
        let fd = match self {
            Self::Open(fd) => fd.as_fd(),
            Self::Handle(fd, ..) => fd.as_fd(),
        };
        match rustix::fs::chownat(fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
            Ok(()) => Ok(true),
            Err(Errno::PERM | Errno::INVAL) => {
                lost.owners += 1;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn chmod(&self, mode: Mode) -> io::Result<()> {
        match self {
            Self::Open(fd) => rustix::fs::fchmod(fd, mode),
            Self::Handle(fd, ..) => rustix::fs::chmod(by_handle(fd), mode),
        }?;
        Ok(())
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Handle(fd, ..) => rustix::fs::setxattr(by_handle(fd), name, value, XattrFlags::empty()),
        }
    }

    /// Takes away the access control lists that a directory of the host gave to it when it was made.
    fn remove_acls(&self, is_dir: bool) -> io::Result<()> {
        let names: &[&str] = if is_dir { &[ACCESS_ACL, DEFAULT_ACL] } else { &[ACCESS_ACL] };
        for &name in names {
            let removed = match self {
                Self::Open(fd) => rustix::fs::fremovexattr(fd, name),
                Self::Handle(fd, ..) => rustix::fs::removexattr(by_handle(fd), name),
            };
            match removed {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set_times(&self, metadata: &Metadata) -> io::Result<()> {
        let times =
            Timestamps { last_access: timespec(metadata.atime), last_modification: timespec(metadata.mtime) };
        match self {
            Self::Open(fd) => rustix::fs::futimens(fd, &times),
            Self::Handle(_, dir, name) => {
                rustix::fs::utimensat(dir, *name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }?;
        Ok(())
    }
}

/// A path that leads to exactly what the handle is for.
fn by_handle(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The host takes the highest number for "leave it as it is".
fn uid(raw: u32) -> Option<Uid> {
    (raw != u32::MAX).then(|| Uid::from_raw(raw))
}

fn gid(raw: u32) -> Option<Gid> {
    (raw != u32::MAX).then(|| Gid::from_raw(raw))
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
}
