//! The volume: ties device, buffers, inodes and maps together.
//!
//! Opening reads the superblock and a few blocks of the log, however large the volume is; everything else is read
//! when it is first needed.

use crate::bmap::{self, ExtentList, FileMap, InodeFork, SharedRun};
use crate::buf::BufCache;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::fork::Fork;
use crate::group::{Groups, InodeRoots, SpaceRoots};
use crate::ialloc::InodeSource;
use crate::recovery::clean;
use blockdev::{AlignedBuf, BlockDevice, DeviceError};
use fileio::lockstat::LockClass;
use std::ops::ControlFlow;
use std::sync::Arc;
use xfs_format::geometry::Geometry;
use xfs_format::superblock::{Superblock, Unhandled};
use xfs_format::types::{AgNumber, DiskAddr, FsBlock, InodeNumber};

pub use crate::info::{VolumeInfo, VolumeStat};
pub use crate::inode::{ForkKind, Inode};

const INODE_SHARDS: usize = 32;

static INODE_SHARD_LOCK: LockClass = LockClass::new("inode cache");

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

impl Default for OpenOptions {
    /// For reading, with 64 MiB of caches.
    fn default() -> Self {
        Self { norecovery: false, writable: false, cache_size: 64 << 20 }
    }
}

/// An open volume. Shared by all threads; every call may be made from any of them.
#[derive(Debug)]
pub struct Volume {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    geometry: Geometry,
    bufs: BufCache,
    inodes: Cache<InodeNumber, Arc<Inode>>,
    groups: Groups,
    writable: bool,
    log_clean: bool,
}

impl Volume {
    /// Opens the volume on `device`: reads the superblock and nothing else that grows with the volume.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<Self>> {
        let superblock = read_superblock(&*device)?;
        refuse_unhandled(&superblock)?;
        let geometry = Geometry::from_superblock(&superblock);
        check_device(&*device, &geometry)?;
        if options.writable {
            check_writable(&*device, &superblock, options)?;
        }
        let log_clean = clean::log_ends(&*device, &superblock).map(|ends| ends.clean);
        let log_clean = match log_clean {
            Ok(clean) => clean,
            // Whoever wants no replay wants to read what is there, whatever the log looks like.
            Err(_) if options.norecovery => false,
            Err(error) => return Err(error),
        };
        if !log_clean && !options.norecovery {
            return Err(Error::DirtyLog);
        }
        let half = options.cache_size / 2;
        Ok(Arc::new(Self {
            bufs: BufCache::new(Arc::clone(&device), &geometry, half),
            inodes: Cache::new(half, INODE_SHARDS, &INODE_SHARD_LOCK),
            groups: Groups::new(geometry.ag_count),
            writable: options.writable,
            log_clean,
            device,
            superblock,
            geometry,
        }))
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The superblock as it was when the volume was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The device that the volume lies on.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether files may be overwritten.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether nothing in the log waited to be replayed when the volume was opened.
    pub fn log_is_clean(&self) -> bool {
        self.log_clean
    }

    /// Reads an inode, or finds it in the cache. An inode that is free is an error.
    pub fn inode(self: &Arc<Self>, ino: InodeNumber) -> Result<Arc<Inode>> {
        if let Some(inode) = self.inodes.get(&ino) {
            return Ok(inode);
        }
        let found = self.inode_source().find(ino)?;
        let inode = Arc::new(Inode::parse(ino, &found, &self.geometry)?);
        let weight = inode.weight();
        Ok(self.inodes.get_or_insert(ino, inode, weight))
    }

    /// Calls `each` with the number of every inode in use, in order, until it breaks. Inodes that are unlinked and
    /// not yet freed are among them.
    pub fn for_each_inode(&self, each: &mut dyn FnMut(InodeNumber) -> ControlFlow<()>) -> Result<()> {
        self.inode_source().for_each(each)
    }

    /// One fork of an inode, for the directory, attribute and symlink walkers. `None`: there is no attribute fork.
    pub fn fork<'a>(self: &'a Arc<Self>, inode: &'a Inode, kind: ForkKind) -> Option<Box<dyn Fork + 'a>> {
        Some(Box::new(InodeFork::new(self, inode, kind)?))
    }

    /// The map of a regular file, for the data path.
    pub fn file_map(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<FileMap> {
        FileMap::new(Arc::clone(self), Arc::clone(inode))
    }

    /// The extents of a fork, read at the first call. A fork that the inode does not have has none.
    pub fn extents(&self, inode: &Inode, kind: ForkKind) -> Result<Arc<ExtentList>> {
        let Some(fork) = inode.fork_state(kind) else { return Ok(Arc::default()) };
        if let Some(list) = fork.loaded() {
            return Ok(Arc::clone(list));
        }
        let list = bmap::load(&self.bufs, &self.geometry, inode.ino(), fork)?;
        let list = Arc::clone(fork.keep(list));
        self.inodes.reweigh(inode.ino(), inode.weight());
        Ok(list)
    }

    /// The inode trees of a group.
    pub fn group_inodes(&self, ag: AgNumber) -> Result<InodeRoots> {
        self.groups.inodes(&self.bufs, &self.geometry, ag)
    }

    /// The trees of free and used space of a group.
    pub fn group_space(&self, ag: AgNumber) -> Result<SpaceRoots> {
        self.groups.space(&self.bufs, &self.geometry, ag)
    }

    /// Bytes that the caches hold now.
    pub fn cache_weight(&self) -> u64 {
        self.bufs.weight() + self.inodes.weight()
    }

    /// The metadata buffers.
    pub fn bufs(&self) -> &BufCache {
        &self.bufs
    }

    pub(crate) fn shared_run(&self, start: FsBlock, blocks: u64) -> Result<SharedRun> {
        bmap::shared_run(&self.bufs, &self.geometry, &self.groups, start, blocks)
    }

    fn inode_source(&self) -> InodeSource<'_> {
        InodeSource { bufs: &self.bufs, geometry: &self.geometry, groups: &self.groups }
    }
}

/// Reads and checks the superblock of the first group.
fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let wrap = |problem| Error::corrupt_block(DiskAddr(0), None, problem);
    let read = |len: u64| -> Result<AlignedBuf> {
        let len = len.next_multiple_of(u64::from(device.sector_size()).max(512));
        let mut buf = AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0));
        device.read(0, &mut buf)?;
        Ok(buf)
    };
    let least = u64::from(device.sector_size()).max(512);
    if device.size() < least {
        return Err(Error::NotXfs);
    }
    let start = read(least)?;
    if !Superblock::has_magic(&start) {
        return Err(Error::NotXfs);
    }
    let sector = u64::from(Superblock::claimed_sector_size(&start).map_err(wrap)?);
    if device.size() < sector {
        return Err(Error::Truncated { expected: sector, actual: device.size() });
    }
    let whole = if sector > least { read(sector)? } else { start };
    Superblock::parse(&whole).map_err(wrap)
}

/// Turns what this code cannot read into an error of its own.
fn refuse_unhandled(superblock: &Superblock) -> Result<()> {
    Err(match superblock.unhandled() {
        None => return Ok(()),
        Some(Unhandled::Feature(name)) => Error::UnsupportedFeature(name),
        Some(Unhandled::ExternalLog) => Error::ExternalLog,
        Some(Unhandled::Realtime) => Error::Realtime,
        Some(Unhandled::NeedsRepair) => Error::NeedsRepair,
    })
}

/// The device must hold the whole volume, and read units as small as the volume's sectors.
fn check_device(device: &dyn BlockDevice, geometry: &Geometry) -> Result<()> {
    if device.sector_size() > geometry.sector_size {
        return Err(Error::SectorSize { volume: geometry.sector_size, device: device.sector_size() });
    }
    if device.size() < geometry.bytes() {
        return Err(Error::Truncated { expected: geometry.bytes(), actual: device.size() });
    }
    Ok(())
}

/// What must hold before anything on the volume may be written.
fn check_writable(device: &dyn BlockDevice, superblock: &Superblock, options: &OpenOptions) -> Result<()> {
    if options.norecovery {
        return Err(Error::ReadOnly("a volume that is opened without recovery cannot be written"));
    }
    let unwritable = superblock.unwritable();
    if !unwritable.is_empty() {
        return Err(Error::Unwritable(unwritable.join(", ")));
    }
    if device.is_read_only() {
        return Err(DeviceError::ReadOnly.into());
    }
    Ok(())
}
