//! Inodes in memory.
//!
//! An [`Inode`] is a copy of a core that passed its checks, with the bytes of its forks. It does not change; the
//! extent lists of its forks are loaded at their first use and stay.

use crate::bmap::ExtentList;
use crate::error::{Error, Result};
use crate::ialloc::InodeBytes;
use std::sync::{Arc, OnceLock};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{ForkFormat, ForkInfo, InodeCore, InodeFlags2, InodeType};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

/// Which fork of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkKind {
    /// File content, directory entries, symlink targets.
    Data,
    /// Extended attributes.
    Attr,
}

/// One fork's bytes within the inode, and its extents once they were asked for.
#[derive(Debug)]
pub(crate) struct ForkState {
    pub(crate) format: ForkFormat,
    pub(crate) nextents: u64,
    pub(crate) bytes: Box<[u8]>,
    extents: OnceLock<Arc<ExtentList>>,
}

impl ForkState {
    fn new(info: &ForkInfo, inode: &[u8], size: Option<u64>) -> Self {
        let bytes = inode.get(info.range.clone()).unwrap_or_default();
        // Only what the fork uses: inodes are kept by the hundred thousand.
        let used = match info.format {
            ForkFormat::Dev => 4,
            ForkFormat::Local => size.and_then(|size| usize::try_from(size).ok()).unwrap_or(bytes.len()),
            ForkFormat::Extents => usize::try_from(info.nextents.saturating_mul(16)).unwrap_or(bytes.len()),
            ForkFormat::Btree => bytes.len(),
        };
        let bytes = bytes.get(..used).unwrap_or(bytes).into();
        Self { format: info.format, nextents: info.nextents, bytes, extents: OnceLock::new() }
    }

    /// The extents, if they are in memory.
    pub(crate) fn loaded(&self) -> Option<&Arc<ExtentList>> {
        self.extents.get()
    }

    /// Keeps `list`, unless another thread was faster; gives the one that stays.
    pub(crate) fn keep(&self, list: ExtentList) -> &Arc<ExtentList> {
        self.extents.get_or_init(|| Arc::new(list))
    }

    fn weight(&self) -> u64 {
        self.bytes.len() as u64 + self.loaded().map_or(0, |list| list.weight())
    }
}

/// An inode in memory, immutable while nothing changes it.
#[derive(Debug)]
pub struct Inode {
    ino: InodeNumber,
    core: InodeCore,
    data: ForkState,
    attr: Option<ForkState>,
}

impl Inode {
    /// Checks the bytes of an inode that should be in use.
    pub(crate) fn parse(ino: InodeNumber, found: &InodeBytes, geometry: &Geometry) -> Result<Self> {
        let wrap = |problem| Error::corrupt_block(found.daddr(), Some(ino), problem);
        let bytes = found.bytes();
        let core = InodeCore::parse(bytes, ino, geometry)
            .map_err(wrap)?
            .ok_or_else(|| wrap(FormatError::new("inode", "mode: free, and in use for the inode tree")))?;
        let data = ForkState::new(&core.data, bytes, Some(core.size));
        let attr = core.attr.as_ref().map(|info| ForkState::new(info, bytes, None));
        Ok(Self { ino, core, data, attr })
    }

    /// Its number.
    pub fn ino(&self) -> InodeNumber {
        self.ino
    }

    /// The core as a whole, in the format's terms.
    pub fn core(&self) -> &InodeCore {
        &self.core
    }

    /// Type and permission bits, as `st_mode` has them.
    pub fn mode(&self) -> u32 {
        self.core.mode.into()
    }

    /// The type of file.
    pub fn kind(&self) -> InodeType {
        self.core.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.core.kind == InodeType::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.core.kind == InodeType::Regular
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.core.kind == InodeType::Symlink
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        self.core.uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.core.gid
    }

    /// How many names it has.
    pub fn nlink(&self) -> u32 {
        self.core.nlink
    }

    /// The project that quota counts it for.
    pub fn project_id(&self) -> u32 {
        self.core.projid
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.core.size
    }

    /// Blocks of the volume that it takes, those of its maps and attributes included.
    pub fn blocks(&self) -> u64 {
        self.core.nblocks
    }

    /// The generation, which changes whenever the number is given to another file.
    pub fn generation(&self) -> u32 {
        self.core.generation
    }

    /// When it was last read.
    pub fn atime(&self) -> Timestamp {
        self.core.atime
    }

    /// When its content last changed.
    pub fn mtime(&self) -> Timestamp {
        self.core.mtime
    }

    /// When it last changed at all.
    pub fn ctime(&self) -> Timestamp {
        self.core.ctime
    }

    /// When it was made, on v5.
    pub fn crtime(&self) -> Option<Timestamp> {
        self.core.crtime
    }

    /// Major and minor number of a device.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.core.device(&self.data.bytes)
    }

    /// Whether its blocks may be shared with other files.
    pub fn is_reflinked(&self) -> bool {
        self.core.flags2.contains(InodeFlags2::REFLINK)
    }

    /// Whether there is an attribute fork. It may be empty.
    pub fn has_attrs(&self) -> bool {
        self.attr.is_some()
    }

    /// How a fork holds its content.
    pub fn fork_format(&self, kind: ForkKind) -> Option<ForkFormat> {
        self.fork_state(kind).map(|fork| fork.format)
    }

    /// How many extents a fork says that it has.
    pub fn extent_count(&self, kind: ForkKind) -> u64 {
        self.fork_state(kind).map_or(0, |fork| fork.nextents)
    }

    pub(crate) fn fork_state(&self, kind: ForkKind) -> Option<&ForkState> {
        match kind {
            ForkKind::Data => Some(&self.data),
            ForkKind::Attr => self.attr.as_ref(),
        }
    }

    /// Bytes of memory, for the cache.
    pub(crate) fn weight(&self) -> u64 {
        const OVERHEAD_BYTES: u64 = 64;
        size_of::<Self>() as u64
            + OVERHEAD_BYTES
            + self.data.weight()
            + self.attr.as_ref().map_or(0, ForkState::weight)
    }
}
