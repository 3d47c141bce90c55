//! Many threads on one file.
#![forbid(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blockdev::{Delay, DelayDevice, MemoryDevice, MemoryOptions, Op};
use common::{BLOCK, Random, States, fixture, plain, plain_on};
use fileio::Locking;

#[test]
fn neighbouring_bytes_of_one_sector_are_all_kept() {
    const THREADS: usize = 8;
    for locking in Locking::ALL {
        for sector in [512, 4096] {
            let memory = MemoryOptions::new().sector_size(sector).anonymous(16 * BLOCK).unwrap();
            // A pause between reading a sector and writing it makes a lost update all but certain without a lock.
            let device = Arc::new(DelayDevice::new(Arc::new(memory)));
            device.set(Op::Write, Delay::For(Duration::from_micros(50)));
            let file = plain_on(4, device, locking);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let file = &file;
                    scope.spawn(move || {
                        // Every eighth byte is this thread's, from the first sector into the second.
                        for round in 1..=3u8 {
                            for at in (thread as u64..1024).step_by(THREADS * 8) {
                                let at = at + sector as u64 - 512;
                                file.overwrite_at(at, &[round * 16 + thread as u8]).unwrap();
                                let mut mine = [0];
                                file.read_at(at, &mut mine).unwrap();
                                assert_eq!(mine, [round * 16 + thread as u8], "{locking}");
                            }
                        }
                    });
                }
            });
            let mut all = [0; 1024];
            file.read_at(u64::from(sector) - 512, &mut all).unwrap();
            for (at, &byte) in all.iter().enumerate() {
                let thread = at % (THREADS * 8);
                let expected = if thread < THREADS { 48 + thread as u8 } else { 0 };
                assert_eq!(byte, expected, "{locking}: byte {at}");
            }
        }
    }
}

#[test]
fn threads_with_regions_of_their_own_see_a_model_of_their_own() {
    let seed = Random::seeded().next();
    for locking in Locking::ALL {
        let mut random = Random::from(seed);
        let common::Fixture { file, model, .. } = fixture(&mut random, 96, 3, States::Written, 512, locking);
        let (threads, len) = (6, model.len() / 6);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (file, mut mine) = (&file, model[thread * len..(thread + 1) * len].to_vec());
                let mut random = Random::from(seed + thread as u64);
                scope.spawn(move || {
                    // The regions share sectors and blocks at their ends.
                    let base = (thread * len) as u64;
                    for _ in 0..800 {
                        let at = random.below(len as u64 - 1) as usize;
                        let count = 1 + random.below((len - at).min(9000) as u64) as usize;
                        let mut buf = vec![0; count];
                        if random.below(2) == 0 {
                            random.fill(&mut buf);
                            file.overwrite_at(base + at as u64, &buf).unwrap();
                            mine[at..at + count].copy_from_slice(&buf);
                        } else {
                            file.read_at(base + at as u64, &mut buf).unwrap();
                            assert!(buf == mine[at..at + count], "{locking}: thread {thread}");
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_reader_never_sees_half_an_overwrite() {
    // Not with `Shared`, where overwrites of whole sectors are not kept apart.
    for locking in [Locking::Exclusive, Locking::IntervalTree, Locking::BTree, Locking::Range] {
        let file = plain(16, locking);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 1..=2u8 {
                let (file, done) = (&file, &done);
                scope.spawn(move || {
                    let buf = vec![writer; 12 * BLOCK as usize];
                    for _ in 0..300 {
                        file.overwrite_at(2 * BLOCK, &buf).unwrap();
                    }
                    done.store(true, Ordering::Relaxed);
                });
            }
            for _ in 0..2 {
                let (file, done) = (&file, &done);
                scope.spawn(move || {
                    let mut buf = vec![0; 12 * BLOCK as usize];
                    while !done.load(Ordering::Relaxed) {
                        file.read_at(2 * BLOCK, &mut buf).unwrap();
                        assert!(buf.iter().all(|&b| b == buf[0]), "{locking}: a mixture");
                    }
                });
            }
        });
    }
}

#[test]
fn a_held_range_keeps_out_who_overlaps_and_nobody_else() {
    for locking in [Locking::IntervalTree, Locking::BTree, Locking::Range] {
        let device = Arc::new(DelayDevice::new(Arc::new(MemoryDevice::anonymous(64 * BLOCK).unwrap())));
        let file = plain_on(16, device.clone(), locking);
        device.set(Op::Write, Delay::Held);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| file.overwrite_at(BLOCK, &[1; 4096]).unwrap());
            device.wait_until_waiting(Op::Write, 1);
            // The write is in flight; a read beside it goes through, on this same thread.
            let mut beside = [9; 4096];
            file.read_at(2 * BLOCK, &mut beside).unwrap();
            assert_eq!(beside, [0; 4096]);
            let reader = scope.spawn(|| {
                let mut over = [9; 4096];
                file.read_at(BLOCK, &mut over).unwrap();
                over
            });
            device.set(Op::Write, Delay::None);
            writer.join().unwrap();
            assert_eq!(reader.join().unwrap(), [1; 4096], "the read waited for the write");
        });
    }
}
