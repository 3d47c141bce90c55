//! Recovery and write-back write every buffer of the log to the device in one write. A kernel that recovers later takes
//! the whole buffer to be as new as its first sector.

use super::records::Records;
use super::*;
use crate::ialloc;
use crate::mkfs::{Before, Features, Options, format, plan};
use crate::namespace::{self, NewInode, Removal};
use crate::volume::{InodeHandle, OpenOptions, Volume};
use blockdev::{Durability, MemoryDevice, Recorder, WriteRecord};
use std::ops::Range;
use xfs_format::log::{BufFlags, LogItem};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::Uuid;

const BYTES: u64 = 64 << 20;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
const DIRS: u64 = 4;

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
}

fn copy(device: &dyn BlockDevice) -> Arc<dyn BlockDevice> {
    let to = memory();
    let mut bytes = vec![0; 1 << 20];
    for at in (0..BYTES).step_by(bytes.len()) {
        device.read(at, &mut bytes).unwrap();
        to.write(at, &bytes, Durability::Volatile).unwrap();
    }
    to
}

fn open(device: &Arc<Recorder>) -> Arc<Volume> {
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    Volume::open(Arc::clone(device) as _, &options).unwrap()
}

fn create(volume: &Arc<Volume>, dir: &InodeHandle, name: &str, mode: u16) -> InodeHandle {
    let new = NewInode::for_tests(mode, NOW);
    namespace::create(volume, dir, name.as_bytes(), &new).unwrap()
}

/// The buffers that a log's items name, in bytes of the device.
fn logged(device: &dyn BlockDevice, superblock: &Superblock) -> BTreeSet<(u64, u64)> {
    let geometry = Geometry::from_superblock(superblock);
    let ends = log_ends::log_ends(device, superblock).unwrap();
    let records = Records::new(device, superblock, &ends).unwrap();
    let mut found = BTreeSet::new();
    let mut add = |daddr: DiskAddr, sectors: u64| found.insert((daddr.0 * 512, (daddr.0 + sectors) * 512));
    for_each_transaction(&records, &mut |transaction| {
        for item in transaction.items().unwrap() {
            match item.format {
                LogItem::Buf(buf) if !buf.flags.contains(BufFlags::CANCEL) => {
                    add(buf.daddr, buf.len.into());
                }
                LogItem::Inode(inode) => {
                    add(inode.daddr, inode.len.into());
                }
                LogItem::InodeCreate(create) => {
                    let (ag, block, blocks) = (create.ag(), create.agbno(), create.length.get());
                    for map in ialloc::clusters(&geometry, ag, block, blocks) {
                        add(map.daddr, map.len / 512);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    })
    .unwrap();
    found
}

/// Checks that each write has all of a buffer or nothing of it. Returns how many buffers were written.
fn are_whole<'w>(
    what: &str,
    buffers: &BTreeSet<(u64, u64)>,
    log: &Range<u64>,
    writes: impl Iterator<Item = &'w WriteRecord>,
) -> usize {
    let mut written = BTreeSet::new();
    for write in writes.filter(|write| !log.contains(&write.offset)) {
        let (begin, end) = (write.offset, write.offset + write.data.len() as u64);
        for &buffer in buffers.iter().filter(|buffer| buffer.0 < end && begin < buffer.1) {
            assert!(begin <= buffer.0 && buffer.1 <= end, "{what}: {begin}..{end} has a part of {buffer:?}");
            written.insert(buffer);
        }
    }
    written.len()
}

fn buffers_are_written_whole(dir_block_size: u32) {
    let recorder = Arc::new(Recorder::new(memory()));
    // The larger logs of today's features would not fit.
    let features = Features::of_kernel("6.1").unwrap();
    let new = Options {
        small: true,
        dir_block_size: Some(dir_block_size),
        features,
        ..Options::new(Uuid([7; 16]), NOW)
    };
    format(&*recorder, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
    let volume = open(&recorder);
    let root = volume.handle(volume.geometry().root).unwrap();
    let dirs: Vec<_> = (0..DIRS).map(|n| create(&volume, &root, &format!("{n}"), 0o040_755)).collect();
    let name = |n: u64| format!("a file with some name {n}");
    let make = |range: Range<u64>| {
        range.for_each(|n| drop(create(&volume, &dirs[(n % DIRS) as usize], &name(n), 0o100_644)));
    };
    make(0..1200);
    volume.write_side().unwrap().journal.quiesce().unwrap();
    for n in (0..1200).step_by(19) {
        namespace::remove(&volume, &dirs[(n % DIRS) as usize], name(n).as_bytes(), Removal::File, NOW)
            .unwrap();
    }
    make(1200..1400);
    volume.sync().unwrap();
    let crashed = copy(&*recorder);
    let superblock = *volume.superblock();
    let log = superblock.log_daddr().0 * 512;
    let log = log..log + superblock.log_bytes();
    let buffers = logged(&*crashed, &superblock);
    drop((dirs, root));
    let before = recorder.recording().writes().len();
    volume.close().unwrap();
    let written = are_whole("write-back", &buffers, &log, recorder.recording().writes()[before..].iter());
    assert!(written >= 20, "only {written} buffers were written back");

    let recorder = Arc::new(Recorder::new(crashed));
    drop(open(&recorder));
    let recording = recorder.recording();
    let replayed = recording.flushes().iter().map(|flush| flush.started).min().unwrap();
    let writes = recording.writes().iter().filter(|write| write.started < replayed);
    let written = are_whole("recovery", &buffers, &log, writes);
    assert!(written >= 20, "only {written} buffers were written by the recovery");
}

#[test]
fn buffers_of_a_block() {
    buffers_are_written_whole(4096);
}

#[test]
fn buffers_of_many_blocks() {
    buffers_are_written_whole(65536);
}
