//! Superblock, features, geometry, and the arithmetic of addresses that rests on them.

use crate::seal::put;
use xfs_format::checksum;
use xfs_format::geometry::Geometry;
use xfs_format::superblock::Superblock;
use xfs_format::types::{AgNumber, FsBlock, InodeNumber};

/// First byte: bit 0 magic, bit 1 checksum put right. The rest: the first bytes of a volume.
pub fn run(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if flags & 1 != 0 {
        put(&mut bytes, 0, b"XFSB");
    }
    let sector = Superblock::claimed_sector_size(&bytes).unwrap_or(512) as usize;
    if flags & 2 != 0 {
        bytes.resize(bytes.len().max(sector), 0);
        checksum::store(bytes.get_mut(..sector).unwrap_or_default(), 224);
    }
    let Ok(sb) = Superblock::parse(&bytes) else { return };
    let _ = (sb.uuid(), sb.meta_uuid(), sb.label().len(), sb.root(), sb.lsn());
    let _ = (sb.unwritable(), sb.features());
    if sb.unhandled().is_none() {
        let _ = (sb.log_daddr(), sb.log_bytes());
    }
    addresses(&Geometry::from_superblock(&sb), &bytes);
}

/// Numbers taken from anywhere come back as they were, or are refused.
fn addresses(geometry: &Geometry, bytes: &[u8]) {
    let _ = (geometry.bytes(), geometry.dir_block_size(), geometry.dir_block_blocks());
    let last = AgNumber(geometry.ag_count() - 1);
    assert!(geometry.ag_blocks_of(last) <= geometry.ag_blocks && geometry.ag_blocks_of(last) > 0);
    for word in bytes.chunks_exact(8).take(64) {
        let number = u64::from_be_bytes(word.try_into().unwrap_or_default());
        if let Some((ag, block)) = geometry.split_block(FsBlock(number)) {
            assert_eq!(geometry.join_block(ag, block), FsBlock(number));
            let daddr = geometry.daddr_of(ag, block);
            assert!(daddr.0 << 9 < geometry.bytes(), "{daddr} lies behind the volume");
        }
        if let Some((ag, inode)) = geometry.split_inode(InodeNumber(number)) {
            assert_eq!(geometry.join_inode(ag, inode), InodeNumber(number));
        }
        if let Some(daddr) = geometry.extent_daddr(FsBlock(number), number >> 40) {
            assert!((daddr.0 << 9) + ((number >> 40) << geometry.block_log) <= geometry.bytes());
        }
    }
}
