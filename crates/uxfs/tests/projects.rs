//! Projects: what a directory hands down, and what it keeps out, as the kernel does both.
#![forbid(unsafe_code)]

mod common;

use common::{Opened, made, mounted, repair_finds_nothing};
use std::path::Path;
use std::process::Command;
use uxfs::{Changes, Dir, ErrorKind, NewNode, Node, Rename, Special};

/// In the flags that users see: what is made here belongs to the directory's project.
const INHERIT: u32 = 0x200;

/// A volume whose root belongs to no project, with one directory that hands down project 7 and one that hands down 8.
struct Tree {
    volume: Opened,
    root: Dir,
    seven: Dir,
    eight: Dir,
}

impl Tree {
    fn new(image: &Path) -> Self {
        let volume = common::open(image);
        let root = volume.root().and_then(|root| root.as_dir()).expect("root");
        let tree = |name: &[u8], id| {
            let node = root.create_dir(name, &NewNode::default()).expect("made");
            set(&node, id, true);
            node.as_dir().expect("a directory")
        };
        let (seven, eight) = (tree(b"seven", 7), tree(b"eight", 8));
        Self { volume, root, seven, eight }
    }
}

fn set(node: &Node, id: u32, inherit: bool) {
    let changes = Changes { project: Some(id), project_inherit: Some(inherit), ..Changes::default() };
    node.change(&changes).expect("changed");
}

fn said(node: &Node) -> (u32, bool) {
    let found = node.metadata().expect("metadata");
    (found.project_id, found.xflags & INHERIT != 0)
}

/// The same from the kernel.
fn by_kernel(path: &Path) -> (u32, bool) {
    let output = Command::new("xfs_io").args(["-r", "-c", "stat"]).arg(path).output();
    let text = String::from_utf8(output.expect("xfs_io is installed").stdout).expect("text");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().nth(1)).expect("a field").to_owned()
    };
    let flags = field("fsxattr.xflags").trim_start_matches("0x").to_owned();
    let flags = u32::from_str_radix(&flags, 16).expect("flags");
    (field("fsxattr.projid").parse().expect("a project"), flags & INHERIT != 0)
}

fn file(dir: &Dir, name: &[u8]) -> Node {
    dir.create_file(name, &NewNode::default()).expect("made")
}

fn kept_out(result: uxfs::Result<()>) {
    assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::OtherProject));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_directory_hands_its_project_down_and_keeps_others_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = made(folder.path(), &[]);
    let Tree { volume, root, seven, eight } = Tree::new(&image);
    let new = NewNode::default();

    let below = seven.create_dir(b"below", &new).expect("made");
    assert_eq!(said(&below), (7, true));
    let own = file(&seven, b"own");
    assert_eq!(said(&own), (7, false));
    assert_eq!(said(&seven.create_symlink(b"link", b"own", &new).expect("made")), (7, false));
    assert_eq!(said(&seven.create_special(b"pipe", Special::Fifo, &new).expect("made")), (7, false));
    assert_eq!(said(seven.create_unnamed(&new).expect("made").node()), (7, false));
    assert_eq!(said(&file(&root, b"free")), (0, false));
    // Only a directory has that flag.
    set(&own, 7, true);
    assert_eq!(said(&own), (7, false));

    let free = root.lookup(b"free").expect("looked up").expect("there");
    kept_out(seven.link(b"free", &free));
    kept_out(root.rename(b"free", &seven, b"free", Rename::Replace));
    kept_out(seven.rename(b"below", &eight, b"below", Rename::Replace));
    // A name that is taken is told first.
    assert_eq!(seven.link(b"own", &free).map_err(|error| error.kind()), Err(ErrorKind::AlreadyExists));
    // Whoever goes out may, and of an exchange, only the first is asked.
    root.link(b"outside", &own).expect("linked");
    seven.rename(b"own", &root, b"free", Rename::Exchange).expect("exchanged");
    assert_eq!(said(&seven.lookup(b"own").expect("looked up").expect("there")), (0, false));
    // Two names of one inode: nothing happens, whatever its project.
    seven.link(b"other", &own).expect("linked");
    set(&own, 5, false);
    root.rename(b"outside", &seven, b"other", Rename::Replace).expect("nothing happens");

    volume.close().expect("closed");
    repair_finds_nothing(&image);
    let kernel = mounted(&image, |mnt| {
        ["seven", "seven/below", "seven/own", "eight", "free"].map(|path| by_kernel(&mnt.join(path)))
    });
    assert_eq!(kernel, [(7, true), (7, true), (0, false), (8, true), (5, false)]);
}

/// What sets up projects passes special files over, so they have none.
#[test]
#[ignore = "needs root and xfsprogs"]
fn special_files_without_a_project_may_go_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = made(folder.path(), &[]);
    let Tree { volume, root, seven, eight } = Tree::new(&image);
    let pipe = root.create_special(b"pipe", Special::Fifo, &NewNode::default()).expect("made");
    seven.link(b"linked", &pipe).expect("linked");
    root.rename(b"pipe", &eight, b"renamed", Rename::Replace).expect("renamed");
    let own = seven.create_special(b"own", Special::Socket, &NewNode::default()).expect("made");
    kept_out(eight.link(b"linked", &own));
    // A symbolic link is none of them.
    root.create_symlink(b"link", b"pipe", &NewNode::default()).expect("made");
    kept_out(root.rename(b"link", &seven, b"link", Rename::Replace));
    volume.close().expect("closed");
    repair_finds_nothing(&image);
}
