//! An attribute change from an intent (ATTRI), and how it is logged.
//!
//! Invariant: only recovery has such work. Our own attribute changes run in one transaction and log no attribute
//! intent.

use crate::log::{LogVector, VecSize};
use crate::trans::reservation::ReservationBuilder;
use xfs_format::attr::AttrFlags;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::log::{AttrChange, AttrIntent, AttrOp};
use xfs_format::types::InodeNumber;

/// An attribute change, as an intent describes it.
#[derive(Clone, Debug)]
pub(crate) struct AttrWork {
    ino: InodeNumber,
    generation: u32,
    op: AttrOp,
    filter: AttrFlags,
    /// Name, new name, value, new value.
    parts: [Box<[u8]>; 4],
}

impl From<&AttrChange<'_>> for AttrWork {
    fn from(change: &AttrChange<'_>) -> Self {
        let AttrChange { ino, generation, op, filter, name, new_name, value, new_value } = *change;
        Self { ino, generation, op, filter, parts: [name, new_name, value, new_value].map(Box::from) }
    }
}

impl AttrWork {
    /// The inode that has the attribute.
    pub(crate) fn ino(&self) -> InodeNumber {
        self.ino
    }

    /// What is done to it.
    pub(crate) fn op(&self) -> AttrOp {
        self.op
    }

    /// The change in the log's format.
    pub(crate) fn change(&self) -> AttrChange<'_> {
        let Self { ino, generation, op, filter, .. } = *self;
        let [name, new_name, value, new_value] = self.parts.each_ref().map(|part| &**part);
        AttrChange { ino, generation, op, filter, name, new_name, value, new_value }
    }

    /// Checks that the volume can have such a change.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), FormatError> {
        self.change().check(geometry)
    }

    /// Regions of the intent.
    pub(in crate::trans) fn log_size(&self) -> VecSize {
        let fixed = VecSize::default().region(AttrIntent::BYTES);
        self.change().regions().fold(fixed, |size, part| size.region(part.len().next_multiple_of(4)))
    }

    /// Adds the regions of the intent.
    pub(in crate::trans) fn encode(&self, id: u64, vector: &mut LogVector) {
        let change = self.change();
        vector.region_with(AttrIntent::BYTES, |to| change.encode(id, to));
        for part in change.regions() {
            vector.region_with(part.len().next_multiple_of(4), |to| {
                to.iter_mut().zip(part).for_each(|(to, &byte)| *to = byte);
            });
        }
    }

    /// Reserves for it: an attribute is removed and another one added.
    pub(crate) fn reservation<'g>(&self, need: ReservationBuilder<'g>) -> ReservationBuilder<'g> {
        let longest = self.parts.iter().map(|part| part.len() as u64).max().unwrap_or(0);
        // Including headers and the rest of the last block.
        let value_blocks = longest.div_ceil(need.block_bytes() - 64) + 1;
        need.inodes(1).attr_change(0).attr_change(value_blocks).first_attribute().log_count(2)
    }
}
