//! Files of an archive, read for a volume.
//!
//! Invariants: no name leads out of the directory that the archive is unpacked in: `..` is refused, and no symbolic
//! link is followed on the way, whether the archive brought it or not; a directory gets what is said of it when the
//! archive ends, as more may come into it until then; of entries of one name the last counts, also where other threads make
//! what is small ([`threads`](super::threads)). What is kept of the archive is a name and an inode number for
//! each directory of it, however long its paths are, and names of files that may not be made yet.

use super::small::{Content, Small, is_small};
use super::threads::{InFlight, ThreadIndex, Threads, tell};
use super::{Attributes, Filler, Leaf, Outcome, Trouble, end_at};
use crate::archive::read::{Entry, Reader, What};
use crate::edit::NewName;
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
    places: HashMap<Place, usize>,
    dirs: Vec<Known>,
}

/// A directory that was made or found.
struct Known {
    ino: u64,
    /// What is said of it, without the attributes, which it has.
    of: Option<Attributes>,
    /// Who makes what is small in it, once there is something.
    thread: Option<ThreadIndex>,
}

impl Known {
    fn new(dir: &Node) -> Self {
        Self { ino: dir.ino(), of: None, thread: None }
    }
}

/// A directory by its index, and a name in it.
type Place = (usize, Vec<u8>);

/// The threads, and what they may not have made yet.
struct Makers<'scope, 'b> {
    threads: Threads<'scope, 'b>,
    names: InFlight<Place>,
}

impl Makers<'_, '_> {
    /// Waits until a name is as the entries before say.
    fn wait_for(&mut self, place: &Place) -> Outcome<()> {
        self.names.wait_for(place, &mut self.threads)
    }
}

impl<'a, 'b> FromArchive<'a, 'b> {
    /// Unpacks with a filler; what fails is said.
    pub fn new(filler: &'a mut Filler<'b>, problems: &'a mut Problems, root: Dir) -> Self {
        let dirs = vec![Known::new(root.node())];
        Self { filler, problems, root, places: HashMap::new(), dirs }
    }

    /// Unpacks all of an archive.
    pub fn unpack(&mut self, mut reader: Reader<impl Read>) -> Result<()> {
        std::thread::scope(|scope| {
            let threads = Threads::new(scope, self.filler, self.filler.rules().threads);
            let mut makers = Makers { threads, names: InFlight::default() };
            let done = self.entries(&mut reader, &mut makers);
            makers.threads.finish(done, |line| self.problems.say(line))
        })?;
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

    fn entries<R: Read>(&mut self, reader: &mut Reader<R>, makers: &mut Makers<'_, 'b>) -> Result<()> {
        while let Some(entry) = reader.next()? {
            tell(makers.threads.failed(), |line| self.problems.say(line))?;
            self.filler.lose_xattrs(entry.lost_xattrs);
            self.filler.at(&entry.name);
            let Entry { name, .. } = &entry;
            let outcome = parts(name).and_then(|parts| self.entry(reader, makers, &entry, &parts));
            self.check(&entry.name, outcome)?;
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

    fn entry<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        makers: &mut Makers<'_, 'b>,
        entry: &Entry,
        parts: &[&[u8]],
    ) -> Outcome<()> {
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
            return if entry.what == What::Directory { self.said(makers, 0, of) } else { Ok(()) };
        };
        if entry.what == What::Directory {
            let at = self.directory(makers, parts, Some(&of))?;
            return self.said(makers, at, of);
        }
        let at = self.directory(makers, above, None)?;
        let dir = self.dir(at)?;
        if !makers.threads.is_empty()
            && self.filler.is_new(&dir)
            && let Some(content) = content(reader, entry, &of)?
        {
            self.give(makers, at, dir, Small { name: name.to_vec(), of, content }, short(&entry.name));
            return Ok(());
        }
        self.have_alone(makers, at, &dir, name)?;
        match &entry.what {
            What::File => {
                self.filler.file(&dir, name, &of, |filler, file| {
                    for &(offset, len) in &entry.runs {
                        filler.copy_run(file, offset, offset + len, |buf, _| read(reader, buf))?;
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
                let to = self.find(makers, target)?;
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

    /// Has another thread make a file: the one that makes all files of its directory.
    fn give(&mut self, makers: &mut Makers<'_, 'b>, at: usize, dir: Dir, small: Small, shown: String) {
        let thread = *self.dirs[at].thread.get_or_insert_with(|| makers.threads.least_busy());
        makers.names.insert((at, small.name.clone()), &makers.threads, thread);
        let bytes = small.bytes();
        let make = move |filler: &mut Filler<'b>| small.make(filler, &dir);
        makers.threads.give(thread, bytes, shown, Box::new(make));
    }

    /// Waits until a name is as the entries before say, and, if there is something to be put out of the way, or the name is like
    /// those that things have meanwhile, until nobody else makes anything in its directory.
    fn have_alone(&self, makers: &mut Makers<'_, 'b>, at: usize, dir: &Dir, name: &[u8]) -> Outcome<()> {
        if makers.threads.is_empty() {
            return Ok(());
        }
        makers.wait_for(&(at, name.to_vec()))?;
        if let Some(thread) = self.dirs[at].thread
            && (name.starts_with(NewName::TEMPORARY) || dir.lookup(name)?.is_some())
        {
            makers.threads.wait(thread)?;
        }
        makers.threads.check()
    }

    /// Gives a directory what is said of it, and remembers what has to be said once more in the end.
    fn said(&mut self, makers: &mut Makers<'_, 'b>, at: usize, of: Attributes) -> Outcome<()> {
        // What was in the archive before gets nothing of it handed down.
        if let Some(thread) = self.dirs[at].thread {
            makers.threads.wait(thread)?;
        }
        let dir = self.dir(at)?;
        self.filler.finish(dir.node(), &of)?;
        self.dirs[at].of = Some(Attributes { xattrs: Vec::new(), ..of });
        Ok(())
    }

    fn dir(&self, at: usize) -> Outcome<Dir> {
        Ok(self.root.node().volume().node(self.dirs[at].ino)?.as_dir()?)
    }

    /// The directory at a path, which is made if need be. Those that the archive does not name are plain ones.
    fn directory(
        &mut self,
        makers: &mut Makers<'_, 'b>,
        parts: &[&[u8]],
        of: Option<&Attributes>,
    ) -> Outcome<usize> {
        self.filler.check_depth(parts.len())?;
        let mut at = 0;
        for (nth, &name) in parts.iter().enumerate() {
            let place = (at, name.to_vec());
            at = match self.places.get(&place) {
                Some(&known) => known,
                None => {
                    let parent = self.dir(at)?;
                    self.have_alone(makers, at, &parent, name)?;
                    let plain = self.plain();
                    let of = of.filter(|_| nth + 1 == parts.len()).unwrap_or(&plain);
                    let dir = self.filler.directory(&parent, name, of)?;
                    // One that was there stays what it is, unless the archive names it.
                    self.dirs.push(Known::new(dir.node()));
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
    fn find(&self, makers: &mut Makers<'_, '_>, name: &[u8]) -> Outcome<Node> {
        let missing =
            || Trouble::new(Exit::NotFound, format!("a link to {}, which is not there", short(name)));
        let parts = parts(name)?;
        if let Some((&last, above)) = parts.split_last() {
            let known = |at, part: &&[u8]| self.places.get(&(at, part.to_vec())).copied();
            if let Some(dir) = above.iter().try_fold(0, known) {
                makers.wait_for(&(dir, last.to_vec()))?;
            }
        }
        let mut at = self.root.node().clone();
        for part in parts {
            at = at.as_dir().ok().ok_or_else(missing)?.lookup(part)?.ok_or_else(missing)?;
        }
        if at.file_type().is_dir() { Err(missing()) } else { Ok(at) }
    }
}

/// Reads what is in a file that another thread is to make; `None` if that is not for another thread.
fn content<R: Read>(reader: &mut Reader<R>, entry: &Entry, of: &Attributes) -> Outcome<Option<Content>> {
    let bytes = entry.runs.iter().fold(0_u64, |bytes, (_, len)| bytes.saturating_add(*len));
    if !is_small(of, bytes, entry.runs.len()) {
        return Ok(None);
    }
    Ok(match &entry.what {
        What::File => {
            let pieces = entry.runs.iter().map(|&(at, len)| Ok((at, read_all(reader, len as usize)?)));
            Some(Content::Data(pieces.collect::<Outcome<_>>()?, entry.size))
        }
        What::Symlink(target) => Some(Content::Symlink(target.clone())),
        What::Special(special) => Some(Content::Special(*special)),
        What::HardLink(_) | What::Other(_) | What::Directory => None,
    })
}

/// So many bytes of the entry that was read last, or all that there are.
fn read_all<R: Read>(reader: &mut Reader<R>, bytes: usize) -> Outcome<Vec<u8>> {
    let (mut data, mut filled) = (vec![0; bytes], 0);
    while filled < bytes {
        match read(reader, &mut data[filled..])? {
            0 => break,
            more => filled += more,
        }
    }
    data.truncate(filled);
    Ok(data)
}

/// Bytes of the entry that was read last. Half an archive ends the work.
fn read<R: Read>(reader: &mut Reader<R>, buf: &mut [u8]) -> Outcome<usize> {
    reader.read(buf).map_err(|failure| Trouble::end(failure.exit(), failure.to_string()))
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
