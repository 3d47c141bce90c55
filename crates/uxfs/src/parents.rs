//! All names of a file, on volumes with parent pointers.

use crate::error::Result;
use crate::node::Node;
use std::collections::{HashMap, HashSet};
use xfs::volume::ForkKind;

/// One name of a file, from the file's inode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParentPointer {
    /// Inode number of the directory that has the name.
    pub directory: u64,
    /// Generation of that inode.
    pub generation: u32,
    /// The name in that directory.
    pub name: Vec<u8>,
    /// The path from the root; `None` if the pointers of the directories above do not lead there.
    pub path: Option<Vec<u8>>,
}

impl Node {
    /// All its names, in the volume's order; `None` if the volume has no parent pointers. The root directory has no
    /// names.
    pub fn names(&self) -> Result<Option<Vec<ParentPointer>>> {
        if !self.volume().engine().geometry().parent_pointers {
            return Ok(None);
        }
        let mut paths = HashMap::new();
        let found = self.pointers()?;
        let with_path = found.into_iter().map(|(name, record)| {
            let dir = record.dir.0;
            let path =
                paths.entry((dir, record.generation)).or_insert_with(|| self.path_of(dir, record.generation));
            let path = path.as_ref().map(|above| [above, &b"/"[..], &name].concat());
            ParentPointer { directory: dir, generation: record.generation, name, path }
        });
        Ok(Some(with_path.collect()))
    }

    fn pointers(&self) -> Result<Vec<(Vec<u8>, xfs::attr::ParentRecord)>> {
        let (_shared, inode) = self.handle.ilock_shared()?;
        match self.volume().engine().fork(&inode, ForkKind::Attr) {
            Some(fork) => Ok(xfs::attr::parents(&*fork)?),
            None => Ok(Vec::new()),
        }
    }

    /// The path of a directory, without a slash at its end.
    fn path_of(&self, dir: u64, generation: u32) -> Option<Vec<u8>> {
        let root = self.volume().engine().geometry().root.0;
        let (mut at, mut generation) = (dir, generation);
        let (mut names, mut seen) = (Vec::new(), HashSet::new());
        // Pointers of a damaged volume may form a cycle.
        while at != root && seen.insert(at) {
            let node = self.volume().node(at).ok()?;
            if node.metadata().ok()?.generation != generation {
                return None;
            }
            let [(name, record)] = <[_; 1]>::try_from(node.pointers().ok()?).ok()?;
            names.push(name);
            (at, generation) = (record.dir.0, record.generation);
        }
        (at == root).then(|| names.iter().rev().flat_map(|name| [&b"/"[..], name].concat()).collect())
    }
}
