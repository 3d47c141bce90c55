//! What takes something away succeeds on a full volume, even if the map that is left has one more extent than before. So does
//! what usually needs no space: names that move, and writes into preallocated space.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, closes_well, fill, fill_up, fits, give_back, new_file, remove};
use fileio::testing::at;
use std::sync::Arc;
use uxfs::{
    ErrorKind, File, MkfsOptions, NewNode, OpenOptions, Rename, Result, SetXattr, Volume, mkfs_device,
};

const SIZE: u64 = 48 << 20;
const BLOCK: u64 = 4096;

fn made() -> (Arc<dyn BlockDevice>, Volume) {
    made_with(MkfsOptions::new())
}

fn made_with(options: MkfsOptions) -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    mkfs_device(Arc::clone(&device), &options.small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
    (device, volume)
}

/// Takes all blocks that came free.
fn take_all(volume: &Volume, filler: &File) {
    volume.sync().expect("synced");
    fill_up(filler, 64 << 10);
}

/// Removes all, in random order. What each frees is taken before the next.
fn removes_all(
    what: &str,
    volume: &Volume,
    mut left: Vec<u64>,
    seed: u64,
    remove: impl Fn(u64) -> Result<()>,
) {
    let filler = fill(volume, "filler");
    let mut random = Random(seed);
    while !left.is_empty() {
        take_all(volume, &filler);
        let nth = left.swap_remove(random.below(left.len() as u64) as usize);
        remove(nth).unwrap_or_else(|error| panic!("{what}, seed {seed}, {} left: {error}", left.len()));
    }
}

/// In one leaf or a tree of them, with values of many blocks or of none.
#[test]
fn attributes() {
    for (values, len) in [(4, 40 << 10), (40, 40 << 10), (400, 2000), (300, 5000)] {
        for seed in 1..4 {
            let (device, volume) = made();
            let file = new_file(&volume, "file");
            let name = |nth: u64| format!("user.{nth}-{}", "x".repeat(100));
            let set = |nth| file.node().set_xattr(name(nth).as_bytes(), &vec![1; len], SetXattr::Create);
            (0..values).for_each(|nth| set(nth).expect("set"));
            let remove = |nth| file.node().remove_xattr(name(nth).as_bytes());
            removes_all(&format!("{values} values"), &volume, (0..values).collect(), seed, remove);
            closes_well(&device, volume);
        }
    }
}

/// By name, or by a list that permissions can express.
#[test]
fn access_control_lists() {
    let (device, volume) = made();
    let (list, plain) = (list_of(300), list_of(0));
    let files: Vec<_> = (0..40).map(|nth| new_file(&volume, &format!("file {nth}"))).collect();
    for file in &files {
        file.node().set_xattr(ACL, &list, SetXattr::Create).expect("set");
    }
    let remove = |nth: u64| {
        let node = files[nth as usize].node();
        if nth.is_multiple_of(2) {
            node.remove_xattr(ACL)
        } else {
            node.set_xattr(ACL, &plain, SetXattr::Either)
        }
    };
    removes_all("lists", &volume, (0..40).collect(), 1, remove);
    closes_well(&device, volume);
}

/// In a directory of many blocks, of one file, so that each has a parent pointer too.
#[test]
fn names() {
    for seed in 1..4 {
        let (device, volume) = made();
        let root = volume.root().and_then(|root| root.as_dir()).expect("a directory");
        let dir = root.create_dir(b"dir", &NewNode::default()).and_then(|dir| dir.as_dir()).expect("made");
        let name = |nth: u64| format!("{nth}-{}", "x".repeat(200)).into_bytes();
        let file = new_file(&volume, "file");
        (0..3000).for_each(|nth| dir.link(&name(nth), file.node()).expect("linked"));
        removes_all("names", &volume, (0..3000).collect(), seed, |nth| dir.remove_file(&name(nth)));
        closes_well(&device, volume);
    }
}

/// Each hole in a file makes one extent more.
#[test]
fn blocks_of_files() {
    for seed in 1..4 {
        let (device, volume) = made();
        let file = new_file(&volume, "file");
        file.allocate(0..2000 * BLOCK, false).expect("allocated");
        let punch = |nth: u64| file.punch_hole(nth * BLOCK..(nth + 1) * BLOCK);
        removes_all("blocks", &volume, (0..2000).collect(), seed, punch);
        closes_well(&device, volume);
    }
}

/// Holes where blocks are shared may free nothing. They leave the pool to others.
#[test]
fn holes_in_clones() {
    const BLOCK: u64 = 1024;
    const SHARED: u64 = 9000;
    let (device, volume) = made_with(MkfsOptions::new().block_size(1024));
    let source = new_file(&volume, "source");
    source.write_at(&vec![1; (SHARED * BLOCK) as usize], 0).expect("written");
    let clone = new_file(&volume, "clone");
    source.clone_range(0, &clone, 0, SHARED * BLOCK).expect("cloned");
    let punch = |file: &File, nth: u64| file.punch_hole((2 * nth + 1) * BLOCK..(2 * nth + 2) * BLOCK);
    let with_holes = |holes| {
        let file = new_file(&volume, &format!("file {holes}"));
        file.allocate(0..100 * BLOCK, false).expect("allocated");
        (0..holes).for_each(|nth| punch(&file, nth).expect("punched"));
        file
    };
    let files: Vec<File> = (1..30).map(with_holes).collect();
    let filler = fill(&volume, "filler");
    for (holes, file) in (1..).zip(&files) {
        take_all(&volume, &filler);
        let done = (0..SHARED / 2).map_while(|nth| punch(&clone, nth).ok()).count() as u64;
        assert!(done < SHARED / 2, "nothing ran out");
        punch(file, 45).unwrap_or_else(|error| panic!("behind {holes} holes: {error}"));
    }
    drop((source, clone, files, filler));
    closes_well(&device, volume);
}

#[test]
fn names_that_move() {
    let (device, volume) = made();
    let root = volume.root().and_then(|root| root.as_dir()).expect("a directory");
    for name in ["a", "b", "c", "d", "e"] {
        new_file(&volume, name);
    }
    let filler = fill(&volume, "filler");
    let full = || take_all(&volume, &filler);
    full();
    root.rename(b"a", &root, b"f", Rename::NoReplace).expect("moved");
    full();
    root.rename(b"b", &root, b"c", Rename::Replace).expect("replaced");
    full();
    root.rename(b"d", &root, b"e", Rename::Exchange).expect("exchanged");
    full();
    root.link(b"g", &volume.lookup("f").expect("there")).expect("linked");
    // As long as there is room.
    let file = volume.lookup("e").expect("there");
    let refused =
        (0..3000).find_map(|nth| root.link(format!("{nth}{}", "x".repeat(100)).as_bytes(), &file).err());
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::NoSpace));
    drop((filler, file, root));
    closes_well(&device, volume);
}

/// Each write makes two extents more.
#[test]
fn writes_into_preallocated_space() {
    let (device, volume) = made();
    let file = new_file(&volume, "file");
    file.allocate(0..1000 * BLOCK, false).expect("allocated");
    let filler = fill(&volume, "filler");
    for nth in 0..400 {
        take_all(&volume, &filler);
        let written = file.write_at(&[1; BLOCK as usize], 2 * nth * BLOCK).and_then(|()| file.sync());
        written.unwrap_or_else(|error| panic!("write {nth}: {error}"));
    }
    drop((file, filler));
    closes_well(&device, volume);
}

/// Regression: a file whose blocks had been shared until just now was refused to be cut, or written, on a full volume. Until
/// it is on disk that the other owner is gone, what is written goes elsewhere, for which there was no space. A commit that
/// nobody waits for may stay in memory for long.
#[test]
fn blocks_that_were_shared_lately() {
    for change in [
        |file: &File| file.set_len(10 * BLOCK + 1),
        |file: &File| file.write_at(&[7; 100], BLOCK / 2),
        |file: &File| file.zero_range(BLOCK / 2..2 * BLOCK - 10, false),
    ] {
        let (device, volume) = made();
        let file = new_file(&volume, "file");
        file.write_at(&vec![5; (100 * BLOCK) as usize], 0).expect("written");
        let clone = new_file(&volume, "clone");
        file.clone_range(0, &clone, 0, 100 * BLOCK).expect("cloned");
        take_all(&volume, &fill(&volume, "filler"));
        assert_eq!(change(&file).expect_err("a copy fits").kind(), ErrorKind::NoSpace);
        drop(clone);
        remove(&volume, "clone");
        change(&file).expect("nobody else has the blocks");
        drop(file);
        closes_well(&device, volume);
    }
}

/// Regression: a write that found no space for copies of shared blocks had cut preallocated extents before.
#[test]
fn a_refused_write_leaves_the_map_as_it_was() {
    let (device, volume) = made();
    let file = new_file(&volume, "file");
    file.write_at(&vec![5; (10 * BLOCK) as usize], 0).expect("written");
    file.allocate(10 * BLOCK..100 * BLOCK, true).expect("allocated");
    let clone = new_file(&volume, "clone");
    file.clone_range(0, &clone, 0, 10 * BLOCK).expect("cloned");
    let filler = fill(&volume, "filler");
    take_all(&volume, &filler);
    let extents = || file.extents().collect::<Result<Vec<_>>>().expect("listed");
    let before = extents();
    let mut refused = 0;
    while let Err(error) = file.write_at(&vec![7; (20 * BLOCK) as usize], 5 * BLOCK) {
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(extents(), before, "{refused} blocks were free");
        refused += 1;
        give_back(&volume, "filler", 1);
    }
    assert!(refused > 5, "there was space for all copies");
    drop((file, clone, filler));
    closes_well(&device, volume);
}

/// Regression: what landed while a write looked for blocks that are its own was not looked at again.
#[test]
fn blocks_whose_last_sharing_lands_amid_a_look() {
    let (device, volume) = made();
    let file = new_file(&volume, "file");
    file.write_at(&vec![5; (100 * BLOCK) as usize], 0).expect("written");
    let clone = new_file(&volume, "clone");
    file.clone_range(0, &clone, 0, 100 * BLOCK).expect("cloned");
    take_all(&volume, &fill(&volume, "filler"));
    clone.set_len(0).expect("cut");
    let landing = volume.clone();
    at("blocks were looked for that are shared no longer", move || landing.sync().expect("synced"));
    file.write_at(&vec![7; (50 * BLOCK) as usize], 10 * BLOCK + 5).expect("nobody else has the blocks");
    drop((file, clone));
    closes_well(&device, volume);
}

/// Regression: a hole that got a block joined two extents, so that the map fitted into the inode again. When the write was
/// refused later, the block could not be taken back: that needed a block for the map.
#[test]
fn a_refused_change_gives_back_what_holes_got() {
    let mut refused = 0;
    for (holes, left) in (8..13).flat_map(|holes| (0..4).map(move |left| (holes, left))) {
        for zeroes in [None, Some(7), Some(2)] {
            refused += u64::from(refused_with_a_hole(holes, left, zeroes));
        }
    }
    assert!(refused > 30, "only {refused} were refused");
}

/// Whether there was no space for it.
fn refused_with_a_hole(holes: u64, left: u64, zeroes: Option<u64>) -> bool {
    let (device, volume) = made();
    let [file, clone] = ["file", "clone"].map(|name| new_file(&volume, name));
    file.write_at(&vec![5; (8 * BLOCK) as usize], 0).expect("written");
    file.allocate(8 * BLOCK..80 * BLOCK, false).expect("allocated");
    file.clone_range(0, &clone, 0, 8 * BLOCK).expect("cloned");
    let punch = |nth: u64| file.punch_hole(nth * BLOCK..(nth + 1) * BLOCK).expect("punched");
    (0..holes).for_each(|nth| punch(30 + 2 * nth));
    let filler = fill(&volume, "filler");
    take_all(&volume, &filler);
    give_back(&volume, "filler", 40);
    punch(10);
    volume.sync().expect("synced");
    filler.allocate(filler.size()..filler.size() + (40 - left) * BLOCK, false).expect("there is space");
    volume.sync().expect("synced");
    let extents = || file.extents().collect::<Result<Vec<_>>>().expect("listed");
    let before = extents();
    let done = match zeroes {
        None => file.write_at(&vec![7; (5 * BLOCK) as usize], 7 * BLOCK),
        Some(from) => file.zero_range(from * BLOCK..12 * BLOCK, true),
    };
    let is_refused = !fits(done);
    assert!(
        !is_refused || extents() == before,
        "{zeroes:?}, {holes} holes, {left} left: {before:?}, {:?}",
        extents()
    );
    drop((file, clone, filler));
    closes_well(&device, volume);
    is_refused
}

/// Regression: a clone that was refused, or is gone, left its mark on the file. From then on the file got no block from the
/// pool, even for holes in what is its own.
#[test]
fn holes_in_what_was_cloned_once() {
    for is_refused in [true, false] {
        let (device, volume) = made();
        let (file, clone) = (file_of_holes(&volume), new_file(&volume, "clone"));
        if !is_refused {
            file.clone_range(0, &clone, 0, BLOCK).expect("cloned");
            clone.set_len(0).expect("cut");
        }
        let filler = fill(&volume, "filler");
        take_all(&volume, &filler);
        if is_refused {
            file.clone_range(0, &clone, 0, BLOCK).expect_err("there is no space");
        }
        file.punch_hole(90 * BLOCK..91 * BLOCK).unwrap_or_else(|error| panic!("{is_refused}: {error}"));
        drop((file, clone, filler));
        closes_well(&device, volume);
    }
}

/// As many holes as extents fit into the inode: one more needs a block for the map.
fn file_of_holes(volume: &Volume) -> File {
    const HOLES: u64 = 11;
    let file = new_file(volume, "holes");
    file.write_at(&vec![3; (100 * BLOCK) as usize], 0).expect("written");
    let punch = |nth: u64| file.punch_hole((2 * nth + 1) * BLOCK..(2 * nth + 2) * BLOCK);
    (0..HOLES).for_each(|nth| punch(nth).expect("punched"));
    file
}

/// Regression: writes into preallocated space, which free nothing, took all of the pool.
#[test]
fn writes_leave_some_of_the_pool_to_removals() {
    let (device, volume) = made();
    let holes = file_of_holes(&volume);
    let make = |nth| {
        let file = new_file(&volume, &format!("file {nth}"));
        file.allocate(0..60 * BLOCK, false).expect("allocated");
        file
    };
    let files: Vec<File> = (0..60).map(make).collect();
    let filler = fill(&volume, "filler");
    take_all(&volume, &filler);
    let write =
        |file: &File| (0..29).all(|nth| fits(file.write_at(&[1; BLOCK as usize], (2 * nth + 1) * BLOCK)));
    let written = files.iter().filter(|file| write(file)).count();
    assert!((5..60).contains(&written), "{written} were written");
    holes.punch_hole(90 * BLOCK..91 * BLOCK).expect("punched");
    drop((holes, files, filler));
    closes_well(&device, volume);
}

/// Regression: a clone that ends within a block could not grow on a full volume, although the rest of the block was zeroes.
#[test]
fn a_clone_whose_last_block_is_zeroed_already() {
    let (device, volume) = made();
    let [file, clone] = ["file", "clone"].map(|name| new_file(&volume, name));
    file.write_at(&vec![5; (10 * BLOCK + 1) as usize], 0).expect("written");
    file.clone_range(0, &clone, 0, 10 * BLOCK + 1).expect("cloned");
    clone.allocate(11 * BLOCK..20 * BLOCK, true).expect("allocated");
    let filler = fill(&volume, "filler");
    take_all(&volume, &filler);
    let size = clone.size();
    clone.set_len(size).expect("nothing changes");
    clone.set_len(size + 1).expect("grown");
    clone.allocate(11 * BLOCK..12 * BLOCK, false).expect("grown");
    clone.write_at(&[1; BLOCK as usize], 13 * BLOCK).expect("written");
    clone.set_len(size).expect("cut");
    take_all(&volume, &filler);
    assert_eq!(clone.set_len(size - 2).expect_err("a copy fits").kind(), ErrorKind::NoSpace);
    let mut bytes = vec![9; 2 * BLOCK as usize];
    clone.set_len(20 * BLOCK).expect("grown");
    assert_eq!(clone.read_at(&mut bytes, 10 * BLOCK).expect("read"), bytes.len());
    assert!(bytes[0] == 5 && bytes[1..].iter().all(|&byte| byte == 0));
    drop((file, clone, filler));
    closes_well(&device, volume);
}

/// Regression: whole blocks of a file's own were not zeroed on a full volume.
#[test]
fn whole_blocks_that_are_zeroed() {
    let (device, volume) = made();
    let file = new_file(&volume, "file");
    file.write_at(&vec![5; (100 * BLOCK) as usize], 0).expect("written");
    let filler = fill(&volume, "filler");
    for nth in 1..40 {
        take_all(&volume, &filler);
        let zeroed = file.zero_range(2 * nth * BLOCK..(2 * nth + 1) * BLOCK, false);
        zeroed.unwrap_or_else(|error| panic!("block {nth}: {error}"));
    }
    drop((file, filler));
    closes_well(&device, volume);
}

const ACL: &[u8] = b"system.posix_acl_access";

/// A list for so many users, in the form of Linux: version 2, then tag, permissions and id of each entry.
fn list_of(count: u32) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let users = (0..count).map(|nth| (2, 7, 1000 + nth));
    let mask = [(0x10, 7, NOBODY)].into_iter().filter(|_| count > 0);
    let entry = |(tag, allowed, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &allowed.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let all = [(1, 7, NOBODY)]
        .into_iter()
        .chain(users)
        .chain([(4, 5, NOBODY)])
        .chain(mask)
        .chain([(0x20, 5, NOBODY)]);
    [2_u32.to_le_bytes().to_vec()].into_iter().chain(all.map(entry)).flatten().collect()
}
