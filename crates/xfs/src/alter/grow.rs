//! Growing: the last group becomes as long as the others, and new groups follow it.
//!
//! The order: the new groups are written, and are on stable storage, while nobody uses them. Then the journal is
//! frozen. One transaction lengthens the last group and sets the new size, and is written back. Then the geometry in
//! memory is updated, and transactions go on. So no log ever has a change of a new group that a kernel would replay
//! before it knows of the group. Overwrites and reads go on all the time.
//!
//! As with `xfs_growfs`, the last group has at least 64 blocks; fewer are left out.

use super::{Refusal, copies};
use crate::agf::LockedSpace;
use crate::alloc::{AgExtent, Limits, Space, reserve_pool};
use crate::error::{Error, Result};
use crate::log::FrozenJournal;
use crate::mkfs::{self, Before, VolumeLayout};
use crate::mount::{Mount, WriteSide};
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use fileio::testing::point;
use std::mem::offset_of;
use std::sync::Arc;
use xfs_format::ag::{AGF, AGI, AgHeader, Agf, Agi};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::superblock::{RawSuperblock, Superblock};
use xfs_format::types::AgNumber;

/// Minimum number of blocks of a last group.
const LAST_GROUP_BLOCKS: u64 = 64;

/// What growing would make of a volume.
#[derive(Debug)]
pub struct Growth {
    superblock: Superblock,
    /// Blocks before and after.
    blocks: (u64, u64),
    /// Requested blocks that are too few for a group.
    left_out: u64,
}

/// The result of growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Blocks before.
    pub from: u64,
    /// Blocks now.
    pub to: u64,
    /// Blocks at the end that are too few for a group and belong to nobody.
    pub left_out: u64,
    /// Whether it was stopped, so that the volume is unchanged.
    pub stopped: bool,
}

impl From<&Growth> for Grown {
    fn from(growth: &Growth) -> Self {
        Self { from: growth.blocks.0, to: growth.blocks.1, left_out: growth.left_out, stopped: false }
    }
}

/// What growing to `bytes` would make of the volume, on a device of `device` bytes. Refuses what is impossible.
pub fn plan_growth(mount: &Mount, bytes: u64, device: u64) -> Result<Growth> {
    let geometry = mount.geometry();
    let (wanted, has) = (bytes >> geometry.block_log, geometry.data_blocks());
    if wanted < has {
        return Err(Error::Alter(Refusal::Shrink { has: geometry.bytes(), wanted: bytes }));
    }
    if bytes > device {
        return Err(Error::Alter(Refusal::Device { wanted: bytes, device }));
    }
    let ag_blocks = u64::from(geometry.ag_blocks);
    let rest = wanted % ag_blocks;
    let left_out = if rest < LAST_GROUP_BLOCKS { rest.min(wanted - has) } else { 0 };
    let blocks = wanted - left_out;
    let too_large = || Error::Alter(Refusal::TooLarge { blocks, ag_blocks: geometry.ag_blocks });
    let groups = u32::try_from(blocks.div_ceil(ag_blocks)).map_err(|_| too_large())?;
    let superblock = Superblock::of(copies::committed(mount)?)
        .and_then(|superblock| superblock.resized((blocks, groups)))
        .map_err(|_| too_large())?;
    Ok(Growth { superblock, blocks: (has, blocks), left_out })
}

/// Grows the volume to `bytes`, which its device must have. Others may use it meanwhile. The change is durable when
/// this returns.
pub fn grow(mount: &Arc<Mount>, bytes: u64) -> Result<Grown> {
    grow_unless(mount, bytes, &|| false)
}

/// The same, but calls `stop` before each new group. If it returns `true`, the volume stays unchanged.
pub fn grow_unless(mount: &Arc<Mount>, bytes: u64, stop: &dyn Fn() -> bool) -> Result<Grown> {
    let write = mount.write_side()?;
    let _alone = write.altering.lock();
    // It may have been closed meanwhile.
    mount.check_writable()?;
    let growth = plan_growth(mount, bytes, mount.device().size())?;
    let grown = Grown::from(&growth);
    if grown.to == grown.from {
        return Ok(grown);
    }
    let layout = VolumeLayout::of_volume(&growth.superblock);
    let old_groups = mount.geometry().ag_count();
    let new_groups = || (old_groups..layout.geometry().ag_count()).map(AgNumber);
    for ag in new_groups() {
        if stop() {
            return Ok(Grown { to: grown.from, left_out: 0, stopped: true, ..grown });
        }
        mkfs::write_group(&**mount.device(), &layout, &layout.group(ag), Before::Unknown)?;
    }
    mount.flush()?;
    let frozen = write.journal.freeze()?;
    join(mount, write, &layout, &frozen)?;
    // Write everything back before anybody logs a change of a new group.
    write.journal.quiesce()?;
    copies::follow(mount, old_groups)?;
    Ok(grown)
}

/// Makes what was written part of the volume. Nobody else has a transaction open.
fn join(
    mount: &Arc<Mount>,
    write: &WriteSide,
    layout: &VolumeLayout,
    _still: &FrozenJournal<'_>,
) -> Result<()> {
    let (old, new) = (mount.geometry(), layout.geometry());
    let last = AgNumber(old.ag_count() - 1);
    let longer = new.ag_blocks_of(last) - old.ag_blocks_of(last);
    let limits = Limits::new(new);
    let need = ReservationBuilder::new(old).sectors(3).extents(2);
    let mut kept = Kept::before(mount, write)?;
    let mut trans = Trans::start(mount, need.build())?;
    if longer > 0 {
        let reserve = lengthen(&mut trans, &limits, (old, new), last)?;
        kept.last_group(reserve);
    }
    for ag in (last.0 + 1..new.ag_count()).map(AgNumber) {
        let group = layout.group(ag);
        let (agf, agi) = (mkfs::agf(layout, &group), mkfs::agi(layout, &group));
        trans.give_blocks(u64::from(agf.freeblks.get()) + u64::from(agf.flcount.get()));
        let tree = (new.finobt && new.inobt_counts).then(|| agi.fblocks.get());
        kept.group(limits.ag_reservation(ag, &agf, tree));
    }
    let size = layout.superblock().raw();
    let (dblocks, agcount) = (size.dblocks, size.agcount);
    let range = offset_of!(RawSuperblock, dblocks)..offset_of!(RawSuperblock, agcount) + 4;
    trans.change_superblock(range, |raw| (raw.dblocks, raw.agcount) = (dblocks, agcount))?;
    // With the blocks that become free: nobody reserves them in between, as a buffered write does without a transaction.
    let pool = reserve_pool(new.data_blocks());
    trans.keep_back(kept.more(&limits) + i64::from(pool) - i64::from(write.counters.reserve_pool()));
    let growing = mount.groups_growing();
    let together = write.counters.changing();
    trans.commit()?;
    point("the last group is longer");
    old.grow(new.data_blocks());
    write.counters.reserve_pool_grew(pool);
    drop(together);
    drop(growing);
    write.space.grow(old);
    Ok(())
}

/// Lengthens the last group. Returns what it keeps back then.
fn lengthen<'v>(
    trans: &mut Trans<'v>,
    limits: &Limits,
    (old, new): (&'v Geometry, &'v Geometry),
    ag: AgNumber,
) -> Result<u32> {
    let (from, to) = (old.ag_blocks_of(ag), new.ag_blocks_of(ag));
    let sector = old.sector_size.into();
    let (agi_at, agf_at) = (AgHeader::Agi.daddr(old, ag), AgHeader::Agf.daddr(old, ag));
    let damaged = |daddr| move |problem: FormatError| Error::corrupt_block(daddr, None, problem);
    let agi_buf = trans.buf_at(agi_at, sector, &AGI)?;
    let agi = Agi::view(trans.bytes(agi_buf)).map_err(damaged(agi_at))?;
    agi.check_group(old, ag).map_err(damaged(agi_at))?;
    let tree = (new.finobt && new.inobt_counts).then(|| agi.fblocks.get());
    put(trans.bytes_mut(agi_buf, word(offset_of!(Agi, length))), offset_of!(Agi, length), to);
    let agf_buf = trans.buf_at(agf_at, sector, &AGF)?;
    let agf = Agf::view(trans.bytes(agf_buf)).map_err(damaged(agf_at))?;
    agf.check_group(old, ag).map_err(damaged(agf_at))?;
    put(trans.bytes_mut(agf_buf, word(offset_of!(Agf, length))), offset_of!(Agf, length), to);
    Space::extend(&mut LockedSpace::of_shape(trans, new), limits, ag, AgExtent::new(from, to - from))?;
    let agf = Agf::view(trans.bytes(agf_buf)).map_err(damaged(agf_at))?;
    Ok(limits.ag_reservation(ag, agf, tree))
}

fn word(at: usize) -> std::ops::Range<usize> {
    at..at + 4
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(word(at)) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// What is kept back, without the blocks of the free space trees, which transactions count.
struct Kept {
    set_aside: u64,
    /// For the last group before; for it and all new groups afterwards.
    before: u64,
    then: u64,
    last: u32,
}

impl Kept {
    fn before(mount: &Mount, write: &WriteSide) -> Result<Self> {
        let geometry = mount.geometry();
        let last = AgNumber(geometry.ag_count() - 1);
        let (agf_at, agi_at) = (AgHeader::Agf.daddr(geometry, last), AgHeader::Agi.daddr(geometry, last));
        let sector = geometry.sector_size.into();
        let agf = mount.bufs().read(agf_at, sector, &AGF)?;
        let agf = Agf::view(&agf).map_err(|problem| Error::corrupt_block(agf_at, None, problem))?;
        let agi = mount.bufs().read(agi_at, sector, &AGI)?;
        let agi = Agi::view(&agi).map_err(|problem| Error::corrupt_block(agi_at, None, problem))?;
        let tree = (geometry.finobt && geometry.inobt_counts).then(|| agi.fblocks.get());
        let limits = write.space.limits();
        let last = limits.ag_reservation(last, agf, tree);
        Ok(Self { set_aside: limits.set_aside(), before: last.into(), then: 0, last })
    }

    /// The last group became longer and keeps this much.
    fn last_group(&mut self, reserve: u32) {
        self.last = reserve;
    }

    /// A new group.
    fn group(&mut self, reserve: u32) {
        self.then += u64::from(reserve);
    }

    /// By how much it has grown.
    fn more(&self, limits: &Limits) -> i64 {
        let then = self.then + u64::from(self.last) + limits.set_aside();
        then.cast_signed() - (self.before + self.set_aside).cast_signed()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::check::{CheckOptions, check};
    use crate::mkfs::{Groups, Options, format, plan};
    use crate::namespace::{self, NewInode};
    use crate::volume::{OpenOptions, Volume};
    use blockdev::{BlockDevice, MemoryDevice};
    use std::sync::mpsc;
    use std::thread;
    use xfs_format::timestamp::Timestamp;
    use xfs_format::types::Uuid;

    const DEVICE: u64 = 256 << 20;
    const GROUP: u64 = 20 << 20;
    const TIME: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

    fn open(device: &Arc<dyn BlockDevice>) -> Arc<Volume> {
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        Volume::open(Arc::clone(device), &options).unwrap()
    }

    /// A volume of two groups, the second of which is short.
    fn made() -> (Arc<dyn BlockDevice>, Arc<Volume>) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(DEVICE).unwrap());
        let new = Options::new(Uuid([7; 16]), TIME);
        let new =
            Options { small: true, size: Some(GROUP + (17 << 20)), groups: Groups::Bytes(GROUP), ..new };
        format(&*device, &plan(&new, DEVICE).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        (device, volume)
    }

    fn counters(volume: &Volume) -> (u64, u64, u64) {
        let counters = &volume.write_side().unwrap().counters;
        (counters.free_blocks(), counters.available_blocks(), counters.inodes())
    }

    /// After growing, the volume's state in memory is the same as after opening it anew.
    #[test]
    fn counters_and_limits_follow() {
        let (device, mut volume) = made();
        // Only the last group, so that it is complete; new groups; an end that is too short for one; and one that is
        // not.
        for bytes in
            [2 * GROUP, 4 * GROUP + (16 << 20), 6 * GROUP + (63 << 12), 6 * GROUP + (64 << 12), DEVICE]
        {
            let grown = grow(&volume, bytes).unwrap();
            let left_out = if bytes == 6 * GROUP + (63 << 12) { 63 } else { 0 };
            assert_eq!((grown.to + grown.left_out, grown.left_out), (bytes >> 12, left_out));
            assert_eq!(volume.geometry().data_blocks(), grown.to);
            let space = &volume.write_side().unwrap().space;
            let limits = format!("{:?}", space.limits());
            let most = volume.write_side().unwrap().inodes.geometry().most(volume.geometry());
            let now = counters(&volume);
            volume.close().unwrap();
            drop(volume);
            assert!(check(Arc::clone(&device), &CheckOptions::default()).unwrap().is_clean());
            volume = open(&device);
            assert_eq!(counters(&volume), now, "{bytes}");
            let write = volume.write_side().unwrap();
            assert_eq!(format!("{:?}", write.space.limits()), limits);
            assert_eq!(write.inodes.geometry().most(volume.geometry()), most);
        }
    }

    /// A buffered write reserves blocks without a transaction, in the midst of a growth too: never those that are set aside.
    #[test]
    fn nobody_reserves_what_a_growth_sets_aside() {
        let (_device, volume) = made();
        grow(&volume, DEVICE).unwrap();
        let can_be_had = counters(&volume).1;
        let (_device, volume) = made();
        let (tells, told) = mpsc::channel();
        fileio::testing::at("the last group is longer", {
            let volume = Arc::clone(&volume);
            move || tells.send(volume.write_side().unwrap().counters.reserve_some(u64::MAX)).unwrap()
        });
        grow(&volume, DEVICE).unwrap();
        let reserved = told.recv().unwrap();
        assert_eq!(reserved + counters(&volume).1, can_be_had);
        volume.write_side().unwrap().counters.return_blocks(reserved);
        assert_eq!(counters(&volume).1, can_be_had);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (_device, volume) = made();
        let has = volume.geometry().bytes();
        let shrink = grow(&volume, has - 4096).unwrap_err();
        assert!(matches!(shrink, Error::Alter(Refusal::Shrink { .. })), "{shrink}");
        let device = grow(&volume, DEVICE + 4096).unwrap_err();
        assert!(matches!(device, Error::Alter(Refusal::Device { .. })), "{device}");
        let same = grow(&volume, has).unwrap();
        assert_eq!((same.from, same.to), (has >> 12, has >> 12));
        assert!(volume.write_side().unwrap().journal.freeze().unwrap().is_untouched());
    }

    /// Regression: a reader of the last group's headers in the middle of growing reported them as damaged.
    #[test]
    fn a_look_at_the_last_group_waits_for_the_end_of_its_growth() {
        let (_device, volume) = made();
        let (found, finds) = mpsc::channel();
        let readers = mpsc::channel();
        fileio::testing::at("the last group is longer", {
            let volume = Arc::clone(&volume);
            move || {
                let reader = thread::spawn(move || {
                    fileio::testing::at(crate::group::DISAGREE, move || found.send(()).unwrap());
                    let last = AgNumber(1);
                    (volume.group_inodes(last).map(drop), volume.group_space(last).map(drop))
                });
                finds.recv().unwrap();
                readers.0.send(reader).unwrap();
            }
        });
        grow(&volume, DEVICE).unwrap();
        let seen = readers.1.recv().unwrap().join().unwrap();
        assert!(matches!(seen, (Ok(()), Ok(()))), "{seen:?}");
    }

    /// An open transaction ends before, and a new one begins after.
    #[test]
    fn growing_waits_for_a_transaction_that_is_open() {
        let (device, volume) = made();
        let root = volume.handle(volume.geometry().root).unwrap();
        let make = |name: &[u8]| {
            namespace::create(&volume, &root, name, &NewInode::for_tests(0o100_644, TIME)).map(drop)
        };
        make(b"before").unwrap();
        let trans =
            Trans::start(&volume, ReservationBuilder::new(volume.geometry()).sectors(1).build()).unwrap();
        let grows = thread::spawn({
            let volume = Arc::clone(&volume);
            move || grow(&volume, DEVICE).unwrap()
        });
        while !volume.write_side().unwrap().journal.at_gate().0 {
            thread::yield_now();
        }
        assert_eq!(volume.geometry().ag_count(), 2);
        drop(trans);
        assert_eq!(grows.join().unwrap().to, DEVICE >> 12);
        make(b"behind").unwrap();
        drop(root);
        volume.close().unwrap();
        drop(volume);
        assert!(check(device, &CheckOptions::default()).unwrap().is_clean());
    }
}
