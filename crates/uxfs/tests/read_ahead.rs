//! How much comes into memory for readers of a file, and in how many requests.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Counter, MemoryDevice};
use common::files::{Random, new_file};
use std::sync::Arc;
use uxfs::{File, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;
const BYTES: u64 = 32 << 20;
/// Each block has its number.
fn stamp(nth: u64) -> u8 {
    (nth % 251) as u8
}

/// A file of which nothing is in memory.
fn cold() -> (Arc<Counter>, Volume, File) {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(400 << 20).expect("memory"));
    mkfs_device(Arc::clone(&memory), &MkfsOptions::new(), true).expect("a volume");
    let counter = Arc::new(Counter::new(memory));
    let open = || {
        let options = OpenOptions::new().writable(true).cache_size(256 << 20);
        Volume::open_device(counter.clone(), &options).expect("opens")
    };
    let volume = open();
    let file = new_file(&volume, "file");
    let bytes: Vec<u8> = (0..BYTES / BLOCK).flat_map(|nth| [stamp(nth); BLOCK as usize]).collect();
    file.write_at(&bytes, 0).expect("written");
    drop(file);
    volume.close().expect("closed");
    drop(volume);
    let volume = open();
    let file = volume.open_file("file").expect("there").buffered();
    // The map is in memory then.
    read(&file, BYTES / BLOCK - 1);
    (counter, volume, file)
}

fn read(file: &File, nth: u64) {
    let mut bytes = [0; BLOCK as usize];
    assert_eq!(file.read_at(&mut bytes, nth * BLOCK).expect("read"), bytes.len());
    assert!(bytes == [stamp(nth); BLOCK as usize], "block {nth}");
}

/// Readers who take turns, each going through its part of a file, get large requests as one alone does.
#[test]
fn each_reader_who_goes_through_a_file_is_read_ahead_for() {
    for readers in [1, 2, 8] {
        let (counter, _volume, file) = cold();
        let part = (16 << 20) / BLOCK / readers;
        let before = counter.counts();
        for nth in 0..part {
            (0..readers).for_each(|reader| read(&file, reader * part + nth));
        }
        let counts = counter.counts();
        let (reads, bytes) = (counts.reads - before.reads, counts.read_bytes - before.read_bytes);
        // While the windows grow, nine requests a reader; each may be two, where it ends one folio and begins the next. And no
        // reader goes far beyond its part.
        assert!(reads <= 2 * (16 + 11 * readers), "{readers} readers: {reads} requests");
        assert!(bytes <= (16 << 20) + (2 << 20) * readers, "{readers} readers: {bytes} bytes");
    }
}

/// Whoever reads here and there gets what is wanted and no more.
#[test]
fn nothing_is_read_ahead_where_nobody_goes_on() {
    let (counter, _volume, file) = cold();
    let mut random = Random::seeded();
    let before = counter.counts();
    for _ in 0..200 {
        read(&file, random.below(BYTES / BLOCK - 1));
    }
    let bytes = counter.counts().read_bytes - before.read_bytes;
    // By chance, a few go on where another ended.
    assert!(bytes <= 250 * BLOCK, "{bytes} bytes for 200 blocks");
}
