//! An inode of any type: its metadata, its attributes, and access to its content.
//!
//! Invariant: a node stands for the file that was found. Once that is gone, every call fails with
//! [`ErrorKind::Stale`], even if another file has its inode number.

use crate::dir::Dir;
use crate::engine;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::metadata::Metadata;
use crate::volume::Volume;
use xfs::attr::linux;
use xfs::dir::FileType;
use xfs::namespace;
use xfs::volume::{ForkKind, InodeHandle};

/// A file of any type, found by its path, by its inode number, or in its directory. Cheap to clone.
///
/// It does not keep the file alive; an open [`File`] does. If the file is gone, calls fail with [`ErrorKind::Stale`],
/// even if another file has its inode number.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) volume: Volume,
    pub(crate) handle: InodeHandle,
}

impl Node {
    /// The volume that it is on.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Its inode number.
    pub fn ino(&self) -> u64 {
        self.handle.ino().0
    }

    /// Its type.
    pub fn file_type(&self) -> FileType {
        self.handle.kind().into()
    }

    /// What the volume says of it.
    pub fn metadata(&self) -> Result<Metadata> {
        let (in_memory, inode) = self.handle.entry().with_version();
        self.handle.check(&inode)?;
        Ok(engine::metadata_in_memory(self.volume.engine(), &in_memory, &inode))
    }

    /// The same, also of a file that is gone.
    pub(crate) fn metadata_of_any(&self) -> Metadata {
        let (in_memory, inode) = self.handle.entry().with_version();
        engine::metadata_in_memory(self.volume.engine(), &in_memory, &inode)
    }

    /// It as a directory.
    pub fn as_dir(&self) -> Result<Dir> {
        self.handle.current()?;
        if !self.file_type().is_dir() {
            let what = format!("inode {} is a {}, not a directory", self.ino(), self.file_type());
            return Err(Error::new(ErrorKind::NotADirectory, what));
        }
        Ok(Dir::new(self.clone()))
    }

    /// It as a regular file, open to read and, on a writable volume, to overwrite.
    pub fn open(&self) -> Result<File> {
        match self.file_type() {
            FileType::Regular => File::new(self.clone()),
            FileType::Directory => Err(Error::new(
                ErrorKind::IsADirectory,
                format!("inode {} is a directory, not a regular file", self.ino()),
            )),
            other => Err(Error::new(
                ErrorKind::WrongType,
                format!("inode {} is a {other}, not a regular file", self.ino()),
            )),
        }
    }

    /// The target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        if !self.file_type().is_symlink() {
            let what = format!("inode {} is a {}, not a symbolic link", self.ino(), self.file_type());
            return Err(Error::new(ErrorKind::WrongType, what));
        }
        let (_shared, inode) = self.handle.ilock_shared()?;
        match self.volume.engine().fork(&inode, ForkKind::Data) {
            Some(fork) => Ok(xfs::symlink::target(&*fork)?),
            None => Ok(Vec::new()),
        }
    }

    /// Names of its extended attributes, as Linux names them, in the volume's order.
    ///
    /// As for root on Linux, an access control list has two names: `system.posix_acl_access`, whose value is in
    /// the form of Linux, and `trusted.SGI_ACL_FILE`, whose value is as the volume keeps it.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        let (_shared, inode) = self.handle.ilock_shared()?;
        match self.volume.engine().fork(&inode, ForkKind::Attr) {
            Some(fork) => Ok(linux::list(&*fork)?),
            None => Ok(Vec::new()),
        }
    }

    /// The value of one extended attribute, by its Linux name; `None` if it has no such attribute.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let (_shared, inode) = self.handle.ilock_shared()?;
        match self.volume.engine().fork(&inode, ForkKind::Attr) {
            Some(fork) => Ok(linux::get(&*fork, name)?),
            None => Ok(None),
        }
    }

    /// The entry `name` of it, a directory; `None` if there is no such entry.
    pub(crate) fn child(&self, name: &[u8]) -> Result<Option<Self>> {
        let handle = child(&self.volume, &self.handle, name)?;
        Ok(handle.map(|handle| Self { volume: self.volume.clone(), handle }))
    }
}

/// The entry `name` of a directory; `None` if there is no such entry.
pub(crate) fn child(volume: &Volume, dir: &InodeHandle, name: &[u8]) -> Result<Option<InodeHandle>> {
    let engine = volume.engine();
    if let Some(handle) = namespace::cached_child(engine, dir, name) {
        return Ok(Some(handle));
    }
    let (shared, inode) = dir.ilock_shared()?;
    let Some(fork) = engine.fork(&inode, ForkKind::Data) else {
        return Ok(None);
    };
    let Some((ino, _)) = xfs::dir::lookup(&*fork, name)? else {
        return Ok(None);
    };
    let child = volume.handle_of_entry(ino.0, name)?;
    namespace::keep_name(engine, &shared, &inode, name, &child);
    Ok(Some(child))
}
