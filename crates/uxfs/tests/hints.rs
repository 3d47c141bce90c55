//! How a file wants to be treated: what may be set, what a directory hands down, and what the kernel says of it.
#![forbid(unsafe_code)]

mod common;

use common::{made, mounted, open, repair_finds_nothing};
use std::process::Command;
use uxfs::{Changes, ErrorKind, NewNode};

const NO_ATIME: u32 = 0x40;
const NO_DUMP: u32 = 0x80;
const EXTENT_SIZE: u32 = 0x800;
const HANDED_DOWN: u32 = 0x1000;

#[test]
#[ignore = "needs root and xfsprogs"]
fn hints_are_handed_down_and_the_kernel_sees_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = made(folder.path(), &[]);
    let volume = open(&image);
    let root = volume.root().and_then(|root| root.as_dir()).expect("root");
    let node = root.create_dir(b"dir", &NewNode::default()).expect("made");
    let changes =
        Changes { no_atime: Some(true), no_dump: Some(true), extent_size: Some(16384), ..Changes::default() };
    node.change(&changes).expect("changed");
    node.change(&Changes { no_dump: Some(false), ..Changes::default() }).expect("changed");
    let dir = node.as_dir().expect("a directory");
    let below = dir.create_dir(b"below", &NewNode::default()).expect("made");
    let file = dir.create_file(b"file", &NewNode::default()).expect("made");
    let link = dir.create_symlink(b"link", b"file", &NewNode::default()).expect("made");
    let said = |node: &uxfs::Node| {
        let found = node.metadata().expect("metadata");
        (found.xflags & (NO_ATIME | NO_DUMP | EXTENT_SIZE | HANDED_DOWN), found.extent_size)
    };
    assert_eq!(said(&node), (NO_ATIME | HANDED_DOWN, 16384));
    assert_eq!(said(&below), (NO_ATIME | HANDED_DOWN, 16384));
    assert_eq!(said(&file), (NO_ATIME | EXTENT_SIZE, 16384));
    assert_eq!(said(&link), (0, 0));
    file.change(&Changes { extent_size: Some(0), ..Changes::default() }).expect("changed");
    assert_eq!(said(&file), (NO_ATIME, 0));
    volume.close().expect("closed");
    repair_finds_nothing(&image);
    let said = mounted(&image, |mnt| {
        ["dir", "dir/below", "dir/file"].map(|path| {
            let output = Command::new("xfs_io").args(["-r", "-c", "lsattr -v"]).arg(mnt.join(path)).output();
            String::from_utf8(output.expect("xfs_io is installed").stdout).expect("text")
        })
    });
    for (said, flags) in said.iter().zip(["no-atime, extsz-inherit", "no-atime, extsz-inherit", "no-atime"]) {
        assert!(said.starts_with(&format!("[{flags}")), "{said}");
    }
    assert!(!said[2].contains("extsize"), "{}", said[2]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn extent_sizes_that_no_file_can_have_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = made(folder.path(), &[]);
    let volume = open(&image);
    let root = volume.root().and_then(|root| root.as_dir()).expect("root");
    let file = root.create_file(b"file", &NewNode::default()).expect("made");
    let link = root.create_symlink(b"link", b"file", &NewNode::default()).expect("made");
    let set =
        |node: &uxfs::Node, bytes| node.change(&Changes { extent_size: Some(bytes), ..Changes::default() });
    let refused = |node: &uxfs::Node, bytes| {
        assert_eq!(set(node, bytes).expect_err("refused").kind(), ErrorKind::InvalidInput, "{bytes}");
    };
    refused(&file, 1000);
    refused(&file, 1 << 31);
    refused(&link, 4096);
    set(&file, 8192).expect("changed");
    file.open().expect("a file").write_at(b"x", 0).expect("written");
    refused(&file, 4096);
    assert_eq!(file.metadata().expect("metadata").extent_size, 8192, "nothing changed");
    volume.close().expect("closed");
    repair_finds_nothing(&image);
}
