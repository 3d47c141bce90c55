//! Attributes and symlink targets as we write them, judged by `xfs_repair` and the kernel.
//!
//! The kernel makes an inode whose fork has many blocks. We build a fork of our own in memory that lies in the same
//! blocks, lay it over the image, and look what others make of it. The kernel then goes on changing it.
#![forbid(unsafe_code)]

mod samples;

use rustix::fs::XattrFlags;
use samples::{Image, run, seed};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use xfs::attr::edit::{SetXattr, remove, set};
use xfs::attr::{Namespace, linux};
use xfs::fork::{Fork, ForkMut};
use xfs::symlink;
use xfs::testing::MemoryFork;
use xfs_format::attr::INDEX;
use xfs_format::checksum;
use xfs_format::da::{Node, block_magic};
use xfs_format::inode::{CRC_OFFSET, InodeCore};
use xfs_format::types::{DiskAddr, FileBlock, InodeNumber};

type Attrs = BTreeMap<Vec<u8>, Vec<u8>>;

const SPACES: [(Namespace, &str); 3] =
    [(Namespace::User, "user"), (Namespace::Root, "trusted"), (Namespace::Secure, "security")];

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

fn our_attrs(fork: &dyn Fork) -> Attrs {
    let names = linux::list(fork).unwrap().into_iter();
    names.map(|name| (name.clone(), linux::get(fork, &name).unwrap().expect("a listed attribute"))).collect()
}

fn compare(found: &Attrs, expected: &Attrs, whose: &str) {
    let names: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    for name in names {
        let lens = (found.get(name).map(Vec::len), expected.get(name).map(Vec::len));
        assert!(found.get(name) == expected.get(name), "{whose}: {}: {lens:?}", name.escape_ascii());
    }
}

fn form(fork: &dyn Fork) -> String {
    let buf = fork.read(FileBlock(0), 1, &INDEX).unwrap();
    match block_magic(&buf).is_some_and(|magic| Node::is(magic, true)) {
        true => format!("tree of level {}", Node::parse(&buf, true).unwrap().level),
        false => "leaf".into(),
    }
}

fn set_as_kernel(path: &Path, name: &[u8], value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|e| panic!("{} of {} bytes: {e}", name.escape_ascii(), value.len()));
}

/// A fork without blocks that gets those of `kernel`.
fn over(kernel: &MemoryFork) -> MemoryFork {
    let mut fork = MemoryFork::new(kernel.geometry().clone(), kernel.inode(), kernel.size());
    fork.set_local_capacity(0);
    fork.set_pool(kernel.mapped().map(|at| (at, kernel.daddr(at).unwrap())).collect());
    fork
}

fn lay(image: &Image, fork: &MemoryFork) {
    let file = File::options().write(true).open(image.path()).unwrap();
    for (_, DiskAddr(daddr), bytes) in fork.written_back() {
        file.write_all_at(&bytes, daddr << 9).unwrap();
    }
}

fn repair_is_content(image: &Image) {
    // Its exit status says whether anything is wrong.
    run("xfs_repair", ["-n".as_ref(), image.path().as_os_str()]);
}

/// Random changes to fork and map alike.
fn history(
    rng: &mut fastrand::Rng,
    fork: &mut MemoryFork,
    count: usize,
    names: u32,
    largest: usize,
) -> Attrs {
    let mut model = Attrs::new();
    let block = fork.geometry().block_size as usize;
    let mut adds = 9;
    for nth in 0..count {
        if nth % (count / 4) == 0 {
            adds = if adds == 9 { 6 } else { 9 };
        }
        let (namespace, prefix) = SPACES[rng.usize(0..12).saturating_sub(9)];
        let name = match rng.u32(0..8) {
            // Linux counts the prefix, too.
            0 => vec![rng.u8(1..); rng.usize(1..=246)],
            _ => format!("name{}", rng.u32(0..names)).into_bytes(),
        };
        let full = [prefix.as_bytes(), b".", &name].concat();
        if rng.u32(0..10) < adds {
            let len = match rng.u32(0..40) {
                0..=33 => rng.usize(0..80),
                // As long as values are to be small, the form is that of so many, whatever is drawn.
                34..=37 => rng.usize(0..block.min(largest.max(80))),
                _ => rng.usize(0..=largest),
            };
            let value: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(7) ^ nth as u8).collect();
            set(fork, namespace, &name, &value, SetXattr::Either).unwrap();
            model.insert(full, value);
        } else if model.remove(&full).is_some() {
            remove(fork, namespace, &name).unwrap();
        }
    }
    // Without the last one there would be no tree, and so nothing to lay over the image.
    set(fork, Namespace::User, b"always", b"there", SetXattr::Either).unwrap();
    model.insert(b"user.always".to_vec(), b"there".to_vec());
    model
}

/// Builds forks of `kinds` (changes, names, largest value); the forms that they had.
fn check_volume(options: &[&str], blocks: usize, kinds: &[(usize, u32, usize)]) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(seed());
    let image = Image::mkfs(options);
    let block = image.geometry().block_size as usize;
    let inodes: Vec<u64> = image.mounted(|root| {
        let make = |nth: usize| {
            let path = root.join(format!("file{nth}"));
            File::create(&path).unwrap();
            for part in 0..(blocks * block).div_ceil(65_536 - 8192).max(2) {
                set_as_kernel(&path, format!("user.{part}").as_bytes(), &vec![1; 65_536]);
            }
            std::fs::metadata(&path).unwrap().ino()
        };
        (0..kinds.len()).map(make).collect()
    });
    let mut models = Vec::new();
    let mut forms = Vec::new();
    for (ino, &(count, names, largest)) in inodes.iter().zip(kinds) {
        let mut fork = over(&image.attr_fork(*ino).unwrap());
        let model = history(&mut rng, &mut fork, count, names, largest);
        forms.push(form(&fork));
        lay(&image, &fork);
        compare(&our_attrs(&image.attr_fork(*ino).unwrap()), &model, "read back");
        models.push(model);
    }
    repair_is_content(&image);
    image.mounted(|root| {
        for (nth, model) in models.iter_mut().enumerate() {
            let path = root.join(format!("file{nth}"));
            compare(&kernel_attrs(&path), model, "the kernel");
            for round in 0..200 {
                let name = format!("user.name{}", rng.u32(0..400)).into_bytes();
                if round % 3 > 0 {
                    let value = vec![round as u8; rng.usize(0..300)];
                    set_as_kernel(&path, &name, &value);
                    model.insert(name, value);
                } else if let Some((name, _)) = model.range(name..).next().map(|(n, v)| (n.clone(), v.len()))
                {
                    rustix::fs::lremovexattr(&path, &*name).unwrap();
                    model.remove(&name);
                }
            }
            compare(&kernel_attrs(&path), model, "the kernel, after its own changes");
        }
    });
    repair_is_content(&image);
    for (ino, model) in inodes.iter().zip(&models) {
        compare(&our_attrs(&image.attr_fork(*ino).unwrap()), model, "after the kernel's changes");
    }
    forms
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn default_volume() {
    let kinds = [(10, 5, 0), (300, 40, 20_000), (3000, 2000, 65_536)];
    let forms = check_volume(&[], 1500, &kinds);
    assert_eq!(forms, ["leaf", "tree of level 1", "tree of level 1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn small_blocks() {
    let forms = check_volume(&["-b", "size=1024"], 6000, &[(12, 5, 0), (3000, 2500, 65_536)]);
    // Some long names by chance are more than a leaf of 1 KiB holds.
    assert!(["leaf", "tree of level 1"].contains(&&*forms[0]), "{forms:?}");
    assert_eq!(forms[1], "tree of level 2");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_of_64_kib() {
    check_volume(&["-b", "size=65536"], 150, &[(100, 50, 100), (3000, 2000, 65_536)]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn short_form() {
    let image = Image::mkfs(&[]);
    let ino = image.mounted(|root| {
        let path = root.join("file");
        File::create(&path).unwrap();
        set_as_kernel(&path, b"user.a", &[1; 200]);
        std::fs::metadata(&path).unwrap().ino()
    });
    let mut fork = image.attr_fork(ino).unwrap();
    let room = fork.local().unwrap().len();
    fork.set_local_capacity(room);
    set(&mut fork, Namespace::User, b"a", b"shorter", SetXattr::Replace).unwrap();
    set(&mut fork, Namespace::Root, b"b", b"", SetXattr::Create).unwrap();
    set(&mut fork, Namespace::Secure, b"c", &[9; 100], SetXattr::Create).unwrap();
    set(&mut fork, Namespace::User, b"d", b"gone", SetXattr::Create).unwrap();
    remove(&mut fork, Namespace::User, b"d").unwrap();
    let expected = our_attrs(&fork);
    assert_eq!(expected.len(), 3);
    let geometry = image.geometry();
    let (ag, within) = geometry.split_inode(InodeNumber(ino)).unwrap();
    let at = ((u64::from(ag.0) * u64::from(geometry.ag_blocks)) << geometry.block_log)
        + u64::from(within.0) * u64::from(geometry.inode_size);
    let file = File::options().read(true).write(true).open(image.path()).unwrap();
    let mut inode = vec![0; geometry.inode_size.into()];
    file.read_exact_at(&mut inode, at).unwrap();
    let place = InodeCore::parse(&inode, InodeNumber(ino), &geometry).unwrap().unwrap().attr.unwrap().range;
    let local = fork.local().unwrap();
    inode[place][..local.len()].copy_from_slice(local);
    checksum::store(&mut inode, CRC_OFFSET);
    file.write_all_at(&inode, at).unwrap();
    repair_is_content(&image);
    image.mounted(|root| {
        let path = root.join("file");
        compare(&kernel_attrs(&path), &expected, "the kernel");
        set_as_kernel(&path, b"user.e", &[3; 300]);
        assert_eq!(kernel_attrs(&path).len(), 4);
    });
    repair_is_content(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn symlinks() {
    for (options, lens) in [(&[][..], &[400, 900, 1023][..]), (&["-b", "size=1024"], &[400, 968, 969, 1023])]
    {
        let image = Image::mkfs(options);
        let text = |salt: usize, len: usize| -> Vec<u8> {
            (0..len).map(|at| ((at * 31 + salt) % 254 + 1) as u8).collect()
        };
        let inodes: Vec<u64> = image.mounted(|root| {
            let make = |&len: &usize| {
                let path = root.join(format!("{len}"));
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&text(0, len)), &path).unwrap();
                std::fs::symlink_metadata(&path).unwrap().ino()
            };
            lens.iter().map(make).collect()
        });
        for (ino, &len) in inodes.iter().zip(lens) {
            let mut fork = over(&image.data_fork(*ino));
            fork.set_data_fork();
            symlink::write(&mut fork, &text(len, len)).unwrap();
            lay(&image, &fork);
            assert_eq!(symlink::target(&image.data_fork(*ino)).unwrap(), text(len, len));
        }
        repair_is_content(&image);
        image.mounted(|root| {
            for &len in lens {
                let target = std::fs::read_link(root.join(format!("{len}"))).unwrap();
                assert_eq!(target.as_os_str().as_bytes(), text(len, len));
            }
        });
    }
}
