//! Logs as they lie on a device: places in them, and one that is as full as a test wants it.

use super::devices::{copy, log_of, superblock_of};
use blockdev::{BlockDevice, Durability, MemoryDevice};
use std::sync::Arc;
use uxfs::{MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename, Volume, mkfs_device};
use xfs::recovery::log_ends::log_ends;
use xfs_format::log::{BLOCK_SIZE, LogEnds, LogIdentity, RecordHeader, give_to};
use xfs_format::types::{Lsn, Uuid};

/// A log. Positions are blocks since the beginning of cycle 0.
pub struct Ring {
    /// Its first byte on the device.
    pub start: u64,
    pub blocks: u64,
    pub uuid: Uuid,
    pub ends: LogEnds,
}

impl Ring {
    pub fn of(device: &dyn BlockDevice) -> Self {
        let (place, superblock) = (log_of(device), superblock_of(device));
        let ends = log_ends(device, &superblock).expect("a log");
        let blocks = (place.end - place.start) / BLOCK_SIZE as u64;
        Self { start: place.start, blocks, uuid: superblock.uuid(), ends }
    }

    pub fn head(&self) -> u64 {
        self.pos(self.ends.head_lsn())
    }

    pub fn lsn(&self, at: u64) -> Lsn {
        Lsn(((at / self.blocks) << 32) | (at % self.blocks))
    }

    pub fn pos(&self, lsn: Lsn) -> u64 {
        (lsn.0 >> 32) * self.blocks + (lsn.0 & 0xffff_ffff)
    }

    fn offset(&self, at: u64) -> u64 {
        self.start + at % self.blocks * BLOCK_SIZE as u64
    }

    pub fn read(&self, device: &dyn BlockDevice, at: u64, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        for (at, block) in (at..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            device.read(self.offset(at), block).expect("read");
        }
        bytes
    }

    pub fn write(&self, device: &dyn BlockDevice, at: u64, bytes: &[u8]) {
        for (at, block) in (at..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            device.write(self.offset(at), block, Durability::Volatile).expect("written");
        }
    }

    /// The header of a record that has its place here.
    fn header_at(&self, device: &dyn BlockDevice, at: u64) -> Option<RecordHeader> {
        let identity = LogIdentity { v5: true, uuid: self.uuid };
        let block = self.read(device, at, 1);
        let header = RecordHeader::check(&block, &identity).ok().copied()?;
        (header.lsn() == self.lsn(at)).then_some(header)
    }
}

/// A record that could be the tail.
pub struct Tail {
    /// Its first block in the log, and its blocks.
    pub at: u64,
    pub len: u64,
    /// Blocks from the head on to it.
    pub room: u64,
    /// Blocks of the log.
    pub blocks: u64,
}

const FILES: usize = 1500;

/// A name for the file with this number, after so many turns.
fn name(file: usize, turn: usize) -> String {
    format!("a file of some name {file:04} {}", turn % 3)
}

/// A volume that was not closed, with a log of records up to 32 KiB. Its last record names the record as the tail that
/// `wanted` takes: all from there on is in the log. Its position comes along.
pub fn with_tail(wanted: impl Fn(&Tail) -> bool) -> (Arc<dyn BlockDevice>, u64) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(96 << 20).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.1").expect("known");
    let options = MkfsOptions::new().features(features).small(true).log_size(5600 << 10);
    mkfs_device(Arc::clone(&device), &options, false).expect("a volume");
    let how = OpenOptions::new().writable(true);
    let volume = Volume::open_device(Arc::clone(&device), &how).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for file in 0..FILES {
        root.create_file(name(file, 0).as_bytes(), &NewNode::default()).expect("made");
    }
    for nth in 0..120_000 {
        let (file, turn) = (nth % FILES, nth / FILES);
        let (from, to) = (name(file, turn), name(file, turn + 1));
        root.rename(from.as_bytes(), &root, to.as_bytes(), Rename::Replace).expect("renamed");
        if nth % 5 != 0 {
            continue;
        }
        volume.sync().expect("synced");
        let ring = Ring::of(&*device);
        if !ring.ends.clean
            && ring.head() >= 2 * ring.blocks
            && let Some(tail) = find_tail(&ring, &*device, &wanted)
        {
            let device = copy(&*device);
            name_tail(&ring, &*device, tail);
            return (device, tail);
        }
    }
    panic!("the log never was like that");
}

fn find_tail(ring: &Ring, device: &dyn BlockDevice, wanted: impl Fn(&Tail) -> bool) -> Option<u64> {
    let oldest = ring.head() - ring.blocks;
    // Before that may be what is on its way.
    (oldest + 70..oldest + 4000).find(|&tail| {
        let of = |len| Tail { at: tail % ring.blocks, len, room: tail - oldest, blocks: ring.blocks };
        ring.header_at(device, tail).is_some_and(|header| wanted(&of(header.total_blocks().into())))
    })
}

/// Has the last record name this one as the tail.
fn name_tail(ring: &Ring, device: &dyn BlockDevice, tail: u64) {
    let last = ring.pos(ring.ends.lsn);
    let mut record = ring.read(device, last, ring.head() - last);
    record[24..32].copy_from_slice(&ring.lsn(tail).0.to_be_bytes());
    give_to(&mut record, ring.uuid).expect("a record");
    ring.write(device, last, &record);
    assert_eq!(Ring::of(device).ends.tail, ring.lsn(tail));
}
