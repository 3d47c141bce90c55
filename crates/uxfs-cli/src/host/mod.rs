//! A tree on the host that is being written.
//!
//! Invariants: nothing outside the tree is touched, whatever names and links an image has: every name is one part,
//! taken relative to an open directory, and no symbolic link in the tree is followed; an existing file is replaced,
//! not written through, unless it is one that is kept (the image that is read), or a device, pipe or socket in the
//! place of a file. However deep the tree, one directory is open at a time: the way back up is `..`, believed
//! only where it is the directory that was come from.

pub mod attributes;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// A directory is opened for reading, and never through a link.
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// New files are for their owner alone until they are complete.
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_DIR: Mode = Mode::RWXU;

/// The device and the inode: what makes a file the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// Of what the host said.
    pub fn of(stat: &Stat) -> Self {
        // The types of the two differ between machines.
        #[allow(clippy::useless_conversion)]
        Self(stat.st_dev.into(), stat.st_ino.into())
    }

    /// Of what a path leads to, if it leads to something.
    pub fn of_path(path: &Path) -> Option<Self> {
        rustix::fs::stat(path).ok().as_ref().map(Self::of)
    }
}

/// Where in the tree the writing is.
pub struct HostTree {
    base: OwnedFd,
    current: OwnedFd,
    above: Vec<Level>,
    /// The current directory, relative to the base, with a slash at its end.
    path: Vec<u8>,
    /// Files that are never replaced, whatever they are called.
    kept: Vec<Identity>,
}

/// A directory above the current one.
struct Level {
    identity: Identity,
    path_len: usize,
}

impl HostTree {
    /// The tree in an existing directory of the host, which the user named: links on the way there are followed.
    /// None of the files in `kept` is ever replaced.
    pub fn open(dir: &Path, kept: &[Identity]) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = rustix::fs::open(dir, flags, Mode::empty())?;
        let current = base.try_clone()?;
        Ok(Self { base, current, above: Vec::new(), path: Vec::new(), kept: kept.to_vec() })
    }

    /// The directory that the writing is in.
    pub fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// A name in the current directory, relative to the base.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [&self.path, name].concat()
    }

    /// Goes into the directory `name`, which is made unless it is there.
    pub fn enter(&mut self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        match rustix::fs::mkdirat(&self.current, name, PRIVATE_DIR) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let identity = Identity::of(&rustix::fs::fstat(&self.current)?);
        let inner = rustix::fs::openat(&self.current, name, DIR, Mode::empty())?;
        self.above.push(Level { identity, path_len: self.path.len() });
        self.path.extend(name);
        self.path.push(b'/');
        self.current = inner;
        Ok(())
    }

    /// Goes back up; gives the directory that was left.
    pub fn leave(&mut self) -> io::Result<OwnedFd> {
        let level = self.above.pop().ok_or(io::ErrorKind::NotFound)?;
        self.path.truncate(level.path_len);
        let outer = rustix::fs::openat(&self.current, "..", DIR, Mode::empty())?;
        if Identity::of(&rustix::fs::fstat(&outer)?) != level.identity {
            return Err(io::Error::other("the destination was moved while it was written"));
        }
        Ok(std::mem::replace(&mut self.current, outer))
    }

    /// A new regular file, open for writing, in place of whatever had that name.
    pub fn create_file(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.replace(name, FileType::RegularFile, || {
            rustix::fs::openat(&self.current, name, flags, PRIVATE_FILE)
        })
    }

    /// A new symbolic link.
    pub fn create_symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.replace(name, FileType::Symlink, || rustix::fs::symlinkat(target, &self.current, name))
    }

    /// A new device node, named pipe or socket.
    pub fn create_node(&self, name: &[u8], file_type: FileType, device: (u32, u32)) -> io::Result<()> {
        let device = rustix::fs::makedev(device.0, device.1);
        self.replace(name, file_type, || {
            rustix::fs::mknodat(&self.current, name, file_type, PRIVATE_FILE, device)
        })
    }

    /// Another name for the file that was written at `path`, relative to the base. Whether it is still there.
    pub fn link(&self, path: &[u8], identity: Identity, name: &[u8]) -> io::Result<bool> {
        let mut parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let Some(last) = parts.pop() else { return Ok(false) };
        let mut dir = self.base.try_clone()?;
        for part in parts {
            dir = rustix::fs::openat(&dir, part, DIR, Mode::empty())?;
        }
        let file_type = match rustix::fs::statat(&dir, last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if Identity::of(&stat) == identity => FileType::from_raw_mode(stat.st_mode),
            _ => return Ok(false),
        };
        self.replace(name, file_type, || {
            rustix::fs::linkat(&dir, last, &self.current, name, AtFlags::empty())
        })?;
        Ok(true)
    }

    /// What the host says of `name` in the current directory.
    pub fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.current, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Makes something, and if its name is taken (not by a directory), removes what has it and tries once more.
    fn replace<T>(
        &self,
        name: &[u8],
        file_type: FileType,
        make: impl Fn() -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        check_name(name)?;
        match make() {
            Err(Errno::EXIST) => {
                self.check_replaceable(name, file_type)?;
                rustix::fs::unlinkat(&self.current, name, AtFlags::empty())?;
                Ok(make()?)
            }
            other => Ok(other?),
        }
    }

    /// Whether what has the name may make room for a `new` thing. A file in the place of `/dev/null`, say, is
    /// hardly meant, and does harm.
    fn check_replaceable(&self, name: &[u8], new: FileType) -> io::Result<()> {
        let taken = self.stat(name)?;
        if self.kept.contains(&Identity::of(&taken)) {
            return Err(io::Error::other(
                "the image that is read has the name of the copy; choose another place",
            ));
        }
        let old = FileType::from_raw_mode(taken.st_mode);
        let is_special = !matches!(old, FileType::RegularFile | FileType::Symlink | FileType::Directory);
        if new == FileType::RegularFile && is_special {
            let old = described(old);
            return Err(io::Error::other(format!("{old} has the name of the copy, and is left as it is")));
        }
        Ok(())
    }
}

/// A type, for a person.
fn described(file_type: FileType) -> &'static str {
    match file_type {
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    }
}

/// A name is one part of a path, and not one of the two that lead elsewhere.
fn check_name(name: &[u8]) -> io::Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&byte| matches!(byte, 0 | b'/')) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name that no file can have"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_in_the_tree_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        std::fs::create_dir(&tree).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "kept").unwrap();
        symlink(&outside, tree.join("dir")).unwrap();
        symlink(outside.join("file"), tree.join("file")).unwrap();

        let mut host = HostTree::open(&tree, &[]).unwrap();
        assert!(host.enter(b"dir").is_err());
        drop(host.create_file(b"file").unwrap());
        assert!(tree.join("file").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "kept");
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = HostTree::open(dir.path(), &[]).unwrap();
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b"] {
            assert!(host.enter(name).is_err());
            assert!(host.create_file(name).is_err());
            assert!(host.create_symlink(name, b"x").is_err());
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_kept_and_what_is_special_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, "volume").unwrap();
        std::fs::hard_link(&image, dir.path().join("other-name")).unwrap();
        let kept = Identity::of(&rustix::fs::stat(&image).unwrap());
        let host = HostTree::open(dir.path(), &[kept]).unwrap();
        for name in [&b"image"[..], b"other-name"] {
            assert!(host.create_file(name).is_err());
            assert!(host.create_symlink(name, b"x").is_err());
            assert!(host.create_node(name, FileType::Fifo, (0, 0)).is_err());
        }
        assert_eq!(std::fs::read_to_string(&image).unwrap(), "volume");

        drop(host.create_file(b"file").unwrap());
        let file = Identity::of(&host.stat(b"file").unwrap());
        host.create_node(b"pipe", FileType::Fifo, (0, 0)).unwrap();
        assert!(host.create_file(b"pipe").is_err());
        assert!(host.link(b"file", file, b"pipe").is_err());
        assert_eq!(FileType::from_raw_mode(host.stat(b"pipe").unwrap().st_mode), FileType::Fifo);
        // Its like replaces it, so that a tree can be copied once more.
        host.create_node(b"pipe", FileType::Fifo, (0, 0)).unwrap();
        host.create_node(b"file", FileType::Fifo, (0, 0)).unwrap();
    }

    #[test]
    fn the_way_back_up_is_the_way_down() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = HostTree::open(dir.path(), &[]).unwrap();
        host.enter(b"a").unwrap();
        host.enter(b"b").unwrap();
        assert_eq!(host.path_of(b"c"), b"a/b/c");
        host.leave().unwrap();
        host.leave().unwrap();
        assert_eq!(host.path_of(b"c"), b"c");
        host.enter(b"a").unwrap();
        host.enter(b"b").unwrap();
        std::fs::rename(dir.path().join("a/b"), dir.path().join("b")).unwrap();
        assert!(host.leave().is_err());
    }

    #[test]
    fn a_link_is_made_only_to_the_very_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = HostTree::open(dir.path(), &[]).unwrap();
        host.enter(b"a").unwrap();
        drop(host.create_file(b"one").unwrap());
        let identity = Identity::of(&host.stat(b"one").unwrap());
        host.leave().unwrap();
        assert!(host.link(b"a/one", identity, b"two").unwrap());
        assert_eq!(Identity::of(&host.stat(b"two").unwrap()), identity);
        std::fs::remove_file(dir.path().join("a/one")).unwrap();
        std::fs::write(dir.path().join("a/one"), "another").unwrap();
        assert!(!host.link(b"a/one", identity, b"three").unwrap());
    }
}
