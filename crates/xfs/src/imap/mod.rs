//! Where inodes are: the chunks of 64 that the inode trees list, and what is remembered of a volume's inodes.
//!
//! Invariant: no inode number is trusted before its chunk was found, with the inode neither free nor in a sparse hole.
//!
//! This module knows only buffers and group headers. Making and freeing inodes is in [`ialloc`](crate::ialloc), in
//! transactions.

mod geometry;
mod inodes;
mod readahead;

pub use geometry::InodeGeometry;
pub use inodes::{Inodes, UnlinkedHints};
pub(crate) use readahead::Streams;

use crate::btree::Cursor;
use crate::buf::{Buf, BufCache, BufLock, BufMap, MetaBuf};
use crate::error::{Error, Result};
use crate::group::Groups;
use std::ops::ControlFlow;
use std::sync::Arc;
use xfs_format::ag::{AGI, AgHeader};
use xfs_format::btree::Inobt;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::{INODES_PER_CHUNK, InodeChunk};
use xfs_format::types::{AgBlock, AgInode, AgNumber, DiskAddr, InodeNumber};
use xfs_format::verify::{Verifier, VerifyContext};

/// Maximum sector size of a device. Clusters are multiples of it.
const MAX_DEVICE_SECTOR: u64 = 4096;

/// Chunks that are read while the group is locked.
const CHUNKS_AT_ONCE: usize = 64;

/// Inodes are checked one by one, because a cluster may reach into a sparse hole, where there are none.
pub(crate) static CLUSTER: Verifier = Verifier { name: "inode cluster", check: check_cluster };

fn check_cluster(_: &[u8], _: &VerifyContext) -> Result<(), FormatError> {
    Ok(())
}

/// What looking up inodes needs.
#[derive(Clone, Copy, Debug)]
pub struct ImapSource<'a> {
    /// The buffers.
    pub bufs: &'a BufCache,
    /// The volume's shape.
    pub geometry: &'a Geometry,
    /// The groups' headers.
    pub groups: &'a Groups,
}

/// The bytes of one inode in its cluster.
#[derive(Debug)]
pub struct InodeBytes {
    cluster: Buf,
    offset: usize,
    len: usize,
}

impl InodeBytes {
    /// The inode's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.cluster.get(self.offset..).and_then(|rest| rest.get(..self.len)).unwrap_or_default()
    }

    /// The disk address of its cluster.
    pub fn daddr(&self) -> DiskAddr {
        self.cluster.daddr()
    }
}

/// A group whose inode trees nobody changes while this lives. It keeps the AGI in memory with its lock: otherwise a
/// thread might read the AGI anew and lock that one.
pub(crate) struct StillGroup {
    _lock: BufLock,
    _agi: Arc<MetaBuf>,
}

impl ImapSource<'_> {
    /// Finds an inode in use and reads its bytes.
    pub fn find(&self, ino: InodeNumber) -> Result<InodeBytes> {
        let (map, offset) = self.imap_in_use(ino)?;
        self.read_site(map, offset).map_err(|error| error.of_inode(ino))
    }

    /// The imap of an inode in use: its cluster, and its offset in the cluster.
    pub(crate) fn imap_in_use(&self, ino: InodeNumber) -> Result<(BufMap, usize)> {
        let (ag, inode) = self.geometry.split_inode(ino).ok_or(Error::NoSuchInode(ino))?;
        let chunk = self.chunk_of(ag, inode)?.filter(|chunk| chunk.in_use(inode));
        let chunk = chunk.ok_or(Error::NoSuchInode(ino))?;
        self.place(ag, chunk.start, inode).map_err(|error| error.of_inode(ino))
    }

    /// The imap of an allocated inode: its cluster, and its offset in the cluster.
    pub(crate) fn imap(&self, ino: InodeNumber) -> Result<(BufMap, usize)> {
        let (ag, inode) = self.geometry.split_inode(ino).ok_or(Error::NoSuchInode(ino))?;
        self.place(ag, inode, inode)
    }

    /// Keeps transactions from changing a group's inode trees, by locking its AGI. The caller must not have any group
    /// header or other buffer locked.
    pub(crate) fn keep_still(&self, ag: AgNumber) -> Result<StillGroup> {
        let daddr = AgHeader::Agi.daddr(self.geometry, ag);
        let map = BufMap { daddr, len: self.geometry.sector_size.into() };
        loop {
            let agi = self.bufs.read_handle(&[map], &AGI)?;
            let lock = agi.lock();
            if agi.is_cached() {
                return Ok(StillGroup { _lock: lock, _agi: agi });
            }
        }
    }

    /// Calls `each` with the number of every inode in use, in order, until it breaks.
    pub fn for_each(&self, each: &mut dyn FnMut(InodeNumber) -> ControlFlow<()>) -> Result<()> {
        for ag in (0..self.geometry.ag_count()).map(AgNumber) {
            let mut from = Some(AgInode(0));
            while let Some(first) = from {
                let chunks;
                (chunks, from) = self.chunks_from(ag, first)?;
                for inode in chunks.into_iter().flat_map(InodeChunk::inodes_in_use) {
                    if each(self.geometry.join_inode(ag, inode)).is_break() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Some chunks of a group from an inode on, as of one moment, and where to continue.
    fn chunks_from(&self, ag: AgNumber, first: AgInode) -> Result<(Vec<InodeChunk>, Option<AgInode>)> {
        let _still = self.keep_still(ag)?;
        let root = self.groups.inodes(self.bufs, self.geometry, ag)?.inobt;
        let mut cursor = Cursor::<Inobt>::seek(self.bufs, self.geometry, ag, root, Some(first.0))?;
        let (mut chunks, mut free_from) = (Vec::new(), 0);
        while let Some(record) = cursor.next_record()? {
            let wrap = |problem| Error::Corrupt { daddr: None, inode: None, problem };
            let chunk = record.chunk(self.geometry.sparse_inodes).map_err(wrap)?;
            if u64::from(chunk.start.0) < free_from {
                let problem = FormatError::value("inode chunk record", "overlap", chunk.start.0.into());
                return Err(wrap(problem));
            }
            free_from = u64::from(chunk.start.0) + u64::from(INODES_PER_CHUNK);
            // The first one found may lie before the requested inode.
            if chunk.start >= first {
                chunks.push(chunk);
            }
            if chunks.len() == CHUNKS_AT_ONCE {
                return Ok((chunks, u32::try_from(free_from).ok().map(AgInode)));
            }
        }
        Ok((chunks, None))
    }

    /// The chunk that `inode` would belong to: the last one that begins at or before it.
    fn chunk_of(&self, ag: AgNumber, inode: AgInode) -> Result<Option<InodeChunk>> {
        let root = self.groups.inodes(self.bufs, self.geometry, ag)?.inobt;
        let mut cursor = Cursor::<Inobt>::seek(self.bufs, self.geometry, ag, root, Some(inode.0))?;
        let Some(record) = cursor.next_record()? else { return Ok(None) };
        let daddr = self.geometry.daddr_of(ag, root.block);
        record
            .chunk(self.geometry.sparse_inodes)
            .map(Some)
            .map_err(|problem| Error::corrupt_block(daddr, None, problem))
    }

    /// Reads the cluster at `map`, for the inode at this offset.
    pub(crate) fn read_site(&self, map: BufMap, offset: usize) -> Result<InodeBytes> {
        let cluster = self.bufs.read(map.daddr, map.len, &CLUSTER)?;
        Ok(InodeBytes { cluster, offset, len: self.geometry.inode_size.into() })
    }

    /// The cluster of an inode, and its offset in the cluster. Errors name the `chunk`.
    pub(crate) fn place(&self, ag: AgNumber, chunk: AgInode, inode: AgInode) -> Result<(BufMap, usize)> {
        let per_cluster = self.geometry.inodes_per_cluster();
        let in_cluster = inode.0 % per_cluster;
        let first = u64::from(inode.0 - in_cluster);
        let inode_size = u64::from(self.geometry.inode_size);
        // Inode numbers of a group are dense: they count inode-sized units from the group's start.
        let offset = first * inode_size;
        let len = u64::from(per_cluster) * inode_size;
        let group_bytes = u64::from(self.geometry.ag_blocks_of(ag)) << self.geometry.block_log;
        let sector = u64::from(self.geometry.sector_size);
        let start = DiskAddr(self.geometry.daddr_of(ag, AgBlock(0)).0 + (offset >> 9));
        if offset + len > group_bytes || offset % sector.min(MAX_DEVICE_SECTOR) != 0 {
            let problem = FormatError::value("inode chunk record", "first inode", chunk.0.into());
            return Err(Error::corrupt_block(start, None, problem));
        }
        Ok((BufMap { daddr: start, len }, in_cluster as usize * usize::from(self.geometry.inode_size)))
    }
}
