//! Files that exchange their content up to their ends from different bytes on, and with that their sizes.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{closes_well, new_file};
use fileio::testing::{CHANGE, at};
use std::sync::Arc;
use uxfs::{ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;

fn all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xAA; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// An empty volume in memory, open for writing.
fn volume() -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(32 << 20).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().features(features).small(true), true)
        .expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    (device, volume)
}

/// Has `file` be cut before the first of two files is held, and written again to the size that it had, in memory, before
/// the other one is.
fn shrinks_and_grows(file: &File, size: u64) {
    let (cut, grown) = (file.clone(), file.clone());
    at(CHANGE, move || {
        // This asks to hold something itself.
        cut.set_len(0).expect("cut");
        at(CHANGE, move || {
            grown.write_at(&vec![4; size as usize], 0).expect("longer");
        });
    });
}

/// A file that is cut, and grows again to the size that it had, while the other one is waited for: the size was found to be
/// the same, with an end that nobody held.
#[test]
fn a_file_that_shrinks_and_grows_again_is_found_out() {
    let (device, volume) = volume();
    let [first, second] = ["first", "second"].map(|name| new_file(&volume, name).buffered());
    first.write_at(&[1; 2 * BLOCK as usize], 0).expect("written");
    second.write_at(&[2; 3 * BLOCK as usize], 0).expect("written");
    volume.sync().expect("synced");
    shrinks_and_grows(&first, 2 * BLOCK);
    first.exchange_range(2 * BLOCK, &second, 2 * BLOCK, None, ExchangeOptions::new()).expect("exchanged");
    assert_eq!((first.size(), second.size()), (3 * BLOCK, 2 * BLOCK));
    let expected = [[4; 2 * BLOCK as usize].as_slice(), &[2; BLOCK as usize]].concat();
    assert!(all(&first) == expected);
    assert!(all(&second) == [2; 2 * BLOCK as usize]);
    volume.sync().expect("synced");
    assert!(all(&first.direct()) == expected);
    drop((first, second));
    closes_well(&device, volume);
}

/// The same of a file that a clone makes longer.
#[test]
fn a_clone_goes_behind_the_end_that_is_held() {
    let (device, volume) = volume();
    let [to, from] = ["to", "from"].map(|name| new_file(&volume, name).buffered());
    to.write_at(&[1; 2 * BLOCK as usize], 0).expect("written");
    from.write_at(&[2; 3 * BLOCK as usize], 0).expect("written");
    volume.sync().expect("synced");
    shrinks_and_grows(&to, 2 * BLOCK);
    from.clone_range(0, &to, 2 * BLOCK, 3 * BLOCK).expect("cloned");
    let expected = [[4; 2 * BLOCK as usize].as_slice(), &[2; 3 * BLOCK as usize]].concat();
    assert_eq!(to.size(), 5 * BLOCK);
    assert!(all(&to) == expected);
    volume.sync().expect("synced");
    assert!(all(&to.direct()) == expected);
    drop((to, from));
    closes_well(&device, volume);
}

/// A file whose new end lies before the range that it gave away: what was in memory between the two was read, and written
/// back, when it grew again.
#[test]
fn what_is_cut_off_before_the_range_is_gone() {
    for (size, synced) in [(0, true), (0, false), (100, true), (100, false), (BLOCK + 100, false)] {
        let (device, volume) = volume();
        let [long, short] = ["long", "short"].map(|name| new_file(&volume, name).buffered());
        long.write_at(&[1; 4 * BLOCK as usize], 0).expect("written");
        short.write_at(&vec![2; size as usize], 0).expect("written");
        if synced {
            volume.sync().expect("synced");
        }
        long.exchange_range(3 * BLOCK, &short, 0, None, ExchangeOptions::new()).expect("exchanged");
        let what = format!("{size} bytes, synced: {synced}");
        assert!(all(&long) == vec![1; size as usize], "{what}");
        // The last block, and a hole behind it.
        let mut expected = vec![0; 4 * BLOCK as usize];
        expected[..BLOCK as usize].fill(1);
        assert!(all(&short) == expected, "{what}");
        long.write_at(&[3], 3 * BLOCK).expect("longer");
        let mut expected = vec![0; 3 * BLOCK as usize + 1];
        expected[..size as usize].fill(1);
        expected[3 * BLOCK as usize] = 3;
        assert!(all(&long) == expected, "what was cut off is there again: {what}");
        volume.sync().expect("synced");
        assert!(all(&long.direct()) == expected, "{what}");
        drop((long, short));
        closes_well(&device, volume);
    }
}
