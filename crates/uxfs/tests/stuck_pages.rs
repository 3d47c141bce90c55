//! What is in memory and cannot be written back for want of space, as the volume counts blocks that it does not have: who needs
//! it written back is told so at once, it can be cut off, and nothing of it is under way when a close has failed.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, HoldDevice, MemoryDevice, Op};
use common::files::{fill, new_file, remove};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uxfs::{ErrorKind, File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};
use xfs_format::checksum;

const BLOCK: u64 = 4096;
const BYTES: u64 = 64 << 20;
/// As many extents as an inode holds.
const INLINE_EXTENTS: u64 = 21;
/// What is set aside of each file. All other blocks behind it have data, the others are holes.
const ASIDE_BYTES: u64 = 64 * BLOCK;
/// In what is set aside: to tell of data there takes an extent more, and with it a block.
const SET_ASIDE: u64 = 10 * BLOCK;
const HOLE: u64 = ASIDE_BYTES + 3 * BLOCK;
const BEHIND: u64 = ASIDE_BYTES + 200 * BLOCK;
/// Where the superblock says how many blocks are free, and where it has its checksum.
const FREE_BLOCKS: usize = 144;
const CHECKSUM: usize = 224;

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"))
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("opens")
}

/// Makes a volume with one group.
fn made(device: &Arc<dyn BlockDevice>) -> Volume {
    let features = MkfsFeatures::of_kernel("6.1").expect("known");
    let options = MkfsOptions::new().group_count(1).features(features).small(true);
    mkfs_device(Arc::clone(device), &options, true).expect("a volume");
    open(device)
}

/// Opens a volume that has no free block and counts a thousand. In it are files whose inodes hold no further extent.
fn opened(device: &Arc<dyn BlockDevice>, names: &[&str]) -> Volume {
    let volume = made(device);
    for name in names {
        let file = new_file(&volume, name);
        file.allocate(0..ASIDE_BYTES, false).expect("set aside");
        for nth in 1..INLINE_EXTENTS {
            file.write_at(&[1; BLOCK as usize], ASIDE_BYTES + 2 * nth * BLOCK).expect("written");
        }
        assert_eq!(file.extents().count() as u64, INLINE_EXTENTS, "or nothing is tested");
    }
    without_space(device, volume)
}

/// Takes all that is free, and opens the volume anew as one that counts a thousand blocks more.
fn without_space(device: &Arc<dyn BlockDevice>, volume: Volume) -> Volume {
    drop(fill(&volume, "all"));
    volume.close().expect("closed");
    drop(volume);
    let mut sector = vec![0; device.sector_size() as usize];
    device.read(0, &mut sector).expect("read");
    let count = u64::from_be_bytes(sector[FREE_BLOCKS..][..8].try_into().expect("8 bytes"));
    sector[FREE_BLOCKS..][..8].copy_from_slice(&(count + 1000).to_be_bytes());
    assert!(checksum::store(&mut sector, CHECKSUM));
    device.write(0, &sector, Durability::Volatile).expect("written");
    let volume = open(device);
    // What the group kept back for itself.
    drop(fill(&volume, "rest"));
    volume.sync().expect("synced");
    volume
}

fn file(volume: &Volume, name: &str) -> File {
    volume.open_file(format!("/{name}")).expect("there")
}

/// A file of which block `at` was accepted, and has nowhere to go.
fn stuck(volume: &Volume, name: &str, at: u64) -> File {
    let file = file(volume, name).buffered();
    file.write_at(&[9; BLOCK as usize], at).expect("accepted");
    lacks_space("write-back", file.sync());
    file
}

#[track_caller]
fn lacks_space(what: &str, done: uxfs::Result<()>) {
    assert_eq!(done.map_err(|error| error.kind()), Err(ErrorKind::NoSpace), "{what}");
}

fn block_of(file: &File, at: u64) -> Vec<u8> {
    let mut bytes = vec![0xAA; BLOCK as usize];
    let len = file.read_at(&mut bytes, at).expect("read");
    bytes.truncate(len);
    bytes
}

/// What the volume believes to be free and not promised, and what a file has.
fn bytes_of(volume: &Volume, file: &File) -> (u64, u64) {
    let lengths = file.extents().map(|extent| extent.expect("a map").length);
    (volume.info().expect("info").free_blocks * BLOCK, lengths.sum())
}

/// Attempts were made for five seconds, and then the file was said to be busy.
#[test]
fn who_needs_it_written_back_is_told_at_once() {
    let device = memory();
    let volume = opened(&device, &["one", "other"]);
    let (one, other) = (stuck(&volume, "one", SET_ASIDE), file(&volume, "other"));
    lacks_space("a clone of it", one.clone_range(0, &other, 0, 0));
    lacks_space("a clone over it", other.clone_range(0, &one, 0, 2 * SET_ASIDE));
    lacks_space("a comparison with it", one.dedupe_range(0, &other, 0, 2 * SET_ASIDE).map(drop));
    lacks_space("a queue", one.queue(4).map(drop));
    one.sync_range(0..BLOCK).expect("nothing is dirty there");
    assert_eq!(block_of(&one, SET_ASIDE), [9; BLOCK as usize]);
}

/// What was about to go had to be written back first.
#[test]
fn it_can_be_cut_off() {
    for at in [SET_ASIDE, HOLE, BEHIND] {
        let device = memory();
        let volume = opened(&device, &["one"]);
        let (free, taken) = bytes_of(&volume, &file(&volume, "one"));
        let one = stuck(&volume, "one", at);
        assert!(bytes_of(&volume, &one).0 < free, "something is promised to byte {at}");
        lacks_space("a cut behind it", one.set_len(at + 1));
        assert_eq!(block_of(&one, at)[..1], [9], "byte {at}");
        let end = at.min(ASIDE_BYTES + 2 * INLINE_EXTENTS * BLOCK) - 1;
        one.set_len(end).expect("that needs no space");
        assert_eq!((one.size(), one.metadata().size), (end, end));
        volume.sync().expect("nothing is left of it");
        let (free_now, taken_now) = bytes_of(&volume, &one);
        assert_eq!(free_now - free, taken - taken_now, "nothing is promised any more: byte {at}");
        one.set_len(at + BLOCK).expect("it grows again");
        assert_eq!(block_of(&one, at), [0; BLOCK as usize], "byte {at}");
        volume.close().expect("closed");
    }
}

/// Where the data of a stuck block go, in every attempt.
fn place_of(file: &File, device: &HoldDevice) -> u64 {
    let places = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&places);
    device.hold(move |op, offset| {
        if op == Op::Write {
            noted.lock().unwrap().push(offset);
        }
        false
    });
    lacks_space("write-back", file.sync());
    device.release();
    let places = places.lock().unwrap();
    let again = |at: &&u64| places.iter().filter(|other| other == at).count() > 1;
    *places.iter().find(again).expect("it gets to the device before the map is told")
}

/// Behind the last attempt of who closes, somebody else made one, and was writing when the close returned: the next to open the
/// volume may have given the block to another file by then.
#[test]
fn nothing_of_it_is_under_way_when_a_close_has_failed() {
    let gate = Arc::new(HoldDevice::new(memory()));
    let late = Arc::new(HoldDevice::new(gate.clone()));
    let device: Arc<dyn BlockDevice> = late.clone();
    let volume = opened(&device, &["one", "two"]);
    let (one, two) = (stuck(&volume, "one", SET_ASIDE), stuck(&volume, "two", SET_ASIDE));
    let [first, second] = [&one, &two].map(|file| place_of(file, &gate));
    // Two attempts are made before any file is held. At the third, no more are to be made of the first file.
    let mut attempts = 0;
    gate.hold(move |op, offset| {
        attempts += usize::from(op == Op::Write && offset == second);
        op == Op::Write && offset == second && attempts == 3
    });
    let (is_held, closed, under_way, synced) = std::thread::scope(|scope| {
        let closing = scope.spawn(|| volume.close());
        while gate.waiting() == 0 && !closing.is_finished() {
            std::thread::yield_now();
        }
        let is_held = gate.waiting() == 1;
        late.hold_next(move |op, offset| op == Op::Write && offset == first);
        let syncing = scope.spawn(|| one.sync());
        for _ in 0..200 {
            if late.waiting() > 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        gate.release();
        let closed = closing.join().unwrap();
        // Nor does it get under way now.
        while late.waiting() == 0 && !syncing.is_finished() {
            std::thread::yield_now();
        }
        let under_way = late.waiting();
        late.release();
        (is_held, closed, under_way, syncing.join().unwrap())
    });
    assert!(is_held, "or nothing is tested");
    lacks_space("the close", closed);
    synced.expect_err("it is not written");
    assert_eq!(under_way, 0, "something was being written when the close returned");
}

/// Two extents are told of in a transaction. Blocks that were shared before come back to a file, set aside in 21 extents, and the
/// map lacks a block to tell of the third: the first two hold data then, and are dirty still. What was known of them from before
/// does not keep the next attempt from where it has written already.
#[test]
fn what_was_told_of_in_part_can_be_written_again() {
    let device = memory();
    let volume = made(&device);
    let (one, other, gaps) =
        (new_file(&volume, "one"), new_file(&volume, "other"), new_file(&volume, "gaps"));
    // The third extent is longer: to tell of its first block cuts it.
    let len = |nth| if nth == 2 { 4 } else { 1 };
    let mut pieces = Vec::new();
    while (one.extents().count() as u64) < INLINE_EXTENTS {
        let (nth, at) =
            (pieces.len() as u64, pieces.last().map_or(0, |piece: &std::ops::Range<u64>| piece.end));
        one.write_at(&vec![1; (len(nth) * BLOCK) as usize], at).expect("written");
        gaps.write_at(&[2; BLOCK as usize], 2 * nth * BLOCK).expect("written");
        pieces.push(at..at + len(nth) * BLOCK);
    }
    one.clone_range(0, &other, 0, 0).expect("a clone");
    drop((one, other, gaps));
    let volume = without_space(&device, volume);
    let (one, other) = (file(&volume, "one"), file(&volume, "other"));
    // What is shared gets known.
    one.dedupe_range(0, &other, 0, one.size()).expect("the same");
    // The last stays shared.
    let last = pieces.pop().expect("pieces");
    one.punch_hole(0..last.start).expect("a hole");
    other.punch_hole(0..last.start).expect("a hole");
    volume.sync().expect("synced");
    pieces.iter().for_each(|piece| one.allocate(piece.clone(), false).expect("set aside"));
    assert_eq!(one.extents().count() as u64, INLINE_EXTENTS, "it has got other blocks");

    let buffered = one.buffered();
    buffered.write_at(&[9; 3 * BLOCK as usize], 0).expect("accepted");
    lacks_space("the first attempt", buffered.sync());
    let told = one.extents().filter(|extent| !extent.as_ref().expect("a map").unwritten).count();
    assert_eq!(told, 2 + 1, "extents that hold data, or nothing is tested");
    lacks_space("the second attempt", buffered.sync());
    remove(&volume, "rest");
    volume.sync().expect("there is room");
    drop((one, other, buffered));
    volume.close().expect("closed");
    drop(volume);
    let one = file(&open(&device), "one");
    (0..3).for_each(|block| assert_eq!(block_of(&one, block * BLOCK), [9; BLOCK as usize], "{block}"));
}
