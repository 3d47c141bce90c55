//! What one thread replays: the changes of its groups.
//!
//! If the disk has something newer than the change, it is left alone. A change of the same age is repeated: this
//! restores a block that a crash tore while it was being written.
//!
//! Invariant: no item names a place that is not its own (an inode must lie where its number says, and nothing lies in
//! two groups).

use super::owners::Owner;
use super::scattered::Scattered;
use super::{Ahead, buffer};
use crate::error::{Error, Result};
use crate::ialloc;
use crate::recovery::pass1::CancelTable;
use crate::recovery::patch::{ByteSpan, Patch, PatchChange};
use crate::recovery::report::Counts;
use crate::recovery::transactions::Item;
use std::collections::BTreeSet;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::InodeCore;
use xfs_format::log::{BufFlags, InodeCreate, LogItem};
use xfs_format::types::{AgBlock, AgInode, AgNumber, DiskAddr, InodeNumber, Lsn};
use xfs_format::verify::VerifyContext;

/// The replay of some groups.
pub(super) struct GroupReplay<'g> {
    pub(super) geometry: &'g Geometry,
    pub(super) patch: Patch,
    pub(super) cancels: CancelTable,
    pub(super) counts: Counts,
    /// The end of the log.
    head: Lsn,
    /// Something whose last change is after that.
    ahead: Option<Ahead>,
    /// Changed buffers: disk address and length in bytes.
    pub(super) buffers: BTreeSet<(DiskAddr, u64)>,
    /// Inodes that were changed.
    pub(super) inodes: BTreeSet<InodeNumber>,
    /// Forks whose blocks got another owner.
    pub(super) owners: BTreeSet<Owner>,
    /// Directory blocks in several pieces.
    pub(super) scattered: Scattered,
    /// Changed dquot blocks.
    pub(super) quota: BTreeSet<DiskAddr>,
}

impl<'g> GroupReplay<'g> {
    pub(super) fn new(geometry: &'g Geometry, patch: Patch, cancels: CancelTable, head: Lsn) -> Self {
        Self {
            geometry,
            patch,
            cancels,
            counts: Counts::default(),
            head,
            ahead: None,
            buffers: BTreeSet::new(),
            inodes: BTreeSet::new(),
            owners: BTreeSet::new(),
            scattered: Scattered::default(),
            quota: BTreeSet::new(),
        }
    }

    /// Something that is newer than the log.
    pub(super) fn ahead(&self) -> Option<Ahead> {
        self.ahead
    }

    /// A change is skipped because the disk has something newer.
    pub(super) fn newer(&mut self, structure: &'static str, there: Lsn) {
        self.counts.newer += 1;
        if there >= self.head && there.0 != u64::MAX {
            self.ahead.get_or_insert((structure, there));
        }
    }

    /// Replays an item.
    pub(super) fn item(&mut self, lsn: Lsn, item: &Item<'_>) -> Result<()> {
        match &item.format {
            LogItem::Buf(buf) if buf.flags.contains(BufFlags::CANCEL) => {
                self.cancels.pass_cancel((buf.daddr, buf.len.into()));
                Ok(())
            }
            LogItem::Buf(buf) => self.buffer(lsn, buf, item),
            LogItem::Inode(format) => self.inode(lsn, format, item),
            LogItem::InodeCreate(create) => self.inode_chunk(create),
            LogItem::Dquot(format) => self.dquot(lsn, format, item.region(0)),
            // Unfinished intents are finished later, and finished ones are irrelevant.
            _ => Ok(()),
        }
    }

    /// Fills the blocks of an inode chunk as it was made. All later changes of it are in the log.
    fn inode_chunk(&mut self, create: &InodeCreate) -> Result<()> {
        const NAME: &str = "inode creation log item";
        let geometry = self.geometry;
        let (ag, block, blocks) = (create.ag(), create.agbno(), create.length.get());
        let inside = ag.0 < geometry.ag_count()
            && u64::from(block.0) + u64::from(blocks) <= u64::from(geometry.ag_blocks_of(ag));
        let count = u64::from(blocks) << geometry.inodes_per_block_log;
        let most = 64_u64.max(1 << geometry.inodes_per_block_log);
        if !inside || block.0 == 0 || u64::from(create.count.get()) != count || count > most {
            let problem = FormatError::value(NAME, "place", block.0.into());
            return Err(Error::Corrupt { daddr: None, inode: None, problem });
        }
        let pieces = ialloc::clusters(geometry, ag, block, blocks);
        let bytes: u64 = pieces.iter().map(|map| map.len).sum();
        if bytes != u64::from(blocks) << geometry.block_log {
            let problem = FormatError::value(NAME, "length", blocks.into());
            return Err(Error::Corrupt { daddr: None, inode: None, problem });
        }
        if create.isize.get() != u32::from(geometry.inode_size) {
            let problem = FormatError::value(NAME, "inode size", create.isize.get().into());
            return Err(Error::Corrupt { daddr: None, inode: None, problem });
        }
        let mut first = AgInode(block.0 << geometry.inodes_per_block_log);
        for map in pieces {
            let inodes = (map.len / u64::from(geometry.inode_size)) as u32;
            if self.cancels.is_cancelled((map.daddr, (map.len / 512) as u32)) {
                self.counts.cancelled += 1;
            } else {
                let mut bytes = vec![0; map.len as usize];
                for (nth, inode) in (0..).zip(bytes.chunks_exact_mut(geometry.inode_size.into())) {
                    let ino = geometry.join_inode(ag, AgInode(first.0 + nth));
                    ialloc::encode_free(inode, ino, create.gen_.get(), geometry);
                }
                self.check_group(map.daddr.0 * 512, map.len, NAME)?;
                self.patch.replace(map.daddr.0 * 512, &bytes, NAME)?;
            }
            first.0 += inodes;
        }
        self.counts.inode_chunks += 1;
        Ok(())
    }

    /// Verifies the final state of everything that was changed.
    pub(super) fn verify(&self) -> Result<()> {
        for &(daddr, len) in &self.buffers {
            let bytes = self.patch.get(daddr.0 * 512, len, "buffer")?;
            let damaged = |problem| Error::corrupt_block(daddr, None, problem);
            let context = VerifyContext { v5: self.geometry.v5, meta_uuid: self.geometry.meta_uuid, daddr };
            let verifier = buffer::verifier(&bytes, self.geometry)
                .ok_or_else(|| damaged(FormatError::new("replayed buffer", "magic")))?;
            (verifier.check)(&bytes, &context).map_err(damaged)?;
        }
        for &ino in &self.inodes {
            let at = self.place_of(ino).ok_or(Error::NoSuchInode(ino))?;
            let bytes = self.patch.get(at, self.geometry.inode_size.into(), "inode")?;
            InodeCore::parse(&bytes, ino, self.geometry).map_err(|problem| Error::Corrupt {
                daddr: Some(DiskAddr(at / 512)),
                inode: Some(ino),
                problem,
            })?;
        }
        self.quota.iter().try_for_each(|&daddr| self.verify_dquots(daddr))
    }

    /// A part of the volume, which an item names for `structure`, in order to change it.
    pub(super) fn change(&self, offset: u64, len: u64, structure: &'static str) -> Result<PatchChange> {
        self.check_group(offset, len, structure)?;
        self.patch.change(offset, len, structure)
    }

    /// Like [`change`](Self::change), for a part of a buffer that an item names.
    pub(super) fn change_in(
        &self,
        buffer: ByteSpan,
        part: ByteSpan,
        structure: &'static str,
    ) -> Result<PatchChange> {
        self.check_group(buffer.offset, buffer.len, structure)?;
        self.patch.change_in(buffer, part, structure)
    }

    /// Nothing lies in two groups: the other group may belong to another share.
    fn check_group(&self, offset: u64, len: u64, structure: &'static str) -> Result<()> {
        let group = self.geometry.daddr_of(AgNumber(1), AgBlock(0)).0 * 512;
        if (offset % group.max(1)).saturating_add(len) <= group {
            return Ok(());
        }
        let problem = FormatError::value(structure, "place across the end of a group", offset / 512);
        Err(Error::corrupt_block(DiskAddr(offset / 512), None, problem))
    }

    /// The byte of the device where an inode lies.
    pub(super) fn place_of(&self, ino: InodeNumber) -> Option<u64> {
        super::place_of(self.geometry, ino)
    }
}
