//! Threads that change one file with a small log all come to an end: whoever goes on with a transaction never waits for
//! those who hold log space and wait for the file.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, MemoryDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uxfs::{
    Changes, Dir, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename, SetXattr, Volume, check_device,
    mkfs_device,
};

const MIB: u64 = 1 << 20;
/// Nothing hangs for so long that is not stuck.
const STUCK: Duration = Duration::from_secs(60);

/// One thread cuts a file of many extents off, beside others that set attributes and owners of it until that is done.
fn cut_off_beside(threads: u32, log: u64, extents: u64) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(log + 160 * MIB).expect("memory"));
    // What is made today asks for larger logs.
    let old = MkfsFeatures::of_kernel("6.1").expect("its set");
    let options = MkfsOptions::new().features(old).small(true).log_size(log).group_count(1);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    let options = OpenOptions::new().writable(true);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let node = root.create_file(b"f", &NewNode::default()).expect("made");
    let file = node.open().expect("opened");
    for nth in 0..extents {
        file.write_at(&[1; 4096], nth * 8192).expect("written");
    }
    volume.sync().expect("synced");
    let (set, cut) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (volume, set, cut) = (&volume, &set, &cut);
            scope.spawn(move || {
                let node = volume.lookup("/f").expect("there");
                while !cut.load(Ordering::SeqCst) {
                    let turn = u64::from(thread) + set.fetch_add(1, Ordering::SeqCst);
                    if turn.is_multiple_of(3) {
                        let changes = Changes { uid: Some(thread), ..Changes::default() };
                        node.change(&changes).expect("its owner");
                    } else {
                        let value = thread.to_le_bytes();
                        node.set_xattr(b"user.x", &value, SetXattr::default()).expect("an attribute");
                    }
                }
            });
        }
        scope.spawn(|| {
            file.set_len(0).expect("cut off");
            cut.store(true, Ordering::SeqCst);
        });
        let (mut last, mut since) = (0, Instant::now());
        while !cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
            let now = set.load(Ordering::SeqCst);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > STUCK {
                // Threads that hang cannot be joined.
                eprintln!("{threads} threads, a log of {log} bytes: stuck after {now} changes");
                std::process::abort();
            }
        }
    });
    drop(file);
    volume.close().expect("closed");
    let report = check_device(device, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_file_is_cut_off_beside_eight_threads_with_a_log_of_seven_mib() {
    cut_off_beside(8, 7 * MIB, 600);
}

#[test]
fn a_file_is_cut_off_beside_thirty_two_threads_with_a_log_of_twelve_mib() {
    cut_off_beside(32, 12 * MIB, 600);
}

#[test]
fn a_file_is_cut_off_beside_a_hundred_and_twenty_eight_threads() {
    cut_off_beside(128, 10 * MIB, 300);
    cut_off_beside(128, 64 * MIB, 300);
}

/// With blocks of 64 KiB the log has room for one step of a renaming at a time, and for all of them one after the other.
#[test]
fn threads_rename_with_a_log_that_has_room_for_one_step() {
    const GIB: u64 = 1 << 30;
    const BLOCK: u32 = 64 << 10;
    const THREADS: u32 = 12;
    const TURNS: u32 = 150;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(2 * GIB).expect("memory"));
    let today = MkfsFeatures::of_kernel("6.18").expect("its set");
    let options = MkfsOptions::new().features(today).block_size(BLOCK);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    let options = OpenOptions::new().writable(true);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("clean");
    let done = AtomicU64::new(0);
    let dirs: [Dir; 2] = ["a", "b"].map(|name| {
        let root = volume.root().expect("root").as_dir().expect("a directory");
        root.create_dir(name.as_bytes(), &NewNode::default()).expect("made");
        volume.lookup(name).expect("there").as_dir().expect("a directory")
    });
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (dirs, done) = (&dirs, &done);
            scope.spawn(move || {
                let [from, to] =
                    if thread.is_multiple_of(2) { [&dirs[0], &dirs[1]] } else { [&dirs[1], &dirs[0]] };
                let [one, other] = ["one", "other"].map(|what| format!("{what}-{thread}").into_bytes());
                for _ in 0..TURNS {
                    let made = from.create_file(&one, &NewNode::default()).expect("made");
                    to.link(&other, &made).expect("linked");
                    made.set_xattr(b"user.x", &[7; 3000], SetXattr::default()).expect("an attribute");
                    from.rename(&one, to, &one, Rename::Replace).expect("moved");
                    to.remove_file(&one).expect("removed");
                    to.remove_file(&other).expect("removed");
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let all = u64::from(THREADS * TURNS);
        let (mut last, mut since) = (0, Instant::now());
        while last < all && since.elapsed() < STUCK {
            std::thread::sleep(Duration::from_millis(20));
            let now = done.load(Ordering::SeqCst);
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        if last < all {
            eprintln!("stuck, or failed, after {last} of {all}");
            std::process::abort();
        }
    });
    drop(dirs);
    volume.close().expect("closed");
    let report = check_device(device, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{report:?}");
}
