//! What recovery does once the volume is open for writing: what was promised and not done, in the order of the log, and
//! the inodes that had no name left when the crash came.
//!
//! Invariants: the intents of the log before the crash are in the AIL before anything is written to the log, and leave
//! it with the checkpoint in which they are done, so that a crash at any time finds those that are left. What depends on
//! each other stays in order: no promise is made anew, but for freeings that are too many for one transaction and counts
//! that the log has no room for, and what arises from a promise is done behind all that were found. Nothing is begun for
//! which the log may never have room: recovery alone uses it, and would wait for itself.

use super::attrs::change_attr;
use super::survey::Unfinished;
use super::{Recovered, Report};
use crate::error::{Error, Result};
use crate::exchange;
use crate::file;
use crate::ialloc;
use crate::inactive;
use crate::log::Journal;
use crate::mount::Mount;
use crate::trans::reservation::{Need, Reservation};
use crate::trans::{Arisen, Intent, Trans, Work, ids_behind};
use std::collections::BTreeSet;
use std::sync::Arc;
use xfs_format::ag::{AGI, AgHeader, Agi, NULL_AG_INODE};
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgNumber, InodeNumber};

impl Unfinished {
    /// Whether what it names lies in the volume, each extent in one group.
    pub(super) fn check(&self, geometry: &Geometry) -> Result<()> {
        let corrupt = |problem| Error::Corrupt { daddr: None, inode: None, problem };
        self.promise.iter().try_for_each(|promise| promise.check(geometry).map_err(corrupt))
    }
}

/// Work that the log of an open volume owes.
#[derive(Debug)]
pub(crate) struct Owed {
    intents: Vec<Arc<Intent>>,
    report: Report,
}

impl Recovered {
    /// Lets the intents hold the tail of a journal that was just opened. What is behind the tail may be most of the log;
    /// but whoever promised something had the room reserved to do it.
    pub(crate) fn adopt(self, journal: &Journal, geometry: &Geometry) -> Result<Owed> {
        ids_behind(self.highest_id);
        let mut intents = Vec::with_capacity(self.unfinished.len());
        for Unfinished { id, lsn, promise, .. } in self.unfinished {
            // One without was refused before anything was written.
            let intent = Intent::found(id, promise.ok_or(Error::ShutDown)?);
            journal.adopt(lsn, Arc::clone(&intent) as Arc<dyn crate::log::LogItem>);
            intents.push(intent);
        }
        // In this order: each that is done lets the tail move on.
        if let Some(first) = intents.first() {
            let owed = relog_bytes(&intents);
            let fits = |needs: Reservation| {
                journal.check_beside(needs.log_bytes, needs.log_count, needs.intent_bytes, owed)
            };
            let pieces = most_pieces(first, geometry, fits);
            let Reservation { log_bytes, log_count, .. } = reservation(first, geometry, pieces);
            journal.check_room(log_bytes, log_count).map_err(unfinishable)?;
        }
        Ok(Owed { intents, report: self.report })
    }
}

impl Owed {
    /// Does what is owed. Nobody else uses the volume yet. [`Error::CannotFinish`] if the log has no room for it: what was
    /// done until then is in the log, and so is what is left.
    pub(crate) fn finish(self, volume: &Arc<Mount>) -> Result<Report> {
        self.keep_promises(volume).map_err(unfinishable)?;
        let mut report = self.report.clone();
        let extents = |intent: &Arc<Intent>| intent.promise().frees().len() as u64;
        report.extents_freed += self.intents.iter().map(extents).sum::<u64>();
        self.free_speculated(volume)?;
        for ag in (0..volume.geometry().ag_count()).map(AgNumber) {
            for ino in unlinked(volume, ag)? {
                match volume.entry(ino).and_then(|entry| inactive::release_if_unused(volume, &entry)) {
                    Ok(()) => report.inodes_freed += 1,
                    // It stays on its list, for `xfs_repair`. Who closes the volume is told.
                    Err(Error::Corrupt { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        volume.sync()?;
        Ok(report)
    }

    /// What was found first, and then what arose of it.
    fn keep_promises(&self, volume: &Arc<Mount>) -> Result<()> {
        let mut arisen = Arisen::default();
        let mut owed = relog_bytes(&self.intents);
        for intent in &self.intents {
            let (mut trans, pieces) = start(volume, intent, owed, &mut arisen)?;
            owed -= intent.promise().relog_bytes();
            match is_at_once(intent) {
                true => trans.keep_promise(intent, pieces, carry_out)?,
                false => trans.take_over(intent, carry_out),
            }
            arisen.add(trans.capture()?);
        }
        arisen.finish(volume)
    }

    /// Files whose maps were changed give back what they have behind their ends, as they do when a kernel lets go of them
    /// behind its recovery: a mapping that was promised may be of a write that the file's size was never told of.
    fn free_speculated(&self, volume: &Arc<Mount>) -> Result<()> {
        let inodes: BTreeSet<_> =
            self.intents.iter().flat_map(|intent| intent.promise().remapped()).collect();
        for ino in inodes {
            let entry = volume.entry(ino)?;
            if entry.peek().nlink() > 0 {
                file::free_speculated(volume, &entry)?;
            }
        }
        Ok(())
    }
}

/// Carries out a piece of work, of whatever kind; gives what is left of it.
pub(super) fn carry_out(trans: &mut Trans<'_>, work: Work) -> Result<Option<Work>> {
    match work {
        Work::Attr(work) => change_attr(trans, &work).map(|()| None),
        other => exchange::carry_out(trans, other),
    }
}

/// Freeings that one transaction does at most: as many as a kernel of today promises in one intent.
const FREED_AT_ONCE: usize = 16;

/// Whether what an intent promised is done in the transaction that ends it: all but freeings that are too many. Those are in
/// logs of old kernels alone, which know nothing that depends on their order.
fn is_at_once(intent: &Intent) -> bool {
    intent.promise().frees().len() <= FREED_AT_ONCE
}

/// Bytes that it takes to log intents again.
fn relog_bytes(intents: &[Arc<Intent>]) -> u64 {
    intents.iter().map(|intent| intent.promise().relog_bytes()).sum()
}

/// Opens a transaction that does what an intent promised, or so many pieces of it. Where the log has no room for that, what
/// arose so far is made to take less; and before, where whoever recovers the log next, for whom that was promised as well,
/// would have none.
fn start<'v>(
    volume: &'v Arc<Mount>,
    intent: &Intent,
    owed: u64,
    arisen: &mut Arisen,
) -> Result<(Trans<'v>, usize)> {
    let geometry = volume.geometry();
    let fits = |needs| Trans::check_alone(volume, needs, owed);
    let all = reservation(intent, geometry, intent.promise().pieces());
    let spare = u64::from(all.log_bytes) + u64::from(all.intent_bytes);
    let is_near = || Trans::check_alone(volume, all, owed + spare).is_err();
    if fits(all).is_err() || arisen.is_much() && is_near() {
        arisen.gather(volume, owed)?;
    }
    let pieces = most_pieces(intent, geometry, fits);
    let trans = Trans::start_alone(volume, reservation(intent, geometry, pieces), owed)?;
    Ok((trans, pieces))
}

/// As many pieces of what an intent promised as one transaction can do: of counts no more than the log has room for, of all
/// else all there are.
fn most_pieces(intent: &Intent, geometry: &Geometry, fits: impl Fn(Reservation) -> Result<()>) -> usize {
    let all = intent.promise().pieces();
    let least = if intent.promise().is_count() { all.min(1) } else { all };
    (least..=all).rev().find(|&pieces| fits(reservation(intent, geometry, pieces)).is_ok()).unwrap_or(least)
}

/// What it takes to do so many pieces of what an intent promised, of counts alone less than all.
fn reservation(intent: &Intent, geometry: &Geometry, pieces: usize) -> Reservation {
    let (promise, need) = (intent.promise(), Need::new(geometry));
    match is_at_once(intent) {
        // What an attribute takes is seldom needed, and must not keep a full volume from being recovered.
        true => promise.need_at_once(need, pieces).reservation().or_no_blocks(),
        false => promise.need(need).steps(2).reservation(),
    }
}

/// A log without room is one that cannot be recovered.
fn unfinishable(error: Error) -> Error {
    match error {
        Error::LogTooSmall { needed, room } => Error::CannotFinish { needed, room },
        other => other,
    }
}

/// The inodes of a group that have no name and were in use.
fn unlinked(volume: &Arc<Mount>, ag: AgNumber) -> Result<Vec<InodeNumber>> {
    let geometry = volume.geometry();
    let daddr = AgHeader::Agi.daddr(geometry, ag);
    let buf = volume.bufs().read(daddr, geometry.sector_size.into(), &AGI)?;
    let agi = Agi::view(&buf).map_err(|problem| Error::corrupt_block(daddr, None, problem))?;
    let mut found = Vec::new();
    if agi.unlinked.iter().any(|head| head.get() != NULL_AG_INODE) {
        let mut trans = Trans::start(volume, Need::new(geometry).unlinked().reservation())?;
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

    /// Those whose logs may be as small as these tests have them.
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
        Trans::start(volume, Need::new(volume.geometry()).extents(1).frees(1).steps(2).reservation()).unwrap()
    }

    fn taken(volume: &Arc<Volume>, blocks: u32) -> FsBlock {
        taken_in(volume, AgNumber(0), blocks)
    }

    fn taken_in(volume: &Arc<Volume>, ag: AgNumber, blocks: u32) -> FsBlock {
        let need = Need::new(volume.geometry()).extents(1).blocks(blocks.into());
        let mut trans = Trans::start(volume, need.reservation()).unwrap();
        let request = Request::new(blocks, blocks, Purpose::Data);
        let got = agf::allocate(&mut trans, Target::In(ag), request).unwrap();
        trans.commit().unwrap();
        got.start(volume.geometry())
    }

    /// A promise to free blocks held the log's tail while the log filled up behind it. Recovery asked for an eighth of the
    /// log besides, and refused the volume.
    #[test]
    fn a_log_that_an_old_intent_keeps_full_is_recovered() {
        let device = memory();
        let new = Options::new(Uuid([7; 16]), Timestamp { secs: 1, nanos: 0 });
        let new = Options { small: true, log_size: Some(6 << 20), features: old(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        let blocks = taken(&volume, 8);
        let mut promise = freeing(&volume);
        defer::free_later(&mut promise, InodeNumber(0), blocks, 8, None).unwrap();
        promise.roll().unwrap();
        promise.keep_intents_where_they_are();
        let space = || volume.write_side().unwrap().journal.space();
        while space().0 < space().1 / 16 * 15 {
            let block = taken(&volume, 1);
            let mut trans = freeing(&volume);
            defer::free_later(&mut trans, InodeNumber(0), block, 1, None).unwrap();
            trans.commit().unwrap();
            volume.sync().unwrap();
        }
        // Nothing more is committed: whatever is written back meanwhile is in the log as well.
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

    /// What a device holds, on another.
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

    /// Records of a checkpoint that is longer than one named the log's head for its tail, though intents of before the
    /// crash were not taken over yet: when the power failed again before the checkpoint was whole, nobody found them any
    /// more, and what they promised to free belonged to nobody.
    #[test]
    fn intents_outlive_a_crash_in_the_first_checkpoint_behind_a_recovery() {
        use blockdev::{Fault, FaultDevice, Op, Repeat};
        const EXTENTS: u64 = 2500;
        let device = memory();
        let new = Options::new(Uuid([7; 16]), Timestamp { secs: 1, nanos: 0 });
        let new = Options { small: true, log_size: Some(6 << 20), features: old(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        // In all groups: the recovery writes to each.
        let group = |n: u64| AgNumber((n % u64::from(volume.geometry().ag_count())) as u32);
        let runs: Vec<FsBlock> = (0..EXTENTS).map(|n| taken_in(&volume, group(n), 1)).collect();
        let need = Need::new(volume.geometry()).extents(1).frees(EXTENTS).steps(1);
        let mut promise = Trans::start(&volume, need.reservation()).unwrap();
        runs.iter().for_each(|run| defer::free_later(&mut promise, InodeNumber(0), *run, 1, None).unwrap());
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

    /// What a promise is about holds the log's tail, and who gave it waits for log space: it is logged again, by nobody
    /// who waits, as often as it takes. A crash then finds it once, also where it is in the log twice.
    #[test]
    fn an_intent_that_holds_the_tail_moves_on() {
        let device = memory();
        let new = Options::new(Uuid([7; 16]), Timestamp { secs: 1, nanos: 0 });
        let new = Options { small: true, log_size: Some(6 << 20), features: old(), ..new };
        format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
        let volume = open(&device);
        let runs: Vec<FsBlock> = (0..20).map(|_| taken(&volume, 1)).collect();
        let need = Need::new(volume.geometry()).extents(1).frees(20).steps(2);
        let mut promise = Trans::start(&volume, need.reservation()).unwrap();
        runs.iter().for_each(|run| defer::free_later(&mut promise, InodeNumber(0), *run, 1, None).unwrap());
        promise.roll().unwrap();
        // Three times round the log.
        let journal = &volume.write_side().unwrap().journal;
        let (_, capacity) = journal.space();
        let (mut logged, mut ids, mut crashed) = (0, promise.intent_ids(), Vec::new());
        while logged < 3 * capacity {
            let need = Need::new(volume.geometry()).extents(1).blocks(1);
            let mut trans = Trans::start(&volume, need.reservation()).unwrap();
            let sector =
                crate::buf::Piece { daddr: AgHeader::Agf.daddr(volume.geometry(), AgNumber(0)), len: 512 };
            let agf = trans.buf_read(&[sector], &xfs_format::ag::AGF).unwrap();
            trans.bytes_mut(agf, 0..512);
            trans.commit().unwrap();
            volume.sync().unwrap();
            // A record's header, and two blocks.
            logged += 3 * 512;
            // Where it was before lies behind the tail that the next checkpoint names, and not yet behind that of this.
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

    /// Three thousand blocks are told to the reverse map and then freed, by intents each. Whoever recovers that is cut at
    /// each of its writes. A promise that was taken over came to lie behind the freeing of its blocks: the next recovery
    /// freed them first, did not find them in the map then, and failed, as that of a kernel did, for ever.
    #[test]
    fn what_depends_on_each_other_stays_in_order_where_a_recovery_is_cut() {
        const FILES: u64 = 200;
        const EXTENTS: u64 = 15;
        let device = memory();
        let time = Timestamp { secs: 1, nanos: 0 };
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
        let need = Need::new(geometry).inodes(FILES).extents(1).rmaps(all).frees(all);
        let mut promise = Trans::start(&volume, need.reservation()).unwrap();
        for file in &files {
            promise.join_inode(Arc::clone(file), file.lock()).unwrap();
            let blocks = FileBlock(0)..FileBlock(2 * EXTENTS);
            let unmapped = bmap::unmap(&mut promise, file.ino(), ForkKind::Data, blocks, usize::MAX).unwrap();
            for extent in unmapped.freed {
                defer::free_later(&mut promise, file.ino(), extent.startblock, extent.blockcount, None)
                    .unwrap();
            }
        }
        promise.roll().unwrap();
        promise.keep_intents_where_they_are();
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
