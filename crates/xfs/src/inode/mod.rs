//! Inodes in memory.
//!
//! An [`Inode`] is a checked copy of a core with the bytes of its forks. It is one version, which others may read as
//! long as they like. The extent lists of its forks are loaded at their first use and stay. An [`InodeEntry`] holds the
//! committed version; a transaction changes a copy and publishes it.
//!
//! Invariant: a fork's bytes are those of the inode on disk (up to what is used), its format and count say how to read
//! them, and its extent list, if loaded, has the same content.

mod claim_reserves;
mod cow_state;
mod delalloc;
mod entry;
mod handle;
mod in_memory;
mod lazy_time;
mod protection;
mod recent;
mod runs;

pub(crate) use cow_state::{BlockSet, CowState, CutExtents};
pub(crate) use entry::Imap;
pub use entry::{IlockExclusive, IlockShared, InodeEntry};
pub use handle::{InodeHandle, Life};
pub use in_memory::InMemory;
pub(crate) use lazy_time::{NotedTime, after_overwrite};
pub use protection::Protection;
pub(crate) use recent::RecentInodes;

pub use crate::ifork::ForkKind;
pub(crate) use crate::ifork::ForkState;
pub use crate::published::Snapshot;

use crate::dcache::FileId;
use crate::error::{Error, Result};
use crate::imap::InodeBytes;
use crate::log::op_bytes;
use std::borrow::Cow;
use std::sync::Arc;
use xfs_format::bmbt::BmbtRoot;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{ForkFormat, ForkInfo, InodeCore, InodeFlags2, InodeType};
use xfs_format::log::InodeFields;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

/// A version of an inode.
#[derive(Clone, Debug)]
pub struct Inode {
    ino: InodeNumber,
    core: InodeCore,
    data: ForkState,
    attr: Option<ForkState>,
    /// It is free. Its content is what the next file with this number starts from.
    free: bool,
    /// Counts changes of the data fork's map.
    map_seq: u64,
    /// Which of the files with this number it is.
    life: Life,
    /// The last note of an overwrite that is in its times; see [`LazyTime`](lazy_time::LazyTime).
    known_note: u64,
    /// A file that was made without a name and has had none so far (O_TMPFILE).
    nameless: bool,
}

impl Inode {
    /// Parses and checks the bytes of an inode that should be in use.
    pub(crate) fn parse(ino: InodeNumber, found: &InodeBytes, geometry: &Geometry) -> Result<Self> {
        let wrap = |problem| Error::corrupt_block(found.daddr(), Some(ino), problem);
        let bytes = found.bytes();
        let core = InodeCore::parse(bytes, ino, geometry)
            .map_err(wrap)?
            .ok_or_else(|| wrap(FormatError::new("inode", "mode: free, and in use for the inode tree")))?;
        let data = ForkState::new(&core.data, bytes, Some(core.size));
        let attr = core.attr.as_ref().map(|info| ForkState::new(info, bytes, None));
        Ok(Self {
            ino,
            core,
            data,
            attr,
            free: false,
            map_seq: 0,
            life: Life::FIRST,
            known_note: 0,
            nameless: false,
        })
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

    /// The project for quota.
    pub fn project_id(&self) -> u32 {
        self.core.projid
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.core.size
    }

    /// Blocks that it takes, including those of its maps and attributes.
    pub fn blocks(&self) -> u64 {
        self.core.nblocks
    }

    /// The generation. It changes whenever the number is given to another file.
    pub fn generation(&self) -> u32 {
        self.core.generation
    }

    /// Number and generation, which identify the file.
    pub fn id(&self) -> FileId {
        FileId { ino: self.ino, generation: self.core.generation }
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

    /// The number of extents that a fork's count says.
    pub fn extent_count(&self, kind: ForkKind) -> u64 {
        self.fork_state(kind).map_or(0, |fork| fork.nextents)
    }

    pub(crate) fn fork_state(&self, kind: ForkKind) -> Option<&ForkState> {
        match kind {
            ForkKind::Data => Some(&self.data),
            ForkKind::Attr => self.attr.as_ref(),
        }
    }

    /// Which of the files with this number it is.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The last note of an overwrite that it knows.
    fn known_note(&self) -> u64 {
        self.known_note
    }

    /// Its times know this note.
    pub(crate) fn knows_note(&mut self, noted: NotedTime) {
        self.known_note = noted.as_known();
    }

    /// Whether it was made without a name and has had none so far. Only then may it still get one.
    pub(crate) fn is_nameless(&self) -> bool {
        self.nameless
    }

    /// Sets whether it is such a file.
    pub(crate) fn set_nameless(&mut self, nameless: bool) {
        self.nameless = nameless;
    }

    /// Whether it is free.
    pub fn is_free(&self) -> bool {
        self.free
    }

    /// The version number of the data fork's map.
    pub(crate) fn map_seq(&self) -> u64 {
        self.map_seq
    }

    /// A new file's inode, or a freed one: no forks but an empty data fork.
    pub(crate) fn fresh(ino: InodeNumber, core: InodeCore, free: bool) -> Self {
        let data = ForkState::with(core.data.format, 0, Box::default(), None);
        let (life, nameless) = (Life::FIRST, false);
        let mut inode = Self { ino, core, data, attr: None, free, map_seq: 0, life, known_note: 0, nameless };
        inode.core.attr = None;
        inode.core.data.nextents = 0;
        inode
    }

    /// The next content of this number: free, which ends the life of its file, or a new file.
    pub(crate) fn succeeded_by(&self, core: InodeCore, free: bool) -> Self {
        let life = if free { self.life.next() } else { self.life };
        Self { life, ..Self::fresh(self.ino, core, free) }
    }

    /// The core, for changing everything except the forks' formats and counts.
    pub(crate) fn core_mut(&mut self) -> &mut InodeCore {
        &mut self.core
    }

    /// Replaces a fork's content. It must fit into the fork's space.
    pub(crate) fn set_fork(&mut self, kind: ForkKind, fork: ForkState) {
        let info = match kind {
            ForkKind::Data => Some(&mut self.core.data),
            ForkKind::Attr => self.core.attr.as_mut(),
        };
        if let Some(info) = info {
            debug_assert!(fork.bytes.len() <= info.range.len(), "a fork outgrew its room");
            info.format = fork.format;
            info.nextents = fork.nextents;
        }
        match kind {
            ForkKind::Data => {
                self.map_seq += 1;
                self.data = fork;
            }
            ForkKind::Attr => self.attr = Some(fork),
        }
    }

    /// Moves forkoff to this byte of the inode. An empty attribute fork is made if there was none. `None` removes the
    /// attribute fork. The content of both forks must fit.
    pub(crate) fn set_forkoff(&mut self, at: Option<usize>, inode_size: usize) {
        let Some(at) = at else {
            self.core.attr = None;
            self.attr = None;
            self.core.data.range.end = inode_size;
            return;
        };
        self.core.data.range.end = at;
        match &mut self.core.attr {
            Some(info) => info.range.start = at,
            None => {
                self.core.attr =
                    Some(ForkInfo { format: ForkFormat::Extents, nextents: 0, range: at..inode_size });
                self.attr =
                    Some(ForkState::with(ForkFormat::Extents, 0, Box::default(), Some(Arc::default())));
            }
        }
    }

    /// The bytes of both forks, as the inode on disk holds them.
    pub(crate) fn fork_bytes(&self) -> (&[u8], &[u8]) {
        (&self.data.bytes, self.attr.as_ref().map_or(&[], |attr| &attr.bytes))
    }

    /// The device number in the data fork; 0 if there is none.
    pub(crate) fn raw_device(&self) -> u32 {
        match (self.data.format, self.data.bytes.first_chunk::<4>()) {
            (ForkFormat::Dev, Some(raw)) => u32::from_be_bytes(*raw),
            _ => 0,
        }
    }

    /// Bytes of [`log_regions`](Self::log_regions), each with its operation header.
    pub(crate) fn log_region_bytes(&self, fields: InodeFields) -> usize {
        let region = |fork: &ForkState| match fork.format {
            ForkFormat::Dev => 0,
            _ if fork.bytes.is_empty() => 0,
            ForkFormat::Local | ForkFormat::Extents => op_bytes(fork.bytes.len()),
            ForkFormat::Btree => BmbtRoot::view(&fork.bytes).map_or(0, |root| op_bytes(root.log_len())),
        };
        let data = if fields.intersects(InodeFields::DFORK) { region(&self.data) } else { 0 };
        let attr = self.attr.as_ref().filter(|_| fields.intersects(InodeFields::AFORK));
        data + attr.map_or(0, region)
    }

    /// The regions that are logged of the data fork and the attribute fork.
    pub(crate) fn log_regions<'a>(
        &'a self,
        fields: InodeFields,
        geometry: &Geometry,
    ) -> [Option<Cow<'a, [u8]>>; 2] {
        let region = |fork: &'a ForkState| -> Option<Cow<'a, [u8]>> {
            match fork.format {
                ForkFormat::Dev => None,
                _ if fork.bytes.is_empty() => None,
                ForkFormat::Local | ForkFormat::Extents => Some(Cow::Borrowed(&*fork.bytes)),
                ForkFormat::Btree => {
                    BmbtRoot::view(&fork.bytes).ok().map(|root| Cow::Owned(root.to_log(geometry.meta_uuid)))
                }
            }
        };
        let data = fields.intersects(InodeFields::DFORK).then(|| region(&self.data)).flatten();
        let attr = self.attr.as_ref().filter(|_| fields.intersects(InodeFields::AFORK)).and_then(region);
        [data, attr]
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
