//! What a metadata block is, by its magic, and where it carries its checksum and LSN.
//!
//! Write-back knows blocks by this alone, so code that changes a block need not say its type. v5 only. Inode
//! clusters are not here: each inode in them has a checksum and an LSN of its own.

use crate::checksum;
use crate::log::BufType;
use crate::types::{DiskAddr, Lsn, Uuid};

/// The type of a block and the places that are filled in when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// As the log names it.
    pub kind: BufType,
    /// Byte of the checksum.
    pub crc: usize,
    /// Byte of the LSN.
    pub lsn: usize,
}

/// What the block in `bytes` is; `None` for what carries no checksum of its own.
pub fn identify(bytes: &[u8]) -> Option<Identity> {
    by_first_word(bytes).or_else(|| by_index_magic(bytes))
}

fn by_first_word(bytes: &[u8]) -> Option<Identity> {
    let (kind, crc, lsn) = match bytes.first_chunk::<4>()? {
        b"XFSB" => (BufType::Superblock, 224, 240),
        b"XAGF" => (BufType::Agf, 216, 208),
        b"XAGI" => (BufType::Agi, 312, 320),
        b"XAFL" => (BufType::Agfl, 32, 24),
        b"AB3B" | b"AB3C" | b"IAB3" | b"FIB3" | b"RMB3" | b"R3FC" => (BufType::Btree, 52, 24),
        b"BMA3" => (BufType::Btree, 64, 32),
        b"XDB3" => (BufType::DirBlock, 4, 16),
        b"XDD3" => (BufType::DirData, 4, 16),
        b"XDF3" => (BufType::DirFree, 4, 16),
        b"XSLM" => (BufType::Symlink, 12, 48),
        b"XARM" => (BufType::AttrRemote, 12, 48),
        _ => return None,
    };
    Some(Identity { kind, crc, lsn })
}

/// Index blocks of directories and attributes have their magic behind the sibling pointers.
///
/// An inode has an owner there, who may be any number. No index is large enough for its first sibling pointer to look
/// like an inode's magic.
fn by_index_magic(bytes: &[u8]) -> Option<Identity> {
    if bytes.starts_with(b"IN") {
        return None;
    }
    let magic = bytes.get(8..)?.first_chunk::<2>()?;
    let kind = match u16::from_be_bytes(*magic) {
        0x3df1 => BufType::DirLeaf1,
        0x3dff => BufType::DirLeafN,
        0x3ebe => BufType::DaNode,
        0x3bee => BufType::AttrLeaf,
        _ => return None,
    };
    Some(Identity { kind, crc: 12, lsn: 24 })
}

/// Fills in LSN and checksum of a block that is about to be written. Blocks that carry none stay as they are.
pub fn stamp(bytes: &mut [u8], lsn: Lsn) {
    let Some(identity) = identify(bytes) else { return };
    // Remote attribute values are never logged, and their LSN says so.
    if identity.kind != BufType::AttrRemote
        && let Some(field) = bytes.get_mut(identity.lsn..).and_then(|rest| rest.first_chunk_mut::<8>())
    {
        *field = lsn.0.to_be_bytes();
    }
    checksum::store(bytes, identity.crc);
}

/// The LSN that a block carries: that of the last change which had been logged when it was written. `None`: it
/// carries none, or never went through the log.
pub fn lsn_of(bytes: &[u8]) -> Option<Lsn> {
    let identity = identify(bytes)?;
    let field = bytes.get(identity.lsn..)?.first_chunk::<8>()?;
    Some(Lsn(u64::from_be_bytes(*field))).filter(|lsn| lsn.0 != 0 && lsn.0 != u64::MAX)
}

/// The UUID that a block carries. It tells whether a block belongs to this volume at all.
pub fn uuid_of(bytes: &[u8]) -> Option<Uuid> {
    let at = match identify(bytes)?.kind {
        BufType::Superblock => 32,
        BufType::Agf => 64,
        BufType::Agi => 296,
        BufType::Agfl => 8,
        BufType::Btree if bytes.starts_with(b"BMA3") => 40,
        BufType::Btree => 32,
        BufType::DirBlock | BufType::DirData | BufType::DirFree => 24,
        BufType::Symlink | BufType::AttrRemote => 16,
        _ => 32,
    };
    bytes.get(at..)?.first_chunk::<16>().map(|uuid| Uuid(*uuid))
}

/// The address that a directory's or an index's block carries: its own, or that of the first of its pieces. No name in a
/// directory looks like one, as names have no zeroes.
pub fn daddr_of(bytes: &[u8]) -> Option<DiskAddr> {
    let at = match identify(bytes)?.kind {
        BufType::DirBlock | BufType::DirData | BufType::DirFree => 8,
        BufType::DirLeaf1 | BufType::DirLeafN | BufType::DaNode | BufType::AttrLeaf => 16,
        _ => return None,
    };
    bytes.get(at..)?.first_chunk::<8>().map(|daddr| DiskAddr(u64::from_be_bytes(*daddr)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ag, btree, da, superblock};
    use std::mem::offset_of;

    fn places(magic: &[u8; 4]) -> (usize, usize) {
        let identity = identify(magic).expect("known");
        (identity.crc, identity.lsn)
    }

    #[test]
    fn places_are_those_of_the_structures() {
        assert_eq!(places(b"XFSB").0, superblock::CRC_OFFSET);
        assert_eq!(places(b"XFSB").1, offset_of!(superblock::RawSuperblock, lsn));
        assert_eq!(places(b"XAGF"), (offset_of!(ag::Agf, crc), offset_of!(ag::Agf, lsn)));
        assert_eq!(places(b"XAGI"), (offset_of!(ag::Agi, crc), offset_of!(ag::Agi, lsn)));
        assert_eq!(places(b"XAFL"), (offset_of!(ag::AgflHeader, crc), offset_of!(ag::AgflHeader, lsn)));
        assert_eq!(
            places(b"IAB3"),
            (offset_of!(btree::ShortHeader, crc), offset_of!(btree::ShortHeader, lsn))
        );
        assert_eq!(places(b"BMA3"), (offset_of!(btree::LongHeader, crc), offset_of!(btree::LongHeader, lsn)));
        let node = identify(&[0, 0, 0, 0, 0, 0, 0, 0, 0x3e, 0xbe]).expect("known");
        assert_eq!((node.crc, node.lsn), (offset_of!(da::BlockInfo3, crc), offset_of!(da::BlockInfo3, lsn)));
    }

    #[test]
    fn lsn_and_uuid_are_found_again() {
        let uuid_at = |magic: &[u8; 4]| {
            let mut block = [0; 512];
            block[..4].copy_from_slice(magic);
            stamp(&mut block, Lsn(7 << 32 | 5));
            assert_eq!(lsn_of(&block).map(|lsn| lsn.0), Some(7 << 32 | 5));
            (0..496).find(|&at| {
                let mut block = block;
                block[at..at + 16].copy_from_slice(b"0123456789abcdef");
                uuid_of(&block) == Some(Uuid(*b"0123456789abcdef"))
            })
        };
        assert_eq!(uuid_at(b"XFSB"), Some(offset_of!(superblock::RawSuperblock, uuid)));
        assert_eq!(uuid_at(b"XAGF"), Some(offset_of!(ag::Agf, uuid)));
        assert_eq!(uuid_at(b"XAGI"), Some(offset_of!(ag::Agi, uuid)));
        assert_eq!(uuid_at(b"XAFL"), Some(offset_of!(ag::AgflHeader, uuid)));
        assert_eq!(uuid_at(b"AB3B"), Some(offset_of!(btree::ShortHeader, uuid)));
        assert_eq!(uuid_at(b"BMA3"), Some(offset_of!(btree::LongHeader, uuid)));
        let mut node = [0; 512];
        node[8..10].copy_from_slice(&0x3ebe_u16.to_be_bytes());
        node[offset_of!(da::BlockInfo3, uuid)] = 9;
        assert_eq!(uuid_of(&node).map(|uuid| uuid.0[0]), Some(9));
        assert_eq!(lsn_of(&[0; 512]), None);
    }

    #[test]
    fn a_stamped_block_passes_its_checksum() {
        let mut block = [0; 4096];
        block[..4].copy_from_slice(b"XDB3");
        stamp(&mut block, Lsn(5 << 32));
        assert_eq!(checksum::check("block", &block, 4), Ok(()));
        assert_eq!(block[16..24], (5_u64 << 32).to_be_bytes());
        let mut inode = [0; 512];
        inode[..2].copy_from_slice(b"IN");
        inode[8..10].copy_from_slice(&0x3df1_u16.to_be_bytes());
        assert_eq!(identify(&inode), None, "an owner is no magic");
        let before = [9; 64];
        let mut unknown = before;
        stamp(&mut unknown, Lsn(1));
        assert_eq!(unknown, before);
    }
}
