//! Damage of every kind to directories, attributes and symlinks: an error or an answer, never a panic, never a
//! walk without end. Half of the damage has its checksums put right, so that it gets past them.
#![forbid(unsafe_code)]

mod samples;

use samples::{Image, run, seed};
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use xfs::attr::{self, linux};
use xfs::fork::Fork;
use xfs::testing::{MemoryFork, geometry};
use xfs::{Error, dir, symlink};
use xfs_format::checksum;
use xfs_format::da::name_hash;
use xfs_format::dir::LEAF_SPACE;
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};

/// What a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dir,
    Attr,
    Symlink,
}

/// More than any sample can hold, even if every block of it were full of the smallest entries.
const TOO_MANY: usize = 1_000_000;

/// What came of one attempt: the check that failed, if one did.
fn attempt(kind: Kind, fork: &MemoryFork, names: &[Vec<u8>]) -> Vec<&'static str> {
    let mut failed = Vec::new();
    let mut note = |error: Option<Error>| match error {
        None => {}
        Some(Error::Corrupt { problem, .. }) => failed.push(problem.check),
        Some(other) => panic!("damage must be reported as damage: {other}"),
    };
    let mut count = 0;
    let mut counted = || {
        count += 1;
        assert!(count < TOO_MANY, "a walk without end");
    };
    match kind {
        Kind::Dir => {
            let mut last = 0;
            note(
                dir::walk(fork, 0, &mut |entry| {
                    assert!(entry.next > last && !entry.name.is_empty() && entry.name.len() < 256);
                    assert!(!entry.name.contains(&b'/') && !entry.name.contains(&0));
                    last = entry.next;
                    counted();
                    ControlFlow::Continue(())
                })
                .err(),
            );
            let cookie = last / 2;
            note(
                dir::walk(fork, cookie, &mut |entry| {
                    assert!(entry.next > cookie);
                    counted();
                    ControlFlow::Continue(())
                })
                .err(),
            );
            for name in names {
                note(dir::lookup(fork, name).err());
            }
        }
        Kind::Attr => {
            note(
                attr::walk(fork, &mut |entry| {
                    assert!(!entry.name.is_empty() && entry.value_len <= 65_536);
                    counted();
                    ControlFlow::Continue(())
                })
                .err(),
            );
            note(linux::list(fork).err());
            for name in names {
                match linux::get(fork, name) {
                    Ok(value) => assert!(value.is_none_or(|value| value.len() <= 65_536)),
                    Err(error) => note(Some(error)),
                }
            }
        }
        Kind::Symlink => match symlink::target(fork) {
            Ok(target) => assert!(!target.is_empty() && target.len() <= 1024 && !target.contains(&0)),
            Err(error) => note(Some(error)),
        },
    }
    failed
}

/// Does one kind of damage to one block, or to the bytes inside the inode.
fn damage(rng: &mut fastrand::Rng, kind: Kind, fork: &mut MemoryFork, seal: bool) {
    let blocks: Vec<FileBlock> = fork.mapped().collect();
    let buffer = match kind {
        Kind::Dir => fork.geometry().dir_block_blocks(),
        Kind::Attr => 1,
        Kind::Symlink => blocks.len() as u32,
    };
    for _ in 0..rng.usize(1..4) {
        if let Some(bytes) = fork.local_mut() {
            harm(rng, bytes);
            continue;
        }
        let at = *rng.choice(&blocks).expect("a block");
        match rng.u32(0..40) {
            0 => fork.unmap(at),
            1 => {
                let other = *rng.choice(&blocks).expect("a block");
                if let Some(bytes) = fork.block_mut(other).cloned()
                    && let Some(block) = fork.block_mut(at)
                {
                    *block = bytes;
                }
            }
            _ => {
                if let Some(block) = fork.block_mut(at) {
                    harm(rng, block);
                }
            }
        }
    }
    if seal {
        fork.seal_all(buffer.max(1));
    }
}

/// Changes some bytes. The first hundred, where the headers are, more often than others.
fn harm(rng: &mut fastrand::Rng, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    let reach = if rng.bool() { bytes.len().min(100) } else { bytes.len() };
    let at = rng.usize(0..reach);
    match rng.u32(0..5) {
        0 => bytes[at] ^= 1 << rng.u32(0..8),
        1 => bytes[at] = rng.u8(..),
        2 => {
            let value = *rng.choice(&[0u16, 1, 2, 8, 0x7fff, 0x8000, 0xfff8, 0xffff]).expect("one");
            let end = bytes.len().min(at + 2);
            bytes[at..end].copy_from_slice(&value.to_be_bytes()[..end - at]);
        }
        3 => {
            let end = bytes.len().min(at + rng.usize(1..64));
            rng.fill(&mut bytes[at..end]);
        }
        _ => {
            let from = rng.usize(0..bytes.len());
            let len = rng.usize(1..64).min(bytes.len() - from).min(bytes.len() - at);
            bytes.copy_within(from..from + len, at);
        }
    }
}

/// Real forks of every form, on small blocks, with names that are in them.
fn samples() -> Vec<(Kind, MemoryFork, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    for options in [&["-b", "size=1024"][..], &["-b", "size=4096"]] {
        let image = Image::mkfs(options);
        let made = image.mounted(|root| {
            let mut made = Vec::new();
            for (count, len) in [(3, 5), (20, 20), (200, 20), (1500, 30)] {
                let dir = root.join(format!("dir{count}"));
                std::fs::create_dir(&dir).unwrap();
                let first = dir.join(format!("{:0len$}", 0));
                File::create(&first).unwrap();
                for nth in 1..count {
                    std::fs::hard_link(&first, dir.join(format!("{nth:0len$}"))).unwrap();
                }
                for nth in (1..count).step_by(5) {
                    std::fs::remove_file(dir.join(format!("{nth:0len$}"))).unwrap();
                }
                let names = [0, 1, count / 2, count - 1].map(|nth| format!("{nth:0len$}").into_bytes());
                made.push((Kind::Dir, std::fs::metadata(&dir).unwrap().ino(), names.to_vec()));
            }
            for (count, len) in [(2, 10), (8, 100), (8, 3000), (400, 20), (1, 65_536)] {
                let path = root.join(format!("attrs{count} of {len}"));
                File::create(&path).unwrap();
                for nth in 0..count {
                    let name = format!("user.name{nth}");
                    rustix::fs::setxattr(&path, name, &vec![7; len], rustix::fs::XattrFlags::empty())
                        .unwrap();
                }
                run("setfacl", ["-m", "u:7:rw", path.to_str().unwrap()]);
                let names = ["user.name0", "user.name1", "user.name399", "system.posix_acl_access"];
                let names = names.map(|name| name.as_bytes().to_vec()).to_vec();
                made.push((Kind::Attr, std::fs::metadata(&path).unwrap().ino(), names));
            }
            for len in [30, 800, 1020] {
                let path = root.join(format!("link{len}"));
                std::os::unix::fs::symlink("x".repeat(len), &path).unwrap();
                made.push((Kind::Symlink, std::fs::symlink_metadata(&path).unwrap().ino(), Vec::new()));
            }
            made
        });
        for (kind, ino, names) in made {
            let fork = match kind {
                Kind::Attr => image.attr_fork(ino).expect("an attribute fork"),
                _ => image.data_fork(ino),
            };
            assert_eq!(attempt(kind, &fork, &names), [""; 0], "{kind:?} {ino} is sound");
            all.push((kind, fork, names));
        }
    }
    all
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn damaged_samples_give_errors_or_answers() {
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let rounds = std::env::var("XFS_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let mut checks = std::collections::BTreeMap::new();
    for (kind, sound, names) in samples() {
        for _ in 0..rounds {
            let mut fork = sound.clone();
            let seal = rng.bool();
            damage(&mut rng, kind, &mut fork, seal);
            for check in attempt(kind, &fork, &names) {
                *checks.entry((seal, check)).or_insert(0) += 1;
            }
        }
    }
    println!("{checks:#?}");
    // The damage is worth its name: it was caught by checksums, and by many checks behind them.
    assert!(checks.contains_key(&(false, "checksum")));
    let behind = checks.keys().filter(|(seal, check)| *seal && *check != "checksum").count();
    assert!(behind >= 15, "only {behind} checks behind the checksum were seen to fail");
}

#[test]
fn random_bytes_give_errors_or_answers() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let names = [b"a".to_vec(), b"user.a".to_vec(), b"..".to_vec()];
    let magics: [&[u8]; 12] = [
        b"XDB3",
        b"XDD3",
        b"XD2B",
        b"XD2D",
        b"\0\0\0\0\0\0\0\0\x3d\xf1",
        b"\0\0\0\0\0\0\0\0\x3d\xff",
        b"\0\0\0\0\0\0\0\0\xd2\xf1",
        b"\0\0\0\0\0\0\0\0\x3e\xbe",
        b"\0\0\0\0\0\0\0\0\xfe\xbe",
        b"\0\0\0\0\0\0\0\0\x3b\xee",
        b"\0\0\0\0\0\0\0\0\xfb\xee",
        b"XSLM",
    ];
    for _ in 0..4000 {
        let mut data = vec![0; rng.usize(0..20_000)];
        rng.fill(&mut data);
        if rng.bool() {
            // Sparse bytes look more like structures than noise does.
            data.iter_mut().skip(8).for_each(|byte| *byte &= 0x11 & byte.rotate_left(3));
        }
        let magic = rng.choice(magics).expect("one");
        for at in (8..data.len()).step_by(512) {
            let end = data.len().min(at + magic.len());
            data[at..end].copy_from_slice(&magic[..end - at]);
        }
        for kind in [Kind::Dir, Kind::Attr, Kind::Symlink] {
            if let Some(fork) = MemoryFork::from_fuzz(&data, kind == Kind::Dir) {
                attempt(kind, &fork, &names);
            }
        }
    }
}

/// An index block: header, count (and level or stale count), then pairs of numbers.
fn index_block(magic: u16, forw: u32, back: u32, level: u16, pairs: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = [forw.to_be_bytes(), back.to_be_bytes()].concat();
    bytes.extend(magic.to_be_bytes());
    bytes.resize(56, 0);
    bytes.extend((pairs.len() as u16).to_be_bytes());
    bytes.extend(level.to_be_bytes());
    bytes.resize(64, 0);
    for (hash, place) in pairs {
        bytes.extend(hash.to_be_bytes());
        bytes.extend(place.to_be_bytes());
    }
    bytes
}

const NODE: u16 = 0x3ebe;
const LEAFN: u16 = 0x3dff;
const ATTR_LEAF: u16 = 0x3bee;

/// A v5 directory with these index blocks, one after the other, and no data.
fn dir_of(blocks: &[Vec<u8>]) -> MemoryFork {
    let mut fork = MemoryFork::new(geometry(true, 12, 0), InodeNumber(131), 4096);
    for (nth, block) in (0u64..).zip(blocks) {
        fork.map(FileBlock((LEAF_SPACE >> 12) + nth), DiskAddr(8000 + nth * 8), block.clone());
    }
    fork.seal_all(1);
    fork
}

fn check_of<T: std::fmt::Debug>(result: xfs::Result<T>) -> &'static str {
    match result {
        Err(Error::Corrupt { problem, .. }) => problem.check,
        other => panic!("no damage was found: {other:?}"),
    }
}

/// The first block of a directory's index.
const LEAF_AT: u32 = (LEAF_SPACE >> 12) as u32;

#[test]
fn rings_of_leaves_end() {
    let hash = name_hash(b"x");
    let all = &[(hash, 0)]; // one stale entry of the hash: the search goes on to the next leaf
    let leaf = |forw: u32, back: u32| index_block(LEAFN, forw, back, 1, all);
    // A ring whose pointers all agree.
    let ring =
        dir_of(&[leaf(LEAF_AT + 1, LEAF_AT + 2), leaf(LEAF_AT + 2, LEAF_AT), leaf(LEAF_AT, LEAF_AT + 1)]);
    assert_eq!(check_of(dir::lookup(&ring, b"x")), "cycle of siblings");
    // One that does not come back to where the search began.
    let lasso = dir_of(&[leaf(LEAF_AT + 1, 0), leaf(LEAF_AT + 2, LEAF_AT), leaf(LEAF_AT + 1, LEAF_AT + 1)]);
    assert_eq!(check_of(dir::lookup(&lasso, b"x")), "backward sibling");
    // A chain with an end.
    let chain = dir_of(&[leaf(LEAF_AT + 1, 0), leaf(0, LEAF_AT)]);
    assert_eq!(dir::lookup(&chain, b"x").unwrap(), None);
    // A sibling outside the index.
    let out = dir_of(&[leaf(1, 0)]);
    assert_eq!(check_of(dir::lookup(&out, b"x")), "block pointer");
}

#[test]
fn rings_of_attribute_leaves_end() {
    let leaf = |forw: u32, back: u32| {
        let mut bytes = index_block(ATTR_LEAF, forw, back, 0, &[]);
        bytes[56..64].copy_from_slice(&[0, 0, 0, 0, 0x10, 0, 0, 0]); // nothing is used: up to the end, 4096
        bytes
    };
    let mut fork = MemoryFork::new(geometry(true, 12, 0), InodeNumber(131), 0);
    for (at, block) in
        [(0, index_block(NODE, 0, 0, 1, &[(7, 1)])), (1, leaf(2, 3)), (2, leaf(3, 1)), (3, leaf(1, 2))]
    {
        fork.map(FileBlock(at), DiskAddr(8000 + at * 8), block);
    }
    fork.seal_all(1);
    let walk = attr::walk(&fork, &mut |_| ControlFlow::Continue(()));
    assert_eq!(check_of(walk), "cycle of siblings");
}

#[test]
fn descents_end() {
    // A node that is its own child.
    let own = dir_of(&[index_block(NODE, 0, 0, 1, &[(u32::MAX, LEAF_AT)])]);
    assert_eq!(check_of(dir::lookup(&own, b"x")), "level");
    // A leaf too early, a level too deep, a child outside the index, a child in a hole.
    let leaf = index_block(LEAFN, 0, 0, 0, &[]);
    let early = dir_of(&[index_block(NODE, 0, 0, 2, &[(u32::MAX, LEAF_AT + 1)]), leaf]);
    assert_eq!(check_of(dir::lookup(&early, b"x")), "level");
    let deep = dir_of(&[index_block(NODE, 0, 0, 6, &[(u32::MAX, LEAF_AT + 1)])]);
    assert_eq!(check_of(dir::lookup(&deep, b"x")), "level");
    let outside = dir_of(&[index_block(NODE, 0, 0, 1, &[(u32::MAX, 3)])]);
    assert_eq!(check_of(dir::lookup(&outside, b"x")), "block pointer");
    let hole = dir_of(&[index_block(NODE, 0, 0, 1, &[(u32::MAX, LEAF_AT + 9)])]);
    assert_eq!(check_of(dir::lookup(&hole, b"x")), "unmapped block");
    // Hashes above all that the tree has.
    let low = dir_of(&[index_block(NODE, 0, 0, 1, &[(1, LEAF_AT + 1)])]);
    assert_eq!(dir::lookup(&low, b"x").unwrap(), None);
}

#[test]
fn blocks_of_another_inode_are_refused() {
    let leaf = index_block(LEAFN, 0, 0, 0, &[]);
    let mut fork = dir_of(&[leaf]);
    let at = FileBlock(LEAF_AT.into());
    let block = fork.block_mut(at).unwrap();
    block[48..56].copy_from_slice(&132u64.to_be_bytes());
    assert!(checksum::store(block, 12));
    assert_eq!(check_of(dir::lookup(&fork, b"x")), "owner");
}

/// A v5 symlink's target in single blocks, as on a volume without two free blocks side by side.
#[test]
fn a_target_in_two_extents() {
    let text = [b'a'; 1000];
    let piece = |offset: usize, len: usize| {
        let mut bytes = b"XSLM".to_vec();
        bytes.extend((offset as u32).to_be_bytes());
        bytes.extend((len as u32).to_be_bytes());
        bytes.resize(56, 0);
        bytes.extend(&text[offset..offset + len]);
        bytes
    };
    let mut fork = MemoryFork::new(geometry(true, 10, 0), InodeNumber(131), 1000);
    fork.map(FileBlock(0), DiskAddr(100), piece(0, 968));
    fork.map(FileBlock(1), DiskAddr(300), piece(968, 32));
    fork.seal_all(1);
    assert_eq!(symlink::target(&fork).unwrap(), text);
    fork.block_mut(FileBlock(1)).unwrap()[100] ^= 1;
    assert_eq!(check_of(symlink::target(&fork)), "checksum");
    let at = fork.mapped().next().unwrap();
    assert_eq!(fork.read(at, 1, &xfs_format::symlink::SYMLINK).unwrap().daddr(), DiskAddr(100));
}

/// Parent pointers are attributes that nobody sees, and that do not disturb others.
#[test]
fn parent_pointers_are_hidden() {
    let mut fork = MemoryFork::new(geometry(true, 12, 0), InodeNumber(131), 0);
    let mut bytes = vec![0, 0, 2, 0];
    bytes.extend([4, 12, 8]);
    bytes.extend(b"name");
    bytes.extend([0; 12]);
    bytes.extend([1, 1, 0]);
    bytes.extend(b"a1");
    bytes[1] = bytes.len() as u8;
    fork.set_local(bytes);
    assert_eq!(linux::list(&fork).unwrap(), [b"user.a".to_vec()]);
    assert_eq!(linux::get(&fork, b"user.a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(linux::get(&fork, b"user.name").unwrap(), None);
    let mut seen = Vec::new();
    attr::walk(&fork, &mut |entry| {
        seen.push(entry.namespace);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, [attr::Namespace::Parent, attr::Namespace::User]);
}
