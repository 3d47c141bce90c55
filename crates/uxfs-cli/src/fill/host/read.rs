//! Reads files of the host ahead of the copy, in a thread of its own.
//!
//! Invariants: the steps depend only on the tree: a directory is entered, its names follow sorted by their bytes, and
//! it is left; content comes in pieces that are full except for the last of a run, up to the actual end, whatever the
//! file's size says. No path is longer than a name: every step is relative to an open directory. Only the innermost
//! directories are kept open. The way back to the others is `..`, which is checked to be the directory that we came
//! from. No more is read ahead than the channel holds, and memory is reused.

use super::super::{Attributes, CHUNK, StepResult, Trouble};
use crate::exit::Exit;
use crate::host::Identity;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use uxfs::{AlignedBuf, Special, Timestamp};

/// Steps, and bytes of content, that are handed over at once.
const BATCH_STEPS: usize = 64;
const BATCH_BYTES: usize = 256 << 10;
/// Batches that wait to be taken.
const BATCHES: usize = 8;
/// Directories that are kept open.
const OPEN_MAX: usize = 200;
/// Alignment of what devices are handed.
const SECTOR: usize = 4096;

/// The identity of a file with several names.
pub type Key = (u64, u64);

/// Files with several names whose first name was copied, so that they are not read again.
pub type Copied = Arc<Mutex<HashSet<Key>>>;

/// A step through a tree. The start of the tree has no name.
pub enum Step {
    /// A directory, then all that is in it, then [`Leave`](Self::Leave).
    Enter(Vec<u8>, Attributes),
    Leave,
    /// A regular file, then its [`Data`](Self::Data), then [`End`](Self::End). With a key if it has more names, and
    /// its approximate size.
    File(Vec<u8>, Attributes, Option<Key>, u64),
    /// Bytes of the file from an offset on: [`Steps::bytes`] gives them until the next step is taken.
    Data(u64, Range<usize>),
    /// The file ends at this size, or could not be read to its end.
    End(StepResult<u64>),
    Symlink(Vec<u8>, Attributes, Option<Key>, Vec<u8>),
    Special(Vec<u8>, Attributes, Option<Key>, Special),
    /// Another name of a file that was copied.
    Again(Vec<u8>, Key),
    /// What cannot be read.
    Trouble(Vec<u8>, Trouble),
}

impl Step {
    /// The name of what was found.
    pub fn name(&self) -> &[u8] {
        match self {
            Self::Enter(name, ..)
            | Self::File(name, ..)
            | Self::Symlink(name, ..)
            | Self::Special(name, ..)
            | Self::Again(name, ..)
            | Self::Trouble(name, ..) => name,
            Self::Leave | Self::Data(..) | Self::End(_) => &[],
        }
    }
}

/// Steps that are handed over at once.
#[derive(Default)]
struct Batch {
    steps: Vec<Step>,
    /// The data of the [`Step::Data`] among them, each at the start of a sector.
    data: Data,
}

/// Memory of a batch, and how much of it is filled.
struct Data {
    buf: AlignedBuf,
    filled: usize,
}

impl Default for Data {
    fn default() -> Self {
        // The fill level at which a batch is handed over, and one more piece.
        Self { buf: AlignedBuf::zeroed(BATCH_BYTES + CHUNK), filled: 0 }
    }
}

impl Data {
    /// The room for the next bytes, [`CHUNK`] at most.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.buf[self.filled..][..bytes]
    }

    /// Says how many bytes of that room are filled.
    fn fill(&mut self, bytes: usize) -> Range<usize> {
        let filled = self.filled..self.filled + bytes;
        self.filled = filled.end.next_multiple_of(SECTOR);
        filled
    }
}

/// The steps, as they are taken.
pub struct Steps {
    from: Receiver<Batch>,
    /// The channel that returns memory for reuse.
    back: Sender<Data>,
    steps: std::vec::IntoIter<Step>,
    data: Option<Data>,
    /// A file was begun and not ended.
    in_file: bool,
}

impl Steps {
    /// The bytes of the last step.
    pub fn bytes(&self, part: Range<usize>) -> &[u8] {
        self.data.as_ref().map_or(&[], |data| &data.buf[part])
    }

    /// The next data of the current file; `None` after its end.
    pub fn next_in_file(&mut self) -> Option<Step> {
        if self.in_file { self.next() } else { None }
    }

    /// Skips the rest of a file.
    pub fn skip_file(&mut self) {
        while self.next_in_file().is_some() {}
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let step = loop {
            match self.steps.next() {
                Some(step) => break Some(step),
                None => match self.from.recv() {
                    Ok(Batch { steps, data }) => {
                        self.steps = steps.into_iter();
                        if let Some(used) = self.data.replace(data) {
                            // The reader may have finished.
                            let _ = self.back.send(used);
                        }
                    }
                    Err(_) => break None,
                },
            }
        };
        self.in_file = matches!(step, Some(Step::File(..) | Step::Data(..)));
        step
    }
}

/// Why a step was not sent.
enum Stop {
    /// No one takes steps any more.
    Gone,
    Trouble(Trouble),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Trouble(error.into())
    }
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        std::io::Error::from(error).into()
    }
}

/// A directory on the way down.
struct Level {
    /// `None`: to be opened again on the way back.
    dir: Option<OwnedFd>,
    identity: Identity,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// Reads a tree.
pub struct Reader {
    keep_links: bool,
    keep_xattrs: bool,
    /// The image that is written, which is not copied into itself.
    image: Option<Identity>,
    copied: Copied,
    user: u32,
    to: SyncSender<Batch>,
    batch: Batch,
    /// Memory of batches that were taken.
    taken: Receiver<Data>,
}

impl Reader {
    /// A reader, and the steps that it sends when it [`run`](Self::run)s.
    pub fn new(
        keep_links: bool,
        keep_xattrs: bool,
        image: Option<Identity>,
        copied: Copied,
    ) -> (Self, Steps) {
        let (to, from) = sync_channel(BATCHES);
        let (back, taken) = channel();
        let user = rustix::process::geteuid().as_raw();
        let batch = Batch::default();
        let reader = Self { keep_links, keep_xattrs, image, copied, user, to, batch, taken };
        (reader, Steps { from, back, steps: Vec::new().into_iter(), data: None, in_file: false })
    }

    /// Reads `path` recursively, until no one takes the steps any more.
    pub fn run(mut self, path: &Path) {
        if self.walk(path).is_ok() {
            let _ = self.hand_over();
        }
    }

    fn walk(&mut self, path: &Path) -> Result<(), Stop> {
        let mut levels: Vec<Level> = Vec::new();
        levels.extend(self.step(CWD, path.as_os_str().as_bytes(), &[])?);
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                self.leave(&mut levels)?;
                continue;
            };
            let Some(dir) = level.dir.take() else { return Ok(()) };
            let inner = self.step(dir.as_fd(), &name, &name);
            level.dir = Some(dir);
            levels.extend(inner?);
            if let Some(outer) = levels.len().checked_sub(OPEN_MAX + 1) {
                levels[outer].dir = None;
            }
        }
        Ok(())
    }

    fn leave(&mut self, levels: &mut Vec<Level>) -> Result<(), Stop> {
        let left = levels.pop().and_then(|level| level.dir);
        self.send(Step::Leave)?;
        let (Some(left), Some(level)) = (left, levels.last_mut()) else { return Ok(()) };
        if level.dir.is_none() {
            let outer = open_dir(left.as_fd(), b"..").ok();
            let same = |dir: &OwnedFd| {
                rustix::fs::fstat(dir).is_ok_and(|found| Identity::of(&found) == level.identity)
            };
            level.dir = outer.filter(same);
            if level.dir.is_none() {
                let trouble = Trouble::end(Exit::Io, "the source was moved while it was read");
                self.send(Step::Trouble(Vec::new(), trouble))?;
            }
        }
        Ok(())
    }

    /// Reads `name`, and sends it as `called`; gives a directory to go into.
    fn step(&mut self, dir: BorrowedFd<'_>, name: &[u8], called: &[u8]) -> Result<Option<Level>, Stop> {
        match self.read(dir, name, called) {
            Err(Stop::Trouble(trouble)) => {
                self.send(Step::Trouble(called.to_vec(), trouble))?;
                Ok(None)
            }
            other => other,
        }
    }

    fn read(&mut self, dir: BorrowedFd<'_>, name: &[u8], called: &[u8]) -> Result<Option<Level>, Stop> {
        let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::Directory {
            let dir = open_dir(dir, name)?;
            let of = self.attributes(&found, &XattrSource::Open(dir.as_fd()))?;
            let names = names(&dir)?.into_iter();
            self.send(Step::Enter(called.to_vec(), of))?;
            return Ok(Some(Level { dir: Some(dir), identity: Identity::of(&found), names }));
        }
        #[allow(clippy::useless_conversion)]
        let key =
            (self.keep_links && found.st_nlink > 1).then_some((found.st_dev.into(), found.st_ino.into()));
        let copied = |key: &Key| self.copied.lock().unwrap_or_else(PoisonError::into_inner).contains(key);
        if let Some(key) = key.filter(copied) {
            self.send(Step::Again(called.to_vec(), key))?;
            return Ok(None);
        }
        if kind == FileType::RegularFile {
            self.file(dir, name, called, &found, key)?;
            return Ok(None);
        }
        let of = self.attributes(&found, &XattrSource::below(dir, name))?;
        let step = if kind == FileType::Symlink {
            let target = rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes();
            Step::Symlink(called.to_vec(), of, key, target)
        } else {
            Step::Special(called.to_vec(), of, key, special(kind, &found))
        };
        self.send(step)?;
        Ok(None)
    }

    fn file(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        called: &[u8],
        found: &Stat,
        key: Option<Key>,
    ) -> Result<(), Stop> {
        if self.image == Some(Identity::of(found)) {
            let what = "this is the image that is written; it is left out";
            return Err(Stop::Trouble(Trouble::new(Exit::Io, what)));
        }
        let file = self.open(dir, name, found)?;
        let of = self.attributes(found, &XattrSource::Open(file.as_fd()))?;
        let size = u64::try_from(found.st_size).unwrap_or(0);
        let allocated = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
        self.send(Step::File(called.to_vec(), of, key, size.min(allocated)))?;
        let end = match self.content(&file, size) {
            Ok(size) => Ok(size),
            Err(Stop::Trouble(trouble)) => Err(trouble),
            Err(Stop::Gone) => return Err(Stop::Gone),
        };
        self.send(Step::End(end))
    }

    /// Opens a file without changing its access time, if permitted.
    fn open(&self, dir: BorrowedFd<'_>, name: &[u8], found: &Stat) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(dir, name, flags, Mode::empty()).map(File::from);
        if [0, found.st_uid].contains(&self.user)
            && let Ok(file) = open(flags | OFlags::NOATIME)
        {
            return Ok(file);
        }
        open(flags)
    }

    /// Sends a small file without holes with one read of its size. `false`, and nothing is sent, if it has holes or is
    /// shorter. Holes are looked for before the read: reading unwritten blocks brings them into memory, and then they
    /// count as data.
    fn whole(&mut self, from: &File, size: u64) -> Result<bool, Stop> {
        let Some(bytes) = usize::try_from(size).ok().filter(|bytes| (1..CHUNK).contains(bytes)) else {
            return Ok(false);
        };
        if rustix::fs::seek(from, SeekFrom::Hole(0)).ok() != Some(size)
            || from.read_at(self.batch.data.room(bytes), 0).ok() != Some(bytes)
        {
            return Ok(false);
        }
        let filled = self.batch.data.fill(bytes);
        self.send(Step::Data(0, filled))?;
        Ok(true)
    }

    /// Sends data; holes stay holes. Gives the actual end of the file: its inode may say more or less, as in `/proc`
    /// and `/sys`, or for a file that changes meanwhile.
    fn content(&mut self, from: &File, size: u64) -> Result<u64, Stop> {
        if self.whole(from, size)? {
            return self.rest(from, size);
        }
        let mut size = from.metadata()?.len();
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => {
                    // The last hole, unless the file has become shorter.
                    let now = from.metadata()?.len();
                    if now >= size {
                        at = size;
                        break;
                    }
                    size = now;
                    continue;
                }
                // A file system that doesn't know of holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => at,
                Err(error) => return Err(error.into()),
            };
            if start >= size {
                // A hole, and the file has grown after it.
                at = size;
                break;
            }
            let end = rustix::fs::seek(from, SeekFrom::Hole(start)).ok().filter(|&end| end > start);
            let end = end.unwrap_or(size).min(size);
            let reached = self.run_of_data(from, start, end)?;
            if reached == end {
                at = end;
            } else if reached > start {
                return Ok(reached);
            } else {
                let now = from.metadata()?.len();
                if now >= size {
                    return Ok(at);
                }
                size = now;
            }
        }
        self.rest(from, at)
    }

    /// Sends a run of data; gives where it ended.
    fn run_of_data(&mut self, from: &File, start: u64, end: u64) -> Result<u64, Stop> {
        let mut at = start;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let len = self.data(from, at, want)?;
            at += len as u64;
            if len < want {
                break;
            }
        }
        Ok(at)
    }

    /// Sends this many bytes of data, or as many as there are; gives how many.
    fn data(&mut self, from: &File, at: u64, want: usize) -> Result<usize, Stop> {
        let len = read_full(from, self.batch.data.room(want), at)?;
        if len > 0 {
            let filled = self.batch.data.fill(len);
            self.send(Step::Data(at, filled))?;
        }
        Ok(len)
    }

    /// Sends what lies past the size that the inode gave; gives the end.
    fn rest(&mut self, from: &File, mut at: u64) -> Result<u64, Stop> {
        loop {
            let len = self.data(from, at, CHUNK)?;
            at += len as u64;
            if len < CHUNK {
                return Ok(at);
            }
        }
    }

    fn attributes(&self, found: &Stat, place: &XattrSource<'_>) -> Result<Attributes, Errno> {
        Ok(Attributes {
            permissions: (found.st_mode & 0o7777) as u16,
            uid: found.st_uid,
            gid: found.st_gid,
            atime: Some(time(found.st_atime, found.st_atime_nsec)),
            mtime: time(found.st_mtime, found.st_mtime_nsec),
            xattrs: if self.keep_xattrs { place.xattrs()? } else { Vec::new() },
            inode: None,
        })
    }

    fn send(&mut self, step: Step) -> Result<(), Stop> {
        self.batch.steps.push(step);
        if self.batch.steps.len() < BATCH_STEPS && self.batch.data.filled < BATCH_BYTES {
            return Ok(());
        }
        self.hand_over()
    }

    fn hand_over(&mut self) -> Result<(), Stop> {
        let data = self.taken.try_recv().map(|taken| Data { filled: 0, ..taken }).unwrap_or_default();
        let next = Batch { steps: Vec::with_capacity(BATCH_STEPS), data };
        self.to.send(std::mem::replace(&mut self.batch, next)).map_err(|_| Stop::Gone)
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Names in a directory, sorted.
fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut buf = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(dir, buf.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if !matches!(&*name, b"." | b"..") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Fills a buffer, unless the file ends.
fn read_full(from: &File, buf: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        let read = match from.read_at(&mut buf[len..], at + len as u64) {
            // It cannot be read by offset, only from start to end.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SPIPE) => {
                (&*from).read(&mut buf[len..])
            }
            read => read,
        };
        match read {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

fn special(kind: FileType, found: &Stat) -> Special {
    let (major, minor) = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
    match kind {
        FileType::CharacterDevice => Special::CharDevice(major, minor),
        FileType::BlockDevice => Special::BlockDevice(major, minor),
        FileType::Fifo => Special::Fifo,
        _ => Special::Socket,
    }
}

fn time(seconds: i64, nanoseconds: impl TryInto<u32>) -> Timestamp {
    Timestamp { seconds, nanoseconds: nanoseconds.try_into().unwrap_or_default() }
}

/// How the attributes of a file are read.
enum XattrSource<'a> {
    Open(BorrowedFd<'a>),
    /// A file that cannot be opened.
    Path(PathBuf),
}

impl<'a> XattrSource<'a> {
    /// A name in a directory, by a path that is short even if the directory is deep.
    fn below(dir: BorrowedFd<'a>, name: &[u8]) -> Self {
        let name = Path::new(OsStr::from_bytes(name));
        Self::Path(match dir.as_raw_fd() == CWD.as_raw_fd() {
            true => name.to_owned(),
            false => Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name),
        })
    }

    fn list(&self, buf: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(fd) => rustix::fs::flistxattr(fd, buf),
            Self::Path(path) => rustix::fs::llistxattr(path, buf),
        }
    }

    fn get(&self, name: &[u8], buf: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(fd) => rustix::fs::fgetxattr(fd, name, buf),
            Self::Path(path) => rustix::fs::lgetxattr(path, name, buf),
        }
    }

    fn xattrs(&self) -> rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = match sized(|buf| self.list(buf)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut names: Vec<&[u8]> = names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        let mut xattrs = Vec::with_capacity(names.len());
        for name in names {
            match sized(|buf| self.get(name, buf)) {
                Ok(value) => xattrs.push((name.to_vec(), value)),
                // Gone meanwhile, or not readable.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(xattrs)
    }
}

/// The result of a call that fails if the buffer is too small. No list and no value has more than 64 KiB.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file of 32 MiB that changes when it was begun to read and its reader, which reads no more ahead than
    /// the channel takes, cannot be far; gives what came, and where it ended.
    fn read_while(change: impl FnOnce(&File)) -> (Vec<u8>, u64) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 32 << 20]).unwrap();
        let (reader, mut steps) = Reader::new(false, false, None, Copied::default());
        std::thread::scope(|scope| {
            scope.spawn(|| reader.run(&path));
            assert!(matches!(steps.next(), Some(Step::File(..))));
            change(&File::options().write(true).open(&path).unwrap());
            let mut content = Vec::new();
            while let Some(step) = steps.next_in_file() {
                match step {
                    Step::Data(at, part) => {
                        content.resize(usize::try_from(at).unwrap(), 0);
                        content.extend(steps.bytes(part));
                    }
                    Step::End(end) => return (content, end.unwrap()),
                    _ => panic!("a step out of its file"),
                }
            }
            panic!("no end")
        })
    }

    #[test]
    fn a_file_ends_where_it_ends_when_it_is_read() {
        let short = (20 << 20) + 123;
        let (content, end) = read_while(|file| file.set_len(short).unwrap());
        assert_eq!(end, short);
        assert!(content == vec![7; short as usize]);

        let (content, end) = read_while(|file| file.write_all_at(b"more", 32 << 20).unwrap());
        assert_eq!(end, (32 << 20) + 4);
        assert!(content.ends_with(b"\x07more"));

        // Its end becomes a hole.
        let (content, end) = read_while(|file| {
            file.set_len(short).unwrap();
            file.set_len(32 << 20).unwrap();
        });
        assert_eq!(end, 32 << 20);
        assert!(content[..short as usize] == vec![7; short as usize]);
        assert!(content[short as usize..].iter().all(|&byte| byte == 0));
    }
}
