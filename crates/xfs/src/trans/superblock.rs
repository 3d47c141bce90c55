//! The transactions that change the superblock: the first and the last of a volume that is open for writing, the one that
//! makes its first attribute, and the one that covers the log of an idle one.
//!
//! Invariants: what lies in the superblock and is not changed stays as it is on disk; of all that a transaction locks, the
//! superblock comes last. The last one has nothing else in it, and comes when nobody else has a transaction open or can
//! begin one: only then are the counters those of the volume.

use super::reservation::{Need, Reservation};
use super::{BufIndex, Trans};
use crate::error::{Error, Result};
use crate::log::{CommitSeq, Frozen};
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

/// Logs a superblock with the counters as they are now. Nobody else has a transaction open, or can begin one, as long as
/// the journal is frozen.
pub(crate) fn write_counters(volume: &Arc<Mount>, _still: &Frozen<'_>) -> Result<()> {
    log_counters(start(volume)?)
}

/// Covers the log, if it is idle: see [`Journal::set_cover`](crate::log::Journal::set_cover). Others may change the
/// counters meanwhile, and what the superblock says of them counts only after a clean close; but it never says what no
/// volume can have, which a kernel that replays it refuses.
pub(crate) fn cover(volume: &Arc<Mount>) -> Result<()> {
    match Trans::to_cover(volume, reservation(volume))? {
        Some(trans) => log_counters(trans),
        None => Ok(()),
    }
}

fn log_counters(mut trans: Trans<'_>) -> Result<()> {
    let counters = &trans.volume().write_side()?.counters;
    let icount = counters.inodes();
    let ifree = counters.free_inodes().min(icount);
    let fdblocks = counters.free_blocks().min(trans.geometry().data_blocks());
    let range = offset_of!(RawSuperblock, icount)..offset_of!(RawSuperblock, fdblocks) + 8;
    trans.change_superblock(range, |raw| {
        raw.icount = icount.into();
        raw.ifree = ifree.into();
        raw.fdblocks = fdblocks.into();
    })?;
    trans.commit()?;
    Ok(())
}

/// Bytes of the log that a change of the superblock takes.
pub(super) fn log_bytes(volume: &Mount) -> u32 {
    reservation(volume).log_bytes
}

/// What a part of a transaction tells the superblock besides what it is about.
#[derive(Debug, Default)]
pub(super) struct Tells {
    /// That quota counts are no longer right.
    quota: bool,
    /// That the volume has attributes.
    attributes: bool,
}

impl Tells {
    /// The part is committed.
    pub(super) fn told(self, write: &WriteSide) {
        if self.quota {
            write.quota_counted.store(false, Ordering::Release);
        }
        if self.attributes {
            write.attributes_said.store(true, Ordering::Release);
        }
    }
}

impl Trans<'_> {
    /// Changes what of the superblock lies in `range`. The transaction has reserved a sector for it, and locks nothing more.
    pub(crate) fn change_superblock(
        &mut self,
        range: Range<usize>,
        change: impl FnOnce(&mut RawSuperblock),
    ) -> Result<()> {
        let sector = self.geometry().sector_size.into();
        let buf = self.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
        edit(self, buf, range, change)
    }

    /// Whether this volume's first change is still to come, and has to tell of quota.
    pub(super) fn is_quota_counted(volume: &Mount) -> Result<bool> {
        Ok(volume.write_side()?.quota_counted.load(Ordering::Acquire))
    }

    /// Whether the superblock says that the volume has attributes.
    fn are_attributes_said(&self) -> Result<bool> {
        Ok(self.volume.write_side()?.attributes_said.load(Ordering::Acquire))
    }

    /// Says in the superblock that the volume has attributes, if this makes the first one: kernels do, with what makes it,
    /// and a crash behind that must not leave it unsaid. The transaction has reserved
    /// [`attr_fork`](super::reservation::Need::attr_fork), or [`first_attribute`](super::reservation::Need::first_attribute).
    pub(super) fn say_attributes(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.makes_attributes) || self.are_attributes_said()? {
            return Ok(());
        }
        let sector = self.geometry().sector_size.into();
        let buf = self.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
        // Whoever had it locked before may have done it.
        if !self.are_attributes_said()? {
            let at = offset_of!(RawSuperblock, versionnum);
            edit(self, buf, at..at + 2, |raw| {
                raw.versionnum = (raw.versionnum.get() | VersionFlags::ATTR.bits()).into();
            })?;
            self.tells.attributes = true;
        }
        Ok(())
    }

    /// Has the kernel count anew what each user, group and project takes when it mounts the volume with quota: nobody
    /// keeps these counts up while we write. Goes with the first change of the volume, so that one that is only looked
    /// at, or refuses all that is asked of it, stays as it is.
    pub(super) fn doubt_quota_counts(&mut self) -> Result<()> {
        if !Self::is_quota_counted(self.volume)? || self.is_clean() {
            return Ok(());
        }
        let sector = self.geometry().sector_size.into();
        let buf = self.buf_at(DiskAddr(0), sector, &SUPERBLOCK)?;
        // Whoever had it locked before may have done it.
        if Self::is_quota_counted(self.volume)? {
            let at = offset_of!(RawSuperblock, qflags);
            edit(self, buf, at..at + 2, |raw| {
                let flags = QuotaFlags::from_bits_retain(raw.qflags.get());
                raw.qflags = flags.difference(QuotaFlags::COUNTED).bits().into();
            })?;
            self.tells.quota = true;
        }
        Ok(())
    }
}

/// Changes what of the superblock lies in `range`, in a transaction of its own.
pub(crate) fn change_alone(
    volume: &Arc<Mount>,
    range: Range<usize>,
    change: impl FnOnce(&mut RawSuperblock),
) -> Result<CommitSeq> {
    let mut trans = start(volume)?;
    trans.change_superblock(range, change)?;
    trans.commit()
}

fn reservation(volume: &Mount) -> Reservation {
    Need::new(volume.geometry()).sectors(1).reservation()
}

fn start(volume: &Arc<Mount>) -> Result<Trans<'_>> {
    Trans::start(volume, reservation(volume))
}

/// Changes what of the superblock lies in `range`.
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
    use crate::attr::edit::Put;
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
        let new = Options::new(Uuid([7; 16]), Timestamp { secs: 1, nanos: 0 });
        // Without parent pointers, which are attributes from the start.
        let new = Options { small: true, features: Features::of_kernel("6.1").unwrap(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        let volume = Volume::open(Arc::clone(&device), &options).unwrap();
        (device, volume)
    }

    fn allocating(volume: &Arc<Volume>) -> Trans<'_> {
        Trans::start(volume, Need::new(volume.geometry()).extents(1).blocks(64).reservation()).unwrap()
    }

    /// Clean, with what the superblock counts as it is. Blocks without an owner are what these tests leave.
    fn counts_are_right(device: Arc<dyn BlockDevice>) {
        let report = check(device, &CheckOptions::default()).unwrap();
        let wrong: Vec<_> = report.findings().iter().map(|finding| format!("{finding:?}")).collect();
        assert!(report.log_clean && !wrong.iter().any(|what| what.contains("superblock")), "{wrong:?}");
    }

    /// The counters were written before the transactions were over that were still to change them.
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

    /// Who reserved blocks and then waited for the end of a freeze kept them off the counters.
    #[test]
    fn a_volume_that_is_closed_beside_one_who_would_begin_counts_nothing_of_that() {
        let (device, volume) = made();
        let frozen = volume.write_side().unwrap().journal.freeze().unwrap();
        let begins = thread::spawn({
            let volume = Arc::clone(&volume);
            move || {
                let need = Need::new(volume.geometry()).extents(1).blocks(64);
                Trans::start(&volume, need.reservation()).map(drop)
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

    /// What a device holds, on another: as a crash would leave it.
    fn crashed(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
        let mut bytes = vec![0; 1 << 20];
        for at in (0..BYTES).step_by(bytes.len()) {
            device.read(at, &mut bytes).unwrap();
            image.write(at, &bytes, Durability::Volatile).unwrap();
        }
        image
    }

    /// That a volume has attributes was said when it was closed: a crash behind the first one left it unsaid for good.
    #[test]
    fn a_crash_behind_the_first_attribute_leaves_it_said() {
        let (device, volume) = made();
        let says = |device: &Arc<dyn BlockDevice>| {
            let volume = Volume::open(Arc::clone(device), &OpenOptions::default()).unwrap();
            volume.superblock().version_flags().contains(VersionFlags::ATTR)
        };
        let root = volume.handle(volume.geometry().root).unwrap();
        let change = |name: &[u8], change| {
            let now = Timestamp { secs: 1, nanos: 0 };
            setattr::change_xattr(&volume, &root, Namespace::User, name, change, now)
        };
        // What makes none says of none.
        let missing = change(b"name", XattrChange::Set(b"value", Put::Replace));
        assert!(missing.is_err());
        volume.sync().unwrap();
        assert!(!says(&crashed(&device)));
        change(b"name", XattrChange::Set(b"value", Put::Create)).unwrap();
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

    /// What covers a log beside changes covers nothing: it is tried again, until it is alone.
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
        // Covered, it stays as it is: no record is written any more.
        let seq = journal.newest();
        (0..4).for_each(|_| volume.pass_idle_time().unwrap());
        assert_eq!((journal.newest(), journal.is_covered()), (seq, true));
        // One that joins the same checkpoint.
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
