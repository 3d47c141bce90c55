//! Transactions that change the superblock: the first and the last of a volume that is open for writing, the one that
//! makes its first attribute, and the one that covers an idle log.
//!
//! Invariants: parts of the superblock that are not changed stay as they are on disk. Within a transaction the
//! superblock is locked last. The last transaction has nothing else in it, and comes when nobody else has a transaction
//! open or can begin one: only then are the counters those of the volume.

use super::reservation::{Reservation, ReservationBuilder};
use super::{BufIndex, Trans};
use crate::error::{Error, Result};
use crate::log::{CommitSeq, FrozenJournal};
use crate::mount::{Mount, WriteSide};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use xfs_format::error::FormatError;
use xfs_format::features::{QuotaFlags, VersionFlags};
use xfs_format::superblock::{RawSuperblock, SUPERBLOCK};
use xfs_format::types::DiskAddr;
use zerocopy::FromBytes;

/// Logs a superblock with the current counters. The journal is frozen, so nobody else has a transaction open or can
/// begin one.
pub(crate) fn write_counters(mount: &Arc<Mount>, _still: &FrozenJournal<'_>) -> Result<()> {
    log_counters(start(mount)?)
}

/// Covers the log if it is idle: see [`Journal::set_cover`](crate::log::Journal::set_cover). Others may change the
/// counters meanwhile. That is fine, because those of the superblock count only after a clean close. But it never logs
/// counters that are impossible, because a kernel that replays them refuses the volume.
pub(crate) fn cover(mount: &Arc<Mount>) -> Result<()> {
    match Trans::start_covering(mount, reservation(mount))? {
        Some(trans) => log_counters(trans),
        None => Ok(()),
    }
}

fn log_counters(mut trans: Trans<'_>) -> Result<()> {
    let (counts, blocks) = trans.mount().write_side()?.counters.look(|| trans.geometry().data_blocks());
    let (icount, ifree) = (counts.inodes, counts.free_inodes.min(counts.inodes));
    let fdblocks = counts.free_blocks.min(blocks);
    let range = offset_of!(RawSuperblock, icount)..offset_of!(RawSuperblock, fdblocks) + 8;
    trans.change_superblock(range, |raw| {
        raw.icount = icount.into();
        raw.ifree = ifree.into();
        raw.fdblocks = fdblocks.into();
    })?;
    trans.commit()?;
    Ok(())
}

/// Log bytes of a superblock change.
pub(super) fn log_bytes(mount: &Mount) -> u32 {
    reservation(mount).log_bytes
}

/// What a part of a transaction changes in the superblock on the side.
#[derive(Debug, Default)]
pub(super) struct SuperblockChanges {
    /// The quota counts are no longer right.
    quota: bool,
    /// The volume has attributes.
    attributes: bool,
}

impl SuperblockChanges {
    /// Notes that the part is committed.
    pub(super) fn told(self, write: &WriteSide) {
        if self.quota {
            write.quota_counted.store(false, Ordering::Release);
        }
        if self.attributes {
            write.attr_feature_logged.store(true, Ordering::Release);
        }
    }
}

impl Trans<'_> {
    /// Changes the bytes of the superblock in `range`. The transaction has reserved a sector for it and locks nothing
    /// more.
    pub(crate) fn change_superblock(
        &mut self,
        range: Range<usize>,
        change: impl FnOnce(&mut RawSuperblock),
    ) -> Result<()> {
        let sector = self.geometry().sector_size.into();
        let buf = self.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
        edit(self, buf, range, change)
    }

    /// Whether the volume's first change is still to come and has to clear the quota flags.
    pub(super) fn is_quota_counted(mount: &Mount) -> Result<bool> {
        Ok(mount.write_side()?.quota_counted.load(Ordering::Acquire))
    }

    /// Whether the superblock says that the volume has attributes.
    fn is_attr_feature_logged(&self) -> Result<bool> {
        Ok(self.mount.write_side()?.attr_feature_logged.load(Ordering::Acquire))
    }

    /// Sets the attribute feature in the superblock if this makes the first attribute. Kernels do so in the same
    /// transaction, so that a crash after it cannot leave the feature unset. The transaction has reserved
    /// [`attr_fork`](super::reservation::ReservationBuilder::attr_fork) or
    /// [`first_attribute`](super::reservation::ReservationBuilder::first_attribute).
    pub(super) fn log_attr_feature(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.makes_attributes) || self.is_attr_feature_logged()? {
            return Ok(());
        }
        let sector = self.geometry().sector_size.into();
        let buf = self.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
        // A previous holder of the lock may have done it.
        if !self.is_attr_feature_logged()? {
            let at = offset_of!(RawSuperblock, versionnum);
            edit(self, buf, at..at + 2, |raw| {
                raw.versionnum = (raw.versionnum.get() | VersionFlags::ATTR.bits()).into();
            })?;
            self.superblock_changes.attributes = true;
        }
        Ok(())
    }

    /// Makes the kernel recount quota (users, groups, projects) at its next mount with quota, because these counts are
    /// not kept up here. This goes with the volume's first change. So a volume that is only read, or refuses every
    /// request, stays as it is.
    pub(super) fn clear_quota_counted(&mut self) -> Result<()> {
        if !Self::is_quota_counted(self.mount)? || self.is_clean() {
            return Ok(());
        }
        let sector = self.geometry().sector_size.into();
        let buf = self.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
        // A previous holder of the lock may have done it.
        if Self::is_quota_counted(self.mount)? {
            let at = offset_of!(RawSuperblock, qflags);
            edit(self, buf, at..at + 2, |raw| {
                let flags = QuotaFlags::from_bits_retain(raw.qflags.get());
                raw.qflags = flags.difference(QuotaFlags::COUNTED).bits().into();
            })?;
            self.superblock_changes.quota = true;
        }
        Ok(())
    }
}

/// Changes the bytes of the superblock in `range` in a transaction of its own.
pub(crate) fn change_alone(
    mount: &Arc<Mount>,
    range: Range<usize>,
    change: impl FnOnce(&mut RawSuperblock),
) -> Result<CommitSeq> {
    let mut trans = start(mount)?;
    trans.change_superblock(range, change)?;
    trans.commit()
}

fn reservation(mount: &Mount) -> Reservation {
    ReservationBuilder::new(mount.geometry()).sectors(1).build()
}

fn start(mount: &Arc<Mount>) -> Result<Trans<'_>> {
    Trans::start(mount, reservation(mount))
}

/// Changes the bytes of the superblock in `range`.
fn edit(
    trans: &mut Trans<'_>,
    buf: BufIndex,
    range: Range<usize>,
    change: impl FnOnce(&mut RawSuperblock),
) -> Result<()> {
    let sector = trans.geometry().sector_size.into();
    let (raw, _) = RawSuperblock::mut_from_prefix(trans.bytes_mut(buf, range)).map_err(|_| {
        Error::corrupt_block(DiskAddr(0), None, FormatError::value(SUPERBLOCK.name, "length", sector))
    })?;
    change(raw);
    Ok(())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::agf;
    use crate::alloc::{Purpose, Request, Target};
    use crate::attr::Namespace;
    use crate::attr::edit::SetXattr;
    use crate::check::{CheckOptions, check};
    use crate::mkfs::{Before, Features, Options, format, plan};
    use crate::namespace::XattrChange;
    use crate::setattr;
    use crate::volume::{OpenOptions, Volume};
    use blockdev::{BlockDevice, Durability, MemoryDevice};
    use std::thread;
    use xfs_format::timestamp::Timestamp;
    use xfs_format::types::{AgNumber, Uuid};

    const BYTES: u64 = 48 << 20;

    fn made() -> (Arc<dyn BlockDevice>, Arc<Volume>) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
        let new = Options::new(Uuid([7; 16]), Timestamp { seconds: 1, nanoseconds: 0 });
        // No parent pointers: they are attributes from the start.
        let new = Options { small: true, features: Features::of_kernel("6.1").unwrap(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        let volume = Volume::open(Arc::clone(&device), &options).unwrap();
        (device, volume)
    }

    fn allocating(volume: &Arc<Volume>) -> Trans<'_> {
        Trans::start(volume, ReservationBuilder::new(volume.geometry()).extents(1).blocks(64).build())
            .unwrap()
    }

    /// Checks that the volume is clean and that its superblock's counters are right. These tests leave blocks without
    /// an owner.
    fn counts_are_right(device: Arc<dyn BlockDevice>) {
        let report = check(device, &CheckOptions::default()).unwrap();
        let wrong: Vec<_> = report.findings().iter().map(|finding| format!("{finding:?}")).collect();
        assert!(report.log_clean && !wrong.iter().any(|what| what.contains("superblock")), "{wrong:?}");
    }

    /// Regression: the counters were written before transactions had ended that were still to change them.
    #[test]
    fn a_volume_that_is_closed_beside_a_transaction_counts_what_that_changed() {
        let (device, volume) = made();
        let mut trans = allocating(&volume);
        agf::allocate(&mut trans, Target::In(AgNumber(0)), Request::new(40, 40, Purpose::Data)).unwrap();
        let closing = {
            thread::spawn({
                let volume = Arc::clone(&volume);
                move || volume.close()
            })
        };
        let gate = || volume.write_side().unwrap().journal.at_gate();
        while !gate().0 {
            thread::yield_now();
        }
        trans.commit().unwrap();
        closing.join().unwrap().unwrap();
        drop(volume);
        counts_are_right(device);
    }

    /// Regression: a thread that reserved blocks and then waited for the end of a freeze left them out of the counters.
    #[test]
    fn a_volume_that_is_closed_beside_one_who_would_begin_counts_nothing_of_that() {
        let (device, volume) = made();
        let frozen = volume.write_side().unwrap().journal.freeze().unwrap();
        let begins = thread::spawn({
            let volume = Arc::clone(&volume);
            move || {
                let need = ReservationBuilder::new(volume.geometry()).extents(1).blocks(64);
                Trans::start(&volume, need.build()).map(drop)
            }
        });
        while volume.write_side().unwrap().journal.at_gate().1 == 0 {
            thread::yield_now();
        }
        write_counters(&volume, &frozen).unwrap();
        frozen.close().unwrap();
        assert!(begins.join().unwrap().is_err(), "the journal is closed");
        drop(volume);
        counts_are_right(device);
    }

    #[test]
    fn of_two_who_close_a_volume_one_does_and_the_other_is_told() {
        let (device, volume) = made();
        let closed = || {
            let volume = Arc::clone(&volume);
            thread::spawn(move || volume.close())
        };
        let trans = allocating(&volume);
        let both = [closed(), closed()];
        while !volume.write_side().unwrap().journal.at_gate().0 {
            thread::yield_now();
        }
        drop(trans);
        let ends = both.map(|one| one.join().unwrap().is_ok());
        assert!(ends[0] != ends[1], "{ends:?}");
        assert!(matches!(volume.close(), Err(Error::Shutdown(_))));
        drop(volume);
        counts_are_right(device);
    }

    /// A copy of a device's content, as a crash would leave it.
    fn crashed(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
        let mut bytes = vec![0; 1 << 20];
        for at in (0..BYTES).step_by(bytes.len()) {
            device.read(at, &mut bytes).unwrap();
            image.write(at, &bytes, Durability::Volatile).unwrap();
        }
        image
    }

    /// Regression: the attribute feature was set at close, so a crash after the first attribute left it unset for good.
    #[test]
    fn a_crash_behind_the_first_attribute_leaves_it_said() {
        let (device, volume) = made();
        let says = |device: &Arc<dyn BlockDevice>| {
            let volume = Volume::open(Arc::clone(device), &OpenOptions::default()).unwrap();
            volume.superblock().version_flags().contains(VersionFlags::ATTR)
        };
        let root = volume.handle(volume.geometry().root).unwrap();
        let change = |name: &[u8], change| {
            let now = Timestamp { seconds: 1, nanoseconds: 0 };
            setattr::change_xattr(&volume, &root, Namespace::User, name, change, now)
        };
        // A change that makes no attribute does not set it.
        let missing = change(b"name", XattrChange::Set(b"value", SetXattr::Replace));
        assert!(missing.is_err());
        volume.sync().unwrap();
        assert!(!says(&crashed(&device)));
        change(b"name", XattrChange::Set(b"value", SetXattr::Create)).unwrap();
        volume.sync().unwrap();
        let image = crashed(&device);
        assert!(says(&image), "the attribute is there, and the superblock does not say so");
        Volume::open(Arc::clone(&image), &OpenOptions { writable: true, ..OpenOptions::default() })
            .and_then(|volume| volume.close())
            .unwrap();
        assert!(says(&image));
        counts_are_right(image);
        change(b"name", XattrChange::Remove).unwrap();
        drop(root);
        volume.close().unwrap();
        drop(volume);
        assert!(says(&device));
        counts_are_right(device);
    }

    /// A log is not covered while there are other changes in it. This is retried until it is alone.
    #[test]
    fn a_log_is_covered_only_when_nothing_else_is_in_it() {
        let (_device, volume) = made();
        let journal = &volume.write_side().unwrap().journal;
        let commit = || {
            let mut trans = allocating(&volume);
            agf::allocate(&mut trans, Target::In(AgNumber(0)), Request::new(1, 1, Purpose::Data)).unwrap();
            trans.commit().unwrap();
        };
        commit();
        volume.sync().unwrap();
        let mut intervals = 0;
        while !journal.is_covered() {
            volume.pass_idle_time().unwrap();
            intervals += 1;
        }
        assert_eq!(intervals, 2, "to its place, covered");
        // Once covered, it stays as it is: no more records are written.
        let seq = journal.newest();
        (0..4).for_each(|_| volume.pass_idle_time().unwrap());
        assert_eq!((journal.newest(), journal.is_covered()), (seq, true));
        // Another commit that joins the same checkpoint.
        commit();
        volume.pass_idle_time().unwrap();
        volume.pass_idle_time().unwrap();
        let before = journal.newest();
        cover(&volume).unwrap();
        assert_ne!(journal.newest(), before, "it logs the superblock");
        commit();
        volume.sync().unwrap();
        assert!(!journal.is_covered());
    }
}
