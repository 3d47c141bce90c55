//! What is in regular files.

use super::{Id, Key, Kind, Model, Time};
use crate::history::content::Content;
use crate::history::op::{AllocateHow, Outcome, Ref};
use rustix::io::Errno;

type Applied = Result<Outcome, Errno>;

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
        Ok(Outcome::Wrote(len))
    }

    pub(super) fn read(&mut self, file: &Ref, offset: u64, len: u32) -> Applied {
        let id = self.file(file)?;
        self.node_mut(id).atime = Time::Unknown;
        let bytes = self.content(id).map(|content| content.read(offset, len.into()));
        Ok(Outcome::Bytes(bytes.unwrap_or_default()))
    }

    pub(super) fn truncate(&mut self, file: &Ref, size: u64) -> Applied {
        let id = self.file(file)?;
        let same = self.content(id).is_some_and(|content| content.size() == size);
        let mtime = if same { Time::Unknown } else { Time::Running };
        self.edit(id, mtime, |content| content.truncate(size));
        self.touch(Key::Inode(id));
        Ok(Outcome::Done)
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
        Ok(Outcome::Done)
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
