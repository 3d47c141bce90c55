//! Files of an archive, read for a volume.
//!
//! Invariants: no name leads out of the directory of the archive: `..` is refused, and no symbolic link is followed,
//! whether it came from the archive or not; a directory gets its metadata at the end of the archive, as more files may
//! come into it until then; of entries with the same name the last counts, even if other threads make small files
//! ([`threads`](super::threads)). Memory is needed for a name and an inode number per directory, however long paths
//! are, and for names of files that may not be made yet.

use super::small::{Content, Small, is_small};
use super::threads::{InFlight, ThreadIndex, Threads, tell};
use super::{Attributes, Filler, Leaf, StepResult, Trouble, end_at};
use crate::archive::read::{Entry, Reader, What};
use crate::edit::NewName;
use crate::exit::{Exit, Result};
use crate::problems::{Problems, short};
use std::collections::HashMap;
use std::io::Read;
use uxfs::{Dir, Node};

/// The most nested directories: more than a path for a system call can have (4,096 bytes), but so few that a long name
/// makes little work.
const MAX_DEPTH: usize = 4096;

/// Unpacks archives into a directory of a volume.
pub struct FromArchive<'a, 'b> {
    filler: &'a mut Filler<'b>,
    problems: &'a mut Problems,
    root: Dir,
    /// Directories of the archive, or that its names need, by parent and name.
    places: HashMap<Place, usize>,
    dirs: Vec<KnownDirectory>,
}

/// A directory that was made or found.
struct KnownDirectory {
    ino: u64,
    /// Its metadata, without the attributes, which it has already.
    of: Option<Attributes>,
    /// The thread that makes small files in it, once there are some.
    thread: Option<ThreadIndex>,
}

impl KnownDirectory {
    fn new(dir: &Node) -> Self {
        Self { ino: dir.ino(), of: None, thread: None }
    }
}

/// A directory by its index, and a name in it.
type Place = (usize, Vec<u8>);

/// The threads, and the names that they may not have made yet.
struct Makers<'scope, 'b> {
    threads: Threads<'scope, 'b>,
    names: InFlight<Place>,
}

impl Makers<'_, '_> {
    /// Waits until all earlier entries for a name are done.
    fn wait_for(&mut self, place: &Place) -> StepResult<()> {
        self.names.wait_for(place, &mut self.threads)
    }
}

impl<'a, 'b> FromArchive<'a, 'b> {
    /// Unpacks with a filler; failures are reported.
    pub fn new(filler: &'a mut Filler<'b>, problems: &'a mut Problems, root: Dir) -> Self {
        let dirs = vec![KnownDirectory::new(root.node())];
        Self { filler, problems, root, places: HashMap::new(), dirs }
    }

    /// Unpacks the whole archive.
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

    fn check(&mut self, name: &[u8], outcome: StepResult<()>) -> Result<()> {
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
    ) -> StepResult<()> {
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

    /// Gives a file to another thread: the one for all files of its directory.
    fn give(&mut self, makers: &mut Makers<'_, 'b>, at: usize, dir: Dir, small: Small, shown: String) {
        let thread = *self.dirs[at].thread.get_or_insert_with(|| makers.threads.least_busy());
        makers.names.insert((at, small.name.clone()), &makers.threads, thread);
        let bytes = small.bytes();
        let make = move |filler: &mut Filler<'b>| small.make(filler, &dir);
        makers.threads.give(thread, bytes, shown, Box::new(make));
    }

    /// Waits until all earlier entries for a name are done. If something must be replaced, or the name looks like a
    /// temporary one, also waits until no other thread works in its directory.
    fn have_alone(&self, makers: &mut Makers<'_, 'b>, at: usize, dir: &Dir, name: &[u8]) -> StepResult<()> {
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

    /// Sets a directory's metadata, and remembers what must be set again in the end.
    fn said(&mut self, makers: &mut Makers<'_, 'b>, at: usize, of: Attributes) -> StepResult<()> {
        // Earlier entries of the archive do not inherit from it.
        if let Some(thread) = self.dirs[at].thread {
            makers.threads.wait(thread)?;
        }
        let dir = self.dir(at)?;
        self.filler.finish(dir.node(), &of)?;
        self.dirs[at].of = Some(Attributes { xattrs: Vec::new(), ..of });
        Ok(())
    }

    fn dir(&self, at: usize) -> StepResult<Dir> {
        Ok(self.root.node().volume().node(self.dirs[at].ino)?.as_dir()?)
    }

    /// The directory at a path, made if needed. Directories that the archive does not name get default
    /// metadata.
    fn directory(
        &mut self,
        makers: &mut Makers<'_, 'b>,
        parts: &[&[u8]],
        of: Option<&Attributes>,
    ) -> StepResult<usize> {
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
                    // An existing one stays as it is, unless the archive names it.
                    self.dirs.push(KnownDirectory::new(dir.node()));
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
    fn find(&self, makers: &mut Makers<'_, '_>, name: &[u8]) -> StepResult<Node> {
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

/// Reads the content of a file for another thread; `None` if the file is not for another thread.
fn content<R: Read>(reader: &mut Reader<R>, entry: &Entry, of: &Attributes) -> StepResult<Option<Content>> {
    let bytes = entry.runs.iter().fold(0_u64, |bytes, (_, len)| bytes.saturating_add(*len));
    if !is_small(of, bytes, entry.runs.len()) {
        return Ok(None);
    }
    Ok(match &entry.what {
        What::File => {
            let pieces = entry.runs.iter().map(|&(at, len)| Ok((at, read_all(reader, len as usize)?)));
            Some(Content::Data(pieces.collect::<StepResult<_>>()?, entry.size))
        }
        What::Symlink(target) => Some(Content::Symlink(target.clone())),
        What::Special(special) => Some(Content::Special(*special)),
        What::HardLink(_) | What::Other(_) | What::Directory => None,
    })
}

/// This many bytes of the present entry, or as many as there are.
fn read_all<R: Read>(reader: &mut Reader<R>, bytes: usize) -> StepResult<Vec<u8>> {
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

/// Reads bytes of the present entry. A truncated archive ends the work.
fn read<R: Read>(reader: &mut Reader<R>, buf: &mut [u8]) -> StepResult<usize> {
    reader.read(buf).map_err(|failure| Trouble::end(failure.exit(), failure.to_string()))
}

/// The parts of a name, relative to the directory of the archive.
fn parts(name: &[u8]) -> StepResult<Vec<&[u8]>> {
    let parts = name.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let parts: Vec<&[u8]> = parts.collect();
    if parts.len() > MAX_DEPTH {
        let what = format!("more than {MAX_DEPTH} nested directories; it is left out");
        return Err(Trouble::new(Exit::Usage, what));
    }
    if parts.contains(&&b".."[..]) || name.contains(&0) {
        return Err(Trouble::new(Exit::Usage, "a name that leads elsewhere; it is left out"));
    }
    Ok(parts)
}
