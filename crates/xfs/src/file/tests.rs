//! Refused changes of a file's blocks: nothing may have changed.

use super::allocate;
use super::cow;
use super::delalloc;
use super::reflink;
use super::remove;
use super::resize;
use super::shift;
use super::*;
use crate::bmap::edit::few;
use crate::ifork::looks;
use crate::iomap;
use crate::mkfs::{Before, Options, format, plan};
use crate::namespace::{self, NewInode};
use crate::volume::{ForkKind, OpenOptions, Volume};
use blockdev::{BlockDevice, Durability, MemoryDevice};
use fileio::{FileMapping, FileMappingMut};
use xfs_format::bmbt::Extent;
use xfs_format::checksum;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{InodeNumber, Uuid};

const BYTES: u64 = 48 << 20;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
const BLOCK: u64 = 4096;

fn device(block_size: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    let block_size = block_size as u32;
    let options = Options { small: true, block_size, ..Options::new(Uuid([7; 16]), NOW) };
    format(&*device, &plan(&options, BYTES).unwrap(), Before::Zeroes).unwrap();
    device
}

fn blocks(range: Range<u64>) -> FileBlocks {
    FileBlock(range.start)..FileBlock(range.end)
}

struct Fixture {
    volume: Arc<Volume>,
    map: crate::iomap::FileMap,
}

impl Fixture {
    fn new(device: Arc<dyn BlockDevice>) -> Self {
        let volume = Self::volume(device);
        let root = volume.handle(volume.geometry().root).unwrap();
        let new = NewInode::for_tests(0o100_644, NOW);
        let file = namespace::create(&volume, &root, b"f", &new).unwrap();
        let map = iomap::open_file(&volume, &file).unwrap();
        Self { volume, map }
    }

    fn volume(device: Arc<dyn BlockDevice>) -> Arc<Volume> {
        Volume::open(device, &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap()
    }

    /// Opens a volume that has the file.
    fn again(device: Arc<dyn BlockDevice>, ino: InodeNumber) -> Self {
        let volume = Self::volume(device);
        let map = iomap::open_file(&volume, &volume.handle(ino).unwrap()).unwrap();
        Self { volume, map }
    }

    fn entry(&self) -> &Arc<InodeEntry> {
        self.map.entry()
    }

    /// Gives the file unwritten blocks.
    fn allocate(&self, range: Range<u64>) {
        let _given = allocate::allocate_blocks(&self.volume, self.entry(), blocks(range)).unwrap();
    }

    fn extents(&self) -> Vec<Extent> {
        self.volume.extents(&self.entry().current(), ForkKind::Data).unwrap().iter().collect()
    }

    /// Three unwritten extents that cannot be merged: 0..8, 10..12, 16..24.
    fn three_runs(&self) {
        for range in [0..8, 10..12, 16..24] {
            self.allocate(range);
        }
        resize::set_size(&self.volume, self.entry(), 24 * BLOCK, NOW).unwrap();
    }

    /// The state of the file, for comparison.
    fn state(&self) -> (Vec<Extent>, u64) {
        (self.extents(), self.entry().snapshot().size())
    }
}

/// Regression: the data were written, two of three extents were converted, and the third could not be split.
#[test]
fn a_write_is_refused_before_the_data_if_the_file_would_have_too_many_extents() {
    let imap = Fixture::new(device(BLOCK));
    imap.three_runs();
    // One more hole is filled, and two extents are split.
    few::LIMIT.set(Some(5));
    let before = imap.state();
    let range = 4 * BLOCK..20 * BLOCK;
    let allocated = imap.map.allocate(range.clone());
    let written = allocated.and_then(|()| imap.map.written(range, Some(40 * BLOCK)));
    assert!(matches!(written, Err(Error::TooManyExtents { .. })), "{written:?}");
    assert_eq!(imap.state(), before);
    // With a limit that is far enough away, everything is done.
    few::LIMIT.set(Some(16));
    imap.map.allocate(4 * BLOCK..20 * BLOCK).unwrap();
    imap.map.written(4 * BLOCK..20 * BLOCK, None).unwrap();
    few::LIMIT.set(None);
}

/// Whoever was let in before the file was full can finish.
#[test]
fn writes_at_once_do_not_take_extents_from_each_other() {
    let imap = Fixture::new(device(BLOCK));
    imap.three_runs();
    few::LIMIT.set(Some(3 + limits::SPARE));
    let (one, other) = (2 * BLOCK..3 * BLOCK, 20 * BLOCK..21 * BLOCK);
    imap.map.allocate(one.clone()).unwrap();
    imap.map.allocate(other.clone()).unwrap();
    imap.map.written(one, None).unwrap();
    imap.map.written(other, None).unwrap();
    assert_eq!(imap.extents().len(), 7);
    assert!(matches!(imap.map.allocate(5 * BLOCK..6 * BLOCK), Err(Error::TooManyExtents { .. })));
    few::LIMIT.set(None);
}

/// Two separate shared blocks are claimed at once and taken one after the other. What the map may need for the second
/// stays reserved, whoever wants space meanwhile.
#[test]
fn what_a_claim_keeps_for_the_map_stays_until_all_of_it_is_taken() {
    let imap = Fixture::new(device(BLOCK));
    for at in [1, 0] {
        imap.map.allocate(at * BLOCK..(at + 1) * BLOCK).unwrap();
        imap.map.written(at * BLOCK..(at + 1) * BLOCK, Some(2 * BLOCK)).unwrap();
    }
    let (volume, entry) = (&imap.volume, imap.entry());
    let share = Reflink {
        from: entry,
        blocks: blocks(0..2),
        to: entry,
        at: FileBlock(2),
        size: 4 * BLOCK,
        end: None,
    };
    reflink::reflink_blocks(volume, &share).unwrap();
    let counters = &volume.write_side().unwrap().counters;
    let reserved = || counters.free_blocks() - counters.available_blocks();
    let set_aside = reserved();
    cow::allocate_cow(volume, entry, blocks(0..2), MapUpdate::AtOnce).unwrap();
    cow::end_cow(volume, entry, blocks(0..1), MapUpdate::AtOnce).unwrap();
    assert!(entry.cow().kept().keeps(&blocks(1..2)), "the rest of the claim has nothing");
    let before = counters.available_blocks();
    cow::allocate_cow(volume, entry, blocks(1..2), MapUpdate::AtOnce).unwrap();
    assert_eq!(counters.available_blocks(), before, "it was claimed before");
    cow::end_cow(volume, entry, blocks(1..2), MapUpdate::AtOnce).unwrap();
    assert!(!entry.cow().kept().keeps(&blocks(0..4)));
    assert!(counters.available_blocks() > before, "nothing comes back");
    assert_eq!(reserved(), set_aside, "something is reserved still");
}

/// Regression: each copy looked at everything that was staged behind it, so the copies of a large clone took quadratic
/// time.
#[test]
fn a_copy_costs_the_same_however_much_is_staged_behind_it() {
    const BLOCKS: u64 = 1024;
    let imap = Fixture::new(device(BLOCK));
    imap.map.allocate(0..BLOCKS * BLOCK).unwrap();
    imap.map.written(0..BLOCKS * BLOCK, Some(BLOCKS * BLOCK)).unwrap();
    let (volume, entry) = (&imap.volume, imap.entry());
    let (whole, at, size) = (blocks(0..BLOCKS), FileBlock(BLOCKS), 2 * BLOCKS * BLOCK);
    let share = Reflink { from: entry, blocks: whole, to: entry, at, size, end: None };
    reflink::reflink_blocks(volume, &share).unwrap();
    let copy = |block: u64| {
        let before = looks::COUNT.get();
        cow::allocate_cow(volume, entry, blocks(block..block + 1), MapUpdate::AtOnce).unwrap();
        cow::end_cow(volume, entry, blocks(block..block + 1), MapUpdate::AtOnce).unwrap();
        looks::COUNT.get() - before
    };
    // Then the staged space is in 512 pieces.
    for block in (0..BLOCKS).step_by(2) {
        copy(block);
    }
    let (first, last) = (copy(1), copy(BLOCKS - 1));
    assert!(first <= 2 * last, "{first} looks with all of it behind, {last} with nothing");
}

/// Collapsing or inserting a range is refused as a whole.
#[test]
fn ranges_are_neither_cut_out_nor_put_in_if_there_were_too_many_extents() {
    let imap = Fixture::new(device(BLOCK));
    imap.three_runs();
    few::LIMIT.set(Some(3));
    let before = imap.state();
    let (volume, entry) = (&imap.volume, imap.entry());
    for done in [
        shift::collapse_blocks(volume, entry, blocks(2..3), 23 * BLOCK, NOW),
        shift::insert_blocks(volume, entry, blocks(2..3), 25 * BLOCK, NOW),
        allocate::mark_unwritten(volume, entry, blocks(2..3), NOW),
    ] {
        assert!(matches!(done, Err(Error::TooManyExtents { .. })), "{done:?}");
        assert_eq!(imap.state(), before);
    }
    few::LIMIT.set(None);
}

/// The same volume with a log of this many blocks.
fn with_log_of(device: &dyn BlockDevice, log_blocks: u32) -> Arc<dyn BlockDevice> {
    const LOG_BLOCKS: usize = 96;
    const CRC: usize = 224;
    let mut bytes = vec![0; BYTES as usize];
    device.read(0, &mut bytes).unwrap();
    bytes[LOG_BLOCKS..LOG_BLOCKS + 4].copy_from_slice(&log_blocks.to_be_bytes());
    assert!(checksum::store(&mut bytes[..512], CRC));
    let copy: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    copy.write(0, &bytes, Durability::Volatile).unwrap();
    copy
}

/// Regression: parts of a change need more of the log than others. With a log between the two sizes, the first part was
/// done. Logs too small for everything, and large enough for everything, are tested as well.
#[test]
fn a_log_that_is_too_small_is_noticed_while_nothing_has_changed() {
    // Changes take more log space the larger a block is.
    const BLOCK: u64 = 16384;
    let made = device(BLOCK);
    let ino = {
        let imap = Fixture::new(Arc::clone(&made));
        imap.three_runs();
        imap.volume.close().unwrap();
        imap.entry().ino()
    };
    let (mut refused, mut done) = (0, 0);
    for log_blocks in (34..420).step_by(6) {
        let imap = Fixture::again(with_log_of(&*made, log_blocks), ino);
        let before = imap.state();
        let (volume, entry) = (&imap.volume, imap.entry());
        let range = 4 * BLOCK..20 * BLOCK;
        let changes: [&dyn Fn() -> Result<()>; 4] = [
            &|| imap.map.allocate(range.clone()).and_then(|()| imap.map.written(range.clone(), None)),
            &|| allocate::mark_unwritten(volume, entry, blocks(0..24), NOW),
            &|| shift::collapse_blocks(volume, entry, blocks(2..4), 22 * BLOCK, NOW),
            &|| shift::insert_blocks(volume, entry, blocks(2..4), 24 * BLOCK, NOW),
        ];
        for change in changes {
            match change() {
                Ok(()) => done += 1,
                Err(Error::LogTooSmall { .. }) => {
                    assert_eq!(imap.state(), before, "a log of {log_blocks} blocks");
                    refused += 1;
                }
                Err(error) => panic!("a log of {log_blocks} blocks: {error}"),
            }
        }
    }
    assert!(refused > 0 && done > 0, "{refused} refused, {done} done");
}

fn free(volume: &Arc<Volume>) -> u64 {
    volume.write_side().unwrap().counters.free_blocks()
}

/// A file of separate blocks, so that the free space between them is in pieces as well. `left` blocks are free at the
/// end.
fn comb(imap: &Fixture, left: u64) {
    let counters = &imap.volume.write_side().unwrap().counters;
    let all = counters.available_blocks() - 40;
    let _given = allocate::allocate_blocks(&imap.volume, imap.entry(), blocks(0..all)).unwrap();
    for at in (1..left * 2).step_by(2) {
        remove::remove_blocks(&imap.volume, imap.entry(), blocks(at..at + 1), NOW).unwrap();
    }
}

/// Promises are kept, in whatever order, even if each block is separate and becomes an extent of its own.
#[test]
fn promised_blocks_get_their_place_on_a_full_volume_in_pieces() {
    for step in [1, 2, 7] {
        let filler = Fixture::new(device(BLOCK));
        comb(&filler, 2500);
        let (volume, root) = (&filler.volume, filler.volume.handle(filler.volume.geometry().root).unwrap());
        let file = namespace::create(volume, &root, b"late", &NewInode::for_tests(0o100_644, NOW)).unwrap();
        let imap = Fixture { volume: Arc::clone(volume), map: iomap::open_file(volume, &file).unwrap() };
        let before = free(volume);
        let mut promised = Vec::new();
        let mut random = fastrand::Rng::with_seed(step);
        loop {
            let at = promised.last().map_or(0, |last: &FileBlocks| last.end.0 + (random.u64(..step) / 2) * 3);
            let run = blocks(at..at + 1 + random.u64(..step));
            match delalloc::reserve_delalloc(volume, imap.entry(), run.clone()) {
                Ok(()) => promised.push(run),
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let count: u64 = promised.iter().map(|run| run.end.0 - run.start.0).sum();
        assert_eq!(imap.entry().delalloc_blocks(), count);
        assert!(count > 800, "{count} blocks of {before} were promised");
        random.shuffle(&mut promised);
        for run in &promised {
            let allocated = delalloc::convert_delalloc(volume, imap.entry(), run.clone());
            allocated.unwrap_or_else(|error| panic!("{run:?}: {error}"));
            if random.bool() {
                delalloc::convert_written_back(volume, imap.entry(), run.clone(), Some(run.end.0 * BLOCK))
                    .unwrap();
            }
        }
        for run in &promised {
            delalloc::convert_written_back(volume, imap.entry(), run.clone(), Some(run.end.0 * BLOCK))
                .unwrap();
        }
        let extents = imap.extents();
        let given: u64 = extents.iter().map(|extent| u64::from(extent.blockcount)).sum();
        assert_eq!((imap.entry().delalloc_blocks(), given), (0, count));
        assert!(extents.iter().all(|extent| !extent.unwritten));
        let map = imap.entry().snapshot().core().nblocks - count;
        assert_eq!(free(volume), before - count - map, "nothing is kept, {map} blocks for the map");
    }
}

/// A refusal leaves nothing promised, and withdrawn promises are free again.
#[test]
fn promises_that_are_withdrawn_cost_nothing() {
    let imap = Fixture::new(device(BLOCK));
    let before = free(&imap.volume);
    let all = imap.volume.write_side().unwrap().counters.available_blocks();
    assert!(matches!(
        delalloc::reserve_delalloc(&imap.volume, imap.entry(), blocks(0..all)),
        Err(Error::NoSpace)
    ));
    assert_eq!((free(&imap.volume), imap.entry().delalloc_blocks()), (before, 0));
    delalloc::reserve_delalloc(&imap.volume, imap.entry(), blocks(0..100)).unwrap();
    delalloc::reserve_delalloc(&imap.volume, imap.entry(), blocks(300..400)).unwrap();
    assert!(free(&imap.volume) < before - 200);
    delalloc::cancel_delalloc(&imap.volume, imap.entry(), 100);
    delalloc::convert_delalloc(&imap.volume, imap.entry(), blocks(300..400)).unwrap();
    imap.map.give_up(300 * BLOCK..400 * BLOCK);
    assert_eq!(free(&imap.volume), before - 100, "what was reserved to tell of data is back");
    few::LIMIT.set(Some(2));
    let refused = delalloc::reserve_delalloc(&imap.volume, imap.entry(), blocks(500..501));
    assert!(matches!(refused, Err(Error::TooManyExtents { .. })), "{refused:?}");
    few::LIMIT.set(None);
    assert_eq!(free(&imap.volume), before - 100);
}

/// Regression: an inode and the buffer that it is to be written with kept each other alive for ever if nobody closed
/// the volume, or if recovery failed.
#[test]
fn a_volume_that_is_dropped_lets_go_of_what_was_changed() {
    for synced in [false, true] {
        let imap = Fixture::new(device(BLOCK));
        imap.three_runs();
        if synced {
            imap.volume.sync().unwrap();
        }
        let (entry, volume) = (Arc::downgrade(imap.entry()), Arc::downgrade(&imap.volume));
        drop(imap);
        assert_eq!((entry.strong_count(), volume.strong_count()), (0, 0), "synced: {synced}");
    }
}

/// Data that are written back late have the times of the write.
#[test]
fn times_of_what_is_written_back_are_those_of_the_write() {
    let imap = Fixture::new(device(BLOCK));
    let core = || imap.entry().snapshot().core().clone();
    let before = core();
    delalloc::reserve_delalloc(&imap.volume, imap.entry(), blocks(0..4)).unwrap();
    delalloc::convert_delalloc(&imap.volume, imap.entry(), blocks(0..4)).unwrap();
    delalloc::convert_written_back(&imap.volume, imap.entry(), blocks(0..2), Some(2 * BLOCK)).unwrap();
    assert_eq!((core().mtime, core().ctime, core().size), (before.mtime, before.ctime, 2 * BLOCK));
    imap.map.overwritten();
    delalloc::convert_written_back(&imap.volume, imap.entry(), blocks(2..4), Some(4 * BLOCK)).unwrap();
    assert!(core().mtime > before.mtime && core().size == 4 * BLOCK);
    assert_eq!(imap.entry().overwritten().get(&imap.entry().snapshot()), None, "the inode knows");
}
