//! An exchange of many pieces that waits, while others have the reverse map of its group grow and take all that is free:
//! what was promised to it is there when it goes on.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, HoldDevice, MemoryDevice, Op};
use common::files::{fill, new_file};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use uxfs::{
    ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, SetXattr, Volume, check_device,
    mkfs_device,
};

const BLOCK: u64 = 4096;
/// Pieces of the file that exchanges with one of a single extent.
const PIECES: u64 = 2000;
/// Of the file that others clone piece by piece, so often.
const OTHERS: u64 = 7200;
const ROUNDS: usize = 9;

/// One group with a file in pieces, one in a single extent, and one of which others clone pieces.
fn made() -> Arc<dyn BlockDevice> {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).unwrap());
    let features = MkfsFeatures::of_kernel("6.18").unwrap();
    let options = MkfsOptions::new().features(features).small(true).group_count(1);
    mkfs_device(Arc::clone(&memory), &options, true).unwrap();
    let volume = Volume::open_device(Arc::clone(&memory), &OpenOptions::new().writable(true)).unwrap();
    let [comb, whole, others] = ["comb", "whole", "others"].map(|name| new_file(&volume, name));
    for nth in 0..PIECES {
        comb.write_at(&[5; BLOCK as usize], 2 * nth * BLOCK).unwrap();
    }
    whole.write_at(&vec![1; (2 * PIECES * BLOCK) as usize], 0).unwrap();
    for nth in 0..OTHERS {
        others.allocate(2 * nth * BLOCK..(2 * nth + 1) * BLOCK, false).unwrap();
    }
    for nth in 0..40 {
        comb.node().set_xattr(format!("user.n{nth}").as_bytes(), &[7; 1500], SetXattr::Either).unwrap();
    }
    for nth in (0..OTHERS).step_by(6) {
        others.write_at(&[9; BLOCK as usize], 2 * nth * BLOCK).unwrap();
    }
    drop((comb, whole, others));
    volume.close().unwrap();
    memory
}

/// Clones every sixth piece of a file, each of which is one more record of the reverse map, as often as there is room.
fn clone_pieces(volume: &Volume, others: &File) -> u64 {
    let mut clones = 0;
    for round in 0..ROUNDS {
        let to = new_file(volume, &format!("clones{round}"));
        for nth in (0..OTHERS).step_by(6) {
            match others.clone_range(2 * nth * BLOCK, &to, 2 * nth * BLOCK, BLOCK) {
                Ok(()) => clones += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    return clones;
                }
            }
        }
    }
    clones
}

#[test]
fn an_exchange_has_what_was_promised_to_it() {
    let memory = made();
    let holds = Arc::new(HoldDevice::new(Arc::clone(&memory)));
    let volume = Volume::open_device(holds.clone(), &OpenOptions::new().writable(true)).unwrap();
    let [comb, whole, others] = ["comb", "whole", "others"].map(|name| volume.open_file(name).unwrap());
    // What is asked once of a file was asked: the exchange waits for nothing before it has claimed its room.
    comb.overwrite_at(&[5; BLOCK as usize], 0).unwrap();
    whole.overwrite_at(&[1; BLOCK as usize], 0).unwrap();
    for _ in 0..2 {
        comb.exchange_range(0, &whole, 0, Some(BLOCK), ExchangeOptions::new()).unwrap();
    }
    volume.sync().unwrap();
    // Somebody has an inode, and waits for its attributes.
    holds.hold_next(|op, _| op == Op::Read);
    let holder = thread::spawn({
        let comb = comb.clone();
        move || comb.node().set_xattr(b"user.n23", &[8; 1500], SetXattr::Either)
    });
    while holds.waiting() == 0 {
        thread::yield_now();
    }
    let exchange = {
        let (comb, whole) = (comb.clone(), whole.clone());
        thread::spawn(move || {
            let only_written = ExchangeOptions::new().only_written(true);
            comb.exchange_range(0, &whole, 0, Some(comb.size()), only_written)
        })
    };
    // It has reserved its blocks, and waits for the inode.
    let free = volume.info().unwrap().free_blocks;
    while !exchange.is_finished() && volume.info().unwrap().free_blocks == free {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(500));
    let clones = clone_pieces(&volume, &others);
    assert!(clones > 2000, "the map did not grow: {clones} clones");
    let filler = fill(&volume, "filler");
    holds.release();
    holder.join().unwrap().unwrap();
    exchange.join().unwrap().unwrap();
    volume.sync().unwrap();
    let mut block = [0; BLOCK as usize];
    whole.read_at(&mut block, 2 * BLOCK).unwrap();
    assert_eq!(block, [5; BLOCK as usize], "nothing was exchanged");
    drop((comb, whole, others, filler));
    volume.close().unwrap();
    drop(volume);
    let report = check_device(memory, &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}
