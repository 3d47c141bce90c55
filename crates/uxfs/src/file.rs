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

/// An open regular file. Any number of threads may share a `File`, or have one each: all handles of a file from one
/// [`Volume`](crate::Volume) share its range lock. Requests that don't overlap never wait for each other.
#[derive(Clone)]
pub struct File {
    // Dropped in this order: the volume comes last, with the claim to its device.
    _open: Arc<Opened>,
    pub(crate) data: Arc<Data>,
    pub(crate) node: Node,
    /// As it was when the file was opened, like in the kernel.
    protection: Option<Protection>,
    /// Whether this handle reads and writes through the page cache.
    is_buffered: bool,
    /// When changes through this handle become durable.
    pub(crate) syncing: Syncing,
    /// The write-back failures up to here were reported to this handle.
    pub(crate) told: Arc<SyncCursor>,
}

/// Shared by all copies of a handle: when the last copy is dropped, the handle is closed. The file may stay open for
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
    /// Length in bytes; the last extent may reach past the end of the file.
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

    /// A file that is already open, with its map.
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
        // The open file of this number may be a newer one.
        if !data.map().is_of(&node.handle) {
            return Err(xfs::Error::Stale(node.handle.ino()).into());
        }
        let protection = node.handle.current()?.protection();
        let told = Arc::new(data.sync_cursor());
        let _open = Arc::new(Opened(Arc::clone(&data)));
        Ok(Self { node, data, _open, protection, is_buffered: false, syncing: Syncing::Later, told })
    }

    /// The same file through the page cache: [`write_at`](Self::write_at) and [`append`](Self::append) return when the bytes
    /// are in memory, and threads of the volume write them back later, in large requests. [`sync`](Self::sync) does so
    /// at once. [`read_at`](Self::read_at) keeps what it reads in memory. A lack of space is reported by the write.
    /// After a crash, each block that was not synced is as before or after some write, and a file never ends past what
    /// was written to the device.
    ///
    /// Handles with and without it may be used on one file at once: each sees what the others wrote. While the file
    /// has a [`queue`](Self::queue), nothing of it is cached, and all requests go to the device.
    #[must_use]
    pub fn buffered(&self) -> Self {
        let volume = &self.node.volume;
        volume.start_writers();
        volume.open_files().keep(self.node.ino(), &self.data);
        // After the open: removing the last name drops the pages.
        if self.entry().snapshot().nlink() == 0 {
            volume.let_go(Some(self.node.handle.ino()));
        }
        Self { is_buffered: true, ..self.again() }
    }

    /// The same file past the page cache, which is what [`Volume::open_file`](crate::Volume::open_file) gives.
    #[must_use]
    pub fn direct(&self) -> Self {
        Self { is_buffered: false, ..self.again() }
    }

    /// A new handle, which gets the failures from now on.
    pub(crate) fn again(&self) -> Self {
        Self { told: Arc::new(self.data.sync_cursor()), ..self.clone() }
    }

    /// Whether this handle reads and writes through the page cache.
    pub fn is_buffered(&self) -> bool {
        self.is_buffered
    }

    /// The inode in memory. While the file is open, it belongs to no other file.
    pub(crate) fn entry(&self) -> &Arc<InodeEntry> {
        self.node.handle.entry()
    }

    /// The file as a node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Its metadata.
    pub fn metadata(&self) -> Metadata {
        self.node.metadata_of_any()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        // It is read where a stat by path reads it, in the same order. So while the end moves, nobody who asks both sees
        // it move back.
        let (in_memory, inode) = self.entry().with_version();
        inode.size().max(in_memory.size)
    }

    /// Reads from byte `offset` on until `buf` is full or the file ends; gives the number of bytes. Any offset
    /// and length will do; whole sectors into an [`AlignedBuf`](crate::AlignedBuf) save a copy.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        match self.is_buffered {
            true => Ok(self.data.read_at(offset, buf)?),
            false => Ok(self.data.read_past(offset, buf)?),
        }
    }

    /// Starts to read bytes that will be needed soon into memory. Later reads, buffered or direct, need not wait for
    /// the device, as long as the file is open somewhere. A hint, for ranges of up to 4 MiB: it does nothing for longer
    /// ones, or while another request holds these bytes.
    pub fn will_need(&self, range: Range<u64>) -> Result<()> {
        Ok(self.data.will_need(range)?)
    }

    /// Overwrites the file with `buf` at byte `offset`. The whole range must lie inside the file, on blocks that were
    /// written before. Otherwise nothing is written, and the error names the offset. Shared blocks are copied on write.
    /// It is a direct write on any handle.
    pub fn overwrite_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        self.check_unprotected()?;
        if self.overwrite_durably(buf, offset)? {
            return Ok(());
        }
        self.data.overwrite_past(offset, buf)?;
        self.written(range_of(buf, offset))
    }

    /// Writes `buf` at byte `offset`: over old data, into a hole, or past the end of the file, which then grows.
    /// Space is allocated as needed. To a file that was append-only when it was opened, only at its end or behind it,
    /// wherever that is by then: [`ErrorKind::Protected`].
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        if self.has_grown_by(buf, offset, self.is_buffered)? {
            return self.written(range_of(buf, offset));
        }
        self.check_unprotected()?;
        if self.is_buffered {
            self.data.write_at(offset, buf)?;
        } else if self.overwrite_durably(buf, offset)? {
            return Ok(());
        } else {
            self.data.write_past(offset, buf)?;
        }
        self.written(range_of(buf, offset))
    }

    /// Appends `buf` to the file, and gives the byte where it begins. Threads that append at the same time each get a
    /// range of their own.
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.check_writable()?;
        self.check_may_grow()?;
        let at = match self.is_buffered {
            true => self.data.append(buf)?,
            false => self.data.append_past(buf)?,
        };
        self.written(range_of(buf, at)).map(|()| at)
    }

    /// Writes `buf` at byte `offset`, past the end of the file, and allocates its space in the same step. Times stay
    /// unchanged. Others that need space nearby wait meanwhile: this is for filling a volume alone. If `offset` is not
    /// a whole block past the end of the file, it is [`write_at`](Self::write_at). It is a direct write on any handle.
    pub fn append_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        if self.has_grown_by(buf, offset, false)? {
            return self.written(range_of(buf, offset));
        }
        self.check_unprotected()?;
        self.data.fill_past(offset, buf)?;
        self.written(range_of(buf, offset))
    }

    /// Truncates the file to `size`, or extends it with a hole.
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

    /// Preallocates space for `range`. Holes in it read as zeroes as before. The file grows to its end, unless
    /// `keep_size`.
    pub fn allocate(&self, range: Range<u64>, keep_size: bool) -> Result<()> {
        self.check_may_grow()?;
        let range = self.checked(range)?;
        self.with_room(|| Ok(self.data.allocate(range.clone(), keep_size)?))?;
        self.changed()
    }

    /// Punches a hole: the blocks of `range` are freed, and it reads as zeroes.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<()> {
        self.check_unprotected()?;
        let range = self.checked(range)?;
        self.with_room(|| Ok(self.data.punch_hole(range.clone())?))?;
        self.changed()
    }

    /// Makes `range` read as zeroes, and keeps or allocates its space. The file grows to its end, unless
    /// `keep_size`.
    pub fn zero_range(&self, range: Range<u64>, keep_size: bool) -> Result<()> {
        self.check_unprotected()?;
        let range = self.checked(range)?;
        self.with_room(|| Ok(self.data.zero_range(range.clone(), keep_size)?))?;
        self.changed()
    }

    /// Removes `range`, whole blocks before the end of the file: what follows moves down, one extent after the other. A
    /// crash on the way leaves some extents moved and some not, with a hole in between, as with a kernel.
    pub fn collapse_range(&self, range: Range<u64>) -> Result<()> {
        self.check_unprotected()?;
        self.data.collapse_range(self.whole_blocks(range)?)?;
        self.changed()
    }

    /// Others may wait to write to the moved blocks. The move is made durable first: writes in place are not logged,
    /// and if a crash undid the move, they would end up at the old offset.
    pub(crate) fn moved(&self) -> Result<()> {
        Ok(self.node.volume.engine().sync()?)
    }

    /// Inserts a hole of whole blocks: what follows moves up, one extent after the other. A crash on the way leaves
    /// some extents moved and some not, with a hole in between, as with a kernel.
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

    /// A valid range for a change: not empty, and within the largest file.
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

    /// A queue that keeps up to `depth` reads and overwrites of this file in flight, for one thread. A handle with
    /// durable changes ([`syncing`](Self::syncing)) has no queues.
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

    /// The next data at or after `offset`; `None` if there are none before the end of the file. Unwritten space
    /// counts as a hole. Dirty pages are written back first.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, true)
    }

    /// The next hole at or after `offset`; the end of the file counts as one. `None` past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, false)
    }

    /// The extents of the file, also past its end, in order, without holes. Dirty pages have none yet: call
    /// [`sync`](Self::sync) before.
    pub fn extents(&self) -> Extents<'_> {
        Extents { file: self, at: 0 }
    }

    /// The start of every change of content. A program loses its capabilities when its content changes, as in a
    /// kernel.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.node.volume.engine().check_writable()?;
        self.content_changes()
    }

    /// The size for a change. A file without a name that a close has freed has size 0, so the volume is checked after
    /// it.
    pub(crate) fn size_to_change(&self) -> Result<u64> {
        let size = self.size();
        self.node.volume.engine().check_writable()?;
        Ok(size)
    }

    /// Checked again once the bytes are held: setting capabilities keeps writers out.
    pub(crate) fn content_changes(&self) -> Result<()> {
        Ok(self.data.map().content_changes()?)
    }

    /// Keeps writers out of the file, after waiting for those in progress.
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

    /// The same, but an append-only file may grow.
    fn check_may_grow(&self) -> Result<()> {
        match self.protection {
            Some(Protection::AppendOnly) => Ok(()),
            _ => self.check_unprotected(),
        }
    }

    /// A write to a file that was append-only when it was opened, if it begins behind all that is there once the end of
    /// the file is held. Otherwise nothing is written.
    fn has_grown_by(&self, buf: &[u8], offset: u64, is_buffered: bool) -> Result<bool> {
        match self.protection {
            Some(Protection::AppendOnly) if is_buffered => Ok(self.data.write_behind_end(offset, buf)?),
            Some(Protection::AppendOnly) => Ok(self.data.write_past_behind_end(offset, buf)?),
            _ => Ok(false),
        }
    }

    fn seek(&self, offset: u64, want_data: bool) -> Result<Option<u64>> {
        // Before the pages are written back: what is appended behind it stays in memory, where the map has a hole.
        let size = self.size();
        self.data.write_back(0..u64::MAX)?;
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

    /// The bounds of a run that holds byte `at`; its end is greater than `at`.
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
        // Blocks may be preallocated past the end of the file, so the map's end counts.
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
