//! What the checker remembers of every inode: whether it is in use, its type, and how many of its links have not been
//! found yet.
//!
//! It takes five bytes per inode, in chunks of 64, as in the inode trees. This module does not know how inodes are
//! read.

use std::collections::BTreeMap;
use xfs_format::geometry::Geometry;
use xfs_format::inode::InodeType;
use xfs_format::records::{INODES_PER_CHUNK, InodeChunk};
use xfs_format::types::{AgInode, AgNumber, InodeNumber};

const PER_CHUNK: usize = INODES_PER_CHUNK as usize;
/// The bits of a type as directory entries have it.
const KIND: u8 = 0x0f;
/// It is on an unlinked list.
const LISTED: u8 = 0x10;
/// It cannot be judged: its core or a fork is damaged.
const DAMAGED: u8 = 0x20;
/// It has no links.
const UNLINKED: u8 = 0x40;

/// A chunk, and what was found of its inodes.
pub(super) struct Chunk {
    pub(super) start: AgInode,
    pub(super) holes: u64,
    pub(super) free: u64,
    states: [u8; PER_CHUNK],
    /// The core's link count minus the names that were found. It wraps.
    links: [u32; PER_CHUNK],
}

#[derive(Default)]
struct Group {
    chunks: Vec<Chunk>,
    lost: bool,
}

/// All inodes of the volume.
pub(super) struct InodeTable {
    geometry: Geometry,
    /// Groups that have inodes or have lost some.
    groups: BTreeMap<AgNumber, Group>,
    /// Heads of the unlinked lists: group, bucket, inode.
    pub(super) unlinked: Vec<(AgNumber, u32, u32)>,
}

/// Whether an inode is in use, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It is free or does not exist.
    No,
    /// Its group's tree could not be read.
    Unknown,
    /// It is in use.
    Yes,
}

/// A type's byte in directory entries.
pub(super) const fn entry_type(kind: InodeType) -> u8 {
    match kind {
        InodeType::Regular => 1,
        InodeType::Directory => 2,
        InodeType::CharDevice => 3,
        InodeType::BlockDevice => 4,
        InodeType::Fifo => 5,
        InodeType::Socket => 6,
        InodeType::Symlink => 7,
    }
}

/// The type byte of directories.
pub(super) const DIRECTORY: u8 = entry_type(InodeType::Directory);

impl InodeTable {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self { geometry: geometry.clone(), groups: BTreeMap::new(), unlinked: Vec::new() }
    }

    fn group(&mut self, ag: AgNumber) -> &mut Group {
        self.groups.entry(ag).or_default()
    }

    /// Adds a chunk after those that the group has.
    pub(super) fn add(&mut self, ag: AgNumber, chunk: &InodeChunk) {
        self.group(ag).chunks.push(Chunk {
            start: chunk.start,
            holes: chunk.holes,
            free: chunk.free,
            states: [0; PER_CHUNK],
            links: [0; PER_CHUNK],
        });
    }

    /// Notes that not all chunks of a group are known.
    pub(super) fn lose_group(&mut self, ag: AgNumber) {
        self.group(ag).lost = true;
    }

    /// A chunk of a group, by index.
    pub(super) fn chunk(&self, ag: AgNumber, index: usize) -> Option<&Chunk> {
        self.groups.get(&ag)?.chunks.get(index)
    }

    /// The position of an inode in the table, if it is in use.
    fn find(&self, ino: InodeNumber) -> Option<(AgNumber, usize, usize)> {
        let (ag, inode) = self.geometry.split_inode(ino)?;
        let chunks = &self.groups.get(&ag)?.chunks;
        let behind = chunks.partition_point(|chunk| chunk.start <= inode);
        let at = behind.checked_sub(1)?;
        let chunk = chunks.get(at)?;
        let index = inode.0 - chunk.start.0;
        let used = index < INODES_PER_CHUNK && (chunk.free | chunk.holes) >> index & 1 == 0;
        used.then_some((ag, at, index as usize))
    }

    /// The chunk of an inode in use, and its index in the chunk.
    fn used(&self, ino: InodeNumber) -> Option<(&Chunk, usize)> {
        let (ag, chunk, index) = self.find(ino)?;
        Some((self.chunk(ag, chunk)?, index))
    }

    fn slot(&mut self, ino: InodeNumber) -> Option<(&mut u8, &mut u32)> {
        let (ag, chunk, index) = self.find(ino)?;
        let chunk = self.groups.get_mut(&ag)?.chunks.get_mut(chunk)?;
        Some((&mut chunk.states[index], &mut chunk.links[index]))
    }

    fn state(&self, ino: InodeNumber) -> u8 {
        self.used(ino).map_or(0, |(chunk, index)| chunk.states[index])
    }

    /// Whether an inode is in use.
    pub(super) fn in_use(&self, ino: InodeNumber) -> Use {
        let Some((ag, _)) = self.geometry.split_inode(ino) else { return Use::No };
        match self.find(ino) {
            Some(_) => Use::Yes,
            None if self.groups.get(&ag).is_some_and(|group| group.lost) => Use::Unknown,
            None => Use::No,
        }
    }

    /// Notes the core of an inode in use.
    pub(super) fn note(&mut self, ino: InodeNumber, kind: InodeType, links: u32) {
        if let Some((state, left)) = self.slot(ino) {
            *state = *state & !KIND | entry_type(kind) | if links == 0 { UNLINKED } else { 0 };
            *left = left.wrapping_add(links);
        }
    }

    /// Notes that an inode cannot be judged.
    pub(super) fn note_damage(&mut self, ino: InodeNumber) {
        if let Some((state, _)) = self.slot(ino) {
            *state |= DAMAGED;
        }
    }

    /// Notes that an inode is on an unlinked list. Returns `false` if it is on one already.
    pub(super) fn note_listed(&mut self, ino: InodeNumber) -> bool {
        self.slot(ino).is_some_and(|(state, _)| {
            let first = *state & LISTED == 0;
            *state |= LISTED;
            first
        })
    }

    /// Counts a name of an inode.
    pub(super) fn name(&mut self, ino: InodeNumber) {
        if let Some((_, left)) = self.slot(ino) {
            *left = left.wrapping_sub(1);
        }
    }

    /// The type byte of an inode in use; 0 if unknown.
    pub(super) fn kind(&self, ino: InodeNumber) -> u8 {
        self.state(ino) & KIND
    }

    /// Whether an inode can be judged.
    pub(super) fn is_sound(&self, ino: InodeNumber) -> bool {
        self.state(ino) & DAMAGED == 0
    }

    /// Whether an inode is on an unlinked list.
    pub(super) fn is_listed(&self, ino: InodeNumber) -> bool {
        self.state(ino) & LISTED != 0
    }

    /// Whether an inode's link count is 0.
    pub(super) fn is_unlinked(&self, ino: InodeNumber) -> bool {
        self.state(ino) & UNLINKED != 0
    }

    /// Links of the core for which no name was found. It wraps.
    pub(super) fn links_left(&self, ino: InodeNumber) -> u32 {
        self.used(ino).map_or(0, |(chunk, index)| chunk.links[index])
    }

    /// The inodes in use of one chunk of a group. `None` if the group has no more chunks.
    pub(super) fn used_in(
        &self,
        ag: AgNumber,
        index: usize,
    ) -> Option<impl Iterator<Item = InodeNumber> + use<>> {
        let chunk = self.chunk(ag, index)?;
        let known = InodeChunk { start: chunk.start, holes: chunk.holes, free: chunk.free };
        let shift = self.geometry.ag_block_log + self.geometry.inodes_per_block_log;
        Some(
            known
                .inodes_in_use()
                .map(move |inode| InodeNumber(u64::from(ag.0) << shift | u64::from(inode.0))),
        )
    }
}
