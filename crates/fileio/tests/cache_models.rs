//! Models of the page cache, run under every schedule that a random scheduler comes up with: write-back beside writers,
//! cuts, appending and eviction. `RUSTFLAGS="--cfg shuttle" cargo test -p uxfs-fileio --test cache_models`. Schedules that
//! fail are printed and can be replayed (`shuttle::replay`).
//!
//! At each change of the map it is looked at what a power cut would leave.
#![cfg(shuttle)]

#[allow(dead_code)]
mod common;
#[path = "common/growing.rs"]
#[allow(dead_code)]
mod growing;

use blockdev::{BlockDevice, DeviceError, Durability, MemoryOptions};
use common::BLOCK;
use fileio::{
    BufferedFile, CopyOnWrite, DelayedAllocation, DirectFile, ExtentState, FileMapping, FileMappingMut,
    Found, Locking, MapSeq, PageCache, Staged,
};
use growing::{GrowingMap, MapError};
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use std::ops::Range;
use std::sync::Arc;

/// What lies in blocks before a file has them.
const FOREIGN: u8 = 0xEE;
/// Blocks of the device.
const BLOCKS: u64 = 64;
/// How often a thread lets others go on, at most, before it does something.
const PAUSE: u32 = 100;
/// A node of the index has many atomics, which are large in a model, and is made on the stack.
const STACK_BYTES: usize = 256 << 10;

fn check(iterations: usize, model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let again = Arc::clone(&model);
    let mut config = Config::default();
    config.stack_size = STACK_BYTES;
    Runner::new(RandomScheduler::new(iterations), config.clone()).run(move || model());
    Runner::new(PctScheduler::new(3, iterations), config).run(move || again());
}

/// What a power cut must never leave of a file.
type Judge = fn(&[u8]);

/// A map that is looked at whenever it changes.
struct Watched {
    map: GrowingMap,
    device: Arc<dyn BlockDevice>,
    judge: Judge,
}

impl Watched {
    /// What somebody reads who opens the file behind a power cut now.
    fn left(&self) -> Vec<u8> {
        let mut all = vec![0; (self.map.size().next_multiple_of(BLOCK)) as usize];
        for (block, bytes) in (0..).zip(all.chunks_mut(BLOCK as usize)) {
            let found = self.map.lookup(block * BLOCK).expect("a map");
            if let ExtentState::Written(at) | ExtentState::Shared(at) = found.extent.state {
                self.device.read(at + (block * BLOCK - found.extent.offset), bytes).expect("read");
            }
        }
        assert!(!all.contains(&FOREIGN), "somebody else's bytes");
        all.truncate(self.map.size() as usize);
        all
    }

    fn look<R>(&self, done: R) -> R {
        (self.judge)(&self.left());
        done
    }
}

impl FileMapping for Watched {
    type Error = MapError;

    fn size(&self) -> u64 {
        self.map.size()
    }
    fn block_size(&self) -> u32 {
        self.map.block_size()
    }
    fn lookup(&self, offset: u64) -> Result<Found, MapError> {
        thread::yield_now();
        self.map.lookup(offset)
    }
    fn seq(&self) -> MapSeq {
        self.map.seq()
    }
    fn copy_on_write(&self) -> Option<&dyn CopyOnWrite<Error = MapError>> {
        Some(self)
    }
}

impl CopyOnWrite for Watched {
    type Error = MapError;

    fn stage(&self, range: Range<u64>) -> Result<(), MapError> {
        self.map.stage(range)
    }
    fn staged(&self, offset: u64) -> Result<Option<Staged>, MapError> {
        self.map.staged(offset)
    }
    fn replace(&self, range: Range<u64>) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.replace(range))
    }
    fn unstage(&self, range: Range<u64>) {
        self.map.unstage(range);
    }
}

impl FileMappingMut for Watched {
    fn allocate(&self, range: Range<u64>) -> Result<(), MapError> {
        self.look(self.map.allocate(range))
    }
    fn written(&self, range: Range<u64>, size: Option<u64>) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.written(range, size))
    }
    fn data_behind_end(&self, to: u64) -> Result<bool, MapError> {
        self.map.data_behind_end(to)
    }
    fn free_behind_end(&self) -> Result<(), MapError> {
        self.look(self.map.free_behind_end())
    }
    fn fill(
        &self,
        range: Range<u64>,
        size: u64,
        write: &mut dyn FnMut(u64, u64, u64) -> Result<(), DeviceError>,
    ) -> Result<(), MapError> {
        self.look(self.map.fill(range, size, write))
    }
}

impl DelayedAllocation for Watched {
    fn reserve(&self, range: Range<u64>) -> Result<(), MapError> {
        self.map.reserve(range)
    }
    fn unreserve(&self, bytes: u64) {
        self.map.unreserve(bytes);
    }
    fn allocate_reserved(&self, range: Range<u64>) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.allocate_reserved(range))
    }
    fn written_back(&self, range: Range<u64>, size: Option<u64>) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.written_back(range, size))
    }
    fn ends_in_memory_at(&self, size: Option<u64>) {
        self.map.ends_in_memory_at(size);
    }
    fn lacks_space(error: &MapError) -> bool {
        GrowingMap::lacks_space(error)
    }
}

type Cached = Arc<BufferedFile<Watched>>;

fn cached(limit: u64, judge: Judge) -> Cached {
    let device = MemoryOptions::new().sector_size(512).anonymous(BLOCKS * BLOCK).expect("memory");
    device.write(0, &vec![FOREIGN; (BLOCKS * BLOCK) as usize], Durability::Volatile).expect("written");
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let map = Watched { map: GrowingMap::new(BLOCKS / 2), device: Arc::clone(&device), judge };
    BufferedFile::new(DirectFile::new(device, map, Locking::Range), &PageCache::new(limit))
}

fn bytes(file: &Cached) -> Vec<u8> {
    let mut all = vec![0xAA; file.size() as usize];
    assert_eq!(file.read_at(0, &mut all).expect("read"), all.len());
    all
}

/// Everything is on the device where it is in memory, and nothing stays reserved.
fn settles(file: &Cached) -> Vec<u8> {
    file.write_back(0..u64::MAX).expect("written back");
    let all = bytes(file);
    assert!(file.map().left() == all, "what is on the device is not what is in memory");
    assert_eq!((file.map().map.reserved(), file.map().map.in_memory()), (0, None));
    all
}

/// Threads that begin at once would always meet at the same places.
fn pause() {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..PAUSE) {
        thread::yield_now();
    }
}

/// Does something so many times beside others.
fn beside(file: &Cached, rounds: u8, work: impl Fn(&Cached, u8) + Send + 'static) -> thread::JoinHandle<()> {
    let file = Arc::clone(file);
    thread::spawn(move || {
        for round in 0..rounds {
            pause();
            work(&file, round);
        }
    })
}

fn all_over(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

fn flush_all(file: &Cached, _: u8) {
    file.write_back(0..u64::MAX).expect("written back");
}

/// As a file system cuts a file off.
fn cut(file: &Cached, size: u64) {
    let held = file.hold_to_cut(size).expect("held");
    if size <= held.size() {
        file.file().zero_behind_end(size, u64::MAX).expect("zeroed");
        file.map().map.set_size(size);
        held.was_cut();
    }
}

/// As a file system lets a file become longer.
fn lengthen(file: &Cached, size: u64) {
    let held = file.hold_to_grow(size, size).expect("held");
    if held.size() < size {
        file.file().zero_behind_end(held.size(), u64::MAX).expect("zeroed");
        file.map().map.set_size(size);
    }
}

/// The size on the device was never ahead of data that somebody had appended.
#[test]
fn what_is_appended_is_whole_and_before_the_end() {
    const RECORD: usize = 1700;
    let judge: Judge = |left| assert!(!left.contains(&0), "the end is ahead of data");
    check(150, move || {
        let file = cached(1 << 20, judge);
        let appends = |tag: u8| {
            move |file: &Cached, _| {
                file.append(&[tag; RECORD]).expect("appended");
            }
        };
        // From the front and from the back.
        let flushes = |file: &Cached, round: u8| {
            let page = u64::from(2 - round % 3) * BLOCK;
            file.write_back(page..page + BLOCK).expect("written back");
        };
        all_over([beside(&file, 3, appends(1)), beside(&file, 3, appends(2)), beside(&file, 4, flushes)]);
        let all = settles(&file);
        assert_eq!(all.len(), 6 * RECORD);
        let tags = Vec::from_iter(all.chunks(RECORD).map(|record| {
            assert!(record.iter().all(|byte| *byte == record[0]), "a record is torn");
            record[0]
        }));
        assert_eq!(tags.iter().filter(|tag| **tag == 1).count(), 3);
    });
}

/// Who writes, who writes back, who cuts, and who lets it grow again: what was cut off is gone, and never comes back.
#[test]
fn what_is_cut_off_stays_away() {
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 2));
    check(150, move || {
        let file = cached(1 << 20, judge);
        file.write_at(0, &[1; 3 * BLOCK as usize]).expect("written");
        // In the first block, or in the second, beside which the first is written back.
        let kept = BLOCK / 2 + BLOCK * shuttle::rand::thread_rng().gen_range(0..2);
        let cuts = move |file: &Cached, _| {
            cut(file, kept);
            lengthen(file, 2 * BLOCK + 100);
        };
        let writes = |file: &Cached, _| {
            file.write_at(BLOCK + 10, &[2; 2000]).expect("written");
        };
        let reads = |file: &Cached, _| {
            let mut seen = vec![0xAA; 3 * BLOCK as usize];
            let len = file.read_at(0, &mut seen).expect("read");
            assert!(seen[..len].iter().all(|byte| *byte <= 2));
            // Of one write, all or nothing, and nothing of it before the other.
            let written = &seen[BLOCK as usize + 10..BLOCK as usize + 2010];
            assert!(written.iter().all(|byte| *byte == written[0]), "half of a write");
        };
        all_over([
            beside(&file, 1, cuts),
            beside(&file, 2, writes),
            beside(&file, 2, flush_all),
            beside(&file, 2, reads),
        ]);
        let all = settles(&file);
        for (at, byte) in (0..).zip(all) {
            let is_written = (BLOCK + 10..BLOCK + 2010).contains(&at);
            let before = u8::from(at < kept);
            assert!(byte == before || byte == 2 && is_written, "byte {at} is {byte}");
        }
    });
}

/// Who tells the map of the end has found out where that is before, and holds other bytes than who cuts the file off.
#[test]
fn a_file_that_was_cut_off_ends_there() {
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 1));
    check(400, move || {
        let file = cached(1 << 20, judge);
        file.write_at(0, &[1; BLOCK as usize]).expect("written");
        file.write_at(2 * BLOCK, &[1; BLOCK as usize]).expect("written");
        let cuts = |file: &Cached, _| cut(file, BLOCK + BLOCK / 2);
        let writes = |file: &Cached, _| {
            file.write_at(3 * BLOCK, &[1; BLOCK as usize]).expect("written");
            file.write_at(0, &[1; BLOCK as usize]).expect("written");
        };
        all_over([
            beside(&file, 1, writes),
            beside(&file, 2, flush_all),
            beside(&file, 2, flush_all),
            beside(&file, 1, cuts),
        ]);
        let all = settles(&file);
        assert_eq!(file.map().size(), all.len() as u64);
        let is_longer = all.len() as u64 != BLOCK + BLOCK / 2;
        let is_there =
            |block: u64| all[(block * BLOCK) as usize..].iter().take(BLOCK as usize).all(|byte| *byte == 1);
        assert!(is_there(0) && (!is_longer || is_there(3) && all.len() as u64 == 4 * BLOCK));
        assert!(
            !all[BLOCK as usize..].iter().take(2 * BLOCK as usize).any(|byte| *byte == 1),
            "what was cut off"
        );
    });
}

/// Pages that are let go of beside who reads, writes and writes back.
#[test]
fn nobody_sees_half_a_write() {
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 3));
    check(150, move || {
        // So little that something has to go all the time.
        let file = cached(2 * BLOCK, judge);
        file.write_at(0, &[1; 3 * BLOCK as usize]).expect("written");
        let writes = |tag: u8| {
            move |file: &Cached, _| {
                file.write_at(100, &[tag; 2 * BLOCK as usize]).expect("written");
            }
        };
        let reads = |file: &Cached, _| {
            let mut seen = vec![0xAA; 2 * BLOCK as usize];
            assert_eq!(file.read_at(100, &mut seen).expect("read"), seen.len());
            assert!(seen.iter().all(|byte| *byte == seen[0]), "half of a write");
        };
        all_over([
            beside(&file, 2, writes(2)),
            beside(&file, 1, writes(3)),
            beside(&file, 2, reads),
            beside(&file, 2, flush_all),
        ]);
        let all = settles(&file);
        assert!(all[..100].iter().chain(&all[100 + 2 * BLOCK as usize..]).all(|byte| *byte == 1));
    });
}

/// Blocks that others have too are written elsewhere, through pages and past them.
#[test]
fn what_is_shared_is_copied_beside_a_cut() {
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 3));
    check(150, move || {
        let file = cached(1 << 20, judge);
        file.write_at(0, &[1; 3 * BLOCK as usize]).expect("written");
        file.write_back(0..u64::MAX).expect("written back");
        file.map().map.share();
        let shared = file.map().left();
        let before =
            Vec::from_iter((0..3).map(|block| file.map().lookup(block * BLOCK).expect("a map").extent));
        let through = |file: &Cached, _| {
            file.write_at(10, &[2; BLOCK as usize]).expect("written");
        };
        let past = |file: &Cached, _| {
            file.write_past(BLOCK + 500, &[3; 600]).expect("written");
        };
        let cuts = |file: &Cached, _| cut(file, 2 * BLOCK + 1);
        all_over([
            beside(&file, 2, through),
            beside(&file, 2, past),
            beside(&file, 2, flush_all),
            beside(&file, 1, cuts),
        ]);
        let all = settles(&file);
        assert_eq!(all.len() as u64, 2 * BLOCK + 1);
        assert!(all[10..BLOCK as usize].iter().all(|byte| *byte == 2));
        assert!(all[BLOCK as usize + 500..BLOCK as usize + 1100].iter().all(|byte| *byte == 3));
        // The others have what they had.
        for (block, extent) in (0..).zip(before) {
            let ExtentState::Shared(at) = extent.state else { panic!("{extent:?}") };
            let mut theirs = vec![0; BLOCK as usize];
            file.map().device.read(at + (block * BLOCK - extent.offset), &mut theirs).expect("read");
            assert!(theirs == shared[block as usize * BLOCK as usize..][..BLOCK as usize], "block {block}");
        }
    });
}
