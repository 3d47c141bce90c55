//! uxfs itself, in process, by its public library.

use super::{Called, Target};
use crate::history::acl::Acl;
use crate::history::op::{AclKind, AllocateHow, Moment, NodeKind, RenameHow, Stat, XattrHow};
use anyhow::{Result, bail};
use rustix::io::Errno;
use std::path::Path;

/// A volume that uxfs has open for writing.
#[derive(Debug)]
pub struct EngineTarget(());

/// Every call, until the library can write.
const NOT_YET: Errno = Errno::NOSYS;

impl EngineTarget {
    /// Opens the volume in an image.
    pub fn open(_image: &Path) -> Result<Self> {
        bail!("uxfs cannot change names yet; --target kernel can")
    }

    /// Closes it, which leaves a clean log.
    pub fn close(self) -> Result<()> {
        Ok(())
    }
}

impl EngineTarget {
    /// Lets go of it as a crash would: nothing more is written.
    pub fn abandon(self) {}
}

impl Target for EngineTarget {
    type File = ();
    const STRICT: bool = true;

    fn create(&self, _path: &[u8], _mode: u16) -> Called<()> {
        Err(NOT_YET)
    }
    fn open(&self, _path: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn tmpfile(&self, _dir: &[u8], _mode: u16) -> Called<()> {
        Err(NOT_YET)
    }
    fn link_file(&self, _file: &(), _path: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn mkdir(&self, _path: &[u8], _mode: u16) -> Called<()> {
        Err(NOT_YET)
    }
    fn mknod(&self, _path: &[u8], _kind: NodeKind, _mode: u16) -> Called<()> {
        Err(NOT_YET)
    }
    fn symlink(&self, _path: &[u8], _target: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn link(&self, _from: &[u8], _to: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn unlink(&self, _path: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn rmdir(&self, _path: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn rename(&self, _from: &[u8], _to: &[u8], _how: RenameHow) -> Called<()> {
        Err(NOT_YET)
    }
    fn write(&self, _file: &(), _bytes: &[u8], _offset: u64) -> Called<usize> {
        Err(NOT_YET)
    }
    fn read(&self, _file: &(), _buffer: &mut [u8], _offset: u64) -> Called<usize> {
        Err(NOT_YET)
    }
    fn allocate(&self, _file: &(), _how: AllocateHow, _offset: u64, _len: u64) -> Called<()> {
        Err(NOT_YET)
    }
    fn truncate(&self, _file: &(), _size: u64) -> Called<()> {
        Err(NOT_YET)
    }
    fn seek(&self, _file: &(), _offset: u64, _data: bool) -> Called<Option<u64>> {
        Err(NOT_YET)
    }
    fn set_xattr(&self, _path: &[u8], _name: &[u8], _value: &[u8], _how: XattrHow) -> Called<()> {
        Err(NOT_YET)
    }
    fn remove_xattr(&self, _path: &[u8], _name: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn get_xattr(&self, _path: &[u8], _name: &[u8]) -> Called<Vec<u8>> {
        Err(NOT_YET)
    }
    fn list_xattrs(&self, _path: &[u8]) -> Called<Vec<Vec<u8>>> {
        Err(NOT_YET)
    }
    fn set_acl(&self, _path: &[u8], _kind: AclKind, _acl: Option<&Acl>) -> Called<()> {
        Err(NOT_YET)
    }
    fn chmod(&self, _path: &[u8], _mode: u16) -> Called<()> {
        Err(NOT_YET)
    }
    fn chown(&self, _path: &[u8], _uid: u32, _gid: u32) -> Called<()> {
        Err(NOT_YET)
    }
    fn set_times(&self, _path: &[u8], _atime: Moment, _mtime: Moment) -> Called<()> {
        Err(NOT_YET)
    }
    fn read_dir(&self, _path: &[u8]) -> Called<Vec<(Vec<u8>, char)>> {
        Err(NOT_YET)
    }
    fn read_link(&self, _path: &[u8]) -> Called<Vec<u8>> {
        Err(NOT_YET)
    }
    fn stat(&self, _path: &[u8]) -> Called<Stat> {
        Err(NOT_YET)
    }
    fn stat_file(&self, _file: &()) -> Called<Stat> {
        Err(NOT_YET)
    }
    fn fsync(&self, _file: &()) -> Called<()> {
        Err(NOT_YET)
    }
    fn fsync_dir(&self, _path: &[u8]) -> Called<()> {
        Err(NOT_YET)
    }
    fn sync(&self) -> Called<()> {
        Err(NOT_YET)
    }
}
