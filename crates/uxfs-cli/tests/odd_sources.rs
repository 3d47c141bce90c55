//! What is copied in is what a reader gets, from file systems of the host that say little of their files, or say it late.
//! Needs root, xfsprogs, loop mounts and FUSE.
#![forbid(unsafe_code)]

mod common;

use common::{Image, blocks, uxfs_ok};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};
use rustix::fs::{FallocateFlags, fallocate};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

/// Files that say that they have so many bytes, have others, and give so many at a time.
const FILES: [(&str, u64, usize, usize); 4] = [
    ("longer", 4096, 3 * 4096, 4096),
    ("as-said", 4096, 4096, 1 << 20),
    ("shorter", 3 * 4096, 5000, 1 << 20),
    ("in-drops", 10_000, 10_000, 512),
];

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 512 + 1) as u8).collect()
}

struct Says;

impl Says {
    fn attributes(ino: INodeNo) -> FileAttr {
        let file = FILES.get((ino.0 as usize).wrapping_sub(2));
        let size = file.map_or(0, |file| file.1);
        FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if file.is_some() { FileType::RegularFile } else { FileType::Directory },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Says {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match FILES.iter().position(|(called, ..)| *called == name) {
            Some(nth) => {
                let attributes = Self::attributes(INodeNo(nth as u64 + 2));
                reply.entry(&Duration::ZERO, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &Self::attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (_, _, bytes, at_a_time) = FILES[ino.0 as usize - 2];
        let from = bytes.min(offset as usize);
        let to = bytes.min(from + at_a_time.min(size as usize));
        reply.data(&content(bytes)[from..to]);
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (nth, (name, ..)) in FILES.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(nth as u64 + 2), nth as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// A file of which one read gave as much as its inode says was cut off there.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_file_ends_where_a_reader_finds_its_end() {
    let image = Image::new(&[]);
    let mount = common::scratch();
    let _served = fuser::spawn_mount(Says, mount.path(), &Config::default()).expect("FUSE is needed");
    uxfs_ok(&[&"cp", &"-r", &mount.path(), &image.at("/tree")]);
    for (name, said, bytes, _) in FILES {
        let from = mount.path().join(name);
        assert_eq!(from.metadata().unwrap().len(), said, "{name}");
        assert!(std::fs::read(&from).unwrap() == content(bytes), "{name}");
        let copied = uxfs_ok(&[&"cat", &image.at(&format!("/tree/{name}"))]);
        assert!(copied == content(bytes), "{name}: {} bytes of {bytes}", copied.len());
    }
}

/// Blocks that were promised to a file and never written to became written zeroes: looking at them had made them data.
#[test]
#[ignore = "needs root and xfsprogs"]
fn promised_blocks_stay_holes() {
    let host = Image::new(&[]);
    let mount = host.mount(&[]);
    let tree = mount.dir().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for bytes in [9000, 512 << 10, (1 << 20) - 1, 1 << 20, (1 << 20) + 4096] {
        for written in [0, 4096] {
            let file = File::create(tree.join(format!("{bytes}-{written}"))).unwrap();
            fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
            file.write_all_at(&vec![7; written], 0).unwrap();
            file.sync_all().unwrap();
        }
    }
    let image = Image::new(&[]);
    uxfs_ok(&[&"cp", &"-r", &tree, &image.at("/tree")]);
    let made = image.dir.path().join("made.img");
    uxfs_ok(&[&"mkfs", &"-q", &"--from", &tree, &made, &"400M"]);
    let copies = image.mount(&["ro"]);
    for entry in std::fs::read_dir(&tree).unwrap() {
        let name = entry.unwrap().file_name();
        let copy = copies.dir().join("tree").join(&name);
        assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(tree.join(&name)).unwrap());
        let written = name.to_str().unwrap().ends_with("-4096");
        assert_eq!(blocks(&copy), if written { 8 } else { 0 }, "{}", name.display());
    }
}
