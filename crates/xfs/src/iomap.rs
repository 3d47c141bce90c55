//! The map of one open file, as the data path looks it up.
//!
//! A lookup is a binary search in the committed version of the map, which is immutable: it takes no lock, allocates
//! nothing and writes no shared cache line. For writes to a file that may share blocks, the set of shared blocks is
//! such a list too, made at first use (`inode::cow_state`).
//!
//! Invariant: as long as a [`FileMap`] lives, its file is not freed. Dropping the last map of a file without names
//! frees the file. This module knows files and their ends, and no names.

use crate::error::{Error, Result};
use crate::file::{self, AllocatedRuns, MapUpdate};
use crate::ifork::{ExtentList, Mapped};
use crate::inactive;
use crate::inode::{ForkKind, Inode, InodeEntry, InodeHandle, Life};
use crate::mount::Mount;
use crate::refcount::SharedRun;
use crate::setattr;
use blockdev::DeviceError;
use fileio::testing::point;
use fileio::{
    CopyOnWrite, DelayedAllocation, Extent, ExtentState, FileMapping, FileMappingMut, FileSpace, MapLookup,
    MapSeq, Staged,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use xfs_format::types::{FileBlock, FsBlock};

/// A regular file's map, ready for use.
#[derive(Debug)]
pub struct FileMap {
    volume: Arc<Mount>,
    entry: Arc<InodeEntry>,
    life: Life,
    /// Set once it is known that no unmarked block of the file is shared.
    marked: OnceLock<()>,
    /// Whether the end of the file has begun. Dropping the map completes it.
    ends: AtomicBool,
}

/// The map of a regular file, for the data path. It keeps the file open.
pub fn file_map(mount: &Arc<Mount>, inode: &Inode) -> Result<FileMap> {
    open_file(mount, &InodeHandle::new(mount.entry(inode.ino())?, inode))
}

/// The same, for a file that was looked up.
pub fn open_file(mount: &Arc<Mount>, file: &InodeHandle) -> Result<FileMap> {
    FileMap::new(Arc::clone(mount), file)
}

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug)]
struct BlockRange {
    start: u64,
    end: u64,
}

impl FileMap {
    /// Loads the map of an inode, which must be a regular file, and opens the file: meanwhile it is not freed, whether
    /// it has names or not.
    pub(crate) fn new(mount: Arc<Mount>, file: &InodeHandle) -> Result<Self> {
        let entry = Arc::clone(file.entry());
        if !file.current()?.is_file() {
            return Err(Error::WrongType { inode: entry.ino(), wanted: "regular file" });
        }
        point("a file is about to be opened");
        let shared = entry.ilock_shared();
        if !entry.open(file.life(), &shared) {
            return Err(Error::Stale(entry.ino()));
        }
        let map = Self::of(mount, entry, file.life());
        // Later versions take over the map from this one. Its blocks are read while nobody changes them.
        let loaded = map.extents();
        drop(shared);
        loaded?;
        Ok(map)
    }

    /// The file's inode, as it is now.
    pub fn inode(&self) -> Arc<Inode> {
        self.entry.current()
    }

    /// The map of a file that is being made without a name. The caller has the inode locked, so nobody else opens the
    /// file, and thus ends it, before this.
    pub(crate) fn of_new(mount: Arc<Mount>, made: &InodeHandle) -> Self {
        made.entry().count_open();
        Self::of(mount, Arc::clone(made.entry()), made.life())
    }

    fn of(mount: Arc<Mount>, entry: Arc<InodeEntry>, life: Life) -> Self {
        Self { volume: mount, entry, life, marked: OnceLock::new(), ends: AtomicBool::new(false) }
    }

    /// A handle of the file was closed; the file may stay open. Logs times that are only in memory, and frees unclaimed
    /// space that is staged for copies. What fails here is done when the file is closed.
    pub fn handle_closed(&self) {
        if self.volume.is_writable() && file::has_name(&self.entry) {
            let _ = file::log_times(&self.volume, &self.entry);
            let _ = file::cancel_cow(&self.volume, &self.entry, FileBlock(0)..FileBlock(u64::MAX));
        }
    }

    /// Begins the end of a file without names that is open only by this map, which the caller then drops. From then on
    /// nobody opens the file, and the drop frees it. Returns `false` if that is not the case, or if finding out would
    /// mean waiting.
    pub fn begin_end(&self) -> bool {
        // Its staged blocks can be freed only while the file is open.
        let may_end = self.volume.is_writable() && self.entry.cow_if_any().is_none();
        let ends = may_end && self.entry.begin_inactivation_by_last(self.life);
        self.ends.fetch_or(ends, Ordering::AcqRel);
        ends
    }

    /// Whether it is the map of the file that `file` stands for.
    pub fn is_of(&self, file: &InodeHandle) -> bool {
        Arc::ptr_eq(&self.entry, file.entry()) && self.life == file.life()
    }

    /// The file's inode with its lock.
    pub fn entry(&self) -> &Arc<InodeEntry> {
        &self.entry
    }

    /// The end of the last mapped block in bytes. It may lie before or past the end of the file.
    pub fn map_end(&self) -> u64 {
        self.extents().map_or(0, |extents| self.bytes(extents.end()))
    }

    /// The committed map.
    fn extents(&self) -> Result<Arc<ExtentList>> {
        self.volume.extents(&self.entry.snapshot(), ForkKind::Data)
    }

    /// A block's first byte. Files have no bytes beyond 2^64, whatever their maps say.
    fn bytes(&self, block: FileBlock) -> u64 {
        let log = self.volume.geometry().block_log;
        if block.0 > u64::MAX >> log { u64::MAX } else { block.0 << log }
    }

    fn hole(&self, start: FileBlock, end: Option<FileBlock>) -> Extent {
        let offset = self.bytes(start);
        let end = end.map_or(u64::MAX, |end| self.bytes(end));
        Extent { offset, len: end - offset, state: ExtentState::Hole }
    }

    /// An extent of the map as a run of bytes.
    fn mapped(&self, extent: xfs_format::bmbt::Extent) -> Extent {
        let geometry = self.volume.geometry();
        // Extents were checked when the list was made; a start within one stays within its group.
        let daddr = geometry.split_block(extent.startblock).map_or(0, |(ag, at)| geometry.daddr_of(ag, at).0);
        let device = daddr << 9;
        let state =
            if extent.unwritten { ExtentState::Unwritten(device) } else { ExtentState::Written(device) };
        let offset = self.bytes(extent.startoff);
        Extent { offset, len: self.bytes(extent.end()) - offset, state }
    }

    /// The part of a mapped extent from `block` on that is completely shared or not at all, as far as is known.
    fn cut_at_sharing(
        &self,
        inode: &Inode,
        extent: xfs_format::bmbt::Extent,
        block: FileBlock,
    ) -> Result<Extent> {
        if extent.unwritten || !inode.is_reflinked() {
            self.check_unmarked(inode)?;
            return Ok(self.mapped(extent));
        }
        let known = |from, left| self.entry.cow_if_any().and_then(|cow| cow.run(from, left));
        self.cut_at(extent, block, |from, left| match known(from, left) {
            Some(run) => Ok(run),
            None => file::known_run(&self.volume, &self.entry, from, left),
        })
    }

    /// The part of a written extent from `block` on that is completely shared or not at all. `run` returns what is
    /// known of a number of blocks from a block on.
    fn cut_at(
        &self,
        extent: xfs_format::bmbt::Extent,
        block: FileBlock,
        run: impl FnOnce(FsBlock, u64) -> Result<SharedRun>,
    ) -> Result<Extent> {
        let whole = self.mapped(extent);
        let ExtentState::Written(device) = whole.state else { return Ok(whole) };
        let skip = block.0 - extent.startoff.0;
        let (from, left) = (FsBlock(extent.startblock.0 + skip), extent.end().0 - block.0);
        let run = run(from, left)?;
        let blocks = BlockRange { start: block.0, end: block.0 + run.blocks.clamp(1, left) };
        Ok(self.part(blocks, device + (skip << self.volume.geometry().block_log), run.shared))
    }

    /// The mapping of byte `offset`, and whether others have it as well, according to the refcount tree now.
    pub fn lookup_counted(&self, offset: u64) -> Result<MapLookup> {
        // So nobody is in the middle of a change whose refcounts are still to be updated.
        let _still = self.entry.ilock_shared();
        self.find(offset, |inode, block, mapped| match mapped {
            Mapped::Hole(start, end) => Ok(self.hole(start, end)),
            Mapped::Extent(extent) if !inode.is_reflinked() => Ok(self.mapped(extent)),
            Mapped::Extent(extent) => {
                self.cut_at(extent, block, |from, left| self.volume.sharing().run(from, left))
            }
        })
    }

    /// Checks once, before writes to a file, that nothing is shared that is not marked as such: no block of a file
    /// without the reflink flag, and no unwritten block. Blocks that it gets later were free.
    #[inline]
    fn check_unmarked(&self, inode: &Inode) -> Result<()> {
        match self.marked.get() {
            Some(()) => Ok(()),
            None => self.look_for_unmarked(inode),
        }
    }

    #[cold]
    fn look_for_unmarked(&self, inode: &Inode) -> Result<()> {
        if self.volume.is_writable() && self.volume.geometry().reflink {
            // Otherwise blocks that leave the map meanwhile might be shared by others at once.
            let _still = self.entry.ilock_shared();
            let extents = self.extents()?;
            match inode.is_reflinked() {
                false => self.volume.check_unmarked(&self.entry, FileBlock(0)..FileBlock(u64::MAX))?,
                // Unwritten blocks are written in place, so they must belong only to this file.
                true => {
                    for extent in extents.iter().filter(|extent| extent.unwritten) {
                        let blocks = extent.startoff..extent.end();
                        self.volume.sharing().check(self.entry.ino(), &extents, blocks)?;
                    }
                }
            }
        }
        let _first = self.marked.set(());
        Ok(())
    }

    /// Blocks of an extent that are all shared or all not, the first of them at this byte of the device.
    fn part(&self, blocks: BlockRange, device: u64, shared: bool) -> Extent {
        let offset = self.bytes(FileBlock(blocks.start));
        let state = if shared { ExtentState::Shared(device) } else { ExtentState::Written(device) };
        Extent { offset, len: self.bytes(FileBlock(blocks.end)) - offset, state }
    }

    /// Finds the mapping of byte `offset` in the committed map. `then` converts it.
    fn find(
        &self,
        offset: u64,
        then: impl FnOnce(&Inode, FileBlock, Mapped) -> Result<Extent>,
    ) -> Result<MapLookup> {
        // First the version, then the map. So a change in between is noticed, at worst needlessly.
        let seq = self.seq();
        let block = FileBlock(offset >> self.volume.geometry().block_log);
        let inode = self.entry.snapshot();
        let mapped = match inode.fork_state(ForkKind::Data).and_then(|fork| fork.loaded()) {
            Some(extents) => extents.lookup(block),
            None => self.volume.extents(&inode, ForkKind::Data)?.lookup(block),
        };
        let extent = then(&inode, block, mapped)?;
        Ok(MapLookup { extent, size: inode.size(), seq })
    }

    /// Closing the volume ends open files without names. After that, nothing can be looked up in them.
    #[inline]
    pub fn check_not_ended(&self) -> Result<()> {
        if self.entry.has_ended(self.life) { self.say_ended() } else { Ok(()) }
    }

    #[cold]
    fn say_ended(&self) -> Result<()> {
        self.volume.check_writable()?;
        Err(Error::Stale(self.entry.ino()))
    }

    #[cold]
    fn drop_capabilities(&self) -> Result<()> {
        let file = InodeHandle::new(Arc::clone(&self.entry), &self.entry.current());
        let dropped = setattr::drop_capabilities(&self.volume, &file, self.volume.now());
        dropped.or_else(|error| self.check_not_ended().and(Err(error)))
    }

    /// See [`FileMappingMut::allocate`] and [`DelayedAllocation::allocate_to_write_back`].
    fn provide(&self, range: Range<u64>, told: MapUpdate) -> Result<()> {
        let blocks = self.blocks(&range);
        file::check_room_with_copies(&self.volume, &self.entry, &blocks)?;
        let given = file::allocate_blocks(&self.volume, &self.entry, blocks.clone())?;
        let prepared = file::allocate_cow(&self.volume, &self.entry, blocks.clone(), told);
        // Last, because it may cut extents of the map, and nobody joins them again.
        let prepared = prepared.and_then(|()| match told {
            MapUpdate::AtOnce => file::prepare_blocks(&self.volume, &self.entry, &blocks),
            MapUpdate::InParts => file::owe_blocks(&self.volume, &self.entry, &blocks),
        });
        if let Err(error) = &prepared {
            self.give_up(range);
            if error.is_refusal() {
                file::take_back(&self.volume, &self.entry, given)?;
            }
        }
        prepared
    }

    fn blocks(&self, bytes: &Range<u64>) -> Range<FileBlock> {
        let log = self.volume.geometry().block_log;
        debug_assert_eq!((bytes.start | bytes.end) & ((1 << log) - 1), 0, "whole blocks");
        FileBlock(bytes.start >> log)..FileBlock(bytes.end >> log)
    }
}

impl Drop for FileMap {
    /// Closing the last map of a file without names frees it. What fails here is left to recovery, as after a crash.
    fn drop(&mut self) {
        if *self.ends.get_mut() {
            let _ = inactive::inactivate_ending(&self.volume, &self.entry, self.life);
            return;
        }
        if self.volume.is_writable() && file::has_name(&self.entry) {
            let _ = file::log_times(&self.volume, &self.entry);
        }
        let last = self.entry.close(self.life);
        point("a file is closed");
        if last && self.entry.cow_if_any().is_some() {
            let _ = file::cancel_cow(&self.volume, &self.entry, FileBlock(0)..FileBlock(u64::MAX));
        }
        if last && self.volume.is_writable() {
            let _ = inactive::release_if_unused(&self.volume, &self.entry);
        }
    }
}

impl FileMapping for FileMap {
    type Error = Error;

    fn size(&self) -> u64 {
        self.entry.snapshot().size()
    }

    fn block_size(&self) -> u32 {
        self.volume.geometry().block_size
    }

    fn lookup(&self, offset: u64) -> Result<MapLookup> {
        // The caller holds the range lock, or looks up again: see `seq`.
        if self.volume.has_stopped_writes() {
            self.volume.check_writable()?;
        }
        self.find(offset, |inode, block, mapped| match mapped {
            Mapped::Hole(start, end) => Ok(self.hole(start, end)),
            Mapped::Extent(extent) => self.cut_at_sharing(inode, extent, block),
        })
    }

    fn lookup_to_read(&self, offset: u64) -> Result<MapLookup> {
        let found = self.find(offset, |_, _, mapped| match mapped {
            Mapped::Hole(start, end) => Ok(self.hole(start, end)),
            Mapped::Extent(extent) => Ok(self.mapped(extent)),
        })?;
        // After the lookup, because ending a file empties its map.
        self.check_not_ended()?;
        Ok(found)
    }

    #[inline]
    fn check_read(&self) -> Result<()> {
        // Order the data read before this check: the end of a file is announced before its blocks belong to another.
        fence(Ordering::Acquire);
        self.check_not_ended()
    }

    /// Changes also when the volume begins to be closed or was shut down. So whoever looked up before that and gets the
    /// range now looks up again.
    #[inline]
    fn seq(&self) -> MapSeq {
        MapSeq(self.entry.map_version() << 1 | u64::from(self.volume.has_stopped_writes()))
    }

    /// A program whose content changes loses its capabilities.
    #[inline]
    fn content_changes(&self) -> Result<()> {
        if self.entry.may_be_privileged() { self.drop_capabilities() } else { Ok(()) }
    }

    fn overwritten(&self) {
        self.entry.overwritten().note(self.life);
    }

    fn give_up(&self, range: Range<u64>) {
        let blocks = self.blocks(&range);
        file::cancel_cow_claims(&self.volume, &self.entry, &blocks);
        file::abandon_delalloc(&self.volume, &self.entry, &blocks);
    }

    fn copy_on_write(&self) -> Option<&dyn CopyOnWrite<Error = Error>> {
        let can = self.volume.is_writable() && self.volume.geometry().reflink;
        can.then_some(self)
    }
}

impl CopyOnWrite for FileMap {
    type Error = Error;

    fn stage(&self, range: Range<u64>) -> Result<()> {
        file::allocate_cow(&self.volume, &self.entry, self.blocks(&range), MapUpdate::AtOnce)
    }

    fn staged(&self, offset: u64) -> Result<Option<Staged>> {
        let log = self.volume.geometry().block_log;
        let Some(extent) = file::staged_copy(&self.entry, FileBlock(offset >> log)) else {
            return Ok(None);
        };
        let found = self.mapped(extent);
        let (ExtentState::Written(device) | ExtentState::Unwritten(device)) = found.state else {
            return Ok(None);
        };
        let skip = offset - found.offset;
        Ok(Some(Staged { device: device + skip, len: found.len - skip }))
    }

    fn replace(&self, range: Range<u64>) -> Result<()> {
        file::end_cow(&self.volume, &self.entry, self.blocks(&range), MapUpdate::AtOnce)
    }

    fn unstage(&self, range: Range<u64>) {
        file::cancel_cow_claims(&self.volume, &self.entry, &self.blocks(&range));
    }
}

impl FileMappingMut for FileMap {
    fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.provide(range, MapUpdate::AtOnce)
    }

    fn written(&self, range: Range<u64>, size: Option<u64>) -> Result<()> {
        file::end_cow(&self.volume, &self.entry, self.blocks(&range), MapUpdate::AtOnce)?;
        file::convert_unwritten(&self.volume, &self.entry, self.blocks(&range), size, self.volume.now())
    }

    fn data_behind_end(&self, to: u64) -> Result<bool> {
        let to = FileBlock(to.div_ceil(self.block_size().into()));
        file::has_data_behind_end(&self.volume, &self.entry, to)
    }

    fn free_behind_end(&self) -> Result<()> {
        file::free_data_behind_end(&self.volume, &self.entry)
    }

    fn fill(
        &self,
        range: Range<u64>,
        size: u64,
        write: &mut dyn FnMut(u64, u64, u64) -> std::result::Result<(), DeviceError>,
    ) -> Result<()> {
        file::fill_blocks(&self.volume, &self.entry, self.blocks(&range), size, &mut |extent| {
            let found = self.mapped(extent);
            let (ExtentState::Written(device) | ExtentState::Unwritten(device)) = found.state else {
                return Ok(());
            };
            Ok(write(found.offset, device, found.len)?)
        })
    }
}

impl DelayedAllocation for FileMap {
    fn reserve(&self, range: Range<u64>) -> Result<()> {
        file::reserve_delalloc(&self.volume, &self.entry, self.blocks(&range))
    }

    fn unreserve(&self, bytes: u64) {
        file::cancel_delalloc(&self.volume, &self.entry, bytes >> self.volume.geometry().block_log);
    }

    fn allocate_to_write_back(&self, range: Range<u64>) -> Result<()> {
        self.provide(range, MapUpdate::InParts)
    }

    fn allocate_reserved(&self, range: Range<u64>) -> Result<()> {
        file::convert_delalloc(&self.volume, &self.entry, self.blocks(&range))
    }

    fn written_back(&self, range: Range<u64>, size: Option<u64>) -> Result<()> {
        file::end_cow(&self.volume, &self.entry, self.blocks(&range), MapUpdate::InParts)?;
        file::convert_written_back(&self.volume, &self.entry, self.blocks(&range), size)
    }

    fn ends_in_memory_at(&self, size: Option<u64>) {
        if size.is_some() || self.entry.delalloc_if_any().is_some() {
            // Identified by the map's address: if two users have the file open and one closes it, each knows which size
            // is its own.
            self.entry.delalloc().set_size(std::ptr::from_ref(self).addr(), size);
        }
    }

    fn lacks_space(error: &Error) -> bool {
        matches!(error, Error::NoSpace)
    }
}

impl FileSpace for FileMap {
    type Given = AllocatedRuns;

    fn check_changeable(&self) -> Result<()> {
        self.volume.check_writable()
    }

    fn check_pieces(&self) -> Result<()> {
        file::check_block_change(&self.volume, &self.entry)
    }

    fn set_aside(&self, range: Range<u64>) -> Result<AllocatedRuns> {
        file::allocate_blocks(&self.volume, &self.entry, self.blocks(&range))
    }

    fn take_back(&self, given: AllocatedRuns) -> Result<()> {
        file::take_back(&self.volume, &self.entry, given)
    }

    fn was_set_aside(&self, size: Option<u64>) -> Result<()> {
        file::space_set_aside(&self.volume, &self.entry, size, self.volume.now())
    }

    fn free(&self, range: Range<u64>) -> Result<()> {
        file::remove_blocks(&self.volume, &self.entry, self.blocks(&range), self.volume.now())
    }

    fn blank(&self, range: Range<u64>) -> Result<()> {
        file::mark_unwritten(&self.volume, &self.entry, self.blocks(&range), self.volume.now())
    }

    fn cut(&self, size: u64) -> Result<()> {
        file::truncate_blocks(&self.volume, &self.entry, size, self.volume.now())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        file::set_size(&self.volume, &self.entry, size, self.volume.now())
    }

    fn collapse(&self, range: Range<u64>, size: u64) -> Result<()> {
        file::collapse_blocks(&self.volume, &self.entry, self.blocks(&range), size, self.volume.now())
    }

    fn insert(&self, range: Range<u64>, size: u64) -> Result<()> {
        file::insert_blocks(&self.volume, &self.entry, self.blocks(&range), size, self.volume.now())
    }

    fn make_durable(&self) -> Result<()> {
        self.volume.sync()
    }

    fn space_end(&self) -> u64 {
        self.map_end()
    }

    fn is_refusal(error: &Error) -> bool {
        error.is_refusal()
    }
}
