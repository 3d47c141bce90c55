//! Paths inside a volume: bytes, parts between slashes.
//!
//! Invariants: symbolic links are followed [`MAX_SYMLINKS`] times at most, so that a walk ends whatever the
//! volume says; an absolute target starts again at the volume's root, and `..` at the root stays there, so that
//! no path leads out of the volume; `..` goes back along the path walked, even if a damaged directory names
//! another parent.

use crate::error::{Error, ErrorKind, Result};
use crate::names::MAX_NAME;
use crate::node::{Node, child};
use crate::volume::Volume;
use fileio::testing::point;
use std::sync::Arc;
use xfs::dcache::Dentry;
use xfs::dir::FileType;
use xfs::namespace;
use xfs::volume::{InodeHandle, Volume as Engine};
use xfs_format::inode::InodeType;

/// The most symbolic links in one walk.
pub const MAX_SYMLINKS: u32 = 40;

/// Resolves `path` from `root`. A symbolic link at its end is followed if `follow` says so, or if a slash
/// follows it. An empty path is the root.
pub(crate) fn resolve(root: &Node, path: &[u8], follow: bool) -> Result<Node> {
    if path.contains(&0) {
        return Err(Error::at_path(ErrorKind::InvalidPath, path, "a path cannot contain a NUL byte"));
    }
    loop {
        let (volume, root) = (&root.volume, &root.handle);
        let (ancestors, todo) = (Vec::new(), Vec::new());
        let walk = Walk { volume, root, path, ancestors, at: root.clone(), todo, links: 0 };
        match walk.run(follow) {
            Ok(handle) => return Ok(Node { volume: volume.clone(), handle }),
            // Something on the path was removed or replaced during the walk.
            Err(error) if error.kind() == ErrorKind::Stale => {}
            Err(error) => return Err(error),
        }
    }
}

/// Resolves `path` if all of its names are in memory, and none is a symbolic link or `..`. Takes no lock, and writes no
/// shared cache line. `None` for anything else, even errors: [`resolve`] handles those.
pub(crate) fn cached<'v>(engine: &'v Arc<Engine>, path: &[u8], follow: bool) -> Option<Dentry<'v>> {
    let mut last: Option<Dentry<'v>> = None;
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let next = match &last {
            None => namespace::dentry(engine, namespace::root_id(engine).ok()?, part)?,
            Some(dir) if dir.kind() == InodeType::Directory => namespace::dentry(engine, dir.child(), part)?,
            Some(_) => return None,
        };
        // The next name was found in the right directory.
        if last.is_some_and(|dir| !dir.holds()) {
            return None;
        }
        last = Some(next);
    }
    let last = last?;
    let is_end = match last.kind() {
        InodeType::Directory => true,
        _ if path.ends_with(b"/") => false,
        InodeType::Symlink => !follow,
        _ => true,
    };
    is_end.then_some(last)
}

/// A walk in progress. Its parts are inodes, not nodes: each node would count a reference to the volume, which all threads
/// share.
struct Walk<'a> {
    volume: &'a Volume,
    root: &'a InodeHandle,
    /// The requested path, for messages.
    path: &'a [u8],
    /// Directories above `at`, the root first.
    ancestors: Vec<InodeHandle>,
    at: InodeHandle,
    /// The remaining parts, the next one last. An empty part asks for a directory.
    todo: Vec<Box<[u8]>>,
    links: u32,
}

impl Walk<'_> {
    fn run(mut self, follow: bool) -> Result<InodeHandle> {
        self.push_parts(self.path);
        while let Some(part) = self.todo.pop() {
            self.want_directory()?;
            match &*part {
                b"" | b"." => {}
                b".." => self.at = self.ancestors.pop().unwrap_or_else(|| self.root.clone()),
                name => self.step(name, follow)?,
            }
        }
        Ok(self.at)
    }

    /// Goes to the entry `name` of the current directory, following a link.
    fn step(&mut self, name: &[u8], follow: bool) -> Result<()> {
        if name.len() > MAX_NAME {
            let what = format!("a name of {} bytes; the longest possible is {MAX_NAME}", name.len());
            return Err(Error::at_path(ErrorKind::NameTooLong, self.path, what));
        }
        let next = match child(self.volume, &self.at, name) {
            Ok(Some(next)) => next,
            Ok(None) => return Err(self.error(ErrorKind::NotFound, "no such file or directory")),
            Err(error) => return Err(error.on_path(self.path)),
        };
        if next.kind() == InodeType::Symlink && (follow || !self.todo.is_empty()) {
            return self.follow(next);
        }
        self.ancestors.push(std::mem::replace(&mut self.at, next));
        point("a part of a path is found");
        Ok(())
    }

    /// Puts the parts of a link's target before the remaining parts.
    fn follow(&mut self, link: InodeHandle) -> Result<()> {
        self.links += 1;
        if self.links > MAX_SYMLINKS {
            let what = format!("more than {MAX_SYMLINKS} symbolic links on the way (a loop?)");
            return Err(Error::at_path(ErrorKind::TooManySymlinks, self.path, what));
        }
        let link = Node { volume: self.volume.clone(), handle: link };
        let target = link.read_link().map_err(|error| error.on_path(self.path))?;
        if target.is_empty() {
            return Err(self.error(ErrorKind::NotFound, "a symbolic link with an empty target"));
        }
        if target.first() == Some(&b'/') {
            self.ancestors.clear();
            self.at = self.root.clone();
        }
        self.push_parts(&target);
        Ok(())
    }

    /// Parts are taken from the end, so they go in backwards. A slash at the end leaves an empty part there.
    fn push_parts(&mut self, path: &[u8]) {
        let ends_in_slash = path.last() == Some(&b'/');
        if ends_in_slash {
            self.todo.push(Box::default());
        }
        let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        self.todo.extend(parts.rev().map(Box::from));
    }

    fn want_directory(&self) -> Result<()> {
        if self.at.kind() == InodeType::Directory {
            return Ok(());
        }
        let what = format!("a part of the path is a {}, not a directory", FileType::from(self.at.kind()));
        Err(Error::at_path(ErrorKind::NotADirectory, self.path, what))
    }

    fn error(&self, kind: ErrorKind, what: &str) -> Error {
        Error::at_path(kind, self.path, what)
    }
}
