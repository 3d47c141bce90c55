//! Whoever changes the size of a file waits for those who do so as well; whoever reads or writes elsewhere waits for
//! nobody.
//!
//! A `HoldDevice` keeps a request of the one until the others have had their time.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, HoldDevice, MemoryDevice, Op};
use common::files::new_file;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;
use uxfs::{File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;
/// Where the file ends: within a block.
const END: u64 = 64 * BLOCK + 1000;
/// Blocks of it that nothing was written to.
const HOLE: std::ops::Range<u64> = 32 * BLOCK..40 * BLOCK;

/// A file with a hole in it; of its last block nothing is in memory, of the first one something is dirty.
fn made() -> (Arc<HoldDevice>, Volume, File) {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true).features(features), true).expect("made");
    let device = Arc::new(HoldDevice::new(memory));
    let volume =
        Volume::open_device(Arc::clone(&device) as _, &OpenOptions::new().writable(true)).expect("opens");
    let file = new_file(&volume, "file");
    file.write_at(&vec![1; END as usize], 0).expect("written");
    file.punch_hole(HOLE).expect("a hole");
    volume.sync().expect("synced");
    let file = file.buffered();
    file.write_at(&[2; 100], 0).expect("in memory");
    (device, volume, file)
}

/// The byte of the device where the file's last block is.
fn last_block(file: &File) -> u64 {
    let extents = file.extents().map(|extent| extent.expect("a map"));
    let last = extents.last().expect("one");
    assert!(last.logical + last.length > END, "{last:?}");
    last.physical + (END / BLOCK * BLOCK - last.logical)
}

/// Waits a while until it has come to its end.
fn ends<T>(work: &ScopedJoinHandle<'_, T>) -> bool {
    for _ in 0..20_000 {
        if work.is_finished() {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Has `change` wait for its request `op` of the last block, and looks at who goes on beside it: everybody elsewhere in the
/// file, and nobody who appends. Gives the byte where that came.
fn beside<'a>(device: &HoldDevice, file: &File, op: Op, change: impl FnOnce() + Send + 'a) -> u64 {
    let place = last_block(file);
    device.hold_next(move |what, offset| what == op && (place..place + BLOCK).contains(&offset));
    thread::scope(|scope| {
        let changing = scope.spawn(change);
        while device.waiting() == 0 && !changing.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let is_held = device.waiting() > 0;
        let others = scope.spawn(|| {
            let mut seen = [0; 300];
            // In memory, on the device, and in no place yet.
            for (at, was) in [(0, 2), (20 * BLOCK + 10, 1), (HOLE.start + 10, 0)] {
                file.read_at(&mut seen, at).expect("read");
                assert_eq!(seen[0], was, "at {at}");
                file.write_at(&[3; 300], at).expect("written");
                file.read_at(&mut seen, at).expect("read");
                assert_eq!(seen, [3; 300], "at {at}");
            }
        });
        let go_on = ends(&others);
        let appending = scope.spawn(|| file.append(&[5; 200]).expect("appended"));
        thread::sleep(Duration::from_millis(50));
        let (waits, still_held) = (!appending.is_finished(), !changing.is_finished());
        device.release();
        assert!(is_held && still_held, "the change came to the device: {is_held}, {still_held}");
        assert!(go_on, "who is elsewhere waits for who changes the size");
        assert!(waits, "who appends does not wait for who changes the size");
        appending.join().expect("no panic")
    })
}

/// What is in the file by all of that.
fn is_right(volume: &Volume, file: &File, end: &[(u64, u8)]) {
    let mut model = vec![1; END as usize];
    model[HOLE.start as usize..HOLE.end as usize].fill(0);
    model[..100].fill(2);
    for at in [0, 20 * BLOCK + 10, HOLE.start + 10] {
        model[at as usize..][..300].fill(3);
    }
    for &(to, byte) in end {
        model.resize(to as usize, byte);
    }
    for _ in 0..2 {
        let mut seen = vec![0xEE; model.len() + 1];
        let count = file.read_at(&mut seen, 0).expect("read");
        assert!(count == model.len() && seen[..count] == model);
        volume.sync().expect("synced");
    }
}

#[test]
fn who_appends_holds_the_end_alone() {
    let (device, volume, file) = made();
    let first = || assert_eq!(file.append(&[4; 6000]).expect("appended"), END);
    let at = beside(&device, &file, Op::Read, first);
    assert_eq!(at, END + 6000);
    is_right(&volume, &file, &[(at, 4), (at + 200, 5)]);
}

#[test]
fn who_cuts_within_a_block_holds_what_follows_alone() {
    let (device, volume, file) = made();
    // Nothing is to be written back before it: that would be in the way.
    file.sync().expect("synced");
    let cut = END - 500;
    let at = beside(&device, &file, Op::Write, || file.set_len(cut).expect("cut"));
    assert_eq!(at, cut);
    is_right(&volume, &file, &[(cut, 0), (cut + 200, 5)]);
}

#[test]
fn and_so_does_who_lets_it_end_behind() {
    let (device, volume, file) = made();
    file.sync().expect("synced");
    let end = END + 3 * BLOCK;
    let at = beside(&device, &file, Op::Write, || file.set_len(end).expect("longer"));
    assert_eq!(at, end);
    is_right(&volume, &file, &[(end, 0), (end + 200, 5)]);
}
