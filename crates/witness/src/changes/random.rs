//! Random operations through the library, on whatever the kernel has put into a volume.
//!
//! Invariant: what an operation that fails was about is not among what was touched: it must be as it was.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use uxfs::{Changes, Dir, Error, ErrorKind, NewNode, Node, OpenOptions, Rename, SetXattr, Volume};

const OPERATIONS: usize = 200;
/// The most names to remember.
const NAMES_MAX: usize = 5000;

/// Why there is no result to judge.
pub(super) enum Failure {
    /// The volume was not opened for writing.
    Refused(String),
    /// Something failed that must not.
    Broken(String),
}

/// What was done.
pub(super) struct ChangeOutcome {
    /// For people.
    pub(super) said: String,
    /// Inodes of files that were changed, made or removed.
    pub(super) touched: BTreeSet<u64>,
}

/// A name: the directory that it is in, and itself.
type Name = (Vec<u8>, Vec<u8>);

/// Does 200 operations, and closes the volume.
pub(super) fn run(image: &Path, seed: u64) -> Result<ChangeOutcome, Failure> {
    let broken = |error: Error| Failure::Broken(error.to_string());
    let volume =
        Volume::open(image, &OpenOptions::new().writable(true)).map_err(|error| match error.kind() {
            ErrorKind::ReadOnly | ErrorKind::Unsupported | ErrorKind::DirtyLog => {
                Failure::Refused(error.to_string())
            }
            _ => Failure::Broken(error.to_string()),
        })?;
    let mut work = Work {
        names: names(&volume).map_err(broken)?,
        volume,
        rng: Rng::with_seed(seed),
        touched: BTreeSet::new(),
    };
    let (mut done, mut failed) = (0, BTreeMap::<String, u32>::new());
    if work.names.is_empty() {
        return Err(Failure::Broken("nothing is in the volume".to_owned()));
    }
    for nth in 0..OPERATIONS {
        match work.one(nth) {
            Ok(()) => done += 1,
            Err(error) => match error.kind() {
                ErrorKind::Damaged
                | ErrorKind::ShutDown
                | ErrorKind::Io
                | ErrorKind::DirtyLog
                | ErrorKind::Unsupported
                | ErrorKind::Locked => {
                    return Err(Failure::Broken(format!("operation {nth}: {error}")));
                }
                kind => *failed.entry(format!("{kind:?}")).or_default() += 1,
            },
        }
    }
    work.volume.close().map_err(broken)?;
    let said = format!("{done} done, {failed:?}");
    Ok(ChangeOutcome { said, touched: work.touched })
}

/// What has a name, directories first seen first.
fn names(volume: &Volume) -> uxfs::Result<Vec<Name>> {
    let mut names: Vec<Name> = Vec::new();
    let mut dirs = vec![Vec::new()];
    while let Some(path) = dirs.pop() {
        for entry in volume.open_dir(if path.is_empty() { b"/" } else { &path[..] })?.entries() {
            let entry = entry?;
            if names.len() == NAMES_MAX {
                return Ok(names);
            }
            if entry.file_type.is_dir() && path.len() < 500 {
                dirs.push([&path[..], b"/", &entry.name].concat());
            }
            names.push((path.clone(), entry.name));
        }
    }
    Ok(names)
}

struct Work {
    volume: Volume,
    names: Vec<Name>,
    rng: Rng,
    touched: BTreeSet<u64>,
}

impl Work {
    /// A name, and the directory that it is in. Two of three lie where the clones are.
    fn pick(&mut self) -> uxfs::Result<(Dir, Vec<u8>, Option<Node>)> {
        let rare = self.rng.u8(..3) > 0;
        for _ in 0..50 {
            let nth = self.rng.usize(..self.names.len());
            let (path, name) = &self.names[nth];
            if rare && !(path.starts_with(b"/v") || path.starts_with(b"/clones")) {
                continue;
            }
            let dir = self.volume.open_dir(if path.is_empty() { b"/" } else { &path[..] })?;
            let node = dir.lookup(name)?;
            return Ok((dir, name.clone(), node));
        }
        self.volume.root()?.as_dir().map(|root| (root, b"v".to_vec(), None))
    }

    /// A directory to put something into.
    fn place(&mut self) -> uxfs::Result<Dir> {
        let (dir, _, node) = self.pick()?;
        match node {
            Some(node) if node.file_type().is_dir() => node.as_dir(),
            _ => Ok(dir),
        }
    }

    fn one(&mut self, nth: usize) -> uxfs::Result<()> {
        let (dir, name, node) = self.pick()?;
        let fresh = format!("random-{nth}").into_bytes();
        let Some(node) = node else {
            return Err(gone(&dir));
        };
        let ino = node.ino();
        let file = node.file_type().is_file();
        match self.rng.u8(..20) {
            0 => {
                let made = self.place()?.create_file(&fresh, &NewNode::default())?;
                self.touched.insert(made.ino());
                let bytes = vec![7; self.rng.usize(1..300_000)];
                made.open()?.write_at(&bytes, self.rng.u64(..100_000))
            }
            1 => self
                .place()?
                .create_dir(&fresh, &NewNode { permissions: 0o755, ..NewNode::default() })
                .map(drop),
            2 => self
                .place()?
                .create_symlink(&fresh, &vec![b'x'; self.rng.usize(1..1000)], &NewNode::default())
                .map(drop),
            3 => {
                self.place()?.link(&fresh, &node)?;
                Ok(())
            }
            4..=6 if node.file_type().is_dir() => dir.remove_dir(&name),
            4..=6 => {
                dir.remove_file(&name)?;
                self.touched.insert(ino);
                Ok(())
            }
            7 | 8 => {
                let to = self.place()?;
                dir.rename(&name, &to, &fresh, Rename::NoReplace)
            }
            9 => {
                let (to, other, replaced) = self.pick()?;
                dir.rename(&name, &to, &other, Rename::Replace)?;
                self.touched.extend(replaced.map(|replaced| replaced.ino()));
                Ok(())
            }
            // The kernel gives user attributes to files and directories alone.
            10 => node.set_xattr(
                if file { b"user.random" } else { b"trusted.random" },
                &vec![b'v'; self.rng.usize(1..5000)],
                SetXattr::Either,
            ),
            11 => {
                let permissions = self.rng.u16(..0o1000);
                node.change(&Changes {
                    permissions: Some(permissions),
                    uid: Some(self.rng.u32(..9)),
                    ..Changes::default()
                })
            }
            _ if file => self.content(&node),
            _ => Err(gone(&dir)),
        }
    }

    /// Changes what is in a file.
    fn content(&mut self, node: &Node) -> uxfs::Result<()> {
        let file = node.open()?;
        let rng = &mut self.rng;
        let near = file.size() + 100_000;
        let (at, len) = (rng.u64(..near), rng.u64(1..200_000));
        let block = u64::from(node.metadata()?.block_size);
        let blocks = at / block * block..(at / block + 1 + len / block) * block;
        match rng.u8(..8) {
            0 | 1 => file.write_at(&vec![rng.u8(..); len as usize], at),
            2 => file.set_len(at),
            3 => file.punch_hole(at..at + len),
            4 => file.zero_range(at..at + len, rng.bool()),
            5 => file.collapse_range(blocks),
            6 => file.insert_range(blocks),
            _ => file.allocate(at..at + len, rng.bool()),
        }?;
        self.touched.insert(node.ino());
        Ok(())
    }
}

/// What was picked is not there any more, or nothing can be done with it.
fn gone(dir: &Dir) -> Error {
    dir.remove_file(b"no such name, as there is none so long").expect_err("there is none")
}
