//! Clones in the middle: what a crash leaves of one, and what others do beside it.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Durability, MemoryDevice};
use fileio::testing::{COMMITTED, at};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use uxfs::{File, MkfsOptions, NewNode, OpenOptions, Volume, check_device, mkfs_device};

const BLOCK: u64 = 4096;

fn made() -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = open(&device);
    (device, volume)
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("it opens")
}

fn file(volume: &Volume, name: &str) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    root.create_file(name.as_bytes(), &NewNode::default()).expect("made").open().expect("opened")
}

/// The volume, as it would be if the power went now.
fn cut_off(device: &dyn BlockDevice) -> Arc<dyn BlockDevice> {
    let copy = MemoryDevice::anonymous(device.size()).expect("memory");
    let mut all = vec![0; device.size() as usize];
    device.read(0, &mut all).expect("read");
    copy.write(0, &all, Durability::Volatile).expect("written");
    Arc::new(copy)
}

fn ends_well(device: &Arc<dyn BlockDevice>, volume: Volume) {
    volume.close().expect("closes");
    drop(volume);
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Whoever looks at times for what has changed did not see what a crash, or an error, had left of a clone.
#[test]
fn a_part_of_a_clone_is_told_by_the_times() {
    let (device, volume) = made();
    let (one, other) = (file(&volume, "one"), file(&volume, "other"));
    one.write_at(&[1; 16 * BLOCK as usize], 0).expect("written");
    one.punch_hole(5 * BLOCK..6 * BLOCK).expect("a hole");
    other.write_at(&[2; 16 * BLOCK as usize], 0).expect("written");
    let before = other.metadata();
    thread::sleep(Duration::from_millis(20));
    let (cuts, cut) = mpsc::channel();
    let (at_crash, of) = (volume.clone(), Arc::clone(&device));
    // The source gets its flag; then comes the first piece.
    at(COMMITTED, move || {
        at(COMMITTED, move || {
            at_crash.sync().expect("synced");
            cuts.send(cut_off(&*of)).expect("somebody waits");
        });
    });
    one.clone_range(0, &other, 0, 0).expect("a clone");
    let crashed = open(&cut.recv().expect("a part of it is there"));
    let left = crashed.open_file("/other").expect("there");
    let mut found = vec![0; 16 * BLOCK as usize];
    left.read_at(&mut found, 0).expect("read");
    assert!(found[0] == 1 && found[15 * BLOCK as usize] == 2, "it is not a part of a clone");
    let now = left.metadata();
    assert!(now.mtime > before.mtime && now.ctime > before.ctime, "{before:?} {now:?}");
    drop((one, other));
    ends_well(&device, volume);
}

/// Blocks that a file without the flag for shared ones loses while it is asked whether any of its are shared, and that two
/// others share at once, were taken for its own: the clone was refused, as of a damaged volume.
#[test]
fn what_a_source_loses_meanwhile_is_not_taken_for_shared() {
    let (device, volume) = made();
    let [one, other, filler, new, clone] =
        ["one", "other", "filler", "new", "clone"].map(|name| file(&volume, name));
    one.write_at(&[1; 16 * BLOCK as usize], 0).expect("written");
    one.write_at(&vec![1; 2000 * BLOCK as usize], 16 * BLOCK).expect("written");
    let mut end = 0;
    for step in [256 * BLOCK, 16 * BLOCK, BLOCK] {
        while filler.allocate(end..end + step, false).is_ok() {
            end += step;
        }
    }
    filler.set_len(end - 1000 * BLOCK).expect("cut");
    let (cuts, of) = (one.clone(), volume.clone());
    let (begins, begun) = mpsc::channel();
    at("a map is about to be compared with counts", move || {
        let (ends, ended) = mpsc::channel();
        let beside = thread::spawn(move || {
            cuts.set_len(16 * BLOCK).expect("cut");
            of.sync().expect("synced");
            new.write_at(&vec![2; 2000 * BLOCK as usize], 0).expect("written");
            new.clone_range(0, &clone, 0, 0).expect("a clone");
            // Nobody may wait any more.
            let _ = ends.send(());
        });
        // It may have to wait for the end of this look.
        let _ = ended.recv_timeout(Duration::from_secs(1));
        begins.send(beside).expect("somebody waits");
    });
    one.clone_range(0, &other, 0, 16 * BLOCK).expect("a clone");
    begun.recv().expect("it has begun").join().expect("no panic");
    drop((one, other, filler));
    ends_well(&device, volume);
}
