//! Readahead for walks: the inodes of a directory's entries, the inode chunks that follow, directory blocks.
//!
//! Invariant: nothing depends on it. Errors are left to whoever reads the inode or the block.

use super::Mount;
use crate::buf::Wanted;
use crate::ifork::buf_maps;
use crate::imap::CLUSTER;
use crate::inode::{ForkKind, Inode};
use std::ops::Range;
use xfs_format::dir::data_verifier;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{AgInode, AgNumber, FileBlock, InodeNumber};
use xfs_format::verify::Verifier;

/// Bytes of a fork that are read ahead.
const RUN_BYTES: u64 = 128 << 10;

/// Where an inode lies: its number, its cluster, and its offset in the cluster.
type Site = (InodeNumber, Wanted, usize);

impl Mount {
    /// Reads inodes into memory that will be needed soon. Reads several clusters at once, and starts to read the first
    /// block of each directory among the inodes.
    pub fn read_inodes_ahead(&self, mut inos: Vec<InodeNumber>) {
        // Stop here if the walk goes over inodes that are in memory.
        let probes = [inos.first(), inos.get(inos.len() / 2), inos.last()];
        if probes.into_iter().flatten().all(|ino| self.is_inode_in_memory(*ino)) {
            return;
        }
        inos.sort_unstable();
        inos.dedup();
        let counts = self.bufs.writes();
        // Count before the first look at the cache and at the tree.
        let frees = counts.frees();
        inos.retain(|ino| !self.inodes.contains(ino));
        let sites = self.sites_of(&inos);
        let mut clusters: Vec<Wanted> = sites.iter().map(|(_, cluster, _)| *cluster).collect();
        clusters.dedup_by_key(|cluster| cluster.map);
        // A single cluster is read below.
        if clusters.len() > 1 {
            self.bufs.read_ahead(&mut clusters);
        }
        if let Some((ino, ..)) = sites.last() {
            self.read_chunks_ahead(*ino);
        }
        let (mut blocks, mut unread) = (Vec::new(), None);
        for (ino, cluster, offset) in sites {
            if unread == Some(cluster.map) {
                continue;
            }
            let writes = counts.of(&[cluster.map]);
            let Ok(found) = self.imap_source().read_site(cluster.map, offset) else {
                unread = Some(cluster.map);
                continue;
            };
            let Ok(inode) = self.parse_inode(ino, &found) else { continue };
            if inode.is_dir() && self.bufs.reads_ahead() {
                blocks.extend(self.first_dir_block(&inode));
            }
            let _kept = self.enter_if_newest(inode, cluster.map, writes, Some(frees));
        }
        self.bufs.read_ahead(&mut blocks);
    }

    /// Whether an inode is in memory.
    fn is_inode_in_memory(&self, ino: InodeNumber) -> bool {
        self.recent.find(ino).is_some() || self.inodes.contains(&ino)
    }

    /// The sites of those of `inos` that are in use. `inos` is in ascending order.
    fn sites_of(&self, inos: &[InodeNumber]) -> Vec<Site> {
        let split: Vec<(AgNumber, AgInode)> =
            inos.iter().filter_map(|ino| self.geometry.split_inode(*ino)).collect();
        let mut sites = Vec::with_capacity(split.len());
        for group in split.chunk_by(|one, next| one.0 == next.0) {
            let Some(&(ag, _)) = group.first() else { continue };
            let inodes: Vec<AgInode> = group.iter().map(|(_, inode)| *inode).collect();
            let found = self.imap_source().sites(ag, &inodes).unwrap_or_default();
            sites.extend(found.into_iter().map(|(inode, map, offset)| {
                (self.geometry.join_inode(ag, inode), Wanted { map, verifier: &CLUSTER }, offset)
            }));
        }
        sites
    }

    /// The first block of a directory whose extent list is in its inode. `None` if the block is scattered.
    fn first_dir_block(&self, inode: &Inode) -> Option<Wanted> {
        let is_here = inode.fork_format(ForkKind::Data) == Some(ForkFormat::Extents);
        let verifier = data_verifier(self.geometry.ftype);
        let blocks = self.geometry.dir_block_blocks();
        is_here.then(|| self.wanted(inode, ForkKind::Data, FileBlock(0), blocks, verifier)).flatten()
    }

    /// A buffer of a fork. `None` if it is scattered.
    fn wanted(
        &self,
        inode: &Inode,
        kind: ForkKind,
        at: FileBlock,
        blocks: u32,
        verifier: &'static Verifier,
    ) -> Option<Wanted> {
        let extents = self.extents(inode, kind).ok()?;
        let maps = buf_maps(&self.geometry, inode.ino(), &extents, at, blocks, verifier).ok()?;
        let [map] = maps[..] else { return None };
        Some(Wanted { map, verifier })
    }

    /// Starts to read the buffers of `blocks` blocks behind the first one in `range`, if the first is not in the cache.
    /// The caller reads the first itself.
    pub(super) fn read_fork_ahead(
        &self,
        inode: &Inode,
        kind: ForkKind,
        range: Range<FileBlock>,
        blocks: u32,
        verifier: &'static Verifier,
    ) {
        if !self.bufs.reads_ahead() {
            return;
        }
        let first = self.wanted(inode, kind, range.start, blocks, verifier);
        if first.is_none_or(|first| self.bufs.is_in_memory(&first.map)) {
            return;
        }
        let count = RUN_BYTES >> self.geometry.block_log;
        let ats = (range.start.0..range.end.0).step_by(blocks.max(1) as usize).skip(1);
        let behind = ats
            .take_while(|at| at - range.start.0 < count)
            .map_while(|at| self.wanted(inode, kind, FileBlock(at), blocks, verifier));
        self.bufs.read_ahead(&mut behind.collect());
    }

    /// Starts to read the chunks after that of an inode that was not in memory, if chunks are being read in order.
    pub(super) fn read_chunks_ahead(&self, ino: InodeNumber) {
        let Some((ag, inode)) = self.geometry.split_inode(ino).filter(|_| self.bufs.reads_ahead()) else {
            return;
        };
        let chunk = AgInode(inode.0 - inode.0 % xfs_format::records::INODES_PER_CHUNK);
        let Some(ahead) = self.streams.passed(&self.geometry, ag, chunk) else { return };
        let clusters = self.imap_source().clusters(ag, ahead).unwrap_or_default();
        let wanted = clusters.into_iter().map(|map| Wanted { map, verifier: &CLUSTER });
        self.bufs.read_ahead(&mut wanted.collect());
    }
}
