//! Paths inside a volume: bytes, parts between slashes.
//!
//! Invariants: symbolic links are followed [`MAX_SYMLINKS`] times at most, so that a walk ends whatever the
//! volume says; an absolute target starts again at the volume's root, and `..` at the root stays there, so that
//! no path leads out of the volume; `..` goes back the way that was come, whatever a damaged directory says of
//! its parent.

use crate::error::{Error, ErrorKind, Result};
use crate::names::MAX_NAME;
use crate::node::Node;
use fileio::testing::point;
use std::sync::Arc;
use xfs::dcache::Dentry;
use xfs::namespace;
use xfs::volume::Volume as Engine;
use xfs_format::inode::InodeType;

/// How many symbolic links one path may lead through.
pub const MAX_SYMLINKS: u32 = 40;

/// Finds what `path` names, from `root`. The last part is followed if it is a symbolic link and `follow` says
/// so, or if a slash is behind it. An empty path is the root.
pub(crate) fn resolve(root: &Node, path: &[u8], follow: bool) -> Result<Node> {
    if path.contains(&0) {
        return Err(Error::at_path(ErrorKind::InvalidPath, path, "a path cannot contain a NUL byte"));
    }
    loop {
        let walk = Walk { root, path, ancestors: Vec::new(), at: root.clone(), todo: Vec::new(), links: 0 };
        match walk.run(follow) {
            // Something on the way was removed behind the walk, or replaced.
            Err(error) if error.kind() == ErrorKind::Stale => {}
            other => return other,
        }
    }
}

/// What `path` names, if all of its names are in memory, and no symbolic link or `..` is among them: found without a lock,
/// and without writing a line that others use. As far as there is nothing to be said of `path`, too: [`resolve`] does.
pub(crate) fn cached<'v>(engine: &'v Arc<Engine>, path: &[u8], follow: bool) -> Option<Dentry<'v>> {
    let mut last: Option<Dentry<'v>> = None;
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let next = match &last {
            None => namespace::dentry(engine, namespace::root_id(engine).ok()?, part)?,
            Some(dir) if dir.kind() == InodeType::Directory => namespace::dentry(engine, dir.child(), part)?,
            Some(_) => return None,
        };
        // Where the next was found was the directory that is meant.
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

/// A walk under way.
struct Walk<'a> {
    root: &'a Node,
    /// What was asked for, for messages.
    path: &'a [u8],
    /// Directories above `at`, the root first.
    ancestors: Vec<Node>,
    at: Node,
    /// Parts that are still to go, the next one last; an empty one asks for a directory.
    todo: Vec<Box<[u8]>>,
    links: u32,
}

impl Walk<'_> {
    fn run(mut self, follow: bool) -> Result<Node> {
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

    /// Goes to the entry `name` of where the walk is, or to where that points.
    fn step(&mut self, name: &[u8], follow: bool) -> Result<()> {
        if name.len() > MAX_NAME {
            let what = format!("a name of {} bytes; the longest possible is {MAX_NAME}", name.len());
            return Err(Error::at_path(ErrorKind::NameTooLong, self.path, what));
        }
        let next = match self.at.child(name) {
            Ok(Some(next)) => next,
            Ok(None) => return Err(self.error(ErrorKind::NotFound, "no such file or directory")),
            Err(error) => return Err(error.on_path(self.path)),
        };
        if next.file_type().is_symlink() && (follow || !self.todo.is_empty()) {
            return self.follow(&next);
        }
        self.ancestors.push(std::mem::replace(&mut self.at, next));
        point("a part of a path is found");
        Ok(())
    }

    /// Puts the parts of a link's target in front of what is still to go.
    fn follow(&mut self, link: &Node) -> Result<()> {
        self.links += 1;
        if self.links > MAX_SYMLINKS {
            let what = format!("more than {MAX_SYMLINKS} symbolic links on the way (a loop?)");
            return Err(Error::at_path(ErrorKind::TooManySymlinks, self.path, what));
        }
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
        if self.at.file_type().is_dir() {
            return Ok(());
        }
        let what = format!("a part of the path is a {}, not a directory", self.at.file_type());
        Err(Error::at_path(ErrorKind::NotADirectory, self.path, what))
    }

    fn error(&self, kind: ErrorKind, what: &str) -> Error {
        Error::at_path(kind, self.path, what)
    }
}
