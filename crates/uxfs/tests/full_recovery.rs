//! A power cut on a full volume, while an operation has all reserved that is free and others have taken what they get of
//! the reserve pool: whoever recovers that needs each block that is free.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Delay, DelayDevice, Fate, MemoryDevice, Op, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::{exchange_written, fill, fits, give_back, least, new_file};
use fileio::testing::part_by_part;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use uxfs::{File, MkfsFeatures, MkfsOptions, OpenOptions, Result, Volume, check_device, mkfs_device};

const BLOCK: u64 = 1024;
const BYTES: u64 = 48 << 20;
/// Of a file that exchanges with one of a single extent.
const PIECES: u64 = 100;
/// Blocks of a file that are preallocated.
const UNWRITTEN: u64 = 8000;
/// Flushes at which the power is cut, at most.
const CUTS: usize = 24;

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("opens")
}

fn made() -> Arc<Rewind> {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    let features = MkfsFeatures { rmapbt: false, ..MkfsFeatures::of_kernel("6.18").expect("known") };
    let options = MkfsOptions::new().features(features).small(true).group_count(1).block_size(BLOCK as u32);
    mkfs_device(Arc::clone(&memory), &options, true).expect("a volume");
    let volume = open(&memory);
    let [comb, whole, unwritten] = ["comb", "whole", "unwritten"].map(|name| new_file(&volume, name));
    for piece in 0..PIECES {
        comb.write_at(&[5; BLOCK as usize], 2 * piece * BLOCK).expect("written");
    }
    whole.write_at(&vec![1; (2 * PIECES * BLOCK) as usize], 0).expect("written");
    unwritten.allocate(0..UNWRITTEN * BLOCK, false).expect("allocated");
    drop((comb, whole, unwritten, fill(&volume, "filler")));
    volume.close().expect("closes");
    Arc::new(Rewind::new(memory))
}

fn exchange(volume: &Volume) -> Result<()> {
    let [comb, whole] = ["comb", "whole"].map(|name| volume.open_file(name).expect("there"));
    exchange_written(&comb, &whole)
}

/// The fewest free blocks, or nearly, with which the exchange succeeds.
fn least_free(device: &Arc<Rewind>) -> u64 {
    least(2, |blocks| {
        device.mark();
        let volume = open(&(Arc::clone(device) as Arc<dyn BlockDevice>));
        give_back(&volume, "filler", blocks);
        let done = fits(exchange(&volume));
        volume.close().expect("closes");
        drop(volume);
        device.rewind().expect("back");
        done
    })
}

/// Writes every second block of preallocated space, so that the map grows, until the pool has no block left for that, which is
/// half of it. Returns how many it took.
fn take_the_pool(volume: &Volume, file: &File) -> u64 {
    let free = || volume.info().expect("info").free_blocks;
    let before = free();
    let is_written = |nth: &u64| fits(file.write_at(&[3; BLOCK as usize], 2 * nth * BLOCK));
    let written = (0..UNWRITTEN / 2).take_while(is_written).count();
    assert!((written as u64) < UNWRITTEN / 2, "all was written: nothing ran out");
    before - free()
}

#[test]
fn recovery_has_all_that_is_free() {
    let device = made();
    let least = least_free(&device);
    let volume = open(&(Arc::clone(&device) as Arc<dyn BlockDevice>));
    give_back(&volume, "filler", least);
    volume.close().expect("closes");
    drop(volume);

    let recorder = Arc::new(Recorder::new(copy(&*device)));
    let slow = Arc::new(DelayDevice::new(recorder.clone()));
    let volume = open(&(slow.clone() as Arc<dyn BlockDevice>));
    let unwritten = volume.open_file("unwritten").expect("there");
    slow.set(Op::Flush, Delay::For(Duration::from_millis(300)));
    thread::scope(|scope| {
        let exchanger = scope.spawn(|| part_by_part(|| exchange(&volume)));
        // It has reserved when it waits for its first part.
        thread::sleep(Duration::from_millis(100));
        let taken = take_the_pool(&volume, &unwritten);
        let is_over = exchanger.is_finished();
        slow.set(Op::Flush, Delay::None);
        assert!(!is_over, "too fast to be cut");
        assert!(taken > 25, "only {taken} blocks were taken of the pool");
        exchanger.join().expect("no panic").expect("exchanged");
    });
    drop((unwritten, volume));

    let recording = recorder.recording();
    let mut cuts = PowerCuts::new(&recording, Arc::clone(&device));
    let moments = recording.cuts();
    let step = moments.len().div_ceil(CUTS);
    let mut recovered = 0;
    for (nth, cut) in moments.into_iter().enumerate().step_by(step) {
        cuts.advance(cut).expect("advanced");
        cuts.make(|_| Fate::Applied).expect("made");
        let device_then = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let opened = Volume::open_device(Arc::clone(&device_then), &OpenOptions::new().writable(true));
        let volume = opened.unwrap_or_else(|error| panic!("cut {nth}: {error}"));
        recovered += u64::from(volume.recovery().is_some());
        volume.close().expect("closes");
        drop(volume);
        let report = check_device(device_then, &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "cut {nth}: {:?}", report.findings);
        device.rewind().expect("back");
    }
    assert!(recovered > 10, "{recovered} were recovered");
}
