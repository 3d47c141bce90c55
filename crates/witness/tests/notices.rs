//! The witnesses are worth something only if they notice what changed: each change of a volume, made by the kernel
//! or on the bare image, must show as a difference at that object, in that field, and nowhere else.
//!
//! Needs root, `mkfs.xfs` and a kernel with XFS.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use witness::compare::compare;
use witness::record::{Hash, Record};
use witness::sandbox::{Mounted, mkfs, repair_finds_nothing, scratch};
use witness::volumes::ALL;
use witness::{command, engine, kernel};

const CONTENT: &[u8] = b"a content that is easily found on the bare image";

struct Volume {
    folder: TempDir,
}

impl Volume {
    /// A volume with a few objects in it.
    fn new() -> Self {
        let volume = Self { folder: scratch().unwrap() };
        mkfs(&volume.image(), &ALL[0]).unwrap();
        volume.change(&|dir| {
            fs::write(dir.join("file"), CONTENT).unwrap();
            fs::create_dir(dir.join("dir")).unwrap();
            fs::write(dir.join("dir/inside"), b"x").unwrap();
            symlink("target", dir.join("link")).unwrap();
            let sparse = File::create(dir.join("sparse")).unwrap();
            sparse.set_len(1 << 20).unwrap();
            sparse.write_all_at(&[7; 8192], 1 << 18).unwrap();
            attr(dir, "file", "user.a", "one");
        });
        volume
    }

    fn image(&self) -> std::path::PathBuf {
        self.folder.path().join("image")
    }

    fn mounted(&self, read_only: bool) -> Mounted {
        Mounted::new(&self.image(), &self.folder.path().join("mnt"), read_only).unwrap()
    }

    /// Changes the volume through the kernel.
    fn change(&self, change: &dyn Fn(&Path)) {
        let mounted = self.mounted(false);
        change(mounted.dir());
        mounted.unmount().unwrap();
    }

    fn by_kernel(&self) -> Vec<Record> {
        let mounted = self.mounted(true);
        let manifest = kernel::manifest(mounted.dir(), Hash::Sha256).unwrap();
        mounted.unmount().unwrap();
        manifest
    }

    fn by_uxfs(&self) -> anyhow::Result<Vec<Record>> {
        Ok(engine::manifests(&self.image(), 1, Hash::Sha256)?.remove(0))
    }
}

fn attr(dir: &Path, file: &str, name: &str, value: &str) {
    command::run(Command::new("setfattr").args(["-h", "-n", name, "-v", value]).arg(dir.join(file))).unwrap();
}

fn xfs_io(dir: &Path, file: &str, what: &str) {
    command::run(Command::new("xfs_io").args(["-c", what]).arg(dir.join(file))).unwrap();
}

/// A change: the object and field where it must show, and how it is made.
type Change = (&'static str, &'static str, Box<dyn Fn(&Path)>);

fn changes() -> Vec<Change> {
    let change = |path, field, make: Box<dyn Fn(&Path)>| (path, field, make);
    vec![
        change(
            "/file",
            "inode.content.hash",
            Box::new(|dir| {
                let file = OpenOptions::new().write(true).open(dir.join("file")).unwrap();
                file.write_all_at(b"A", 0).unwrap();
            }),
        ),
        change(
            "/file",
            "inode.size",
            Box::new(|dir| {
                OpenOptions::new().write(true).open(dir.join("file")).unwrap().set_len(7).unwrap();
            }),
        ),
        change(
            "/file",
            "inode.mode",
            Box::new(|dir| {
                fs::set_permissions(dir.join("file"), fs::Permissions::from_mode(0o4711)).unwrap();
            }),
        ),
        change("/dir", "inode.uid", Box::new(|dir| chown(dir.join("dir"), Some(77), None).unwrap())),
        change("/dir", "inode.gid", Box::new(|dir| chown(dir.join("dir"), None, Some(78)).unwrap())),
        change(
            "/file",
            "inode.mtime",
            Box::new(|dir| {
                let time = std::time::UNIX_EPOCH + std::time::Duration::new(5, 1);
                File::options().write(true).open(dir.join("file")).unwrap().set_modified(time).unwrap();
            }),
        ),
        change(
            "/file",
            "inode.nlink",
            Box::new(|dir| {
                fs::hard_link(dir.join("file"), dir.join("file-again")).unwrap();
            }),
        ),
        change("/file-again", "only in", Box::new(|dir| fs::remove_file(dir.join("file-again")).unwrap())),
        change(
            "/dir",
            "inode.entries",
            Box::new(|dir| {
                fs::rename(dir.join("dir/inside"), dir.join("dir/INSIDE")).unwrap();
            }),
        ),
        change(
            "/link",
            "inode.target",
            Box::new(|dir| {
                fs::remove_file(dir.join("link")).unwrap();
                symlink("Target", dir.join("link")).unwrap();
            }),
        ),
        change("/file", "inode.xattrs.user.a.value", Box::new(|dir| attr(dir, "file", "user.a", "two"))),
        change("/file", "inode.xattrs.user.b", Box::new(|dir| attr(dir, "file", "user.b", ""))),
        change("/sparse", "inode.content.data", Box::new(|dir| xfs_io(dir, "sparse", "fpunch 262144 4096"))),
        change("/sparse", "inode.content.extents", Box::new(|dir| xfs_io(dir, "sparse", "falloc 0 4096"))),
        change("/sparse", "inode.blocks", Box::new(|dir| xfs_io(dir, "sparse", "falloc -k 2097152 4096"))),
        change(
            "/clone",
            "only in",
            Box::new(|dir| {
                command::run(
                    Command::new("cp").arg("--reflink=always").args([dir.join("sparse"), dir.join("clone")]),
                )
                .unwrap();
            }),
        ),
        change(
            "/sparse",
            "inode.content.extents",
            Box::new(|dir| fs::remove_file(dir.join("clone")).unwrap()),
        ),
    ]
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn each_change_by_the_kernel_shows_where_it_was_made() {
    let volume = Volume::new();
    let mut before = volume.by_kernel();
    for (path, field, change) in changes() {
        volume.change(&*change);
        let after = volume.by_uxfs().unwrap();
        let differences = compare(&before, &after).unwrap().differences;
        let there = |line: &String| line.starts_with(&format!("{path}: {field}"));
        assert!(differences.iter().any(there), "{path} {field} is not among {differences:#?}");
        // The kernel sees the change as uxfs does.
        before = volume.by_kernel();
        let differences = compare(&before, &after).unwrap().differences;
        assert!(differences.is_empty(), "{differences:#?}");
    }
    repair_finds_nothing(&volume.image()).unwrap();
}

/// Flips one bit of the image behind the kernel's back.
fn flip(image: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Where `needle` stands on the image; only its first part can hold it on volumes as small as these.
fn find(image: &Path, needle: &[u8]) -> u64 {
    let mut bytes = vec![0; 64 << 20];
    File::open(image).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes.windows(needle.len()).position(|window| window == needle).expect("it is on the image") as u64
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn one_flipped_bit_of_content_shows() {
    let volume = Volume::new();
    let before = volume.by_kernel();
    flip(&volume.image(), find(&volume.image(), CONTENT) + 5);
    let differences = compare(&before, &volume.by_uxfs().unwrap()).unwrap().differences;
    assert_eq!(differences.len(), 1, "{differences:#?}");
    assert!(differences[0].starts_with("/file: inode.content.hash"), "{differences:#?}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn one_flipped_bit_of_metadata_is_an_error_and_repair_finds_it() {
    let volume = Volume::new();
    let before = volume.by_kernel();
    // The target of the symbolic link lies in its inode.
    flip(&volume.image(), find(&volume.image(), b"target"));
    let error = format!("{:#}", volume.by_uxfs().unwrap_err());
    let link = before.iter().find(|record| record.path == "/link").unwrap();
    assert!(error.contains(&format!("inode {}", link.ino)), "{error}");
    assert!(repair_finds_nothing(&volume.image()).is_err());
}
