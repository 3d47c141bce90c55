//! Blocks past the end of files whose maps were changed by recovery.

use crate::check::{CheckOptions, check};
use crate::exchange;
use crate::file;
use crate::inode::ForkKind;
use crate::mkfs::{Before, Features, Options, format, plan};
use crate::namespace::{self, NewInode};
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use crate::volume::{OpenOptions, Volume};
use blockdev::{BlockDevice, Durability, MemoryDevice};
use std::sync::Arc;
use xfs_format::log::{Exchange, ExchangeFlags};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, Uuid};

const BYTES: u64 = 64 << 20;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
}

fn open(device: &Arc<dyn BlockDevice>) -> Arc<Volume> {
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    Volume::open(Arc::clone(device), &options).unwrap()
}

/// The end of the map of a file with three blocks, whose first block was to be exchanged for a hole when the crash
/// came.
fn end_of_map(size: u64, is_set_aside: bool) -> FileBlock {
    let device = memory();
    let features = Features { rmapbt: true, exchange: true, ..Features::of_kernel("6.1").unwrap() };
    let new = Options { small: true, features, ..Options::new(Uuid([7; 16]), NOW) };
    format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
    let volume = open(&device);
    let root = volume.handle(volume.geometry().root).unwrap();
    let files = [b"one", b"two"].map(|name| {
        let file = namespace::create(&volume, &root, name, &NewInode::for_tests(0o100_644, NOW)).unwrap();
        file::set_size(&volume, file.entry(), size, NOW).unwrap();
        Arc::clone(file.entry())
    });
    drop(file::allocate_blocks(&volume, &files[0], FileBlock(0)..FileBlock(3)).unwrap());
    if is_set_aside {
        file::space_set_aside(&volume, &files[0], None, NOW).unwrap();
    }
    let need = ReservationBuilder::new(volume.geometry())
        .inodes(2)
        .maps_at_once(1)
        .exchange_at_once()
        .blocks(64)
        .log_count(2);
    let mut promise = Trans::start(&volume, need.build()).unwrap();
    for file in &files {
        promise.join_inode(Arc::clone(file), file.ilock()).unwrap();
    }
    let inodes = [files[0].ino(), files[1].ino()];
    let todo = Exchange {
        inodes,
        generations: inodes.map(|ino| promise.inode(ino).core().generation),
        offsets: [FileBlock(0); 2],
        blocks: 1,
        flags: ExchangeFlags::empty(),
        sizes: [u64::MAX; 2],
    };
    exchange::defer_exchange(&mut promise, todo);
    promise.roll().unwrap();
    volume.sync().unwrap();
    let crashed = memory();
    let mut bytes = vec![0; 1 << 20];
    for at in (0..BYTES).step_by(bytes.len()) {
        device.read(at, &mut bytes).unwrap();
        crashed.write(at, &bytes, Durability::Volatile).unwrap();
    }
    drop(promise);
    drop((files, root, volume));
    let volume = open(&crashed);
    let report = volume.recovery().expect("the log was dirty");
    assert!(report.unfinished.iter().any(|what| what.contains("XMI")), "{report:?}");
    let end_of = |ino| {
        let file = volume.handle(ino).unwrap();
        volume.extents(&file.entry().current(), ForkKind::Data).unwrap().end()
    };
    let ends = inodes.map(end_of);
    assert_eq!(ends[1], FileBlock(1), "it was exchanged");
    volume.close().unwrap();
    drop(volume);
    let report = check(crashed, &CheckOptions::default()).unwrap();
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
    ends[0]
}

/// Regression: a kernel's copy-on-write was in the log, with a block preallocated for later writes, and the file's size
/// was not. The kernel's recovery freed the block, ours left it.
#[test]
fn what_lies_behind_the_end_goes_unless_it_was_set_aside() {
    assert_eq!(end_of_map(4096, false), FileBlock(0));
    assert_eq!(end_of_map(4097, false), FileBlock(2));
    assert_eq!(end_of_map(4096, true), FileBlock(3));
}
