//! Damaged directories that are changed: an error or a change, never a panic and never a loop. And what changes of
//! sound ones cost, counted.
#![forbid(unsafe_code)]

mod samples;

use samples::seed;
use std::time::Instant;
use xfs::dir::{FileType, NewEntry, add, init, lookup, remove, replace};
use xfs::fork::{Fork, ForkMut};
use xfs::testing::{EditFork, geometry};
use xfs_format::types::{FileBlock, InodeNumber};

const INO: InodeNumber = InodeNumber(140);

fn name(nth: usize) -> Vec<u8> {
    format!("{:x} {nth}", nth.wrapping_mul(2_654_435_761)).into_bytes()
}

fn enter(fork: &mut EditFork, name: &[u8]) -> xfs::Result<()> {
    add(fork, NewEntry { name, ino: INO, ftype: FileType::Regular })
}

fn directory(block_log: u8, dir_block_log: u8, names: usize) -> EditFork {
    let mut fork = EditFork::new(geometry(true, block_log, dir_block_log), InodeNumber(131), 336);
    fork.strict = false;
    init(&mut fork, InodeNumber(128)).unwrap();
    for nth in 0..names {
        enter(&mut fork, &name(nth)).unwrap();
    }
    fork.settle();
    fork.strict = true;
    fork
}

fn damage(random: &mut fastrand::Rng, fork: &mut EditFork) {
    let places: Vec<FileBlock> = fork.buffers().map(|(at, ..)| at).collect();
    let blocks = fork.geometry().dir_block_blocks();
    for _ in 0..random.usize(1..4) {
        let at = *random.choice(&places).unwrap_or(&FileBlock(0));
        match random.u8(0..30) {
            0 if fork.local().is_none() => {
                let size = if random.bool() { random.u64(..) } else { fork.size() + 4096 };
                fork.set_size(size);
            }
            1 if fork.local().is_none() && fork.buffers().any(|(known, ..)| known == at) => {
                fork.unmap(at, blocks).unwrap();
            }
            _ => {
                let Some(bytes) = fork.bytes_mut(at).filter(|bytes| !bytes.is_empty()) else { continue };
                let reach = if random.bool() { bytes.len().min(120) } else { bytes.len() };
                let place = random.usize(..reach);
                match random.u8(0..4) {
                    0 => bytes[place] ^= 1 << random.u8(0..8),
                    1 => bytes[place] = random.u8(..),
                    2 => bytes[place] = 0,
                    _ => {
                        let from = random.usize(..bytes.len());
                        let len = random.usize(1..16).min(bytes.len() - from.max(place));
                        bytes.copy_within(from..from + len, place);
                    }
                }
            }
        }
    }
}

#[test]
fn damage_is_an_error_or_goes_unseen() {
    let mut random = fastrand::Rng::with_seed(seed());
    let samples: Vec<(EditFork, usize)> =
        [(10, 0, 5), (10, 0, 18), (10, 0, 70), (10, 0, 700), (10, 1, 200), (12, 0, 120), (10, 0, 9000)]
            .map(|(block_log, dir_block_log, names)| (directory(block_log, dir_block_log, names), names))
            .into();
    let (mut failed, mut done) = (0, 0);
    for round in 0..1500 {
        // The largest takes the longest to copy.
        let (sample, names) = &samples[if round % 40 == 0 { 6 } else { round % 6 }];
        let mut fork = sample.clone();
        // Verified or not: what a verifier lets through must not be believed either.
        fork.strict = random.bool();
        damage(&mut random, &mut fork);
        for _ in 0..12 {
            let before = fork.clone();
            let name = name(random.usize(..names * 5 / 4));
            let result = match (lookup(&fork, &name), random.u8(0..4)) {
                (Ok(None), _) => enter(&mut fork, &name),
                (_, 0) => replace(&mut fork, &name, InodeNumber(random.u64(..)), FileType::Symlink).map(drop),
                (Ok(Some(_)) | Err(_), _) => remove(&mut fork, &name).map(drop),
            };
            match result {
                Ok(()) => {
                    done += 1;
                    fork.settle();
                }
                // A damaged index may lead a reader past a name that a change of it finds.
                Err(xfs::Error::Corrupt { .. } | xfs::Error::NoSpace | xfs::Error::Name(_)) => {
                    failed += 1;
                    fork = before;
                }
                Err(other) => panic!("damage must be reported as damage: {other}"),
            }
        }
    }
    println!("{failed} failed, {done} went through");
    assert!(failed > 500 && done > 500, "{failed} failed, {done} went through");
}

/// Adds and removes `count` names: the most that one operation asked of the fork.
fn cost(count: usize, block_log: u8) -> u32 {
    let mut fork = EditFork::new(geometry(true, block_log, 0), InodeNumber(131), 336);
    fork.strict = false;
    init(&mut fork, InodeNumber(128)).unwrap();
    let (mut most, start) = (0, Instant::now());
    for nth in 0..count {
        enter(&mut fork, &name(nth)).unwrap();
        most = most.max(fork.settle().calls);
    }
    let added = start.elapsed();
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(5).shuffle(&mut order);
    let start = Instant::now();
    for nth in order {
        remove(&mut fork, &name(nth)).unwrap();
        most = most.max(fork.settle().calls);
    }
    let removed = start.elapsed();
    assert!(fork.local().is_some());
    let each = |time: std::time::Duration| time.as_nanos() / count as u128;
    println!(
        "{count} names: {} ns an add, {} ns a removal, at most {most} calls",
        each(added),
        each(removed)
    );
    most
}

#[test]
fn an_operation_costs_the_same_in_a_large_directory() {
    let (small, large) = (cost(2_000, 10), cost(40_000, 10));
    assert!(large < 160, "{small} calls at most in a small directory, {large} in a large one");
}

/// Prints times. `cargo test --release -p uxfs-xfs --test dir_edit_damage -- --ignored --nocapture`
#[test]
#[ignore = "takes long"]
fn a_million_names() {
    for count in [10_000, 100_000, 1_000_000] {
        assert!(cost(count, 12) < 160);
    }
}
