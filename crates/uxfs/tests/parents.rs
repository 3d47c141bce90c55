//! Parent pointers: each change of a name changes the pointer with it. Judged by `xfs_repair -n` of a release that knows
//! them, by uxfs's own check, and by the kernel, which says the names of each inode, then renames and removes all.
#![forbid(unsafe_code)]

#[allow(
    dead_code,
    unused_imports,
    reason = "volumes here are made by another mkfs.xfs and judged by another xfs_repair"
)]
mod common;

use common::mounted;
use oracles::xfsprogs::Release;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::{Changes, Dir, NewNode, Node, OpenOptions, Rename, SetXattr, Special, Volume};

/// Shapes in which pointers lie in inodes, leaves and trees sooner or later.
const SHAPES: [&[&str]; 3] = [
    &["-n", "parent=1"],
    &["-n", "parent=1", "-b", "size=1024", "-m", "rmapbt=0,reflink=0", "-i", "exchange=0,nrext64=0"],
    &["-n", "parent=1,size=16384", "-i", "size=2048,sparse=0", "-m", "finobt=0,inobtcount=0"],
];

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a place in memory")
}

fn made(dir: &Path, shape: &[&str]) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(400 << 20)).expect("a sparse image");
    run(Release::Unstable.tool("mkfs.xfs").expect("installed").args(["-q", "-f"]).args(shape).arg(&image));
    image
}

fn open(image: &Path) -> Volume {
    Volume::open(image, &OpenOptions::new().writable(true)).expect("opens for writing")
}

fn sound(image: &Path) {
    run(Release::Unstable.tool("xfs_repair").expect("installed").arg("-n").arg(image));
    let report = uxfs::check(image, &OpenOptions::new()).expect("can be checked");
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{findings:#?}");
}

/// All names of each inode, by the directories that have them.
type Names = BTreeMap<u64, BTreeSet<Vec<u8>>>;

fn walk(dir: &Dir, path: &[u8], names: &mut Names) {
    for entry in dir.entries() {
        let entry = entry.expect("an entry");
        let path = [path, b"/", &entry.name].concat();
        let node = dir.lookup(&entry.name).expect("found").expect("there");
        if node.file_type().is_dir() {
            walk(&node.as_dir().expect("a directory"), &path, names);
        }
        names.entry(entry.ino).or_default().insert(path);
    }
}

/// Every inode says all its names, and no attribute shows a pointer.
fn pointers_are_names(volume: &Volume) -> Names {
    let mut names = Names::new();
    let root = volume.root().expect("root");
    assert_eq!(root.names().expect("read"), Some(Vec::new()), "the root directory has no name");
    walk(&root.as_dir().expect("a directory"), b"", &mut names);
    for (&ino, expected) in &names {
        let node = volume.node(ino).expect("a node");
        let found = node.names().expect("read").expect("pointers");
        let paths: BTreeSet<Vec<u8>> = found.iter().map(|name| name.path.clone().expect("a path")).collect();
        assert_eq!(&paths, expected, "inode {ino}");
        assert_eq!(found.len(), expected.len(), "inode {ino}");
        let shown = node.xattr_names().expect("read");
        assert!(
            shown.iter().all(|name| name.starts_with(b"user.")
                || name.starts_with(b"trusted.SGI")
                || name.starts_with(b"system.posix_acl")),
            "{shown:?}"
        );
    }
    names
}

/// The kernel's pointers of regular files and directories are the names that it has for them.
fn kernel_agrees(image: &Path, names: &Names) {
    mounted(image, |at| {
        for (ino, paths) in names {
            let first = paths.first().expect("a name");
            let path = at.join(std::str::from_utf8(&first[1..]).expect("text"));
            let meta = path.symlink_metadata().expect("there");
            assert_eq!(std::os::unix::fs::MetadataExt::ino(&meta), *ino);
            if !(meta.is_file() || meta.is_dir()) {
                continue;
            }
            let mut io = Release::Unstable.tool("xfs_io").expect("installed");
            let said = run(io.args(["-r", "-c", "parent -p"]).arg(&path));
            let prefix = at.to_str().expect("text");
            let said: BTreeSet<Vec<u8>> = said
                .lines()
                .map(|line| line.strip_prefix(prefix).expect("below").as_bytes().to_vec())
                .collect();
            assert_eq!(&said, paths, "{}", path.display());
        }
    });
    sound(image);
}

/// The kernel renames and removes all that is there.
fn kernel_empties(image: &Path) {
    const SCRIPT: &str = r#"
        cd "$1"; umask 022
        mkdir kernel; n=0
        find . -mindepth 1 -not -path './kernel*' -not -type d -print0 | while IFS= read -r -d '' f; do
            n=$((n + 1)); mv "$f" "kernel/$n"; done
        find . -mindepth 1 -type d -not -path ./kernel -print0 | sort -z |
            while IFS= read -r -d '' d; do setfattr -n user.k -v k "$d"; done
        touch kernel/new; ln kernel/new other; mv other kernel/other
        rm -r ./*
        [ -z "$(ls -A)" ]
    "#;
    mounted(image, |at| run(Command::new("bash").args(["-euc", SCRIPT, "bash"]).arg(at)));
    sound(image);
}

fn new(permissions: u16) -> NewNode {
    NewNode { permissions, ..NewNode::default() }
}

fn dir(volume: &Volume, path: &str) -> Dir {
    volume.open_dir(path).expect("a directory")
}

fn node(volume: &Volume, path: &str) -> Node {
    volume.lookup_nofollow(path).expect("a node")
}

/// Everything that can be made, with names short and long.
fn make_all(volume: &Volume) {
    let root = dir(volume, "/");
    let [a, b, c] = [&b"a"[..], b"b", b"c"]
        .map(|name| root.create_dir(name, &new(0o755)).and_then(|node| node.as_dir()).expect("made"));
    let long = |letter: char, len: usize| letter.to_string().repeat(len).into_bytes();
    for (nth, within) in [&root, &a, &b].into_iter().enumerate() {
        for len in [1, 100, 230, 240, 255] {
            within.create_file(&long('f', len), &new(0o644)).expect("a file");
            within.create_dir(&long('d', len), &new(0o755)).expect("a directory");
            within
                .create_symlink(&long('s', len), &long('t', 10 + 245 * (nth % 2)), &new(0o777))
                .expect("a link");
            within.create_symlink(&long('S', len), &long('t', 1000), &new(0o777)).expect("a long link");
        }
        within.create_special(b"fifo", Special::Fifo, &new(0o600)).expect("a fifo");
        within.create_special(b"device", Special::CharDevice(1, 3), &new(0o600)).expect("a device");
        within.create_special(&long('D', 255), Special::BlockDevice(7, 3), &new(0o600)).expect("a device");
        within.create_special(b"socket", Special::Socket, &new(0o600)).expect("a socket");
    }
    let unnamed = a.create_unnamed(&new(0o600)).expect("a file without a name");
    unnamed.write_at(b"content", 0).expect("written");
    c.link(b"named-late", unnamed.node()).expect("named");
    b.link(b"named-twice", unnamed.node()).expect("named");
    drop(a.create_unnamed(&new(0o600)).expect("one that never gets a name"));
    // One name in many directories, many names in one.
    let linked = c.create_file(b"linked", &new(0o644)).expect("made");
    for nth in 0..150 {
        let within =
            c.create_dir(format!("dir-{nth}").as_bytes(), &new(0o755)).and_then(|node| node.as_dir());
        within.and_then(|within| within.link(b"the-same-name", &linked)).expect("linked");
    }
    for nth in 0..150 {
        a.link(format!("a-rather-long-name-of-a-link-{nth:0100}").as_bytes(), &linked).expect("linked");
    }
    // Pointers beside other attributes, and behind a content that fills the inode.
    let beside = root.create_file(b"beside", &new(0o644)).expect("made");
    for nth in 0..40 {
        let name = format!("user.{nth}");
        beside.set_xattr(name.as_bytes(), &long('v', 10 + 90 * nth), SetXattr::Create).expect("set");
        b.link(format!("beside-{nth}").as_bytes(), &beside).expect("linked");
    }
    for nth in 0..40 {
        beside.remove_xattr(format!("user.{nth}").as_bytes()).expect("removed");
    }
    beside.change(&Changes { permissions: Some(0o600), ..Changes::default() }).expect("changed");
}

/// Names go, move, replace others and change places.
fn change_all(volume: &Volume) {
    let [root, a, b, c] = ["/", "/a", "/b", "/c"].map(|path| dir(volume, path));
    let f100 = "f".repeat(100).into_bytes();
    let f255 = "f".repeat(255).into_bytes();
    let rename = |from: &Dir, name: &[u8], to: &Dir, new_name: &[u8], how| {
        from.rename(name, to, new_name, how)
            .unwrap_or_else(|error| panic!("{}: {error}", uxfs::printable(name)));
    };
    rename(&a, b"f", &a, b"renamed", Rename::NoReplace);
    rename(&a, b"renamed", &b, b"moved", Rename::NoReplace);
    rename(&a, b"d", &c, b"moved-dir", Rename::NoReplace);
    rename(&c, b"moved-dir", &c, b"renamed-dir", Rename::NoReplace);
    rename(&a, b"s", &b, &"x".repeat(255).into_bytes(), Rename::NoReplace);
    rename(&a, b"device", &root, &"y".repeat(255).into_bytes(), Rename::NoReplace);
    rename(&a, &f100, &b, &f100, Rename::Replace);
    rename(&root, &f100, &root, &f255, Rename::Replace);
    rename(&root, b"d", &b, b"d", Rename::Replace);
    rename(&b, b"fifo", &root, b"socket", Rename::Exchange);
    rename(&b, &f255, &c, b"renamed-dir", Rename::Exchange);
    rename(&root, b"a", &b, b"a", Rename::NoReplace);
    rename(&root, b"c", &b, b"c", Rename::NoReplace);
    // Over a name of an inode that keeps others; onto a name of the same one.
    rename(&b, b"beside-3", &b, b"named-twice", Rename::Replace);
    rename(&b, b"beside-4", &b, b"beside-5", Rename::Replace);
    let linked = node(volume, "/b/c/linked");
    for nth in 0..150 {
        match nth % 3 {
            0 => dir(volume, &format!("/b/c/dir-{nth}")).remove_file(b"the-same-name").expect("removed"),
            1 => {
                let from = dir(volume, &format!("/b/c/dir-{nth}"));
                rename(&from, b"the-same-name", &a, format!("{nth}").as_bytes(), Rename::NoReplace);
            }
            _ => {}
        }
        if nth % 2 == 0 {
            a.remove_file(format!("a-rather-long-name-of-a-link-{nth:0100}").as_bytes()).expect("removed");
        }
    }
    b.link(b"again", &linked).expect("linked");
    c.remove_dir(b"dir-0").expect("removed");
    root.remove_file(b"device").expect("removed");
}

/// All names but the last of each file, then all.
fn remove_all(volume: &Volume) {
    fn empty(dir: &Dir) {
        let entries: Vec<_> = dir.entries().collect::<Result<_, _>>().expect("entries");
        for entry in entries {
            if entry.file_type.is_dir() {
                empty(&dir.lookup(&entry.name).unwrap().unwrap().as_dir().unwrap());
                dir.remove_dir(&entry.name).expect("removed");
            } else {
                dir.remove_file(&entry.name).expect("removed");
            }
        }
    }
    empty(&dir(volume, "/"));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn each_change_of_a_name_changes_its_pointer() {
    for shape in SHAPES {
        let scratch = scratch();
        let image = made(scratch.path(), shape);
        for change in [make_all, change_all] {
            let volume = open(&image);
            change(&volume);
            pointers_are_names(&volume);
            volume.close().expect("closes");
            drop(volume);
            sound(&image);
            let names = pointers_are_names(&open(&image));
            kernel_agrees(&image, &names);
        }
        let copy = scratch.path().join("copy.img");
        run(Command::new("cp").arg("--sparse=always").args([&image, &copy]));
        kernel_empties(&copy);
        let volume = open(&image);
        remove_all(&volume);
        volume.close().expect("closes");
        drop(volume);
        sound(&image);
        // As if nothing had been there.
        let volume = open(&image);
        make_all(&volume);
        drop(volume);
        sound(&image);
        kernel_empties(&image);
    }
}

/// What the kernel made, uxfs changes.
#[test]
#[ignore = "needs root and xfsprogs"]
fn pointers_that_the_kernel_made_are_changed() {
    const SCRIPT: &str = r#"
        cd "$1"; umask 022
        mkdir a b c; mkdir a/inner
        touch a/f "b/$(printf 'n%.0s' $(seq 255))"
        ln -s target a/s; ln -s "$(printf 't%.0s' $(seq 250))" "b/$(printf 's%.0s' $(seq 240))"
        mknod a/device c 1 3; mkfifo b/fifo
        for n in $(seq 300); do ln a/f "c/link-number-$n"; done
        touch b/one b/two; ln b/one c/one; setfacl -m u:5:rw b/one; setfacl -d -m u:5:rw c; touch c/acl
    "#;
    for shape in SHAPES {
        let scratch = scratch();
        let image = made(scratch.path(), shape);
        mounted(&image, |at| run(Command::new("bash").args(["-euc", SCRIPT, "bash"]).arg(at)));
        let volume = open(&image);
        pointers_are_names(&volume);
        let [root, a, b, c] = ["/", "/a", "/b", "/c"].map(|path| dir(&volume, path));
        for nth in 1..=300 {
            let name = format!("link-number-{nth}");
            match nth % 4 {
                0 => c.remove_file(name.as_bytes()).expect("removed"),
                1 => c.rename(name.as_bytes(), &b, name.as_bytes(), Rename::NoReplace).expect("moved"),
                2 => c.rename(name.as_bytes(), &c, b"over", Rename::Replace).expect("moved"),
                _ => root.link(name.as_bytes(), &node(&volume, "/a/f")).expect("linked"),
            }
        }
        a.rename(b"inner", &b, b"inner", Rename::NoReplace).expect("moved");
        a.rename(b"device", &b, b"fifo", Rename::Exchange).expect("exchanged");
        b.rename(b"one", &b, b"two", Rename::Replace).expect("replaced");
        c.create_dir(b"with-list", &new(0o755)).expect("made");
        let names = pointers_are_names(&volume);
        volume.close().expect("closes");
        drop(volume);
        sound(&image);
        kernel_agrees(&image, &names);
        kernel_empties(&image);
    }
}

/// A name without its pointer is damage, which is told and not made worse.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_name_without_its_pointer_is_damage() {
    let scratch = scratch();
    let image = made(scratch.path(), SHAPES[0]);
    let volume = open(&image);
    let root = dir(&volume, "/");
    let file = root.create_file(b"file", &new(0o644)).expect("made");
    root.link(b"other", &file).expect("linked");
    let ino = file.ino();
    volume.close().expect("closes");
    drop((file, root, volume));
    let mut db = Release::Unstable.tool("xfs_db").expect("installed");
    run(db
        .args(["-x", "-c", &format!("inode {ino}"), "-c", "write a.sfattr.list[0].name \"eliF\""])
        .arg(&image));
    let volume = open(&image);
    let root = dir(&volume, "/");
    for error in [
        root.remove_file(b"file").expect_err("its pointer is missing"),
        root.rename(b"file", &root, b"new", Rename::Replace).expect_err("its pointer is missing"),
    ] {
        let said = error.to_string();
        assert!(said.contains("parent pointer") && said.contains(&ino.to_string()), "{said}");
    }
    root.remove_file(b"other").expect("its pointer is there");
    volume.close().expect("closes");
}
