//! Page caches beside what others do between two steps, and behind what failed: each test failed before.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Fault, FaultDevice, MemoryDevice, Op, Repeat};
use common::files::{new_file, remove};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use uxfs::{
    Changes, ErrorKind, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Timestamp, Volume, mkfs_device,
};

fn memory(bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(bytes).expect("memory"))
}

fn made_on(device: &Arc<dyn BlockDevice>) {
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(device), &MkfsOptions::new().small(true).features(features), true).expect("made");
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("opens")
}

/// A file whose appended bytes the device refused.
fn failed_append() -> (Volume, File) {
    let memory = memory(64 << 20);
    made_on(&memory);
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
    let device: Arc<dyn BlockDevice> = faulty.clone();
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    volume.sync().expect("synced");
    file.append(&[1; 50_000]).expect("in memory");
    faulty.add(Fault::fail(Op::Write, faulty.seen(Op::Write)).then(Repeat::Once));
    file.sync().expect_err("the device failed");
    file.sync().expect("it was told");
    (volume, file)
}

#[test]
fn a_file_whose_write_back_failed_can_be_cut() {
    let (_volume, file) = failed_append();
    file.set_len(0).expect("cut");
}

#[test]
fn and_read_by_a_queue() {
    let (_volume, file) = failed_append();
    file.queue(4).map(drop).expect("a queue");
}

#[test]
fn and_its_size_is_the_same_after_a_sync() {
    let (volume, file) = failed_append();
    let size = file.size();
    file.sync().expect("synced");
    volume.sync().ok();
    volume.sync().expect("synced");
    drop(file);
    assert_eq!(volume.open_file("file").expect("there").size(), size);
}

#[test]
fn and_written_to_past_the_pages() {
    let (_volume, file) = failed_append();
    file.direct().append(&[2; 4096]).expect("appended");
}

/// The file is cut while an append waits for others to be written back.
#[test]
fn an_append_says_where_it_is() {
    let device = memory(40 << 20);
    made_on(&device);
    let volume = open(&device);
    let other = new_file(&volume, "other").buffered();
    let file = new_file(&volume, "file").buffered();
    file.append(&[1; 1 << 20]).expect("space");
    let filler = new_file(&volume, "filler").direct();
    volume.sync().expect("synced");
    for piece in [1 << 20, 64 << 10, 4096] {
        loop {
            match filler.append(&vec![9; piece]) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    break;
                }
            }
        }
    }
    let len = filler.size();
    filler.set_len(len - (200 << 10)).expect("some space");
    volume.sync().expect("synced");
    other.append(&[2; 4096]).expect("some space");
    // Its write-back frees not enough; somebody cuts the file then.
    let was_cut = Arc::new(AtomicBool::new(false));
    let (cut, flag) = (file.direct(), Arc::clone(&was_cut));
    fileio::testing::at(fileio::testing::COMMITTED, move || {
        flag.store(true, Ordering::SeqCst);
        cut.set_len(4096).expect("cut");
        filler.set_len(0).expect("cut");
    });
    let data: Vec<u8> = (0..400 << 10).map(|at| (at % 251) as u8 + 1).collect();
    let place = file.append(&data).expect("there is space by now");
    assert!(was_cut.load(Ordering::SeqCst), "the test is of use");
    let mut seen = vec![0; data.len()];
    let count = file.read_at(&mut seen, place).expect("read");
    let mut front = vec![0; data.len()];
    file.read_at(&mut front, 4096).expect("read");
    assert!(count == data.len() && seen == data, "the data are not at byte {place}");
}

/// Waits until `work` is done, or for so many milliseconds: it may be waiting for this thread.
fn wait_a_while(work: &std::thread::JoinHandle<()>, most_ms: u32) {
    for _ in 0..most_ms {
        if work.is_finished() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Two threads write to one clean file; the second one syncs the volume before the first has put the file into the queue.
/// (Needs the point in `wait_to_be_written`, between the swap and `enqueue`.)
#[test]
fn a_volume_that_is_synced_has_what_was_written_before() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.append(&[1; 16384]).expect("written");
    volume.sync().expect("synced");
    let place = file.extents().next().expect("one").expect("found").physical;
    let (second, whole) = (file.clone(), volume.clone());
    let beside = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&beside);
    fileio::testing::at("a file is about to wait to be written back", move || {
        let work = std::thread::spawn(move || {
            second.write_at(&[2; 4096], 8192).expect("written");
            whole.sync().expect("synced");
            let mut seen = vec![0; 4096];
            whole.device().read(place + 8192, &mut seen).expect("read");
            assert!(seen == [2; 4096], "the sync came back, and the device has {}", seen[0]);
        });
        // It may wait for this thread, which holds its bytes; what it must not do is to come back too early.
        wait_a_while(&work, 500);
        *keep.lock().unwrap() = Some(work);
    });
    file.write_at(&[3; 4096], 0).expect("written");
    let work = beside.lock().unwrap().take().expect("it was begun");
    work.join().expect("synced bytes are on the device");
}

/// A queue goes, and the file is cached again, while an append that saw the queue is about to write past the pages.
#[test]
fn an_append_beside_a_queue_that_goes_is_not_lost() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.append(&[1; 8192]).expect("written");
    volume.sync().expect("synced");
    let queue = file.queue(4).expect("a queue");
    let reader = file.clone();
    fileio::testing::at(fileio::testing::HOLD, move || {
        drop(queue);
        reader.read_at(&mut [0; 100], 0).expect("read");
    });
    let first = file.append(&[2; 4096]).expect("appended");
    println!(
        "first at {first}; the file ends at {} here, on the device at {}",
        file.size(),
        file.metadata().size
    );
    file.append(&[3; 4096]).expect("appended");
    let mut seen = vec![0; 4096];
    let count = file.read_at(&mut seen, first).expect("read");
    assert!(count == 4096 && seen == [2; 4096], "the append at {first} is gone: {} there", seen[0]);
}

fn times_stay(name: &str, prepare: impl FnOnce(&Volume, &File), at: u64) {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    prepare(&volume, &file);
    volume.sync().expect("synced");
    file.write_at(&[3; 10_000], at).expect("written");
    let time = Timestamp { seconds: 1_000_000, nanoseconds: 7 };
    file.node()
        .change(&Changes { mtime: Some(time), ctime: Some(time), ..Changes::default() })
        .expect("changed");
    file.sync().expect("synced");
    volume.sync().expect("synced");
    let now = file.metadata();
    assert_eq!((now.mtime, now.ctime), (time, time), "{name}");
}

#[test]
fn times_that_were_set_stay() {
    times_stay("empty", |_, _| {}, 0);
    times_stay("data", |_, file| drop(file.append(&[1; 40_000])), 5);
    times_stay("unwritten", |_, file| file.allocate(0..40_000, false).expect("space"), 5);
    times_stay(
        "shared",
        |volume, file| {
            file.append(&[1; 40_960]).expect("written");
            file.clone_range(0, &new_file(volume, "other"), 0, 40_960).expect("shared");
        },
        5,
    );
}

/// Space after write-back that failed, and the files that are gone.
#[test]
fn space_is_free_again_after_a_failure() {
    for kind in 0..4 {
        let memory = memory(64 << 20);
        made_on(&memory);
        let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let volume = open(&device);
        let keep = new_file(&volume, "keep");
        keep.write_at(&[5; 81_920], 0).expect("written");
        volume.sync().expect("synced");
        let free = volume.info().expect("info").free_blocks;
        let file = new_file(&volume, "file").buffered();
        match kind {
            0 => {}
            1 => file.append(&[1; 81_920]).map(drop).expect("written"),
            2 => file.allocate(0..81_920, false).expect("space"),
            _ => keep.clone_range(0, &file, 0, 81_920).expect("shared"),
        }
        volume.sync().expect("synced");
        file.write_at(&[3; 50_000], 5).expect("written");
        faulty.add(Fault::fail(Op::Write, faulty.seen(Op::Write)).then(Repeat::Once));
        file.sync().expect_err("the device failed");
        file.sync().expect("told");
        drop(file);
        common::files::remove(&volume, "file");
        volume.sync().ok();
        volume.sync().expect("synced");
        let now = volume.info().expect("info").free_blocks;
        assert!(free.abs_diff(now) < 12, "kind {kind}: {free} before, {now} now");
        volume.close().ok();
        drop((keep, volume));
        let volume = open(&memory);
        volume.close().expect("closed");
        drop(volume);
        let report = uxfs::check_device(Arc::clone(&memory), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "kind {kind}: {:?}", report.findings);
    }
}

/// Blocks smaller than pages: the second writer of a page finds its mark set by the first, who has not counted it yet.
/// (Needs the point in `Pages::set_dirty`, between `mark_dirty` and `fetch_add`.)
#[test]
fn a_file_that_is_synced_has_what_was_written_before() {
    let device = memory(64 << 20);
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    let options = MkfsOptions::new().small(true).features(features).block_size(1024);
    mkfs_device(Arc::clone(&device), &options, true).expect("made");
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.append(&[1; 4096]).expect("written");
    volume.sync().expect("synced");
    let place = file.extents().next().expect("one").expect("found").physical;
    let (second, whole) = (file.clone(), volume.clone());
    let beside = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&beside);
    fileio::testing::at("pages are marked and not counted", move || {
        let work = std::thread::spawn(move || {
            second.write_at(&[2; 1024], 2048).expect("written");
            second.sync().expect("synced");
            let mut seen = vec![0; 4096];
            whole.device().read(place, &mut seen).expect("read");
            assert!(seen[2048..3072] == [2; 1024], "the sync came back, and the device has {}", seen[2048]);
        });
        // It may wait for this thread, which holds its bytes; what it must not do is to come back too early.
        wait_a_while(&work, 500);
        *keep.lock().unwrap() = Some(work);
    });
    file.write_at(&[3; 1024], 0).expect("written");
    let work = beside.lock().unwrap().take().expect("it was begun");
    work.join().expect("synced bytes are on the device");
}

/// The last handle goes while another thread opens the file again and appends.
#[test]
fn stat_says_where_a_file_ends_that_was_just_closed_and_opened() {
    let device = memory(256 << 20);
    made_on(&device);
    let options = OpenOptions::new().writable(true).cache_size(256 << 20);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("opens");
    let made = new_file(&volume, "file").buffered();
    made.append(&vec![1; 64 << 20]).expect("written");
    made.sync().expect("synced");
    let mut last = made;
    for round in 0..50 {
        let mut bytes = vec![0; 1 << 20];
        for at in 0..64 {
            last.read_at(&mut bytes, at << 20).expect("read");
        }
        last.sync().expect("synced");
        let closer = std::thread::spawn(move || drop(last));
        std::thread::sleep(std::time::Duration::from_micros(100 * (round % 10)));
        let file = volume.open_file("file").expect("there").buffered();
        file.append(&[2; 100]).expect("written");
        closer.join().expect("closed");
        assert_eq!(file.metadata().size, file.size(), "round {round}: stat, and what the handle says");
        last = file;
    }
}

/// Where a file ended in memory was said of it still when it was closed and written back, whoever changed it then past the
/// pages, and of the next file that had its inode.
#[test]
fn stat_says_where_a_file_ends_that_was_closed_and_is_changed_past_the_pages() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    for (name, size) in [("cut", 100), ("longer", 50_000), ("nothing", 0)] {
        let file = new_file(&volume, name).buffered();
        file.append(&[1; 10_000]).expect("written");
        file.sync().expect("synced");
        drop(file);
        let file = volume.open_file(name).expect("there");
        match size {
            100 => file.set_len(size).expect("cut"),
            0 => {}
            _ => file.write_at(&[2; 100], size - 100).expect("written"),
        }
        if size > 0 {
            assert_eq!(file.size(), size);
            assert_eq!(file.metadata().size, size, "{name}");
            assert_eq!(volume.metadata(name).expect("stat").size, size, "{name}");
            continue;
        }
        let ino = file.node().ino();
        drop(file);
        remove(&volume, name);
        let next = new_file(&volume, "next");
        assert_eq!(next.node().ino(), ino, "the next file has the inode");
        assert_eq!(next.metadata().size, 0, "a file that was just made");
    }
}

/// What could not be written back was said to be there of the next file, or directory, that had the inode.
#[test]
fn stat_says_nothing_of_what_was_lost_with_a_file() {
    let (volume, file) = failed_append();
    let ino = file.node().ino();
    drop(file);
    remove(&volume, "file");
    let next = new_file(&volume, "next");
    assert_eq!(next.node().ino(), ino, "the next file has the inode");
    assert_eq!((next.metadata().size, volume.metadata("next").expect("stat").size), (0, 0));
    drop(next);
    remove(&volume, "next");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let dir = root.create_dir(b"dir", &NewNode::default()).expect("made");
    assert_eq!(dir.ino(), ino, "and the directory");
    assert!(volume.metadata("dir").expect("stat").size < 4096);
}

/// The size came from a version of before, and that in memory was gone already as it had been written back.
#[test]
fn stat_does_not_go_back_while_a_file_is_written_back() {
    let device = memory(256 << 20);
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    let (least, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let outgrown = || {
        let before = least.load(Ordering::SeqCst);
        let size = volume.metadata("file").expect("stat").size;
        (size < before).then_some((size, before))
    };
    std::thread::scope(|scope| {
        let asks = || {
            std::iter::repeat_with(outgrown).take_while(|_| !is_over.load(Ordering::SeqCst)).flatten().next()
        };
        let all: Vec<_> = (0..3).map(|_| scope.spawn(asks)).collect();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
        while std::time::Instant::now() < until && file.size() < 64 << 20 {
            file.append(&[1; 4096]).expect("written");
            least.store(file.size(), Ordering::SeqCst);
            file.sync_data().expect("synced");
        }
        is_over.store(true, Ordering::SeqCst);
        for one in all {
            assert_eq!(one.join().expect("no panic"), None, "stat said a size that the file had outgrown");
        }
    });
}

/// Who changed a page past the pages wrote back, under a hold of that page alone, dirty ones behind it, too: whoever was
/// writing to these lost what they wrote, or the end of the file that they moved.
#[test]
fn nobody_writes_back_what_they_do_not_hold() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.append(&[1; 8192]).expect("written");
    volume.sync().expect("synced");
    let second = file.extents().next().expect("one").expect("found").physical + 4096;
    let writer = file.clone();
    fileio::testing::at(fileio::testing::CHANGE, move || {
        // All was written back, and the first page is about to be held.
        writer.write_at(&[2; 8192], 0).expect("written");
    });
    file.punch_hole(0..4096).expect("a hole");
    let mut seen = vec![0; 4096];
    volume.device().read(second, &mut seen).expect("read");
    assert!(seen == [1; 4096], "the second page was written back by who did not hold it");
    file.sync().expect("synced");
    volume.device().read(second, &mut seen).expect("read");
    assert!(seen == [2; 4096]);
}

/// A file was cut, and before that was known in memory, who wrote back a page in front of what was held told the map where it
/// had ended before: it was as long again.
#[test]
fn a_file_that_is_cut_beside_write_back_stays_cut() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.append(&[1; 20_000]).expect("written");
    file.sync().expect("synced");
    let (other, beside) = (file.clone(), Arc::new(Mutex::new(None)));
    let keep = Arc::clone(&beside);
    fileio::testing::at(fileio::testing::COMMITTED, move || {
        let work = std::thread::spawn(move || {
            other.write_at(&[2; 100], 0).expect("written");
            other.sync().expect("synced");
        });
        // It may wait for this thread, which holds the end of the file.
        wait_a_while(&work, 200);
        *keep.lock().unwrap() = Some(work);
    });
    file.set_len(9_000).expect("cut");
    let work = beside.lock().unwrap().take().expect("it was begun");
    work.join().expect("written and synced");
    assert_eq!(file.size(), 9_000);
    assert_eq!(file.node().metadata().expect("stat").size, 9_000);
    file.sync().expect("synced");
    drop(file);
    assert_eq!(volume.open_file("file").expect("there").size(), 9_000);
}
