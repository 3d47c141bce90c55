//! Models of the page cache, run under every schedule that a random scheduler comes up with: write-back beside writers,
//! cuts, appending and eviction, large folios, and files that are closed and wanted again.
//! `RUSTFLAGS="--cfg shuttle" cargo test -p uxfs-fileio --test cache_models`. Schedules that fail are printed and can be
//! replayed (`shuttle::replay`).
//!
//! At each change of the map it is looked at what a power cut would leave.
#![forbid(unsafe_code)]
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
    FileSpace, Locking, MapLookup, MapSeq, PageCache, Staged,
};
use growing::{GrowingMap, MapError};
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::{Config, Runner, thread};
use std::ops::Range;
use std::sync::{Arc, Weak};
// What only a test looks at is no place for others to go on.
use std::sync::atomic::{AtomicU8, Ordering};

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
#[derive(Clone)]
struct Watched {
    map: Arc<GrowingMap>,
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
    fn lookup(&self, offset: u64) -> Result<MapLookup, MapError> {
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

impl FileSpace for Watched {
    type Given = Vec<u64>;

    fn check_changeable(&self) -> Result<(), MapError> {
        self.map.check_changeable()
    }
    fn check_pieces(&self) -> Result<(), MapError> {
        self.map.check_pieces()
    }
    fn set_aside(&self, range: Range<u64>) -> Result<Vec<u64>, MapError> {
        self.look(self.map.set_aside(range))
    }
    fn take_back(&self, given: Vec<u64>) -> Result<(), MapError> {
        self.look(self.map.take_back(given))
    }
    fn was_set_aside(&self, size: Option<u64>) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.was_set_aside(size))
    }
    fn free(&self, range: Range<u64>) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.free(range))
    }
    fn blank(&self, range: Range<u64>) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.blank(range))
    }
    fn cut(&self, size: u64) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.cut(size))
    }
    fn set_size(&self, size: u64) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.set_size(size))
    }
    fn collapse(&self, range: Range<u64>, size: u64) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.collapse(range, size))
    }
    fn insert(&self, range: Range<u64>, size: u64) -> Result<(), MapError> {
        thread::yield_now();
        self.look(self.map.insert(range, size))
    }
    fn make_durable(&self) -> Result<(), MapError> {
        self.map.make_durable()
    }
    fn space_end(&self) -> u64 {
        self.map.space_end()
    }
    fn is_refusal(error: &MapError) -> bool {
        GrowingMap::is_refusal(error)
    }
}

/// Pages of a large folio, in a model.
const LARGE: u64 = 8;

/// What the last write left in each block that is over: blocks are written whole, with versions that grow.
#[derive(Default)]
struct Versions([AtomicU8; 2 * LARGE as usize]);

impl Versions {
    fn ended(&self, blocks: Range<u64>, version: u8) {
        blocks.for_each(|block| self.0[block as usize].store(version, Ordering::SeqCst));
    }

    fn of(&self, block: u64) -> u8 {
        self.0[block as usize].load(Ordering::SeqCst)
    }

    /// Reads a page. Nothing is older than what was over before, and a write is there or not.
    fn read(&self, file: &Cached, block: u64) -> u8 {
        let least = self.of(block);
        let mut seen = [0xAA; BLOCK as usize];
        assert_eq!(file.read_at(block * BLOCK, &mut seen).expect("read"), seen.len());
        assert!(seen.iter().all(|byte| *byte == seen[0]), "half of a write in block {block}");
        assert!(seen[0] >= least, "block {block} is {}, and was {least} before", seen[0]);
        seen[0]
    }
}

type Cached = Arc<BufferedFile<Watched>>;

fn cached(limit: u64, judge: Judge) -> Cached {
    cached_in(&PageCache::new(limit), judge)
}

fn cached_in(pool: &Arc<PageCache>, judge: Judge) -> Cached {
    let device = MemoryOptions::new().sector_size(512).anonymous(BLOCKS * BLOCK).expect("memory");
    device.write(0, &vec![FOREIGN; (BLOCKS * BLOCK) as usize], Durability::Volatile).expect("written");
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let map = Watched { map: Arc::new(GrowingMap::new(BLOCKS / 2)), device: Arc::clone(&device), judge };
    BufferedFile::new(DirectFile::new(device, map, Locking::Range), pool)
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
            file.set_len(kept).expect("it ends there");
            file.set_len(2 * BLOCK + 100).expect("it ends there");
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

/// Whoever tells the map of the end has found out where that is before, and holds other bytes than who cuts the file
/// off.
#[test]
fn a_file_that_was_cut_off_ends_there() {
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 1));
    check(400, move || {
        let file = cached(1 << 20, judge);
        file.write_at(0, &[1; BLOCK as usize]).expect("written");
        file.write_at(2 * BLOCK, &[1; BLOCK as usize]).expect("written");
        let cuts = |file: &Cached, _| file.set_len(BLOCK + BLOCK / 2).expect("it ends there");
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
        let cuts = |file: &Cached, _| file.set_len(2 * BLOCK + 1).expect("it ends there");
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

/// Large folios that are written through pages and past them, in part and as a whole, cut off, let go of and read again.
#[test]
fn a_large_folio_is_found_while_all_of_it_is_present() {
    const TAIL: u64 = 2 * LARGE - 2;
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 4));
    check(300, move || {
        // In half of them so little that one has to go all the time.
        let is_small = shuttle::rand::thread_rng().gen_bool(0.5);
        let file = cached(if is_small { 12 * BLOCK } else { 1 << 20 }, judge);
        let versions = Arc::new(Versions::default());
        // The second one first: so there is a slot for both.
        for first in [LARGE, 0] {
            file.write_at(first * BLOCK, &[1; (LARGE * BLOCK) as usize]).expect("written");
        }
        file.write_back(0..u64::MAX).expect("written back");
        versions.ended(0..2 * LARGE, 1);
        let known = || Arc::clone(&versions);
        let (whole, one, other, tail, read) = (known(), known(), known(), known(), known());
        let write_whole = move |file: &Cached, round: u8| {
            let data = [round + 2; (LARGE * BLOCK) as usize];
            match shuttle::rand::thread_rng().gen_bool(0.5) {
                true => file.write_at(0, &data),
                false => file.write_past(0, &data),
            }
            .expect("written");
            whole.ended(0..LARGE, round + 2);
        };
        // Who is read back by one is taken from the folio by another.
        let write_past = |versions: Arc<Versions>, block: u64| {
            move |file: &Cached, round: u8| {
                file.write_past(block * BLOCK, &[round + 2; BLOCK as usize]).expect("written");
                versions.ended(block..block + 1, round + 2);
                assert_eq!(versions.read(file, block), round + 2);
            }
        };
        let cuts = move |file: &Cached, _| {
            file.set_len(TAIL * BLOCK + 100).expect("it ends there");
            file.set_len(2 * LARGE * BLOCK).expect("it ends there");
            let mut seen = [0xAA; 2 * BLOCK as usize];
            assert_eq!(file.read_at(TAIL * BLOCK, &mut seen).expect("read"), seen.len());
            assert!(seen[..100].iter().all(|byte| *byte == 1));
            assert!(seen[100..].iter().all(|byte| *byte == 0), "what was cut off");
            file.write_at(TAIL * BLOCK, &[2; 2 * BLOCK as usize]).expect("written");
            tail.ended(TAIL..2 * LARGE, 2);
            assert!((TAIL..2 * LARGE).all(|block| tail.read(file, block) == 2));
        };
        let reads = move |file: &Cached, _| {
            let block = shuttle::rand::thread_rng().gen_range(0..TAIL);
            read.read(file, block);
        };
        all_over([
            beside(&file, 2, write_whole),
            beside(&file, 3, write_past(one, LARGE + 1)),
            beside(&file, 3, write_past(other, LARGE + 3)),
            beside(&file, 1, cuts),
            beside(&file, 6, reads),
            beside(&file, 2, flush_all),
        ]);
        let all = settles(&file);
        for (block, bytes) in (0..).zip(all.chunks(BLOCK as usize)) {
            let expected = versions.of(block);
            assert!(bytes.iter().all(|byte| *byte == expected), "block {block} is not {expected}");
        }
    });
}

/// The file gets so long that nodes come above those in which others mark pages, and look for these.
#[test]
fn no_dirty_page_is_lost_where_the_tree_grows() {
    const PIECE: usize = 5 * BLOCK as usize;
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 6));
    check(150, move || {
        let file = cached(1 << 20, judge);
        file.write_at(0, &[1; 2 * BLOCK as usize]).expect("written");
        let grows = |file: &Cached, _| {
            file.append(&[1; PIECE]).expect("appended");
        };
        let writes = |block: u64| {
            move |file: &Cached, round: u8| {
                file.write_at(block * BLOCK, &[round + 2; BLOCK as usize]).expect("written");
                file.write_back(block * BLOCK..(block + 1) * BLOCK).expect("written back");
                let left = file.map().left();
                let block = &left[(block * BLOCK) as usize..][..BLOCK as usize];
                assert!(block.iter().all(|byte| *byte == round + 2), "it is not on the device");
            }
        };
        all_over([
            beside(&file, 5, grows),
            beside(&file, 4, writes(0)),
            beside(&file, 4, writes(1)),
            beside(&file, 2, flush_all),
        ]);
        let all = settles(&file);
        assert_eq!(all.len(), 2 * BLOCK as usize + 5 * PIECE);
        let (written, appended) = all.split_at(2 * BLOCK as usize);
        assert!(written.iter().all(|byte| *byte == 5) && appended.iter().all(|byte| *byte == 1));
    });
}

/// A file that may have a name, or end, and who has it open: as a file system has them.
struct Known {
    inode: Mutex<Inode>,
    open: Mutex<Weak<BufferedFile<Watched>>>,
    /// What is on the device of it, open or not.
    map: Watched,
    versions: Versions,
}

#[derive(Default)]
struct Inode {
    has_name: bool,
    is_ending: bool,
}

impl Known {
    fn is_ending(&self) -> bool {
        self.inode.lock().unwrap().is_ending
    }

    /// Another handle. Where the file is not in memory any more, nothing is dirty of it.
    fn open(&self) -> Option<Cached> {
        let file = self.open.lock().unwrap().upgrade()?;
        assert!(!self.is_ending(), "somebody had it, and it ended");
        Some(file)
    }

    /// Gives it a name, unless it has begun to end.
    fn link(&self) -> bool {
        let mut inode = self.inode.lock().unwrap();
        inode.has_name |= !inode.is_ending;
        inode.has_name
    }

    fn begin_end(&self) -> bool {
        let mut inode = self.inode.lock().unwrap();
        inode.is_ending = !inode.has_name;
        inode.is_ending
    }

    /// Closes a handle, and the file with all that is dirty of it if it ends.
    fn close(&self, handle: Cached) {
        drop(handle);
        let mut open = self.open.lock().unwrap();
        let Some(file) = open.upgrade() else { return };
        if file.is_unwanted(|_| self.begin_end()) {
            *open = Weak::new();
        }
        drop(open);
        drop(file);
    }

    /// What was written before is on the device once all files are written back.
    fn is_found_by_who_syncs(&self, pool: &PageCache) {
        let least = [0, 1].map(|block| self.versions.of(block));
        pool.write_every_file_back().expect("written back");
        let left = self.map.left();
        for (block, least) in (0..).zip(least) {
            let seen = left.get(block * BLOCK as usize).copied().unwrap_or(0);
            assert!(seen >= least, "block {block} is {seen} on the device, and was {least} before");
        }
    }
}

/// The last handle of a file without a name is closed beside who opens it anew, who gives it a name and syncs all, and who
/// has files written back and let go of for want of memory: what is dirty is lost where the file ends, and nowhere else.
#[test]
fn a_file_that_somebody_wants_again_loses_nothing() {
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 5));
    check(500, move || {
        let is_small = shuttle::rand::thread_rng().gen_bool(0.5);
        let pool = PageCache::new(if is_small { 4 * BLOCK } else { 1 << 20 });
        let file = cached_in(&pool, judge);
        file.write_at(0, &[1; 2 * BLOCK as usize]).expect("written");
        let map = file.map().clone();
        let open = Mutex::new(Arc::downgrade(&file));
        let known = Arc::new(Known { inode: Mutex::default(), open, map, versions: Versions::default() });
        known.versions.ended(0..2, 1);
        let spawn = |work: fn(&Known, &PageCache)| {
            let (known, pool) = (Arc::clone(&known), Arc::clone(&pool));
            thread::spawn(move || {
                pause();
                work(&known, &pool);
            })
        };
        let closes = {
            let known = Arc::clone(&known);
            thread::spawn(move || {
                pause();
                known.close(file);
            })
        };
        let opens = spawn(|known, _| {
            for version in 2..6 {
                let Some(handle) = known.open() else { return };
                known.versions.read(&handle, 0);
                handle.write_at(BLOCK, &[version; BLOCK as usize]).expect("written");
                known.versions.ended(1..2, version);
                pause();
                known.versions.read(&handle, 1);
                assert!(!known.is_ending(), "somebody has it open");
                known.close(handle);
            }
        });
        let links = spawn(|known, pool| {
            if known.link() {
                known.is_found_by_who_syncs(pool);
            }
        });
        let syncs = spawn(|_, pool| {
            for _ in 0..3 {
                pool.write_every_file_back().expect("written back");
            }
        });
        // Of this one nothing may be lost, either.
        let other = cached_in(&pool, judge);
        let writes = beside(&other, 3, |file, round| {
            let block = u64::from(round) * 2;
            file.write_at(block * BLOCK, &[1; 2 * BLOCK as usize]).expect("written");
            assert_eq!(bytes(file).len() as u64, (block + 2) * BLOCK);
        });
        all_over([closes, opens, links, syncs, writes]);
        assert!(settles(&other).iter().all(|byte| *byte == 1));
        if known.is_ending() {
            assert!(known.open().is_none() && known.map.map.reserved() == 0, "all of it is gone");
        } else {
            known.is_found_by_who_syncs(&pool);
        }
        assert_eq!(pool.dirty(), 0);
    });
}

/// Whoever makes a file dirty finds that it waits to be written back, and who has written it back takes it out of the
/// line.
#[test]
fn a_dirty_file_waits_to_be_written_back() {
    let judge: Judge = |left| assert!(left.iter().all(|byte| *byte <= 3));
    check(400, move || {
        let pool = PageCache::new(1 << 20);
        let file = cached_in(&pool, judge);
        file.write_at(0, &[1; BLOCK as usize]).expect("written");
        let writes = |file: &Cached| {
            for version in 2..4 {
                file.write_at(0, &[version; BLOCK as usize]).expect("written");
            }
        };
        let flushes = |file: &Cached| (0..2).for_each(|round| flush_all(file, round));
        let spawn = |work: fn(&Cached)| {
            let file = Arc::clone(&file);
            thread::spawn(move || work(&file))
        };
        all_over([spawn(writes), spawn(flushes)]);
        pool.write_every_file_back().expect("written back");
        assert_eq!(pool.dirty(), 0, "a dirty file is not in the line");
        assert!(settles(&file).iter().all(|byte| *byte == 3));
    });
}

/// What was cut off is 1, behind byte `KEPT`, and must not come back; what is written there is 2 or 3.
fn nothing_comes_back(left: &[u8]) {
    const KEPT: usize = BLOCK as usize + 700;
    for (at, byte) in left.iter().enumerate().skip(KEPT) {
        assert!(*byte == 0 || *byte == 2 || *byte == 3, "byte {at} of {} is {byte}", left.len());
    }
}

fn cut_off() -> Cached {
    let file = cached(1 << 20, |_| ());
    file.write_at(0, &[1; 3 * BLOCK as usize]).expect("written");
    file.write_back(0..u64::MAX).expect("written back");
    file.set_len(BLOCK + 700).expect("cut");
    file.pass_by(std::time::Duration::from_secs(1)).map(drop).expect("nobody is in the way");
    let map = Watched { judge: nothing_comes_back, ..file.map().clone() };
    let device = Arc::clone(file.file().device());
    // What was cut off is there until here.
    let judged = BufferedFile::new(DirectFile::new(device, map, Locking::Range), &PageCache::new(1 << 20));
    drop(file);
    judged
}

/// Every change of shape beside writes of every kind.
#[test]
fn what_was_cut_off_stays_away_beside_every_change_of_shape() {
    let model = || {
        let file = cut_off();
        if shuttle::rand::thread_rng().gen_range(0..2) == 0 {
            file.map().map.share();
        }
        let shapes = |file: &Cached, _| match shuttle::rand::thread_rng().gen_range(0..6) {
            0 => file.zero_range(BLOCK + 600..3 * BLOCK + 100, false).expect("zeroed"),
            1 => file.allocate(2 * BLOCK + 5..4 * BLOCK, false).expect("set aside"),
            2 => file.punch_hole(BLOCK + 800..3 * BLOCK + 1).expect("punched"),
            3 => file.zero_range(BLOCK + 900..2 * BLOCK + 900, true).expect("zeroed"),
            4 => file.set_len(BLOCK + 700).expect("cut"),
            _ => file.set_len(5 * BLOCK + 9).expect("longer"),
        };
        let writes = |file: &Cached, _| match shuttle::rand::thread_rng().gen_range(0..5) {
            0 => drop(file.write_at(2 * BLOCK, &[2; BLOCK as usize]).expect("written")),
            1 => drop(file.write_past(2 * BLOCK, &[2; BLOCK as usize]).expect("written")),
            2 => drop(file.write_past(3 * BLOCK, &[3; 2 * BLOCK as usize]).expect("written")),
            3 => drop(file.append(&[3; 900]).expect("written")),
            _ => drop(file.write_past(BLOCK + 700, &[2; 10]).expect("written")),
        };
        let through = |file: &Cached, _| {
            file.write_at(BLOCK, &[1; 100]).expect("written");
        };
        all_over([
            beside(&file, 2, shapes),
            beside(&file, 2, writes),
            beside(&file, 1, through),
            beside(&file, 1, flush_all),
        ]);
        settles(&file);
    };
    check(250, model);
}

/// Direct writes to what was never written, beside who begins and ends caching.
#[test]
fn a_direct_write_to_what_was_never_written_is_whole_beside_caching() {
    let model = || {
        let file = cached(1 << 20, |left| assert!(left.iter().all(|b| *b <= 2)));
        file.allocate(0..4 * BLOCK, false).expect("set aside");
        file.punch_hole(2 * BLOCK..3 * BLOCK).expect("punched");
        file.pass_by(std::time::Duration::from_secs(1)).map(drop).expect("nobody is in the way");
        let past = |file: &Cached, _| {
            file.write_past(BLOCK, &[2; 2 * BLOCK as usize]).expect("written");
        };
        let reads = |file: &Cached, _| {
            let mut seen = [0xAA; 2 * BLOCK as usize];
            let len = file.read_at(BLOCK, &mut seen).expect("read");
            assert!(seen[..len].iter().all(|b| *b == seen[0]), "torn");
        };
        let by = |file: &Cached, _| {
            let _ = file.pass_by(std::time::Duration::from_millis(1)).map(drop);
        };
        let through = |file: &Cached, _| {
            file.write_at(3 * BLOCK + 10, &[1; 100]).expect("written");
        };
        all_over([
            beside(&file, 1, past),
            beside(&file, 2, reads),
            beside(&file, 1, through),
            beside(&file, 1, by),
        ]);
        let all = settles(&file);
        assert!(all[BLOCK as usize..3 * BLOCK as usize].iter().all(|b| *b == 2));
    };
    check(250, model);
}
