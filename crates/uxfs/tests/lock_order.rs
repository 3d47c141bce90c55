//! Transactions that lock headers of one group at the same time.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Durability, HoldDevice, MemoryDevice, Op};
use std::sync::Arc;
use std::thread;
use uxfs::{Dir, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Volume, check_device, mkfs_device};

const BYTES: u64 = 40 << 20;
/// Of 1,338 blocks: what lies behind it is where the directories come to lie as they must.
const LOG_BYTES: u64 = 1338 << 12;
/// As many extents as a directory's inode holds.
const INLINE_EXTENTS: u64 = 21;
/// Where the trees of free space have their roots: in the second and third block.
const FREE_SPACE_ROOTS: [u64; 2] = [4096, 8192];

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).unwrap()
}

fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let to: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    let mut bytes = vec![0; BYTES as usize];
    device.read(0, &mut bytes).unwrap();
    to.write(0, &bytes, Durability::Volatile).unwrap();
    to
}

/// So long a name that an inode holds one of them, and a block few.
fn name(nth: u32) -> Vec<u8> {
    format!("{nth:0220}").into_bytes()
}

fn extents(dir: &Dir) -> u64 {
    dir.node().metadata().unwrap().extents
}

/// A directory that gets names until it gets a block.
fn grow(dir: &Dir, next: &mut u32) {
    let blocks = || dir.node().metadata().unwrap().blocks;
    let before = blocks();
    while blocks() == before {
        dir.create_file(&name(*next), &NewNode::default()).unwrap();
        *next += 1;
    }
}

/// A volume of one group with a directory `a`, whose inode holds no further extent and one of whose extents has several
/// blocks, and with a directory `c`, whose inode holds no further name. Gives the numbers of the names in these blocks.
fn crowded() -> (Arc<dyn BlockDevice>, Vec<u32>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    let old = MkfsFeatures::of_kernel("6.1").expect("its set");
    let options = MkfsOptions::new().features(old).small(true).group_count(1).log_size(LOG_BYTES);
    mkfs_device(Arc::clone(&device), &options, true).unwrap();
    let volume = open(Arc::clone(&device));
    let root = volume.root().unwrap().as_dir().unwrap();
    let make = |name: &[u8]| root.create_dir(name, &NewNode::default()).unwrap().as_dir().unwrap();
    let (a, b, c) = (make(b"a"), make(b"b"), make(b"c"));
    c.create_file(&name(0), &NewNode::default()).unwrap();
    let next = &mut 1;
    while extents(&a) < INLINE_EXTENTS - 3 {
        grow(&a, next);
        grow(&b, next);
    }
    // The first name of the first block stays: that one is not freed.
    grow(&a, next);
    let first = *next;
    (0..4).for_each(|_| grow(&a, next));
    let names = (first..*next).collect();
    while extents(&a) < INLINE_EXTENTS {
        grow(&b, next);
        grow(&a, next);
    }
    assert_eq!(extents(&a), INLINE_EXTENTS, "or nothing is tested");
    volume.close().unwrap();
    (device, names)
}

/// A removal that takes a block from the middle of a directory's extent, and needs one for the map that becomes a tree,
/// locked the AGF, and then the AGI for the inode; whoever makes a file locks them the other way round. Both waited for
/// ever.
#[test]
fn a_removal_and_a_creation_do_not_wait_for_each_other() {
    let (device, names) = crowded();
    let trial = open(copy(&device));
    let a = trial.open_dir("/a").unwrap();
    let splits = names.iter().position(|&nth| {
        a.remove_file(&name(nth)).unwrap();
        extents(&a) > INLINE_EXTENTS
    });
    drop((a, trial));
    let splits = splits.expect("a removal that makes the map a tree");

    let volume = open(Arc::clone(&device));
    let a = volume.open_dir("/a").unwrap();
    names[..splits].iter().for_each(|&nth| a.remove_file(&name(nth)).unwrap());
    volume.close().unwrap();
    drop((a, volume));
    let holds = Arc::new(HoldDevice::new(Arc::clone(&device)));
    let volume = open(holds.clone());
    let (a, c) = (volume.open_dir("/a").unwrap(), volume.open_dir("/c").unwrap());
    holds.hold_next(|op, offset| op == Op::Read && FREE_SPACE_ROOTS.contains(&offset));
    let nth = names[splits];
    let removal = thread::spawn(move || a.remove_file(&name(nth)).map(|()| extents(&a)));
    while holds.waiting() == 0 && !removal.is_finished() {
        thread::yield_now();
    }
    let creation = thread::spawn(move || {
        c.create_file(&name(1), &NewNode::default())?;
        Ok::<_, uxfs::Error>(extents(&c))
    });
    for _ in 0..200 {
        if creation.is_finished() {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(holds.waiting(), 1, "the removal has the AGF, and reads a tree of free space");
    holds.release();
    assert_eq!(removal.join().unwrap().unwrap(), INLINE_EXTENTS + 1);
    assert_eq!(creation.join().unwrap().unwrap(), 1, "the directory got a block");
    volume.close().unwrap();
    drop(volume);
    let report = check_device(device, &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}
