//! Inode cores, what their forks hold, and blocks of the block map.

use crate::ag::block;
use crate::seal::{UUID, put};
use xfs::testing::geometry;
use xfs_format::bmbt::{BmbtRecord, inline_extents};
use xfs_format::btree::Bmbt;
use xfs_format::checksum;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{ForkFormat, ForkInfo, InodeCore, btree_root};
use xfs_format::types::{DiskAddr, InodeNumber};
use xfs_format::verify::VerifyContext;

const INO: InodeNumber = InodeNumber(131);

/// First byte: shape of the volume, whether the identity is put right, and whether the rest is an inode or a
/// block of the block map.
pub fn run(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let v5 = flags & 1 != 0;
    let mut geometry = geometry(v5, 12, 0);
    let size_log = if v5 { 9 } else { 8 } + (flags >> 1 & 3).min(if v5 { 2 } else { 3 });
    geometry.inode_size = 1 << size_log;
    geometry.inodes_per_block_log = geometry.block_log - size_log;
    geometry.nrext64 = flags & 8 != 0;
    geometry.bigtime = flags & 16 != 0;
    let sealed = flags & 32 != 0;
    let mut bytes = rest.to_vec();
    if flags & 64 != 0 {
        let context = VerifyContext { v5, meta_uuid: UUID, daddr: DiskAddr(80) };
        return block::<Bmbt>(&mut bytes, &context, sealed, |record| extent(record, &geometry));
    }
    if sealed {
        bytes.resize(geometry.inode_size.into(), 0);
        put(&mut bytes, 0, b"IN");
        if v5 {
            put(&mut bytes, 152, &INO.0.to_be_bytes());
            put(&mut bytes, 160, &UUID.0);
            checksum::store(&mut bytes, 100);
        }
    }
    if let Ok(Some(core)) = InodeCore::parse(&bytes, INO, &geometry) {
        fork(&core.data, &bytes, &geometry);
        let _ = core.device(bytes.get(core.data.range.clone()).expect("a fork lies within its inode"));
        if let Some(attr) = &core.attr {
            assert!(attr.range.start >= core.data.range.end, "the forks overlap");
            fork(attr, &bytes, &geometry);
        }
    }
}

fn fork(info: &ForkInfo, inode: &[u8], geometry: &Geometry) {
    let bytes = inode.get(info.range.clone()).expect("a fork lies within its inode");
    assert!(info.range.end <= geometry.inode_size.into());
    match info.format {
        ForkFormat::Extents => {
            let extents = inline_extents(bytes, info.nextents).expect("the core's count was checked");
            extents.iter().for_each(|record| extent(record, geometry));
        }
        ForkFormat::Btree => {
            if let Ok(root) = btree_root(bytes) {
                assert!(root.level() > 0);
                assert_eq!(root.keys().len(), root.pointers().count());
                for pointer in root.pointers() {
                    let _ = geometry.split_block(pointer);
                }
            }
        }
        ForkFormat::Dev | ForkFormat::Local => {}
    }
}

fn extent(record: &BmbtRecord, geometry: &Geometry) {
    let extent = record.unpack();
    assert_eq!(extent.pack(), *record);
    if extent.check(geometry).is_ok() {
        let daddr = geometry.extent_daddr(extent.startblock, extent.blockcount.into());
        let end = daddr.map(|daddr| (daddr.0 << 9) + (u64::from(extent.blockcount) << geometry.block_log));
        assert!(end.is_some_and(|end| end <= geometry.bytes()));
    }
}
