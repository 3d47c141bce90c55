//! One call that cuts what is shared into many pieces, in a group whose reverse map has little room left: it is refused, or
//! done, and the volume goes on. Needs `xfs_repair`.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{image_of, new_file};
use common::repair_finds_nothing;
use std::sync::Arc;
use uxfs::{
    Changes, ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Result, Volume,
    check_device, mkfs_device,
};

const BLOCK: u64 = 4096;
const GROUP: u64 = 64 << 20;
/// Pieces, every other block of what nearly fills the first group.
const PIECES: u64 = 7000;

fn made() -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(6 * GROUP).expect("memory"));
    let today = MkfsFeatures::of_kernel("6.18").expect("its set");
    let options = MkfsOptions::new().features(today).small(true).group_count(6).log_size(12 << 20);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    (device, volume)
}

/// Whether any of it lies outside the first group.
fn is_elsewhere(file: &File) -> bool {
    file.extents().any(|extent| extent.expect("a map").physical >= GROUP)
}

/// Takes all of the first group that a file can have.
fn fill_first(volume: &Volume) -> File {
    let filler = new_file(volume, "filler");
    while !is_elsewhere(&filler) {
        filler.allocate(filler.size()..filler.size() + 8 * BLOCK, false).expect("space");
    }
    filler
}

/// Nothing was found on the volume, which works.
fn judge(device: &Arc<dyn BlockDevice>, volume: Volume) {
    volume.sync().expect("the volume goes on");
    volume.close().expect("closed");
    drop(volume);
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    let (_dir, image) = image_of(&**device);
    repair_finds_nothing(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_exchange_of_many_pieces_is_refused_or_done() {
    let (device, volume) = made();
    let one = new_file(&volume, "one");
    one.write_at(&vec![1; (2 * PIECES * BLOCK) as usize], 0).expect("written");
    assert!(!is_elsewhere(&one));
    let clones: Vec<File> = (0..6).map(|nth| new_file(&volume, &format!("clone{nth}"))).collect();
    for clone in &clones {
        one.clone_range(0, clone, 0, 0).expect("a clone");
    }
    let filler = fill_first(&volume);
    let comb = new_file(&volume, "comb");
    for nth in 0..PIECES {
        comb.write_at(&[5; BLOCK as usize], 2 * nth * BLOCK).expect("written");
    }
    assert!(comb.extents().all(|extent| extent.expect("a map").physical >= GROUP));
    volume.sync().expect("synced");
    let exchange = |nth: usize| -> Result<()> {
        let other = new_file(&volume, &format!("comb{nth}"));
        comb.clone_range(0, &other, 0, 0).expect("a clone");
        let only_written = ExchangeOptions::new().only_written(true);
        other.exchange_range(0, &clones[nth], 0, Some(other.size()), only_written)
    };
    let (mut done, mut refused) = (0, 0);
    for nth in 0..clones.len() - 1 {
        match exchange(nth) {
            Ok(()) => done += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{done} done, {refused} refused: {error}");
                volume.sync().expect("the volume goes on");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "{done} done, {refused} refused");
    // What lacked was space.
    filler.set_len(0).expect("cut");
    exchange(clones.len() - 1).expect("there is room now");
    drop((one, clones, filler, comb));
    judge(&device, volume);
}

/// Cuts clones of a file of the first group into pieces until nothing can be shared there any more.
fn exhaust(volume: &Volume, file: &File) -> Vec<File> {
    let scrap = new_file(volume, "scrap");
    let clones: Vec<File> = (0..60).map(|nth| new_file(volume, &format!("x{nth}"))).collect();
    for clone in &clones {
        file.clone_range(0, clone, 0, 0).expect("a clone");
    }
    let blocks = file.size() / BLOCK;
    for (nth, (clone, at)) in
        clones.iter().flat_map(|clone| (1..blocks).step_by(2).map(move |at| (clone, at))).enumerate()
    {
        clone.punch_hole(at * BLOCK..(at + 1) * BLOCK).expect("a hole");
        if nth % 16 > 0 {
            continue;
        }
        if let Err(error) = file.clone_range(0, &scrap, 0, BLOCK) {
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            return [clones, vec![scrap]].concat();
        }
        scrap.set_len(0).expect("cut");
    }
    panic!("all can still be shared");
}

/// A file that nearly fills the first group with another one.
fn prepared(volume: &Volume) -> (File, File) {
    let (one, other) = (new_file(volume, "one"), new_file(volume, "other"));
    one.write_at(&vec![1; (2 * (PIECES - 700) * BLOCK) as usize], 0).expect("written");
    other.write_at(&vec![2; (1200 * BLOCK) as usize], 0).expect("written");
    assert!(!is_elsewhere(&one) && !is_elsewhere(&other));
    (one, other)
}

fn copies_block_by_block(file: &File) {
    let hint = Changes { cow_extent_size: Some(BLOCK as u32), ..Changes::default() };
    file.node().change(&hint).expect("a hint");
}

fn refused_or_done(done: Result<()>) {
    if let Err(error) = done {
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }
}

/// Every other block of a file is shared by many, the others are its own, and one write goes to all of it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_write_of_many_pieces_is_refused_or_done() {
    let (device, volume) = made();
    let (one, other) = prepared(&volume);
    let combs = ["comb", "comb of the comb"].map(|name| new_file(&volume, name));
    for at in (0..one.size()).step_by(2 * BLOCK as usize) {
        one.clone_range(at, &combs[0], at, BLOCK).expect("a clone");
    }
    combs[0].clone_range(0, &combs[1], 0, 0).expect("a clone");
    copies_block_by_block(&one);
    let _filler = fill_first(&volume);
    let _clones = exhaust(&volume, &other);
    volume.sync().expect("synced");
    refused_or_done(one.overwrite_at(&vec![9; one.size() as usize], 0));
    drop((one, other, combs, _filler, _clones));
    judge(&device, volume);
}

/// The destination has the same blocks already, except for every other one.
fn shared_again(share: impl Fn(&File, &File) -> Result<()>) {
    let (device, volume) = made();
    let (one, other) = prepared(&volume);
    let [source, to] = ["source", "to"].map(|name| new_file(&volume, name));
    for file in [&source, &to] {
        one.clone_range(0, file, 0, 0).expect("a clone");
    }
    let filler = fill_first(&volume);
    copies_block_by_block(&source);
    for at in (BLOCK..source.size()).step_by(2 * BLOCK as usize) {
        // The same content, elsewhere.
        source.overwrite_at(&[1; BLOCK as usize], at).expect("written");
    }
    volume.sync().expect("synced");
    let clones = exhaust(&volume, &other);
    volume.sync().expect("synced");
    refused_or_done(share(&source, &to));
    drop((one, other, source, to, filler, clones));
    judge(&device, volume);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_clone_of_many_pieces_is_refused_or_done() {
    shared_again(|source, to| source.clone_range(0, to, 0, 0));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_dedupe_of_many_pieces_is_refused_or_done() {
    shared_again(|source, to| source.dedupe_range(0, to, 0, source.size()).map(drop));
}
