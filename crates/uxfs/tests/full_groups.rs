//! A full volume of many groups whose trees are high: each keeps more blocks back for them than a kernel counts. What is
//! promised can be had, and what finds too little leaves the volume at work. Needs `xfs_repair`.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, fill, fits, image_of};
use common::repair_finds_nothing;
use std::sync::Arc;
use uxfs::{
    Dir, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, SetXattr, Volume, check_device, mkfs_device,
};

const BLOCK: u64 = 1024;
const GROUP: u64 = 16 << 20;
const GROUPS: u32 = 8;
/// Pieces of each group: a leaf of the reverse map holds 40 of them, a block above 22 of those.
const PIECES: u64 = 2400;
/// Blocks that are reserved for a map to grow when a block is allocated.
const FOR_A_MAP: u64 = 16;

/// A directory for each group, and in it a file of single blocks, of which every other one is free again when all else is
/// taken: the trees of free space are high, too.
fn fill_groups(volume: &Volume) -> (Vec<Dir>, Vec<File>) {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let made: (Vec<Dir>, Vec<File>) = (0..GROUPS)
        .map(|nth| {
            let dir = root.create_dir(format!("d{nth}").as_bytes(), &NewNode::default()).expect("made");
            let dir = dir.as_dir().expect("a directory");
            let file = dir.create_file(b"pieces", &NewNode::default()).expect("made").open().expect("opened");
            for piece in 0..PIECES {
                file.allocate(2 * piece * BLOCK..(2 * piece + 1) * BLOCK, false).expect("space");
            }
            (dir, file)
        })
        .unzip();
    fill(volume, "all else");
    for file in &made.1 {
        for piece in (0..PIECES).step_by(2) {
            file.punch_hole(2 * piece * BLOCK..(2 * piece + 1) * BLOCK).expect("punched");
        }
    }
    volume.sync().expect("synced");
    made
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn nothing_is_promised_that_no_group_gives() {
    let mut random = Random::seeded();
    let size = u64::from(GROUPS) * GROUP;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(size).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    let options = MkfsOptions::new().group_size(GROUP).block_size(BLOCK as u32).features(features);
    mkfs_device(Arc::clone(&device), &options.small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let (dirs, files) = fill_groups(&volume);
    let filler = fill(&volume, "filler");
    volume.sync().expect("synced");
    let left = volume.info().expect("info").free_blocks - volume.kept_back_blocks().expect("read");
    assert!(left < FOR_A_MAP, "{left} blocks are promised, and a file cannot have one");

    // Calls of every kind, each tried with one block more until it is done.
    for step in 0..60 {
        let mut any = |most: u64| random.below(most) as usize;
        let (dir, to) = (&dirs[any(GROUPS.into())], &dirs[any(GROUPS.into())]);
        let file = &files[any(GROUPS.into())];
        let name = format!("user.{step}{}", "n".repeat(any(240)));
        let name = name.as_bytes();
        let (value, data, at) =
            (vec![7; any(20000)], vec![9; any(30) * 1024], any(2 * PIECES) as u64 * BLOCK);
        let call = || match step % 6 {
            0 => fits(dir.create_dir(name, &NewNode::default())),
            1 => fits(dir.create_file(name, &NewNode::default())),
            2 => fits(dir.create_symlink(name, &[b'x'; 900], &NewNode::default())),
            3 => fits(file.node().set_xattr(name, &value, SetXattr::Either)),
            4 => fits(file.write_at(&data, at)),
            _ => fits(dir.link(name, &to.lookup(b"pieces").expect("read").expect("there"))),
        };
        while fits(filler.allocate(filler.size()..filler.size() + BLOCK, false)) {}
        while !call() {
            filler.set_len(filler.size() - BLOCK).expect("cut");
            volume.sync().expect("synced");
        }
    }
    drop((dirs, files, filler));
    volume.close().expect("closes");
    drop(volume);
    let report = check_device(Arc::clone(&device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    let (_dir, image) = image_of(&*device);
    repair_finds_nothing(&image);
}
