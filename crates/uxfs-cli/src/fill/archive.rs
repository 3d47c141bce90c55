//! Files of an archive, read for a volume.
//!
//! Invariants: no name leads out of the directory that the archive is unpacked in: `..` is refused, and no symbolic
//! link is followed on the way, whether the archive brought it or not; a directory gets what is said of it when the
//! archive ends, as more may come into it until then.

use super::{Attributes, Filler, Leaf, Outcome, Trouble, end_at, now};
use crate::archive::read::{Entry, Reader, What};
use crate::exit::{Exit, Result};
use crate::problems::Problems;
use std::collections::HashMap;
use std::io::Read;
use uxfs::{Dir, Node};

/// Unpacks archives into a directory of a volume.
pub struct FromArchive<'a, 'b> {
    filler: &'a mut Filler<'b>,
    problems: &'a mut Problems,
    root: Dir,
    /// Directories that the archive has, or that its names ask for, with what is said of them.
    dirs: HashMap<Vec<u8>, usize>,
    pending: Vec<(Dir, Option<Attributes>)>,
}

impl<'a, 'b> FromArchive<'a, 'b> {
    /// Unpacks with a filler; what fails is said.
    pub fn new(filler: &'a mut Filler<'b>, problems: &'a mut Problems, root: Dir) -> Self {
        let pending = vec![(root.clone(), None)];
        let dirs = HashMap::from([(Vec::new(), 0)]);
        Self { filler, problems, root, dirs, pending }
    }

    /// Unpacks all of an archive.
    pub fn unpack(&mut self, input: impl Read) -> Result<()> {
        let mut reader = Reader::new(input);
        while let Some(entry) = reader.next()? {
            for _ in 0..entry.lost_xattrs {
                self.filler.lose_xattr();
            }
            self.filler.at(&entry.name);
            let outcome = parts(&entry.name).and_then(|parts| self.entry(&mut reader, &entry, &parts));
            self.check(&entry.name, outcome)?;
        }
        // The innermost first.
        while let Some((dir, of)) = self.pending.pop() {
            if let Some(of) = of {
                let outcome = self.filler.finish(dir.node(), &of);
                self.check(b"", outcome)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, name: &[u8], outcome: Outcome<()>) -> Result<()> {
        match outcome {
            Ok(()) => {}
            Err(trouble) if trouble.ends() => return Err(trouble.failure(uxfs::printable(name))),
            Err(trouble) => self.problems.say(&format!("{}: {trouble}", uxfs::printable(name))),
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
        };
        let Some((&name, above)) = parts.split_last() else {
            // The directory itself.
            if entry.what == What::Directory {
                self.pending[0].1 = Some(of);
            }
            return Ok(());
        };
        if entry.what == What::Directory {
            let at = self.directory(parts, Some(&of))?;
            self.pending[at].1 = Some(of);
            return Ok(());
        }
        let at = self.directory(above, None)?;
        let dir = self.pending[at].0.clone();
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

    /// The directory at a path, which is made if need be. Those that the archive does not name are plain ones.
    fn directory(&mut self, parts: &[&[u8]], of: Option<&Attributes>) -> Outcome<usize> {
        let path = parts.join(&b'/');
        if let Some(&at) = self.dirs.get(&path) {
            return Ok(at);
        }
        // The nearest that is known, then down from there.
        let known =
            (0..parts.len()).rev().find_map(|len| Some((len, *self.dirs.get(&parts[..len].join(&b'/'))?)));
        let (known, mut at) = known.unwrap_or((0, 0));
        for len in known + 1..=parts.len() {
            let plain = self.plain();
            let of = of.filter(|_| len == parts.len()).unwrap_or(&plain);
            let dir = self.filler.directory(&self.pending[at].0, parts[len - 1], of)?;
            at = self.pending.len();
            // Times of what the archive does not name have to be fixed, too.
            let fixed = self.filler.rules().time.map(|_| plain.clone());
            self.pending.push((dir, fixed));
            self.dirs.insert(parts[..len].join(&b'/'), at);
        }
        Ok(at)
    }

    fn plain(&self) -> Attributes {
        let mtime = self.filler.rules().time.unwrap_or_else(now);
        let owner = self.filler.rules().owner;
        Attributes {
            permissions: 0o755,
            uid: owner.uid.unwrap_or_default(),
            gid: owner.gid.unwrap_or_default(),
            atime: None,
            mtime,
            xattrs: Vec::new(),
        }
    }

    /// The file that an earlier entry made.
    fn find(&self, name: &[u8]) -> Outcome<Node> {
        let missing = || {
            Trouble::new(Exit::NotFound, format!("a link to {}, which is not there", uxfs::printable(name)))
        };
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
    if parts.contains(&&b".."[..]) || name.contains(&0) {
        return Err(Trouble::new(Exit::Usage, "a name that leads elsewhere; it is left out"));
    }
    Ok(parts)
}
