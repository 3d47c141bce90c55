//! Directory blocks in several pieces.
//!
//! A directory block that is larger than a file system block may lie in several places. In the log each piece is a
//! buffer of its own, but only the first has a header, with one LSN and one checksum for all of them. Only the
//! directory's map tells which pieces belong together. So pieces are replayed as they come. Once the whole log is
//! replayed, blocks with a changed piece get their checksums. A change of a directory block also logs the directory's
//! inode, so the log names all inodes whose maps are needed.

use super::buffer::verifier;
use crate::buf::{BufCache, BufMaps};
use crate::error::{Error, Result};
use crate::group::Groups;
use crate::ifork::{self, ExtentList};
use crate::imap::ImapSource;
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

/// What was replayed at one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Its length in bytes.
    pub(super) len: u64,
    /// The LSN of the last change.
    pub(super) lsn: Lsn,
    /// It may also be a whole block: a node of an attribute index looks like the first piece of a directory node.
    pub(super) or_whole: bool,
}

/// Changed pieces and changed directories.
#[derive(Debug, Default)]
pub(super) struct Scattered {
    pub(super) pieces: BTreeMap<DiskAddr, Piece>,
    pub(super) directories: BTreeSet<InodeNumber>,
}

/// A directory block with a changed piece.
struct Block {
    pieces: BufMaps,
    lsn: Lsn,
}

impl Scattered {
    pub(super) fn take_in(&mut self, other: Self) {
        self.pieces.extend(other.pieces);
        self.directories.extend(other.directories);
    }

    /// Assembles blocks, and sets their LSN and checksum.
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
        for (daddr, map) in self.pieces {
            if !map.or_whole {
                let what =
                    "a directory block that lies in several pieces was changed, and no directory has it";
                return Err(Error::CannotRecover(what.to_owned()));
            }
            let bytes = patch.get(daddr.0 * 512, map.len, NAME)?;
            verify(&bytes, daddr, geometry)?;
        }
        Ok(patch)
    }

    /// The blocks of the pieces, which are removed from the set.
    fn blocks(&mut self, patch: &Arc<Patch>, geometry: &Geometry) -> Result<Vec<Block>> {
        let device: Arc<dyn BlockDevice> = Arc::clone(patch) as Arc<dyn BlockDevice>;
        let bufs = BufCache::new(device, geometry, CACHE_BYTES);
        let groups = Groups::new(geometry.ag_count(), false);
        let source = ImapSource { bufs: &bufs, geometry, groups: &groups };
        let mut found = Vec::new();
        for &ino in &std::mem::take(&mut self.directories) {
            // Inodes may be freed, and other damage is not the log's concern. If it matters here, a piece is left over.
            let Some(extents) = self::extents(&source, ino)? else { continue };
            let step = u64::from(geometry.dir_block_blocks());
            let mut next = 0;
            for extent in extents.iter() {
                let mut at = next.max(extent.startoff.0 / step * step);
                while at < extent.end().0 {
                    let maps =
                        ifork::buf_maps(geometry, ino, &extents, FileBlock(at), step as u32, &dir::INDEX);
                    found.extend(maps.ok().and_then(|maps| self.take(maps)));
                    at += step;
                }
                next = at;
            }
        }
        Ok(found)
    }

    /// The block that consists of these pieces, if one of them was changed.
    fn take(&mut self, maps: BufMaps) -> Option<Block> {
        if maps.len() < 2 {
            return None;
        }
        let mut newest = None;
        for map in &maps {
            let end = DiskAddr(map.daddr.0 + map.len / 512);
            let changed: Vec<DiskAddr> = self.pieces.range(map.daddr..end).map(|(&daddr, _)| daddr).collect();
            newest = changed
                .iter()
                .filter_map(|daddr| self.pieces.remove(daddr))
                .map(|map| map.lsn)
                .max()
                .max(newest);
        }
        newest.map(|lsn| Block { pieces: maps, lsn })
    }
}

/// The map of a directory. `None` if there is none.
fn extents(source: &ImapSource<'_>, ino: InodeNumber) -> Result<Option<ExtentList>> {
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
    /// Sets its LSN and checksum.
    fn seal(&self, patch: &mut Patch, geometry: &Geometry) -> Result<()> {
        let mut whole = Vec::with_capacity(geometry.dir_block_size() as usize);
        for map in &self.pieces {
            whole.extend(patch.get(map.daddr.0 * 512, map.len, NAME)?);
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
