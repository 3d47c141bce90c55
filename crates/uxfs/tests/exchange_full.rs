//! Exchanges of many pieces on a volume that has hardly the room for them: several at once in one group, and one that a power
//! cut ends half-way. Whoever recovers that has nothing free but what was promised to it.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Fate, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::{exchange_written, fill, fits, give_back, least, new_file};
use fileio::testing::part_by_part;
use std::sync::Arc;
use std::thread;
use uxfs::{ErrorKind, File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, check_device, mkfs_device};

const BLOCK: u64 = 1024;
const BYTES: u64 = 32 << 20;
/// Pieces of a file that exchanges with one of a single extent.
const PIECES: u64 = 600;
/// Files of that kind, and as many whole ones.
const PAIRS: usize = 2;
/// How near to the fewest free blocks is near enough.
const NEARLY: u64 = 8;
/// Flushes at which the power is cut, at most.
const CUTS: usize = 20;
/// Pieces of a file that is cloned piece by piece, until nothing is free.
const OTHERS: u64 = 1500;

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("opens")
}

fn pair(volume: &Volume, nth: usize) -> [File; 2] {
    ["comb", "whole"].map(|name| volume.open_file(format!("{name}{nth}")).expect("there"))
}

/// A volume of one group that is full: of files in pieces and whole ones, of owners that share blocks, and of one large file.
fn made() -> Arc<Rewind> {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    let features = MkfsFeatures::of_kernel("6.18").unwrap();
    let options = MkfsOptions::new().features(features).small(true).group_count(1).block_size(BLOCK as u32);
    mkfs_device(Arc::clone(&memory), &options, true).unwrap();
    let volume = open(Arc::clone(&memory));
    for nth in 0..PAIRS {
        let [comb, whole] = ["comb", "whole"].map(|name| new_file(&volume, &format!("{name}{nth}")));
        for piece in 0..PIECES {
            comb.write_at(&[5; BLOCK as usize], 2 * piece * BLOCK).unwrap();
        }
        whole.write_at(&vec![1; (2 * PIECES * BLOCK) as usize], 0).unwrap();
    }
    let others = new_file(&volume, "others");
    for nth in 0..OTHERS {
        others.write_at(&[9; BLOCK as usize], 2 * nth * BLOCK).unwrap();
    }
    let mut to = new_file(&volume, "clones0");
    let mut has_room = true;
    for round in 1..3 {
        for nth in 0..OTHERS {
            has_room = has_room && fits(others.clone_range(2 * nth * BLOCK, &to, 2 * nth * BLOCK, BLOCK));
        }
        to = new_file(&volume, &format!("clones{round}"));
    }
    drop((others, to, fill(&volume, "filler")));
    volume.close().unwrap();
    Arc::new(Rewind::new(memory))
}

fn exchange([comb, whole]: &[File; 2]) -> uxfs::Result<()> {
    exchange_written(comb, whole)
}

/// Whether all pieces have changed hands; else none has.
fn is_exchanged([comb, whole]: &[File; 2]) -> bool {
    let mut first = None;
    for piece in 0..PIECES {
        let [mut of_comb, mut of_whole] = [[0; BLOCK as usize]; 2];
        comb.read_at(&mut of_comb, 2 * piece * BLOCK).unwrap();
        whole.read_at(&mut of_whole, 2 * piece * BLOCK).unwrap();
        let done = of_comb == [1; BLOCK as usize];
        let expected = if done { (1, 5) } else { (5, 1) };
        assert_eq!(
            (of_comb, of_whole),
            ([expected.0; BLOCK as usize], [expected.1; BLOCK as usize]),
            "{piece}"
        );
        assert_eq!(*first.get_or_insert(done), done, "piece {piece}: half of an exchange");
    }
    first.unwrap()
}

fn is_sound(device: Arc<dyn BlockDevice>, what: &str) {
    let report = check_device(device, &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
}

/// Nearly the fewest free blocks with which the first of the exchanges is not refused.
fn least_free(device: &Arc<Rewind>) -> u64 {
    least(NEARLY, |blocks| {
        device.mark();
        let volume = open(device.clone());
        give_back(&volume, "filler", blocks);
        let goes = fits(exchange(&pair(&volume, 0)));
        volume.close().unwrap();
        drop(volume);
        is_sound(device.clone(), &format!("{blocks} blocks free"));
        device.rewind().unwrap();
        goes
    })
}

#[test]
fn one_that_is_cut_is_finished_where_nothing_else_is_free() {
    let device = made();
    let least = least_free(&device);
    let volume = open(device.clone());
    give_back(&volume, "filler", least);
    volume.close().unwrap();
    drop(volume);
    let recorder = Arc::new(Recorder::new(copy(&*device)));
    let volume = open(recorder.clone());
    let files = pair(&volume, 0);
    part_by_part(|| exchange(&files)).unwrap();
    drop((files, volume));
    let recording = recorder.recording();
    let mut cuts = PowerCuts::new(&recording, Arc::clone(&device));
    let (mut before, mut within) = (0, 0);
    let moments = recording.cuts();
    let step = moments.len().div_ceil(CUTS);
    for (nth, cut) in moments.into_iter().enumerate().step_by(step) {
        cuts.advance(cut).unwrap();
        for (part, fate) in [("lost", Fate::Dropped), ("kept", Fate::Applied)] {
            let what = format!("{least} blocks free, cut at flush {nth}, what was in doubt is {part}");
            cuts.make(|_| fate.clone()).unwrap();
            let volume = Volume::open_device(device.clone(), &OpenOptions::new().writable(true))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let files = pair(&volume, 0);
            if is_exchanged(&files) {
                within += 1
            } else {
                before += 1
            }
            drop(files);
            volume.close().unwrap();
            drop(volume);
            is_sound(device.clone(), &what);
            device.rewind().unwrap();
        }
    }
    assert!(within > 10, "{before} cuts before, {within} within or behind");
}

#[test]
fn several_at_once_in_one_group() {
    let device = made();
    let least = least_free(&device);
    for blocks in [least, 2 * least, 3 * least] {
        for _ in 0..3 {
            device.mark();
            let volume = open(device.clone());
            give_back(&volume, "filler", blocks);
            thread::scope(|scope| {
                for nth in 0..PAIRS {
                    let files = pair(&volume, nth);
                    scope.spawn(move || {
                        let result = exchange(&files);
                        if let Err(error) = &result {
                            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                        }
                        assert_eq!(is_exchanged(&files), result.is_ok(), "{result:?}");
                    });
                }
            });
            volume.close().unwrap();
            drop(volume);
            is_sound(device.clone(), &format!("{blocks} blocks free"));
            device.rewind().unwrap();
        }
    }
}
