//! Groups so full of owners that their reverse maps can hardly grow: a write to shared blocks, through pages or past them, is
//! refused and has changed nothing, or it is written, whoever takes space meanwhile.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{closes_well, fill, fits, new_file, remove};
use std::sync::Arc;
use uxfs::{Changes, File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Groups of this many bytes, and caches that hold all that a test writes.
fn made(group: u64, groups: u32) -> (Arc<dyn BlockDevice>, Volume) {
    let bytes = group * u64::from(groups);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(bytes).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.12").expect("known");
    let options = MkfsOptions::new().group_count(groups).features(features).small(true);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    let options = OpenOptions::new().writable(true).cache_size(2 << 30);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("clean");
    (device, volume)
}

fn some(volume: &Volume, name: &str, count: usize) -> Vec<File> {
    (0..count).map(|nth| new_file(volume, &format!("{name}{nth}"))).collect()
}

/// A large file, and one of many pieces, whose clones bring many records each; what lies between them.
fn large_and_pieces(volume: &Volume, blocks: u64) -> [File; 3] {
    let [large, pieces, gaps] = ["large", "pieces", "gaps"].map(|name| new_file(volume, name));
    for nth in 0..400 {
        pieces.write_at(&[1; BLOCK as usize], nth * BLOCK).expect("written");
        gaps.write_at(&[2; BLOCK as usize], nth * BLOCK).expect("written");
    }
    large.write_at(&vec![3; (blocks * BLOCK) as usize], 0).expect("written");
    [large, pieces, gaps]
}

/// Takes all that is free of the first group.
fn fill_first_group(volume: &Volume, group: u64) -> File {
    let first = new_file(volume, "first");
    let is_behind = |file: &File| file.extents().any(|extent| extent.expect("a map").physical >= group);
    while !is_behind(&first) {
        first.allocate(first.size()..first.size() + 8 * BLOCK, false).expect("space");
    }
    first
}

/// Every other block of so many.
fn odd(blocks: u64) -> impl Iterator<Item = u64> {
    (1..blocks).step_by(2).map(|at| at * BLOCK)
}

/// Clones the file of many pieces, and cuts clones of the large one, until both are refused.
fn fill_with_owners([large, pieces, _]: &[File; 3], others: &[File], cuts: &[File]) {
    let blocks = large.size() / BLOCK;
    cuts.iter().for_each(|file| large.clone_range(0, file, 0, 0).expect("a clone"));
    let _ = others.iter().filter(|other| fits(pieces.clone_range(0, other, 0, 0))).count();
    let _ = cuts.iter().all(|file| odd(blocks).all(|at| fits(file.punch_hole(at..at + BLOCK))));
}

/// Writes are accepted as long as there is room for all of them together: what was accepted against the same room shut the
/// volume down when it was synced.
#[test]
fn what_is_accepted_is_written_back() {
    const GROUP: u64 = 16 * MIB;
    const LARGE: u64 = 800;
    let (device, volume) = made(GROUP, 22);
    let files = large_and_pieces(&volume, LARGE);
    let (clones, others, cuts) =
        (some(&volume, "clone", 24), some(&volume, "other", 100), some(&volume, "cut", 60));
    let first = fill_first_group(&volume, GROUP);
    volume.sync().expect("synced");
    clones.iter().for_each(|clone| files[0].clone_range(0, clone, 0, 0).expect("a clone"));
    fill_with_owners(&files, &others, &cuts);
    let (mut given, mut accepted) = (cuts.iter(), 0);
    'all: for clone in clones.iter().map(File::buffered) {
        for at in odd(LARGE) {
            while !fits(clone.write_at(&[9; BLOCK as usize], at)) {
                let Some(file) = given.next() else { break 'all };
                file.set_len(0).expect("cut");
                volume.sync().expect("what was accepted is written back");
            }
            accepted += 1;
        }
    }
    println!("{accepted} writes were accepted, {} files given back", cuts.len() - given.len());
    assert!(accepted > 100, "{accepted}");
    volume.sync().expect("what was accepted is written back");
    drop((cuts, clones, others, first, files));
    closes_well(&device, volume);
}

/// The room was in the group's free space, and somebody takes that as data. A part by itself may need a record then that the
/// whole does not.
#[test]
fn what_is_accepted_is_written_back_when_its_group_is_filled_behind_it() {
    const GROUP: u64 = 64 * MIB;
    const LARGE: u64 = 5000;
    let (device, volume) = made(GROUP, 4);
    let files = large_and_pieces(&volume, LARGE);
    let (clone, others) = (new_file(&volume, "clone"), some(&volume, "other", 90));
    files[0].clone_range(0, &clone, 0, 0).expect("a clone");
    let _ = others.iter().filter(|other| fits(files[1].clone_range(0, other, 0, 0))).count();
    volume.sync().expect("synced");
    let buffered = clone.buffered();
    buffered.write_at(&vec![9; (LARGE * BLOCK) as usize], 0).expect("accepted");
    // Never refused, which would have all that is dirty written back.
    let first = fill_first_group(&volume, GROUP);
    for nth in 0..LARGE / 2 {
        let at = (2 * (nth * 97 % (LARGE / 2)) + 1) * BLOCK;
        buffered.sync_range(at..at + BLOCK).expect("what was accepted is written back");
    }
    drop((buffered, clone, others, first, files));
    volume.close().expect("closes");
    drop(volume);
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
    let mut bytes = vec![0; (LARGE * BLOCK) as usize];
    volume.open_file("clone").expect("there").read_at(&mut bytes, 0).expect("read");
    assert!(bytes.iter().all(|&byte| byte == 9), "something that was accepted is lost");
    closes_well(&device, volume);
}

/// The same with copies that lie in other groups and cut what they are copies of into pieces, each of which is a record: a file
/// that shares nothing leaves the room that was promised.
#[test]
fn what_shares_nothing_leaves_the_room_that_was_promised() {
    const GROUP: u64 = 16 * MIB;
    const LARGE: u64 = 400;
    let (device, volume) = made(GROUP, 40);
    let large = new_file(&volume, "large");
    large.write_at(&vec![3; (LARGE * BLOCK) as usize], 0).expect("written");
    let files = some(&volume, "clone", 40);
    files.iter().for_each(|file| large.clone_range(0, file, 0, 0).expect("a clone"));
    let first = fill_first_group(&volume, GROUP);
    let hint = Changes { cow_extent_size: Some((LARGE * BLOCK) as u32), ..Changes::default() };
    for file in &files {
        file.node().change(&hint).expect("a hint");
        file.overwrite_at(&[2; BLOCK as usize], 0).expect("copied");
    }
    first.set_len(0).expect("cut");
    drop(first);
    remove(&volume, "first");
    volume.sync().expect("synced");
    let files: Vec<File> = files.iter().map(File::buffered).collect();
    for file in &files {
        odd(LARGE).for_each(|at| file.write_at(&[9; BLOCK as usize], at).expect("accepted"));
    }
    let first = fill_first_group(&volume, GROUP);
    volume.sync().expect("what was accepted is written back");
    drop((files, large, first));
    closes_well(&device, volume);
}

/// Of what turned out to be the file's alone, no record ever comes: a promise of room for them was kept for ever, and others
/// were refused for want of it.
#[test]
fn room_is_promised_for_copies_alone() {
    const BLOCKS: u64 = 2000;
    for is_buffered in [false, true] {
        let (device, volume) = made(16 * MIB, 4);
        let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
        one.write_at(&vec![1; (BLOCKS * BLOCK) as usize], 0).expect("written");
        one.clone_range(0, &other, 0, 0).expect("a clone");
        // What is shared is known now, and is shared no more then.
        one.overwrite_at(&[2; BLOCK as usize], 0).expect("copied");
        drop(other);
        remove(&volume, "other");
        volume.sync().expect("synced");
        let writer = if is_buffered { one.buffered() } else { one.direct() };
        writer.write_at(&vec![3; ((BLOCKS - 1) * BLOCK) as usize], BLOCK).expect("written");
        one.sync().expect("synced");
        let filler = fill(&volume, "filler");
        filler.set_len(filler.size() - 400 * BLOCK).expect("cut");
        volume.sync().expect("synced");
        let third = new_file(&volume, "third");
        one.clone_range(0, &third, 0, 0).unwrap_or_else(|error| panic!("buffered {is_buffered}: {error}"));
        drop((one, writer, filler, third));
        closes_well(&device, volume);
    }
}

/// A write past the pages, to two blocks whose copies lie apart: the room for both was asked for, and is not asked for again
/// when one of them is there.
#[test]
fn a_write_that_is_refused_has_written_nothing() {
    const GROUP: u64 = 16 * MIB;
    const LARGE: u64 = 800;
    let (device, volume) = made(GROUP, 8);
    let files = large_and_pieces(&volume, LARGE);
    let (clones, others, cuts) =
        (some(&volume, "clone", 16), some(&volume, "other", 100), some(&volume, "cut", 40));
    let first = fill_first_group(&volume, GROUP);
    volume.sync().expect("synced");
    clones.iter().for_each(|clone| files[0].clone_range(0, clone, 0, 0).expect("a clone"));
    fill_with_owners(&files, &others, &cuts);
    // What is free lies in single blocks.
    let filler = fill(&volume, "filler");
    let end = filler.size() / BLOCK;
    for nth in 1..=3000 {
        let at = (end - 2 * nth) * BLOCK;
        filler.punch_hole(at..at + BLOCK).expect("a hole");
    }
    volume.sync().expect("synced");
    let hint = Changes { cow_extent_size: Some(BLOCK as u32), ..Changes::default() };
    clones.iter().for_each(|clone| clone.node().change(&hint).expect("a hint"));
    let (mut given, mut refused) = (cuts.iter(), 0);
    'all: for clone in &clones {
        for at in (1..LARGE - 2).step_by(4).map(|at| at * BLOCK) {
            if fits(clone.write_at(&[9; 2 * BLOCK as usize], at)) {
                continue;
            }
            let mut seen = vec![0; 2 * BLOCK as usize];
            clone.read_at(&mut seen, at).expect("read");
            assert_eq!(seen[0], seen[BLOCK as usize], "it was refused, and half of it is there");
            refused += 1;
            let Some(file) = given.next().filter(|_| refused < 5) else { break 'all };
            file.set_len(0).expect("cut");
            volume.sync().expect("synced");
        }
    }
    assert!(refused > 0, "nothing was refused");
    drop((clones, others, cuts, first, filler, files));
    closes_well(&device, volume);
}
