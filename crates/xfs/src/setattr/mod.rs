//! Changing a file's metadata: permissions, owners, times, project; extended attributes.
//!
//! Each change is one transaction on one inode. This module does not know names of files, nor who has a file open.

mod attr_fork;

pub(crate) use attr_fork::attr_fork;

use crate::attr::acl::{self, AclKind};
use crate::attr::edit::{EditError, SetXattr};
use crate::attr::{self, Namespace};
use crate::bmap::TransFork;
use crate::error::{Error, NameProblem, Result};
use crate::inode::{ForkKind, Inode, InodeHandle};
use crate::mount::Mount;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use std::sync::Arc;
use xfs_format::acl::AclEntry;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{InodeCore, InodeFlags, InodeFlags2, InodeType};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

/// Changes of a file's metadata. `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permissions.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// When it was last read.
    pub atime: Option<Timestamp>,
    /// When its content last changed.
    pub mtime: Option<Timestamp>,
    /// When it was made.
    pub crtime: Option<Timestamp>,
    /// When it last changed in any way. `None`: now.
    pub ctime: Option<Timestamp>,
    /// Project.
    pub project: Option<u32>,
    /// Whether new files in this directory get its project. Only directories have this flag.
    pub project_inherit: Option<bool>,
    /// Whether reading does not update the access time. New files inherit this and the next three flags from their
    /// directory.
    pub no_atime: Option<bool>,
    /// Whether backups skip it.
    pub no_dump: Option<bool>,
    /// Whether nothing of it can be changed except for these flags. New files do not inherit this and the next two from
    /// their directory.
    pub immutable: Option<bool>,
    /// Whether it can only grow; a directory by new names.
    pub append_only: Option<bool>,
    /// Whether systems that mount the volume write it synchronously. New files inherit this from their directory.
    pub synchronous: Option<bool>,
    /// Whether nobody should defragment it.
    pub no_defrag: Option<bool>,
    /// A hint: allocate in multiples of this many bytes, a multiple of the block size; 0 removes it. For directories,
    /// and for regular files without blocks.
    pub extent_size: Option<u32>,
    /// The same for copies of shared blocks. For directories and regular files.
    pub cow_extent_size: Option<u32>,
    /// Whether space was preallocated for a regular file explicitly, so that it is kept past the end.
    pub preallocated: Option<bool>,
    /// Whether systems that mount the volume refuse to make symbolic links in this directory.
    pub no_symlinks: Option<bool>,
    /// Whether systems that mount the volume allocate new files of this directory in a part of the volume of their own.
    pub file_stream: Option<bool>,
    /// Whether new files of this directory go to a realtime section, if there is one.
    pub realtime_inherit: Option<bool>,
    /// Whether it should be accessed as memory: a regular file, or new files of a directory.
    pub direct_access: Option<bool>,
}

impl Changes {
    /// Whether a file's protection forbids it: everything that system calls set, except for the flags themselves.
    fn is_of_protected(&self) -> bool {
        let times = [self.atime, self.mtime, self.crtime, self.ctime];
        self.permissions.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || times.iter().any(Option::is_some)
    }
}

/// What to do with an extended attribute.
#[derive(Clone, Copy, Debug)]
pub enum XattrChange<'a> {
    /// Set it to this value.
    Set(&'a [u8], SetXattr),
    /// Remove it.
    Remove,
}

/// Changes a file's metadata.
pub fn change(mount: &Arc<Mount>, file: &InodeHandle, change: &Changes, now: Timestamp) -> Result<()> {
    if change.uid.is_some() || change.gid.is_some() {
        drop_capabilities(mount, file, now)?;
    }
    let mut need = ReservationBuilder::new(mount.geometry()).inodes(1);
    if change.permissions.is_some() && file.entry().snapshot().has_attrs() {
        need = need.attr_change(1).log_count(2);
    }
    // An ACL that follows the permissions keeps its size, but gets its blocks before it gives the old ones back.
    let mut trans = Trans::start(mount, need.build().or_reserve_pool())?;
    let ino = join(&mut trans, file)?;
    if change.is_of_protected() {
        trans.inode(ino).check_unprotected()?;
    }
    if let Some(bytes) = change.extent_size {
        check_extent_size(trans.inode(ino), mount.geometry(), bytes)?;
    }
    if let Some(bytes) = change.cow_extent_size {
        check_cow_extent_size(trans.inode(ino), mount.geometry(), bytes)?;
    }
    let core = trans.inode_mut(ino, InodeFields::CORE).core_mut();
    mount.touch(core, false, now);
    set_hints(core, change, mount.geometry());
    if let Some(permissions) = change.permissions {
        core.mode = core.mode & 0o170_000 | permissions & 0o7777;
    }
    core.uid = change.uid.unwrap_or(core.uid);
    core.gid = change.gid.unwrap_or(core.gid);
    core.atime = change.atime.unwrap_or(core.atime);
    core.mtime = change.mtime.unwrap_or(core.mtime);
    core.crtime = change.crtime.or(core.crtime);
    core.projid = change.project.unwrap_or(core.projid);
    core.ctime = change.ctime.unwrap_or(core.ctime);
    if let Some(permissions) = change.permissions {
        follow_mode(&mut trans, ino, permissions)?;
    }
    trans.commit()?;
    Ok(())
}

/// Sets or removes an ACL. An access ACL that permissions can express becomes permissions.
pub fn set_acl(
    mount: &Arc<Mount>,
    file: &InodeHandle,
    kind: AclKind,
    list: Option<&[AclEntry]>,
    now: Timestamp,
) -> Result<()> {
    let need = ReservationBuilder::new(mount.geometry()).inodes(1).attr_change(1).log_count(2);
    let is_stored = list.is_some_and(|entries| kind == AclKind::Default || !acl::is_equivalent(entries));
    let reservation = if is_stored { need.attr_fork().build() } else { need.build().or_reserve_pool() };
    let mut trans = Trans::start(mount, reservation)?;
    let ino = join(&mut trans, file)?;
    trans.inode(ino).check_unprotected()?;
    if trans.inode(ino).core().kind == InodeType::Symlink {
        return Err(NameProblem::ListOfLink.into());
    }
    if kind == AclKind::Default && !trans.inode(ino).is_dir() {
        return Err(NameProblem::NotDirectory.into());
    }
    if let (AclKind::Access, Some(entries)) = (kind, list) {
        let (mode, _) = acl::equivalent_mode(entries, trans.inode(ino).core().mode);
        trans.inode_mut(ino, InodeFields::CORE).core_mut().mode = mode;
    }
    let list = list.filter(|_| is_stored);
    if list.is_some() || trans.inode(ino).has_attrs() {
        acl::write(&mut attr_fork(&mut trans, ino)?, kind, list)?;
    }
    touch(&mut trans, ino, false, now);
    trans.commit()?;
    Ok(())
}

/// Sets or removes an extended attribute. As in a kernel, only regular files and directories have user attributes.
pub fn change_xattr(
    mount: &Arc<Mount>,
    file: &InodeHandle,
    namespace: Namespace,
    name: &[u8],
    change: XattrChange<'_>,
    now: Timestamp,
) -> Result<()> {
    let value_blocks = match change {
        XattrChange::Set(value, _) => {
            // Including headers and the rest of the last block.
            (value.len() as u64).div_ceil(u64::from(mount.geometry().block_size) - 64) + 1
        }
        XattrChange::Remove => 0,
    };
    let need = ReservationBuilder::new(mount.geometry()).inodes(1).attr_change(value_blocks).log_count(2);
    let reservation = match change {
        XattrChange::Set(..) => need.attr_fork().build(),
        XattrChange::Remove => need.build().or_reserve_pool(),
    };
    let mut trans = Trans::start(mount, reservation)?;
    let ino = join(&mut trans, file)?;
    trans.inode(ino).check_unprotected()?;
    if namespace == Namespace::User && !(trans.inode(ino).is_file() || trans.inode(ino).is_dir()) {
        return Err(NameProblem::UserAttribute.into());
    }
    match change {
        XattrChange::Remove | XattrChange::Set(_, SetXattr::Replace) if !trans.inode(ino).has_attrs() => {
            return Err(NameProblem::NoAttribute.into());
        }
        XattrChange::Set(value, how) => {
            attr::edit::set(&mut attr_fork(&mut trans, ino)?, namespace, name, value, how)?;
        }
        XattrChange::Remove => {
            attr::edit::remove(&mut TransFork::attr(&mut trans, ino)?, namespace, name)?;
        }
    }
    touch(&mut trans, ino, false, now);
    if namespace == Namespace::Secure && name == CAPABILITY {
        // Set with the inode locked: nobody looks for them before they are there.
        file.entry().set_privileged(true);
    }
    trans.commit()?;
    Ok(())
}

/// Removes the capabilities of a file whose content or owner is about to change. A kernel does so whoever makes the
/// change.
pub fn drop_capabilities(mount: &Arc<Mount>, file: &InodeHandle, now: Timestamp) -> Result<()> {
    loop {
        let (shared, inode) = file.ilock_shared()?;
        let held = match mount.fork(&inode, ForkKind::Attr) {
            Some(fork) if inode.has_attrs() => attr::get(&*fork, Namespace::Secure, CAPABILITY)?,
            _ => None,
        };
        if held.is_none() {
            file.entry().set_privileged(false);
            return Ok(());
        }
        drop(shared);
        match change_xattr(mount, file, Namespace::Secure, CAPABILITY, XattrChange::Remove, now) {
            // Another thread was faster.
            Ok(()) | Err(Error::Name(NameProblem::NoAttribute)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The attribute in the namespace `security` that gives a program capabilities.
const CAPABILITY: &[u8] = b"capability";

/// Locks and joins a file that must still exist.
fn join(trans: &mut Trans<'_>, file: &InodeHandle) -> Result<InodeNumber> {
    trans.join_inode(Arc::clone(file.entry()), file.entry().ilock())?;
    file.check(trans.inode(file.ino()))?;
    Ok(file.ino())
}

/// Whether a file may have this extent size hint, by the kernel's rules.
fn check_extent_size(inode: &Inode, geometry: &Geometry, bytes: u32) -> Result<()> {
    let bad = |why| Err(Error::ExtentSize { inode: inode.ino(), bytes, why });
    match inode.core().kind {
        InodeType::Directory => {}
        InodeType::Regular if inode.core().data.nextents == 0 => {}
        InodeType::Regular => return bad("the file has blocks already"),
        _ => return bad("only regular files and directories have one"),
    }
    check_hint(inode, geometry, bytes)
}

/// Whether a file may have this CoW extent size hint.
fn check_cow_extent_size(inode: &Inode, geometry: &Geometry, bytes: u32) -> Result<()> {
    let bad = |why| Err(Error::ExtentSize { inode: inode.ino(), bytes, why });
    match inode.core().kind {
        InodeType::Directory | InodeType::Regular if geometry.reflink || bytes == 0 => {
            check_hint(inode, geometry, bytes)
        }
        InodeType::Directory | InodeType::Regular => bad("files of this volume cannot share blocks"),
        _ => bad("only regular files and directories have one"),
    }
}

/// Whether any file may have such an extent size hint.
fn check_hint(inode: &Inode, geometry: &Geometry, bytes: u32) -> Result<()> {
    const BLOCKS_MAX: u32 = (1 << 21) - 1;
    let bad = |why| Err(Error::ExtentSize { inode: inode.ino(), bytes, why });
    let blocks = bytes >> geometry.block_log;
    if blocks << geometry.block_log != bytes {
        return bad("it must be a multiple of the block size");
    }
    if blocks > BLOCKS_MAX || blocks > geometry.ag_blocks / 2 {
        return bad("it must not be more than half an allocation group");
    }
    Ok(())
}

/// Sets the flags and hints for how to treat a file.
fn set_hints(core: &mut InodeCore, change: &Changes, geometry: &Geometry) {
    let flags = [
        (change.no_atime, InodeFlags::NOATIME),
        (change.no_dump, InodeFlags::NODUMP),
        (change.immutable, InodeFlags::IMMUTABLE),
        (change.append_only, InodeFlags::APPEND),
        (change.synchronous, InodeFlags::SYNC),
        (change.no_defrag, InodeFlags::NODEFRAG),
        (change.no_symlinks, InodeFlags::NOSYMLINKS),
        (change.file_stream, InodeFlags::FILESTREAM),
    ];
    for (wanted, flag) in flags {
        core.flags.set(flag, wanted.unwrap_or(core.flags.contains(flag)));
    }
    let (is_dir, is_file) = (core.kind == InodeType::Directory, core.kind == InodeType::Regular);
    // Other types of files do not have these flags.
    let of_some = [
        (is_dir, change.project_inherit, InodeFlags::PROJINHERIT),
        (is_dir, change.realtime_inherit, InodeFlags::RTINHERIT),
        (is_file, change.preallocated, InodeFlags::PREALLOC),
    ];
    for (_, wanted, flag) in of_some.into_iter().filter(|(may, ..)| *may) {
        core.flags.set(flag, wanted.unwrap_or(core.flags.contains(flag)));
    }
    if let Some(wanted) = change.direct_access.filter(|_| is_dir || is_file) {
        core.flags2.set(InodeFlags2::DAX, wanted);
    }
    if let Some(bytes) = change.cow_extent_size {
        core.cowextsize = bytes >> geometry.block_log;
        core.flags2.set(InodeFlags2::COWEXTSIZE, bytes != 0);
    }
    if let Some(bytes) = change.extent_size {
        core.extsize = bytes >> geometry.block_log;
        core.flags.set(if is_dir { InodeFlags::EXTSZINHERIT } else { InodeFlags::EXTSIZE }, bytes != 0);
    }
}

/// Updates an access ACL after a change of permissions.
fn follow_mode(trans: &mut Trans<'_>, ino: InodeNumber, permissions: u16) -> Result<()> {
    if !trans.inode(ino).has_attrs() {
        return Ok(());
    }
    let mut fork = TransFork::new(trans, ino, ForkKind::Attr);
    let Some(mut list) = acl::read(&fork, AclKind::Access)? else { return Ok(()) };
    acl::follow_mode(&mut list, permissions)?;
    Ok(acl::write(&mut fork, AclKind::Access, Some(&list))?)
}

/// Content (if `content`) and attributes of an inode change by an operation that began then; see [`Mount::touch`].
pub(crate) fn touch(trans: &mut Trans<'_>, ino: InodeNumber, content: bool, now: Timestamp) {
    let mount = trans.mount();
    mount.touch(trans.inode_mut(ino, InodeFields::CORE).core_mut(), content, now);
}

impl From<EditError> for Error {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Exists => NameProblem::AttributeExists.into(),
            EditError::Missing => NameProblem::NoAttribute.into(),
            EditError::Engine(error) => error,
            _ => NameProblem::AttributeTooLong.into(),
        }
    }
}
