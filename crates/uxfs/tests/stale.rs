//! What was looked up stands for the file that it was found as, and for no other that has its inode number later.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, MemoryDevice};
use fileio::testing::at;
use std::fmt::Debug;
use std::sync::Arc;
use uxfs::{
    Changes, Dir, ErrorKind, MkfsOptions, NewNode, Node, OpenOptions, Rename, Result, SetXattr, Special,
    Volume,
};

fn volume() -> Volume {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(512 << 20).expect("memory"));
    uxfs::mkfs_device(Arc::clone(&device), &MkfsOptions::new().group_count(1).small(true), true)
        .expect("a volume");
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("it opens")
}

fn root(volume: &Volume) -> Dir {
    volume.open_dir("/").expect("a root")
}

fn new() -> NewNode {
    NewNode::default()
}

#[track_caller]
fn stale<T: Debug>(got: Result<T>) {
    let error = got.map(|_| ()).expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    assert!(error.to_string().contains("was removed"), "{error}");
}

/// All that a node can be asked for besides what it is found by.
fn all_of_node_say_stale(node: &Node, root: &Dir) {
    stale(node.metadata());
    stale(node.xattr_names());
    stale(node.xattr(b"user.name"));
    stale(node.change(&Changes { permissions: Some(0o600), ..Changes::default() }));
    stale(node.change(&Changes::default()));
    stale(node.set_xattr(b"user.name", b"value", SetXattr::Either));
    stale(node.remove_xattr(b"user.name"));
    let list =
        [&2_u32.to_le_bytes()[..], &[1, 0, 6, 0, 255, 255, 255, 255], &[4, 0, 4, 0, 255, 255, 255, 255]];
    let list = [&list.concat()[..], &[32, 0, 4, 0, 255, 255, 255, 255]].concat();
    stale(node.set_xattr(b"system.posix_acl_access", &list, SetXattr::Either));
    stale(node.remove_xattr(b"system.posix_acl_access"));
    if !node.file_type().is_dir() {
        stale(root.link(b"again", node));
    }
}

/// A node went on as whatever had its inode number: it opened, changed and wrote a file that its user had never seen.
#[test]
fn a_node_of_a_file_is_of_no_other() {
    let volume = volume();
    let root = root(&volume);
    root.create_file(b"a", &new()).expect("a file");
    let node = volume.lookup("/a").expect("found");
    root.remove_file(b"a").expect("it goes");
    stale(node.open());

    let other = root.create_file(b"b", &new()).expect("another");
    assert_eq!(node.ino(), other.ino(), "or nothing is tested");
    let before = other.metadata().expect("metadata");
    stale(node.open());
    all_of_node_say_stale(&node, &root);
    // While the other one is open, too: then its data path is at hand.
    let file = other.open().expect("open");
    stale(node.open());
    assert!(node.file_type().is_file() && file.size() == 0);
    drop(file);
    assert_eq!(other.metadata().expect("metadata"), before);
    assert_eq!(other.xattr_names().expect("names"), Vec::<Vec<u8>>::new());
    drop((node, other));
    volume.close().expect("a clean close");
}

#[test]
fn a_node_of_a_link_is_of_no_other() {
    let volume = volume();
    let root = root(&volume);
    let long = vec![b'x'; 900];
    let node = root.create_symlink(b"a", &long, &new()).expect("a link");
    root.remove_file(b"a").expect("it goes");
    let other = root.create_symlink(b"b", b"elsewhere", &new()).expect("another");
    assert_eq!(node.ino(), other.ino(), "or nothing is tested");
    stale(node.read_link());
    all_of_node_say_stale(&node, &root);
    assert_eq!(other.read_link().expect("a target"), b"elsewhere");
}

#[test]
fn a_directory_that_was_removed_is_no_other() {
    let volume = volume();
    let root = root(&volume);
    let node = root.create_dir(b"a", &new()).expect("a directory");
    let dir = node.as_dir().expect("a directory");
    let mut reading = dir.entries();
    let file = root.create_file(b"f", &new()).expect("a file");
    root.remove_dir(b"a").expect("it goes");
    for reused in [false, true] {
        let other = if reused {
            // Directories go from group to group.
            let made = (0..64).find_map(|nth| {
                let made = root.create_dir(format!("d{nth}").as_bytes(), &new()).expect("a directory");
                (made.ino() == node.ino()).then_some(made)
            });
            let other = made.expect("one of them has the number");
            other.as_dir().expect("a directory").create_file(b"name", &new()).expect("a file");
            Some(other)
        } else {
            None
        };
        all_of_node_say_stale(&node, &root);
        stale(node.as_dir());
        stale(dir.entries().next().expect("an error"));
        stale(dir.entries_from(5).next().expect("an error"));
        stale(dir.lookup(b"name"));
        stale(dir.create_file(b"new", &new()));
        stale(dir.create_dir(b"new", &new()));
        stale(dir.create_special(b"new", Special::Fifo, &new()));
        stale(dir.create_symlink(b"new", b"target", &new()));
        stale(dir.create_unnamed(&new()));
        stale(dir.link(b"new", &file));
        stale(dir.remove_file(b"name"));
        stale(dir.remove_dir(b"name"));
        stale(dir.rename(b"name", &root, b"new", Rename::Replace));
        stale(root.rename(b"f", &dir, b"new", Rename::Replace));
        if let Some(other) = other {
            let names: Vec<_> = other
                .as_dir()
                .expect("a directory")
                .entries()
                .map(|entry| entry.expect("one").name)
                .collect();
            assert_eq!(names, [b"name"]);
        }
    }
    // A walk that was under way ends with an error, and not with the names of another directory.
    stale(reading.next().expect("an error"));
    assert!(reading.next().is_none());
}

/// What is open is there, whatever becomes of its name, and its node with it.
#[test]
fn a_file_that_is_open_stays_what_it_is() {
    let volume = volume();
    let root = root(&volume);
    let node = root.create_file(b"a", &new()).expect("a file");
    let file = node.open().expect("open");
    file.write_at(b"content", 0).expect("written");
    root.remove_file(b"a").expect("its name goes");
    let other = root.create_file(b"b", &new()).expect("another");
    assert_ne!(node.ino(), other.ino());
    assert_eq!((file.metadata().nlink, file.size()), (0, 7));
    assert_eq!(node.metadata().expect("it is there"), file.metadata());
    let again = node.open().expect("once more");
    drop(file);
    let mut buf = [0; 7];
    assert_eq!(again.read_at(&mut buf, 0).expect("read"), 7);
    assert_eq!(&buf, b"content");
    let link = root.link(b"again", &node).expect_err("it lost its last name");
    assert_eq!(link.kind(), ErrorKind::NotFound, "{link}");
    drop(again);
    stale(node.open());
    drop((node, other));
    volume.close().expect("a clean close");
}

/// A file without a name is open from the first moment on: its number leads to it, and nobody ends it meanwhile.
#[test]
fn a_file_without_a_name_is_there_until_it_is_let_go_of() {
    let volume = volume();
    let root = root(&volume);
    let file = root.create_unnamed(&new()).expect("a file");
    let found = volume.node(file.node().ino()).expect("by its number");
    drop(found.open().expect("open"));
    file.write_at(b"content", 0).expect("written");
    root.link(b"a", &found).expect("its first name");
    drop(file);
    assert_eq!(volume.metadata("/a").expect("found").size, 7);
    let file = root.create_unnamed(&new()).expect("a file");
    let (node, ino) = (file.node().clone(), file.node().ino());
    drop(file);
    stale(node.metadata());
    assert_eq!(volume.node(ino).map(|_| ()).map_err(|error| error.kind()), Err(ErrorKind::NotFound));
}

/// Names that are given to one file after the other always have one, whatever was found of them before.
#[test]
fn a_path_that_always_names_something_is_always_found() {
    // Too long to be known without a walk.
    const D: &[u8] = &[b'd'; 200];
    let volume = volume();
    let make = |volume: &Volume, content: &[u8]| {
        let dir = root(volume).create_dir(D, &new()).expect("a directory").as_dir().expect("a directory");
        let file = dir.create_file(b"f", &new()).expect("a file").open().expect("open");
        file.write_at(content, 0).expect("written");
    };
    let renew = |place| {
        let volume = volume.clone();
        at(place, move || {
            let dir = volume.open_dir(D).expect("a directory");
            dir.remove_file(b"f").expect("it goes");
            root(&volume).remove_dir(D).expect("it goes");
            make(&volume, b"renewed");
        });
    };
    make(&volume, b"old");
    renew("a part of a path is found");
    assert_eq!(
        volume.lookup([D, b"/f"].concat()).and_then(|node| node.metadata()).expect("the new one").size,
        7
    );
    renew("a file is about to be opened");
    let mut buf = [0; 7];
    let file = volume.open_file([D, b"/f"].concat()).expect("the new one");
    assert_eq!(file.read_at(&mut buf, 0).expect("read"), 7);
    assert_eq!(&buf, b"renewed");
}
