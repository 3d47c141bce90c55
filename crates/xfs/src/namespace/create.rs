//! New inodes, with a name or without.

use super::lookup;
use super::{NameProblem, add_links, check_directory, check_name, find_to_add, parents, touch};
use crate::attr::acl::{self, AclKind};
use crate::bmap::TransFork;
use crate::dir::{self, Lookup, NewEntry};
use crate::error::{Error, Result};
use crate::ialloc;
use crate::inode::{ForkKind, ForkState, Inode, InodeEntry, InodeHandle};
use crate::iomap::FileMap;
use crate::mount::Mount;
use crate::symlink;
use crate::trans::reservation::{LogNeed, Reservation, ReservationBuilder};
use crate::trans::{Trans, begin_small};
use fileio::testing::point;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::inode::{CORE_LEN_V3, ForkFormat, ForkInfo, InodeCore, InodeFlags, InodeFlags2, InodeType};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// Properties of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct NewInode {
    /// Type and permissions, as in `st_mode`. A default ACL of the directory modifies the permissions.
    pub mode: u16,
    /// Bits to remove from the permissions, unless the directory has a default ACL.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes its own on (set-group-id).
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// The time of its creation and its last change, and of the directory's change.
    pub time: Timestamp,
    /// When it was last read, and when its content last changed.
    pub content_times: (Timestamp, Timestamp),
    /// Whether group and set-group-id, ACL, project and flags are inherited from the directory. Otherwise the values
    /// given here hold.
    pub inherit: bool,
}

#[cfg(test)]
impl NewInode {
    /// An inode of root, for tests that need nothing else.
    pub(crate) fn for_tests(mode: u16, time: Timestamp) -> Self {
        let content_times = (time, time);
        Self { mode, umask: 0, uid: 0, gid: 0, device: (0, 0), time, content_times, inherit: true }
    }
}

/// Makes a file, a directory, a device, a fifo or a socket named `name`.
pub fn create(mount: &Arc<Mount>, dir: &InodeHandle, name: &[u8], new: &NewInode) -> Result<InodeHandle> {
    Ok(make(mount, dir, Some(name), new, None)?.0)
}

/// Makes a symbolic link. The permissions in `new` are ignored.
pub fn symlink(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    name: &[u8],
    target: &[u8],
    new: &NewInode,
) -> Result<InodeHandle> {
    if target.is_empty() || target.contains(&0) {
        return Err(NameProblem::NoTarget.into());
    }
    if target.len() > symlink::WRITABLE_MAX {
        return Err(NameProblem::TargetTooLong.into());
    }
    let new = NewInode { mode: 0o120_777, umask: 0, ..*new };
    Ok(make(mount, dir, Some(name), &new, Some(target))?.0)
}

/// Makes a regular file without a name, and opens it. It vanishes when the last user closes it, unless it gets a name
/// before that.
pub fn create_unnamed(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    new: &NewInode,
) -> Result<(InodeHandle, FileMap)> {
    let (made, map) = make(mount, dir, None, new, None)?;
    let map = map.ok_or(NameProblem::Invalid)?;
    Ok((made, map))
}

fn make(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    name: Option<&[u8]>,
    new: &NewInode,
    target: Option<&[u8]>,
) -> Result<(InodeHandle, Option<FileMap>)> {
    name.map_or(Ok(()), check_name)?;
    match name {
        Some(_) => begin_small(|need| make_within(mount, dir, name, new, target, need)),
        // What has no name is open at once. That cannot be taken back.
        None => make_within(mount, dir, name, new, target, LogNeed::Most),
    }
}

fn make_within(
    mount: &Arc<Mount>,
    dir: &InodeHandle,
    name: Option<&[u8]>,
    new: &NewInode,
    target: Option<&[u8]>,
    need: LogNeed,
) -> Result<(InodeHandle, Option<FileMap>)> {
    let kind = InodeType::from_mode(new.mode).ok_or(NameProblem::Invalid)?;
    loop {
        let inherits = new.inherit && dir.entry().has_attrs();
        let reservation = reservation_to_make(mount, inherits, target)?.with_log_space(need);
        let mut trans = Trans::start(mount, reservation)?;
        point("a creation has its space");
        trans.join_inode(Arc::clone(dir.entry()), dir.entry().ilock())?;
        if new.inherit && trans.inode(dir.ino()).has_attrs() && !inherits {
            // Meanwhile the directory has got a default ACL, for which no space is reserved.
            continue;
        }
        check_directory(dir, trans.inode(dir.ino()))?;
        if target.is_some() && trans.inode(dir.ino()).core().flags.contains(InodeFlags::NOSYMLINKS) {
            return Err(NameProblem::NoSymlinks.into());
        }
        trans.inode(dir.ino()).check_may_grow()?;
        let found = name.map(|name| find_to_add(&mut trans, dir.ino(), name)).transpose()?;
        if found.as_ref().is_some_and(|found| found.found().is_some()) {
            return Err(NameProblem::Exists.into());
        }
        let entry = match new_inode(&mut trans, dir.ino(), kind, new)? {
            PickedInode::Free(entry) => entry,
            PickedInode::Busy(entry) => {
                // However often this is repeated, it is not a lack of space. From here on we hold nothing that others
                // wait for.
                drop(trans);
                drop(entry.ilock());
                continue;
            }
        };
        let device =
            if matches!(kind, InodeType::CharDevice | InodeType::BlockDevice) { new.device } else { (0, 0) };
        fill(&mut trans, dir.ino(), entry.ino(), kind, device, target)?;
        inherit_acl(&mut trans, dir.ino(), entry.ino(), new)?;
        match name.zip(found) {
            Some(name) => enter(&mut trans, dir.ino(), name, entry.ino(), kind, new.time)?,
            None => {
                trans.inode_mut(entry.ino(), InodeFields::CORE).set_nameless(true);
                ialloc::add_unlinked(&mut trans, entry.ino())?;
            }
        }
        // Make the handle now: once the inode is unlocked, its number may soon belong to another file.
        let made = InodeHandle::new(Arc::clone(&entry), trans.inode(entry.ino()));
        let map = name.is_none().then(|| FileMap::of_new(Arc::clone(mount), &made));
        let known = name.map(|name| (trans.inode(dir.ino()).id(), name, trans.inode(entry.ino()).id()));
        trans.commit_and(|| {
            // The next use of it will be by name.
            if let Some((dir, name, made)) = known {
                lookup::keep(mount, dir, name, made, kind);
            }
        })?;
        return Ok((made, map));
    }
}

pub(super) fn reservation_to_make(
    mount: &Mount,
    inherits: bool,
    target: Option<&[u8]>,
) -> Result<Reservation> {
    if inherits || target.is_some() {
        return Ok(work_out_making(mount, inherits, target));
    }
    let known = &mount.write_side()?.reservations.create;
    Ok(known.get(mount.geometry(), || work_out_making(mount, false, None)))
}

fn work_out_making(mount: &Mount, inherits: bool, target: Option<&[u8]>) -> Reservation {
    let geometry = mount.geometry();
    let mut need = ReservationBuilder::new(geometry).inodes(2).inode_chunk().dir_change().unlinked();
    if let Some(target) = target {
        let blocks = u64::from(symlink::blocks_needed(geometry, target.len()));
        need = need.buffers(blocks).blocks(blocks).map_changes(blocks).extents(1);
    }
    if inherits {
        need = need.attr_change(1).attr_change(1).first_attribute();
    }
    need = need.parent_changes(1);
    need.log_count(2).build_to_begin_small()
}

/// An inode for a new file.
enum PickedInode {
    /// Locked and joined.
    Free(Arc<InodeEntry>),
    /// Somebody still has it locked, and may wait for a lock that we hold.
    Busy(Arc<InodeEntry>),
}

/// Finds a free inode and takes it into use.
fn new_inode(
    trans: &mut Trans<'_>,
    dir: InodeNumber,
    kind: InodeType,
    new: &NewInode,
) -> Result<PickedInode> {
    let ino = ialloc::allocate_inode(trans, dir, kind == InodeType::Directory)?;
    let mount = trans.mount();
    let generation = mount.write_side()?.inodes.generation();
    let core = core_of(trans.inode(dir), kind, new, generation, mount);
    let cached = mount.cached_entry(ino);
    let known = cached.is_some();
    let entry = match cached {
        Some(entry) => entry,
        None => mount.enter_inode(Arc::new(Inode::fresh(ino, core.clone(), true))),
    };
    // The inode tree says that it is free. It cannot be the directory itself, for which we would wait for ever.
    let in_use = || Error::corrupt_inode(ino, FormatError::new("inobt block", "free inode that is in use"));
    if ino == dir {
        return Err(in_use());
    }
    let Some(locked) = entry.try_ilock() else { return Ok(PickedInode::Busy(entry)) };
    trans.join_inode(Arc::clone(&entry), locked)?;
    if known && !trans.inode(ino).is_free() {
        return Err(in_use());
    }
    // The file that had this number before is gone.
    let inode = trans.inode_mut(ino, InodeFields::DFORK);
    *inode = inode.succeeded_by(core, false);
    if trans.geometry().parent_pointers {
        // Room for the parent pointer of its first name, which comes now or later.
        TransFork::attr_of_new(trans, ino)?;
    }
    Ok(PickedInode::Free(entry))
}

/// The core of a new inode, as far as it is known before it has content.
fn core_of(dir: &Inode, kind: InodeType, new: &NewInode, generation: u32, mount: &Mount) -> InodeCore {
    let geometry = mount.geometry();
    let parent = dir.core();
    let hands_down_group = new.inherit && parent.mode & SET_GID != 0;
    let mut mode = new.mode;
    let mut gid = new.gid;
    if hands_down_group {
        gid = parent.gid;
        if kind == InodeType::Directory {
            mode |= SET_GID;
        } else if mode & SET_GID != 0 && mode & GROUP_EXECUTE != 0 && new.gid != gid {
            // A program made here must not give anybody the directory's group.
            mode &= !SET_GID;
        }
    }
    let mut flags2 = InodeFlags2::empty();
    flags2.set(InodeFlags2::BIGTIME, geometry.bigtime);
    flags2.set(InodeFlags2::NREXT64, geometry.nrext64);
    let (flags, projid, extsize) = inherited(dir, kind, new.inherit);
    let (handed_down, cowextsize) = inherited2(dir, kind, new.inherit);
    flags2 |= handed_down;
    let format = match kind {
        InodeType::Directory | InodeType::Symlink => ForkFormat::Local,
        kind if kind.is_special() => ForkFormat::Dev,
        _ => ForkFormat::Extents,
    };
    InodeCore {
        version: 3,
        mode,
        kind,
        uid: new.uid,
        gid,
        nlink: 0,
        projid,
        atime: new.content_times.0,
        mtime: new.content_times.1,
        ctime: new.time,
        crtime: Some(new.time),
        size: 0,
        nblocks: 0,
        extsize,
        cowextsize,
        flags,
        flags2,
        generation,
        changecount: 0,
        data: ForkInfo { format, nextents: 0, range: CORE_LEN_V3..usize::from(geometry.inode_size) },
        attr: None,
    }
}

/// Flags, project and extent size hint inherited from a directory.
fn inherited(dir: &Inode, kind: InodeType, inherit: bool) -> (InodeFlags, u32, u32) {
    let (parent, core) = (dir.core().flags, dir.core());
    if !inherit {
        return (InodeFlags::empty(), 0, 0);
    }
    let projid = if parent.contains(InodeFlags::PROJINHERIT) { core.projid } else { 0 };
    let mut flags = InodeFlags::empty();
    let mut extsize = 0;
    // The flag that forbids symbolic links is not inherited; a kernel does that only if a setting tells it to.
    let passed_on = [
        InodeFlags::NOATIME,
        InodeFlags::NODUMP,
        InodeFlags::SYNC,
        InodeFlags::NODEFRAG,
        InodeFlags::FILESTREAM,
    ];
    match kind {
        InodeType::Directory => {
            let own = [InodeFlags::PROJINHERIT, InodeFlags::EXTSZINHERIT];
            passed_on.into_iter().chain(own).for_each(|flag| flags.set(flag, parent.contains(flag)));
            if parent.contains(InodeFlags::EXTSZINHERIT) {
                extsize = core.extsize;
            }
        }
        InodeType::Regular => {
            passed_on.into_iter().for_each(|flag| flags.set(flag, parent.contains(flag)));
            if parent.contains(InodeFlags::EXTSZINHERIT) {
                flags |= InodeFlags::EXTSIZE;
                extsize = core.extsize;
            }
        }
        _ => {}
    }
    (flags, projid, extsize)
}

/// The newer flags and the CoW extent size hint inherited from a directory.
fn inherited2(dir: &Inode, kind: InodeType, inherit: bool) -> (InodeFlags2, u32) {
    let core = dir.core();
    if !inherit || !matches!(kind, InodeType::Directory | InodeType::Regular) {
        return (InodeFlags2::empty(), 0);
    }
    let flags = core.flags2 & (InodeFlags2::DAX | InodeFlags2::COWEXTSIZE);
    (flags, if flags.contains(InodeFlags2::COWEXTSIZE) { core.cowextsize } else { 0 })
}

/// Gives a new inode its initial content.
fn fill(
    trans: &mut Trans<'_>,
    dir: InodeNumber,
    ino: InodeNumber,
    kind: InodeType,
    device: (u32, u32),
    target: Option<&[u8]>,
) -> Result<()> {
    match (kind, target) {
        (InodeType::Directory, _) => {
            dir::init(&mut TransFork::new(trans, ino, ForkKind::Data), dir)?;
            // Its own `.`.
            add_links(trans, ino, 1)
        }
        (kind, _) if kind.is_special() => {
            // 14 bits of major above 18 bits of minor; 0 if it is not a device.
            let (major, minor) = device;
            let raw = (major << 18 | (minor & 0x3_ffff)).to_be_bytes();
            let fork = ForkState::with(ForkFormat::Dev, 0, Box::new(raw), None);
            trans.inode_mut(ino, InodeFields::DFORK).set_fork(ForkKind::Data, fork);
            Ok(())
        }
        (_, Some(target)) => Ok(symlink::write(&mut TransFork::new(trans, ino, ForkKind::Data), target)?),
        _ => Ok(()),
    }
}

/// Adds a name for a new inode.
fn enter(
    trans: &mut Trans<'_>,
    dir: InodeNumber,
    (name, lookup): (&[u8], Lookup),
    ino: InodeNumber,
    kind: InodeType,
    now: Timestamp,
) -> Result<()> {
    let entry = NewEntry { name, ino, ftype: kind.into() };
    lookup.add(&mut TransFork::new(trans, dir, ForkKind::Data), entry)?;
    parents::add(trans, ino, dir, name)?;
    add_links(trans, ino, 1)?;
    if kind == InodeType::Directory {
        // The new directory's `..`.
        add_links(trans, dir, 1)?;
    }
    touch(trans, dir, true, now);
    Ok(())
}

/// Applies the directory's default ACL, or the umask if there is none.
fn inherit_acl(trans: &mut Trans<'_>, dir: InodeNumber, ino: InodeNumber, new: &NewInode) -> Result<()> {
    let default = match new.inherit && trans.inode(dir).has_attrs() {
        true => acl::read(&TransFork::new(trans, dir, ForkKind::Attr), AclKind::Default)?,
        false => None,
    };
    let inherited = acl::inherit(default.as_deref(), trans.inode(ino).core().mode, new.umask)?;
    trans.inode_mut(ino, InodeFields::CORE).core_mut().mode = inherited.mode;
    for (kind, list) in [(AclKind::Access, inherited.access), (AclKind::Default, inherited.default)] {
        if let Some(list) = list {
            acl::write(&mut TransFork::attr(trans, ino)?, kind, Some(&list))?;
        }
    }
    Ok(())
}
