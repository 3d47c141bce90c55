//! The inodes of one group whose AGI a transaction has locked.
//!
//! The AGI is locked before the AGF of the same group. A lower group's header is never waited for.

use crate::error::{Error, Result};
use crate::trans::{BufIndex, Trans};
use std::mem::{offset_of, size_of};
use xfs_format::ag::{AGI, AgHeader, Agi};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgNumber, DiskAddr};
use xfs_format::verify::Verifier;
use zerocopy::FromBytes;

/// The inodes of a group, in a transaction.
pub struct LockedInodes<'t, 'v> {
    trans: &'t mut Trans<'v>,
    geometry: &'v Geometry,
    ag: AgNumber,
    agi: BufIndex,
}

impl<'t, 'v> LockedInodes<'t, 'v> {
    /// Locks the AGI of a group, waiting for it.
    pub fn lock(trans: &'t mut Trans<'v>, ag: AgNumber) -> Result<Self> {
        let geometry = trans.geometry();
        let daddr = AgHeader::Agi.daddr(geometry, ag);
        let agi = trans.buf_at(daddr, geometry.sector_size.into(), &AGI)?;
        let locked = Self { trans, geometry, ag, agi };
        locked.agi()?.check_group(geometry, ag).map_err(|problem| locked.damaged(problem))?;
        Ok(locked)
    }

    /// The transaction.
    pub fn trans(&self) -> &Trans<'v> {
        self.trans
    }

    /// The transaction.
    pub fn trans_mut(&mut self) -> &mut Trans<'v> {
        self.trans
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &'v Geometry {
        self.geometry
    }

    /// The group.
    pub fn ag(&self) -> AgNumber {
        self.ag
    }

    /// The AGI.
    pub fn agi(&self) -> Result<&Agi> {
        Agi::view(self.trans.bytes(self.agi)).map_err(|problem| self.damaged(problem))
    }

    /// The AGI, for changing counts and roots.
    pub fn agi_mut(&mut self) -> Result<&mut Agi> {
        // The unlinked lists lie in between. Whoever changes those logs them.
        self.trans.bytes_mut(self.agi, offset_of!(Agi, free_root)..size_of::<Agi>());
        self.agi_part(0..offset_of!(Agi, unlinked))
    }

    /// The AGI, for changing an unlinked list.
    pub fn bucket_mut(&mut self, bucket: usize) -> Result<&mut Agi> {
        let at = offset_of!(Agi, unlinked) + bucket * 4;
        self.agi_part(at..at + 4)
    }

    /// Locks a block of one of the group's inode trees.
    pub fn hold_block(&mut self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<()> {
        self.trans.hold_block(self.agi, daddr, verifier)
    }

    /// Releases the AGI's lock if it was not changed.
    pub fn unlock_clean(self) {
        self.trans.release_buf(self.agi);
    }

    /// Corruption in the AGI.
    pub fn damaged(&self, problem: FormatError) -> Error {
        Error::corrupt_block(AgHeader::Agi.daddr(self.geometry, self.ag), None, problem)
    }

    fn agi_part(&mut self, range: std::ops::Range<usize>) -> Result<&mut Agi> {
        let daddr = AgHeader::Agi.daddr(self.geometry, self.ag);
        let bytes = self.trans.bytes_mut(self.agi, range);
        let len = bytes.len() as u64;
        Agi::mut_from_prefix(bytes)
            .map(|(agi, _)| agi)
            .map_err(|_| Error::corrupt_block(daddr, None, FormatError::value("AGI", "length", len)))
    }
}
