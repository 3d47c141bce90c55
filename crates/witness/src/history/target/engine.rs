//! uxfs itself, in process, by its public library.
//!
//! Some rules of system calls are not the library's, as they are about who calls, or are the host's: which
//! objects may have `user.` attributes, how long attributes may be, and that a new owner ends set-user-ID. They are
//! added here, so that both targets do the same.

use super::{Called, Exchanged, Target};
use crate::handles::{Handles, Io};
use crate::history::acl::Acl;
use crate::history::generator::STRIPED;
use crate::history::op::{AclKind, AllocateHow, Ino, Moment, NodeKind, RenameHow, Stat, XattrHow};
use crate::record::Hints;
use anyhow::Result;
use blockdev::BlockDevice;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use uxfs::{
    Changes, Deduped, Dir, ErrorKind, ExchangeOptions, File, FileType, Metadata, NewNode, Node, OpenOptions,
    Rename, SetXattr, Special, Timestamp, Volume,
};

/// An open file.
#[derive(Debug)]
pub struct Handle {
    handles: Handles,
    /// Nobody else makes the file longer: a write at its end may be an append.
    appends: bool,
}

impl Handle {
    fn next(&self) -> &File {
        self.handles.next()
    }
}

/// A volume that uxfs has open for writing.
#[derive(Debug)]
pub struct EngineTarget {
    volume: Volume,
    io: Io,
}

const XATTR_NAME_BYTES_MAX: usize = 255;
const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

impl EngineTarget {
    /// Opens the volume in an image.
    pub fn open(image: &Path) -> Result<Self> {
        Self::open_with(image, &OpenOptions::new().writable(true))
    }

    /// The same in another way.
    pub fn open_with(image: &Path, options: &OpenOptions) -> Result<Self> {
        Ok(Self { volume: Volume::open(image, options)?, io: Io::Direct })
    }

    /// Opens the volume on a device.
    pub fn open_device(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let options = options.clone().writable(true);
        Ok(Self { volume: Volume::open_device(device, &options)?, io: Io::Direct })
    }

    /// The same, with files read and written by other handles.
    pub fn by(self, io: Io) -> Self {
        Self { io, ..self }
    }

    /// Handles of a file.
    fn handle(&self, file: File, is_own: bool) -> Handle {
        let appends = is_own && matches!(self.io, Io::Mixed | Io::Syncing);
        Handle { handles: Handles::new(file, self.io), appends }
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Bytes that the volume's log has.
    pub fn log_bytes(&self) -> Result<u64> {
        let info = self.volume.info()?;
        Ok(u64::from(info.log_blocks) * u64::from(info.block_size))
    }

    /// What its recovery was, in a line.
    pub fn recovery(&self) -> Option<String> {
        self.volume.recovery().map(|recovery| recovery.to_string())
    }

    /// Closes it, which leaves a clean log.
    pub fn close(self) -> Result<()> {
        Ok(self.volume.close()?)
    }

    /// As [`close`](Self::close), while others use it.
    pub fn close_beside(&self) -> Result<()> {
        Ok(self.volume.close()?)
    }

    /// Lets go of it as a crash would: nothing more is written.
    pub fn abandon(self) {
        drop(self.volume);
    }

    fn node(&self, path: &[u8]) -> Called<Node> {
        self.volume.lookup_nofollow(path).map_err(errno)
    }

    fn dir(&self, path: &[u8]) -> Called<Dir> {
        self.node(path)?.as_dir().map_err(errno)
    }

    /// The directory that a path leads to, and the name in it.
    fn parent<'a>(&self, path: &'a [u8]) -> Called<(Dir, &'a [u8])> {
        let (dir, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        let dir = if dir.is_empty() { self.volume.root().map_err(errno)? } else { self.node(dir)? };
        Ok((dir.as_dir().map_err(errno)?, name))
    }

    /// The object that may be given an attribute of this name.
    fn attribute_holder(&self, path: &[u8], name: &[u8]) -> Called<Node> {
        if name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::RANGE);
        }
        let node = self.node(path)?;
        let plain = node.file_type().is_file() || node.file_type().is_dir();
        if name.starts_with(b"user.") && !plain { Err(Errno::PERM) } else { Ok(node) }
    }
}

/// What Linux calls it. What is never expected is printed, as an error number says little.
fn errno(error: uxfs::Error) -> Errno {
    match error.kind() {
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Stale => Errno::STALE,
        ErrorKind::NotADirectory => Errno::NOTDIR,
        ErrorKind::IsADirectory => Errno::ISDIR,
        ErrorKind::TooManySymlinks | ErrorKind::WrongType => Errno::LOOP,
        ErrorKind::NameTooLong => Errno::NAMETOOLONG,
        ErrorKind::NoAttribute => Errno::NODATA,
        ErrorKind::AlreadyExists => Errno::EXIST,
        ErrorKind::NotEmpty => Errno::NOTEMPTY,
        ErrorKind::TooManyLinks => Errno::MLINK,
        ErrorKind::IntoItself | ErrorKind::InvalidInput => Errno::INVAL,
        ErrorKind::OtherProject => Errno::XDEV,
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::TooLarge | ErrorKind::TooManyExtents => Errno::FBIG,
        ErrorKind::ShutDown => Errno::SHUTDOWN,
        ErrorKind::Io => Errno::IO,
        kind => {
            eprintln!("history: uxfs: {kind:?}: {error}");
            Errno::UCLEAN
        }
    }
}

fn new(mode: u16) -> NewNode {
    NewNode { permissions: mode, ..NewNode::default() }
}

fn letter(file_type: FileType) -> char {
    file_type.letter()
}

fn stat_of(found: &Metadata) -> Stat {
    Stat {
        letter: letter(found.file_type),
        mode: found.permissions(),
        uid: found.uid,
        gid: found.gid,
        nlink: found.nlink,
        size: if found.is_dir() { 0 } else { found.size },
        ino: Ino(found.ino),
    }
}

impl Target for EngineTarget {
    type File = Handle;
    const STRICT: bool = true;

    fn create(&self, path: &[u8], mode: u16) -> Called<Handle> {
        let (dir, name) = self.parent(path)?;
        let file = dir.create_file(name, &new(mode)).and_then(|node| node.open()).map_err(errno)?;
        Ok(self.handle(file, path != STRIPED))
    }

    fn open(&self, path: &[u8]) -> Called<Handle> {
        let file = self.node(path)?.open().map_err(errno)?;
        Ok(self.handle(file, path != STRIPED))
    }

    fn tmpfile(&self, dir: &[u8], mode: u16) -> Called<Handle> {
        let file = self.dir(dir)?.create_unnamed(&new(mode)).map_err(errno)?;
        Ok(self.handle(file, true))
    }

    fn link_file(&self, file: &Handle, path: &[u8]) -> Called<()> {
        let (dir, name) = self.parent(path)?;
        dir.link(name, file.handles.plain().node()).map_err(errno)
    }

    fn mkdir(&self, path: &[u8], mode: u16) -> Called<()> {
        let (dir, name) = self.parent(path)?;
        dir.create_dir(name, &new(mode)).map(drop).map_err(errno)
    }

    fn mknod(&self, path: &[u8], kind: NodeKind, mode: u16) -> Called<()> {
        let (dir, name) = self.parent(path)?;
        let what = match kind {
            NodeKind::Regular => return dir.create_file(name, &new(mode)).map(drop).map_err(errno),
            NodeKind::Fifo => Special::Fifo,
            NodeKind::Socket => Special::Socket,
            NodeKind::CharDevice(major, minor) => Special::CharDevice(major, minor),
            NodeKind::BlockDevice(major, minor) => Special::BlockDevice(major, minor),
        };
        dir.create_special(name, what, &new(mode)).map(drop).map_err(errno)
    }

    fn symlink(&self, path: &[u8], target: &[u8]) -> Called<()> {
        let (dir, name) = self.parent(path)?;
        dir.create_symlink(name, target, &new(0o777)).map(drop).map_err(errno)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Called<()> {
        let node = self.node(from)?;
        let (dir, name) = self.parent(to)?;
        match dir.link(name, &node) {
            // Linux looks whether the name is free before it looks at what is to have it.
            Err(error) if error.kind() == ErrorKind::IsADirectory => match dir.lookup(name) {
                Ok(Some(_)) => Err(Errno::EXIST),
                _ => Err(Errno::PERM),
            },
            other => other.map_err(errno),
        }
    }

    fn unlink(&self, path: &[u8]) -> Called<()> {
        let (dir, name) = self.parent(path)?;
        dir.remove_file(name).map_err(errno)
    }

    fn rmdir(&self, path: &[u8]) -> Called<()> {
        let (dir, name) = self.parent(path)?;
        dir.remove_dir(name).map_err(errno)
    }

    fn rename(&self, from: &[u8], to: &[u8], how: RenameHow) -> Called<()> {
        let (from, old) = self.parent(from)?;
        let (to, new) = self.parent(to)?;
        let how = match how {
            RenameHow::Plain => Rename::Replace,
            RenameHow::NoReplace => Rename::NoReplace,
            RenameHow::Exchange => Rename::Exchange,
        };
        from.rename(old, &to, new, how).map_err(errno)
    }

    fn write(&self, file: &Handle, bytes: &[u8], offset: u64) -> Called<usize> {
        let next = file.next();
        if file.appends && offset == file.handles.plain().size() {
            let at = next.append(bytes).map_err(errno)?;
            if at != offset {
                eprintln!("history: uxfs: what was to come to byte {offset} was appended at {at}");
                return Err(Errno::UCLEAN);
            }
            return Ok(bytes.len());
        }
        next.write_at(bytes, offset).map_err(errno)?;
        Ok(bytes.len())
    }

    fn read(&self, file: &Handle, buffer: &mut [u8], offset: u64) -> Called<usize> {
        file.next().read_at(buffer, offset).map_err(errno)
    }

    fn allocate(&self, file: &Handle, how: AllocateHow, offset: u64, len: u64) -> Called<()> {
        let (file, range) = (file.next(), offset..offset + len);
        match how {
            AllocateHow::Allocate => file.allocate(range, false),
            AllocateHow::KeepSize => file.allocate(range, true),
            AllocateHow::PunchHole => file.punch_hole(range),
            AllocateHow::ZeroRange => file.zero_range(range, false),
            AllocateHow::ZeroRangeKeepSize => file.zero_range(range, true),
            AllocateHow::CollapseRange => file.collapse_range(range),
            AllocateHow::InsertRange => file.insert_range(range),
        }
        .map_err(errno)
    }

    fn truncate(&self, file: &Handle, size: u64) -> Called<()> {
        file.next().set_len(size).map_err(errno)
    }

    fn clone_range(&self, from: &Handle, offset: u64, to: &Handle, at: u64, len: u64) -> Called<()> {
        from.next().clone_range(offset, to.next(), at, len).map_err(errno)
    }

    fn dedupe(&self, from: &Handle, offset: u64, to: &Handle, at: u64, len: u64) -> Called<bool> {
        let deduped = from.next().dedupe_range(offset, to.next(), at, len).map_err(errno)?;
        Ok(matches!(deduped, Deduped::Same(_)))
    }

    fn copy_range(&self, from: &Handle, offset: u64, to: &Handle, at: u64, len: u64) -> Called<u64> {
        from.next().copy_range(offset, to.next(), at, len).map_err(errno)
    }

    fn exchange(&self, file: &Handle, other: &Handle, what: Exchanged) -> Called<()> {
        let ([at, other_at], len) = (what.at, (what.len > 0).then_some(what.len));
        let options = ExchangeOptions::new().only_written(what.only_written);
        file.next().exchange_range(at, other.next(), other_at, len, options).map_err(errno)
    }

    fn seek(&self, file: &Handle, offset: u64, data: bool) -> Called<Option<u64>> {
        let file = file.next();
        if data { file.seek_data(offset) } else { file.seek_hole(offset) }.map_err(errno)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: XattrHow) -> Called<()> {
        if name.len() <= XATTR_NAME_BYTES_MAX && value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        let how = match how {
            XattrHow::Set => SetXattr::Either,
            XattrHow::Create => SetXattr::Create,
            XattrHow::Replace => SetXattr::Replace,
        };
        self.attribute_holder(path, name)?.set_xattr(name, value, how).map_err(errno)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Called<()> {
        self.attribute_holder(path, name)?.remove_xattr(name).map_err(errno)
    }

    fn get_xattr(&self, path: &[u8], name: &[u8]) -> Called<Vec<u8>> {
        match self.attribute_holder(path, name) {
            Ok(node) => node.xattr(name).map_err(errno)?.ok_or(Errno::NODATA),
            Err(Errno::PERM) => Err(Errno::NODATA),
            Err(error) => Err(error),
        }
    }

    fn list_xattrs(&self, path: &[u8]) -> Called<Vec<Vec<u8>>> {
        self.node(path)?.xattr_names().map_err(errno)
    }

    fn set_acl(&self, path: &[u8], kind: AclKind, acl: Option<&Acl>) -> Called<()> {
        let node = self.node(path)?;
        let name: &[u8] = match kind {
            AclKind::Access => b"system.posix_acl_access",
            AclKind::Default => b"system.posix_acl_default",
        };
        if kind == AclKind::Default && !node.file_type().is_dir() {
            return if acl.is_some() { Err(Errno::ACCESS) } else { Ok(()) };
        }
        match acl {
            Some(acl) => node.set_xattr(name, &acl.to_linux(), SetXattr::Either),
            None => node.remove_xattr(name),
        }
        .map_err(errno)
    }

    fn chmod(&self, path: &[u8], mode: u16) -> Called<()> {
        let changes = Changes { permissions: Some(mode), ..Changes::default() };
        self.node(path)?.change(&changes).map_err(errno)
    }

    fn chown(&self, path: &[u8], uid: u32, gid: u32) -> Called<()> {
        let node = self.node(path)?;
        let found = node.metadata().map_err(errno)?;
        let mode = found.permissions();
        let mut left = mode;
        if !found.is_dir() {
            left &= !0o4000;
            if mode & 0o0010 != 0 {
                left &= !0o2000;
            }
        }
        let permissions = (left != mode).then_some(left);
        let changes = Changes { uid: Some(uid), gid: Some(gid), permissions, ..Changes::default() };
        node.change(&changes).map_err(errno)
    }

    fn set_project(&self, path: &[u8], id: u32, inherit: bool) -> Called<()> {
        let changes = Changes { project: Some(id), project_inherit: Some(inherit), ..Changes::default() };
        self.node(path)?.change(&changes).map_err(errno)
    }

    fn set_hints(&self, path: &[u8], hints: Hints) -> Called<()> {
        let node = self.node(path)?;
        let found = node.metadata().map_err(errno)?;
        let changes = Changes {
            no_atime: Some(hints.no_atime),
            no_dump: Some(hints.no_dump),
            no_defrag: Some(hints.no_defrag),
            extent_size: found.is_dir().then_some(hints.extent_blocks * found.block_size),
            ..Changes::default()
        };
        node.change(&changes).map_err(errno)
    }

    fn set_times(&self, path: &[u8], atime: Moment, mtime: Moment) -> Called<()> {
        let time = |moment: Moment| Some(Timestamp { seconds: moment.0, nanoseconds: moment.1 });
        let changes = Changes { atime: time(atime), mtime: time(mtime), ..Changes::default() };
        self.node(path)?.change(&changes).map_err(errno)
    }

    fn read_dir(&self, path: &[u8]) -> Called<Vec<(Vec<u8>, char)>> {
        let entries = self.dir(path)?.entries();
        entries.map(|entry| entry.map(|entry| (entry.name, letter(entry.file_type))).map_err(errno)).collect()
    }

    fn read_link(&self, path: &[u8]) -> Called<Vec<u8>> {
        let node = self.node(path)?;
        if !node.file_type().is_symlink() {
            return Err(Errno::INVAL);
        }
        node.read_link().map_err(errno)
    }

    fn stat(&self, path: &[u8]) -> Called<Stat> {
        Ok(stat_of(&self.node(path)?.metadata().map_err(errno)?))
    }

    fn stat_file(&self, file: &Handle) -> Called<Stat> {
        Ok(stat_of(&file.handles.plain().metadata()))
    }

    fn fsync(&self, file: &Handle) -> Called<()> {
        file.next().sync().map_err(errno)
    }

    fn fsync_dir(&self, path: &[u8]) -> Called<()> {
        self.dir(path)?;
        self.volume.sync().map_err(errno)
    }

    fn sync(&self) -> Called<()> {
        self.volume.sync().map_err(errno)
    }

    fn idle(&self, intervals: u8) -> Called<()> {
        (0..intervals).try_for_each(|_| self.volume.pass_idle_time()).map_err(errno)
    }
}
