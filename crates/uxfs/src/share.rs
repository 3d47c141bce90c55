//! Files that share blocks: clones, deduplication, and copies that share where they can.

use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::two_files::{self, HeldBoth, LockedPart};
use fileio::FILE_END_MAX;
use std::ops::Range;
use std::sync::Arc;
use xfs::file::{self, Reflink, ReflinkEnd};
use xfs_format::inode::InodeFlags2;
use xfs_format::types::FileBlock;

/// Bytes that are compared, or copied, at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// The result of [`File::dedupe_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deduped {
    /// This many bytes are the same, and are now stored only once.
    Same(u64),
    /// The two ranges differ. Nothing was changed.
    Differs,
}

/// Two ranges of the same length.
#[derive(Clone, Copy, Debug)]
struct Ranges {
    from: u64,
    at: u64,
    len: u64,
}

impl Ranges {
    fn source(&self) -> Range<u64> {
        self.from..self.from + self.len
    }

    fn destination(&self) -> Range<u64> {
        self.at..self.at + self.len
    }
}

/// The requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// All of it.
    Clone,
    /// As much as is whole blocks and equal.
    Dedupe,
}

impl File {
    /// Clones `len` bytes of this file from byte `from` on into `to` at byte `at`: no content is copied, and later
    /// writes to one file do not affect the other. A `len` of 0 means up to the end of this file. `to` grows if needed,
    /// and may be this file if the ranges do not overlap. Holes stay holes.
    ///
    /// Both offsets must be whole blocks, and so must the length, unless the range reaches the end of this file, and at
    /// least the end of `to`. Where the volume has no reflink: [`ErrorKind::Unsupported`]. After a failure, each block
    /// of `to` has its old or new content.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), uxfs::Error> {
    /// let volume = uxfs::Volume::open("disk.img", &uxfs::OpenOptions::new().writable(true))?;
    /// let (image, snapshot) = (volume.open_file("/vm.raw")?, volume.open_file("/vm.raw.before")?);
    /// image.clone_range(0, &snapshot, 0, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn clone_range(&self, from: u64, to: &Self, at: u64, len: u64) -> Result<()> {
        self.with_room(|| self.share_with(to, Ranges { from, at, len }))?;
        to.changed()
    }

    fn share_with(&self, to: &Self, asked: Ranges) -> Result<()> {
        self.check_pair(to)?;
        to.check_writable()?;
        let Some((ranges, _held)) = self.hold_pair(to, asked, Wanted::Clone)? else {
            return Ok(());
        };
        to.content_changes()?;
        self.share_held(to, ranges, Wanted::Clone)
    }

    /// Compares `len` bytes of this file from byte `from` on with those of `to` from byte `at` on, and shares them if
    /// they are equal. Writers wait meanwhile. Content and times do not change. Both ranges must lie within the files
    /// and begin at whole blocks; a part of a block at their end counts only if both files end there.
    pub fn dedupe_range(&self, from: u64, to: &Self, at: u64, len: u64) -> Result<Deduped> {
        self.check_pair(to)?;
        if from.saturating_add(len) > self.size_to_change()? {
            return Err(invalid("the range reaches past the end of the file"));
        }
        if len == 0 {
            return Ok(Deduped::Same(0));
        }
        // What was shared so far is still equal.
        self.with_room(|| self.dedupe(to, Ranges { from, at, len }))
    }

    fn dedupe(&self, to: &Self, ranges: Ranges) -> Result<Deduped> {
        let Some((ranges, _held)) = self.hold_pair(to, ranges, Wanted::Dedupe)? else {
            return Ok(Deduped::Same(0));
        };
        if !self.is_same_held(to, ranges)? {
            return Ok(Deduped::Differs);
        }
        self.share_held(to, ranges, Wanted::Dedupe)?;
        Ok(Deduped::Same(ranges.len))
    }

    /// Copies `len` bytes of this file from byte `from` on to byte `at` of `to`; gives how many were copied, which is
    /// fewer if this file ends before. With reflink, whole blocks are shared; the rest is copied.
    pub fn copy_range(&self, from: u64, to: &Self, at: u64, len: u64) -> Result<u64> {
        self.check_pair_anywhere(to)?;
        to.check_writable()?;
        let size = self.size_to_change()?;
        let len = len.min(size.saturating_sub(from));
        if len == 0 {
            return Ok(0);
        }
        let ranges = Ranges { from, at, len };
        self.check_ends(ranges)?;
        if self.node.ino() == to.node.ino() && overlap(&ranges.source(), &ranges.destination()) {
            return Err(invalid("a range cannot be copied over a part of itself"));
        }
        let block = self.block();
        let shares = file::check_sharing(self.node.volume.engine()).is_ok() && (from ^ at) & (block - 1) == 0;
        if !shares {
            return self.copy_bytes(to, ranges);
        }
        // Whole blocks, and the parts before and after them.
        let head = (from.next_multiple_of(block) - from).min(len);
        let ends_both = from + len == size && at + len >= to.size();
        let middle = if ends_both { len - head } else { (len - head) & !(block - 1) };
        let mut done = self.copy_bytes(to, Ranges { len: head, ..ranges })?;
        if done == head && middle > 0 {
            let whole = Ranges { from: from + head, at: at + head, len: middle };
            done += match self.clone_range(whole.from, to, whole.at, whole.len) {
                // The end of a file has moved, or a group has no room for one more owner.
                Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::InvalidInput) => {
                    self.copy_bytes(to, whole)?
                }
                cloned => cloned.map(|()| middle)?,
            };
        }
        if done == head + middle {
            done += self.copy_bytes(to, Ranges { from: from + done, at: at + done, len: len - done })?;
        }
        Ok(done)
    }

    /// Copies a range, and gives how many bytes: fewer if the file ends before.
    fn copy_bytes(&self, to: &Self, ranges: Ranges) -> Result<u64> {
        let mut buf =
            blockdev::AlignedBuf::zeroed(CHUNK_BYTES.min(ranges.len.next_multiple_of(4096)) as usize);
        let mut done = 0;
        while done < ranges.len {
            let most = (ranges.len - done).min(buf.len() as u64) as usize;
            let read = self.read_at(&mut buf[..most], ranges.from + done)?;
            if read == 0 {
                // It is no real end if a close has freed the file.
                self.size_to_change()?;
                break;
            }
            to.write_at(&buf[..read], ranges.at + done)?;
            done += read as u64;
        }
        Ok(done)
    }

    fn check_pair_anywhere(&self, to: &Self) -> Result<()> {
        if !Arc::ptr_eq(self.node.volume.engine(), to.node.volume.engine()) {
            return Err(invalid("the two files are on different volumes"));
        }
        to.check_unprotected()
    }

    fn check_pair(&self, to: &Self) -> Result<()> {
        self.check_pair_anywhere(to)?;
        Ok(file::check_sharing(self.node.volume.engine())?)
    }

    /// No range ends past the largest file.
    fn check_ends(&self, ranges: Ranges) -> Result<()> {
        let ends = |start: u64| start.checked_add(ranges.len).filter(|&end| end <= FILE_END_MAX);
        if ends(ranges.from).is_none() {
            return Err(invalid("the range ends past the largest file offset"));
        }
        let most = FILE_END_MAX & !(self.block() - 1);
        match ends(ranges.at) {
            Some(end) if end <= most => Ok(()),
            _ => Err(self.too_large(ranges.at.saturating_add(ranges.len))),
        }
    }

    /// Holds both ranges, and gives what to share while they are held; `None`: nothing.
    fn hold_pair<'a>(
        &'a self,
        to: &'a Self,
        asked: Ranges,
        wanted: Wanted,
    ) -> Result<Option<(Ranges, HeldBoth<'a>)>> {
        let block = self.block();
        loop {
            let Some(ranges) = self.checked_pair(to, asked, wanted)? else { return Ok(None) };
            let around = |range: Range<u64>| range.start..range.end.next_multiple_of(block);
            let (source, mut destination) = (around(ranges.source()), around(ranges.destination()));
            let size = to.size();
            let grows = ranges.destination().end > size;
            if grows {
                // The end moves, and there must be no data past it.
                destination = destination.start.min(size & !(block - 1))..u64::MAX;
            }
            let held = two_files::hold(
                LockedPart { file: self, bytes: source, changes: false },
                LockedPart { file: to, bytes: destination.clone(), changes: true },
            )?;
            // By the present sizes, which cannot change in a way that matters.
            let now = self.checked_pair(to, asked, wanted)?;
            let is_same = now.is_some_and(|now| now.len == ranges.len);
            // The size at the time of the hold: it may have grown since, as its end is not held.
            let held_size = held.size(to);
            let is_held = held_size >= ranges.destination().end || grows && held_size >= destination.start;
            if is_same && is_held {
                return Ok(Some((ranges, held)));
            }
        }
    }

    /// What to share of two ranges, given the sizes of the files.
    fn checked_pair(&self, to: &Self, asked: Ranges, wanted: Wanted) -> Result<Option<Ranges>> {
        let Ranges { from, at, mut len } = asked;
        let (block, size, to_size) = (self.block(), self.size_to_change()?, to.size_to_change()?);
        if wanted == Wanted::Clone && len == 0 {
            len = match size.checked_sub(from) {
                None => return Err(invalid("the range begins past the end of the file")),
                Some(0) => return Ok(None),
                Some(rest) => rest,
            };
        }
        if (from | at) & (block - 1) != 0 {
            return Err(invalid(format!(
                "ranges that are to be shared begin at whole blocks of {block} bytes"
            )));
        }
        let ranges = Ranges { from, at, len };
        self.check_ends(ranges)?;
        let (end, to_end) = (from + len, at + len);
        if end > size {
            return Err(invalid("the range reaches past the end of the file"));
        }
        if wanted == Wanted::Dedupe && to_end > to_size {
            return Err(invalid("the range reaches past the end of the other file"));
        }
        // A part of a block is shared if it ends both files.
        let ends_both = end == size && to_end >= to_size;
        let whole = match len & (block - 1) {
            0 => len,
            _ if ends_both => len,
            _ if wanted == Wanted::Dedupe => len & !(block - 1),
            _ => {
                return Err(invalid(
                    "the range ends within a block, which is not the last one of both files",
                ));
            }
        };
        let rounded = |start: u64| start..(start + whole).next_multiple_of(block);
        if self.node.ino() == to.node.ino() && overlap(&rounded(from), &rounded(at)) {
            return Err(invalid("a file cannot share a range with a part of itself that overlaps it"));
        }
        Ok((whole > 0).then_some(Ranges { from, at, len: whole }))
    }

    /// Whether two ranges that are held have the same content.
    fn is_same_held(&self, to: &Self, ranges: Ranges) -> Result<bool> {
        let chunk =
            || blockdev::AlignedBuf::zeroed(CHUNK_BYTES.min(ranges.len.next_multiple_of(4096)) as usize);
        let (mut ours, mut theirs) = (chunk(), chunk());
        let mut done = 0;
        while done < ranges.len {
            let len = (ranges.len - done).min(ours.len() as u64) as usize;
            let (ours, theirs) = (&mut ours[..len], &mut theirs[..len]);
            let read = self.data.read_while_held(ranges.from + done, ours)?;
            if read != to.data.read_while_held(ranges.at + done, theirs)? || ours[..read] != theirs[..read] {
                return Ok(false);
            }
            if read == 0 {
                break;
            }
            done += read as u64;
        }
        Ok(true)
    }

    /// Shares two ranges that are held.
    fn share_held(&self, to: &Self, ranges: Ranges, wanted: Wanted) -> Result<()> {
        let engine = to.node.volume.engine();
        let size = to.size();
        let end = ranges.destination().end;
        if end > size {
            if ranges.at > size {
                to.data.file().zero_behind_end(size, ranges.at)?;
            }
            file::free_data_behind_end(engine, to.entry())?;
        }
        let core = self.entry().current();
        let core = core.core();
        let whole = ranges.from == 0 && ranges.at == 0 && ranges.len == self.size() && ranges.len >= size;
        let has_hint = to.entry().snapshot().core().flags2.contains(InodeFlags2::COWEXTSIZE);
        let hint =
            (whole && core.flags2.contains(InodeFlags2::COWEXTSIZE) && !has_hint).then_some(core.cowextsize);
        let log = engine.geometry().block_log;
        let blocks = |bytes: u64| FileBlock(bytes >> log);
        let source = ranges.source();
        let share = Reflink {
            from: self.entry(),
            blocks: blocks(source.start)..blocks(source.end.next_multiple_of(self.block())),
            to: to.entry(),
            at: blocks(ranges.at),
            size: end,
            end: (wanted == Wanted::Clone).then(|| ReflinkEnd { hint, now: to.node.volume.now() }),
        };
        Ok(file::reflink_blocks(engine, &share)?)
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}
