//! Features that can be added to an existing volume.
//!
//! Two of them only have to be allowed: inodes take up large timestamps and extent counts one by one, when they change.
//! The third needs a number in each group's header, which nobody reads before the superblock has the feature. So the
//! numbers are logged first, and then the features in one transaction.

use crate::alter::{Refusal, copies_follow};
use crate::btree::Cursor;
use crate::error::{Error, Result};
use crate::mkfs::log_blocks_min;
use crate::mount::{Mount, OpenOptions, check_volume, read_superblock};
use crate::recovery::log_ends;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use crate::trans::superblock::change_alone;
use crate::volume::Volume;
use blockdev::{BlockDevice, Claim};
use std::mem::offset_of;
use std::sync::Arc;
use xfs_format::ag::{AGI, AgHeader, Agi};
use xfs_format::btree::{Finobt, Inobt};
use xfs_format::features::{Incompat, RoCompat};
use xfs_format::superblock::{RawSuperblock, Superblock};
use xfs_format::types::AgNumber;

/// A feature that can be switched on in an existing volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// Timestamps reach beyond 2038.
    Bigtime,
    /// The AGI counts the blocks of the inode trees.
    InobtCount,
    /// Extent counts may be 64-bit.
    Nrext64,
}

impl Upgrade {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bigtime, Self::InobtCount, Self::Nrext64];

    /// Whether a volume has it.
    fn is_in(self, superblock: &Superblock) -> bool {
        let (ro_compat, incompat) = self.bits();
        superblock.ro_compat().contains(ro_compat) && superblock.incompat().contains(incompat)
    }

    /// Its name in the tools.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bigtime => "bigtime",
            Self::InobtCount => "inobtcount",
            Self::Nrext64 => "nrext64",
        }
    }

    fn bits(self) -> (RoCompat, Incompat) {
        match self {
            Self::Bigtime => (RoCompat::empty(), Incompat::BIGTIME),
            Self::InobtCount => (RoCompat::INOBTCNT, Incompat::empty()),
            Self::Nrext64 => (RoCompat::empty(), Incompat::NREXT64),
        }
    }
}

/// Switches on features, all that are missing or none, in the volume on `device`, which nobody else may use. Returns
/// those that it already had. [`Refusal::HasFeatures`] if none is missing, [`Error::DirtyLog`] if the log is dirty.
pub fn upgrade(device: Arc<dyn BlockDevice>, features: &[Upgrade]) -> Result<Vec<Upgrade>> {
    let claim = Arc::new(Claim::new(&*device)?);
    let superblock = read_superblock(&*device)?;
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    check_volume(&*device, &superblock, &options)?;
    if !log_ends::log_ends(&*device, &superblock)?.clean {
        return Err(Error::DirtyLog);
    }
    let (there, missing): (Vec<Upgrade>, Vec<Upgrade>) =
        features.iter().partition(|feature| feature.is_in(&superblock));
    if missing.is_empty() {
        let names = there.into_iter().map(Upgrade::name).collect();
        return Err(Error::Alter(Refusal::HasFeatures(names)));
    }
    let (ro_compat, incompat) = check(&superblock, &missing)?;
    let volume = Volume::open_claimed(device, &options, Some(claim))?;
    let done = switch_on(&volume, &missing, ro_compat, incompat);
    done.and(volume.close()).map(|()| there)
}

/// The volume's new features, if it can have them.
fn check(superblock: &Superblock, features: &[Upgrade]) -> Result<(RoCompat, Incompat)> {
    let (mut ro_compat, mut incompat) = (superblock.ro_compat(), superblock.incompat());
    for &feature in features {
        let (ro_bit, bit) = feature.bits();
        if feature == Upgrade::InobtCount && !superblock.ro_compat().contains(RoCompat::FINOBT) {
            return Err(Error::Alter(Refusal::Needs { feature: feature.name(), needs: "finobt" }));
        }
        ro_compat.insert(ro_bit);
        incompat.insert(bit);
    }
    let raw = RawSuperblock {
        features_ro_compat: ro_compat.bits().into(),
        features_incompat: incompat.bits().into(),
        ..*superblock.raw()
    };
    let then = Superblock::of(raw)
        .map_err(|problem| Error::corrupt_block(xfs_format::types::DiskAddr(0), None, problem))?;
    let (needed, blocks) = (log_blocks_min(&then).unwrap_or(u64::MAX), raw.logblocks.get());
    if features.contains(&Upgrade::Nrext64) && u64::from(blocks) < needed {
        return Err(Error::Alter(Refusal::Log { feature: Upgrade::Nrext64.name(), needed, blocks }));
    }
    Ok((ro_compat, incompat))
}

fn switch_on(
    mount: &Arc<Mount>,
    features: &[Upgrade],
    ro_compat: RoCompat,
    incompat: Incompat,
) -> Result<()> {
    if features.contains(&Upgrade::InobtCount) {
        (0..mount.geometry().ag_count()).try_for_each(|ag| count_trees(mount, AgNumber(ag)))?;
    }
    let range =
        offset_of!(RawSuperblock, features_ro_compat)..offset_of!(RawSuperblock, features_incompat) + 4;
    change_alone(mount, range, |raw| {
        raw.features_ro_compat = ro_compat.bits().into();
        raw.features_incompat = incompat.bits().into();
    })?;
    mount.sync()?;
    copies_follow(mount, mount.geometry().ag_count())
}

/// Writes the number of blocks of a group's inode trees into the AGI.
fn count_trees(mount: &Arc<Mount>, ag: AgNumber) -> Result<()> {
    let (bufs, geometry) = (mount.bufs(), mount.geometry());
    let roots = mount.group_inodes(ag)?;
    let inobt = Cursor::<Inobt>::blocks(bufs, geometry, ag, roots.inobt)?;
    let finobt = roots.finobt.map(|root| Cursor::<Finobt>::blocks(bufs, geometry, ag, root)).transpose()?;
    let mut trans = Trans::start(mount, ReservationBuilder::new(geometry).sectors(1).build())?;
    let agi = trans.buf_at(AgHeader::Agi.daddr(geometry, ag), geometry.sector_size.into(), &AGI)?;
    let at = offset_of!(Agi, iblocks);
    let counts = [inobt, finobt.unwrap_or(0)].map(u32::to_be_bytes).concat();
    if let Some(place) = trans.bytes_mut(agi, at..at + 8).get_mut(at..at + 8) {
        place.copy_from_slice(&counts);
    }
    trans.commit()?;
    Ok(())
}
