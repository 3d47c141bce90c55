//! Directory blocks in several pieces.
//!
//! Where directory blocks are larger than the volume's, one may lie in several places. Each piece is a buffer of its own
//! in the log, but only the first has a header: with an LSN for all of them, and a checksum over all of them. Which
//! pieces are one block, nobody but the directory's map can tell. So pieces are replayed as they come, and once all of
//! the log is, blocks of which a piece has changed get their checksums. Whoever changes a block of a directory logs the
//! directory's inode with it: the log names all whose maps there are to look at.

use super::buffer::verifier;
use crate::buf::{BufCache, Pieces};
use crate::error::{Error, Result};
use crate::group::Groups;
use crate::ifork::{self, ExtentList};
use crate::imap::InodeSource;
use crate::inode::{ForkKind, Inode};
use crate::recovery::patch::Patch;
use blockdev::BlockDevice;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xfs_format::dir;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::identity;
use xfs_format::inode::InodeType;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber, Lsn};
use xfs_format::verify::VerifyContext;

const CACHE_BYTES: u64 = 4 << 20;
const NAME: &str = "directory block in several pieces";

/// What was replayed of one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Bytes.
    pub(super) len: u64,
    /// The last change.
    pub(super) lsn: Lsn,
    /// It may also be a whole: a node of an attribute index looks like the first piece of a directory's.
    pub(super) or_whole: bool,
}

/// Pieces that were changed, and directories that were.
#[derive(Debug, Default)]
pub(super) struct Scattered {
    pub(super) pieces: BTreeMap<DiskAddr, Piece>,
    pub(super) directories: BTreeSet<InodeNumber>,
}

/// A directory block with a piece that changed.
struct Block {
    pieces: Pieces,
    lsn: Lsn,
}

impl Scattered {
    pub(super) fn take_in(&mut self, other: Self) {
        self.pieces.extend(other.pieces);
        self.directories.extend(other.directories);
    }

    /// Puts blocks together, and gives them LSN and checksum.
    pub(super) fn put_together(mut self, patch: Patch, geometry: &Geometry) -> Result<Patch> {
        if self.pieces.is_empty() {
            return Ok(patch);
        }
        let patch = Arc::new(patch);
        let blocks = self.blocks(&patch, geometry)?;
        let lost = || Error::corrupt_block(DiskAddr(0), None, FormatError::new(NAME, "users of the patch"));
        let mut patch = Arc::into_inner(patch).ok_or_else(lost)?;
        for block in blocks {
            block.seal(&mut patch, geometry)?;
        }
        for (daddr, piece) in self.pieces {
            if !piece.or_whole {
                let what =
                    "a directory block that lies in several pieces was changed, and no directory has it";
                return Err(Error::CannotRecover(what.to_owned()));
            }
            let bytes = patch.get(daddr.0 * 512, piece.len, NAME)?;
            verify(&bytes, daddr, geometry)?;
        }
        Ok(patch)
    }

    /// The blocks that the pieces are of, which leave the set.
    fn blocks(&mut self, patch: &Arc<Patch>, geometry: &Geometry) -> Result<Vec<Block>> {
        let device: Arc<dyn BlockDevice> = Arc::clone(patch) as Arc<dyn BlockDevice>;
        let bufs = BufCache::new(device, geometry, CACHE_BYTES);
        let groups = Groups::new(geometry.ag_count(), false);
        let source = InodeSource { bufs: &bufs, geometry, groups: &groups };
        let mut found = Vec::new();
        for &ino in &std::mem::take(&mut self.directories) {
            // Chunks are given back, and damage elsewhere is not what the log is about: if it is, a piece is left.
            let Some(extents) = self::extents(&source, ino)? else { continue };
            let step = u64::from(geometry.dir_block_blocks());
            let mut next = 0;
            for extent in extents.iter() {
                let mut at = next.max(extent.startoff.0 / step * step);
                while at < extent.end().0 {
                    let pieces =
                        ifork::pieces(geometry, ino, &extents, FileBlock(at), step as u32, &dir::INDEX);
                    found.extend(pieces.ok().and_then(|pieces| self.take(pieces)));
                    at += step;
                }
                next = at;
            }
        }
        Ok(found)
    }

    /// The block that lies in these pieces, if one of them was changed.
    fn take(&mut self, pieces: Pieces) -> Option<Block> {
        if pieces.len() < 2 {
            return None;
        }
        let mut newest = None;
        for piece in &pieces {
            let end = DiskAddr(piece.daddr.0 + piece.len / 512);
            let changed: Vec<DiskAddr> =
                self.pieces.range(piece.daddr..end).map(|(&daddr, _)| daddr).collect();
            newest = changed
                .iter()
                .filter_map(|daddr| self.pieces.remove(daddr))
                .map(|piece| piece.lsn)
                .max()
                .max(newest);
        }
        newest.map(|lsn| Block { pieces, lsn })
    }
}

/// The map of a directory; `None` if there is none.
fn extents(source: &InodeSource<'_>, ino: InodeNumber) -> Result<Option<ExtentList>> {
    let look = || {
        let inode = Inode::parse(ino, &source.find(ino)?, source.geometry)?;
        if inode.is_free() || inode.kind() != InodeType::Directory {
            return Ok(None);
        }
        let fork = inode.fork_state(ForkKind::Data);
        fork.map(|fork| ifork::load(source.bufs, source.geometry, ino, fork)).transpose()
    };
    match look() {
        Err(Error::NoSuchInode(_) | Error::Corrupt { .. }) => Ok(None),
        other => other,
    }
}

impl Block {
    /// Gives it LSN and checksum.
    fn seal(&self, patch: &mut Patch, geometry: &Geometry) -> Result<()> {
        let mut whole = Vec::with_capacity(geometry.dir_block_size() as usize);
        for piece in &self.pieces {
            whole.extend(patch.get(piece.daddr.0 * 512, piece.len, NAME)?);
        }
        let Some(first) = self.pieces.first() else { return Ok(()) };
        let there =
            identity::lsn_of(&whole).filter(|_| identity::uuid_of(&whole) == Some(geometry.meta_uuid));
        identity::stamp(&mut whole, there.map_or(self.lsn, |there| there.max(self.lsn)));
        verify(&whole, first.daddr, geometry)?;
        let mut change = patch.change(first.daddr.0 * 512, first.len, NAME)?;
        let bytes = change.bytes();
        let len = bytes.len();
        bytes.copy_from_slice(&whole[..len]);
        patch.put(change);
        Ok(())
    }
}

fn verify(bytes: &[u8], daddr: DiskAddr, geometry: &Geometry) -> Result<()> {
    let damaged = |problem| Error::corrupt_block(daddr, None, problem);
    let context = VerifyContext { v5: geometry.v5, meta_uuid: geometry.meta_uuid, daddr };
    let verifier =
        verifier(bytes, geometry).ok_or_else(|| damaged(FormatError::new("replayed buffer", "magic")))?;
    (verifier.check)(bytes, &context).map_err(damaged)
}
