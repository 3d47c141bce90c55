//! Replay of metadata buffers, which are identified by their magic.

use super::group_replay::GroupReplay;
use super::scattered::Piece;
use crate::error::{Error, Result};
use crate::recovery::transactions::Item;
use xfs_format::ag::{AGF, AGFL, AGI};
use xfs_format::btree::{Bmbt, Bnobt, Cntbt, Finobt, Inobt, Refcountbt, Rmapbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{CRC_OFFSET, Dinode, MAGIC};
use xfs_format::log::{BufFlags, BufFormat, BufType};
use xfs_format::superblock::SUPERBLOCK;
use xfs_format::symlink::SYMLINK;
use xfs_format::types::Lsn;
use xfs_format::verify::Verifier;
use xfs_format::{attr, checksum, dir, identity};

const NAME: &str = "buffer log item";
const QUOTA: BufFlags = BufFlags::UDQUOT_BUF.union(BufFlags::PDQUOT_BUF).union(BufFlags::GDQUOT_BUF);

impl GroupReplay<'_> {
    /// Applies the changes of a buffer, unless the one on disk is newer.
    pub(super) fn buffer(&mut self, lsn: Lsn, format: &BufFormat<'_>, item: &Item<'_>) -> Result<()> {
        let quota_off = [(BufFlags::UDQUOT_BUF, 1), (BufFlags::PDQUOT_BUF, 2), (BufFlags::GDQUOT_BUF, 4)]
            .iter()
            .any(|&(flag, kind)| format.flags.contains(flag) && self.cancels.quota_is_off(kind));
        if quota_off || self.cancels.is_cancelled((format.daddr, format.len.into())) {
            self.counts.cancelled += 1;
            return Ok(());
        }
        let (at, len) = (format.daddr.0.saturating_mul(512), u64::from(format.len) * 512);
        let mut change = self.change(at, len, NAME)?;
        let bytes = change.bytes();
        if format.flags.contains(BufFlags::INODE_BUF) {
            self.list_pointers(format, item, bytes)?;
            self.counts.buffers += 1;
            self.patch.put(change);
            return Ok(());
        }
        let own = identity::uuid_of(bytes) == Some(self.geometry.meta_uuid);
        let piece = self.may_be_piece(format);
        let headed = own && (!piece || identity::daddr_of(bytes) == Some(format.daddr));
        if let Some(there) = identity::lsn_of(bytes).filter(|&there| headed && there > lsn) {
            self.newer("a block", there);
            return Ok(());
        }
        apply(format, item, bytes)?;
        if format.flags.intersects(QUOTA) {
            // Each dquot in it has an LSN of its own. Later ones follow in the log.
            self.quota.insert(format.daddr);
        } else if piece {
            let or_whole = identity::daddr_of(bytes) == Some(format.daddr) && self.may_be_whole(bytes);
            if or_whole {
                identity::stamp(bytes, lsn);
            }
            self.scattered.pieces.insert(format.daddr, Piece { len, lsn, or_whole });
        } else {
            self.check_known(format, bytes)?;
            identity::stamp(bytes, lsn);
            self.buffers.insert((format.daddr, len));
        }
        self.counts.buffers += 1;
        self.patch.put(change);
        Ok(())
    }

    /// Whether it is, or may be, a piece of a directory block.
    fn may_be_piece(&self, format: &BufFormat<'_>) -> bool {
        let of_directories = matches!(
            format.buf_type,
            BufType::DirBlock
                | BufType::DirData
                | BufType::DirFree
                | BufType::DirLeaf1
                | BufType::DirLeafN
                | BufType::DaNode
        );
        of_directories && u64::from(format.len) * 512 < self.geometry.dir_block_size().into()
    }

    /// Whether a piece may also be a block of an attribute index, which has the size of a file system block.
    fn may_be_whole(&self, bytes: &[u8]) -> bool {
        let node = identity::identify(bytes).is_some_and(|identity| identity.kind == BufType::DaNode);
        node && bytes.len() == self.geometry.block_size as usize
    }

    /// Refuses what is not understood: blocks without a known magic, and directory blocks of another length whose type
    /// the log does not name.
    fn check_known(&self, format: &BufFormat<'_>, bytes: &[u8]) -> Result<()> {
        let damaged = |check| Error::corrupt_block(format.daddr, None, FormatError::new(NAME, check));
        let known = identity::identify(bytes).ok_or_else(|| damaged("magic of the buffer"))?.kind;
        let of_directories = matches!(
            known,
            BufType::DirBlock | BufType::DirData | BufType::DirFree | BufType::DirLeaf1 | BufType::DirLeafN
        );
        if of_directories && bytes.len() != self.geometry.dir_block_size() as usize {
            return Err(damaged("length of a directory block"));
        }
        Ok(())
    }

    /// For an inode cluster the log has only the unlinked list pointers.
    fn list_pointers(&self, format: &BufFormat<'_>, item: &Item<'_>, bytes: &mut [u8]) -> Result<()> {
        const POINTER: usize = std::mem::offset_of!(Dinode, next_unlinked);
        let size = usize::from(self.geometry.inode_size);
        let mut logged = bytes.to_vec();
        apply(format, item, &mut logged)?;
        for run in format.runs() {
            for start in (0..bytes.len()).step_by(size) {
                let at = start + POINTER;
                if at < run.offset || at + 4 > run.offset + run.len {
                    continue;
                }
                let damaged = |check| Error::corrupt_block(format.daddr, None, FormatError::new(NAME, check));
                let inode =
                    bytes.get_mut(start..start + size).ok_or_else(|| damaged("length of a cluster"))?;
                if !inode.starts_with(&MAGIC.to_be_bytes()) {
                    return Err(damaged("magic of an inode in the cluster"));
                }
                let pointer = &logged[at..at + 4];
                if pointer == [0; 4] {
                    return Err(damaged("pointer to the next unlinked inode"));
                }
                inode[POINTER..POINTER + 4].copy_from_slice(pointer);
                checksum::store(inode, CRC_OFFSET);
            }
        }
        Ok(())
    }
}

/// Copies the logged chunks. A run of them may come in several regions.
fn apply(format: &BufFormat<'_>, item: &Item<'_>, bytes: &mut [u8]) -> Result<()> {
    let damaged = |check| Error::corrupt_block(format.daddr, None, FormatError::new(NAME, check));
    let mut index = 0;
    for run in format.runs() {
        let (mut at, end) = (run.offset, run.offset + run.len);
        while at < end {
            let region = item.region(index).ok_or_else(|| damaged("number of regions"))?;
            index += 1;
            let len = region.len().min(end - at);
            if len == 0 || !len.is_multiple_of(xfs_format::log::BUF_CHUNK_SIZE) {
                return Err(damaged("length of a region"));
            }
            let place = bytes.get_mut(at..at + len).ok_or_else(|| damaged("chunk behind the buffer"))?;
            place.copy_from_slice(&region[..len]);
            at += len;
        }
    }
    Ok(())
}

/// The verifier of a block, by its magic.
pub(super) fn verifier(bytes: &[u8], geometry: &Geometry) -> Option<&'static Verifier> {
    Some(match identity::identify(bytes)?.kind {
        BufType::Superblock => &SUPERBLOCK,
        BufType::Agf => &AGF,
        BufType::Agi => &AGI,
        BufType::Agfl => &AGFL,
        BufType::Btree => match bytes.first_chunk::<4>()? {
            b"AB3B" => Bnobt::verifier(),
            b"AB3C" => Cntbt::verifier(),
            b"IAB3" => Inobt::verifier(),
            b"FIB3" => Finobt::verifier(),
            b"RMB3" => Rmapbt::verifier(),
            b"R3FC" => Refcountbt::verifier(),
            _ => Bmbt::verifier(),
        },
        BufType::DirBlock | BufType::DirData => dir::data_verifier(geometry.ftype),
        BufType::DirFree => &dir::FREE,
        BufType::DirLeaf1 | BufType::DirLeafN | BufType::DaNode => &dir::INDEX,
        BufType::AttrLeaf => &attr::INDEX,
        BufType::Symlink => &SYMLINK,
        _ => return None,
    })
}
