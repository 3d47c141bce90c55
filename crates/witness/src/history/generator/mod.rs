//! Chooses operations: from the state of a model and a seed, and from nothing else.
//!
//! Invariants:
//! - the same seed and the same model give the same operation;
//! - most operations are about objects that are there, and some about what is not, so that errors are seen too;
//! - for a while now and then, operations go to one object ([`focus`]), so that directories, attributes and maps
//!   pass through all their forms, there and back.

mod focus;
mod names;

use super::acl::{Acl, Tag};
use super::content::Blob;
use super::model::{Id, Kind, Model};
use super::op::{AclKind, AllocateHow, Moment, Name, NodeKind, Op, Ref, RenameHow, XattrHow};
use crate::record::Hints;
use fastrand::Rng;
use focus::Focus;

/// Files that a thread keeps open at most.
pub const SLOTS: usize = 6;
/// The directory that threads share.
pub const SHARED: &[u8] = b"shared";
/// The shared file: the threads have its stripes in turn.
pub const STRIPED: &[u8] = b"shared/striped";
/// Bytes a stripe.
pub const STRIPE: u64 = 64 << 10;
/// Stripes of each thread that are written to.
const STRIPES: u64 = 24;

/// Bytes that content in an inode may have so that no attribute pushes it out.
const STAYS_IN_INODE: usize = 190;

/// The folder of a thread.
pub fn folder(thread: usize) -> Name {
    Name(format!("t{thread}").into_bytes())
}

/// What a generator must know of its surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Which thread it is for.
    pub thread: usize,
    /// How many there are.
    pub threads: usize,
    /// Bytes that this thread's files may hold.
    pub bytes: u64,
    /// Objects that this thread may have.
    pub objects: usize,
    /// Bytes of an inode that hold content and attributes.
    pub literal: usize,
    /// Times that files are larger than usual: for volumes that are to be full.
    pub appetite: u64,
    /// Whether files share blocks.
    pub shares: bool,
    /// Whether files exchange what they have.
    pub exchanges: bool,
    /// Whether a third of what is done is about that.
    pub often: bool,
    /// Whether what is exchanged up to the end of two files leaves them with their sizes.
    pub same_sizes: bool,
}

/// Chooses operations.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    bounds: Bounds,
    focus: Option<Focus>,
    /// Operations during which space is rather freed than used.
    freeing: u32,
    /// The volume was full when last asked.
    full: bool,
    /// What comes next whatever is drawn.
    pending: Option<Op>,
}

impl Generator {
    /// Chooses by this seed.
    pub fn new(seed: u64, bounds: Bounds) -> Self {
        let rng = Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(bounds.thread as u64));
        Self { rng, bounds, focus: None, freeing: 0, full: false, pending: None }
    }

    /// Has files share and exchange blocks all the time.
    pub fn shares_often(&mut self) {
        self.bounds.often = true;
    }

    /// Says that a kernel will recover the volume. Kernels (6.18 among them) that recover the exchange of whole files of
    /// different sizes free what lies behind the size that a file had at the crash, and give the other one that size.
    pub fn a_kernel_recovers(&mut self) {
        self.bounds.same_sizes = true;
    }

    /// Says that the volume was full just now.
    pub fn no_space(&mut self) {
        self.full = true;
        // Most of what is full stays so for a while: calls that find no space are what this is about.
        if self.rng.u32(..40) == 0 {
            self.freeing = self.rng.u32(50..600);
        }
    }

    /// The next operation.
    pub fn next(&mut self, model: &Model) -> Op {
        if let Some(op) = self.pending.take() {
            return op;
        }
        if model.bytes() > self.bounds.bytes {
            self.freeing = self.freeing.max(60);
        }
        if self.freeing > 0 {
            self.freeing -= 1;
            if self.rng.u32(..3) > 0 {
                return self.free_some(model);
            }
        }
        if let Some(mut focus) = self.focus.take() {
            if self.rng.u32(..5) == 0 {
                self.focus = Some(focus);
                return self.any(model);
            }
            if let Some(op) = focus.next(self, model) {
                self.focus = Some(focus);
                return op;
            }
            self.focus = focus.then(self, model);
        } else if self.rng.u32(..if self.bounds.often { 20 } else { 300 }) == 0 {
            self.focus = Focus::choose(self, model);
        }
        self.any(model)
    }

    fn any(&mut self, model: &Model) -> Op {
        let crowded = model.files().len() + model.dirs().len() + model.others().len() > self.bounds.objects;
        if crowded && self.rng.bool() {
            return Op::Unlink { path: self.existing(model) };
        }
        let Bounds { shares, exchanges, often, .. } = self.bounds;
        let most = match (shares, exchanges) {
            (false, _) => 1000,
            (true, false) => 1060,
            (true, true) => 1090,
        };
        let least = if shares && often && self.rng.u32(..3) == 0 { 1000 } else { 0 };
        match self.rng.u32(least..most) {
            1060.. => self.exchange(model),
            1000.. => self.share(model),
            0..80 => self.create(model),
            80..110 => Op::Mkdir { path: self.fresh(model), mode: self.mode() },
            110..140 => Op::Mknod { path: self.fresh(model), kind: self.node_kind(), mode: self.mode() },
            140..170 => Op::Symlink { path: self.fresh(model), target: self.target() },
            170..200 => Op::Link { from: self.existing(model), to: self.fresh(model) },
            200..270 => Op::Unlink { path: self.existing(model) },
            270..290 => Op::Rmdir { path: self.directory(model) },
            290..360 => self.rename(model),
            360..390 => self.slots(model),
            390..510 => self.write(model),
            510..570 => self.read(model),
            570..660 => self.allocate(model),
            660..700 => self.truncate(model),
            700..720 => self.seek(model),
            720..775 => self.set_xattr(model),
            775..800 => self.other_xattr(model),
            800..825 => self.acl(model),
            825..845 => Op::Chmod { path: self.existing(model), mode: self.any_mode() },
            845..860 => self.chown(model),
            860..880 => self.times(model),
            880..888 => self.set_project(model),
            888..896 => self.set_hints(model),
            896..904 => Op::Stat { path: self.existing(model) },
            904..912 => Op::ReadLink { path: self.path_of(model, model.others()) },
            912..920 => Op::ReadDir { path: self.directory(model) },
            920..955 => self.striped(),
            955..985 => Op::Fsync { file: self.file(model) },
            985..995 => Op::FsyncDir { path: self.directory(model) },
            995..997 => Op::Idle { intervals: self.rng.u8(1..6) },
            _ => Op::Sync,
        }
    }

    fn create(&mut self, model: &Model) -> Op {
        let slot = if self.rng.u32(..4) == 0 { self.free_slot(model) } else { None };
        Op::Create { path: self.fresh(model), mode: self.mode(), slot }
    }

    fn rename(&mut self, model: &Model) -> Op {
        let from = self.existing(model);
        let how = match self.rng.u32(..10) {
            0 | 1 => RenameHow::NoReplace,
            2..=4 => RenameHow::Exchange,
            _ => RenameHow::Plain,
        };
        let wants_old = how == RenameHow::Exchange || self.rng.u32(..4) == 0;
        let to = if wants_old { self.existing(model) } else { self.fresh(model) };
        Op::Rename { from, to, how }
    }

    fn free_slot(&mut self, model: &Model) -> Option<usize> {
        model.slots().iter().position(Option::is_none)
    }

    /// Opens, closes, and files without names.
    fn slots(&mut self, model: &Model) -> Op {
        let held: Vec<usize> = (0..SLOTS).filter(|&slot| model.slots()[slot].is_some()).collect();
        let free = self.free_slot(model);
        match (self.rng.u32(..6), free) {
            (0 | 1, Some(slot)) => Op::Open { path: self.path_of(model, model.files()), slot },
            (2 | 3, Some(slot)) => Op::Tmpfile { dir: self.directory(model), mode: self.mode(), slot },
            (4, _) if !held.is_empty() => {
                Op::LinkSlot { slot: held[self.rng.usize(..held.len())], path: self.fresh(model) }
            }
            _ if !held.is_empty() => Op::Close { slot: held[self.rng.usize(..held.len())] },
            _ => Op::Sync,
        }
    }

    fn write(&mut self, model: &Model) -> Op {
        let file = self.file(model);
        let (offset, len) = self.range(model, &file, 64 << 10);
        self.write_to(file, offset, len)
    }

    /// Writes bytes that nothing else writes.
    fn write_to(&mut self, file: Ref, offset: u64, len: u64) -> Op {
        let seed = self.rng.u64(..);
        Op::Write { file, offset, len: len as u32, seed }
    }

    fn read(&mut self, model: &Model) -> Op {
        let file = self.file(model);
        let (offset, len) = self.range(model, &file, 128 << 10);
        Op::Read { file, offset, len: len as u32 }
    }

    fn allocate(&mut self, model: &Model) -> Op {
        let file = self.file(model);
        let (mut offset, mut len) = self.range(model, &file, 256 << 10);
        let how = match self.rng.u32(..14) {
            0..=2 => AllocateHow::Allocate,
            3 | 4 => AllocateHow::KeepSize,
            5..=7 => AllocateHow::PunchHole,
            8 | 9 => AllocateHow::ZeroRange,
            10 => AllocateHow::ZeroRangeKeepSize,
            11 | 12 => AllocateHow::CollapseRange,
            _ => AllocateHow::InsertRange,
        };
        let whole = matches!(how, AllocateHow::CollapseRange | AllocateHow::InsertRange);
        if whole && self.rng.u32(..20) > 0 {
            // What can be done at all: whole blocks inside the file.
            let size = self.size(model, &file);
            offset = if offset < size { offset } else { self.rng.u64(..=size) };
            offset -= offset % model.block();
            len = len.min((size - offset) / 2).max(1).next_multiple_of(model.block());
        }
        Op::Allocate { file, how, offset, len }
    }

    /// Clones, copies, and finds what is the same.
    fn share(&mut self, model: &Model) -> Op {
        let (from, to) = (self.file(model), self.file(model));
        let block = model.block();
        let (size, there) = (self.size(model, &from), self.size(model, &to));
        let place = |rng: &mut Rng, size: u64| rng.u64(..=size) / block * block;
        let (offset, at) = (place(&mut self.rng, size), place(&mut self.rng, there));
        match self.rng.u32(..20) {
            0..=6 => Op::Clone { from, offset: 0, to, at: 0, len: 0 },
            7..=9 => {
                let most = (size - offset).min(512 << 10) / block;
                Op::Clone { from, offset, to, at, len: self.rng.u64(..=most) * block }
            }
            10 => Op::Clone { from, offset, to, at, len: 0 },
            11..=13 => {
                let (offset, len) = self.range(model, &from, 256 << 10);
                let at = if self.rng.bool() { at + offset % block } else { self.rng.u64(..=there) };
                Op::CopyRange { from, offset, to, at, len: len as u32 }
            }
            14..=17 => self.same_twice(model, from, to, at),
            // Of what cannot be, most is refused.
            18 => {
                let (offset, len) = self.range(model, &from, 64 << 10);
                Op::Clone { from, offset, to, at, len }
            }
            _ => {
                let (offset, len) = self.range(model, &from, 64 << 10);
                Op::Dedupe { from, offset, to, at, len: len.max(1) }
            }
        }
    }

    /// Has two files exchange what they have.
    fn exchange(&mut self, model: &Model) -> Op {
        let (file, other) = (self.file(model), self.file(model));
        self.exchange_of(model, file, other)
    }

    /// The same of two files that were chosen.
    fn exchange_of(&mut self, model: &Model, file: Ref, other: Ref) -> Op {
        let block = model.block();
        let (size, other_size) = (self.size(model, &file), self.size(model, &other));
        let only_written = self.rng.u32(..4) == 0;
        if self.rng.u32(..20) == 0 {
            // Of what cannot be, most is refused.
            let (at, len) = self.range(model, &file, 64 << 10);
            let other_at = self.rng.u64(..=other_size);
            return Op::Exchange { file, at, other, other_at, len: len.max(1), only_written };
        }
        if self.rng.u32(..5) < 2 {
            let at = if self.rng.bool() { 0 } else { self.rng.u64(..=size.min(other_size)) / block * block };
            let exchange = Op::Exchange {
                file: file.clone(),
                at,
                other: other.clone(),
                other_at: at,
                len: 0,
                only_written,
            };
            if size == other_size || !self.bounds.same_sizes && self.rng.bool() {
                return exchange;
            }
            self.pending = Some(exchange);
            return Op::Truncate { file: other, size };
        }
        let place = |rng: &mut Rng, size: u64| rng.u64(..=size / block) * block;
        let (at, other_at) = (place(&mut self.rng, size), place(&mut self.rng, other_size));
        let most = (size - at).min(other_size - other_at) / block;
        if most == 0 {
            let exchange =
                Op::Exchange { file, at: 0, other: other.clone(), other_at: 0, len: block, only_written };
            self.pending = Some(exchange);
            return self.write_to(other, 0, 2 * block);
        }
        Op::Exchange { file, at, other, other_at, len: self.rng.u64(1..=most) * block, only_written }
    }

    /// Writes what one file has to another, and then has both share it.
    fn same_twice(&mut self, model: &Model, from: Ref, to: Ref, at: u64) -> Op {
        let id = match &from {
            Ref::Path(path) => model.lookup(path).ok(),
            Ref::Slot(slot) => model.slots()[*slot],
        };
        let choice = self.rng.usize(..16);
        let run =
            id.and_then(|id| model.content(id)).and_then(|content| content.whole_run(model.block(), choice));
        let Some((offset, len, seed)) = run else { return Op::Fsync { file: from } };
        let whole = len / model.block() * model.block();
        self.pending = Some(Op::Dedupe { from, offset, to: to.clone(), at, len: whole });
        Op::Write { file: to, offset: at, len: len as u32, seed }
    }

    fn truncate(&mut self, model: &Model) -> Op {
        let file = self.file(model);
        let size = self.size(model, &file);
        let size = match self.rng.u32(..10) {
            0 => 0,
            1 => size,
            2..=5 => self.rng.u64(..=size),
            6 | 7 => size + self.rng.u64(..64 << 10),
            8 => size / 4096 * 4096,
            _ => self.offset(model, &file),
        };
        Op::Truncate { file, size }
    }

    fn seek(&mut self, model: &Model) -> Op {
        let file = self.file(model);
        let offset = self.offset(model, &file);
        if self.rng.bool() { Op::SeekData { file, offset } } else { Op::SeekHole { file, offset } }
    }

    fn striped(&mut self) -> Op {
        let stripe = self.rng.u64(..STRIPES) * self.bounds.threads as u64 + self.bounds.thread as u64;
        let offset = self.rng.u64(..STRIPE);
        let len = self.rng.u64(1..=STRIPE - offset);
        let at = stripe * STRIPE + offset;
        let file = Ref::Path(Name::from(STRIPED));
        match self.rng.u32(..8) {
            0..=3 => self.write_to(file, at, len),
            4 => Op::Allocate { file, how: AllocateHow::PunchHole, offset: at, len },
            5 => Op::Fsync { file },
            _ => Op::Read { file, offset: at, len: len as u32 },
        }
    }

    /// Whether attributes could push a link's target out of the inode. The kernel leaves it outside when they have
    /// gone again, which `xfs_repair` 6.1 wrongly calls damage.
    fn may_be_pushed_out(&self, model: &Model, path: &Name) -> bool {
        let node = model.lookup(path).ok().and_then(|id| model.get(id));
        match node.map(|node| &node.kind) {
            Some(Kind::Symlink(target)) => (STAYS_IN_INODE..=self.bounds.literal).contains(&target.0.len()),
            _ => false,
        }
    }

    fn set_xattr(&mut self, model: &Model) -> Op {
        let path = self.existing(model);
        if self.may_be_pushed_out(model, &path) {
            return Op::Stat { path };
        }
        let known = self.known_attribute(model, &path);
        let name = match known {
            Some(name) if self.rng.u32(..3) > 0 => name,
            _ => self.attribute_name(),
        };
        let how = match self.rng.u32(..6) {
            0 => XattrHow::Create,
            1 => XattrHow::Replace,
            _ => XattrHow::Set,
        };
        Op::SetXattr { path, name, value: self.value(), how }
    }

    fn other_xattr(&mut self, model: &Model) -> Op {
        let mut path = self.existing(model);
        for _ in 0..8 {
            if self.known_attribute(model, &path).is_some() {
                break;
            }
            path = self.existing(model);
        }
        let name = self.known_attribute(model, &path).unwrap_or_else(|| self.attribute_name());
        match self.rng.u32(..3) {
            0 => Op::RemoveXattr { path, name },
            1 => Op::GetXattr { path, name },
            _ => Op::ListXattr { path },
        }
    }

    fn known_attribute(&mut self, model: &Model, path: &Name) -> Option<Name> {
        let node = model.node(model.lookup(path).ok()?);
        let count = node.xattrs.len();
        (count > 0).then(|| self.rng.usize(..count)).and_then(|at| node.xattrs.keys().nth(at).cloned())
    }

    /// The value of an attribute.
    fn value(&mut self) -> Blob {
        let len = match self.rng.u32(..100) {
            0..60 => self.rng.u32(0..64),
            60..80 => self.rng.u32(64..600),
            80..94 => self.rng.u32(600..5000),
            94..99 => self.rng.u32(5000..=65_536),
            _ => 65_536,
        };
        Blob { seed: self.rng.u64(..), len }
    }

    fn acl(&mut self, model: &Model) -> Op {
        let kind = if self.rng.u32(..3) > 0 { AclKind::Default } else { AclKind::Access };
        let path = match kind {
            AclKind::Default => self.directory(model),
            AclKind::Access => self.existing(model),
        };
        let acl = (self.rng.u32(..3) > 0).then(|| self.list());
        Op::SetAcl { path, kind, acl }
    }

    fn list(&mut self) -> Acl {
        let numbers = |rng: &mut Rng| {
            let mut ids: Vec<u32> = (0..rng.u32(..4)).map(|_| rng.u32(1..5000)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let users = numbers(&mut self.rng);
        let groups = numbers(&mut self.rng);
        let named = !users.is_empty() || !groups.is_empty();
        let mut tags = vec![Tag::UserObj];
        tags.extend(users.into_iter().map(Tag::User));
        tags.push(Tag::GroupObj);
        tags.extend(groups.into_iter().map(Tag::Group));
        if named || self.rng.bool() {
            tags.push(Tag::Mask);
        }
        tags.push(Tag::Other);
        Acl(tags.into_iter().map(|tag| (tag, self.rng.u16(..8))).collect())
    }

    fn chown(&mut self, model: &Model) -> Op {
        let (uid, gid) = (self.rng.u32(..5), self.rng.u32(..70_000));
        Op::Chown { path: self.existing(model), uid, gid }
    }

    /// Few projects, and none at all most of the time, so that most files can be moved to most places.
    fn set_project(&mut self, model: &Model) -> Op {
        let id = match self.rng.u32(..8) {
            0..4 => 0,
            4 | 5 => 1,
            6 => 2,
            _ => u32::MAX - 1,
        };
        let inherit = id > 0 && self.rng.bool();
        let path = match self.rng.u32(..3) {
            0 => self.path_of(model, model.files()),
            _ => self.directory(model),
        };
        Op::SetProject { path, id, inherit }
    }

    fn set_hints(&mut self, model: &Model) -> Op {
        let extent_blocks = if self.rng.u32(..4) == 0 { self.rng.u32(1..5) } else { 0 };
        let (no_atime, no_dump, no_defrag) = (self.rng.bool(), self.rng.bool(), self.rng.bool());
        let path = match self.rng.u32(..3) {
            0 => self.path_of(model, model.files()),
            _ => self.directory(model),
        };
        Op::SetHints { path, hints: Hints { no_atime, no_dump, no_defrag, extent_blocks } }
    }

    fn times(&mut self, model: &Model) -> Op {
        let mut moment = || {
            let seconds = match self.rng.u32(..4) {
                0 => self.rng.i64(-2_000_000_000..0),
                1 => self.rng.i64(4_000_000_000..16_000_000_000),
                _ => self.rng.i64(0..2_000_000_000),
            };
            Moment(seconds, self.rng.u32(..1_000_000_000))
        };
        let (atime, mtime) = (moment(), moment());
        Op::Utimens { path: self.existing(model), atime, mtime }
    }

    /// Frees some space.
    fn free_some(&mut self, model: &Model) -> Op {
        let Some(id) = model.files().choose(&mut self.rng) else {
            return Op::Unlink { path: self.existing(model) };
        };
        let Some(file) = self.ref_of(model, id) else { return Op::Sync };
        let size = model.content(id).map_or(0, |content| content.size());
        match (self.rng.u32(..10), file) {
            (0..=5, Ref::Path(path)) => Op::Unlink { path },
            (6, file) if size > 0 => {
                let offset = self.rng.u64(..size);
                Op::Allocate { file, how: AllocateHow::PunchHole, offset, len: size - offset }
            }
            (_, file) => Op::Truncate { file, size: self.rng.u64(..=size) / 2 },
        }
    }

    // What an operation is done to.

    /// A regular file, mostly by a path.
    fn file(&mut self, model: &Model) -> Ref {
        let held: Vec<usize> = (0..SLOTS).filter(|&slot| model.slots()[slot].is_some()).collect();
        if !held.is_empty() && self.rng.u32(..4) == 0 {
            return Ref::Slot(held[self.rng.usize(..held.len())]);
        }
        Ref::Path(self.path_of(model, model.files()))
    }

    /// How to reach a file: by a name, or by a slot if it has none.
    fn ref_of(&mut self, model: &Model, id: Id) -> Option<Ref> {
        match model.path(id, self.rng.usize(..8)) {
            Some(path) => Some(Ref::Path(path)),
            None => model.slots().iter().position(|&held| held == Some(id)).map(Ref::Slot),
        }
    }

    /// Any object that is there; now and then one that is not.
    fn existing(&mut self, model: &Model) -> Name {
        match self.rng.u32(..100) {
            0..3 => self.missing(model),
            3..60 => self.path_of(model, model.files()),
            60..80 => self.path_of(model, model.others()),
            _ => self.directory(model),
        }
    }

    fn path_of(&mut self, model: &Model, pool: &super::model::Pool) -> Name {
        let id = pool.choose(&mut self.rng);
        let path = id.and_then(|id| model.path(id, self.rng.usize(..8)));
        path.unwrap_or_else(|| self.missing(model))
    }

    /// A directory; now and then something else, or nothing.
    fn directory(&mut self, model: &Model) -> Name {
        match self.rng.u32(..60) {
            0 => self.missing(model),
            1 => self.path_of(model, model.files()),
            _ => self.path_of(model, model.dirs()),
        }
    }

    /// A path that nothing has, most of the time.
    fn missing(&mut self, model: &Model) -> Name {
        let dir = match self.rng.u32(..4) {
            // Through a file, which is no directory.
            0 => model.files().choose(&mut self.rng).and_then(|id| model.path(id, 0)),
            _ => None,
        };
        let dir = dir.unwrap_or_else(|| folder(self.bounds.thread));
        let name = names::ordinary(&mut self.rng);
        self.in_dir(dir, name)
    }

    /// A path for a new object; now and then one that is taken, or cannot be.
    fn fresh(&mut self, model: &Model) -> Name {
        match self.rng.u32(..60) {
            0 => return self.missing(model),
            1 => return self.path_of(model, model.files()),
            2 => {
                let name = vec![b'x'; 256];
                return self.in_dir(folder(self.bounds.thread), name);
            }
            3..8 => {
                let name = names::ordinary(&mut self.rng);
                return self.in_dir(Name::from(SHARED), name);
            }
            _ => {}
        }
        let dir = match self.rng.u32(..3) {
            0 => None,
            _ => model.dirs().choose(&mut self.rng).and_then(|id| model.path(id, 0)),
        };
        // Not too deep: a path must fit into a page.
        let dir = dir.filter(|path| path.components().count() < 8 && path.0.len() < 2000);
        let dir = dir.unwrap_or_else(|| folder(self.bounds.thread));
        let name = names::ordinary(&mut self.rng);
        self.in_dir(dir, name)
    }

    /// A name in a directory. In the shared directory, the thread is said in the name.
    fn in_dir(&self, dir: Name, mut name: Vec<u8>) -> Name {
        let mut path = dir.0;
        if path == SHARED {
            name.truncate(240);
            path.extend(format!("/t{}-", self.bounds.thread).into_bytes());
        } else {
            path.push(b'/');
        }
        path.extend(name);
        Name(path)
    }

    fn size(&self, model: &Model, file: &Ref) -> u64 {
        let id = match file {
            Ref::Path(path) => model.lookup(path).ok(),
            Ref::Slot(slot) => model.slots()[*slot],
        };
        id.and_then(|id| model.content(id)).map_or(0, |content| content.size())
    }

    fn offset(&mut self, model: &Model, file: &Ref) -> u64 {
        let size = self.size(model, file);
        match self.rng.u32(..100) {
            0..60 => self.rng.u64(..=size),
            60..75 => size,
            75..85 => size + self.rng.u64(..256 << 10),
            85..98 => self.rng.u64(..2 << 20),
            98 => self.rng.u64(..1 << 32),
            _ => self.rng.u64(..1 << 40),
        }
    }

    /// A range of at most `max` bytes; half of them are whole blocks.
    fn range(&mut self, model: &Model, file: &Ref, max: u64) -> (u64, u64) {
        let max = max * self.bounds.appetite;
        let offset = self.offset(model, file);
        let len = match self.rng.u32(..10) {
            0..=3 => self.rng.u64(1..=4096),
            4..=7 => self.rng.u64(1..=max / 4),
            _ => self.rng.u64(1..=max),
        };
        if self.rng.bool() {
            return (offset, len);
        }
        let block = model.block();
        (offset - offset % block, len.next_multiple_of(block))
    }

    fn mode(&mut self) -> u16 {
        match self.rng.u32(..3) {
            0 => self.rng.u16(..=0o777),
            1 => 0o755,
            _ => 0o644,
        }
    }

    fn any_mode(&mut self) -> u16 {
        if self.rng.u32(..3) == 0 { self.rng.u16(..=0o7777) } else { self.rng.u16(..=0o777) }
    }

    fn node_kind(&mut self) -> NodeKind {
        let (major, minor) = (self.rng.u32(..512), self.rng.u32(..1 << 18));
        match self.rng.u32(..5) {
            0 => NodeKind::Regular,
            1 => NodeKind::Fifo,
            2 => NodeKind::Socket,
            3 => NodeKind::CharDevice(major, minor),
            _ => NodeKind::BlockDevice(major, minor),
        }
    }

    /// The target of a symbolic link: in the inode if short, in blocks of its own if long.
    fn target(&mut self) -> Name {
        let len = match self.rng.u32(..3) {
            0 => self.rng.usize(1..60),
            1 => self.rng.usize(60..400),
            _ => self.rng.usize(400..=1023),
        };
        Name((0..len).map(|_| self.rng.u8(b'0'..=b'z')).collect())
    }

    fn attribute_name(&mut self) -> Name {
        let prefix = ["user.", "trusted.", "security."][self.rng.usize(..3)];
        let len = match self.rng.u32(..10) {
            0..=6 => self.rng.usize(1..16),
            7 | 8 => self.rng.usize(16..100),
            _ => 255 - prefix.len(),
        };
        let mut name = prefix.as_bytes().to_vec();
        // No security module of the host knows a name like this.
        name.push(b'~');
        name.extend((1..len).map(|_| self.rng.u8(b'a'..=b'z')));
        Name(name)
    }
}

/// Whether a node is a directory.
fn is_dir(model: &Model, id: Id) -> bool {
    model.get(id).is_some_and(|node| matches!(node.kind, Kind::Dir(_)))
}
