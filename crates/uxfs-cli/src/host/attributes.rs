//! Sets owner, permissions, attributes and times of written files, as far as the host permits.
//!
//! Everything is set by descriptor, so that no one can swap the file meanwhile.
//!
//! Order matters: a change of owner clears set-user-ID and capabilities, so permissions and attributes come
//! after it; the group permissions of a file with an access control list are its mask, so an inherited list is
//! removed before they are set; and every change sets the time of change, so times come last.

use crate::trust::{Trust, is_acl};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::io;
use uxfs::{Metadata, Node, Timestamp};

/// Access control lists, as attributes of the host.
const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Which of them are kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Permissions, access control lists among them.
    pub mode: bool,
    /// If they are not kept: whether new files start from those of their source, less the umask.
    pub similar_mode: bool,
    /// Owner and group.
    pub ownership: bool,
    /// Times of access and of change of content.
    pub timestamps: bool,
    /// Extended attributes.
    pub xattrs: bool,
}

/// What was not kept, because the host does not permit or support it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    /// Attributes.
    pub xattrs: u64,
    /// Owners.
    pub owners: u64,
}

impl Keep {
    /// All of it.
    pub const ALL: Self =
        Self { mode: true, similar_mode: true, ownership: true, timestamps: true, xattrs: true };

    /// The first permissions of a new file if they are not kept, before the umask.
    pub fn plain(self, permissions: u16, is_dir: bool) -> u16 {
        match (self.similar_mode, is_dir) {
            (true, true) => permissions & 0o1777,
            (true, false) => permissions & 0o777,
            (false, true) => 0o777,
            (false, false) => 0o666,
        }
    }

    /// Whether a new file's permissions are set after it was made: its directory, or a change of owner, may change
    /// them.
    pub fn finishes(self) -> bool {
        self.ownership || !self.similar_mode
    }

    /// Whether there is nothing to set.
    pub fn nothing(self) -> bool {
        !(self.finishes() || self.mode || self.ownership || self.timestamps || self.xattrs)
    }
}

/// How a file of the host is accessed.
#[derive(Clone, Copy)]
pub enum Written<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A handle of a symbolic link, device node, pipe or socket.
    Handle(BorrowedFd<'a>),
}

/// Sets on a written file what is kept of `node`. `finish`: its permissions, if those are not kept.
pub fn apply(
    keep: Keep,
    trust: &Trust,
    node: &Node,
    written: Written<'_>,
    finish: Option<Mode>,
    lost: &mut Lost,
) -> io::Result<()> {
    let metadata = node.metadata()?;
    let place = XattrTarget(written);
    let owned = !keep.ownership || place.chown(&metadata, lost)?;
    if keep.mode && !metadata.is_symlink() {
        // The inherited list could give access to users that the image excludes.
        place.remove_acls(metadata.is_dir())?;
        let mode = Mode::from_raw_mode(trust.permissions(metadata.permissions()).into());
        // A set-user-id file must not run as another user after the change.
        let ids = if owned { Mode::empty() } else { Mode::SUID | Mode::SGID };
        place.chmod(mode - ids)?;
    } else if let Some(mode) = finish {
        if !keep.similar_mode && !metadata.is_symlink() {
            // A directory's default list was inherited, too.
            place.remove_acls(false)?;
        }
        place.chmod(mode)?;
    }
    if keep.mode || keep.xattrs {
        let kept = |name: &[u8]| {
            let wanted = if is_acl(name) { keep.mode } else { keep.xattrs };
            wanted && trust.takes_xattr(name)
        };
        xattrs(node, place, kept, lost)?;
    }
    if keep.timestamps {
        place.set_times(&metadata)?;
    }
    Ok(())
}

/// Whether the kept metadata of `node` give special rights to whoever runs the file.
pub fn are_privileged(keep: Keep, trust: &Trust, node: &Node) -> uxfs::Result<bool> {
    const CAPABILITY: &[u8] = b"security.capability";
    let ids = keep.mode && trust.permissions(node.metadata()?.permissions()) & 0o6000 != 0;
    Ok(ids || (keep.xattrs && trust.takes_xattr(CAPABILITY) && node.xattr(CAPABILITY)?.is_some()))
}

/// Copies attributes; those that the host refuses are counted.
fn xattrs(
    node: &Node,
    place: XattrTarget<'_>,
    kept: impl Fn(&[u8]) -> bool,
    lost: &mut Lost,
) -> io::Result<()> {
    for name in node.xattr_names()? {
        // The list itself goes over as `system.posix_acl_…`; this is XFS's form of it.
        if name.starts_with(b"trusted.SGI_ACL_") || name.contains(&0) || !kept(&name) {
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

/// How its attributes are set.
#[derive(Clone, Copy)]
struct XattrTarget<'a>(Written<'a>);

impl XattrTarget<'_> {
    /// Whether the owner is now the right one.
    fn chown(&self, metadata: &Metadata, lost: &mut Lost) -> io::Result<bool> {
        let (Some(uid), Some(gid)) = (uid(metadata.uid), gid(metadata.gid)) else {
            lost.owners += 1;
            return Ok(false);
        };
        let (Written::Open(fd) | Written::Handle(fd)) = self.0;
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
        match self.0 {
            Written::Open(fd) => rustix::fs::fchmod(fd, mode),
            Written::Handle(fd) => rustix::fs::chmod(by_handle(fd), mode),
        }?;
        Ok(())
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        match self.0 {
            Written::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            Written::Handle(fd) => rustix::fs::setxattr(by_handle(fd), name, value, XattrFlags::empty()),
        }
    }

    /// Removes the access control lists that it inherited from its directory on the host.
    fn remove_acls(&self, is_dir: bool) -> io::Result<()> {
        let names: &[&str] = if is_dir { &[ACCESS_ACL, DEFAULT_ACL] } else { &[ACCESS_ACL] };
        for &name in names {
            let removed = match self.0 {
                Written::Open(fd) => rustix::fs::fremovexattr(fd, name),
                Written::Handle(fd) => rustix::fs::removexattr(by_handle(fd), name),
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
        match self.0 {
            Written::Open(fd) => rustix::fs::futimens(fd, &times),
            Written::Handle(fd) => rustix::fs::utimensat(CWD, by_handle(fd), &times, AtFlags::empty()),
        }?;
        Ok(())
    }
}

/// A path that leads to exactly the file of the handle.
fn by_handle(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// For the host the highest number means "leave it as it is".
fn uid(raw: u32) -> Option<Uid> {
    (raw != u32::MAX).then(|| Uid::from_raw(raw))
}

fn gid(raw: u32) -> Option<Gid> {
    (raw != u32::MAX).then(|| Gid::from_raw(raw))
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
}
