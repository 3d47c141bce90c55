//! Changing what is in a volume: names, what is said of files, attributes.
//!
//! Each call is one step: it happens whole or not at all, and is durable after the next [`Volume::sync`](crate::Volume::sync).

use crate::dir::Dir;
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::Timestamp;
use crate::node::Node;
use xfs::attr::acl::AclKind;
use xfs::attr::linux;
use xfs::namespace::{self, RenameFlags};
use xfs::setattr;
use xfs_format::acl;
use xfs_format::timestamp::Timestamp as EngineTime;

/// What a new file is to be, besides its type.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Permissions, with set-user-id, set-group-id and sticky bit.
    pub permissions: u16,
    /// Bits that are taken off them, unless the directory hands down an access control list.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands down its own.
    pub gid: u32,
    /// Its times; unsaid, now.
    pub time: Option<Timestamp>,
    /// When it was last read, if that is not `time`.
    pub atime: Option<Timestamp>,
    /// When its content last changed, if that is not `time`.
    pub mtime: Option<Timestamp>,
    /// Whether group, access control list, project and flags come from the directory, as on a mounted volume.
    pub inherit: bool,
}

impl Default for NewNode {
    /// Of root, for everyone to read, made now, with what the directory hands down.
    fn default() -> Self {
        Self {
            permissions: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            time: None,
            atime: None,
            mtime: None,
            inherit: true,
        }
    }
}

/// The type of a special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
}

/// How a rename treats the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rename {
    /// What has it is replaced.
    #[default]
    Replace,
    /// It must be free.
    NoReplace,
    /// The two change places.
    Exchange,
}

/// What to change of what is said of a file. `None` leaves it as it is.
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
    /// When it last changed at all; unsaid, now.
    pub ctime: Option<Timestamp>,
    /// Project.
    pub project: Option<u32>,
    /// Whether what is made in this directory belongs to its project. Other files have no such flag.
    pub project_inherit: Option<bool>,
    /// Whether reading leaves the time of the last reading as it is. New files in a directory have this from it, as they
    /// have the next three.
    pub no_atime: Option<bool>,
    /// Whether backups leave it out.
    pub no_dump: Option<bool>,
    /// Whether nothing of it can be changed any more but these flags. New files have none of the next three from their
    /// directory.
    pub immutable: Option<bool>,
    /// Whether it can only grow: a directory, by new names.
    pub append_only: Option<bool>,
    /// Whether systems that mount the volume write it synchronously. New files in a directory have it from it.
    pub synchronous: Option<bool>,
    /// Whether nobody should move its blocks to bring them together.
    pub no_defrag: Option<bool>,
    /// Bytes of which whole multiples should be allocated: a hint, a multiple of the block size; 0 takes it back. For
    /// directories, and for regular files that have no blocks yet.
    pub extent_size: Option<u32>,
    /// The same for copies of blocks that other files share: for directories and regular files.
    pub cow_extent_size: Option<u32>,
    /// Whether space was set aside for it on purpose, and stays its own behind its end: of a regular file.
    pub preallocated: Option<bool>,
    /// Whether systems that mount the volume make no symbolic link in this directory.
    pub no_symlinks: Option<bool>,
    /// Whether systems that mount the volume put what is made in this directory into a part of the volume of its own.
    pub file_stream: Option<bool>,
    /// Whether what is made in this directory wants a realtime section, if there is one.
    pub realtime_inherit: Option<bool>,
    /// Whether it wants to be accessed as memory: a regular file, or what is made in a directory.
    pub direct_access: Option<bool>,
}

/// Whether an attribute may or must exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// It may.
    #[default]
    Either,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

/// The attribute that gives a program capabilities.
const CAPABILITY: &[u8] = b"security.capability";

const REGULAR: u16 = 0o100_000;
const DIRECTORY: u16 = 0o040_000;

impl NewNode {
    fn engine(&self, dir: &Dir, kind: u16, device: (u32, u32)) -> namespace::NewInode {
        let time = self.time.map_or_else(|| dir.node().volume.now(), engine_time);
        namespace::NewInode {
            mode: kind | self.permissions & 0o7777,
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
            device,
            time,
            content_times: (self.atime.map_or(time, engine_time), self.mtime.map_or(time, engine_time)),
            inherit: self.inherit,
        }
    }
}

pub(crate) fn engine_time(time: Timestamp) -> EngineTime {
    EngineTime { secs: time.seconds, nanos: time.nanoseconds }
}

impl Dir {
    /// Makes an empty regular file.
    pub fn create_file(&self, name: &[u8], new: &NewNode) -> Result<Node> {
        self.create(name, new.engine(self, REGULAR, (0, 0)))
    }

    /// Makes a directory.
    pub fn create_dir(&self, name: &[u8], new: &NewNode) -> Result<Node> {
        self.create(name, new.engine(self, DIRECTORY, (0, 0)))
    }

    /// Makes a named pipe, a socket or a device.
    pub fn create_special(&self, name: &[u8], what: Special, new: &NewNode) -> Result<Node> {
        let (kind, device) = match what {
            Special::Fifo => (0o010_000, (0, 0)),
            Special::Socket => (0o140_000, (0, 0)),
            Special::CharDevice(major, minor) => (0o020_000, (major, minor)),
            Special::BlockDevice(major, minor) => (0o060_000, (major, minor)),
        };
        if device.0 >= 1 << 14 || device.1 >= 1 << 18 {
            let what = format!("device {}:{}: majors have 14 bits, minors 18", device.0, device.1);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        self.create(name, new.engine(self, kind, device))
    }

    /// Makes a symbolic link.
    pub fn create_symlink(&self, name: &[u8], target: &[u8], new: &NewNode) -> Result<Node> {
        let node = self.node();
        let new = new.engine(self, 0, (0, 0));
        let make = || namespace::symlink(node.volume.engine(), &node.handle, name, target, &new);
        let handle = node.volume.with_room(|| make().map_err(|error| named(error, name)))?;
        Ok(Node { volume: node.volume.clone(), handle })
    }

    /// Makes a regular file without a name. It vanishes when the last [`File`](crate::File) of it is dropped, unless it
    /// gets a name meanwhile.
    pub fn create_unnamed(&self, new: &NewNode) -> Result<crate::File> {
        let node = self.node();
        let engine = node.volume.engine();
        let new = new.engine(self, REGULAR, (0, 0));
        let (handle, map) =
            node.volume.with_room(|| Ok(namespace::create_unnamed(engine, &node.handle, &new)?))?;
        let made = Node { volume: node.volume.clone(), handle };
        node.told_of_close(crate::File::with_map(made, map))
    }

    /// Gives a file another name here.
    pub fn link(&self, name: &[u8], to: &Node) -> Result<()> {
        let node = self.node();
        let link =
            || namespace::link(node.volume.engine(), &node.handle, name, &to.handle, node.volume.now());
        node.volume.with_room(|| link().map_err(|error| named(error, name)))
    }

    /// Removes the name of anything but a directory.
    pub fn remove_file(&self, name: &[u8]) -> Result<()> {
        self.remove(name, namespace::Removal::File)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.remove(name, namespace::Removal::Directory)
    }

    /// Moves a name of this directory to another, or to another name.
    pub fn rename(&self, name: &[u8], to: &Dir, new_name: &[u8], how: Rename) -> Result<()> {
        let node = self.node();
        let how = match how {
            Rename::Replace => RenameFlags::Replace,
            Rename::NoReplace => RenameFlags::NoReplace,
            Rename::Exchange => RenameFlags::Exchange,
        };
        let (from, to) = ((&node.handle, name), (&to.node().handle, new_name));
        let rename = || namespace::rename(node.volume.engine(), from, to, how, node.volume.now());
        let nameless = node.volume.with_room(|| rename().map_err(|error| named(error, name)))?;
        node.volume.let_go(nameless);
        Ok(())
    }

    fn create(&self, name: &[u8], new: namespace::NewInode) -> Result<Node> {
        let node = self.node();
        let make = || namespace::create(node.volume.engine(), &node.handle, name, &new);
        let handle = node.volume.with_room(|| make().map_err(|error| named(error, name)))?;
        Ok(Node { volume: node.volume.clone(), handle })
    }

    fn remove(&self, name: &[u8], what: namespace::Removal) -> Result<()> {
        let node = self.node();
        let done = namespace::remove(node.volume.engine(), &node.handle, name, what, node.volume.now());
        node.volume.let_go(done.map_err(|error| named(error, name))?);
        Ok(())
    }
}

impl Node {
    /// Changes what is said of it.
    pub fn change(&self, changes: &Changes) -> Result<()> {
        let change = namespace::Change {
            permissions: changes.permissions,
            uid: changes.uid,
            gid: changes.gid,
            atime: changes.atime.map(engine_time),
            mtime: changes.mtime.map(engine_time),
            crtime: changes.crtime.map(engine_time),
            ctime: changes.ctime.map(engine_time),
            project: changes.project,
            project_inherit: changes.project_inherit,
            no_atime: changes.no_atime,
            no_dump: changes.no_dump,
            immutable: changes.immutable,
            append_only: changes.append_only,
            synchronous: changes.synchronous,
            no_defrag: changes.no_defrag,
            extent_size: changes.extent_size,
            cow_extent_size: changes.cow_extent_size,
            preallocated: changes.preallocated,
            no_symlinks: changes.no_symlinks,
            file_stream: changes.file_stream,
            realtime_inherit: changes.realtime_inherit,
            direct_access: changes.direct_access,
        };
        let changed = setattr::change(self.volume.engine(), &self.handle, &change, self.volume.now());
        self.told_of_close(changed.map_err(Error::from))
    }

    /// What a change came to. A file without a name ends with a close of the volume, and nobody finds it then: who would change
    /// it is told of the close.
    pub(crate) fn told_of_close<T>(&self, done: Result<T>) -> Result<T> {
        match done {
            Err(error) if error.kind() == ErrorKind::Stale => {
                self.volume.engine().check_writable()?;
                Err(error)
            }
            done => done,
        }
    }

    /// Sets an extended attribute, by its Linux name.
    ///
    /// Capabilities (`security.capability`) are of a program as it is then: what others are in the middle of writing to it
    /// comes to its end first, and what they write later takes the capabilities off. Overwrites of it that lie in a
    /// [`Queue`](crate::Queue), and that nobody takes out, keep it from getting any: [`ErrorKind::Busy`].
    pub fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let how = match how {
            SetXattr::Either => xfs::attr::edit::Put::Either,
            SetXattr::Create => xfs::attr::edit::Put::Create,
            SetXattr::Replace => xfs::attr::edit::Put::Replace,
        };
        let change = || self.change_xattr(name, namespace::XattrChange::Set(value, how));
        self.told_of_close(self.volume.with_room(change))
    }

    /// Removes an extended attribute, by its Linux name.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.told_of_close(self.change_xattr(name, namespace::XattrChange::Remove))
    }

    /// Sets an access control list in the form of Linux, or removes it.
    fn change_acl(&self, kind: AclKind, value: Option<&[u8]>) -> Result<()> {
        let list = value.map(acl::from_linux).transpose().map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("not an access control list: {error}"))
        })?;
        let engine = self.volume.engine();
        Ok(setattr::set_acl(engine, &self.handle, kind, list.as_deref(), self.volume.now())?)
    }

    fn change_xattr(&self, name: &[u8], change: namespace::XattrChange<'_>) -> Result<()> {
        let kind = match name {
            linux::ACL_ACCESS => Some(AclKind::Access),
            linux::ACL_DEFAULT => Some(AclKind::Default),
            _ => None,
        };
        if let Some(kind) = kind {
            return match change {
                namespace::XattrChange::Set(value, _) => self.change_acl(kind, Some(value)),
                namespace::XattrChange::Remove => self.change_acl(kind, None),
            };
        }
        let Some((space, short)) = linux::split(name) else {
            let what = format!("{}: no such kind of attribute", crate::printable(name));
            return Err(Error::new(ErrorKind::InvalidInput, what));
        };
        let gives_capabilities = name == CAPABILITY && matches!(change, namespace::XattrChange::Set(..));
        let _still = match gives_capabilities && self.file_type().is_file() {
            true => Some(self.open()?.keep_still().map_err(|error| error.on_path(name))?),
            false => None,
        };
        let engine = self.volume.engine();
        setattr::change_xattr(engine, &self.handle, space, short, change, self.volume.now())
            .map_err(|error| named(error, name))
    }
}

/// Says which name it was about.
fn named(error: xfs::Error, name: &[u8]) -> Error {
    match error {
        xfs::Error::Name(_) => Error::from(error).on_path(name),
        other => other.into(),
    }
}
