//! Checks that what recovery must free can be freed: no other file may have any of its blocks unless they are marked as
//! shared.
//!
//! Invariant: this checks the replayed volume before anything is written, so that an unfinishable recovery leaves the
//! device as it was.

use super::pass1::Unfinished;
use super::patch::Patch;
use crate::buf::BufCache;
use crate::error::{Error, Result};
use crate::group::Groups;
use crate::ifork;
use crate::imap::ImapSource;
use crate::inode::{ForkKind, Inode};
use crate::refcount::Sharing;
use crate::trans::IntentWork;
use blockdev::BlockDevice;
use std::sync::Arc;
use xfs_format::ag::{AGI, AgHeader, Agi, NULL_AG_INODE};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::Dinode;
use xfs_format::types::{AgInode, AgNumber, FileBlock, InodeNumber};
use zerocopy::FromBytes;

const CACHE_BYTES: u64 = 4 << 20;

/// Fails with [`Error::CannotRecover`] if others have blocks of an unlinked inode without the reflink flag, or of an
/// extent that an intent frees. That is corruption.
pub(super) fn check_freeable(patch: &Arc<Patch>, geometry: &Geometry, promised: &[Unfinished]) -> Result<()> {
    if !geometry.reflink {
        return Ok(());
    }
    let device: Arc<dyn BlockDevice> = Arc::clone(patch) as Arc<dyn BlockDevice>;
    let bufs = BufCache::new(device, geometry, CACHE_BYTES);
    let groups = Groups::new(geometry.ag_count(), false);
    let snapshot = UnlinkedCheck { bufs: &bufs, sharing: Sharing { bufs: &bufs, geometry, groups: &groups } };
    let promises = || promised.iter().filter_map(|intent| intent.promise.as_ref());
    // Blocks that are no longer staged or have lost an owner may still be counted until that is done.
    let counts_change = promises().any(IntentWork::is_count);
    for extent in promises().filter(|_| !counts_change).flat_map(IntentWork::frees) {
        if snapshot.sharing.is_counted(extent.start, extent.len.into())? {
            return Err(Error::CannotRecover(format!(
                "{} blocks that were to be freed are shared between files",
                extent.len
            )));
        }
    }
    (0..geometry.ag_count()).map(AgNumber).try_for_each(|ag| snapshot.group(ag))
}

struct UnlinkedCheck<'a> {
    bufs: &'a BufCache,
    sharing: Sharing<'a>,
}

impl UnlinkedCheck<'_> {
    /// Checks all inodes on a group's unlinked lists.
    fn group(&self, ag: AgNumber) -> Result<()> {
        let geometry = self.sharing.geometry;
        let daddr = AgHeader::Agi.daddr(geometry, ag);
        let buf = self.bufs.read(daddr, geometry.sector_size.into(), &AGI)?;
        let wrap = |problem| Error::corrupt_block(daddr, None, problem);
        let agi = Agi::view(&buf).map_err(wrap)?;
        // No list is longer than the number of inodes, so a circular one ends.
        let mut left = agi.count.get();
        for head in agi.unlinked.iter().map(|head| head.get()) {
            let mut next = head;
            while next != NULL_AG_INODE {
                left = left.checked_sub(1).ok_or_else(|| {
                    wrap(FormatError::value("list of unlinked inodes", "length", next.into()))
                })?;
                next = self.inode(geometry.join_inode(ag, AgInode(next)))?;
            }
        }
        Ok(())
    }

    /// Checks one inode. Returns the next of its list.
    fn inode(&self, ino: InodeNumber) -> Result<u32> {
        let Sharing { bufs, geometry, groups } = self.sharing;
        let found = ImapSource { bufs, geometry, groups }.find(ino)?;
        let inode = Inode::parse(ino, &found, geometry)?;
        let own =
            if inode.is_reflinked() { &[ForkKind::Attr][..] } else { &[ForkKind::Data, ForkKind::Attr] };
        for fork in own.iter().filter_map(|kind| inode.fork_state(*kind)) {
            let extents = ifork::load(bufs, geometry, ino, fork)?;
            match self.sharing.check(ino, &extents, FileBlock(0)..FileBlock(u64::MAX)) {
                Err(Error::Shared(_)) => {
                    return Err(Error::CannotRecover(format!(
                        "inode {ino} has lost its last name and shares blocks with other files, though it is not \
                         marked so"
                    )));
                }
                other => other?,
            }
        }
        Ok(Dinode::ref_from_prefix(found.bytes()).map_or(NULL_AG_INODE, |(raw, _)| raw.next_unlinked.get()))
    }
}
