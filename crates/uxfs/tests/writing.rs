//! Volumes that uxfs writes, as xfs_repair and the kernel see them.
#![forbid(unsafe_code)]

mod common;

use common::repair_finds_nothing;
use std::process::Command;
use uxfs::{Changes, NewNode, Rename, SetXattr, Special};

#[test]
#[ignore = "needs root and xfsprogs"]
fn names_of_every_kind_come_and_go() {
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let new = NewNode::default();
    let sub =
        root.create_dir(b"sub", &NewNode { permissions: 0o755, ..new }).expect("made").as_dir().expect("dir");
    let file = sub.create_file(b"file", &new).expect("made");
    sub.create_symlink(b"link", b"file", &new).expect("made");
    sub.create_symlink(b"long link", &[b'x'; 900], &new).expect("made");
    sub.create_special(b"fifo", Special::Fifo, &new).expect("made");
    sub.create_special(b"null", Special::CharDevice(1, 3), &new).expect("made");
    root.link(b"another", &file).expect("linked");
    file.change(&Changes { permissions: Some(0o4755), uid: Some(7), ..Changes::default() }).expect("changed");
    file.set_xattr(b"user.color", b"red", SetXattr::Create).expect("set");
    sub.rename(b"fifo", &root, b"pipe", Rename::NoReplace).expect("moved");
    assert!(root.remove_dir(b"sub").is_err(), "not empty");
    root.remove_file(b"pipe").expect("removed");
    volume.close().expect("closed");
    drop(volume);
    repair_finds_nothing(&image);
    let seen = common::mounted(&image, |at| {
        let out =
            Command::new("find").arg(at).arg("-printf").arg("%P %y %m %U %n\\n").output().expect("find");
        String::from_utf8(out.stdout).expect("text")
    });
    for line in ["sub/file f 4755 7 2", "another f 4755 7 2", "sub d 755 0 2", "sub/null c 644 0 1"] {
        assert!(seen.lines().any(|found| found == line), "{line} is not in\n{seen}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn many_files_in_many_directories() {
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let new = NewNode::default();
    for d in 0..5 {
        let sub = root.create_dir(format!("d{d}").as_bytes(), &new).expect("made").as_dir().expect("dir");
        for f in 0..1500 {
            sub.create_file(format!("file number {f}").as_bytes(), &new).expect("made");
        }
        for f in (0..1500).filter(|f| f % 3 != d % 3) {
            sub.remove_file(format!("file number {f}").as_bytes()).expect("removed");
        }
    }
    volume.close().expect("closed");
    drop(volume);
    repair_finds_nothing(&image);
    let count = common::mounted(&image, |at| {
        let out = Command::new("find").arg(at).args(["-type", "f"]).output().expect("find");
        out.stdout.iter().filter(|&&byte| byte == b'\n').count()
    });
    assert_eq!(count, 5 * 500);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn content_is_what_was_written() {
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let file = root.create_file(b"data", &NewNode::default()).expect("made").open().expect("opened");
    let mut model = vec![0_u8; 0];
    let mut seed = 1_u64;
    for step in 0..400_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (seed >> 33) % 2_000_000;
        let len = 1 + ((seed >> 20) % 40_000) as usize;
        match step % 8 {
            6 => {
                file.punch_hole(at..at + len as u64).expect("punched");
                let end = model.len().min(at as usize + len);
                if (at as usize) < end {
                    model[at as usize..end].fill(0);
                }
            }
            7 => {
                file.set_len(at).expect("cut");
                model.resize(at as usize, 0);
            }
            _ => {
                let data = vec![step as u8 + 1; len];
                file.write_at(&data, at).expect("written");
                if model.len() < at as usize + len {
                    model.resize(at as usize + len, 0);
                }
                model[at as usize..at as usize + len].copy_from_slice(&data);
            }
        }
        assert_eq!(file.size(), model.len() as u64);
    }
    let mut read = vec![0; model.len()];
    assert_eq!(file.read_at(&mut read, 0).expect("read"), model.len());
    assert!(read == model, "uxfs reads something else");
    drop(file);
    volume.close().expect("closed");
    drop((root, volume));
    repair_finds_nothing(&image);
    let seen = common::mounted(&image, |at| std::fs::read(at.join("data")).expect("read"));
    assert!(seen == model, "the kernel reads something else");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_replays_what_was_synced() {
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for f in 0..2000 {
        let node = root.create_file(format!("f{f}").as_bytes(), &NewNode::default()).expect("made");
        if f % 5 == 0 {
            node.open().expect("open").write_at(&[7; 5000], 100).expect("written");
        }
    }
    for f in (0..2000).step_by(2) {
        root.remove_file(format!("f{f}").as_bytes()).expect("removed");
    }
    volume.sync().expect("synced");
    drop((root, volume));
    let count = common::mounted(&image, |at| {
        for f in (1..2000).step_by(2).filter(|f| f % 5 == 0) {
            let content = std::fs::read(at.join(format!("f{f}"))).expect("read");
            assert!(content[..100].iter().all(|&b| b == 0) && content[100..].iter().all(|&b| b == 7), "f{f}");
        }
        std::fs::read_dir(at).expect("list").count()
    });
    assert_eq!(count, 1000);
    repair_finds_nothing(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_overwrite_changes_the_time_of_the_content() {
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let node = root.create_file(b"data", &NewNode::default()).expect("made");
    let long_ago = uxfs::Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    node.open().expect("opened").write_at(&[1; 8192], 0).expect("written");
    let old = Changes { mtime: Some(long_ago), ctime: Some(long_ago), ..Changes::default() };
    node.change(&old).expect("changed");
    let file = node.open().expect("opened");
    file.write_at(&[2; 100], 4000).expect("written over");
    assert!(file.metadata().mtime > long_ago);
    assert!(node.metadata().expect("metadata").mtime > long_ago, "whoever asks is told before the inode is");
    node.change(&old).expect("changed");
    assert_eq!(node.metadata().expect("metadata").mtime, long_ago, "the last word counts");
    file.punch_hole(100..200).expect("punched");
    assert!(node.metadata().expect("metadata").mtime > long_ago);
    // What was set by hand holds until the next change, also where it lies ahead.
    let ahead = uxfs::Timestamp { seconds: 10_000_000_000, nanoseconds: 5 };
    node.change(&Changes { mtime: Some(ahead), ..Changes::default() }).expect("changed");
    assert_eq!(node.metadata().expect("metadata").mtime, ahead);
    file.write_at(&[3; 100], 4000).expect("written over");
    assert!(node.metadata().expect("metadata").mtime < ahead);
    drop(file);
    assert!(
        node.metadata().expect("metadata").mtime > long_ago
            && node.metadata().expect("metadata").mtime < ahead
    );
    drop(node);
    drop(root);
    volume.close().expect("closed");
    drop(volume);
    repair_finds_nothing(&image);
    let age =
        common::mounted(&image, |at| at.join("data").metadata().expect("stat").modified().expect("a time"));
    assert!(age.elapsed().is_ok_and(|age| age.as_secs() < 3600));
}

/// An access control list as Linux passes it: user 1000 may read, and the mask is `mask`.
fn list(mask: u16) -> Vec<u8> {
    const ALL: u32 = u32::MAX;
    let entries = [(1, 6, ALL), (2, 4, 1000), (4, 4, ALL), (0x10, mask, ALL), (0x20, 0, ALL)];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    2_u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect()
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_volume_can_be_emptied() {
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let listed = root.create_file(b"listed", &NewNode::default()).expect("made");
    listed.set_xattr(b"system.posix_acl_access", &list(7), SetXattr::Either).expect("set");
    let block = vec![5; 4 << 20];
    let mut files = 0_u32;
    let why = loop {
        let name = format!("file {files}");
        let made = root.create_file(name.as_bytes(), &NewNode::default()).and_then(|node| node.open());
        match made.and_then(|file| file.write_at(&block, 0)) {
            Ok(()) => files += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(why.kind(), uxfs::ErrorKind::NoSpace);
    assert!(files > 50, "{files} files of 4 MiB");
    // What little is left goes to small ones.
    while root.create_file(format!("small {files}").as_bytes(), &NewNode::default()).is_ok() && files < 5000 {
        files += 1;
    }
    // The list follows the permissions, and needs no space for that.
    listed.change(&Changes { permissions: Some(0o620), ..Changes::default() }).expect("changed");
    assert_eq!(listed.xattr(b"system.posix_acl_access").expect("read").as_deref(), Some(&*list(2)));
    let names: Vec<Vec<u8>> = root.entries().map(|entry| entry.expect("read").name).collect();
    for name in names {
        root.remove_file(&name).expect("removed");
    }
    root.create_file(b"again", &NewNode::default()).expect("made");
    drop(root);
    volume.close().expect("closed");
    drop(volume);
    repair_finds_nothing(&image);
}

/// A write over several extents that never held data told of the first ones that they do, and found no room in the map
/// for the last: an error, and half of the data were there.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_write_to_a_full_volume_is_there_or_it_is_not() {
    const BLOCK: u64 = 4096;
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let made = |name: &str| {
        root.create_file(name.as_bytes(), &NewNode::default()).and_then(|node| node.open()).expect("made")
    };
    let (between, filler) = (made("between"), made("filler"));
    let blocks = |from: u64, count: u64| from * BLOCK..(from + count) * BLOCK;
    let mut gap = 0;
    // The inode has room for 19 to 21 extents: some of these files have just as many, and together need more blocks for their
    // maps than are left where nothing fits any more, those of the reserve pool included.
    let files: Vec<_> = (0..40)
        .flat_map(|turn| (10..24).map(move |count| (turn, count)))
        .map(|(turn, count)| {
            let file = made(&format!("{turn} with {count}"));
            for nth in 0..count {
                file.write_at(&[1; BLOCK as usize], 2 * nth * BLOCK).expect("written");
            }
            for nth in 0..3 {
                file.allocate(blocks(1000 + 4 * nth, 4), false).expect("allocated");
                // What comes next does not lie right behind.
                between.allocate(blocks(2 * gap, 1), false).expect("allocated");
                gap += 1;
            }
            file
        })
        .collect();
    let mut at = 0;
    for len in [4 << 20, 64 << 10, BLOCK] {
        let data = vec![5; len as usize];
        while filler.write_at(&data, at).is_ok() {
            at += len;
        }
    }
    let written = [7; 8 * BLOCK as usize];
    let mut refused = 0;
    for file in &files {
        let outcome = file.write_at(&written, 1002 * BLOCK);
        let mut found = [9; 8 * BLOCK as usize];
        assert_eq!(file.read_at(&mut found, 1002 * BLOCK).expect("read"), found.len());
        match outcome {
            Ok(()) => assert!(found == written, "all of it"),
            Err(error) => {
                assert_eq!(error.kind(), uxfs::ErrorKind::NoSpace);
                assert!(found.iter().all(|&byte| byte == 0), "none of it");
                refused += 1;
            }
        }
    }
    assert!((1..files.len()).contains(&refused), "{refused} were refused");
    drop((files, between, filler, root));
    volume.close().expect("closed");
    drop(volume);
    repair_finds_nothing(&image);
}

/// A chunk of inodes that was made where one was freed does not know the inodes of that: their last changes waited for
/// ever to be written, and the volume to be closed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn inodes_whose_chunk_was_freed_are_not_waited_for() {
    let dir = tempfile::tempdir().expect("a place");
    let image = common::made(dir.path(), &[]);
    let volume = common::open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let new = NewNode::default();
    for nth in 0..640 {
        root.create_file(format!("first {nth}").as_bytes(), &new).expect("made");
    }
    volume.sync().expect("synced");
    for nth in 0..640 {
        root.remove_file(format!("first {nth}").as_bytes()).expect("removed");
    }
    volume.sync().expect("synced");
    for nth in 0..150 {
        root.create_file(format!("second {nth}").as_bytes(), &new).expect("made");
    }
    let (tell, told) = std::sync::mpsc::channel();
    let closing = volume.clone();
    std::thread::spawn(move || tell.send(closing.close()));
    let long = std::time::Duration::from_secs(100);
    told.recv_timeout(long).expect("it ends").expect("closed");
    drop((root, volume));
    repair_finds_nothing(&image);
}
