//! A tree of the host, of everything that a directory can hold, from a seed.
//!
//! Invariants: the same seed and count give the same tree, times and owners included; everybody may read all of it, so
//! that an unprivileged user can copy it; no path is longer than the host takes in one piece.

use anyhow::{Context, Result};
use fastrand::Rng;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// What was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Made {
    /// Names of everything but directories.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Bytes of content, holes left out.
    pub bytes: u64,
}

/// Longest path, below the root of the tree.
const PATH_MAX: usize = 3000;
/// Files a directory, about.
const FILES_A_DIR: u64 = 30;
const OWNERS: [u32; 5] = [0, 1000, 65_534, 100_000, 4_000_000_000];
const FILE_MODES: [u32; 6] = [0o644, 0o444, 0o755, 0o664, 0o4755, 0o2755];
const DIR_MODES: [u32; 5] = [0o755, 0o775, 0o1777, 0o2755, 0o555];

/// Makes a tree of `files` files below `root`, which is there and empty.
pub fn make(root: &Path, seed: u64, files: u64) -> Result<Made> {
    let dirs = vec![Directory { path: root.to_owned(), names: HashSet::new() }];
    let mut tree = Tree { rng: Rng::with_seed(seed), dirs, links: Vec::new(), made: Made::default() };
    let wide = tree.directory(0)?;
    let dirs = (files / FILES_A_DIR).max(4);
    for _ in 0..dirs {
        // Every other one goes into the newest: some ways down are long.
        let parent = if tree.rng.bool() { tree.dirs.len() - 1 } else { tree.rng.usize(..tree.dirs.len()) };
        tree.directory(if parent == wide { 0 } else { parent })?;
    }
    for _ in 0..files {
        // A quarter of all in one directory.
        let dir = if tree.rng.u8(..4) == 0 { wide } else { tree.rng.usize(..tree.dirs.len()) };
        tree.file(dir)?;
    }
    tree.finish()
}

struct Directory {
    path: PathBuf,
    names: HashSet<Vec<u8>>,
}

struct Tree {
    rng: Rng,
    dirs: Vec<Directory>,
    /// Files that may get another name.
    links: Vec<PathBuf>,
    made: Made,
}

impl Tree {
    fn directory(&mut self, parent: usize) -> Result<usize> {
        let path = self.name(parent);
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        self.dirs.push(Directory { path, names: HashSet::new() });
        self.made.dirs += 1;
        Ok(self.dirs.len() - 1)
    }

    fn file(&mut self, dir: usize) -> Result<()> {
        let path = self.name(dir);
        let made = match self.rng.u32(..1000) {
            0..50 if !self.links.is_empty() => {
                let to = self.rng.choice(&self.links).context("there is one")?;
                std::fs::hard_link(to, &path)
            }
            0..130 => symlink(OsStr::from_bytes(&self.target()), &path),
            130..134 => self.special(&path),
            134..154 => self.sparse(&path),
            _ => self.regular(&path),
        };
        made.with_context(|| path.display().to_string())?;
        self.made.files += 1;
        Ok(())
    }

    /// A new name in a directory; in the root, if its path is too long.
    fn name(&mut self, dir: usize) -> PathBuf {
        let dir = if self.dirs[dir].path.as_os_str().len() > PATH_MAX { 0 } else { dir };
        loop {
            let len = match self.rng.u8(..100) {
                0 => 255,
                1..5 => self.rng.usize(30..200),
                _ => self.rng.usize(1..20),
            };
            let any = self.rng.u8(..10) == 0;
            let mut byte = || if any { self.rng.u8(1..) } else { self.rng.alphanumeric() as u8 };
            let name: Vec<u8> =
                std::iter::repeat_with(&mut byte).filter(|&byte| byte != b'/').take(len).collect();
            let dir = &mut self.dirs[dir];
            if name != b"." && name != b".." && dir.names.insert(name.clone()) {
                return dir.path.join(OsStr::from_bytes(&name));
            }
        }
    }

    fn target(&mut self) -> Vec<u8> {
        let len = if self.rng.u8(..20) == 0 { self.rng.usize(200..1023) } else { self.rng.usize(1..60) };
        std::iter::repeat_with(|| self.rng.u8(1..)).take(len).collect()
    }

    fn special(&mut self, path: &Path) -> std::io::Result<()> {
        let (kind, dev) = match self.rng.u8(..4) {
            0 => (FileType::Fifo, 0),
            1 => (FileType::Socket, 0),
            2 => (FileType::CharacterDevice, rustix::fs::makedev(self.rng.u32(..500), self.rng.u32(..9999))),
            _ => (FileType::BlockDevice, rustix::fs::makedev(self.rng.u32(..500), self.rng.u32(..9999))),
        };
        Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_bits_retain(0o644), dev)?)
    }

    fn regular(&mut self, path: &Path) -> std::io::Result<()> {
        let len = match self.rng.u32(..1000) {
            0..40 => 0,
            40..700 => self.rng.usize(1..4096),
            700..900 => self.rng.usize(..16 << 10),
            900..997 => self.rng.usize(..32 << 10),
            _ => self.rng.usize(..=1 << 20),
        };
        let file = File::create_new(path)?;
        self.data(&file, 0, len)?;
        self.links.push(path.to_owned());
        Ok(())
    }

    /// Runs of data with holes between them, and perhaps one at the end.
    fn sparse(&mut self, path: &Path) -> std::io::Result<()> {
        let file = File::create_new(path)?;
        let mut at = 0;
        for _ in 0..self.rng.u8(..6) {
            at += self.rng.u64(1..200_000);
            let len = self.rng.usize(1..10_000);
            self.data(&file, at, len)?;
            at += len as u64;
        }
        file.set_len(at + self.rng.u64(..200_000))
    }

    fn data(&mut self, file: &File, at: u64, len: usize) -> std::io::Result<()> {
        let mut data = vec![0; len];
        self.rng.fill(&mut data);
        self.made.bytes += len as u64;
        file.write_all_at(&data, at)
    }

    /// Sets owners, permissions and times of everything; directories come after their content.
    fn finish(mut self) -> Result<Made> {
        let dirs = std::mem::take(&mut self.dirs);
        for dir in dirs.iter().rev() {
            let mut names: Vec<&Vec<u8>> = dir.names.iter().collect();
            names.sort_unstable();
            for name in names {
                let path = dir.path.join(OsStr::from_bytes(name));
                if !path.symlink_metadata()?.is_dir() {
                    self.say(&path).with_context(|| path.display().to_string())?;
                }
            }
            self.say(&dir.path).with_context(|| dir.path.display().to_string())?;
        }
        Ok(self.made)
    }

    fn say(&mut self, path: &Path) -> Result<()> {
        let kind = path.symlink_metadata()?.file_type();
        let mut owner = || OWNERS[self.rng.usize(..OWNERS.len())];
        lchown(path, Some(owner()), Some(owner()))?;
        if (kind.is_file() || kind.is_dir()) && self.rng.u8(..10) == 0 {
            self.attributes(path)?;
        }
        if !kind.is_symlink() {
            let modes: &[u32] = if kind.is_dir() { &DIR_MODES } else { &FILE_MODES };
            let mode = modes[self.rng.usize(..modes.len())];
            std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        let mut time = || Timespec {
            tv_sec: self.rng.i64(600_000_000..2_200_000_000),
            tv_nsec: self.rng.i64(0..1_000_000_000),
        };
        let times = Timestamps { last_access: time(), last_modification: time() };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn attributes(&mut self, path: &Path) -> Result<()> {
        for nth in 0..self.rng.u8(1..4) {
            let longest = if self.rng.u8(..30) == 0 { 9_000 } else { 200 };
            let mut value = vec![0; self.rng.usize(..longest)];
            self.rng.fill(&mut value);
            rustix::fs::lsetxattr(path, format!("user.number-{nth}"), &value, XattrFlags::empty())?;
        }
        if self.rng.bool() {
            let list = acl([
                (0x01, 6, u32::MAX),
                (0x02, 5, 1000),
                (0x04, 5, u32::MAX),
                (0x10, 5, u32::MAX),
                (0x20, 5, u32::MAX),
            ]);
            rustix::fs::lsetxattr(path, "system.posix_acl_access", &list, XattrFlags::empty())?;
        }
        Ok(())
    }
}

/// An access control list in the form of Linux: tag, permissions, ID.
fn acl(entries: [(u16, u16, u32); 5]) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}
