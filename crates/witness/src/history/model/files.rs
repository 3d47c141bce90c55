//! What is in regular files.

use super::{Id, Key, Kind, Model, Time};
use crate::history::content::Content;
use crate::history::op::{AllocateHow, Op, OpOutcome, Ref};
use rustix::io::Errno;
use std::ops::Range;

type Applied = Result<OpOutcome, Errno>;

/// A range of two files, or of one twice.
struct Both {
    from: Id,
    offset: u64,
    to: Id,
    at: u64,
    len: u64,
}

/// What two files exchange, by their sizes.
struct ExchangedRange {
    ids: [Id; 2],
    bytes: u64,
    sizes: [u64; 2],
}

impl AllocateHow {
    /// Whether it changes nothing outside its range, the size included.
    pub fn stays_inside(self) -> bool {
        matches!(self, Self::PunchHole | Self::KeepSize | Self::ZeroRangeKeepSize)
    }
}

impl Model {
    /// Changes a file's content, and all that follows from it.
    fn edit(&mut self, id: Id, mtime: Time, edit: impl FnOnce(&mut Content)) {
        let node = self.node_mut(id);
        node.mtime = mtime;
        let Kind::File(content) = &mut node.kind else { unreachable!("only files are edited") };
        let before = content.footprint();
        edit(content);
        let after = content.footprint();
        self.bytes = self.bytes - before + after;
    }

    pub(super) fn write(&mut self, file: &Ref, offset: u64, len: u32, seed: u64) -> Applied {
        let id = self.file(file)?;
        if len > 0 {
            self.edit(id, Time::Running, |content| content.write(offset, len.into(), seed));
        }
        Ok(OpOutcome::Wrote(len))
    }

    pub(super) fn read(&mut self, file: &Ref, offset: u64, len: u32) -> Applied {
        let id = self.file(file)?;
        self.node_mut(id).atime = Time::Unknown;
        let bytes = self.content(id).map(|content| content.read(offset, len.into()));
        Ok(OpOutcome::Bytes(bytes.unwrap_or_default()))
    }

    pub(super) fn truncate(&mut self, file: &Ref, size: u64) -> Applied {
        let id = self.file(file)?;
        let same = self.content(id).is_some_and(|content| content.size() == size);
        let mtime = if same { Time::Unknown } else { Time::Running };
        self.edit(id, mtime, |content| content.truncate(size));
        self.touch(Key::Inode(id));
        Ok(OpOutcome::Done)
    }

    pub(super) fn allocate(&mut self, file: &Ref, how: AllocateHow, offset: u64, len: u64) -> Applied {
        let id = self.file(file)?;
        let block = self.block;
        let size = self.content(id).map_or(0, Content::size);
        let end = offset + len;
        let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block);
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let cannot = match how {
            AllocateHow::CollapseRange => !aligned || end >= size,
            AllocateHow::InsertRange => !aligned || offset >= size,
            _ => false,
        };
        if cannot {
            // The kernel has noted a change before it sees that.
            self.node_mut(id).mtime = Time::Unknown;
            return Err(Errno::INVAL);
        }
        let mtime = match how {
            AllocateHow::CollapseRange | AllocateHow::InsertRange => Time::Running,
            // Where nothing changes, the kernel notes a change nevertheless, and uxfs does not.
            _ => Time::Unknown,
        };
        self.edit(id, mtime, |content| match how {
            AllocateHow::Allocate => {
                content.truncate(size.max(end));
                content.reserve(offset, end);
            }
            AllocateHow::KeepSize => content.reserve(offset, end),
            AllocateHow::PunchHole => content.punch(offset, end, block),
            AllocateHow::ZeroRange => {
                content.truncate(size.max(end));
                content.zero(offset, end);
            }
            AllocateHow::ZeroRangeKeepSize => content.zero(offset, end),
            AllocateHow::CollapseRange => content.collapse(offset, len),
            AllocateHow::InsertRange => content.insert(offset, len),
        });
        Ok(OpOutcome::Done)
    }

    /// The two files that an operation on a range of both is about; the first is opened first.
    fn pair(&self, from: &Ref, to: &Ref) -> Result<(Id, Id, u64, u64), Errno> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        let size = |id| self.content(id).map_or(0, Content::size);
        Ok((from, to, size(from), size(to)))
    }

    /// Bytes that are shared of a range that two files have, as `FICLONERANGE` and `FIDEDUPERANGE` see it.
    fn shareable(&self, both: &Both, dedupe: bool) -> Result<u64, Errno> {
        let Both { from, offset, to, at, len } = *both;
        let block = self.block;
        let size = |id| self.content(id).map_or(0, Content::size);
        let (size_from, size_to) = (size(from), size(to));
        let ends = |start: u64| start.checked_add(len).ok_or(Errno::INVAL);
        let aligned = offset.is_multiple_of(block) && at.is_multiple_of(block);
        let (end, at_end) = (ends(offset)?, ends(at)?);
        let beyond =
            if dedupe { end > size_from || at_end > size_to || at >= size_to } else { end > size_from };
        if !aligned || offset >= size_from || beyond {
            return Err(Errno::INVAL);
        }
        let to_the_end = end == size_from && (!dedupe || at_end == size_to);
        let shared = if to_the_end { len } else { len / block * block };
        let blocks = shared.next_multiple_of(block);
        if from == to && at + blocks > offset && at < offset + blocks {
            return Err(Errno::INVAL);
        }
        // Half a block can be shared at the end of a file alone.
        let shared = if at + shared < size_to { shared / block * block } else { shared };
        if shared != len && !dedupe { Err(Errno::INVAL) } else { Ok(shared) }
    }

    pub(super) fn clone_range(&mut self, from: &Ref, offset: u64, to: &Ref, at: u64, len: u64) -> Applied {
        let (from, to, size, _) = self.pair(from, to)?;
        if len == 0 && offset == size {
            return Ok(OpOutcome::Done);
        }
        let len = if len == 0 { size.checked_sub(offset).ok_or(Errno::INVAL)? } else { len };
        let shared = self.shareable(&Both { from, offset, to, at, len }, false)?;
        self.put(from, offset, to, at, shared);
        Ok(OpOutcome::Done)
    }

    pub(super) fn dedupe(&mut self, from: &Ref, offset: u64, to: &Ref, at: u64, len: u64) -> Applied {
        let (from, to, ..) = self.pair(from, to)?;
        let shared = self.shareable(&Both { from, offset, to, at, len }, true)?;
        let read = |id, at| self.content(id).map(|content: &Content| content.read(at, shared));
        let same = read(from, offset) == read(to, at);
        if same {
            // What was set aside in the second file, where the first has a hole, is one now. Its time stays.
            let mtime = self.node_mut(to).mtime;
            self.put(from, offset, to, at, shared);
            self.node_mut(to).mtime = mtime;
        }
        Ok(OpOutcome::Same(same))
    }

    pub(super) fn copy_range(&mut self, from: &Ref, offset: u64, to: &Ref, at: u64, len: u32) -> Applied {
        let (from, to, size, _) = self.pair(from, to)?;
        let len = u64::from(len).min(size.saturating_sub(offset));
        if from == to && at + len > offset && at < offset + len {
            return Err(Errno::INVAL);
        }
        self.node_mut(from).atime = Time::Unknown;
        if len > 0 {
            self.put(from, offset, to, at, len);
        }
        Ok(OpOutcome::Wrote(len as u32))
    }

    /// What a copy would have left in a file that failed, for want of space, and may be there in part.
    pub fn copied(&self, op: &Op) -> Option<(Id, Content)> {
        let (from, offset, to, at, len) = match op {
            Op::Clone { from, offset, to, at, len } => (from, *offset, to, *at, *len),
            Op::CopyRange { from, offset, to, at, len } => (from, *offset, to, *at, u64::from(*len)),
            _ => return None,
        };
        let (from, to, size, _) = self.pair(from, to).ok()?;
        let left = size.checked_sub(offset)?;
        let len = if len == 0 { left } else { len.min(left) };
        let mut content = self.content(to)?.clone();
        at.checked_add(len)?;
        content.put(at, len, self.content(from)?.piece(offset, offset + len), self.block);
        Some((to, content))
    }

    fn put(&mut self, from: Id, offset: u64, to: Id, at: u64, len: u64) {
        let block = self.block;
        let Some(piece) = self.content(from).map(|content| content.piece(offset, offset + len)) else {
            return;
        };
        let mtime = if len > 0 { Time::Running } else { Time::Unknown };
        self.edit(to, mtime, |content| content.put(at, len, piece, block));
    }

    /// Two files, and of each where its part of what is exchanged begins and how large it is.
    fn exchanged(
        &self,
        file: &Ref,
        at: u64,
        other: &Ref,
        other_at: u64,
        len: u64,
    ) -> Result<ExchangedRange, Errno> {
        let (one, two, size, other_size) = self.pair(file, other)?;
        let aligned = [at, other_at, len].iter().all(|bytes| bytes.is_multiple_of(self.block));
        if !aligned || at > size || other_at > other_size {
            return Err(Errno::INVAL);
        }
        let bytes = match len {
            0 if at != other_at || one == two => return Err(Errno::INVAL),
            0 => (size.max(other_size) - at).next_multiple_of(self.block),
            len if at + len > size || other_at + len > other_size => return Err(Errno::INVAL),
            len if one == two && at < other_at + len && other_at < at + len => return Err(Errno::INVAL),
            len => len,
        };
        Ok(ExchangedRange { ids: [one, two], bytes, sizes: [size, other_size] })
    }

    /// Whether it follows from what was written what an exchange does: of what is only set aside, or a hole, or zeroes that
    /// somebody wrote, the model knows nothing. And whether all targets treat it alike.
    pub(super) fn exchange_is_predictable(
        &self,
        file: &Ref,
        at: u64,
        other: &Ref,
        other_at: u64,
        len: u64,
        only_written: bool,
    ) -> bool {
        let Ok(ExchangedRange { ids, bytes, sizes }) = self.exchanged(file, at, other, other_at, len) else {
            // Up to the end of two files from different places, or of one file: what a kernel does is not asked.
            return len > 0;
        };
        if !only_written {
            return true;
        }
        let [Some(one), Some(two)] = ids.map(|id| self.content(id)) else { return false };
        let mine = one.written_blocks(at, at + bytes, self.block);
        let others = two.written_blocks(other_at, other_at + bytes, self.block);
        let is_in_mine = |range: &Range<u64>| {
            mine.iter().any(|written| written.start <= range.start && range.end <= written.end)
        };
        (len > 0 || sizes[0] == sizes[1]) && others.iter().all(is_in_mine)
    }

    pub(super) fn exchange_content(
        &mut self,
        file: &Ref,
        at: u64,
        other: &Ref,
        other_at: u64,
        len: u64,
        only_written: bool,
    ) -> Applied {
        let ExchangedRange { ids: [one, two], bytes, sizes } =
            self.exchanged(file, at, other, other_at, len)?;
        let block = self.block;
        let whole = std::iter::once(0..bytes).collect();
        let ranges = match self.content(one) {
            Some(content) if only_written => content.written_blocks(at, at + bytes, block),
            _ => whole,
        };
        if one == two {
            self.edit(one, Time::Unknown, |content| {
                for range in ranges {
                    let len = range.end - range.start;
                    content.exchange_within(at + range.start, other_at + range.start, len);
                }
                if only_written {
                    content.forget_reserved(at, at + bytes);
                    content.forget_reserved(other_at, other_at + bytes);
                }
            });
            return Ok(OpOutcome::Done);
        }
        let Some(mut others) = self.content(two).cloned() else { return Err(Errno::INVAL) };
        // Kernels note no change where both files had the same blocks, or none.
        self.edit(one, Time::Unknown, |content| {
            for range in ranges {
                let len = range.end - range.start;
                content.exchange(at + range.start, &mut others, other_at + range.start, len);
            }
            if only_written {
                content.forget_reserved(at, at + bytes);
                others.forget_reserved(other_at, other_at + bytes);
            }
            if len == 0 && sizes[0] != sizes[1] {
                content.exchange_sizes(&mut others);
            }
        });
        self.edit(two, Time::Unknown, |content| *content = others);
        Ok(OpOutcome::Done)
    }

    /// The size of a file that is there.
    pub(super) fn size_of(&self, file: &Ref) -> Option<u64> {
        self.file(file).ok().and_then(|id| self.content(id)).map(Content::size)
    }

    /// Whether a place that `lseek` gave can be right: blocks may hold data that nobody wrote, but what was written
    /// is data, and a hole has nothing written at its start.
    pub(super) fn place_is_right(&self, file: &Ref, offset: u64, data: bool, place: Option<u64>) -> bool {
        let Some(content) = self.file(file).ok().and_then(|id| self.content(id)) else { return false };
        let size = content.size();
        match (place, data) {
            (None, true) => offset >= size || !content.any_written(offset, size),
            (None, false) => offset >= size,
            (Some(place), true) => place >= offset && place < size && !content.any_written(offset, place),
            (Some(place), false) => {
                let inside = place < size && !content.any_written(place, place + 1);
                place >= offset && offset < size && (place == size || inside)
            }
        }
    }
}
