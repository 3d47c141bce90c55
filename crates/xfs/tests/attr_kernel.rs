//! Attributes and symlinks that the kernel made (v5) or xfsprogs (v4), against what they were told to hold.
#![forbid(unsafe_code)]

mod samples;

use rustix::fs::XattrFlags;
use samples::{Image, run};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xfs::attr::linux;
use xfs::attr::{self, Namespace};
use xfs::dir::lookup;
use xfs::fork::Fork;
use xfs::symlink::target;
use xfs::testing::MemoryFork;
use xfs_format::attr::INDEX;
use xfs_format::da::{Node, block_magic};
use xfs_format::types::FileBlock;

type Attrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the kernel shows.
fn kernel_attrs(path: &Path) -> Attrs {
    let mut names = vec![0u8; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names).expect("the list of attributes");
    let mut value = vec![0u8; 64 << 10];
    names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let len = rustix::fs::lgetxattr(path, name, &mut value).expect("an attribute");
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

/// What we show.
fn our_attrs(fork: &MemoryFork) -> Attrs {
    let names = linux::list(fork).expect("sound attributes");
    let count = names.len();
    let attrs: Attrs = names
        .into_iter()
        .map(|name| {
            let value = linux::get(fork, &name).expect("a sound attribute").expect("a listed attribute");
            (name, value)
        })
        .collect();
    assert_eq!(attrs.len(), count, "no name comes twice");
    attrs
}

/// Fails with the names that differ, not with all their values.
fn compare(ours: &Attrs, expected: &Attrs, whose: &str) {
    let names: std::collections::BTreeSet<_> = ours.keys().chain(expected.keys()).collect();
    for name in names {
        let lens = (ours.get(name).map(Vec::len), expected.get(name).map(Vec::len));
        assert!(ours.get(name) == expected.get(name), "{whose}: {}: lengths {lens:?}", name.escape_ascii());
    }
}

fn form(fork: &MemoryFork) -> String {
    if fork.local().is_some() {
        return "short".into();
    }
    if fork.mapped().next().is_none() {
        return "none".into();
    }
    let buf = fork.read(FileBlock(0), 1, &INDEX).unwrap();
    let v5 = fork.geometry().v5;
    if Node::is(block_magic(&buf).unwrap(), v5) {
        format!("tree of level {}", Node::parse(&buf, v5).unwrap().level)
    } else {
        "leaf".into()
    }
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ salt) as u8).collect()
}

fn set(path: &Path, name: &[u8], value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|e| panic!("{} of {} bytes: {e}", name.escape_ascii(), value.len()));
}

fn check_volume(options: &[&str]) -> Vec<String> {
    let image = Image::mkfs(options);
    image.mounted(|root| {
        let file = |name: &str| {
            let path = root.join(name);
            File::create(&path).unwrap();
            path
        };
        file("none");
        set(&file("one"), b"user.a", b"1");
        let spaces = file("namespaces");
        for prefix in ["user", "trusted", "security"] {
            set(&spaces, format!("{prefix}.same").as_bytes(), prefix.as_bytes());
        }
        set(&spaces, b"user.empty", b"");
        let sizes = file("sizes");
        for len in
            [1, 2, 255, 256, 900, 1000, 1024, 2000, 4000, 4040, 4041, 4096, 5000, 12_345, 65_535, 65_536]
        {
            set(&sizes, format!("user.of {len}").as_bytes(), &pattern(len, len));
        }
        set(&file("largest alone"), b"user.big", &pattern(65_536, 3));
        let leaf = file("leaf");
        for nth in 0..12 {
            set(&leaf, format!("user.number {nth}").as_bytes(), &pattern(30, nth));
        }
        let thinned = file("thinned");
        for nth in 0..400 {
            set(&thinned, format!("user.number {nth}").as_bytes(), &pattern(nth % 40, nth));
        }
        for nth in (0..400).filter(|nth| nth % 4 != 0) {
            rustix::fs::lremovexattr(&thinned, format!("user.number {nth}")).unwrap();
        }
        let many = file("many");
        for nth in 0..4500 {
            set(&many, format!("user.{nth}").as_bytes(), &pattern(nth % 100, nth));
        }
        let long = file("long names");
        for nth in 0..200usize {
            let mut name = format!("trusted.{nth:03}").into_bytes();
            name.extend((0..nth + 30).map(|at| (at % 255 + 1) as u8));
            set(&long, &name, &pattern(nth, nth));
        }
        let bytes = file("bytes");
        for byte in 1..=255u8 {
            set(&bytes, &[b"user.", &[byte; 3][..]].concat(), &[byte]);
        }
        let acl = file("acl");
        run("setfacl", ["-m", "u:1000:rw,g:1001:r,u:70000:x", acl.to_str().unwrap()]);
        let wide = file("wide acl");
        let entries: Vec<String> = (0..300).map(|nth| format!("u:{}:{}", 5000 + nth, nth % 8)).collect();
        run("setfacl", ["-m", &entries.join(","), wide.to_str().unwrap()]);
        let dir = root.join("directory");
        std::fs::create_dir(&dir).unwrap();
        run("setfacl", ["-m", "u:7:rwx,d:u:8:rx,d:g:9:-", dir.to_str().unwrap()]);
        let link = root.join("link");
        std::os::unix::fs::symlink("target", &link).unwrap();
        set(&link, b"trusted.of the link", b"itself");
    });
    let expected: Vec<(PathBuf, u64, Attrs)> = image.mounted(|root| {
        let paths = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
        paths
            .map(|path| {
                let ino = std::fs::symlink_metadata(&path).unwrap().ino();
                let attrs = kernel_attrs(&path);
                (path, ino, attrs)
            })
            .collect()
    });
    assert_eq!(expected.len(), 14);
    let mut forms = Vec::new();
    for (path, ino, attrs) in &expected {
        let Some(fork) = image.attr_fork(*ino) else {
            assert!(attrs.is_empty(), "{}", path.display());
            continue;
        };
        forms.push(form(&fork));
        compare(&our_attrs(&fork), attrs, &path.display().to_string());
        for name in
            [&b"user.no such name"[..], b"trusted.a", b"system.other", b"user.", b"system.posix_acl_default"]
        {
            assert_eq!(linux::get(&fork, name).unwrap(), attrs.get(name).cloned());
        }
        attr::walk(&fork, &mut |entry| {
            let found = attr::get(&fork, entry.namespace, entry.name).unwrap().expect("a walked attribute");
            assert_eq!(found.len(), entry.value_len as usize);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(attr::get(&fork, Namespace::Parent, b"one").unwrap(), None);
    }
    forms.sort();
    forms.dedup();
    forms
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn default_volume() {
    assert_eq!(check_volume(&[]), ["leaf", "none", "short", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn small_blocks_and_a_tree_of_several_levels() {
    let forms = check_volume(&["-b", "size=1024"]);
    assert_eq!(forms, ["leaf", "none", "short", "tree of level 1", "tree of level 2"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn large_inodes_and_directory_blocks() {
    // A directory's block size is none of the attribute fork's business.
    let forms = check_volume(&["-i", "size=2048", "-n", "size=65536"]);
    assert_eq!(forms, ["leaf", "none", "short", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_of_64_kib() {
    // Offsets within a leaf reach the limit of their fields.
    let forms = check_volume(&["-b", "size=65536"]);
    assert_eq!(forms, ["leaf", "none", "short", "tree of level 1"]);
}

/// Symlinks of these lengths of target.
const LENGTHS: [usize; 14] = [1, 2, 100, 155, 156, 335, 336, 337, 400, 900, 967, 968, 969, 1023];

fn check_symlinks(options: &[&str]) -> (usize, usize) {
    let image = Image::mkfs(options);
    let text = |len: usize| -> Vec<u8> { pattern(len, len).iter().map(|byte| byte % 255 + 1).collect() };
    let inodes = image.mounted(|root| {
        LENGTHS.map(|len| {
            let path = root.join(format!("{len}"));
            std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&text(len)), &path).unwrap();
            std::fs::symlink_metadata(&path).unwrap().ino()
        })
    });
    let (mut inline, mut remote) = (0, 0);
    for (ino, len) in inodes.into_iter().zip(LENGTHS) {
        let fork = image.data_fork(ino);
        if fork.local().is_some() {
            inline += 1
        } else {
            remote += 1
        }
        assert_eq!(target(&fork).unwrap(), text(len), "length {len}");
    }
    (inline, remote)
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn symlinks() {
    let (inline, remote) = check_symlinks(&[]);
    assert!(inline >= 7 && remote >= 6, "{inline} inline, {remote} remote");
    check_symlinks(&["-b", "size=1024"]);
    let (inline, _) = check_symlinks(&["-i", "size=2048"]);
    assert_eq!(inline, LENGTHS.len());
}

/// Kernels without v4 can't fill a v4 volume: mkfs.xfs makes the files, xfs_db sets the attributes.
#[test]
#[ignore = "needs root and xfsprogs"]
fn v4() {
    for options in [&["-b", "size=512"][..], &["-b", "size=1024"], &["-b", "size=4096"]] {
        let dir = tempfile::tempdir().unwrap();
        let prototype = dir.path().join("prototype");
        let long = "l".repeat(1000);
        let names = ["one", "many", "sizes"];
        let mut text = String::from("/\n0 0\nd--755 0 0\n");
        for name in names {
            text.push_str(&format!("{name} p--644 0 0\n"));
        }
        text.push_str(&format!("short l--777 0 0 target\nlong l--777 0 0 {long}\n$\n"));
        std::fs::write(&prototype, text).unwrap();
        let prototype = prototype.to_str().unwrap();
        let image = Image::mkfs(&[options, &["-m", "crc=0", "-p", prototype]].concat());
        let root = image.data_fork(image.geometry().root.0);
        let ino = |name: &str| lookup(&root, name.as_bytes()).unwrap().expect("made by mkfs").0.0;
        let mut expected: BTreeMap<&str, Attrs> = BTreeMap::new();
        let mut commands = Vec::new();
        // xfs_db fills a value of a given length with the letter v.
        let mut set = |file: &'static str, flag: &str, prefix: &str, name: String, len: usize| {
            if commands.is_empty() || !expected.contains_key(file) {
                commands.push(format!("inode {}", ino(file)));
            }
            commands.push(format!("attr_set {flag} -v {len} {name}"));
            expected
                .entry(file)
                .or_default()
                .insert(format!("{prefix}.{name}").into_bytes(), vec![b'v'; len]);
        };
        set("one", "-u", "user", "a".into(), 1);
        for nth in 0..600 {
            set("many", "-r", "trusted", format!("number{nth}"), nth % 50 + 1);
        }
        for len in [1, 255, 256, 512, 513, 1000, 4095, 4096, 5000, 65_535, 65_536] {
            set("sizes", "-s", "security", format!("of{len}"), len);
        }
        image.db_write(&commands);
        for (file, attrs) in &expected {
            let fork = image.attr_fork(ino(file)).expect("an attribute fork");
            compare(&our_attrs(&fork), attrs, &format!("{file}, {options:?}"));
            let form = form(&fork);
            assert_eq!(form == "short", *file == "one", "{file}, {options:?}");
            assert!(*file != "many" || form.starts_with("tree"), "{form}, {options:?}");
        }
        assert_eq!(target(&image.data_fork(ino("short"))).unwrap(), b"target");
        assert_eq!(target(&image.data_fork(ino("long"))).unwrap(), long.as_bytes());
    }
}
