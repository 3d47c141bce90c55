//! Files that exchange their content up to their ends from different bytes on, and with that their sizes.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{closes_well, new_file};
use std::sync::Arc;
use uxfs::{ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;

fn all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xAA; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// A file whose new end lies before the range that it gave away: what was in memory between the two was read, and written
/// back, when it grew again.
#[test]
fn what_is_cut_off_before_the_range_is_gone() {
    for (size, synced) in [(0, true), (0, false), (100, true), (100, false), (BLOCK + 100, false)] {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(32 << 20).expect("memory"));
        let features = MkfsFeatures::of_kernel("6.18").expect("known");
        mkfs_device(Arc::clone(&device), &MkfsOptions::new().features(features).small(true), true)
            .expect("a volume");
        let volume =
            Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
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
