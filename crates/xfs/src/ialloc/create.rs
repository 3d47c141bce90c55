//! New inodes on disk: filling the blocks of a chunk with free inodes.
//!
//! The log only says that the chunk was made; recovery fills the blocks in the same way. The blocks are written before
//! the log forgets this.

use crate::buf::{BufMap, MetaBuf, new_zeroes};
use crate::error::Result;
use crate::imap::CLUSTER;
use crate::log::{AfterCommit, ItemState, LogItem, LogVector, Push, VecSize};
use crate::trans::Trans;
use fileio::testing::point;
use std::sync::Arc;
use xfs_format::ag::NULL_AG_INODE;
use xfs_format::checksum;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{CRC_OFFSET, Dinode, DinodeV3, MAGIC};
use xfs_format::log::InodeCreate;
use xfs_format::types::{AgBlock, AgInode, AgNumber, InodeNumber, Lsn};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The inode create item of a chunk. It stays in the AIL until all clusters of the chunk are written.
#[derive(Debug)]
struct IcreateItem {
    clusters: Vec<Arc<MetaBuf>>,
    state: ItemState,
}

impl LogItem for IcreateItem {
    fn state(&self) -> &ItemState {
        &self.state
    }

    fn pin(&self) {}

    fn unpin(&self) {}

    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Ail
    }

    fn push(self: Arc<Self>) -> Push {
        if let Some(cluster) = self.clusters.iter().find(|cluster| cluster.is_unwritten()) {
            return cluster.write_back();
        }
        point("a chunk is asked what is left of it");
        // A freed cluster counts as written only once the freeing is in the log. This order matters: whoever frees a
        // cluster pins it before it stops being unwritten.
        let is_waiting = |cluster: &Arc<MetaBuf>| cluster.is_stale_and_pinned();
        if self.clusters.iter().any(is_waiting) { Push::Pinned } else { Push::Gone }
    }
}

/// The clusters that cover `blocks` blocks at `block`.
pub(crate) fn clusters(geometry: &Geometry, ag: AgNumber, block: AgBlock, blocks: u32) -> Vec<BufMap> {
    let len = u64::from(geometry.inodes_per_cluster()) * u64::from(geometry.inode_size);
    let step = u32::try_from(len >> geometry.block_log).unwrap_or(1).max(1);
    (block.0..block.0.saturating_add(blocks))
        .step_by(step as usize)
        .map(|first| BufMap { daddr: geometry.daddr_of(ag, AgBlock(first)), len })
        .collect()
}

/// Fills `blocks` blocks that were just allocated with free inodes of one generation.
pub fn fill(trans: &mut Trans<'_>, ag: AgNumber, block: AgBlock, blocks: u32, generation: u32) -> Result<()> {
    let geometry = trans.geometry();
    let mut first = AgInode(block.0 << geometry.inodes_per_block_log);
    let mut made = Vec::new();
    for map in clusters(geometry, ag, block, blocks) {
        let mut bytes = new_zeroes(map.len as usize);
        // Nobody else has them.
        let inodes = Arc::get_mut(&mut bytes).unwrap_or_default();
        for inode in inodes.chunks_exact_mut(geometry.inode_size.into()) {
            encode_free(inode, geometry.join_inode(ag, first), generation, geometry);
            first.0 += 1;
        }
        let index = trans.buf_get_with(&[map], &CLUSTER, bytes)?;
        trans.leave_unlogged(index);
        made.push(trans.handle(index));
    }
    let count = blocks << geometry.inodes_per_block_log;
    let item = InodeCreate::new((ag, block), blocks, count, geometry.inode_size, generation);
    let mut vector = LogVector::begin(None, VecSize::default().region(InodeCreate::BYTES));
    vector.region(item.as_bytes());
    trans.log_item(Arc::new(IcreateItem { clusters: made, state: ItemState::default() }), vector);
    Ok(())
}

/// A free inode that was never used.
pub(crate) fn encode_free(inode: &mut [u8], ino: InodeNumber, generation: u32, geometry: &Geometry) {
    let core = Dinode {
        magic: MAGIC.into(),
        version: 3,
        gen_: generation.into(),
        next_unlinked: NULL_AG_INODE.into(),
        ..Dinode::new_zeroed()
    };
    let more = DinodeV3 { ino: ino.0.into(), uuid: geometry.meta_uuid.0, ..DinodeV3::new_zeroed() };
    inode.fill(0);
    if let Ok((place, rest)) = Dinode::mut_from_prefix(inode) {
        *place = core;
        if let Ok((place, _)) = DinodeV3::mut_from_prefix(rest) {
            *place = more;
        }
    }
    checksum::store(inode, CRC_OFFSET);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;
    use xfs_format::inode::InodeCore;
    use xfs_format::types::DiskAddr;

    #[test]
    fn a_new_inode_is_sound_and_free() {
        let shape = geometry(true, 12, 0);
        let mut inode = vec![9; 512];
        encode_free(&mut inode, InodeNumber(77), 5, &shape);
        assert_eq!(InodeCore::parse(&inode, InodeNumber(77), &shape), Ok(None));
        assert!(InodeCore::parse(&inode, InodeNumber(78), &shape).is_err());
    }

    /// Regression: a cluster was freed between the push thread's two checks, and the inode create item left the AIL
    /// although neither it nor the freeing was in the log.
    #[cfg(not(shuttle))]
    #[test]
    fn a_chunk_stays_until_the_log_says_that_it_is_freed() {
        use crate::buf::{BufChange, ChunkMap};
        let chunk = || {
            let map = BufMap { daddr: DiskAddr(32), len: 16384 };
            let bytes: Arc<[u8]> = Arc::from(vec![0; 16384]);
            let cluster = Arc::new(MetaBuf::new(&[map], Arc::clone(&bytes), &CLUSTER, &Arc::default()));
            let (dirty, verifier) = (&ChunkMap::default(), &CLUSTER);
            let (fresh, unlogged, inodes) = (true, true, false);
            let change = BufChange::Bytes { bytes, dirty, verifier, fresh, unlogged, inodes };
            cluster.publish(change, &mut cluster.lock());
            let clusters = vec![Arc::clone(&cluster)];
            (Arc::new(IcreateItem { clusters, state: ItemState::default() }), cluster)
        };
        let free = |cluster: &MetaBuf| {
            cluster.pin();
            cluster.publish(BufChange::Invalidate, &mut cluster.lock());
        };
        let (made, cluster) = chunk();
        assert!(matches!(Arc::clone(&made).push(), Push::Write(_)));
        free(&cluster);
        assert!(matches!(Arc::clone(&made).push(), Push::Pinned));
        cluster.unpin();
        assert!(matches!(made.push(), Push::Gone));
        let (made, cluster) = chunk();
        fileio::testing::at("a chunk is asked what is left of it", move || free(&cluster));
        assert!(!matches!(made.push(), Push::Gone), "neither it nor the freeing is in the log");
    }

    #[test]
    fn clusters_cover_the_blocks() {
        let mut shape = geometry(true, 10, 0);
        shape.inode_align = 32;
        let pieces = clusters(&shape, AgNumber(0), AgBlock(64), 32);
        let expected = [(128, 16384), (160, 16384)].map(|(at, len)| BufMap { daddr: DiskAddr(at), len });
        assert_eq!(pieces, expected);
        // A block that is larger than a cluster counts as one.
        assert_eq!(clusters(&geometry(true, 16, 0), AgNumber(0), AgBlock(3), 1).len(), 1);
    }
}
