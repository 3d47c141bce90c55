//! Handles whose changes are durable when a call returns: what a power cut leaves of them, and what they cost.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{
    BlockDevice, Counter, Counts, Delay, DelayDevice, DeviceError, Durability, Fate, Fault, FaultDevice,
    Layer, Means, MemoryDevice, Op, PowerCuts, Recorder, Repeat, Rewind,
};
use common::files::{Random, image_of, new_file};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use uxfs::{
    ErrorKind, File, Flushing, MkfsFeatures, MkfsOptions, OpenOptions, Result, Syncing, Volume, check_device,
    mkfs_device,
};

const BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
/// Blocks that a file has at most.
const BLOCKS: u64 = 24;
const STEPS: usize = 50;

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"))
}

fn device(fua: bool) -> Arc<dyn BlockDevice> {
    let device = memory();
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).features(features), true).expect("made");
    if fua { device } else { Means { fua, write_cache: true }.of(device) }
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("opens")
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// Changes a file through `file` in some way.
fn step(random: &mut Random, file: &File, golden: &File, stamp: u8) -> Result<()> {
    let (at, len) = (random.below(BLOCKS), 1 + random.below(6));
    let whole = at * BLOCK..(at + len).min(BLOCKS) * BLOCK;
    let part = whole.start + random.below(BLOCK)..whole.end - random.below(BLOCK / 2);
    let range = if random.below(2) == 0 || part.is_empty() { whole.clone() } else { part };
    let data = vec![stamp; (range.end - range.start) as usize];
    let size = file.size();
    match random.below(13) {
        0..=3 => file.write_at(&data, range.start),
        4 if size < BLOCKS * BLOCK => file.append(&data).map(drop),
        5 | 6 => match file.overwrite_at(&data, range.start) {
            // A hole is in the way, or the end.
            Err(error) if matches!(error.kind(), ErrorKind::NotAllocated | ErrorKind::InvalidInput) => Ok(()),
            done => done,
        },
        7 => file.punch_hole(range),
        8 => file.zero_range(range, false),
        9 => file.set_len(range.start),
        10 => file.allocate(range, false),
        11 if size > whole.end => file.collapse_range(whole),
        12 if size > whole.start && size < BLOCKS * BLOCK => file.insert_range(whole),
        _ => golden.clone_range(whole.start, file, whole.start, whole.end - whole.start),
    }
}

#[derive(Clone, Copy)]
struct How {
    syncing: Syncing,
    buffered: bool,
    fua: bool,
    gathers: bool,
    /// Whether all of the file is in memory before each step, for another handle.
    cached: bool,
}

fn nothing_is_lost(How { syncing, buffered, fua, gathers, cached }: How) {
    let mut random = Random::seeded();
    let made = device(fua);
    let volume = open(Arc::clone(&made));
    let golden = new_file(&volume, "golden");
    golden.write_at(&vec![200; (BLOCKS * BLOCK) as usize], 0).expect("written");
    golden.clone_range(0, &new_file(&volume, "file"), 0, 0).expect("a clone");
    volume.close().expect("closed");
    drop((golden, volume));
    let base = memory();
    let mut bytes = vec![0; BYTES as usize];
    made.read(0, &mut bytes).expect("read");
    base.write(0, &bytes, Durability::Volatile).expect("written");

    let recorder = Arc::new(Recorder::new(made));
    let options = OpenOptions::new().writable(true).gather_writes(gathers);
    let volume = Volume::open_device(recorder.clone(), &options).expect("opens");
    let golden = volume.open_file("golden").expect("there");
    let direct = volume.open_file("file").expect("there");
    let file = if buffered { direct.buffered() } else { direct.clone() }.syncing(syncing);
    let mut states = Vec::new();
    for nth in 0..STEPS {
        if cached {
            let seen = content(&direct);
            assert!(content(&direct.buffered()) == seen, "behind step {nth}");
        }
        step(&mut random, &file, &golden, nth as u8 + 1).expect("done");
        states.push((recorder.moment(), content(&direct), direct.metadata().mtime));
    }
    volume.close().expect("closed");
    drop((golden, direct, file, volume));

    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(Arc::clone(&base)));
    let mut cuts = PowerCuts::new(&recording, Arc::clone(&stage));
    for (nth, (moment, expected, mtime)) in states.iter().enumerate() {
        cuts.advance(*moment).expect("written");
        for kept in [Fate::Dropped, Fate::Applied] {
            cuts.make(|_| kept.clone()).expect("written");
            let seen = open(stage.clone());
            let file = seen.open_file("file").expect("there");
            let what = format!("behind step {nth}, what was in doubt {kept:?}");
            assert!(content(&file) == *expected, "{what}: another content");
            if syncing == Syncing::All {
                assert_eq!(file.metadata().mtime, *mtime, "{what}: another time");
            }
            drop(file);
            seen.close().expect("closed");
            drop(seen);
            if nth % 10 == 0 {
                let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
                assert!(report.is_clean(), "{what}: {:?}", report.findings);
                let (_folder, image) = image_of(&*stage);
                common::repair_finds_nothing(&image);
            }
            stage.rewind().expect("taken back");
        }
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_a_data_syncing_handle_has_done_outlives_a_power_cut() {
    for fua in [true, false] {
        nothing_is_lost(How { syncing: Syncing::Data, buffered: false, fua, gathers: false, cached: false });
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn so_does_what_goes_past_what_is_in_memory() {
    for fua in [true, false] {
        nothing_is_lost(How { syncing: Syncing::Data, buffered: false, fua, gathers: false, cached: true });
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn so_does_what_goes_through_the_page_cache() {
    nothing_is_lost(How {
        syncing: Syncing::Data,
        buffered: true,
        fua: false,
        gathers: false,
        cached: false,
    });
    nothing_is_lost(How { syncing: Syncing::All, buffered: true, fua: true, gathers: false, cached: false });
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn so_does_what_a_handle_syncs_with_its_times() {
    nothing_is_lost(How {
        syncing: Syncing::All,
        buffered: false,
        fua: false,
        gathers: false,
        cached: false,
    });
}

/// What is kept in memory to be gathered is there as well.
#[test]
#[ignore = "needs root and xfsprogs"]
fn so_does_what_is_gathered_on_the_way() {
    for (buffered, fua) in [(false, true), (true, false)] {
        nothing_is_lost(How { syncing: Syncing::Data, buffered, fua, gathers: true, cached: false });
    }
    nothing_is_lost(How { syncing: Syncing::All, buffered: false, fua: false, gathers: true, cached: false });
}

/// When a volume is closed, or dropped, nothing of it is under way any more: the next writer comes at once.
#[test]
fn nothing_comes_behind_a_volume_that_gathers() {
    let made = device(true);
    let options = OpenOptions::new().writable(true).gather_writes(true);
    for nth in 0..20_u8 {
        let volume = Volume::open_device(Arc::clone(&made), &options).expect("opens");
        let file = match nth {
            0 => new_file(&volume, "file"),
            _ => volume.open_file("file").expect("there"),
        };
        if nth > 0 {
            assert_eq!(content(&file), vec![nth - 1; 40_000]);
        }
        file.write_at(&vec![nth; 40_000], 0).expect("written");
        file.sync().expect("synced");
        if nth % 2 == 0 {
            volume.close().expect("closed");
        }
    }
    assert!(check_device(made, &OpenOptions::new()).expect("checked").is_clean());
}

/// What could not be written is told by whatever was to make it durable.
#[test]
fn a_gathered_write_that_fails_is_told_and_ends_the_volume() {
    let fault = Arc::new(FaultDevice::new(device(false), Vec::new()));
    let options = OpenOptions::new().writable(true).gather_writes(true);
    let volume = Volume::open_device(fault.clone(), &options).expect("opens");
    let file = new_file(&volume, "file");
    fault.add(Fault::fail(Op::Write, fault.seen(Op::Write)));
    file.write_at(&[1; 8192], 0).expect("it is in memory");
    file.sync().expect_err("it is not on the device");
    assert_eq!(volume.sync().expect_err("over").kind(), ErrorKind::ShutDown);
    assert_eq!(volume.close().expect_err("over").kind(), ErrorKind::ShutDown);
}

/// Nothing is written once the volume is closed, also where it could not be.
#[test]
fn nothing_that_was_gathered_comes_behind_a_close_that_fails() {
    let fault = Arc::new(FaultDevice::new(device(false), Vec::new()));
    let counter = Arc::new(Counter::new(fault.clone()));
    let options = OpenOptions::new().writable(true).gather_writes(true);
    let volume = Volume::open_device(counter.clone(), &options).expect("opens");
    let (small, large) = (new_file(&volume, "small"), new_file(&volume, "large").buffered());
    volume.sync().expect("synced");
    small.write_at(&[1; 8192], 0).expect("it is in memory");
    large.write_at(&vec![2; 1 << 20], 0).expect("it is in memory");
    fault.add(Fault::fail(Op::Write, fault.seen(Op::Write)));
    assert_eq!(volume.close().expect_err("the large one fails").kind(), ErrorKind::Io);
    let closed = counter.counts().writes;
    drop((small, large, volume));
    assert_eq!(counter.counts().writes, closed);
}

/// What lies in a queue is durable when somebody syncs: a handle that promises more gives none.
#[test]
fn a_handle_whose_writes_are_durable_gives_no_queue() {
    let volume = open(device(true));
    let file = new_file(&volume, "file");
    for syncing in [Syncing::Data, Syncing::All] {
        let refused = file.syncing(syncing).queue(4).map(drop).expect_err("it would promise too much");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }
    file.syncing(Syncing::Later).queue(4).expect("a queue");
}

/// Whoever had the device still kept what waited, and it came behind what the next writer did.
#[test]
fn nothing_waits_for_who_has_the_device_still() {
    let counter = Arc::new(Counter::new(device(false)));
    let options = OpenOptions::new().writable(true).gather_writes(true);
    let volume = Volume::open_device(counter.clone(), &options).expect("opens");
    new_file(&volume, "file").write_at(&[1; 4096], 0).expect("it is in memory");
    let device = Arc::clone(volume.device());
    drop(volume);
    let next = open(counter.clone());
    let writes = counter.counts().writes;
    drop(device);
    assert_eq!(counter.counts().writes, writes);
    next.close().expect("closed");
}

fn less(now: Counts, before: Counts) -> (u64, u64, u64) {
    (now.writes - before.writes, now.fua_writes - before.fua_writes, now.flushes - before.flushes)
}

/// Writes, durable ones among them, and flushes: the log is left alone where the way to the bytes is as it was.
#[test]
fn an_overwrite_costs_its_data_and_no_log() {
    for (fua, cost) in [(true, (1, 1, 0)), (false, (1, 0, 1))] {
        let counter = Arc::new(Counter::new(device(fua)));
        let volume = open(counter.clone());
        let file = new_file(&volume, "file").syncing(Syncing::Data);
        let before = counter.counts();
        file.write_at(&[1; 64 << 10], 0).expect("written");
        assert!(less(counter.counts(), before).0 > 1, "the log says nothing of new blocks");
        for at in [0, 4096, 32 << 10] {
            let before = counter.counts();
            file.write_at(&[2; 4096], at).expect("written");
            assert_eq!(less(counter.counts(), before), cost, "durable writes: {fua}");
            let before = counter.counts();
            file.overwrite_at(&[3; 8192], at).expect("written");
            assert_eq!(less(counter.counts(), before), cost, "durable writes: {fua}");
        }
        // Also where the bytes are in memory, for another handle, which sees the new ones.
        let cached = file.syncing(Syncing::Later).buffered();
        for stamp in [7, 8] {
            let mut bytes = [0; 8192];
            cached.read_at(&mut bytes, 0).expect("read");
            let before = counter.counts();
            file.write_at(&[stamp; 4096], 4096).expect("written");
            assert_eq!(less(counter.counts(), before), cost, "in memory; durable writes: {fua}");
            cached.read_at(&mut bytes, 0).expect("read");
            assert!(bytes[4096..] == [stamp; 4096]);
        }
        // A part of a sector is read and written, and then flushed.
        let before = counter.counts();
        file.write_at(&[4; 100], 5000).expect("written");
        assert_eq!(less(counter.counts(), before), (1, 0, 1));
        // What is asked for costs a flush, too, and no log.
        let plain = file.syncing(Syncing::Later);
        let before = counter.counts();
        plain.overwrite_at(&[5; 4096], 0).expect("written");
        plain.sync_data().expect("synced");
        plain.sync_range(0..4096).expect("synced");
        assert_eq!(less(counter.counts(), before), (1, 0, 2));
        // Another map, and the log has it once.
        plain.write_at(&[6; 4096], 128 << 10).expect("written");
        let before = counter.counts();
        plain.sync_data().expect("synced");
        assert!(less(counter.counts(), before).0 > 0, "nothing says where the block lies");
        let before = counter.counts();
        plain.sync_data().expect("synced");
        assert_eq!(less(counter.counts(), before), (0, 0, 1));
    }
}

/// What tells of new blocks flushes the device on its way to the log: nobody does so besides.
#[test]
fn what_the_log_has_to_know_costs_one_flush() {
    let counter = Arc::new(Counter::new(device(true)));
    let volume = open(counter.clone());
    let file = new_file(&volume, "file");
    let syncs: [fn(&File) -> Result<()>; 4] = [
        File::sync,
        File::sync_data,
        |file| file.syncing(Syncing::Data).append(&[1; 4096]).map(drop),
        |file| file.syncing(Syncing::All).append(&[1; 4096]).map(drop),
    ];
    for (nth, sync) in syncs.into_iter().enumerate() {
        file.append(&[1; 4096]).expect("written");
        let before = counter.counts();
        sync(&file).expect("synced");
        let (_, durable, flushes) = less(counter.counts(), before);
        assert_eq!((durable, flushes), (1, 1), "{nth}");
    }
    file.append(&[1; 4096]).expect("written");
    let before = counter.counts();
    volume.sync().expect("synced");
    assert_eq!(less(counter.counts(), before).2, 1, "the volume");
    let before = counter.counts();
    volume.sync().expect("synced");
    assert_eq!(less(counter.counts(), before), (0, 0, 1), "the volume, and nothing in the log");
}

/// Holds who flushes when the device has done so, once it is armed.
#[derive(Debug)]
struct HoldsBehindFlush {
    armed: AtomicBool,
    /// Whether somebody is held.
    held: Mutex<bool>,
    changed: Condvar,
    inner: Arc<dyn BlockDevice>,
}

impl HoldsBehindFlush {
    fn over(inner: Arc<dyn BlockDevice>) -> Arc<Self> {
        let (armed, held) = (AtomicBool::new(false), Mutex::new(false));
        Arc::new(Self { armed, held, changed: Condvar::new(), inner })
    }

    fn wait_until(&self, held: bool) {
        let lock = self.held.lock().expect("not poisoned");
        drop(self.changed.wait_while(lock, |is_held| *is_held != held).expect("not poisoned"));
    }

    fn let_go(&self) {
        *self.held.lock().expect("not poisoned") = false;
        self.changed.notify_all();
    }
}

impl Layer for HoldsBehindFlush {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_flush(&self) -> std::result::Result<(), DeviceError> {
        self.inner.flush()?;
        if self.armed.swap(false, Ordering::SeqCst) {
            *self.held.lock().expect("not poisoned") = true;
            self.changed.notify_all();
            self.wait_until(false);
        }
        Ok(())
    }
}

/// A flush that has begun makes nothing stable that is written then, though the checkpoint behind it tells where that lies.
/// And who waits for a checkpoint does not wait for the next one.
#[test]
fn a_flush_that_has_begun_is_not_waited_for_instead_of_another() {
    let counter = Arc::new(Counter::new(device(true)));
    let holds = HoldsBehindFlush::over(counter.clone());
    let volume = open(holds.clone());
    let [file, other] = ["file", "other"].map(|name| new_file(&volume, name));
    volume.sync().expect("synced");
    // The checkpoint that tells where the file's bytes lie is flushed for.
    file.write_at(&[1; 8192], 0).expect("written");
    holds.armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| volume.sync().expect("synced"));
        holds.wait_until(true);
        other.write_at(&[1; 4096], 0).expect("written, and in the next checkpoint");
        file.overwrite_at(&[2; 4096], 0).expect("written in place");
        let before = counter.counts();
        let synced = scope.spawn(|| file.sync_data().expect("synced"));
        let until = Instant::now() + Duration::from_secs(20);
        while less(counter.counts(), before).2 == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        let flushes = less(counter.counts(), before).2;
        let is_early = synced.is_finished();
        holds.let_go();
        synced.join().expect("synced");
        assert!(!is_early, "where the bytes lie was not in the log");
        assert_eq!(flushes, 1, "what was written behind the flush");
        let (_, durable, flushes) = less(counter.counts(), before);
        assert_eq!((durable, flushes), (1, 1), "the next checkpoint is not waited for");
    });
}

/// Only what was asked for is written back.
#[test]
fn a_range_is_synced_by_itself() {
    let counter = Arc::new(Counter::new(device(false)));
    let volume = open(counter.clone());
    let file = new_file(&volume, "file");
    file.write_at(&vec![1; 1 << 20], 0).expect("written");
    file.sync().expect("synced");
    let buffered = file.buffered();
    for at in [0, 512 << 10] {
        buffered.write_at(&[2; 4096], at).expect("written");
    }
    let before = counter.counts();
    buffered.sync_range(0..4096).expect("synced");
    assert_eq!(less(counter.counts(), before), (1, 0, 1));
    buffered.sync_data().expect("synced");
    assert_eq!(less(counter.counts(), before), (2, 0, 2));
}

/// Many wait for one flush, and while it lasts nobody waits for the file.
#[test]
fn a_flush_serves_all_who_wait_and_holds_nothing() {
    const THREADS: usize = 8;
    let counter = Arc::new(Counter::new(device(false)));
    let delay = Arc::new(DelayDevice::new(counter.clone()));
    let volume = open(delay.clone());
    let file = new_file(&volume, "file");
    file.write_at(&[1; 64 << 10], 0).expect("written");
    file.sync().expect("synced");
    let durable = file.syncing(Syncing::Data);
    let before = counter.counts();
    delay.set(Op::Flush, Delay::Held);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let durable = &durable;
            scope.spawn(move || durable.overwrite_at(&[2; 4096], thread * 4096).expect("written"));
        }
        delay.wait_until_waiting(Op::Flush, 1);
        while less(counter.counts(), before).0 < THREADS as u64 {
            std::thread::yield_now();
        }
        // Whoever holds what they flush for would be waited for here.
        let mut byte = [0];
        file.read_at(&mut byte, 0).expect("read");
        file.overwrite_at(&[3; 4096], 4096).expect("written");
        file.punch_hole(32 << 10..36 << 10).expect("punched");
        new_file(&volume, "another");
        delay.set(Op::Flush, Delay::None);
    });
    let flushes = less(counter.counts(), before).2;
    assert!(flushes < THREADS as u64, "{flushes} flushes for {THREADS} writes");
}

/// Each way to flush keeps the promise.
#[test]
fn each_way_to_flush_is_asked() {
    for flushing in Flushing::ALL {
        let counter = Arc::new(Counter::new(device(false)));
        let options = OpenOptions::new().writable(true).flushing(flushing);
        let volume = Volume::open_device(counter.clone(), &options).expect("opens");
        let file = new_file(&volume, "file").syncing(Syncing::Data);
        file.write_at(&[1; 8192], 0).expect("written");
        let before = counter.counts();
        std::thread::scope(|scope| {
            for at in [0, 4096] {
                let file = &file;
                scope
                    .spawn(move || (0..50).for_each(|_| file.overwrite_at(&[2; 4096], at).expect("written")));
            }
        });
        let flushes = less(counter.counts(), before).2;
        match flushing {
            Flushing::Shared => assert!((50..=100).contains(&flushes), "{flushes}"),
            _ => assert_eq!(flushes, 100, "{flushing}"),
        }
    }
}

/// Whoever is told that a write is durable could rely on nothing behind a flush that failed.
#[test]
fn a_flush_that_fails_is_told_and_ends_the_volume() {
    let fault = Arc::new(FaultDevice::new(device(false), Vec::new()));
    let volume = open(fault.clone());
    let file = new_file(&volume, "file");
    file.write_at(&[1; 8192], 0).expect("written");
    file.sync().expect("synced");
    fault.add(Fault::fail(Op::Flush, 0).then(Repeat::Sticky));
    let durable = file.syncing(Syncing::Data);
    assert_eq!(durable.overwrite_at(&[2; 4096], 0).expect_err("not durable").kind(), ErrorKind::Io);
    assert_eq!(durable.overwrite_at(&[2; 4096], 0).expect_err("over").kind(), ErrorKind::ShutDown);
    assert_eq!(file.sync().expect_err("over").kind(), ErrorKind::ShutDown);
}

/// Whoever writes and syncs at once is told of it there, others at their next sync, each once.
#[test]
fn write_back_that_fails_is_told_to_each_handle_once() {
    let fault = Arc::new(FaultDevice::new(device(false), Vec::new()));
    let volume = open(fault.clone());
    let file = new_file(&volume, "file");
    file.write_at(&[1; 8192], 0).expect("written");
    file.sync().expect("synced");
    let (one, other) = (file.buffered().syncing(Syncing::Data), file.buffered());
    fault.add(Fault::fail(Op::Write, fault.seen(Op::Write)));
    one.write_at(&[2; 4096], 0).expect_err("it cannot be written back");
    one.write_at(&[3; 4096], 4096).expect("written");
    other.sync().expect_err("something was lost");
    other.sync().expect("told once");
    file.sync().expect_err("this one was not told yet");
    file.sync().expect("told once");
}

/// A volume that is only read has nothing to make durable.
#[test]
fn who_reads_syncs_in_vain() {
    let device = device(true);
    let volume = open(Arc::clone(&device));
    new_file(&volume, "file").write_at(&[1; 8192], 0).expect("written");
    volume.close().expect("closed");
    drop(volume);
    let volume = Volume::open_device(device, &OpenOptions::new()).expect("opens");
    let file = volume.open_file("file").expect("there").syncing(Syncing::All);
    file.sync().expect("nothing to do");
    file.sync_data().expect("nothing to do");
    assert!(file.write_at(&[2; 10], 0).is_err(), "it is open for reading");
}
