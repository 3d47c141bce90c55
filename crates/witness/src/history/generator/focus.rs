//! A while of operations on one object: grow it through every form, and shrink it again.

use super::{Generator, folder, is_dir, names};
use crate::history::content::Blob;
use crate::history::model::{Id, Kind, Model};
use crate::history::op::{AllocateHow, Name, Op, Ref, XattrHow};

/// What goes on for a while.
#[derive(Clone, Debug)]
pub(super) enum Focus {
    /// Names come into a directory.
    GrowDir { dir: Id, left: u32, style: Style, source: Option<Name> },
    /// Names leave a directory, until this many are left.
    ShrinkDir { dir: Id, until: usize },
    /// Attributes come to an object.
    GrowAttributes { id: Id, left: u32, long: bool },
    /// Attributes leave an object, until this many are left.
    ShrinkAttributes { id: Id, until: usize },
    /// Every second piece of a file is written.
    Scatter { id: Id, pieces: u64, at: u64, piece: u64, stride: u64, how: Piece },
    /// Two files share blocks, exchange them, and part again.
    Share { one: Id, other: Id, left: u32 },
    /// A file takes all the space that is left.
    Fill { id: Id, at: u64 },
    /// A file is cut shorter, piece by piece.
    Cut { id: Id },
}

/// What names a growing directory gets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    Short,
    Long,
    OneHash,
    Mixed,
}

/// What is done to every second piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Write,
    Punch,
    Reserve,
    Zero,
}

impl Focus {
    /// Chooses what to look at.
    pub(super) fn choose(generator: &mut Generator, model: &Model) -> Option<Self> {
        let rng = &mut generator.rng;
        if generator.bounds.appetite > 1 && rng.u32(..3) == 0 {
            generator.full = false;
            return Some(Self::Fill { id: model.files().choose(rng)?, at: 0 });
        }
        if generator.bounds.often && rng.bool() {
            // Few pieces, so that they are soon shared.
            let (id, pieces) = (model.files().choose(rng)?, rng.u64(20..80));
            return Some(Self::Scatter { id, pieces, at: 0, piece: 1, stride: 1, how: Piece::Write });
        }
        if generator.bounds.shares && rng.u32(..if generator.bounds.often { 2 } else { 4 }) == 0 {
            let (one, other) = (model.files().choose(rng)?, model.files().choose(rng)?);
            return Some(Self::Share { one, other, left: rng.u32(10..80) });
        }
        match rng.u32(..10) {
            0..=3 => {
                let dir = model.dirs().choose(rng)?;
                let left = match rng.u32(..10) {
                    0..=3 => rng.u32(5..40),
                    4..=7 => rng.u32(40..400),
                    _ => rng.u32(400..1600),
                };
                let style = match rng.u32(..4) {
                    0 => Style::Short,
                    1 => Style::Long,
                    2 if left < 400 => Style::OneHash,
                    _ => Style::Mixed,
                };
                let source = model.files().choose(rng).and_then(|id| model.path(id, 0));
                Some(Self::GrowDir { dir, left, style, source })
            }
            4..=6 => {
                let pool = if rng.bool() { model.files() } else { model.dirs() };
                let (id, long) = (pool.choose(rng)?, rng.bool());
                Some(Self::GrowAttributes { id, left: rng.u32(3..180), long })
            }
            _ => {
                let id = model.files().choose(rng)?;
                Some(Self::scatter(rng, id, model.block(), Piece::Write))
            }
        }
    }

    fn scatter(rng: &mut fastrand::Rng, id: Id, block: u64, how: Piece) -> Self {
        let pieces = if rng.bool() { rng.u64(5..60) } else { rng.u64(60..700) };
        let piece = rng.u64(1..=block);
        // In an order that jumps about, or from one end to the other.
        let stride = [1, pieces - 1, 7][rng.usize(..3)].max(1);
        Self::Scatter { id, pieces, at: 0, piece, stride, how }
    }

    /// The next operation; `None` at the end.
    pub(super) fn next(&mut self, generator: &mut Generator, model: &Model) -> Option<Op> {
        match self {
            Self::GrowDir { dir, left, style, source } => {
                *left = left.checked_sub(1)?;
                grow_dir(generator, model, *dir, *style, source)
            }
            Self::ShrinkDir { dir, until } => shrink_dir(generator, model, *dir, *until),
            Self::GrowAttributes { id, left, long } => {
                *left = left.checked_sub(1)?;
                let path = model.get(*id).and_then(|_| model.path(*id, 0))?;
                // Names of all attributes together must fit into 64 KiB.
                if model.node(*id).xattrs.len() > 220 {
                    return None;
                }
                let value = if *long || generator.rng.u32(..30) == 0 {
                    generator.value()
                } else {
                    Blob { seed: generator.rng.u64(..), len: generator.rng.u32(..120) }
                };
                Some(Op::SetXattr { path, name: generator.attribute_name(), value, how: XattrHow::Set })
            }
            Self::ShrinkAttributes { id, until } => {
                let node = model.get(*id).filter(|node| node.xattrs.len() > *until)?;
                let at = generator.rng.usize(..node.xattrs.len());
                let name = node.xattrs.keys().nth(at).cloned()?;
                Some(Op::RemoveXattr { path: model.path(*id, 0)?, name })
            }
            Self::Scatter { id, pieces, at, piece, stride, how } => {
                let place = (*at < *pieces).then(|| *at * *stride % *pieces)?;
                *at += 1;
                model.content(*id)?;
                let file = generator.ref_of(model, *id)?;
                // A hole between any two pieces.
                let offset = place * 2 * model.block() + if *how == Piece::Write { 0 } else { model.block() };
                let len = *piece;
                Some(match how {
                    Piece::Write => generator.write_to(file, offset, len),
                    Piece::Punch => {
                        Op::Allocate { file, how: AllocateHow::PunchHole, offset, len: model.block() }
                    }
                    Piece::Reserve => Op::Allocate { file, how: AllocateHow::KeepSize, offset, len },
                    Piece::Zero => Op::Allocate { file, how: AllocateHow::ZeroRange, offset, len },
                })
            }
            Self::Share { one, other, left } => {
                *left = left.checked_sub(1)?;
                share(generator, model, *one, *other)
            }
            Self::Fill { id, at } => {
                model.content(*id).filter(|_| !generator.full)?;
                let file = generator.ref_of(model, *id)?;
                let (offset, len) = (*at, generator.rng.u64(1..1 << 20));
                *at += len;
                let how = AllocateHow::Allocate;
                Some(match generator.rng.u32(..4) {
                    0 => generator.write_to(file, offset, len),
                    _ => Op::Allocate { file, how, offset, len },
                })
            }
            Self::Cut { id } => cut(generator, model, *id),
        }
    }

    /// What comes after it.
    pub(super) fn then(self, generator: &mut Generator, model: &Model) -> Option<Self> {
        let rng = &mut generator.rng;
        match self {
            Self::GrowDir { dir, .. } if is_dir(model, dir) => {
                let count = model.entries(dir).map_or(0, |entries| entries.len());
                let until = [0, 2, count / 2][rng.usize(..3)];
                (rng.u32(..5) > 0).then_some(Self::ShrinkDir { dir, until })
            }
            Self::GrowAttributes { id, .. } => {
                let count = model.get(id)?.xattrs.len();
                let until = [0, 1, count / 2][rng.usize(..3)];
                (rng.u32(..5) > 0).then_some(Self::ShrinkAttributes { id, until })
            }
            Self::Scatter { id, how: Piece::Write, .. } if generator.bounds.often => {
                let other = model.files().choose(rng)?;
                Some(Self::Share { one: id, other, left: rng.u32(10..60) })
            }
            Self::Scatter { id, how: Piece::Write, pieces, piece, stride, .. } => match rng.u32(..5) {
                0 => Some(Self::Cut { id }),
                1 if generator.bounds.shares => {
                    let other = model.files().choose(rng)?;
                    Some(Self::Share { one: id, other, left: rng.u32(5..40) })
                }
                1 => None,
                choice => {
                    let how = [Piece::Punch, Piece::Reserve, Piece::Zero][choice as usize - 2];
                    Some(Self::Scatter { id, pieces, at: 0, piece, stride, how })
                }
            },
            Self::Scatter { id, .. } => rng.bool().then_some(Self::Cut { id }),
            _ => None,
        }
    }
}

fn grow_dir(
    generator: &mut Generator,
    model: &Model,
    dir: Id,
    style: Style,
    source: &Option<Name>,
) -> Option<Op> {
    let path = is_dir(model, dir).then(|| model.path(dir, 0)).flatten()?;
    if path.0.len() > 3000 {
        return None;
    }
    let name = match style {
        Style::Short => names::letters(&mut generator.rng, 1, 8),
        Style::Long => names::letters(&mut generator.rng, 150, 256),
        Style::OneHash => names::colliding(&mut generator.rng),
        Style::Mixed => names::ordinary(&mut generator.rng),
    };
    let path = generator.in_dir(path, name);
    let mode = 0o644;
    let objects = model.files().len() + model.dirs().len() + model.others().len();
    // Once refused for its project, it always is.
    let refused = |source: &&Name| model.lookup(source).is_ok_and(|id| model.keeps_out(dir, id));
    let source = source.as_ref().filter(|source| !refused(source));
    // Many names need not be many objects.
    let links = if objects > generator.bounds.objects { 20 } else { 14 };
    Some(match (generator.rng.u32(..20), source) {
        (choice, Some(source)) if choice < links => Op::Link { from: source.clone(), to: path },
        (14 | 15, _) => Op::Mkdir { path, mode },
        (16, _) => Op::Symlink { path, target: generator.target() },
        _ => Op::Create { path, mode, slot: None },
    })
}

fn shrink_dir(generator: &mut Generator, model: &Model, dir: Id, until: usize) -> Option<Op> {
    let entries = model.entries(dir).filter(|entries| entries.len() > until)?;
    // From a random place on, so that every place is seen; cheap where there are many.
    let start = Name(vec![generator.rng.u8(b'0'..=b'z')]);
    let (name, &id) = entries.range(start..).next().or_else(|| entries.iter().next())?;
    let mut path = model.path(dir, 0)?.0;
    path.push(b'/');
    path.extend_from_slice(&name.0);
    let path = Name(path);
    match &model.node(id).kind {
        Kind::Dir(inner) if inner.is_empty() => Some(Op::Rmdir { path }),
        // What is not empty moves away, if it may.
        Kind::Dir(_) => {
            let away = model.lookup(&folder(generator.bounds.thread)).ok()?;
            if model.keeps_out(away, id) {
                return None;
            }
            let name = names::letters(&mut generator.rng, 4, 12);
            let to = generator.in_dir(folder(generator.bounds.thread), name);
            let how = crate::history::op::RenameHow::Plain;
            (to != path).then_some(Op::Rename { from: path, to, how })
        }
        _ => Some(Op::Unlink { path }),
    }
}

/// Something that makes two files share blocks, or part.
fn share(generator: &mut Generator, model: &Model, one: Id, other: Id) -> Option<Op> {
    let (size, block) = (model.content(one)?.size(), model.block());
    model.content(other)?;
    let (from, to) = (generator.ref_of(model, one)?, generator.ref_of(model, other)?);
    let (from, to) = if generator.rng.u32(..4) == 0 { (to, from) } else { (from, to) };
    let blocks = size.min(1 << 20) / block;
    let at = generator.rng.u64(..=blocks) * block;
    Some(match generator.rng.u32(..10) {
        0 | 1 => Op::Clone { from, offset: 0, to, at: 0, len: 0 },
        2 if at < size => {
            let len = generator.rng.u64(..=(size - at).min(1 << 20) / block) * block;
            Op::Clone { from, offset: at, to, at, len }
        }
        3 | 4 if generator.bounds.exchanges => generator.exchange_of(model, from, to),
        5 => Op::Allocate { file: to, how: AllocateHow::PunchHole, offset: at, len: 3 * block },
        6 => Op::Truncate { file: to, size: at },
        7 => Op::Fsync { file: to },
        _ => {
            let (within, len) = (generator.rng.u64(..block), generator.rng.u64(1..=2 * block));
            generator.write_to(to, at + within, len)
        }
    })
}

fn cut(generator: &mut Generator, model: &Model, id: Id) -> Option<Op> {
    let size = model.content(id)?.size();
    let file: Ref = generator.ref_of(model, id)?;
    if size == 0 {
        return None;
    }
    let less = generator.rng.u64(1..=(size / 8).max(1));
    Some(Op::Truncate { file, size: size - less })
}
