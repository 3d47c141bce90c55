//! What write-back makes of pages that were written in small pieces: how many requests, how many extents, and how many of
//! them at once.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Counter, HoldDevice, MemoryDevice, Op};
use common::files::{Random, closes_well, new_file};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uxfs::{MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;
const CACHE: u64 = 64 << 20;

fn device() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(400 << 20).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().features(features), true).expect("a volume");
    device
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true).cache_size(CACHE)).expect("opens")
}

/// The numbers below `count`, in any order.
fn shuffled(count: u64) -> Vec<u64> {
    let mut random = Random::seeded();
    let mut all: Vec<u64> = (0..count).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
    all
}

/// Block by block in any order, or in pieces that are no blocks: the device gets mebibytes, and the file one extent.
#[test]
fn small_writes_go_out_in_large_requests_to_one_extent() {
    /// Less than the writers wait for, so that all of it goes out at the sync.
    const BYTES: u64 = 3 << 20;
    for piece in [BLOCK, 1000] {
        let memory = device();
        let counter = Arc::new(Counter::new(Arc::clone(&memory)));
        let volume = open(counter.clone());
        let file = new_file(&volume, "file").buffered();
        // What comes with the first write to a volume is written.
        volume.sync().expect("synced");
        let before = counter.counts();
        let pieces = BYTES / piece;
        let order = if piece == BLOCK { shuffled(pieces) } else { (0..pieces).collect() };
        for nth in order {
            file.write_at(&vec![nth as u8; piece as usize], nth * piece).expect("written");
        }
        assert_eq!(counter.counts().writes, before.writes, "nothing goes out so early");
        file.sync().expect("synced");
        let writes = counter.counts().writes - before.writes;
        // A run may begin within a mebibyte, and there is the log.
        assert!((3..=8).contains(&writes), "pieces of {piece}: {writes} writes");
        let extents = file.extents().collect::<Result<Vec<_>, _>>().expect("a map");
        assert_eq!(extents.len(), 1, "pieces of {piece}: {extents:?}");
        for nth in 0..pieces {
            let mut bytes = vec![0; piece as usize];
            file.direct().read_at(&mut bytes, nth * piece).expect("read");
            assert!(bytes == vec![nth as u8; piece as usize]);
        }
        drop(file);
        closes_well(&memory, volume);
    }
}

/// A device that takes its time has more than one request of those who write back, while nobody syncs.
#[test]
fn several_requests_are_under_way() {
    let memory = device();
    let holds = Arc::new(HoldDevice::new(Arc::clone(&memory)));
    let volume = open(holds.clone());
    let files = ["one", "two", "three"].map(|name| new_file(&volume, name).buffered());
    volume.sync().expect("synced");
    holds.hold(|op, _| op == Op::Write);
    for nth in 0..CACHE / 4 / BLOCK {
        files[nth as usize % 3].append(&[7; BLOCK as usize]).expect("written");
    }
    let since = Instant::now();
    while holds.waiting() < 2 {
        assert!(since.elapsed() < Duration::from_secs(60), "{} under way", holds.waiting());
        std::thread::sleep(Duration::from_millis(1));
    }
    holds.release();
    volume.sync().expect("synced");
    drop(files);
    closes_well(&memory, volume);
}
