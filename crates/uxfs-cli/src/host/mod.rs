//! A tree on the host that is being written.
//!
//! Invariants: nothing outside the tree is touched, whatever names and links an image has: every name is one part,
//! relative to an open directory, and no symbolic link in the tree is followed, except the one that the user
//! named. An existing file is overwritten, or replaced when the new one is complete. Never touched are a protected
//! file (the image that is read), a file that was made just now, and a device, pipe or socket in the place of a
//! file. However deep the tree, one directory is open at a time: the way back up is `..`, which is checked to be
//! the directory that we came from.

pub mod ahead;
pub mod attributes;
pub mod links;
mod new;
pub mod stream;
pub mod volumes;

pub use self::new::rename;

use self::new::{NewFile, PrivateName};
use crate::walk::InodeSet;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory is opened for reading.
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Device and inode: the identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// From the host's metadata.
    pub fn of(stat: &Stat) -> Self {
        // The types of the two differ between machines.
        #[allow(clippy::useless_conversion)]
        Self(stat.st_dev.into(), stat.st_ino.into())
    }

    /// The identity of a path's file, if it exists.
    pub fn of_path(path: &Path) -> Option<Self> {
        rustix::fs::stat(path).ok().as_ref().map(Self::of)
    }
}

/// How a tree is written.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Whether a new file replaces an existing one. Otherwise that is overwritten.
    pub replace: bool,
    /// Whether files with several names are replaced, as with `cp -a`.
    pub keep_links: bool,
    /// Whether the user named the top itself, and not its directory.
    pub named: bool,
    /// Whether new files get another owner in the end.
    pub owned: bool,
    /// Bits to clear in permissions.
    pub umask: Mode,
    /// Files that are never replaced or written into, whatever they are called.
    pub kept: Vec<Identity>,
}

/// The present position in the tree.
pub struct HostTree {
    rules: Rules,
    base: OwnedFd,
    current: OwnedFd,
    above: Vec<Level>,
    /// Files that were made or written, by device.
    made: HashMap<u64, InodeSet>,
    /// Files that were attached as loop devices at the time of opening.
    attached: Vec<Identity>,
}

/// A directory that was gone into.
struct Level {
    /// Its name.
    name: Vec<u8>,
    /// The directory above it.
    outer: Identity,
    /// Its final permissions, unless others are set.
    finish: Option<Mode>,
    /// Whether it was made.
    made: bool,
    /// Its identity for remembered directories.
    index: links::DirIndex,
}

/// A directory that was left.
pub struct Left {
    /// The directory.
    pub fd: OwnedFd,
    /// Permissions that it still needs, unless others are set.
    pub finish: Option<Mode>,
    /// Whether it was made.
    pub made: bool,
}

/// The first metadata of a new file.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// Permissions, before the umask.
    pub mode: Mode,
    /// Whether it gives special rights to whoever runs it: a file that others may have open must not get
    /// these.
    pub privileged: bool,
}

/// A regular file that is written.
pub enum Target {
    /// A new file, which gets its name when it is complete, and whether it replaces what has the name then.
    New(NewFile, bool),
    /// An existing file.
    Kept(OwnedFd),
}

impl Target {
    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::New(file, _) => file.fd(),
            Self::Kept(fd) => fd.as_fd(),
        }
    }
}

/// Something that has no content.
#[derive(Clone, Copy, Debug)]
pub enum Leaf<'a> {
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A device, pipe or socket: its type and device number.
    Node(FileType, (u32, u32)),
}

impl HostTree {
    /// A tree in an existing directory that the user named: links on the path are followed.
    pub fn open(dir: &Path, rules: Rules) -> io::Result<Self> {
        let base = rustix::fs::open(dir, DIR | OFlags::CLOEXEC, Mode::empty())?;
        let current = base.try_clone()?;
        let attached =
            uxfs::attached_files().into_iter().map(|(device, ino)| Identity(device, ino)).collect();
        Ok(Self { rules, base, current, above: Vec::new(), made: HashMap::new(), attached })
    }

    /// Goes back to its first directory.
    pub fn restart(&mut self) -> io::Result<()> {
        self.current = self.base.try_clone()?;
        self.above.clear();
        Ok(())
    }

    /// The current directory.
    pub fn current(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// A name in the current directory, relative to the base.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let parts = self.above.iter().map(|level| &*level.name).chain([name]);
        parts.collect::<Vec<_>>().join(&b'/')
    }

    /// Enters the directory `name`, which is made if needed.
    pub fn enter(&mut self, name: &[u8], mode: Mode) -> io::Result<()> {
        check_name(name)?;
        // Only its owner can write to it until it is complete.
        let omitted = if self.rules.owned { Mode::RWXG | Mode::RWXO } else { Mode::WGRP | Mode::WOTH };
        let made = match rustix::fs::mkdirat(&self.current, name, (mode - omitted) | Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let outer = new::identity(&self.current)?;
        let inner = match beneath(&self.current, name, DIR) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(self.not_a_directory(name)),
            inner => inner?,
        };
        let finish = if made {
            let got = Mode::from_raw_mode(rustix::fs::fstat(&inner)?.st_mode);
            let wanted = (got - (Mode::RWXU - mode)) | ((mode & omitted) - self.rules.umask);
            (wanted != got).then_some(wanted)
        } else {
            None
        };
        self.above.push(Level { name: name.to_vec(), outer, finish, made, index: None });
        self.current = inner;
        Ok(())
    }

    fn not_a_directory(&self, name: &[u8]) -> io::Error {
        let old = self.stat(name).map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode));
        taken(format!("{} has the name of the directory, and is left as it is", described(old)))
    }

    /// Goes back up; gives the directory that it leaves.
    pub fn leave(&mut self) -> io::Result<Left> {
        let level = self.above.pop().ok_or(io::ErrorKind::NotFound)?;
        let flags = DIR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let outer = rustix::fs::openat(&self.current, "..", flags, Mode::empty())?;
        if new::identity(&outer)? != level.outer {
            return Err(io::Error::other("the destination was moved while it was written"));
        }
        let Level { finish, made, .. } = level;
        Ok(Left { fd: std::mem::replace(&mut self.current, outer), finish, made })
    }

    /// A regular file to write to: the existing one, or a new one. At the top, links are followed.
    pub fn open_file(&mut self, name: &[u8], new: New) -> io::Result<Target> {
        check_name(name)?;
        let Some(mut there) = self.existing(name)? else {
            return self.new_file(new, self.rules.replace);
        };
        let mut kind = FileType::from_raw_mode(there.st_mode);
        let follow = kind == FileType::Symlink && self.above.is_empty() && !self.rules.replace;
        if follow {
            there = match rustix::fs::statat(&self.current, name, AtFlags::empty()) {
                Err(Errno::NOENT) => {
                    return Err(taken(
                        "a symbolic link that leads nowhere has the name of the copy".to_owned(),
                    ));
                }
                there => there?,
            };
            kind = FileType::from_raw_mode(there.st_mode);
        }
        self.check_replaceable(&there, FileType::RegularFile)?;
        if self.rules.replace || (self.rules.keep_links && there.st_nlink > 1) {
            if self.is_named() {
                // What would be refused in the end is refused before the work.
                volumes::hold_at(&self.current, name, |identity| self.asks(identity))?;
            }
            return self.new_file(new, true);
        }
        if kind == FileType::Symlink {
            let what = "a symbolic link has the name of the copy; --replace puts the copy in its place";
            return Err(taken(what.to_owned()));
        }
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match follow {
            true => rustix::fs::openat(&self.current, name, flags, Mode::empty())?,
            false => beneath(&self.current, name, flags)?,
        };
        let found = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("something else took its name meanwhile"));
        }
        self.check_replaceable(&found, FileType::RegularFile)?;
        let user = rustix::process::geteuid().as_raw();
        if new.privileged && found.st_uid != user {
            let what = "the file that is there is another user's, who may have it open, and gets no privileges;                         --replace makes a new one";
            return Err(taken(what.to_owned()));
        }
        volumes::hold(&fd, self.asks(Identity::of(&found)))?;
        // The last user of the file may have removed it.
        let follow = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let now = rustix::fs::statat(&self.current, name, follow);
        if !now.is_ok_and(|now| Identity::of(&now) == Identity::of(&found)) {
            return Err(volumes::replaced());
        }
        rustix::fs::ftruncate(&fd, 0)?;
        Ok(Target::Kept(fd))
    }

    fn new_file(&self, new: New, replace: bool) -> io::Result<Target> {
        Ok(Target::New(NewFile::create(&self.current, new.mode, self.rules.owned)?, replace))
    }

    /// Finishes a written file: it gets its name.
    pub fn publish(&mut self, name: &[u8], file: Target) -> io::Result<Identity> {
        let identity = new::identity(file.fd())?;
        match file {
            Target::New(mut file, true) => {
                let regular = FileType::RegularFile;
                self.take_place(name, regular, |replace| file.publish(&self.current, name, replace))?;
            }
            Target::New(mut file, false) => file.publish(&self.current, name, false)?,
            Target::Kept(_) => {}
        }
        self.remember(identity);
        Ok(identity)
    }

    /// Makes something without content, replacing what has its name; `attributes` are set by handle.
    pub fn create(
        &mut self,
        name: &[u8],
        leaf: Leaf<'_>,
        mode: Mode,
        attributes: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<Identity> {
        check_name(name)?;
        let (kind, device) = match leaf {
            Leaf::Symlink(_) => (FileType::Symlink, 0),
            Leaf::Node(kind, (major, minor)) => (kind, rustix::fs::makedev(major, minor)),
        };
        let make = |name: &[u8]| match leaf {
            Leaf::Symlink(target) => rustix::fs::symlinkat(target, &self.current, name),
            Leaf::Node(..) => rustix::fs::mknodat(&self.current, name, kind, mode, device),
        };
        // What would be refused in the end is refused before the work.
        self.check_taken(name, kind)?;
        let mut made = PrivateName::make(&self.current, make)?;
        let handle = new::handle_of_made(&self.current, made.name(), kind, device)?;
        attributes(handle.as_fd())?;
        let identity = new::identity(handle)?;
        self.take_place(name, kind, |replace| made.rename(name, replace))?;
        drop(made);
        self.remember(identity);
        Ok(identity)
    }

    /// Makes `name` another name of the file `old` in `dir` (default: the current directory), replacing what has the
    /// name. Gives whether the file still exists.
    fn link(
        &mut self,
        dir: Option<&OwnedFd>,
        old: &[u8],
        identity: Identity,
        name: &[u8],
    ) -> io::Result<bool> {
        check_name(name)?;
        let dir = dir.unwrap_or(&self.current);
        let kind = match rustix::fs::statat(dir, old, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if Identity::of(&stat) == identity => FileType::from_raw_mode(stat.st_mode),
            _ => return Ok(false),
        };
        if self.existing(name)?.is_some_and(|there| Identity::of(&there) == identity) {
            return Ok(true);
        }
        self.check_taken(name, kind)?;
        #[cfg(test)]
        new::tests::interleave();
        let link = |name: &[u8]| rustix::fs::linkat(dir, old, &self.current, name, AtFlags::empty());
        let mut made = match PrivateName::make(&self.current, link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            made => made?,
        };
        // Another file may have the old name since the look.
        if Identity::of(&self.stat(made.name())?) != identity {
            return Ok(false);
        }
        self.take_place(name, kind, |replace| made.rename_link(identity, name, replace))?;
        Ok(true)
    }

    /// See [`check_replaceable`](Self::check_replaceable); of what has the name now, if anything has.
    fn check_taken(&self, name: &[u8], new: FileType) -> io::Result<()> {
        self.existing(name)?.map_or(Ok(()), |there| self.check_replaceable(&there, new))
    }

    /// The identity of the current directory among remembered ones; `None` if it has none.
    fn known(&self) -> Option<links::DirIndex> {
        match self.above.last() {
            None => Some(None),
            Some(level) => level.index.map(Some),
        }
    }

    /// The host's metadata of `name` in the current directory.
    pub fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.current, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn existing(&self, name: &[u8]) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.current, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok(Some(there)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts something of this type under a name in the current directory, while the old file is held. What has come to
    /// have the name meanwhile is replaced only if that is allowed.
    fn take_place(
        &self,
        name: &[u8],
        kind: FileType,
        mut take: impl FnMut(bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let take = |replace: bool| {
            if replace {
                self.check_taken(name, kind)?;
            }
            take(replace)
        };
        volumes::take_place(&self.current, name, |identity| self.asks(identity), take)
    }

    /// Whether to check if a file is attached as a loop device: for every file, that takes too long.
    fn asks(&self, identity: Identity) -> bool {
        self.is_named() || self.attached.contains(&identity)
    }

    /// Whether the files in the current directory were named by the user, and are not below a named
    /// directory.
    fn is_named(&self) -> bool {
        self.rules.named && self.above.is_empty()
    }

    fn remember(&mut self, Identity(device, ino): Identity) {
        self.made.entry(device).or_default().insert(ino);
    }

    /// Whether the existing file may be replaced by a `new` one, or be overwritten. A file in the place of
    /// `/dev/null`, for example, is hardly meant, and does harm.
    fn check_replaceable(&self, there: &Stat, new: FileType) -> io::Result<()> {
        let identity = Identity::of(there);
        if self.rules.kept.contains(&identity) {
            let what = "the image that is read has the name of the copy; choose another place";
            return Err(taken(what.to_owned()));
        }
        let old = FileType::from_raw_mode(there.st_mode);
        if old == FileType::Directory {
            return Err(taken("a directory has the name of the copy, and is left as it is".to_owned()));
        }
        if self.made.get(&identity.0).is_some_and(|made| made.contains(identity.1)) {
            let what = "something else was copied to this name just now, and is left as it is";
            return Err(taken(what.to_owned()));
        }
        let is_special = !matches!(old, FileType::RegularFile | FileType::Symlink);
        if new == FileType::RegularFile && is_special {
            let old = described(old);
            return Err(io::Error::other(format!("{old} has the name of the copy, and is left as it is")));
        }
        Ok(())
    }
}

/// Opens a name in a directory, without following a link.
fn beneath(dir: &OwnedFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    /// Whether the host has `openat2`, if known.
    static KNOWN: AtomicBool = AtomicBool::new(true);
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if KNOWN.load(Ordering::Relaxed) {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
            // A system call filter may give this error, too.
            Err(Errno::NOSYS | Errno::PERM) => KNOWN.store(false, Ordering::Relaxed),
            other => return other,
        }
    }
    // For a single name, `O_NOFOLLOW` is as good.
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Something exists already and would be lost.
fn taken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, what)
}

/// A type, for a person.
fn described(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a file",
        FileType::Symlink => "a symbolic link",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    }
}

/// A name is one part of a path, and neither `.` nor `..`.
fn check_name(name: &[u8]) -> io::Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&byte| matches!(byte, 0 | b'/')) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name that no file can have"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::links::{Link, Links};
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;

    const NEW: New = New { mode: Mode::from_raw_mode(0o644), privileged: false };

    fn rules() -> Rules {
        Rules {
            replace: false,
            named: true,
            keep_links: false,
            owned: false,
            umask: Mode::empty(),
            kept: Vec::new(),
        }
    }

    fn open(dir: &Path) -> HostTree {
        HostTree::open(dir, rules()).unwrap()
    }

    fn write(host: &mut HostTree, name: &[u8], bytes: &[u8]) -> io::Result<Identity> {
        let file = host.open_file(name, NEW)?;
        rustix::io::write(file.fd(), bytes)?;
        host.publish(name, file)
    }

    fn fifo(host: &mut HostTree, name: &[u8]) -> io::Result<Identity> {
        host.create(name, Leaf::Node(FileType::Fifo, (0, 0)), Mode::RUSR, |_| Ok(()))
    }

    /// Two processes replace one name that nothing has.
    #[test]
    fn who_replaces_a_name_may_find_that_another_was_faster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut host = HostTree::open(dir.path(), Rules { replace: true, ..rules() }).unwrap();
        let made = |host: &mut HostTree, between: &dyn Fn()| {
            let file = host.open_file(b"file", NEW)?;
            rustix::io::write(file.fd(), b"ours")?;
            between();
            host.publish(b"file", file)
        };
        made(&mut host, &|| std::fs::write(&path, "another").unwrap()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"ours");
        // It goes, or becomes what is not to be replaced.
        std::fs::remove_file(&path).unwrap();
        made(&mut host, &|| {}).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"ours");
        std::fs::remove_file(&path).unwrap();
        made(&mut host, &|| std::fs::create_dir(&path).unwrap()).unwrap_err();
        assert!(path.is_dir());
        std::fs::remove_dir(&path).unwrap();
        let mut host = open(dir.path());
        let refused = made(&mut host, &|| std::fs::write(&path, "another").unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"another");
    }

    /// The only name in a directory that is not this one.
    fn private_name(dir: &Path, known: &str) -> PathBuf {
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        names.filter(|entry| entry.file_name().as_os_str() != known).map(|entry| entry.path()).next().unwrap()
    }

    fn names(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    /// Another process takes the name of a pipe or link that is being made.
    #[test]
    fn what_takes_a_name_meanwhile_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name");
        for leaf in [Leaf::Node(FileType::Fifo, (0, 0)), Leaf::Symlink(b"anywhere")] {
            let mut host = open(dir.path());
            let mut made = |what: &'static [u8]| {
                new::tests::once_made({
                    let path = path.clone();
                    move || std::fs::write(path, what).unwrap()
                });
                host.create(b"name", leaf, Mode::RUSR, |_| Ok(()))
            };
            assert_eq!(made(b"XFSB and so on").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&path).unwrap(), b"XFSB and so on");
            std::fs::remove_file(&path).unwrap();
            // An ordinary file is replaced, as if it had been there before.
            made(b"a file").unwrap();
            assert!(!path.symlink_metadata().unwrap().is_file());
            assert_eq!(names(dir.path()), 1);
            std::fs::remove_file(&path).unwrap();
        }
    }

    /// Two processes of one user make a symbolic link of one name.
    #[test]
    fn a_link_gets_its_own_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = std::rc::Rc::new(std::cell::Cell::new(None));
        new::tests::once_made({
            let (dir, theirs) = (dir.path().to_owned(), std::rc::Rc::clone(&theirs));
            move || {
                let link = Leaf::Symlink(b"theirs");
                theirs.set(Some(open(&dir).create(b"name", link, Mode::RUSR, |_| Ok(())).unwrap()));
            }
        });
        let mut dated = None;
        let ours = open(dir.path()).create(b"name", Leaf::Symlink(b"ours"), Mode::RUSR, |handle| {
            dated = Some(new::identity(handle)?);
            Ok(())
        });
        let ours = ours.unwrap();
        assert_ne!(Some(ours), theirs.get(), "there were two");
        assert_eq!(dated, Some(ours));
        assert_eq!(Identity::of(&open(dir.path()).stat(b"name").unwrap()), ours);
        assert_eq!(std::fs::read_link(dir.path().join("name")).unwrap(), Path::new("ours"));
        assert_eq!(names(dir.path()), 1);
    }

    /// A tree with a file `one`, which has more names to come.
    fn remembered(dir: &Path) -> (HostTree, Links, Identity) {
        let (mut host, mut links) = (open(dir), Links::default());
        let identity = write(&mut host, b"one", b"ours").unwrap();
        assert!(links.remember(&mut host, (0, 7), b"one", identity, 3));
        (host, links, identity)
    }

    /// Another process puts its own file under the name that a second name is linked to.
    #[test]
    fn a_second_name_is_never_of_the_file_of_somebody_else() {
        let dir = tempfile::tempdir().unwrap();
        let (mut host, mut links, _) = remembered(dir.path());
        new::tests::once_made({
            let one = dir.path().join("one");
            move || {
                std::fs::rename(&one, one.with_file_name("kept")).unwrap();
                std::fs::write(&one, "theirs").unwrap();
            }
        });
        assert_eq!(links.link(&mut host, (0, 7), b"two").unwrap(), Link::Unknown);
        assert!(!dir.path().join("two").exists());
        assert_eq!(names(dir.path()), 2);
    }

    /// It becomes the name of the very file meanwhile: a rename does nothing then.
    #[test]
    fn a_name_that_is_linked_meanwhile_leaves_no_private_one() {
        let dir = tempfile::tempdir().unwrap();
        let (mut host, mut links, identity) = remembered(dir.path());
        std::fs::write(dir.path().join("two"), "old").unwrap();
        host.made.clear();
        new::tests::once_made({
            let dir = dir.path().to_owned();
            move || {
                std::fs::remove_file(dir.join("two")).unwrap();
                std::fs::hard_link(dir.join("one"), dir.join("two")).unwrap();
            }
        });
        assert_eq!(links.link(&mut host, (0, 7), b"two").unwrap(), Link::Made);
        assert_eq!(Identity::of(&host.stat(b"two").unwrap()), identity);
        assert_eq!(names(dir.path()), 2);
    }

    #[test]
    fn links_in_the_tree_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        std::fs::create_dir_all(tree.join("inner")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "kept").unwrap();
        symlink(&outside, tree.join("dir")).unwrap();
        symlink(outside.join("file"), tree.join("inner/file")).unwrap();
        symlink(outside.join("nothing"), tree.join("dangling")).unwrap();

        let mut host = open(&tree);
        assert_eq!(host.enter(b"dir", Mode::RWXU).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(write(&mut host, b"dangling", b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        host.enter(b"inner", Mode::RWXU).unwrap();
        assert_eq!(write(&mut host, b"file", b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        host.rules.replace = true;
        write(&mut host, b"file", b"x").unwrap();
        assert!(tree.join("inner/file").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "kept");
        assert!(!outside.join("nothing").exists());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = open(dir.path());
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b"] {
            assert!(host.enter(name, Mode::RWXU).is_err());
            assert!(host.open_file(name, NEW).is_err());
            assert!(host.create(name, Leaf::Symlink(b"x"), Mode::empty(), |_| Ok(())).is_err());
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_kept_and_what_is_special_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, "volume").unwrap();
        std::fs::hard_link(&image, dir.path().join("other-name")).unwrap();
        symlink("image", dir.path().join("link")).unwrap();
        let kept = vec![Identity::of(&rustix::fs::stat(&image).unwrap())];
        for replace in [false, true] {
            let mut host =
                HostTree::open(dir.path(), Rules { replace, kept: kept.clone(), ..rules() }).unwrap();
            for name in [&b"image"[..], b"other-name"] {
                assert!(host.open_file(name, NEW).is_err());
                assert!(host.create(name, Leaf::Symlink(b"x"), Mode::empty(), |_| Ok(())).is_err());
                assert!(fifo(&mut host, name).is_err());
            }
            assert!(replace || host.open_file(b"link", NEW).is_err());
            assert_eq!(std::fs::read_to_string(&image).unwrap(), "volume");
        }

        let mut host = open(dir.path());
        write(&mut host, b"file", b"text").unwrap();
        fifo(&mut host, b"pipe").unwrap();
        // In another run: files made in this one are not replaced.
        assert!(fifo(&mut host, b"pipe").is_err());
        let mut host = open(dir.path());
        assert!(host.open_file(b"pipe", NEW).is_err());
        assert_eq!(FileType::from_raw_mode(host.stat(b"pipe").unwrap().st_mode), FileType::Fifo);
        // A file of the same type replaces it, so that a tree can be copied again.
        fifo(&mut host, b"pipe").unwrap();
        fifo(&mut host, b"file").unwrap();
    }

    #[test]
    fn a_file_that_is_there_stays_the_same_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "a long text").unwrap();
        std::fs::hard_link(&path, dir.path().join("other")).unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        for name in [&b"file"[..], b"link"] {
            write(&mut open(dir.path()), name, b"new").unwrap();
            assert_eq!(std::fs::read(dir.path().join("other")).unwrap(), b"new");
        }
        let rules = Rules { replace: true, ..rules() };
        write(&mut HostTree::open(dir.path(), rules).unwrap(), b"link", b"replaced").unwrap();
        assert!(dir.path().join("link").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read(dir.path().join("other")).unwrap(), b"new");
    }

    #[test]
    fn the_way_back_up_is_the_way_down() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = open(dir.path());
        host.enter(b"a", Mode::RWXU).unwrap();
        host.enter(b"b", Mode::RWXU).unwrap();
        assert_eq!(host.path_of(b"c"), b"a/b/c");
        host.leave().unwrap();
        host.leave().unwrap();
        assert_eq!(host.path_of(b"c"), b"c");
        host.enter(b"a", Mode::RWXU).unwrap();
        host.enter(b"b", Mode::RWXU).unwrap();
        std::fs::rename(dir.path().join("a/b"), dir.path().join("b")).unwrap();
        assert!(host.leave().is_err());
    }

    #[test]
    fn a_link_is_made_only_to_the_very_file() {
        let dir = tempfile::tempdir().unwrap();
        let (mut host, mut links) = (open(dir.path()), Links::default());
        host.enter(b"a", Mode::RWXU).unwrap();
        let identity = write(&mut host, b"one", b"text").unwrap();
        assert!(links.remember(&mut host, (0, 7), b"one", identity, 9));
        assert_eq!(links.link(&mut host, (0, 7), b"beside").unwrap(), Link::Made);
        host.leave().unwrap();
        assert_eq!(links.link(&mut host, (0, 8), b"two").unwrap(), Link::Unknown);
        assert_eq!(links.link(&mut host, (0, 7), b"two").unwrap(), Link::Made);
        assert_eq!(Identity::of(&host.stat(b"two").unwrap()), identity);
        std::fs::remove_file(dir.path().join("a/one")).unwrap();
        std::fs::write(dir.path().join("a/one"), "another").unwrap();
        assert_eq!(links.link(&mut host, (0, 7), b"three").unwrap(), Link::Unknown);
        assert!(host.stat(b"three").is_err());
    }

    #[test]
    fn a_file_is_forgotten_when_all_its_names_were_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (mut host, mut links) = (open(dir.path()), Links::default());
        let identity = write(&mut host, b"one", b"text").unwrap();
        assert!(links.remember(&mut host, (0, 7), b"one", identity, 2));
        assert_eq!(links.link(&mut host, (0, 7), b"two").unwrap(), Link::Made);
        assert_eq!(links.link(&mut host, (0, 7), b"three").unwrap(), Link::Unknown);
    }

    /// Thousands of long names below each other, with a file in each that claims to have more names.
    #[test]
    fn what_is_remembered_of_a_deep_tree_goes_with_its_directories() {
        const DEPTH: u64 = 2000;
        let dir = tempfile::tempdir().unwrap();
        let (mut host, mut links) = (open(dir.path()), Links::default());
        let name = [b'd'; 255];
        for level in 0..DEPTH {
            host.enter(&name, Mode::RWXU).unwrap();
            let identity = fifo(&mut host, b"f").unwrap();
            assert!(links.remember(&mut host, (0, level), b"f", identity, u32::MAX));
        }
        assert!(links.bytes() < DEPTH as usize * 512, "{} bytes", links.bytes());
        assert_eq!(links.link(&mut host, (0, DEPTH - 1), b"here").unwrap(), Link::Made);
        for _ in 0..DEPTH {
            host.leave().unwrap();
        }
        assert_eq!(links.link(&mut host, (0, DEPTH - 1), b"up").unwrap(), Link::TooDeep);
        assert_eq!(links.link(&mut host, (0, 100), b"up").unwrap(), Link::Made);
    }

    /// After a pipe, device or link was made and before its owner and permissions are set, another user with write
    /// access to the directory replaces it: the replacement must not get them.
    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn what_takes_a_name_meanwhile_gets_no_privileges() {
        let leaves = [
            Leaf::Node(FileType::Fifo, (0, 0)),
            Leaf::Node(FileType::Socket, (0, 0)),
            Leaf::Node(FileType::CharacterDevice, (1, 3)),
            Leaf::Symlink(b"anywhere"),
        ];
        type Swap = fn(&Path, &Path);
        let swaps: [Swap; 3] = [
            |evil, name| std::fs::rename(evil, name).unwrap(),
            |evil, name| symlink(evil, name).unwrap(),
            |_, name| {
                rustix::fs::mknodat(rustix::fs::CWD, name, FileType::Fifo, Mode::RUSR, 0).unwrap();
                std::os::unix::fs::lchown(name, Some(65534), Some(65534)).unwrap();
            },
        ];
        for leaf in leaves {
            for (nth, swap) in swaps.into_iter().enumerate() {
                if nth == 1 && matches!(leaf, Leaf::Symlink(_)) {
                    // Replacing it by a link of the same user affects only that link.
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                let evil = dir.path().join("evil");
                std::fs::write(&evil, "#!/bin/sh").unwrap();
                std::fs::set_permissions(&evil, std::fs::Permissions::from_mode(0o777)).unwrap();
                std::os::unix::fs::chown(&evil, Some(65534), Some(65534)).unwrap();
                let open_evil = std::fs::File::open(&evil).unwrap();
                let mut host = open(dir.path());
                new::tests::once_made({
                    let evil = evil.clone();
                    move || {
                        let name = private_name(evil.parent().unwrap(), "evil");
                        std::fs::remove_file(&name).unwrap();
                        swap(&evil, &name);
                    }
                });
                let mut set = false;
                let made = host.create(b"made", leaf, Mode::RUSR, |_| {
                    set = true;
                    Ok(())
                });
                assert!(made.is_err() && !set, "{leaf:?} {nth}");
                let of = open_evil.metadata().unwrap();
                assert_eq!((of.uid(), of.mode() & 0o7777), (65534, 0o777), "{leaf:?} {nth}");
            }
        }
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn a_file_of_another_user_gets_no_privileges() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("theirs");
        std::fs::write(&path, "theirs").unwrap();
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        let privileged = New { privileged: true, ..NEW };
        let refused = open(dir.path()).open_file(b"theirs", privileged).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        write(&mut open(dir.path()), b"theirs", b"ours").unwrap();
        assert_eq!(path.metadata().unwrap().uid(), 65534);
    }
}
