//! What the log's records say, beside flushes that are held: it is stable before they say it, whatever the power leaves of
//! what came behind; on devices with durable writes and without.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports)]
mod common;

use blockdev::{
    BlockDevice, DeviceError, Durability, Fate, Fault, FaultDevice, HoldDevice, Layer, Means, MemoryDevice,
    Op, PowerCuts, Recorder, Recording, Repeat, Rewind, WriteRecord,
};
use common::devices::{copy, holding, log_of};
use common::files::{Random, image_of, new_file, remove};
use common::{made as made_by_mkfs, mounted, repair_finds_nothing};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{scope, sleep};
use std::time::Duration;
use uxfs::{MkfsFeatures, MkfsOptions, OpenOptions, SetXattr, Volume, check_device, mkfs_device};

const BYTES: u64 = 96 << 20;
const PAGE: usize = 4096;
/// What free space holds: no file may show it.
const FOREIGN: u8 = 0xEE;
/// Long enough for other threads to come as far as they can.
const MEANWHILE: Duration = Duration::from_millis(300);

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).unwrap()
}

/// A volume whose free space holds another's bytes, with what `fill` puts there, closed.
fn made(fill: impl FnOnce(&Volume)) -> Arc<dyn BlockDevice> {
    let device = memory();
    device.write(0, &vec![FOREIGN; BYTES as usize], Durability::Volatile).unwrap();
    let options = MkfsOptions::new().small(true).features(MkfsFeatures::of_kernel("6.18").unwrap());
    mkfs_device(Arc::clone(&device), &options, false).unwrap();
    let volume = open(Arc::clone(&device));
    fill(&volume);
    volume.close().unwrap();
    drop(volume);
    device
}

fn content(volume: &Volume, name: &str) -> Option<Vec<u8>> {
    let file = volume.open_file(name).ok()?;
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    Some(bytes)
}

/// Makes so many files with large attributes that no record has room for all of it.
fn change_much(volume: &Volume) {
    for nth in 0..200 {
        let file = new_file(volume, &format!("x{nth}"));
        file.node().set_xattr(b"user.large", &[9; 3000], SetXattr::Either).unwrap();
    }
}

/// Holds one flush when it is over below, and before anybody is told.
#[derive(Debug)]
struct HoldsFlush {
    /// How many flushes are to come until the one that is held; 0: none is.
    left: AtomicUsize,
    is_held: Mutex<bool>,
    changed: Condvar,
    inner: Arc<dyn BlockDevice>,
}

impl Layer for HoldsFlush {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()?;
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left == Ok(1) {
            *self.is_held.lock().unwrap() = true;
            self.changed.notify_all();
            self.wait(false);
        }
        Ok(())
    }
}

impl HoldsFlush {
    fn wait(&self, is_held: bool) {
        let held = self.is_held.lock().unwrap();
        drop(self.changed.wait_while(held, |held| *held != is_held).unwrap());
    }

    fn hold(&self, nth: usize) {
        self.left.store(nth, Ordering::SeqCst);
    }

    fn release(&self) {
        *self.is_held.lock().unwrap() = false;
        self.changed.notify_all();
    }
}

/// A volume on a device that records, whose flushes and records may be held.
struct Stage {
    before: Arc<dyn BlockDevice>,
    log: Range<u64>,
    recorder: Arc<Recorder>,
    record: Arc<HoldDevice>,
    flush: Arc<HoldsFlush>,
    volume: Volume,
}

impl Stage {
    fn set(device: Arc<dyn BlockDevice>, has_fua: bool) -> Self {
        let before = copy(&*device);
        let log = log_of(&*before);
        let recorder = Arc::new(Recorder::new(device));
        let record = Arc::new(HoldDevice::new(recorder.clone()));
        let flush = Arc::new(HoldsFlush {
            left: AtomicUsize::new(0),
            is_held: Mutex::new(false),
            changed: Condvar::new(),
            inner: record.clone(),
        });
        let volume = open(Means { fua: has_fua, write_cache: true }.of(flush.clone()));
        Self { before, log, recorder, record, flush, volume }
    }

    /// What was recorded, and what it was done to. Nobody has a file open.
    fn over(self) -> (Recording, Arc<Rewind>, Range<u64>) {
        let recording = self.recorder.recording();
        drop(self.volume);
        (recording, Arc::new(Rewind::new(self.before)), self.log)
    }
}

/// A record is not written before the data of whose blocks it tells are stable: also where the flush before it was for
/// another one.
#[test]
fn data_are_stable_before_the_record_that_tells_of_them() {
    for (has_fua, nth) in [(false, 1), (false, 2), (true, 1)] {
        let device = made(|volume| {
            new_file(volume, "a").write_at(&[1; 2 * PAGE], 0).unwrap();
            new_file(volume, "b");
        });
        let stage = Stage::set(device, has_fua);
        let (a, b) = (stage.volume.open_file("a").unwrap(), stage.volume.open_file("b").unwrap());
        stage.volume.sync().unwrap();
        let (start, synced) = (stage.recorder.moment(), AtomicU64::new(u64::MAX));
        scope(|scope| {
            a.write_at(&[2; PAGE], 2 * PAGE as u64).unwrap();
            stage.flush.hold(nth);
            scope.spawn(|| a.sync_data().unwrap());
            stage.flush.wait(true);
            b.write_at(&[3; 16 * PAGE], 0).unwrap();
            change_much(&stage.volume);
            scope.spawn(|| {
                b.sync_data().unwrap();
                synced.store(stage.recorder.moment(), Ordering::SeqCst);
            });
            sleep(2 * MEANWHILE);
            stage.flush.release();
        });
        drop((a, b));
        let ((recording, rewind, log), synced) = (stage.over(), synced.into_inner());
        let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
        for cut in start..recording.end() {
            power.advance(cut).unwrap();
            power
                .make(|write| if log.contains(&write.offset) { Fate::Applied } else { Fate::Dropped })
                .unwrap();
            let found = content(&open(rewind.clone()), "b").unwrap();
            assert!(found.iter().all(|byte| *byte == 3), "fua {has_fua}, flush {nth}, cut {cut}");
            assert!(cut < synced || found.len() == 16 * PAGE, "fua {has_fua}, flush {nth}, cut {cut}");
            rewind.rewind().unwrap();
        }
    }
}

/// What is written in place when the last flush for a checkpoint has begun is not made durable by that one.
#[test]
fn what_is_written_behind_the_begin_of_a_flush_needs_another() {
    for (has_fua, nth) in [(false, 1), (false, 2), (true, 1)] {
        let device = made(|volume| new_file(volume, "a").write_at(&[1; PAGE], 0).unwrap());
        let stage = Stage::set(device, has_fua);
        let a = stage.volume.open_file("a").unwrap();
        stage.volume.sync().unwrap();
        let synced = AtomicU64::new(0);
        scope(|scope| {
            a.write_at(&[2; PAGE], PAGE as u64).unwrap();
            stage.flush.hold(nth);
            scope.spawn(|| a.sync_data().unwrap());
            stage.flush.wait(true);
            a.overwrite_at(&[3; PAGE], 0).unwrap();
            scope.spawn(|| {
                a.sync_data().unwrap();
                synced.store(stage.recorder.moment(), Ordering::SeqCst);
            });
            sleep(MEANWHILE);
            stage.flush.release();
        });
        drop(a);
        let (recording, rewind, _) = stage.over();
        let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
        power.advance(synced.into_inner()).unwrap();
        power.make(|_| Fate::Dropped).unwrap();
        let found = content(&open(rewind), "a").unwrap();
        assert!(found == [[3; PAGE], [2; PAGE]].concat(), "fua {has_fua}, flush {nth}");
    }
}

/// Two checkpoints wait behind a record, and one flush serves both: what is written in place behind its begin needs another,
/// the second checkpoint's file, too.
#[test]
fn what_is_written_behind_a_flush_for_two_checkpoints_needs_another() {
    for has_fua in [true, false] {
        let device = made(|volume| {
            ["a", "b", "c"].iter().for_each(|name| new_file(volume, name).write_at(&[1; PAGE], 0).unwrap());
        });
        let stage = Stage::set(device, has_fua);
        let [a, b, c] = ["a", "b", "c"].map(|name| stage.volume.open_file(name).unwrap());
        stage.volume.sync().unwrap();
        let (synced, log) = (AtomicU64::new(0), stage.log.clone());
        scope(|scope| {
            a.write_at(&[2; PAGE], PAGE as u64).unwrap();
            stage.record.hold_next(move |op, at| op == Op::Write && log.contains(&at));
            scope.spawn(|| a.sync_data().unwrap());
            stage.record.wait_until_waiting();
            b.write_at(&[2; PAGE], PAGE as u64).unwrap();
            scope.spawn(|| b.sync_data().unwrap());
            sleep(MEANWHILE);
            change_much(&stage.volume);
            c.write_at(&[2; PAGE], PAGE as u64).unwrap();
            scope.spawn(|| c.sync_data().unwrap());
            sleep(MEANWHILE);
            stage.flush.hold(1);
            stage.record.release();
            stage.flush.wait(true);
            c.overwrite_at(&[3; PAGE], 0).unwrap();
            scope.spawn(|| {
                c.sync_data().unwrap();
                synced.store(stage.recorder.moment(), Ordering::SeqCst);
            });
            sleep(MEANWHILE);
            stage.flush.release();
        });
        drop((a, b, c));
        let (recording, rewind, _) = stage.over();
        let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
        power.advance(synced.into_inner()).unwrap();
        power.make(|_| Fate::Dropped).unwrap();
        let found = content(&open(rewind), "c").unwrap();
        assert!(found == [[3; PAGE], [2; PAGE]].concat(), "fua {has_fua}");
    }
}

/// A record names no tail behind which something was written back that no flush made stable.
#[test]
fn a_record_names_the_tail_of_when_its_flush_began() {
    for has_fua in [true, false] {
        let device = made(|volume| {
            let b = new_file(volume, "b");
            b.node().set_xattr(b"user.small", &[1; 10], SetXattr::Either).unwrap();
        });
        let stage = Stage::set(device, has_fua);
        let (a, b) = (new_file(&stage.volume, "a"), stage.volume.open_file("b").unwrap());
        a.write_at(&[7; PAGE], 0).unwrap();
        stage.volume.sync().unwrap();
        let (start, mut written_back) = (stage.recorder.moment(), 0);
        scope(|scope| {
            b.node().set_xattr(b"user.small", &[2; 10], SetXattr::Either).unwrap();
            stage.flush.hold(1);
            scope.spawn(|| b.sync().unwrap());
            stage.flush.wait(true);
            let before = stage.recorder.recording().writes().len();
            scope.spawn(|| stage.volume.pass_idle_time().unwrap());
            sleep(MEANWHILE);
            written_back = stage.recorder.recording().writes().len() - before;
            stage.flush.release();
        });
        assert!(written_back > 0, "something is written back while the flush is held");
        drop((a, b));
        let (recording, rewind, log) = stage.over();
        let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
        for cut in start..recording.end() {
            power.advance(cut).unwrap();
            for has_log in [true, false] {
                let is_there = |offset| has_log && log.contains(&offset);
                power
                    .make(|write| if is_there(write.offset) { Fate::Applied } else { Fate::Dropped })
                    .unwrap();
                let found = content(&open(rewind.clone()), "a").unwrap_or_default();
                assert!(found == [7; PAGE], "fua {has_fua}, cut {cut}, the log {has_log}");
                rewind.rewind().unwrap();
            }
        }
    }
}

/// A kernel reads all of a log into memory as large as its first record says, and takes what is larger for torn, with all that
/// is behind it. The record of `mkfs.xfs` may be smaller than all that follow: none of ours names it as where recovery begins.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_kernel_finds_what_was_synced_first_behind_the_record_of_mkfs() {
    for stripe in ["su=64k", "su=256k"] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let image = made_by_mkfs(dir.path(), &["-l", stripe]);
        let stage = Stage::set(holding(&std::fs::read(image).unwrap()), true);
        let log = stage.log.clone();
        scope(|scope| {
            drop(new_file(&stage.volume, "first"));
            stage.record.hold_next(move |op, at| op == Op::Write && log.contains(&at));
            scope.spawn(|| stage.volume.sync().unwrap());
            stage.record.wait_until_waiting();
            change_much(&stage.volume);
            scope.spawn(|| stage.volume.sync().unwrap());
            sleep(MEANWHILE);
            stage.record.release();
        });
        let (recording, rewind, log) = stage.over();
        let records: Vec<_> = recording.writes().iter().filter(|write| log.contains(&write.offset)).collect();
        let first = records.iter().find(|record| record.durability == Durability::Fua).unwrap();
        assert!(records[0].started < first.started, "the second checkpoint overtakes it");
        let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
        let (begin, end) = (first.completed.unwrap() + 1, recording.end());
        for cut in (begin..=end).step_by((end - begin) as usize / 4 + 1).chain([end]) {
            power.advance(cut).unwrap();
            power
                .make(|write| if log.contains(&write.offset) { Fate::Applied } else { Fate::Dropped })
                .unwrap();
            let (_dir, image) = image_of(&*rewind);
            assert!(mounted(&image, |dir| dir.join("first").exists()), "{stripe}, cut {cut}");
            repair_finds_nothing(&image);
            rewind.rewind().unwrap();
        }
    }
}

/// Waits behind each flush, and before each other one.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn BlockDevice>,
    time: Duration,
    is_odd: AtomicBool,
}

impl Layer for Slow {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        if self.is_odd.fetch_xor(true, Ordering::SeqCst) {
            sleep(self.time);
        }
        self.inner.flush()?;
        sleep(self.time);
        Ok(())
    }
}

fn slow(inner: Arc<dyn BlockDevice>, milliseconds: u64, has_fua: bool) -> Arc<dyn BlockDevice> {
    let time = Duration::from_millis(milliseconds);
    let slow = Arc::new(Slow { inner, time, is_odd: AtomicBool::new(false) });
    Means { fua: has_fua, write_cache: true }.of(slow)
}

/// What the nth page that is appended holds.
fn nth_byte(nth: usize) -> u8 {
    (nth % 200 + 1) as u8
}

/// Threads append to files of their own and sync them, while others make and remove files; gives when this many pages
/// of each were durable.
fn append_and_sync(volume: &Volume, recorder: &Recorder, seed: u64) -> Vec<Vec<(u64, usize)>> {
    let over = AtomicUsize::new(0);
    let appends = |thread: u64| {
        let mut random = Random((seed * 7 + thread + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let file = volume.open_file(format!("f{thread}")).unwrap();
        let mut durable = Vec::new();
        for nth in 0..40 {
            file.append(&[nth_byte(nth); PAGE]).unwrap();
            match random.below(4) {
                0 => file.sync_data().unwrap(),
                1 => file.sync().unwrap(),
                2 => volume.sync().unwrap(),
                _ => continue,
            }
            durable.push((recorder.moment(), nth + 1));
        }
        over.fetch_add(1, Ordering::SeqCst);
        durable
    };
    let changes = |thread: u64| {
        for nth in 0_u64.. {
            if over.load(Ordering::SeqCst) == 3 {
                return;
            }
            let file = new_file(volume, &format!("x{thread}{nth}"));
            file.node().set_xattr(b"user.large", &[9; 3000], SetXattr::Either).unwrap();
            if let Some(old) = nth.checked_sub(100) {
                remove(volume, &format!("x{thread}{old}"));
            }
        }
    };
    scope(|scope| {
        (0..2).for_each(|thread| drop(scope.spawn(move || changes(thread))));
        let appending: Vec<_> = (0..3).map(|thread| scope.spawn(move || appends(thread))).collect();
        appending.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Whatever of the log and of the rest a power cut leaves: each file holds what was synced, and no byte of another.
#[test]
fn what_was_synced_beside_others_is_there_behind_every_cut() {
    for has_fua in [false, true] {
        let mut random = Random::seeded();
        let seed = random.below(1 << 32);
        let device = made(|volume| (0..3).for_each(|nth| drop(new_file(volume, &format!("f{nth}")))));
        let before = copy(&*device);
        let log = log_of(&*before);
        let recorder = Arc::new(Recorder::new(device));
        let volume = open(slow(recorder.clone(), 4, has_fua));
        let durable = append_and_sync(&volume, &recorder, seed);
        let recording = recorder.recording();
        drop(volume);
        let rewind = Arc::new(Rewind::new(before));
        let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
        let step = recording.end() / 100 + 1;
        let mut cut = 1 + random.below(step);
        while cut < recording.end() {
            power.advance(cut).unwrap();
            for how in 0..3 {
                let pick = random.below(1 << 20);
                let is_there = |offset, started: u64| match (how, log.contains(&offset)) {
                    (0, in_log) => in_log,
                    (1, in_log) => !in_log,
                    (_, in_log) => in_log && !(started ^ pick).is_multiple_of(3),
                };
                power
                    .make(
                        |write| {
                            if is_there(write.offset, write.started) { Fate::Applied } else { Fate::Dropped }
                        },
                    )
                    .unwrap();
                let volume = open(rewind.clone());
                for (nth, durable) in durable.iter().enumerate() {
                    let found = content(&volume, &format!("f{nth}")).unwrap();
                    let least = durable.iter().filter(|(at, _)| *at <= cut).map(|(_, pages)| *pages).max();
                    let is_right = found.len() >= least.unwrap_or(0) * PAGE
                        && found.chunks(PAGE).enumerate().all(|(at, page)| page == [nth_byte(at); PAGE]);
                    assert!(is_right, "seed {seed}, fua {has_fua}, cut {cut}, how {how}, file {nth}");
                }
                drop(volume);
                rewind.rewind().unwrap();
            }
            cut += 1 + random.below(2 * step);
        }
        // The last one is sound as a whole.
        power.advance(recording.end()).unwrap();
        power.make(|_| Fate::Dropped).unwrap();
        open(rewind.clone()).close().unwrap();
        let report = check_device(rewind, &OpenOptions::new()).unwrap();
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
    }
}

/// Whoever asked for another handle of a file without a name had a sync of the volume pass it by, though it had got one.
#[test]
fn a_name_is_not_synced_without_its_content() {
    const ROUNDS: usize = 300;
    let device = made(|_| {});
    let stage = Stage::set(device, true);
    let root = stage.volume.root().unwrap().as_dir().unwrap();
    let mut synced = Vec::new();
    for nth in 0..ROUNDS {
        let file = root.create_unnamed(&uxfs::NewNode::default()).unwrap().buffered();
        file.write_at(&[7; PAGE], 0).unwrap();
        let is_over = AtomicBool::new(false);
        scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        drop(file.buffered());
                    }
                });
            }
            root.link(format!("n{nth}").as_bytes(), file.node()).unwrap();
            stage.volume.sync().unwrap();
            synced.push(stage.recorder.moment());
            is_over.store(true, Ordering::SeqCst);
        });
    }
    drop(root);
    let (recording, rewind, _) = stage.over();
    let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
    for (nth, moment) in synced.into_iter().enumerate() {
        power.advance(moment).unwrap();
        power.make(|_| Fate::Dropped).unwrap();
        assert!(content(&open(rewind.clone()), &format!("n{nth}")).unwrap() == [7; PAGE], "file {nth}");
        rewind.rewind().unwrap();
    }
}

/// A flush of the log that fails, before a record or behind it, is told to all whom it was to serve, and nothing is written
/// behind it.
#[test]
fn a_flush_that_fails_is_told_to_all_whom_it_was_to_serve() {
    for (has_fua, nth) in [(false, 0), (false, 1), (true, 0)] {
        let device = made(|volume| (0..4).for_each(|nth| drop(new_file(volume, &format!("f{nth}")))));
        let recorder = Arc::new(Recorder::new(device));
        let faults = Arc::new(FaultDevice::new(recorder.clone(), Vec::new()));
        let volume = open(slow(faults.clone(), 20, has_fua));
        volume.sync().unwrap();
        // A failed flush is told to all that come behind it, whoever asks, as by any device.
        faults.add(Fault::fail(Op::Flush, faults.seen(Op::Flush) + nth).then(Repeat::Sticky));
        let appends = |nth: u64| {
            let file = volume.open_file(format!("f{nth}")).unwrap();
            file.append(&[1; PAGE]).and_then(|_| file.sync_data())
        };
        scope(|scope| {
            let all: Vec<_> = (0..4).map(|nth| scope.spawn(move || appends(nth))).collect();
            all.into_iter().for_each(|thread| drop(thread.join().unwrap().unwrap_err()));
        });
        let writes = recorder.recording().writes().len();
        volume.sync().unwrap_err();
        volume.close().unwrap_err();
        drop(volume);
        assert_eq!(recorder.recording().writes().len(), writes, "fua {has_fua}, flush {nth}");
    }
}

/// A checkpoint that has more than one record has room for costs what a small one does: one write, and a flush on each side.
#[test]
fn records_of_one_checkpoint_are_written_together() {
    for (has_fua, most) in [(true, 1), (false, 2)] {
        let base = made(|_| {});
        let log = log_of(&*base);
        let recorder = Arc::new(Recorder::new(base));
        let volume = open(slow(recorder.clone(), 0, has_fua));
        volume.sync().unwrap();
        let before = recorder.moment();
        for nth in 0..16 {
            let file = new_file(&volume, &format!("x{nth}"));
            file.node().set_xattr(b"user.large", &[9; 3000], SetXattr::Either).unwrap();
        }
        volume.sync().unwrap();
        let recording = recorder.recording();
        let in_log = |write: &&WriteRecord| write.started > before && log.contains(&write.offset);
        let written: Vec<usize> =
            recording.writes().iter().filter(in_log).map(|write| write.data.len()).collect();
        assert!(matches!(written[..], [bytes] if bytes > 40 << 10), "{written:?} bytes in the log");
        let flushes = recording.flushes().iter().filter(|flush| flush.started > before).count();
        assert!((1..=most).contains(&flushes), "{flushes} flushes");
        volume.close().unwrap();
    }
}
