//! The volume: ties device, buffers, inodes and maps together.

use crate::error::Result;
use crate::fork::Fork;
use blockdev::BlockDevice;
use std::sync::Arc;
use xfs_format::geometry::Geometry;
use xfs_format::types::InodeNumber;

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Read a volume whose log is dirty as it is, without replay. Read-only volumes alone.
    pub norecovery: bool,
    /// Whether files may be overwritten.
    pub writable: bool,
    /// Bytes that the buffer cache and the inode cache may hold together.
    pub cache_size: u64,
}

/// Which fork of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkKind {
    /// File content, directory entries, symlink targets.
    Data,
    /// Extended attributes.
    Attr,
}

/// An open volume. Shared by all threads; every call may be made from any of them.
#[derive(Debug)]
pub struct Volume {
    geometry: Geometry,
}

/// An inode in memory, immutable while nothing changes it.
#[derive(Debug)]
pub struct Inode {
    ino: InodeNumber,
}

impl Inode {
    /// Its number.
    pub fn ino(&self) -> InodeNumber {
        self.ino
    }
}

impl Volume {
    /// Opens the volume on `device`: reads the superblock and nothing else that grows with the volume.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<Self>> {
        let _ = (device, options);
        unimplemented!()
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Reads an inode, or finds it in the cache. An inode that is free is an error.
    pub fn inode(self: &Arc<Self>, ino: InodeNumber) -> Result<Arc<Inode>> {
        let _ = ino;
        unimplemented!()
    }

    /// One fork of an inode, for the directory, attribute and symlink walkers. `None`: there is no attribute fork.
    pub fn fork<'a>(self: &'a Arc<Self>, inode: &'a Inode, kind: ForkKind) -> Option<Box<dyn Fork + 'a>> {
        let _ = (inode, kind);
        unimplemented!()
    }
}
