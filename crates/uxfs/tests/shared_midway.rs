//! Clones in the middle: what a crash leaves of one, and what others do beside it.

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
