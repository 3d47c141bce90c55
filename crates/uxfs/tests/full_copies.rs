//! Copies that are put into another group than that of what they copy, where that group has hardly any room left for owners.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, HoldDevice, MemoryDevice, Op};
use common::files::{closes_well, fill, fits, new_file};
use fileio::testing::{COMMITTED, at};
use std::ops::Range;
use std::sync::Arc;
use uxfs::{Changes, ErrorKind, File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};

const GROUP: u64 = 16 << 20;
/// Blocks of a small size: small leaves, and many of them.
const SMALL: u64 = 1024;
/// Blocks of a file of which copies are made, so many of them staged at once.
const FAR: u64 = 14_000;
const AREA: u64 = 7_000;

fn made(groups: u32, block: u64) -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryDevice::anonymous(GROUP * u64::from(groups)).expect("memory"));
    let volume = made_on(&device, groups, block);
    (device, volume)
}

fn made_on(device: &Arc<dyn BlockDevice>, groups: u32, block: u64) -> Volume {
    let features = MkfsFeatures::of_kernel("6.12").expect("known");
    let options =
        MkfsOptions::new().group_count(groups).block_size(block as u32).features(features).small(true);
    mkfs_device(Arc::clone(device), &options, true).expect("a volume");
    let options = OpenOptions::new().writable(true).cache_size(1 << 30);
    Volume::open_device(Arc::clone(device), &options).expect("clean")
}

/// Takes all that is free of the groups before `to`, this many bytes at a time.
fn fill_groups(volume: &Volume, name: &str, to: u64, step: u64) -> File {
    let file = new_file(volume, name);
    let is_behind = |file: &File| file.extents().any(|extent| extent.expect("a map").physical >= to * GROUP);
    while !is_behind(&file) {
        file.allocate(file.size()..file.size() + step, false).expect("space");
    }
    file
}

fn hint(bytes: u64) -> Changes {
    Changes { cow_extent_size: Some(bytes as u32), ..Changes::default() }
}

/// Two files, a block of the one and one of the other in turns.
fn in_pieces(volume: &Volume, count: u64, block: u64) -> (File, File) {
    let (pieces, gaps) = (new_file(volume, "pieces"), new_file(volume, "gaps"));
    for at in (0..count).map(|nth| nth * block) {
        pieces.write_at(&vec![1; block as usize], at).expect("written");
        gaps.write_at(&vec![2; block as usize], at).expect("written");
    }
    (pieces, gaps)
}

/// Has two blocks copied, so many apart, of each area of a file of this many blocks, which has the area staged.
fn copy_in_each_area(copy: &File, (blocks, area): (u64, u64), (block, apart): (u64, u64)) {
    for at in (0..blocks).step_by(area as usize) {
        // What was left of the group in which the first block lies is used up with that.
        copy.overwrite_at(&vec![2; block as usize], at * block).expect("copied");
        copy.overwrite_at(&vec![2; block as usize], (at + apart) * block).expect("copied");
    }
}

/// A clone whose copies are put into the first group, which is full of owners, and all other files. `write` fills what the
/// clone is of.
fn full_first_group(write: impl Fn(&File)) -> (Arc<dyn BlockDevice>, Volume, File, Vec<File>) {
    let (device, volume) = made(12, SMALL);
    let (pieces, gaps) = in_pieces(&volume, 250, SMALL);
    let [far, copy] = ["far", "copy"].map(|name| new_file(&volume, name));
    let mut others: Vec<File> = (0..180).map(|nth| new_file(&volume, &format!("other{nth}"))).collect();
    let zero = fill_groups(&volume, "zero", 1, 64 * SMALL);
    write(&far);
    let mid = fill_groups(&volume, "mid", 2, 64 * SMALL);
    let shares = |other: &&File| fits(pieces.clone_range(0, other, 0, 0));
    // As many owners as the first group takes.
    let given = others.iter().take_while(shares).count();
    let two = fill(&volume, "two");
    zero.set_len(0).expect("cut");
    volume.sync().expect("synced");
    far.clone_range(0, &copy, 0, 0).expect("a clone");
    copy.node().change(&hint(AREA * SMALL)).expect("a hint");
    // Takes what is left of all groups but the first.
    let rest = new_file(&volume, "rest");
    far.clone_range(0, &rest, 0, 0).expect("a clone");
    rest.node().change(&hint(100 * SMALL)).expect("a hint");
    let mut at = 0;
    while !rest.extents().any(|extent| extent.expect("a map").physical < GROUP) {
        rest.overwrite_at(&[2; SMALL as usize], at).expect("copied");
        at += 100 * SMALL;
    }
    copy_in_each_area(&copy, (FAR, AREA), (SMALL, 100));
    mid.set_len(0).expect("cut");
    two.set_len(two.size() - 6 * GROUP).expect("cut");
    volume.sync().expect("synced");
    let more = others[given..].iter().take(40).take_while(shares).count();
    assert!(given > 0 && more > 0, "owners of the first group");
    let first = fill_groups(&volume, "first", 1, 64 * SMALL);
    others.extend([pieces, gaps, far, zero, mid, two, rest, first]);
    (device, volume, copy, others)
}

/// The volume was shut down in the midst of a copy.
fn copies_into_a_full_group(is_buffered: bool) {
    let whole = |far: &File| far.write_at(&vec![3; (FAR * SMALL) as usize], 0).expect("written");
    let (device, volume, copy, others) = full_first_group(whole);
    let writer = if is_buffered { copy.buffered() } else { copy.direct() };
    let mut refused = 0;
    for nth in 0..FAR / 2 {
        let at = (2 * (nth * 997 % (FAR / 2)) + 1) * SMALL;
        let written = writer.write_at(&[9; SMALL as usize], at).and_then(|_| match is_buffered {
            true => writer.sync_range(at..at + SMALL),
            false => Ok(()),
        });
        if let Err(error) = written {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            refused += 1;
            continue;
        }
        let mut seen = [0; SMALL as usize];
        writer.read_at(&mut seen, at).expect("read");
        assert!(seen == [9; SMALL as usize], "write {nth}");
    }
    assert!(refused > 0, "the first group is full of owners");
    volume.sync().expect("synced");
    drop((copy, writer, others));
    closes_well(&device, volume);
}

/// Of a copy, a block in place and another copy, the first two were written when the third was refused.
#[test]
fn of_several_copies_all_are_made_or_none() {
    let far = |far: &File| {
        for at in (0..FAR).step_by(4) {
            far.write_at(&[3; 3 * SMALL as usize], at * SMALL).expect("written");
        }
    };
    let (device, volume, copy, others) = full_first_group(far);
    let writer = copy.direct();
    // Holes become the copy's own: writes over them are in place.
    for at in (3..FAR).step_by(4) {
        writer.write_at(&[4; SMALL as usize], at * SMALL).expect("a hole gets its block");
    }
    let mut refused = 0;
    for nth in 0..FAR / 4 - 1 {
        let at = (4 * (nth * 997 % (FAR / 4 - 1)) + 2) * SMALL;
        if nth < 7 {
            // So that leaves split at other writes.
            writer.write_at(&[8; SMALL as usize], at - SMALL).expect("copied");
            continue;
        }
        let (mut before, mut seen) = ([0; 3 * SMALL as usize], [0; 3 * SMALL as usize]);
        writer.read_at(&mut before, at).expect("read");
        if let Err(error) = writer.write_at(&[9; 3 * SMALL as usize], at) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            refused += 1;
            writer.read_at(&mut seen, at).expect("read");
            let blocks = [0, 1, 2].map(|block| seen[block * SMALL as usize]);
            assert!(seen == before, "write {nth} was refused, and done in part: {blocks:?}");
        }
    }
    assert!(refused > 0, "the first group is full of owners");
    drop((copy, writer, others));
    closes_well(&device, volume);
}

/// The first block of what is changed in the tests below.
const AT: u64 = 100;
/// Blocks of the file in them, of which copies are made.
const NEAR: u64 = 4000;

/// Has `change` be made while others take all the room for owners that they get of the group that all lies in: at its first
/// write to the device, and behind the transaction that follows so many others. It had room before anything was written, and
/// is done as a whole; `shows` says what is there then from the block before the first one on. `prepare` gives the file blocks
/// of its own.
fn has_the_room_that_was_there(
    (prepare, others_before): (impl Fn(&File), u32),
    change: impl Fn(&File) -> uxfs::Result<()> + Sync,
    shows: impl Fn(&mut [u8]),
) {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(GROUP * 4).expect("memory"));
    let gate = Arc::new(HoldDevice::new(Arc::clone(&memory)));
    let device: Arc<dyn BlockDevice> = gate.clone();
    let volume = made_on(&device, 4, SMALL);
    let (pieces, gaps) = in_pieces(&volume, 250, SMALL);
    let others: Vec<File> = (0..180).map(|nth| new_file(&volume, &format!("other{nth}"))).collect();
    let [far, copy, more] = ["far", "copy", "more"].map(|name| new_file(&volume, name));
    far.write_at(&vec![3; (NEAR * SMALL) as usize], 0).expect("written");
    [&copy, &more].iter().for_each(|file| far.clone_range(0, file, 0, 0).expect("a clone"));
    copy.node().change(&hint(SMALL)).expect("a hint");
    prepare(&copy);
    for file in [&copy, &more] {
        file.node().change(&hint(NEAR * SMALL)).expect("a hint");
        file.overwrite_at(&[2; SMALL as usize], 0).expect("copied");
    }
    let zero = fill_groups(&volume, "zero", 1, 16 * SMALL);
    let shares = |other: &&File| fits(pieces.clone_range(0, other, 0, 0));
    let given = others.iter().take_while(shares).count();
    assert!(given < others.len(), "the group is full of owners");
    let seen = || {
        let mut seen = vec![0; 8 * SMALL as usize];
        copy.read_at(&mut seen, (AT - 1) * SMALL).expect("read");
        seen
    };
    let mut expected = seen();
    shows(&mut expected);
    // They are refused in the end.
    let take_all = |file: &File| {
        let fits = |at: &u64| fits(file.write_at(&[8; SMALL as usize], at * SMALL));
        assert!((2 * AT..NEAR - 8).step_by(2).any(|at| !fits(&at)), "others get all that they want");
    };
    gate.hold_next(|op, _| op == Op::Write);
    let done = std::thread::scope(|scope| {
        let (more, take_more) = (more.clone(), take_all);
        let (change, changed) = (&change, copy.clone());
        let changing = scope.spawn(move || {
            behind_commits(others_before, move || take_more(&more));
            change(&changed)
        });
        while gate.waiting() == 0 && !changing.is_finished() {
            std::thread::yield_now();
        }
        take_all(&copy);
        gate.release();
        changing.join().expect("no panic")
    });
    done.expect("it had the room");
    assert!(seen() == expected);
    drop((pieces, gaps, others, far, copy, more, zero));
    closes_well(&memory, volume);
}

/// Has this thread do something behind the commit that follows so many others.
fn behind_commits(others: u32, work: impl FnOnce() + 'static) {
    match others.checked_sub(1) {
        Some(less) => at(COMMITTED, move || behind_commits(less, work)),
        None => at(COMMITTED, work),
    }
}

fn owns(blocks: Range<u64>) -> impl Fn(&File) {
    move |copy| {
        blocks.clone().for_each(|at| copy.overwrite_at(&[4; SMALL as usize], at * SMALL).expect("its own"))
    }
}

/// Bytes of the file as those of what is seen in the tests.
fn in_sight(bytes: Range<u64>) -> Range<usize> {
    let from = (AT - 1) * SMALL;
    (bytes.start - from) as usize..(bytes.end - from) as usize
}

/// Refused behind the write to what lies in place, where others took the room while that was on its way; or behind the first
/// of the copies.
#[test]
fn copies_around_a_block_in_place_have_their_room() {
    has_the_room_that_was_there(
        (owns(AT + 1..AT + 2), 0),
        |copy| copy.write_at(&[9; 3 * SMALL as usize], AT * SMALL),
        |seen| seen[in_sight(AT * SMALL..(AT + 3) * SMALL)].fill(9),
    );
}

#[test]
fn so_has_a_copy_beside_a_hole_and_a_block_in_place() {
    let prepare = |copy: &File| {
        owns(AT + 1..AT + 2)(copy);
        copy.punch_hole(AT * SMALL..(AT + 1) * SMALL).expect("a hole");
    };
    has_the_room_that_was_there(
        // The first gives the hole its block.
        (prepare, 1),
        |copy| copy.write_at(&[9; 3 * SMALL as usize], AT * SMALL),
        |seen| seen[in_sight(AT * SMALL..(AT + 3) * SMALL)].fill(9),
    );
}

/// The end of a block in place was zeroed, that of the shared one behind it was not.
#[test]
fn so_has_a_hole_of_two_ends() {
    let bytes = AT * SMALL + SMALL / 2..(AT + 1) * SMALL + SMALL / 2;
    has_the_room_that_was_there(
        (owns(AT..AT + 1), 0),
        |copy| copy.punch_hole(bytes.clone()),
        |seen| seen[in_sight(bytes.clone())].fill(0),
    );
}

/// What lies between was gone when the ends, in shared blocks, were refused.
#[test]
fn so_have_the_ends_of_a_larger_hole_and_of_zeroes() {
    let bytes = AT * SMALL + SMALL / 2..(AT + 5) * SMALL + SMALL / 2;
    let shows = |seen: &mut [u8]| seen[in_sight(bytes.clone())].fill(0);
    has_the_room_that_was_there((owns(AT + 2..AT + 3), 0), |copy| copy.punch_hole(bytes.clone()), shows);
    has_the_room_that_was_there(
        (owns(AT + 2..AT + 3), 0),
        |copy| copy.zero_range(bytes.clone(), true),
        shows,
    );
}

#[test]
fn a_copy_for_which_its_group_has_no_room_is_refused() {
    copies_into_a_full_group(false);
}

#[test]
fn so_is_one_through_pages() {
    copies_into_a_full_group(true);
}

/// What was accepted of another file could not be written back.
#[test]
fn copies_from_another_group_leave_the_room_that_was_promised() {
    const BLOCK: u64 = 4096;
    const FAR: u64 = 3_200;
    const AREA: u64 = 640;
    const LARGE: u64 = 100;
    let (device, volume) = made(5, BLOCK);
    let (pieces, gaps) = in_pieces(&volume, 200, BLOCK);
    let [large, far, copy, clone] = ["large", "far", "copy", "clone"].map(|name| new_file(&volume, name));
    large.write_at(&vec![3; (LARGE * BLOCK) as usize], 0).expect("written");
    let others: Vec<File> = (0..50).map(|nth| new_file(&volume, &format!("other{nth}"))).collect();
    others.iter().for_each(|other| pieces.clone_range(0, other, 0, 0).expect("a clone"));
    large.clone_range(0, &clone, 0, 0).expect("a clone");
    let zero = fill_groups(&volume, "zero", 1, 8 * BLOCK);
    far.write_at(&vec![3; (FAR * BLOCK) as usize], 0).expect("written");
    let mid = fill_groups(&volume, "mid", 2, 8 * BLOCK);
    let two = fill(&volume, "two");
    zero.set_len(0).expect("cut");
    volume.sync().expect("synced");
    far.clone_range(0, &copy, 0, 0).expect("a clone");
    copy.node().change(&hint(AREA * BLOCK)).expect("a hint");
    copy_in_each_area(&copy, (FAR, AREA), (BLOCK, 20));
    mid.set_len(0).expect("cut");
    two.set_len(two.size() - 2 * GROUP).expect("cut");
    volume.sync().expect("synced");
    let (copy, clone) = (copy.buffered(), clone.buffered());
    clone.write_at(&[9; BLOCK as usize], LARGE / 2 * BLOCK).expect("accepted");
    copy.write_at(&vec![9; ((FAR - 1) * BLOCK) as usize], BLOCK).expect("accepted");
    let first = fill_groups(&volume, "first", 1, 8 * BLOCK);
    for nth in 0..FAR / 2 {
        let at = (2 * (nth * 97 % (FAR / 2)) + 1) * BLOCK;
        copy.sync_range(at..at + BLOCK).expect("what was accepted is written back (far)");
    }
    clone.sync().expect("what was accepted is written back (a copy)");
    volume.sync().expect("what was accepted is written back");
    drop((large, pieces, gaps, far, copy, clone, others, first, zero, mid, two));
    closes_well(&device, volume);
}
