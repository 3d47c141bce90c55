//! A mixed tree that the kernel made, read through an open volume by several threads: names, types, symlink
//! targets and attributes are what the kernel shows.
#![forbid(unsafe_code)]

mod samples;

use blockdev::FileDevice;
use rustix::fs::XattrFlags;
use samples::{Image, legal_names, run};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use xfs::attr::linux;
use xfs::dir::{self, FileType};
use xfs::symlink;
use xfs::volume::{ForkKind, OpenOptions, Volume};
use xfs_format::types::InodeNumber;

/// What is to be seen of one object.
#[derive(Debug, Default, PartialEq, Eq)]
struct Object {
    attrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Option<Vec<u8>>,
    entries: Option<Vec<(Vec<u8>, u64)>>,
}

type Tree = BTreeMap<u64, Object>;

fn kernel_tree(path: &Path, tree: &mut Tree) {
    let status = std::fs::symlink_metadata(path).unwrap();
    if tree.contains_key(&status.ino()) {
        return;
    }
    let mut object = Object::default();
    let (mut names, mut value) = (vec![0u8; 64 << 10], vec![0u8; 64 << 10]);
    let len = rustix::fs::llistxattr(path, &mut names).unwrap();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
        object.attrs.insert(name.to_vec(), value[..len].to_vec());
    }
    if status.is_symlink() {
        object.target = Some(std::fs::read_link(path).unwrap().into_os_string().into_vec());
    }
    let mut below = Vec::new();
    if status.is_dir() {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| {
            let entry = entry.unwrap();
            below.push(entry.path());
            (entry.file_name().into_vec(), std::fs::symlink_metadata(entry.path()).unwrap().ino())
        });
        object.entries = Some(entries.collect());
    }
    tree.insert(status.ino(), object);
    below.iter().for_each(|path| kernel_tree(path, tree));
}

fn our_tree(volume: &Arc<Volume>) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(volume.geometry().root, FileType::Directory)];
    while let Some((ino, kind)) = todo.pop() {
        if tree.contains_key(&ino.0) {
            continue;
        }
        let inode = volume.inode(ino).unwrap();
        let mut object = Object::default();
        if let Some(fork) = volume.fork(&inode, ForkKind::Attr) {
            for name in linux::list(&*fork).unwrap() {
                let value = linux::get(&*fork, &name).unwrap().expect("a listed attribute");
                object.attrs.insert(name, value);
            }
        }
        let data = volume.fork(&inode, ForkKind::Data);
        match kind {
            FileType::Symlink => object.target = Some(symlink::target(&*data.unwrap()).unwrap()),
            FileType::Directory => {
                let fork = data.unwrap();
                let mut entries = Vec::new();
                let mut dots = 0;
                dir::walk(&*fork, 0, &mut |entry| {
                    if entry.name == b"." || entry.name == b".." {
                        dots += 1;
                    } else {
                        entries.push((entry.name.to_vec(), entry.inode.0));
                        todo.push((entry.inode, entry.file_type));
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
                assert_eq!(dots, 2);
                for (name, ino) in entries.iter().step_by(1 + entries.len() / 50) {
                    let found = dir::lookup(&*fork, name).unwrap().expect("a listed name").0;
                    assert_eq!(found, InodeNumber(*ino));
                }
                object.entries = Some(entries);
            }
            _ => {}
        }
        tree.insert(ino.0, object);
    }
    tree
}

fn fill(root: &Path) {
    for top in ["a", "b", "a/c", "a/c/d"] {
        let dir = root.join(top);
        std::fs::create_dir(&dir).unwrap();
        run("setfacl", ["-m", "u:7:rwx,d:u:8:rx", dir.to_str().unwrap()]);
    }
    for name in legal_names() {
        File::create(root.join("b").join(OsStr::from_bytes(&name))).unwrap();
    }
    for nth in 0..3000 {
        let path = root.join(format!("a/c/file with a name {nth}"));
        File::create(&path).unwrap();
        if nth % 50 == 0 {
            let value: Vec<u8> = (0..nth * 20).map(|at| (at % 251) as u8).collect();
            rustix::fs::setxattr(&path, "user.value", &value, XattrFlags::empty()).unwrap();
        }
        if nth % 70 == 0 {
            let target = "t".repeat(1 + nth / 3);
            std::os::unix::fs::symlink(target, root.join(format!("a/c/d/{nth}"))).unwrap();
        }
    }
    for nth in (0..3000).step_by(3) {
        std::fs::remove_file(root.join(format!("a/c/file with a name {nth}"))).unwrap();
    }
    let many = root.join("many");
    File::create(&many).unwrap();
    for nth in 0..3000usize {
        rustix::fs::setxattr(&many, format!("user.{nth}"), &vec![1; nth % 90], XattrFlags::empty()).unwrap();
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_see_what_the_kernel_shows() {
    for options in [
        &[][..],
        &["-b", "size=1024"],
        &["-b", "size=4096", "-n", "size=65536", "-i", "size=2048"],
        &["-m", "rmapbt=1,reflink=0", "-i", "nrext64=1"],
    ] {
        let image = Image::mkfs(options);
        image.mounted(fill);
        let mut expected = Tree::new();
        image.mounted(|root| kernel_tree(root, &mut expected));
        assert!(expected.len() > 2500);
        let device = Arc::new(FileDevice::open(image.path()).unwrap());
        // Small caches: buffers come and go while they are in use.
        let options = OpenOptions { cache_size: 1 << 20, ..OpenOptions::default() };
        let volume = Volume::open(device, &options).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let ours = our_tree(&volume);
                    assert_eq!(ours.len(), expected.len());
                    for (ino, object) in &ours {
                        assert!(expected.get(ino) == Some(object), "inode {ino}");
                    }
                });
            }
        });
    }
}
