//! The last part of recovery, once the volume is open for writing: finishes the intents in log order, and frees inodes
//! that had no name left at the crash.
//!
//! Invariants: the intents from before the crash are in the AIL before anything is written to the log, and leave it
//! with the checkpoint that finishes them. So a crash at any time finds those that are left. Dependent work stays in
//! order: no intent is logged anew, except for frees that are too many for one transaction and refcount updates that
//! the log has no room for. Work that an intent causes is done after all intents that were found. Nothing is begun for
//! which the log may never have room, because only recovery uses the log and would wait for itself.

use super::attrs::change_attr;
use super::pass1::Unfinished;
use super::{Recovered, Report};
use crate::error::{Error, Result};
use crate::exchange;
use crate::file;
use crate::ialloc;
use crate::inactive;
use crate::log::Journal;
use crate::mount::Mount;
use crate::trans::reservation::{Reservation, ReservationBuilder};
use crate::trans::{CaptureList, Intent, Trans, Work, ids_behind};
use std::collections::BTreeSet;
use std::sync::Arc;
use xfs_format::ag::{AGI, AgHeader, Agi, NULL_AG_INODE};
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgNumber, InodeNumber};

impl Unfinished {
    /// Checks that what it names lies in the volume, each extent in one group.
    pub(super) fn check(&self, geometry: &Geometry) -> Result<()> {
        let corrupt = |problem| Error::Corrupt { daddr: None, inode: None, problem };
        self.promise.iter().try_for_each(|promise| promise.check(geometry).map_err(corrupt))
    }
}

/// The unfinished intents of an open volume.
#[derive(Debug)]
pub(crate) struct OwedIntents {
    intents: Vec<Arc<Intent>>,
    report: Report,
}

impl Recovered {
    /// Makes the intents hold the tail of a journal that was just opened. Most of the log may lie behind the tail, but
    /// whoever logged an intent had reserved the room to carry it out.
    pub(crate) fn adopt(self, journal: &Journal, geometry: &Geometry) -> Result<OwedIntents> {
        ids_behind(self.highest_id);
        let mut intents = Vec::with_capacity(self.unfinished.len());
        for Unfinished { id, lsn, promise, .. } in self.unfinished {
            // An intent without work that is known here was refused before anything was written.
            let intent =
                Intent::found(id, promise.ok_or(Error::Internal("an intent of no promise was taken up"))?);
            journal.adopt(lsn, Arc::clone(&intent) as Arc<dyn crate::log::LogItem>);
            intents.push(intent);
        }
        // This order matters: each finished intent lets the tail move.
        if let Some(first) = intents.first() {
            let owed = relog_bytes(&intents);
            let fits = |needs: Reservation| {
                journal.check_beside(needs.log_bytes, needs.log_count, needs.intent_bytes, owed)
            };
            let pieces = most_pieces(first, geometry, fits);
            let Reservation { log_bytes, log_count, .. } = reservation(first, geometry, pieces);
            journal.check_room(log_bytes, log_count).map_err(unfinishable)?;
        }
        Ok(OwedIntents { intents, report: self.report })
    }
}

impl OwedIntents {
    /// Finishes them. Nobody else uses the volume yet. [`Error::CannotFinish`] if the log has no room for it. Then what
    /// was done so far is in the log, and so is what is left.
    pub(crate) fn finish(self, mount: &Arc<Mount>) -> Result<Report> {
        self.finish_intents(mount).map_err(unfinishable)?;
        let mut report = self.report.clone();
        let extents = |intent: &Arc<Intent>| intent.work().frees().len() as u64;
        report.extents_freed += self.intents.iter().map(extents).sum::<u64>();
        self.free_speculated(mount)?;
        for ag in (0..mount.geometry().ag_count()).map(AgNumber) {
            for ino in unlinked(mount, ag)? {
                match mount.entry(ino).and_then(|entry| inactive::release_if_unused(mount, &entry)) {
                    Ok(()) => report.inodes_freed += 1,
                    // The inode stays on its unlinked list for `xfs_repair`. Closing the volume reports it.
                    Err(Error::Corrupt { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        mount.sync()?;
        Ok(report)
    }

    /// First the intents that were found, then what they caused.
    fn finish_intents(&self, mount: &Arc<Mount>) -> Result<()> {
        let mut captures = CaptureList::default();
        let mut owed = relog_bytes(&self.intents);
        for intent in &self.intents {
            let (mut trans, pieces) = start(mount, intent, owed, &mut captures)?;
            owed -= intent.work().relog_bytes();
            match is_at_once(intent) {
                true => trans.finish_intent(intent, pieces, finish_item)?,
                false => trans.adopt_intent(intent, finish_item),
            }
            captures.add(trans.capture()?);
        }
        captures.finish(mount)
    }

    /// Files whose maps changed give up blocks past their ends, as they do when a kernel closes them after its
    /// recovery: a logged mapping may be from a write whose size change was never logged.
    fn free_speculated(&self, mount: &Arc<Mount>) -> Result<()> {
        let inodes: BTreeSet<_> = self.intents.iter().flat_map(|intent| intent.work().remapped()).collect();
        for ino in inodes {
            let entry = mount.entry(ino)?;
            if entry.snapshot().nlink() > 0 {
                file::free_eof_blocks(mount, &entry)?;
            }
        }
        Ok(())
    }
}

/// Carries out a piece of work of any kind. Returns what is left of it.
pub(super) fn finish_item(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Attr(work) => change_attr(trans, &work).map(|()| None),
        other => exchange::finish_item(trans, other),
    }
}

/// Maximum number of frees in one transaction: as many as a current kernel puts into one intent.
const FREED_AT_ONCE: usize = 16;

/// Whether an intent is finished in the transaction that logs its done item: all except for too many frees. Those are
/// only in logs of old kernels, which have nothing that depends on their order.
fn is_at_once(intent: &Intent) -> bool {
    intent.work().frees().len() <= FREED_AT_ONCE
}

/// Log bytes to log these intents again.
fn relog_bytes(intents: &[Arc<Intent>]) -> u64 {
    intents.iter().map(|intent| intent.work().relog_bytes()).sum()
}

/// Opens a transaction that finishes an intent, or this many pieces of it. If the log has no room for that, the
/// captured work is gathered first so that it takes less. It is also gathered earlier, if the next recovery, which must
/// carry out the same intents, would have no room.
fn start<'v>(
    mount: &'v Arc<Mount>,
    intent: &Intent,
    owed: u64,
    captures: &mut CaptureList,
) -> Result<(Trans<'v>, usize)> {
    let geometry = mount.geometry();
    let fits = |needs| Trans::check_alone(mount, needs, owed);
    let all = reservation(intent, geometry, intent.work().pieces());
    let spare = u64::from(all.log_bytes) + u64::from(all.intent_bytes);
    let is_near = || Trans::check_alone(mount, all, owed + spare).is_err();
    if fits(all).is_err() || captures.is_much() && is_near() {
        captures.gather(mount, owed)?;
    }
    let pieces = most_pieces(intent, geometry, fits);
    let trans = Trans::start_alone(mount, reservation(intent, geometry, pieces), owed)?;
    Ok((trans, pieces))
}

/// How many pieces of an intent one transaction can do: of refcount updates as many as the log has room for, of
/// everything else all.
fn most_pieces(intent: &Intent, geometry: &Geometry, fits: impl Fn(Reservation) -> Result<()>) -> usize {
    let all = intent.work().pieces();
    let least = if intent.work().is_count() { all.min(1) } else { all };
    (least..=all).rev().find(|&pieces| fits(reservation(intent, geometry, pieces)).is_ok()).unwrap_or(least)
}

/// Reserves for this many pieces of an intent. Only for refcount updates can this be fewer than all.
fn reservation(intent: &Intent, geometry: &Geometry, pieces: usize) -> Reservation {
    let (promise, need) = (intent.work(), ReservationBuilder::new(geometry));
    match is_at_once(intent) {
        // The blocks for an attribute are seldom needed, and must not keep a full volume from being recovered.
        true => promise.reservation_at_once(need, pieces).build().or_no_blocks(),
        false => promise.reservation(need).log_count(2).build(),
    }
}

/// If the log has no room, it cannot be recovered.
fn unfinishable(error: Error) -> Error {
    match error {
        Error::LogTooSmall { needed, room } => Error::CannotFinish { needed, room },
        other => other,
    }
}

/// The inodes of a group that have no name and were in use.
fn unlinked(mount: &Arc<Mount>, ag: AgNumber) -> Result<Vec<InodeNumber>> {
    let geometry = mount.geometry();
    let daddr = AgHeader::Agi.daddr(geometry, ag);
    let buf = mount.bufs().read(daddr, geometry.sector_size.into(), &AGI)?;
    let agi = Agi::view(&buf).map_err(|problem| Error::corrupt_block(daddr, None, problem))?;
    let mut found = Vec::new();
    if agi.unlinked.iter().any(|head| head.get() != NULL_AG_INODE) {
        let mut trans = Trans::start(mount, ReservationBuilder::new(geometry).unlinked().build())?;
        ialloc::for_each_unlinked(&mut trans, ag, &mut |ino| found.push(ino))?;
    }
    Ok(found)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::agf;
    use crate::alloc::{Purpose, Request, Target};
    use crate::bmap;
    use crate::check::{CheckOptions, check};
    use crate::defer;
    use crate::inode::ForkKind;
    use crate::mkfs::{Before, Features, Options, format, plan};
    use crate::namespace::{self, NewInode};
    use crate::volume::{OpenOptions, Volume};
    use blockdev::{BlockDevice, Durability, Fault, FaultDevice, MemoryDevice, Op, Repeat};
    use xfs_format::timestamp::Timestamp;
    use xfs_format::types::{FileBlock, FsBlock, Uuid};

    const BYTES: u64 = 48 << 20;

    /// Features for which logs can be as small as in these tests.
    fn old() -> Features {
        Features::of_kernel("6.1").unwrap()
    }

    fn memory() -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
    }

    fn open(device: &Arc<dyn BlockDevice>) -> Arc<Volume> {
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        Volume::open(Arc::clone(device), &options).unwrap()
    }

    fn freeing(volume: &Arc<Volume>) -> Trans<'_> {
        Trans::start(
            volume,
            ReservationBuilder::new(volume.geometry()).extents(1).frees(1).log_count(2).build(),
        )
        .unwrap()
    }

    fn taken(volume: &Arc<Volume>, blocks: u32) -> FsBlock {
        taken_in(volume, AgNumber(0), blocks)
    }

    fn taken_in(volume: &Arc<Volume>, ag: AgNumber, blocks: u32) -> FsBlock {
        let need = ReservationBuilder::new(volume.geometry()).extents(1).blocks(blocks.into());
        let mut trans = Trans::start(volume, need.build()).unwrap();
        let request = Request::new(blocks, blocks, Purpose::Data);
        let got = agf::allocate(&mut trans, Target::In(ag), request).unwrap();
        trans.commit().unwrap();
        got.start(volume.geometry())
    }

    /// Regression: an intent to free blocks held the log's tail while the log filled up behind it. Recovery asked for
    /// an eighth of the log in addition, and refused the volume.
    #[test]
    fn a_log_that_an_old_intent_keeps_full_is_recovered() {
        let device = memory();
        let new = Options::new(Uuid([7; 16]), Timestamp { seconds: 1, nanoseconds: 0 });
        let new = Options { small: true, log_size: Some(6 << 20), features: old(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        let blocks = taken(&volume, 8);
        let mut promise = freeing(&volume);
        defer::defer_free(&mut promise, InodeNumber(0), blocks, 8, None).unwrap();
        promise.roll().unwrap();
        promise.keep_intents_in_place();
        let space = || volume.write_side().unwrap().journal.space();
        while space().0 < space().1 / 16 * 15 {
            let block = taken(&volume, 1);
            let mut trans = freeing(&volume);
            defer::defer_free(&mut trans, InodeNumber(0), block, 1, None).unwrap();
            trans.commit().unwrap();
            volume.sync().unwrap();
        }
        // Nothing more is committed, so whatever is written back meanwhile is in the log as well.
        let crashed = memory();
        let mut bytes = vec![0; 1 << 20];
        for at in (0..BYTES).step_by(bytes.len()) {
            device.read(at, &mut bytes).unwrap();
            crashed.write(at, &bytes, Durability::Volatile).unwrap();
        }
        drop(promise);
        drop(volume);
        let volume = open(&crashed);
        let report = volume.recovery().expect("the log was dirty");
        assert_eq!((report.extents_freed, report.counts.log_bytes > 5 << 20), (1, true), "{report:?}");
        volume.close().unwrap();
        drop(volume);
        let report = check(crashed, &CheckOptions::default()).unwrap();
        assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
    }

    /// A copy of a device's content.
    fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let to = memory();
        let mut bytes = vec![0; 1 << 20];
        for at in (0..BYTES).step_by(bytes.len()) {
            device.read(at, &mut bytes).unwrap();
            if bytes.iter().any(|&byte| byte != 0) {
                to.write(at, &bytes, Durability::Volatile).unwrap();
            }
        }
        to
    }

    /// Regression: records of the first checkpoint, if it had several, named the log's head as the tail, although
    /// intents from before the crash had not been taken over yet. If the power failed again before the checkpoint was
    /// complete, nobody found these intents, and their blocks belonged to nobody.
    #[test]
    fn intents_outlive_a_crash_in_the_first_checkpoint_behind_a_recovery() {
        use blockdev::{Fault, FaultDevice, Op, Repeat};
        const EXTENTS: u64 = 2500;
        let device = memory();
        let new = Options::new(Uuid([7; 16]), Timestamp { seconds: 1, nanoseconds: 0 });
        let new = Options { small: true, log_size: Some(6 << 20), features: old(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        // In all groups: recovery writes to each.
        let group = |n: u64| AgNumber((n % u64::from(volume.geometry().ag_count())) as u32);
        let runs: Vec<FsBlock> = (0..EXTENTS).map(|n| taken_in(&volume, group(n), 1)).collect();
        let need = ReservationBuilder::new(volume.geometry()).extents(1).frees(EXTENTS).log_count(1);
        let mut promise = Trans::start(&volume, need.build()).unwrap();
        runs.iter().for_each(|run| defer::defer_free(&mut promise, InodeNumber(0), *run, 1, None).unwrap());
        promise.roll().unwrap();
        volume.sync().unwrap();
        let crashed = copy(&device);
        drop(promise);
        drop(volume);
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        let mut crashes = 0;
        for nth in 0.. {
            let image = copy(&crashed);
            let fault = Fault::fail(Op::Write, nth).then(Repeat::ReadOnlyAfter);
            let failing: Arc<dyn BlockDevice> = Arc::new(FaultDevice::new(Arc::clone(&image), vec![fault]));
            let first = Volume::open(failing, &options).map(|_| ());
            let volume = open(&image);
            let freed = volume.recovery().map(|report| report.extents_freed);
            volume.close().unwrap();
            drop(volume);
            let report = check(image, &CheckOptions::default()).unwrap();
            let findings: Vec<_> = report.findings().iter().take(2).collect();
            assert!(
                findings.is_empty(),
                "power failed at write {nth}, {freed:?} were freed then: {findings:?}"
            );
            if first.is_ok() {
                break;
            }
            crashes += 1;
        }
        assert!(crashes >= 5, "only {crashes} crashes on the way");
    }

    /// An intent holds the log's tail, and its transaction waits for log space. It is relogged as often as necessary,
    /// by a thread that does not wait. A crash then finds it once, even where it is in the log twice.
    #[test]
    fn an_intent_that_holds_the_tail_moves_on() {
        let device = memory();
        let new = Options::new(Uuid([7; 16]), Timestamp { seconds: 1, nanoseconds: 0 });
        let new = Options { small: true, log_size: Some(6 << 20), features: old(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        let runs: Vec<FsBlock> = (0..20).map(|_| taken(&volume, 1)).collect();
        let need = ReservationBuilder::new(volume.geometry()).extents(1).frees(20).log_count(2);
        let mut promise = Trans::start(&volume, need.build()).unwrap();
        runs.iter().for_each(|run| defer::defer_free(&mut promise, InodeNumber(0), *run, 1, None).unwrap());
        promise.roll().unwrap();
        // Three times round the log.
        let journal = &volume.write_side().unwrap().journal;
        let (_, capacity) = journal.space();
        let (mut logged, mut ids, mut crashed) = (0, promise.intent_ids(), Vec::new());
        while logged < 3 * capacity {
            let need = ReservationBuilder::new(volume.geometry()).extents(1).blocks(1);
            let mut trans = Trans::start(&volume, need.build()).unwrap();
            let sector =
                crate::buf::BufMap { daddr: AgHeader::Agf.daddr(volume.geometry(), AgNumber(0)), len: 512 };
            let agf = trans.buf_read(&[sector], &xfs_format::ag::AGF).unwrap();
            trans.bytes_mut(agf, 0..512);
            trans.commit().unwrap();
            volume.sync().unwrap();
            // A record's header and two blocks.
            logged += 3 * 512;
            // Its previous place lies before the tail that the next checkpoint names, and not yet before that of this
            // one.
            journal.wait_until_still();
            if ids != promise.intent_ids() {
                ids = promise.intent_ids();
                crashed.push((copy(&device), Some(20)));
            }
        }
        assert!(crashed.len() > 1, "it was logged again {} times", crashed.len());
        crashed.push((copy(&device), Some(20)));
        promise.commit().unwrap();
        volume.sync().unwrap();
        crashed.push((copy(&device), Some(0)));
        volume.close().unwrap();
        crashed.push((device, None));
        for (device, expected) in crashed {
            let volume = open(&device);
            let freed = volume.recovery().map(|report| report.extents_freed);
            assert_eq!(freed, expected, "extents that were freed");
            volume.close().unwrap();
            drop(volume);
            let report = check(device, &CheckOptions::default()).unwrap();
            assert!(
                report.is_clean() && report.log_clean,
                "{:?}",
                report.findings().iter().collect::<Vec<_>>()
            );
        }
    }

    /// Three thousand blocks are recorded in the rmap tree and then freed, each by its own intents. The recovery of
    /// this is interrupted at each of its writes. Regression: an intent that was taken over came to lie behind the one
    /// that frees its blocks. The next recovery freed them first, did not find them in the rmap tree then, and failed
    /// for ever, as did that of a kernel.
    #[test]
    fn what_depends_on_each_other_stays_in_order_where_a_recovery_is_cut() {
        const FILES: u64 = 200;
        const EXTENTS: u64 = 15;
        let device = memory();
        let time = Timestamp { seconds: 1, nanoseconds: 0 };
        let new = Options::new(Uuid([7; 16]), time);
        let features = Features { rmapbt: true, ..old() };
        let new = Options { small: true, log_size: Some(12 << 20), features, ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        let root = volume.handle(volume.geometry().root).unwrap();
        let file = |nth: u64| {
            let new = NewInode::for_tests(0o100_644, time);
            let file = namespace::create(&volume, &root, format!("f{nth}").as_bytes(), &new).unwrap();
            for nth in 0..EXTENTS {
                let blocks = FileBlock(2 * nth)..FileBlock(2 * nth + 1);
                let _given = file::allocate_blocks(&volume, file.entry(), blocks).unwrap();
            }
            Arc::clone(file.entry())
        };
        let files: Vec<_> = (0..FILES).map(file).collect();
        volume.sync().unwrap();
        let (all, geometry) = (FILES * EXTENTS, volume.geometry());
        let need = ReservationBuilder::new(geometry).inodes(FILES).extents(1).rmaps(all).frees(all);
        let mut promise = Trans::start(&volume, need.build()).unwrap();
        for file in &files {
            promise.join_inode(Arc::clone(file), file.ilock()).unwrap();
            let blocks = FileBlock(0)..FileBlock(2 * EXTENTS);
            let unmapped = bmap::unmap(&mut promise, file.ino(), ForkKind::Data, blocks, usize::MAX).unwrap();
            for extent in unmapped.freed {
                defer::defer_free(&mut promise, file.ino(), extent.startblock, extent.blockcount, None)
                    .unwrap();
            }
        }
        promise.roll().unwrap();
        promise.keep_intents_in_place();
        volume.sync().unwrap();
        let crashed = copy(&device);
        drop(promise);
        drop((root, volume));
        for nth in 0.. {
            let image = copy(&crashed);
            let fault = Fault::fail(Op::Write, nth).then(Repeat::ReadOnlyAfter);
            let failing: Arc<dyn BlockDevice> = Arc::new(FaultDevice::new(Arc::clone(&image), vec![fault]));
            let options = OpenOptions { writable: true, ..OpenOptions::default() };
            let is_whole = Volume::open(failing, &options).is_ok();
            open(&image).close().unwrap();
            let report = check(image, &CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "cut at write {nth}: {:?}", report.findings());
            if is_whole {
                assert!(nth > 10, "{nth} writes");
                return;
            }
        }
    }
}
