//! What `stat` says beside those who write, sync and close: times and blocks never go back, and a sync or a close has all
//! times of overwrites that returned before it.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::devices::copy;
use fileio::testing::{OVERWRITTEN, at};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use uxfs::{MkfsOptions, NewNode, OpenOptions, Volume, mkfs_device};

/// In `file::log_times`.
const LOGGED: &str = "the time of an overwrite is being logged";
/// For how long threads run that nothing holds.
const STORM: Duration = Duration::from_secs(4);

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
