//! Whoever makes pages dirty waits while too many are; nobody else does.
#![forbid(unsafe_code)]

mod common;
#[path = "common/growing.rs"]
mod growing;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use blockdev::{BlockDevice, Delay, DelayDevice, MemoryOptions, Op};
use common::BLOCK;
use fileio::{BufferedFile, DirectFile, Locking, PageCache, Writers};
use growing::GrowingMap;

const LIMIT: u64 = 4 << 20;
/// How many dirty blocks there may be.
const DIRTY: u64 = LIMIT / 2 / BLOCK;
const BLOCKS: u64 = 4 * DIRTY;
/// What is written back at once, at most.
const FIRST_RUN: u64 = (1 << 20) / BLOCK;

type Cached = Arc<BufferedFile<GrowingMap>>;

/// A file on a device whose writes can be held.
fn cached(pool: &Arc<PageCache>) -> (Cached, Arc<DelayDevice>) {
    let memory = MemoryOptions::new().anonymous(2 * BLOCKS * BLOCK).unwrap();
    let device = Arc::new(DelayDevice::new(Arc::new(memory)));
    let file =
        DirectFile::new(Arc::clone(&device) as Arc<dyn BlockDevice>, GrowingMap::new(BLOCKS), Locking::Range);
    (BufferedFile::new(file, pool), device)
}

fn write_blocks(file: &Cached, blocks: Range<u64>, written: &AtomicU64) {
    for block in blocks {
        file.write_at(block * BLOCK, &[block as u8; BLOCK as usize]).unwrap();
        written.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until `is_so`, but less long than who waits for room in vain.
fn wait_until(is_so: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !is_so() && since.elapsed() < Duration::from_secs(4) {
        thread::sleep(Duration::from_millis(1));
    }
    is_so()
}

/// Fills `pool` with dirty pages of `file`, whose device holds them; `beside` happens while the writer waits, and says
/// whether it was right.
fn fill(file: &Cached, device: &DelayDevice, pool: &PageCache, beside: impl FnOnce() -> bool) {
    let written = AtomicU64::new(0);
    device.set(Op::Write, Delay::Held);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_blocks(file, 0..BLOCKS, &written));
        let is_full = wait_until(|| pool.dirty() > LIMIT / 2 && device.waiting(Op::Write) > 0);
        thread::sleep(Duration::from_millis(50));
        let (stopped, is_finished) = (written.load(Ordering::SeqCst), writer.is_finished());
        let is_right = is_full && !is_finished && beside();
        let (later, dirty) = (written.load(Ordering::SeqCst), pool.dirty());
        device.set(Op::Write, Delay::None);
        assert!(is_full && !is_finished, "{stopped} blocks were written, and nobody waits");
        assert!(is_right, "who needs no room waits for it");
        // Looked at before each write.
        assert_eq!((stopped, later, dirty), (DIRTY + 1, DIRTY + 1, (DIRTY + 1) * BLOCK));
    });
    assert_eq!(written.load(Ordering::SeqCst), BLOCKS, "released, all of it comes to its end");
}

fn is_written(file: &Cached, pool: &PageCache, again: u64) {
    file.write_back(0..u64::MAX).unwrap();
    assert_eq!(pool.dirty(), 0);
    let mut seen = vec![0; (BLOCKS * BLOCK) as usize];
    assert_eq!(file.file().read_at(0, &mut seen).unwrap(), seen.len());
    for (block, bytes) in (0..).zip(seen.chunks(BLOCK as usize)) {
        let expected = if block == again { 0xEE } else { block as u8 };
        assert!(bytes.iter().all(|byte| *byte == expected), "block {block}");
    }
}

/// Whether others write back, or who writes has to.
#[test]
fn a_writer_waits_while_too_much_is_dirty() {
    for threads in [0, 2] {
        let pool = PageCache::new(LIMIT);
        let (file, device) = cached(&pool);
        let writers = Writers::start(&pool, threads).unwrap();
        let again = FIRST_RUN + 100;
        fill(&file, &device, &pool, || {
            // What is dirty already takes no more, and what is read none.
            thread::scope(|scope| {
                let overwrite = scope.spawn(|| file.write_at(again * BLOCK, &[0xEE; BLOCK as usize]));
                let read = scope.spawn(|| file.read_at(0, &mut [0; 10]));
                wait_until(|| overwrite.is_finished() && read.is_finished())
            })
        });
        is_written(&file, &pool, again);
        drop(writers);
    }
}

/// Who waits for room to append kept everybody from the end of the file, those who append past the pages too.
#[test]
fn who_waits_to_append_is_in_nobodys_way() {
    let pool = PageCache::new(LIMIT);
    let (large, device) = cached(&pool);
    let (file, _) = cached(&pool);
    file.append(&[1; 4096]).unwrap();
    file.write_back(0..u64::MAX).unwrap();
    thread::scope(|scope| {
        let mut waiting = None;
        fill(&large, &device, &pool, || {
            let appending = scope.spawn(|| file.append(&[3; 4096]).unwrap());
            thread::sleep(Duration::from_millis(50));
            let past = scope.spawn(|| file.append_past(&[2; 4096]).unwrap());
            let is_first = wait_until(|| past.is_finished()) && !appending.is_finished();
            waiting = Some((appending, past));
            is_first
        });
        let (appending, past) = waiting.unwrap();
        assert_eq!((past.join().unwrap(), appending.join().unwrap()), (4096, 8192));
    });
    let mut seen = [0; 12288];
    assert_eq!(file.read_at(0, &mut seen).unwrap(), seen.len());
    assert!(seen.chunks(4096).zip(1..).all(|(block, byte)| *block == [byte; 4096]));
}

/// Each of those who append to one file found the same room, and then all of them made pages dirty.
#[test]
fn those_who_append_at_once_share_the_room_there_is() {
    const THREADS: u64 = 16;
    let pool = PageCache::new(LIMIT);
    let (file, device) = cached(&pool);
    let all_are_there = Barrier::new(THREADS as usize);
    let piece = vec![1; BLOCKS as usize / THREADS as usize * BLOCK as usize];
    device.set(Op::Write, Delay::Held);
    thread::scope(|scope| {
        let extends = |nth: u64| {
            all_are_there.wait();
            match nth % 2 {
                0 => drop(file.append(&piece).unwrap()),
                // Behind the end, or over what another one has just written there.
                _ => drop(file.write_at(file.size(), &piece).unwrap()),
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|nth| scope.spawn(move || extends(nth))).collect();
        let is_full = wait_until(|| pool.dirty() > LIMIT / 2);
        thread::sleep(Duration::from_millis(200));
        let (dirty, are_over) = (pool.dirty(), threads.iter().all(|thread| thread.is_finished()));
        device.set(Op::Write, Delay::None);
        assert!(is_full && !are_over, "somebody waits");
        assert!(dirty <= LIMIT / 2 + piece.len() as u64, "{dirty} bytes are dirty");
    });
    assert!(file.size() >= THREADS / 2 * piece.len() as u64);
}

/// Whoever writes to a file that is passed by, as while there is a queue of it, makes no page dirty, and waited all the
/// same.
#[test]
fn who_goes_past_the_pages_waits_for_no_room() {
    let pool = PageCache::new(LIMIT);
    let (large, device) = cached(&pool);
    let (file, _) = cached(&pool);
    file.write_past(0, &[1; 8192]).unwrap();
    let passes = file.pass_by(Duration::from_secs(4)).unwrap().expect("nobody is in the way");
    thread::scope(|scope| {
        fill(&large, &device, &pool, || {
            let writes = scope.spawn(|| {
                file.write_at(0, &[2; 4096]).unwrap();
                file.append(&[3; 4096]).unwrap();
                file.append(&[]).unwrap();
            });
            wait_until(|| writes.is_finished())
        });
    });
    drop(passes);
    assert_eq!(file.size(), 12288);
}

#[test]
fn no_file_ends_behind_what_a_file_can_have() {
    let (file, _) = cached(&PageCache::new(LIMIT));
    for end in [fileio::FILE_END_MAX + 1, u64::MAX - 5, u64::MAX] {
        let refused = |done: Result<(), fileio::FileError<_>>| {
            assert!(matches!(done, Err(fileio::FileError::TooLarge { .. })), "{end}");
        };
        refused(file.set_len(end));
        refused(file.allocate(0..end, false));
        refused(file.zero_range(4096..end, true));
        refused(file.punch_hole(4096..end));
    }
    assert_eq!(file.size(), 0);
}
