//! Shared blocks where there is hardly any space: what finds too little has changed nothing, and no group is so full of
//! owners that a change has to be given up half-way.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, fill, fits, image_of, new_file, remove, said};
use common::{mounted, repair_finds_nothing};
use fileio::testing::{COMMITTED, at};
use oracles::xfsprogs::Release;
use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use uxfs::{
    Changes, ErrorKind, Extent, File, MkfsFeatures, MkfsOptions, OpenOptions, Result, Volume, check_device,
    mkfs_device,
};

const BLOCK: u64 = 4096;

fn made(bytes: u64, options: MkfsOptions) -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(bytes).expect("memory"));
    mkfs_device(Arc::clone(&device), &options.small(true), true).expect("a volume");
    let options = OpenOptions::new().writable(true);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("clean");
    (device, volume)
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// Blocks of a file that are mapped, written or not.
fn mapped_blocks(file: &File) -> u64 {
    let extents: Vec<Extent> = file.extents().collect::<Result<_>>().expect("a map");
    extents.iter().map(|extent| extent.length).sum::<u64>() / BLOCK
}

fn ends_well(device: &Arc<dyn BlockDevice>, volume: Volume) {
    volume.close().expect("closes");
    drop(volume);
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    let (_dir, image) = image_of(&**device);
    repair_finds_nothing_in_one_group(&image);
    // The kernel goes on with it: it changes what is shared, and removes it.
    mounted(&image, |at| {
        let script = "cd $1; rm -f filler* scrap*; for f in *; do \
                      dd if=/dev/zero of=$f bs=4k count=9 conv=notrunc status=none || :; done; sync; rm -rf *; sync";
        let out = Command::new("bash").args(["-euc", script, "bash"]).arg(at).output().expect("bash");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    });
    repair_finds_nothing_in_one_group(&image);
}

/// `xfs_repair` wants to be told that a volume may have a single group.
fn repair_finds_nothing_in_one_group(image: &Path) {
    let repair = Release::Unstable.path("xfs_repair").expect("ci/xfsprogs installs it");
    said(Command::new(repair).args(["-n", "-o", "force_geometry"]).arg(image));
}

/// A cut amid a shared block zeroes the rest of it in a copy. Without space for that it is refused, by a kernel as well, and
/// the file is as it was; one at the border of a block needs none.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_cut_amid_a_shared_block_needs_space() {
    const AMID: u64 = 85 * BLOCK + 1840;
    let (device, volume) = made(64 << 20, MkfsOptions::new());
    let [one, other, third] = ["one", "other", "third"].map(|name| new_file(&volume, name));
    let content: Vec<u8> = (0..256 * BLOCK).map(|at| (at / BLOCK % 250) as u8 + 1).collect();
    one.write_at(&content, 0).expect("written");
    for to in [&other, &third] {
        one.clone_range(0, to, 0, 0).expect("a clone");
    }
    drop(fill(&volume, "filler"));
    assert_eq!(one.set_len(AMID).map_err(|error| error.kind()), Err(ErrorKind::NoSpace));
    assert!(bytes(&one) == content, "refused, and something has changed");
    one.set_len(86 * BLOCK).expect("cut at the border of a block");
    remove(&volume, "filler");
    one.set_len(AMID).expect("there is space");
    assert!(bytes(&one) == content[..AMID as usize] && bytes(&other) == content);
    drop((one, other, third));
    volume.sync().expect("synced");
    let (_dir, image) = image_of(&*device);
    mounted(&image, |at| {
        let script = "cd $1; for n in 1 2 3; do dd if=/dev/zero of=filler bs=4k oflag=append conv=notrunc status=none \
                      2>&1 || :; sync -f .; done; truncate -s $2 other 2>&1 || stat -c %s other; \
                      truncate -s $3 other; stat -c %s other";
        let [amid, border] = [AMID, 86 * BLOCK].map(|size| size.to_string());
        let said = said(Command::new("bash").args(["-euc", script, "bash"]).arg(at).args([amid, border]));
        let lines: Vec<&str> = said.lines().rev().take(3).collect();
        assert_eq!(lines[..2], [(86 * BLOCK).to_string(), (256 * BLOCK).to_string()], "{said}");
        assert!(lines[2].ends_with("No space left on device"), "{said}");
    });
    ends_well(&device, volume);
}

/// Zeroing shared blocks takes new ones. Another writer takes all space that is left, at whatever moment: the range is zeroed
/// and has its space, or it is as it was.
#[test]
#[ignore = "needs root and xfsprogs"]
fn zeroing_of_shared_blocks_leaves_no_hole() {
    let mut zeroed = 0;
    for nth in 1..12 {
        let (device, volume) = made(64 << 20, MkfsOptions::new());
        let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
        let content: Vec<u8> = (0..256 * BLOCK).map(|at| (at / BLOCK % 250) as u8 + 1).collect();
        one.write_at(&content, 0).expect("written");
        one.clone_range(0, &other, 0, 0).expect("a clone");
        let filler = fill(&volume, "filler");
        filler.set_len(filler.size() - 300 * BLOCK).expect("cut");
        volume.sync().expect("synced");
        // Whoever takes the rest does so behind the nth commit.
        fn then(volume: Volume, left: u32, happened: Rc<Cell<bool>>) {
            at(COMMITTED, move || match left {
                0 => {
                    happened.set(true);
                    drop(fill(&volume, "filler too"));
                }
                left => then(volume, left - 1, happened),
            });
        }
        let happened = Rc::new(Cell::new(false));
        then(volume.clone(), nth - 1, Rc::clone(&happened));
        let done = one.zero_range(10 * BLOCK..210 * BLOCK, true);
        let found = bytes(&one);
        match done {
            Ok(()) => {
                zeroed += 1;
                assert!(found[10 * BLOCK as usize..210 * BLOCK as usize].iter().all(|&byte| byte == 0));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                assert!(found == content, "behind commit {nth}: refused, and something has changed");
            }
        }
        assert_eq!(mapped_blocks(&one), 256, "behind commit {nth}: a part has lost its space");
        assert!(bytes(&other) == content, "behind commit {nth}");
        // What is still to come must not come later.
        let is_over = !happened.get();
        while !happened.get() {
            volume.root().expect("root").as_dir().expect("a directory");
            drop(new_file(&volume, &format!("scrap{}", volume.info().expect("info").free_inodes)));
        }
        drop((one, other, filler));
        remove(&volume, "filler");
        ends_well(&device, volume);
        if is_over {
            break;
        }
    }
    assert!(zeroed > 0, "it never fitted");
}

/// Nothing is free but single blocks, so that a copy is of as many pieces as it has blocks, and the map needs blocks of its
/// own to tell of them: there is room for all of it, or nothing is written.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_in_pieces_is_whole_or_not_at_all() {
    const COPIED: u64 = 40;
    let (device, volume) = made(64 << 20, MkfsOptions::new().group_count(1));
    let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
    let content = vec![7; 64 * BLOCK as usize];
    one.write_at(&content, 0).expect("written");
    one.node()
        .change(&Changes { cow_extent_size: Some(BLOCK as u32), ..Changes::default() })
        .expect("a hint");
    one.clone_range(0, &other, 0, 0).expect("a clone");
    for nth in 0..400 {
        drop(new_file(&volume, &format!("scrap{nth}")));
    }
    let filler = fill(&volume, "filler");
    // Every other block of the end, as many as there are files to take them.
    let last = filler.size() / BLOCK;
    for nth in 0..200 {
        let at = (last - 2 * nth - 2) * BLOCK;
        filler.punch_hole(at..at + BLOCK).expect("a hole");
    }
    volume.sync().expect("synced");
    let scrap = |nth: u64| volume.open_file(format!("scrap{nth}")).expect("opened");
    let mut taken = 0;
    while taken < 400 && scrap(taken).allocate(0..BLOCK, false).is_ok() {
        taken += 1;
    }
    assert!(taken > COPIED + 20 && taken < 400, "{taken} scraps");
    let written = vec![9; (COPIED * BLOCK) as usize];
    let mut attempts = 0;
    loop {
        let done = one.overwrite_at(&written, 5 * BLOCK);
        let found = bytes(&one);
        let Err(error) = done else {
            assert!(found[5 * BLOCK as usize..][..written.len()] == written);
            break;
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let changed = found.chunks(BLOCK as usize).filter(|block| block[0] != 7).count();
        assert_eq!(changed, 0, "{attempts} blocks were free: {changed} were written");
        taken = taken.checked_sub(1).expect("it fits in the end");
        scrap(taken).set_len(0).expect("cut");
        volume.sync().expect("synced");
        attempts += 1;
    }
    println!("{attempts} attempts, {taken} scraps are left");
    assert!(attempts > COPIED / 2, "it fitted at once");
    assert!(bytes(&other) == content);
    drop((one, other, filler));
    remove(&volume, "filler");
    ends_well(&device, volume);
}

/// So little is free that a call that copies shared blocks at its ends finds some of its space at most: with each block more
/// it is refused and nothing has changed, or it is done.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_call_that_is_refused_for_space_has_changed_nothing() {
    const SIZE: u64 = 64 * BLOCK;
    type Call = fn(&File) -> Result<()>;
    const CALLS: [(&str, Call); 16] = [
        ("punch", |file| file.punch_hole(5 * BLOCK + 512..20 * BLOCK + 512)),
        ("punch in two blocks", |file| file.punch_hole(6 * BLOCK - 512..6 * BLOCK + 512)),
        ("punch from within a block", |file| file.punch_hole(5 * BLOCK + 512..8 * BLOCK)),
        ("zero", |file| file.zero_range(5 * BLOCK + 512..20 * BLOCK + 512, true)),
        ("zero in two blocks", |file| file.zero_range(6 * BLOCK - 512..6 * BLOCK + 512, true)),
        ("write", |file| file.write_at(&[9; 3 * BLOCK as usize], 5 * BLOCK + 512)),
        ("overwrite", |file| file.overwrite_at(&[9; 3 * BLOCK as usize], 5 * BLOCK + 512)),
        ("cut", |file| file.set_len(SIZE - 3 * BLOCK - 512)),
        ("append", |file| file.write_at(&[9; 30 * BLOCK as usize], SIZE - 512)),
        ("append behind a gap", |file| file.write_at(&[9; 30 * BLOCK as usize], SIZE + 3 * BLOCK)),
        ("append behind a gap in the last block", |file| {
            file.write_at(&[9; 30 * BLOCK as usize], SIZE - 256)
        }),
        ("append at once", |file| file.append_at(&[9; 30 * BLOCK as usize], SIZE + 3 * BLOCK)),
        ("allocate over the end", |file| file.allocate(SIZE - 5 * BLOCK..SIZE + 30 * BLOCK, false)),
        ("zero over the end", |file| file.zero_range(SIZE - 5 * BLOCK..SIZE + 30 * BLOCK, false)),
        ("zero behind a gap", |file| file.zero_range(SIZE + 10 * BLOCK..SIZE + 30 * BLOCK, false)),
        ("allocate behind a gap", |file| file.allocate(SIZE + 10 * BLOCK..SIZE + 30 * BLOCK, false)),
    ];
    for (name, call) in CALLS {
        let (device, volume) = made(64 << 20, MkfsOptions::new().group_count(1));
        let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
        let is_about_end =
            ["append", "allocate", "zero over", "zero behind"].iter().any(|about| name.starts_with(about));
        let size = if is_about_end { SIZE - 512 } else { SIZE };
        let content = vec![7; size as usize];
        one.write_at(&content, 0).expect("written");
        one.clone_range(0, &other, 0, 0).expect("a clone");
        let filler = fill(&volume, "filler");
        volume.sync().expect("synced");
        let mut refused = 0;
        let extents = || one.extents().collect::<Result<Vec<Extent>>>().expect("a map");
        let before = extents();
        while !fits(call(&one)) {
            assert!(bytes(&one) == content, "{name}, {refused} blocks more: something has changed");
            assert_eq!(extents(), before, "{name}, {refused} blocks more: blocks went elsewhere");
            refused += 1;
            filler.set_len(filler.size() - BLOCK).expect("cut");
            volume.sync().expect("synced");
        }
        assert!(refused > 1 && refused < 200, "{name}: {refused} attempts");
        assert!(bytes(&one) != content, "{name}");
        assert!(bytes(&other) == content, "{name}");
        println!("{name}: done with {refused} blocks more");
        drop((one, other, filler));
        remove(&volume, "filler");
        ends_well(&device, volume);
    }
}

/// The range lies in two blocks, and is the whole of none: the first one was zeroed, and then there was no space for the map to
/// tell of the copy of the second one, for which enough had been reserved, but by both.
#[test]
#[ignore = "needs root and xfsprogs"]
fn zeroing_within_two_blocks_needs_no_space_half_way() {
    let (device, volume) = made(64 << 20, MkfsOptions::new());
    let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
    one.write_at(&[7; 2 * BLOCK as usize], 0).expect("written");
    one.clone_range(BLOCK, &other, 0, BLOCK).expect("a clone");
    let filler = fill(&volume, "filler");
    let mut refused = 0;
    while !fits(one.zero_range(1..BLOCK + 1, true)) {
        refused += 1;
        assert!(bytes(&one).iter().all(|byte| *byte == 7), "refused for the {refused}th time, and changed");
        filler.set_len(filler.size() - BLOCK).expect("cut");
    }
    assert!(refused > 0, "it was full");
    let content = bytes(&one);
    assert!(content[1..=BLOCK as usize].iter().all(|byte| *byte == 0));
    assert!(content[0] == 7 && content[BLOCK as usize + 1..].iter().all(|byte| *byte == 7));
    assert!(bytes(&other).iter().all(|byte| *byte == 7));
    drop((one, other, filler));
    ends_well(&device, volume);
}

/// A small group that is full except for what it keeps back, beside one that has space, and in it more and more is
/// shared, in smaller and smaller pieces: each piece of each owner is a record of the reverse map. What does not fit is
/// refused; the volume goes on.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_group_full_of_owners_lacks_space_and_nothing_else() {
    const GROUP: u64 = 16 << 20;
    const PIECES: u64 = 400;
    const LARGE: u64 = 800;
    const CLONES: u64 = 80;
    // This many that are refused in a row, and the next file is tried.
    const PATIENCE: u32 = 4;
    let mut random = Random::seeded();
    let features = MkfsFeatures::of_kernel("6.12").expect("known");
    let (device, volume) = made(2 * GROUP, MkfsOptions::new().group_count(2).features(features));
    let [pieces, large, set_aside] = ["pieces", "large", "aside"].map(|name| new_file(&volume, name));
    let gaps = new_file(&volume, "scrap gaps");
    for nth in 0..PIECES {
        pieces.write_at(&[1; BLOCK as usize], nth * BLOCK).expect("written");
        gaps.write_at(&[2; BLOCK as usize], nth * BLOCK).expect("written");
    }
    large.write_at(&vec![3; (LARGE * BLOCK) as usize], 0).expect("written");
    set_aside.allocate(0..LARGE * BLOCK, false).expect("allocated");
    let clones: Vec<File> = (0..CLONES).map(|nth| new_file(&volume, &format!("clone{nth}"))).collect();
    // All of the first group that a file can have.
    let filler = new_file(&volume, "filler");
    let is_behind = |file: &File| file.extents().any(|extent| extent.expect("a map").physical >= GROUP);
    while !is_behind(&filler) {
        filler.allocate(filler.size()..filler.size() + 8 * BLOCK, false).expect("space");
    }
    assert!(![&pieces, &large, &set_aside].into_iter().any(is_behind));
    volume.sync().expect("synced");
    // As many owners as there can be.
    let (mut cloned, mut done) = (0, 0_u64);
    for (nth, clone) in clones.iter().enumerate() {
        let of = if nth % 2 == 0 { &pieces } else { &large };
        cloned += u64::from(fits(of.clone_range(0, clone, 0, 0)));
    }
    println!("{cloned} clones");
    // Records of all kinds are cut in pieces.
    for (nth, clone) in clones.iter().enumerate() {
        let mut refused = 0;
        for at in (1..clone.size() / BLOCK).step_by(2) {
            let range = at * BLOCK..(at + 1) * BLOCK;
            let fitted = match nth % 6 {
                0 | 3 | 5 => fits(clone.punch_hole(range)),
                1 => fits(clone.write_at(&[4; BLOCK as usize], range.start)),
                _ => fits(clone.zero_range(range, true)),
            };
            refused = if fitted { 0 } else { refused + 1 };
            done += u64::from(fitted);
            if refused == PATIENCE {
                break;
            }
        }
    }
    println!("{done} changes");
    for at in (0..LARGE).step_by(2) {
        done += u64::from(fits(set_aside.write_at(&[5; BLOCK as usize], at * BLOCK)));
    }
    println!("{done} changes with those of what was set aside");
    // Some goes, and comes again.
    for _ in 0..800 {
        let clone = &clones[random.below(CLONES) as usize];
        let of = &clones[random.below(CLONES) as usize];
        let (at, len) = (random.below(LARGE), 1 + random.below(50));
        let range = at * BLOCK..(at + len) * BLOCK;
        let fitted = match random.below(12) {
            0..=3 => fits(clone.write_at(&vec![6; (len * BLOCK) as usize], range.start)),
            4 => fits(clone.punch_hole(range)),
            5 => fits(clone.zero_range(range, true)),
            6 => fits(clone.set_len(range.start)),
            7 => fits(clone.allocate(range, true)),
            8 => fits(large.clone_range(0, clone, 0, 0)),
            9 => fits(pieces.clone_range(0, clone, 0, 0)),
            _ if range.end <= of.size() && !std::ptr::eq(of, clone) => {
                fits(of.clone_range(range.start, clone, at / 2 * BLOCK, len * BLOCK))
            }
            _ => true,
        };
        done += u64::from(fitted);
    }
    println!("{done} changes in the end");
    assert!(large.size() == LARGE * BLOCK && bytes(&large).iter().all(|&byte| byte == 3));
    drop((pieces, large, set_aside, gaps, filler, clones));
    ends_well(&device, volume);
}

/// A copy of several pieces, each of which has the map leave the inode for a block and come back: that it does so again and
/// again is no want of space.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_of_a_map_at_the_edge_of_its_inode_is_done() {
    const PIECES: u64 = 16;
    for more in 0..12 {
        // Without parent pointers, which take their part of an inode.
        let features = MkfsFeatures::of_kernel("6.12").expect("its set");
        let (device, volume) = made(64 << 20, MkfsOptions::new().group_count(1).features(features));
        let (source, file) = (new_file(&volume, "source"), new_file(&volume, "file"));
        source.write_at(&vec![7; (2 * PIECES * BLOCK) as usize], 0).expect("written");
        for nth in 0..PIECES {
            source.clone_range(2 * nth * BLOCK, &file, nth * BLOCK, BLOCK).expect("a clone");
        }
        for nth in 0..more {
            file.write_at(&[5; BLOCK as usize], (PIECES + 1 + 2 * nth) * BLOCK).expect("written");
        }
        let hint = Changes { cow_extent_size: Some(BLOCK as u32), ..Changes::default() };
        file.node().change(&hint).expect("a hint");
        // What is free lies in single blocks, except for some far away.
        let filler = fill(&volume, "filler");
        filler.set_len(filler.size() - 100 * BLOCK).expect("cut");
        for nth in 0..300 {
            filler.punch_hole(2 * nth * BLOCK..(2 * nth + 1) * BLOCK).expect("a hole");
        }
        volume.sync().expect("synced");
        let done = file.overwrite_at(&vec![9; (PIECES * BLOCK) as usize], 0);
        done.unwrap_or_else(|error| panic!("{more} more extents: {error}"));
        assert_eq!(bytes(&file)[..(PIECES * BLOCK) as usize], vec![9; (PIECES * BLOCK) as usize]);
        assert_eq!(bytes(&source), vec![7; (2 * PIECES * BLOCK) as usize]);
        drop((source, file, filler));
        ends_well(&device, volume);
    }
}

/// Of what a write through pages claims at once, any part may be written back first. The map is told of each part by itself
/// then, whoever took all other space, and may need a block for each: it found none, though the write was accepted.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_was_written_to_memory_is_written_back_in_any_parts() {
    const BLOCKS: u64 = 24;
    let mut written_back = 0;
    for is_shared in [false, true] {
        for pieces in (6..22).chain([60]) {
            let (device, volume) = made(64 << 20, MkfsOptions::new());
            let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
            one.node()
                .change(&Changes { cow_extent_size: Some(BLOCK as u32), ..Changes::default() })
                .expect("a hint");
            one.allocate(0..BLOCKS * BLOCK, false).expect("set aside");
            for nth in 0..pieces {
                one.write_at(&[1; BLOCK as usize], (BLOCKS + 1 + 2 * nth) * BLOCK).expect("written");
            }
            if is_shared {
                one.write_at(&[2; (BLOCKS * BLOCK) as usize], 0).expect("written");
                one.clone_range(0, &other, 0, 0).expect("a clone");
            }
            let filler = fill(&volume, "filler");
            let mut random = Random::seeded();
            let refused = |error: uxfs::Error| assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            for left in 0..48_u8 {
                filler.set_len(filler.size() - BLOCK).expect("cut");
                volume.sync().expect("synced");
                let again = match is_shared {
                    true => one.clone_range(0, &other, 0, 0).map(drop),
                    false => one.zero_range(0..BLOCKS * BLOCK, true),
                };
                let buffered = one.buffered();
                let stamp = 100 + left;
                let written =
                    again.and_then(|()| buffered.write_at(&[stamp; (BLOCKS * BLOCK) as usize], 0).map(drop));
                if let Err(error) = written {
                    refused(error);
                    continue;
                }
                for _ in 0..6 {
                    let at = random.below(BLOCKS);
                    let synced = buffered.sync_range(at * BLOCK..(at + 1) * BLOCK);
                    synced
                        .unwrap_or_else(|error| panic!("{pieces} pieces, {left} left: block {at}: {error}"));
                }
                buffered.sync().expect("synced");
                let found = bytes(&one);
                assert!(found[..(BLOCKS * BLOCK) as usize].iter().all(|&byte| byte == stamp));
                written_back += 1;
            }
            drop((one, other, filler));
            remove(&volume, "filler");
            ends_well(&device, volume);
        }
    }
    assert!(written_back > 500, "{written_back}");
}

/// A group that the log fills except for some blocks has none that is free: its tree of reference counts has all the
/// blocks that it can ever want, and what lies there can be shared, as on a kernel's mount.
#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_beside_the_log_are_shared_though_their_group_is_full() {
    const GROUP: u64 = 32 << 20;
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = dir.path().join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(512 << 20)).expect("an image");
    said(Command::new("mkfs.xfs").args(["-q", "-f", "-d", "agcount=16", "--unsupported"]).arg(&image));
    let volume = Volume::open(&image, &OpenOptions::new().writable(true)).expect("clean");
    let one = fill(&volume, "one");
    let extents: Vec<Extent> = one.extents().collect::<Result<_>>().expect("a map");
    let of_group = |extent: &Extent| extent.physical / GROUP;
    let in_group = |group| extents.iter().filter(move |extent| of_group(extent) == group);
    let blocks_of = |group| in_group(group).map(|extent| extent.length / BLOCK).sum::<u64>();
    let (beside, blocks) =
        (0..16).map(|group| (group, blocks_of(group))).min_by_key(|(_, blocks)| *blocks).expect("some");
    assert!((1..12).contains(&blocks), "{blocks} blocks in group {beside}");
    for extent in extents.iter().filter(|extent| of_group(extent) != beside) {
        one.punch_hole(extent.logical..extent.logical + extent.length).expect("punched");
    }
    for extent in in_group(beside) {
        one.write_at(&vec![7; extent.length as usize], extent.logical).expect("written");
    }
    volume.sync().expect("synced");
    let clones: Vec<File> = (0..20).map(|nth| new_file(&volume, &format!("clone{nth}"))).collect();
    for clone in &clones {
        one.clone_range(0, clone, 0, 0).expect("there is room to count its owners");
    }
    // Each block by itself: as many records as there can be.
    for extent in in_group(beside) {
        for block in (0..extent.length / BLOCK).step_by(2) {
            clones[0]
                .write_at(&[8; BLOCK as usize], extent.logical + block * BLOCK)
                .expect("a copy elsewhere");
        }
    }
    drop((one, clones));
    volume.close().expect("closes");
    repair_finds_nothing(&image);
    mounted(&image, |at| {
        let script = "cd $1; cp --reflink=always one two; cp --reflink=always clone0 three; rm one; sync; rm -rf *; sync";
        said(Command::new("bash").args(["-euc", script, "bash"]).arg(at));
    });
    repair_finds_nothing(&image);
}
