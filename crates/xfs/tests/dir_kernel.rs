//! Directories that the kernel made (v5) or mkfs.xfs (v4), in every form, against what they were told to hold.
#![forbid(unsafe_code)]

mod samples;

use samples::{Image, legal_names};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use xfs::dir::{FileType, lookup, walk};
use xfs::fork::Fork;
use xfs::testing::MemoryFork;
use xfs_format::da::{Node, block_magic};
use xfs_format::dir::{INDEX, LEAF_SPACE, Leaf, LeafKind};
use xfs_format::types::{FileBlock, InodeNumber};

type Entry = (Vec<u8>, u64, FileType);

/// What the kernel lists, in its order, without the dots.
fn kernel_list(dir: &Path) -> Vec<Entry> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its type");
        let kind = if kind.is_dir() {
            FileType::Directory
        } else if kind.is_symlink() {
            FileType::Symlink
        } else if kind.is_file() {
            FileType::Regular
        } else {
            FileType::Fifo
        };
        (entry.file_name().into_vec(), entry.ino(), kind)
    });
    entries.collect()
}

/// All entries from `cookie` on, at most `most` of them, with the position after the last.
fn some(fork: &dyn Fork, cookie: u64, most: usize) -> (Vec<Entry>, u64) {
    let (mut entries, mut next) = (Vec::new(), cookie);
    walk(fork, cookie, &mut |entry| {
        assert!(entry.next > next, "positions ascend");
        next = entry.next;
        entries.push((entry.name.to_vec(), entry.inode.0, entry.file_type));
        if entries.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect("a sound directory");
    (entries, next)
}

/// Compares walk, resumed walk and lookups with what the directory holds.
fn check(fork: &MemoryFork, parent: u64, expected: &[Entry]) {
    let (entries, _) = some(fork, 0, usize::MAX);
    assert_eq!(entries[0], (b".".to_vec(), fork.inode().0, FileType::Directory));
    assert_eq!(entries[1], (b"..".to_vec(), parent, FileType::Directory));
    assert_eq!(&entries[2..], expected);

    let piece = (expected.len() / 9).max(1);
    let (mut resumed, mut cookie) = (Vec::new(), 0);
    loop {
        let (mut more, next) = some(fork, cookie, piece);
        if more.is_empty() {
            break;
        }
        resumed.append(&mut more);
        cookie = next;
    }
    assert_eq!(resumed, entries, "a walk in pieces of {piece}");

    let every = (entries.len() / 700).max(1);
    for (name, ino, kind) in entries.iter().step_by(every).chain(entries.last()) {
        let found = lookup(fork, name).expect("a sound directory");
        assert_eq!(found, Some((InodeNumber(*ino), *kind)), "{}", name.escape_ascii());
    }
    for name in [&b"no such name"[..], b"", b"a/b", b"a\0", &[b'x'; 256], b"\xff\xfe\xfd", b"...", b"zzzzzz"]
    {
        assert_eq!(lookup(fork, name).expect("a sound directory"), None, "{}", name.escape_ascii());
    }
}

/// The form of a directory, as its blocks say it.
fn form(fork: &MemoryFork) -> String {
    if fork.local().is_some() {
        return "short".into();
    }
    let geometry = fork.geometry();
    let at = FileBlock(LEAF_SPACE >> geometry.block_log);
    if fork.next_mapped(at).unwrap().is_none() {
        return "block".into();
    }
    let buf = fork.read(at, geometry.dir_block_blocks(), &INDEX).unwrap();
    if Node::is(block_magic(&buf).unwrap(), geometry.v5) {
        return format!("tree of level {}", Node::parse(&buf, geometry.v5).unwrap().level);
    }
    match Leaf::parse(&buf, geometry.v5).unwrap().kind {
        LeafKind::Single => "leaf".into(),
        LeafKind::OfTree => "lone leaf of a tree".into(),
    }
}

/// Makes `count` empty entries of `len` bytes of name, then removes all of which `removed` says so.
fn fill(dir: &Path, count: usize, len: usize, removed: impl Fn(usize) -> bool) {
    std::fs::create_dir(dir).unwrap();
    let name = |nth: usize| dir.join(format!("{nth:0len$}"));
    let first = name(0);
    File::create(&first).unwrap();
    for nth in 1..count {
        // Most names are links: inodes are slow to make, and a directory doesn't care.
        match nth % 60_000 {
            0 => File::create(name(nth)).map(drop),
            within => std::fs::hard_link(name(nth - within), name(nth)),
        }
        .unwrap();
    }
    for nth in (0..count).filter(|&nth| removed(nth)) {
        std::fs::remove_file(name(nth)).unwrap();
    }
}

/// Fills a volume with directories of all forms by the kernel, and compares them all.
fn check_volume(options: &[&str], large: usize) -> Vec<String> {
    let image = Image::mkfs(options);
    image.mounted(|root| {
        fill(&root.join("empty"), 1, 1, |_| true);
        fill(&root.join("few"), 6, 5, |_| false);
        fill(&root.join("few, one removed"), 6, 5, |nth| nth == 2);
        fill(&root.join("tens"), 25, 10, |_| false);
        fill(&root.join("tens, thinned"), 30, 10, |nth| nth % 3 == 1);
        fill(&root.join("hundreds"), 300, 20, |_| false);
        fill(&root.join("hundreds, thinned"), 350, 20, |nth| nth % 2 == 1);
        fill(&root.join("thousands"), 4000, 30, |_| false);
        fill(&root.join("thousands, a hole"), 5000, 30, |nth| (1000..3000).contains(&nth));
        fill(&root.join("large"), large, 8, |_| false);
        fill(&root.join("large, thinned"), large.min(30_000), 100, |nth| nth % 10 > 2 && nth % 60_000 != 0);
        let bytes = root.join("bytes");
        std::fs::create_dir(&bytes).unwrap();
        for name in legal_names() {
            File::create(bytes.join(OsStr::from_bytes(&name))).unwrap();
        }
        let kinds = root.join("kinds");
        std::fs::create_dir(&kinds).unwrap();
        std::fs::create_dir(kinds.join("directory")).unwrap();
        std::os::unix::fs::symlink("target", kinds.join("symlink")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            kinds.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        File::create(kinds.join("file")).unwrap();
    });
    let expected: BTreeMap<u64, (u64, Vec<Entry>)> = image.mounted(|root| {
        let root_ino = std::fs::metadata(root).unwrap().ino();
        let mut all = BTreeMap::from([(root_ino, (root_ino, kernel_list(root)))]);
        for (name, ino, _) in kernel_list(root) {
            all.insert(ino, (root_ino, kernel_list(&root.join(OsStr::from_bytes(&name)))));
        }
        all
    });
    assert_eq!(expected.len(), 14);
    let mut forms = Vec::new();
    for (ino, (parent, entries)) in &expected {
        let fork = image.data_fork(*ino);
        forms.push(form(&fork));
        check(&fork, *parent, entries);
    }
    forms.sort();
    forms.dedup();
    forms
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn default_volume() {
    let forms = check_volume(&[], 20_000);
    assert_eq!(forms, ["block", "leaf", "short", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn small_blocks_and_a_tree_of_several_levels() {
    let forms = check_volume(&["-b", "size=1024"], 240_000);
    assert_eq!(forms, ["block", "leaf", "short", "tree of level 1", "tree of level 2"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn directory_blocks_of_64_kib() {
    let forms = check_volume(&["-b", "size=4096", "-n", "size=65536"], 30_000);
    assert_eq!(forms, ["block", "leaf", "short", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn directory_blocks_of_64_small_blocks() {
    let forms = check_volume(&["-b", "size=1024", "-n", "size=65536", "-i", "size=512"], 30_000);
    assert_eq!(forms, ["block", "leaf", "short", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_of_64_kib() {
    let forms = check_volume(&["-b", "size=65536"], 20_000);
    assert_eq!(forms, ["block", "leaf", "short", "tree of level 1"]);
}

/// Kernels without v4 can't fill a v4 volume; mkfs.xfs can, from a prototype.
fn check_v4(options: &[&str], with_types: bool) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let prototype = dir.path().join("prototype");
    let mut text = String::from("/\n0 0\nd--755 0 0\n");
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, count, len) in [
        ("few", 4, 4),
        ("tens", 12, 10),
        ("hundreds", 300, 12),
        ("thousands", 2000, 20),
        ("large", 12_000, 40),
    ] {
        text.push_str(&format!("{name} d--755 0 0\n"));
        for nth in 0..count {
            text.push_str(&format!("{nth:0len$} p--644 0 0\n"));
            expected.entry(name.into()).or_default().push(format!("{nth:0len$}"));
        }
        text.push_str("$\n");
    }
    text.push_str("$\n");
    std::fs::write(&prototype, text).unwrap();
    let prototype = prototype.to_str().unwrap();
    let image = Image::mkfs(&[options, &["-m", "crc=0", "-p", prototype]].concat());
    let root = image.geometry().root.0;
    let root_fork = image.data_fork(root);
    let mut forms = Vec::new();
    for (name, expected) in &expected {
        let (ino, kind) = lookup(&root_fork, name.as_bytes()).unwrap().expect("made by mkfs");
        assert_eq!(kind, if with_types { FileType::Directory } else { FileType::Unknown });
        let fork = image.data_fork(ino.0);
        forms.push(form(&fork));
        let (entries, _) = some(&fork, 0, usize::MAX);
        let names: Vec<_> =
            entries.iter().map(|(name, ..)| String::from_utf8(name.clone()).unwrap()).collect();
        assert_eq!(names[..2], [".", ".."]);
        assert_eq!((entries[0].1, entries[1].1), (ino.0, root));
        let mut sorted = names[2..].to_vec();
        sorted.sort();
        assert_eq!(&sorted, expected);
        for (name, ino, kind) in entries.iter().skip(2).step_by(7) {
            assert_eq!(*kind, if with_types { FileType::Fifo } else { FileType::Unknown });
            assert_eq!(lookup(&fork, name).unwrap(), Some((InodeNumber(*ino), *kind)));
        }
        assert_eq!(lookup(&fork, b"no such name").unwrap(), None);
        let upper = name.to_uppercase();
        let found = lookup(&root_fork, upper.as_bytes()).unwrap();
        assert_eq!(found.is_some(), image.geometry().ascii_ci, "{upper}");
    }
    forms
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn v4_with_types() {
    let forms = check_v4(&["-b", "size=1024"], true);
    assert_eq!(forms, ["short", "leaf", "tree of level 1", "block", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn v4_without_types() {
    let forms = check_v4(&["-n", "ftype=0"], false);
    assert_eq!(forms, ["short", "leaf", "tree of level 1", "block", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn v4_with_blocks_of_512_bytes() {
    check_v4(&["-b", "size=512", "-n", "size=4096"], true);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn v4_that_ignores_case() {
    check_v4(&["-n", "version=ci"], true);
}
