//! The path of a request allocates no memory: a global allocator that counts says so.

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::sync::Arc;

use blockdev::{AlignedBuf, BlockDevice, FileOptions, QueueKind};
use common::{BLOCK, plain, plain_on};
use counting::allocations;
use fileio::{DirectFile, DirectQueue, Locking};

const ROUNDS: u64 = 1000;
const BLOCKS: u64 = 1024;

fn check_blocking(file: &DirectFile<common::FakeMap>) {
    let (whole, part) = (AlignedBuf::zeroed(4096), [7; 300]);
    let mut back = AlignedBuf::zeroed(4096);
    let mut round = |index: u64| {
        // Up and down the file, so that the lock's buckets have all been seen.
        let at = index * 37 % (BLOCKS - 8) * BLOCK;
        file.overwrite_at(at, &whole).unwrap();
        file.overwrite_at(at + 3 * BLOCK + 500, &part).unwrap();
        file.read_at(at, &mut back).unwrap();
        file.read_at(at + 99, &mut back[..2000]).unwrap();
    };
    (0..ROUNDS).for_each(&mut round);
    assert_eq!(allocations(|| (0..ROUNDS).for_each(&mut round)), 0, "{}", file.locking());
}

fn check_queued(file: &Arc<DirectFile<common::FakeMap>>, depth: u32) {
    let mut queue = DirectQueue::new(Arc::clone(file), depth).unwrap();
    let mut spare: Vec<AlignedBuf> = (0..depth).map(|_| AlignedBuf::zeroed(4096)).collect();
    let mut run = || {
        for index in 0..ROUNDS {
            let buf = spare.pop().unwrap();
            let at = index * 37 % BLOCKS * BLOCK;
            match index % 2 {
                0 => queue.push_write(at, buf, index).unwrap(),
                _ => queue.push_read(at, buf, index).unwrap(),
            }
            if spare.is_empty() {
                queue
                    .wait(1, &mut |done| {
                        done.result.unwrap();
                        spare.push(done.buf);
                    })
                    .unwrap();
            }
        }
        let left = queue.in_flight();
        queue.wait(left, &mut |done| spare.push(done.buf)).unwrap();
    };
    run();
    assert_eq!(allocations(run), 0, "depth {depth}");
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(5)))), 1);
    assert_eq!(allocations(|| drop(std::hint::black_box(AlignedBuf::zeroed(4096)))), 1);
}

#[test]
fn blocking_requests_allocate_nothing() {
    for locking in [Locking::Range, Locking::Shared, Locking::Exclusive] {
        check_blocking(&plain(BLOCKS, locking));
    }
}

#[test]
fn queued_requests_allocate_nothing() {
    for depth in [1, 32, 128] {
        check_queued(&plain(BLOCKS, Locking::Range), depth);
    }
}

#[test]
fn nor_on_a_file_of_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len((BLOCKS + 4) * BLOCK).unwrap();
    for kind in [QueueKind::Uring, QueueKind::Blocking] {
        let device: Arc<dyn BlockDevice> =
            Arc::new(FileOptions::new().write(true).queue_kind(kind).open(&path).unwrap());
        let file = plain_on(BLOCKS, device, Locking::Range);
        check_blocking(&file);
        check_queued(&file, 32);
    }
}
