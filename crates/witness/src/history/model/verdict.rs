//! Whether what a target gave is what it must give.
//!
//! Invariant: the model follows the target only where the rules leave it a choice: want of space, and how much of a
//! write was done before it ran out.

use super::{Model, Time};
use crate::history::op::{AllocateHow, Op, OpOutcome, Ref};
use rustix::io::Errno;

/// What a target may do on a volume.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The volume is small enough to run out of space.
    pub tight: bool,
    /// Whoever fails for want of space has changed nothing.
    pub strict: bool,
}

/// How an operation went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// As it must.
    Right,
    /// There was no space.
    NoSpace,
    /// There was no space, half way: what is in the file is not known until it is emptied.
    Undone(Ref),
}

impl Model {
    /// Applies an operation that a target has done, and compares. `Err` says how it should have gone.
    pub fn check(
        &mut self,
        op: &Op,
        got: &Result<OpOutcome, Errno>,
        rules: Rules,
    ) -> Result<Checked, String> {
        if *got == Err(Errno::NOSPC) && rules.tight && op.may_lack_space() {
            return Ok(self.no_space(op, rules));
        }
        let short = match (op, got) {
            (Op::Write { len, .. }, Ok(OpOutcome::Wrote(done)))
                if rules.tight && !rules.strict && (1..*len).contains(done) =>
            {
                Some(*done)
            }
            (Op::CopyRange { len, .. }, Ok(OpOutcome::Wrote(done)))
                if rules.tight && !rules.strict && (1..*len).contains(done) =>
            {
                Some(*done)
            }
            _ => None,
        };
        let expected = match (op, short) {
            (Op::Write { file, offset, seed, .. }, Some(len)) => {
                self.apply(&Op::Write { file: file.clone(), offset: *offset, len, seed: *seed })
            }
            (Op::CopyRange { from, offset, to, at, .. }, Some(len)) => self.apply(&Op::CopyRange {
                from: from.clone(),
                offset: *offset,
                to: to.clone(),
                at: *at,
                len,
            }),
            _ => self.apply(op),
        };
        if self.agree(op, &expected, got, rules.strict) {
            return Ok(if short.is_some() { Checked::NoSpace } else { Checked::Right });
        }
        Err(describe(&expected, got))
    }

    fn no_space(&mut self, op: &Op, rules: Rules) -> Checked {
        self.touched.clear();
        if !rules.strict {
            self.tried(op);
        }
        match op {
            Op::Allocate {
                file,
                how:
                    AllocateHow::PunchHole
                    | AllocateHow::ZeroRange
                    | AllocateHow::ZeroRangeKeepSize
                    | AllocateHow::CollapseRange
                    | AllocateHow::InsertRange,
                ..
            } if !rules.strict => Checked::Undone(file.clone()),
            // What fails on the way leaves old content or new, block by block.
            Op::Clone { to, .. } | Op::CopyRange { to, .. } => Checked::Undone(to.clone()),
            _ => Checked::NoSpace,
        }
    }

    /// Notes that a call which failed may have changed times: of the file, or of the directory, which may even have
    /// had the new name for a moment.
    fn tried(&mut self, op: &Op) {
        let id = match op {
            Op::Write { file, .. }
            | Op::Allocate { file, .. }
            | Op::Truncate { file, .. }
            | Op::Clone { to: file, .. }
            | Op::CopyRange { to: file, .. }
            | Op::Exchange { other: file, .. } => self.file(file).ok(),
            Op::Create { path, .. }
            | Op::LinkSlot { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Mknod { path, .. }
            | Op::Symlink { path, .. }
            | Op::Link { to: path, .. }
            | Op::Rename { to: path, .. } => self.parent(path).ok().map(|(dir, _)| dir),
            _ => None,
        };
        let other = match op {
            Op::Exchange { file, .. } => self.file(file).ok(),
            _ => None,
        };
        for id in [id, other].into_iter().flatten() {
            self.node_mut(id).mtime = Time::Unknown;
        }
    }

    fn agree(
        &self,
        op: &Op,
        expected: &Result<OpOutcome, Errno>,
        got: &Result<OpOutcome, Errno>,
        strict: bool,
    ) -> bool {
        match (op, got) {
            (Op::SeekData { file, offset }, Ok(OpOutcome::Place(place))) => {
                // The kernel gives the end of the file where its page cache holds more than that.
                let end = self.size_of(file);
                let place = place.filter(|place| strict || Some(*place) != end || *offset >= *place);
                expected.is_ok() && self.place_is_right(file, *offset, true, place)
            }
            (Op::SeekHole { file, offset }, Ok(OpOutcome::Place(place))) => {
                expected.is_ok() && self.place_is_right(file, *offset, false, *place)
            }
            // Both are right for a directory that is not empty.
            (Op::Rename { .. }, Err(Errno::EXIST | Errno::NOTEMPTY)) if *expected == Err(Errno::NOTEMPTY) => {
                true
            }
            // Where a call has two mistakes, which is seen first is not told by any document.
            (Op::Rename { from, to, how }, Err(error)) if strict && expected.is_err() => {
                self.rename_mistakes(from, to, *how).contains(error)
            }
            (Op::Link { from, to }, Err(error)) if strict && expected.is_err() => {
                self.link_mistakes(from, to).contains(error)
            }
            (Op::Read { file, .. }, Ok(OpOutcome::Bytes(bytes))) if !self.is_own(file) => match expected {
                // Other threads may have made it longer; what they wrote is elsewhere.
                Ok(OpOutcome::Bytes(own)) => {
                    bytes.starts_with(own) && bytes[own.len()..].iter().all(|&byte| byte == 0)
                }
                _ => false,
            },
            _ => expected == got,
        }
    }
}

/// Both, and where they differ.
fn describe(expected: &Result<OpOutcome, Errno>, got: &Result<OpOutcome, Errno>) -> String {
    match (expected, got) {
        (Ok(OpOutcome::Bytes(a)), Ok(OpOutcome::Bytes(b))) => {
            let at = a.iter().zip(b).take_while(|(x, y)| x == y).count();
            let part = |bytes: &[u8]| crate::record::hex(&bytes[at..bytes.len().min(at + 16)]);
            format!(
                "{} bytes instead of {}; they differ from byte {at} on: {} instead of {}",
                b.len(),
                a.len(),
                part(b),
                part(a)
            )
        }
        (Ok(OpOutcome::Names(a)), Ok(OpOutcome::Names(b))) => {
            let at = a.iter().zip(b).take_while(|(x, y)| x == y).count();
            format!(
                "{} names instead of {}; they differ from the {at}th on: {:?} instead of {:?}",
                b.len(),
                a.len(),
                b.get(at),
                a.get(at)
            )
        }
        _ => format!("{got:?} instead of {expected:?}"),
    }
}
