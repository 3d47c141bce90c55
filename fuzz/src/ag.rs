//! Headers and trees of a group: AGF, AGI, AGFL, and blocks of all the short-form trees.

use crate::seal::{Places, UUID, seal};
use xfs::testing::geometry;
use xfs_format::ag::{AGF, AGFL, AGI, Agf, Agfl, Agi};
use xfs_format::btree::{Bnobt, Cntbt, Finobt, Inobt, Node, Refcountbt, Rmapbt, Tree};
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgNumber, DiskAddr};
use xfs_format::verify::{Verifier, VerifyContext};

const DADDR: DiskAddr = DiskAddr(80);

/// First byte: which structure; second: shape of the volume, and whether the identity is put right. The rest:
/// its bytes.
pub fn run(data: &[u8]) {
    let [kind, flags, rest @ ..] = data else { return };
    let mut geometry = geometry(flags & 1 != 0, 10 + (flags >> 1 & 3), 0);
    geometry.rmapbt = geometry.v5;
    let mut bytes = rest.to_vec();
    let context = VerifyContext { v5: geometry.v5, meta_uuid: UUID, daddr: DADDR };
    let sealed = flags & 0x80 != 0;
    match kind % 9 {
        0 => agf(&mut bytes, &geometry, &context, sealed),
        1 => agi(&mut bytes, &geometry, &context, sealed),
        2 => agfl(&mut bytes, &geometry, &context, sealed),
        3 => block::<Bnobt>(&mut bytes, &context, sealed, |_| ()),
        4 => block::<Cntbt>(&mut bytes, &context, sealed, |_| ()),
        5 => block::<Inobt>(&mut bytes, &context, sealed, |r| chunks(r, &geometry)),
        6 => block::<Finobt>(&mut bytes, &context, sealed, |r| chunks(r, &geometry)),
        7 => block::<Rmapbt>(&mut bytes, &context, sealed, |_| ()),
        _ => block::<Refcountbt>(&mut bytes, &context, sealed, |_| ()),
    }
}

fn passes(
    verifier: &Verifier,
    bytes: &mut [u8],
    places: Places,
    context: &VerifyContext,
    sealed: bool,
) -> bool {
    if sealed {
        seal(bytes, &places, context.daddr);
    }
    (verifier.check)(bytes, context).is_ok()
}

fn agf(bytes: &mut [u8], geometry: &Geometry, context: &VerifyContext, sealed: bool) {
    let places = Places { magic: *b"XAGF", uuid: 64, daddr: None, lsn: 208, crc: 216 };
    if passes(&AGF, bytes, places, context, sealed) {
        let agf = Agf::view(bytes).expect("what was checked can be viewed");
        for ag in 0..geometry.ag_count() {
            let _ = agf.check_group(geometry, AgNumber(ag));
        }
        // Its ring of reserved blocks, over the same bytes.
        if let Ok(agfl) = Agfl::view(bytes, geometry) {
            assert!(agfl.blocks(agf).count() <= Agfl::slots(geometry) as usize);
        }
    }
}

fn agi(bytes: &mut [u8], geometry: &Geometry, context: &VerifyContext, sealed: bool) {
    let places = Places { magic: *b"XAGI", uuid: 296, daddr: None, lsn: 320, crc: 312 };
    if passes(&AGI, bytes, places, context, sealed) {
        let agi = Agi::view(bytes).expect("what was checked can be viewed");
        for ag in 0..geometry.ag_count() {
            let _ = agi.check_group(geometry, AgNumber(ag));
        }
    }
}

fn agfl(bytes: &mut [u8], geometry: &Geometry, context: &VerifyContext, sealed: bool) {
    let places = Places { magic: *b"XAFL", uuid: 8, daddr: None, lsn: 24, crc: 32 };
    if passes(&AGFL, bytes, places, context, sealed) {
        let _ = Agfl::view(bytes, geometry);
    }
}

fn chunks(record: &xfs_format::records::InobtRecord, geometry: &Geometry) {
    if let Ok(chunk) = record.chunk(geometry.sparse_inodes) {
        for inode in chunk.inodes_in_use() {
            assert!(chunk.in_use(inode));
        }
    }
}

/// A block of one tree: all that a descent or a walk asks of it.
pub fn block<T: Tree>(bytes: &mut [u8], context: &VerifyContext, sealed: bool, each: impl Fn(&T::Record)) {
    let magic = if context.v5 { T::MAGIC_V5 } else { T::MAGIC_V4.unwrap_or_default() }.to_be_bytes();
    let places = match T::pointer_len() {
        4 => Places { magic, uuid: 32, daddr: Some(16), lsn: 24, crc: 52 },
        _ => Places { magic, uuid: 40, daddr: Some(24), lsn: 32, crc: 64 },
    };
    if sealed && !context.v5 {
        crate::seal::put(bytes, 0, &magic);
    }
    if !passes(T::verifier(), bytes, places, context, sealed && context.v5) {
        return;
    }
    let node = Node::<T>::view(bytes, context.v5).expect("what was checked can be viewed");
    let _ = (node.siblings(), node.owner());
    assert_eq!(node.records().len() + node.keys().len(), node.count());
    node.records().iter().for_each(each);
    assert!(node.records().is_sorted_by_key(T::record_rank));
    assert!(node.keys().is_sorted_by_key(T::key_rank));
    for child in 0..=node.count() {
        assert_eq!(node.pointer(child).is_some(), node.level() > 0 && child < node.count());
    }
}
