//! Opens a volume and asks for everything that is in it, whatever comes back.
//!
//! Invariant: an error ends what it belongs to (a directory, a fork, a file), never the walk. What is asked
//! is bounded by what the image can hold: every inode is visited once, and of content and names there are
//! caps.

use blockdev::{AlignedBuf, BlockDevice};
use fileio::{DirectFile, ExtentState, FileMapping, Locking};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use xfs::attr::linux;
use xfs::dir;
use xfs::iomap;
use xfs::volume::{ForkKind, Inode, OpenOptions, Volume};
use xfs::{Error, symlink};
use xfs_format::types::{AgNumber, InodeNumber};

/// The limits of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Inodes to visit.
    pub inodes: usize,
    /// Names of one directory to look up again.
    pub lookups: usize,
    /// Attribute values of one inode to read.
    pub values: usize,
    /// Runs of one file's map to look at.
    pub runs: usize,
    /// Bytes of one file to read.
    pub file_bytes: u64,
    /// Bytes of all files to read.
    pub all_bytes: u64,
}

impl Limits {
    /// Everything that matters of a small volume.
    pub const FULL: Self = Self {
        inodes: 200_000,
        lookups: 2000,
        values: 200,
        runs: 20_000,
        file_bytes: 256 << 10,
        all_bytes: 8 << 20,
    };
    /// Enough for a fuzzer's one input.
    pub const QUICK: Self =
        Self { inodes: 2000, lookups: 50, values: 20, runs: 500, file_bytes: 16 << 10, all_bytes: 256 << 10 };
}

/// The results of a walk.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Whether the volume could be opened; if not, `errors` says why.
    pub opened: bool,
    /// Inodes that were read.
    pub inodes: u64,
    /// Names that were listed.
    pub names: u64,
    /// How often each error came: structure and check, or the error's name.
    pub errors: BTreeMap<String, u64>,
}

/// Opens the volume on `device` for reading, and walks it.
pub fn walk(device: Arc<dyn BlockDevice>, limits: &Limits) -> Seen {
    let mut seen = Seen::default();
    let Some(volume) = open(device, &mut seen) else { return seen };
    seen.opened = true;
    let bytes_left = limits.all_bytes;
    Walk {
        volume: &volume,
        limits: *limits,
        seen: &mut seen,
        bytes_left,
        known: HashSet::new(),
        todo: VecDeque::new(),
    }
    .everything();
    seen
}

/// With default options; if that fails, without recovery.
fn open(device: Arc<dyn BlockDevice>, seen: &mut Seen) -> Option<Arc<Volume>> {
    let first = match Volume::open(Arc::clone(&device), &OpenOptions::default()) {
        Ok(volume) => return Some(volume),
        Err(error) => error,
    };
    seen.error(&first);
    let options = OpenOptions { norecovery: true, ..OpenOptions::default() };
    match Volume::open(device, &options) {
        Ok(volume) => return Some(volume),
        Err(error) if error.to_string() != first.to_string() => seen.error(&error),
        Err(_) => {}
    }
    None
}

impl Seen {
    fn error(&mut self, error: &Error) {
        let name = match error {
            Error::Corrupt { problem, .. } => format!("{}: {}", problem.structure, problem.check),
            other => {
                let text = format!("{other:?}");
                text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
            }
        };
        *self.errors.entry(name).or_default() += 1;
    }
}

struct Walk<'a> {
    volume: &'a Arc<Volume>,
    limits: Limits,
    seen: &'a mut Seen,
    bytes_left: u64,
    known: HashSet<InodeNumber>,
    todo: VecDeque<InodeNumber>,
}

impl Walk<'_> {
    fn ok<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.inspect_err(|error| self.seen.error(error)).ok()
    }

    fn visit_later(&mut self, ino: InodeNumber) {
        if self.known.len() < self.limits.inodes && self.known.insert(ino) {
            self.todo.push_back(ino);
        }
    }

    fn everything(&mut self) {
        self.groups();
        self.visit_later(self.volume.geometry().root);
        // By names first, then what no name led to.
        while let Some(ino) = self.todo.pop_front() {
            self.inode(ino);
        }
        let mut all = Vec::new();
        let limit = self.limits.inodes;
        let listed = self.volume.for_each_inode(&mut |ino| {
            all.push(ino);
            if all.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        self.ok(listed);
        all.into_iter().for_each(|ino| self.visit_later(ino));
        while let Some(ino) = self.todo.pop_front() {
            self.inode(ino);
        }
    }

    fn groups(&mut self) {
        for ag in 0..self.volume.geometry().ag_count().min(1000) {
            let (inodes, space) =
                (self.volume.group_inodes(AgNumber(ag)), self.volume.group_space(AgNumber(ag)));
            self.ok(inodes);
            self.ok(space);
        }
    }

    fn inode(&mut self, ino: InodeNumber) {
        let inode = self.volume.inode(ino);
        let Some(inode) = self.ok(inode) else { return };
        self.seen.inodes += 1;
        let _ = (inode.mode(), inode.size(), inode.atime(), inode.crtime(), inode.device());
        self.attributes(&inode);
        if inode.is_dir() {
            self.directory(&inode);
        } else if inode.is_symlink() {
            self.symlink(&inode);
        } else if inode.is_file() {
            self.file(&inode);
        }
    }

    fn attributes(&mut self, inode: &Inode) {
        let Some(fork) = self.volume.fork(inode, ForkKind::Attr) else { return };
        let Some(names) = self.ok(linux::list(&*fork)) else { return };
        for name in names.iter().take(self.limits.values) {
            self.ok(linux::get(&*fork, name));
        }
        self.ok(linux::get(&*fork, b"user.not there"));
    }

    fn directory(&mut self, inode: &Inode) {
        let Some(fork) = self.volume.fork(inode, ForkKind::Data) else { return };
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut entries = Vec::new();
        let (most, mut count, mut middle) = (self.limits.lookups, 0u64, 0);
        let limit = self.limits.inodes;
        let walked = dir::walk(&*fork, 0, &mut |entry| {
            count += 1;
            if names.len() < most {
                names.push(entry.name.to_vec());
                middle = entry.next;
            }
            if entries.len() < limit {
                entries.push(entry.inode);
            }
            ControlFlow::Continue(())
        });
        self.ok(walked);
        self.seen.names += count;
        for name in &names {
            self.ok(dir::lookup(&*fork, name));
        }
        self.ok(dir::lookup(&*fork, b"a name that is not there"));
        self.ok(dir::walk(&*fork, middle, &mut |_| ControlFlow::Break(())));
        entries.into_iter().for_each(|ino| self.visit_later(ino));
    }

    fn symlink(&mut self, inode: &Inode) {
        if let Some(fork) = self.volume.fork(inode, ForkKind::Data) {
            self.ok(symlink::target(&*fork));
        }
    }

    fn file(&mut self, inode: &Arc<Inode>) {
        let map = iomap::file_map(self.volume, inode);
        let Some(map) = self.ok(map) else { return };
        let mut at = 0;
        let mut written = None;
        for _ in 0..self.limits.runs {
            let Some(run) = self.ok(map.lookup(at)).map(|found| found.extent) else { break };
            assert!(run.offset <= at && run.len > 0, "the run {run:?} was found for byte {at}");
            let end = run.offset.saturating_add(run.len);
            assert!(end > at, "the run {run:?} was found for byte {at}");
            if matches!(run.state, ExtentState::Written(_) | ExtentState::Shared(_)) {
                written.get_or_insert(run.offset);
            }
            at = end;
            if end == u64::MAX {
                break;
            }
        }
        let file = DirectFile::new(Arc::clone(self.volume.device()), map, Locking::Range);
        // From its start, from its first data, and over its end.
        let third = self.limits.file_bytes / 3;
        for start in [0, written.unwrap_or(0), inode.size().saturating_sub(third / 2)] {
            self.read(&file, start, third);
        }
    }

    fn read<M: FileMapping>(&mut self, file: &DirectFile<M>, start: u64, len: u64) {
        let mut buffer = AlignedBuf::zeroed(16 << 10);
        let mut at = start;
        while at < start.saturating_add(len) && self.bytes_left > 0 {
            match file.read_at(at, &mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    at += read as u64;
                    self.bytes_left = self.bytes_left.saturating_sub(read as u64);
                }
                Err(_) => {
                    *self.seen.errors.entry("reading a file".into()).or_default() += 1;
                    return;
                }
            }
        }
    }
}
