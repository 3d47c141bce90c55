//! Replay of inodes: the core, and the content of its forks within the inode.

use super::group_replay::GroupReplay;
use crate::error::{Error, Result};
use crate::inode::ForkKind;
use crate::recovery::patch::ByteSpan;
use crate::recovery::transactions::Item;
use xfs_format::bmbt::BmbtRoot;
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::inode::{CORE_LEN_V3, CRC_OFFSET, InodeType, MAGIC, lsn_of};
use xfs_format::log::{InodeFields, InodeFormat, LogDinode};
use xfs_format::types::Lsn;

const NAME: &str = "inode log item";
/// Offset of the field with the start of the attribute fork in the literal area, in units of 8 bytes.
const FORKOFF: usize = 82;

impl GroupReplay<'_> {
    /// Applies the changes of an inode, unless the one on disk is newer.
    pub(super) fn inode(&mut self, lsn: Lsn, format: &InodeFormat, item: &Item<'_>) -> Result<()> {
        let ino = format.ino;
        let damaged = |problem| Error::Corrupt { daddr: Some(format.daddr), inode: Some(ino), problem };
        if self.cancels.is_cancelled((format.daddr, format.len)) {
            self.counts.cancelled += 1;
            return Ok(());
        }
        for (mark, kind) in [(InodeFields::DOWNER, ForkKind::Data), (InodeFields::AOWNER, ForkKind::Attr)] {
            if format.fields.contains(mark) {
                self.owners.insert((ino, kind));
            }
        }
        if self.geometry.dir_block_log > 0 && is_directory(item) {
            self.scattered.directories.insert(ino);
        }
        let at = format.daddr.0.saturating_mul(512).saturating_add(format.offset.into());
        let size = u64::from(self.geometry.inode_size);
        let inside = u64::from(format.offset) + size <= u64::from(format.len) * 512;
        if !inside || self.place_of(ino) != Some(at) {
            return Err(damaged(FormatError::value(NAME, "place", at / 512)));
        }
        let cluster =
            ByteSpan { offset: format.daddr.0.saturating_mul(512), len: u64::from(format.len) * 512 };
        let mut change = self.change_in(cluster, ByteSpan { offset: at, len: size }, NAME)?;
        let inode = change.bytes();
        if !inode.starts_with(&MAGIC.to_be_bytes()) {
            return Err(damaged(FormatError::new(NAME, "magic of the inode on disk")));
        }
        if let Some(there) = lsn_of(inode).filter(|&there| there > lsn) {
            self.newer("an inode", there);
            return Ok(());
        }
        self.apply_core(lsn, format, item, inode).map_err(damaged)?;
        checksum::store(inode, CRC_OFFSET);
        self.inodes.insert(ino);
        self.counts.inodes += 1;
        self.patch.put(change);
        Ok(())
    }

    fn apply_core(
        &self,
        lsn: Lsn,
        format: &InodeFormat,
        item: &Item<'_>,
        inode: &mut [u8],
    ) -> Result<(), FormatError> {
        let missing = || FormatError::new(NAME, "number of regions");
        let core = LogDinode::parse(item.region(0).ok_or_else(missing)?)?;
        if core.version != 3 || core.ino.get() != format.ino.0 {
            return Err(FormatError::mismatch(NAME, "own number", core.ino.get(), format.ino.0));
        }
        core.apply_to(lsn, inode)?;
        let fields = format.fields;
        let forkoff = usize::from(inode[FORKOFF]) * 8;
        let literal = inode.get_mut(CORE_LEN_V3..).ok_or_else(missing)?;
        if forkoff > literal.len() {
            return Err(FormatError::value(NAME, "fork offset", forkoff as u64));
        }
        let (data, attr) = literal.split_at_mut(if forkoff == 0 { literal.len() } else { forkoff });
        if fields.contains(InodeFields::DEV) {
            let place = data.first_chunk_mut::<4>().ok_or_else(missing)?;
            *place = format.rdev.to_be_bytes();
        }
        let mut next = 1;
        for (fork, which, root) in
            [(data, InodeFields::DFORK, InodeFields::DBROOT), (attr, InodeFields::AFORK, InodeFields::ABROOT)]
        {
            if !fields.intersects(which) {
                continue;
            }
            let region = item.region(next).ok_or_else(missing)?;
            next += 1;
            if fields.contains(root) {
                lay_root(region, fork)?;
            } else {
                let room = fork.len();
                let too_long =
                    || FormatError::mismatch(NAME, "length of a fork", region.len() as u64, room as u64);
                fork.get_mut(..region.len()).ok_or_else(too_long)?.copy_from_slice(region);
            }
        }
        Ok(())
    }
}

fn is_directory(item: &Item<'_>) -> bool {
    let core = item.region(0).and_then(|region| LogDinode::parse(region).ok());
    core.is_some_and(|core| InodeType::from_mode(core.mode.get()) == Some(InodeType::Directory))
}

/// The root of a block map is logged in the form of a block. In the inode it has no block header.
fn lay_root(region: &[u8], fork: &mut [u8]) -> Result<(), FormatError> {
    let root = BmbtRoot::from_log(region)?;
    if !root.fits(fork.len()) {
        return Err(FormatError::value(NAME, "length of a map's root", region.len() as u64));
    }
    fork.copy_from_slice(&root.laid_out(fork.len()));
    Ok(())
}
