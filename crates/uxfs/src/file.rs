//! Regular files: reading, overwriting in place, and where their bytes lie.

use crate::error::{Error, ErrorKind, Result};
use crate::metadata::Metadata;
use crate::node::Node;
use crate::open_files::Data;
use crate::queue::Queue;
use crate::still;
use crate::syncing::Syncing;
use fileio::{
    BufferedFile, DirectFile, DirectQueue, Extent as MapExtent, ExtentState, FILE_END_MAX, FileMapping,
    HeldFile, SyncCursor,
};
use std::ops::Range;
use std::sync::Arc;
use xfs::iomap::{self, FileMap};
use xfs::namespace::Protection;
use xfs::volume::InodeEntry;

/// An open regular file. Any number of threads may use one `File` at once, or each its own: all that one
/// [`Volume`](crate::Volume) gives of a file share its lock. Requests that don't overlap never wait for each other.
#[derive(Clone)]
pub struct File {
    // In this order: the volume goes last, and with it the claim to its device.
    _open: Arc<Opened>,
    pub(crate) data: Arc<Data>,
    pub(crate) node: Node,
    /// As it was when the file was opened, as the kernel has it.
    protection: Option<Protection>,
    /// Whether this handle reads and writes through the page cache.
    is_buffered: bool,
    /// When what this handle changes is durable.
    pub(crate) syncing: Syncing,
    /// Up to where the handle was told what could not be written back.
    pub(crate) told: Arc<SyncCursor>,
}

/// What all copies of a handle have in common: when the last of them goes, the handle is closed. The file may stay open, for
/// other handles, or for its pages.
struct Opened(Arc<Data>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.map().handle_closed();
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("ino", &self.node.ino()).finish_non_exhaustive()
    }
}

/// A run of a file's bytes that lie in one piece on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device, counted from the start of the volume.
    pub physical: u64,
    /// Length in bytes; the last extent may reach behind the end of the file.
    pub length: u64,
    /// The space is allocated but was never written: it reads as zeroes.
    pub unwritten: bool,
    /// Other files share these blocks.
    pub shared: bool,
}

impl File {
    pub(crate) fn new(node: Node) -> Result<Self> {
        Self::open(node, |node| Ok(iomap::open_file(node.volume.engine(), &node.handle)?))
    }

    /// A file that is open already, by a map of its own.
    pub(crate) fn with_map(node: Node, map: FileMap) -> Result<Self> {
        Self::open(node, |_| Ok(map))
    }

    fn open(node: Node, map: impl FnOnce(&Node) -> Result<FileMap>) -> Result<Self> {
        let volume = &node.volume;
        let open = || {
            let file = DirectFile::new(Arc::clone(volume.device()), map(&node)?, volume.locking());
            Ok(BufferedFile::new(file, volume.pages()))
        };
        let data = volume.open_files().get_or_open(node.ino(), open)?;
        // What is open under this number may be the file that has it now.
        if !data.map().is_of(&node.handle) {
            return Err(xfs::Error::Stale(node.handle.ino()).into());
        }
        let protection = node.handle.current()?.protection();
        let told = Arc::new(data.sync_cursor());
        let _open = Arc::new(Opened(Arc::clone(&data)));
        Ok(Self { node, data, _open, protection, is_buffered: false, syncing: Syncing::Later, told })
    }

    /// The same file through the page cache: [`write_at`](Self::write_at) and [`append`](Self::append) return when the bytes
    /// are in memory, from where threads of the volume write them back, in large requests; [`sync`](Self::sync) does so at
    /// once. [`read_at`](Self::read_at) keeps in memory what it reads. That there is too little space comes at the write.
    /// What a crash leaves of what was not synced, in each block, is as it was before or after a write, and a file never
    /// ends behind what was written of it.
    ///
    /// Handles with and without it may be used on one file at once: each sees what the others wrote. While there is a
    /// [`queue`](Self::queue) of the file, nothing of it is kept in memory, and all go to the device.
    #[must_use]
    pub fn buffered(&self) -> Self {
        let volume = &self.node.volume;
        volume.start_writers();
        volume.open_files().keep(self.node.ino(), &self.data);
        // Behind that: who takes the last name lets go of what is kept then.
        if self.entry().peek().nlink() == 0 {
            volume.let_go(Some(self.node.handle.ino()));
        }
        Self { is_buffered: true, ..self.again() }
    }

    /// The same file past the page cache, which is what [`Volume::open_file`](crate::Volume::open_file) gives.
    #[must_use]
    pub fn direct(&self) -> Self {
        Self { is_buffered: false, ..self.again() }
    }

    /// Another handle, which is told of what fails from now on.
    pub(crate) fn again(&self) -> Self {
        Self { told: Arc::new(self.data.sync_cursor()), ..self.clone() }
    }

    /// Whether this handle reads and writes through the page cache.
    pub fn is_buffered(&self) -> bool {
        self.is_buffered
    }

    /// The inode's place in memory. As long as the file is open, that is of no other file.
    pub(crate) fn entry(&self) -> &Arc<InodeEntry> {
        self.node.handle.entry()
    }

    /// The file as a node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What the volume says of it.
    pub fn metadata(&self) -> Metadata {
        // While the end moves, one who asks twice must not see it go back.
        Metadata { size: self.size(), ..self.node.metadata_of(&self.entry().current()) }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.data.size()
    }

    /// Reads from byte `offset` on until `buf` is full or the file ends; gives the number of bytes. Any offset
    /// and length will do; whole sectors into an [`AlignedBuf`](crate::AlignedBuf) spare a copy.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        match self.is_buffered {
            true => Ok(self.data.read_at(offset, buf)?),
            false => Ok(self.data.read_past(offset, buf)?),
        }
    }

    /// Brings bytes into memory that will be read soon, from the device if need be: whoever reads them then, through the page
    /// cache or past it, need not wait for it, as long as somebody has the file open. A hint, of ranges of up to 4 MiB: it does
    /// nothing for more, nor where somebody else is at work on these bytes.
    pub fn will_need(&self, range: Range<u64>) -> Result<()> {
        Ok(self.data.will_need(range)?)
    }

    /// Writes `buf` over what is at byte `offset`. All of the range must lie inside the file, on blocks that were written
    /// before; otherwise nothing is written and the error says which. What other files share is written elsewhere. It goes past
    /// the page cache, whatever the handle.
    pub fn overwrite_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        self.check_unprotected()?;
        if self.overwrite_durably(buf, offset)? {
            return Ok(());
        }
        self.data.overwrite_past(offset, buf)?;
        self.written(range_of(buf, offset))
    }

    /// Writes `buf` at byte `offset`, wherever that is: over what is there, into a hole, behind the end of the file,
    /// which then grows. Space is allocated as needed.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        self.check_may_write(offset)?;
        if self.is_buffered {
            self.data.write_at(offset, buf)?;
        } else if self.overwrite_durably(buf, offset)? {
            return Ok(());
        } else {
            self.data.write_past(offset, buf)?;
        }
        self.written(range_of(buf, offset))
    }

    /// Writes `buf` behind the end of the file, wherever that is by then; gives the byte where it begins. Threads that do so
    /// at once each find a place of their own.
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.check_writable()?;
        self.check_may_write(u64::MAX)?;
        let at = match self.is_buffered {
            true => self.data.append(buf)?,
            false => self.data.append_past(buf)?,
        };
        self.written(range_of(buf, at)).map(|()| at)
    }

    /// Writes `buf` at byte `offset`, behind what there is of the file, in one step with the space that it takes; times
    /// stay as they are. Whoever else wants space nearby waits meanwhile: this is for filling a volume by oneself.
    /// Where `offset` is no whole block behind the end of the file, it is [`write_at`](Self::write_at). It goes past the page
    /// cache, whatever the handle.
    pub fn append_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        self.check_may_write(offset)?;
        self.data.fill_past(offset, buf)?;
        self.written(range_of(buf, offset))
    }

    /// Cuts the file off at `size`, or lets it end there, with a hole behind its old end.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check_writable()?;
        self.check_unprotected()?;
        if size > FILE_END_MAX {
            return Err(self.too_large(size));
        }
        self.with_room(|| Ok(self.data.set_len(size)?))?;
        self.changed()
    }

    /// See [`Volume::with_room`](crate::Volume::with_room).
    pub(crate) fn with_room<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        self.node.volume.with_room(change)
    }

    /// Sets space aside for `range`, which reads as zeroes where nothing was before. The file grows to its end, unless
    /// `keep_size`.
    pub fn allocate(&self, range: Range<u64>, keep_size: bool) -> Result<()> {
        self.check_may_write(u64::MAX)?;
        let range = self.checked(range)?;
        self.with_room(|| Ok(self.data.allocate(range.clone(), keep_size)?))?;
        self.changed()
    }

    /// Makes a hole of `range`: what it took is freed, and it reads as zeroes.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<()> {
        self.check_unprotected()?;
        let range = self.checked(range)?;
        self.with_room(|| Ok(self.data.punch_hole(range.clone())?))?;
        self.changed()
    }

    /// Makes `range` read as zeroes and keeps space set aside for it. The file grows to its end, unless `keep_size`.
    pub fn zero_range(&self, range: Range<u64>, keep_size: bool) -> Result<()> {
        self.check_unprotected()?;
        let range = self.checked(range)?;
        self.with_room(|| Ok(self.data.zero_range(range.clone(), keep_size)?))?;
        self.changed()
    }

    /// Cuts `range`, whole blocks before the end of the file, out of it: what lies behind moves to the front, one extent after
    /// the other. A crash on the way leaves some moved and some not, with a hole between, as a kernel does.
    pub fn collapse_range(&self, range: Range<u64>) -> Result<()> {
        self.check_unprotected()?;
        self.data.collapse_range(self.whole_blocks(range)?)?;
        self.changed()
    }

    /// Blocks have moved that others wait to write to. It is made durable before they may: a write in place is in no log, and
    /// would be found where the blocks were before if that was not in one either when the power goes.
    pub(crate) fn moved(&self) -> Result<()> {
        Ok(self.node.volume.engine().sync()?)
    }

    /// Puts a hole of whole blocks into the file: what lies at and behind its start moves back, one extent after the other. A
    /// crash on the way leaves some moved and some not, with a hole between, as a kernel does.
    pub fn insert_range(&self, range: Range<u64>) -> Result<()> {
        self.check_unprotected()?;
        self.data.insert_range(self.whole_blocks(range)?)?;
        self.changed()
    }

    pub(crate) fn block(&self) -> u64 {
        self.node.volume.engine().geometry().block_size.into()
    }

    pub(crate) fn too_large(&self, size: u64) -> Error {
        let what = format!(
            "inode {} cannot end at byte {size}: no file is larger than {FILE_END_MAX} bytes",
            self.node.ino()
        );
        Error::new(ErrorKind::TooLarge, what)
    }

    /// A range that may be changed: not empty, and within what a file can have.
    fn checked(&self, range: Range<u64>) -> Result<Range<u64>> {
        self.check_writable()?;
        if range.start >= range.end {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty range"));
        }
        if range.end > FILE_END_MAX {
            return Err(self.too_large(range.end));
        }
        Ok(range)
    }

    fn whole_blocks(&self, range: Range<u64>) -> Result<Range<u64>> {
        let range = self.checked(range)?;
        let block = self.block();
        if (range.start | range.end) & (block - 1) != 0 {
            let what = format!("the range must be whole blocks of {block} bytes");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(range)
    }

    /// A queue that keeps up to `depth` reads and overwrites of this file in flight, for one thread. A handle whose changes
    /// are durable when a call returns ([`syncing`](Self::syncing)) gives none.
    pub fn queue(&self, depth: u32) -> Result<Queue> {
        if self.syncing != Syncing::Later {
            let what = "a queue makes nothing durable: take one of a handle that syncs later, and sync";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let busy = || {
            let what = format!("inode {} is being read and written all the time", self.node.ino());
            Error::new(ErrorKind::Busy, what)
        };
        let attempt = |patience| self.data.pass_by(patience).transpose().ok_or(());
        let unbuffered = still::patiently(attempt).map_err(|()| busy())??;
        let queue = DirectQueue::new(Arc::clone(self.data.file()), depth)?;
        Ok(Queue { queue, _unbuffered: unbuffered, file: self.clone() })
    }

    /// Where the next data are, at or behind `offset`; `None` if there are none before the end of the file.
    /// Space that was allocated and never written counts as a hole. What is in memory alone is written back first.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.data.write_back(0..u64::MAX)?;
        self.seek(offset, true)
    }

    /// Where the next hole is, at or behind `offset`; the end of the file is one. `None` behind that.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.data.write_back(0..u64::MAX)?;
        self.seek(offset, false)
    }

    /// Extents from the start of the file to its end and behind, in order, without the holes. What is in memory alone has
    /// none yet: [`sync`](Self::sync) comes before.
    pub fn extents(&self) -> Extents<'_> {
        Extents { file: self, at: 0 }
    }

    /// What every change of content begins with. A program whose content changes loses its capabilities, as in a
    /// kernel.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.node.volume.engine().check_writable()?;
        self.content_changes()
    }

    /// The size that a change goes by. Of a file without a name it is 0 once a close has ended that: the look at the volume comes
    /// behind it.
    pub(crate) fn size_to_change(&self) -> Result<u64> {
        let size = self.size();
        self.node.volume.engine().check_writable()?;
        Ok(size)
    }

    /// Asked again once the bytes are held, if only there: whoever gives the file capabilities keeps writers out.
    pub(crate) fn content_changes(&self) -> Result<()> {
        Ok(self.data.map().content_changes()?)
    }

    /// Keeps writers out of the file, once what they are in the middle of is over.
    pub(crate) fn keep_still(&self) -> Result<HeldFile<FileMap>> {
        let attempt = |patience| self.data.hold_off_writers(patience).ok_or(());
        let (held, written) = still::patiently(attempt).map_err(|()| {
            let what = format!("writes to inode {} are still in a queue", self.node.ino());
            Error::new(ErrorKind::Busy, what)
        })?;
        written?;
        Ok(held)
    }

    /// Fails where the file was immutable or append-only when it was opened.
    pub(crate) fn check_unprotected(&self) -> Result<()> {
        match self.protection {
            None => Ok(()),
            Some(_) => {
                let now = self.node.handle.current().and_then(|inode| inode.check_unprotected());
                self.node.told_of_close(now.map_err(Error::from))
            }
        }
    }

    /// The same, but that a file that is append-only may grow.
    fn check_may_write(&self, offset: u64) -> Result<()> {
        match self.protection {
            None => Ok(()),
            Some(Protection::AppendOnly) if offset >= self.size() => Ok(()),
            Some(_) => self.check_unprotected(),
        }
    }

    fn seek(&self, offset: u64, want_data: bool) -> Result<Option<u64>> {
        let size = self.size();
        let mut at = offset;
        while at < size {
            let (extent, end) = self.bounds(at, self.data.map().lookup_to_read(at)?.extent)?;
            if is_data(extent.state) == want_data {
                return Ok(Some(at));
            }
            at = end;
        }
        self.data.map().check_not_ended()?;
        Ok((!want_data && offset < size).then_some(size))
    }

    /// The run that was found to hold byte `at`, and its end, which lies behind `at`.
    fn bounds(&self, at: u64, extent: MapExtent) -> Result<(MapExtent, u64)> {
        let end = extent.offset.saturating_add(extent.len);
        if extent.offset > at || end <= at {
            let what = format!("inode {}: damaged: block map: bad extent order", self.node.ino());
            return Err(Error::new(ErrorKind::Damaged, what));
        }
        Ok((extent, end))
    }
}

/// The bytes of a write.
fn range_of(buf: &[u8], offset: u64) -> Range<u64> {
    offset..offset.saturating_add(buf.len() as u64)
}

fn is_data(state: ExtentState) -> bool {
    matches!(state, ExtentState::Written(_) | ExtentState::Shared(_))
}

/// The extents of a file; see [`File::extents`]. After an error it ends.
#[derive(Debug)]
pub struct Extents<'a> {
    file: &'a File,
    at: u64,
}

impl Extents<'_> {
    fn step(&mut self) -> Result<Option<Extent>> {
        // Blocks may be preallocated behind the end of the file, so that the map's own end counts.
        while self.at < self.file.data.map().map_end() {
            let found = self.file.data.map().lookup_counted(self.at)?.extent;
            let (extent, end) = self.file.bounds(self.at, found)?;
            self.at = end;
            let (physical, unwritten, shared) = match extent.state {
                ExtentState::Hole => continue,
                ExtentState::Unwritten(physical) => (physical, true, false),
                ExtentState::Written(physical) => (physical, false, false),
                ExtentState::Shared(physical) => (physical, false, true),
            };
            return Ok(Some(Extent {
                logical: extent.offset,
                physical,
                length: extent.len,
                unwritten,
                shared,
            }));
        }
        self.file.data.map().check_not_ended()?;
        Ok(None)
    }
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.at = u64::MAX;
        }
        step.transpose()
    }
}
