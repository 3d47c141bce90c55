//! Directories of our own making inside a kernel's volume: `xfs_repair` and the kernel say whether they are right.
//!
//! The kernel makes a volume with an empty directory, a file that its names will be links of, and a donor: a file
//! of one extent. A directory is built in memory, with the donor's blocks as its own; then the blocks are written, and
//! the three inodes are changed to say what is so.
#![forbid(unsafe_code)]

mod samples;

use samples::{Image, run, seed};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use xfs::dir::{FileType, NewEntry, add, init, remove, replace};
use xfs::fork::Fork;
use xfs::testing::EditFork;
use xfs_format::checksum;
use xfs_format::dir::{FREE_SPACE, LEAF_SPACE};
use xfs_format::geometry::Geometry;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};

/// Where fields of an inode lie on disk, and where its data fork does (v5).
const FORMAT: usize = 5;
const NLINK: usize = 16;
const SIZE: usize = 56;
const NBLOCKS: usize = 64;
const NEXTENTS: usize = 76;
const CRC: usize = 100;
const FORK: usize = 176;

const DONOR_BYTES: u64 = 96 << 20;

/// Changes an inode on the volume.
fn patch_inode(image: &Image, geometry: &Geometry, ino: u64, change: impl FnOnce(&mut [u8])) {
    let (ag, within) = geometry.split_inode(InodeNumber(ino)).unwrap();
    let at = ((u64::from(ag.0) * u64::from(geometry.ag_blocks)) << geometry.block_log)
        + u64::from(within.0) * u64::from(geometry.inode_size);
    let file = File::options().read(true).write(true).open(image.path()).unwrap();
    let mut bytes = vec![0; geometry.inode_size.into()];
    file.read_exact_at(&mut bytes, at).unwrap();
    change(&mut bytes);
    assert!(checksum::store(&mut bytes, CRC));
    file.write_all_at(&bytes, at).unwrap();
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A data fork that is a list of extents.
fn put_extents(bytes: &mut [u8], extents: &[(u64, u64, u64)]) {
    let blocks: u64 = extents.iter().map(|&(_, _, count)| count).sum();
    bytes[FORMAT] = 2;
    put(bytes, NBLOCKS, &blocks.to_be_bytes());
    put(bytes, NEXTENTS, &(extents.len() as u32).to_be_bytes());
    bytes[FORK..].fill(0);
    for (nth, &(offset, start, count)) in extents.iter().enumerate() {
        let packed = u128::from(offset) << 73 | u128::from(start) << 21 | u128::from(count);
        put(bytes, FORK + 16 * nth, &packed.to_be_bytes());
    }
}

/// What a history leaves behind.
struct Plan {
    /// Rounds of growing to this many names and shrinking to that many.
    rounds: &'static [(usize, usize)],
    name_max: usize,
}

fn build(
    fork: &mut EditFork,
    root: InodeNumber,
    target: InodeNumber,
    plan: &Plan,
    seed: u64,
) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    init(fork, InodeNumber(2)).unwrap();
    let (mut names, mut known) = (Vec::new(), BTreeSet::new());
    for &(up, down) in plan.rounds {
        while names.len() < up {
            let len = random.usize(1..=plan.name_max);
            let name: Vec<u8> = (0..len).map(|_| random.u8(b'0'..=b'z')).collect();
            if known.insert(name.clone()) {
                add(fork, NewEntry { name: &name, ino: target, ftype: FileType::Regular }).unwrap();
                fork.settle();
                names.push(name);
            }
            if random.u8(..) < 40 && !names.is_empty() {
                let name: Vec<u8> = names.swap_remove(random.usize(..names.len()));
                known.remove(&name);
                remove(fork, &name).unwrap();
                fork.settle();
            }
        }
        while names.len() > down {
            let name = names.swap_remove(random.usize(..names.len()));
            known.remove(&name);
            remove(fork, &name).unwrap();
            fork.settle();
        }
    }
    assert_eq!(replace(fork, b"..", root, FileType::Directory).unwrap(), InodeNumber(2));
    fork.settle();
    names
}

fn listed(dir: &Path) -> BTreeSet<Vec<u8>> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect()
}

fn check(options: &[&str], plan: &Plan, strict: bool) {
    let seed = seed();
    let small = options.contains(&"size=1024");
    let inode_size = if small { 512 } else { 2048 };
    let inode = format!("size={inode_size},nrext64=0");
    let image = Image::mkfs(&[&["-i", &inode, "-m", "rmapbt=0,reflink=0"], options].concat());
    let (root, dir, target, donor) = image.mounted(|at| {
        std::fs::create_dir(at.join("dir")).unwrap();
        File::create(at.join("target")).unwrap();
        let donor = File::create(at.join("donor")).unwrap();
        rustix::fs::fallocate(&donor, rustix::fs::FallocateFlags::empty(), 0, DONOR_BYTES).unwrap();
        let ino = |name: &str| std::fs::metadata(at.join(name)).unwrap().ino();
        (ino("."), ino("dir"), ino("target"), ino("donor"))
    });
    let geometry = image.geometry();
    let log = geometry.block_log;

    // The donor's one extent: `data offset 0 startblock 13 (0/13) count 1 flag 1`.
    let listing = image.db(&[&format!("inode {donor}"), "bmap -d"]);
    let words: Vec<&str> = listing.split_whitespace().collect();
    let after = |word: &str| -> u64 {
        words[words.iter().position(|&other| other == word).unwrap() + 1].parse().unwrap()
    };
    assert_eq!(words.iter().filter(|&&word| word == "startblock").count(), 1, "{listing}");
    let (start, count) = (after("startblock"), after("count"));
    assert_eq!(count << log, DONOR_BYTES);
    let (ag, block) = geometry.split_block(xfs_format::types::FsBlock(start)).unwrap();
    let first = geometry.daddr_of(ag, block);

    let mut fork = EditFork::new(geometry.clone(), InodeNumber(dir), inode_size - FORK);
    fork.strict = strict;
    let zone = |mib: u64| DiskAddr(first.0 + (mib << 11));
    fork.lay_out(vec![
        (FileBlock(0), zone(0)),
        (FileBlock(LEAF_SPACE >> log), zone(64)),
        (FileBlock(FREE_SPACE >> log), zone(92)),
    ]);
    let names = build(&mut fork, InodeNumber(root), InodeNumber(target), plan, seed);

    let file = File::options().write(true).open(image.path()).unwrap();
    let mut extents: Vec<(u64, u64, u64)> = Vec::new();
    for (at, daddr, bytes) in fork.buffers() {
        file.write_all_at(&bytes, daddr.0 * 512).unwrap();
        let (start, count) = (start + ((daddr.0 - first.0) >> (log - 9)), bytes.len() as u64 >> log);
        match extents.last_mut() {
            Some(last) if last.0 + last.2 == at.0 && last.1 + last.2 == start => last.2 += count,
            _ => extents.push((at.0, start, count)),
        }
    }
    println!("{} names, {} bytes, extents {extents:?}", names.len(), fork.size());
    assert!(extents.len() <= (inode_size - FORK) / 16, "{} extents do not fit into the inode", extents.len());
    patch_inode(&image, &geometry, donor, |bytes| {
        put(bytes, SIZE, &0u64.to_be_bytes());
        put_extents(bytes, &[]);
    });
    patch_inode(&image, &geometry, target, |bytes| {
        put(bytes, NLINK, &(1 + names.len() as u32).to_be_bytes());
    });
    patch_inode(&image, &geometry, dir, |bytes| {
        put(bytes, SIZE, &fork.size().to_be_bytes());
        match fork.local() {
            Some(local) => {
                bytes[FORMAT] = 1;
                put(bytes, FORK, local);
            }
            None => put_extents(bytes, &extents),
        }
    });

    let path = image.path().to_str().unwrap();
    run("xfs_repair", ["-n", path]);
    let names: BTreeSet<Vec<u8>> = names.into_iter().collect();
    let kept = image.mounted(|at| {
        let dir = at.join("dir");
        assert_eq!(listed(&dir), names);
        for name in names.iter() {
            let found = std::fs::metadata(dir.join(std::ffi::OsStr::from_bytes(name))).unwrap();
            assert_eq!(found.ino(), target, "{}", name.escape_ascii());
        }
        // The kernel goes on where we left off.
        let mut kept = BTreeSet::new();
        for nth in 0..names.len().max(50) {
            let name = format!("kernel's name {nth}").into_bytes();
            std::fs::hard_link(at.join("target"), dir.join(std::ffi::OsStr::from_bytes(&name))).unwrap();
            kept.insert(name);
        }
        for (nth, name) in names.iter().enumerate() {
            if nth % 7 == 3 {
                kept.insert(name.clone());
            } else {
                std::fs::remove_file(dir.join(std::ffi::OsStr::from_bytes(name))).unwrap();
            }
        }
        kept
    });
    run("xfs_repair", ["-n", path]);
    image.mounted(|at| {
        let dir = at.join("dir");
        assert_eq!(listed(&dir), kept);
        std::fs::remove_dir_all(&dir).unwrap();
    });
    run("xfs_repair", ["-n", path]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn short() {
    check(&[], &Plan { rounds: &[(300, 20)], name_max: 20 }, true);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn block() {
    check(&[], &Plan { rounds: &[(90, 90)], name_max: 40 }, true);
    check(&[], &Plan { rounds: &[(400, 80)], name_max: 30 }, true);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn leaf() {
    check(&[], &Plan { rounds: &[(350, 350)], name_max: 40 }, true);
    check(&[], &Plan { rounds: &[(2000, 300)], name_max: 120 }, true);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn lone_leaf_of_a_tree() {
    check(&[], &Plan { rounds: &[(500, 500)], name_max: 40 }, true);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn tree() {
    check(&[], &Plan { rounds: &[(6000, 6000)], name_max: 60 }, false);
    check(&[], &Plan { rounds: &[(8000, 2000), (4000, 1500)], name_max: 25 }, false);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn small_blocks_and_two_levels() {
    check(&["-b", "size=1024"], &Plan { rounds: &[(15000, 15000)], name_max: 20 }, false);
    check(&["-b", "size=1024", "-n", "size=4096"], &Plan { rounds: &[(4000, 3900)], name_max: 60 }, false);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn directory_blocks_of_64_kib() {
    check(&["-n", "size=65536"], &Plan { rounds: &[(300, 250)], name_max: 60 }, false);
    check(&["-n", "size=65536"], &Plan { rounds: &[(12000, 9000)], name_max: 60 }, false);
}
