//! Attributes of inodes that their content fills, as `xfs_repair` and the kernel see them.
//!
//! An inode of 512 bytes has 336 for both forks. What fills them (extents, a short directory, a symbolic link's
//! target) goes into blocks when the first attribute comes, as in the kernel; uxfs said that there was no space.
#![forbid(unsafe_code)]

mod common;

use common::{Opened, made, mounted, repair_finds_nothing};
use std::path::Path;
use std::process::Command;
use uxfs::{Dir, ErrorKind, NewNode, OpenOptions, SetXattr, Volume};

/// What the kernel must find: path, attribute.
type Expected = Vec<(String, &'static str)>;

const VALUE: &[u8] = b"a value of some length";

fn close(volume: Opened, image: &Path) {
    volume.close().expect("closed");
    drop(volume);
    repair_finds_nothing(image);
    let report = uxfs::check(image, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{report:?}");
}

fn root(volume: &Volume) -> Dir {
    volume.root().expect("root").as_dir().expect("a directory")
}

/// Files of this many extents.
fn files(root: &Dir, counts: impl Iterator<Item = usize>) -> Expected {
    let mut all = Expected::new();
    for count in counts {
        let name = format!("file of {count}");
        let file = root.create_file(name.as_bytes(), &NewNode::default()).expect("made");
        let open = file.open().expect("opened");
        for n in 0..count as u64 {
            open.write_at(&[7; 10], n * 8192).expect("written");
        }
        all.push((name, "user.a"));
    }
    all
}

/// Directories of this many entries.
fn dirs(root: &Dir, counts: impl Iterator<Item = usize>) -> Expected {
    let mut all = Expected::new();
    for count in counts {
        let name = format!("directory of {count}");
        let dir = root.create_dir(name.as_bytes(), &NewNode { permissions: 0o755, ..NewNode::default() });
        let dir = dir.expect("made").as_dir().expect("a directory");
        for n in 0..count {
            dir.create_file(format!("{n:012}").as_bytes(), &NewNode::default()).expect("made");
        }
        all.push((name, "user.a"));
    }
    all
}

/// Links to targets of this many bytes.
fn links(root: &Dir, lens: impl Iterator<Item = usize>) -> Expected {
    let mut all = Expected::new();
    for len in lens {
        let name = format!("link of {len}");
        root.create_symlink(name.as_bytes(), &vec![b'x'; len], &NewNode::default()).expect("made");
        all.push((name, "trusted.a"));
    }
    all
}

fn number(path: &str) -> usize {
    path.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number at the end")
}

/// Asks the kernel for content and attributes.
fn kernel_finds(image: &Path, expected: &Expected, with: bool) {
    mounted(image, |at| {
        for (name, attribute) in expected {
            let path = at.join(name);
            let count = number(name);
            if name.starts_with("link") {
                let target = std::fs::read_link(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(target.as_os_str().len(), count, "{name}");
            } else if name.starts_with("directory") {
                assert_eq!(std::fs::read_dir(&path).expect("read").count(), count, "{name}");
            } else {
                let content = std::fs::read(&path).expect("read");
                assert!(content.chunks(8192).all(|chunk| chunk.starts_with(&[7; 10])), "{name}");
                assert_eq!(content.chunks(8192).count(), count, "{name}");
            }
            let found = Command::new("getfattr")
                .args(["--absolute-names", "-h", "--only-values", "-n", attribute])
                .arg(&path)
                .output()
                .expect("getfattr is installed");
            assert_eq!(found.stdout == VALUE, with, "{name}: {found:?}");
        }
    });
}

/// Gives everything an attribute, looks, takes them away, looks again.
fn attributes_come_and_go(options: &[&str], make: impl FnOnce(&Dir) -> Expected) {
    let place = tempfile::tempdir().expect("a place");
    let image = made(place.path(), options);
    let volume = common::open(&image);
    let expected = make(&root(&volume));
    let node = |volume: &Volume, name: &str| volume.lookup_nofollow(name).expect("it is there");
    for (name, attribute) in &expected {
        let node = node(&volume, name);
        let missing = node.set_xattr(attribute.as_bytes(), VALUE, SetXattr::Replace).expect_err(name);
        assert_eq!(missing.kind(), ErrorKind::NoAttribute, "{name}");
        let missing = node.remove_xattr(attribute.as_bytes()).expect_err(name);
        assert_eq!(missing.kind(), ErrorKind::NoAttribute, "{name}");
        node.set_xattr(attribute.as_bytes(), VALUE, SetXattr::Create).expect(name);
    }
    close(volume, &image);
    kernel_finds(&image, &expected, true);
    let volume = common::open(&image);
    for (name, attribute) in &expected {
        node(&volume, name).remove_xattr(attribute.as_bytes()).expect(name);
    }
    close(volume, &image);
    kernel_finds(&image, &expected, false);
    // Whatever is left of the attribute fork, it takes attributes again.
    let volume = common::open(&image);
    for (name, attribute) in &expected {
        node(&volume, name).set_xattr(attribute.as_bytes(), VALUE, SetXattr::Create).expect(name);
    }
    close(volume, &image);
    kernel_finds(&image, &expected, true);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn files_whose_extents_fill_the_inode() {
    attributes_come_and_go(&[], |root| files(root, 18..=22));
    attributes_come_and_go(&["-i", "size=2048"], |root| files(root, 113..=118));
}

/// A tree's root of twenty children fills the inode as well: it moves into a block.
#[test]
#[ignore = "needs root and xfsprogs"]
fn files_whose_tree_fills_the_inode() {
    attributes_come_and_go(&["-b", "size=1024"], |root| files(root, (300..=1200).step_by(150)));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn directories_that_fill_the_inode() {
    attributes_come_and_go(&[], |root| dirs(root, 10..=20));
    attributes_come_and_go(&["-i", "size=2048"], |root| dirs(root, 75..=98));
    attributes_come_and_go(&["-b", "size=1024", "-n", "size=65536"], |root| dirs(root, 10..=20));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn links_whose_target_fills_the_inode() {
    attributes_come_and_go(&[], |root| links(root, (280..=340).step_by(4)));
    attributes_come_and_go(&["-b", "size=1024"], |root| links(root, (280..=340).step_by(4)));
    attributes_come_and_go(&["-i", "size=1024"], |root| links(root, (790..=850).step_by(4)));
    attributes_come_and_go(&["-i", "size=2048"], |root| links(root, 1000..=1023));
}

/// Values outside the inode are written past the journal. What was read of the blocks for another file's value stayed
/// in memory, and the new value could not be read.
#[test]
#[ignore = "needs root and xfsprogs"]
fn values_take_blocks_that_held_values() {
    let place = tempfile::tempdir().expect("a place");
    let image = made(place.path(), &["-b", "size=1024"]);
    let volume = common::open(&image);
    for nth in 0..40_u8 {
        let name = [b'a' + nth % 26, b'a' + nth / 26];
        let file = root(&volume).create_file(&name, &NewNode::default()).expect("made");
        let value = vec![nth; 20_000];
        file.set_xattr(b"user.large", &value, SetXattr::Create).expect("set");
        assert!(file.xattr(b"user.large").expect("read").as_deref() == Some(&*value), "value {nth}");
        file.remove_xattr(b"user.large").expect("removed");
        // The blocks can be had again once that is on disk.
        volume.sync().expect("synced");
    }
    close(volume, &image);
}
