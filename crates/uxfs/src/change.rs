//! Changing the content of a volume: names, attributes of files, extended attributes.
//!
//! Each call is one step: it happens whole or not at all, and is durable after the next [`Volume::sync`](crate::Volume::sync).

use crate::dir::Dir;
use crate::error::{Error, ErrorKind, Result};
use crate::node::Node;
use xfs::attr::acl::AclKind;
use xfs::attr::edit::SetXattr;
use xfs::attr::linux;
use xfs::namespace::{self, Rename};
use xfs::setattr::{self, Changes};
use xfs_format::acl;
use xfs_format::timestamp::Timestamp;

/// What a new file is to be, besides its type.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Permissions, with set-user-id, set-group-id and sticky bit.
    pub permissions: u16,
    /// Bits to clear, unless the directory has a default access control list.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless it is inherited from the directory.
    pub gid: u32,
    /// Its times. `None`: now.
    pub time: Option<Timestamp>,
    /// When it was last read, if that is not `time`.
    pub atime: Option<Timestamp>,
    /// When its content last changed, if that is not `time`.
    pub mtime: Option<Timestamp>,
    /// Whether group, access control list, project and flags come from the directory, as on a mounted volume.
    pub inherit: bool,
}

impl Default for NewNode {
    /// Owned by root, readable for everyone, made now, with inheritance from the directory.
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

/// The attribute that gives a program capabilities.
const CAPABILITY: &[u8] = b"security.capability";

const REGULAR: u16 = 0o100_000;
const DIRECTORY: u16 = 0o040_000;

impl NewNode {
    fn engine(&self, dir: &Dir, kind: u16, device: (u32, u32)) -> namespace::NewInode {
        let time = self.time.unwrap_or_else(|| dir.node().volume.now());
        namespace::NewInode {
            mode: kind | self.permissions & 0o7777,
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
            device,
            time,
            content_times: (self.atime.unwrap_or(time), self.mtime.unwrap_or(time)),
            inherit: self.inherit,
        }
    }
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

    /// Makes a regular file without a name. It is freed when its last [`File`](crate::File) is dropped, unless it has a
    /// name by then.
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
    /// Changes its metadata.
    pub fn change(&self, changes: &Changes) -> Result<()> {
        let changed = setattr::change(self.volume.engine(), &self.handle, changes, self.volume.now());
        self.told_of_close(changed.map_err(Error::from))
    }

    /// The result of a change. Closing the volume frees files without a name. A change of such a file reports that the
    /// volume was closed.
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
    /// Capabilities (`security.capability`) belong to the present content: writes in progress end first, and later
    /// writes remove the capabilities. Overwrites that stay in a [`Queue`](crate::Queue) prevent the change:
    /// [`ErrorKind::Busy`].
    pub fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let change = || self.change_xattr(name, namespace::XattrChange::Set(value, how));
        self.told_of_close(self.volume.with_room(change))
    }

    /// Removes an extended attribute, by its Linux name.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let change = || self.change_xattr(name, namespace::XattrChange::Remove);
        self.told_of_close(self.volume.with_room(change))
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

/// Adds the name to the error.
fn named(error: xfs::Error, name: &[u8]) -> Error {
    match error {
        xfs::Error::Name(_) => Error::from(error).on_path(name),
        other => other.into(),
    }
}
