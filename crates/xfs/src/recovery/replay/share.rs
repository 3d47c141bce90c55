//! What one thread replays: the changes of its groups.
//!
//! What is on disk is left alone if it is newer than the change. A change of the same age is made once more: a block
//! that a crash tore while it was written becomes whole by that.
//!
//! Invariant: no item names a place that is not its own (an inode's must be the one that its number stands for, and
//! nothing lies in two groups).

use super::owners::Owner;
use super::scattered::Scattered;
use super::{Ahead, buffer};
use crate::error::{Error, Result};
use crate::ialloc;
use crate::recovery::patch::{Change, Patch, Place};
use crate::recovery::report::Counts;
use crate::recovery::survey::Void;
use crate::recovery::transactions::Item;
use std::collections::BTreeSet;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::InodeCore;
use xfs_format::log::{BufFlags, InodeCreate, LogItem};
use xfs_format::types::{AgBlock, AgInode, AgNumber, DiskAddr, InodeNumber, Lsn};
use xfs_format::verify::VerifyContext;

/// The replay of some groups.
pub(super) struct Share<'g> {
    pub(super) geometry: &'g Geometry,
    pub(super) patch: Patch,
    pub(super) void: Void,
    pub(super) counts: Counts,
    /// Where the log ends.
    head: Lsn,
    /// Something that was changed last behind that.
    ahead: Option<Ahead>,
    /// Buffers that were changed: where they lie, and how many bytes they have.
    pub(super) buffers: BTreeSet<(DiskAddr, u64)>,
    /// Inodes that were changed.
    pub(super) inodes: BTreeSet<InodeNumber>,
    /// Forks whose blocks changed their owner.
    pub(super) owners: BTreeSet<Owner>,
    /// Directory blocks that lie in several pieces.
    pub(super) scattered: Scattered,
    /// Blocks of dquots that were changed.
    pub(super) quota: BTreeSet<DiskAddr>,
}

impl<'g> Share<'g> {
    pub(super) fn new(geometry: &'g Geometry, patch: Patch, void: Void, head: Lsn) -> Self {
        Self {
            geometry,
            patch,
            void,
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

    /// A change is left out, as what is in its place is newer.
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
                self.void.pass_cancel((buf.daddr, buf.len.into()));
                Ok(())
            }
            LogItem::Buf(buf) => self.buffer(lsn, buf, item),
            LogItem::Inode(format) => self.inode(lsn, format, item),
            LogItem::InodeCreate(create) => self.inode_chunk(create),
            LogItem::Dquot(format) => self.dquot(lsn, format, item.region(0)),
            // What was promised and not done is finished later, what was done is of no interest any more.
            _ => Ok(()),
        }
    }

    /// Fills the blocks of a chunk of inodes as it was made. Everything that happened to them since is in the log.
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
        let bytes: u64 = pieces.iter().map(|piece| piece.len).sum();
        if bytes != u64::from(blocks) << geometry.block_log {
            let problem = FormatError::value(NAME, "length", blocks.into());
            return Err(Error::Corrupt { daddr: None, inode: None, problem });
        }
        if create.isize.get() != u32::from(geometry.inode_size) {
            let problem = FormatError::value(NAME, "inode size", create.isize.get().into());
            return Err(Error::Corrupt { daddr: None, inode: None, problem });
        }
        let mut first = AgInode(block.0 << geometry.inodes_per_block_log);
        for piece in pieces {
            let inodes = (piece.len / u64::from(geometry.inode_size)) as u32;
            if self.void.is_cancelled((piece.daddr, (piece.len / 512) as u32)) {
                self.counts.cancelled += 1;
            } else {
                let mut bytes = vec![0; piece.len as usize];
                for (nth, inode) in (0..).zip(bytes.chunks_exact_mut(geometry.inode_size.into())) {
                    let ino = geometry.join_inode(ag, AgInode(first.0 + nth));
                    ialloc::encode_free(inode, ino, create.gen_.get(), geometry);
                }
                self.check_group(piece.daddr.0 * 512, piece.len, NAME)?;
                self.patch.replace(piece.daddr.0 * 512, &bytes, NAME)?;
            }
            first.0 += inodes;
        }
        self.counts.inode_chunks += 1;
        Ok(())
    }

    /// Verifies everything that was changed, as it is now.
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

    /// A part of the volume, which an item names for `structure`, for changing.
    pub(super) fn change(&self, offset: u64, len: u64, structure: &'static str) -> Result<Change> {
        self.check_group(offset, len, structure)?;
        self.patch.change(offset, len, structure)
    }

    /// As [`change`](Self::change), of a part of a buffer that an item names.
    pub(super) fn change_in(&self, buffer: Place, part: Place, structure: &'static str) -> Result<Change> {
        self.check_group(buffer.offset, buffer.len, structure)?;
        self.patch.change_in(buffer, part, structure)
    }

    /// Nothing lies in two groups: the other may be another share's.
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
