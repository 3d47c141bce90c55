//! Copies that are put into another group than that of what they copy, where that group has hardly any room left for owners.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, HoldDevice, MemoryDevice, Op};
use common::files::{closes_well, fill, fits, new_file};
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

/// Takes all that is free of the groups before `to`, so many bytes at a time.
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

/// Has two blocks copied, so many apart, of each area of a file of so many blocks, which has the area staged.
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

/// What lies in place was written before it was known whether the group still had room for the copies around it.
#[test]
fn copies_whose_room_others_took_leave_what_lies_between_them() {
    const FAR: u64 = 4000;
    const AT: u64 = 100;
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(GROUP * 4).expect("memory"));
    let gate = Arc::new(HoldDevice::new(Arc::clone(&memory)));
    let device: Arc<dyn BlockDevice> = gate.clone();
    let volume = made_on(&device, 4, SMALL);
    let (pieces, gaps) = in_pieces(&volume, 250, SMALL);
    let others: Vec<File> = (0..180).map(|nth| new_file(&volume, &format!("other{nth}"))).collect();
    let [far, copy] = ["far", "copy"].map(|name| new_file(&volume, name));
    far.write_at(&vec![3; (FAR * SMALL) as usize], 0).expect("written");
    far.clone_range(0, &copy, 0, 0).expect("a clone");
    copy.node().change(&hint(SMALL)).expect("a hint");
    copy.overwrite_at(&[4; SMALL as usize], (AT + 1) * SMALL).expect("its own from now on");
    copy.node().change(&hint(FAR * SMALL)).expect("a hint");
    copy.overwrite_at(&[2; SMALL as usize], 0).expect("copied");
    let zero = fill_groups(&volume, "zero", 1, 16 * SMALL);
    let shares = |other: &&File| fits(pieces.clone_range(0, other, 0, 0));
    let given = others.iter().take_while(shares).count();
    assert!(given < others.len(), "the group is full of owners");
    // Whatever it writes first: a copy, or what lies between.
    gate.hold_next(|op, _| op == Op::Write);
    let refused = std::thread::scope(|scope| {
        let writing = scope.spawn(|| copy.write_at(&[9; 3 * SMALL as usize], AT * SMALL));
        while gate.waiting() == 0 && !writing.is_finished() {
            std::thread::yield_now();
        }
        let fits = |at: &u64| fits(copy.write_at(&[8; SMALL as usize], at * SMALL));
        let taken = (2 * AT..FAR).step_by(2).take_while(fits).count() as u64;
        assert!(2 * (AT + taken) < FAR, "others take all room");
        gate.release();
        writing.join().expect("no panic")
    });
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::NoSpace), "or nothing is tested");
    let mut seen = [0; 3 * SMALL as usize];
    copy.read_at(&mut seen, AT * SMALL).expect("read");
    assert_eq!([0, 1, 2].map(|block| seen[block * SMALL as usize]), [3, 4, 3], "refused, and done in part");
    drop((pieces, gaps, others, far, copy, zero));
    closes_well(&memory, volume);
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
