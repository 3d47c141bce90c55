//! A thread that fills a volume: its requests become smaller until nothing fits.

use super::clear::{SHARED, folder, prefix};
use super::seen::Seen;
use crate::handles::{Handles, Io};
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;
use uxfs::{Changes, Dir, ErrorKind, ExchangeOptions, File, NewNode, Node, Rename, SetXattr, Volume};

/// Kinds of calls that need space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A file with content.
    Write,
    /// More content past the end of a file that is there, or far behind.
    Grow,
    /// Space for what is not written.
    Allocate,
    /// A part of a file that is zeroed, which cuts extents.
    Zero,
    /// A hole within a file.
    Insert,
    Create,
    Mkdir,
    Symlink,
    Link,
    Rename,
    Xattr,
    Shared,
    /// A file that shares all blocks of another one.
    Clone,
    /// Content that is there, others' as well perhaps.
    Overwrite,
    /// What two files have in a range.
    Exchange,
}

use Kind::*;

const KINDS: [Kind; 15] = [
    Write, Grow, Allocate, Zero, Insert, Create, Mkdir, Symlink, Link, Rename, Xattr, Shared, Clone,
    Overwrite, Exchange,
];

/// What a thread fills a volume with: how often of each kind. So that now blocks run out first, now inodes.
const MIXTURES: [[u32; KINDS.len()]; 5] = [
    [8, 8, 4, 2, 1, 4, 4, 3, 3, 2, 8, 3, 3, 4, 2],
    [1, 1, 1, 1, 1, 30, 8, 2, 8, 4, 2, 20, 2, 1, 1],
    [2, 2, 1, 1, 1, 2, 2, 2, 1, 1, 30, 1, 1, 1, 1],
    [20, 20, 8, 8, 4, 1, 1, 1, 1, 1, 1, 1, 2, 4, 2],
    [8, 4, 2, 4, 2, 1, 1, 1, 1, 1, 1, 1, 12, 30, 8],
];

/// The largest content, and the largest value of an attribute, that is tried first.
const BYTES_MAX: u64 = 1 << 20;
const VALUE_BYTES_MAX: u64 = 60_000;
/// Calls in a row after which no less is free than before them. From `FEW` on all kinds are tried equally often, so
/// that each has reached its smallest size at `ENOUGH`.
const FEW: u32 = 50;
const ENOUGH: u32 = 400;
/// The bytes of files that are compared before and after a failed write.
const AROUND: u64 = 16 << 10;

/// How often calls of each kind succeeded, and how often they found no space.
#[derive(Clone, Debug)]
pub struct Tally {
    done: BTreeMap<Kind, u64>,
    full: BTreeMap<Kind, u64>,
    /// The fewest blocks that were free.
    pub least_free: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { done: BTreeMap::new(), full: BTreeMap::new(), least_free: u64::MAX }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        other.done.into_iter().for_each(|(kind, count)| *self.done.entry(kind).or_default() += count);
        other.full.into_iter().for_each(|(kind, count)| *self.full.entry(kind).or_default() += count);
        self.least_free = self.least_free.min(other.least_free);
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, full): (u64, u64) = (self.done.values().sum(), self.full.values().sum());
        write!(f, "{done} calls, {full} without space, {} blocks left at the fullest", self.least_free)
    }
}

/// A thread that fills a volume.
pub struct Filler<'a> {
    volume: &'a Volume,
    rng: Rng,
    prefix: Vec<u8>,
    shared: Dir,
    /// Inode numbers of its directories and files.
    dirs: Vec<u64>,
    files: Vec<u64>,
    /// Names of files: the directory's place in `dirs`, and the name.
    names: Vec<(usize, Vec<u8>)>,
    count: u64,
    mixture: [u32; KINDS.len()],
    io: Io,
    /// Whether files may share blocks, and exchange them.
    shares: bool,
    exchanges: bool,
    /// What it did.
    pub tally: Tally,
}

impl<'a> Filler<'a> {
    /// Fills the folder of a thread, which is there.
    pub fn new(volume: &'a Volume, thread: usize, seed: u64, io: Io) -> Result<Self> {
        let mut rng = Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(thread as u64));
        let features = volume.info()?.features;
        let has = |feature: &str| features.iter().any(|name| name == feature);
        Ok(Self {
            shares: has("reflink"),
            exchanges: has("exchange"),
            volume,
            io,
            prefix: prefix(thread),
            shared: volume.open_dir(SHARED)?,
            dirs: vec![volume.lookup(folder(thread))?.ino()],
            files: Vec::new(),
            names: Vec::new(),
            count: 0,
            mixture: MIXTURES[rng.usize(..MIXTURES.len())],
            tally: Tally::default(),
            rng,
        })
    }

    /// Takes most of the free space with one file, so that small things soon fill the rest.
    pub fn take_most(&mut self) -> Result<()> {
        let info = self.volume.info()?;
        let most = info.free_blocks * self.rng.u64(80..98) / 100 * u64::from(info.block_size);
        ensure!(self.create()?, "no space for a first file");
        let node = self.file()?;
        fitted(node.open()?.allocate(0..most, true)).map(drop)
    }

    /// Makes things until nothing fits that takes any space.
    pub fn fill(&mut self) -> Result<()> {
        // How large the next of each kind is at most: a part of what did not fit.
        let mut sizes = KINDS.map(|kind| match kind {
            Write | Grow | Allocate | Zero | Overwrite => BYTES_MAX,
            Xattr => VALUE_BYTES_MAX,
            _ => 1,
        });
        let (mut least, mut since) = (u64::MAX, 0);
        while since < ENOUGH {
            let kind = if since < FEW { self.choose() } else { KINDS[self.rng.usize(..KINDS.len())] };
            let bytes = sizes[kind as usize];
            let fitted = self.one(kind, bytes).with_context(|| format!("{kind:?} of {bytes} bytes"))?;
            let counts = if fitted { &mut self.tally.done } else { &mut self.tally.full };
            *counts.entry(kind).or_default() += 1;
            if !fitted {
                sizes[kind as usize] = (bytes / 8).max(1);
            }
            let info = self.volume.info()?;
            let free = info.free_blocks + info.free_inodes;
            since = if free < least { 0 } else { since + 1 };
            least = least.min(free);
        }
        Ok(())
    }

    fn choose(&mut self) -> Kind {
        let mut at = self.rng.u32(..self.mixture.iter().sum::<u32>());
        for (kind, weight) in KINDS.into_iter().zip(self.mixture) {
            match at.checked_sub(weight) {
                None => return kind,
                Some(rest) => at = rest,
            }
        }
        Write
    }

    /// Tries one: whether it fitted.
    fn one(&mut self, kind: Kind, bytes: u64) -> Result<bool> {
        // A kind that needs a file takes what there is.
        if self.files.is_empty() && !matches!(kind, Create | Mkdir | Symlink | Shared) {
            return self.create();
        }
        match kind {
            Write => Ok(self.create()? && self.write(self.files.len() - 1, bytes, false)?),
            Grow => {
                let (file, far) = (self.rng.usize(..self.files.len()), self.rng.bool());
                self.write(file, bytes, far)
            }
            Allocate => self.allocate(bytes),
            Zero => self.zero(bytes),
            Insert => self.insert(),
            Create => self.create(),
            Mkdir => self.mkdir(),
            Symlink => self.symlink(),
            Link => self.link(),
            Rename => self.rename(),
            Xattr => self.xattr(bytes),
            Shared => self.share(),
            Clone if self.shares => self.clone_one(),
            Overwrite => self.overwrite(bytes),
            Exchange if self.exchanges => self.exchange(),
            Clone | Exchange => self.create(),
        }
    }

    fn node(&self, ino: u64) -> Result<Node> {
        Ok(self.volume.node(ino)?)
    }

    fn file(&mut self) -> Result<Node> {
        let ino = self.files[self.rng.usize(..self.files.len())];
        self.node(ino)
    }

    fn dir(&mut self) -> Result<(usize, Dir)> {
        let at = self.rng.usize(..self.dirs.len());
        Ok((at, self.node(self.dirs[at])?.as_dir()?))
    }

    /// A name that nothing has; some are long, so that directories grow fast.
    fn name(&mut self) -> Vec<u8> {
        self.count += 1;
        let mut name = format!("{:x}-", self.count).into_bytes();
        let long = if self.rng.u32(..3) == 0 { self.rng.usize(..200) } else { 0 };
        name.extend(std::iter::repeat_with(|| self.rng.u8(b'a'..=b'z')).take(long));
        name
    }

    /// Adds a name to a directory: nothing of the directory may change if there is no room, nor may the name be there.
    fn add(&mut self, dir: &Dir, name: &[u8], make: impl FnOnce() -> uxfs::Result<()>) -> Result<bool> {
        let before = self.seen(dir.node(), b"")?;
        if fitted(make())? {
            return Ok(true);
        }
        ensure!(dir.lookup(name)?.is_none(), "there was no space, and yet there is a name");
        before.must_be_the_same(dir.node(), "a new name")?;
        Ok(false)
    }

    fn create(&mut self) -> Result<bool> {
        let (at, dir) = self.dir()?;
        let name = self.name();
        let mut made = 0;
        let fitted = self.add(&dir, &name, || {
            made = dir.create_file(&name, &NewNode::default())?.ino();
            Ok(())
        })?;
        if fitted {
            self.files.push(made);
            self.names.push((at, name));
        }
        Ok(fitted)
    }

    fn mkdir(&mut self) -> Result<bool> {
        let (_, dir) = self.dir()?;
        let name = self.name();
        let fitted = self.add(&dir, &name, || dir.create_dir(&name, &NewNode::default()).map(drop))?;
        if fitted {
            self.dirs.push(dir.lookup(&name)?.context("the new directory")?.ino());
        }
        Ok(fitted)
    }

    fn symlink(&mut self) -> Result<bool> {
        let (_, dir) = self.dir()?;
        let (name, len) = (self.name(), self.rng.usize(1..1000));
        let target = vec![b'x'; len];
        self.add(&dir, &name, || dir.create_symlink(&name, &target, &NewNode::default()).map(drop))
    }

    fn link(&mut self) -> Result<bool> {
        let (_, dir) = self.dir()?;
        let (name, node) = (self.name(), self.file()?);
        let before = self.seen(&node, b"")?;
        let fitted = self.add(&dir, &name, || dir.link(&name, &node))?;
        if !fitted {
            before.must_be_the_same(&node, "a link")?;
        }
        Ok(fitted)
    }

    /// Gives a file another name, in another directory perhaps.
    fn rename(&mut self) -> Result<bool> {
        let at = self.rng.usize(..self.names.len());
        let (from, old) = self.names[at].clone();
        let (to, new_dir) = self.dir()?;
        let (old_dir, name) = (self.node(self.dirs[from])?.as_dir()?, self.name());
        let before = self.seen(old_dir.node(), b"")?;
        let fitted = self.add(&new_dir, &name, || old_dir.rename(&old, &new_dir, &name, Rename::Replace))?;
        if fitted {
            self.names[at] = (to, name);
        } else {
            before.must_be_the_same(old_dir.node(), "a rename")?;
            ensure!(old_dir.lookup(&old)?.is_some(), "a rename found no space, and the old name is gone");
        }
        Ok(fitted)
    }

    fn xattr(&mut self, bytes: u64) -> Result<bool> {
        let node = if self.rng.u32(..6) == 0 { self.dir()?.1.node().clone() } else { self.file()? };
        // Few names, so that values are replaced too.
        let name = format!("user.{}", self.rng.u32(..40));
        let value = vec![self.rng.u8(..); self.rng.usize(..=bytes as usize)];
        let before = self.seen(&node, name.as_bytes())?;
        if fitted(node.set_xattr(name.as_bytes(), &value, SetXattr::Either))? {
            return Ok(true);
        }
        before.must_be_the_same(&node, "an attribute")?;
        Ok(false)
    }

    fn share(&mut self) -> Result<bool> {
        let mut name = self.prefix.clone();
        name.extend(self.name());
        if fitted(self.shared.create_file(&name, &NewNode::default()).map(drop))? {
            return Ok(true);
        }
        // Others change the directory meanwhile: only the name can be judged.
        ensure!(self.shared.lookup(&name)?.is_none(), "there was no space, and yet there is a name");
        Ok(false)
    }

    /// Writes past the end of a file, or into holes that are left.
    fn write(&mut self, file: usize, bytes: u64, far: bool) -> Result<bool> {
        let node = self.node(self.files[file])?;
        let file = self.opened(&node)?;
        let gap = if far { self.rng.u64(..1 << 20) } else { 0 };
        let (offset, byte) = (file.size() + gap, self.rng.u8(1..));
        let bytes = vec![byte; self.rng.u64(1..=bytes) as usize];
        self.changing(&node, offset..offset + bytes.len() as u64, "a write", || file.write_at(&bytes, offset))
    }

    fn allocate(&mut self, bytes: u64) -> Result<bool> {
        let node = self.file()?;
        let file = self.opened(&node)?;
        let start = self.rng.u64(..=file.size() + bytes);
        let (range, keep) = (start..start + self.rng.u64(1..=bytes), self.rng.bool());
        self.changing(&node, range.clone(), "an allocation", || file.allocate(range, keep))
    }

    fn zero(&mut self, bytes: u64) -> Result<bool> {
        let node = self.file()?;
        let file = self.opened(&node)?;
        let start = self.rng.u64(..=file.size());
        let range = start..start + self.rng.u64(1..=bytes);
        self.changing(&node, range.clone(), "zeroing", || file.zero_range(range, false))
    }

    fn insert(&mut self) -> Result<bool> {
        let node = self.file()?;
        let file = self.opened(&node)?;
        let block = u64::from(node.metadata()?.block_size);
        if file.size() <= block {
            return Ok(false);
        }
        let start = self.rng.u64(..file.size() / block) * block;
        self.changing(&node, start..start + block, "inserting", || file.insert_range(start..start + block))
    }

    /// A clone that found no space may share some blocks, and what it was made of is as it was.
    fn clone_one(&mut self) -> Result<bool> {
        let from = self.file()?;
        if !self.create()? {
            return Ok(false);
        }
        let to = self.node(self.files[self.files.len() - 1])?;
        let (to, from_file) = (self.opened(&to)?, self.opened(&from)?);
        let before = self.seen(&from, b"")?;
        let fitted = fitted(from_file.clone_range(0, &to, 0, 0))?;
        before.must_be_the_same(&from, "a clone of it")?;
        Ok(fitted)
    }

    fn overwrite(&mut self, bytes: u64) -> Result<bool> {
        let node = self.file()?;
        let file = self.opened(&node)?;
        if file.size() == 0 {
            return Ok(false);
        }
        let start = self.rng.u64(..file.size());
        let len = self.rng.u64(1..=bytes.min(file.size() - start));
        let written = vec![self.rng.u8(..); len as usize];
        self.changing(&node, start..start + len, "an overwrite", || file.write_at(&written, start))
    }

    fn exchange(&mut self) -> Result<bool> {
        let (one, other) = (self.file()?, self.file()?);
        let (file, theirs) = (self.opened(&one)?, self.opened(&other)?);
        let block = u64::from(one.metadata()?.block_size);
        let most = file.size().min(theirs.size()) / block;
        if one.ino() == other.ino() || most == 0 {
            return Ok(false);
        }
        let len = self.rng.u64(1..=most) * block;
        let at = self.rng.u64(..=(file.size() - len) / block) * block;
        let before = self.seen(&other, b"")?;
        let exchange = || file.exchange_range(at, &theirs, 0, Some(len), ExchangeOptions::new());
        let fitted = self.changing(&one, at..at + len, "an exchange", exchange)?;
        if !fitted {
            before.must_be_the_same(&other, "an exchange")?;
        }
        Ok(fitted)
    }

    /// A handle of a file, of one kind or another.
    fn opened(&mut self, node: &Node) -> Result<File> {
        let file = node.open()?;
        match self.io {
            Io::Direct => Ok(file),
            io => Ok(Handles::new(file, io).nth(self.rng.usize(..)).clone()),
        }
    }

    /// The state of a node. What is only in memory is allocated first, as it would be whenever space is short.
    fn seen(&self, node: &Node, name: &[u8]) -> Result<Seen> {
        if self.io.is_cached() && node.file_type().is_file() {
            node.open()?.sync()?;
            return Ok(Seen::of(node, name)?.in_any_pieces());
        }
        Seen::of(node, name)
    }

    /// Changes a part of a file: all of it, or nothing.
    fn changing(
        &mut self,
        node: &Node,
        range: std::ops::Range<u64>,
        what: &str,
        change: impl FnOnce() -> uxfs::Result<()>,
    ) -> Result<bool> {
        let around = range.start.saturating_sub(AROUND)..range.end.min(range.start + AROUND);
        let read = || -> Result<Vec<u8>> {
            let mut bytes = vec![0; (around.end - around.start) as usize];
            let len = node.open()?.read_at(&mut bytes, around.start)?;
            bytes.truncate(len);
            Ok(bytes)
        };
        let (before, content) = (self.seen(node, b"")?, read()?);
        if fitted(change())? {
            return Ok(true);
        }
        before.must_be_the_same(node, what)?;
        ensure!(read()? == content, "{what} found no space and changed what was in the file");
        Ok(false)
    }

    /// Operations that need no space must succeed on a full volume.
    pub fn works_when_full(&mut self) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let node = self.file()?;
        node.change(&Changes { permissions: Some(0o600), uid: Some(7), ..Changes::default() })
            .context("a mode")?;
        let file = self.opened(&node)?;
        if file.size() > 0 {
            let mut byte = [0];
            let first = file.extents().next().transpose()?;
            // What others have as well is written elsewhere, which takes space.
            if first.is_some_and(|first| first.logical == 0 && !first.unwritten && !first.shared) {
                file.read_at(&mut byte, 0)?;
                file.write_at(&byte, 0).context("an overwrite")?;
            }
            file.sync().context("a sync")?;
        }
        let at = self.rng.usize(..self.names.len());
        let (dir, name) = &self.names[at];
        let dir = self.node(self.dirs[*dir])?.as_dir()?;
        dir.remove_file(name).context("a removal")?;
        self.names.swap_remove(at);
        Ok(())
    }
}

/// Whether there was space for a call; all other errors are wrong.
fn fitted(result: uxfs::Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
        Err(error) => Err(error.into()),
    }
}
