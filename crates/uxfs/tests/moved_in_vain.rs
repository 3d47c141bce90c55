//! Blocks have moved in memory, to another file or within their own, and the write of the log fails that was to make it so for
//! good. The volume is shut down. Whoever waited for the bytes must not write them to where they lie in memory alone.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{AlignedBuf, BlockDevice, Fault, FaultDevice, MemoryDevice, Op};
use common::files::{image_of, new_file};
use fileio::testing::{CHANGE, at};
use std::sync::{Arc, mpsc};
use std::thread;
use uxfs::{
    ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Result, Syncing, Volume, mkfs_device,
};

const BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 8;
/// The block of the first file that is written late, and its content then.
const LATE: u64 = 3;
const WRITTEN: [u8; BLOCK as usize] = [99; BLOCK as usize];

type Move = fn(&File, &File) -> Result<()>;
const MOVES: [(&str, Move); 3] = [
    ("exchanged", |one, other| one.exchange_range(0, other, 0, None, ExchangeOptions::new())),
    ("collapsed", |one, _| one.collapse_range(BLOCK..2 * BLOCK)),
    ("inserted", |one, _| one.insert_range(BLOCK..2 * BLOCK)),
];

/// The first byte of each block.
fn numbers(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(BLOCK as usize).map(|block| block[0]).collect()
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("opens")
}

/// `late` has the first file and what makes the move fail; it writes to block `LATE` of the file when the move has failed.
/// Nobody may find what it wrote in the other file, nor elsewhere in that one.
fn moved_in_vain(late: impl Fn(&File, &dyn Fn()) -> Result<()>) {
    for (what, moved) in MOVES {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
        let features = MkfsFeatures::of_kernel("6.18").expect("known");
        let options = MkfsOptions::new().small(true).features(features);
        mkfs_device(Arc::clone(&memory), &options, true).expect("made");
        let fault = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
        let volume = open(fault.clone());
        let [one, other] = [("one", 1), ("other", 101)].map(|(name, first)| {
            let file = new_file(&volume, name);
            let content: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK) as u8 + first).collect();
            file.write_at(&content, 0).expect("written");
            file
        });
        volume.sync().expect("synced");
        let fails = || {
            fault.add(Fault::fail(Op::Write, fault.seen(Op::Write)));
            moved(&one, &other).expect_err("the log cannot be written");
        };
        late(&one, &fails).expect_err("the volume was shut down");
        drop((one, other, volume));
        let (_folder, image) = image_of(&*memory);
        let by_kernel = common::mounted(&image, |at| {
            ["one", "other"].map(|name| numbers(&std::fs::read(at.join(name)).expect("read")))
        });
        let volume = open(memory);
        let found = ["one", "other"].map(|name| numbers(&read(&volume.open_file(name).expect("there"))));
        assert_eq!(found, by_kernel, "{what}: the kernel sees the same");
        let as_before = [1, 101].map(|first| (first..first + BLOCKS as u8).collect::<Vec<_>>());
        assert_eq!(found, as_before, "{what}");
    }
}

/// Has `write` come to the point just before it waits for its bytes, behind all that is asked before; then the move fails.
fn while_it_waits(fails: &dyn Fn(), write: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let (go, goes) = mpsc::channel::<()>();
    let (came, comes) = mpsc::channel::<()>();
    let writes = thread::spawn(move || {
        at(CHANGE, move || {
            came.send(()).expect("somebody waits");
            goes.recv().expect("somebody tells");
        });
        write()
    });
    comes.recv().expect("it comes there");
    fails();
    go.send(()).expect("it waits");
    writes.join().expect("no panic")
}

/// Its write was found in the file that nobody had written to, and its caller was told that all was well.
#[test]
#[ignore = "needs root and xfsprogs"]
fn who_waited_does_not_write() {
    moved_in_vain(|one, fails| {
        let file = one.clone();
        while_it_waits(fails, move || file.overwrite_at(&WRITTEN, LATE * BLOCK))
    });
}

/// The same through the page cache: what is in memory alone gets nowhere, and its sync fails.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_waits_in_pages_is_not_written() {
    moved_in_vain(|one, fails| {
        let file = one.buffered();
        let mut block = [0; BLOCK as usize];
        file.read_at(&mut block, LATE * BLOCK)?;
        let writer = file.clone();
        // It may or may not be told at once.
        let _written = while_it_waits(fails, move || writer.write_at(&WRITTEN, LATE * BLOCK));
        file.sync()
    });
}

/// Whoever has a queue of the file is told when a request is pushed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_queue_does_not_write() {
    moved_in_vain(|one, fails| {
        let mut queue = one.queue(1)?;
        fails();
        queue.push_overwrite(LATE * BLOCK, AlignedBuf::copied(&WRITTEN), 1)?;
        let mut result = Ok(0);
        queue.wait(1, |over| result = over.result)?;
        result.map(drop)
    });
}

/// A write that is to be durable when it returns is not made so in the wrong place.
#[test]
#[ignore = "needs root and xfsprogs"]
fn who_waited_to_write_durably_does_not() {
    moved_in_vain(|one, fails| {
        let file = one.clone();
        while_it_waits(fails, move || file.syncing(Syncing::Data).write_at(&WRITTEN, LATE * BLOCK))
    });
}
