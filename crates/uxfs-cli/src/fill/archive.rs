//! Files of an archive, read for a volume.
//!
//! Invariants: no name leads out of the directory that the archive is unpacked in: `..` is refused, and no symbolic
//! link is followed on the way, whether the archive brought it or not; a directory gets what is said of it when the
//! archive ends, as more may come into it until then. What is kept of the archive is a name and an inode number for
//! each directory of it, however long its paths are.

use super::{Attributes, Filler, Leaf, Outcome, Trouble, end_at};
use crate::archive::read::{Entry, Reader, What};
use crate::exit::{Exit, Result};
use crate::problems::{Problems, short};
use std::collections::HashMap;
use std::io::Read;
use uxfs::{Dir, Node};

/// Directories that may lie below each other: more than a path can name that a system call takes (4,096 bytes), and few
/// enough that one long name makes no work worth speaking of.
const MAX_DEPTH: usize = 4096;

/// Unpacks archives into a directory of a volume.
pub struct FromArchive<'a, 'b> {
    filler: &'a mut Filler<'b>,
    problems: &'a mut Problems,
    root: Dir,
    /// Directories that the archive has, or that its names ask for, by the one above and their name.
    places: HashMap<(usize, Vec<u8>), usize>,
    dirs: Vec<Known>,
}

/// A directory that was made or found.
struct Known {
    ino: u64,
    /// What is said of it, without the attributes, which it has.
    of: Option<Attributes>,
}

impl<'a, 'b> FromArchive<'a, 'b> {
    /// Unpacks with a filler; what fails is said.
    pub fn new(filler: &'a mut Filler<'b>, problems: &'a mut Problems, root: Dir) -> Self {
        let dirs = vec![Known { ino: root.node().ino(), of: None }];
        Self { filler, problems, root, places: HashMap::new(), dirs }
    }

    /// Unpacks all of an archive.
    pub fn unpack(&mut self, mut reader: Reader<impl Read>) -> Result<()> {
        while let Some(entry) = reader.next()? {
            for _ in 0..entry.lost_xattrs {
                self.filler.lose_xattr();
            }
            self.filler.at(&entry.name);
            let Entry { name, .. } = &entry;
            let outcome = parts(name).and_then(|parts| self.entry(&mut reader, &entry, &parts));
            self.check(&entry.name, outcome)?;
        }
        // The innermost first.
        while let Some(known) = self.dirs.pop() {
            if let Some(of) = known.of {
                let dir = self.root.node().volume().node(known.ino).map_err(Trouble::from);
                let outcome = dir.and_then(|dir| self.filler.settle(&dir, &of));
                self.check(b"", outcome)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, name: &[u8], outcome: Outcome<()>) -> Result<()> {
        match outcome {
            Ok(()) => {}
            Err(trouble) if trouble.ends() => return Err(trouble.failure(short(name))),
            Err(trouble) => self.problems.say(&format!("{}: {trouble}", short(name))),
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, reader: &mut Reader<R>, entry: &Entry, parts: &[&[u8]]) -> Outcome<()> {
        let of = Attributes {
            permissions: entry.permissions,
            uid: entry.uid,
            gid: entry.gid,
            atime: entry.atime.or(Some(entry.mtime)),
            mtime: entry.mtime,
            xattrs: entry.xattrs.clone(),
            inode: None,
        };
        let Some((&name, above)) = parts.split_last() else {
            // The directory itself.
            return if entry.what == What::Directory { self.said(0, of) } else { Ok(()) };
        };
        if entry.what == What::Directory {
            let at = self.directory(parts, Some(&of))?;
            return self.said(at, of);
        }
        let at = self.directory(above, None)?;
        let dir = self.dir(at)?;
        match &entry.what {
            What::File => {
                self.filler.file(&dir, name, &of, |filler, file| {
                    for &(offset, len) in &entry.runs {
                        filler.copy_run(file, offset, offset + len, |buf, _| {
                            // Half an archive ends the work.
                            reader
                                .read(buf)
                                .map_err(|failure| Trouble::end(failure.exit(), failure.to_string()))
                        })?;
                    }
                    end_at(file, entry.size)
                })?;
            }
            What::Symlink(target) => {
                self.filler.leaf(&dir, name, &of, &Leaf::Symlink(target))?;
            }
            What::Special(special) => {
                self.filler.leaf(&dir, name, &of, &Leaf::Special(*special))?;
            }
            What::HardLink(target) => {
                let to = self.find(target)?;
                self.filler.link(&dir, name, &to)?;
            }
            What::Other(letter) => {
                let what = format!("an entry of type `{letter}`, which is left out");
                return Err(Trouble::new(Exit::Unsupported, what));
            }
            What::Directory => {}
        }
        Ok(())
    }

    /// Gives a directory what is said of it, and remembers what has to be said once more in the end.
    fn said(&mut self, at: usize, of: Attributes) -> Outcome<()> {
        let dir = self.dir(at)?;
        self.filler.finish(dir.node(), &of)?;
        self.dirs[at].of = Some(Attributes { xattrs: Vec::new(), ..of });
        Ok(())
    }

    fn dir(&self, at: usize) -> Outcome<Dir> {
        Ok(self.root.node().volume().node(self.dirs[at].ino)?.as_dir()?)
    }

    /// The directory at a path, which is made if need be. Those that the archive does not name are plain ones.
    fn directory(&mut self, parts: &[&[u8]], of: Option<&Attributes>) -> Outcome<usize> {
        self.filler.check_depth(parts.len())?;
        let mut at = 0;
        for (nth, &name) in parts.iter().enumerate() {
            let place = (at, name.to_vec());
            at = match self.places.get(&place) {
                Some(&known) => known,
                None => {
                    let plain = self.plain();
                    let of = of.filter(|_| nth + 1 == parts.len()).unwrap_or(&plain);
                    let dir = self.filler.directory(&self.dir(at)?, name, of)?;
                    // One that was there stays what it is, unless the archive names it.
                    self.dirs.push(Known { ino: dir.node().ino(), of: None });
                    self.places.insert(place, self.dirs.len() - 1);
                    self.dirs.len() - 1
                }
            };
        }
        Ok(at)
    }

    fn plain(&self) -> Attributes {
        let mtime = self.filler.rules().now();
        let owner = self.filler.rules().owner;
        Attributes {
            permissions: 0o755,
            uid: owner.uid.unwrap_or_default(),
            gid: owner.gid.unwrap_or_default(),
            atime: None,
            mtime,
            xattrs: Vec::new(),
            inode: None,
        }
    }

    /// The file that an earlier entry made.
    fn find(&self, name: &[u8]) -> Outcome<Node> {
        let missing =
            || Trouble::new(Exit::NotFound, format!("a link to {}, which is not there", short(name)));
        let mut at = self.root.node().clone();
        for part in parts(name)? {
            at = at.as_dir().ok().ok_or_else(missing)?.lookup(part)?.ok_or_else(missing)?;
        }
        if at.file_type().is_dir() { Err(missing()) } else { Ok(at) }
    }
}

/// Parts of a name, relative to where the archive is unpacked.
fn parts(name: &[u8]) -> Outcome<Vec<&[u8]>> {
    let parts = name.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let parts: Vec<&[u8]> = parts.collect();
    if parts.len() > MAX_DEPTH {
        let what = format!("more than {MAX_DEPTH} directories below each other; it is left out");
        return Err(Trouble::new(Exit::Usage, what));
    }
    if parts.contains(&&b".."[..]) || name.contains(&0) {
        return Err(Trouble::new(Exit::Usage, "a name that leads elsewhere; it is left out"));
    }
    Ok(parts)
}
