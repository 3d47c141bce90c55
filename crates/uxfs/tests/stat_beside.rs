//! What `stat` says beside those who write, sync and close: times and blocks never go back, and a sync or a close has all
//! times of overwrites that returned before it.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{
    BlockDevice, Fate, Fault, FaultDevice, HoldDevice, MemoryDevice, Op, PowerCuts, Recorder, Rewind,
};
use common::devices::copy;
use fileio::testing::{COMMITTED, OVERWRITTEN, at};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use uxfs::{Changes, MkfsOptions, NewNode, OpenOptions, SetXattr, Timestamp, Volume, mkfs_device};

/// In `file::log_times`.
const LOGGED: &str = "the time of an overwrite is being logged";
/// For how long threads run that nothing holds.
const STORM: Duration = Duration::from_secs(4);

const PAST: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
const GIVEN: Timestamp = Timestamp { seconds: 1_200_000_000, nanoseconds: 0 };

fn device() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(48 << 20).expect("memory"));
    let options = MkfsOptions::new().small(true);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("it opens")
}

/// A file whose only block was overwritten, and the time of that, which only memory knows.
fn overwritten(volume: &Volume) -> uxfs::File {
    let root = volume.open_dir("/").expect("a root");
    let file = root.create_file(b"a", &NewNode::default()).and_then(|node| node.open()).expect("a file");
    file.write_at(&[1; 4096], 0).expect("written");
    file.sync().expect("synced");
    volume.sync().expect("synced");
    // The coarse clock ticks.
    thread::sleep(Duration::from_millis(20));
    file.write_at(&[2; 4096], 0).expect("overwritten");
    file
}

/// One thread logs the time of an overwrite, as a sync or a close of one handle does. A sync of the volume beside it
/// says that all is durable.
#[test]
fn a_sync_beside_one_who_logs_a_time_includes_that_time() {
    let device = device();
    let volume = open(&device);
    let file = overwritten(&volume);
    let before = volume.metadata("/a").expect("metadata").mtime;
    let (other, from) = (volume.clone(), Arc::clone(&device));
    let beside = Arc::new(Mutex::new(None));
    let started = Arc::clone(&beside);
    at(LOGGED, move || {
        let syncs = thread::spawn(move || {
            other.sync().expect("all earlier changes are durable");
            // Power is cut.
            copy(&*from)
        });
        // It may end here, or wait for the one who logs.
        let until = Instant::now() + Duration::from_millis(300);
        while !syncs.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        *started.lock().unwrap() = Some(syncs);
    });
    file.sync().expect("synced");
    let syncs = beside.lock().unwrap().take().expect("the point was reached");
    let crashed = syncs.join().expect("it ends");
    let found = open(&crashed).metadata("/a").expect("metadata").mtime;
    assert_eq!(found, before, "the overwrite had returned long before the sync");
}

/// An overwrite gives its bytes back before it notes the time. A close that waited for these bytes finds none to log.
#[test]
fn a_close_beside_an_overwrite_logs_its_time() {
    let device = device();
    let volume = open(&device);
    let file = overwritten(&volume);
    file.sync().expect("synced");
    let before = volume.metadata("/a").expect("metadata").mtime;
    thread::sleep(Duration::from_millis(20));
    let other = volume.clone();
    at(OVERWRITTEN, move || {
        thread::scope(|scope| {
            scope.spawn(|| other.close().expect("nothing is under way"));
        });
    });
    file.write_at(&[3; 4096], 0).expect("overwritten");
    drop((file, volume));
    let volume = open(&device);
    let mut bytes = [0; 4096];
    volume.open_file("/a").expect("a file").read_at(&mut bytes, 0).expect("read");
    assert_eq!(bytes, [3; 4096], "what was written is there");
    let found = volume.metadata("/a").expect("metadata").mtime;
    assert!(found > before, "the content is new, and the time is that of the old: {found:?}");
}

/// The same moment, seen by `stat`.
#[test]
fn a_time_does_not_go_back_beside_one_who_logs_it() {
    let device = device();
    let volume = open(&device);
    let file = overwritten(&volume);
    let before = volume.metadata("/a").expect("metadata");
    let seen = Arc::new(Mutex::new(None));
    let (other, to) = (volume.clone(), Arc::clone(&seen));
    at(LOGGED, move || {
        let found =
            thread::scope(|scope| scope.spawn(|| other.metadata("/a").expect("metadata")).join().unwrap());
        *to.lock().unwrap() = Some(found);
    });
    file.sync().expect("synced");
    let seen = seen.lock().unwrap().take().expect("the point was reached");
    assert!(
        seen.mtime >= before.mtime && seen.ctime >= before.ctime,
        "{:?} behind {:?}",
        seen.mtime,
        before.mtime
    );
}

/// The same without a point.
#[test]
fn a_time_does_not_go_back_in_a_storm() {
    let device = device();
    let volume = open(&device);
    let file = overwritten(&volume);
    let is_over = AtomicBool::new(false);
    let until = Instant::now() + STORM;
    thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let (mut last, mut count) = (volume.metadata("/a").expect("metadata").mtime, 0_u64);
            let mut found = None;
            while found.is_none() && !is_over.load(Ordering::Relaxed) {
                let now = volume.metadata("/a").expect("metadata").mtime;
                found = (now < last).then_some((now, last, count));
                (last, count) = (now, count + 1);
            }
            is_over.store(true, Ordering::Relaxed);
            found
        });
        let mut rounds = 0;
        while Instant::now() < until && !is_over.load(Ordering::Relaxed) {
            file.write_at(&[3; 4096], 0).expect("overwritten");
            file.sync().expect("synced");
            rounds += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        let found = looks.join().unwrap();
        assert!(found.is_none(), "after {rounds} syncs: mtime went back (now, before, looks): {found:?}");
    });
}

/// A file that was written through the pages has so many blocks, whether they are promised or allocated. `stat` says 0 of
/// them between the two.
#[test]
fn blocks_do_not_vanish_while_they_are_allocated() {
    const LEN: usize = 256 << 10;
    let device = device();
    let volume = open(&device);
    let root = volume.open_dir("/").expect("a root");
    let is_over = AtomicBool::new(false);
    let until = Instant::now() + STORM;
    let mut found = None;
    let mut rounds = 0;
    while found.is_none() && Instant::now() < until {
        let file = root
            .create_file(b"b", &NewNode::default())
            .and_then(|node| node.open())
            .expect("a file")
            .buffered();
        file.write_at(&vec![1; LEN], 0).expect("written");
        is_over.store(false, Ordering::Relaxed);
        found = thread::scope(|scope| {
            let looks = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let now = volume.metadata("/b").expect("metadata");
                    if now.blocks * 512 < LEN as u64 {
                        return Some((now.size, now.blocks));
                    }
                }
                None
            });
            thread::sleep(Duration::from_millis(1));
            file.sync().expect("synced");
            is_over.store(true, Ordering::Relaxed);
            looks.join().unwrap()
        });
        rounds += 1;
        drop(file);
        root.remove_file(b"b").expect("removed");
    }
    assert!(found.is_none(), "round {rounds}: size and blocks {found:?}, {} of them were written", LEN / 512);
}

/// "`stat` says … how many blocks are promised", also of a hole before the end of the file.
#[test]
fn blocks_promised_to_a_hole_are_said() {
    let device = device();
    let volume = open(&device);
    let root = volume.open_dir("/").expect("a root");
    let file =
        root.create_file(b"c", &NewNode::default()).and_then(|node| node.open()).expect("a file").buffered();
    file.set_len(1 << 20).expect("longer");
    file.sync().expect("synced");
    file.write_at(&vec![1; 256 << 10], 0).expect("written");
    let said = volume.metadata("/c").expect("metadata").blocks;
    file.sync().expect("synced");
    assert_eq!((said, volume.metadata("/c").expect("metadata").blocks), (512, 512), "promised, allocated");
}

/// Who asks the clock, and is interrupted for a tick before it notes the time, puts the time back that another noted.
#[test]
fn a_time_does_not_go_back_beside_two_who_overwrite() {
    let device = device();
    let volume = open(&device);
    let file = overwritten(&volume);
    let is_over = AtomicBool::new(false);
    let until = Instant::now() + STORM;
    let found = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    file.write_at(&[3; 4096], 0).expect("overwritten");
                }
            });
        }
        let mut last = volume.metadata("/a").expect("metadata").mtime;
        let mut found = None;
        while found.is_none() && Instant::now() < until {
            let now = volume.metadata("/a").expect("metadata").mtime;
            found = (now < last).then_some((now, last));
            last = now;
        }
        is_over.store(true, Ordering::Relaxed);
        found
    });
    assert!(found.is_none(), "mtime went back without any sync (now, before): {found:?}");
}

/// A file with many attributes, whose times are of the past.
fn with_attributes() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let node = root.create_file(b"f", &NewNode::default()).expect("made");
    // A tree of many leaves: a look for capabilities reads another leaf than a look for an ACL.
    for nth in 0..300 {
        let name = format!("user.attribute number {nth}");
        node.set_xattr(name.as_bytes(), &[7; 200], SetXattr::Create).expect("set");
    }
    let file = node.open().expect("a file");
    file.write_at(&[1; 8192], 0).expect("written");
    let changes = Changes { mtime: Some(PAST), ctime: Some(PAST), ..Changes::default() };
    node.change(&changes).expect("changed");
    drop(file);
    volume.close().expect("closed");
    device
}

/// What needs a block of attributes, as the permissions may be an ACL.
fn both() -> Changes {
    Changes { mtime: Some(GIVEN), ctime: Some(GIVEN), permissions: Some(0o600), ..Changes::default() }
}

/// A change has the inode locked, and waits for a block that it reads.
#[test]
fn a_sync_beside_a_change_of_times_includes_an_overwrite_before() {
    let device = with_attributes();
    let hold = Arc::new(HoldDevice::new(Arc::clone(&device)));
    let volume = Volume::open_device(hold.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let file = volume.open_file("/f").expect("there");
    file.read_at(&mut [0; 4096], 0).expect("read");
    volume.sync().expect("synced");
    file.overwrite_at(&[2; 4096], 0).expect("written");
    hold.hold_next(|op, _| op == Op::Read);
    let left = thread::scope(|scope| {
        let changes = scope.spawn(|| file.node().change(&both()));
        hold.wait_until_waiting();
        let syncs = scope.spawn(|| {
            volume.sync().expect("synced");
            copy(&*device)
        });
        // It may end here, or wait for the change.
        let until = Instant::now() + Duration::from_millis(300);
        while !syncs.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        hold.release();
        changes.join().expect("no panic").expect("changed");
        syncs.join().expect("no panic")
    });
    let seen = Volume::open_device(left, &OpenOptions::new()).expect("it is replayed");
    let found = seen.metadata("/f").expect("there");
    assert_ne!(found.mtime, PAST, "overwritten, then synced, then the power went: the old time is back");
}

/// The change fails after it had the inode.
#[test]
fn an_fsync_beside_a_change_that_fails_includes_an_overwrite_before() {
    let device = with_attributes();
    let fault = Arc::new(FaultDevice::new(Arc::clone(&device), vec![]));
    let hold = Arc::new(HoldDevice::new(fault.clone()));
    let volume = Volume::open_device(hold.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let file = volume.open_file("/f").expect("there");
    file.read_at(&mut [0; 4096], 0).expect("read");
    volume.sync().expect("synced");
    file.overwrite_at(&[2; 4096], 0).expect("written");
    hold.hold_next(|op, _| op == Op::Read);
    fault.add(Fault::fail(Op::Read, fault.seen(Op::Read)));
    let left = thread::scope(|scope| {
        let changes = scope.spawn(|| file.node().change(&both()));
        hold.wait_until_waiting();
        let syncs = scope.spawn(|| file.sync());
        // It waits for the inode's lock by then.
        thread::sleep(Duration::from_millis(300));
        assert!(!syncs.is_finished());
        hold.release();
        changes.join().expect("no panic").expect_err("a block cannot be read");
        syncs.join().expect("no panic").expect("synced");
        copy(&*device)
    });
    let seen = Volume::open_device(left, &OpenOptions::new()).expect("it is replayed");
    let found = seen.metadata("/f").expect("there");
    assert_ne!(found.mtime, PAST, "overwritten, then fsynced, then the power went: the old time is back");
}

/// Without any crash: a time that was seen is gone while somebody has taken it.
#[test]
fn a_time_does_not_go_back_beside_a_change_of_times() {
    let device = with_attributes();
    let hold = Arc::new(HoldDevice::new(Arc::clone(&device)));
    let volume = Volume::open_device(hold.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let file = volume.open_file("/f").expect("there");
    file.read_at(&mut [0; 4096], 0).expect("read");
    file.overwrite_at(&[2; 4096], 0).expect("written");
    let before = file.metadata().mtime;
    assert_ne!(before, PAST);
    hold.hold_next(|op, _| op == Op::Read);
    let seen = thread::scope(|scope| {
        let changes = scope.spawn(|| file.node().change(&both()));
        hold.wait_until_waiting();
        let seen = file.metadata().mtime;
        hold.release();
        changes.join().expect("no panic").expect("changed");
        seen
    });
    assert!(seen == before || seen == GIVEN, "{before:?}, then {seen:?}");
}

/// One thread overwrites and fsyncs, another syncs the volume, and others take the processor from them.
#[test]
fn a_sync_beside_an_fsync_loses_no_time_in_a_storm() {
    const FILES: usize = 150;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for nth in 0..FILES {
        let file = root
            .create_file(format!("f{nth}").as_bytes(), &NewNode::default())
            .expect("made")
            .open()
            .expect("a file");
        file.write_at(&[1; 4096], 0).expect("written");
    }
    drop(root);
    volume.close().expect("closed");
    drop(volume);
    let stage = Arc::new(Rewind::new(copy(&*device)));
    let recorder = Arc::new(Recorder::new(device));
    let volume = Volume::open_device(recorder.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let files: Vec<_> = (0..FILES).map(|nth| volume.open_file(format!("/f{nth}")).expect("there")).collect();
    let (ends, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    // The last overwrite that is over, and its time.
    let last: Mutex<(usize, usize, Option<Timestamp>)> = Mutex::new((0, 0, None));
    let mut suspects: Vec<(u64, usize, Timestamp)> = Vec::new();
    let mut latest = 0;
    thread::scope(|scope| {
        let (volume, files, ends, done, last) = (&volume, &files, &ends, &done, &last);
        for _ in 0..3 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        scope.spawn(|| {
            let mut turn = 0;
            while !ends.load(Ordering::Relaxed) {
                turn += 1;
                let nth = turn % FILES;
                files[nth].overwrite_at(&[2; 512], 0).expect("written");
                *last.lock().expect("no panic") = (turn, nth, Some(files[nth].metadata().mtime));
                files[nth].sync().expect("synced");
                done.store(turn, Ordering::SeqCst);
            }
        });
        let until = Instant::now() + STORM / 2;
        while Instant::now() < until && suspects.len() < 20_000 {
            let (turn, nth, time) = *last.lock().expect("no panic");
            volume.sync().expect("synced");
            let moment = recorder.moment();
            // Whoever fsyncs it has not come back.
            if let Some(time) = time.filter(|_| done.load(Ordering::SeqCst) < turn && turn != latest) {
                latest = turn;
                suspects.push((moment, nth, time));
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    drop(files);
    drop(volume);
    let recording = recorder.recording();
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let (mut lost, all) = (0, suspects.len());
    for (moment, nth, time) in suspects {
        power.advance(moment).expect("written");
        power.make(|_| Fate::Dropped).expect("written");
        let seen = Volume::open_device(stage.clone(), &OpenOptions::new()).expect("it is replayed");
        let found = seen.metadata(format!("/f{nth}")).expect("there").mtime;
        drop(seen);
        stage.rewind().expect("taken back");
        if (found.seconds, found.nanoseconds) < (time.seconds, time.nanoseconds) {
            lost += 1;
            if lost < 4 {
                println!("f{nth} at {moment}: {time:?} was seen before the sync, {found:?} is left");
            }
        }
    }
    assert_eq!(lost, 0, "of {all}");
}

/// A change of names takes its time before it has the inode, so it may set a time of change before that of modification,
/// which looks as if that was set by hand. An overwrite from before the modification does not count any more.
#[test]
fn a_file_is_not_older_than_its_last_change() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for nth in 0..3000 {
        root.create_file(
            format!("a rather long name of a file, number {nth}").as_bytes(),
            &NewNode::default(),
        )
        .expect("made");
    }
    let file = root.create_file(b"f", &NewNode::default()).expect("made").open().expect("a file");
    file.write_at(&[1; 8192], 0).expect("written");
    drop((file, root));
    volume.close().expect("closed");
    drop(volume);

    let hold = Arc::new(HoldDevice::new(Arc::clone(&device)));
    let volume = Volume::open_device(hold.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let file = volume.open_file("/f").expect("there");
    file.read_at(&mut [0; 4096], 0).expect("read");
    file.overwrite_at(&[2; 4096], 0).expect("written");
    let overwritten = file.metadata().mtime;
    file.append(&[3; 4096]).expect("appended");
    file.sync().expect("synced");
    thread::sleep(Duration::from_millis(200));
    // A file is made in the root directory, and waits for a block of it. Another one waits behind it to give the file a name.
    hold.hold_next(|op, _| op == Op::Read);
    let appended = thread::scope(|scope| {
        let makes = scope.spawn(|| root.create_file(b"another one in the directory", &NewNode::default()));
        hold.wait_until_waiting();
        let links = scope.spawn(|| root.link(b"a second name of the file", file.node()));
        thread::sleep(Duration::from_millis(200));
        assert!(!links.is_finished());
        // Meanwhile the file changes.
        file.append(&[4; 4096]).expect("appended");
        let appended = file.metadata().mtime;
        hold.release();
        makes.join().expect("no panic").expect("made");
        links.join().expect("no panic").expect("linked");
        appended
    });
    file.sync().expect("synced");
    let now = file.metadata().mtime;
    let seen = Volume::open_device(copy(&*device), &OpenOptions::new()).expect("it is replayed");
    let left = seen.metadata("/f").expect("there").mtime;
    assert!(now >= appended, "the file is as old as an overwrite long before: {overwritten:?}");
    assert!(left >= appended);
}

/// A file that somebody reads through pages gets another size. Who looks by the path sees it, and then asks the file.
#[test]
fn a_file_has_the_size_that_is_seen_by_path() {
    let device = device();
    let volume = open(&device);
    let file = overwritten(&volume).buffered();
    file.read_at(&mut [0; 4096], 0).expect("read");
    for size in [1 << 20, 100] {
        let seen = Arc::new(Mutex::new(None));
        let (to, other, same) = (Arc::clone(&seen), volume.clone(), file.clone());
        at(COMMITTED, move || {
            let by_path = other.metadata("/a").expect("there").size;
            *to.lock().unwrap() = Some((by_path, same.size(), same.metadata().size));
        });
        file.set_len(size).expect("another size");
        let seen = seen.lock().unwrap().take();
        assert_eq!(seen, Some((size, size, size)), "(by path, the file, its metadata)");
    }
}

/// The file only grows, whoever is asked.
#[test]
fn a_size_does_not_go_back_between_file_and_path() {
    for is_buffered in [true, false] {
        let device = device();
        let volume = open(&device);
        let file = overwritten(&volume);
        let pages = file.buffered();
        pages.read_at(&mut [0; 4096], 0).expect("read");
        let writer = if is_buffered { pages.clone() } else { file };
        let is_over = AtomicBool::new(false);
        let mut back = None;
        thread::scope(|scope| {
            scope.spawn(|| {
                let until = Instant::now() + STORM / 2;
                let mut end = 4096;
                while Instant::now() < until && end < 16 << 20 {
                    writer.write_at(&[2; 512], end).expect("written");
                    end += 512;
                }
                is_over.store(true, Ordering::Relaxed);
            });
            let mut last = 0;
            while !is_over.load(Ordering::Relaxed) {
                for nth in 0..3 {
                    let now = match nth {
                        0 => pages.size(),
                        1 => volume.metadata("/a").expect("there").size,
                        _ => pages.metadata().size,
                    };
                    if now < last {
                        back.get_or_insert((nth, last, now));
                    }
                    last = now;
                }
            }
        });
        assert_eq!(back, None, "written buffered: {is_buffered}: (who says it, the size before, now)");
    }
}

/// Write-back tells the device the size of a file that grows page by page. Nobody sees an end in the midst of a write.
#[test]
fn every_size_is_one_that_the_file_had() {
    const LEN: u64 = 3 * 4096;
    let until = Instant::now() + STORM;
    while Instant::now() < until {
        let device = device();
        let volume = open(&device);
        let file = volume.open_dir("/").and_then(|root| root.create_file(b"f", &NewNode::default()));
        let file = file.and_then(|node| node.open()).expect("a file").buffered();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && file.size() < 30 << 20 {
                    file.append(&[1; LEN as usize]).expect("appended");
                }
                is_over.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    file.sync().expect("synced");
                }
            });
            let ino = file.node().ino();
            while !is_over.load(Ordering::Relaxed) {
                let by_path = volume.metadata("/f").expect("there").size;
                let by_number = volume.metadata_of(ino).expect("there").size;
                let sizes = [file.size(), file.metadata().size, by_path, by_number];
                let wrong = sizes.into_iter().find(|size| size % LEN != 0);
                is_over.fetch_or(wrong.is_some(), Ordering::Relaxed);
                assert_eq!(wrong, None, "(the file, its metadata, by path, by number): {sizes:?}");
            }
        });
    }
}
