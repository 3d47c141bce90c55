//! Files of the host, read for a volume.
//!
//! Invariants: names come sorted by their bytes; symbolic links are copied, never followed, but for the one that was
//! named itself; reading leaves no trace in times of access where the host permits that.

use super::{Attributes, Filler, Leaf, Outcome, Trouble, end_at};
use crate::exit::{Exit, Failure, Result, host_name};
use crate::host::Identity;
use crate::problems::Problems;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File as HostFile, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uxfs::{Dir, File, Node, Special, Timestamp};

/// Copies trees of the host into a volume.
pub struct FromHost<'a, 'b> {
    filler: &'a mut Filler<'b>,
    problems: &'a mut Problems,
    /// Files with several names that were copied, by device and inode number.
    linked: HashMap<(u64, u64), Node>,
    /// The image that is written, which is not copied into itself.
    image: Option<Identity>,
}

/// Where a copy goes.
pub enum Target {
    /// A name in a directory.
    Named(Dir, Vec<u8>),
    /// What is in the source goes into this directory.
    Into(Dir),
}

/// A directory on the way down.
struct Frame {
    to: Dir,
    of: Attributes,
    names: std::vec::IntoIter<OsString>,
}

impl<'a, 'b> FromHost<'a, 'b> {
    /// Copies with a filler; what fails is said.
    pub fn new(filler: &'a mut Filler<'b>, problems: &'a mut Problems, image: &Path) -> Self {
        Self { filler, problems, linked: HashMap::new(), image: Identity::of_path(image) }
    }

    /// Copies what is at `path`, a directory with all that is in it. A link there is followed if `follow`.
    pub fn copy(&mut self, path: &Path, target: Target, follow: bool) -> Result<()> {
        let at = if follow { path.canonicalize() } else { Ok(path.to_owned()) };
        let found = at.and_then(|at| at.symlink_metadata().map(|found| (at, found)));
        let (at, found) = found.map_err(|error| missing(path, &error))?;
        let path = &*at;
        let failure = |trouble: Trouble| trouble.failure(host_name(path));
        if !found.is_dir() {
            return match &target {
                Target::Named(dir, name) => self.leaf(path, &found, dir, name).map_err(failure),
                Target::Into(_) => {
                    Err(Failure::new(Exit::NotFound, format!("{}: not a directory", host_name(path))))
                }
            };
        }
        let root = self.root(path, &found, target).map_err(failure)?;
        self.tree(path, root)
    }

    fn root(&mut self, path: &Path, found: &Metadata, target: Target) -> Outcome<Frame> {
        let of = self.attributes(path, found)?;
        let to = match target {
            Target::Named(dir, name) => self.filler.directory(&dir, &name, &of)?,
            Target::Into(dir) => dir,
        };
        Ok(Frame { to, of, names: names(path)?.into_iter() })
    }

    fn tree(&mut self, path: &Path, root: Frame) -> Result<()> {
        let mut path = path.to_owned();
        let mut frames = vec![root];
        while let Some(frame) = frames.last_mut() {
            let Some(name) = frame.names.next() else {
                let done = frames.pop().map(|frame| self.filler.finish(frame.to.node(), &frame.of));
                self.check(&path, done.unwrap_or(Ok(())))?;
                // The root's own path is not needed any more.
                path.pop();
                continue;
            };
            path.push(&name);
            let step = self.step(&path, &frame.to, &name);
            match step {
                Ok(Some(inner)) => frames.push(inner),
                other => {
                    self.check(&path, other.map(|_| ()))?;
                    path.pop();
                }
            }
        }
        Ok(())
    }

    /// Copies what is at `path`, or goes into it.
    fn step(&mut self, path: &Path, to: &Dir, name: &OsStr) -> Outcome<Option<Frame>> {
        let found = path.symlink_metadata()?;
        if !found.is_dir() {
            return self.leaf(path, &found, to, name.as_bytes()).map(|()| None);
        }
        let of = self.attributes(path, &found)?;
        let names = names(path)?;
        let to = self.filler.directory(to, name.as_bytes(), &of)?;
        Ok(Some(Frame { to, of, names: names.into_iter() }))
    }

    /// Says what went wrong with one file; what ends the work is the verb's failure.
    fn check(&mut self, path: &Path, outcome: Outcome<()>) -> Result<()> {
        match outcome {
            Ok(()) => {}
            Err(trouble) if trouble.ends() => return Err(trouble.failure(host_name(path))),
            Err(trouble) => self.problems.say(&format!("{}: {trouble}", host_name(path))),
        }
        Ok(())
    }

    fn leaf(&mut self, path: &Path, found: &Metadata, to: &Dir, name: &[u8]) -> Outcome<()> {
        self.filler.at(path.as_os_str().as_bytes());
        let key = (found.dev(), found.ino());
        let several = self.filler.rules().keep_links && found.nlink() > 1;
        if several && let Some(node) = self.linked.get(&key) {
            return self.filler.link(to, name, node);
        }
        let of = self.attributes(path, found)?;
        let kind = found.file_type();
        let device = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        let node = if kind.is_file() {
            if self.image == Some(Identity::of_metadata(found)) {
                return Err(Trouble::new(Exit::Io, "this is the image that is written; it is left out"));
            }
            let from = open(path)?;
            self.filler.file(to, name, &of, |filler, file| content(filler, &from, file))?
        } else if kind.is_symlink() {
            let target = std::fs::read_link(path)?;
            self.filler.leaf(to, name, &of, &Leaf::Symlink(target.as_os_str().as_bytes()))?
        } else {
            let special = if kind.is_char_device() {
                Special::CharDevice(device.0, device.1)
            } else if kind.is_block_device() {
                Special::BlockDevice(device.0, device.1)
            } else if kind.is_fifo() {
                Special::Fifo
            } else {
                Special::Socket
            };
            self.filler.leaf(to, name, &of, &Leaf::Special(special))?
        };
        if several {
            self.linked.insert(key, node);
        }
        Ok(())
    }

    fn attributes(&self, path: &Path, found: &Metadata) -> Outcome<Attributes> {
        let xattrs = if self.filler.rules().keep.xattrs { xattrs(path)? } else { Vec::new() };
        Ok(Attributes {
            permissions: (found.mode() & 0o7777) as u16,
            uid: found.uid(),
            gid: found.gid(),
            atime: Some(time(found.atime(), found.atime_nsec())),
            mtime: time(found.mtime(), found.mtime_nsec()),
            xattrs,
        })
    }
}

/// What the host says of a path that leads nowhere.
fn missing(path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            Failure::new(Exit::NotFound, format!("{}: no such file or directory", host_name(path)))
        }
        _ => Failure::of_host(path, error),
    }
}

/// Names in a directory, sorted.
fn names(path: &Path) -> std::io::Result<Vec<OsString>> {
    let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = entries.collect::<std::io::Result<Vec<OsString>>>()?;
    names.sort_unstable();
    Ok(names)
}

/// Opens a file so that its time of access stays, if it is one's own.
fn open(path: &Path) -> std::io::Result<HostFile> {
    let flags = OFlags::NOATIME | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = |flags: OFlags| {
        let flags = i32::try_from(flags.bits()).unwrap_or_default();
        HostFile::options().read(true).custom_flags(flags).open(path)
    };
    // Only the owner may ask for that.
    open(flags).or_else(|_| open(OFlags::NOFOLLOW | OFlags::NONBLOCK))
}

/// Copies data; holes stay holes.
fn content(filler: &mut Filler<'_>, from: &HostFile, to: &File) -> Outcome<()> {
    let size = from.metadata()?.len();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // A file system that doesn't know of holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(std::io::Error::from(error).into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        if end <= start {
            break;
        }
        filler.copy_run(to, start, end, |buf, at| Ok(from.read_at(buf, at)?))?;
        at = end;
    }
    end_at(to, size)
}

/// Attributes as the host has them.
fn xattrs(path: &Path) -> std::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = match sized(|buf| rustix::fs::llistxattr(path, buf)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut names: Vec<&[u8]> = names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let mut xattrs = Vec::with_capacity(names.len());
    for name in names {
        match sized(|buf| rustix::fs::lgetxattr(path, name, buf)) {
            Ok(value) => xattrs.push((name.to_vec(), value)),
            // Gone meanwhile, or only for others.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(xattrs)
}

/// What a call gives that fails where the buffer is too small. No list and no value has more than 64 KiB.
fn sized(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 256];
    loop {
        match call(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(Errno::RANGE) if buf.len() < 1 << 17 => buf.resize(1 << 17, 0),
            Err(error) => return Err(error),
        }
    }
}

fn time(seconds: i64, nanoseconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or_default() }
}

/// The last part of a path of the host, if it is a name.
pub fn file_name(path: &Path) -> Option<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    // `dir/.` is what is in the directory.
    if bytes.ends_with(b"/.") || bytes == b"." {
        return None;
    }
    PathBuf::from(path).file_name().map(|name| name.as_bytes().to_vec())
}
