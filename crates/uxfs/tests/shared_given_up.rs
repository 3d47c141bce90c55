//! A block that two files share, of which one gives its share up: until that is durable, the block is the other's alone in
//! memory, and both's behind a power cut. Whoever has it alone by then must not have written over it in place.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fate, Means, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::files::new_file;
use std::sync::Arc;
use uxfs::{File, MkfsFeatures, MkfsOptions, OpenOptions, Syncing, Volume, mkfs_device};

const BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const OLD: u8 = 1;
const KEPT: u8 = 2;
const GIVEN: u8 = 3;

/// How a file gives up its share of its first block.
type GivesUp = fn(&Volume, File);

fn writes_elsewhere(_: &Volume, file: File) {
    file.write_at(&[GIVEN; BLOCK as usize], 0).expect("written");
}

fn punches(_: &Volume, file: File) {
    file.punch_hole(0..BLOCK).expect("punched");
}

fn is_cut(_: &Volume, file: File) {
    file.set_len(0).expect("cut");
}

fn is_removed(volume: &Volume, file: File) {
    // The last to close it frees it.
    drop(file);
    volume.root().expect("root").as_dir().expect("dir").remove_file(b"given up").expect("removed");
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// A volume whose device records what is written from now on, and what was there before.
fn recorded(device: Arc<dyn BlockDevice>) -> (MemoryDevice, Arc<Recorder>, Volume) {
    let base = MemoryDevice::anonymous(BYTES).expect("memory");
    let mut all = vec![0; BYTES as usize];
    device.read(0, &mut all).expect("read");
    base.write(0, &all, Durability::Volatile).expect("written");
    let recorder = Arc::new(Recorder::new(Means { fua: true, write_cache: true }.of(device)));
    let volume = Volume::open_device(recorder.clone(), &OpenOptions::new().writable(true)).expect("opens");
    (base, recorder, volume)
}

/// What the file that gave its share up has behind a power cut that keeps all writes, or those alone that are durable.
fn behind_a_cut(gives_up: GivesUp, syncing: Syncing, keeps_all: bool) -> Option<Vec<u8>> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).features(features), true).expect("made");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
    let kept = new_file(&volume, "kept");
    kept.write_at(&[OLD; 4 * BLOCK as usize], 0).expect("written");
    kept.clone_range(0, &new_file(&volume, "given up"), 0, 0).expect("cloned");
    drop(kept);
    volume.close().expect("closed");
    drop(volume);
    let (base, recorder, volume) = recorded(device);
    let given = volume.open_file("given up").expect("there");
    volume.sync().expect("synced");
    gives_up(&volume, given);
    // What it shares is found out now.
    let kept = volume.open_file("kept").expect("there");
    kept.syncing(syncing).write_at(&[KEPT; BLOCK as usize], 0).expect("written");
    let cut = recorder.moment();
    drop((kept, volume));

    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(Arc::new(base)));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    power.advance(cut).expect("written");
    power.make(|_| if keeps_all { Fate::Applied } else { Fate::Dropped }).expect("written");
    let volume = Volume::open_device(stage, &OpenOptions::new().writable(true)).expect("recovers");
    volume.open_file("given up").ok().map(|file| bytes(&file))
}

#[test]
fn no_file_has_the_bytes_of_one_that_it_shared_blocks_with() {
    let ways: [(&str, GivesUp); 4] =
        [("written to", writes_elsewhere), ("punched", punches), ("cut", is_cut), ("removed", is_removed)];
    let mut wrong = Vec::new();
    for (how, gives_up) in ways {
        for (syncing, keeps_all) in [(Syncing::Data, false), (Syncing::Data, true), (Syncing::Later, true)] {
            let found = behind_a_cut(gives_up, syncing, keeps_all);
            if found.is_some_and(|found| found.contains(&KEPT)) {
                wrong.push((how, syncing, keeps_all));
            }
        }
    }
    assert!(wrong.is_empty(), "the bytes of the file that kept the blocks are in the other: {wrong:?}");
}

/// The way to bytes that are written over durably is durable as well: a moment ago they had no block, in no log yet.
#[test]
fn a_durable_overwrite_is_found_where_its_block_is_new() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("made");
    let (base, recorder, volume) = recorded(device);
    let file = new_file(&volume, "new");
    file.write_at(&[OLD; BLOCK as usize], 0).expect("written");
    file.syncing(Syncing::Data).write_at(&[KEPT; BLOCK as usize], 0).expect("written");
    let cut = recorder.moment();
    drop((file, volume));
    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(Arc::new(base)));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    power.advance(cut).expect("written");
    power.make(|_| Fate::Dropped).expect("written");
    let volume = Volume::open_device(stage, &OpenOptions::new().writable(true)).expect("recovers");
    assert!(bytes(&volume.open_file("new").expect("there")) == [KEPT; BLOCK as usize]);
}
